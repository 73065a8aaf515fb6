"""Viewers of low-latency HLS: live, in parts (rust/load/src/view/live)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from virtoll.errors import Problem, TrialError
from virtoll.hosts.base import Host
from virtoll.lab.client import target_of
from virtoll.loads.base import Histogram, Measurement, histogram
from virtoll.loads.viewing import AGE, AGED, ViewingLoad, ViewingSettings
from virtoll.offers import Content, Http, LiveClip, LiveHttp, Offer
from virtoll.record.model import LEAST_BEYOND, LIVE_LATENCY, Measured, Quantity, beyond
from virtoll.record.objective import quantile_ns
from virtoll.units import url_path, within

_QUANTITIES = {
    LIVE_LATENCY: Quantity("Live latency: age of what is played, median", "ms", "less"),
    "live_latency_p99_ms": Quantity("Live latency, 99th percentile", "ms", "less"),
    "media_age_p99_ms": Quantity("Age of live media when they come, 99th percentile", "ms", "less"),
}
_MOST_PARTS = 10_000  # files, of a round
_MOST_EACH = 100  # parts of a segment: a playlist lists those of four, and is made anew for each
_WHY = (
    "the server's clock was not told, or not well enough, or jumped, its playlists are dated by another, or nothing "
    "came that was waited for"
)


_HOLD_BACK = 3  # parts behind the live edge, as our playlist says


@dataclass(frozen=True)
class LlHlsViewersSettings(ViewingSettings):
    """Settings of viewers of low-latency HLS. They begin as far behind the live edge as the playlist says, three parts
    of ours; whatever more a player wants before it plays delays its start, and all that it plays. With ``join`` they
    come at all moments of a part, and not all at the same one.

    In rotation they stay from window to window: they ``pause`` while others are measured, and go on at the live edge.
    """

    # What goes out live, all of it after ``clip`` again; times in whole milliseconds. Six segments are listed, which
    # must be three target durations, and those are of whole seconds.
    segment_ns: int = within(2 * 10**9, least=10**9, most=60 * 10**9)
    # Of the user's own `path` it is to be the server's: who paused go on at all moments of one. A proof waits for one.
    part_ns: int = within(200_000_000, least=20_000_000, most=10 * 10**9)
    path: str = url_path()  # "/live/index.m3u8": the user's own; "": ours
    # The user's own: where it tells its time (xs:dateTime, to the ms); "": nowhere: no ages are known.
    clock: str = url_path()
    clock_within_ns: int = within(10 * 10**6, least=10**6)  # ages are told where that time is known so well
    startup_ns: int = within(500_000_000, least=1)
    resume_ns: int = within(500_000_000, least=1)
    pause: bool = True  # in rotation; false: each window has viewers of its own, who join and settle before it

    @property
    def live(self) -> LiveClip:
        """What ours serves."""
        return LiveClip(self.clip_ns, self.segment_ns, self.part_ns, round(self.bitrate_bit_per_s))


class LlHlsViewersLoad(ViewingLoad):
    """Viewers of low-latency HLS."""

    name: ClassVar[str] = "ll-hls-viewers"
    summary: ClassVar[str] = "viewers of low-latency HLS: start-up, stalls, live latency, age; every byte checked"
    takes: ClassVar[tuple[type[Offer], ...]] = (Http,)
    own: ClassVar[str] = "path"
    Settings: ClassVar[type[LlHlsViewersSettings]] = LlHlsViewersSettings
    settings: LlHlsViewersSettings

    @property
    def pauses_over_ns(self) -> int | None:
        """Where the settings have them pause, a part: as many go on at each moment of one, whenever a turn begins."""
        return self.settings.part_ns if self.settings.pause else None

    @property
    def goes_on_within_ns(self) -> int:
        """Who begins anew has the hold-back of three parts at once, and what he is to have ahead besides as it comes.
        Three parts go by meanwhile: one over which they go on, one that each waits for, one for what lies further back.
        """
        part_ns = self.settings.part_ns
        more = max(0, -(-self.settings.startup_ns // part_ns) - _HOLD_BACK)
        return (_HOLD_BACK + more) * part_ns if self.settings.pause else 0

    @property
    def quantities(self) -> dict[str, Quantity]:
        """How well they watched, and how old what they got and saw was."""
        return super().quantities | AGED | _QUANTITIES

    @property
    def content(self) -> Content | None:
        """What goes out live; nothing of ours for a path of the user's."""
        return None if self.settings.path else self.settings.live

    def check(self, host: Host) -> list[Problem]:
        """See `ViewingLoad.check`; and that the media can be cut so, and the server is left to set the pace."""
        problems, settings = super().check(host), self.settings
        if not settings.paced:
            what = "what is live is watched as it comes, and cannot be read faster"
            problems.append(Problem(what, "[load] paced", "leave it out"))
        if settings.path:
            return problems
        if settings.clock:
            what = "our own service tells its time where it does"
            problems.append(Problem(what, "[load] clock", "leave it out, or name a `path` of your own"))
        if _HOLD_BACK * settings.part_ns > settings.buffer_ns:
            what = "who reads less ahead than three parts, the hold-back, never gets to the live edge"
            problems.append(Problem(what, "[load] part, buffer", "ask for shorter parts, or for a larger buffer"))
        return problems + _problems_of(settings.live)

    def asked(self, offer: Offer) -> dict[str, Any]:
        """The playlist. TrialError where it is spoken over TLS."""
        assert isinstance(offer, Http)
        if offer.certificate:
            where = f"{offer.kind} at {offer.address}:{offer.port}"
            raise TrialError("viewers speak plain HTTP", where=where, remedy="[service] tls = false")
        settings = self.settings
        clock = offer.clock_path if isinstance(offer, LiveHttp) else settings.clock
        told = {"path": clock, "within_ns": settings.clock_within_ns} if clock else None
        media = {"live": {"text": not settings.path, "clock": told}}
        return {"target": target_of(offer, settings.path or settings.live.path), "media": media}

    def told(self, window: dict[str, Any]) -> tuple[dict[str, float], dict[str, int]]:
        """Percentiles of ages and of latencies, each where enough came to tell it; how many parts were asked for before
        they were there and came, how many of them were not there after all, and how often a playlist was asked for; how
        well the server's clock was known.
        """
        live = window["live"]
        ages, latencies = histogram(live["ages"]), histogram(live["latencies"])
        told = {
            LIVE_LATENCY: _quantile_ms(latencies, 0.5),
            "live_latency_p99_ms": _quantile_ms(latencies, 0.99),
            "media_age_p99_ms": _quantile_ms(ages, 0.99),
        }
        counts = {name: live[name] for name in ("hinted", "unkept", "reloads")}
        if live["clock"] is not None:
            counts |= {f"clock_{key}_us": live["clock"][f"{key}_ns"] // 1000 for key in ("trip", "apart")}
        return {key: value for key, value in told.items() if value is not None}, counts

    def measured(self, measurements: list[Measurement]) -> Measured:
        """See `ViewingLoad.measured`; and why there are no ages. Of too few parts percentiles are missing alone."""
        record = super().measured(measurements)
        watched = [window.values for window in record.windows if "stalled_percent" in window.values]
        without = sum(AGE not in values for values in watched)
        if not without:
            return record
        note = f"how old the media were is not known: {_WHY}"
        if without < len(watched):
            of = f"in {without} of {len(record.windows)} windows"
            note = f"{of} it is not known how old the media were, which is not told of the trial: {_WHY}"
        return record.model_copy(update={"notes": [*record.notes, note]})


def _quantile_ms(ages: Histogram, q: float) -> float | None:
    """None where fewer than `LEAST_BEYOND` lie beyond it."""
    total = sum(count for _, _, count in ages)
    found_ns = quantile_ns(ages, q, total) if beyond(total, q) >= LEAST_BEYOND else None
    return None if found_ns is None else found_ns / 1e6


def _problems_of(clip: LiveClip) -> list[Problem]:
    """What keeps media from being cut so."""
    times = (clip.round_ns, clip.segment_ns, clip.part_ns)
    where = "[load] clip, segment, part"
    if any(time_ns % 10**6 for time_ns in times) or clip.round_ns % clip.segment_ns or clip.segment_ns % clip.part_ns:
        remedy = "write whole milliseconds: parts that divide a segment, segments that divide the clip"
        return [Problem(f"{clip} cannot be cut so", where, remedy)]
    if clip.segment_ns // clip.part_ns > _MOST_EACH or clip.round_ns // clip.part_ns > _MOST_PARTS:
        what = f"{clip} has more than {_MOST_EACH} parts in a segment, or {_MOST_PARTS:,} in all"
        return [Problem(what, where, "ask for a shorter clip, for shorter segments, or for longer parts")]
    return []
