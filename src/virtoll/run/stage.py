"""What a run needs before its first trial: arms that this machine offers, images, and a wired lab."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from virtoll.aggressors.base import aggressors
from virtoll.errors import Problem, StudyError
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.local import LocalHost
from virtoll.hosts.lock import exclusive
from virtoll.images import rootfs
from virtoll.images.base import Image
from virtoll.instruments.base import instruments
from virtoll.lab import shaping
from virtoll.lab import slices as slicing
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.shaping import LinkShape
from virtoll.lab.slices import Slices
from virtoll.lab.wiring import wired
from virtoll.probes.base import probes
from virtoll.record.model import Arm, PlannedTrial, SkippedArm
from virtoll.run.readiness import Readiness
from virtoll.services.base import services
from virtoll.study.limits import Limits
from virtoll.study.model import Study, settings_of
from virtoll.study.plan import conditions
from virtoll.study.values import nearest
from virtoll.trial.deployer import make_platform, slices_problem
from virtoll.trial.experiment import in_lab, make_load
from virtoll.trial.neighbourhood import make_aggressor
from virtoll.trial.notes import Experiment
from virtoll.trial.programme import make_probe

_Settings = TypeVar("_Settings")


@contextmanager
def alone(host: LocalHost) -> Iterator[list[str]]:
    """This machine to ourselves, without what killed runs left working on it: nothing is measured beside those.

    Yields what was removed, one line for each thing. HostError when another virtoll has the machine, or when
    something could not be removed.
    """
    with exclusive(ledgers.state_directory()):
        yield ledgers.clean(host, ledgers.state_directory() / "ledger")


def untried(arms: Iterable[Arm], host: LocalHost) -> list[str]:
    """What is not known of these arms before something is fetched or booted, one line for each platform; for anybody
    but root, nothing is.
    """
    if os.geteuid() != 0:
        return ["which of these arms this machine offers: only root sees it (sudo)"]
    platforms_used = {f"{arm.platform} {arm.settings}".rstrip(" {}"): make_platform(arm) for arm in arms}
    told = {name: platform.untried(host) for name, platform in platforms_used.items()}
    return [f"{name}: {what}" for name, what in told.items() if what]


def offered(study: Study, file: str, host: LocalHost, *, tries: bool = True) -> tuple[list[Arm], list[SkippedArm]]:
    """The arms this machine offers, and the optional ones it does not; StudyError for all others at once.

    Without ``tries`` nothing is changed, fetched or booted; an arm counts as offered where only that could tell.
    """
    readiness = Readiness(host, tries)
    is_sliced = _is_sliced(study)
    arms: list[Arm] = []
    skipped: list[SkippedArm] = []
    problems = [*_problems_of_work(study, file, host), *_problems_of_neighbours(study), *_link_problems(study, host)]
    for entry in study.arms:
        arm = entry.arm
        missing = readiness.problems(make_platform(arm), arm.network)
        unsliced = slices_problem(arm) if is_sliced else ""
        if unsliced:
            problems.append(Problem(unsliced, f"{file}:{entry.line}: {arm.label}", "leave `network` out of this arm"))
        elif not missing:
            arms.append(arm)
        elif entry.optional:
            skipped.append(SkippedArm(arm=arm, reason="\n".join(str(problem) for problem in missing)))
        else:
            where = f"{file}:{entry.line}: {arm.label}"
            problems += [Problem(problem.what, where, problem.remedy) for problem in missing]
    if problems:
        raise StudyError(problems)
    return arms, skipped


def _problems_of_work(study: Study, file: str, host: LocalHost) -> list[Problem]:
    """What keeps the load, or a case of the programme, from being measured on this host within the study's limits."""
    if not study.programme:
        if _is_sliced(study):
            told = Problem("slices are for a programme of probes", f"{file}: [slices]", "leave [slices] out")
            return [told, *make_load(study, study.base).check(host)]
        return make_load(study, study.base).check(host)
    limits = _every(study, Limits, "limits")
    names = {case.instrument for case in study.programme if case.instrument}
    problems = [problem for name in sorted(names) for problem in instruments()[name]().check(host)]
    least = min(slices.count for slices in _every(study, Slices, "slices"))
    for case in study.programme:
        where = f"{file}:{case.line}: probe {case.probe}"
        found = {problem for each in limits for problem in make_probe(case).check(each)}
        problems += [Problem(problem.what, where, problem.remedy) for problem in found]
        needed = probes()[case.probe].slices
        if needed > least:
            what = f"it needs {needed} slices, and the study deploys {least or 'none'}"
            problems.append(Problem(what, where, f"write count = {needed} in [slices]"))
    return problems


