"""What a paper published against what was measured here, judged by rule.

A published *value* is judged as a ratio to the paper's native column (machines differ, ratios should carry over), or
is such a ratio already. Its interval combines the printed 95 % half-widths of both cells on the log scale. It *agrees*
when that interval, or the study's margin around the ratio, meets ours; a value printed without a half-width has the
margin alone. It *disagrees* when they lie apart; *cannot tell* when we have no interval or one so wide (high / low
above 1.5) that it would meet almost anything.

A *statement* is an inequality on a ratio of two cells, paired within blocks. A cell agrees when its whole interval
satisfies it, disagrees when the whole interval violates it. Of a ramp it is judged over the levels at which its arms
met the objective: a server at its limit takes no more, and delivers less. What was not measured is "not measured
here": another platform or setting never stands in for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from virtoll.analysis.conditions import Condition, level_label, level_value
from virtoll.analysis.counterparts import (
    BELIEVES,
    barred,
    fits,
    level_of,
    log_ratio,
    logs,
    matching,
    natives_beside,
    parsed,
    pooled,
    title_of,
    without,
)
from virtoll.analysis.estimates import LEVEL, Estimate, Floats, Summary, ratio
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.papers import NATIVE, Paper, PaperTable, Published, Statement
from virtoll.analysis.ratios import DECLARED_MARGIN
from virtoll.analysis.rules import Rule, rule_of
from virtoll.analysis.server import fixed_by, is_held, met_under, tells
from virtoll.analysis.sittings import in_one_sitting
from virtoll.record.model import Arm

Outcome = Literal["agrees", "disagrees", "cannot tell", "not measured here"]
WIDEST = 1.5
_PAIRED = "paired within blocks, t interval on the log scale"
_PRINTED = "from the printed means and half-widths"


@dataclass(frozen=True)
class ValueClaim:
    """One published number. Ratios are to native; ``measured_value`` is in the metric's unit."""

    row: str
    column: str
    published: Published
    published_ratio: Estimate | None  # None in the native column itself
    measured_value: Estimate | None  # None as well where the row stands for several conditions
    measured_ratio: Estimate | None
    outcome: Outcome | None  # None in the native column
    why: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class JudgedTable:
    """A published table, judged cell by cell."""

    table: PaperTable
    columns: tuple[str, ...]  # keys of Paper.arms
    cells: dict[tuple[str, str], ValueClaim]  # by (row, column)
    stands_for: dict[str, tuple[Condition, ...]]  # rows that are means over several conditions
    differs: tuple[str, ...]  # what was otherwise in the paper


@dataclass(frozen=True)
class JudgedStatement:
    """A published statement, judged."""

    statement: Statement
    outcome: Outcome
    measured: tuple[tuple[str, Estimate], ...]  # (where, ratio) for each cell that was measured
    why: str


@dataclass(frozen=True)
class JudgedPaper:
    """A paper against a run."""

    paper: Paper
    tables: tuple[JudgedTable, ...]
    statements: tuple[JudgedStatement, ...]

    @property
    def outcomes(self) -> Counter[Outcome]:
        """How many of its claims came to what."""
        cells = (claim.outcome for table in self.tables for claim in table.cells.values() if claim.outcome is not None)
        return Counter([*cells, *(judged.outcome for judged in self.statements)])


def judge_paper(paper: Paper, matrix: Matrix, margin: float = DECLARED_MARGIN) -> JudgedPaper:
    """Every claim of a paper against a run."""
    tables = tuple(_judge_table(paper, table, matrix, margin) for table in paper.tables)
    return JudgedPaper(paper, tables, tuple(_judge_statement(paper, s, matrix) for s in paper.statements))


# -- values ----------------------------------------------------------------------------------------------


