"""What keeps a study from being measured on a machine of the user's own (`Platform.is_elsewhere`), and what is said
before it is.

The lab's wires, its origin and its other instances do not reach there, and nothing is limited there: whoever misbehaves
would have all of that machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from virtoll.errors import Problem, StudyError
from virtoll.images.base import together
from virtoll.lab.throttle import NO_THROTTLE
from virtoll.platforms.base import platforms
from virtoll.probes.base import probes
from virtoll.record.model import Arm, SkippedArm
from virtoll.study.model import Study
from virtoll.trial.deployer import make_platform
from virtoll.trial.treatment import Driven, Treatment, services_by_configuration

_LEAVE = "leave it out, or this arm"


def problems_elsewhere(study: Study, asked: Sequence[Treatment], arm: Arm) -> list[Problem]:
    """Of an arm that is elsewhere; nothing, where it is in the lab or all can be had there."""
    if not platforms()[arm.platform].is_elsewhere:
        return []
    found = [*_of_turns(study, arm), *_of_images(asked), *(problem for each in asked for problem in _of(each))]
    found += [
        Problem(f"probe {case.probe} needs the lab, or a view from outside", f"probe {case.probe}", _LEAVE)
        for case in study.programme
        if not (case.instrument or probes()[case.probe].runs_anywhere)
    ]
    return list(dict.fromkeys(found))


def _of_turns(study: Study, arm: Arm) -> list[Problem]:
    """In rotation all arms stand at one time, and on one machine its services would meet at one port."""
    others = [entry.arm for entry in study.arms if entry.arm.label != arm.label]
    beside = [other.label for other in others if _machine(arm) and _machine(other) == _machine(arm)]
    if study.design != "rotation" or not beside:
        return []
    what = f"in rotation it would stand beside {', '.join(beside)} on one machine, at the same port"
    return [Problem(what, "design", 'write design = "blocks", or name another machine')]


def _of_images(asked: Sequence[Treatment]) -> list[Problem]:
    """A session brings one there, and all of a run's instances are made from it."""
    apart = {together(each.image for each in services) for services in services_by_configuration(asked).values()}
    if len(apart) < 2:
        return []
    return [Problem("the two configurations have an image each, and one is brought there", "[service]", _LEAVE)]


def _machine(arm: Arm) -> str:
    """The host that its destination names, whoever logs in by whichever port; "" where it names none."""
    destination = str(arm.settings.get("destination", ""))
    if destination.startswith("ssh://"):
        with suppress(ValueError):  # a bracket too many, of which ssh will tell
            return urlsplit(destination).hostname or ""
    return destination.removeprefix("ssh://").rpartition("@")[2].lower()


def _of(treatment: Treatment) -> Iterator[Problem]:
    if treatment.neighbour.aggressor:
        what = "nothing is limited there: a neighbour that misbehaves would have all of that machine"
        yield Problem(what, "[neighbour] aggressor", _LEAVE)
    if treatment.beside:
        yield Problem("other servers are beside it in the lab alone", "[neighbour] servers", _LEAVE)
    if treatment.slices.count:
        yield Problem("slices are wired in the lab alone", "[slices]", _LEAVE)
    if treatment.background.hogs:
        yield Problem("hogs would compute on this machine's CPUs, and not on its", "[background] hogs", _LEAVE)
    if not treatment.link.is_plain:
        yield Problem("only the lab's own wires are shaped, and none leads there", "[link]", _LEAVE)
    if treatment.throttle != NO_THROTTLE:
        yield Problem("nothing is throttled there", "throttle", _LEAVE)
    if treatment.generators > 1:
        yield Problem("several generators have links in the lab alone", "[generators] count", _LEAVE)
    work = treatment.work
    if isinstance(work, Driven) and work.origin is not None:
        yield Problem("the origin is in the lab, and cannot be reached from there", "[origin]", _LEAVE)
    if isinstance(work, Driven) and not work.load.programs.is_nothing:
        what = f"load {work.load.name!r} has programs of its own, which run in the lab's network alone"
        yield Problem(what, "[load] name", 'take one of virtoll\'s own or an installed tool: name = "http"')


def without_shared(
    study: Study, file: str, arms: Sequence[Arm], skipped: Sequence[SkippedArm], hosts: Sequence[str]
) -> tuple[list[Arm], list[SkippedArm]]:
    """Of what several hosts offer, the arms that are on each of them; one elsewhere is one machine, which all would
    load at a time, at one port. StudyError where it is no option.
    """
    optional = {entry.arm.label: entry.optional for entry in study.arms}
    shared = [arm for arm in arms if platforms()[arm.platform].is_elsewhere] if len(hosts) > 1 else []
    what = f"it is one machine, and {len(hosts)} hosts would load it at a time, at the same port"
    problems = [
        Problem(what, f"{file}: {arm.label}", "leave it out, or let one host measure it")
        for arm in shared
        if not optional.get(arm.label)
    ]
    if problems:
        raise StudyError(problems)
    kept = [arm for arm in arms if arm not in shared]
    return kept, [*skipped, *(SkippedArm(arm=arm, reason=what) for arm in shared)]


def announced(arms: Iterable[Arm]) -> list[str]:
    """What leaves this machine for these arms, a line for each that says so."""
    return [f"{arm.label}: {told}" for arm in arms if (told := make_platform(arm).announced())]
