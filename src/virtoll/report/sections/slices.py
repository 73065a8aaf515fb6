"""The slices of a testbed: its figures by question, and the slices over time.

A probe over slices answers several questions, each by a sweep of its own: virtoll/studies/views says which settings
make which.
"""

from __future__ import annotations

from typing import ClassVar

from virtoll.report.drawing import Figure
from virtoll.report.findings import Findings
from virtoll.report.probe_views import view_figures
from virtoll.report.questions import views_of_slices
from virtoll.report.sections.base import Section
from virtoll.report.time_series import time_figures


class Slices(Section):
    """What a testbed asks of its slices."""

    name: ClassVar[str] = "slices"
    summary: ClassVar[str] = "Are the slices isolated?"
    rank: ClassVar[int] = 310

    def applies(self, findings: Findings) -> bool:
        """Where a probe over slices was run."""
        return findings.is_programme and not findings.is_isolation

    def figures(self, findings: Findings) -> list[Figure]:
        """Each question that was swept, then the slices over time."""
        views = [view for headline in findings.headlines for view in views_of_slices(findings, headline)]
        return view_figures(findings, views) + time_figures(findings)