def _judge_table(paper: Paper, table: PaperTable, matrix: Matrix, margin: float) -> JudgedTable:
    columns = tuple(dict.fromkeys(column for row in table.rows.values() for column in row))
    cells: dict[tuple[str, str], ValueClaim] = {}
    found: dict[str, list[Condition]] = {}
    for row, published in table.rows.items():
        setting = _setting(table, row)
        found[row] = matching(matrix, table.metric_of(row), setting, paper.context | table.context)
        for column in published:
            arm = paper.arms[column].match(matrix.arms)
            cells[row, column] = _judge_value(paper, matrix, _Cell(table, row, column, arm, found[row]), margin)
    stands_for = {row: tuple(conditions) for row, conditions in found.items() if len(conditions) > 1}
    used = [condition for conditions in found.values() for condition in conditions]
    return JudgedTable(table, columns, cells, stands_for, _differences(paper, table, matrix, used))


def _setting(table: PaperTable, row: str) -> dict[str, Any]:
    setting = table.setting | table.row_settings.get(row, {})
    return setting | {table.by: parsed(table.by, table.levels.get(row, row))} if table.by else setting


@dataclass(frozen=True)
class _Cell:
    """A published cell and where its counterpart here would be."""

    table: PaperTable
    row: str
    column: str
    arm: Arm | None
    conditions: list[Condition]

    @property
    def published(self) -> Published:
        return self.table.rows[self.row][self.column]


def _judge_value(paper: Paper, matrix: Matrix, cell: _Cell, margin: float) -> ValueClaim:
    arm, conditions, metric = cell.arm, cell.conditions, cell.table.metric_of(cell.row)
    there = _published_ratio(paper, cell)

    def claim(why: str, outcome: Outcome | None = None, here: Estimate | None = None) -> ValueClaim:
        single = arm is not None and len(conditions) == 1
        value = matrix.absolute(metric, arm, conditions[0]) if arm is not None and single else None
        notes = tuple(matrix.notes(metric, arm, conditions[0])) if arm is not None and single else ()
        judged = None if there is None else outcome
        return ValueClaim(cell.row, cell.column, cell.published, there, value, here, judged, why, notes)

    if arm is None:
        return claim(f"no {paper.arms[cell.column].title} here", "not measured here")
    if not conditions:
        return claim("this condition was not in the study", "not measured here")
    if there is None or matrix.baseline is None:
        return claim("" if there is None else "no native arm to compare with", "not measured here")
    if why := barred(matrix, metric, [(one, c) for one in (arm, matrix.baseline) for c in conditions]):
        return claim(f"no ratio: {why}", "cannot tell")
    rule = rule_of(matrix.run.plan)
    columns = [_against(matrix, metric, (arm, c), (matrix.baseline, c)) for c in conditions]
    natives = [natives_beside(matrix, metric, [(arm, c), (matrix.baseline, c)]) for c in conditions]
    summary = pooled(columns, rule, natives)
    if summary is None:
        return claim(matrix.why_missing(metric, arm, conditions[0]), "not measured here")
    here = _interval(summary, [metric], rule)
    outcome, why = _compare(there, here, margin, rule.lacks(summary))
    asked = [column for c, column in zip(conditions, columns, strict=True) if matrix.is_asked(arm, c)]
    if (known := sum(bool(np.isfinite(column).any()) for column in asked)) < len(asked):
        outcome, why = "cannot tell", f"measured under {known} of {len(asked)} conditions"
    return claim(why, outcome, here)


def _published_ratio(paper: Paper, cell: _Cell) -> Estimate | None:
    """The published ratio to native; None of native itself."""
    n, one = paper.repetitions or 0, cell.published
    if cell.table.numbers == "values":
        if cell.column == NATIVE:
            return None
        return ratio_of_printed(one, cell.table.rows[cell.row][NATIVE], n)
    of_native = one.value / 100 + (cell.table.numbers == "% above native")
    low, high = (None, None) if one.half is None else (of_native - one.half / 100, of_native + one.half / 100)
    return Estimate(of_native, low, high, LEVEL, "ratio", n, "as printed")


def ratio_of_printed(a: Published, b: Published, n: int) -> Estimate:
    """The ratio of two printed means, with an interval where both have a half-width."""
    value = a.value / b.value
    if a.half is None or b.half is None:
        return Estimate(value, None, None, LEVEL, "ratio", n, "from the printed means")
    factor = math.exp(math.hypot(a.half / a.value, b.half / b.value))
    return Estimate(value, value / factor, value * factor, LEVEL, "ratio", n, _PRINTED)


