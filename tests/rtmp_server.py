"""A small RTMP server that misbehaves on demand, for the tests of viewers and publisher: after Adobe's specification
1.0, and with nothing of ours in it.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any, Literal

from loopback import Connection, LoopbackServer
from virtoll.offers import Rtmp

Manner = Literal[
    "ok", "refuse", "missing", "junk", "hang-up", "reset", "cut", "short", "early", "back", "gap", "silent", "stall"
]
FRAMES_PER_S = 25
FRAME_BYTES = 320  # 64 kbit/s
_CHUNK_BYTES = 200
SOUND, PICTURE, COMMAND = 8, 9, 20


def text(value: str) -> bytes:
    """A string of AMF0."""
    return b"\x02" + struct.pack(">H", len(value)) + value.encode()


def number(value: float) -> bytes:
    """A number of AMF0."""
    return b"\x00" + struct.pack(">d", value)


def fields(**told: str) -> bytes:
    """An object of AMF0."""
    return b"\x03" + b"".join(text(key)[1:] + text(value) for key, value in told.items()) + b"\x00\x00\x09"


def chunked(channel: int, kind: int, at_ms: int, payload: bytes, size: int) -> bytes:
    """A message, its chunks with whole and with no headers."""
    head = at_ms.to_bytes(3, "big") + len(payload).to_bytes(3, "big") + bytes([kind]) + struct.pack("<I", 1)
    parts = [payload[at : at + size] for at in range(0, len(payload), size)] or [b""]
    return bytes([channel]) + head + bytes([0xC0 | channel]).join(parts)


def frame(at_frame: int) -> bytes:
    """The n-th picture: two in a second are key frames."""
    first = 0x17 if at_frame % (FRAMES_PER_S // 2) == 0 else 0x27
    return bytes([first, 1, 0, 0, 0]) + bytes(FRAME_BYTES - 5)


class RtmpServer(LoopbackServer):
    """Plays ``seconds`` of pictures (FRAMES_PER_S, FRAME_BYTES each) to whoever asks, as fast as they are read; what is
    published goes on to whoever plays its name.

    In a ``manner``: *refuse* the connection, *missing* stream, *junk* no RTMP, *hang-up* and *reset* without a word,
    *cut* closed after the half, *short* and *early* at an end after the half (the stream's, and all of it), timestamps
    that go *back* or leave a *gap* there, *silent* never, *stall* after the half until `let_go`.
    """

    def __init__(self, seconds: float = 4.0) -> None:
        super().__init__(_Connection)
        self.manner: Manner = "ok"
        self.seconds = seconds
        self.over = threading.Event()
        self.asked: list[tuple[str, bytes]] = []  # commands, and what followed their names
        self.buffers_ms: list[int] = []  # what players said they hold
        self.acknowledged: list[int] = []
        self.pongs = 0
        self.published: list[tuple[int, int, bytes]] = []  # kind, timestamp, payload
        self.players: list[_Connection] = []
        self.publishers: list[_Connection] = []
        self.takes_streams = True
        self.lock = threading.Lock()

    def offer(self, *, is_live: bool = False) -> Rtmp:
        """Where it is reached."""
        return Rtmp(*self.where, application="app", is_live=is_live)

    def let_go(self) -> None:
        """What stalls goes on."""
        self.over.set()

    def drop(self) -> None:
        """End what is published."""
        for publisher in self.publishers:
            publisher.connection.shutdown(socket.SHUT_RDWR)

    def __exit__(self, *args: Any) -> None:
        self.over.set()
        super().__exit__(*args)


class _Connection(Connection):
    server: RtmpServer

    def handle(self) -> None:
        with suppress(OSError, EOFError):
            self.greet()
            self.size = 128
            self.streams: dict[int, dict[str, Any]] = {}
            while True:
                self.hear(*self.message())
        with self.server.lock, suppress(ValueError):
            self.server.players.remove(self)

    def exactly(self, count: int) -> bytes:
        got = self.rfile.read(count)
        if len(got) < count:
            raise EOFError
        return got

    def greet(self) -> None:
        manner = self.server.manner
        assert self.exactly(1) == b"\x03"
        theirs = self.exactly(1536)
        if manner == "silent":
            self.server.over.wait(600)
        if manner in ("hang-up", "reset", "junk", "silent"):
            if manner == "reset":
                self.reset()
            elif manner == "junk":
                self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            raise EOFError
        ours = bytes(range(256)) * 6
        self.wfile.write(b"\x03" + ours + theirs)
        assert self.exactly(1536) == ours, "its handshake says ours again"

    def message(self) -> tuple[int, int, bytes]:
        """Its kind, timestamp and payload; those of other streams may come between its chunks."""
        while True:
            first = self.exactly(1)[0]
            channel, form = first & 0x3F, first >> 6
            assert channel >= 2
            stream = self.streams.setdefault(channel, {"payload": b""})
            if form == 0:
                head = self.exactly(11)
                stream["at"] = int.from_bytes(head[:3], "big")
                stream["length"], stream["kind"] = int.from_bytes(head[3:6], "big"), head[6]
                if stream["at"] == 0xFFFFFF:
                    stream["at"] = int.from_bytes(self.exactly(4), "big")
            else:
                assert form == 3, "our client writes no other headers"
            stream["payload"] += self.exactly(min(self.size, stream["length"] - len(stream["payload"])))
            if len(stream["payload"]) == stream["length"]:
                payload, stream["payload"] = stream["payload"], b""
                return stream["kind"], stream["at"], payload

    def hear(self, kind: int, at_ms: int, payload: bytes) -> None:
        server = self.server
        if kind == 1:
            self.size = int.from_bytes(payload, "big")
        elif kind == 3:
            server.acknowledged.append(int.from_bytes(payload, "big"))
        elif kind == 4 and payload[:2] == b"\x00\x03":
            server.buffers_ms.append(int.from_bytes(payload[6:], "big"))
        elif kind == 4 and payload[:2] == b"\x00\x07":
            server.pongs += 1
        elif kind == COMMAND:
            length = int.from_bytes(payload[1:3], "big")
            name, rest = payload[3 : 3 + length].decode(), payload[3 + length :]
            server.asked.append((name, rest))
            getattr(self, f"on_{name}")(rest)
        elif kind in (SOUND, PICTURE):
            with server.lock:
                server.published.append((kind, at_ms, payload))
                players = list(server.players)
            for player in players:
                with suppress(OSError):
                    player.send(chunked(4 if kind == SOUND else 6, kind, at_ms, payload, _CHUNK_BYTES))

    def send(self, *parts: bytes) -> None:
        self.wfile.write(b"".join(parts))

    def command(self, *values: bytes) -> bytes:
        return chunked(3, COMMAND, 0, b"".join(values), _CHUNK_BYTES)

    def status(self, level: str, code: str) -> bytes:
        return self.command(text("onStatus"), number(0), b"\x05", fields(level=level, code=code))

    def control(self, kind: int, *numbers: int) -> bytes:
        return chunked(2, kind, 0, b"".join(struct.pack(">I", number) for number in numbers), _CHUNK_BYTES)

    def event(self, event: int, number: int) -> bytes:
        return chunked(2, 4, 0, struct.pack(">HI", event, number), _CHUNK_BYTES)

    def on_connect(self, _: bytes) -> None:
        self.send(self.control(5, 10_000), self.control(1, _CHUNK_BYTES), self.event(6, 7))
        if self.server.manner == "refuse":
            error = fields(level="error", code="NetConnection.Connect.Rejected")
            self.send(self.command(text("_error"), number(1), b"\x05", error))
        else:
            success = fields(level="status", code="NetConnection.Connect.Success")
            self.send(self.command(text("_result"), number(1), b"\x05", success))

    def on_createStream(self, _: bytes) -> None:  # noqa: N802  as RTMP calls it
        self.send(self.command(text("_result"), number(2), b"\x05", number(1)))

    def on_deleteStream(self, _: bytes) -> None:  # noqa: N802  as RTMP calls it
        with self.server.lock:
            for player in self.server.players:
                player.send(player.status("status", "NetStream.Play.UnpublishNotify"))

    def on_publish(self, _: bytes) -> None:
        if self.server.takes_streams:
            self.server.publishers.append(self)
            self.send(self.status("status", "NetStream.Publish.Start"))
        else:
            self.send(self.status("error", "NetStream.Publish.BadName"))

    def on_play(self, asked: bytes) -> None:
        if self.server.manner == "missing":
            self.send(self.status("error", "NetStream.Play.StreamNotFound"))
            return
        self.send(self.event(0, 1), self.status("status", "NetStream.Play.Start"))
        if asked.endswith(number(-1000)):
            with self.server.lock:
                self.server.players.append(self)
        else:
            self.play()

    def play(self) -> None:
        server = self.server
        frames, late_ms = round(server.seconds * FRAMES_PER_S), 0
        for at_frame in range(frames):
            if at_frame == frames // 2:
                late_ms = self.at_the_half()
            at_ms = at_frame * 1000 // FRAMES_PER_S + late_ms
            self.send(chunked(6, PICTURE, at_ms, frame(at_frame), _CHUNK_BYTES))
        self.end()

    def at_the_half(self) -> int:
        """Misbehave; by how much the rest is later."""
        server, manner = self.server, self.server.manner
        if manner == "cut":
            raise EOFError
        if manner in ("short", "early"):
            self.end() if manner == "early" else self.send(self.event(1, 1))
            server.over.wait(600)
            raise EOFError
        if manner == "stall":
            server.over.wait(600)
        return {"back": -500, "gap": 500}.get(manner, 0)

    def end(self) -> None:
        self.send(self.event(1, 1), self.status("status", "NetStream.Play.Stop"))


# How H.264 is decoded (ISO/IEC 14496-15, 5.2.4.1): main profile, a parameter set of the sequence, and one of pictures.
PICTURE_SETUP = b"\x17\x00\x00\x00\x00" + b"\x01\x4d\x40\x1f\xff\xe1\x00\x04\x67\x4d\x40\x1f\x01\x00\x03\x68\xee\x3c"


def flv(path: Any, seconds: float = 1.0) -> None:
    """A film of pictures of H.264 and sound of AAC, as far as anybody looks at them."""

    def tag(kind: int, at_ms: int, payload: bytes) -> bytes:
        head = bytes([kind]) + len(payload).to_bytes(3, "big") + at_ms.to_bytes(3, "big") + bytes(4)
        return head + payload + struct.pack(">I", 11 + len(payload))

    tags = [tag(PICTURE, 0, PICTURE_SETUP), tag(SOUND, 0, b"\xaf\x00\x12\x10")]
    for at_frame in range(round(seconds * FRAMES_PER_S)):
        at_ms = at_frame * 1000 // FRAMES_PER_S
        first = 0x17 if at_frame % (FRAMES_PER_S // 2) == 0 else 0x27
        part = bytes([0x65]) + b"\x01" * 200
        tags.append(tag(PICTURE, at_ms, bytes([first, 1, 0, 0, 0]) + struct.pack(">I", len(part)) + part))
        tags.append(tag(SOUND, at_ms, b"\xaf\x01" + b"\x01" * 40))
    path.write_bytes(b"FLV\x01\x05\x00\x00\x00\x09\x00\x00\x00\x00" + b"".join(tags))


def wait_for(condition: Any, timeout_s: float = 600.0) -> None:
    """Until it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
