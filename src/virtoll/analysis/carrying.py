"""How many users each deployment carried, and what it used there: of a search for the knee, or level by level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Floats
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import KNEE, MIB, SERVER_CPUS, TrialMetrics
from virtoll.analysis.server import Carried, carried, carried_by, deployments, missed_of_its_own
from virtoll.analysis.sizing import Deployment
from virtoll.analysis.usage import of_one_level
from virtoll.record.knee import Objective
from virtoll.record.model import ALL_THERE, LEVEL, PRESENT, STAYED, Arm, Window

# The settings of loads that are numbers of users, in the order in which they are looked for.
CONNECTIONS = "load.connections"
USERS = (LEVEL, "load.viewers", "load.users", CONNECTIONS)
_WORDS = {LEVEL: "participants"}


@dataclass(frozen=True)
class Carrying:
    """Of one arm under one condition: its deployments, and as bounds what is known of those that came to no number.

    ``at_least``: what each deployment carried at the least, where some may carry more than was tried; ``below``: what
    ``bounded`` of the ``of`` deployments did not carry, and that nothing that was tried. ``blocks``: how many told any
    of this. ``lost``: why there is no valid deployment at all.
    """

    arm: Arm
    condition: Condition  # less the number of users
    deployments: tuple[Deployment, ...] = ()
    at_least: float | None = None
    below: float | None = None
    bounded: int = 0
    of: int = 0
    blocks: int = 0
    lost: str = ""


def of_searches(matrix: Matrix) -> list[Carrying]:
    """Of a run that searched for the knee, each arm under each condition."""
    return [_searched(matrix, arm, condition) for condition in matrix.conditions for arm in _asked(matrix, condition)]


def _asked(matrix: Matrix, condition: Condition) -> list[Arm]:
    return [arm for arm in matrix.arms if arm.role != "floor" and matrix.is_asked(arm, condition)]


def _searched(matrix: Matrix, arm: Arm, condition: Condition) -> Carrying:
    cells = matrix.across(arm, condition)
    if not cells:
        return Carrying(arm, condition, lost=matrix.why_missing(KNEE, arm, condition))
    measured = (cell.record.measured for cell in cells.values())
    blocks = len({b for b, _ in cells})
    knees = [each.knee for each in measured if each is not None and each.knee is not None]
    if bounded := sum(knee.ended == "below least" for knee in knees):
        below = min(knee.upper for knee in knees if knee.upper is not None)
        return Carrying(arm, condition, below=below, bounded=bounded, of=len(knees), blocks=blocks)
    if any(knee.value is None for knee in knees):
        return Carrying(arm, condition, at_least=min(knee.lower or 0.0 for knee in knees), blocks=blocks)
    return Carrying(arm, condition, tuple(_at_its_knee(cell, matrix) for cell in cells.values()), blocks=blocks)


def _at_its_knee(cell: TrialMetrics, matrix: Matrix) -> Deployment:
    measured = cell.record.measured
    assert measured is not None
    assert measured.knee is not None
    at = [window.at for window in measured.windows]
    deciding = [measured.windows[number] for number in measured.knee.deciding(at, measured.knee.lower)]
    return _deployment(cell, cell.values[KNEE], _cpus(cell, deciding), matrix)


def _cpus(cell: TrialMetrics, windows: Sequence[Window]) -> float | None:
    """CPUs used in windows: by what a unit of work took, and how many were done a second. (What is known may be the
    CPU time of all that was asked for in a window, some of it answered after its end.) None where it is not known.
    """
    used_s, served = cell.parts.get("cpu_s_per_1000", ((), ()))
    seconds = sum(window.duration_ns for window in windows) / 1e9
    if not sum(served) > 0 or seconds <= 0:
        return None
    return sum(used_s) / sum(served) * sum(window.work for window in windows) / seconds


def _deployment(cell: TrialMetrics, users: float, cpus: float | None, matrix: Matrix) -> Deployment:
    """CPUs are at most those of the instance's limit, which the trial has proved: more is what samples scatter by."""
    given = matrix.run.given(cell.record.trial.condition)
    limit = given.get("limits.vcpus") if given.get("limits.budget", "inclusive") == "inclusive" else None
    if cpus is not None and isinstance(limit, int):
        cpus = min(cpus, float(limit))
    memory = cell.values.get("memory_peak_mib")
    return Deployment(cell.record.trial.block, users, cpus, None if memory is None else memory * MIB)


# -- level by level -----------------------------------------------------------------------------------------


def users_path(matrix: Matrix) -> str:
    """The setting that is a number of users and has several levels; "" where there is none."""
    return next((path for path in USERS if path in matrix.varying), "")


def unit_of_users(path: str) -> str:
    """The word for several of them."""
    return _WORDS.get(path, path.rpartition(".")[2])


