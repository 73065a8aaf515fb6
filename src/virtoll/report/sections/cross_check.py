"""Whether outside instruments read what our probes read."""

from __future__ import annotations

from typing import ClassVar

from virtoll.analysis.crosscheck import CrossCheck
from virtoll.report import comparison
from virtoll.report.drawing import Figure, bounds
from virtoll.report.findings import Findings
from virtoll.report.numbers import interval, plus_minus
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table


class CrossChecks(Section):
    """Theirs over ours, on native."""

    name: ClassVar[str] = "cross-check"
    summary: ClassVar[str] = "Do other instruments agree?"
    rank: ClassVar[int] = 400

    def applies(self, findings: Findings) -> bool:
        """Where one was run."""
        return bool(findings.cross_checks) and not findings.is_isolation

    def figures(self, findings: Findings) -> list[Figure]:
        """A line for each quantity."""
        return [figure for figure in [_cross_check(findings)] if figure is not None]

    def tables(self, findings: Findings) -> list[Table]:
        """All of them."""
        return [cross_check(findings).placed("cross-check", folded=True, short="The same in numbers")]

    def method(self, findings: Findings) -> list[str]:  # noqa: ARG002
        """Why they are in no toll."""
        return [_APART]


_APART = (
    "**Outside instruments are set apart.** They ran in the native deployments, beside our probes and with the same "
    "settings; they are compared with them, and are in no toll."
)


_MOST_DRAWN = 30


def _cross_check(findings: Findings) -> Figure | None:
    checks = findings.cross_checks
    if len(checks) > _MOST_DRAWN:
        checks = [check for check in checks if check.metric.headline]
    rows = [
        {"instrument": check.instrument, "panel": case_label(findings, check), **bounds(check.ratio)}
        for check in checks
        if check.ratio is not None
    ]
    if not rows:
        return None
    caption = (
        "What an outside instrument read over what our probe read, paired within native deployments, with 95 % "
        f"intervals. The grey band is ± {findings.margin * 100:.3g} %. They are in no toll."
    )
    if len(checks) < len(findings.cross_checks):
        caption += " What stands for each probe is drawn; the table has all."
    draw = comparison.agreement(rows, findings.margin)
    return Figure("cross-check", "Do other instruments agree?", caption, draw)


def cross_check(findings: Findings) -> Table:
    """Outside instruments over our probes, on native."""
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
