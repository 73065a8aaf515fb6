"""A small HTTP server that misbehaves on demand, for the tests of the loads. The path says how, or `served_as`."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from loopback import Connection, LoopbackServer
from virtoll.offers import Http

BODY = b"x" * 1000
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nX-Cache: HIT\r\n\r\n" + BODY
_OK_CLOSE = _OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
_ANSWERS = {
    "/ok": _OK,
    "/held": _OK,
    "/queue": _OK,
    "/slow": _OK,
    "/chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n" + BODY + b"\r\n0\r\n\r\n",
    "/other-length": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    "/unavailable": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    "/moved": b"HTTP/1.1 302 Found\r\nLocation: /ok\r\nContent-Length: 0\r\n\r\n",
    "/private": b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n",
    "/junk": b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n",
}
_BIG_BYTES = 3_000_000


class MisbehavingServer(LoopbackServer):
    """Answers by path, and keeps the request lines. After ``stall_at`` requests all answers wait ``stall_s``; request
    number ``hang_at`` is never answered, until its client gives up. "/held" is answered when ``hold_until`` requests
    have come, "/slow" after ``slow_s``, and "/queue" so too, one after another. Objects, which are what loads ask for,
    are answered like path ``served_as``."""

    def __init__(self) -> None:
        super().__init__(_Connection)
        self.lines: list[str] = []
        self.served_as = "/ok"
        self.stall_at = 0
        self.hang_at = 0
        self.stall_s = 0.0
        self.slow_s = 0.0
        self.hold_until = 0
        self.held = threading.Event()
        self.stall_ns: tuple[int, int] | None = None  # when it happened, CLOCK_MONOTONIC
        self.queued_ns: list[int] = []  # when each of the queue was done, CLOCK_MONOTONIC
        self._lock = threading.Lock()
        self._queue = threading.Lock()

    @property
    def offer(self) -> Http:
        """Where it is reached."""
        return Http(*self.where)

    def queue(self) -> None:
        """Wait until all who came before have had their time, and then one's own."""
        with self._queue:
            time.sleep(self.slow_s)
            self.queued_ns.append(time.monotonic_ns())

    def arrived(self, line: str) -> int:
        """Note a request, and give its number; everybody waits here while the server stalls."""
        with self._lock:
            self.lines.append(line)
            if len(self.lines) == self.hold_until:
                self.held.set()
            if self.stall_at and len(self.lines) == self.stall_at:
                begin_ns = time.monotonic_ns()
                time.sleep(self.stall_s)
                self.stall_ns = (begin_ns, time.monotonic_ns())
            return len(self.lines)


class _Connection(Connection):
    server: MisbehavingServer

    def handle(self) -> None:
        keep_alive = True
        while keep_alive:
            line = self.rfile.readline().decode()
            if not line:
                return
            head = [line]
            while head[-1] not in ("\r\n", ""):
                head.append(self.rfile.readline().decode())
            if self.server.arrived(line.strip()) == self.server.hang_at:
                self.rfile.read(1)
                return
            path = "/" + line.split()[1].removeprefix("http://").partition("/")[2]
            if path.startswith("/o/"):
                path = self.server.served_as
            asked_to_close = "HTTP/1.0" in line or "Connection: close\r\n" in head
            if path == "/ok" and asked_to_close:
                self.wfile.write(_OK_CLOSE)
                return
            if path == "/held":
                self.server.held.wait(600)
            if path == "/slow":
                time.sleep(self.server.slow_s)
            if path == "/queue":
                self.server.queue()
            keep_alive = self.answer(path) and not asked_to_close

    def answer(self, path: str) -> bool:
        """Answer; whether the connection lives on."""
        if path in _ANSWERS:
            self.wfile.write(_ANSWERS[path])
            return path != "/junk"
        if path == "/big":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % _BIG_BYTES + b"y" * _BIG_BYTES)
            return True
        if path == "/varying":
            body = b"x" * len(self.server.lines)
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return True
        if path == "/until-close":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + BODY)
        elif path == "/truncated":
            self.wfile.write(_OK[:-500])
        elif path == "/reset":
            self.reset()
        elif path == "/torn":
            for byte in _OK[:60]:
                self.wfile.write(bytes([byte]))
            self.wfile.write(_OK[60:])
            return True
        elif path == "/silent":
            self.rfile.read(1)
        elif path == "/endless":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            with suppress(OSError):
                while True:
                    self.wfile.write(bytes(1 << 20))
        return False  # "/hang-up": not one byte
