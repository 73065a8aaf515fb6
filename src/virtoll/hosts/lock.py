"""One virtoll measures at a time: two would measure each other."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts import private


@contextmanager
def exclusive(state_dir: Path) -> Iterator[None]:
    """Hold this machine for measuring; HostError names the process that holds it already.

    The kernel gives the lock up with its process, however that ends: nothing has to be cleaned.
    """
    private.make(state_dir)
    path = state_dir / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
            raise HostError(
                f"another virtoll is measuring here (process {pid})",
                where=str(path),
                remedy=f"wait for it to end, or end it: kill -INT {pid}",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
