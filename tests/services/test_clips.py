"""Clips: their manifests and segments, and how web servers hold and prove them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.lab.client import Answer
from virtoll.offers import Clip, Http, HttpObject
from virtoll.services import clips, objects
from virtoll.services.nginx import Nginx, NginxSettings
from virtoll.services.origin import CACHE_CONTROL

SECOND = 10**9
CLIP = Clip(5 * SECOND, 2 * SECOND, (8000, 16_000))
OFFER = Http("198.18.3.10", 8080)
MEDIA = """\
#EXTM3U
#EXT-X-VERSION:3
#EXT-X-TARGETDURATION:2
#EXT-X-PLAYLIST-TYPE:VOD
#EXTINF:2.000000000,
/o/0-2000
#EXTINF:2.000000000,
/o/2000-4000
#EXTINF:1.000000000,
/o/4000-5000
#EXT-X-ENDLIST
"""


MPD = """\
<?xml version="1.0" encoding="UTF-8"?>
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" profiles="urn:mpeg:dash:profile:full:2011" type="static" \
minBufferTime="PT2.000000000S" mediaPresentationDuration="PT5.000000000S">
<Period>
<AdaptationSet mimeType="video/mp2t" segmentAlignment="true">
<Representation id="8000" bandwidth="8000">
<SegmentList timescale="1000000000">
<SegmentTimeline><S d="2000000000" r="1"/><S d="1000000000" r="0"/></SegmentTimeline>
<SegmentURL media="/o/0-2000"/>
<SegmentURL media="/o/2000-4000"/>
<SegmentURL media="/o/4000-5000"/>
</SegmentList>
</Representation>
<Representation id="16000" bandwidth="16000">
<SegmentList timescale="1000000000">
<SegmentTimeline><S d="2000000000" r="1"/><S d="1000000000" r="0"/></SegmentTimeline>
<SegmentURL media="/o/0-4000"/>
<SegmentURL media="/o/4000-8000"/>
<SegmentURL media="/o/8000-10000"/>
</SegmentList>
</Representation>
</AdaptationSet>
</Period>
</MPD>
"""


def test_a_clip_is_playlists_an_mpd_and_pieces_of_the_text() -> None:
    listed = dict(clips.manifests(CLIP))
    assert list(listed) == [
        "/clip/5000-2000-8000-16000/index.m3u8",
        "/clip/5000-2000-8000-16000/8000.m3u8",
        "/clip/5000-2000-8000-16000/16000.m3u8",
        "/clip/5000-2000-8000-16000/index.mpd",
    ]
    assert listed[CLIP.path] == (
        "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=8000\n8000.m3u8\n#EXT-X-STREAM-INF:BANDWIDTH=16000\n16000.m3u8\n"
    )
    assert listed["/clip/5000-2000-8000-16000/8000.m3u8"] == MEDIA
    assert listed[CLIP.mpd_path] == MPD


@given(st.integers(1, 60_000), st.integers(100, 10_000), st.lists(st.integers(1000, 10**7), min_size=1, max_size=3))
def test_the_mpd_and_the_playlists_list_the_same(clip_ms: int, segment_ms: int, rates: list[int]) -> None:
    clip = Clip(clip_ms * 10**6, segment_ms * 10**6, tuple(rates))
    listed = dict(clips.manifests(clip))
    space = "{urn:mpeg:dash:schema:mpd:2011}"
    found = ElementTree.fromstring(listed[clip.mpd_path]).iter(f"{space}Representation")
    for rate, representation in zip(rates, found, strict=True):
        assert representation.get("bandwidth") == str(rate)
        spans = [(int(span.get("d", "")), int(span.get("r", "0"))) for span in representation.iter(f"{space}S")]
        durations = [f"{each_ns / 1e9:.9f}" for each_ns, again in spans for _ in range(again + 1)]
        urls = [url.get("media") for url in representation.iter(f"{space}SegmentURL")]
        lines = [f"#EXTINF:{duration},\n{url}\n" for duration, url in zip(durations, urls, strict=True)]
        assert "".join(lines) in listed[f"{clip.directory}/{rate}.m3u8"]
        assert len(lines) == listed[f"{clip.directory}/{rate}.m3u8"].count("#EXTINF")


def test_clips_that_differ_have_directories_of_their_own() -> None:
    lengths = [Clip(ns, 10**9, (8000,)).directory for ns in (5 * 10**9, 5 * 10**9 + 1, 5 * 10**9 + 500_000)]
    assert len(set(lengths)) == 3


@given(st.integers(1, 600), st.integers(100, 10_000), st.integers(1000, 10**7))
def test_the_segments_of_a_quality_are_the_whole_clip(duration_s: int, segment_ms: int, rate: int) -> None:
    pieces = clips.segments(Clip(duration_s * SECOND, segment_ms * 10**6, (rate,)), rate)
    assert sum(piece.duration_ns for piece in pieces) == duration_s * SECOND
    assert max(piece.duration_ns for piece in pieces) <= segment_ms * 10**6
    assert pieces[0].begin_bytes == 0
    assert all(one.end_bytes == other.begin_bytes for one, other in pairwise(pieces))
    assert pieces[-1].end_bytes == duration_s * rate // 8
    assert all(piece.end_bytes > piece.begin_bytes for piece in pieces[:-1])


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_a_piece_is_what_the_whole_has_there(begin: int, length: int) -> None:
    piece = objects.content(length, begin)
    assert piece == objects.content(begin + length)[begin:]
    assert objects.sha256(length, begin) == hashlib.sha256(piece).hexdigest()


def test_a_large_object_is_digested_in_parts() -> None:
    assert objects.sha256(3 * 2**20 + 5, 7) == hashlib.sha256(objects.content(3 * 2**20 + 5, 7)).hexdigest()


@dataclass
class Held:
    """An agent that notes what is made."""

    filled: dict[str, tuple[int, int]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def fill(self, path: str, length_bytes: int, begin_bytes: int = 0) -> None:
        self.filled[path] = (begin_bytes, length_bytes)

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self.files[path] = data


@dataclass
class Instance:
    """As much of one as is looked at."""

    agent: Held
    platform: str = "here"


def test_a_web_server_holds_clips_beside_objects() -> None:
    there: Any = Instance(Held())
    Nginx().hold(there, [HttpObject(10), CLIP, Clip(2 * SECOND, SECOND, (8000,)), CLIP])
    assert there.agent.filled == {
        "/srv/virtoll/o/10": (0, 10),
        "/srv/virtoll/o/0-1000": (0, 1000),
        "/srv/virtoll/o/1000-2000": (1000, 1000),
        "/srv/virtoll/o/0-2000": (0, 2000),
        "/srv/virtoll/o/2000-4000": (2000, 2000),
        "/srv/virtoll/o/4000-5000": (4000, 1000),
        "/srv/virtoll/o/0-4000": (0, 4000),
        "/srv/virtoll/o/4000-8000": (4000, 4000),
        "/srv/virtoll/o/8000-10000": (8000, 2000),
    }
    assert there.agent.files["/srv/virtoll/clip/5000-2000-8000-16000/8000.m3u8"] == MEDIA.encode()
    assert len(there.agent.files) == 7


@dataclass
class Visiting:
    """A visitor of a server that has all of the clip, but for the paths in ``wrong``."""

    wrong: dict[str, Answer] = field(default_factory=dict)

    def get(self, offer: Http, path: str) -> Answer:
        if path in self.wrong:
            return self.wrong[path]
        text = dict(clips.manifests(CLIP)).get(path)
        if text is None:
            begin, end = (int(number) for number in path.removeprefix("/o/").split("-"))
            body = objects.content(end - begin, begin)
        else:
            body = text.encode()
        return Answer(200, len(body), hashlib.sha256(body).hexdigest(), {"Cache-Control": CACHE_CONTROL})

    def exchange(self, offer: object, sent: bytes, most_bytes: int) -> bytes:
        raise AssertionError("nothing that speaks HTTP is asked otherwise")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, []),
        ({CLIP.path: Answer(404, 9, "x", {})}, ["status 404; expected 200"]),
        ({CLIP.mpd_path: Answer(404, 9, "x", {})}, ["status 404; expected 200"]),
        ({"/o/0-2000": Answer(200, 2000, "f00", {})}, ["the bytes differ: sha256 f00"]),
        ({"/o/0-4000": Answer(200, 3, "x", {})}, ["3 bytes came; expected 4000"]),
    ],
)
def test_a_clip_is_proved_by_its_manifests_and_first_segments(wrong: dict[str, Answer], words: list[str]) -> None:
    problems = Nginx().verify(OFFER, Visiting(wrong), CLIP)
    assert len(problems) == len(words)
    for problem, word in zip(problems, words, strict=True):
        assert word in problem.what
        assert next(iter(wrong)) in problem.where


def test_nginx_takes_as_many_connections_as_it_is_told_to() -> None:
    usual, many = Nginx().configuration(), Nginx(NginxSettings(connections=20_000)).configuration()
    assert "worker_connections 4096;" in usual
    assert "worker_rlimit_nofile 8192;" in usual
    assert "worker_connections 20000;" in many
    assert "worker_rlimit_nofile 40000;" in many
