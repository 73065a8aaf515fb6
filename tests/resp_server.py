"""A small Redis that misbehaves on demand, for the tests of its load: `served_as` says how GET and SET are answered."""

from __future__ import annotations

import threading

from loopback import Connection, LoopbackServer
from virtoll.offers import Redis


class MisbehavingRedis(LoopbackServer):
    """Keeps what is set, and the rounds that came: the commands of each read are put down as one list."""

    def __init__(self) -> None:
        super().__init__(_Connection)
        self.held: dict[bytes, bytes] = {}
        self.served_as = "ok"
        self.commands: list[tuple[bytes, ...]] = []
        self.wrong_at = 1  # of each so many GETs or SETs the last is answered as `served_as` says, the others well
        self.size: int | None = None  # what DBSIZE says, where that is not the truth
        self._lock = threading.Lock()
        self._served = 0

    @property
    def offer(self) -> Redis:
        """Where it is reached."""
        return Redis(*self.where)

    def answer(self, command: tuple[bytes, ...]) -> bytes | None:
        """What is sent; None: the connection ends with it."""
        with self._lock:
            if command == (b"DBSIZE",):
                return b":%d\r\n" % (len(self.held) if self.size is None else self.size)
            self.commands.append(command)
            self._served += 1
            is_wrong = self._served % self.wrong_at == 0
        if command[0] == b"SET":
            well = b"+OK\r\n"
            self.held[command[1]] = command[2]
        else:
            value = self.held.get(command[1])
            well = b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)
        return _badly(self.served_as, well) if is_wrong else well


def _badly(served_as: str, well: bytes) -> bytes | None:
    answers = {
        "nil": b"$-1\r\n",
        "error": b"-LOADING Redis is loading the dataset in memory\r\n",
        "other-length": b"$3\r\nabc\r\n",
        "other-value": well.replace(b"key:", b"KEY:"),
        "other-kind": b":1\r\n",
        "junk": b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n",
        "hang-up": None,
        "reset": None,
        "truncated": None,
        "silent": b"",
    }
    return answers.get(served_as, well)


class _Connection(Connection):
    server: MisbehavingRedis
    disable_nagle_algorithm = True

    def handle(self) -> None:
        while (command := self.read()) is not None:
            answer = self.server.answer(command)
            if answer is None:
                self.part(command)
                return
            if self.server.served_as == "torn":
                for byte in answer:
                    self.wfile.write(bytes([byte]))
            else:
                self.wfile.write(answer)

    def read(self) -> tuple[bytes, ...] | None:
        line = self.rfile.readline()
        if not line:
            return None
        words = []
        for _ in range(int(line[1:])):
            length = int(self.rfile.readline()[1:])
            words.append(self.rfile.read(length))
            self.rfile.read(2)
        return tuple(words)

    def part(self, command: tuple[bytes, ...]) -> None:
        if self.server.served_as == "truncated":
            self.wfile.write(b"$%d\r\n" % len(self.server.held[command[1]]) + b"key")
        if self.server.served_as == "reset":
            self.reset()
