"""Two studies as one: what differs between them is a configuration, and both are measured in the same blocks.

Most of what differs cannot be so: another service or load is asked another question, and what holds for a whole study
(its design, its factors, its origin) cannot be two things at once. `interleaved` names all of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from virtoll.errors import IncomparableError
from virtoll.record.model import CONFIGURATION, INTENSITIES, LEVELS, SERVER, Arm
from virtoll.study.model import Configuration, Study, StudyArm
from virtoll.study.plan import conditions

A, B = "A", "B"
_SECTIONS = ("service.", "load.", "limits.")  # of what may differ
# Of these what holds for a whole study: a run is told by it, or its trials are cut into levels.
_OF_ALL = ("load.loop", LEVELS, "load.objective", "load.image")  # and one image has who uses it
_HOW_MUCH = ("monitor.", "rotation.rounds", "load.log_requests", "load.seed")  # is recorded: as B has it
_NAMED = ("service", "origin", "load", "design")


@dataclass(frozen=True)
class Both:
    """The study that measures two configurations, and the arms that it leaves out, a sentence each; of these the labels
    of those that A has and B lacks.
    """

    study: Study
    left_out: tuple[str, ...]
    lacking: tuple[str, ...] = ()

    @property
    def differing(self) -> tuple[str, ...]:
        """What differs between the configurations, a line each."""
        one, other = (self.study.configurations[name] for name in (A, B))
        lines = [_line(path, value, other.values[path]) for path, value in one.values.items()]
        pairs = zip(one.arms, other.arms, strict=True)
        return (*lines, *(f"arm: {mine} in A, {theirs} in B" for mine, theirs in pairs if mine != theirs))


def interleaved(a: Study, b: Study, where: str = "") -> Both | None:
    """The study of both, less what explains a service or cross-checks a probe; None where they are configured alike.

    IncomparableError names what differs and cannot stand in one study, or that no arm of A has one of B to stand
    against.
    """
    a, b = (_alone(study) for study in (a, b))
    if wrong := [*_of_the_whole(a, b), *_of_the_values(a, b), *_of_the_arms(a, b)]:
        raise IncomparableError(
            "one run cannot hold both configurations, for they differ in\n  " + "\n  ".join(wrong),
            where=where,
            remedy="make them alike in that, or measure each in a run of its own and compare the two",
        )
    differing = [path for path in a.base if a.base[path] != b.base[path] and path.startswith(_SECTIONS)]
    differing = [path for path in differing if not path.startswith(_HOW_MUCH)]
    alike, pairs, alone = _matched(a, b)
    left_out = [f"only {name} has {label}" for name, labels in alone.items() for label in labels]
    if not (alike or pairs):
        what = "no arm of A is among B's: " + "; ".join(left_out)
        raise IncomparableError(what, where=where, remedy="measure the same arms in both")
    if not (differing or pairs):
        return None
    pairs = [*((arm, arm) for arm in alike if differing), *pairs]
    if not differing:
        left_out += [f"{entry.arm.label} is the same in both" for entry in alike]
    return Both(_study(a, b, differing, pairs), tuple(left_out), tuple(alone[A]))


def _alone(study: Study) -> Study:
    """Without probes beside a service, and without outside instruments: neither is compared. A factor of one level, as
    quick variants have them, is a value as any other, and a rule of exclusion that it settles is none.
    """
    own = () if study.is_served else tuple(case for case in study.programme if not case.instrument)
    # Under an intensity stand those servers alone that are not searched for their knee.
    searched = any(server.base.get("knee.objective") for server in study.servers.values())
    kept = (SERVER, *(INTENSITIES if searched else ()))
    fixed = {path: levels[0] for path, levels in study.factors.items() if len(levels) == 1 and path not in kept}
    rules = [rule for rule in study.exclude if all(fixed[path] in rule[path] for path in fixed.keys() & rule.keys())]
    servers = {  # whose own values would hold instead
        name: dataclasses.replace(server, base={p: v for p, v in server.base.items() if p not in fixed})
        for name, server in study.servers.items()
    }
    return dataclasses.replace(
        study,
        programme=own,
        base={**study.base, **fixed},
        factors={path: levels for path, levels in study.factors.items() if path not in fixed},
        exclude=tuple({path: levels for path, levels in rule.items() if path not in fixed} for rule in rules),
        servers=servers,
    )


def _study(a: Study, b: Study, differing: Sequence[str], pairs: Sequence[tuple[StudyArm, StudyArm]]) -> Study:
    """B's study with what differs taken out of its base. Where values differ a factor says which of them hold; arms
    that only one configuration has are deployed under it alone. Arms that differ by themselves share their native.
    """
    labels = [(mine.arm.label, theirs.arm.label) for mine, theirs in pairs]
    configurations = {
        name: Configuration(tuple(each[at] for each in labels), {path: study.base[path] for path in differing})
        for at, (name, study) in enumerate(((A, a), (B, b)))
    }
    arms = [entry for entry in b.arms if entry.arm.role != "treatment"]
    for mine, theirs in pairs:
        if mine.arm.label == theirs.arm.label:
            arms.append(theirs)
            continue
        for name, entry in ((A, mine), (B, theirs)):
            arms.append(dataclasses.replace(entry, only={CONFIGURATION: name} if differing else {}))
    factors = {CONFIGURATION: (A, B), **b.factors} if differing else b.factors
    return dataclasses.replace(
        b,
        name=b.name if b.name.endswith("-again") else f"{b.name}-again",
        title=f"{b.title or b.name}: A and B in the same blocks",
        question="What do two configurations cost, measured in the same blocks?",
        claims=(),
        seed=None,
        arms=tuple(arms),
        base={path: value for path, value in b.base.items() if path not in differing},
        factors=factors,
        configurations=configurations,
    )


def _matched(a: Study, b: Study) -> tuple[list[StudyArm], list[tuple[StudyArm, StudyArm]], dict[str, list[str]]]:
    """The arms of both, the pairs whose settings alone differ, and by configuration those that stand against none."""
    mine, theirs = ({e.arm.label: e for e in study.arms if e.arm.role == "treatment"} for study in (a, b))
    alike = [theirs[label] for label in mine if label in theirs]
    alone = [[e for label, e in each.items() if label not in other] for each, other in ((mine, theirs), (theirs, mine))]
    pairs = []
    for entry in alone[0]:
        place = _place(entry.arm)
        of_both = [[each for each in side if _place(each.arm) == place] for side in alone]
        if len(of_both[0]) == len(of_both[1]) == 1:
            pairs.append((of_both[0][0], of_both[1][0]))
    paired = [entry.arm.label for pair in pairs for entry in pair]
    labels = [[entry.arm.label for entry in side if entry.arm.label not in paired] for side in alone]
    return alike, pairs, dict(zip((A, B), labels, strict=True))


def _place(arm: Arm) -> tuple[str, str]:
    return arm.platform, arm.network


# -- what cannot be two things at once ----------------------------------------------------------------------


def _of_the_whole(a: Study, b: Study) -> Iterator[str]:
    for key in _NAMED:
        if (mine := getattr(a, key)) != (theirs := getattr(b, key)):
            yield _line(key, mine, theirs)
    for key, table in (("servers", "[servers]"), ("programme", "[[probes]]"), ("exclude", "[[exclude]]")):
        if getattr(a, key) != getattr(b, key):
            yield table
    for path in dict.fromkeys([*a.factors, *b.factors]):
        if (ours := a.factors.get(path, ())) != (others := b.factors.get(path, ())):
            yield _line(f"[factors] {path}", list(ours), list(others))
    for name, study in ((A, a), (B, b)):
        if any(study.values(condition).get("neighbour.aggressor") for condition in conditions(study)):
            yield f"[neighbour]: in {name} each arm beside one is compared with itself"
        if study.configurations or any(entry.values or entry.only for entry in study.arms):
            yield f"[[arms]]: what {name} is made of is no study of one configuration"


def _of_the_values(a: Study, b: Study) -> Iterator[str]:
    """But for those of a service, an origin or a load that is another one altogether."""
    missing = object()
    others = [f"{key}." for key in ("service", "origin", "load") if getattr(a, key) != getattr(b, key)]
    for path in dict.fromkeys([*a.base, *b.base]):
        mine, theirs = a.base.get(path, missing), b.base.get(path, missing)
        if mine == theirs or path.startswith((*_HOW_MUCH, *others)):
            continue
        if missing in (mine, theirs):
            yield f"{path}: unknown to {A if mine is missing else B}"
        elif not path.startswith(_SECTIONS) or path in _OF_ALL:
            yield _line(path, mine, theirs)


def _of_the_arms(a: Study, b: Study) -> Iterator[str]:
    mine, theirs = ({entry.arm.label: entry.arm for entry in study.arms} for study in (a, b))
    natives = [next((arm for arm in arms.values() if arm.role == "baseline"), None) for arms in (mine, theirs)]
    if natives[0] != natives[1]:
        yield _line("native", *(None if arm is None else arm.label for arm in natives))
    for label in mine.keys() & theirs.keys():
        if mine[label].settings != theirs[label].settings:
            yield _line(label, mine[label].settings, theirs[label].settings)


def _line(key: str, mine: Any, theirs: Any) -> str:
    return f"{key}: {_short(mine)} in A, {_short(theirs)} in B"


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        value = dict(value)
    text = "nothing" if value in (None, "", [], (), {}) else str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
