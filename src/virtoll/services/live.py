"""Live playlists of low-latency HLS (RFC 8216bis: draft-pantos-hls-rfc8216bis-16), as our server has to make them: the
reference that inside/live.lua, which makes them, is compared with.

The media are a round of the endless text (`virtoll.services.objects`), which goes out by the server's clock: media time
is Unix time, and the segment with number n (its media sequence number) begins n segments after 1970. So all workers of
a server tell the same without a word between them, and EXT-X-PROGRAM-DATE-TIME says when each moment of media was made:
a part is there from the moment on at which its last byte would have been recorded; no encoder or packager delays it.

Parts are pieces of the text as the segments of clips are, so that each byte is checked by its path; the query tells
until when, in Unix milliseconds, the media of a part or segment go, which keeps those of two rounds apart. All parts
are of one size: an encoder's, of which some hold a key frame, would not be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from virtoll.offers import Clip, LiveClip
from virtoll.services import clips

SEGMENTS, SEGMENTS_WITH_PARTS = 6, 3  # that are listed whole; parts are listed of three target durations (6.2.2)
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=8)
def pieces(clip: LiveClip, length_ns: int) -> tuple[clips.Segment, ...]:
    """A round, cut into pieces of this length: each line of a playlist asks for one of them."""
    return (*clips.segments(Clip(clip.round_ns, length_ns, (clip.bit_rate,)), clip.bit_rate),)


@dataclass(frozen=True)
class Edge:
    """How far a playlist goes: segments before ``sequence`` are whole, and so many ``parts`` of that one are there."""

    sequence: int
    parts: int

    @classmethod
    def of(cls, playlist: str) -> Edge | None:
        """Of a playlist as `playlist` makes them; None where it is none."""
        first = re.search(r"^#EXT-X-MEDIA-SEQUENCE:(\d{1,15})$", playlist, re.MULTILINE)
        if first is None:
            return None
        whole, _, partial = playlist.rpartition("#EXTINF:")
        return cls(int(first[1]) + whole.count("#EXTINF:") + 1, partial.count("#EXT-X-PART:"))


def playlist(clip: LiveClip, edge: Edge) -> str:
    """The whole text at that edge. Durations and dates are of milliseconds."""
    segment_ms, part_ms = clip.segment_ns // 10**6, clip.part_ns // 10**6
    lines = [
        "#EXTM3U",
        "#EXT-X-VERSION:9",
        f"#EXT-X-TARGETDURATION:{-(-segment_ms // 1000)}",
        f"#EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES,HOLD-BACK={_s(3000 * -(-segment_ms // 1000))},"
        f"PART-HOLD-BACK={_s(3 * part_ms)}",
        f"#EXT-X-PART-INF:PART-TARGET={_s(part_ms)}",
        f"#EXT-X-MEDIA-SEQUENCE:{edge.sequence - SEGMENTS}",
    ]
    each = segment_ms // part_ms
    for sequence in range(edge.sequence - SEGMENTS, edge.sequence + 1):
        lines.append(f"#EXT-X-PROGRAM-DATE-TIME:{date(sequence * segment_ms)}")
        listed = each if edge.sequence - sequence <= SEGMENTS_WITH_PARTS else 0
        for part in range(edge.parts if sequence == edge.sequence else listed):
            uri = part_path(clip, sequence * each + part)
            lines.append(f'#EXT-X-PART:DURATION={_s(part_ms)},URI="{uri}",INDEPENDENT=YES')
        if sequence < edge.sequence:
            lines += [f"#EXTINF:{_s(segment_ms)},", _path(clip, clip.segment_ns, sequence)]
    hint = part_path(clip, edge.sequence * each + edge.parts)
    lines.append(f'#EXT-X-PRELOAD-HINT:TYPE=PART,URI="{hint}"')
    return "\n".join(lines) + "\n"


def part_path(clip: LiveClip, number: int) -> str:
    """Path and query of a part; they are numbered from 1970 on."""
    return _path(clip, clip.part_ns, number)


def part_piece(clip: LiveClip, number: int) -> clips.Segment:
    """Which piece of the text that is."""
    round_of = pieces(clip, clip.part_ns)
    return round_of[number % len(round_of)]


def date(unix_ms: int) -> str:
    """As xs:dateTime, in UTC."""
    return (_UNIX + timedelta(milliseconds=unix_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _path(clip: LiveClip, length_ns: int, number: int) -> str:
    round_of = pieces(clip, length_ns)
    return f"{round_of[number % len(round_of)].path}?until={(number + 1) * (length_ns // 10**6)}"


def _s(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f}"
