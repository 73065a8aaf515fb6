"""What a run needs before its first trial: arms that this machine offers, images, and a wired lab."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from virtoll.aggressors.base import aggressors
from virtoll.errors import Problem, StudyError
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.local import LocalHost
from virtoll.hosts.lock import exclusive
from virtoll.images import oci, rootfs
from virtoll.images.base import Image, Images, Wanted
from virtoll.images.source import Source
from virtoll.instruments.base import instruments
from virtoll.lab import shaping
from virtoll.lab import slices as slicing
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import wired
from virtoll.loads.base import Load, loads
from virtoll.probes.base import probes
from virtoll.record.model import Arm, PlannedTrial, SkippedArm
from virtoll.run.readiness import Readiness
from virtoll.services.base import Service, services
from virtoll.study.model import Case, Study
from virtoll.study.plan import explaining_condition
from virtoll.study.values import nearest
from virtoll.trial.deployer import make_platform, slices_problem
from virtoll.trial.experiment import in_lab
from virtoll.trial.neighbourhood import make_aggressor
from virtoll.trial.notes import Experiment
from virtoll.trial.treatment import Driven, Treatment, make_probe, make_service, treatment_of, treatments


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
    asked = treatments(study)
    if study.service:
        problems = {problem: None for each in asked for problem in _problems_of_load(study, each, file, host)}
        problems |= dict.fromkeys(_problems_of_images(asked, file, host))
        if any(each.slices.count for each in asked):
            problems[Problem("slices are for a programme of probes", f"{file}: [slices]", "leave [slices] out")] = None
        explaining = [treatment_of(study, explaining_condition(study))]
        return [*problems, *(told for case in study.programme for told in _problems_of_case(case, explaining, file))]
    names = {case.instrument for case in study.programme if case.instrument}
    problems_of_tools = [problem for name in sorted(names) for problem in instruments()[name]().check(host)]
    return problems_of_tools + [problem for case in study.programme for problem in _problems_of_case(case, asked, file)]


def _problems_of_load(study: Study, treatment: Treatment, file: str, host: LocalHost) -> list[Problem]:
    """What is wrong with service and load, each by itself and as a pair."""
    work = treatment.work
    assert isinstance(work, Driven)
    service, load = work.service, work.load
    origin = work.origin
    wrong = service.problems(origin) + (origin.problems(None) if origin is not None else [])
    found = [*wrong, *load.check(host)]
    if not wrong:  # else what it offers is not known
        found += _problems_of_pair(study, service, load)
    return [replace(one, where=f"{file}: {one.where}") if one.where.startswith("[") else one for one in found]


def _problems_of_pair(study: Study, service: Service, load: Load) -> list[Problem]:
    if not any(issubclass(offer, load.takes) for offer in service.offers):
        offered = " or ".join(offer.kind for offer in service.offers)
        fit = [name for name, cls in loads().items() if any(issubclass(offer, cls.takes) for offer in service.offers)]
        what = f"load {load.name!r} cannot drive {service.name}, which offers {offered}"
        return [Problem(what, "[load] name", f"loads that can: {', '.join(fit) or 'none'}")]
    holder = services()[study.origin or study.service]
    if load.content is not None and not isinstance(load.content, holder.holds):
        what = f"load {load.name!r} asks for {load.content}, which {holder.name} does not hold"
        return [Problem(what, "[load]", 'ask for something that it serves: path = "/..."')]
    return []


def _problems_of_images(asked: Sequence[Treatment], file: str, host: LocalHost) -> list[Problem]:
    """Of the user's own images: what can be seen without unpacking them, and that there is one for each role."""
    driven = [each.work for each in asked if isinstance(each.work, Driven)]
    problems = []
    for roles in ([work.service.image for work in driven], [work.load.programs for work in driven]):
        wanted = list(dict.fromkeys(roles))
        for each in wanted:
            problems += oci.check(host, _source(each)) if each.source else []
        if len(wanted) > 1:
            what = f"{len(wanted)} images are asked for in one study: its conditions must share one"
            remedy = "make a study of each, and compare their reports"
            problems.append(Problem(what, f"{file}: [factors]", remedy))
    return problems


def _problems_of_case(case: Case, asked: Sequence[Treatment], file: str) -> list[Problem]:
    where = f"{f'{file}:{case.line}' if case.line else '--explain'}: probe {case.probe}"
    found = {problem: None for each in asked for problem in make_probe(case).check(each.limits)}
    problems = [Problem(problem.what, where, problem.remedy) for problem in found]
    least = min(each.slices.count for each in asked)
    needed = probes()[case.probe].slices
    if needed > least:
        what = f"it needs {needed} slices, and the study deploys {least or 'none'}"
        problems.append(Problem(what, where, f"write count = {needed} in [slices]"))
    return problems


