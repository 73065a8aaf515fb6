"""Which platform to take, by rule: over needs that features answer, objectives that intervals answer, and ratios.

1. A candidate is an arm. It *fits* where its platform supports every need and every objective is met; it *does not fit*
   where a need is answered no, or an objective missed; else, and where nothing valid is known of it, or nothing under
   some condition that it is asked, or not the headline there, or its service failed its users in some trials (the
   others are the better ones), or it met the objective of a search, or a ramp, at nothing that was tried, it is *open*:
   something is not shown.
2. Of two candidates one is *better in a part* (a run; of several servers or probes each) where that is shown: against
   native by the verdict on the other (costs, gains); else where the two intervals of their ratios to native lie apart,
   and the ratios differ by more than the study's margin. All else is a tie there, and so are ratios that are not of the
   same conditions, or the same in all blocks, whose intervals have no width.
3. One *comes before* the other where it is better in some part and worse in none. Better here and worse there is a tie.
4. Among candidates of one standing, who comes before one that comes before a third comes before that one too; a rank
   is one more than the number of those who have fewer before them. Ties stay ties.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.objectives import Held
from virtoll.analysis.ratios import Toll
from virtoll.features import Support
from virtoll.record.model import Arm

Standing = Literal["fits", "open", "does not fit"]
STANDINGS: tuple[Standing, ...] = ("fits", "open", "does not fit")


@dataclass(frozen=True)
class Candidate:
    """An arm, all that is known of it, by the name of the part that measured it. ``under``: the conditions that a toll
    is of; ``lost``: those of which nothing valid is known, or not the headline, though it is of native; ``failed``:
    that, and in how many trials, its service failed its users. ``in_vain``: of the searches and ramps in which it is
    shown to meet the objective at nothing that was tried, in words, what it is not shown.
    """

    arm: Arm
    needs: Mapping[str, Support] = field(default_factory=dict)
    held: Mapping[str, Sequence[Held]] = field(default_factory=dict)
    tolls: Mapping[str, Toll | None] = field(default_factory=dict)  # None: of native itself
    under: Mapping[str, frozenset[Condition]] = field(default_factory=dict)
    lost: Mapping[str, tuple[Condition, ...]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    in_vain: Mapping[str, str] = field(default_factory=dict)

    @property
    def standing(self) -> Standing:
        """By needs and objectives alone."""
        told = [one.told for each in self.held.values() for one in each]
        answers = [one.answer for one in self.needs.values()]
        if "no" in answers or "missed" in told:
            return "does not fit"
        lacks = any(self.lost.values()) or any(self.failed.values()) or bool(self.in_vain)
        is_known = self.tolls and not lacks
        return "fits" if is_known and set(answers) <= {"yes"} and set(told) <= {"met"} else "open"


@dataclass(frozen=True)
class Ranked:
    """A candidate's place among those of its standing: ``before`` are the labels of those that are shown to come before
    it, ``tied`` of those that have the same rank.
    """

    candidate: Candidate
    rank: int
    before: tuple[str, ...]
    tied: tuple[str, ...]

    @property
    def label(self) -> str:
        """The arm's."""
        return self.candidate.arm.label


def ranked(candidates: Sequence[Candidate]) -> list[Ranked]:
    """Those that fit first, then the open ones, then those that do not fit; each group by its own ranks."""
    found: list[Ranked] = []
    for standing in STANDINGS:
        group = {one.arm.label: one for one in candidates if one.standing == standing}
        before = {label: [b for b in group if comes_before(group[b], one)] for label, one in group.items()}
        count = {label: len(all_before(label, before)) for label in group}
        for label in sorted(group, key=lambda each: count[each]):
            rank = 1 + sum(other < count[label] for other in count.values())
            tied = [other for other in group if count[other] == count[label] and other != label]
            found.append(Ranked(group[label], rank, tuple(before[label]), tuple(tied)))
    return found


def all_before(label: str, before: Mapping[str, Sequence[str]]) -> set[str]:
    """Who comes before one, and before those in turn."""
    seen: set[str] = set()
    ahead = list(before[label])
    while ahead:
        one = ahead.pop()
        if one not in seen:
            seen.add(one)
            ahead += before[one]
    return seen - {label}


def comes_before(one: Candidate, other: Candidate) -> bool:
    """Whether one is better in some part, and worse in none."""
    parts = [better_in(part, one, other) for part in one.tolls.keys() & other.tolls.keys()]
    return 1 in parts and -1 not in parts


def better_in(part: str, one: Candidate, other: Candidate) -> int:
    """`better` in a part that both are in; 0 where their ratios to native are of different conditions: who failed under
    the hard ones, or was not asked them, has the better ratio over the others.
    """
    mine, theirs = one.tolls[part], other.tolls[part]
    if mine is not None and theirs is not None and one.under.get(part) != other.under.get(part):
        return 0
    return better(mine, theirs)


def better(one: Toll | None, other: Toll | None) -> int:
    """1 where the first is shown to be better than the second in a part, -1 where worse, 0 where neither is shown."""
    if one is None or other is None:
        return 0 if one is other else -_against_native(one or other) * (1 if one is None else -1)
    mine, theirs = one.worse, other.worse
    if mine is None or theirs is None:
        return 0
    if max(mine.value, theirs.value) <= min(mine.value, theirs.value) * (1 + one.margin):
        return 0
    return 1 if _below(mine, theirs) else -1 if _below(theirs, mine) else 0


def _below(one: Estimate, other: Estimate) -> bool:
    """Whether the one's interval lies wholly below the other's, where both measure chance."""
    if one.high is None or other.low is None or _has_no_width(one) or _has_no_width(other):
        return False
    return one.high < other.low


def _has_no_width(ratio: Estimate) -> bool:
    """Whether all blocks have the same ratio, and it is not native's own: that is no measure of chance, and the verdict
    is *cannot tell yet*.
    """
    is_alike = ratio.low is not None and ratio.high is not None and math.isclose(ratio.low, ratio.high)
    return is_alike and not math.isclose(ratio.value, 1)


def _against_native(toll: Toll | None) -> int:
    """1 where an arm is shown to be better than native, -1 where worse."""
    return 0 if toll is None else {"gains": 1, "costs": -1}.get(toll.verdict.kind, 0)
