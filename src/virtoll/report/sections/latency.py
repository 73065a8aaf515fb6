"""How long the load's work waits, as distributions; or why that is not told."""

from __future__ import annotations

from typing import ClassVar

from virtoll.analysis.cdf import curve
from virtoll.report import method
from virtoll.report.drawing import Figure, curve_rows, shares
from virtoll.report.findings import Findings
from virtoll.report.sections.base import Section
from virtoll.report.words import drawn_of, not_told


class Latency(Section):
    """Distributions of latency."""

    name: ClassVar[str] = "latency"
    summary: ClassVar[str] = "How long does the work wait?"
    rank: ClassVar[int] = 210

    def applies(self, findings: Findings) -> bool:
        """Under one load alone."""
        return findings.is_load and not findings.is_search

    def title(self, findings: Findings) -> str:
        """In the load's unit of work."""
        return f"How long do {findings.requests} wait?"

    def text(self, findings: Findings) -> list[str]:
        """Why there is no percentile, where no trial has one."""
        known = ((why, [m for m in some if m.name.startswith("latency_")]) for why, some in findings.untold.items())
        return [not_told(some, why) for why, some in known if some]

    def figures(self, findings: Findings) -> list[Figure]:
        """A curve for each arm."""
        return [figure for figure in [_distributions(findings)] if figure is not None]

    def method(self, findings: Findings) -> list[str]:
        """Which percentiles are told."""
        return [method.company(findings)]


def _distributions(findings: Findings) -> Figure | None:
    matrix = findings.matrix
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    conditions = findings.shown_conditions()
    curves = [(c, curve(matrix, arm, c)) for c in conditions for arm in arms]
    known = [(c, one) for c, one in curves if one is not None]
    if not known:
        return None
    rows = [row for c, one in known for row in curve_rows(one, matrix.label(c) or f"all {findings.requests}")]
    least = min(one.n for _, one in known)
    draw = shares(findings, arms, rows, "latency [ms]", f"{findings.requests} answered")
    caption = (
        f"Share of {findings.requests} answered within a time. Lines: mean of the deployments' distributions, each "
        f"weighing the same; bands: lowest to highest of the deployments (at least {least})."
    )
    for loop in findings.loops:
        caption += f" {loop.capitalize()} loop: " + (
            "a client that waits for each answer asks less while the service stalls, so long stalls are too rare here."
            if loop == "closed"
            else f"latency runs from the intended start of each {findings.request}."
        )
    caption += method.of_requests(findings) + drawn_of(findings, {c for c, _ in known})
    return Figure("latency", f"How long do {findings.requests} wait?", caption, draw)