def _compare(there: Estimate, here: Estimate, margin: float, lacks: str) -> tuple[Outcome, str]:
    if here.low is None or here.high is None:
        return "cannot tell", lacks
    low, high = there.value / (1 + margin), there.value * (1 + margin)
    if there.low is not None and there.high is not None:
        low, high = min(there.low, low), max(there.high, high)
    if here.low > high or here.high < low:
        return "disagrees", "the intervals lie apart"
    if here.high / here.low > WIDEST:
        return "cannot tell", "the interval measured here is too wide"
    return "agrees", "the intervals meet"


def _differences(paper: Paper, table: PaperTable, matrix: Matrix, used: list[Condition]) -> tuple[str, ...]:
    differences = []
    for path, there in (paper.context | table.context).items():
        levels = (level_of(matrix, condition, path) for condition in used)
        here = sorted({_said(path, level) for level in levels if not fits(path, level, there)})
        if here:
            differences.append(f"{path}: {_said(path, parsed(path, there))} in the paper, {' and '.join(here)} here")
    return (*differences, *(table.remarks if used else ()))


def _said(path: str, level: Any) -> str:
    return "not set" if level is None else level_value(path, level)


def _against(matrix: Matrix, metric: str, over: tuple[Arm, Condition], under: tuple[Arm, Condition] | None) -> Floats:
    """Log ratios of two cells, a block each; of the one cell's own values where there is no other."""
    return logs(matrix, metric, *over) if under is None else log_ratio(matrix, metric, over, under)


# -- statements ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pair:
    """One ratio a statement speaks of: where, and its log in each block."""

    where: str
    end: Any  # the level along a trend's path
    rest: tuple[str, Condition]  # the metric, and what it was measured under besides
    values: Floats
    natives: Floats  # of how many each is made
    sittings: Sequence[Collection[int]]  # by block; of a ratio, in which the machine has cancelled, always one
    barred: str = ""  # why it has no ratio
    is_served: bool = True  # whether both met the objective there, where it is a level of a ramp


def _judge_statement(paper: Paper, statement: Statement, matrix: Matrix) -> JudgedStatement:
    arms = [paper.arms[name].match(matrix.arms) for name in (statement.over, statement.under) if name]
    for name, arm in zip((statement.over, statement.under), arms, strict=False):
        if arm is None:
            return JudgedStatement(statement, "not measured here", (), f"no {paper.arms[name].title} here")
    asked = [pair for metric in statement.metrics for pair in _pairs(paper, statement, metric, matrix)]
    pairs = [pair for pair in asked if pair.is_served]
    if asked and not pairs:
        return JudgedStatement(statement, "cannot tell", (), f"{_both(arms)} met the objective at none of its levels")
    served = f"over the {len(pairs)} of {len(asked)} levels at which {_both(arms)} met the objective"
    found = [pair for pair in pairs if pair.barred or np.isfinite(pair.values).any()]
    barred = [f"no ratio: {pair.barred}" for pair in _needed(statement, found) if pair.barred]
    rule = rule_of(matrix.run.plan)
    needs_all = statement.holds in ("mean", "trend")
    judged = [] if barred and needs_all else [pair for pair in found if not pair.barred]
    means = _measured(statement, judged, rule)
    if not means and barred:
        return JudgedStatement(statement, "cannot tell", (), barred[0])
    if not means:
        return JudgedStatement(statement, "not measured here", (), "its conditions were not measured")
    measured = [(where, _interval(mean, statement.metrics, rule)) for where, mean in means]
    lost = _lost(statement, pairs, found)
    shared = [_shared(mean, one, len(means), rule) for (_, mean), (_, one) in zip(means, measured, strict=True)]
    single = [_one_of(statement, one, wide) for (_, one), wide in zip(measured, shared, strict=True)]
    outcome = "cannot tell" if lost else _quantified(statement, single + ["cannot tell"] * len(barred))
    lacking = [rule.lacks(mean) for (_, mean), (_, one) in zip(means, measured, strict=True) if one.low is None]
    why = [*lost, *barred, *lacking][:1] if outcome == "cannot tell" else []
    reasons = [_coverage(statement, len(measured), len(pairs)), served if len(pairs) < len(asked) else "", *why]
    return JudgedStatement(statement, outcome, tuple(measured), "; ".join(filter(None, reasons)))


