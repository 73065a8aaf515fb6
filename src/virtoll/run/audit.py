"""`virtoll audit`: each arm of a study deployed once, to see what it really has. Nothing is measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from virtoll.errors import VirtollError
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.local import LocalHost
from virtoll.plain import printable
from virtoll.record.model import Arm, Audit, PlannedTrial, SkippedArm
from virtoll.run.alone import alone
from virtoll.run.elsewhere import announced
from virtoll.run.request import Request, read
from virtoll.run.stage import Stage
from virtoll.study.model import Study
from virtoll.study.plan import deployments
from virtoll.trial.experiment import LabExperiment
from virtoll.trial.notes import Notes

if TYPE_CHECKING:
    from virtoll.report.tables import Table


@dataclass(frozen=True)
class Seen:
    """What the deployments told, and the arms that were not deployed, with the reason."""

    study: Study
    audits: tuple[tuple[Arm, Audit], ...]
    not_deployed: tuple[SkippedArm, ...]
    failed: bool = False  # whether one that this machine offers did not come up


def audit_study(request: Request) -> int:
    """Deploy, read, print; 1 when an arm that this machine offers could not be deployed."""
    study, file = read(request)
    host = LocalHost()
    # One after the other in one lab, whatever the study's design: what stands beside an arm is not looked at.
    stage = Stage(replace(study, design="blocks"), host)
    with alone(host) as removed:
        for line in removed:
            _say(f"a killed run had left, and it was removed: {line}")
        for line in announced(entry.arm for entry in study.arms):
            _say(line)
        arms, skipped = stage.offered(file)
        seen = _seen(stage, arms, skipped)
    if request.as_json:
        print(json.dumps(as_json(seen), indent=2))
    else:
        print(printable(as_text(seen)))
    return 1 if seen.failed else 0


def _seen(stage: Stage, arms: Sequence[Arm], skipped: Sequence[SkippedArm]) -> Seen:
    host, trials = stage.host, first_trials(stage.study, arms)
    images = stage.prepare(arms, _say)
    audits: list[tuple[Arm, Audit]] = []
    not_deployed = list(skipped)
    with ledgers.scratch(host, "audit") as directory, stage.lab(images, trials) as experiment:
        assert isinstance(experiment, LabExperiment)
        for trial in trials:
            _say(f"deploying {trial.arm.label}")
            notes = Notes(directory, lambda _phase: None)
            try:
                experiment.deploy(trial, notes)
            except VirtollError as error:
                not_deployed.append(SkippedArm(arm=trial.arm, reason=str(error)))
            if notes.audit is not None:
                audits.append((trial.arm, notes.audit))
    return Seen(stage.study, tuple(audits), tuple(not_deployed), failed=len(not_deployed) > len(skipped))


def first_trials(study: Study, arms: Sequence[Arm]) -> list[PlannedTrial]:
    """The first that a block would hold of each arm, which is deployed by itself."""
    trials: dict[str, PlannedTrial] = {}
    for each in deployments(study, arms):
        position, label = len(trials) + 1, each.arm.label
        if label not in trials:
            condition = each.trials[0]
            trials[label] = PlannedTrial(
                id=f"audit-{position}", block=1, position=position, arm=each.arm, condition=condition
            )
    return list(trials.values())


def as_json(seen: Seen) -> dict[str, Any]:
    """What docs/JSON.md says."""
    from virtoll.analysis.audit import judged

    differences = [one for each in judged(seen.audits) for one in each.differences]
    return {
        "study": seen.study.name,
        "arms": [{"arm": arm.label, **audit.model_dump()} for arm, audit in seen.audits],
        "differences": [{**asdict(one), "arm": one.arm.label} for one in differences],
        "not_deployed": [{"arm": one.arm.label, "reason": one.reason} for one in seen.not_deployed],
    }


def as_text(seen: Seen) -> str:
    """What the report's section says, for a terminal."""
    from virtoll.analysis.audit import judged
    from virtoll.report.sections import audit  # charts are slow to import; deploying does not wait for them

    parts = [f"not deployed: {one.arm.label}: {one.reason}" for one in seen.not_deployed]
    for each in judged(seen.audits):
        parts += [line.replace("**", "") for line in audit.sentences(each)]
        parts.append(by_value(audit.differing(each, "audit")))
    return "\n\n".join(parts)


def by_value(table: Table) -> str:
    """The table for a terminal, whatever its width: under each key its values, each with the arms that have it."""
    lines = [table.caption, ""]
    for head, *cells, why in table.rows:
        arms: dict[str, list[str]] = {}
        for arm, cell in zip(table.heads[1:-1], cells, strict=True):
            arms.setdefault(cell.plain, []).append(arm)
        lines.append(f"{head.plain}: {why.text}" if why.text else head.plain)
        lines += [f"    {value}\n        {', '.join(those)}" for value, those in arms.items()]
    return "\n".join(lines)


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
