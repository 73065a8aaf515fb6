"""The native load generator (rust/load): what its loads have in common, whichever protocol they speak."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Literal

from virtoll import __version__, binaries
from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.lab.client import Client, most_connected
from virtoll.loads.base import (
    Bulk,
    Load,
    Measurement,
    Session,
    at_intensity,
    cpus_of_users,
    histogram,
    late,
    latest_ns,
    shares,
)
from virtoll.loads.conversation import Conversation, ahead_s, conversing
from virtoll.offers import Offer
from virtoll.record.model import STARTING_MS, THERE_MS, Booked, Drain, Events, LogExtent, Window
from virtoll.study.model import LONGEST_IN_TURN_NS
from virtoll.units import within

REQUEST_LOG_LIMIT = 1_000_000
_WARM_UP_PATIENCE_NS = 10 * 10**9  # for what a warm-up has under way at its end
# From one of several generators' seed to the next's: no search has so many windows, each of which adds one.
_SEEDS = 2**32
_SPARE_S = 30.0  # for a window to be reported, beyond the longest that it may take
LEAD_IN = 1.5  # lead-in of a closed loop, in the time that it takes to answer each of its users once
_LEAST_CONNECTIONS = 16  # of each thread in open loop


@dataclass(frozen=True)
class NativeSettings:
    """Settings of the native generator. Closed loop asks until ``time_limit``; what is under way then is waited for, at
    most for ``timeout``, and is in the rate for its part within the window.

    In open loop ``time_limit`` is the length of the schedule and ``connections`` the most that may be open at once:
    it should be ample, for a request that finds all of them busy waits (its latency runs from its intended start).
    """

    loop: Literal["closed", "open"] = "closed"
    connections: int = within(1, least=1, most=10**7)
    time_limit_ns: int = within(10 * 10**9, least=1)
    rate_per_s: float = within(100.0, least=1e-3)  # open loop
    arrival: Literal["poisson", "constant"] = "poisson"  # open loop
    seed: int = within(1, most=2**63 - 1)  # of all that is drawn: the same seed gives the same schedule
    timeout_ns: int = within(30 * 10**9, least=1)
    warm_up_ns: int = 10**9  # the same load for so long beforehand; 0: none
    log_requests: bool = True  # keep each request's start and latency, up to about the first 1e6 (told in the record)

    @property
    def most_requests(self) -> int:
        """What ends a window before its time; 0: nothing does."""
        return 0

    def timed(self, duration_ns: int) -> Any:
        """The same, ended by this time alone."""
        return replace(self, time_limit_ns=duration_ns)


class NativeLoad(Load):
    """A load of the native generator's."""

    generator: ClassVar[str] = "virtoll-load"
    settings: Any

    @property
    def loop(self) -> Literal["closed", "open"]:
        """As it is set."""
        loop: Literal["closed", "open"] = self.settings.loop
        return loop

    @property
    def work_each(self) -> int:
        """Units of work in one request."""
        return 1

    @property
    def under_way(self) -> int | None:
        """One request of each connection. In open loop, whose connections are as many as may ever be needed, of one:
        arrivals are scheduled, and how many are under way at once is not known.
        """
        return self.work_each * (self.settings.connections if self.loop == "closed" else 1)

    def most_here(self, cpus: int) -> float:
        """Users: as many as may have a connection each, by the files that may be open and by its ports."""
        return math.inf if self.loop == "open" else most_connected(1, cpus)

    def usable_cpus(self, cpus: int, intensity: float | None = None) -> float | None:
        """A thread for each, but no more than connections; in open loop each has an equal part of the rate, and of
        connections enough for that.
        """
        settings = at_intensity(self.settings, self.loop, intensity, users="connections")
        return _threads(cpus, settings) if self.loop == "open" else cpus_of_users(settings.connections, cpus)

    def undivided(self, parts: int) -> str:
        """What would not be the same load, or none for some of them."""
        settings = self.settings
        if settings.connections < parts:
            return f"{settings.connections} connection(s) cannot be shared by {parts} generators"
        if settings.most_requests:
            return "several generators end their windows by time, and a number of requests would end each at its own"
        if settings.loop == "open" and settings.arrival == "constant":
            return "equally spaced arrivals of several generators would come in bursts, one of each at a time"
        return ""

    def divided(self, parts: int) -> Sequence[NativeLoad]:
        """Connections and rate in equal parts, with seeds of their own: Poisson arrivals of independent generators are
        Poisson arrivals of their sum. No single requests are kept, which would be of a file each.
        """
        if why := self.undivided(parts):
            raise ValueError(why)
        each = shares(self.settings.connections, parts)
        rate_per_s, seed = self.settings.rate_per_s / parts, self.settings.seed
        return [
            type(self)(
                replace(
                    self.settings,
                    connections=connections,
                    rate_per_s=rate_per_s,
                    seed=seed + number * _SEEDS,
                    log_requests=False,
                )
            )
            for number, connections in enumerate(each)
        ]

    def check(self, host: Host) -> list[Problem]:  # noqa: ARG002
        """The generator is part of virtoll; it is missing only where the native binaries were not built."""
        return binaries.missing(self.generator)


