"""How a percentile of latency is best told of windows in rotation: `python -m bench.tails [--blocks N] [--json FILE]`.

Made-up requests of a closed loop (`CONNECTIONS` at a time), in windows of which each arm has one in every round, in an
order drawn anew; what disturbs them is the machine's, goes on over neighbouring windows and so meets both arms: shares
of the CPU that are taken for a while, and stops (stolen time) that come more often in some seconds than in others and
have a heavy tail. For each kind of machine and windows, and each way to make one log ratio of p99 of a block's windows:
its standard deviation between blocks of equal arms, per cent; then, in such standard deviations, what it sees of an arm
that is 10 % slower throughout, of one that stops by itself now and then, and of one that does so in few windows. The
last two are what a tail is told for: a way that is narrower and does not see them answers another question.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench._figures import keep

Floats = npt.NDArray[np.float64]
CONNECTIONS = 20
TAIL = 0.25  # standard deviation of a request's log latency by itself
Q = 0.99


@dataclass(frozen=True)
class Noise:
    """What the machine does: stops a second in calm and in restless times, and shares of the CPU that are taken."""

    calm_per_s: float = 0.05
    restless_per_s: float = 0.05
    restless_part: float = 0.2  # of the time, in stretches of 3 s on average
    stop_s: float = 0.01  # least; Pareto with this exponent:
    exponent: float = 1.5
    bursts_per_s: float = 0.0  # a share of 0.2 to 0.7 taken for 0.3 s on average


MACHINES = {
    "quiet": Noise(),
    "stops": Noise(calm_per_s=1.0, restless_per_s=1.0),
    "restless times": Noise(calm_per_s=0.2, restless_per_s=5.0),
    "bursts": Noise(bursts_per_s=0.3),
    "all of it": Noise(calm_per_s=0.3, restless_per_s=5.0, bursts_per_s=0.3),
}


@dataclass(frozen=True)
class Windows:
    """How one is measured."""

    rounds: int
    length_s: float
    rate: float  # requests a second


WINDOWS = Windows(6, 0.4, 2000), Windows(10, 0.25, 2500), Windows(16, 0.25, 2500), Windows(6, 0.4, 20_000)
# What an arm has of its own: slower throughout; stops a second of 30 ms; the part of the windows that have ten of them.
ARMS: dict[str, dict[str, float]] = {
    "equal": {},
    "10 % slower": {"slower": 0.1},
    "own stops": {"stops_per_s": 0.5},
    "few bad windows": {"bad": 0.1},
}
Machine = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
STEP_S = 0.02
LEAD_S = 0.16  # between windows


def machine_of(noise: Noise, seconds: float, rng: np.random.Generator) -> Machine:
    """When it stops, for how long, and by step how much of the CPU is left."""
    steps = int(seconds / STEP_S) + 100
    left = np.ones(steps)
    for begins in np.flatnonzero(rng.random(steps) < noise.bursts_per_s * STEP_S):
        left[begins : begins + 1 + int(rng.exponential(0.3) / STEP_S)] *= 1 - rng.uniform(0.2, 0.7)
    restless = np.zeros(steps, dtype=bool)
    at = 0
    while at < steps:
        is_restless = bool(rng.random() < noise.restless_part)
        length = 1 + int(rng.exponential(3.0) / STEP_S)
        restless[at : at + length] = is_restless
        at += length
    rate = np.where(restless, noise.restless_per_s, noise.calm_per_s)
    when = np.flatnonzero(rng.random(steps) < rate * STEP_S) * STEP_S
    long_s = np.minimum(noise.stop_s * (1 + rng.pareto(noise.exponent, len(when))), 0.3)
    return when, long_s, left


def window(start_s: float, of: Windows, around: Machine, own: dict[str, float], rng: np.random.Generator) -> Floats:
    """The latencies of a window's requests, in seconds."""
    when, long_s, left = around
    count = int(of.length_s * of.rate)
    at = np.sort(rng.random(count)) * of.length_s
    share = left[((start_s + at) / STEP_S).astype(int)]
    latency = CONNECTIONS / of.rate * np.exp(rng.normal(0, TAIL, count)) / share * (1 + own.get("slower", 0.0))
    inside = (when >= start_s) & (when < start_s + of.length_s)
    stops = list(zip((when[inside] - start_s).tolist(), long_s[inside].tolist(), strict=True))
    mine = rng.poisson(own.get("stops_per_s", 0.0) * of.length_s) + 10 * int(rng.random() < own.get("bad", 0.0))
    stops += [(float(rng.random() * of.length_s), 0.03) for _ in range(mine)]
    for moment, length in stops:
        first = int(np.searchsorted(at, moment))
        latency[first : first + CONNECTIONS] += length
    return np.asarray(latency)


