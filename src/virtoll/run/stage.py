"""What a run needs before its first trial: arms that this machine offers, images, and a wired lab."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from virtoll import films, footage, voice
from virtoll.errors import Problem, StudyError
from virtoll.hosts import programs
from virtoll.hosts.local import LocalHost
from virtoll.images import go, jars, oci, rootfs
from virtoll.images.base import Image, Images, Wanted, together
from virtoll.images.source import Source
from virtoll.instruments.base import instruments
from virtoll.lab.base import CpuPlan
from virtoll.lab.cpus import cpu_plan
from virtoll.networks.base import network_modes
from virtoll.offers import Film, Footage, Voice
from virtoll.platforms.base import Platform
from virtoll.record.model import Arm, PlannedTrial, SkippedArm
from virtoll.run.elsewhere import problems_elsewhere
from virtoll.run.groups import Groups, Room
from virtoll.run.readiness import Readiness
from virtoll.run.refusals import of_memory, of_turns, problems_of
from virtoll.run.side_by_side import crowded
from virtoll.study.model import VCPUS, Study
from virtoll.study.plan import conditions
from virtoll.trial.deployer import make_platform, slices_problem
from virtoll.trial.notes import Experiment
from virtoll.trial.treatment import (
    Driven,
    Treatment,
    programme_image,
    services_by_configuration,
    treatment_of,
    treatments,
)

if TYPE_CHECKING:
    from virtoll.run.by_generator import Posted


def untried(arms: Iterable[Arm], host: LocalHost) -> list[str]:
    """What is not known of these arms before something is fetched or booted, one line for each platform; for anybody
    but root, nothing is.
    """
    if os.geteuid() != 0:
        return ["which of these arms this machine offers: only root sees it (sudo)"]
    told = {name: platform.untried(host) for name, platform in _platforms(arms).items()}
    return [f"{name}: {what}" for name, what in told.items() if what]


@dataclass(frozen=True)
class Stage:
    """A study on this machine: what it needs is looked at, made ready, and wired."""

    study: Study
    host: LocalHost
    posted: Posted | None = None  # the machine that the generator stands on, where it is another

    @cached_property
    def asked(self) -> list[Treatment]:
        """Every deployment's treatment, in the plan's order of conditions."""
        return treatments(self.study)

    @cached_property
    def cpus(self) -> CpuPlan:
        """Who computes where, for the most vCPUs that any condition asks for. HostError where they do not fit."""
        vcpus = max(treatment.limits.vcpus for treatment in self.asked)
        return cpu_plan(self.host, vcpus, vcpus if self._is_sliced else 1)

    def offered(self, file: str, *, tries: bool = True) -> tuple[list[Arm], list[SkippedArm]]:
        """The arms this machine offers in this study, and the optional ones it does not; StudyError for all others at
        once, and HostError for too few CPUs.

        Without ``tries`` nothing is changed, fetched or booted; an arm counts as offered where only that could tell.
        """
        readiness = Readiness(self.host, tries)
        arms: list[Arm] = []
        skipped: list[SkippedArm] = []
        problems = problems_of(self.study, self.asked, file, self.host)
        for entry in self.study.arms:
            arm, where = entry.arm, f"{file}:{entry.line}: {entry.arm.label}"
            missing = self.missing(arm, readiness)
            if not missing:
                arms.append(arm)
            elif entry.optional:
                skipped.append(SkippedArm(arm=arm, reason="\n".join(str(problem) for problem in missing)))
            else:
                problems += [Problem(problem.what, where, problem.remedy) for problem in missing]
        if self.study.design == "rotation" and not problems:
            problems = self._fitted(arms, skipped, file)
        if problems:
            raise StudyError(problems)
        _ = self.cpus  # HostError where they do not fit, before anything is made
        return arms, skipped

    def missing(self, arm: Arm, readiness: Readiness) -> list[Problem]:
        """What this machine lacks for an arm; empty where it offers it."""
        return (
            self._short_of_cpus(arm)
            or self._unsliced(arm)
            or problems_elsewhere(self.study, self.asked, arm)
            or readiness.problems(make_platform(arm), arm.network)
            or self._short_of_memory(arm)
            or self._unreachable(arm.network)
            or crowded(self.study, arm, self.host)
        )

    def _short_of_cpus(self, arm: Arm) -> list[Problem]:
        """What of the study's limits the platform cannot give, on any machine: CPUs (User Mode Linux has one)."""
        most = make_platform(arm).most_vcpus
        every = conditions(self.study, arm.platform)
        asked = max((self.study.values(condition)[VCPUS] for condition in every), default=0)
        if most is None or asked <= most:
            return []
        what = f"{arm.platform} has no more than {most} CPU, and the study asks for {asked}"
        return [Problem(what, VCPUS, f"compare with {VCPUS} = {most}, or [[exclude]] what is more for it")]

    def _short_of_memory(self, arm: Arm) -> list[Problem]:
        """What instances of the study's limits would not find here now: those that stand at once, and one on which its
        limits are proved.
        """
        platform = make_platform(arm)
        alike = sum(make_platform(entry.arm).is_pooled for entry in self.study.arms) if platform.is_pooled else 1
        asked = [treatment_of(self.study, condition) for condition in conditions(self.study, arm.platform)]
        at_once = {each.limits: 0 for each in asked}
        for each in asked:
            alone = 1 + (alike if self.study.design == "rotation" else 1)
            most = max(alone, 1 + len(each.beside), 2 * each.slices.count + 1)
            at_once[each.limits] = max(at_once[each.limits], most)
        found = (problem for limits, most in at_once.items() for problem in platform.lacks(self.host, limits, most))
        return list(dict.fromkeys(found))

    def _unsliced(self, arm: Arm) -> list[Problem]:
        what = slices_problem(arm) if self._is_sliced else ""
        return [Problem(what, remedy="give this arm that mode, or leave it out")] if what else []

    def _unreachable(self, network: str) -> list[Problem]:
        """What keeps a service from being reached in a network mode, under any settings that are right."""
        services = (work.service for work in self._driven if not work.service.problems(work.origin))
        mode = network_modes()[network]()
        return list(dict.fromkeys(problem for service in services for problem in mode.problems_with(service.ports)))

    def _fitted(self, arms: list[Arm], skipped: list[SkippedArm], file: str) -> list[Problem]:
        """Skip the optional arms that no group can hold; what is wrong with the others that none can, or with the turns
        of those that are left.
        """
        unheld = of_memory(self.study, arms, self._room, file)
        for entry in self.study.arms:
            if entry.optional and entry.arm in arms and (problem := unheld.pop(entry.arm.label, None)):
                arms.remove(entry.arm)
                skipped.append(SkippedArm(arm=entry.arm, reason=str(problem)))
        groups = self.groups(arms)
        at_once = 1 + max(map(len, groups)) if groups else len(arms)
        return list(unheld.values()) or of_turns(self.asked, at_once, file)

    def groups(self, arms: Sequence[Arm]) -> Groups:
        """The labels of those that stand beside each other, the baseline left out; () where none or all of them do."""
        return self._room.groups(arms) if self.study.design == "rotation" else ()

    def unheld(self, trials: Iterable[PlannedTrial]) -> str:
        """Why the memory does not hold now what stands beside each other for these trials; "" where it does."""
        together: dict[tuple[int, int], dict[str, Arm]] = {}
        for trial in trials if self.study.design == "rotation" else ():
            together.setdefault((trial.block, trial.group), {})[trial.arm.label] = trial.arm
        return next((why for arms in together.values() if (why := self._room.lacks(list(arms.values())))), "")

    @property
    def free_bytes(self) -> int:
        """The memory that groups are made by."""
        return self._room.free_bytes

    @cached_property
    def _room(self) -> Room:
        return Room.on(self.host, self.asked)

    def prepare(self, arms: Sequence[Arm], say: Callable[[str], None]) -> Images:
        """An image for each role, and the instance's in every form that the arms take, outside any measured time.

        Of two configurations that want different ones each has its own, as it would have in a run of its own.
        """
        name, driven = self.study.name, self._driven
        of_origin = driven[0].origin.image if driven and driven[0].origin is not None else Wanted()
        of_load = _image(work.load.programs for work in driven if self.posted is None)  # else it is made there
        for shot in self._footage:
            footage.made(self.host, shot, say)
        for said in self._voices:
            voice.made(self.host, said, say)
        laid = self._films(say)
        of_instances = {
            configuration: built(self.host, name, wanted, say, laid) for configuration, wanted in self.wanted.items()
        }
        images = Images(
            next(iter(of_instances.values())),
            None if of_origin.is_nothing else built(self.host, f"{name}-origin", of_origin, say),
            None if of_load.is_nothing else built(self.host, f"{name}-load", of_load, say),
            of_instances if len(of_instances) > 1 else {},
        )
        _expect_startable(self.asked, images)
        for platform in _platforms(arms).values():
            for image, limits in {(images.of(each.configuration), each.limits): None for each in self.asked}:
                platform.prepare(self.host, image, limits, say)
        return images

    @cached_property
    def wanted(self) -> dict[str, Wanted]:
        """What instances are to be made from, by configuration; one alone (of "") where that is the same for all."""
        if not self._driven:
            return {"": programme_image(self.study)}
        apart = services_by_configuration(self.asked)
        found = {name: _image(service.image for service in services) for name, services in apart.items()}
        return found if len(set(found.values())) > 1 else {"": next(iter(found.values()))}

    def runtimes(self, arms: Iterable[Arm]) -> dict[str, str]:
        """The version of everything that makes instances of these arms, and that carries packets to them."""
        arms = list(arms)
        told = [platform.versions(self.host) for platform in _platforms(arms).values()]
        told += [network_modes()[name]().versions(self.host) for name in sorted({arm.network for arm in arms})]
        return {name: version for each in told for name, version in each.items()}

    @cached_property
    def files(self) -> dict[str, str]:
        """The digest of each file of this machine's that a service is given, by its place inside: one that is changed
        makes another service. Two configurations may have a file each for one place.
        """
        given: dict[str, dict[str, None]] = {}
        for work in self._driven:
            for service in (work.service, work.origin):
                for inside, digest in ({} if service is None else service.digests).items():
                    given.setdefault(inside, {})[digest] = None
        return {inside: " or ".join(digests) for inside, digests in sorted(given.items())}

    @property
    def media(self) -> dict[str, str]:
        """The digest of each film, footage and voice, once they are made: another ffmpeg makes another of that name."""
        contents = [work.load.content for work in self._driven]
        return {
            **{film.name: films.digest(film) for film in contents if isinstance(film, Film)},
            **{shot.name: footage.digest(shot) for shot in self._footage},
            **{said.name: voice.digest(said) for said in self._voices},
        }

    @property
    def generators(self) -> set[str]:
        """The binaries of virtoll's own that the loads run."""
        return {work.load.generator for work in self._driven if work.load.generator}

    @property
    def tools(self) -> dict[str, str]:
        """The digest of each program of this machine's that loads and instruments run. HostError where one is gone.
        Loads that come from another machine run those of that one.
        """
        of_loads = {work.load.tool for work in self._driven} if self.posted is None else set()
        of_cases = {instruments()[case.instrument]().tool for case in self.study.programme if case.instrument}
        return {name: programs.digest(name) for name in sorted(of_loads | of_cases) if name}

    def lab(self, images: Images, pending: Sequence[PlannedTrial]) -> AbstractContextManager[Experiment]:
        """The lab of one run, wired and undone again, with the experiment that performs the pending trials in it."""
        from virtoll.run.laboratory import laboratory  # with it comes what makes tables, and no plan needs those

        return laboratory(
            self.study, self.host, self.cpus, images, pending=pending, files=self.files, posted=self.posted
        )

    def _films(self, say: Callable[[str], None]) -> dict[str, Path]:
        """What loads ask for that is made here and lies in the image, by its place inside: all conditions share one."""
        found: dict[str, Path] = {}
        for content, forms in dict.fromkeys((work.load.content, work.service.films) for work in self._driven):
            found |= films.laid(self.host, content, forms, say) if isinstance(content, Film) else {}
        return found

    @property
    def _footage(self) -> Iterable[Footage]:
        return dict.fromkeys(shot for work in self._driven for shot in work.load.footage)

    @property
    def _voices(self) -> Iterable[Voice]:
        return dict.fromkeys(work.load.voice for work in self._driven if work.load.voice is not None)

    @property
    def _driven(self) -> list[Driven]:
        return [each.work for each in self.asked if isinstance(each.work, Driven)]

    @property
    def _is_sliced(self) -> bool:
        return any(treatment.slices.count for treatment in self.asked)


