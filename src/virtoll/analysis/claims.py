"""What a paper published against what was measured here, judged by rule.

A published *value* is judged as a ratio to the paper's native column (machines differ, ratios should carry over).
Its interval combines both cells' printed 95 % half-widths on the log scale. It *agrees* when that interval, or the
study's margin around the ratio, meets ours; it *disagrees* when they lie apart; *cannot tell* when we have no interval
or one so wide (high / low above 1.5) that it would meet almost anything.

A *statement* is an inequality on a ratio of two cells, paired within blocks. A cell agrees when its whole interval
satisfies it, disagrees when the whole interval violates it. What was not measured is "not measured here": another
platform or setting never stands in for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from virtoll.analysis.estimates import LEVEL, Estimate, Floats, Summary, ratio, summarise
from virtoll.analysis.matrix import Condition, Matrix
from virtoll.analysis.papers import Paper, PaperTable, Statement
from virtoll.analysis.ratios import DECLARED_MARGIN
from virtoll.record import Arm
from virtoll.units import parse_bytes

Outcome = Literal["agrees", "disagrees", "cannot tell", "not measured here"]
WIDEST = 1.5
PAIRED = "paired within blocks, t interval on the log scale"
SIZE = "load.object_bytes"


@dataclass(frozen=True)
class ValueClaim:
    """One cell of a published table. Ratios are to native; ``measured_value`` is in the metric's unit."""

    size: str
    column: str
    published_value: Estimate
    published_ratio: Estimate | None  # None in the native column itself
    measured_value: Estimate | None
    measured_ratio: Estimate | None
    outcome: Outcome | None  # None in the native column
    why: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class JudgedTable:
    """A published table, judged cell by cell."""

    table: PaperTable
    columns: tuple[str, ...]  # keys of Paper.arms
    cells: dict[tuple[str, str], ValueClaim]  # by (size, column)
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


def judge_paper(paper: Paper, matrix: Matrix, margin: float = DECLARED_MARGIN) -> JudgedPaper:
    """Every claim of a paper against a run."""
    tables = tuple(_judge_table(paper, table, matrix, margin) for table in paper.tables)
    return JudgedPaper(paper, tables, tuple(_judge_statement(paper, s, matrix) for s in paper.statements))


def _level(matrix: Matrix, condition: Condition, path: str) -> Any:
    level = condition.get(path)
    return matrix.run.base.get(path) if level is None else level


def _matching(matrix: Matrix, setting: dict[str, Any], context: dict[str, Any]) -> list[Condition]:
    """Conditions with this setting; of several, those that share most of the paper's context."""

    def shared(condition: Condition) -> int:
        return sum(_same(_level(matrix, condition, path), level) for path, level in context.items())

    fits = [c for c in matrix.conditions if all(_same(_level(matrix, c, p), v) for p, v in setting.items())]
    best = max((shared(condition) for condition in fits), default=0)
    return [condition for condition in fits if shared(condition) == best]


def _same(here: Any, there: Any) -> bool:
    if isinstance(here, str) and isinstance(there, int) and here[-1:] == "B":
        return parse_bytes(here) == there
    if isinstance(here, bool) and isinstance(there, str):
        return here == (there == "on")
    return bool(here == there)


def _judge_table(paper: Paper, table: PaperTable, matrix: Matrix, margin: float) -> JudgedTable:
    columns = tuple(dict.fromkeys(column for row in table.rows.values() for column in row))
    cells: dict[tuple[str, str], ValueClaim] = {}
    used: list[Condition] = []
    for size, row in table.rows.items():
        setting = {**table.setting, SIZE: parse_bytes(size)}
        condition = next(iter(_matching(matrix, setting, paper.context)), None)
        used += [] if condition is None else [condition]
        for column, published in row.items():
            arm = paper.arms[column].match(matrix.arms)
            cell = _Cell(size, column, published, row["native"], arm, condition)
            cells[size, column] = _judge_value(paper, matrix, cell, margin)
    return JudgedTable(table, columns, cells, _differences(paper, matrix, used))


@dataclass(frozen=True)
class _Cell:
    """A published cell and where its counterpart here would be."""

    size: str
    column: str
    published: tuple[float, float]
    native: tuple[float, float]
    arm: Arm | None
    condition: Condition | None


def _judge_value(paper: Paper, matrix: Matrix, cell: _Cell, margin: float) -> ValueClaim:
    mean, half = cell.published
    value = Estimate(mean, mean - half, mean + half, LEVEL, "s", paper.repetitions, "published")
    there = None if cell.column == "native" else _published_ratio(cell.published, cell.native, paper.repetitions)
    arm, condition = cell.arm, cell.condition
    if arm is None or condition is None:
        why = f"no {paper.arms[cell.column].title} here" if arm is None else "this condition was not in the study"
        outcome: Outcome | None = None if there is None else "not measured here"
        return ValueClaim(cell.size, cell.column, value, there, None, None, outcome, why)
    here_value = matrix.absolute(paper.metric, arm, condition)
    notes = tuple(matrix.notes(paper.metric, arm, condition))
    if there is None:
        return ValueClaim(cell.size, cell.column, value, None, here_value, None, None, "", notes)
    summary = contrast(matrix, paper.metric, [(1, arm, condition), (-1, matrix.baseline, condition)])
    if summary is None:
        why = matrix.why_missing(paper.metric, arm, condition)
        return ValueClaim(cell.size, cell.column, value, there, here_value, None, "not measured here", why, notes)
    here = ratio(summary, PAIRED)
    outcome, why = _compare(there, here, margin)
    return ValueClaim(cell.size, cell.column, value, there, here_value, here, outcome, why, notes)


