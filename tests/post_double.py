"""A double of OpenSSH's client with a post at its other end: a program `ssh` on the PATH.

It takes what is brought, and carries orders out as the real one does, its generators standing where nothing is wired;
or, at the order named in ``HOST_PLAYS`` ("KIND:N DEED"), it does something else (`host_double.DEEDS`).
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import host_double
import virtoll
from virtoll import __version__
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.post import nics
from virtoll.post.orders import Nic, Order
from virtoll.run import frames, obeying, posting
from virtoll.run.posting import Post

NIC = Nic(name="eth7", driver="ixgbe", speed_mbit_per_s=10_000, mtu=1500, identity="0123abcd")


class Stand:
    """Where they stand: here."""

    cpus = frozenset({0})
    whole = None  # its control group, of which `stand_here` has that it took nothing

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def client(self, name: str) -> Client:
        (self._directory / name).mkdir(exist_ok=True)
        return Client(LocalHost(), Confinement(), self._directory / name, cpus=1)

    @staticmethod
    def losses() -> dict[str, int]:
        return {"eth0 rx_dropped": 3}

    @staticmethod
    def expect_reached(_python: str) -> None:
        """It is."""


@contextmanager
def _stood(*_: object) -> Iterator[Stand]:
    with tempfile.TemporaryDirectory() as directory:
        yield Stand(Path(directory))


def stand_here(patch: pytest.MonkeyPatch, state: Path) -> None:
    """Posts wire nothing, and take no machine."""
    patch.setenv("VIRTOLL_STATE", str(state))
    patch.setattr(posting, "stood", _stood)
    patch.setattr(posting, "group_user_s", lambda _group: 0.0)
    patch.setattr(posting, "alone", lambda _host: nullcontext([]))
    patch.setattr(posting, "built", lambda *_: SimpleNamespace(digest="sha256:ab12"))
    patch.setattr(nics, "problems_of", lambda *_: [])
    patch.setattr(nics, "nic", lambda _host, name, **_: NIC.model_copy(update={"name": name}))


def _silent() -> None:
    """It says nothing any more, and does not end."""
    while os.read(0, 1):
        pass
    os._exit(0)


DEEDS: dict[str, Callable[[], None]] = {**host_double.DEEDS, "silent": _silent}


class Played(Post):
    """One that does as it is told, but for one order."""

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


def put(directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Make it what `ssh` is."""
    host_double.put(directory, patch)
    program = directory / "client/ssh"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$@"\n')
    (directory / "there").mkdir()
    ours = Path(virtoll.__file__).parent.parent  # what is tested, wherever it is installed
    patch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{ours}")
    patch.setenv("POST_STATE", str(directory / "there"))


def _main() -> None:
    at, _, deed = os.environ["HOST_PLAYS"].partition(" ")
    _, digest, size, name, nonce, role = shlex.split(sys.argv[-1])[-6:]
    assert role == obeying.POST
    frames._exactly(0, int(size), None)
    frames.write(1, b"Welcome to a login shell\nvirtoll", obeying.mark(nonce))
    hello = obeying.Hello(protocol=obeying.PROTOCOL, virtoll=__version__, digest=digest)
    frames.write_message(1, hello.model_dump_json().encode())
    stand_here(pytest.MonkeyPatch(), Path(os.environ["POST_STATE"]))
    beat_s: Any = None if deed == "silent" else 0.05
    obeying.perform(0, 1, Played(name, at, deed), beat_s=beat_s)


if __name__ == "__main__":
    _main()