def _platforms(arms: Iterable[Arm]) -> dict[str, Platform]:
    """The platforms of these arms, each once, by name and settings."""
    return {f"{arm.platform} {arm.settings}".removesuffix(" {}"): make_platform(arm) for arm in arms}


def _image(wanted: Iterable[Wanted]) -> Wanted:
    """The one that all conditions share; see `refusals`."""
    return together(wanted) or Wanted()


def built(
    host: LocalHost, name: str, wanted: Wanted, say: Callable[[str], None], files: Mapping[str, Path] = rootfs.NO_FILES
) -> Image:
    """An image of the user's own, or of packages, jars and programs, from the cache where it is there already."""
    if wanted.source:
        # Its path is absolute: the study file's reader made it so.
        return oci.build(host, name, Source.parse(wanted.source, Path()), say)
    brought = {**jars.laid(host, wanted.jars, say), **go.laid(host, wanted.programs, say)}
    return rootfs.build(host, name, wanted.packages, say, {**files, **brought})


def _expect_startable(asked: Sequence[Treatment], images: Images) -> None:
    """StudyError with all that is to be started and is not in its image."""
    found: dict[Problem, None] = {}
    for each in asked:
        if isinstance(each.work, Driven):
            found |= dict.fromkeys(each.work.service.problems_with(images.of(each.configuration)))
            if images.load is not None:
                found |= dict.fromkeys(each.work.load.problems_with(images.load))
    if found:
        raise StudyError(found)
