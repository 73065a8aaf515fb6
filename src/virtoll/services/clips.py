"""The files of a clip: playlists of HLS (RFC 8216) and an MPD of DASH (ISO/IEC 23009-1), which list the same segments;
and these, made of the endless text (`virtoll.services.objects`).

The qualities are the same text, cut by their own bit rates: segment number n of a quality goes from the byte at which
its media time begins to the one at which it ends. Its path says which bytes these are, so a viewer can tell a wrong
segment from the right one, and clips share the files that they have in common. Nobody decodes them: in the place of
these files there could be real media of the same paths and lengths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from virtoll.errors import Problem
from virtoll.lab.client import Answer
from virtoll.offers import Clip
from virtoll.services import objects


@dataclass(frozen=True)
class Segment:
    """A piece of the text that plays for so long."""

    begin_bytes: int
    end_bytes: int
    duration_ns: int

    @property
    def path(self) -> str:
        """Its path in a URL."""
        return f"/o/{self.begin_bytes}-{self.end_bytes}"


def segments(clip: Clip, bit_rate: int) -> list[Segment]:
    """Those of one quality."""
    cuts_ns = [*range(0, clip.duration_ns, clip.segment_ns), clip.duration_ns]
    at = [cut_ns * bit_rate // (8 * 10**9) for cut_ns in cuts_ns]
    ends = zip(at, at[1:], cuts_ns, cuts_ns[1:], strict=False)
    return [Segment(begin, end, until_ns - from_ns) for begin, end, from_ns, until_ns in ends]


def manifests(clip: Clip) -> Iterator[tuple[str, str]]:
    """Path and text of each: the playlist that lists the qualities, those that list segments, and the MPD."""
    variants = "".join(f"#EXT-X-STREAM-INF:BANDWIDTH={rate}\n{rate}.m3u8\n" for rate in clip.bit_rates)
    yield clip.path, f"#EXTM3U\n{variants}"
    for rate in clip.bit_rates:
        yield f"{clip.directory}/{rate}.m3u8", _playlist(clip, segments(clip, rate))
    yield clip.mpd_path, _mpd(clip)


def _playlist(clip: Clip, pieces: list[Segment]) -> str:
    target_s = -(-clip.segment_ns // 10**9)  # whole seconds, and no segment is longer (4.3.3.1)
    lines = "".join(f"#EXTINF:{piece.duration_ns / 1e9:.9f},\n{piece.path}\n" for piece in pieces)
    head = f"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:{target_s}\n#EXT-X-PLAYLIST-TYPE:VOD\n"
    return f"{head}{lines}#EXT-X-ENDLIST\n"


def _mpd(clip: Clip) -> str:
    """All qualities with their segments. At its ``bandwidth`` each comes as fast as it plays, a segment
    (``minBufferTime``) ahead.
    """
    qualities = "".join(_representation(rate, segments(clip, rate)) for rate in clip.bit_rates)
    return f"""\
<?xml version="1.0" encoding="UTF-8"?>
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" profiles="urn:mpeg:dash:profile:full:2011" type="static" \
minBufferTime="PT{clip.segment_ns / 1e9:.9f}S" mediaPresentationDuration="PT{clip.duration_ns / 1e9:.9f}S">
<Period>
<AdaptationSet mimeType="video/mp2t" segmentAlignment="true">
{qualities}</AdaptationSet>
</Period>
</MPD>
"""


def _representation(bit_rate: int, pieces: list[Segment]) -> str:
    """A list, for no template can say which bytes a segment is."""
    runs = groupby(piece.duration_ns for piece in pieces)
    timeline = "".join(f'<S d="{duration_ns}" r="{len(list(run)) - 1}"/>' for duration_ns, run in runs)
    urls = "".join(f'<SegmentURL media="{piece.path}"/>\n' for piece in pieces)
    return f"""\
<Representation id="{bit_rate}" bandwidth="{bit_rate}">
<SegmentList timescale="1000000000">
<SegmentTimeline>{timeline}</SegmentTimeline>
{urls}</SegmentList>
</Representation>
"""


def problems_of_manifest(where: str, answer: Answer, text: str) -> Iterator[Problem]:
    """What is wrong with the answer to a GET of a playlist, or of the MPD."""
    expected = text.encode()
    return objects.differences(where, answer, len(expected), hashlib.sha256(expected).hexdigest())


def problems_of_segment(where: str, answer: Answer, piece: Segment) -> Iterator[Problem]:
    """What is wrong with the answer to a GET of a segment."""
    length_bytes = piece.end_bytes - piece.begin_bytes
    return objects.differences(where, answer, length_bytes, objects.sha256(length_bytes, piece.begin_bytes))