def of_levels(matrix: Matrix, path: str, objectives: Sequence[Objective]) -> list[Carrying]:
    """Of a ramp, or of trials at several numbers of users: what each carried under these objectives, at all lower
    levels too; without any, under the ramp's own.
    """
    arms = [arm for arm in matrix.arms if arm.role != "floor"]
    rests = [(rest, arm) for rest in rests_of(matrix, path) for arm in arms if not _is_room(path, rest)]
    asked = [(rest, arm, levels) for rest, arm in rests if (levels := levels_asked(matrix, path, rest, arm))]
    return [_levelled(matrix, arm, rest, levels, objectives) for rest, arm, levels in asked]


def rests_of(matrix: Matrix, path: str) -> list[Condition]:
    """The conditions less a number of users, each once."""
    return list(dict.fromkeys(_without(condition, path) for condition in matrix.conditions))


def levels_of(matrix: Matrix, path: str, rest: Condition) -> list[tuple[int, Condition]]:
    """The levels under one other condition, ascending."""
    found = [(c.get(path), c) for c in matrix.conditions if _without(c, path) == rest and c.get(path) is not None]
    return sorted(found, key=lambda each: each[0])


def _is_room(path: str, rest: Condition) -> bool:
    """Whether connections are those of an open loop: room for a rate, and no users."""
    return path == CONNECTIONS and bool(rest.get("load.loop") == "open")


def levels_asked(matrix: Matrix, path: str, rest: Condition, arm: Arm) -> list[tuple[int, Condition]]:
    """Those of them that the study asks of an arm."""
    return [(level, c) for level, c in levels_of(matrix, path, rest) if matrix.is_asked(arm, c)]


def _without(condition: Condition, path: str) -> Condition:
    return Condition(tuple(level for level in condition.levels if level[0] != path))


def _levelled(
    matrix: Matrix, arm: Arm, rest: Condition, levels: Sequence[tuple[int, Condition]], objectives: Sequence[Objective]
) -> Carrying:
    found = (
        carried_by(matrix, levels, _missed_by(matrix, arm, objectives)) if objectives else carried(matrix, arm, levels)
    )
    if not found:
        whys = (matrix.why_missing(one.metric, arm, c) for one in objectives for _, c in levels)
        lost = deployments(matrix, arm, levels)[1] or next(whys, "no valid level was held against an objective")
        return Carrying(arm, rest, lost=lost)
    if bounded := sum(each.level == 0 and bool(each.missed) for each in found):
        return Carrying(arm, rest, below=float(levels[0][0]), bounded=bounded, of=len(found), blocks=len(found))
    if not all(each.missed for each in found):  # one of level 0 has no valid trial at the lowest, and missed a higher
        return Carrying(arm, rest, at_least=float(min(each.level for each in found)), blocks=len(found))
    conditions = dict(levels)
    mine = tuple(_at_its_level(matrix, arm, each, conditions) for each in found)
    return Carrying(arm, rest, mine, blocks=len(found))


def _missed_by(
    matrix: Matrix, arm: Arm, objectives: Sequence[Objective]
) -> Callable[[int, Condition], tuple[str, ...] | None]:
    """Of one deployment at one level: its own values, not an interval's. Where one part is missed it is, whether or not
    another is told; where none is, and one is not told, nobody knows. Who was kept out of a ramp's level, or cut
    off, was not served whatever the objective; as far as the ramp was held against one of its own, that is known.
    """
    owed = {STAYED} if any(one.metric.endswith(PRESENT) for one in objectives) else {STAYED, ALL_THERE}

    def missed(block: int, condition: Condition) -> tuple[str, ...] | None:
        cell = matrix.cell(block, arm, condition)
        if cell is None:
            return None
        told = [(one, cell.values.get(one.metric), one.metric in cell.censored - cell.unplaced) for one in objectives]
        lacked = [text for text in missed_of_its_own(matrix, block, arm, condition) or () if text in owed]
        known = [(one, value) for one, value, censored in told if value is not None or censored]
        misses = (*(one.text for one, value in known if not one.is_met(value)), *lacked)
        if not misses and len(known) < len(told):
            return None
        return misses

    return missed


def _at_its_level(matrix: Matrix, arm: Arm, each: Carried, conditions: dict[int, Condition]) -> Deployment:
    cell = matrix.cell(each.block, arm, conditions[each.level])
    assert cell is not None
    assert cell.record.measured is not None
    windows, cpus = of_one_level(cell.record.measured), cell.values.get(SERVER_CPUS)
    return _deployment(cell, float(each.level), _cpus(cell, windows) if cpus is None else cpus, matrix)


def delivered(matrix: Matrix, arm: Arm, levels: Sequence[tuple[int, Condition]]) -> Floats:
    """Units of work per second, [block, level]; nan where there is no valid trial, or no rate of it."""
    rates = np.full((len(matrix.blocks), len(levels)), np.nan)
    for b, block in enumerate(matrix.blocks):
        for n, (_, condition) in enumerate(levels):
            cell = matrix.cell(block, arm, condition)
            if cell is not None and cell.record.measured is not None:
                windows = of_one_level(cell.record.measured)
                if (duration_ns := sum(w.duration_ns for w in windows)) > 0:  # fixed work that all was sent of at once
                    rates[b, n] = sum(w.work for w in windows) / duration_ns * 1e9
    return rates
