"""Keeps the machine alive while a neighbour misbehaves: on danger the neighbour is ended, from outside and for certain.

What is looked at is the host's, not the instance's: an aggressor inside its limits may do there what it likes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts.cgroup import counted_tasks, hierarchies, left_bytes
from virtoll.hosts.meminfo import meminfo_bytes
from virtoll.units import format_bytes

_LOOK_S = 0.05
# What the machine must keep: shares of its memory and of its tasks, and room on its disk.
_MEMORY_SHARE = 0.05
# Of a larger host's memory no larger part must stay free: huge pages may hold nearly all of it.
_COUNTS_BYTES = 20 * 1024**3
_TASKS_SHARE = 0.1
_DISK_BYTES = 512 * 1024**2
_CONTAINER = "the container that virtoll is in"


@dataclass(frozen=True)
class State:
    """What the machine has left."""

    available_bytes: int
    total_bytes: int
    tasks: int  # processes and threads
    most_tasks: int  # that the kernel allows
    disk_free_bytes: int  # where the instances lie
    # Or a container's that virtoll is in, where that has less.
    whose_memory: str = "the host"
    whose_tasks: str = "the host"


def danger(state: State) -> str:
    """What endangers the machine, in words; nothing where it is safe."""
    if state.available_bytes < _MEMORY_SHARE * min(state.total_bytes, _COUNTS_BYTES):
        return f"{state.whose_memory} has only {format_bytes(state.available_bytes)} of memory left"
    if state.tasks > (1 - _TASKS_SHARE) * state.most_tasks:
        return f"{state.whose_tasks} runs {state.tasks} of {state.most_tasks} tasks"
    if state.disk_free_bytes < _DISK_BYTES:
        return f"the host's disk has only {format_bytes(state.disk_free_bytes)} left"
    return ""


def look(directory: Path) -> State:
    """How the machine is, and the file system that holds ``directory``. Of a container that virtoll is in the kernel
    keeps the limits, and its whole machine's files know nothing of them.
    """
    meminfo = Path("/proc/meminfo").read_text()
    tasks = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    most_tasks = min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("threads-max", "pid_max"))
    disk = os.statvfs(directory)
    state = State(
        available_bytes=meminfo_bytes(meminfo, "MemAvailable"),
        total_bytes=meminfo_bytes(meminfo, "MemTotal"),
        tasks=tasks,
        most_tasks=most_tasks,
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
    )
    if (left := left_bytes(hierarchies())) is not None and left[0] < state.available_bytes:
        total_bytes = min(state.total_bytes, left[1])
        state = replace(state, available_bytes=left[0], total_bytes=total_bytes, whose_memory=_CONTAINER)
    if (counted := counted_tasks(hierarchies())) is not None and counted[1] - counted[0] < most_tasks - tasks:
        state = replace(state, tasks=counted[0], most_tasks=counted[1], whose_tasks=_CONTAINER)
    return state


@dataclass
class Watch:
    """What a watchdog saw and did. Times are the host's CLOCK_MONOTONIC ns."""

    reason: str = ""  # the first danger
    seen_ns: int | None = None  # when that was seen
    saved_ns: int | None = None  # when the neighbour was ended for it
    failure: str = ""  # why it could not look, or not end the neighbour at once


@contextmanager
def watching(directory: Path, save: Callable[[], None], look_at: Callable[[Path], State] = look) -> Iterator[Watch]:
    """Look twenty times a second; at the first danger ``save`` is called (it ends the neighbour) until it succeeds.

    A machine that cannot be looked at is in danger too, though of an unknown one. HostError at the end of the block
    where something failed: a neighbour that nobody watched may have harmed the host unseen.
    """
    watch, over = Watch(), threading.Event()
    thread = threading.Thread(
        target=_keep_looking, args=(watch, over, directory, save, look_at), name="watchdog", daemon=True
    )
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
    if watch.failure:
        raise HostError(
            watch.failure, where="watchdog", remedy="the neighbour was ended; see what the machine lacks, and go on"
        )


def _keep_looking(
    watch: Watch, over: threading.Event, directory: Path, save: Callable[[], None], look_at: Callable[[Path], State]
) -> None:
    while not over.wait(_LOOK_S):
        if not (watch.reason or watch.failure):
            _look(watch, directory, look_at)
        if watch.reason or watch.failure:
            try:
                save()
            except Exception as error:  # whatever it is, the neighbour is still there: it is tried again
                watch.failure = watch.failure or f"the neighbour could not be ended at once: {error}"
            else:
                watch.saved_ns = time.monotonic_ns()
                return


def _look(watch: Watch, directory: Path, look_at: Callable[[Path], State]) -> None:
    try:
        if reason := danger(look_at(directory)):
            watch.seen_ns, watch.reason = time.monotonic_ns(), reason
    except Exception as error:  # a thread's error is seen by nobody: it is told at the block's end
        watch.failure = f"the host could not be looked at: {type(error).__name__}: {error}"