def _both(arms: Sequence[Arm | None]) -> str:
    return "both" if len(arms) > 1 else "it"


def _lost(statement: Statement, pairs: list[_Pair], found: list[_Pair]) -> list[str]:
    """Why a mean, or a trend, is not of the conditions that the study asked for."""
    if statement.holds == "mean" and len(found) < len(pairs):
        return [f"measured under {len(found)} of {len(pairs)} conditions"]
    if statement.holds != "trend":
        return []
    ends = sorted({pair.end for pair in pairs})
    missing = [str(end) for end in ends[:1] + ends[-1:] if end not in {pair.end for pair in found}]
    if missing:
        return [f"nothing was measured at its end: {', '.join(missing)}"]
    asked = [pair for end in _ends(pairs) for pair in end]
    known = sum((pair.end, pair.rest) in {(each.end, each.rest) for each in found} for pair in asked)
    return [f"measured under {known} of {len(asked)} conditions at its ends"] if known < len(asked) else []


def _ends(pairs: list[_Pair]) -> tuple[list[_Pair], list[_Pair]]:
    """Those at the first level along a trend and at the last, in one order: all else must be the same at both, or how
    its conditions differ would pass for what the trend does.
    """
    ends = sorted({pair.end for pair in pairs})
    if len(ends) < 2:
        return [], []
    first, last = ({pair.rest: pair for pair in pairs if pair.end == end} for end in (ends[0], ends[-1]))
    both = [rest for rest in first if rest in last]
    return [first[rest] for rest in both], [last[rest] for rest in both]


def _needed(statement: Statement, pairs: list[_Pair]) -> list[_Pair]:
    """Those whose ratios it is about: of a trend the ends', else all."""
    if statement.holds != "trend":
        return pairs
    return [pair for end in _ends(pairs) for pair in end]


def _pairs(paper: Paper, statement: Statement, metric: str, matrix: Matrix) -> list[_Pair]:
    """The cells of both arms in each setting left open, in the order of the conditions."""
    over, under = (paper.arms[name].match(matrix.arms) if name else None for name in (statement.over, statement.under))
    own = paper.context | statement.over_setting | statement.under_setting
    uppers = matching(matrix, metric, statement.setting | statement.over_setting, paper.context)
    lowers = {
        without(condition, own): condition
        for condition in matching(matrix, metric, statement.setting | statement.under_setting, paper.context)
    }
    varying = [path for path in matrix.varying if len({condition.get(path) for condition in uppers}) > 1]
    served = {arm.label: _served(matrix, metric, arm) for arm in (over, under) if arm is not None}
    pairs = []
    for upper in uppers:
        lower = lowers.get(without(upper, own))
        if over is None or (under is not None and lower is None):
            continue
        is_asked = matrix.is_asked(over, upper) and (under is None or lower is None or matrix.is_asked(under, lower))
        if not (is_asked or metric.startswith(BELIEVES)):  # a belief is the arm's, whichever condition stands for it
            continue
        against = None if under is None or lower is None else (under, lower)
        where = upper.label(tuple(varying) or tuple(p for p in matrix.varying if p in statement.setting))
        if len(statement.metrics) > 1:
            where = ", ".join(part for part in (title_of(matrix, metric), where if varying else "") if part)
        end = upper.get(statement.by)
        if statement.holds == "trend" and end is None:  # as fast as it goes, say, which has no place along it
            continue
        both = [(over, upper), *([] if against is None else [against])]
        rest = metric, without(upper, {**own, statement.by: None})
        values = _against(matrix, metric, (over, upper), against)
        is_served = all(condition in served[arm.label] for arm, condition in both)
        natives = natives_beside(matrix, metric, both)
        sittings = matrix.sittings((over, upper)) if against is None else [{0}] * len(values)
        pairs.append(_Pair(where, end, rest, values, natives, sittings, barred(matrix, metric, both), is_served))
    return pairs


