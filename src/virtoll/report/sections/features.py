"""What each arm's platform supports, by the papers' qualitative tables and what documents it today."""

from __future__ import annotations

from typing import ClassVar

from virtoll.features import FEATURES, PAPERS, Features, of_arm, supported
from virtoll.report.findings import Findings
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table

_KINDS = {"yes": "same", "unknown": "missing"}  # of answers, as a cell's colour


class FeaturesSection(Section):
    """What no figure tells: an arm's platform in the rows of the papers' tables."""

    name: ClassVar[str] = "features"
    summary: ClassVar[str] = "What does each platform support?"
    rank: ClassVar[int] = 610

    def applies(self, findings: Findings) -> bool:
        """Where it is known of any arm."""
        return bool(known(findings))

    def tables(self, findings: Findings) -> list[Table]:
        """A platform a column, since several arms may be of one."""
        return [features_table(known(findings)).placed(look="probes", folded=True)]


def known(findings: Findings) -> dict[str, Features]:
    """Of the platforms of the arms, in their order: those that state anything."""
    stated = (of_arm(findings.features, arm.platform, arm.settings) for arm in findings.arms)
    return {name: features for name, features in stated if features}


def features_table(platforms: dict[str, Features]) -> Table:
    """Each answer with its reason; the sources below."""
    rows = []
    for name, feature in FEATURES.items():
        answers = (supported(features, name) for features in platforms.values())
        rows.append(
            (Cell(feature.title, "", name), *(Cell(a.answer, _KINDS.get(a.answer, ""), a.why) for a in answers))
        )
    used = (one.source for features in platforms.values() for one in features.values())
    sources = "; ".join(sorted({source for source in used if source}))
    notes = (
        f"Documented, not measured. Sources: {sources}.",
        *(f"{paper}: {title}." for paper, title in PAPERS.items() if paper in sources),
        "`virtoll list platforms --features` names the source of each answer, and the paper that asks.",
    )
    return Table("features", "What each arm's platform supports", ("", *platforms), tuple(rows), notes)
