"""A plan for so many users: per arm how many an instance carries, and how many instances and hosts that takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from virtoll.analysis import scaling
from virtoll.analysis.carrying import (
    CONNECTIONS,
    Carrying,
    delivered,
    levels_asked,
    of_levels,
    of_searches,
    unit_of_users,
    users_path,
)
from virtoll.analysis.objectives import objective_of
from virtoll.analysis.sizing import Asked, Price, Size, size
from virtoll.errors import Problem, StudyError
from virtoll.record.knee import Knee, Objective
from virtoll.report.findings import Findings
from virtoll.report.packing import Density, memory_limit


@dataclass(frozen=True)
class Row:
    """One arm. Without a ``size`` what is known is in ``carrying``."""

    carrying: Carrying
    words: str  # its condition, where there are several
    size: Size | None
    law: scaling.Law | str | None  # of levels; None: there are none to fit it to


@dataclass(frozen=True)
class Sizing:
    """A run's plan; of several servers each one's."""

    server: str
    findings: Findings
    unit: str  # of what is carried: "viewers", "participants", "requests/s"
    objective: tuple[str, ...]
    asked: Asked
    price: Price | None
    rows: tuple[Row, ...]
    path: str = ""  # the setting that is the number of users; "" of a search
    density: Density | None = None  # where a run of it was given


def sizings(
    found: Findings,
    asked: Asked,
    objectives: Sequence[str],
    price: Price | None,
    packed: Density | None = None,
) -> list[Sizing]:
    """The plan. ``packed``: how many idle instances such a host held.

    StudyError where the run holds no number of users that anything could be planned by, or where the
    objective is not one that it can tell of.
    """
    if len(set(found.matrix.hosts)) > 1:
        what = "several hosts measured it, and how many users one carries is told for one kind of host only"
        raise StudyError([Problem(what, str(found.run.directory), "plan by a run of the host that you would buy")])
    parts = _planned(found, objectives)
    return [replace(_of(name, part, asked, objectives, price, packed=packed), density=packed) for name, part in parts]


def _planned(found: Findings, objectives: Sequence[str]) -> list[tuple[str, Findings]]:
    """The run, or its servers: where some were searched for their knee these, which have their objective; or the
    others, where one is named.
    """
    parts = list(found.servers.items()) or [("", found)]
    searched = [(name, part) for name, part in parts if part.is_search]
    others = [(name, part) for name, part in parts if not part.is_search]
    return (others if objectives else searched) if searched and others else parts


def _of(
    server: str,
    part: Findings,
    asked: Asked,
    objectives: Sequence[str],
    price: Price | None,
    *,
    packed: Density | None,
) -> Sizing:
    if part.is_search:
        knee = next(_knees(part), None)
        _expect_its_own(part, knee, objectives)
        rows = tuple(_row(part, each, asked, None, packed) for each in of_searches(part.matrix))
        return Sizing(server, part, knee.unit if knee else "", tuple(part.run.objective), asked, price, rows)
    path = users_path(part.matrix) if part.is_load and not part.is_side_by_side else ""
    if part.loops == ("open",) and path == CONNECTIONS:  # room for a rate, and no users
        path = ""
    if not path:
        raise StudyError([_no_users(part)])
    wanted = [_objective(text, part) for text in objectives]
    own = part.run.base.get("load.objective") or ()
    if not wanted and not own:
        words = ", ".join(name for name, metric in part.matrix.metrics.items() if metric.better is not None)
        remedy = f"--objective 'METRIC < BOUND', of one of {words}"
        raise StudyError([Problem("the study has no objective: say what must hold", "--objective", remedy)])
    told = tuple(each.text for each in wanted) or tuple(map(str, own))
    rows = tuple(_row(part, each, asked, path, packed) for each in of_levels(part.matrix, path, wanted))
    return Sizing(server, part, unit_of_users(path), told, asked, price, rows, path)


def _knees(part: Findings) -> Iterator[Knee]:
    for record in part.run.records:
        if record.measured is not None and record.measured.knee is not None:
            yield record.measured.knee


def _expect_its_own(part: Findings, knee: Knee | None, objectives: Sequence[str]) -> None:
    """A search went where its own objective sent it, and says nothing of another."""
    if knee is None:
        return
    known = {(one.metric, one.bound) for one in knee.objective} | {(one.text, 0.0) for one in knee.objective}
    for text in objectives:
        if (text, 0.0) not in known and _bound(text, part) not in known:
            what = (
                f"{text!r} is not the objective that the knee was searched for under: {', '.join(part.run.objective)}"
            )
            remedy = "leave --objective out, or run the study with this objective in its [knee] section"
            raise StudyError([Problem(what, "--objective", remedy)])


def _bound(text: str, part: Findings) -> tuple[str, float] | None:
    try:
        one = objective_of(text, part.matrix.metrics)
    except ValueError:
        return None
    return one.metric, one.bound


def _objective(text: str, part: Findings) -> Objective:
    try:
        return objective_of(text, part.matrix.metrics)
    except ValueError as error:
        raise StudyError([Problem(str(error), "--objective")]) from error


def _no_users(part: Findings) -> Problem:
    what = "it has no knee, and no trials at several numbers of users"
    remedy = "plan by a run of `virtoll run viewers`, `virtoll run conference`, or of a study with a [knee] section"
    return Problem(what, str(part.run.directory), f"{remedy} (virtoll help knee)")


def _row(part: Findings, each: Carrying, asked: Asked, path: str | None, packed: Density | None) -> Row:
    words = each.condition.label(tuple(p for p in part.matrix.varying if p != path)) if each.condition.levels else ""
    law = None
    if path is not None:
        levels = levels_asked(part.matrix, path, each.condition, each.arm)
        law = scaling.fit(np.array([level for level, _ in levels], float), delivered(part.matrix, each.arm, levels))
    held = () if packed is None else packed.held(each.arm, memory_limit(part.run, each.condition))
    return Row(each, words, size(each.deployments, asked, held) if each.deployments else None, law)
