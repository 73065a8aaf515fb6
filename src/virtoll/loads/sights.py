"""What browsers tell of the streams that they watch (watching.js), typed, and what came to pass between two tellings.

The figures are a browser's own, of W3C's webrtc-stats (https://www.w3.org/TR/webrtc-stats/): it counts a freeze, or a
pause, when the picture after it is shown. So a stream that showed nothing between two tellings stood still all the
while. Of one that stood still at either, the time between its frames (`totalInterFrameDelay`) tells which part of that
lay between the two: see `_across`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from virtoll.loads.conference import DESKTOP, WEBCAM
from virtoll.record.model import Quantity

QUANTITIES = {
    "browser_webcam_frames_per_s": Quantity("Frame rate of a webcam in a browser, mean of streams", "/s", "more"),
    "browser_desktop_frames_per_s": Quantity("Frame rate of a desktop in a browser, mean of streams", "/s", "more"),
    "browser_frozen_percent": Quantity("Streams that stand still in a browser, of the time", "%", "less"),
    "browser_decode_ms": Quantity("Decoding of a frame in a browser, mean", "ms", None),
    "browser_loss_percent": Quantity("Packets lost on the way to a browser, those repaired by RTX too", "%", "less"),
    "browser_jitter_ms": Quantity("Interarrival jitter in a browser, mean of streams", "ms", "less"),
    "browser_webcam_height": Quantity("Height of a webcam's picture in a browser", "px", None),
    "browser_desktop_height": Quantity("Height of a desktop's picture in a browser", "px", None),
    "browser_cpus": Quantity("CPUs that the browsers took, of the generator's", "CPU", None),
}
_MOST_STREAMS, _MOST_NUMBER, _MOST_TEXT = 1000, 2.0**53, 100


@dataclass(frozen=True)
class Stats:
    """Of one received video stream, since it was there. ``id``: the browser's name for it."""

    id: str
    at_ms: float  # by its clock
    frames: float  # decoded
    dropped: float
    freezes: float
    still_s: float  # in freezes and pauses that are over
    moved_s: float | None  # from its first frame to its last; None: the browser does not tell
    decode_s: float
    packets: float
    lost: float  # less than 0 where more came twice than were lost (RFC 3550, 6.4.1)
    jitter_s: float
    height: float | None  # None: no picture yet


@dataclass(frozen=True)
class Sight:
    """What a page tells at one time. ``failure``: why it does not watch, or not any more; "" where it does."""

    failure: str
    at_ms: float  # by its clock
    streams: Mapping[int, tuple[str, Stats | None]]  # by feed: its sender's role, and what came of it, if it is there


@dataclass(frozen=True)
class _Span:
    """Of one stream, between two tellings."""

    role: str
    span_s: float
    still_s: float
    frames: float = 0.0
    dropped: float = 0.0
    freezes: float = 0.0
    decode_s: float = 0.0
    packets: float = 0.0
    lost: float = 0.0
    jitter_s: float | None = None
    height: float | None = None


def read(told: object) -> Sight:
    """What a page said, which may be anything. ValueError says what is wrong with it."""
    words = _dict(told, "what it tells")
    streams = words.get("streams")
    if not isinstance(streams, list) or len(streams) > _MOST_STREAMS:
        raise ValueError(f"its streams are no list of at most {_MOST_STREAMS}")
    found: dict[int, tuple[str, Stats | None]] = {}
    for each in streams:
        stream = _dict(each, "a stream")
        feed, stats = _number(stream, "feed"), stream.get("stats")
        if feed != int(feed) or int(feed) in found:
            raise ValueError(f"{feed:g} is no feed, or is told twice")
        found[int(feed)] = (_text(stream, "role"), None if stats is None else _stats(_dict(stats, "a stream's stats")))
    return Sight(_text(words, "failure"), _number(words, "at_ms"), found)


def seen(pairs: Iterable[tuple[Sight, Sight]]) -> tuple[dict[str, float], dict[str, int]]:
    """The quantities and the counts of what browsers saw, each between two tellings; a quantity is there where there is
    something that it could be of.
    """
    spans = [span for before, after in pairs for span in _spans(before, after)]
    values: dict[str, float] = {}
    for role in (WEBCAM, DESKTOP):
        of_role = [span for span in spans if span.role == role]
        _put(values, f"browser_{role}_frames_per_s", _sum(of_role, "frames"), _sum(of_role, "span_s"))
        _put(values, f"browser_{role}_height", *_mean([each.height for each in of_role]))
    frames, lost = _sum(spans, "frames"), _sum(spans, "lost")
    _put(values, "browser_frozen_percent", 100 * _sum(spans, "still_s"), _sum(spans, "span_s"))
    _put(values, "browser_decode_ms", 1e3 * _sum(spans, "decode_s"), frames)
    _put(values, "browser_loss_percent", 100 * max(0.0, lost), max(0.0, lost) + _sum(spans, "packets"))
    jitter_s, number = _mean([each.jitter_s for each in spans])
    _put(values, "browser_jitter_ms", 1e3 * jitter_s, number)
    counts = {"browser_streams": len(spans), "browser_lost": round(lost)}
    for name in ("frames", "dropped", "freezes", "packets"):
        counts[f"browser_{name}"] = round(_sum(spans, name))
    return values, counts