def _published_ratio(a: tuple[float, float], b: tuple[float, float], n: int) -> Estimate:
    half = math.hypot(a[1] / a[0], b[1] / b[0])
    log = math.log(a[0] / b[0])
    method = "from the printed means and half-widths"
    return Estimate(math.exp(log), math.exp(log - half), math.exp(log + half), LEVEL, "ratio", n, method)


def _compare(there: Estimate, here: Estimate, margin: float) -> tuple[Outcome, str]:
    if here.low is None or here.high is None or there.low is None or there.high is None:
        return "cannot tell", "one block has no interval"
    low, high = min(there.low, there.value / (1 + margin)), max(there.high, there.value * (1 + margin))
    if here.low > high or here.high < low:
        return "disagrees", "the intervals lie apart"
    if here.high / here.low > WIDEST:
        return "cannot tell", "the interval measured here is too wide"
    return "agrees", "the intervals meet"


def _differences(paper: Paper, matrix: Matrix, used: list[Condition]) -> tuple[str, ...]:
    differences = []
    for path, there in paper.context.items():
        here = {str(_level(matrix, condition, path)) for condition in used} - {str(there)}
        if here:
            known = " and ".join(sorted(here)).replace("None", "not stated")
            differences.append(f"{path}: {there} in the paper, {known} here")
    return tuple(differences)


def contrast(matrix: Matrix, metric: str, terms: list[tuple[int, Arm | None, Condition]]) -> Summary | None:
    """Mean over blocks of the weighted sum of log values; None when no block has every term."""
    values = matrix.values(metric)
    total: Floats = np.zeros(len(matrix.blocks))
    for weight, arm, condition in terms:
        if arm is None:
            return None
        cell = values[:, matrix.arms.index(arm), matrix.conditions.index(condition)]
        logs = np.full_like(cell, np.nan)
        np.log(cell, out=logs, where=cell > 0)
        total = total + weight * logs
    return summarise(total) if np.isfinite(total).any() else None


def _judge_statement(paper: Paper, statement: Statement, matrix: Matrix) -> JudgedStatement:
    over, under = (paper.arms[name].match(matrix.arms) for name in (statement.over, statement.under))
    for name, arm in ((statement.over, over), (statement.under, under)):
        if arm is None:
            return JudgedStatement(statement, "not measured here", (), f"no {paper.arms[name].title} here")
    pairs = _pairs(paper, statement, matrix)
    if statement.holds == "trend":
        pairs = [pairs[0], pairs[-1]] if len({size for size, _, _ in pairs}) > 1 else []
    measured: list[tuple[str, Estimate]] = []
    ends: list[list[tuple[int, Arm | None, Condition]]] = []
    for size, upper, lower in pairs:
        terms: list[tuple[int, Arm | None, Condition]] = [(1, over, upper), (-1, under, lower)]
        summary = contrast(matrix, statement.metric, terms)
        if summary is not None:
            measured.append((size, ratio(summary, PAIRED)))
            ends.append(terms)
    if statement.holds == "trend" and len(ends) == 2:
        terms = [(-weight, arm, condition) for weight, arm, condition in ends[0]] + ends[1]
        summary = contrast(matrix, statement.metric, terms)
        name = f"{measured[1][0]} over {measured[0][0]}"
        measured = [] if summary is None else [(name, ratio(summary, PAIRED))]
    elif statement.holds == "trend":
        measured = []
    if not measured:
        return JudgedStatement(statement, "not measured here", (), "its conditions were not measured")
    return JudgedStatement(statement, _quantified(statement, measured), tuple(measured), _coverage(statement, measured))


def _pairs(paper: Paper, statement: Statement, matrix: Matrix) -> list[tuple[str, Condition, Condition]]:
    """(where, condition over, condition under) for each size, ascending, and each further setting left open."""
    pairs = []
    for size in matrix.levels(SIZE):
        fixed = {SIZE: size} | statement.setting
        if fixed[SIZE] != size:
            continue
        uppers = _matching(matrix, fixed | statement.over_setting, paper.context)
        lowers = _matching(matrix, fixed | statement.under_setting, paper.context)
        for upper, lower in zip(uppers, lowers, strict=False):
            pairs.append((upper.label((SIZE,)) if statement.setting else matrix.label(upper), upper, lower))
    return pairs


def _quantified(statement: Statement, measured: list[tuple[str, Estimate]]) -> Outcome:
    single = [_satisfies(statement, estimate) for _, estimate in measured]
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


def _coverage(statement: Statement, measured: list[tuple[str, Estimate]]) -> str:
    if statement.holds == "trend":
        return ""
    return f"judged over {len(measured)} condition{'s' if len(measured) > 1 else ''}"
