"""From a request on the command line to a run directory and its report."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from virtoll.catalogue import catalogue, plugins
from virtoll.errors import Problem, StudyError
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Images
from virtoll.instruments.base import instruments
from virtoll.plain import printable
from virtoll.platforms.base import platforms
from virtoll.record.calibration import Calibration
from virtoll.record.model import Arm, Plan, PlannedTrial, SkippedArm
from virtoll.record.store import RunDirectory, is_run_directory
from virtoll.report.words import in_groups
from virtoll.run import calibrations, environment
from virtoll.run.deciding import Asked, Looks, extension, first_look, in_words, refuse_another, with_room, with_rule
from virtoll.run.execute import execute, exit_code, seal_killed
from virtoll.run.explaining import explained
from virtoll.run.named import expect_one_meaning, text_of
from virtoll.run.progress import JsonProgress, Progress, condition_text, progress
from virtoll.run.stage import Stage, alone, untried
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import Case, Study
from virtoll.study.plan import make_plan, others, with_only
from virtoll.trial.treatment import make_probe
from virtoll.units import format_duration


@dataclass(frozen=True)
class Request:
    """What the user asked `virtoll run` for."""

    study: str
    quick: bool = False
    platforms: Sequence[str] | None = None
    blocks: int | None = None
    budget_s: float | None = None
    seed: int | None = None
    dry_run: bool = False
    out: Path | None = None
    as_json: bool = False
    cross_check: bool = False
    explain: bool = False
    decide: float | None = None  # relative: a run ends when every arm is different, or within so much
    precision: float | None = None  # relative: the half-width that decides how many blocks there are

    @property
    def asked(self) -> Asked:
        """What makes the rule that may end it."""
        return Asked(self.decide, self.precision, self.blocks, self.budget_s)

    @property
    def command(self) -> str:
        """What `virtoll run` was told that shapes the study; blocks and seed are in the plan."""
        words = [self.study, *["--quick"] * self.quick, *["--cross-check"] * self.cross_check]
        words += ["--explain"] * self.explain
        for option, share in (("--decide", self.decide), ("--precision", self.precision)):
            words += [] if share is None else [option, f"{share * 100:.10g}%"]
        return shlex.join(words if self.platforms is None else [*words, "--platforms", ",".join(self.platforms)])


def run_study(request: Request) -> int:
    """Run (or resume) what is asked for, build the report, and return the exit code."""
    expect_one_meaning(request.study)
    if is_run_directory(Path(request.study)):
        return _resume(request)
    return run_made(request, *read(request))


def run_made(request: Request, study: Study, file: str) -> int:
    """The same, of a study that was made of ``file`` already."""
    host = LocalHost()
    if request.dry_run:
        return _dry_run(request, study, file, host)
    out = request.out or Path("runs") / f"{study.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if out.exists():
        raise StudyError([Problem("already exists", f"--out {out}", f"resume it with `virtoll run {out}`")])
    stage = Stage(study, host)
    with alone(host) as removed:
        with progress(as_json=request.as_json) as told:
            _say_removed(removed, told)
            arms, skipped = stage.offered(file)
            plan = _plan(stage, arms, request)
            for entry in skipped:
                told.say(f"not measured here: {entry.arm.label}: {entry.reason.splitlines()[0]}")
            images = stage.prepare(arms, told.say)
            here = environment.describe(images, stage.runtimes(arms), skipped, plugins(), stage.files)
            directory = RunDirectory.create(out, document.as_json(study), plan, here)
            finished = _measure(directory, stage, images, told, request.budget_s)
        return _finish(directory, finished, quiet=request.as_json)


def _dry_run(request: Request, study: Study, file: str, host: LocalHost) -> int:
    """Print the plan, and what only a run could tell. Changes, fetches and boots nothing."""
    stage = Stage(study, host)
    arms, skipped = stage.offered(file, tries=False)
    plan = _plan(stage, arms, request)
    missing = untried(arms, host)
    if request.as_json:
        _show_as_json(plan, plan.trials, skipped, missing)
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
    print(f"{most or 'about '}{format_duration(plan.estimate_s * 1e9)}; nothing was changed")
    return 0


def _say_removed(removed: Sequence[str], told: Progress) -> None:
    if removed:
        told.say(f"removed {len(removed)} things that a killed run left on this machine: {', '.join(removed)}")


def _resume(request: Request) -> int:
    directory = RunDirectory(Path(request.study))
    _refuse_changes(request, directory.plan)
    more = None
    if request.blocks is not None:
        more = extension(directory.plan, _study_of(directory), request.blocks)
    if request.dry_run:
        pending = [*directory.pending(), *(more.trials if more else ())]
        if request.as_json:
            _show_as_json(directory.plan, pending)
            return 0
        _show(pending, [])
        print(f"{len(pending)} trials are left; nothing was changed")
        return 0
    study, host = _study_of(directory), LocalHost()
    arms = list({trial.arm.label: trial.arm for trial in directory.plan.trials}.values())
    stage = Stage(study, host)
    with alone(host) as removed:
        with progress(as_json=request.as_json) as told:
            _say_removed(removed, told)
            images = stage.prepare(arms, told.say)
            here = environment.describe(images, stage.runtimes(arms), [], plugins(), stage.files)
            environment.require_same(directory.environment, here)
            if more is not None:
                with directory.writing():
                    directory.extend(more)
                told.say(f"extended to {more.blocks} blocks: intervals are those of a run without a plan, and wider")
            finished = _measure(directory, stage, images, told, request.budget_s)
        return _finish(directory, finished, quiet=request.as_json)


def _study_of(directory: RunDirectory) -> Study:
    return document.of(directory.study, directory.path / "study.json", catalogue())


def _refuse_changes(request: Request, plan: Plan) -> None:
    """StudyError for options that would change a plan: a run that is gone on with has its own."""
    given = {
        "--quick": request.quick,
        "--platforms": request.platforms is not None,
        "--seed": request.seed is not None,
        "--out": request.out is not None,
        "--cross-check": request.cross_check,
        "--explain": request.explain,
    }
    remedy = "leave it out to go on with this run, or begin a new one from the study"
    problems = [Problem("a run's plan is fixed", option, remedy) for option, was_given in given.items() if was_given]
    problems += refuse_another(plan, request.asked)
    if problems:
        raise StudyError(problems)


# -- before anything is made ------------------------------------------------------------------------------


def read(request: Request) -> tuple[Study, str]:
    """The study that is asked for, with the command line's changes, and the name of its file."""
    text, name = text_of(request.study)
    study = read_study(text, name, catalogue(), quick=request.quick)
    platforms = [*catalogue().platforms] if request.platforms == ["all"] else request.platforms
    if further := _further_arms(study, platforms or ()):
        study = read_study(text + further, name, catalogue(), quick=request.quick)
    if request.cross_check:
        study = dataclasses.replace(study, programme=_crossed(study))
    if request.explain:
        study = explained(study)
    if platforms is not None:
        study = with_only(study, platforms)
    study = with_room(asked_for(request, study), request.asked)
    return dataclasses.replace(study, command=request.command), name


