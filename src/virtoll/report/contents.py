"""What a report holds: of each section that applies its text, figures and tables."""

from __future__ import annotations

from dataclasses import dataclass

from virtoll.report import promises
from virtoll.report.drawing import Figure
from virtoll.report.findings import Findings
from virtoll.report.method import tuned
from virtoll.report.sections.base import Section, applying
from virtoll.report.tables import Table


@dataclass(frozen=True)
class Part:
    """One section's part of the report."""

    section: Section
    title: str
    text: list[str]
    figures: list[Figure]
    tables: list[Table]

    @property
    def name(self) -> str:
        """Of its place on the page."""
        return self.section.name

    @property
    def first(self) -> list[Table]:
        """The tables that stand before the figures."""
        return [table for table in self.tables if not table.place.under]

    def beneath(self, figure: Figure) -> list[Table]:
        """The tables that say the same as a figure in numbers."""
        return [table for table in self.tables if table.place.under == figure.name]

    @property
    def grouped(self) -> dict[str, list[Table]]:
        """The others, by the heading they stand under."""
        names = {"", *(figure.name for figure in self.figures)}
        groups: dict[str, list[Table]] = {}
        for table in self.tables:
            if table.place.under not in names:
                groups.setdefault(table.place.under, []).append(table)
        return groups


def contents(findings: Findings) -> list[Part]:
    """The parts, in the page's order; a section that has nothing to show has none."""
    parts = (_part(section, findings) for section in applying(findings))
    return [part for part in parts if part.text or part.figures or part.tables]


def _part(section: Section, findings: Findings) -> Part:
    figures = section.figures(findings)
    title = figures[0].question if len(figures) == 1 else section.title(findings)
    return Part(section, title, section.text(findings), figures, section.tables(findings))


def figures(findings: Findings) -> list[Figure]:
    """All figures of a report."""
    return [figure for part in contents(findings) for figure in part.figures]


def tables(findings: Findings) -> list[Table]:
    """All tables of a report."""
    return [table for part in contents(findings) for table in part.tables]


def method(findings: Findings) -> list[str]:
    """How the numbers came about, each item once."""
    told = (item for section in applying(findings) for item in section.method(findings))
    return [*dict.fromkeys([*told, *tuned(findings)]), promises.promise(findings)]
