"""The answer: what the page says first, and a run prints last."""

from __future__ import annotations

from virtoll.report.findings import Findings
from virtoll.report.sections.base import speaking
from virtoll.report.words import of_two_machines


def answer(findings: Findings) -> list[str]:
    """The answer, a sentence or few: what the sections have to say on top, in their order."""
    told = [
        f"{said.server}: {sentence}" if said.server else sentence
        for said in speaking(findings)
        for sentence in said.section.answer(said.findings)
    ]
    if told and findings.matrix.baseline is not None:
        told += of_two_machines(findings.elsewhere)
    return told or ["There is no answer: no section of the report speaks of such a run."]
