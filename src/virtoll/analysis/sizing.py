"""How many instances and hosts so many users take, from what deployments carried and used: exact but for the blocks.

With h of the capacity kept free, an instance gets (1 - h) of the users that it carried, and so uses about (1 - h) of
the CPUs that it used there; a host gives (1 - h) of its CPUs and memory. Per host

    instances = floor(min(CPUs / CPUs of an instance at what it carried, (1 - h) memory / its peak memory))

and at most (1 - h) of the idle instances that such a host held at once, where that was measured: no host holds more of
those that work.

Everything is computed anew for each of many draws of the blocks' means, so whole instances and whole hosts are counted
in each. A draw adds to the mean of logarithms the blocks' departures from it, all quantities of a block with one
weight: so what a block has to say of users, CPU time and memory stays together (the multiplier bootstrap: van der Vaart
and Wellner, Weak Convergence and Empirical Processes, 1996, 2.9). With normal weights, over the root of a chi-square
draw per degree of freedom, each mean is Student's t about what was measured with n - 1 of them, however few the blocks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from virtoll.analysis.estimates import LEVEL, Floats

DRAWS = 10_000
_SEED = 1  # the same figures from the same run
_FARTHEST = 300.0  # of a logarithm, from 0: beyond lies nothing that anybody measures, and soon no number
_PRICE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*/\s*(hour|day|month|year)\s*")


@dataclass(frozen=True)
class Deployment:
    """What one deployment carried under its objective, and used there; None: not known."""

    block: int
    users: float
    cpus: float | None
    memory_bytes: float | None


@dataclass(frozen=True)
class Asked:
    """What is to be planned for. ``headroom``: the share that is kept free, of what instances carry and hosts have."""

    users: int
    headroom: float
    host_cpus: float
    host_memory_bytes: float


@dataclass(frozen=True)
class Price:
    """Of a host, in whatever currency: ``0.05/hour``."""

    amount: float
    per: str

    @classmethod
    def parse(cls, text: str) -> Price:
        """ValueError says what would be right."""
        match = _PRICE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no price: write that of a host as 0.05/hour (or /day, /month, /year)")
        return cls(float(match[1]), match[2])


@dataclass(frozen=True)
class Span:
    """A number with its 95 % interval; without one where there is one block. inf: not with any number."""

    value: float
    low: float | None
    high: float | None

    def times(self, factor: float) -> Span:
        """The same of as many times as much."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Span(self.value * factor, low, high)


@dataclass(frozen=True)
class Size:
    """A plan for one arm. What hosts are needed is None where CPU time or memory is not known."""

    blocks: int
    carried: Span  # users of an instance, with nothing kept free
    users: Span  # with headroom: whole users of an instance
    instances: Span
    cpus: Span | None = None  # of an instance at what it carried
    memory_bytes: Span | None = None
    per_host: Span | None = None  # instances
    hosts: Span | None = None
    bound_by: str = ""  # "CPUs", "memory" or "density": what a host runs out of first


def size(deployments: Sequence[Deployment], asked: Asked, held: Sequence[float] = ()) -> Size:
    """The plan. ``held``: of each block of another run how many idle instances such a host held at once; of one block
    it is in no interval. ValueError without a deployment, or where one carried nobody.
    """
    if not deployments or any(each.users <= 0 for each in deployments):
        raise ValueError("no deployment, or one that carried nobody")
    whole = all(each.cpus and each.memory_bytes for each in deployments)
    logs = _by_block(deployments)
    centre, drawn = _drawn(logs, _SEED)
    packed = _packed(held, len(drawn))
    both = zip((centre[None], drawn), packed, strict=True)
    point, many = (_instances(np.exp(logs), np.exp(of_host), asked) for logs, of_host in both)
    carried, users, instances = (_span(point[name], many[name]) for name in ("carried", "users", "instances"))
    if not whole:
        return Size(len(logs), carried, users, instances)
    cpus, memory, per_host, hosts = (_span(point[n], many[n]) for n in ("cpus", "memory", "per_host", "hosts"))
    bounds = {"CPUs": point["by_cpus"][0], "memory": point["by_memory"][0], "density": point["by_density"][0]}
    first = min(bounds, key=lambda name: bounds[name])
    return Size(len(logs), carried, users, instances, cpus, memory, per_host, hosts, first)


def _by_block(deployments: Sequence[Deployment]) -> Floats:
    """Logarithms of (users, CPUs, memory), a row a block: native's several deployments in one are one observation."""
    rows: dict[int, list[tuple[float, float, float]]] = {}
    for each in deployments:
        rows.setdefault(each.block, []).append((each.users, each.cpus or 1.0, each.memory_bytes or 1.0))
    return np.array([np.log(of).mean(axis=0) for of in rows.values()])


def _packed(held: Sequence[float], draws: int) -> tuple[Floats, Floats]:
    """The logarithm of how many a host held, and of as many draws of it; drawn by themselves, for another run's
    blocks are other ones. Endless, where nobody knows.
    """
    if not held:
        return np.array([np.inf]), np.full(draws, np.inf)
    centre, drawn = _drawn(np.log(np.array(held))[:, None], _SEED + 1)
    return centre, drawn[:draws, 0] if len(drawn) else np.full(draws, centre[0])


def _drawn(logs: Floats, seed: int) -> tuple[Floats, Floats]:
    """The mean over blocks of [block, quantity], and [draw, quantity] of draws about it; none of one block."""
    n, centre = len(logs), logs.mean(axis=0)
    if n < 2:
        return centre, np.empty((0, logs.shape[1]))
    chance = np.random.default_rng(seed)
    weights = chance.standard_normal((DRAWS, n))
    spread = np.sqrt(chance.chisquare(n - 1, (DRAWS, 1)) * n)  # (n - 1) deviations^2 are the sum of squared departures
    return centre, np.clip(centre + weights @ (logs - centre) / spread, -_FARTHEST, _FARTHEST)


def _instances(values: Floats, held: Floats, asked: Asked) -> dict[str, Floats]:
    """From [draw, (users, CPUs, memory)], and how many a host held, to whole instances and hosts."""
    carried, cpus, memory = values.T
    users = np.floor(_exact(carried * (1 - asked.headroom)))
    instances = np.ceil(np.divide(asked.users, users, out=np.full_like(users, np.inf), where=users > 0))
    by_cpus = _exact(asked.host_cpus / cpus)
    by_memory = _exact((1 - asked.headroom) * asked.host_memory_bytes / memory)
    by_density = _exact((1 - asked.headroom) * held)
    per_host = np.floor(np.minimum(np.minimum(by_cpus, by_memory), by_density))
    hosts = np.ceil(np.divide(instances, per_host, out=np.full_like(users, np.inf), where=per_host > 0))
    told = {"carried": carried, "users": users, "instances": instances, "cpus": cpus, "memory": memory}
    bounds = {"by_cpus": by_cpus, "by_memory": by_memory, "by_density": by_density}
    return {**told, **bounds, "per_host": per_host, "hosts": hosts}


def _exact(values: Floats) -> Floats:
    """Without the last digits that logarithms leave: 100 is not 99.99999999999999."""
    return np.asarray(np.round(values, 9))


def _span(point: Floats, many: Floats) -> Span:
    """The 95 % interval of what draws gave; of whole numbers a whole one, the outer where it lies between two."""
    if not len(many):
        return Span(float(point[0]), None, None)
    low, high = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    return Span(
        float(point[0]),
        float(np.quantile(many, low, method="lower")),
        float(np.quantile(many, high, method="higher")),
    )
