"""One host that is reached by ssh, as a cluster of one (`virtoll.run.fleet`); `virtoll.run.performing` is there.

One session of OpenSSH's client carries all: the tree that performs, then orders and answers. What comes from there is a
stranger's: its length is bounded before it is read, and it is data, never code.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from virtoll import __version__
from virtoll.errors import HostError, Problem, StudyError
from virtoll.hosts.local import LocalHost, end_session
from virtoll.hosts.ssh import LOST, Ssh, flaw, meaning, script
from virtoll.plain import printable
from virtoll.run import boot, frames
from virtoll.run.fleet import BY_SSH, Answer, Said, heard, read
from virtoll.run.handed import MOST_BYTES
from virtoll.run.hosting import Order, measures_nothing
from virtoll.run.obeying import BEAT_S, PROTOCOL, Hello, mark
from virtoll.run.pushed import Pushed, write
from virtoll.run.there import Clock

_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_START = 'command -v "$1" >/dev/null || { echo "virtoll: there is no $1" >&2; exit 3; }; exec "$@"'
_MOST_NOISE_BYTES = 64 * 1024  # of a login shell, before the first message
_MOST_HELLO_BYTES = 4096
_MOST_SAID_BYTES = 4096  # of stderr, the last
# For a host to take more of what is brought, and then to say that it performs: a command that it has in the place of
# ours (sshd_config's ForceCommand, a line of authorized_keys) may never do either.
_GREETING_S = 300.0
_SILENCE_S = 60.0  # without a sign of life, which comes each `BEAT_S` while nothing is measured
_LAST_WORDS_S = 5.0  # for ssh to end, and to say why
_UNDO_S = 180.0  # for what is under way there to be undone
_EXCHANGES = 9  # by which the clocks are compared


_SERVER = re.compile(r"ssh://(?:[^/@][^/]*@)?(?:\[[^/\[\]]+\]|[^-/@:\[\]][^/@:\[\]]*)(?::(?P<port>\d{1,5}))?/?")


def destination_of(word: str, option: str = BY_SSH) -> str:
    """What ssh is called with. StudyError for anything but ssh://[user@]server[:port]."""
    server = _SERVER.fullmatch(word)
    if server is None or flaw(word) or not host_name(word) or not 0 < int(server["port"] or 22) < 2**16:
        raise StudyError([Problem(f"{word[:60]!r} is no host", option, "write ssh://[user@]server[:port]")])
    return word


def asked(option: str, kind: Literal["clean", "doctor"], model: type[Said]) -> Said:
    """What a host answers to one order that is of no run. HostError."""
    run = secrets.token_hex(8)

    def say(text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)

    with closing(SshCluster(destination_of(option), run, say)) as cluster:
        cluster.ask(host_name(option), Order(run=run, kind=kind).model_dump_json().encode())
        return read(cluster.next(), model)


def host_name(destination: str) -> str:
    """What plan, records and report call it: the server, in plain letters, with its port where one is named."""
    server = destination.removeprefix("ssh://").rpartition("@")[2]
    return re.sub(r"[^A-Za-z0-9_.]+", "-", server).strip("-_.")[:64]


class SshCluster:
    """The host, for one ``run``. HostError where it cannot be reached, or cannot perform."""

    def __init__(self, destination: str, run: str, say: Callable[[str], None]) -> None:
        self._host, self._run = host_name(destination), run
        pushed = Pushed.of_here()
        say(f"{self._host}: what performs is brought there ({pushed.size // 10**6} MB)")
        self._session = Line(destination, self._host, pushed)
        self._why_lost = ""
        self._is_beaten = False  # signs of life come while its order is carried out
        try:
            self._session.begin()
            self.notes: Mapping[str, Any] = {"performer": pushed.digest, "clock": self._compared_clocks()}
        except BaseException:
            self.close()
            raise

    @property
    def hosts(self) -> tuple[str, ...]:
        """Its name."""
        return (self._host,)

    def ask(self, host: str, order: bytes) -> None:  # noqa: ARG002
        """Give an order; `next` gives the answer."""
        self._is_beaten = measures_nothing(order)
        try:
            self._session.tell(order)
        except OSError:
            self._why_lost = self._why_lost or self._session.lost("it takes no orders")

    def next(self) -> Answer:
        """Wait for the answer."""
        if not self._why_lost:
            try:
                answer = b""
                while not answer and self._is_beaten:
                    answer = self._session.next(silence_s=_SILENCE_S)
                return Answer(self._host, answer or self._session.next())
            except frames.FramesError as error:
                self._why_lost = self._session.lost(str(error))
        return Answer(self._host, lost=self._why_lost)

    def close(self) -> None:
        """Leave. The host undoes what is under way, and all that was brought; that is waited for."""
        self._session.end()

    def _compared_clocks(self) -> dict[str, float]:
        """How far its time of day is ahead of ours, and how surely, in s: by the shortest of several exchanges."""
        found: list[tuple[float, float]] = []
        order = Order(run=self._run, kind="clock").model_dump_json().encode()
        for _ in range(_EXCHANGES):
            asked_s, began_s = time.time(), time.monotonic()
            self.ask(self._host, order)
            there = read(self.next(), Clock)
            took_s = time.monotonic() - began_s
            found.append((took_s, there.wall_s - (asked_s + took_s / 2)))
        took_s, ahead_s = min(found)
        return {"ahead_s": round(ahead_s, 6), "within_s": round(took_s / 2, 6)}