def _further_arms(study: Study, platforms: Iterable[str]) -> str:
    """What a study file would say for arms of the platforms that it does not name, as they usually are."""
    named = {entry.arm.platform for entry in study.arms}
    new = [name for name in platforms if name not in named and name in catalogue().platforms]
    return "".join(f'\n[[arms]]\nplatform = "{name}"\noptional = true\n' for name in new)


def asked_for(request: Request, study: Study) -> Study:
    """The study with the blocks and the seed that the command line names, where it does."""
    if request.blocks is not None:
        if request.blocks < 2:
            raise StudyError([Problem("one block gives no interval", "--blocks", "ask for at least 2")])
        study = dataclasses.replace(study, blocks=request.blocks)
    return study if request.seed is None else dataclasses.replace(study, seed=request.seed)


def _crossed(study: Study) -> tuple[Case, ...]:
    """The programme, and behind each case the outside instruments that can do the same; StudyError if there is none."""
    tools = [cls() for cls in instruments().values()]
    crossed: list[Case] = []
    for case in study.programme:
        crossed.append(case)
        settings = make_probe(case).settings
        for tool in tools:
            if tool.stands_for(case.probe, settings):
                told = {**case.condition, "instrument": tool.name}
                crossed.append(dataclasses.replace(case, condition=told, instrument=tool.name))
    if len(crossed) == len(study.programme):
        remedy = "leave --cross-check out; `virtoll list instruments` shows what there is"
        raise StudyError([Problem(f"no outside instrument can do what {study.name} measures", "--cross-check", remedy)])
    return tuple(crossed)


