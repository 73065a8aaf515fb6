"""What each arm costs: paired ratios to the baseline within blocks, and the words a rule allows for them.

Within a block every arm meets the same condition on a deployment of its own. The difference of logarithms, arm minus
the mean of native's deployments, is one observation a block: machine-wide drift between blocks cancels. Their mean is
the log of a geometric mean ratio; its t interval has n - 1 degrees of freedom, n the number of blocks. Where a block
has several groups of arms, an arm is paired with what its own holds of native. docs/METHODOLOGY.md says why.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import LEVEL, Estimate, Floats, Summary, mean_of_known, over_conditions, p_difference
from virtoll.analysis.hosts import over_hosts
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import Metric, barring
from virtoll.analysis.rounds import in_turn, median_of_rounds
from virtoll.analysis.rules import FIXED, OverHosts, Rule, with_pilots_spread
from virtoll.analysis.verdicts import Verdict, judge
from virtoll.record.model import Arm
from virtoll.units import percent

DECLARED_MARGIN = 0.03
_PAIRED = "geometric mean of paired ratios within blocks, t interval on the log scale, n = blocks"
_OVERALL = "geometric mean over conditions of paired ratios within blocks, t interval on the log scale, n = blocks"


@dataclass(frozen=True)
class Toll:
    """One arm against the baseline in one metric. ``condition`` None: all conditions together."""

    arm: Arm
    condition: Condition | None
    metric: Metric
    ratio: Estimate | None  # arm / native
    p: float  # of no difference, Holm-adjusted over the table; nan without a test, or where a rule looks at intervals
    floor: float | None  # relative: what native differs from native by; shown beside it, and decides nothing
    margin: float  # relative: what counts as no difference
    conditions: int  # how many conditions it speaks for
    verdict: Verdict
    # Blocks' pairs of which a value is 0, or lies among what failed: no ratio holds them, so none is given.
    zeros: int = 0
    failed: int = 0  # those of them that lie among what failed

    @property
    def worse(self) -> Estimate | None:
        """How many times worse than the baseline: half the throughput and twice the time are both 2."""
        r = self.ratio
        if r is None or self.metric.better != "more":
            return r
        low, high = (None if bound is None else 1 / bound for bound in (r.high, r.low))
        return replace(r, value=1 / r.value, low=low, high=high)


@dataclass(frozen=True)
class TollTable:
    """All tolls of one metric; ``family`` comparisons were tested together in ``cells``, ``overall`` is its own."""

    metric: Metric
    overall: tuple[Toll, ...]
    cells: tuple[Toll, ...]
    family: int

    def cell(self, arm: Arm, condition: Condition) -> Toll | None:
        """The toll of one arm under one condition."""
        return next((toll for toll in self.cells if toll.arm == arm and toll.condition == condition), None)

    def total(self, arm: Arm) -> Toll | None:
        """The toll of one arm over all conditions."""
        return next((toll for toll in self.overall if toll.arm == arm), None)


@dataclass(frozen=True)
class Row:
    """What one toll is judged by."""

    arm: Arm
    condition: Condition | None
    summary: Summary | None  # of the log ratios
    floor: float | None
    conditions: int
    zeros: int = 0  # pairs (arm and native's deployments in a block) of which a value is 0
    failed: int = 0  # and of which one is censored
    lost: int = 0  # whole blocks that hold nothing of it
    ahead: int = 0  # planned blocks that are not whole yet
    is_asked: bool = True  # whether the study asks it of the arm

    @property
    def tested(self) -> Summary | None:
        """What is tested against no difference; None: the floor is no comparison, and neither what has no ratio nor one
        block leave any, nor blocks that are all alike.
        """
        if self.summary is None or self.arm.role == "floor" or self.barred or math.isnan(p_difference(self.summary)):
            return None
        return self.summary

    @property
    def barred(self) -> int:
        """How many of its pairs have no ratio: those of the others would be of the better ones alone."""
        return self.zeros + self.failed


@dataclass(frozen=True)
class Ratios:
    """A metric's log ratios to the baseline, and what has none: arrays [block, arm, condition]."""

    matrix: Matrix
    rule: Rule
    logs: Floats
    zeros: npt.NDArray[np.bool_]
    failed: npt.NDArray[np.bool_]
    whole: npt.NDArray[np.bool_]  # [block]
    natives: Floats | None = None  # of how many natives each log ratio is made, where the rule asks
    _noises: dict[tuple[int, ...], float | None] = field(default_factory=dict)

    @classmethod
    def of(cls, matrix: Matrix, metric_name: str, rule: Rule) -> Ratios:
        """Those of a metric, in a run that has a baseline and whose blocks are as many as a rule made them."""
        logs = log_ratios(matrix, metric_name)
        zeros, failed = _zeros(matrix, metric_name), _failed(matrix, metric_name)
        natives = None if rule.pilot is None else natives_of(matrix, metric_name)
        return cls(matrix, rule, logs, zeros, failed, whole_blocks(matrix), natives)

    def row(self, arm: Arm, condition: Condition | None, columns: Sequence[int]) -> Row:
        """What an arm is judged by under one condition, or (None) over several, of these numbers."""
        number = self.matrix.arms.index(arm)
        mine = self.logs[:, number, columns]
        zeros, failed = (each[:, number, columns] for each in (self.zeros, self.failed))
        return Row(
            arm=arm,
            condition=condition,
            summary=summary_under(self.rule, mine, None if self.natives is None else self.natives[:, number, columns]),
            floor=self._noise(tuple(columns)),
            conditions=int(np.isfinite(mine).any(axis=0).sum()) if condition is None else 1,
            zeros=int(zeros.sum()),
            failed=int(failed.sum()),
            lost=lost_blocks(mine, self.whole),
            ahead=int((~self.whole).sum()) if self.matrix.trials else 0,
            is_asked=condition is None or self.matrix.is_asked(arm, condition),
        )

    def _noise(self, columns: tuple[int, ...]) -> float | None:
        """How far native differs from native under these conditions: the same for every arm. None where that is not
        known, as where a pair of the two has no ratio: that of the others would be of the better ones alone.
        """
        if columns not in self._noises:
            self._noises[columns] = self._found_noise(list(columns))
        return self._noises[columns]

    def _found_noise(self, columns: list[int]) -> float | None:
        if self.matrix.floor is None:
            return None
        again = self.matrix.arms.index(self.matrix.floor)
        barred = self.zeros[:, again, columns] | self.failed[:, again, columns]
        return None if barred.any() else noise(self.logs[:, again, columns], self.rule)


