"""What a report holds: of each section that applies its text, figures and tables."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

from virtoll.report import promises
from virtoll.report.drawing import Figure
from virtoll.report.findings import Findings
from virtoll.report.method import tuned
from virtoll.report.sections.base import Said, speaking
from virtoll.report.tables import Table


@dataclass(frozen=True)
class Part:
    """One section's part of the report. What it holds is made when first asked for."""

    said: Said

    @property
    def name(self) -> str:
        """Of its place on the page."""
        section, server = self.said.section, self.said.server
        return f"{section.name}-{server}" if server else section.name

    @cached_property
    def title(self) -> str:
        """Its heading."""
        if len(self.figures) == 1:
            return self.figures[0].question
        return _of(self.said.server, self.said.section.title(self.said.findings))

    @cached_property
    def text(self) -> list[str]:
        """What it says under its heading."""
        return self.said.section.text(self.said.findings)

    @cached_property
    def figures(self) -> list[Figure]:
        """Its figures, in their order."""
        made, server = self.said.section.figures(self.said.findings), self.said.server
        return [_figure_of(server, figure) for figure in made] if server else made

    @cached_property
    def tables(self) -> list[Table]:
        """Its tables, in their order."""
        made, server = self.said.section.tables(self.said.findings), self.said.server
        if not server:
            return made
        names = {figure.name for figure in self.figures}
        return [_table_of(server, table, names) for table in made]

    @property
    def shows_something(self) -> bool:
        """Whether it is on the page at all."""
        return bool(self.figures or self.text or self.tables)

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
    """A part for each section that speaks, in the page's order."""
    return [Part(said) for said in speaking(findings)]


def _of(server: str, words: str) -> str:
    return f"{server}: {words}" if server else words


def _figure_of(server: str, figure: Figure) -> Figure:
    return replace(figure, name=f"{figure.name}-{server}", question=_of(server, figure.question))


def _table_of(server: str, table: Table, figures: Collection[str]) -> Table:
    """``under`` names one of the section's ``figures``, or is a heading of its own."""
    figure, heading = f"{table.place.under}-{server}", table.place.under and _of(server, table.place.under)
    under = figure if figure in figures else heading
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
