"""A small RTSP server that sends made-up media and misbehaves on demand, for the tests of the viewers over RTSP."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal

from loopback import Connection, LoopbackServer
from virtoll.offers import Rtsp

Manner = Literal[
    "ok", "no-record", "missing", "no-transport", "no-session", "broken", "junk", "hang-up", "reset", "elsewhere",
    "silent", "leap", "back", "cut", "close",
]  # fmt: skip
Way = Callable[[bytes, bool], object]  # of a packet, of media or of control
Path = Callable[[int], Iterator[int]]  # from how many packets were sent, the numbers of those that come, in order

_CLOCKS = (90_000, 48_000)
_PACKET_MS = 100
_SDP = """v=0\r
o=- 1 1 IN IP4 127.0.0.1\r
s=-\r
a=control:*\r
a=range:npt=0-{length_s}\r
m=video 0 RTP/AVP 96\r
a=rtpmap:96 H264/90000\r
a=control:track=0\r
m=audio 0 RTP/AVP 97\r
a=rtpmap:97 MPEG4-GENERIC/48000/2\r
a=control:track=1\r
"""


class RtspServer(LoopbackServer):
    """Describes a film of ``length_s``, of which it sends ``sent`` packets of each of two tracks at once, 100 ms of
    media in each, as ``path`` lets them pass.

    What somebody records it hands on, packet by packet, to all who play after that, and describes as it was announced.

    In a ``manner``: *no-record* 405, *missing* 404, *no-transport* 461, *no-session* 454 and *broken* 500, as a server
    would; *junk* no RTSP, *hang-up* and *reset* without a word, *elsewhere* a redirect, *silent* no media; *leap* and
    *back* with timestamps that leap half-way; *cut* with a farewell at the end of what is sent; *close* without one.
    """

    def __init__(self) -> None:
        super().__init__(_Connection)
        self.manner: Manner = "ok"
        self.length_s = 3600
        self.sent = 100  # a few viewers' packets must fit into the kernel's backlog (net.core.netdev_max_backlog)
        self.path: Path = lambda sent: iter(range(sent))
        self.asked: list[str] = []
        self.announced = ""
        self.location = "rtsp://127.0.0.1:1/"  # of the redirect
        self.published: list[tuple[int, bytes]] = []  # by channel
        self.watching: list[list[Way]] = []
        self.recording: list[_Connection] = []
        self.heard = threading.Condition()

    def was_asked(self, method: str, times: int) -> bool:
        """Whether it was, or is within ten minutes."""
        with self.heard:
            return self.heard.wait_for(lambda: self.asked.count(method) == times, 600)

    def offer(self, *transports: Literal["tcp", "udp"], is_live: bool = False, publish_path: str = "") -> Rtsp:
        """Where it is reached."""
        return Rtsp(*self.where, transports=transports or ("udp", "tcp"), is_live=is_live, publish_path=publish_path)

    def hand_on(self, channel: int, packet: bytes) -> None:
        """Something was published."""
        self.published.append((channel, packet))
        for ways in self.watching:
            with suppress(OSError):
                ways[channel // 2](packet, channel % 2 == 0)

    def drop(self) -> None:
        """End the connections of all who publish."""
        for connection in self.recording:
            connection.connection.shutdown(socket.SHUT_RDWR)


class _Connection(Connection):
    server: RtspServer

    def handle(self) -> None:
        self.ways: list[Way] = []
        with suppress(OSError):
            while first := self.rfile.read(1):
                if first == b"$":  # a report, or what is published
                    channel, length = struct.unpack("!BH", self.rfile.read(3))
                    packet = self.rfile.read(length)
                    if self in self.server.recording:
                        self.server.hand_on(channel, packet)
                    continue
                line, fields = (first + self.rfile.readline()).decode(), {}
                while (field := self.rfile.readline().decode()) not in ("\r\n", ""):
                    name, _, value = field.partition(":")
                    fields[name.lower()] = value.strip()
                method = line.split()[0]
                body = self.rfile.read(int(fields.get("content-length", 0))).decode()
                with self.server.heard:
                    self.server.asked.append(method)
                    self.server.heard.notify_all()
                if not self.answer(method, fields, body):
                    return

    def reply(self, fields: dict[str, str], status: str = "200 OK", head: str = "", body: str = "") -> None:
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        text = f"RTSP/1.0 {status}\r\nCSeq: {fields['cseq']}\r\n{head}{length}\r\n{body}"
        self.wfile.write(text.encode())

    def answer(self, method: str, fields: dict[str, str], body: str) -> bool:
        """Answer; whether the connection lives on."""
        manner = self.server.manner
        refusals: dict[tuple[str, str], str] = {
            ("no-record", "ANNOUNCE"): "405 Method Not Allowed",
            ("missing", "DESCRIBE"): "404 Not Found",
            ("no-transport", "SETUP"): "461 Unsupported Transport",
            ("no-session", "PLAY"): "454 Session Not Found",
            ("broken", "OPTIONS"): "500 Internal Server Error",
            ("elsewhere", "DESCRIBE"): "302 Found",
        }
        if (refusal := refusals.get((manner, method))) is not None:
            self.reply(fields, refusal, f"Location: {self.server.location}\r\n" if manner == "elsewhere" else "")
        elif method == "DESCRIBE" and manner == "junk":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        elif method == "DESCRIBE" and manner in ("hang-up", "reset"):
            if manner == "reset":
                self.reset()
            return False
        elif method == "DESCRIBE":
            self.reply(fields, body=self.server.announced or _SDP.format(length_s=self.server.length_s))
        elif method == "ANNOUNCE":
            self.server.announced = body
            self.reply(fields)
        elif method == "RECORD":
            self.server.recording.append(self)
            self.reply(fields, head="Session: 12345678\r\n")
        elif method == "SETUP":
            transport = self.set_up(fields["transport"])
            self.reply(fields, head=f"Session: 12345678;timeout=60\r\nTransport: {transport}\r\n")
        elif method == "PLAY":
            self.reply(fields, head="Session: 12345678\r\n")
            if self.server.recording:
                self.server.watching.append(self.ways)
                return True
            return self.play()
        else:
            self.reply(fields, head="Public: DESCRIBE, SETUP, PLAY, TEARDOWN\r\n")
        return method != "TEARDOWN"

    def set_up(self, transport: str) -> str:
        """Know where to send a track."""
        numbers = re.search(r"(client_port|interleaved)=(\d+)-(\d+)", transport)
        assert numbers is not None
        ports = int(numbers[2]), int(numbers[3])
        if numbers[1] == "interleaved":
            self.ways.append(
                lambda packet, is_media: self.wfile.write(
                    b"$" + struct.pack("!BH", ports[not is_media], len(packet)) + packet
                )
            )
            return transport
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.bind((self.server.where[0], 0))
        own = sender.getsockname()[1]
        self.ways.append(lambda packet, is_media: sender.sendto(packet, (self.client_address[0], ports[not is_media])))
        return f"{transport};server_port={own}-{own}"

    def play(self) -> bool:
        """Send the media; whether the connection lives on."""
        manner, sent = self.server.manner, self.server.sent
        for number in () if manner == "silent" else self.server.path(sent):
            for track, way in enumerate(self.ways):
                leaped_s = {"leap": 60, "back": -60}.get(manner, 0) if number >= sent // 2 else 0
                media_ms = 1000 * 100 + 1000 * leaped_s + number * _PACKET_MS
                timestamp = media_ms * _CLOCKS[track] // 1000
                head = struct.pack("!BBHII", 0x80, 96 + track, (65_500 + number) % 65_536, timestamp, 7 + track)
                way(head + bytes(100), True)
        if manner == "cut":
            for track, way in enumerate(self.ways):
                way(struct.pack("!BBHIBBHI", 0x80, 201, 1, 7 + track, 0x81, 203, 1, 7 + track), False)
        return manner != "close"
