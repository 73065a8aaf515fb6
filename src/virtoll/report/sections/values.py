"""Every quantity in its unit, condition by condition."""

from __future__ import annotations

from typing import ClassVar

from virtoll.analysis.conditions import Condition
from virtoll.analysis.metrics import ISOLATION, Metric
from virtoll.record.model import Arm
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING, interval, plus_minus
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table, file_name, grouped
from virtoll.report.words import not_told
from virtoll.units import percent

# Times that may lie beyond the window: a mean of the others would flatter.
_BOUNDED = ("settling", "recovery")


class Values(Section):
    """A table a quantity."""

    name: ClassVar[str] = "values"
    summary: ClassVar[str] = "All values"
    rank: ClassVar[int] = 800

    def applies(self, findings: Findings) -> bool:  # noqa: ARG002
        """To every run."""
        return True

    def text(self, findings: Findings) -> list[str]:
        """What they are, and what is not told."""
        shown = ((why, [metric for metric in some if not _is_bounded(metric)]) for why, some in findings.untold.items())
        return [_WHAT, *(not_told(some, why) for why, some in shown if some)]

    def tables(self, findings: Findings) -> list[Table]:
        """Those of one load or probe, or of one family of probes ("disk", "unix"), under one heading."""
        made = ((metric, _table(findings, metric)) for metric in findings.matrix.metrics.values())
        known = [(_heading(metric), table) for metric, table in made if table is not None]
        several = len({heading for heading, _ in known}) > 1
        return [_placed(table, heading if several else "") for heading, table in known]


_WHAT = (
    "Means over deployments with 95 % intervals, in the units of the literature. Each is also a file in "
    "`report/tables/`."
)
_COMMON = "any load"


def _table(findings: Findings, metric: Metric) -> Table | None:
    if findings.is_programme and not findings.is_isolation:
        return quantity(findings, metric)
    return None if _is_bounded(metric) else absolute(findings, metric.name)


def _is_bounded(metric: Metric) -> bool:
    return metric.group == ISOLATION and metric.name.startswith(_BOUNDED)


def _heading(metric: Metric) -> str:
    return metric.group.partition("-")[0] or _COMMON


def _placed(table: Table, heading: str) -> Table:
    return table.placed(heading, look="matrix", folded=True, short=table.caption.partition(":")[0])


def absolute(findings: Findings, metric_name: str) -> Table | None:
    """Means with 95 % intervals of a metric in its unit, condition by arm; None when nothing was measured."""
    metric, matrix = findings.matrix.metrics[metric_name], findings.matrix
    notes: dict[str, None] = {}
    rows = []
    for condition in matrix.conditions:
        cells = [Cell(matrix.label(condition) or "the only condition")]
        for arm in findings.arms:
            estimate = matrix.absolute(metric_name, arm, condition)
            notes |= dict.fromkeys(f"{arm.label}: {note}" for note in matrix.notes(metric_name, arm, condition))
            lost, n = matrix.censored(metric_name, arm, condition)
            if lost:
                cells.append(Cell(f"in {lost} of {n} it {metric.censoring}", "missing"))
            else:
                cells.append(Cell(plus_minus(estimate), "" if estimate else "missing"))
        rows.append(tuple(cells))
    if all(cell.text == MISSING for row in rows for cell in row[1:]):
        return None
    unit = f" [{metric.unit}]" if metric.unit else ""
    of_the_loop = metric.is_a_loads_own or metric_name.startswith(("latency", "rate_per_s", "total"))
    loop = f", {' and '.join(findings.loops)} loop" if of_the_loop else ""
    caption = f"{metric.title}{unit}{loop}: mean over deployments ± half-width of its 95 % interval"
    heads = ("Condition", *(arm.label for arm in findings.arms))
    return Table(file_name(metric_name), caption, heads, tuple(rows), grouped(list(notes)))


def quantity(findings: Findings, metric: Metric) -> Table:
    """One quantity: means in its unit and ratios to native, a case a row, an arm a column."""
    matrix = findings.matrix
    conditions = matrix.conditions_of(metric.name)
    rows = [
        (
            Cell(matrix.label(condition, metric.name) or "the only case"),
            *(_value(findings, metric, arm, condition) for arm in findings.arms),
        )
        for condition in conditions
    ]
    notes = [
        f"{arm.label}: {note}"
        for condition in conditions
        for arm in findings.arms
        for note in matrix.notes(metric.name, arm, condition)
    ]
    unit = f" [{metric.unit}]" if metric.unit else ""
    caption = f"{metric.title}{unit}: mean over deployments ± half-width of its 95 % interval, and the ratio to native"
    heads = ("Case", *(arm.label for arm in findings.arms))
    return Table(file_name(metric.name), caption, heads, tuple(rows), (*grouped(notes), *_spread(findings, metric)))


def _value(findings: Findings, metric: Metric, arm: Arm, condition: Condition) -> Cell:
    matrix = findings.matrix
    estimate = matrix.absolute(metric.name, arm, condition)
    if estimate is None:
        return Cell(MISSING, "missing", matrix.why_missing(metric.name, arm, condition))
    toll = None if metric.better is None else findings.tolls(metric.name).cell(arm, condition)
    if toll is not None and toll.zeros:
        return Cell(plus_minus(estimate), toll.verdict.kind, toll.verdict.words)
    if toll is None or toll.ratio is None:
        return Cell(plus_minus(estimate))
    return Cell(plus_minus(estimate), toll.verdict.kind, f"× {interval(toll.ratio)}")


def _spread(findings: Findings, metric: Metric) -> tuple[str, ...]:
    """How much the windows of one deployment differ: it is no part of the intervals."""
    spreads = [(arm.label, findings.matrix.spread_within(metric.name, arm)) for arm in findings.arms]
    known = [f"{label} {percent(spread * 100)} %" for label, spread in spreads if spread is not None]
    if not known:
        return ()
    return (f"Coefficient of variation over the windows of one deployment (median): {', '.join(known)}.",)
