"""Where a series of runs changes its level, by ranks and permutations; what single runs do is no change.

Pettitt's test (Applied Statistics 28, 1979) asks whether the runs from some point on have other ranks than those
before; its p is by permutation of the runs, for few runs follow no limit. Where it is significant the series is cut
there, and both parts are asked again (binary segmentation: Scott & Knott, Biometrics 30, 1974). No single run, however
odd, makes a change: ranks do not know how odd it is, and each part holds `LEAST_PART` runs or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from virtoll.analysis.changes import Step
from virtoll.analysis.estimates import LEVEL, Estimate, Floats, summarise
from virtoll.analysis.rules import FIXED

LEAST_RUNS = 10  # of fewer no change is asked for
LEAST_PART = 3  # runs on either side of a change
_PERMUTATIONS = 9999  # at once
_PER_STRETCH = 100  # permutations there may be for each stretch that is asked: the least p, adjusted, is a hundredth


@dataclass(frozen=True)
class ChangePoint:
    """The level of a series is another from the run ``at`` on (from 0)."""

    at: int
    p: float  # adjusted for the stretches that were asked
    ratio: Estimate  # of the level after it over that before, up to the next changes


def change_points(logs: Sequence[float], stretches: int = 1) -> tuple[ChangePoint, ...]:
    """Changes of a series of log ratios, a run each, in the order of time and all of one environment. ``stretches``:
    how many such series are asked together; each has an equal share of the 5 % (Bonferroni).
    """
    values = np.asarray(logs, dtype=float)
    found = dict(_cuts(values, 0, max(1, stretches), np.random.default_rng(1)))
    ends = [0, *sorted(found), len(values)]
    return tuple(
        ChangePoint(at, found[at], _step(values[before:at], values[at:after]))
        for (before, at), (_, after) in pairwise(pairwise(ends))
    )


@cache
def can_find(runs: int, stretches: int) -> bool:
    """Whether the clearest change that so many runs can have, of one level in the first half and another in the second,
    is found where so many stretches are asked together.
    """
    clearest = np.repeat([0.0, 1.0], [runs // 2, runs - runs // 2])
    return bool(_cuts(clearest, 0, max(1, stretches), np.random.default_rng(1)))


def _cuts(values: Floats, offset: int, stretches: int, rng: np.random.Generator) -> list[tuple[int, float]]:
    """The places where the series is cut, each with its p. Both parts share the error of the whole: beside a change
    that is one each would else be looked through at the whole level, and one that is none be found twice as often.
    """
    if len(values) < LEAST_RUNS:
        return []
    at, p = pettitt(values, rng, stretches)
    p = min(1.0, p * stretches)
    if p >= 1 - LEVEL:
        return []
    before, after = (
        _cuts(part, offset + begin, 2 * stretches, rng) for part, begin in ((values[:at], 0), (values[at:], at))
    )
    return [*before, (offset + at, p), *after]


def pettitt(values: Floats, rng: np.random.Generator, stretches: int = 1) -> tuple[int, float]:
    """Where a series most likely changes (the first run that is of the other level), and the p of no change.

    Of many ``stretches`` there are more permutations, or no share of the 5 % would be as large as the least p; they end
    as soon as it can be no change any more.
    """
    ranks = _ranks(values)
    seen = _statistic(ranks[None, :])[0]
    at = int(np.argmax(seen)) + LEAST_PART
    made, as_far, most = 0, 0, max(_PERMUTATIONS, _PER_STRETCH * stretches)
    while made < most and (1 + as_far) * stretches < (1 - LEVEL) * (1 + most):
        shuffled = rng.permuted(np.tile(ranks, (min(_PERMUTATIONS, most - made), 1)), axis=1)
        as_far += int((_statistic(shuffled).max(axis=1) >= seen.max() - 1e-9).sum())
        made += len(shuffled)
    return at, (1 + as_far) / (1 + made)


def _statistic(ranks: Floats) -> Floats:
    """Array [series, cut] of Pettitt's |U|, for every cut that leaves enough runs on either side."""
    n = ranks.shape[1]
    cuts = np.arange(LEAST_PART, n - LEAST_PART + 1)
    return np.asarray(np.abs(2 * np.cumsum(ranks, axis=1)[:, cuts - 1] - cuts * (n + 1)))


def _ranks(values: Floats) -> Floats:
    """From 1 on; equal values share the mean of theirs."""
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return np.asarray((last - (count - 1) / 2)[inverse], dtype=float)


def _step(before: Floats, after: Floats) -> Estimate:
    """Runs are the replicates: what differs from run to run is in the interval."""
    step = Step(summarise(before), summarise(after), (FIXED, FIXED))
    return step.estimate().with_method("ratio of geometric means over runs, Welch's t interval")
