"""VLC as a server: RTSP on demand or live, or an endless MPEG-TS over HTTP.

VLC's media manager (VLM) takes what it is to serve from a file of its own commands. What it listens at is what the
image has of films (`virtoll.films`); nothing is transcoded. As it refuses to run as root, it runs as nobody.

RTP leaves from a pair of UDP ports that the kernel picks for each viewer and track (seen: 33715 and 33716; VLC has no
option for them), and SETUP's answer names them. Nothing has to come in there: VLC sends first, and ignores what
receivers report. So behind address translation the viewer's own ports are enough, and ``ports`` has no UDP.

What is live begins anew at the film's end, and not seamlessly: seen were 0.93 s without a frame, and about five frames
that never came. On demand, it ends a viewer's film when it has read all of it, before it has sent all: the last 1.4 s
never come (seen: 16 of 50 frames, and 215 of 250). Ask for a film that is longer than what is measured of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from virtoll import films
from virtoll.errors import Problem
from virtoll.films import Form
from virtoll.offers import Content, Film, Http, Offer, Port, Rtsp
from virtoll.platforms.base import Instance
from virtoll.services import daemon
from virtoll.services.base import Service, Visitor

HTTP_PORT = 8080
_PACKET_BYTES, _SYNC = 188, 0x47  # of MPEG-TS (ISO/IEC 13818-1, 2.4.3)
_PACKETS = 20  # of a stream that must be in order, to take it for one
_LINE_BYTES, _HEAD_BYTES = 40, 300  # of an answer of RTSP, its shortest with a body being longer
_READY_S = 120.0  # after it listens: an emulated machine needs seconds to open a film
_COMMANDS = f"{daemon.DIRECTORY}/vlc.vlm"


@dataclass(frozen=True)
class VlcSettings:
    """Settings of VLC: what it ``serves``. "rtsp": each viewer gets the film from its start; "rtsp-live": all of them
    watch one that never ends; "http": so too, as a progressive stream at /FILM.ts.
    """

    serves: Literal["rtsp", "rtsp-live", "http"] = "rtsp"


class Vlc(Service):
    """Debian's VLC without its interface."""

    name: ClassVar[str] = "vlc"
    summary: ClassVar[str] = "VLC as a server: RTSP on demand or live over UDP, or MPEG-TS over HTTP"
    packages: ClassVar[tuple[str, ...]] = ("vlc-bin", "vlc-plugin-base")
    port: ClassVar[int] = 8555  # of RTSP: natively it may run beside another RTSP server
    offered: ClassVar[tuple[type[Offer], ...]] = (Rtsp,)
    holds: ClassVar[tuple[type[Content], ...]] = (Film,)
    films: ClassVar[tuple[Form, ...]] = ("mp4",)
    Settings: ClassVar[type[VlcSettings]] = VlcSettings
    settings: VlcSettings

    @property
    def offers(self) -> tuple[type[Offer], ...]:
        """As it is told to serve."""
        return (Http,) if self.settings.serves == "http" else (Rtsp,)

    @property
    def ports(self) -> tuple[Port, ...]:
        """The one it listens at."""
        return (Port(HTTP_PORT if self.settings.serves == "http" else self.port),)

    def hold(self, instance: Instance, contents: Iterable[Content]) -> None:
        """Tell it of the films, before it starts."""
        held = [content for content in contents if isinstance(content, Film)]
        instance.agent.put(_COMMANDS, "".join(commands(self.settings, film, self.port) for film in held).encode())

    def start(self, instance: Instance, behind: Offer | None) -> Offer:  # noqa: ARG002 - it stands alone
        """Start it with what it holds: with nothing, it never listens."""
        words = [*daemon.ALL_FILES, "/usr/bin/vlc", "-I", "dummy", "--no-dbus"]
        words += ["--vlm-conf", _COMMANDS, "--rtsp-port", str(self.port)]
        (port,) = self.ports
        daemon.start(instance, self.name, words, port.number, deadline_s=_READY_S, env={"HOME": "/tmp"}, user="nobody")
        address = instance.attachment.endpoint_address
        if self.settings.serves == "http":
            return Http(address, port.number)
        is_live = self.settings.serves == "rtsp-live"
        return Rtsp(address, port.number, transports=("udp",), is_live=is_live)  # it answers TCP with 461

    def await_ready(self, instance: Instance, offer: Offer, visitor: Visitor) -> None:
        """Wait until it has opened its films, which is after it listens."""
        names = re.findall(r"(?m)^new (\S+) ", instance.agent.get(_COMMANDS).decode())
        for name in names:
            daemon.await_ready(instance, self.name, _READY_S, partial(_missing, offer, visitor, name))

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem] | None:
        """RTSP: it knows the film, and has both tracks of it. HTTP: what comes is MPEG-TS. None where no film is asked
        for.
        """
        if not isinstance(content, Film):
            return None
        missing = _missing(offer, visitor, content.name)
        return [Problem(missing, f"{offer.kind} at {offer.address}:{offer.port}")] if missing else []