def toll_table(
    matrix: Matrix,
    metric_name: str,
    declared_margin: float = DECLARED_MARGIN,
    rule: Rule = FIXED,
    among: Collection[Condition] | None = None,
) -> TollTable:
    """Every arm but the baseline against it, per condition, and over all of them or ``among`` these. Empty without a
    baseline.
    """
    metric = matrix.metrics[metric_name]
    if matrix.baseline is None:
        return TollTable(metric, (), (), 0)
    others = [arm for arm in matrix.arms if arm is not matrix.baseline]
    held = Ratios.of(matrix, metric_name, rule)
    mine = [number for number, c in enumerate(matrix.conditions) if among is None or c in among]
    overall = [held.row(arm, None, mine) for arm in others]
    cells = [
        held.row(arm, condition, [number])
        for arm in others
        for number, condition in enumerate(matrix.conditions)
        if condition in matrix.conditions_of(metric_name)
    ]
    judged_cells = judge_family(metric, cells, declared_margin, _PAIRED, rule)
    judged_overall = judge_family(metric, overall, declared_margin, _OVERALL, rule)
    return TollTable(metric, judged_overall, judged_cells, family_of(cells, rule))


def whole_blocks(matrix: Matrix) -> npt.NDArray[np.bool_]:
    """Of each block, whether all of its trials were made, however they ended (`Run.made`)."""
    if not matrix.trials:
        return np.zeros(len(matrix.blocks), dtype=bool)
    pending = {trial.block for trial in matrix.run.plan.trials if trial.id not in matrix.run.made}
    return np.array([block not in pending for block in matrix.blocks], dtype=bool)


def lost_blocks(logs: Floats, whole: npt.NDArray[np.bool_]) -> int:
    """How many whole blocks hold nothing of [block, condition]."""
    return int((whole & ~np.isfinite(logs).any(axis=1)).sum())


def log_ratios(matrix: Matrix, metric_name: str) -> Floats:
    """Array [block, arm, condition] of log(arm) less the mean of log(native) over the natives of the arm's group.

    A native that is missing leaves the other alone; nan where the arm is, or both. nan too where either native that is
    there has no ratio, for a 0 or for what failed: the other would be the better one. Who averages them must say, or
    refuse, where that left a block out (`Toll.zeros`).
    """
    if not matrix.natives:
        return np.full_like(matrix.values(metric_name), np.nan)
    found = [_against(matrix, metric_name, native) for native in matrix.natives]
    logs, lost = mean_of_known([each for each, _ in found]), _failed(matrix, metric_name)
    for each, there in found:
        lost |= there & ~np.isfinite(each)
    return np.where(lost, np.nan, logs)


