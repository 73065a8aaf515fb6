"""The calibrations of this machine: the last one is kept, and each run that begins takes along what it promises."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from virtoll.errors import StoreError
from virtoll.files import durable
from virtoll.hosts.ledger import state_directory
from virtoll.plain import typed
from virtoll.record.calibration import Calibration

# What may change and leave the machine the same: how much of its memory the kernel kept for itself.
_NO_IDENTITY = ("memory_bytes",)
_OF_OTHERS = "those kept here are of other machines, or of this one with another kernel, other CPUs, or tuned otherwise"


def identity(machine: Mapping[str, Any]) -> dict[str, Any]:
    """What of `environment`'s machine says that it is the same: kernel, CPUs by number, mitigations, ..."""
    return {key: value for key, value in machine.items() if key not in _NO_IDENTITY}


def later_than(found: Calibration) -> Calibration | None:
    """One of the same machine that is kept, and that was begun after this one."""
    kept, _ = last(found.machine)
    # As text: each time is of the same form, in UTC.
    return kept if kept is not None and kept.created_at > found.created_at else None


def keep(found: Calibration) -> Path:
    """Keep a calibration as the last one of its machine, unless a later one is there; the path of the last. StoreError
    where it cannot be written.
    """
    path = _path(found.machine)
    if later_than(found) is not None:
        return path
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        durable.replace(path, (found.model_dump_json(indent=2) + "\n").encode())
    except OSError as error:
        what = f"the calibration cannot be kept: {error.strerror}"
        raise StoreError(
            what,
            where=str(path),
            remedy=f"make room, then `virtoll run {typed(found.run)}`: it is measured already",
        ) from error
    return path


def last(machine: Mapping[str, Any]) -> tuple[Calibration | None, str]:
    """The last calibration of a machine, or None and why there is none that holds."""
    path = _path(machine)
    if not path.exists():
        others = sorted(path.parent.glob("*.json")) if path.parent.is_dir() else []
        return None, _OF_OTHERS if others else "there was none"
    try:
        found = Calibration.model_validate_json(path.read_bytes())
    except (OSError, ValidationError, ValueError) as error:
        return None, f"{path} cannot be read: {str(error).splitlines()[0]}"
    if identity(found.machine) != identity(machine):
        return None, f"{path} is of another machine"
    return found, ""


def noted(machine: Mapping[str, Any]) -> dict[str, Any]:
    """The same, as a run's environment keeps it among its notes."""
    found, why = last(machine)
    return {"calibration": None if found is None else found.model_dump(), "not_calibrated": why}


def _path(machine: Mapping[str, Any]) -> Path:
    told = json.dumps(identity(machine), sort_keys=True, default=str)
    return state_directory() / "calibrations" / f"{hashlib.sha256(told.encode()).hexdigest()[:16]}.json"
