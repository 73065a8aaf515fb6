"""The answer: what the page says first, and a run prints last."""

from __future__ import annotations

from virtoll.report.findings import Findings
from virtoll.report.sections.base import applying


def answer(findings: Findings) -> list[str]:
    """The answer, a sentence or few: what the sections have to say on top, in their order."""
    told = [sentence for section in applying(findings) for sentence in section.answer(findings)]
    return told or ["There is no answer: no section of the report speaks of such a run."]
