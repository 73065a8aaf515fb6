"""What the servers of a study take from each other: each on its arm beside the others, against itself alone.

Within a block, an arm and a server, the logarithm of a figure beside the others minus that alone is one observation:
both are of one instance, and what the platform costs cancels. The difference of two arms' observations of a block says
whether the one shares better than the other; native's is the mean of its deployments, as in `ratios`. All that is
compared is of one sitting of the run. The t interval has n - 1 degrees of freedom, n the blocks that hold both; Holm's
correction goes over all arms and servers of a metric.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Floats, mean_of_known
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import Metric, TrialMetrics, barring
from virtoll.analysis.ratios import Row, Toll, judge_family, lost_blocks, noise, summary_under, whole_blocks
from virtoll.analysis.rules import rule_of
from virtoll.record.model import BESIDE, SERVER, Arm

_BESIDE_OVER_ALONE = "geometric mean of ratios beside the others to alone, t interval on the log scale, n = blocks"
_EXCLUDED = "excluded there"
_AGAINST_NATIVE = "geometric mean of such ratios over native's within blocks, t interval on the log scale, n = blocks"


@dataclass(frozen=True)
class Zeros:
    """Of ``known`` pairs, those of which both values are 0, and those that are 0 alone and not beside the others."""

    known: int
    both: int
    arose: int


@dataclass(frozen=True)
class SideBySide:
    """Every server on every arm. ``shown``: by server, the metrics that it is told in."""

    shown: Mapping[str, tuple[Metric, ...]]
    conditions: Mapping[str, int]  # by server, those that it was to be measured under both alone and beside the others
    kept: Mapping[tuple[str, str, str], Toll]  # by server, arm's label and metric: beside the others over alone
    against: Mapping[tuple[str, str, str], Toll]  # the same ratio over native's
    floors: Mapping[tuple[str, str], float | None]  # by server and metric, relative: native's own such difference
    zeros: Mapping[tuple[str, str, str], Zeros]  # by server, arm's label and metric
    missing: Mapping[tuple[str, str, str], str]  # by server, arm's label and metric: why there is no ratio


@dataclass(frozen=True)
class _Server:
    """One server's logarithms, an array [block, arm, pair] for each metric; what has none is counted by arm."""

    name: str
    matrix: Matrix
    pairs: tuple[tuple[Condition, Condition], ...]  # alone and beside the others, all else being equal

    def logs(self, metric: Metric) -> Floats:
        """log(beside / alone); nan where either is missing, or not positive."""
        alone, beside = self._both(metric)
        logs = np.full_like(alone, np.nan)
        known = (alone > 0) & (beside > 0)
        logs[known] = np.log(beside[known]) - np.log(alone[known])
        return logs

    def zeros(self, metric: Metric) -> npt.NDArray[np.bool_]:
        """Array [block, arm, pair]: whether both are known, and one is 0."""
        alone, beside = self._both(metric)
        return np.isfinite(alone) & np.isfinite(beside) & ((alone <= 0) | (beside <= 0))

    def zeros_of(self, metric: Metric, arm: Arm) -> Zeros:
        """What became of an arm's zeros."""
        alone, beside = (values[:, self.matrix.arms.index(arm), :] for values in self._both(metric))
        known = np.isfinite(alone) & np.isfinite(beside)
        both, arose = (int((known & (alone == 0) & found).sum()) for found in (beside == 0, beside != 0))
        return Zeros(int(known.sum()), both, arose)

    def failed(self, arms: Collection[Arm], metric: Metric) -> int:
        """In how many blocks and conditions one of these arms has no figure because of what could not be served: alone,
        or beside the others, where that is a result, though the trial is not valid. Of what else is not valid nothing
        counts: it leaves a hole.
        """
        both, labels = {condition for pair in self.pairs for condition in pair}, {arm.label for arm in arms}
        lost = (
            (trial.record.trial.block, Condition.of(trial.record.trial))
            for trial in self.matrix.trials
            if trial.record.trial.arm.label in labels and _has_failed(trial, metric)
        )
        return len({(block, condition) for block, condition in lost if condition in both})

    def why(self, metric: Metric, arm: Arm) -> str:
        """The first reason that a condition of which there is no value gives for that."""
        if arm not in self.matrix.arms:
            return _EXCLUDED
        reasons = (self._why(metric, arm, each) for pair in self.pairs for each in pair)
        return next(filter(None, reasons), "")

    def _why(self, metric: Metric, arm: Arm, condition: Condition) -> str:
        matrix = self.matrix
        at = (matrix.arms.index(arm), matrix.conditions.index(condition))
        if np.isfinite(matrix.values(metric.name)[:, *at]).any():
            return ""
        planned = (trial for trial in matrix.run.plan.trials if trial.arm.label == arm.label)
        if all(Condition.of(trial) != condition for trial in planned):
            return _EXCLUDED
        return matrix.why_missing(metric.name, arm, condition)

    def met(self, one: Arm, other: Arm) -> npt.NDArray[np.bool_]:
        """Array [block, pair]: whether two arms were measured beside the others in one sitting."""
        return np.stack([self.matrix.together((one, beside), (other, beside)) for _, beside in self.pairs], axis=-1)

    def _both(self, metric: Metric) -> tuple[Floats, Floats]:
        """Arrays [block, arm, pair]: alone, and beside the others in the same sitting."""
        values = self.matrix.values(metric.name)
        alone, beside = ([self.matrix.conditions.index(pair[at]) for pair in self.pairs] for at in (0, 1))
        return values[:, :, alone], np.where(self._met, values[:, :, beside], np.nan)

    @cached_property
    def _met(self) -> npt.NDArray[np.bool_]:
        """Array [block, arm, pair]: whether an arm was measured alone and beside the others in one sitting."""
        met = self.matrix.together
        each = [[met((arm, one), (arm, other)) for one, other in self.pairs] for arm in self.matrix.arms]
        return np.moveaxis(np.array(each), 2, 0)


