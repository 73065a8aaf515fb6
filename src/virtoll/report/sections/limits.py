"""Whether the limits bite, by the proofs that each arm gave."""

from __future__ import annotations

import re
from typing import ClassVar

from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table


class LimitsBite(Section):
    """Each limit by its effect."""

    name: ClassVar[str] = "limits"
    summary: ClassVar[str] = "Do the limits bite, and what happens then?"
    rank: ClassVar[int] = 340

    def applies(self, findings: Findings) -> bool:
        """With neighbours: a limit is what protects from them."""
        return findings.is_isolation

    def tables(self, findings: Findings) -> list[Table]:
        """The one."""
        table = limits(findings)
        return [] if table is None else [table.placed(look="probes")]


_IS_ALL = "the host has no more"  # of CPUs than the limit is
_LIMIT = re.compile(r"(?:the )?(?P<limit>.*?) bites")


# What a limit does when it bites, by the words of its check's detail; the first that is said.
_EFFECTS = {
    "killed": ("killed", "the instance ended"),
    "refused": ("refused", "No space left", "annot fork", "nable to fork", "unavailable", "annot allocate"),
    "throttled": ("throttled", "busy threads got"),
}


def limits(findings: Findings) -> Table | None:
    """Each limit by its effect, from the proofs that each arm gave; None where none was tried."""
    seen: dict[str, dict[str, list[tuple[bool | None, str]]]] = {}
    for record in findings.run.records:
        for check in record.checks:
            match = _LIMIT.fullmatch(check.name)
            if match is not None:
                mine = seen.setdefault(match["limit"], {}).setdefault(record.trial.arm.label, [])
                mine.append((check.passed, check.detail))
    if not seen:
        return None
    arms = [arm for arm in findings.arms if any(arm.label in by_arm for by_arm in seen.values())]
    rows = tuple((Cell(arm.label), *(_limit(by_arm.get(arm.label, [])) for by_arm in seen.values())) for arm in arms)
    heads = ("Arm", *(limit[:1].upper() + limit[1:] for limit in seen))
    notes = ("Tried from inside, once for each arm and set of limits: more was asked for than is allowed.",)
    return Table("limits", "Do the limits bite, and what happens then?", heads, rows, notes)


def _limit(checks: list[tuple[bool | None, str]]) -> Cell:
    """The worst of what was seen: a limit that once did not bite is none."""
    if not checks:
        return Cell(MISSING, "missing", "not tried")
    order = {False: 0, True: 2, None: 3}
    passed, detail = min(checks, key=lambda check: 1 if check[0] and _IS_ALL in check[1] else order[check[0]])
    if passed and _IS_ALL in detail:
        return Cell("not shown", "missing", detail)
    if passed is None:
        return Cell("not tried", "missing", detail)
    if not passed:
        return Cell("does not bite", "costs", detail)
    effect = next((word for word, marks in _EFFECTS.items() if any(mark in detail for mark in marks)), "bites")
    return Cell(effect, "same", detail)
