"""What the native participants of a conference report of a window (rust/confer), typed.

A stream stands still while it is frozen, and from when it is subscribed to until its first picture is whole: one that
never comes is no better than one that has stopped. Frozen is what W3C's webrtc-stats calls so: a picture that comes
later after the one before than three times the mean of the last thirty gaps, and than that mean and 150 ms.

A first packet, or key frame, that never came took longer than any: a median that is among those has no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from virtoll import __version__
from virtoll.loads.base import Bulk, Histogram, Measurement, histogram, late, latest_ns
from virtoll.record.model import (
    DROPPED,
    JOINED,
    SENDS,
    SENDS_LATE,
    STAY,
    UNFINISHED,
    WAKES,
    WAKES_LATE,
    Events,
    Quantity,
    Window,
)
from virtoll.record.objective import quantile_ns

WEBCAM: Final = "webcam"  # those who send
DESKTOP: Final = "desktop"
JOIN = "join"  # to come in; to be there until one is asked to leave is STAY

QUANTITIES = {
    "present_percent": Quantity("Participants who are in, of the time", "%", "more"),
    "frozen_percent": Quantity("Streams that stand still, of the time that they are subscribed to", "%", "less"),
    "waiting_percent": Quantity("Of that: streams without a first picture", "%", None),
    "loss_percent": Quantity("Packets lost after repair", "%", "less"),
    "loss_before_percent": Quantity("Packets lost before repair", "%", None),
    "jitter_ms": Quantity("Interarrival jitter, mean of streams", "ms", "less"),
    "round_trip_ms": Quantity("Round trip to the server, mean", "ms", "less"),
    "rtcp_round_trip_ms": Quantity("Round trip of who sends, by RTCP, mean", "ms", "less"),
    "first_packet_ms": Quantity("Time to the first packet of a stream, median", "ms", "less"),
    "first_key_frame_ms": Quantity("Time to the first key frame of a stream, median", "ms", "less"),
    "webcam_mbit_per_s": Quantity("Bit rate of a webcam that is watched", "Mbit/s", None),
    "desktop_mbit_per_s": Quantity("Bit rate of a desktop that is watched", "Mbit/s", None),
}
# Where somebody speaks.
AUDIO = {
    "audio_silent_percent": Quantity("Participants who hear nothing, of the time since they came in", "%", "less"),
    "audio_waiting_percent": Quantity("Of that: before the first packet of audio", "%", None),
    "audio_missing_percent": Quantity(
        "Audio that did not come, of what the time since its first packet holds", "%", "less"
    ),
    "audio_loss_percent": Quantity("Packets of audio lost", "%", "less"),
    "audio_jitter_ms": Quantity("Interarrival jitter of audio, mean of participants", "ms", "less"),
    "audio_first_packet_ms": Quantity("Time from coming in to the first packet of audio, median", "ms", "less"),
    "audio_kbit_per_s": Quantity("Bit rate of the mix that a participant hears", "kbit/s", None),
}
_AUDIO_FRAME_NS = 20 * 10**6  # what a packet of the mix holds (AudioBridge's own, and RFC 7587's usual)
_RECEIVED = (
    "streams",
    "packets",
    "expected",
    "lost_before",
    "repaired",
    "lost",
    "duplicates",
    "frames",
    "key_frames",
    "freezes",
    "key_frames_asked",
    "nacks",
    "no_first_packet",
    "no_first_key_frame",
)


def measurement_of(report: dict[str, Any], before: int, at: float | None) -> Measurement:
    """What the generator reports of a window, typed; ``before``: how many were there when the last one ended."""
    window, joins, received = report["window"], report["joins"], report["received"]
    lateness, sent = histogram(joins["lateness"]), report["sent"].values()
    seen_ns = sum(each["watched_ns"] - each["frozen_ns"] for each in received.values())
    frames, late_frames = (sum(each[name] for each in sent) for name in ("frames", "late_frames"))
    totals = {name: sum(each[name] for each in received.values()) for name in _RECEIVED}
    audio, firsts = report["audio"], _firsts(report)
    told = Window(
        start_ns=window["start_ns"],
        duration_ns=window["end_ns"] - window["start_ns"],
        work=seen_ns / 1e9,
        values=_values(report) | {key: value for key, value in firsts.items() if value is not None},
        censored=[key for key, value in firsts.items() if value is None],
        counts={
            **totals,
            **_heard(audio),
            "stalls": totals["freezes"],
            "body_bytes": sum(each["media_bytes"] for each in received.values()),
            "joined_at_start": window["joined_at_start"],
            JOINED: window["joined_at_end"],
            "again": joins["again"],
            "frames_sent": frames,
            "key_frames_sent": sum(each["key_frames"] for each in sent),
            DROPPED: sum(each["dropped"] for each in received.values()),
            WAKES: window["wakes"],
            WAKES_LATE: window["wakes_late"],
            # Who sends is a part of the generator: frames that left late are of its own doing.
            SENDS: frames + audio["said"],
            SENDS_LATE: late_frames + audio["said_late"],
        },
        events={JOIN: _joins(joins, lateness), STAY: _stays(report["leaves"], before + joins["joined"])},
        cpu_ns=window["cpu_user_ns"] + window["cpu_system_ns"],
        at=at,
    )
    return Measurement(f"virtoll-confer {__version__}", told, Bulk(histogram(joins["time"]), lateness))


def _heard(audio: Mapping[str, Any]) -> dict[str, int]:
    """The counts of audio, where there was any to hear."""
    names = ("listeners", "unheard", "no_first_packet", "packets", "expected", "lost", "useless", "gaps", "said")
    return {f"audio_{name}": audio[name] for name in names} if audio["there_ns"] else {}


def _joins(joins: Mapping[str, Any], lateness: Histogram) -> Events:
    failures = dict(joins["failures"])
    if joins["under_way"]:
        failures[UNFINISHED] = joins["under_way"]
    return Events(
        intended=joins["offered"],
        offered=joins["offered"],
        completed=joins["joined"],
        failures=failures,
        censored=sum(failures.values()),
        late=late(lateness),
        latest_ns=latest_ns(lateness),
    )


def _stays(leaves: Mapping[str, Any], stays: int) -> Events:
    """Of all who were there at some time, who was lost. One whose join was under way when a window ended is told of
    where it is lost, and nowhere else.
    """
    lost = sum(leaves["failures"].values())
    stays = max(stays, lost)
    return Events(
        intended=stays, offered=stays, completed=stays - lost, failures=dict(leaves["failures"]), censored=lost
    )


def _values(report: Mapping[str, Any]) -> dict[str, float]:
    """The quantities, each where there is something that it could be of."""
    window, received = report["window"], report["received"]
    duration_ns = window["end_ns"] - window["start_ns"]
    streams = list(received.values())
    total = {
        name: sum(each[name] for each in streams)
        for name in ("watched_ns", "waiting_ns", "frozen_ns", "expected", "lost", "lost_before")
    }
    told = {"present_percent": 100 * window["present_ns"] / (window["participants"] * duration_ns)}
    if there_ns := total["watched_ns"] + total["waiting_ns"]:
        told["frozen_percent"] = 100 * (total["frozen_ns"] + total["waiting_ns"]) / there_ns
        told["waiting_percent"] = 100 * total["waiting_ns"] / there_ns
    if total["expected"]:
        told["loss_percent"] = 100 * total["lost"] / total["expected"]
        told["loss_before_percent"] = 100 * total["lost_before"] / total["expected"]
    for key, rows in (
        ("jitter_ms", [row for each in streams for row in each["jitter"]]),
        ("round_trip_ms", report["ice_rtt"]),
        ("rtcp_round_trip_ms", [row for each in report["sent"].values() for row in each["rtt"]]),
    ):
        if rows:
            told[key] = _mean_ns(rows) / 1e6
    for role in (WEBCAM, DESKTOP):
        each = received.get(role, {"watched_ns": 0, "waiting_ns": 0})
        if there_ns := each["watched_ns"] + each["waiting_ns"]:  # of a stream that came or went, its part of the window
            told[f"{role}_mbit_per_s"] = each["media_bytes"] * 8e3 / there_ns
    return told | _audio_values(report["audio"])


def _audio_values(audio: Mapping[str, Any]) -> dict[str, float]:
    """Those of audio; nothing where there was none to hear."""
    told: dict[str, float] = {}
    if there_ns := audio["there_ns"]:
        told["audio_silent_percent"] = 100 * (audio["silent_ns"] + audio["waiting_ns"]) / there_ns
        told["audio_waiting_percent"] = 100 * audio["waiting_ns"] / there_ns
    if heard_ns := audio["there_ns"] - audio["waiting_ns"]:
        told["audio_kbit_per_s"] = audio["bytes"] * 8e6 / heard_ns
        came_ns = _AUDIO_FRAME_NS * (audio["expected"] - audio["lost"])
        told["audio_missing_percent"] = 100 * max(0.0, 1 - came_ns / heard_ns)
    if audio["expected"]:
        told["audio_loss_percent"] = 100 * audio["lost"] / audio["expected"]
    if audio["jitter"]:
        told["audio_jitter_ms"] = _mean_ns(audio["jitter"]) / 1e6
    return told


def _firsts(report: Mapping[str, Any]) -> dict[str, float | None]:
    """Medians of how long the first of something took, where any was waited for; None: among those that never came."""
    streams = list(report["received"].values())
    waited = {key: [(each[key], each[f"no_{key}"]) for each in streams] for key in ("first_packet", "first_key_frame")}
    waited["audio_first_packet"] = [(report["audio"]["first_packet"], report["audio"]["no_first_packet"])]
    told: dict[str, float | None] = {}
    for key, of_each in waited.items():
        rows = histogram(sorted(row for came, _ in of_each for row in came))
        if total := sum(number for *_, number in rows) + sum(never for _, never in of_each):
            median_ns = quantile_ns(rows, 0.5, total)
            told[f"{key}_ms"] = None if median_ns is None else median_ns / 1e6
    return told


def _mean_ns(rows: list[list[int]]) -> float:
    """By the middles of the buckets."""
    return sum((lower + upper) / 2 * number for lower, upper, number in rows) / sum(number for *_, number in rows)
