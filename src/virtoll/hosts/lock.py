"""One virtoll works on a machine at a time: two that measure would measure each other, or a report's being built."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts import private
from virtoll.hosts.processes import Process, is_alive, process

_GRACE_S = 30.0


def locks(file: int) -> bool:
    """Lock an open file for oneself, where nobody else holds it; whether it is locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
        with _signed(descriptor):
            yield
    finally:
        os.close(descriptor)


@contextmanager
def beside_nobody(state_dir: Path) -> Iterator[None]:
    """Hold this machine for work that asks nothing of it but CPUs, such as a report; HostError as of `exclusive`.

    Nothing is made. Where no virtoll has ever worked, or its state is none of the user's business, there is nobody to
    be disturbed that could be known of.
    """
    path = state_dir / "lock"
    try:
        descriptor, is_ours = _opened(path)
    except (FileNotFoundError, PermissionError):
        yield
        return
    try:
        _take(descriptor, path)
        with _signed(descriptor) if is_ours else nullcontext():
            yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> tuple[int, bool]:
    """The lock that is there, and whether it can be written to."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC), True
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS):
            raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), False


@contextmanager
def _signed(descriptor: int) -> Iterator[None]:
    """Say in the lock who holds it, for as long as that is so; a full disk keeps the name, not the lock."""
    holder = process(os.getpid())
    assert holder is not None
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{holder.pid} {holder.started}\n".encode(), 0)
    try:
        yield
    finally:
        with suppress(OSError):  # nor does a disk that can be written to no longer hide what went wrong
            os.ftruncate(descriptor, 0)


def _take(descriptor: int, path: Path) -> None:
    """Lock it. HostError where another holds it on.

    Who has just taken it says so in a moment; and where its holder is dead, a child that he had forked may hold it on
    for a moment. Both are waited for.
    """
    deadline = time.monotonic() + _GRACE_S
    while True:
        if locks(descriptor):
            return
        if (holder := _holder(descriptor)) is not None:
            raise HostError(
                f"another virtoll is at work here (process {holder.pid})",
                where=str(path),
                remedy=f"wait for it to end, or end it: kill {holder.pid}",
            )
        if time.monotonic() > deadline:
            raise HostError(
                "another virtoll is at work here, or a process that a killed one left, and does not say which",
                where=str(path),
                remedy=f"wait for it to end; `fuser -v {path}` names it",
            )
        time.sleep(0.01)


def _holder(descriptor: int) -> Process | None:
    """The living process that says it holds the lock; never one that has only got its number since."""
    words = os.pread(descriptor, 64, 0).decode(errors="replace").split()
    if len(words) != 2 or not all(word.isdecimal() and word.isascii() for word in words):
        return None
    said = Process(int(words[0]), int(words[1]), session=0, is_dead=False)
    return said if is_alive(said) else None
