"""On the machine: what is pending is measured, and its report built."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from virtoll.catalogue import features
from virtoll.errors import GoneError, HostError
from virtoll.hosts.ledger import ElsewhereError
from virtoll.images.base import Images
from virtoll.plain import printable, typed
from virtoll.record.calibration import Calibration
from virtoll.record.model import Arm, Extension
from virtoll.record.store import RunDirectory
from virtoll.report.begin import helped
from virtoll.run import calibrations, environment
from virtoll.run.alone import alone
from virtoll.run.by_generator import posted
from virtoll.run.deciding import Looks
from virtoll.run.elsewhere import announced
from virtoll.run.execute import execute, exit_code, seal_killed
from virtoll.run.json_lines import JsonProgress
from virtoll.run.progress import Progress, progress
from virtoll.run.readiness import Readiness
from virtoll.run.request import Request, plan_of
from virtoll.run.rule import first_look, in_time_left
from virtoll.run.stage import Stage
from virtoll.study import document


def begin(stage: Stage, request: Request, file: str, out: Path) -> int:
    """Make the run directory ``out``, run what is planned, build the report, and return the exit code."""
    with alone(stage.host) as removed:
        with progress(as_json=request.as_json) as told:
            _say_removed(removed, told)
            _announce((entry.arm for entry in stage.study.arms), told)
            arms, skipped = stage.offered(file)
            plan = plan_of(stage, arms, request)
            for entry in skipped:
                told.say(f"not measured here: {entry.arm.label}: {entry.reason.splitlines()[0]}")
            with posted(request, stage.study, told.say) as post:
                stage = stage if post is None else replace(stage, posted=post)
                images = stage.prepare(arms, told.say)
                here = environment.of_stage(stage, arms, images, skipped)
                directory = RunDirectory.create(out, document.as_json(stage.study), plan, here)
                finished, why = _measure(directory, stage, images, told, request, is_new=True)
        return finish(directory, finished, quiet=request.as_json, why=why, how=request.going_on)


def go_on(directory: RunDirectory, stage: Stage, more: Extension | None, request: Request) -> int:
    """Run what is left of a run, and what is added to it; the same."""
    arms = list({trial.arm.label: trial.arm for trial in directory.plan.trials}.values())
    with alone(stage.host) as removed:
        with progress(as_json=request.as_json) as told:
            _say_removed(removed, told)
            _announce(arms, told)
            _expect_offered(directory, stage, more)
            with posted(request, stage.study, told.say) as post:
                stage = stage if post is None else replace(stage, posted=post)
                images = stage.prepare(arms, told.say)
                here = environment.of_stage(stage, arms, images, [])
                environment.require_same(directory.environment, here)
                if more is not None:
                    with directory.writing():
                        directory.extend(more)
                    told.say(
                        f"extended to {more.blocks} blocks: intervals are those of a run without a plan, and wider"
                    )
                finished, why = _measure(directory, stage, images, told, request)
        return finish(directory, finished, quiet=request.as_json, why=why, how=request.going_on)


def _expect_offered(directory: RunDirectory, stage: Stage, more: Extension | None) -> None:
    """HostError where this machine does not offer any more what is still to be measured: sealed as failed, it would be
    lost for good.
    """
    pending = [*directory.pending(), *([] if more is None else more.trials)]
    arms, readiness = {trial.arm.label: trial.arm for trial in pending}, Readiness(stage.host)
    lacking = {label: problems for label, arm in arms.items() if (problems := stage.missing(arm, readiness))}
    told = [f"{label}: {problem}" for label, problems in lacking.items() for problem in problems]
    if not told and (unheld := stage.unheld(pending)):
        told = [unheld]
    if told:
        raise HostError(
            "\n  ".join(["this machine does not offer any more what is left to measure:", *told]),
            where=str(directory.path),
            remedy="mend that and go on with the run; nothing was measured",
        )


def _say_removed(removed: Sequence[str], told: Progress) -> None:
    if removed:
        told.say(f"removed {len(removed)} things that a killed run left on this machine: {', '.join(removed)}")


def _announce(arms: Iterable[Arm], told: Progress) -> None:
    """Whom a run reaches beyond this machine, before it does."""
    for line in announced(arms):
        told.say(line)


def _measure(
    directory: RunDirectory, stage: Stage, images: Images, told: Progress, request: Request, *, is_new: bool = False
) -> tuple[bool, str]:
    """Run what is pending; whether the plan is done, and why not, where that was no time budget. What is measured then
    stays so, whatever is left elsewhere. A new run has as many blocks as its budget has time for.
    """
    finished: bool | None = None
    deadline_s = None if request.budget_s is None else time.monotonic() + request.budget_s

    def grows(trial_s: float) -> bool:
        if deadline_s is None or not is_new:  # who goes on with a run may have seen what it found
            return False
        more = in_time_left(directory.plan, stage.study, deadline_s - time.monotonic(), trial_s)
        if more is None:
            return False
        directory.extend(more)
        pending.extend(more.trials)  # whoever performs them knows them by this
        told.planned(directory.plan, directory.records())
        return True

    with directory.writing():
        told.planned(directory.plan, directory.records())
        for look in directory.looks()[-1:]:
            told.looked(look)
        seal_killed(directory, told)  # first: what was killed in its middle is pending again, under a new id
        pending, looks = directory.pending(), Looks(directory, told.looked)
        if looks.end_it() or not pending:
            return True, ""
        try:
            with stage.lab(images, pending) as experiment:
                finished = execute(directory, experiment, told, deadline_s=deadline_s, ends=looks.end_it, grows=grows)
        except ElsewhereError as error:
            if finished is None:
                raise
            told.say(f"warning: {error}")
        except GoneError as error:  # its trial is sealed, and comes again
            return False, error.problem.what
        except KeyboardInterrupt:
            with suppress(OSError):  # nobody may be there to be told
                told.say(f"interrupted; `virtoll run {typed(directory.path)}{request.going_on}` goes on")
            raise
        assert finished is not None
        return finished, ""


def finish(directory: RunDirectory, finished: bool, *, quiet: bool, why: str = "", how: str = "") -> int:
    """The report, its path, and one line of what was found. Where it is not finished: ``why``, if it was no time budget
    that ended it, and the option beside `virtoll run RUNDIR` that goes on.
    """
    with helped():
        from virtoll.report.answer import answer
        from virtoll.report.build import report_of  # charts are slow to import; measuring does not wait for them

        findings, page = report_of(directory.path, features())
    records = directory.records()
    out = sys.stderr if quiet else sys.stdout
    for record in records:
        if record.status != "valid":
            told = f"{record.trial.id} {record.trial.arm.label}: {record.status}: {record.reason}"
            print(printable(told), file=out)
    if not finished:
        print(f"{why or _cut_short(directory)}; `virtoll run {typed(directory.path)}{how}` goes on", file=out)
    print("", *map(printable, answer(findings)), "", f"report: {page}", sep="\n", file=out)
    _keep_calibration(findings.calibration, quiet=quiet)
    return exit_code(records, finished)


def _keep_calibration(found: Calibration | None, *, quiet: bool) -> None:
    """What a calibration found holds for this machine until the next one; nothing, where that is there already."""
    if found is None:
        return
    later, path = calibrations.later_than(found), calibrations.keep(found)
    if quiet:
        path_kept = str(path) if later is None else None
        JsonProgress().emit("calibrated", path=path_kept, calibration=found.model_dump())
    if later is not None:
        told = f"not kept: {path} holds a later one, of {later.created_at}"
        print(printable(told), file=sys.stderr if quiet else sys.stdout)
    elif not quiet:
        print(f"kept for the reports of later runs: {path}")


def _cut_short(directory: RunDirectory) -> str:
    """How far a run came whose time budget was over."""
    first = first_look(directory.plan)
    if first is None or directory.looks():
        return "the time budget ended it before the plan's end"
    return f"the time budget ended it before its first look, which is after {first} blocks"
