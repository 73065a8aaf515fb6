"""The tables of a programme: what each arm costs in each probe, every quantity, and ours against others."""

from __future__ import annotations

from virtoll.analysis.crosscheck import CrossCheck
from virtoll.analysis.matrix import Condition
from virtoll.analysis.metrics import Metric
from virtoll.analysis.verdicts import percent
from virtoll.record.model import Arm
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING, interval, plus_minus
from virtoll.report.tables import Cell, Table, file_name, grouped, verdict
from virtoll.report.unix_index import unix_index


def probe_tables(findings: Findings) -> list[Table]:
    """Every table of a programme that is written to files but the papers'."""
    made = [tolls(findings), *(quantity(findings, metric) for metric in findings.matrix.metrics.values())]
    checks = cross_check(findings)
    return [*made, *unix_index(findings), *([checks] if checks is not None else [])]


def tolls(findings: Findings) -> Table:
    """What stands for each probe, a probe a row, an arm a column."""
    arms = [arm for arm in findings.arms if arm.role != "baseline"]
    rows = []
    for metric in findings.judged:
        count = len(findings.matrix.conditions_of(metric.name))
        head = Cell(metric.title, "", f"{metric.group}{f', {count} cases' if count > 1 else ''}")
        table = findings.tolls(metric.name)
        rows.append((head, *(verdict(table.total(arm), count) for arm in arms)))
    heads = ("Probe", *(arm.label for arm in arms))
    notes = (
        "Each probe by the quantity that stands for it. Costs are worsenings against native in per cent with 95 % "
        "intervals, paired within blocks; geometric means where a probe has several cases, each case weighing alike. "
        "Differences are called at a family-wise error rate of 5 % over the arms of a row (Holm).",
    )
    return Table("tolls", "What each platform costs against native", heads, tuple(rows), notes)


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


def cross_check(findings: Findings) -> Table | None:
    """Outside instruments over our probes, on native; None where there was none."""
    if not findings.cross_checks:
        return None
    rows = [
        (
            Cell(case_label(findings, check), "", check.metric.group),
            Cell(check.instrument, "", check.version),
            Cell(plus_minus(check.ours), "" if check.ours else "missing"),
            Cell(plus_minus(check.theirs), "" if check.theirs else "missing"),
            Cell(interval(check.ratio)),
            Cell(check.outcome, check.outcome.replace(" ", "-"), check.why),
        )
        for check in findings.cross_checks
    ]
    heads = ("Quantity", "Instrument", "Ours", "Theirs", "Theirs / ours", "Outcome")
    caption = "Outside instruments over our probes, on native"
    return Table("cross-check", caption, heads, tuple(rows))


def case_label(findings: Findings, check: CrossCheck) -> str:
    """``Disk throughput, random read [MB/s]``."""
    case = findings.matrix.label(check.condition, check.metric.name)
    unit = f" [{check.metric.unit}]" if check.metric.unit else ""
    return f"{check.metric.title}{f', {case}' if case else ''}{unit}"
