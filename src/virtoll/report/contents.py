"""What a report holds: of each section that applies its text, figures and tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from virtoll.report import promises
from virtoll.report.drawing import Figure
from virtoll.report.findings import Findings
from virtoll.report.method import tuned
from virtoll.report.sections.base import Section, applying
from virtoll.report.tables import Table


@dataclass(frozen=True)
class Part:
    """One section's part of the report. What it holds is made when first asked for."""

    section: Section
    findings: Findings

    @cached_property
    def figures(self) -> list[Figure]:
        """Its figures, in their order."""
        return self.section.figures(self.findings)

    @cached_property
    def title(self) -> str:
        """Its heading."""
        return self.figures[0].question if len(self.figures) == 1 else self.section.title(self.findings)

    @cached_property
    def text(self) -> list[str]:
        """What it says under its heading."""
        return self.section.text(self.findings)

    @cached_property
    def tables(self) -> list[Table]:
        """Its tables, in their order."""
        return self.section.tables(self.findings)

    @property
    def shows_something(self) -> bool:
        """Whether it is on the page at all."""
        return bool(self.figures or self.text or self.tables)

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
    """The parts that show something, in the page's order."""
    return [part for part in parts_of(findings) if part.shows_something]


def parts_of(findings: Findings) -> list[Part]:
    """A part for each section that applies, in the page's order."""
    return [Part(section, findings) for section in applying(findings)]


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
