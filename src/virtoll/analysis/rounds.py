"""Rounds of a rotation: windows of two arms that are neighbours in time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from virtoll.analysis.estimates import Floats
from virtoll.analysis.metrics import TrialMetrics
from virtoll.record.model import PROBE


def in_turn(mine: TrialMetrics, native: TrialMetrics) -> bool:
    """Whether the r-th windows of both came before the next of either. A probe's have a clock of their own."""
    trials = [trial.record.trial for trial in (mine, native)]
    if not trials[0].turn or trials[0].turn != trials[1].turn or PROBE in trials[0].condition:
        return False
    measured = [trial.record.measured for trial in (mine, native)]
    starts = [sorted(w.start_ns for w in each.windows) for each in measured if each is not None]
    if len({len(each) for each in starts}) != 1:
        return False
    return all(max(now) < min(then) for now, then in itertools.pairwise(zip(*starts, strict=True)))


def median_of_rounds(mine: Floats, native: Floats) -> float:
    """The median over rounds of log(mine / native); inf is worse than any value, and both inf is no difference. nan
    where the median is not finite.
    """
    logs = np.zeros(len(mine))
    differ = np.isfinite(mine) | np.isfinite(native)
    np.subtract(np.log(mine), np.log(native), out=logs, where=differ)
    found = float(np.median(logs))
    return found if np.isfinite(found) else float("nan")


def pull(parts: tuple[Sequence[float], Sequence[float]]) -> Floats:
    """By how much each window moves log(sum x / sum y), times their number."""
    x, y = (np.asarray(part, dtype=float) for part in parts)
    return np.asarray(x / x.mean() - y / y.mean())
