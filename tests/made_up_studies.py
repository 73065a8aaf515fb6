"""Made-up studies whose truth is known: a machine that drifts and has bursts, arms that differ, and two designs.

A machine's noise is put together of what was seen on a 2-core machine that is not quiet (all on the log scale of a
window's rate): drift over seconds to minutes, which gives trials of 2 s some minutes apart a standard deviation of 0.08
to 0.22; windows of 200 ms that predict 0.02 to 0.04 for 2 s; bursts that make single windows three times slower, with
an excess kurtosis of 3 to 14 in the ratios of short windows. Used by the tests and by bench/simulate.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench._rounds import DEFAULT_LOCATION, Location, block_ratios
from synthetic import AGAIN, NATIVE
from virtoll.analysis.components import Cell, Components, components
from virtoll.analysis.estimates import mean_of_known
from virtoll.analysis.metrics import load_metrics
from virtoll.analysis.ratios import DECLARED_MARGIN, Row, Toll, judge_family, noise, over_conditions
from virtoll.analysis.rounds import pull
from virtoll.record.model import Arm

Floats = npt.NDArray[np.float64]
BURST_TAKES = 0.2, 0.7  # of the CPU: least and most
Drift = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Machine:
    """What disturbs a measurement. Standard deviations are of logarithms."""

    noise: float = 0.03  # of a window of one second; of w seconds it is this over sqrt(w)
    drift: Drift = (
        (0.02, 60.0),
    )  # Ornstein-Uhlenbeck processes all arms share: standard deviation, time constant in s
    bursts_per_s: float = 0.0  # that something else begins to take the CPU,
    burst_s: float = 0.3  # so long on average (exponential), and this much of it: BURST_TAKES
    deployment: float = 0.003  # a deployment's own, normal
    mode: float = 0.0  # or one of two, so far apart (0 on average),
    mode_share: float = 0.5  # the slower of which this share of the deployments has,
    native_modes: bool = True  # native's among them; else its deployments are all alike
    wander: float = 0.0  # of one deployment by itself, while it lives,
    wander_s: float = 10.0  # with this time constant: its rounds are autocorrelated
    lost: float = 0.0  # share of the trials that are not valid; in rotation, of arms that die during a block
    place: float = 0.0  # what an arm's place costs or gains in *every* block: a bias that no replication shows


MACHINES: dict[str, Machine] = {
    "quiet": Machine(),
    "drift": Machine(drift=((0.06, 8.0), (0.10, 60.0), (0.10, 600.0))),
    "bursts": Machine(noise=0.035, drift=((0.04, 8.0), (0.06, 60.0)), bursts_per_s=0.3),
    "autocorrelated rounds": Machine(drift=((0.04, 8.0), (0.06, 60.0)), wander=0.05),
    "deployments differ": Machine(drift=((0.04, 8.0), (0.06, 60.0)), deployment=0.03),
    "bimodal deployments": Machine(drift=((0.04, 8.0), (0.06, 60.0)), mode=0.06, mode_share=0.3),
    "missing trials": Machine(noise=0.035, drift=((0.04, 8.0), (0.06, 60.0)), bursts_per_s=0.3, lost=0.15),
    "all of it": Machine(
        noise=0.035, drift=((0.06, 8.0), (0.10, 60.0), (0.10, 600.0)), bursts_per_s=0.3, deployment=0.01, mode=0.03,
        mode_share=0.3, wander=0.03, lost=0.1,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Design:
    """How a study measures: ``rounds`` 0 is the block design, a deployment and a window for each arm after another."""

    name: str
    blocks: int
    rounds: int
    window_s: float
    between_s: float  # from a window's end to the next one's beginning: lead-in, or a deployment
    deployment_s: float = 10.0  # from one block to the next
    shuffled: bool = True  # the arms come in an order drawn anew in each round

    def seconds(self, arms: int) -> float:
        """What a study of so many arms takes."""
        return self.blocks * (self.deployment_s + max(1, self.rounds) * arms * (self.window_s + self.between_s))


# About the same time for native, native again and five more: 394 s and 392 s.
BLOCKS = Design("blocks", blocks=14, rounds=0, window_s=2.0, between_s=2.0, deployment_s=0.0)
ROTATION = Design("rotation", blocks=8, rounds=16, window_s=0.25, between_s=0.1)


def studies(machine: Machine, design: Design, truth: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Rates, array [study, block, round, arm]; ``truth`` [arm] is each arm's over native's. nan: not valid.

    The block design has one round.
    """
    rounds, arms = max(1, design.rounds), len(truth)
    shape = (count, design.blocks, rounds, arms)
    logs = _drift(machine, design, shape, rng)  # by place in the round
    if design.shuffled:
        logs = np.take_along_axis(logs, rng.random(shape).argsort(axis=-1), axis=-1)
    logs += rng.normal(0, machine.noise / math.sqrt(design.window_s), shape)
    logs += _bursts(machine, design.window_s, shape, rng)
    per_deployment = (count, design.blocks, 1, arms)
    logs += rng.normal(0, machine.deployment, per_deployment)
    modes = machine.mode * ((rng.random(per_deployment) < machine.mode_share) - machine.mode_share)
    logs -= modes if machine.native_modes else np.where(np.arange(arms) > 0, modes, 0.0)
    logs += _wander(machine, design, shape, rng)
    logs += np.where(np.arange(arms) > 0, rng.normal(0, machine.place, (count, 1, 1, arms)), 0.0)
    logs += np.log(truth)
    return np.where(_lost(machine, shape, rng), np.nan, np.exp(logs))


