"""Participants of a conference by WebRTC: a few send a webcam or a desktop, and all watch all that is sent.

They are those of a native generator (rust/confer): they decrypt, order and repair what comes, ask for key frames,
and do not decode; what a screen would show follows from which frames are whole. One who leaves of itself, or never
comes in, is data.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar, Literal

from virtoll import binaries, footage, voice
from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.images.base import Wanted
from virtoll.lab.client import Client
from virtoll.loads import browser, sights
from virtoll.loads.base import Intensity, Load, Measurement, Session, cpus_of_users, where_untold
from virtoll.loads.conference import AUDIO, DESKTOP, JOIN, QUANTITIES, WEBCAM, measurement_of
from virtoll.loads.conversation import Conversation, ahead_s, conversing
from virtoll.loads.watchers import Chromium, Watchers, started
from virtoll.offers import Codec, Footage, JanusRoom, LiveKitRoom, Offer, Room, Voice
from virtoll.record.model import Measured, Quantity
from virtoll.units import within

_SPARE_S = 60.0
_SIZE = re.compile(r"([1-9]\d{1,3})x([1-9]\d{1,3})")
_AHEAD_NS = 2 * 10**9  # of the first join: the generator reads its order, and maybe its films, before
LEAST = 2  # participants, of whom one watches another
_WATCHER = "watcher"  # what all others are called


@dataclass(frozen=True)
class ParticipantsSettings:
    """Settings of participants. They come in one after another, ``join`` apart: first the desktops, then the webcams,
    then those who only watch. After the last of them and ``settle`` the window begins, of ``time_limit``.

    ``codec``: of all video that is sent.
    ``speakers``: so many of those who come first speak, in Opus of ``audio_bitrate``, and all hear the mix of them at
    that rate; 0: there is no audio.
    ``browsers``: so many headless Chromiums' pages are in the room besides, which watch all that is sent.
    ``levels``: a ramp. At each of these numbers of participants there is a window, and nobody leaves between them.
    ``objective``: what each level of a ramp is held against, as a [knee] has it.
    Without levels each window has ``participants`` of its own, who come in before it. ``compression``: of time; joins
    are so many times closer together. Who fails comes in again ``rest`` later.
    """

    participants: int = within(10, least=1, most=100_000)
    levels: tuple[int, ...] = ()
    objective: tuple[str, ...] = ()
    desktops: int = within(1, most=100)
    webcams: int = within(8, most=1000)
    desktop_bitrate_bit_per_s: float = within(500_000.0, least=30_000, most=2e7)
    desktop_size: str = "1280x720"
    desktop_frames_per_s: float = within(5.0, least=1, most=60)
    webcam_bitrate_bit_per_s: float = within(300_000.0, least=30_000, most=2e7)
    webcam_size: str = "640x360"
    webcam_frames_per_s: float = within(15.0, least=1, most=60)
    codec: Codec = "vp8"
    join_ns: int = 100 * 10**6
    compression: float = within(1.0, least=1, most=1000)
    patience_ns: int = within(10 * 10**9, least=10**9, most=600 * 10**9)  # for a join, and for a stream's first packet
    rest_ns: int = 10**9
    settle_ns: int = 5 * 10**9
    time_limit_ns: int = within(10 * 10**9, least=10**9)
    seed: int = within(1, most=2**63 - 1)  # where in its footage each begins
    speakers: int = within(0, most=1000)
    audio_bitrate_bit_per_s: float = within(32_000.0, least=6_000, most=256_000)  # what libopus takes for one channel
    browsers: int = within(0, most=16)

    @property
    def every_ns(self) -> int:
        """Between two joins."""
        return round(self.join_ns / self.compression)


class ParticipantsLoad(Load):
    """Participants of a conference."""

    name: ClassVar[str] = "participants"
    summary: ClassVar[str] = (
        "participants of a conference by WebRTC: joins, loss, freezes, jitter; ramps in one session"
    )
    takes: ClassVar[tuple[type[Offer], ...]] = (Room,)
    speaks_tls: ClassVar[bool] = False
    generator: ClassVar[str] = "virtoll-confer"
    Settings: ClassVar[type[ParticipantsSettings]] = ParticipantsSettings
    settings: ParticipantsSettings

    @property
    def unit(self) -> str:
        """A second of one stream that one participant saw moving: what a server that passes streams on delivers."""
        return "stream-second"

    @property
    def request(self) -> str:
        """A join."""
        return JOIN

    @property
    def loop(self) -> Literal["closed", "open"]:
        """Participants come by a schedule, and send by the clock."""
        return "open"

    @property
    def intensity(self) -> Intensity:
        """Participants."""
        return Intensity("participants", whole=True)

    @property
    def unsearched(self) -> str:
        """A ramp says itself which levels it has."""
        return "a ramp has the levels that it is given" if self.settings.levels else ""

    def usable_cpus(self, cpus: int, intensity: float | None = None) -> float | None:
        """Of its threads, one for each CPU, those that have a participant (of a ramp at its end); with browsers all."""
        if self.settings.browsers:
            return max(1, cpus)
        own = max(self.levels, default=self.settings.participants)
        return cpus_of_users(own if intensity is None else round(intensity), cpus)

    @property
    def levels(self) -> tuple[int, ...]:
        """Of the ramp."""
        return self.settings.levels

    @property
    def kept(self) -> tuple[str, ...]:
        """Of the ramp."""
        return self.settings.objective

    @property
    def footage(self) -> tuple[Footage, ...]:
        """What desktops and webcams send, where there are any."""
        sent = (self._desktop if self.settings.desktops else None, self._webcam if self.settings.webcams else None)
        return tuple(each for each in sent if each is not None)

    @property
    def voice(self) -> Voice | None:
        """What speakers say, where there are any."""
        return Voice(round(self.settings.audio_bitrate_bit_per_s)) if self.settings.speakers else None

    @property
    def _desktop(self) -> Footage:
        told = self.settings
        return _sent(DESKTOP, told.desktop_size, told.desktop_frames_per_s, told.desktop_bitrate_bit_per_s, told.codec)

    @property
    def _webcam(self) -> Footage:
        told = self.settings
        return _sent(WEBCAM, told.webcam_size, told.webcam_frames_per_s, told.webcam_bitrate_bit_per_s, told.codec)

    @property
    def programs(self) -> Wanted:
        """Chromium, where there are browsers."""
        return Wanted(packages=browser.PACKAGES) if self.settings.browsers else Wanted()

    @property
    def quantities(self) -> dict[str, Quantity]:
        """What participants feel and hear, and what browsers see."""
        audio = AUDIO if self.settings.speakers else {}
        return QUANTITIES | audio | (sights.QUANTITIES if self.settings.browsers else {})

    def check(self, host: Host) -> list[Problem]:  # noqa: ARG002
        """The generator, that the footage can be made, and that a ramp goes up."""
        problems, levels = binaries.missing(self.generator), self.settings.levels
        for key in ("desktop_size", "webcam_size"):
            if _SIZE.fullmatch(text := getattr(self.settings, key)) is None:
                problems.append(Problem(f"{text!r} is no size of a picture", f"[load] {key}", 'write it so: "640x360"'))
        for key in ("desktop_frames", "webcam_frames"):
            if not float(number := getattr(self.settings, f"{key}_per_s")).is_integer():
                what = f"{number:g} is no whole number of frames a second, and footage has one"
                problems.append(Problem(what, f"[load] {key}", f"write {math.floor(number)}, or {math.ceil(number)}"))
        if not problems:
            problems += [problem for each in self.footage for problem in footage.problems(each)]
        if not self.footage:
            what = "nobody sends anything, and there is nothing to watch"
            problems.append(Problem(what, "[load] webcams, desktops", "let there be one at least"))
        if any(level < LEAST for level in levels) or list(levels) != sorted(set(levels)):
            what = f"a ramp goes up from {LEAST} on, and {', '.join(map(str, levels))} does not"
            remedy = "write them in ascending order; one who is alone has nobody to watch"
            problems.append(Problem(what, "[load] levels", remedy))
        if self.settings.objective and not levels:
            what = "an objective is held against the levels of a ramp, and there are none"
            remedy = "write levels; or search for the largest number of participants under it: [knee] objective"
            problems.append(Problem(what, "[load] objective", remedy))
        return problems

    def session(self, client: Client, offer: Offer) -> AbstractContextManager[Session]:
        """Of a ramp one conference, of any other windows one each. HostError where footage was not made."""
        assert isinstance(offer, Room)
        spec = specification(self, offer, client)
        return _ramp(self, client, spec, offer) if self.levels else _one_by_one(self, client, spec, offer)

    def measured(self, measurements: list[Measurement]) -> Measured:
        """The record; of a ramp with all that any window could tell, else with what all of them could."""
        windows = [measurement.window for measurement in measurements]
        enough = any if self.levels else all
        told = {key: q for key, q in self.quantities.items() if enough(window.tells(key) for window in windows)}
        untold = where_untold("frozen_percent", windows, "no stream was seen", "freezes")
        notes = [] if "frozen_percent" in told else untold
        return super().measured(measurements).model_copy(update={"quantities": told, "notes": notes})


def _sent(name: Literal["webcam", "desktop"], size: str, frames_per_s: float, bit_rate: float, codec: Codec) -> Footage:
    width, height = _sides(size)
    return Footage(name, width, height, round(frames_per_s), round(bit_rate), codec=codec)


def _sides(size: str) -> tuple[int, int]:
    """Width and height; (0, 0) of what is no size."""
    found = _SIZE.fullmatch(size)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def specification(load: ParticipantsLoad, offer: Room, client: Client) -> dict[str, Any]:
    """All that the generator reads before it is asked for a window (rust/confer)."""
    settings = load.settings
    films: dict[str, str] = {each.scene: str(footage.file(each)) for each in load.footage}
    senders = ((DESKTOP, settings.desktops), (WEBCAM, settings.webcams))
    roles = [
        {"name": name, "count": number, "film": films[name], "watches": True} for name, number in senders if number
    ]
    return {
        "server": _server(load, offer),
        "roles": [*roles, {"name": _WATCHER, "count": None, "film": None, "watches": True}],
        "codec": settings.codec,
        "threads": max(1, client.cpus),
        "cpus": sorted(client.confinement.cpus or ()),
        "patience_ns": settings.patience_ns,
        "rest_ns": settings.rest_ns,
        "seed": settings.seed,
    }


def _server(load: ParticipantsLoad, offer: Room) -> dict[str, Any]:
    """Whose room it is, and what opens it."""
    address = f"{offer.address}:{offer.port}"
    if isinstance(offer, LiveKitRoom):
        return {"livekit": {"address": address, "room": offer.room, "key": offer.key, "secret": offer.secret}}
    assert isinstance(offer, JanusRoom)
    told = {"address": address, "path": "/", "room": offer.room, "pin": None, "token": None, "api_secret": None}
    return {"janus": told | {"audio": _audio(load, offer)}}


def _audio(load: ParticipantsLoad, offer: JanusRoom) -> dict[str, Any] | None:
    """The room in which audio is mixed, and what is said there; None where nobody speaks."""
    if load.voice is None:
        return None
    return {
        "room": offer.audio_room,  # there is one: see virtoll.run.refusals
        "speakers": load.settings.speakers,
        "sound": str(voice.file(load.voice)),
        "bitrate_bit_per_s": load.voice.bit_rate,
    }


def order(settings: ParticipantsSettings, participants: int, start_ns: int | None) -> dict[str, Any]:
    """What it reads of one window."""
    return {
        "participants": participants,
        "every_ns": settings.every_ns,
        "settle_ns": settings.settle_ns,
        "duration_ns": settings.time_limit_ns,
        "start_ns": start_ns,
    }


@dataclass
class Conference:
    """Those who are in a room, by one process of the generator."""

    load: ParticipantsLoad
    conversation: Conversation
    watchers: Watchers | None = None  # the browsers, if there are some
    _there: int = 0  # who was in it when the last window ended
    _ordered: int = 0  # who was to be in it then

    def window(
        self, settings: ParticipantsSettings, participants: int, at: float | None, start_ns: int | None
    ) -> Measurement:
        """Have so many be there, and measure."""
        joins_s = settings.every_ns * max(0, participants - self._there) / 1e9
        length_ns = settings.patience_ns + settings.settle_ns + settings.time_limit_ns
        expected_s = length_ns / 1e9 + max(joins_s, ahead_s(start_ns)) + _SPARE_S
        if self.watchers is None:
            report = self.conversation.ask(_line(order(settings, participants, start_ns)), expected_s)
            measurement = measurement_of(report, self._there, at)
        else:
            start_ns = self._begins(settings, participants) if start_ns is None else start_ns
            self.conversation.write(_line(order(settings, participants, start_ns)) + b"\n")
            watched = self.watchers.watch(start_ns, settings.time_limit_ns)
            report = self.conversation.read(expected_s)
            measurement = watched.beside(measurement_of(report, self._there, at))
        self._there, self._ordered = report["window"]["joined_at_end"], participants
        return measurement

    def _begins(self, settings: ParticipantsSettings, participants: int) -> int:
        """When a window begins whose begin both the participants and the browsers are to know beforehand."""
        joins_ns = settings.every_ns * max(0, participants - self._ordered)
        return time.monotonic_ns() + _AHEAD_NS + joins_ns + settings.settle_ns


def _line(asked: dict[str, Any]) -> bytes:
    return json.dumps(asked).encode()


@contextmanager
def _conference(
    load: ParticipantsLoad, client: Client, spec: dict[str, Any], offer: Room, there: Chromium | None
) -> Iterator[Conference]:
    watchers = None
    if there is not None:
        assert isinstance(offer, JanusRoom)  # see virtoll.run.refusals
        watchers = Watchers(there, load.settings.browsers, offer)
    with conversing(client, (load.generator,), "the participants", spec) as conversation:
        try:
            yield Conference(load, conversation, watchers)
        finally:
            if watchers is not None:
                watchers.leave()


@contextmanager
def _ramp(load: ParticipantsLoad, client: Client, spec: dict[str, Any], offer: Room) -> Iterator[Session]:
    with _browsers(load, client) as there, _conference(load, client, spec, offer, there) as conference:
        yield RampSession(conference)


@contextmanager
def _one_by_one(load: ParticipantsLoad, client: Client, spec: dict[str, Any], offer: Room) -> Iterator[Session]:
    with _browsers(load, client) as there:
        yield ParticipantsSession(load, client, spec, offer, there)


def _browsers(load: ParticipantsLoad, client: Client) -> AbstractContextManager[Chromium | None]:
    """What they are pages of, for a session; None where the study has none."""
    return started(client) if load.settings.browsers else nullcontext()


@dataclass(frozen=True)
class RampSession(Session):
    """One conference, which grows from window to window."""

    conference: Conference

    def warm_up(self, duration_ns: int | None = None) -> None:
        """Nothing: in each window those who came in before it have settled."""

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        """See `Session.measure`; the intensity is the number of participants. Where it is less than before, those who
        came last leave.
        """
        settings = self.conference.load.settings
        if duration_ns is not None:
            settings = replace(settings, time_limit_ns=duration_ns)
        participants = settings.levels[0] if intensity is None else round(intensity)
        return self.conference.window(settings, participants, participants, start_ns)


@dataclass(frozen=True)
class ParticipantsSession(Session):
    """A conference for each window, whose participants all come in before it."""

    load: ParticipantsLoad
    client: Client
    spec: dict[str, Any]
    offer: Room
    chromium: Chromium | None
    _windows: Iterator[int] = field(default_factory=count)

    def warm_up(self, duration_ns: int | None = None) -> None:
        """Nothing: the participants of each window settle."""

    @property
    def lead_ns(self) -> int:
        """All come in and settle before."""
        settings = self.load.settings
        return settings.every_ns * settings.participants + settings.settle_ns

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        """See `Session.measure`; the intensity is the number of participants. Where ``start_ns`` leaves no time for
        them to come in, the generator says so.
        """
        settings = self.load.settings
        if duration_ns is not None:
            settings = replace(settings, time_limit_ns=duration_ns)
        participants = settings.participants if intensity is None else round(intensity)
        return self._measured(settings, participants, intensity, start_ns)

    def _measured(
        self, settings: ParticipantsSettings, participants: int, at: float | None, start_ns: int | None
    ) -> Measurement:
        spec = {**self.spec, "seed": settings.seed + next(self._windows)}
        with _conference(self.load, self.client, spec, self.offer, self.chromium) as conference:
            return conference.window(settings, participants, at, start_ns)