def natives_of(matrix: Matrix, metric_name: str) -> Floats:
    """Array [block, arm, condition] of how many natives a log ratio is made of."""
    known = [np.isfinite(_against(matrix, metric_name, native)[0]) for native in matrix.natives]
    return np.sum(known, axis=0, dtype=float) if known else np.zeros_like(matrix.values(metric_name))


def _against(matrix: Matrix, metric_name: str, native: Arm) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Arrays [block, arm, condition] of log(arm / one native of its group), nan where there is none; and whether both
    were measured, of the arms that are compared with it.
    """
    values, base = matrix.values(metric_name), matrix.opposite(metric_name, native)
    there = np.isfinite(values) & np.isfinite(base) & _is_compared(matrix, native)
    logs = np.full_like(values, np.nan)
    both = there & (values > 0) & (base > 0)
    logs[both] = np.log(values[both]) - np.log(base[both])
    _by_rounds(matrix, metric_name, logs, native)
    return logs, there


def _is_compared(matrix: Matrix, native: Arm) -> npt.NDArray[np.bool_]:
    """Array [1, arm, 1]: whose ratios a native is in."""
    return np.array([native in matrix.against(arm) for arm in matrix.arms])[None, :, None]


def _by_rounds(matrix: Matrix, metric_name: str, logs: Floats, native: Arm) -> None:
    """Put in the place of log ratios of trials' values the median over their rounds, of a metric that is told window by
    window; what was not measured in turn keeps them.
    """
    if not any(metric_name in cell.by_window for cell in matrix.cells.values()):
        return
    for b, a, c in np.argwhere(np.isfinite(logs)).tolist():
        pair = matrix.pair(b, matrix.arms[a], matrix.conditions[c], native)
        if pair is not None and all(metric_name in each.by_window for each in pair) and in_turn(*pair):
            logs[b, a, c] = median_of_rounds(*(np.array(each.by_window[metric_name]) for each in pair))


def _zeros(matrix: Matrix, metric_name: str) -> npt.NDArray[np.bool_]:
    """Array [block, arm, condition]: whether arm and a native were both measured, and one of them is 0."""
    values = matrix.values(metric_name)
    found = np.zeros(values.shape, dtype=bool)
    for native in matrix.natives:
        base = matrix.opposite(metric_name, native)
        known = np.isfinite(values) & np.isfinite(base) & _is_compared(matrix, native)
        found |= known & ((values <= 0) | (base <= 0))
    return found


def _failed(matrix: Matrix, metric_name: str) -> npt.NDArray[np.bool_]:
    """Array [block, arm, condition]: whether arm and a native were both measured, and what either says lies among what
    failed, which is worse than any value; or either did not answer beside other servers. What was used at a knee goes
    with it: those whose knee is a bound are the fastest, or the slowest.
    """
    found = np.zeros(matrix.values(metric_name).shape, dtype=bool)
    bars = barring(metric_name)
    if any(bars & trial.censored for trial in matrix.trials):
        for b, a, c in np.ndindex(found.shape):
            arm, condition = matrix.arms[a], matrix.conditions[c]
            pairs = (matrix.pair(b, arm, condition, native) for native in matrix.against(arm))
            found[b, a, c] = any(bars & each.censored for pair in pairs if pair is not None for each in pair)
    for a, arm in enumerate(matrix.arms):
        whose = [at for at, other in enumerate(matrix.arms) if at == a or arm in matrix.against(other)]
        for condition in matrix.conditions_of(metric_name):
            c = matrix.conditions.index(condition)
            for trial in matrix.silent(metric_name, arm, condition):
                beside = [at for at in whose if at == a or matrix.is_beside(trial, (matrix.arms[at], condition))]
                found[matrix.blocks.index(trial.record.trial.block), beside, c] = True
    return found


def summary_under(rule: Rule, logs: Floats, natives: Floats | None = None) -> Summary | None:
    """`over_conditions` of [block, condition]; the error of a rule with a pilot is by the spread of its blocks, that of
    several hosts by `over_hosts`.

    The pilot's share of all blocks is that of the condition that gained fewest since: one that was lost from then on is
    known by the pilot alone. ``natives``, of how many each log ratio is made: of fewer than in the pilot it scatters
    more than the pilot tells.
    """
    if isinstance(rule, OverHosts):
        return over_hosts(rule.hosts, logs, is_of_hosts=rule.is_of_hosts)
    whole = over_conditions(logs)
    if whole is None or rule.pilot is None or len(logs) <= rule.pilot:
        return whole
    pilot, measured = logs[: rule.pilot], np.isfinite(logs).any(axis=0)
    held, of_all = (np.isfinite(each[:, measured]).sum(axis=0) for each in (pilot, logs))
    if not held.all():  # the mean has more than the pilot's spread
        return with_pilots_spread(whole, None, 1.0)
    share = held / of_all
    if natives is not None:
        share *= _noisier(natives[:, measured], logs[:, measured], rule.pilot)
    return with_pilots_spread(whole, over_conditions(pilot), float(share.max()))


def _noisier(natives: Floats, logs: Floats, pilot: int) -> Floats:
    """By condition, how many times a log ratio's variance is that of the pilot's at the most, or 1 where it is less:
    that of the mean of so many ``natives``, of an arm that scatters little itself.
    """
    variance = np.where(np.isfinite(logs), 1 / np.maximum(natives, 1), np.nan)
    return np.asarray(np.maximum(1.0, np.nanmean(variance, axis=0) / np.nanmean(variance[:pilot], axis=0)))


def noise(floor_logs: Floats | None, rule: Rule = FIXED) -> float | None:
    """The noise floor, relative: how far native differs from native, or could by chance, whichever is more."""
    summary = None if floor_logs is None else summary_under(rule, floor_logs)
    if summary is None or rule.lacks(summary) or not math.isfinite(half := rule.half_width(summary)):
        return None
    return math.expm1(max(abs(summary.mean), half))


def family_of(rows: Sequence[Row], rule: Rule = FIXED) -> int:
    """How many of the rows are tested together; by a rule that looks several times, all that were planned."""
    return sum(
        1 for row in rows if (row.is_asked and row.arm.role != "floor" if rule.by_plan else row.tested is not None)
    )


def tested_of(tolls: Iterable[Toll], rule: Rule) -> int:
    """The same of what came of them; by a rule that looks several times, all that were planned."""
    return sum(rule.by_plan or not math.isnan(toll.p) for toll in tolls)


def judge_family(
    metric: Metric, rows: Sequence[Row], margin: float, method: str, rule: Rule = FIXED
) -> tuple[Toll, ...]:
    """Word every row, by the rule's tests of the treatments among them as a family."""
    tests = [row.tested for row in rows]
    family = family_of(rows, rule)
    tolls = []
    for row, p in zip(rows, rule.tests(tests), strict=True):
        verdict = judge(
            metric,
            row.summary,
            p,
            margin=margin,
            family=max(1, family),
            rule=rule,
            lost=row.lost,
            ahead=row.ahead,
        )
        if row.arm.role == "floor" and row.barred:
            verdict = Verdict("floor", f"noise floor: unknown ({of_barred(row, metric).words})")
        elif row.arm.role == "floor" and row.summary is not None:
            verdict = _of_floor(row.summary, row.floor, rule)
        elif row.barred and metric.better is not None:
            verdict = of_barred(row, metric)
        tolls.append(
            Toll(
                arm=row.arm,
                condition=row.condition,
                metric=metric,
                ratio=None if row.summary is None or row.barred else rule.interval(row.summary, method),
                p=p,
                floor=row.floor,
                margin=margin,
                conditions=row.conditions,
                verdict=verdict,
                zeros=row.barred,
                failed=row.failed,
            )
        )
    return tuple(tolls)


