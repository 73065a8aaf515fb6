"""What a report holds: of each section that applies its text, figures and tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

from virtoll.report import promises
from virtoll.report.drawing import Figure
from virtoll.report.findings import Findings
from virtoll.report.method import tuned
from virtoll.report.sections.base import Said, speaking
from virtoll.report.tables import Table


@dataclass(frozen=True)
class Part:
    """One section's part of the report."""

    name: str  # of its place on the page
    title: str
    text: list[str]
    figures: list[Figure]
    tables: list[Table]

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
    parts = (_part(said) for said in speaking(findings))
    return [part for part in parts if part.text or part.figures or part.tables]


def _part(said: Said) -> Part:
    section, findings = said.section, said.findings
    figures, tables = section.figures(findings), section.tables(findings)
    if said.server:
        figures = [_figure_of(said.server, figure) for figure in figures]
        tables = [_table_of(said.server, table) for table in tables]
    title = figures[0].question if len(figures) == 1 else _of(said.server, section.title(findings))
    name = f"{section.name}-{said.server}" if said.server else section.name
    return Part(name, title, section.text(findings), figures, tables)


def _of(server: str, words: str) -> str:
    return f"{server}: {words}" if server else words


def _figure_of(server: str, figure: Figure) -> Figure:
    return replace(figure, name=f"{figure.name}-{server}", question=_of(server, figure.question))


def _table_of(server: str, table: Table) -> Table:
    """``under`` names one of the section's figures, or is a heading of its own."""
    under = f"{table.place.under}-{server}" if table.place.under else ""
    place = replace(table.place, under=under)
    return replace(table, name=f"{table.name}-{server}", caption=_of(server, table.caption), place=place)


def figures(findings: Findings) -> list[Figure]:
    """All figures of a report."""
    return [figure for part in contents(findings) for figure in part.figures]


def tables(findings: Findings) -> list[Table]:
    """All tables of a report."""
    return [table for part in contents(findings) for table in part.tables]


def method(findings: Findings) -> list[str]:
    """How the numbers came about, each item once."""
    told = (item for said in speaking(findings) for item in said.section.method(said.findings))
    return [*dict.fromkeys([*told, *tuned(findings)]), promises.promise(findings)]
