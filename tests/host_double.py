"""A double of OpenSSH's client with a host at its other end: a program `ssh` on the PATH, above a lab that is a fake.

It takes what is brought, and performs as the real one does; or, at the order named in ``HOST_PLAYS`` ("KIND:N DEED"),
it does something else. Kinds before any order are *login*, *tree* and *hello*.
"""

from __future__ import annotations

import hashlib
import os
import select
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from on_fakes import on_fakes
from virtoll import __version__
from virtoll.fakes import FakeExperiment
from virtoll.record.model import PlannedTrial
from virtoll.run import frames, hosting, obeying
from virtoll.run.hosting import Hosting, Order
from virtoll.run.stage import Stage


def put(directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Make it what `ssh` is, in a state directory of its own."""
    program = directory / "client/ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$@"\n')
    program.chmod(0o755)
    patch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    patch.setenv("HOST_PLAYS", "")
    patch.setenv("PYTHONPATH", str(Path(__file__).parent))


def lost() -> None:
    """The line is cut."""
    print("client_loop: send disconnect: Broken pipe", file=sys.stderr)
    os._exit(255)


def refused() -> None:
    """Nobody lets us in."""
    print("root@double: Permission denied (publickey).", file=sys.stderr)
    os._exit(255)


def mute() -> None:
    """Nothing is said, nor taken, until nobody is there any more."""
    waiting = select.poll()
    waiting.register(0, 0)
    waiting.poll()
    os._exit(0)


def swallows() -> None:
    """All is taken, and nothing said (a ForceCommand of `cat >/dev/null`)."""
    while os.read(0, 1024**2):
        pass
    os._exit(0)


def stopped() -> None:
    """It is there, and no part of it does anything any more."""
    os.kill(os.getpid(), signal.SIGSTOP)


def killed() -> None:
    """What performs is gone."""
    print("Out of memory", file=sys.stderr)
    os._exit(137)


def said(*pieces: bytes) -> Callable[[], None]:
    """These bytes in the place of an answer, and no more to come."""

    def say() -> None:
        frames.write(1, *pieces)
        os._exit(0)

    return say


def message(text: str) -> Callable[[], None]:
    """A whole answer that is another one."""
    return said(len(text).to_bytes(8, "big"), text.encode())


def hello(protocol: int = obeying.PROTOCOL, virtoll: str = __version__, digest: str = "0" * 64) -> None:
    """Another than the one that was brought."""
    other = obeying.Hello(protocol=protocol, virtoll=virtoll, digest=digest)
    frames.write_message(1, other.model_dump_json().encode())
    os._exit(0)


DEEDS: dict[str, Callable[[], None]] = {
    "lost": lost,
    "refused": refused,
    "killed": killed,
    "stopped": stopped,
    "mute": mute,
    "slow": lambda: time.sleep(0.5),
    "swallows": swallows,
    "half": said((100).to_bytes(8, "big"), b"{"),
    "huge": said((2**63).to_bytes(8, "big")),
    "garbage": said(os.urandom(1) * 200_000),
    "empty": message(""),
    "text": message("\x1b[2J" + "no answer " * 1000),
    "list": message("[" * 100_000),
    "pickle": message("cos\nsystem\n(S'touch /tmp/virtoll-was-run'\ntR."),
    "another": hello,
    "older": lambda: hello(protocol=0),
}


class Played(Hosting):
    """A host that does as it is told, but for one order."""

    def __init__(self, name: str, at: str, deed: str) -> None:
        super().__init__(name)
        self._at, self._deed = at, deed
        self._seen: Counter[str] = Counter()

    def answer(self, data: bytes) -> bytes:
        kind = Order.model_validate_json(data).kind
        self._seen[kind] += 1
        if f"{kind}:{self._seen[kind]}" == self._at:
            DEEDS[self._deed]()
        return super().answer(data)


@contextmanager
def _lab(_stage: Stage, _images: object, _pending: Sequence[PlannedTrial]) -> Iterator[FakeExperiment]:
    yield FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.01)


def _main() -> None:
    at, _, deed = os.environ["HOST_PLAYS"].partition(" ")
    size, name, nonce = (shlex.split(sys.argv[-1])[word] for word in (-3, -2, -1))
    digest = shlex.split(sys.argv[-1])[-4]
    if at == "login":
        DEEDS[deed]()
    tree = frames._exactly(0, int(size), None)
    assert hashlib.sha256(tree).hexdigest() == digest
    if at == "tree":
        DEEDS[deed]()
    frames.write(1, b"Welcome to a login shell\nvirtoll", obeying.mark(nonce))
    if at == "hello":
        DEEDS[deed]()
    good = obeying.Hello(protocol=obeying.PROTOCOL, virtoll=__version__, digest=digest)
    frames.write_message(1, good.model_dump_json().encode())
    patch = pytest.MonkeyPatch()
    on_fakes(patch, {})
    patch.setattr(Stage, "lab", _lab)
    patch.setattr(hosting, "alone", lambda _host: nullcontext([]))
    obeying.perform(0, 1, Played(name, at, deed), beat_s=0.05, beats_for=hosting.measures_nothing)


if __name__ == "__main__":
    _main()