@dataclass(frozen=True)
class NativeSession(Session):
    """The native generator at one offer: one process from the first window on, each with connections of its own.

    A process for each would have rotation's short windows wait for its start, twice a turn.
    """

    verb: ClassVar[str]  # its subcommand

    load: NativeLoad
    client: Client
    offer: Offer
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))  # each drive has a log of its own
    _windows: Iterator[int] = field(default_factory=count)  # each has a schedule of its own, the same in every session
    _there: list[Conversation] = field(default_factory=list)  # the process, if it runs
    _process: ExitStack = field(default_factory=ExitStack)
    _paces_per_s: dict[int, float] = field(default_factory=dict)  # units, by users: of the first drive with answers
    _leads_ns: list[int] = field(default_factory=list)  # the lead-in that the next window is asked to have

    @abstractmethod
    def asked(self, settings: Any) -> dict[str, Any]:
        """What the protocol adds to the specification: whom to ask, and for what."""

    def warm_up(self, duration_ns: int | None = None) -> float | None:
        """Drive the same load for ``duration_ns``, or its settings' ``warm_up_ns``, and keep its pace alone; in open
        loop that is its rate, whatever was answered.
        """
        settings, window = self.load.settings, None
        if (length_ns := settings.warm_up_ns if duration_ns is None else duration_ns) > 0:
            patience_ns = min(settings.timeout_ns, _WARM_UP_PATIENCE_NS)
            brief = replace(settings.timed(length_ns), timeout_ns=patience_ns, log_requests=False)
            window = self._drive(brief).window
        if settings.loop == "open":
            return float(settings.rate_per_s * self.load.work_each)
        return None if window is None else pace_of(window, self.load.work_each)

    def lead_in(self, duration_ns: int) -> None:
        """With the next window, which begins amid what it asks for."""
        self._leads_ns[:] = [duration_ns]

    def lead_at_least(self, duration_ns: int) -> None:
        """As `lead_in`."""
        self.lead_in(duration_ns)

    @property
    def lead_ns(self) -> int:
        """The lead-in of the next window, at the settings' number of users."""
        return self.lead_ns_at(None)

    def lead_ns_at(self, intensity: float | None) -> int:
        """The same at so many users."""
        return self._lead_in_ns(at_intensity(self.load.settings, self.load.loop, intensity, users="connections"))

    def pace_per_s(self, users: int) -> float | None:
        """Units of work done per second for so many users when they were first driven, in the warm-up where there is
        one; else of another number of them. None: nothing was answered so far.
        """
        paces = self._paces_per_s
        return paces.get(users, next(reversed(paces.values()), None))

    def _lead_in_ns(self, settings: Any) -> int:
        """As asked for; of a closed loop at least until those who began together have all been answered, at its pace.

        Users who begin at one time are answered one after another, each later than it will be: a window that began
        with them would count half of what is under way at its end on top of all that was done (METHODOLOGY). No request
        lives longer than its time-out, and in turn with others no arm takes all of the time (`LONGEST_IN_TURN_NS`).
        """
        asked_ns, pace_per_s = max(self._leads_ns, default=0), self.pace_per_s(settings.connections)
        if settings.loop == "open" or pace_per_s is None:
            return asked_ns
        generation_ns: float = settings.connections * self.load.work_each / pace_per_s * 1e9
        longest_ns: int = LONGEST_IN_TURN_NS if self._leads_ns else settings.timeout_ns
        return max(asked_ns, min(round(LEAD_IN * generation_ns), longest_ns))

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        """See `Session.measure`."""
        settings = at_intensity(self.load.settings, self.load.loop, intensity, users="connections")
        if duration_ns is not None:
            settings = settings.timed(duration_ns)
        settings = replace(settings, seed=settings.seed + next(self._windows))
        lead_ins_ns = self._lead_in_ns(settings), LONGEST_IN_TURN_NS
        self._leads_ns.clear()
        measurement = self._drive(settings, start_ns, lead_ins_ns)
        window = measurement.window.model_copy(update={"at": intensity})
        return replace(measurement, window=window)

    def close(self) -> None:
        """Its process ends."""
        self._there.clear()
        self._process.close()

    def _drive(self, settings: Any, start_ns: int | None = None, lead_ins_ns: tuple[int, int] = (0, 0)) -> Measurement:
        log = self.client.directory / f"requests-{next(self._numbers)}.bin" if settings.log_requests else None
        spec = self.asked(settings) | driven(settings, self.client, log, start_ns, lead_ins_ns)
        timeout_s = (max(lead_ins_ns) + settings.time_limit_ns + settings.timeout_ns) / 1e9 + ahead_s(start_ns)
        report, looked = self._told(spec, timeout_s), bool(spec["books"])
        measurement = measurement_of(report, log, self.load.request, self.load.work_each, looked=looked)
        if (pace_per_s := pace_of(measurement.window, self.load.work_each)) is not None:
            self._paces_per_s.setdefault(settings.connections, pace_per_s)
        return measurement

    def _told(self, spec: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """What the generator reports of a window. TrialError where it fails, is killed, or outlives ``timeout_s``."""
        if not self._there:
            command = (self.load.generator, self.verb)
            self._there.append(self._process.enter_context(conversing(self.client, command, " ".join(command))))
        try:
            return self._there[0].ask(json.dumps(spec).encode(), timeout_s + _SPARE_S)
        except BaseException:
            self._there[0].end()  # nobody awaits what it does
            self.close()
            raise


def pace_of(window: Window, work_each: int = 1) -> float | None:
    """Units of work a second, of all that was asked for in a window, by the time until the last of it was answered; or
    of those that were answered within it, by its length, where that is more: one that hung is not the pace. No part of
    a request stands for a whole one, as in a brief window's rate. None where nothing was served.
    """
    if not window.served or window.until_ns is None or window.until_ns <= window.asked_from_ns:
        return None
    within = window.counts.get("completed", 0) * work_each / window.duration_ns if window.duration_ns else 0.0
    return 1e9 * max(window.served / (window.until_ns - window.asked_from_ns), within)


def _threads(cpus: int, settings: NativeSettings) -> int:
    """In open loop a thread has its own part of the rate and of the connections: with few of them its requests would
    often wait while another's are free.
    """
    least = _LEAST_CONNECTIONS if settings.loop == "open" else 1
    return max(1, min(cpus, settings.connections // least))


def driven(
    settings: NativeSettings,
    client: Client,
    log: Path | None,
    start_ns: int | None,
    lead_ins_ns: tuple[int, int] = (0, 0),
) -> dict[str, Any]:
    """How the generator is to ask, whatever it asks for (rust/load/src/spec.rs). ``start_ns``: when the window begins,
    after its lead-in, by CLOCK_MONOTONIC of the client's host; without one the lead-in is as long as the first of
    ``lead_ins_ns``, and goes on to the second at the most until all users are there.
    """
    lead_in_ns, most_ns = lead_ins_ns
    loop: dict[str, Any]
    if settings.loop == "closed":
        loop = {
            "connections": settings.connections,
            "requests": settings.most_requests or None,
            "time_limit_ns": settings.time_limit_ns,
        }
    else:
        loop = {
            "rate_per_s": settings.rate_per_s,
            "arrival": settings.arrival,
            "duration_ns": settings.time_limit_ns,
            "seed": settings.seed,
            "max_connections": settings.connections,
        }
    return {
        "threads": _threads(client.cpus, settings),
        "cpus": sorted(client.confinement.cpus or ()),
        "loop": {settings.loop: loop},
        "start_ns": None if start_ns is None else start_ns - lead_in_ns,
        "lead_in_ns": lead_in_ns,
        "lead_in_most_ns": most_ns,
        "timeout_ns": settings.timeout_ns,
        # A window that a number of requests ends is over before anybody knows.
        "books": {} if settings.most_requests else {name: str(path) for name, path in client.books.items()},
        "request_log": None if log is None else str(log),
        "log_limit": REQUEST_LOG_LIMIT,
    }


def measurement_of(
    report: dict[str, Any], log: Path | None, request: str = "request", work_each: int = 1, *, looked: bool = False
) -> Measurement:
    """What the generator reports (rust/load/src/measure.rs), typed.

    ``work_each``: units of work in a request, of which ``request`` is the word. The window's work is in units; events,
    counts, histograms and log are of requests, for those are what was asked for and answered one by one. ``looked``: it
    had books to look at.
    """
    drain, extent, window, lead_in = report["drain"], report["log"], report["window"], report["lead_in"]
    lateness = None if report["lateness"] is None else histogram(report["lateness"])
    events = Events(
        **{name: report[name] for name in ("intended", "offered", "completed", "failures", "queued")},
        censored=sum(report["failures"].values()),
        drain=None if drain is None else Drain.model_validate(drain),
        late=late(lateness),
        latest_ns=latest_ns(lateness),
        log=None if extent is None else LogExtent.model_validate(extent),
    )
    counts = {"completed": window["completed"], "body_bytes": window["body_bytes"]}
    if report.get("handshakes") is not None:
        counts["handshakes"] = report["handshakes"]
    if (users := report["users"]) is not None and users["there_ns"]:
        counts |= {STARTING_MS: users["beginning_ns"] // 10**6, THERE_MS: users["there_ns"] // 10**6}
    if lead_in is not None:
        early = {kind: count for kind, count in lead_in["failures"].items() if count}
        sent = lead_in["completed"] + sum(early.values())
        events = events.model_copy(update={"early": sent, "early_failures": early})
    told = Window(
        start_ns=window["start_ns"],
        duration_ns=window["end_ns"] - window["start_ns"],
        work=(window["completed"] + (window["partial"] or 0.0)) * work_each,
        asked_ns=None if lead_in is None else lead_in["start_ns"],
        served=sum(part["completed"] for part in (lead_in, window, drain) if part is not None) * work_each,
        until_ns=max([window["end_ns"], *(part["end_ns"] for part in (lead_in, drain) if part is not None)]),
        counts=counts,
        events={request: events},
        cpu_ns=window["cpu_user_ns"] + window["cpu_system_ns"],
        booked=_booked(window) if looked else None,
        begun_ns=report.get("begun_ns"),
    )
    return Measurement(f"virtoll-load {__version__}", told, Bulk(histogram(report["histogram"]), lateness, log))


def _booked(window: dict[str, Any]) -> Booked:
    if (told := window["booked"]) is None:
        return Booked(from_ns=window["start_ns"], to_ns=window["end_ns"], cpu_ns={})
    return Booked.model_validate(told)