def _of_floor(again: Summary, floor: float | None, rule: Rule) -> Verdict:
    """What native (again) is told as: the noise floor, and whether native differs from itself for more than chance."""
    known = "unknown" if floor is None else f"{percent(floor * 100)} %"
    (p,) = rule.tests([again])
    chance = bool(rule.lacks(again)) or not rule.differs(again, p, 1)
    beyond = "" if chance else " (native differs from itself by more than chance)"
    return Verdict("floor", f"noise floor: {known}{beyond}")


def of_barred(row: Row, metric: Metric) -> Verdict:
    """What a row without a ratio is told as: a 0 has none, nor has what failed, and those of the other blocks alone
    would be of the better ones.
    """
    parts = [pairs_of_zeros(row.zeros)] * bool(row.zeros)
    parts += [f"in {row.failed} pair{'s' * (row.failed > 1)} it {metric.censoring}"] * bool(row.failed)
    return Verdict("unjudged", f"no ratio: {', '.join(parts)}")


def pairs_of_zeros(count: int) -> str:
    """``2 pairs hold a 0 or less``."""
    return f"{count} pair{'s' * (count > 1)} hold{'s' * (count == 1)} a 0 or less"


__all__ = [
    "LEVEL",
    "Ratios",
    "Row",
    "Toll",
    "TollTable",
    "family_of",
    "judge_family",
    "log_ratios",
    "lost_blocks",
    "natives_of",
    "noise",
    "of_barred",
    "over_conditions",
    "pairs_of_zeros",
    "summary_under",
    "tested_of",
    "toll_table",
    "whole_blocks",
]
