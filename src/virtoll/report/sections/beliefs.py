"""What an instance believes it has, against what it was given: a program sizes its threads and caches by the former."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from virtoll.record.model import NOT_LIMITED
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING, setting, size
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table
from virtoll.report.words import join


class Beliefs(Section):
    """Who is deceived, and about what."""

    name: ClassVar[str] = "beliefs"
    summary: ClassVar[str] = "What does an instance believe it has?"
    rank: ClassVar[int] = 600

    def applies(self, findings: Findings) -> bool:
        """Where an instance was asked."""
        return any(record.believes for record in findings.run.records)

    def text(self, findings: Findings) -> list[str]:
        """The deceived in groups, then the others."""
        return sentences(findings)

    def tables(self, findings: Findings) -> list[Table]:
        """Every arm's."""
        return [believes(findings).placed()]


# A guest's kernel keeps a share of the memory for itself, so that its instance believes in a little less.
KERNEL_SHARE = 0.2


@dataclass(frozen=True)
class Belief:
    """CPUs and bytes of memory, given and believed; None where it is not known."""

    cpus: int | None
    memory_bytes: int | None
    cpus_believed: int | None
    memory_bytes_believed: int | None

    @property
    def is_right(self) -> bool:
        """Whether the instance believes in what it was given, but for what its own kernel takes."""
        if self.memory_bytes is None or self.memory_bytes_believed is None:
            return self.cpus == self.cpus_believed
        share = self.memory_bytes_believed / self.memory_bytes
        return self.cpus == self.cpus_believed and 1 - KERNEL_SHARE <= share <= 1


def beliefs(findings: Findings) -> dict[str, list[Belief]]:
    """By arm's label, each different pair of given and believed; empty for an arm of which nothing is known."""
    found: dict[str, dict[Belief, None]] = {arm.label: {} for arm in findings.arms}
    for record in findings.run.records:
        if record.believes:
            given = findings.run.given(record.trial.condition)
            found[record.trial.arm.label][_belief(given, record.believes)] = None
    return {label: list(seen) for label, seen in found.items() if seen}


def _belief(given: Mapping[str, Any], believes: Mapping[str, Any]) -> Belief:
    online = believes.get("cpus_online", believes.get("cpus"))  # what a program asks for that sizes its threads
    return Belief(given.get("limits.vcpus"), given.get("limits.memory_bytes"), online, believes.get("memory_bytes"))


def sentences(findings: Findings) -> list[str]:
    """Who believes what: the deceived in groups of the same belief, then all who know what they were given."""
    floor = [arm.label for arm in findings.arms if arm.role == "floor"]
    wrong: dict[str, list[str]] = {}
    right: list[str] = []
    for label, seen in beliefs(findings).items():
        deceived = "; ".join(_told(belief) for belief in seen if not belief.is_right)
        if label in floor or label in findings.elsewhere:
            continue
        if deceived:
            wrong.setdefault(deceived, []).append(label)
        else:
            right.append(label)
    told = [f"{join(labels)} {_verb(labels)} in {what}." for what, labels in wrong.items()]
    if right:
        each = "it was" if len(right) == 1 else "they were"
        told.append(f"{join(right)} {_verb(right)} what {each} given, but for what a guest's own kernel keeps.")
    if findings.elsewhere:
        told.append(f"{join(findings.elsewhere)}: {NOT_LIMITED}, so that what is seen there is what there is.")
    return told


def _verb(labels: list[str]) -> str:
    return "believes" if len(labels) == 1 else "believe"


def _told(belief: Belief) -> str:
    seen = _given(belief.cpus_believed, belief.memory_bytes_believed)
    return f"{seen} where {_given(belief.cpus, belief.memory_bytes)} were given"


def _given(cpus: int | None, memory_bytes: int | None) -> str:
    parts = [] if cpus is None else [f"{cpus} CPU{'s' * (cpus != 1)}"]
    return " and ".join(parts + ([] if memory_bytes is None else [size(memory_bytes)])) or "nothing known"


_NOTE = (
    "A program that sizes its threads, heaps and caches by what it sees goes by its belief; the limits hold all the "
    "same."
)
_NOTE_ELSEWHERE = "On a machine of the user's own there are no limits of virtoll's, and nothing was given."


def _given_to_each(findings: Findings) -> dict[str, str]:
    """By what is believed, what was given: under conditions that differ in it, each."""
    paths = {"cpus": "limits.vcpus", "cpus_online": "limits.vcpus", "memory_bytes": "limits.memory_bytes"}
    values = [findings.run.given(record.trial.condition) for record in findings.run.records]
    return {
        key: " or ".join(dict.fromkeys(setting(key, each[path]) for each in values if each.get(path)))
        for key, path in paths.items()
    }


def believes(findings: Findings) -> Table:
    """What an instance of each arm thinks it has, beside what it was given."""
    given = _given_to_each(findings)
    seen: dict[str, dict[str, dict[str, None]]] = {}
    for record in findings.run.records:
        mine = seen.setdefault(record.trial.arm.label, {})
        for key, value in record.believes.items():
            if not isinstance(value, list | dict):
                mine.setdefault(key, {})[setting(key, value)] = None
    keys = list(dict.fromkeys(key for mine in seen.values() for key in mine))[:6]
    heads = tuple(key.removesuffix("_bytes").replace("_", " ") for key in keys)
    rows = [(Cell("given to each"), *(Cell(given.get(k, "")) for k in keys))]
    for arm in findings.arms:
        held = seen.get(arm.label)
        if held:
            rows.append((Cell(arm.label), *(Cell(" or ".join(held.get(key, {})) or MISSING) for key in keys)))
    notes = (_NOTE, _NOTE_ELSEWHERE) if findings.elsewhere else (_NOTE,)
    return Table("believes", "What an instance believes it has", ("Arm", *heads), tuple(rows), notes)
