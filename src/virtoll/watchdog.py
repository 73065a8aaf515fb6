"""Keeps the machine alive while a neighbour misbehaves: on danger the neighbour is ended, from outside and for certain.

What is looked at is the host's, not the instance's: an aggressor inside its limits may do there what it likes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from virtoll.hosts.meminfo import meminfo_bytes
from virtoll.units import format_bytes

_LOOK_S = 0.05
# What the machine must keep: shares of its memory and of its tasks, and room on its disk.
_MEMORY_SHARE = 0.05
_TASKS_SHARE = 0.1
_DISK_BYTES = 512 * 1024**2


@dataclass(frozen=True)
class State:
    """What the machine has left."""

    available_bytes: int
    total_bytes: int
    tasks: int  # processes and threads
    most_tasks: int  # that the kernel allows
    disk_free_bytes: int  # where the instances lie


def danger(state: State) -> str:
    """What endangers the machine, in words; nothing where it is safe."""
    if state.available_bytes < _MEMORY_SHARE * state.total_bytes:
        return f"the host has only {format_bytes(state.available_bytes)} of memory left"
    if state.tasks > (1 - _TASKS_SHARE) * state.most_tasks:
        return f"the host runs {state.tasks} of {state.most_tasks} tasks"
    if state.disk_free_bytes < _DISK_BYTES:
        return f"the host's disk has only {format_bytes(state.disk_free_bytes)} left"
    return ""


def look(directory: Path) -> State:
    """How the machine is, and the file system that holds ``directory``."""
    meminfo = Path("/proc/meminfo").read_text()
    tasks = Path("/proc/loadavg").read_text().split()[3].partition("/")[2]
    disk = os.statvfs(directory)
    return State(
        available_bytes=meminfo_bytes(meminfo, "MemAvailable"),
        total_bytes=meminfo_bytes(meminfo, "MemTotal"),
        tasks=int(tasks),
        most_tasks=min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("threads-max", "pid_max")),
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
    )


@dataclass
class Watch:
    """What a watchdog saw: the first danger, or nothing."""

    reason: str = ""


@contextmanager
def watching(directory: Path, save: Callable[[], None], look_at: Callable[[Path], State] = look) -> Iterator[Watch]:
    """Look twenty times a second; at the first danger ``save`` is called (it ends the neighbour), once."""
    watch, over = Watch(), threading.Event()

    def keep_looking() -> None:
        while not over.wait(_LOOK_S):
            reason = danger(look_at(directory))
            if reason:
                watch.reason = reason
                save()
                return

    thread = threading.Thread(target=keep_looking, name="watchdog", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