def is_served(sight: Sight) -> bool:
    """Whether anything ever came to a page, though it may show none of it."""
    return any(stats is not None and stats.packets > 0 for _, stats in sight.streams.values())


def shows_nothing(sight: Sight) -> bool:
    """Whether no stream of a page ever had a picture."""
    return all(stats is None or stats.frames == 0 for _, stats in sight.streams.values())


def _spans(before: Sight, after: Sight) -> Iterator[_Span]:
    """Of each feed that was published at both tellings. What was subscribed to between them, or began its counts anew,
    is left out: how long it waited is not known.
    """
    for feed, (role, then) in before.streams.items():
        if feed not in after.streams:
            continue
        now = after.streams[feed][1]
        if then is None and (now is None or now.frames == 0):  # packets that never made a picture are no better
            if (span_s := (after.at_ms - before.at_ms) / 1e3) > 0:
                yield _Span(role, span_s, span_s)
        elif now is None:
            continue
        elif then is not None and then.id == now.id and now.at_ms > then.at_ms and now.frames >= then.frames:
            yield _between(role, then, now)


def _between(role: str, then: Stats, now: Stats) -> _Span:
    span_s, frames = (now.at_ms - then.at_ms) / 1e3, now.frames - then.frames
    return _Span(
        role,
        span_s,
        span_s if frames == 0 else min(span_s, max(0.0, now.still_s - then.still_s + _across(then, now))),
        frames,
        max(0.0, now.dropped - then.dropped),
        max(0.0, now.freezes - then.freezes),
        max(0.0, now.decode_s - then.decode_s),
        max(0.0, now.packets - then.packets),
        now.lost - then.lost,
        now.jitter_s,
        now.height,
    )


def _across(then: Stats, now: Stats) -> float:
    """Of a stream that showed pictures between two tellings: how long it stood still at the second, which no freeze
    counts yet, or waited for its first picture, less how long it had stood still at the first, in seconds.

    Its last frames before the tellings are as far apart as the tellings are, but for those two. A difference that is no
    freeze by webrtc-stats (below three times the mean gap, or the mean and 150 ms) is that of a stream that moves.
    """
    if then.moved_s is None or now.moved_s is None:
        return 0.0
    moved_s = now.moved_s - then.moved_s
    mean_s = max(0.0, moved_s - max(0.0, now.still_s - then.still_s)) / (now.frames - then.frames)
    across_s = (now.at_ms - then.at_ms) / 1e3 - moved_s
    return across_s if abs(across_s) >= max(3 * mean_s, mean_s + 0.15) else 0.0


def _sum(spans: Sequence[_Span], name: str) -> float:
    return float(sum(getattr(span, name) for span in spans))


def _mean(found: Sequence[float | None]) -> tuple[float, int]:
    """The sum of those that are known, and how many they are."""
    known = [each for each in found if each is not None]
    return sum(known), len(known)


def _put(values: dict[str, float], key: str, sum_: float, of: float) -> None:
    if of > 0:
        values[key] = sum_ / of


# -- what a page says --------------------------------------------------------------------------------------


def _stats(told: Mapping[str, Any]) -> Stats:
    return Stats(
        id=_text(told, "id"),
        at_ms=_number(told, "timestamp"),
        frames=_number(told, "framesDecoded"),
        dropped=_number(told, "framesDropped"),
        freezes=_number(told, "freezeCount"),
        still_s=_number(told, "totalFreezesDuration") + _number(told, "totalPausesDuration"),
        moved_s=None if told.get("totalInterFrameDelay") is None else _number(told, "totalInterFrameDelay"),
        decode_s=_number(told, "totalDecodeTime"),
        packets=_number(told, "packetsReceived"),
        lost=_number(told, "packetsLost", least=-_MOST_NUMBER),
        jitter_s=_number(told, "jitter"),
        height=None if told.get("frameHeight") is None else _number(told, "frameHeight"),
    )


def _dict(told: object, what: str) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise ValueError(f"{what} is no object")
    return told


def _text(told: Mapping[str, Any], key: str) -> str:
    text = told.get(key)
    if not isinstance(text, str) or len(text) > _MOST_TEXT:
        raise ValueError(f"{key} is no text of at most {_MOST_TEXT} characters")
    return text


def _number(told: Mapping[str, Any], key: str, least: float = 0.0) -> float:
    number = told.get(key)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"{key} is no number")
    if not (least <= number <= _MOST_NUMBER) or not math.isfinite(number):
        raise ValueError(f"{key} is not between {least:g} and {_MOST_NUMBER:g}")
    return float(number)