def _served(matrix: Matrix, metric: str, arm: Arm) -> set[Condition]:
    """Under which an arm is compared in a metric: see `Findings.compared`, of this arm alone."""
    known = matrix.metrics.get(metric)
    if known is None or known.is_a_loads_own or not is_held(matrix):
        return set(matrix.conditions)
    last = fixed_by(matrix, rule_of(matrix.run.plan))
    return met_under(matrix, arm, last) if tells(matrix, arm, last) else set(matrix.conditions)


def _measured(statement: Statement, pairs: list[_Pair], rule: Rule) -> list[tuple[str, Summary]]:
    """What the statement is judged by: each pair, their mean, or the last over the first along a trend."""
    if statement.holds == "mean":
        columns = [(f"mean over {len(pairs)}", [pair.values for pair in pairs], [pair.natives for pair in pairs])]
    elif statement.holds != "trend":
        columns = [(pair.where, [pair.values], [pair.natives]) for pair in pairs]
    else:
        first, last = _ends(pairs)
        if not first:
            return []
        growth = np.mean([pair.values for pair in last], axis=0) - np.mean([pair.values for pair in first], axis=0)
        growth = np.where(in_one_sitting([pair.sittings for pair in (*first, *last)]), growth, np.nan)
        fewest = np.min([pair.natives for pair in (*first, *last)], axis=0)
        columns = [(" over ".join(level_label(statement.by, end[0].end) for end in (last, first)), [growth], [fewest])]
    means = [(where, pooled(values, rule, natives)) for where, values, natives in columns]
    return [(where, mean) for where, mean in means if mean is not None]


def _interval(summary: Summary, metrics: Sequence[str], rule: Rule) -> Estimate:
    """With the rule's interval. What instances believe is told, not measured: always the same, it needs no chance."""
    constant = summary.is_alike and all(metric.startswith(BELIEVES) for metric in metrics)
    return ratio(summary, _PAIRED) if constant else rule.interval(summary, _PAIRED)


def _shared(mean: Summary, one: Estimate, of: int, rule: Rule) -> Estimate:
    """The interval of one of so many, all of which hold together with the level."""
    if of < 2 or one.low is None or one.low == one.high:
        return one
    return ratio(mean, one.method, rule.half_width(mean, 1 - (1 - LEVEL) / of))


def _one_of(statement: Statement, one: Estimate, shared: Estimate) -> Outcome:
    """What one condition says. One alone refutes *every*, and bears *some* out: of many one would do so by chance."""
    outcome = _satisfies(statement, one)
    decides = {"every": "disagrees", "some": "agrees"}.get(statement.holds)
    return "cannot tell" if outcome == decides and _satisfies(statement, shared) != outcome else outcome


def _quantified(statement: Statement, single: list[Outcome]) -> Outcome:
    if statement.holds == "some":
        single = [_opposite(outcome) for outcome in single]
    outcome: Outcome = "cannot tell"
    if "disagrees" in single:
        outcome = "disagrees"
    elif all(one == "agrees" for one in single):
        outcome = "agrees"
    return _opposite(outcome) if statement.holds == "some" else outcome


def _opposite(outcome: Outcome) -> Outcome:
    turned: dict[Outcome, Outcome] = {"agrees": "disagrees", "disagrees": "agrees"}
    return turned.get(outcome, outcome)


def _satisfies(statement: Statement, estimate: Estimate) -> Outcome:
    """Whether the whole interval is within the bounds, or wholly outside."""
    if estimate.low is None or estimate.high is None:
        return "cannot tell"
    above = -math.inf if statement.above is None else statement.above
    below = math.inf if statement.below is None else statement.below
    if estimate.low > above and estimate.high < below:
        return "agrees"
    return "disagrees" if estimate.high <= above or estimate.low >= below else "cannot tell"


def _coverage(statement: Statement, measured: int, pairs: int) -> str:
    if statement.holds in ("trend", "mean"):
        return ""
    of = f" of {pairs}" if measured < pairs else ""
    return f"judged over {measured}{of} condition{'s' if pairs > 1 else ''}"
