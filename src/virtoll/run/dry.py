"""`virtoll run --dry-run`: what would be measured. Changes, fetches and boots nothing."""

from __future__ import annotations

from collections.abc import Sequence

from virtoll.analysis.conditions import Condition
from virtoll.hosts.local import LocalHost
from virtoll.plain import printable
from virtoll.record.model import Extension, Plan, PlannedTrial, SkippedArm, TrialRecord
from virtoll.record.store import RunDirectory, extended
from virtoll.record.told import in_groups
from virtoll.run.json_lines import JsonProgress
from virtoll.run.request import Request, plan_of
from virtoll.run.rule import in_words
from virtoll.run.stage import Stage, untried
from virtoll.study.model import Study
from virtoll.study.plan import others
from virtoll.trial.treatment import slower
from virtoll.units import format_duration


def show_plan(request: Request, study: Study, file: str, host: LocalHost) -> int:
    """Print the plan of a study, and what only a run could tell."""
    stage = Stage(study, host)
    arms, skipped = stage.offered(file, tries=False)
    plan = plan_of(stage, arms, request)
    missing = untried(arms, host)
    if request.as_json:
        _show_as_json(plan, [], plan.trials, skipped, missing)
        return 0
    _show(plan.trials, skipped)
    for line in missing:
        print(f"not known before a run: {line}")
    most = "" if plan.rule is None else "at most "
    print(f"{most}{len(plan.trials)} trials in {plan.blocks} blocks, seed {plan.seed}{_shared(plan)}")
    if told := in_groups(plan) or _side_by_side(study, plan):
        print(told)
    if plan.rule is not None:
        print(in_words(plan))
    print(f"{most or 'about '}{format_duration(plan.estimate_s * 1e9)}{slower(study)}; nothing was changed")
    return 0


def show_pending(directory: RunDirectory, more: Extension | None, *, as_json: bool) -> int:
    """Print what is left of a run, and what would be added to it."""
    plan, records = directory.plan, directory.records()
    pending = directory.pending(records, plan)
    if more is not None:
        plan, pending = extended(plan, more), [*pending, *more.trials]
    if as_json:
        _show_as_json(plan, records, pending)
        return 0
    _show(pending, [])
    print(f"{len(pending)} trials are left; nothing was changed")
    return 0


def _shared(plan: Plan) -> str:
    """On how many deployments, where trials share them; "" where each has its own."""
    deployed = len({trial.deployment or trial.id for trial in plan.trials})
    return f", on {deployed} deployments" if deployed < len(plan.trials) else ""


def _side_by_side(study: Study, plan: Plan) -> str:
    """How many trials have the study's other servers at work beside the one they measure; "" of none."""
    crowds = [count for trial in plan.trials if (count := len(others(study, trial.condition)))]
    if not crowds:
        return ""
    at_once = 1 + max(crowds)
    return f"in {len(crowds)} of them all servers are loaded side by side, up to {at_once} instances of an arm at once"


def _show(trials: Sequence[PlannedTrial], skipped: Sequence[SkippedArm]) -> None:
    """What would be measured, for a person: every trial in order, and the arms that cannot be."""
    for trial in trials:
        print(printable(f"{trial.id}  {trial.arm.label:<24} {Condition.of(trial).label()}"))
    for entry in skipped:
        print(printable(f"not measured here: {entry.arm.label}: {entry.reason}"))


def _show_as_json(
    plan: Plan,
    sealed: Sequence[TrialRecord],
    trials: Sequence[PlannedTrial],
    skipped: Sequence[SkippedArm] = (),
    missing: Sequence[str] = (),
) -> None:
    """The same for a program, an event a line; docs/JSON.md has the keys."""
    told = JsonProgress()
    for entry in skipped:
        told.emit("skipped", arm=entry.arm.label, reason=entry.reason)
    for line in missing:
        told.emit("unknown", text=line)
    told.planned(plan, sealed)
    for trial in trials:
        told.emit("trial", trial=trial.model_dump())
