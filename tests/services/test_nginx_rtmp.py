"""nginx-rtmp: what a verification says to it and sees in its answers, and what its statistics page tells."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll import films
from virtoll.errors import TrialError
from virtoll.lab.client import Answer
from virtoll.offers import Film, Http, Offer, Port, Rtmp
from virtoll.services import rtmp
from virtoll.services.nginx_rtmp import NginxRtmp, NginxRtmpSettings, counts_of

FILM = Film(2 * 10**9, 900_000)
OFFER = Rtmp("198.18.3.10", 1935, "vod")
SETUP, PICTURE = b"\x17\x00\x00\x00\x00how it is decoded", b"\x17\x01\x00\x00\x00" + bytes(range(256)) * 40


def flv(*tags: tuple[int, bytes]) -> bytes:
    """A file of tags, each of a kind (8: sound, 9: picture, 18: data)."""
    text = b"FLV\x01\x05\x00\x00\x00\x09" + bytes(4)
    for kind, data in tags:
        text += bytes([kind]) + len(data).to_bytes(3, "big") + bytes(7) + data + struct.pack(">I", 11 + len(data))
    return text


@pytest.fixture
def film(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What stands for a film that was made."""
    path = tmp_path / "film.flv"
    path.write_bytes(flv((18, b"onMetaData"), (9, SETUP), (8, b"sound"), (9, PICTURE), (9, b"another")))
    os.truncate(path, 2**40)  # of a film that no memory holds, the beginning is read
    monkeypatch.setattr(films, "file", lambda film, form: {(FILM, "flv"): path}[film, form])


class Server:
    """Echoes the handshake, and goes on as it is told."""

    def __init__(self, after: bytes, *, greets: bool = True) -> None:
        self.after, self.greets, self.heard = after, greets, b""

    def exchange(self, offer: Offer, sent: bytes, most_bytes: int) -> bytes:
        """As `Client.exchange`: so much, or nothing."""
        self.heard = sent
        c1 = sent[1:1537] if self.greets else bytes(1536)
        said = (b"\x03" + bytes(1536) + c1 + self.after)[:most_bytes]
        if len(said) < most_bytes:
            raise TrialError("no answer: timed out")
        return said

    def get(self, offer: Http, path: str) -> Answer:
        raise AssertionError("it speaks no HTTP there")


ADMITTED = bytes(100) + b"NetConnection.Connect.Success" + bytes(100)
PLAYED = ADMITTED + SETUP + b"\xc4" + PICTURE[:4096] + bytes(4096)


def verified(after: bytes, offer: Rtmp = OFFER, content: Film | None = FILM, *, greets: bool = True) -> list[str]:
    found = NginxRtmp().verify(offer, Server(after, greets=greets), content)
    return [problem.what for problem in found]


@pytest.mark.usefixtures("film")
def test_a_film_that_plays_is_seen() -> None:
    assert verified(PLAYED) == []


@pytest.mark.usefixtures("film")
@pytest.mark.parametrize(
    ("after", "words"),
    [
        (ADMITTED + bytes(8192), "the decoder's set-up, the film's first picture"),
        (ADMITTED + SETUP + PICTURE[::-1] + bytes(4096), "not seen: the film's first picture"),
        (PLAYED.replace(b"Success", b"Rejected"), "that it lets a client in; the server said Rejected"),
    ],
)
def test_another_film_or_none_is_found(after: bytes, words: str) -> None:
    (problem,) = verified(after)
    assert words in problem


@pytest.mark.usefixtures("film")
def test_what_is_no_rtmp_is_found() -> None:
    assert "no echo of C1" in verified(PLAYED, greets=False)[0]
    assert [problem.what for problem in rtmp.problems_of("there", b"HTTP/1.1 400 Bad Request\r\n", {})] == [
        "b'HTTP/1.1 400 Bad' came, 26 bytes in all: no handshake of RTMP"
    ]


def test_where_nothing_is_published_a_client_is_let_in_and_no_more_is_asked() -> None:
    live = Rtmp("198.18.3.10", 1935, "live", is_live=True)
    assert verified(ADMITTED, live) == verified(ADMITTED, OFFER, None) == []
    server = Server(ADMITTED)
    NginxRtmp().verify(live, server, FILM)
    assert list(commands(server.heard)) == [(0, "connect")]


