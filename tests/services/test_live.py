"""Live playlists, and how the server of low-latency HLS holds and proves them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.agent import StreamError
from virtoll.errors import AgentError, TrialError
from virtoll.lab.client import Answer
from virtoll.offers import Http, LiveClip, LiveHttp, Offer
from virtoll.services import live, nginx_ll_hls, objects
from virtoll.services.live import Edge
from virtoll.services.nginx_ll_hls import NginxLlHls
from virtoll.services.origin import ROOT

SECOND = 10**9
CLIP = LiveClip(4 * SECOND, SECOND, SECOND // 2, 16_000)
OFFER = LiveHttp("198.18.3.10", 8080)
TEXT = """\
#EXTM3U
#EXT-X-VERSION:9
#EXT-X-TARGETDURATION:1
#EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES,HOLD-BACK=3.000,PART-HOLD-BACK=1.500
#EXT-X-PART-INF:PART-TARGET=0.500
#EXT-X-MEDIA-SEQUENCE:1001
#EXT-X-PROGRAM-DATE-TIME:1970-01-01T00:16:41.000Z
#EXTINF:1.000,
/o/2000-4000?until=1002000
#EXT-X-PROGRAM-DATE-TIME:1970-01-01T00:16:42.000Z
#EXTINF:1.000,
/o/4000-6000?until=1003000
#EXT-X-PROGRAM-DATE-TIME:1970-01-01T00:16:43.000Z
#EXTINF:1.000,
/o/6000-8000?until=1004000
#EXT-X-PROGRAM-DATE-TIME:1970-01-01T00:16:44.000Z
#EXT-X-PART:DURATION=0.500,URI="/o/0-1000?until=1004500",INDEPENDENT=YES
#EXT-X-PART:DURATION=0.500,URI="/o/1000-2000?until=1005000",INDEPENDENT=YES
#EXTINF:1.000,
/o/0-2000?until=1005000
#EXT-X-PROGRAM-DATE-TIME:1970-01-01T00:16:45.000Z
#EXT-X-PART:DURATION=0.500,URI="/o/2000-3000?until=1005500",INDEPENDENT=YES
#EXT-X-PART:DURATION=0.500,URI="/o/3000-4000?until=1006000",INDEPENDENT=YES
#EXTINF:1.000,
/o/2000-4000?until=1006000
#EXT-X-PROGRAM-DATE-TIME:1970-01-01T00:16:46.000Z
#EXT-X-PART:DURATION=0.500,URI="/o/4000-5000?until=1006500",INDEPENDENT=YES
#EXT-X-PART:DURATION=0.500,URI="/o/5000-6000?until=1007000",INDEPENDENT=YES
#EXTINF:1.000,
/o/4000-6000?until=1007000
#EXT-X-PROGRAM-DATE-TIME:1970-01-01T00:16:47.000Z
#EXT-X-PART:DURATION=0.500,URI="/o/6000-7000?until=1007500",INDEPENDENT=YES
#EXT-X-PRELOAD-HINT:TYPE=PART,URI="/o/7000-8000?until=1008000"
"""


def test_a_live_playlist_lists_segments_and_the_parts_of_the_last() -> None:
    assert live.playlist(CLIP, Edge(1007, 1)) == TEXT
    assert Edge.of(TEXT) == Edge(1007, 1)
    for text in ("", "<html>", "#EXT-X-MEDIA-SEQUENCE:x", "#EXT-X-MEDIA-SEQUENCE:1234567890123456"):
        assert Edge.of(text) is None


clips = st.builds(
    lambda part_ms, parts, segments, rate: LiveClip(
        segments * parts * part_ms * 10**6, parts * part_ms * 10**6, part_ms * 10**6, rate
    ),
    st.integers(20, 1000),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1000, 10**7),
)


@given(clips, st.integers(10, 2**33), st.integers(0, 19))
def test_whatever_is_listed_follows_without_a_gap(clip: LiveClip, sequence: int, parts: int) -> None:
    each = clip.segment_ns // clip.part_ns
    edge = Edge(sequence, parts % each)
    text = live.playlist(clip, edge)
    assert Edge.of(text) == edge
    assert live.part_path(clip, sequence * each + edge.parts) in text.splitlines()[-1], "what comes next is hinted at"
    whole = re.findall(r"^(/o/.*)$", text, re.MULTILINE)
    assert [until(path) for path in whole] == [
        (number + 1) * clip.segment_ns // 10**6 for number in range(sequence - live.SEGMENTS, sequence)
    ]
    listed = re.findall(r'^#EXT-X-PART:.*URI="([^"]*)"', text, re.MULTILINE)
    assert len(listed) == live.SEGMENTS_WITH_PARTS * each + edge.parts
    for number, path in enumerate(listed, (sequence - live.SEGMENTS_WITH_PARTS) * each):
        assert path == live.part_path(clip, number)
        assert path.startswith(f"{live.part_piece(clip, number).path}?")
    for at in range(0, len(listed) - edge.parts, each):
        (begin, _), (_, end) = (cut(path) for path in (listed[at], listed[at + each - 1]))
        assert (begin, end) == cut(whole[at // each - live.SEGMENTS_WITH_PARTS]), "a segment is its parts"


@given(st.integers(0, 2**42))
def test_dates_are_the_moments_that_they_tell(unix_ms: int) -> None:
    assert round(datetime.fromisoformat(live.date(unix_ms)).timestamp() * 1000) == unix_ms


def cut(path: str) -> tuple[int, int]:
    begin, end = urlsplit(path).path.removeprefix("/o/").split("-")
    return int(begin), int(end)


def until(path: str) -> int:
    return int(parse_qs(urlsplit(path).query)["until"][0])


@dataclass
class Held:
    """An agent that notes what is made."""

    fails: AgentError | None = None
    filled: dict[str, tuple[int, int]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def fill(self, path: str, length_bytes: int, begin_bytes: int = 0) -> None:
        if self.fails is not None:
            raise self.fails
        self.filled[path] = (begin_bytes, length_bytes)

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self.files[path] = data


@dataclass
class Instance:
    """As much of one as is looked at."""

    agent: Held
    platform: str = "here"


def test_it_holds_the_parts_and_segments_of_a_round() -> None:
    there: Any = Instance(Held())
    NginxLlHls().hold(there, [CLIP, CLIP])
    parts = {f"/srv/virtoll/o/{at * 1000}-{at * 1000 + 1000}": (at * 1000, 1000) for at in range(8)}
    segments = {f"/srv/virtoll/o/{at * 2000}-{at * 2000 + 2000}": (at * 2000, 2000) for at in range(4)}
    assert there.agent.filled == parts | segments
    assert there.agent.files == {"/srv/virtoll/live/4000-1000-500-16000/held": b""}


def test_an_instance_without_room_says_so() -> None:
    there: Any = Instance(Held(AgentError("fill: No space left on device", where="x")))
    with pytest.raises(TrialError, match="the parts cannot be made: fill: No space left"):
        NginxLlHls().hold(there, [CLIP])
    there = Instance(Held(StreamError("gone")))
    with pytest.raises(StreamError):
        NginxLlHls().hold(there, [CLIP])


@dataclass
class Server:
    """A visitor of a server whose edge moves by a part with each playlist that is asked for ahead; ``wrong`` answers of
    its own to what begins so.
    """

    wrong: dict[str, Answer | str] = field(default_factory=dict)
    number: int = 2 * 1007 + 1

    def answer(self, path: str) -> Answer | str | None:
        return next((self.wrong[key] for key in self.wrong if path.startswith(key)), None)

    def get(self, offer: Http, path: str) -> Answer:
        found = self.answer(path)
        if isinstance(found, Answer):
            return found
        if path == "/clock":
            body = b"1970-01-01T00:16:47.500Z"
        else:
            assert until(path) <= self.number * 500
            begin, end = cut(path)
            body = objects.content(end - begin, begin)
        return Answer(200, len(body), hashlib.sha256(body).hexdigest(), {})

    def exchange(self, offer: Offer, sent: bytes, most_bytes: int) -> bytes:
        path = sent.decode().split(" ")[1]
        if "_HLS_msn" in path and not self.answer("ahead"):
            self.number += 1
        found = self.answer(path)
        if isinstance(found, str):
            return found.encode()
        return b"HTTP/1.1 200 OK\r\nServer: nginx\r\n\r\n" + live.playlist(CLIP, Edge(*divmod(self.number, 2))).encode()


PART = "/o/7000-8000?until=1008000"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, ""),
        ({"/clock": Answer(404, 9, "x", {})}, "status 404; expected 200"),
        ({CLIP.path: "HTTP/1.1 404 Not Found\r\n\r\nno"}, "another playlist came than expected: 'HTTP/1.1 404"),
        ({CLIP.path: "HTTP/1.1 200 OK\r\n\r\n" + TEXT.replace("VERSION:9", "VERSION:3")}, "another playlist"),
        ({CLIP.path + "?": "HTTP/1.1 503 Busy\r\n\r\n"}, "another playlist came than expected: 'HTTP/1.1 503"),
        ({"ahead": "never"}, "before it had the part that was asked for"),
        ({PART: Answer(200, 1000, "f00", {})}, "the bytes differ: sha256 f00"),
        ({PART: Answer(404, 0, "", {})}, "status 404; expected 200"),
    ],
)
def test_what_a_load_asks_for_is_proved(wrong: dict[str, Answer | str], words: str) -> None:
    server = Server(wrong)
    if "ahead" in wrong:
        server.number = 2 * 1007 + 1
        wrong[PART] = Answer(200, 1000, objects.sha256(1000, 7000), {})
    problems = NginxLlHls().verify(OFFER, server, CLIP)
    assert len(problems) == bool(words)
    assert all(words in problem.what for problem in problems)


def test_the_program_inside_lists_as_much_as_the_reference_of_what_lies_in_the_same_place() -> None:
    program = nginx_ll_hls._PROGRAM.read_text(encoding="utf-8")
    assert f"local SEGMENTS, SEGMENTS_WITH_PARTS = {live.SEGMENTS}, {live.SEGMENTS_WITH_PARTS}\n" in program
    assert f'local ROOT = "{ROOT}"\n' in program


def test_where_nothing_is_asked_for_it_must_know_the_time() -> None:
    assert NginxLlHls().verify(OFFER, Server(), None) == []
