"""What was promised of a run directory: what is sealed stays as it is, and the plan comes to its end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from virtoll.errors import VirtollError
from virtoll.probes.native import AS_LONG_AS_ASKED
from virtoll.record.store import INTERRUPTED, RunDirectory

# What a trial may be invalid for because the machine was busy with somebody else's work: another program that takes
# the CPU makes the generator slow, the samplers late, the exchange of clocks wide and a probe's warm-up so slow that
# its windows hold too little. (METHODOLOGY: rule 2.)
BUSY = frozenset(
    {
        "the generator had headroom",
        "the origin had headroom",
        "the generator kept its schedule",
        "offered load met intended",
        "no sample was dropped",
        "the clock held",
        AS_LONG_AS_ASKED,
    }
)


@dataclass(frozen=True)
class Sealed:
    """The sealed part of a run directory, byte by byte: trials.jsonl up to its last whole line, and each sealed
    trial's files."""

    log: bytes = b""
    files: dict[str, str] = field(default_factory=dict)  # path below the run directory -> digest
    ids: tuple[str, ...] = ()


def sealed(out: Path) -> Sealed:
    """What is sealed in a run directory now; nothing where there is none."""
    path = out / "trials.jsonl"
    if not path.is_file():
        return Sealed()
    log = path.read_bytes()
    log = log[: log.rfind(b"\n") + 1]
    ids = tuple(json.loads(line)["trial"]["id"] for line in log.splitlines())
    directories = [out / "trials" / name for name in ids]
    fixed = [out / name for name in ("study.json", "plan.json", "environment.json")]
    files = [
        *filter(Path.is_file, fixed),
        *(path for top in directories if top.is_dir() for path in top.rglob("*") if path.is_file()),
    ]
    return Sealed(log, {str(path.relative_to(out)): _digest(path) for path in files}, ids)


def changes(before: Sealed, out: Path) -> list[str]:
    """How the sealed part of a run differs from what it was; empty when nothing is lost or changed."""
    now = sealed(out)
    found = [] if now.log.startswith(before.log) else ["trials.jsonl no longer begins with what was sealed"]
    for name, digest in before.files.items():
        if now.files.get(name) != digest:
            found.append(f"{name} {'was changed' if name in now.files else 'is lost'}")
    return found


@dataclass
class Outcome:
    """What the plan came to."""

    problems: list[str] = field(default_factory=list)
    trials: int = 0
    busy: int = 0  # invalid for want of CPU alone


def outcome(out: Path, struck: Collection[str], *, excused: bool = False) -> Outcome:
    """Whether every planned trial is sealed, and valid unless the fault struck it.

    ``struck``: trials that were under way when the fault did its work; they may be failed or invalid, with a reason.
    ``excused``: virtoll may have failed itself in them (it had no memory).
    """
    told = Outcome()
    try:
        directory = RunDirectory(out)
        records = directory.records()
        told.problems += [f"{trial.id} was never sealed" for trial in directory.pending(records)]
    except VirtollError as error:
        told.problems.append(f"the run directory cannot be read: {error}")
        return told
    for record in records:
        told.trials += 1
        name, reason = record.trial.id, record.reason
        if record.status == "valid" or reason.startswith(INTERRUPTED):
            continue
        broken = {check.name for check in record.checks if check.passed is False}
        if not reason:
            told.problems.append(f"{name} is {record.status} without a reason")
        elif "virtoll itself failed" in reason and not (excused and name in struck):
            told.problems.append(f"{name}: {reason}")
        elif name in struck:
            continue
        elif record.status == "invalid" and broken <= BUSY:
            told.busy += 1
        else:
            told.problems.append(f"{name}, which no fault struck, is {record.status}: {reason}")
    return told


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
