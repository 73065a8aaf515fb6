"""What keeps a study from being measured with its load generator on another machine (`--generator`), as far as it is
known before that one is reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from virtoll.errors import Problem, StudyError
from virtoll.offers import Film
from virtoll.plain import typed
from virtoll.platforms.base import platforms
from virtoll.record.model import ELSEWHERE
from virtoll.record.store import RunDirectory
from virtoll.record.told import generator_options
from virtoll.study.model import Study
from virtoll.trial.treatment import Driven, Treatment, treatments

if TYPE_CHECKING:
    from virtoll.run.request import Request

OPTION = "--generator"
_LEAVE = f"leave it out, or leave out {OPTION}"


def expect_apart(study: Study, file: str) -> None:
    """StudyError with all of a study that needs the generator on this machine."""
    found = [*_of_study(study, file), *(problem for each in treatments(study) for problem in _of(each, file))]
    if found:
        raise StudyError(dict.fromkeys(found))


def expect_whole(request: Request) -> None:
    """StudyError for options that do not go together, or one without the other."""
    problems = []
    if (request.generator is None) != (request.nic is None):
        given, lacking = ("--nic", OPTION) if request.generator is None else (OPTION, "--nic")
        what, remedy = f"{given} needs {lacking}", f"{OPTION} ssh://[user@]server[:port] --nic HERE,THERE"
        problems.append(Problem(what, given, remedy))
    if request.generator is not None and request.far:
        what = "the load generator can be on another machine than the one that is measured where that is this one"
        problems.append(Problem(what, f"{OPTION} and {request.far}", "leave one of them out"))
    if problems:
        raise StudyError(problems)


def expect_as_begun(directory: RunDirectory, request: Request) -> None:
    """StudyError where a run was begun with the generator here and is to go on with another one, or the other way."""
    begun = directory.environment.comparable.get(ELSEWHERE)
    if begun is None and request.generator is not None:
        what = "this run's generator is on the machine that it measures, and so it goes on"
        raise StudyError([Problem(what, OPTION, "leave it out, or begin a new run")])
    if begun is not None and request.generator is None and not request.dry_run:
        what = "this run's generator is on another machine, and so it goes on"
        remedy = f"virtoll run {typed(directory.path)}{generator_options(directory.environment)}"
        raise StudyError([Problem(what, str(directory.path), remedy)])


def _of_study(study: Study, file: str) -> Iterator[Problem]:
    if study.programme:
        what = "probes ask from the generator's place, and that is on another machine"
        yield Problem(what, f"{file}: [[probes]], --explain, --cross-check", _LEAVE)
    for entry in study.arms:
        if platforms()[entry.arm.platform].is_elsewhere:
            what = "it is reached over this machine's own network, and not over the link"
            yield Problem(what, f"{file}:{entry.line}: {entry.arm.label}", _LEAVE)


def _of(treatment: Treatment, file: str) -> Iterator[Problem]:
    if treatment.generators > 1:
        yield Problem("one generator stands there, and no more", f"{file}: [generators] count", _LEAVE)
    if treatment.beside:
        what = "other servers are loaded from this machine alone"
        yield Problem(what, f"{file}: [neighbour] servers", _LEAVE)
    if treatment.neighbour.aggressor:
        what = "neighbours are told of by what happens on one machine"
        yield Problem(what, f"{file}: [neighbour] aggressor", _LEAVE)
    if treatment.slices.count:
        yield Problem("the far ends of slices stand on this machine alone", f"{file}: [slices]", _LEAVE)
    if not treatment.link.is_plain:
        what = "a link of the user's own is not shaped: what passes it is what it is"
        yield Problem(what, f"{file}: [link]", _LEAVE)
    work = treatment.work
    if isinstance(work, Driven):
        yield from _of_load(work, file)


def _of_load(work: Driven, file: str) -> Iterator[Problem]:
    load, where = work.load, f"{file}: [load] name"
    if load.programs.source:
        what = f"load {load.name!r} runs programs of an image that is on this machine, and is not brought there"
        yield Problem(what, where, "name Debian packages that have them: packages = [...]")
    if load.footage or load.voice is not None or isinstance(load.content, Film):
        what = f"load {load.name!r} sends, or reads, media that are made beforehand on the machine it stands on"
        yield Problem(what, where, f'take another (name = "http"), or leave out {OPTION}')