def _problems_of_neighbours(study: Study) -> list[Problem]:
    """Aggressors that nobody knows, or that cannot be within the study's limits."""
    problems: dict[Problem, None] = {}
    for treatment in treatments(study):
        name, where = treatment.neighbour.aggressor, "[neighbour] aggressor"
        if not name:
            continue
        if name not in aggressors():
            known = f"`virtoll list aggressors` shows: {', '.join(aggressors())}"
            problems[Problem(f"no aggressor is called {name!r}{nearest(name, aggressors())}", where, known)] = None
            continue
        problems |= dict.fromkeys(make_aggressor(name).check(treatment.limits))
    return list(problems)


def _is_sliced(study: Study) -> bool:
    return any(treatment.slices.count for treatment in treatments(study))


def _link_problems(study: Study, host: LocalHost) -> list[Problem]:
    """Link shapes of the study that this kernel cannot make."""
    asked = treatments(study)
    problems = [problem for shape in {each.link for each in asked} for problem in shaping.check(host, shape)]
    channels = {each.slices for each in asked}
    return problems + [problem for slices in channels for problem in slicing.check(host, slices)]


def most_vcpus(study: Study) -> int:
    """The most vCPUs that any condition of the study gives an instance."""
    return max(treatment.limits.vcpus for treatment in treatments(study))


def prepare(study: Study, arms: Sequence[Arm], host: LocalHost, say: Callable[[str], None]) -> Images:
    """An image for each role, and the instance's in every form that the arms take, outside any measured time."""
    asked = treatments(study)
    driven = [each.work for each in asked if isinstance(each.work, Driven)]
    instance = _built(host, study.name, asked[0].image, say)  # all conditions share it, see `offered`
    origin = make_service(study, "origin", study.base).image if study.origin else Wanted()
    programs = driven[0].load.programs if driven else Wanted()
    images = Images(
        instance,
        None if origin.is_nothing else _built(host, f"{study.name}-origin", origin, say),
        None if programs.is_nothing else _built(host, f"{study.name}-load", programs, say),
    )
    _expect_startable(driven, images)
    for platform in {f"{arm.platform} {arm.settings}": make_platform(arm) for arm in arms}.values():
        for limits in {treatment.limits for treatment in asked}:
            platform.prepare(host, instance, limits, say)
    return images


def _built(host: LocalHost, name: str, wanted: Wanted, say: Callable[[str], None]) -> Image:
    """An image of the user's own, or of Debian packages, from the cache where it is there already."""
    if wanted.source:
        return oci.build(host, name, _source(wanted), say)
    return rootfs.build(host, name, wanted.packages, say)


def _source(wanted: Wanted) -> Source:
    return Source.parse(wanted.source, Path())  # absolute: the study file's reader made it so


def _expect_startable(driven: Sequence[Driven], images: Images) -> None:
    """StudyError with all that is to be started and is not in its image."""
    found: dict[Problem, None] = {}
    for work in driven:
        found |= dict.fromkeys(work.service.problems_with(images.instance))
        if images.load is not None:
            found |= dict.fromkeys(work.load.problems_with(images.load))
    if found:
        raise StudyError(found)


def files(study: Study) -> dict[str, str]:
    """The digest of each file of this machine's that a service is given, by its place inside: one that is changed makes
    another service."""
    given: dict[str, str] = {}
    for treatment in treatments(study):
        if isinstance(treatment.work, Driven):
            for service in (treatment.work.service, treatment.work.origin):
                given |= {} if service is None else dict(service.files)
    return {inside: hashlib.sha256(Path(path).read_bytes()).hexdigest() for inside, path in sorted(given.items())}


def runtimes(arms: Iterable[Arm], host: LocalHost) -> dict[str, str]:
    """The version of everything that makes instances of these arms."""
    platforms_used = {f"{arm.platform} {arm.settings}": make_platform(arm) for arm in arms}
    return {name: told for platform in platforms_used.values() for name, told in platform.versions(host).items()}


@contextmanager
def lab(study: Study, images: Images, pending: Sequence[PlannedTrial]) -> Iterator[Experiment]:
    """The lab of one run, wired and undone again, with the experiment that performs the pending trials in it."""
    host = LocalHost()
    tag = secrets.token_hex(2)
    vcpus = most_vcpus(study)
    cpus = cpu_plan(host, vcpus, vcpus if _is_sliced(study) else 1)
    with (
        ledgers.opened(host, ledgers.state_directory() / "ledger", f"{study.name}-{tag}") as ledger,
        wired(host, ledger, tag, cpus) as wires,
        in_lab(study, wires, images, pending) as experiment,
    ):
        yield experiment
