"""What a trial does, as types: made once from the study and the trial's condition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from virtoll.images.base import Wanted
from virtoll.instruments.base import instruments
from virtoll.lab.shaping import LinkShape
from virtoll.lab.slices import Slices
from virtoll.lab.throttle import NO_THROTTLE, Throttle
from virtoll.loads.base import Load, loads
from virtoll.probes.base import Probe, probes
from virtoll.record.model import CONFIGURATION, PROBE
from virtoll.services.base import Service, services
from virtoll.study.limits import Limits
from virtoll.study.model import Background, Case, Generators, Knee, Monitoring, Neighbour, Rotation, Study, settings_of
from virtoll.study.plan import conditions, others, watched_seconds


@dataclass(frozen=True)
class Driven:
    """A service under a load."""

    service: Service
    origin: Service | None
    load: Load

    @property
    def most_users(self) -> int | None:
        """How many users the service's settings let in (`Service.most_users`)."""
        return self.service.most_users(getattr(self.load.settings, "transport", "tcp"))


@dataclass(frozen=True)
class Probed:
    """A case of a programme."""

    case: Case
    probe: Probe


@dataclass(frozen=True)
class Treatment:
    """One combination of levels. ``work``: what is measured; None of a deployment that cases share."""

    limits: Limits
    link: LinkShape
    slices: Slices
    neighbour: Neighbour
    background: Background
    monitoring: Monitoring
    work: Driven | Probed | None
    rotation: Rotation | None = None  # None: it is measured by itself
    knee: Knee | None = None  # None: it is measured under one load
    throttle: Throttle = NO_THROTTLE
    beside: Mapping[str, Driven] = field(default_factory=dict)  # the other servers at work meanwhile, by name
    generators: int = 1  # that load the service together
    watched_s: float = 0.0  # for how long the trial is watched at the most, about; 0: nobody knows
    configuration: str = ""  # of a study that sets two against each other

    @property
    def inside_rate_per_s(self) -> float:
        """How often it is looked at inside: in rotation as seldom as can be, for looking costs it the idleness that it
        has to prove while it waits (a guest under TCG takes milliseconds for a look).
        """
        return self.monitoring.rate_per_s if self.rotation is None else 1.0

    @property
    def is_watched_for_sure(self) -> bool:
        """Whether it takes about as long as ``watched_s``: a search, a probe, or turns that would be as long as the
        slowest service's, may be over much sooner.
        """
        return isinstance(self.work, Driven) and self.knee is None and self.rotation is None

    @property
    def follows_pace(self) -> bool:
        """Whether it has longer windows than its study says where its service is slow, which no plan can know."""
        if not isinstance(self.work, Driven) or self.knee is not None or self.rotation is None:
            return False
        return self.work.load.under_way is not None


def treatment_of(study: Study, condition: Mapping[str, Any], arm: str = "") -> Treatment:
    """The treatment under a trial's condition, or a deployment's, which names no case of a programme; with what is the
    own of the arm of that label, if it has any.
    """
    values = {**study.values(condition), **study.own_values(arm)}
    return Treatment(
        limits=settings_of(Limits, "limits", values),
        link=settings_of(LinkShape, "link", values),
        slices=settings_of(Slices, "slices", values),
        neighbour=settings_of(Neighbour, "neighbour", values),
        background=settings_of(Background, "background", values),
        monitoring=settings_of(Monitoring, "monitor", values),
        work=_work(study, condition, values),
        rotation=settings_of(Rotation, "rotation", values) if study.design == "rotation" else None,
        throttle=settings_of(Throttle, "throttle", values),
        knee=settings_of(Knee, "knee", values) if values.get("knee.objective") and PROBE not in condition else None,
        beside={name: _driven(study, other, study.values(other)) for name, other in others(study, condition).items()},
        generators=settings_of(Generators, "generators", values).count if PROBE not in condition else 1,
        watched_s=watched_seconds(study, condition),
        configuration=str(condition.get(CONFIGURATION, "")),
    )


def of_block(treatment: Treatment, block: int) -> Treatment:
    """The same with what a load draws drawn anew for the block, and alike for all arms in it: ratios hold none of its
    chance, and what is absolute holds it in its interval, where one schedule for all blocks would have been its luck.
    """

    def drawn(driven: Driven, place: int = 0) -> Driven:
        settings = driven.load.settings
        if not isinstance(seed := getattr(settings, "seed", None), int):  # a program's own is a command
            return driven
        seed = (seed + block * _BLOCKS_SEEDS + place * _PLACES_SEEDS) % 2**63
        return replace(driven, load=type(driven.load)(replace(settings, seed=seed)))

    # By one schedule each of their requests would meet one of the others', in each block.
    beside = {name: drawn(treatment.beside[name], place) for place, name in enumerate(sorted(treatment.beside), 1)}
    work = drawn(treatment.work) if isinstance(treatment.work, Driven) else treatment.work
    return replace(treatment, work=work, beside=beside)


_BLOCKS_SEEDS = 2**40  # from one block's to the next's: beyond any number of windows, and of generators
_PLACES_SEEDS = 2**57  # from one server's to the next's of those side by side: beyond any number of blocks


def treatments(study: Study) -> list[Treatment]:
    """Every deployment's treatment, in the plan's order of conditions."""
    return [treatment_of(study, condition) for condition in conditions(study)]


def services_by_configuration(asked: Iterable[Treatment]) -> dict[str, list[Service]]:
    """The services under test of each configuration; all are of "" where a study has none."""
    found: dict[str, list[Service]] = {}
    for each in asked:
        if isinstance(each.work, Driven):
            found.setdefault(each.configuration, []).append(each.work.service)
    return found


def slower(study: Study) -> str:
    """What an estimate of a study's time does not know, in words; "" where it knows all."""
    return " (slow arms take longer)" if any(each.follows_pace for each in treatments(study)) else ""


def programme_image(study: Study) -> Wanted:
    """The root filesystem of a programme: with all that any case needs."""
    packages = {
        *(package for case in study.programme for package in probes()[case.probe].packages),
        *(
            package
            for case in study.programme
            if case.instrument
            for package in instruments()[case.instrument].packages
        ),
    }
    return Wanted(packages=tuple(sorted(packages)))


def _work(study: Study, condition: Mapping[str, Any], values: Mapping[str, Any]) -> Driven | Probed | None:
    if study.is_served and PROBE not in condition:
        return _driven(study, condition, values)
    if PROBE not in condition:
        return None
    case = study.case(condition)
    return Probed(case, make_probe(case))


def _driven(study: Study, condition: Mapping[str, Any], values: Mapping[str, Any]) -> Driven:
    served = study.served(condition)
    origin = make_service(study.origin, "origin", study.base) if study.origin else None
    if values.get("knee.objective") or values.get("generators.count", 1) > 1:
        # Of a search's many windows no single requests are kept, nor of several generators' one.
        values = {**values, "load.log_requests": False}
    return Driven(make_service(served.service, "service", values), origin, make_load(served.load, values))


def make_service(name: str, section: str, values: Mapping[str, Any]) -> Service:
    """The service of section ``service`` or ``origin`` under the given values."""
    cls = services()[name]
    return cls(settings_of(cls.Settings, section, values))


def make_load(name: str, values: Mapping[str, Any]) -> Load:
    """The load under the given values."""
    cls = loads()[name]
    return cls(settings_of(cls.Settings, "load", values))


def make_probe(case: Case) -> Probe:
    """The probe of a case, with its settings."""
    cls = probes()[case.probe]
    return cls(cls.Settings(**case.settings))