def commands(settings: VlcSettings, film: Film, port: int) -> str:
    """Those of VLM that serve a film. ``gather`` and ``sout-keep`` keep the stream where the film begins anew."""
    name, path = film.name, films.inside(film, "mp4")
    if settings.serves == "rtsp":
        return f"new {name} vod enabled\nsetup {name} input {path}\n"
    way = f"rtp{{sdp=rtsp://:{port}/{name}}}"
    if settings.serves == "http":
        way = f"std{{access=http,mux=ts,dst=:{HTTP_PORT}/{name}.ts}}"
    return (
        f"new {name} broadcast enabled loop\nsetup {name} input {path}\n"
        f"setup {name} output #gather:{way}\nsetup {name} option sout-keep\ncontrol {name} play\n"
    )


def _missing(offer: Offer, visitor: Visitor, name: str) -> str:
    """What is not there of a film of that name, in words; "" where all is."""
    if isinstance(offer, Rtsp):
        return _missing_of_rtsp(offer, visitor, f"rtsp://{offer.address}:{offer.port}/{name}")
    return _missing_of_stream(offer, visitor, f"/{name}.ts")


def _missing_of_rtsp(offer: Rtsp, visitor: Visitor, url: str) -> str:
    """OPTIONS and DESCRIBE (RFC 2326, 10.1 and 10.2). VLC keeps a connection, whatever it is asked for: so the answer's
    first line is read first, then its head, which says how long all of it is.
    """
    asked = _request("DESCRIBE", url, "Accept: application/sdp\r\n")
    for request in (_request("OPTIONS", url), asked):
        said = visitor.exchange(offer, request, _LINE_BYTES)
        if not said.startswith(b"RTSP/1.0 200 "):
            return f"it answers {request.split()[0].decode()} with {_first_line(said)}"
    head, _, _ = visitor.exchange(offer, asked, _HEAD_BYTES).partition(b"\r\n\r\n")
    length = re.search(rb"(?im)^content-length: *(\d{1,5})\r?$", head)
    if length is None:
        return f"it does not say how long its answer to DESCRIBE is in {_HEAD_BYTES} bytes"
    answer = visitor.exchange(offer, asked, len(head) + 4 + int(length[1]))
    tracks = sorted(re.findall(r"(?m)^m=(\w+) ", answer.decode(errors="replace")))
    return "" if tracks == ["audio", "video"] else f"it describes {' and '.join(tracks) or 'nothing'}, not both tracks"


def _request(method: str, url: str, headers: str = "") -> bytes:
    return f"{method} {url} RTSP/1.0\r\nCSeq: 1\r\n{headers}\r\n".encode()


def _missing_of_stream(offer: Offer, visitor: Visitor, path: str) -> str:
    """The head of the answer, and the sync byte of each packet."""
    wanted = _PACKETS * _PACKET_BYTES
    said = visitor.exchange(offer, f"GET {path} HTTP/1.0\r\n\r\n".encode(), 2 * wanted)
    head, _, body = said.partition(b"\r\n\r\n")
    if not re.match(rb"HTTP/1\.[01] 200 ", head):
        return f"it answers GET {path} with {_first_line(head)}"
    first = body[:wanted:_PACKET_BYTES]
    return "" if first == bytes([_SYNC]) * _PACKETS else "what it sends is no MPEG-TS: sync bytes are missing"


def _first_line(said: bytes) -> str:
    return repr(said.partition(b"\r\n")[0].decode(errors="replace"))
