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
from virtoll.analysis.estimates import Floats, Summary
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
) -> AtOneSpeed | str:
    """Of ``logs`` [block, condition], an arm's log ratios as measured; or the reason why it is not known of all of them
    round by round.
    """
    apart, lines = np.full_like(logs, np.nan), []
    for c, condition in enumerate(conditions):
        blocks = np.flatnonzero(np.isfinite(logs[:, c])).tolist()
        rounds = []
        for b in blocks:
            told = rounds_of(matrix, metric, (b, arm, condition))
            if isinstance(told, str):
                return told
            rounds.append(told)
            apart[b, c] = told[0].mean()
        found = line(rounds)
        if found is None:
            return FEW
        lines.append(found)
    slopes = np.array([each.slope for each in lines])
    return AtOneSpeed(logs - slopes * apart, apart, tuple(lines)) if lines else "nothing is compared with native"


FEW = f"fewer than {LEAST_FREEDOM} rounds tell, beyond one a block and one for the slope, or the yardstick stood still"
_NO_ROUNDS = "its windows and native's are not in the same rounds"
_NO_PARTS = "its value is not made of its windows'"


def rounds_of(matrix: Matrix, metric: str, cell: tuple[int, Arm, Condition]) -> Rounds | str:
    """Of an arm in a block under a condition, against the mean of the natives beside it; or why there are none."""
    b, arm, condition = cell
    pairs = [matrix.pair(b, arm, condition, native) for native in matrix.against(arm)]
    beside = [pair for pair in pairs if pair is not None and metric in pair[1].values]
    if not beside or not all(in_turn(*pair) for pair in beside):
        return _NO_ROUNDS
    each = []
    for trial in (beside[0][0], *(native for _, native in beside)):
        told = _windows(trial, metric)
        if isinstance(told, str):
            return told
        each.append(told)
    mine, *natives = each  # as many windows as native: they are in turn
    times, adds = (mine[side] - np.mean([native[side] for native in natives], axis=0) for side in (0, 1))
    return times, adds


def _windows(trial: TrialMetrics, metric: str) -> Rounds | str:
    """Of each window of a trial the yardstick's log time, and what it adds to the logarithm of the trial's value."""
    measured = trial.record.measured
    times_ns = [] if measured is None else [window.yardstick_ns for window in measured.windows]
    known = [each for each in times_ns if each is not None]
    if len(known) < len(times_ns):
        unread, label = len(times_ns) - len(known), trial.record.trial.arm.label
        return f"the yardstick was not read in {unread} of {len(times_ns)} windows of {label} ({trial.record.trial.id})"
    parts = trial.parts.get(metric, ((), ()))
    if not known or any(len(side) != len(known) or not sum(side) > 0 for side in parts):
        return _NO_PARTS
    return np.log(known), pull(parts)


def line(blocks: Iterable[Rounds]) -> Line | None:
    """By least squares within blocks; None where rounds are few, or the yardstick stood still."""
    times, adds, freedom = [], [], -1
    for each in blocks:
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
    tries = [each for each in lists if isinstance(each, list) and all(map(_is_try, each))]
    if len(tries) < 2 or min(map(len, tries)) < 2:
        return None
    return _typical(tries[0]), _typical(tries[1])


def _typical(tries: Sequence[float]) -> Summary:
    """Their mean without the fifth that is least and the fifth that is most, and its error by those put in the place of
    what lies beyond them (Yuen, Biometrika 61, 1974): somebody else's burst in one of them moves it by tens of per
    cent, and is nothing of ours.
    """
    ordered, cut = np.sort(np.asarray(tries, dtype=float)), len(tries) // 5
    kept = ordered[cut : ordered.size - cut]
    within = np.clip(ordered, kept[0], kept[-1])
    squares = float(((within - within.mean()) ** 2).sum())
    error = (squares / (kept.size * (kept.size - 1))) ** 0.5
    return Summary(float(kept.mean()), error, int(kept.size))


def _is_try(value: object) -> bool:
    """A change of a logarithm: none is by a factor of 20,000."""
    return isinstance(value, int | float) and -_MOST_LOG <= value <= _MOST_LOG


_MOST_LOG = 10
