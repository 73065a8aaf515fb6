"""Which experiments each platform of a testbed supports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from virtoll.analysis.experiments import Answer, Experiments, Kind, read_experiments
from virtoll.report.findings import Findings
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table


class ExperimentKinds(Section):
    """The paper's table of kinds of experiments, for the platforms of this run."""

    name: ClassVar[str] = "experiments"
    summary: ClassVar[str] = "Which experiments can it hold?"
    rank: ClassVar[int] = 700

    def applies(self, findings: Findings) -> bool:
        """Where the study is held against that paper."""
        return read_experiments().claims in findings.run.study.get("claims", ())

    def tables(self, findings: Findings) -> list[Table]:
        """The one."""
        return [experiments_table(findings).placed()]


def experiments_table(findings: Findings) -> Table:
    """What can be experimented with on each arm, beside what the paper says of its class."""
    known = read_experiments()
    groups = _alike(known, list(dict.fromkeys(arm.platform for arm in findings.arms)))
    rows = []
    for kind in known.kinds:
        answers = [known.answer(kind, group[0]) for group in groups]
        here = (Cell(known.answers[one.answer]) for one in answers)
        rows.append((Cell(kind.name), Cell(_printed(known, kind)), *here, Cell(_reasons(groups, answers))))
    heads = ("Experiments", "In the paper", *(" and ".join(group) for group in groups), "Why")
    notes = (
        *(f"{' and '.join(group)}: {known.platforms[group[0]].why}." for group in groups),
        f"{known.paper} of the paper: {' '.join(f'{mark} {text}' for mark, text in known.footnotes.items())}",
    )
    return Table("experiments", "Which experiments each platform supports", heads, tuple(rows), notes)


def _alike(known: Experiments, platforms: Sequence[str]) -> list[list[str]]:
    """The platforms that the table knows, those with the same answers together."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for platform in platforms:
        if platform in known.platforms:
            answers = tuple(known.answer(kind, platform) for kind in known.kinds)
            groups.setdefault((known.platforms[platform], answers), []).append(platform)
    return list(groups.values())


def _reasons(groups: Sequence[Sequence[str]], answers: Sequence[Answer]) -> str:
    """``native: REASON; docker, lxc: REASON``, each reason once; the reason alone where all have the same."""
    whose: dict[str, list[str]] = {}
    for group, one in zip(groups, answers, strict=True):
        whose.setdefault(one.why, []).extend(group)
    if len(whose) == 1:
        return next(iter(whose))
    return "; ".join(f"{', '.join(platforms)}: {why}" for why, platforms in whose.items())


def _printed(known: Experiments, kind: Kind) -> str:
    """``Yes``, or ``full: In Kernel; para: Overlay*; ...`` where the classes differ."""
    if len(set(kind.printed.values())) == 1:
        return next(iter(kind.printed.values()))
    return "; ".join(f"{known.classes[one]}: {words}" for one, words in kind.printed.items())
