"""VLC as a server: what it is told to serve, what it offers, and how it proves itself; and that a real one does."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from virtoll.offers import Film, Http, Offer, Port, Rtsp
from virtoll.services.vlc import Vlc, VlcSettings, commands

FILM = Film(60 * 10**9, 900_000)
NAME = "film-60000-900000"
ADDRESS = "198.18.3.10"
OPTIONS = b"RTSP/1.0 200 OK\r\nServer: VLC/3.0.24\r\nContent-Length: 0\r\n\r\n"
BOTH = "m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\nm=audio 0 RTP/AVP 97\r\n"


def described(sdp: str) -> bytes:
    sdp += f"a=tool:{'x' * 300}\r\n"
    return f"RTSP/1.0 200 OK\r\nContent-Length: {len(sdp)}\r\n\r\n{sdp}".encode()


class Visits:
    """Answers as a server does, and notes what it is asked for."""

    def __init__(self, **answers: bytes) -> None:
        self.answers = answers
        self.asked: list[bytes] = []

    def exchange(self, offer: Offer, sent: bytes, most_bytes: int) -> bytes:
        self.asked.append(sent)
        answer = self.answers[sent.split()[0].decode()]
        assert len(answer) >= most_bytes, "a real one would let it wait"
        return answer[:most_bytes]


@pytest.mark.parametrize(
    ("serves", "lines"),
    [
        ("rtsp", [f"new {NAME} vod enabled", f"setup {NAME} input /virtoll/films/{NAME}.mp4"]),
        (
            "rtsp-live",
            [
                f"new {NAME} broadcast enabled loop",
                f"setup {NAME} input /virtoll/films/{NAME}.mp4",
                f"setup {NAME} output #gather:rtp{{sdp=rtsp://:8555/{NAME}}}",
                f"setup {NAME} option sout-keep",
                f"control {NAME} play",
            ],
        ),
        (
            "http",
            [
                f"new {NAME} broadcast enabled loop",
                f"setup {NAME} input /virtoll/films/{NAME}.mp4",
                f"setup {NAME} output #gather:std{{access=http,mux=ts,dst=:8080/{NAME}.ts}}",
                f"setup {NAME} option sout-keep",
                f"control {NAME} play",
            ],
        ),
    ],
)
def test_it_is_told_what_to_serve(serves: Any, lines: list[str]) -> None:
    assert commands(VlcSettings(serves), FILM, 8555).splitlines() == lines


class Starting:
    """An agent inside, who lets what is spawned listen at once."""

    def __init__(self) -> None:
        self.argv: list[str] = []
        self.user = self.put_at = ""

    def put(self, path: str, data: bytes) -> None:
        assert data
        self.put_at = path

    def listening(self, port: int, protocol: str) -> bool:
        return bool(self.argv)

    def spawn(self, argv: list[str], *, user: str, **_: object) -> int:
        self.argv, self.user = argv, user
        return 7


@pytest.mark.parametrize(
    ("serves", "offer"),
    [
        ("rtsp", Rtsp(ADDRESS, 8555, transports=("udp",))),
        ("rtsp-live", Rtsp(ADDRESS, 8555, transports=("udp",), is_live=True)),
        ("http", Http(ADDRESS, 8080)),
    ],
)
def test_it_offers_what_it_serves_and_is_not_root(serves: Any, offer: Offer) -> None:
    vlc, agent = Vlc(VlcSettings(serves)), Starting()
    instance: Any = SimpleNamespace(agent=agent, services={}, attachment=SimpleNamespace(endpoint_address=ADDRESS))
    vlc.hold(instance, [FILM])
    assert vlc.start(instance, None) == offer
    assert vlc.offers == (type(offer),)
    assert vlc.ports == (Port(offer.port),)
    assert agent.user == "nobody"
    assert agent.put_at == agent.argv[agent.argv.index("--vlm-conf") + 1]


def test_it_may_open_as_many_files_as_may_be() -> None:
    """1024 by itself where a platform's soft limit is that, as natively: some 200 viewers, and more on the others."""
    vlc, agent = Vlc(), Starting()
    instance: Any = SimpleNamespace(agent=agent, services={}, attachment=SimpleNamespace(endpoint_address=ADDRESS))
    vlc.start(instance, None)
    before = agent.argv[: agent.argv.index("/usr/bin/vlc")]
    limited = ["sh", "-c", 'ulimit -Sn 64; ulimit -Hn 128; exec "$@"', "sh", *before, "sh", "-c", "ulimit -Sn"]
    assert subprocess.run(limited, capture_output=True, check=True).stdout == b"128\n"


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"OPTIONS": OPTIONS, "DESCRIBE": described(BOTH)}, ""),
        (
            {"OPTIONS": b"RTSP/1.0 454 Session Not Found\r\nCseq: 1\r\n\r\n", "DESCRIBE": b""},
            "answers OPTIONS with 'RTSP/1.0 454",
        ),
        ({"OPTIONS": OPTIONS, "DESCRIBE": b"RTSP/1.0 500 Error\r\nContent-Length: 0\r\n\r\n"}, "'RTSP/1.0 500 Error'"),
        ({"OPTIONS": OPTIONS, "DESCRIBE": described("m=video 0 RTP/AVP 96\r\n")}, "describes video, not both"),
        ({"OPTIONS": OPTIONS, "DESCRIBE": described("v=0\r\n")}, "describes nothing, not both"),
    ],
)
def test_rtsp_is_verified_by_what_it_describes(answers: dict[str, bytes], words: str) -> None:
    visits: Any = Visits(**answers)
    problems = Vlc().verify(Rtsp(ADDRESS, 8555), visits, FILM)
    assert problems is not None
    assert [problem.what for problem in problems if words not in problem.what] == []
    assert bool(problems) == bool(words)
    assert visits.asked[0].startswith(f"OPTIONS rtsp://{ADDRESS}:8555/{NAME} RTSP/1.0\r\n".encode())


PACKETS = (b"G" + bytes(187)) * 30
HEAD = b"HTTP/1.0 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HEAD + PACKETS * 2, ""),
        (HEAD + b"x" + PACKETS * 2, "sync bytes are missing"),
        (HEAD + PACKETS[:188] * 10, "sync bytes are missing"),
        (b"HTTP/1.0 404 Not found\r\n\r\n", "'HTTP/1.0 404 Not found'"),
    ],
)
def test_a_stream_is_verified_by_its_sync_bytes(answer: bytes, words: str) -> None:
    visits: Any = SimpleNamespace(exchange=lambda _offer, _sent, most: answer[:most])
    problems = Vlc(VlcSettings("http")).verify(Http(ADDRESS, 8080), visits, FILM)
    assert problems is not None
    assert [problem.what for problem in problems if words not in problem.what] == []
    assert bool(problems) == bool(words)


def test_without_a_film_there_is_nothing_to_ask_for() -> None:
    visits: Any = Visits()
    assert Vlc().verify(Rtsp(ADDRESS, 8555), visits, None) is None
    assert visits.asked == []