@pytest.mark.usefixtures("film")
def test_a_client_says_connect_create_stream_and_play() -> None:
    server = Server(PLAYED)
    NginxRtmp().verify(OFFER, server, FILM)
    assert list(commands(server.heard)) == [(0, "connect"), (0, "createStream"), (1, "play")]
    assert FILM.name.encode() in server.heard


def test_commands_longer_than_a_chunk_are_whole() -> None:
    stream = "x" * 1000
    bodies = [body for _, body in messages(rtmp.asking(OFFER, stream))]
    assert stream.encode() in bodies[2]


def commands(sent: bytes) -> Iterator[tuple[int, str]]:
    """Stream and name of each command that was sent."""
    for stream_id, body in messages(sent):
        yield stream_id, body[3 : 3 + int.from_bytes(body[1:3], "big")].decode()


def messages(sent: bytes) -> Iterator[tuple[int, bytes]]:
    """What a server reads of chunks of 128 bytes (specification, 5.3.1)."""
    at = 1 + 2 * 1536
    while at < len(sent):
        assert sent[at] == 3, "a new message of chunk stream 3"
        length = int.from_bytes(sent[at + 4 : at + 7], "big")
        (stream_id,) = struct.unpack("<I", sent[at + 8 : at + 12])
        at, body = at + 12, b""
        while len(body) < length:
            if body:
                assert sent[at] == 0xC3
                at += 1
            part = sent[at : at + min(128, length - len(body))]
            body, at = body + part, at + len(part)
        yield stream_id, body


def test_a_live_stream_is_in_one_worker() -> None:
    (problem,) = NginxRtmp(NginxRtmpSettings(live=True, workers=2)).problems(None)
    assert "one worker" in problem.what
    assert NginxRtmp(NginxRtmpSettings(workers=2)).problems(None) == []
    assert NginxRtmp(NginxRtmpSettings(live=True)).problems(None) == []


PAGE = """<?xml version="1.0" encoding="utf-8" ?>
<rtmp>
<nginx_version>1.22.1</nginx_version>
<naccepted>4</naccepted>
<bw_in>1336</bw_in>
<bytes_in>1718</bytes_in>
<bw_out>2013632</bw_out>
<bytes_out>2808490</bytes_out>
<server>
<application><name>live</name><live><stream><bytes_out>77</bytes_out></stream></live></application>
</server>
</rtmp>
"""


@given(after=st.binary(max_size=5000), page=st.text())
def test_whatever_a_server_says_is_judged(after: bytes, page: str) -> None:
    """A stranger may answer there: nothing but a film's own first picture passes for it, and nothing ends the trial."""
    said = b"\x03" + bytes(1536) + rtmp.asking(OFFER, "")[1:1537] + after
    for begin in (said, after, said[:3073]):
        assert list(rtmp.problems_of("there", begin, {"the picture": PICTURE[:1024]}))
    assert set(counts_of(page)) <= {"naccepted", "bytes_in", "bytes_out"}


def test_what_the_server_counts_is_of_all_its_streams() -> None:
    assert counts_of(PAGE) == {"naccepted": 4, "bytes_in": 1718, "bytes_out": 2808490}
    assert counts_of("<rtmp><server><bytes_out>77</bytes_out>") == {}, "missing is missing"


def test_a_count_that_no_counter_holds_is_missing() -> None:
    """What a stranger writes there ends no trial, however many digits it has (Python itself refuses 4301)."""
    assert counts_of(f"<naccepted>{'9' * 5000}</naccepted><bytes_in>{2**64 - 1}</bytes_in>") == {"bytes_in": 2**64 - 1}


def test_of_several_workers_nothing_is_told_for_each_has_a_page_of_its_own() -> None:
    assert NginxRtmp(NginxRtmpSettings(workers=2)).counted(OFFER, Server(b"")) == {}


def test_its_page_is_reached_too() -> None:
    assert NginxRtmp().ports == (Port(1935), Port(8080))
