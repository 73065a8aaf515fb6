"""What a plan says of itself, in words: before a run, at its beginning, and in its report."""

from __future__ import annotations

import re
from typing import Any

from virtoll.record.model import ELSEWHERE, Environment, Plan


def in_groups(plan: Plan) -> str:
    """Which arms stand together where the memory does not hold all at once; "" where it does, or none do."""
    if not plan.groups:
        return ""
    native = next((trial.arm.label for trial in plan.trials if trial.arm.role == "baseline"), "native")
    told = "; ".join(", ".join(group) for group in plan.groups)
    return (
        f"the memory does not hold all arms at once: {len(plan.groups)} groups in each block, {native} in each ({told})"
    )


def generator_options(environment: Environment) -> str:
    """The options, behind `virtoll run RUNDIR`, that a run goes on with whose generator is on another machine; "" where
    it is not.
    """
    same = environment.comparable.get(ELSEWHERE)
    if not isinstance(same, dict):
        return ""
    notes = environment.notes.get(ELSEWHERE)
    at = _word(notes, "at", "HOST")
    here, there = _word(same.get("nic here"), "name", "HERE"), _word(same.get("nic"), "name", "THERE")
    return f" --generator ssh://root@{at} --nic {here},{there}"


def generator_told(environment: Environment) -> str:
    """Which machine the load came from, and how, where that was another one; "" where it was not."""
    same = environment.comparable.get(ELSEWHERE)
    if not isinstance(same, dict):
        return ""
    here, there = (nic if isinstance(nic := same.get(key), dict) else {} for key in ("nic here", "nic"))
    parts = [
        f"{same.get('cpus', '?')} CPUs ({same.get('cpu_model') or 'of a model that is not told'})",
        f"Linux {str(same.get('kernel', '?')).partition(' ')[0]}",
        f"{there.get('name', '?')} ({there.get('driver') or 'no driver of its own'}, {_speed(there)}, "
        f"MTU {there.get('mtu', '?')}) to {here.get('name', '?')} here ({here.get('driver') or 'no driver'})",
        f"TCP's congestion control {same.get('congestion control') or '?'}",
    ]
    at = _word(environment.notes.get(ELSEWHERE), "at", "which is not named")
    return f"the load generator stood on another machine, {at}: {'; '.join(parts)}"


def _speed(nic: dict[str, Any]) -> str:
    speed = nic.get("speed_mbit_per_s")
    return f"{speed:,} Mbit/s" if isinstance(speed, int) else "a speed that is not told"


def _word(table: Any, key: str, otherwise: str) -> str:
    """A word of a table that anybody may have written."""
    found = table.get(key) if isinstance(table, dict) else None
    return found if isinstance(found, str) and re.fullmatch(r"[A-Za-z0-9_.:@[\]-]{1,64}", found) else otherwise