def _drift(machine: Machine, design: Design, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """The shared drift at each window, in the order of time."""
    count, blocks, rounds, arms = shape
    step_s, logs = design.window_s + design.between_s, np.zeros(shape)
    for deviation, constant_s in machine.drift:
        now = rng.normal(0, deviation, count)
        for block, round_, place in np.ndindex(blocks, rounds, arms):
            first = round_ == place == 0
            keep = math.exp(-(step_s + (design.deployment_s if first else 0.0)) / constant_s)
            now = keep * now + rng.normal(0, deviation * math.sqrt(1 - keep * keep), count)
            logs[:, block, round_, place] += now
    return logs


def _bursts(machine: Machine, window_s: float, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """What bursts take from each window: log of the share of the CPU that is left.

    Those under way at its beginning (Poisson, the rest of an exponential is as the whole) and those that begin in it,
    up to three of each.
    """
    left = np.ones(shape)
    for begins, expected in ((False, machine.bursts_per_s * machine.burst_s), (True, machine.bursts_per_s * window_s)):
        met = rng.poisson(expected, shape)
        for number in range(1, 4):
            hit = met >= number
            count = int(hit.sum())
            room_s = window_s * (rng.random(count) if begins else 1.0)
            overlap_s = np.minimum(rng.exponential(machine.burst_s, count), room_s)
            left[hit] *= 1 - rng.uniform(*BURST_TAKES, count) * overlap_s / window_s
    return np.log(left)


def _wander(machine: Machine, design: Design, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """An AR(1) of each deployment by itself over its rounds."""
    if machine.wander == 0:
        return np.zeros(shape)
    count, blocks, rounds, arms = shape
    keep = math.exp(-(design.window_s + design.between_s) * arms / machine.wander_s)
    logs = np.zeros(shape)
    now = rng.normal(0, machine.wander, (count, blocks, arms))
    for round_ in range(rounds):
        logs[:, :, round_] = now
        now = keep * now + rng.normal(0, machine.wander * math.sqrt(1 - keep * keep), now.shape)
    return logs


def _lost(machine: Machine, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which windows are missing: those of an arm from some round on, of which a block design has only one."""
    count, blocks, rounds, arms = shape
    once = (count, blocks, 1, arms)
    ends = np.where(rng.random(once) < machine.lost, rng.integers(0, rounds, once), rounds)
    return np.arange(rounds)[None, None, :, None] >= ends


# -- through the analysis, as it is -------------------------------------------------------------------------

METRIC = load_metrics("request")["rate_per_s"]


def arms(truth: Floats) -> list[Arm]:
    """Native, native again, and the others, named by what they cost."""
    labels = [f"arm {number} at {share:.3g}" for number, share in enumerate(truth[2:], 1)]
    return [NATIVE, AGAIN, *(Arm(label=label, platform="docker", network="routed") for label in labels)]


def observations(values: Floats, location: Location = DEFAULT_LOCATION, natives: int = 2) -> Floats:
    """Array [study, block, arm - 1] of log ratios to native: what a block says of each arm but native. The first arms
    are native, so many; those after them are compared with the mean of all, these with the first.
    """
    by_arm = np.moveaxis(values, 2, -1)  # rounds last
    told = []
    for a in range(1, values.shape[-1]):
        against = range(natives) if a >= natives else range(1)
        told.append(mean_of_known([block_ratios(by_arm[:, :, a], by_arm[:, :, n], location) for n in against]))
    return np.stack(told, -1)


def components_seen(study: Floats, arm: int, natives: int = 2) -> Components | str:
    """Variance components of one study [block, round, arm], of one arm against native."""
    against = range(natives) if arm >= natives else range(1)
    cells: dict[tuple[int, int], Cell] = {}
    for block, values in enumerate(study):
        each = [arm, *(n for n in against if np.isfinite(values[:, [arm, n]]).all(axis=1).any())]
        all_of = np.isfinite(values[:, each]).all(axis=1)
        if len(each) > 1 and all_of.any():
            ones = np.ones(int(all_of.sum()))
            mine, *others = (pull((values[all_of, a].tolist(), ones.tolist())) for a in each)
            cells[block, 0] = {f"arm and {len(others)}": mine - sum(others) / len(others)}
    return components(observations(study[None], natives=natives)[0, :, arm - 1 : arm], cells)


def judged(logs: Floats, truth: Floats, margin: float = DECLARED_MARGIN) -> tuple[Toll, ...]:
    """What the product says of one study, ``logs`` [block, arm - 1]: a toll of each arm but native."""
    floor = noise(logs[:, :1])
    rows = [Row(arm, None, over_conditions(logs[:, a : a + 1]), floor, 1) for a, arm in enumerate(arms(truth)[1:])]
    return judge_family(METRIC, rows, margin, "")
