"""A small HTTP server of media that misbehaves on demand, for the tests of the viewers."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from typing import Literal

from loopback import Connection, LoopbackServer
from virtoll.offers import Http
from virtoll.services import objects

Manner = Literal[
    "ok", "close", "leave", "missing", "junk", "hang-up", "reset", "cut", "wrong", "long", "silent", "trickle", "stall"
]


class MediaServer(LoopbackServer):
    """Serves pieces of the text by their paths (`virtoll.services.objects`), ``playlists`` by theirs, else 404.

    Pieces are answered in a ``manner``: *close*, one to a connection, which the server then closes; *leave*, the same
    without a word of it, the end coming with the last byte; *missing* 404, *junk* no HTTP, *hang-up* and *reset*
    without a word; *cut* after the half, *wrong* with one byte changed, *long* with one more; *silent* never, *trickle*
    a byte now and then, *stall* with the first ``stall_at`` bytes, and no more until `let_go` is called (``stalled``
    counts them, ``went_on`` those who then wrote the rest). ``manners`` has one for each piece from the first asked for
    on, instead.
    """

    def __init__(self) -> None:
        super().__init__(_Connection)
        self.manner: Manner = "ok"
        self.manners: list[Manner] = []
        self.playlists: dict[str, list[str]] = {}  # each answer in turn; the last stays
        self.stall_at = 0
        self.asked: list[str] = []
        self.asked_over: list[int] = []  # which connection, the first is 1
        self.connections = 0
        self.over = threading.Event()
        self.stalled = threading.Semaphore(0)
        self.went_on = threading.Semaphore(0)
        self._lock = threading.Lock()

    @property
    def offer(self) -> Http:
        """Where it is reached."""
        return Http(*self.where)

    def let_go(self) -> None:
        """What stalls goes on."""
        self.over.set()

    def __exit__(self, *args: object) -> None:
        self.over.set()
        super().__exit__(*args)

    def connected(self) -> int:
        """Note a connection: its number."""
        with self._lock:
            self.connections += 1
            return self.connections

    def manner_of(self, path: str, connection: int) -> Manner:
        """Note a request, and how it is to be answered."""
        with self._lock:
            self.asked_over.append(connection)
            self.asked.append(path)
            if path.startswith("/o/") and self.manners:
                return self.manners.pop(0)
            return self.manner

    def body_of(self, path: str) -> bytes | None:
        """What is there; None: nothing."""
        if path in self.playlists:
            with self._lock:
                texts = self.playlists[path]
                return (texts.pop(0) if len(texts) > 1 else texts[0]).encode()
        found = re.fullmatch(r"/o/(?:(\d+)-)?(\d+)", path)
        if found is None:
            return None
        begin = int(found[1] or 0)
        return objects.content(int(found[2]) - begin, begin)


class _Connection(Connection):
    server: MediaServer

    def handle(self) -> None:
        self.number = self.server.connected()
        with suppress(OSError):
            while line := self.rfile.readline().decode():
                while self.rfile.readline() not in (b"\r\n", b""):
                    pass
                if not self.answer(line.split()[1]):
                    return

    def answer(self, path: str) -> bool:
        """Answer; whether the connection lives on."""
        manner, body = self.server.manner_of(path, self.number), self.server.body_of(path)
        if body is None or (manner == "missing" and path.startswith("/o/")):
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return True
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(body)
        if path.startswith("/o/") and manner not in ("ok", "close", "leave"):
            return self.misbehave(manner, head + b"\r\n", body)
        last = b"Connection: close\r\n" if manner == "close" else b""
        if manner == "leave":
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        self.wfile.write(head + last + b"\r\n" + body)
        return manner not in ("close", "leave")

    def misbehave(self, manner: Manner, head: bytes, body: bytes) -> bool:
        """Answer otherwise than is right."""
        over, half = self.server.over, len(body) // 2
        if manner == "junk":
            self.wfile.write(b"RTSP/1.0 200 OK\r\n\r\n")
        elif manner == "reset":
            self.reset()
        elif manner == "cut":
            self.wfile.write(head + body[:half])
        elif manner == "wrong":
            self.wfile.write(head + body[:half] + bytes([body[half] ^ 1]) + body[half + 1 :])
            return True
        elif manner == "long":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(body) + 1) + body + b"1")
            return True
        elif manner == "silent":
            over.wait(600)
        elif manner == "trickle":
            self.wfile.write(head)
            for byte in body:
                if over.wait(0.02):
                    break
                self.wfile.write(bytes([byte]))
        elif manner == "stall":
            self.wfile.write(head + body[: self.server.stall_at])
            self.server.stalled.release()
            over.wait(600)
            self.wfile.write(body[self.server.stall_at :])
            self.server.went_on.release()
            return True
        return False  # "hang-up": not one byte
