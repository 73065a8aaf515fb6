"""One virtoll works on a machine at a time: two that measure would measure each other, or a report's being built."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts import private
from virtoll.hosts.processes import process

_GRACE_S = 30.0


@contextmanager
def exclusive(state_dir: Path) -> Iterator[None]:
    """Hold this machine for measuring; HostError names the process that holds it already.

    The kernel gives the lock up with its process, however that ends: nothing has to be cleaned.
    """
    private.make(state_dir)
    path = state_dir / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def beside_nobody(state_dir: Path) -> Iterator[None]:
    """Hold this machine for work that asks nothing of it but CPUs, such as a report; HostError as of `exclusive`.

    Nothing is written, and where no virtoll has ever worked, or its state is none of the user's business, there is
    nobody to be disturbed that could be known of.
    """
    path = state_dir / "lock"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        yield
        return
    try:
        _take(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    """Lock it. Where its holder is dead, a child that he had just forked holds it on for a moment: wait for that."""
    deadline = time.monotonic() + _GRACE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 32, 0).decode().strip()
            if pid.isdigit() and _is_dead(int(pid)) and time.monotonic() < deadline:
                time.sleep(0.01)
                continue
            raise HostError(
                f"another virtoll is at work here (process {pid or 'unknown'})",
                where=str(path),
                remedy=f"wait for it to end, or end it: kill -INT {pid}",
            ) from None
        return


def _is_dead(pid: int) -> bool:
    found = process(pid)
    return found is None or found.is_dead