def _problems_of_neighbours(study: Study) -> list[Problem]:
    """Aggressors that nobody knows, or that cannot be within the study's limits."""
    problems: dict[Problem, None] = {}
    for condition in conditions(study):
        values = study.values(condition)
        name, where = str(values["neighbour.aggressor"]), "[neighbour] aggressor"
        if not name:
            continue
        if name not in aggressors():
            known = f"`virtoll list aggressors` shows: {', '.join(aggressors())}"
            problems[Problem(f"no aggressor is called {name!r}{nearest(name, aggressors())}", where, known)] = None
            continue
        found = make_aggressor(name).check(settings_of(Limits, "limits", values))
        problems |= dict.fromkeys(found)
    return list(problems)


def _every(study: Study, cls: type[_Settings], section: str) -> set[_Settings]:
    """What the conditions of the study ask for in a section."""
    return {settings_of(cls, section, study.values(condition)) for condition in conditions(study)}


def _is_sliced(study: Study) -> bool:
    return any(slices.count for slices in _every(study, Slices, "slices"))


def _link_problems(study: Study, host: LocalHost) -> list[Problem]:
    """Link shapes of the study that this kernel cannot make."""
    problems = [problem for shape in _every(study, LinkShape, "link") for problem in shaping.check(host, shape)]
    channels = _every(study, Slices, "slices")
    return problems + [problem for slices in channels for problem in slicing.check(host, slices)]


def most_vcpus(study: Study) -> int:
    """The most vCPUs that any condition of the study gives an instance."""
    return max(limits.vcpus for limits in _every(study, Limits, "limits"))


def prepare(study: Study, arms: Sequence[Arm], host: LocalHost, say: Callable[[str], None]) -> Image:
    """Image and its forms, outside any measured time."""
    packages = {
        *(p for name in (study.service, study.origin) if name for p in services()[name].packages),
        *(p for case in study.programme for p in probes()[case.probe].packages),
        *(p for case in study.programme if case.instrument for p in instruments()[case.instrument].packages),
    }
    image = rootfs.build(host, study.name, sorted(packages), say)
    for platform in {f"{arm.platform} {arm.settings}": make_platform(arm) for arm in arms}.values():
        for limits in _every(study, Limits, "limits"):
            platform.prepare(host, image, limits, say)
    return image


def runtimes(arms: Iterable[Arm], host: LocalHost) -> dict[str, str]:
    """The version of everything that makes instances of these arms."""
    platforms_used = {f"{arm.platform} {arm.settings}": make_platform(arm) for arm in arms}
    return {name: told for platform in platforms_used.values() for name, told in platform.versions(host).items()}


@contextmanager
def lab(study: Study, image: Image, pending: Sequence[PlannedTrial]) -> Iterator[Experiment]:
    """The lab of one run, wired and undone again, with the experiment that performs the pending trials in it."""
    host = LocalHost()
    tag = secrets.token_hex(2)
    vcpus = most_vcpus(study)
    cpus = cpu_plan(host, vcpus, vcpus if _is_sliced(study) else 1)
    with (
        ledgers.opened(host, ledgers.state_directory() / "ledger", f"{study.name}-{tag}") as ledger,
        wired(host, ledger, tag, cpus) as wires,
        in_lab(study, wires, image, pending) as experiment,
    ):
        yield experiment
