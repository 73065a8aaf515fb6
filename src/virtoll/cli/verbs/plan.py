"""`virtoll plan`: what a testbed of sliced nodes holds, or what so many users take by what platforms carried."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from virtoll.analysis.capacity import Grid
from virtoll.analysis.sizing import Asked
from virtoll.cli.parser import GRID, TESTBED_OUT
from virtoll.errors import Problem, StudyError
from virtoll.plain import printable, typed
from virtoll.run.named import is_ready_made

TESTBED = "testbed"
HEADROOM = 0.3
# The options of one of the two, which say nothing of the other.
_OF_TESTBED = (*GRID, "nodes_per_experiment", "out")
_OF_USERS = ("users", "objective", "headroom", "price", "host_cpus", "host_memory", "density")


def do(arguments: argparse.Namespace) -> int:
    """The word *testbed* plans the paper's grid, anything else is a run directory."""
    is_testbed = arguments.what == TESTBED
    _refuse_others(arguments, _OF_USERS if is_testbed else _OF_TESTBED, is_testbed=is_testbed)
    return _testbed(arguments) if is_testbed else _users(arguments)


def _refuse_others(arguments: argparse.Namespace, names: tuple[str, ...], *, is_testbed: bool) -> None:
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name) is not None]
    if given:
        of, remedy = (
            ("a run directory", "virtoll plan RUNDIR --users N") if is_testbed else (TESTBED, "virtoll plan testbed")
        )
        raise StudyError([Problem(f"it says something of {of} only", ", ".join(given), remedy)])


def _testbed(arguments: argparse.Namespace) -> int:
    from virtoll.report import plan  # charts are slow to import, and the other verbs need none
    from virtoll.report.tables import plain

    given = {name: getattr(arguments, name) for name in GRID}
    grid = Grid(**{name: GRID[name] if value is None else value for name, value in given.items()})
    sizes = arguments.nodes_per_experiment or plan.usual_sizes(grid)
    if not arguments.json:
        print(plain(plan.capacity_table(grid, sizes)))
    files = plan.write_plan(grid, sizes, arguments.out or TESTBED_OUT)
    if arguments.json:
        print(json.dumps({**plan.as_json(grid, sizes), "files": [str(path) for path in files]}, indent=2))
    else:
        print(*files, sep="\n")
    return 0


def _users(arguments: argparse.Namespace) -> int:
    """0 where there is a number or a bound for some arm, 1 where nothing valid is known of any."""
    from virtoll.report.findings import find, told_as_damage
    from virtoll.report.sizing import sizings
    from virtoll.report.sizing_words import as_json, as_text

    if arguments.users is None:
        raise StudyError(
            [Problem("for how many users?", "--users", f"virtoll plan {typed(arguments.what)} --users 2000")]
        )
    path = Path(arguments.what)
    if is_ready_made(arguments.what) and not path.is_dir():
        remedy = f"`virtoll run {typed(arguments.what)}` first, and plan by the run directory that it makes"
        raise StudyError(
            [Problem("it is a study, and what it measures is not known before it ran", arguments.what, remedy)]
        )
    found = find(path)
    with told_as_damage(path):
        machine = found.run.environment.comparable.get("machine", {})  # as `run.environment` records it
        asked = Asked(
            arguments.users,
            HEADROOM if arguments.headroom is None else arguments.headroom,
            _of_host(arguments.host_cpus, machine.get("cpus"), "CPUs", "--host-cpus 16"),
            _of_host(arguments.host_memory, machine.get("memory_bytes"), "memory", "--host-memory '64 GiB'"),
        )
        packed = None if arguments.density is None else _density(arguments.density, asked)
        plans = sizings(found, asked, arguments.objective or [], arguments.price, packed)
        told = json.dumps(as_json(plans), indent=2) if arguments.json else printable(as_text(plans))
    print(told)
    return int(all(row.carrying.lost for each in plans for row in each.rows))


def _density(path: Path, asked: Asked) -> Any:
    from virtoll.analysis.metrics import Wanted
    from virtoll.report.findings import find, told_as_damage
    from virtoll.report.packing import density

    nothing = Wanted(latency=False, usage=False, memory=False, inside=False)
    found = find(path, wanted=lambda _run: nothing)
    with told_as_damage(path):
        return density(found, asked)


def _of_host(given: float | None, measured: object, what: str, option: str) -> float:
    """What a host has: as given, or as the machine that was measured."""
    if given is not None:
        return given
    if isinstance(measured, int | float) and measured > 0:
        return float(measured)
    raise StudyError([Problem(f"the run does not tell the {what} of its machine", "", f"give a host's with {option}")])
