"""What a unit of work costs in CPU time, seen from outside and from inside."""

from __future__ import annotations

from typing import ClassVar

from virtoll.analysis.conditions import Condition
from virtoll.report.drawing import Figure, Row, bounds, dots
from virtoll.report.findings import Findings
from virtoll.report.pooled import Pooled
from virtoll.report.sections.base import Section
from virtoll.report.words import drawn_of, left_out, unseen


class Cpu(Section):
    """CPU time by work."""

    name: ClassVar[str] = "cpu"
    summary: ClassVar[str] = "What does the work cost in CPU?"
    rank: ClassVar[int] = 220
    of_each_server: ClassVar[bool] = True

    def applies(self, findings: Findings) -> bool:
        """Under a load alone."""
        return findings.is_load

    def figures(self, findings: Findings) -> list[Figure]:
        """Dots, an arm a line."""
        return [figure for figure in [_cpu(findings)] if figure is not None]

    def text(self, findings: Findings) -> list[str]:
        """Of whom nothing is known."""
        beside = [
            f"{label}: without {helper}, which stands beside its control group: what that costs is not known."
            for label, helper in findings.not_booked.items()
        ]
        left = [_left_out(findings)] if not self.figures(findings) else []
        return [*unseen(findings, "what it costs in CPU time"), *beside, *filter(None, left)]

    def method(self, findings: Findings) -> list[str]:  # noqa: ARG002
        """Whose CPU time it is."""
        return [_COUNTED]


_COUNTED = (
    "**Cost is counted from outside.** CPU and memory are those of everything the instance needs on the host (helper "
    "threads, QEMU, UML, proxies), by its control groups, between a window's ends (METHODOLOGY, Cost)."
)


def _left_out(findings: Findings) -> str:
    return left_out(findings, "cpu_s_per_1000", findings.shown_conditions(4))


def _cpu(findings: Findings) -> Figure | None:
    matrix = findings.matrix
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    drawn: set[Condition] = set()
    rows: list[Row] = []
    for condition in findings.shown_conditions(4):
        for arm in arms:
            for metric, seen in (("cpu_s_per_1000", "outside"), ("cpu_s_per_1000_inside", "inside")):
                estimate = matrix.absolute(metric, arm, condition)
                is_whole = not matrix.barred(metric, arm, condition)[0]
                if estimate is not None and estimate.value > 0 and is_whole:
                    panel = matrix.label(condition) or f"all {findings.work}"
                    rows.append({"arm": arm.label, "panel": panel, "seen": seen, **bounds(estimate)})
                    drawn.add(condition)
    if not any(row["seen"] == "outside" for row in rows):
        return None
    what = f"CPU-seconds per 1,000 {findings.work}"
    beside = "".join(f", but of {label} not {helper}" for label, helper in findings.not_booked.items())
    caption = (
        "Filled marks: all CPU time the host spent on the instance, helpers included (QEMU's and UML's own threads, "
        f"docker-proxy){beside}. "
        "Rings: CPU time as the instance itself counts it. Where the two part, a monitor inside would miss the "
        "difference; an instance that is shown the whole machine's counters counts its neighbours too. "
        f"Logarithmic scale.{drawn_of(findings, drawn)}"
    )
    pooled = Pooled.of(findings, "helpers_percent")
    shares = [(arm, pooled.mean("helpers_percent", arm)) for arm in arms]
    known = [f"{arm.label} {estimate.value:.0f} %" for arm, estimate in shares if estimate is not None]
    caption += f" Share of helpers where it can be told{pooled.over}: {', '.join(known)}." if known else ""
    caption += f" {left}" if (left := _left_out(findings)) else ""
    return Figure(
        "cpu", f"What does a {findings.unit} cost in CPU?", caption, dots(findings, arms, rows, what, log=True)
    )
