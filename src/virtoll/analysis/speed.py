"""How much of an arm's ratio to native is that the CPUs were slower in the windows of one of them.

A yardstick (`Window.yardstick_ns`) says how slow the instance's CPUs were in each window, whoever made them so. In
rotation the r-th windows of an arm and of native are neighbours in time. Within blocks, by what their difference
follows the difference of the yardstick's log times, from round to round, is a regression through each block's own mean;
a ratio *at one speed* is less that `slope` times the mean difference of log times in its block (an analysis of
covariance of paired differences). Where nothing of ours moves the yardstick (`moved`) those times are a *control
variate* (Lavenberg and Welch, Management Science 27, 1981): the ratio has the same expectation whatever the slope, for
rounds are in an order drawn anew (Lin, Annals of Applied Statistics 7, 2013). Where an arm moves it, as one whose CPU
never idles may, it is another quantity, the toll on CPUs of one speed. So it is told beside what was measured, and
never in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Floats, Summary, summarise
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import TrialMetrics
from virtoll.analysis.rounds import in_turn, pull
from virtoll.record.model import OTHERS_IDLE, OWN_IDLE, YARDSTICK, Arm, TrialRecord

LEAST_FREEDOM = 30  # rounds, less one a block and one for the slope: of fewer a slope is mostly chance

Rounds = tuple[Floats, Floats]  # of each round of a block: by how much log times differ, and what it adds to log ratios


@dataclass(frozen=True)
class Line:
    """How an arm's rounds follow the yardstick; ``share``: of their variance within blocks."""

    slope: float
    error: float  # its standard error
    share: float


@dataclass(frozen=True)
class AtOneSpeed:
    """An arm against native in one metric: arrays [block, condition], nan where nothing is compared."""

    logs: Floats  # log ratios at one speed
    apart: Floats  # by how much the yardstick's log times differ
    lines: tuple[Line, ...]  # a condition each

    def summary(self, as_found: Summary) -> Summary:
        """With the error that is the slope's, which all blocks share: t over blocks does not see it."""
        means = [float(np.nanmean(column)) for column in self.apart.T]
        shared = sum((line.error * mean) ** 2 for line, mean in zip(self.lines, means, strict=True)) ** 0.5
        return replace(as_found, error=float(np.hypot(as_found.error, shared / len(means))))


def at_one_speed(
    matrix: Matrix, metric: str, arm: Arm, conditions: Sequence[Condition], logs: Floats
) -> AtOneSpeed | None:
    """Of ``logs`` [block, condition], an arm's log ratios as measured; None where of any of them it is not known round
    by round, or under any condition too few are.
    """
    apart, lines = np.full_like(logs, np.nan), []
    for c, condition in enumerate(conditions):
        blocks = np.flatnonzero(np.isfinite(logs[:, c])).tolist()
        known = {b: rounds_of(matrix, metric, (b, arm, condition)) for b in blocks}
        found = line(known.values())
        if found is None:
            return None
        lines.append(found)
        for b, rounds in known.items():
            apart[b, c] = 0.0 if rounds is None else rounds[0].mean()
    slopes = np.array([each.slope for each in lines])
    return AtOneSpeed(logs - slopes * apart, apart, tuple(lines)) if lines else None


def rounds_of(matrix: Matrix, metric: str, cell: tuple[int, Arm, Condition]) -> Rounds | None:
    """Of an arm in a block under a condition, against the mean of the natives that its log ratio is made of."""
    b, arm, condition = cell
    pairs = [matrix.pair(b, arm, condition, native) for native in matrix.against(arm)]
    beside = [pair for pair in pairs if pair is not None and metric in pair[1].values]
    if not beside or not all(in_turn(*pair) for pair in beside):
        return None
    mine, *natives = (_windows(trial, metric) for trial in (beside[0][0], *(native for _, native in beside)))
    told = [each for each in natives if each is not None]
    if mine is None or len(told) < len(natives) or any(each[0].size != mine[0].size for each in told):
        return None
    times, adds = (mine[side] - np.mean([each[side] for each in told], axis=0) for side in (0, 1))
    return times, adds


def _windows(trial: TrialMetrics, metric: str) -> Rounds | None:
    """Of each window of a trial the yardstick's log time, and what it adds to the logarithm of the trial's value."""
    measured = trial.record.measured
    times_ns = [] if measured is None else [window.yardstick_ns for window in measured.windows]
    known = [each for each in times_ns if each is not None]
    if not known or len(known) < len(times_ns) or metric not in trial.parts:
        return None
    parts = trial.parts[metric]
    if any(len(side) != len(known) or not sum(side) > 0 for side in parts):
        return None
    return np.log(known), pull(parts)


def line(blocks: Iterable[Rounds | None]) -> Line | None:
    """By least squares within blocks; None where one is not known, or rounds are few, or the yardstick stood still."""
    times, adds, freedom = [], [], -1
    for each in blocks:
        if each is None:
            return None
        times.append(each[0] - each[0].mean())
        adds.append(each[1] - each[1].mean())
        freedom += each[0].size - 1
    if freedom < LEAST_FREEDOM:
        return None
    x, y = np.concatenate(times), np.concatenate(adds)
    squares, total = float(x @ x), float(y @ y)
    if squares < _STILL * x.size:
        return None
    slope = float(x @ y) / squares
    left = max(0.0, total - slope**2 * squares)
    return Line(slope, (left / freedom / squares) ** 0.5, slope**2 * squares / total if total > 0 else 0.0)


_STILL = 1e-12  # a mean square of log times: a millionth of the time itself


def moved(record: TrialRecord) -> tuple[Summary, Summary] | None:
    """By how much what is ours moves the yardstick, on the log scale, as it was tried before the first trial: CPUs that
    idle now and then, and those of the generator. None: it was not tried, or is not told as virtoll does.
    """
    told = record.facts.get(YARDSTICK)
    lists = [told.get(name) for name in (OWN_IDLE, OTHERS_IDLE)] if isinstance(told, dict) else []
    tries = [each for each in lists if isinstance(each, list) and all(isinstance(one, int | float) for one in each)]
    if len(tries) < 2 or min(map(len, tries)) < 2 or not np.isfinite(np.concatenate(tries)).all():
        return None
    return summarise(tries[0]), summarise(tries[1])