def quantile(latencies: Floats) -> float:
    """By the product's own rule: the value of rank ceil(q n)."""
    rank = int(np.ceil(Q * len(latencies))) - 1
    return float(np.partition(latencies, rank)[rank])


def _trimmed(logs: Floats) -> float:
    cut = int(0.2 * len(logs))
    return float(np.sort(logs)[cut : len(logs) - cut].mean())


Way = Callable[[list[Floats], list[Floats]], float]


def _by_round(location: Callable[[Floats], float]) -> Way:
    def way(mine: list[Floats], native: list[Floats]) -> float:
        return location(np.log([quantile(a) / quantile(b) for a, b in zip(mine, native, strict=True)]))

    return way


WAYS: dict[str, Way] = {
    "merged": lambda mine, native: float(np.log(quantile(np.concatenate(mine)) / quantile(np.concatenate(native)))),
    "mean of logs": _by_round(lambda logs: float(logs.mean())),
    "trimmed": _by_round(_trimmed),
    "median": _by_round(lambda logs: float(np.median(logs))),
    "of medians": lambda mine, native: float(
        np.log(np.median([quantile(a) for a in mine]) / np.median([quantile(b) for b in native]))
    ),
    "ratio of means": lambda mine, native: float(
        np.log(np.mean([quantile(a) for a in mine]) / np.mean([quantile(b) for b in native]))
    ),
}


def blocks_of(
    noise: Noise, of: Windows, own: dict[str, float], count: int, rng: np.random.Generator
) -> dict[str, Floats]:
    """By way, a log ratio of each of so many blocks of two arms that stand among seven."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    turn_s = of.length_s + LEAD_S
    for _ in range(count):
        around = machine_of(noise, of.rounds * 7 * turn_s, rng)
        sides: tuple[list[Floats], list[Floats]] = ([], [])
        for number in range(of.rounds):
            places = rng.permutation(7)[:2]
            for side, place, has in zip(sides, places, (own, {}), strict=True):
                start_s = (number * 7 + int(place)) * turn_s
                side.append(window(start_s, of, around, has, rng))
        for name, way in WAYS.items():
            found[name].append(way(*sides))
    return {name: np.array(values) for name, values in found.items()}


def rows_of(count: int, seed: int) -> list[dict[str, Any]]:
    """Of each machine and windows: by way, the spread of equal arms, and what it sees of each arm."""
    rows = []
    for number, (machine, noise) in enumerate(MACHINES.items()):
        for at, of in enumerate(WINDOWS):
            row: dict[str, Any] = {"machine": machine, **vars(of)}
            for arm, own in ARMS.items():
                rng = np.random.default_rng([seed, number, at])
                found = blocks_of(noise, of, own, count, rng)
                row[arm] = {way: [float(logs.mean()), float(logs.std(ddof=1))] for way, logs in found.items()}
            rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """A line for each way: its spread, and the arms' mean log ratios over their own spread."""
    print(f"{'machine':16}{'windows':24}{'way':16}{'sd, %':>8}{''.join(f'{arm:>20}' for arm in list(ARMS)[1:])}")
    for row in rows:
        windows = f"{row['rounds']} x {row['length_s'] * 1000:.0f} ms, {row['rate']}/s"
        for way in WAYS:
            seen = [f"{row[a][way][0]:9.3f} ({row[a][way][0] / row[a][way][1]:5.1f})" for a in list(ARMS)[1:]]
            told = "".join(f"{each:>20}" for each in seen)
            print(f"{row['machine']:16}{windows:24}{way:16}{row['equal'][way][1] * 100:8.1f}{told}")


def main() -> int:
    """Simulate, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.tails", description=__doc__)
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    rows = rows_of(options.blocks, options.seed)
    show(rows)
    keep(options.json, {"seed": options.seed, "blocks": options.blocks, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
