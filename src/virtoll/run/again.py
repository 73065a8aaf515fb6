"""`virtoll compare A B --again`: one run that measures the configurations of two in the same blocks."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from virtoll import binaries
from virtoll.catalogue import catalogue
from virtoll.errors import IncomparableError, Problem, StudyError
from virtoll.hosts.local import LocalHost
from virtoll.images import oci
from virtoll.images.base import INSTANCE
from virtoll.images.source import Source
from virtoll.plain import listed, printable
from virtoll.record.comparable import booted_anew, differences
from virtoll.record.model import ELSEWHERE, Environment
from virtoll.record.store import RunDirectory
from virtoll.run.conduct import run_made
from virtoll.run.request import Request, asked_for
from virtoll.run.rule import with_room
from virtoll.run.stage import Stage
from virtoll.study import document
from virtoll.study.interleaved import Both, interleaved
from virtoll.study.model import Study

# Of what a run records of its machine what is there because an arm, or a load, was asked for: one run may lack it.
_AS_ASKED = ("runtimes.", "load generators.", "media.", "plugins.")
_FILES = "files."
_PACKAGES = ("packages.", "installed.")
_IMAGE = ("images.instance.", "installed.instance.")


@dataclass(frozen=True)
class Made:
    """What came of it: the run directory, the run's own exit code, what a reader of the comparison must know, and the
    arms that A has and B lacks.
    """

    directory: Path
    code: int
    notes: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Run:
    """One of the two, as it was measured."""

    path: Path

    @cached_property
    def directory(self) -> RunDirectory:
        """Its record."""
        return RunDirectory(self.path)

    @cached_property
    def study(self) -> Study:
        """What it asked for."""
        return document.of(self.directory.study, self.path / "study.json", catalogue())

    @cached_property
    def stage(self) -> Stage:
        """That study on this machine."""
        return Stage(self.study, LocalHost())

    @cached_property
    def environment(self) -> Environment:
        """What it was measured in."""
        return self.directory.environment

    @cached_property
    def blocks(self) -> int:
        """How many it has, as far as it came."""
        return len({record.trial.block for record in self.directory.records()})


def again(before: Path, after: Path, request: Request, *, quiet: bool) -> Made:
    """Measure both configurations in one run, or print its plan. ``quiet``: nothing of it is told on stdout.

    IncomparableError names what one run cannot hold, or says that the two are configured alike.
    """
    a, b, where = _Run(before), _Run(after), f"{before} and {after}"
    _expect_whole_here(a, b)
    both = interleaved(a.study, b.study, where)
    if lines := list(_of_the_machine(a, b, both)):
        raise _of_two_machines(lines, where, is_configured=both is not None)
    if both is None:
        raise IncomparableError(
            "A and B are configured alike, on one machine as it was: there is nothing to set against each other",
            where=where,
            remedy="what differs between them is chance, or the time of day: compare them as they are, or take more "
            "--blocks in a new run of each",
        )
    study = _as_asked(both.study, a, b, request)
    if not request.dry_run:
        _expect_files(a, b)
        _expect_images(a, b)
    out = request.out or Path("runs") / f"{study.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    shown = sys.stderr if quiet else sys.stdout
    for line in (*both.differing, *(f"not measured: {line}" for line in both.left_out)):
        print(printable(line), file=sys.stderr if request.as_json else shown)
    with redirect_stdout(sys.stderr) if quiet and not request.dry_run else nullcontext():
        code = run_made(dataclasses.replace(request, out=out), study, where)
    return Made(out, code, () if request.dry_run else tuple(_notes(out, a, b, both)), both.lacking)


def _as_asked(study: Study, a: _Run, b: _Run, request: Request) -> Study:
    """With as many blocks as the longer of both, unless others are asked for, and with the command."""
    study = dataclasses.replace(study, blocks=max(2, a.blocks, b.blocks))
    study = with_room(asked_for(request, study), request.asked)
    return dataclasses.replace(study, command=shlex.join(["compare", str(a.path), str(b.path), "--again"]))


def _expect_whole_here(*runs: _Run) -> None:
    """IncomparableError where the load came from another machine: it would come from this one."""
    for run in runs:
        if ELSEWHERE in run.environment.comparable:
            raise IncomparableError(
                "its load generator stood on another machine, and both would be measured with that of this one",
                where=str(run.path),
                remedy="compare the two as they are, without --again",
            )


# -- what one machine cannot be at once ---------------------------------------------------------------------


def _of_the_machine(a: _Run, b: _Run, both: Both | None) -> Iterator[str]:
    """What differs of the two environments and is in no configuration, a line each."""
    before, after = a.environment, b.environment
    if before.virtoll != after.virtoll:
        yield f"virtoll: was {before.virtoll}, is {after.virtoll}"
    given, one_sided = _configured(a, b, both)
    for line in differences(before.comparable, booted_anew(before.comparable, after.comparable)):
        is_one_sided = ": was None, is " in line or line.endswith(", is None")
        if not _is_of(line, given) and not (is_one_sided and _is_of(line, one_sided)):
            yield line


def _configured(a: _Run, b: _Run, both: Both | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What of an environment is the configurations', where it differs; and where one alone has it. Of two images each
    has its own packages.
    """
    if both is None:
        return (), _AS_ASKED
    given = (_FILES,) if any(line.startswith("service.files:") for line in both.differing) else ()
    if a.stage.wanted == b.stage.wanted:
        return given, _AS_ASKED
    return (*given, *_IMAGE), (*_AS_ASKED, *_PACKAGES)