def _has_failed(trial: TrialMetrics, metric: Metric) -> bool:
    is_among_what_failed = trial.record.status == "valid" and bool(barring(metric.name) & trial.censored)
    return trial.did_not_answer or is_among_what_failed


def side_by_side(matrices: Mapping[str, Matrix], shown: Mapping[str, Sequence[Metric]], margin: float) -> SideBySide:
    """Judge every server on every arm, by the metrics that it is told in; ``margin``: what counts as no difference."""
    servers = [_Server(name, matrix, _pairs(matrix)) for name, matrix in matrices.items()]
    servers = [each for each in servers if each.pairs]
    told = {each.name: tuple(shown[each.name]) for each in servers}
    metrics = {metric.name: metric for each in told.values() for metric in each}
    kept: dict[tuple[str, str, str], Toll] = {}
    against: dict[tuple[str, str, str], Toll] = {}
    for metric in metrics.values():
        mine = [each for each in servers if metric in told[each.name]]
        kept |= _judged(metric, mine, margin, _BESIDE_OVER_ALONE, against_native=False)
        against |= _judged(metric, mine, margin, _AGAINST_NATIVE, against_native=True)
    arms = {arm.label: arm for each in servers for arm in each.matrix.arms}.values()
    missing = {
        (each.name, arm.label, metric.name): why
        for each in servers
        for arm in arms
        for metric in told[each.name]
        if (why := each.why(metric, arm))
    }
    floors = {(each.name, metric.name): _floor(each, metric) for each in servers for metric in told[each.name]}
    planned = {each.name: len(each.pairs) for each in servers}
    zeros = {
        (each.name, arm.label, metric.name): each.zeros_of(metric, arm)
        for each in servers
        for arm in each.matrix.arms
        for metric in told[each.name]
    }
    return SideBySide(told, planned, kept, against, floors, zeros, missing)


def _pairs(matrix: Matrix) -> tuple[tuple[Condition, Condition], ...]:
    """The conditions beside the others, each with its own alone; what has no counterpart is left out."""
    alone = (Condition.of_levels({**dict(each.levels), BESIDE: "none"}) for each in matrix.conditions)
    return tuple(
        (one, each)
        for one, each in zip(alone, matrix.conditions, strict=True)
        if each.get(BESIDE) == "others" and one in matrix.conditions
    )


def _judged(
    metric: Metric, servers: Sequence[_Server], margin: float, method: str, *, against_native: bool
) -> dict[tuple[str, str, str], Toll]:
    """The tolls of one metric, by server, arm's label and its name: one family."""
    rows: list[Row] = []
    rule = rule_of(servers[0].matrix.run.plan)
    for server in servers:
        matrix, logs, zeros = server.matrix, server.logs(metric), server.zeros(metric)
        natives = [matrix.arms.index(native) for native in matrix.natives]
        whole = whole_blocks(matrix)
        for a, arm in enumerate(matrix.arms):
            if arm.role == "floor" or (against_native and (a in natives or not natives)):
                continue
            mine, barred, failed = logs[:, a, :], int(zeros[:, a].sum()), server.failed([arm], metric)
            if against_native:
                met = {at: server.met(arm, matrix.arms[at]) for at in natives}
                mine = mine - mean_of_known([np.where(met[at], logs[:, at, :], np.nan) for at in natives])
                barred += int(np.any([met[at] & zeros[:, at, :] for at in natives], axis=0).sum())
                failed += server.failed(matrix.natives, metric)
            measured = int(np.isfinite(mine).any(axis=0).sum())
            named = Condition.of_levels({SERVER: server.name})
            row = Row(arm, named, summary_under(rule, mine), None, measured, zeros=barred, failed=failed)
            rows.append(replace(row, lost=lost_blocks(mine, whole), ahead=int((~whole).sum())))
    judged = judge_family(metric, rows, margin, method, rule)
    return {(str(toll.condition.get(SERVER)), toll.arm.label, metric.name): toll for toll in judged if toll.condition}


def _floor(server: _Server, metric: Metric) -> float | None:
    """How far native's ratios lie from those of native again, or could by chance; None where either lacks one for a 0
    or for what failed: those of the other blocks would be of the better ones alone.
    """
    matrix = server.matrix
    if matrix.baseline is None or matrix.floor is None:
        return None
    natives = [matrix.arms.index(arm) for arm in (matrix.baseline, matrix.floor)]
    if server.zeros(metric)[:, natives].any() or server.failed(matrix.natives, metric):
        return None
    first, again = (server.logs(metric)[:, at, :] for at in natives)
    apart = np.where(server.met(matrix.baseline, matrix.floor), first - again, np.nan)
    return noise(apart, rule_of(matrix.run.plan))
