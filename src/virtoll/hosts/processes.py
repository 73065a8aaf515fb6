"""Processes as /proc shows them, told from others that have got the same number since."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_PROC = Path("/proc")
_KTHREADD = 2  # the process that starts all of the kernel's threads
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """One process: its number, and when it began (clock ticks after boot), which no successor shares."""

    pid: int
    started: int
    session: int
    is_dead: bool  # a zombie: it holds nothing but its number, and waits for its parent to take notice
    cpu_ns: int = field(default=0, compare=False)  # that it has used, and those of its children that were waited for


def process(pid: int) -> Process | None:
    """The process with this number, if there is one."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # proc_pid_stat(5), from field 3 on: the name before may hold anything.
    fields = stat.rpartition(")")[2].split()
    state, session, threads, started = fields[0], fields[3], fields[17], fields[19]
    cpu_ns = sum(map(int, fields[11:15])) * _TICK_NS
    # A process whose first thread has ended is shown as a zombie while the others still work.
    return Process(pid, int(started), int(session), state in "ZX" and int(threads) <= 1, cpu_ns)


def is_alive(one: Process) -> bool:
    """Whether this very process still does, or holds, anything."""
    now = process(one.pid)
    return now is not None and now.started == one.started and not now.is_dead


def processes() -> Iterator[Process]:
    """Every process of the machine, one after the other: what is born meanwhile may be missing."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (found := process(int(entry.name))) is not None:
            yield found


def in_session(session: int) -> list[Process]:
    """The living processes of a session."""
    return [one for one in processes() if one.session == session and not one.is_dead]


def kernel_threads(named: re.Pattern[str], proc: Path = _PROC) -> dict[int, str]:
    """The kernel's threads whose names begin so, by number."""
    found = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError):
                name = (entry / "comm").read_text(encoding="utf-8", errors="replace").strip()
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                if named.match(name) and int(stat.rpartition(")")[2].split()[1]) == _KTHREADD:
                    found[int(entry.name)] = name
    return found