def _is_of(line: str, sections: tuple[str, ...]) -> bool:
    """Whether a difference is of one of these sections of an environment, or the whole of one."""
    return f"{line.partition(': was ')[0]}.".startswith(sections)


def _of_two_machines(lines: list[str], where: str, *, is_configured: bool) -> IncomparableError:
    alike = "" if is_configured else "A and B are configured alike, and "
    what = f"{alike}what differs is of the machine, which is one thing at a time:\n  " + "\n  ".join(lines)
    remedy = "measure A's configuration on the machine as it is now, and give that run as A"
    if not is_configured:
        remedy = (
            "go from one state of the machine to the other and back, with a run in each, and compare neighbours "
            "(`virtoll history`); a file or an image of yours that was replaced: keep both, under names of their own"
        )
    return IncomparableError(what, where=where, remedy=remedy)


def _expect_files(a: _Run, b: _Run) -> None:
    """IncomparableError where a file of the user's that a service was given is another by now, or is gone."""
    for name, run in (("A", a), ("B", b)):
        before = run.environment.comparable.get("files") or {}
        try:
            now = run.stage.files
        except OSError as error:
            what = f"what the service of {name} was given cannot be read: {error.strerror}"
            raise StudyError([Problem(what, str(error.filename), "put it back")]) from error
        if changed := differences(before, now):
            raise IncomparableError(
                f"what the service of {name} was given is not there any more: "
                + listed([line.partition(": was ")[0] for line in changed]),
                where=str(run.path),
                remedy="put the file back, or measure with it as it is now",
            )


def _expect_images(a: _Run, b: _Run) -> None:
    """IncomparableError where an image of the user's own is another by now; HostError where it is gone. What virtoll
    adds to it is in its digest: where the agent is another nobody can tell, and the notes say that it is.
    """
    for name, run in (("A", a), ("B", b)):
        before = run.environment.comparable
        source, was = run.stage.wanted[""].source, (before.get("images") or {}).get(INSTANCE)
        if not source or was is None or before.get("agent") != binaries.digest("virtoll-agent"):
            continue
        if oci.image_of(run.study.name, Source.parse(source, Path())).digest != was:
            raise IncomparableError(
                f"the image of {name} is not there any more: {source} is another one by now",
                where=str(run.path),
                remedy="put the image back, or measure with it as it is now; keep images under names of their own",
            )


def _notes(out: Path, a: _Run, b: _Run, both: Both) -> Iterator[str]:
    """What the new run lacks, and in what its machine is not that of the two."""
    yield from both.left_out
    here = RunDirectory(out).environment.comparable
    given = (*_configured(a, b, both)[1], _FILES, "images.")
    lines = {
        line.partition(": was ")[0]: None
        for run in (a, b)
        for line in differences(run.environment.comparable, booted_anew(run.environment.comparable, here))
        if not _is_of(line, given)
    }
    if lines:
        yield f"the machine is not as it was in A and B: {listed(list(lines))}"
