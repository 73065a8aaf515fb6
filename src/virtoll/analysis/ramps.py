"""A ramp's trial, told as if each of its levels had been a trial of its own.

One session held all the levels of a ramp (`LEVELS`), so a deployment gives one value a level; that is what a trial at
so many participants gives, too, and all that compares trials compares levels as well: ratios within a block, intervals
over blocks. What is not independent is one level from the next, and nothing here takes them for repetitions of each
other. A level that tells nothing of the service (`VOID`) is an invalid trial with that reason; and so is one at which
too many participants were kept out or cut off, where there is no objective to be missed (`OWED`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from virtoll.analysis.load import Run
from virtoll.record.model import (
    LEVEL,
    LEVELS,
    OWED,
    PROBE,
    UNTOLD,
    VOID,
    Check,
    Measured,
    Plan,
    PlannedTrial,
    TrialRecord,
)


def unfolded(run: Run) -> Run:
    """The run with a trial for each level of a ramp; any other run as it is."""
    if not any(_levels(run, trial) for trial in run.plan.trials):
        return run
    parts: dict[str, tuple[str, tuple[int, ...]]] = {}
    records = [each for record in run.records for each in _records(run, record, parts)]
    return replace(run, plan=_plan(run), records=tuple(records), parts=parts)


def _levels(run: Run, trial: PlannedTrial) -> Sequence[Any]:
    """Of a trial's ramp; none of any other trial, which that of a probe beside the service is too."""
    if PROBE in trial.condition:
        return ()
    levels = run.given(trial.condition).get(LEVELS)
    return levels if isinstance(levels, list | tuple) else ()


def _plan(run: Run) -> Plan:
    trials = []
    for trial in run.plan.trials:
        levels = _levels(run, trial)
        trials += [_at(trial, number, level) for number, level in enumerate(levels, 1)] if levels else [trial]
    return run.plan.model_copy(update={"trials": trials})


def _at(trial: PlannedTrial, number: int, level: Any) -> PlannedTrial:
    condition = {path: value for path, value in trial.condition.items() if path != LEVELS} | {LEVEL: level}
    return trial.model_copy(update={"id": f"{trial.id}.{number}", "condition": condition})


def _records(run: Run, record: TrialRecord, parts: dict[str, tuple[str, tuple[int, ...]]]) -> Iterator[TrialRecord]:
    """A record for each level; where it was measured, with its windows, whose numbers are noted in ``parts``."""
    levels = _levels(run, record.trial)
    if not levels:
        yield record
    for number, level in enumerate(levels, 1):
        trial = _at(record.trial, number, level)
        at = [n for n, window in enumerate(_windows(record), 1) if window.at == level]
        parts[trial.id] = (record.trial.id, tuple(at))
        told: dict[str, Any] = {"trial": trial, "measured": _part(record.measured, at)}
        if record.status == "valid":
            if not at:
                told |= {"status": "failed", "reason": "it has no window at this level"}
            elif why := _void(record.measured, level):
                told |= {"status": "invalid", "reason": why}
            elif owed := _owed(record.measured, level):
                broken = [Check(name=name, passed=False, detail=f"not at {level} participants") for name in owed]
                reason = "; ".join(f"{check.name}: {check.detail}" for check in broken)
                told |= {"status": "invalid", "reason": reason, "checks": [*record.checks, *broken]}
        yield record.model_copy(update=told)


def _windows(record: TrialRecord) -> Sequence[Any]:
    return () if record.measured is None else record.measured.windows


def _part(measured: Measured | None, numbers: Sequence[int]) -> Measured | None:
    """What was measured in some of its windows: the quantities that all of those tell."""
    if measured is None or not numbers:
        return None
    windows = [measured.windows[number - 1] for number in numbers]
    quantities = {
        key: quantity for key, quantity in measured.quantities.items() if all(each.tells(key) for each in windows)
    }
    return measured.model_copy(update={"windows": windows, "quantities": quantities})


def untold_at(measured: Measured, level: Any) -> Mapping[str, str]:
    """The quantities of a level that may be the generator's own, and why."""
    by_level = measured.facts.get(UNTOLD, {})
    found = by_level.get(str(level), {}) if isinstance(by_level, Mapping) else {}
    whys = found if isinstance(found, Mapping) else {}
    return {key: f"it may be the generator's own: {why}" for key, why in whys.items()}


def _owed(measured: Measured | None, level: Any) -> list[str]:
    """What it owed its participants at a level, and did not give."""
    owed = {} if measured is None else measured.facts.get(OWED, {})
    found = owed.get(str(level), []) if isinstance(owed, Mapping) else []
    return [str(each) for each in found] if isinstance(found, list) else []


def _void(measured: Measured | None, level: Any) -> str:
    """Why a level tells nothing of the service; "" where it does."""
    void = {} if measured is None else measured.facts.get(VOID, {})
    why = void.get(str(level), "") if isinstance(void, Mapping) else ""
    return f"the generator was in the way: {why}" if why else ""
