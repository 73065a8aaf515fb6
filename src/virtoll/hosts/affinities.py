"""Which CPUs threads keep to by their own wish (taskset, systemd's CPUAffinity=), over what old kernels forget it by.

Before Linux 6.2 every thread below a group of version 2 that is given the controller cpuset may run on all of the
group's CPUs from then on (kernel/cgroup/cpuset.c: cpuset_attach; github.com/systemd/systemd/issues/23748), whatever it
was told before. They are the user's own services, and virtoll itself where it is to use a part of the CPUs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from virtoll.hosts.processes import Process, is_alive, process

_PROC = Path("/proc")
_REMEMBERED = (6, 2)  # da019032819a, "sched: Enforce user requested affinity"


@dataclass(frozen=True)
class _Kept:
    thread: Process
    cpus: frozenset[int]


@contextmanager
def kept() -> Iterator[None]:
    """Give each thread the CPUs back that it kept to, where the block has let it run on all."""
    if _remembers(os.uname().release):
        yield
        return
    narrowed, widest = _looked_at()
    try:
        yield
    finally:
        for one in narrowed:
            with suppress(OSError):  # one that has just ended
                if is_alive(one.thread) and os.sched_getaffinity(one.thread.pid) == widest:
                    os.sched_setaffinity(one.thread.pid, one.cpus)


def _remembers(release: str) -> bool:
    found = re.match(r"(\d{1,4})\.(\d{1,4})", release)
    return found is not None and (int(found[1]), int(found[2])) >= _REMEMBERED


def _threads() -> Iterator[int]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # likewise
                yield from (int(task.name) for task in (entry / "task").iterdir())


def _looked_at() -> tuple[list[_Kept], frozenset[int]]:
    """The threads that do not run on all CPUs, and all CPUs: those that any thread runs on."""
    found: dict[int, frozenset[int]] = {}
    for thread in _threads():
        with suppress(OSError):  # it has just ended
            found[thread] = frozenset(os.sched_getaffinity(thread))
    widest = frozenset[int]().union(*found.values())
    threads = ((process(thread), cpus) for thread, cpus in found.items() if cpus != widest)
    return [_Kept(thread, cpus) for thread, cpus in threads if thread is not None], widest
