"""A small server of low-latency HLS that misbehaves on demand, for the tests of its viewers."""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from loopback import Connection, LoopbackServer
from virtoll.offers import LiveClip, LiveHttp
from virtoll.services import live, objects

Manner = Literal["ok", "missing", "junk", "hang-up", "reset", "cut", "wrong", "long", "silent", "no-playlist"]
HOURS_S = 3 * 3600.0


class LiveServer(LoopbackServer):
    """Serves ``clip`` by the clock of this machine, which it tells hours too late: playlists as the reference has them
    (`virtoll.services.live`), held back as they must be.

    Parts are answered in a ``manner``; *no-playlist*: it has none that is one. ``holds``: whether it can hold requests
    back, and hints at parts; else it says that it cannot. ``ends_after_s``: nothing goes out any more from then on.
    ``tells_time``: whether it knows one. ``keeps_hints``: whether what it hints at will be there; else what no
    playlist has listed yet is not.
    """

    def __init__(self, clip: LiveClip) -> None:
        super().__init__(_Connection)
        self.clip = clip
        self.manner: Manner = "ok"
        self.holds = True
        self.ends_after_s = float("inf")
        self.tells_time = True
        self.keeps_hints = True
        self.listed = 0
        self.asked: list[str] = []
        self.over = threading.Event()
        self._began_s = time.time()

    @property
    def offer(self) -> LiveHttp:
        """Where it is reached."""
        return LiveHttp(*self.where)

    def __exit__(self, *args: object) -> None:
        self.over.set()
        super().__exit__(*args)

    def now_ms(self) -> int:
        """By its clock."""
        return round(1000 * (min(time.time(), self._began_s + self.ends_after_s) - HOURS_S))

    @property
    def each(self) -> int:
        """Parts of a segment."""
        return self.clip.segment_ns // self.clip.part_ns

    def parts(self) -> int:
        """How many there are since 1970."""
        return self.now_ms() // (self.clip.part_ns // 10**6)

    def wait_for(self, parts: int) -> bool:
        """Whether there are so many, at last."""
        due_s = parts * self.clip.part_ns / 10**9 + HOURS_S
        while self.parts() < parts:
            if self.over.wait(max(0.005, due_s - time.time())):
                return False
        return True

    def playlist(self) -> str:
        """As it is now."""
        self.listed = max(self.listed, parts := self.parts())
        text = live.playlist(self.clip, live.Edge(*divmod(parts, self.each)))
        return text if self.holds else re.sub("CAN-BLOCK-RELOAD=YES,|#EXT-X-PRELOAD-HINT.*\n", "", text)


class _Connection(Connection):
    server: LiveServer

    def handle(self) -> None:
        with suppress(OSError):
            while line := self.rfile.readline().decode():
                while self.rfile.readline() not in (b"\r\n", b""):
                    pass
                url = line.split()[1]
                self.server.asked.append(url)
                if not self.answer(
                    urlsplit(url).path, {key: one[0] for key, one in parse_qs(urlsplit(url).query).items()}
                ):
                    return

    def answer(self, path: str, query: dict[str, str]) -> bool:
        """Answer; whether the connection lives on."""
        server = self.server
        if path == server.offer.clock_path and server.tells_time:
            return self.say(live.date(server.now_ms()).encode())
        if path == server.clip.path:
            if "_HLS_msn" in query and not server.wait_for(
                int(query["_HLS_msn"]) * server.each + int(query["_HLS_part"]) + 1
            ):
                return False
            return self.say(b"<html>" if server.manner == "no-playlist" else server.playlist().encode())
        found = re.fullmatch(r"/o/(\d+)-(\d+)", path)
        parts = int(query.get("until", "0")) // (server.clip.part_ns // 10**6)
        is_there = server.keeps_hints or parts <= server.listed
        if found is None or server.manner == "missing" or not is_there:
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return True
        if not server.wait_for(parts):
            return False
        return self.part(objects.content(int(found[2]) - int(found[1]), int(found[1])))

    def part(self, body: bytes) -> bool:
        """In the server's manner."""
        manner = self.server.manner
        if manner == "wrong":
            return self.say(bytes([body[0] ^ 1]) + body[1:])
        if manner == "long":
            return self.say(body + b"1")
        if manner == "silent":
            self.server.over.wait(600)
        elif manner == "junk":
            self.wfile.write(b"RTSP/1.0 200 OK\r\n\r\n")
        elif manner == "reset":
            self.reset()
        elif manner == "cut":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:-1])
        elif manner != "hang-up":
            return self.say(body)
        return False

    def say(self, body: bytes) -> bool:
        """An answer."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return True
