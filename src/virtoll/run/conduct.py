"""From a request on the command line to a run directory and its report, or to the plan alone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from virtoll.catalogue import catalogue
from virtoll.errors import Problem, StudyError
from virtoll.hosts.local import LocalHost
from virtoll.plain import listed, typed
from virtoll.record.model import Plan
from virtoll.record.store import RunDirectory, is_run_directory
from virtoll.run import apart, dry
from virtoll.run.named import expect_one_meaning
from virtoll.run.request import Request, read
from virtoll.run.rule import extension, refuse_another
from virtoll.run.stage import Stage
from virtoll.study import document
from virtoll.study.model import Study
from virtoll.trial.treatment import treatments


def run_study(request: Request) -> int:
    """Run (or resume) what is asked for, build the report, and return the exit code."""
    expect_one_meaning(request.study)
    if request.tls is not None and request.cluster is None:
        raise StudyError([Problem("certificates are for a scheduler", "--tls", "name it: --cluster tls://HOST:8786")])
    if request.host is not None:
        _refuse_no_host(request.host, request)
    apart.expect_whole(request)
    if request.generator is not None:
        _refuse_no_generator(request.generator)
    if is_run_directory(Path(request.study)):
        return _resume(request)
    return run_made(request, *read(request))


def run_made(request: Request, study: Study, file: str) -> int:
    """The same, of a study that was made of ``file`` already."""
    host = LocalHost()
    if request.far:
        _refuse_on_hosts(study, request)
    if request.generator is not None:
        apart.expect_apart(study, file)
    out = request.out or Path("runs") / f"{study.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if out.exists():
        raise StudyError([Problem("already exists", f"--out {out}", f"resume it with `virtoll run {typed(out)}`")])
    if request.dry_run:  # of several hosts: what each does, as this machine would
        return dry.show_plan(request, study, file, host)
    from virtoll.run import (
        measuring,
        over_hosts,
    )  # with them comes the analysis, which takes as long to import as all else

    if request.far:
        return over_hosts.begin(study, request, file, out)
    return measuring.begin(Stage(study, host), request, file, out)


def _refuse_no_host(host: str, request: Request) -> None:
    """StudyError for what names none, or names others as well."""
    from virtoll.run.by_ssh import destination_of

    destination_of(host)
    if request.cluster is not None:
        raise StudyError([Problem("one or the other", "--host and --cluster", "leave one of them out")])


def _refuse_no_generator(generator: str) -> None:
    """StudyError for what names no server."""
    from virtoll.run.by_ssh import destination_of

    destination_of(generator, apart.OPTION)


def _resume(request: Request) -> int:
    directory = RunDirectory(Path(request.study))
    directory.expect_no_copy()
    _refuse_changes(request, directory.plan)
    apart.expect_as_begun(directory, request)
    more = None
    if request.blocks is not None:
        more = extension(directory.plan, _study_of(directory), request.blocks)
    if request.dry_run:
        return dry.show_pending(directory, more, as_json=request.as_json)
    from virtoll.run import measuring, over_hosts  # see above

    if request.far:
        return over_hosts.go_on(directory, _study_of(directory), request)
    return measuring.go_on(directory, Stage(_study_of(directory), LocalHost()), more, request)


def _study_of(directory: RunDirectory) -> Study:
    return document.of(directory.study, directory.path / "study.json", catalogue())


def _refuse_changes(request: Request, plan: Plan) -> None:
    """StudyError for options that would change a plan: a run that is gone on with has its own."""
    given = {
        "--quick": request.quick,
        "--platforms": request.platforms is not None,
        "--memory": request.memory_bytes is not None,
        "--seed": request.seed is not None,
        "--out": request.out is not None,
        "--cross-check": request.cross_check,
        "--explain": request.explain,
    }
    remedy = "leave it out to go on with this run, or begin a new one from the study"
    problems = [Problem("a run's plan is fixed", option, remedy) for option, was_given in given.items() if was_given]
    problems += refuse_another(plan, request.asked) or _of_hosts(plan, request)
    if problems:
        raise StudyError(problems)


def _of_hosts(plan: Plan, request: Request) -> list[Problem]:
    """What is wrong where a run of several hosts goes on here, or is extended; or one of this machine elsewhere."""
    hosts = sorted(set(plan.hosts.values()))
    if not hosts:
        remedy = "leave it out"
        return [Problem("this run is of one machine, and goes on there", request.far, remedy)] * bool(request.far)
    if request.blocks is not None and request.blocks != plan.blocks:
        return [Problem("a run of several hosts is not extended", "--blocks", "leave it out, or begin a new run")]
    if request.far and request.budget_s is not None:
        return [Problem("that is for a run on one machine", "--budget", "leave it out; Ctrl-C ends a run at any time")]
    if not request.far and not request.dry_run:
        what, remedy = f"this run is measured by {listed(hosts)}", "name their scheduler: --cluster tls://HOST:8786"
        remedy += ", or the host: --host ssh://root@HOST"
        return [Problem(what, request.study, remedy)]
    return []


def _refuse_on_hosts(study: Study, request: Request) -> None:
    """StudyError for what several hosts cannot do, or not yet: what would come of it has no honest interval."""
    given = {
        "--budget": request.budget_s is not None,
        "--decide": request.decide is not None,
        "--precision": request.precision is not None,
    }
    problems = [
        Problem("that is for a run on one machine", option, f"leave it out, or leave out {request.far}")
        for option, was_given in given.items()
        if was_given
    ]
    if study.servers or any(treatment.neighbour.aggressor for treatment in treatments(study)):
        what = f"{study.name} sets instances beside each other: what that does is told for one machine only"
        problems.append(Problem(what, request.far, "run it on each host by itself"))
    if problems:
        raise StudyError(problems)
