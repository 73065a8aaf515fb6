"""What all loads of viewers share: a crowd that joins, watches and leaves, and the players that they have.

They are the native generator's (rust/load/src/view): they do not decode, but check what comes, and know what a player
would make of it. A load of viewers says what it asks for by which protocol; all else is here.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar, Literal

from virtoll import __version__, binaries, films
from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.hosts.open_files import too_many
from virtoll.lab.client import Client, most_connected
from virtoll.loads.base import (
    Bulk,
    Intensity,
    Load,
    Measurement,
    Session,
    cpus_of_users,
    histogram,
    late,
    latest_ns,
    where_untold,
)
from virtoll.loads.conversation import ahead_s, conversing
from virtoll.offers import Film, Offer
from virtoll.record.model import (
    ABSENT,
    FALLEN_MS,
    MEDIA_AGE,
    STANDING,
    STARTING_MS,
    THERE_MS,
    VIEW,
    WAKES,
    WAKES_LATE,
    Drain,
    Events,
    Measured,
    Quantity,
    Window,
)
from virtoll.study.gathering import EXPLORING, gather
from virtoll.study.search import DOUBLING
from virtoll.units import within

_REFILL_NS = 500_000_000  # as rust/load/src/view/player.rs has it
_SPARE_S = 60.0  # for joins that are drawn, beyond their mean
AGE = MEDIA_AGE  # mean, of live media whose age was known when they came; nothing, where none was
AGED = {AGE: Quantity("Age of live media when they come", "ms", "less")}
STARTUP = "start-up"  # a join, and the wait until play begins

_QUANTITIES = {
    "watching_percent": Quantity("Time in which viewers watch", "%", "more"),
    "stalled_percent": Quantity("Stalled share of the viewing time", "%", "less"),
    "stalls_per_hour": Quantity("Stalls per hour of viewing", "1/h", "less"),
    "goodput_mbit_per_s": Quantity("Goodput per viewer", "Mbit/s", "more"),
}


@dataclass(frozen=True)
class ViewingSettings:
    """Settings of viewers. They join by their schedule and watch for ``settle``; then the window, of ``time_limit``,
    begins. When one leaves (its stay is over, the media end, something failed), another joins in its place.

    Start-ups are of all joins, and each window has viewers of its own; but in a search ([knee]) who is there stays for
    the next window, others come as fast as they are served (`study.gathering`), and start-ups are those of its
    ``churn``; and so does in rotation who pauses (`ViewingLoad.pauses_over_ns`).
    """

    viewers: int = within(1, least=1, most=1_000_000)
    bitrate_bit_per_s: float = within(900_000.0, least=1000.0, most=1e10)  # of the best quality
    clip_ns: int = within(60 * 10**9, least=10**9)
    paced: bool = True  # unpaced, a viewer reads as fast as it can
    startup_ns: int = within(2 * 10**9, least=1)  # of media that are there when play begins
    resume_ns: int = within(2 * 10**9, least=1)  # of media that are there when it goes on after a stall
    buffer_ns: int = within(10 * 10**9, least=1)  # of media that are read ahead
    patience_ns: int = within(20 * 10**9, least=1)  # after so long a wait, at the start or in a stall, a viewer fails
    join_ns: int = 0  # between two joins; 0: all at once
    arrival: Literal["constant", "poisson"] = "constant"  # poisson: join is the mean
    stay_ns: int = 0  # from when play begins: mean, exponentially distributed; 0: as long as there are media
    rest_ns: int = 10**9  # after a failure, until another joins in its place
    # In a search: so many of a window's viewers leave within it, one after another, and others join in their places.
    churn_share: float = within(0.1, least=0.001, most=1)
    settle_ns: int = 5 * 10**9
    warm_up_ns: int = 0  # as many viewers for so long, once, before anything is measured
    time_limit_ns: int = within(10 * 10**9, least=1)
    # Kernel memory for what came over a connection and is not read; 0: the kernel's own rule. About half of it is the
    # window, of which a round trip brings one: over a path of much delay a high bit rate needs more.
    receive_bytes: int = within(65_536, most=2**30)
    seed: int = within(1, most=2**63 - 1)  # of all that is drawn

    @property
    def film(self) -> Film:
        """What is watched, by a protocol that carries encoded media."""
        return Film(self.clip_ns, round(self.bitrate_bit_per_s))


class ViewingLoad(Load):
    """Viewers, by whatever protocol."""

    speaks_tls: ClassVar[bool] = False
    generator: ClassVar[str] = "virtoll-load"
    publishes_where: ClassVar[str] = ""  # the setting of a service for which it publishes its film all the time
    settings: ViewingSettings

    @property
    def pauses_over_ns(self) -> int | None:
        """In rotation viewers stay from window to window, and pause while others are measured; then they go on one by
        one over so long, a part of what they watch. None: each window has viewers of its own.
        """
        return None

    @property
    def goes_on_within_ns(self) -> int:
        """The least time in which all who paused watch again; 0 where none do."""
        return 0

    @property
    def unit(self) -> str:
        """A second of media that one viewer watched: their rate is how many are served."""
        return "viewer-second"

    @property
    def request(self) -> str:
        """A start-up."""
        return STARTUP

    @property
    def loop(self) -> Literal["closed", "open"]:
        """Paced, the clock says when viewers read, and viewers join by a schedule."""
        return "open" if self.settings.paced else "closed"

    @property
    def intensity(self) -> Intensity:
        """Viewers, in either loop. The more too many they are, the longer those who stay take to be served again."""
        return Intensity("viewers", whole=True, explored_by=EXPLORING if self.settings.paced else DOUBLING)

    @property
    def quantities(self) -> dict[str, Quantity]:
        """How well they watched."""
        return _QUANTITIES

    def lead_in_ns(self, told_ns: int, intensity: float | None = None) -> int:
        """Who pauses goes on for as long as the rotation says. In a search, and of other viewers, all join and settle,
        whatever it says.
        """
        if self.pauses_over_ns is not None and intensity is None:
            return told_ns
        viewers = self.settings.viewers if intensity is None else intensity
        return self.settings.settle_ns + round(self.settings.join_ns * viewers)

    @abstractmethod
    def asked(self, offer: Offer) -> dict[str, Any]:
        """The ``target`` and the ``media`` that each viewer asks for, as the generator reads them
        (rust/load/src/view/spec.rs). TrialError where they do not speak what is offered.
        """

    def told(self, window: dict[str, Any]) -> tuple[dict[str, float], dict[str, int]]:  # noqa: ARG002
        """What its protocol tells of a window (the report's, rust/load/src/view/mod.rs) besides: quantities that could
        be told, and counts.
        """
        return {}, {}

    def check(self, host: Host) -> list[Problem]:  # noqa: ARG002
        """The generator, that it may open as many connections, that a player with these settings can play, and that a
        film can be made.
        """
        problems, settings = films.problems(self.content) if isinstance(self.content, Film) else [], self.settings
        problems += binaries.missing(self.generator)
        problems += self.too_many(settings.viewers, "[load] viewers")
        if max(settings.startup_ns, settings.resume_ns) > settings.buffer_ns:
            what = "a player that reads less ahead than it begins with never begins"
            problems.append(Problem(what, "[load] startup, resume, buffer", "make the buffer the largest of them"))
        return problems

    @property
    def piece_ns(self) -> int:
        """How much comes to a viewer at once, at the most: what was ahead at the most is told by so long a look."""
        return min(_REFILL_NS, self.settings.buffer_ns // 4)

    @property
    def files_each(self) -> int:
        """Files that a viewer has open, at the least: its connection."""
        return 1

    def too_many(self, viewers: int, where: str) -> list[Problem]:
        """What is said where so many viewers are more than the generator may open connections for."""
        return too_many("viewers", viewers, self.files_each, where)

    def most_here(self, cpus: int) -> float:
        """As many as it may open connections for, by files and by ports."""
        return most_connected(self.files_each, cpus)

    def usable_cpus(self, cpus: int, intensity: float | None = None) -> float | None:
        """Of its threads, one for each CPU, those that have a viewer. (A publisher's little is counted with theirs.)"""
        return cpus_of_users(self.settings.viewers if intensity is None else round(intensity), cpus)

    def session(self, client: Client, offer: Offer) -> AbstractContextManager[Session]:
        """Viewers come with the first window."""
        return watching(ViewingSession(self, client, self.asked(offer)))

    def measured(self, measurements: list[Measurement]) -> Measured:
        """The record; a quantity that some window could not tell (nobody watched) is not in it."""
        windows = [measurement.window for measurement in measurements]
        told = {key: q for key, q in self.quantities.items() if all(key in window.values for window in windows)}
        notes = where_untold("stalled_percent", windows, "nobody watched", "stalls")
        return super().measured(measurements).model_copy(update={"quantities": told, "notes": notes})


@dataclass(frozen=True)
class ViewingSession(Session):
    """A crowd of viewers, by one process of the generator from the first window on until it rests."""

    load: ViewingLoad
    client: Client
    asked: dict[str, Any]
    _crowds: Iterator[int] = field(default_factory=count)  # each has draws of its own, the same in every session
    _standing: list[Crowd] = field(default_factory=list)  # the one that is there, if one is
    _leads_ns: list[int] = field(default_factory=list)  # of the next window's crowd, if it is one that pauses
    _sooner_ns: list[int] = field(default_factory=list)  # than the next crowd needs it is to be there
    _starved: list[bool] = field(default_factory=list)  # whether the one that is there was in its last window

    def warm_up(self, duration_ns: int | None = None) -> None:
        """Let as many viewers watch for ``duration_ns``, or its settings' ``warm_up_ns``, and keep nothing of it."""
        settings = self.load.settings
        if (length_ns := settings.warm_up_ns if duration_ns is None else duration_ns) > 0:
            self._drive(replace(settings, time_limit_ns=length_ns, settle_ns=0))
            self.rest()

    def lead_in(self, duration_ns: int) -> None:
        """Nothing yet: each window's viewers settle; those who paused watch for so long before it."""
        self._leads_ns[:] = [duration_ns] if self.load.pauses_over_ns else []

    @property
    def lead_ns(self) -> int:
        """All join and settle before."""
        return self.load.settings.settle_ns + _most_joins_ns(self.load.settings, self.load.settings.viewers)

    def lead_at_least(self, duration_ns: int) -> None:
        """Who is to be there while others' viewers still join comes sooner, and settles for longer."""
        self._sooner_ns[:] = [max(0, duration_ns - self.lead_ns)]

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        """See `Session.measure`; the intensity is the number of viewers. They begin to join before the window by as
        long as they need; where ``start_ns`` leaves no time for that, the generator says so.

        Who was there in the window before stays. Where an intensity is asked for there is a churn, and start-ups are
        told of joins within the window alone; else of all. In rotation who pauses does so after it.
        """
        settings = self.load.settings
        settings = replace(
            settings,
            viewers=settings.viewers if intensity is None else round(intensity),
            settle_ns=settings.settle_ns + (self._sooner_ns.pop() if self._sooner_ns else 0),
            time_limit_ns=settings.time_limit_ns if duration_ns is None else duration_ns,
        )
        if intensity is not None:
            self._leads_ns.clear()  # of a search no crowd pauses
        measurement = self._drive(settings, start_ns, churns=intensity is not None)
        return replace(measurement, window=measurement.window.model_copy(update={"at": intensity}))

    def recover(self) -> None:
        """Before the next window so many leave that the others are well served again. Nobody stays who pauses, or reads
        as fast as it can.
        """
        if self.load.settings.paced and not self.load.pauses_over_ns:
            self._starved[:] = [True]
        else:
            self.rest()

    def rest(self) -> None:
        """All leave, but who pauses: they ask for nothing."""
        if self._standing and not self._standing[0].pauses:
            self.end()

    def end(self) -> None:
        """All leave."""
        while self._standing:
            self._standing.pop().leave()

    def gather(self, intensity: float) -> None:
        """See `Session.gather`: as fast as they are served (`study.gathering`). Unpaced, viewers read as fast as they
        can at all times.
        """
        settings, wanted = self.load.settings, round(intensity)
        if not settings.paced:
            return

        def look(viewers: int, length_ns: int) -> Mapping[str, Any]:
            asked = replace(settings, viewers=viewers, settle_ns=0, time_limit_ns=length_ns)
            told: dict[str, Any] = self._told(lambda crowd: crowd.report(asked, None, anew=0))["window"]
            return told

        piece_ns, half = self.load.piece_ns, wanted // 2
        is_starved = bool(self._starved) and self._there > half
        if is_starved and not (half and gather(look, self._there, half, piece_ns, settings.buffer_ns)):
            self.end()  # nor does half of it recover
        self._starved.clear()
        gather(look, self._there, wanted, max(settings.settle_ns, piece_ns), settings.buffer_ns)

    @property
    def _there(self) -> int:
        return self._standing[0].viewers if self._standing else 0

    def _drive(self, settings: ViewingSettings, start_ns: int | None = None, *, churns: bool = False) -> Measurement:
        lead_ns = self._leads_ns.pop() if self._leads_ns else None
        over_ns = None if lead_ns is None else self.load.pauses_over_ns
        anew = math.ceil(round(settings.churn_share * settings.viewers, 6)) if churns else None
        report = self._told(lambda crowd: crowd.report(settings, start_ns, anew=anew, lead_ns=lead_ns, over_ns=over_ns))
        return measurement_of(report, settings, *self.load.told(report["window"]))

    def _told(self, asked: Callable[[Crowd], dict[str, Any]]) -> dict[str, Any]:
        """What the crowd that is there reports, or one that begins with this."""
        if not self._standing:
            settings = self.load.settings
            seeded = replace(settings, seed=settings.seed + next(self._crowds))
            self._standing.append(Crowd(self.client, specification(seeded, self.asked, self.client)))
        try:
            return asked(self._standing[0])
        except BaseException:
            self._standing[0].end()
            self.end()
            raise


class Crowd:
    """Viewers who stay from window to window, by one process of the generator, which was told ``spec``."""

    def __init__(self, client: Client, spec: dict[str, Any]) -> None:
        self._process = ExitStack()
        self._conversation = self._process.enter_context(
            conversing(client, ("virtoll-load", "view"), "the viewers", spec)
        )
        self.viewers = 0  # who are there by the last order
        self.pauses = False

    def report(
        self,
        settings: ViewingSettings,
        start_ns: int | None,
        *,
        anew: int | None,
        lead_ns: int | None = None,
        over_ns: int | None = None,
    ) -> dict[str, Any]:
        """What the generator reports of a window (rust/load/src/view/mod.rs). TrialError where it fails.

        ``anew``: so many leave within it and come anew, and start-ups are theirs; None: they are of all joins. Where
        the crowd is the one that it was, nothing has to settle. ``lead_ns``: it pauses after the window, and where it
        is the one that it was, goes on for so long before it, one after another over ``over_ns``.
        """
        if settings.viewers == self.viewers:
            settings = replace(settings, settle_ns=lead_ns or 0)
        self.viewers, self.pauses = settings.viewers, lead_ns is not None
        asked = order(settings, start_ns, anew=anew, pauses_over_ns=over_ns)
        patience_ns = settings.patience_ns * (2 if self.pauses else 1)  # until they play, and till each has paused
        length_ns = settings.settle_ns + settings.time_limit_ns + patience_ns
        joins_s = _most_joins_ns(settings, settings.viewers) / 1e9
        expected_s = length_ns / 1e9 + max(joins_s, ahead_s(start_ns)) + _SPARE_S
        return self._conversation.ask(json.dumps(asked).encode(), expected_s)

    def end(self) -> None:
        """The process ends at once: nobody awaits what it does."""
        self._conversation.end()

    def leave(self) -> None:
        """All of them, and the process ends."""
        self._process.close()


@contextmanager
def watching(session: ViewingSession) -> Iterator[ViewingSession]:
    """A session whose viewers leave at the end of the block."""
    try:
        yield session
    finally:
        session.end()


def _most_joins_ns(settings: ViewingSettings, joins: int) -> int:
    """How long it may take until so many have joined: of gaps that are drawn, a few may be many times their mean."""
    return (2 * joins + 20) * settings.join_ns


def specification(settings: ViewingSettings, asked: dict[str, Any], client: Client) -> dict[str, Any]:
    """What the generator reads first (rust/load/src/view/spec.rs)."""
    player = ("paced", "startup_ns", "resume_ns", "buffer_ns", "patience_ns")
    return {
        **asked,
        "player": {name: getattr(settings, name) for name in player},
        "threads": max(1, client.cpus),
        "cpus": sorted(client.confinement.cpus or ()),
        "join": {"arrival": settings.arrival, "every_ns": settings.join_ns},
        "stay_ns": settings.stay_ns or None,
        "rest_ns": settings.rest_ns,
        "seed": settings.seed,
        "receive_bytes": settings.receive_bytes,
    }


def order(
    settings: ViewingSettings,
    start_ns: int | None = None,
    *,
    anew: int | None = None,
    pauses_over_ns: int | None = None,
) -> dict[str, Any]:
    """What it reads of one window."""
    return {
        "viewers": settings.viewers,
        "anew": anew,
        "settle_ns": settings.settle_ns,
        "duration_ns": settings.time_limit_ns,
        "start_ns": start_ns,
        "pauses_over_ns": pauses_over_ns,
    }


def measurement_of(
    report: dict[str, Any], settings: ViewingSettings, values: dict[str, float], counts: dict[str, int]
) -> Measurement:
    """What the generator reports (rust/load/src/view/mod.rs), typed; ``values`` and ``counts``: a protocol's own."""
    window, joins, views = report["window"], report["joins"], report["views"]
    drain = joins["drain"]
    lateness = histogram(report["lateness"]) if settings.paced else None
    startups = Events(
        intended=joins["offered"],
        offered=joins["offered"],
        completed=joins["started"],
        failures=joins["failures"],
        censored=sum(joins["failures"].values()),
        drain=None
        if drain is None
        else Drain(under_way=drain["under_way"], completed=drain["started"], end_ns=drain["end_ns"]),
        late=late(lateness),
        latest_ns=latest_ns(lateness),
    )
    broken = sum(views["failures"].values())
    watched = Events(
        intended=views["begun"],
        offered=views["begun"],
        completed=views["begun"] - broken,
        failures=views["failures"],
        censored=broken,
    )
    counted = ("stalls", "answers", "segments", "messages", "skipped", "switches", "reads")
    told = Window(
        start_ns=window["start_ns"],
        duration_ns=window["end_ns"] - window["start_ns"],
        work=window["media_ns"] / 1e9,
        until_ns=report["rests_ns"] or (drain or window)["end_ns"],  # till then all watch on
        values=_values(window, settings.viewers) | values,
        counts={
            "body_bytes": window["media_bytes"],
            **{name: window[name] for name in counted},
            **{name: report[name] for name in ("connects", WAKES, WAKES_LATE)},
            **_buffers(window),
            ABSENT: views["absent"],
            **counts,
            **({} if report["rests_ns"] is None else _going_on(window)),
        },
        events={STARTUP: startups, VIEW: watched},
        cpu_ns=window["cpu_user_ns"] + window["cpu_system_ns"],
    )
    return Measurement(f"virtoll-load {__version__}", told, Bulk(histogram(report["histogram"]), lateness))


def _buffers(window: dict[str, Any]) -> dict[str, int]:
    """By how much buffers fell. What comes in pieces longer than the window may all have come before it: so much less
    is ahead at the most within it, and nothing is wrong.
    """
    pieces_ns = max(0, window["most_ns"] - (window["end_ns"] - window["start_ns"]))
    fallen_ns = window["fallen_ns"] - window["standing"] * pieces_ns
    return {STANDING: window["standing"], FALLEN_MS: max(0, fallen_ns) // 10**6}


_STATES = ("playing_ns", "stalled_ns", "starting_ns", "gone_ns")


def _going_on(window: dict[str, Any]) -> dict[str, int]:
    """How far those who had paused were not watching again: until then they ask for more than at any other time."""
    return {
        STARTING_MS: window["starting_ns"] // 10**6,
        THERE_MS: sum(window[state] for state in _STATES) // 10**6,
    }


def _values(window: dict[str, Any], viewers: int) -> dict[str, float]:
    """The quantities. Stalls are of the time in which there was something to watch: none, where nobody began to; that
    nobody watched, and that nothing came, is known all the same, and no better than anything that did.
    """
    duration_ns = window["end_ns"] - window["start_ns"]
    viewing_ns = window["playing_ns"] + window["stalled_ns"]
    there_ns = sum(window[state] for state in _STATES)
    told = {"goodput_mbit_per_s": window["media_bytes"] * 8e3 / duration_ns / viewers}
    if window["ages"]:
        told[AGE] = window["age_ns"] / window["ages"] / 1e6
    if there_ns:
        told["watching_percent"] = 100 * window["playing_ns"] / there_ns
    if viewing_ns:
        told["stalled_percent"] = 100 * window["stalled_ns"] / viewing_ns
        told["stalls_per_hour"] = window["stalls"] * 3600e9 / viewing_ns
    return told
