"""What a study is: arms, base values, factors.

A study has *arms* (a platform in a network mode), base values in a table per section (`[service]`, `[load]`,
`[limits]`, ...), and *factors*: dotted paths of those same values with the levels they take. What it measures is either
a service under a load, or a *programme* of probes; an explained study has both, a short programme beside its service.
`study_file` reads one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from virtoll.errors import Problem
from virtoll.offers import Offer
from virtoll.record.model import CONFIGURATION, SERVER, Arm
from virtoll.units import within


@dataclass(frozen=True)
class Background:
    """``hogs``: busy loops on the instance's CPUs, outside the instance, from its warm-up to its window's end."""

    hogs: int = within(0, most=100)


@dataclass(frozen=True)
class Neighbour:
    """Who lives beside the instance, in one like it: an aggressor at work from ``start`` on, for ``duration``.

    Without an aggressor there is none. Times count from the start of the window. ``servers``: whether the *others* of a
    study of several run beside it, each in an instance of its own under its own load.
    """

    aggressor: str = ""
    start_ns: int = 3 * 10**9
    duration_ns: int = within(4 * 10**9, least=10**8, most=600 * 10**9)
    servers: Literal["none", "others"] = "none"


@dataclass(frozen=True)
class Generators:
    """How many generators load the one server together, each in a place of its own; what the load says is of all."""

    count: int = within(1, least=1, most=64)


@dataclass(frozen=True)
class Monitoring:
    """How often the counters are read, inside and outside."""

    rate_per_s: float = within(10.0, least=1, most=100)


@dataclass(frozen=True)
class Rotation:
    """How arms that stand beside each other are measured in turn, where the study's design is *rotation*.

    In each of ``rounds`` rounds every arm has one window, in an order drawn anew; before it the load runs unmeasured.
    ``window`` and ``lead_in`` say for how long, at the least: of HTTP and Redis an arm that would do too little work in
    that has longer ones, which follow from its own pace in its warm-up. A probe has one round of its own windows.
    """

    rounds: int = within(16, least=2, most=1000)
    window_ns: int = within(250 * 10**6, least=10**6)
    lead_in_ns: int = 100 * 10**6

    @property
    def turn_ns(self) -> int:
        """What one arm takes of a round, at the least."""
        return self.lead_in_ns + self.window_ns

    @property
    def longest_ns(self) -> int:
        """No window is longer, nor a lead-in, however slow an arm is; but for what the study itself asks for."""
        return max(self.window_ns, min(_MOST_TIMES * self.window_ns, LONGEST_IN_TURN_NS))


# What an arm that hardly does anything may take of all others' time, by its pace.
_MOST_TIMES, LONGEST_IN_TURN_NS = 20, 2 * 10**9


@dataclass(frozen=True)
class Knee:
    """A search for the knee: the largest intensity under which most windows meet the ``objective``. Without an
    objective there is none.

    From ``least`` to ``most`` (users, or arrivals per second), in steps of ``precision`` at the most. Each window is
    ``window`` long, and the most of ``windows`` decide an intensity.
    """

    objective: tuple[str, ...] = ()
    least: float = within(1.0, least=1e-3)
    most: float = within(1e6, least=1e-3, most=1e9)
    precision_share: float = within(0.05, least=0.001, most=1)
    window_ns: int = within(2 * 10**9, least=10**6)
    windows: int = within(5, least=1, most=99)


@dataclass(frozen=True)
class PlatformEntry:
    """What a study file must know of a platform: its own settings and how it can be attached."""

    settings: type[Any]
    default_network: str
    # Of an arm's settings: network mode -> why the pair is impossible.
    refuses: Callable[[Mapping[str, Any]], Mapping[str, Problem]]
    most_vcpus: int | None = None


@dataclass(frozen=True)
class ServiceEntry:
    """What a study file must know of a service."""

    settings: type[Any]
    needs: type[Offer] | None  # what an origin must offer it
    offers: tuple[type[Offer], ...]


@dataclass(frozen=True)
class Catalogue:
    """The words a study file may use: what is registered, as plain data."""

    platforms: Mapping[str, PlatformEntry]
    services: Mapping[str, ServiceEntry]
    loads: Mapping[str, type[Any]]
    probes: Mapping[str, type[Any]]
    sections: Mapping[str, type[Any]]  # limits, background, link, monitor
    networks: tuple[str, ...]


PLATFORM = "platform"  # in a rule of [[exclude]], beside the levels: whose arms it is for
VCPUS = "limits.vcpus"


@dataclass(frozen=True)
class StudyArm:
    """An arm as the study names it. ``optional``: skipped with the reason where the machine cannot offer it.

    No study file sets the rest: all arms of a study are given the same. A calibration's arms differ in what is known of
    them, ``values`` by dotted path, and are deployed under the conditions that hold ``only``. ``share``: of what native
    does in a time, where that is known beforehand.
    """

    arm: Arm
    optional: bool
    line: int
    values: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    share: float | None = None


@dataclass(frozen=True)
class Case:
    """One measurement of a programme: a probe with its settings.

    ``condition`` is what tells it from the other cases: ``{"probe": "linpack", "linpack.order": 1000}``, and
    ``"instrument"`` where an outside tool stands in for the probe.
    """

    probe: str
    settings: Mapping[str, Any]  # every field of the probe's Settings
    condition: Mapping[str, Any]
    line: int = 0
    instrument: str = ""
    expected_s: float = 0.3  # about how long it takes, by its settings' own reckoning; only for estimates


@dataclass(frozen=True)
class Server:
    """One of several services that a study sets beside each other, and the load that drives it."""

    service: str
    load: str
    base: Mapping[str, Any]  # the values of its sections, as `Study.base` has all others


@dataclass(frozen=True)
class Configuration:
    """One of the two that a study sets against each other in its blocks (`virtoll compare --again`).

    ``arms``: the labels of those under test, each against the other configuration's in the same place. ``values``: by
    dotted path what is not the same in both; in force where a condition's `CONFIGURATION` names it.
    """

    arms: tuple[str, ...]
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """A checked study. ``base`` maps every dotted path to its value in base units; factors override it."""

    name: str
    title: str
    question: str
    blocks: int
    seed: int | None
    claims: tuple[str, ...]  # names of claims files of virtoll.studies.claims
    margin: float  # a ratio within 1 +- margin is called no difference
    service: str  # "" for a programme of probes, or several servers
    origin: str  # "" where the service needs none
    load: str
    arms: tuple[StudyArm, ...]
    base: Mapping[str, Any]
    factors: Mapping[str, tuple[Any, ...]]
    # Levels by path, any of each; and maybe the names of the `PLATFORM` they are for.
    exclude: tuple[Mapping[str, Sequence[Any]], ...] = field(default=())
    programme: tuple[Case, ...] = ()  # beside a service: the probes that explain its toll
    design: str = "blocks"  # how a block is measured: each treatment by itself, or in "rotation"
    servers: Mapping[str, Server] = field(default_factory=dict)  # by name, which is the level of a factor (`SERVER`)
    configurations: Mapping[str, Configuration] = field(default_factory=dict)  # "A" and "B", where it has two
    command: str = ""  # what `virtoll run` was told, for whoever wants to repeat it

    @property
    def is_served(self) -> bool:
        """Whether services are driven by loads."""
        return bool(self.service or self.servers)

    @property
    def is_explained(self) -> bool:
        """Whether a programme of probes stands beside a service."""
        return bool(self.is_served and self.programme)

    def served(self, condition: Mapping[str, Any]) -> Server:
        """The service and the load under one condition."""
        return self.servers[condition[SERVER]] if self.servers else Server(self.service, self.load, self.base)

    def values(self, condition: Mapping[str, Any]) -> dict[str, Any]:
        """All values by dotted path under one condition."""
        own = self.servers[condition[SERVER]].base if SERVER in condition else {}
        configured = self.configurations[condition[CONFIGURATION]].values if CONFIGURATION in condition else {}
        return {**self.base, **own, **configured, **condition}

    def own_values(self, label: str) -> Mapping[str, Any]:
        """What an arm alone is given; see `StudyArm`."""
        return next((entry.values for entry in self.arms if entry.arm.label == label), {})

    def case(self, condition: Mapping[str, Any]) -> Case:
        """The case of the programme that a trial's condition holds."""
        return next(
            case
            for case in self.programme
            if case.condition.items() <= condition.items() and case.instrument == condition.get("instrument", "")
        )


def settings_of(cls: type[Any], section: str, values: Mapping[str, Any]) -> Any:
    """An instance of ``cls`` from the values below ``section.``; what it does not know is not its own."""
    names = {f.name for f in dataclasses.fields(cls)}
    prefix = f"{section}."
    own = {path.removeprefix(prefix): value for path, value in values.items() if path.startswith(prefix)}
    return cls(**{name: value for name, value in own.items() if name in names})
