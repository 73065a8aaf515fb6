"""What a service offers to whoever uses it: an address, ports, and the protocol that is spoken there."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from virtoll.errors import Problem, StudyError
from virtoll.units import url_path, within

Protocol = Literal["tcp", "udp"]
PROTOCOLS: tuple[Protocol, ...] = ("tcp", "udp")
MOST_PORT = 65_535


@dataclass(frozen=True, order=True)
class Port:
    """A port, or the range up to ``last`` (included), of one transport protocol."""

    number: int
    protocol: Protocol = "tcp"
    last: int = 0  # 0: the one port alone

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.end <= MOST_PORT:
            raise ValueError(f"{self} is no port: they are from 1 to {MOST_PORT}, and a range ascends")

    @property
    def end(self) -> int:
        """The last port of the range."""
        return self.last or self.number

    @property
    def numbers(self) -> range:
        """All of them, ascending."""
        return range(self.number, self.end + 1)

    def __contains__(self, other: Port) -> bool:
        """Whether all of ``other`` is part of this."""
        return self.protocol == other.protocol and self.number <= other.number and other.end <= self.end

    @classmethod
    def parse(cls, text: str) -> Port:
        """The port of "8080/tcp", "53/udp" or "10000-10100/udp"; ValueError says what would be right."""
        found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?/(tcp|udp)", text)
        if found is None:
            raise ValueError(f'{text!r} is no port: write "8080/tcp", "53/udp" or "10000-10100/udp"')
        return cls(int(found[1]), "udp" if found[3] == "udp" else "tcp", int(found[2] or 0))

    def __str__(self) -> str:
        return f"{self.number}{f'-{self.last}' if self.last else ''}/{self.protocol}"


def merged(ports: Iterable[Port]) -> tuple[Port, ...]:
    """The same ports, each once: TCP's before UDP's, ascending, and ranges that overlap are one."""
    apart: list[Port] = []
    for port in sorted(ports, key=lambda port: (port.protocol, port.number, port.end)):
        before = apart[-1] if apart else None
        if before is None or before.protocol != port.protocol or before.end < port.number:
            apart.append(port)
        elif before.end < port.end:
            apart[-1] = Port(before.number, before.protocol, port.end)
    return tuple(apart)


@dataclass(frozen=True)
class Offer:
    """What a started service offers: something that listens at ``address``, on ``port``.

    A load says which kinds of offer it takes; it takes those derived from them too.
    """

    kind: ClassVar[str] = ""  # in messages: "http"
    address: str  # where the generator reaches it
    port: int


@dataclass(frozen=True)
class Tcp(Offer):
    """A service that accepts TCP connections."""

    kind: ClassVar[str] = "tcp"


@dataclass(frozen=True)
class Udp(Offer):
    """A service that takes datagrams."""

    kind: ClassVar[str] = "udp"


@dataclass(frozen=True)
class Http(Tcp):
    """HTTP/1.1. ``proxy``: the client sends absolute URLs to ``address:port``, and ``upstream`` is the origin's
    host:port. ``certificate``: it is spoken over TLS, and the server's certificate has this digest.
    """

    kind: ClassVar[str] = "http"
    proxy: bool = False
    upstream: str = ""  # "198.18.2.2:8080"
    certificate: str = ""  # SHA-256 of its DER, hexadecimal; "": no TLS

    def url(self, path: str) -> str:
        """The URL of an object as a user would name it (the origin's, behind a proxy)."""
        return f"http{'s' if self.certificate else ''}://{self.upstream or f'{self.address}:{self.port}'}{path}"


@dataclass(frozen=True)
class LiveHttp(Http):
    """HTTP whose playlists go on by the server's clock, which is told at ``clock_path`` (xs:dateTime, to the ms)."""

    kind: ClassVar[str] = "live http"
    clock_path: str = "/clock"


@dataclass(frozen=True)
class Redis(Tcp):
    """The protocol of Redis (RESP)."""

    kind: ClassVar[str] = "redis"


@dataclass(frozen=True)
class Postgres(Tcp):
    """The protocol of PostgreSQL; ``database`` and ``user`` are those a client may use without a password."""

    kind: ClassVar[str] = "postgres"
    database: str = "postgres"
    user: str = "postgres"


@dataclass(frozen=True)
class Dns(Udp):
    """DNS over UDP and TCP. ``zone``: names below it are answered."""

    kind: ClassVar[str] = "dns"
    zone: str = ""


@dataclass(frozen=True)
class Rtmp(Tcp):
    """RTMP: streams of an application, `rtmp://address:port/application/stream`.

    ``stream``: what a stream of a film is called, ``{film}`` standing for `Film.name`. ``is_live``: it is there only
    while somebody publishes it.
    """

    kind: ClassVar[str] = "rtmp"
    application: str = ""
    stream: str = "{film}"
    is_live: bool = False

    def stream_of(self, film: Film) -> str:
        """What is played, or published."""
        return self.stream.format(film=film.name)


@dataclass(frozen=True)
class Rtsp(Tcp):
    """RTSP 1.0, with media by RTP: `rtsp://address:port` and the path of a presentation.

    ``path``: of a film's, ``{film}`` standing for `Film.name`. ``transports``: by which media can be delivered.
    ``publish_path``: what is watched at ``path`` is there only while somebody publishes it here (RECORD, over TCP); "":
    it is the server's own.
    """

    kind: ClassVar[str] = "rtsp"
    path: str = "/{film}"
    transports: tuple[Protocol, ...] = ("udp", "tcp")
    is_live: bool = False  # it goes on whoever watches, and has no end
    publish_path: str = ""

    def path_of(self, film: Film) -> str:
        """What is asked for."""
        return self.path.format(film=film.name)

    def publish_path_of(self, film: Film) -> str:
        """Where it is published; "": nobody need."""
        return self.publish_path.format(film=film.name)


@dataclass(frozen=True)
class Room(Tcp):
    """A conference room, which participants enter by a WebSocket at ``address:port``.

    Media go to and from ``media``, UDP ports of the same address.
    """

    kind: ClassVar[str] = "room"
    media: Port


@dataclass(frozen=True)
class JanusRoom(Room):
    """The VideoRoom ``room`` of a Janus server, whose HTTP API is at ``api_port``. Each connection of media has a port
    of its own. ``audio_room``: that of its AudioBridge, which mixes what is said; None: it has none.
    """

    api_port: int
    room: int = 1
    audio_room: int | None = None


@dataclass(frozen=True)
class LiveKitRoom(Room):
    """The room ``room`` of a LiveKit server, which opens to tokens that are signed with the key's secret."""

    room: str
    key: str
    secret: str


@dataclass(frozen=True)
class BigBlueButton(Tcp):
    """BigBlueButton's API, and the web client that its users join with."""

    kind: ClassVar[str] = "bigbluebutton"
    host: str = ""  # the name that its certificate is of
    is_tls: bool = True

    def url(self, path: str) -> str:
        """The URL of a path on that server."""
        scheme, usual = ("https", 443) if self.is_tls else ("http", 80)
        return f"{scheme}://{self.host}{'' if self.port == usual else f':{self.port}'}{path}"


@dataclass(frozen=True)
class Target:
    """A server of the user's own, by its URL: what it offers, and the ``path`` that is asked for there."""

    url: str
    offer: Offer
    path: str

    @classmethod
    def parse(cls, url: str) -> Target:
        """StudyError where it is no URL of a protocol that loads speak, or its name has no address."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            why = "" if "@" in url else f": {error}"  # it may quote a password
            raise _no_target(url, f"is no URL{why}") from None
        if parts.scheme not in _PORTS:
            raise _no_target(url, f"is of no protocol that a load speaks by a URL: {', '.join(_PORTS)}")
        if not host or "@" in parts.netloc or parts.fragment:
            raise _no_target(url, "must be a protocol, a host and a path alone, without a user or a fragment")
        if port == 0:
            raise _no_target(url, "is no URL: port 0 is none")
        if parts.scheme == "http" and not _SENT.fullmatch(parts.path + parts.query):
            raise _no_target(url, "must hold printable ASCII alone, without blanks: write others as %20")
        if parts.scheme == "rtmp" and not parts.path.removeprefix("/").partition("/")[2]:
            raise _no_target(url, "names no stream: rtmp://HOST/APPLICATION/STREAM does")
        if parts.scheme in _BIGBLUEBUTTON and not (_API.fullmatch(parts.path) and not parts.query):
            raise _no_target(url.partition("?")[0], _NO_API, _HTTP_OR_API)  # a query may open a meeting
        try:
            found = socket.getaddrinfo(host, port or _PORTS[parts.scheme], socket.AF_INET, socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # the latter where no name can be so
            said = error.strerror if isinstance(error, OSError) else error
            raise _no_target(url, f"names no server: {host}: {said}") from None
        address, number = str(found[0][4][0]), int(found[0][4][1])
        if parts.scheme == "bbb+http" and not address.startswith("127."):
            raise _no_target(
                url, "is not on this machine: only https goes farther, for others could read what opens it"
            )
        asked = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if parts.scheme == "bbb+http":
            host = address  # a name may lead elsewhere the next time
        return cls(url, *_offered(parts.scheme, address, number, asked, host))


_SENT = re.compile(r"[!-~]*")  # of a path over HTTP (RFC 9112, 3), as `virtoll.units.url_path` has it
_BIGBLUEBUTTON = ("https", "bbb+http")  # as `bbb-conf --secret` prints it; and without TLS, on this machine alone
_API = re.compile(r"(/[\w.~-]+)*/bigbluebutton(/|/api/?)?", re.ASCII)
_NO_API = "is no API: by https no load but BigBlueButton's goes to a server of yours"
_HTTP_OR_API = "name a web server by http://HOST:PORT/PATH, and a BigBlueButton server by https://HOST/bigbluebutton/"
_PORTS = {"http": 80, "rtmp": 1935, "rtsp": 554, "https": 443, "bbb+http": 80}


def _offered(scheme: str, address: str, port: int, asked: str, host: str) -> tuple[Offer, str]:
    if scheme in _BIGBLUEBUTTON:
        return BigBlueButton(address, port, host=host, is_tls=scheme == "https"), asked
    if scheme == "rtmp":
        application, _, stream = asked.removeprefix("/").partition("/")
        return Rtmp(address, port, application=application), stream
    if scheme == "rtsp":
        return Rtsp(address, port), asked
    return Http(address, port, upstream=f"{host}:{port}"), asked


def _no_target(url: str, what: str, remedy: str = "write it as http://host:8080/path") -> StudyError:
    shown = re.sub(r"^([a-z+]+://)?.*@", r"\1...@", url)  # a password is nobody's to read
    return StudyError([Problem(f"{shown} {what}", "--target", remedy)])


@dataclass(frozen=True)
class Content:
    """What a service must hold so that a load can ask for it."""


@dataclass(frozen=True)
class HttpObject(Content):
    """An object that HTTP serves; its path and its bytes follow from its length alone (`virtoll.services.objects`)."""

    length_bytes: int

    def __str__(self) -> str:
        return f"an object of {self.length_bytes} B"

    @property
    def path(self) -> str:
        """Its path in a URL."""
        return f"/o/{self.length_bytes}"


@dataclass(frozen=True)
class Clip(Content):
    """Media of a length, in one quality or several, as HLS and DASH serve them on demand: manifests, and segments that
    are files, the same for both (`virtoll.services.clips`).
    """

    duration_ns: int
    segment_ns: int  # the last may be shorter
    bit_rates: tuple[int, ...]  # of the qualities, in bit/s, ascending

    def __str__(self) -> str:
        return f"a clip of {self.duration_ns / 1e9:g} s in segments of {self.segment_ns / 1e9:g} s"

    @property
    def path(self) -> str:
        """The path of the playlist that a viewer of HLS asks for first."""
        return f"{self.directory}/index.m3u8"

    @property
    def mpd_path(self) -> str:
        """The path of the MPD that a viewer of DASH asks for."""
        return f"{self.directory}/index.mpd"

    @property
    def directory(self) -> str:
        """Where its manifests are; no other clip's are there."""
        rates = "-".join(str(rate) for rate in self.bit_rates)
        return f"/clip/{self.duration_ns / 10**6:.15g}-{self.segment_ns / 10**6:.15g}-{rates}"


@dataclass(frozen=True)
class LiveClip(Content):
    """Media that go out live, round and round, as low-latency HLS serves them: segments, and the parts of each
    (`virtoll.services.live`). All times are whole milliseconds, parts divide a segment, and segments a round.
    """

    round_ns: int
    segment_ns: int
    part_ns: int
    bit_rate: int  # bit/s

    def __str__(self) -> str:
        times = f"{self.segment_ns / 1e9:g} s in parts of {self.part_ns / 1e9:g} s"
        return f"live media in segments of {times}, round after {self.round_ns / 1e9:g} s"

    @property
    def directory(self) -> str:
        """Where its playlist is; no other's is there. The server reads all that it tells from this name."""
        times_ms = "-".join(str(time_ns // 10**6) for time_ns in (self.round_ns, self.segment_ns, self.part_ns))
        return f"/live/{times_ms}-{self.bit_rate}"

    @property
    def path(self) -> str:
        """The path of its playlist."""
        return f"{self.directory}/index.m3u8"


@dataclass(frozen=True)
class Film(Content):
    """Encoded media of a length: H.264 and AAC (`virtoll.films` makes the files)."""

    duration_ns: int
    bit_rate: int  # of both together, about; bit/s

    def __str__(self) -> str:
        return f"a film of {self.duration_ns / 1e9:g} s at {self.bit_rate / 1e6:g} Mbit/s"

    @property
    def name(self) -> str:
        """Without a suffix; no other film's."""
        return f"film-{self.duration_ns / 10**6:.15g}-{self.bit_rate}"


Codec = Literal["vp8", "h264"]  # of video in a conference


@dataclass(frozen=True)
class Footage:
    """Video alone, that a participant of a conference sends again and again (`virtoll.footage` makes the files). A
    ``webcam`` moves all over, a ``desktop`` hardly.
    """

    scene: Literal["webcam", "desktop"]
    width: int
    height: int
    frames_per_s: int
    bit_rate: int  # bit/s
    key_frames_s: int = 2  # from one to the next; there are no others
    duration_s: int = 10
    codec: Codec = "vp8"

    def __str__(self) -> str:
        size = f"{self.width}x{self.height}"
        rate = f"{self.frames_per_s} frames/s and {self.bit_rate / 1e6:g} Mbit/s"
        return f"a {self.scene} of {size} at {rate}" + ("" if self.codec == "vp8" else " in H.264")

    @property
    def name(self) -> str:
        """Without a suffix; no other footage's."""
        size = f"{self.width}x{self.height}-{self.frames_per_s}"
        codec = "" if self.codec == "vp8" else f"-{self.codec}"
        return f"{self.scene}-{size}-{self.bit_rate}-{self.key_frames_s}-{self.duration_s}{codec}"


@dataclass(frozen=True)
class Voice:
    """Audio alone, in Opus of one channel, that a participant of a conference says again and again (`virtoll.voice`
    makes the files).
    """

    bit_rate: int  # bit/s
    duration_s: int = 10

    def __str__(self) -> str:
        return f"a voice of {self.bit_rate / 1e3:g} kbit/s"

    @property
    def name(self) -> str:
        """Without a suffix; no other voice's."""
        return f"voice-{self.bit_rate}-{self.duration_s}"


@dataclass(frozen=True)
class Asked:
    """What an HTTP load asks for: an object of so many bytes, or, where there is one, the user's own path."""

    object_bytes: int = within(1000, most=10**12)
    path: str = url_path()  # "/index.html": whatever length it has; "" for the object

    @property
    def content(self) -> HttpObject | None:
        """What the service must hold; nothing of ours for a path of the user's."""
        return None if self.path else HttpObject(self.object_bytes)

    @property
    def target(self) -> str:
        """The path in the URL."""
        return self.path or HttpObject(self.object_bytes).path

    @property
    def length_bytes(self) -> int | None:
        """How long each answer must be; None where nobody knows."""
        return None if self.path else self.object_bytes
