"""GStreamer's RTSP server: its ports, what is started, and what a verification sees in its answers."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.lab.client import Answer
from virtoll.networks.base import Attachment
from virtoll.offers import Film, Http, Offer, Port, Rtsp, merged
from virtoll.platforms.base import Instance
from virtoll.services import rtsp
from virtoll.services.gst_rtsp import GstRtsp, GstRtspSettings

FILM = Film(60 * 10**9, 900_000)
OFFER = Rtsp("198.18.3.10", 8554)
OPTIONS = (
    "RTSP/1.0 200 OK\r\nCSeq: 1\r\nPublic: OPTIONS, DESCRIBE, PLAY, SETUP\r\nServer: GStreamer RTSP server\r\n\r\n"
)
# As gst-rtsp-server 1.22 said it, shortened.
SDP = """\
v=0
o=- 9265972164275295791 1 IN IP4 127.0.0.1
a=range:npt=now-60
m=video 0 RTP/AVP 96
c=IN IP4 0.0.0.0
b=AS:806
a=rtpmap:96 H264/90000
a=framerate:25
a=control:stream=0
m=audio 0 RTP/AVP 97
c=IN IP4 0.0.0.0
a=rtpmap:97 MPEG4-GENERIC/48000/2
a=control:stream=1
""".replace("\n", "\r\n")
DESCRIBED = f"RTSP/1.0 200 OK\r\nCSeq: 2\r\nContent-Type: application/sdp\r\nContent-Length: {len(SDP)}\r\n\r\n{SDP}"


class Server:
    """Says one thing, cut as the client reads it."""

    def __init__(self, said: str) -> None:
        self.said, self.heard = said, b""

    def exchange(self, offer: Offer, sent: bytes, most_bytes: int) -> bytes:
        self.heard = sent
        return self.said.encode()[:most_bytes]

    def get(self, offer: Http, path: str) -> Answer:
        raise AssertionError("it speaks no HTTP")


def verified(said: str, content: Film | None = FILM) -> list[str]:
    return [problem.what for problem in GstRtsp().verify(OFFER, Server(said), content)]


def test_a_film_of_two_tracks_is_seen() -> None:
    assert verified(OPTIONS + DESCRIBED + 20 * OPTIONS) == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (OPTIONS + "RTSP/1.0 404 Not Found\r\nCSeq: 2\r\n\r\n" + OPTIONS, "DESCRIBE: 404 Not Found"),
        ("RTSP/1.0 503 Service Unavailable\r\nCSeq: 1\r\n\r\n", "OPTIONS: 503 Service Unavailable"),
        (OPTIONS, "DESCRIBE: no answer"),
        ("", "OPTIONS: no answer"),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", "OPTIONS: no answer"),
        (OPTIONS + DESCRIBED.replace("H264/90000", "H265/90000"), "its description has no video as H.264"),
        (OPTIONS + DESCRIBED.replace("MPEG4-GENERIC", "PCMU"), "its description has no audio as AAC"),
        (OPTIONS + DESCRIBED.partition("m=audio")[0], "its description has no audio as AAC"),
    ],
)
def test_what_is_not_the_film_is_found(said: str, words: str) -> None:
    assert verified(said) == [words]


@given(said=st.text(st.sampled_from("RTSP/1.0 200\r\nm=video a=rtpmap: H264"), max_size=rtsp.ANSWER_BYTES) | st.text())
def test_whatever_a_server_says_is_judged(said: str) -> None:
    """A stranger may answer there."""
    assert len(verified(said)) in (1, 2)


def test_where_no_film_is_asked_for_it_must_only_speak_rtsp() -> None:
    assert verified(OPTIONS, None) == []
    assert b"DESCRIBE" not in rtsp.asking(OFFER, "")


def test_what_is_published_need_not_be_there_yet() -> None:
    server, offer = Server(OPTIONS), Rtsp("198.18.3.10", 8554, is_live=True, publish_path="/publish/{film}")
    assert GstRtsp().verify(offer, server, FILM) == []
    assert b"DESCRIBE" not in server.heard
    assert offer.publish_path_of(FILM) == "/publish/film-60000-900000"


def test_enough_is_asked_for_that_the_client_need_not_know_how_long_the_answer_is() -> None:
    """Each request is answered by a hundred bytes at least, so what is read must come."""
    asked = rtsp.asking(OFFER, OFFER.path_of(FILM)).decode()
    assert asked.count("\r\n\r\n") * 100 >= rtsp.ANSWER_BYTES
    assert asked.startswith("OPTIONS rtsp://198.18.3.10:8554/film-60000-900000 RTSP/1.0\r\nCSeq: 1\r\n")


def test_udp_has_four_ports_for_each_viewer() -> None:
    assert GstRtsp(GstRtspSettings(udp_viewers=10)).ports == (Port(8554), Port(20_000, "udp", 20_039))
    assert len(merged(GstRtsp().ports)) == 2


def test_what_the_server_plays_by_itself_is_not_published() -> None:
    (problem,) = GstRtsp(GstRtspSettings(live=True, published=True)).problems(None)
    assert problem.where == "[service] live, published"
    assert not any(GstRtsp(GstRtspSettings(**{name: True})).problems(None) for name in ("live", "published"))


@pytest.mark.parametrize(
    ("settings", "mode", "offered"),
    [
        ({}, "vod", {}),
        ({"live": True}, "live", {"is_live": True}),
        ({"published": True}, "published", {"is_live": True, "publish_path": "/publish/{film}"}),
    ],
)
def test_it_is_started_as_nobody_with_its_ports(settings: dict[str, Any], mode: str, offered: dict[str, Any]) -> None:
    listens, files, started = set[int](), dict[str, bytes](), dict[str, Any]()

    def spawn(argv: Sequence[str], **settings: object) -> int:
        started.update(argv=list(argv), **settings)
        listens.add(8554)
        return 7

    agent = SimpleNamespace(
        listening=lambda port, _protocol: port in listens,
        put=lambda path, data: files.update({path: data}),
        spawn=spawn,
    )
    attachment = Attachment("routed", "veth", "sut", "198.18.3.10", ())
    instance = SimpleNamespace(agent=agent, attachment=attachment, services={}, platform="double")
    offer = GstRtsp(GstRtspSettings(**settings, udp_viewers=2)).start(cast(Instance, instance), None)
    assert offer == Rtsp("198.18.3.10", 8554, **offered)
    program, *arguments = started["argv"][1:]
    assert arguments == ["8554", "20000", "20007", "/virtoll/films", mode]
    assert started["user"] == "nobody"
    assert ast.parse(files[program])


def test_its_program_runs_with_what_its_image_has() -> None:
    """No module of virtoll's, and no syntax that Debian's Python 3.11 has not."""
    program = Path(rtsp.__file__).parent / "inside/rtsp.py"
    tree = ast.parse(program.read_text(encoding="utf-8"), feature_version=(3, 11))
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names == {"gi", "pathlib", "resource", "sys", "threading"}