class Line:
    """One run of ssh, which lasts until `end`. ``option``: which named the machine; ``role``: see `obeying.obey`."""

    def __init__(
        self, destination: str, host: str, pushed: Pushed, option: str = BY_SSH, role: Sequence[str] = ()
    ) -> None:
        self._destination, self._pushed, self._option = destination, pushed, option
        self._nonce = secrets.token_hex(16)
        words = [pushed.python, pushed.digest, str(pushed.size), host, self._nonce, *role]
        text = Path(boot.__file__).read_text(encoding="utf-8")
        argv = Ssh(LocalHost(), destination).argv(script(_START, _PYTHON, "-I", "-c", text, *words))
        pipe = subprocess.PIPE
        self._process = process = LocalHost().spawn(argv, stdin=pipe, stdout=pipe, stderr=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self._orders, self._answers = process.stdin.fileno(), process.stdout.fileno()
        self._said = _Said(process)
        self._sending, self._over = threading.Lock(), threading.Event()
        self._draining = threading.Thread(target=self._drain, name="drain", daemon=True)

    def begin(self) -> None:
        """Bring what performs, and hear that it does. HostError."""
        try:
            write(lambda piece: frames.write_patiently(self._orders, piece, _GREETING_S))
            threading.Thread(target=self._beat, name="beats", daemon=True).start()
            frames.await_line(self._answers, mark(self._nonce), _MOST_NOISE_BYTES, _GREETING_S)
            self._expect_ours(frames.read_message(self._answers, _MOST_HELLO_BYTES, _GREETING_S))
        except (OSError, frames.FramesError) as error:
            why = self.lost(f"nothing performs there ({getattr(error, 'strerror', None) or error})")
            raise HostError(why, where=f"{self._option} {self._destination}", remedy=self._remedy()) from None

    def tell(self, order: bytes) -> None:
        """Give an order. OSError where nobody takes it."""
        with self._sending:
            frames.write_message(self._orders, order)

    def next(self, most_bytes: int = MOST_BYTES, silence_s: float | None = None) -> bytes:
        """The next answer. FramesError where there is none; ``silence_s``: see `frames.read_message`."""
        return frames.read_message(self._answers, most_bytes, silence_s)

    def lost(self, what: str) -> str:
        """Why nothing comes any more: ssh's reason where the connection was lost, else what was said there at last."""
        self._stop_reading()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS_S)
        said = self._said.text()
        if self._is_cut():
            return heard(meaning(self._destination, said).what)
        return heard(f"{what}: {' '.join(said.split())}" if said.strip() else what)

    def end(self) -> None:
        """Say that no order is to come, and wait until that host has undone all; ssh ends with it."""
        self._over.set()
        self._stop_reading()
        if self._sending.acquire(timeout=_LAST_WORDS_S):  # else somebody writes to a host that reads no more
            try:
                with suppress(OSError):
                    self._stdin.close()
            finally:
                self._sending.release()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_UNDO_S)
        end_session(self._process)
        self._draining.join(_LAST_WORDS_S)
        self._stdout.close()
        self._said.end()

    def _expect_ours(self, data: bytes) -> None:
        """FramesError for another performer than the one that was brought."""
        try:
            found = Hello.model_validate_json(data)
        except (ValidationError, RecursionError):
            raise frames.FramesError("what answers is no performer") from None
        if found != (wanted := Hello(protocol=PROTOCOL, virtoll=__version__, digest=self._pushed.digest)):
            raise frames.FramesError(f"what answers is another performer: {found}, and not {wanted}")

    def _beat(self) -> None:
        """Say that we are there, as long as we are: where a line is cut, the other end is not told."""
        with suppress(OSError):
            while not self._over.wait(BEAT_S):
                with self._sending:
                    if not self._over.is_set():
                        frames.write_message(self._orders, b"")

    def _stop_reading(self) -> None:
        """Throw away what still comes: whoever writes to a pipe that nobody reads does not end."""
        if not self._draining.ident:
            self._draining.start()

    def _drain(self) -> None:
        with suppress(OSError):
            while os.read(self._answers, 1024**2):
                pass

    def _is_cut(self) -> bool:
        """Whether ssh itself has failed, or was killed, and nobody at its other end."""
        code = self._process.returncode
        return code is not None and (code == LOST or code < 0)

    def _remedy(self) -> str:
        if self._is_cut():
            return meaning(self._destination, self._said.text()).remedy
        return f"it must be a Linux with {_PYTHON} that we are root on (docs/SCALE.md)"


class _Said:
    """The last of what ssh, and who is at its other end, say on stderr."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._pipe, self._last = process.stderr, b""
        self._thread = threading.Thread(target=self._listen, name="stderr", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with suppress(OSError):
            while piece := os.read(self._pipe.fileno(), _MOST_SAID_BYTES):
                self._last = (self._last + piece)[-_MOST_SAID_BYTES:]

    def text(self) -> str:
        """What was said so far, to its end where that has come."""
        self._thread.join(_LAST_WORDS_S)
        return self._last.decode(errors="replace")

    def end(self) -> None:
        """Nobody says anything any more."""
        self._thread.join(_LAST_WORDS_S)
        self._pipe.close()