def _plan(stage: Stage, arms: Sequence[Arm], request: Request) -> Plan:
    overhead_s = {name: cls.expected_overhead_s for name, cls in platforms().items()}
    plan = make_plan(stage.study, arms, overhead_s, budget_s=request.budget_s, groups=stage.groups(arms))
    return with_rule(plan, request.asked)


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
        print(f"{trial.id}  {trial.arm.label:<24} {condition_text(trial)}")
    for entry in skipped:
        print(printable(f"not measured here: {entry.arm.label}: {entry.reason}"))


def _show_as_json(
    plan: Plan, trials: Sequence[PlannedTrial], skipped: Sequence[SkippedArm] = (), missing: Sequence[str] = ()
) -> None:
    """The same for a program, an event a line; docs/JSON.md has the keys."""
    told = JsonProgress()
    for entry in skipped:
        told.emit("skipped", arm=entry.arm.label, reason=entry.reason)
    for line in missing:
        told.emit("unknown", text=line)
    told.emit(
        "planned", trials=len(plan.trials), blocks=plan.blocks, seed=plan.seed, estimate_s=plan.estimate_s,
        sealed=len(plan.trials) - len(trials), groups=plan.groups,
    )  # fmt: skip
    for trial in trials:
        told.emit("trial", trial=trial.model_dump())


# -- on the machine ---------------------------------------------------------------------------------------


def _measure(directory: RunDirectory, stage: Stage, images: Images, told: Progress, budget_s: float | None) -> bool:
    """Run what is pending; true when the plan is done."""
    deadline_s = None if budget_s is None else time.monotonic() + budget_s
    with directory.writing():
        told.planned(directory.plan, directory.records())
        for look in directory.looks()[-1:]:
            told.looked(look)
        seal_killed(directory, told)  # first: what was killed in its middle is pending again, under a new id
        pending, looks = directory.pending(), Looks(directory, told.looked)
        if looks.end_it() or not pending:
            return True
        try:
            with stage.lab(images, pending) as experiment:
                return execute(directory, experiment, told, deadline_s=deadline_s, ends=looks.end_it)
        except KeyboardInterrupt:
            with suppress(OSError):  # nobody may be there to be told
                told.say(f"interrupted; `virtoll run {directory.path}` goes on")
            raise


def _finish(directory: RunDirectory, finished: bool, *, quiet: bool) -> int:
    """The report, its path, and one line of what was found."""
    from virtoll.report.answer import answer
    from virtoll.report.build import report_of  # charts are slow to import; measuring does not wait for them

    findings, page = report_of(directory.path)
    records = directory.records()
    out = sys.stderr if quiet else sys.stdout
    for record in records:
        if record.status != "valid":
            told = f"{record.trial.id} {record.trial.arm.label}: {record.status}: {record.reason}"
            print(printable(told), file=out)
    if not finished:
        print(f"{_cut_short(directory)}; `virtoll run {directory.path}` goes on", file=out)
    print("", *map(printable, answer(findings)), "", f"report: {page}", sep="\n", file=out)
    _keep_calibration(findings.calibration, quiet=quiet)
    return exit_code(records, finished)


def _keep_calibration(found: Calibration | None, *, quiet: bool) -> None:
    """What a calibration found holds for this machine until the next one."""
    if found is None:
        return
    path = calibrations.keep(found)
    if quiet:
        JsonProgress().emit("calibrated", path=str(path), calibration=found.model_dump())
    else:
        print(f"kept for the reports of later runs: {path}")


def _cut_short(directory: RunDirectory) -> str:
    """How far a run came whose time budget was over."""
    first = first_look(directory.plan)
    if first is None or directory.looks():
        return "the time budget ended it before the plan's end"
    return f"the time budget ended it before its first look, which is after {first} blocks"
