"""What a section of the report is: the answer to one question, with the figures and tables that show it.

A section is one file in this package, or a third party's class under the entry point group `virtoll.report.sections`.
It says whether it applies to a run; the page, the files and the terminal iterate over those that do, by ``rank``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from virtoll.registry import Registered, registered
from virtoll.report.drawing import Figure
from virtoll.report.findings import Findings
from virtoll.report.tables import Table


class Section(ABC):
    """One question. All it says is made from the findings alone; of what it cannot say it says why.

    Texts may hold `**bold**`, `*emphasis*` and `` `code` ``, and nothing else is markup.
    """

    name: ClassVar[str]  # of its place on the page: lower-case letters, digits, hyphens
    summary: ClassVar[str]  # the question, as the page's heading
    rank: ClassVar[int]  # its place on the page: the least comes first; `virtoll`'s own are hundreds
    # Where a study sets several servers beside each other, it speaks of each as if that were the only one.
    of_each_server: ClassVar[bool] = False

    @abstractmethod
    def applies(self, findings: Findings) -> bool:
        """Whether the run is of a kind that it speaks of, though nothing may have been measured yet."""

    def title(self, findings: Findings) -> str:  # noqa: ARG002
        """The heading, where it depends on the run. A section of one figure is headed by the figure's question."""
        return self.summary

    def answer(self, findings: Findings) -> list[str]:  # noqa: ARG002
        """What it has to say on top of the page and on the terminal, a sentence each."""
        return []

    def text(self, findings: Findings) -> list[str]:  # noqa: ARG002
        """What it says under its heading, a paragraph each; what is missing, and why."""
        return []

    def figures(self, findings: Findings) -> list[Figure]:  # noqa: ARG002
        """The figures that there is data for."""
        return []

    def tables(self, findings: Findings) -> list[Table]:  # noqa: ARG002
        """The tables that there is data for; `Table.placed` says how the page shows them."""
        return []

    def method(self, findings: Findings) -> list[str]:  # noqa: ARG002
        """How its numbers came about, an item each; an item that several sections have is printed once."""
        return []


def applying(findings: Findings) -> list[Section]:
    """The sections that apply to a run, or to one of its servers, by rank."""
    return list(dict.fromkeys(said.section for said in speaking(findings)))


def _whose(section: Section, findings: Findings) -> Mapping[str, Findings]:
    """What a section speaks of: each server by its name, or the run."""
    return findings.servers if section.of_each_server and findings.servers else {"": findings}


@dataclass(frozen=True)
class Said:
    """A section that speaks of a run, or of one ``server`` among those of its study; "": of all that was measured."""

    section: Section
    findings: Findings
    server: str = ""


def speaking(findings: Findings) -> list[Said]:
    """What a report is made of, in its order."""
    classes: Sequence[type[Section]] = list(registered_sections().classes.values())
    made = (cls() for cls in sorted(classes, key=lambda cls: (cls.rank, cls.name)))
    return [
        Said(section, each, name)
        for section in made
        for name, each in _whose(section, findings).items()
        if section.applies(each)
    ]


def left_out() -> list[str]:
    """Third parties' sections that cannot be used, with the reason and the remedy."""
    return [f"{problem.what} ({problem.where}): {problem.remedy}" for problem in registered_sections().refused]


def registered_sections() -> Registered:
    """All sections by name, where third parties' come from, and those that cannot be used."""
    return registered("virtoll.report.sections", Section)
