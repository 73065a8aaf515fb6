"""`virtoll probe`: one probe in one instance, here and now, by the same way as in a study."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from virtoll.catalogue import catalogue
from virtoll.errors import StudyError
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.local import LocalHost
from virtoll.plain import printable
from virtoll.platforms.base import platforms
from virtoll.probes.base import probes
from virtoll.record.model import Measured, PlannedTrial
from virtoll.run.alone import alone
from virtoll.run.stage import Stage
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.trial.notes import Notes, to_the_end

_WHERE = "command line"


@dataclass(frozen=True)
class ProbeRequest:
    """What the user asked `virtoll probe` for. ``settings``: by key, as a study file writes them."""

    probe: str
    settings: Mapping[str, str] = field(default_factory=dict)
    platform: str = "native"
    network: str = ""
    memory: str = ""
    vcpus: int | None = None
    as_json: bool = False


def run_probe(request: ProbeRequest) -> int:
    """Deploy, measure, print the figures; 1 when the probe's own checks, or the trial's, did not pass."""
    study = _study(request)
    host = LocalHost()
    wanted = study.arms[-1]
    case = study.programme[0]
    trial = PlannedTrial(id="probe", block=1, position=1, arm=wanted.arm, condition=dict(case.condition))
    stage = Stage(study, host)
    with alone(host) as removed, ledgers.scratch(host, "probe") as directory:
        for line in removed:
            _say(f"a killed run had left, and it was removed: {line}")
        arms, _ = stage.offered(_WHERE)
        images = stage.prepare(arms, _say)
        notes = Notes(directory, lambda _phase: None)
        with stage.lab(images, [trial]) as experiment:
            to_the_end(experiment.perform(trial, notes))
    assert notes.measured is not None
    valid = all(check.passed is not False for check in notes.checks)
    print(
        _as_json(trial, notes, notes.measured) if request.as_json else printable(_as_text(trial, notes, notes.measured))
    )
    return 0 if valid else 1


def _study(request: ProbeRequest) -> Study:
    """The request as a study; StudyError without the lines of a file that nobody wrote."""
    try:
        return read_study(_study_text(request), _WHERE, catalogue())
    except StudyError as error:
        problems = [dataclasses.replace(p, where=re.sub(rf"^{_WHERE}:\d+", _WHERE, p.where)) for p in error.problems]
        raise StudyError(problems) from None


def _study_text(request: ProbeRequest) -> str:
    """The study that a probe by hand is: two arms at most, one case, the defaults for all else."""
    lines = ["name = 'probe'", "blocks = 2", "noise_floor = false", "[[arms]]", "platform = 'native'"]
    if request.platform != "native" or request.network not in ("", platforms()["native"].default_network):
        lines = [*lines, "[[arms]]", f"platform = {json.dumps(request.platform)}"]
        lines += [f"network = {json.dumps(request.network)}"] if request.network else []
    lines += ["[limits]"]
    lines += [f"memory = {json.dumps(request.memory)}"] if request.memory else []
    lines += [f"vcpus = {request.vcpus}"] if request.vcpus is not None else []
    if (known := probes().get(request.probe)) is not None and known.slices:
        lines += ["[slices]", f"count = {known.slices}"]
    lines += ["[[probes]]", f"name = {json.dumps(request.probe)}"]
    lines += [f"{json.dumps(key)} = {_toml(value)}" for key, value in request.settings.items()]
    return "\n".join(lines) + "\n"


def _toml(value: str) -> str:
    """A number or truth value as it is, anything else as a string: a study file has no number like 007 or .5."""
    try:
        read = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return json.dumps(value)
    return value if list(read) == ["value"] and isinstance(read["value"], int | float) else json.dumps(value)


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def _as_json(trial: PlannedTrial, notes: Notes, measured: Measured) -> str:
    """Means over the windows by the quantities' keys, and everything they come from."""
    windows = {key: values for key in measured.quantities if (values := measured.values(key))}
    document: dict[str, Any] = {
        "probe": measured.name,
        "platform": trial.arm.platform,
        "network": trial.arm.network,
        **{key: statistics.fmean(values) for key, values in windows.items()},
        "units": {key: quantity.unit for key, quantity in measured.quantities.items()},
        "windows": windows,
        "settings": measured.settings,
        "facts": measured.facts,
        "notes": measured.notes,
        "checks": [check.model_dump() for check in notes.checks],
    }
    return json.dumps(document)


def _as_text(trial: PlannedTrial, notes: Notes, measured: Measured) -> str:
    lines = [f"{measured.name} on {trial.arm.label} ({measured.instrument})"]
    for key, quantity in measured.quantities.items():
        if not (values := measured.values(key)):
            lines.append(f"  {quantity.title:<32} not told")
            continue
        windows = "  ".join(f"{value:.5g}" for value in values)
        lines.append(f"  {quantity.title:<32} {statistics.fmean(values):.5g} {quantity.unit}   ({windows})")
    lines += [f"  {key}: {value}" for key, value in measured.facts.items()]
    lines += [f"  note: {note}" for note in measured.notes]
    lines += [f"  NOT VALID: {check.name}: {check.detail}" for check in notes.checks if check.passed is False]
    return "\n".join(lines)
