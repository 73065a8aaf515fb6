"""Two seconds of watching a machine: who else is at work on it, and what the hypervisor takes.

A glance reads counters below a root directory (/proc); what lies between two of them is plain arithmetic.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PRESSURES = ("cpu", "memory", "io")
_HEAVY = 0.05  # of one CPU: who uses less is not named
_NAMED = 3


@dataclass(frozen=True)
class Glance:
    """Counters at one moment; None or absent where the machine does not tell. Ticks are 1/100 s, as a rule."""

    at_ns: int
    cpu: Mapping[str, int] | None  # ticks of all CPUs by kind: user, nice, system, idle, iowait, irq, softirq, steal
    pressure_us: Mapping[str, int]  # by resource: for how long somebody had to wait for it
    swapped_pages: int | None
    processes: Mapping[int, tuple[str, int]] = field(default_factory=dict)  # by number: name, ticks


_KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


def glance(root: Path) -> Glance:
    """Read what is there."""
    return Glance(
        at_ns=time.monotonic_ns(),
        cpu=_cpu(_text(root / "proc/stat")),
        pressure_us=dict(_pressures(root)),
        swapped_pages=_swapped(_text(root / "proc/vmstat")),
        processes=dict(_processes(root)),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cpu(stat: str) -> dict[str, int] | None:
    line = re.search(r"^cpu +(.+)$", stat, re.MULTILINE)
    return dict(zip(_KINDS, map(int, line[1].split()), strict=False)) if line else None


def spent_of(cpus: Collection[int], root: Path = Path("/")) -> dict[str, float] | None:
    """Time of these CPUs so far, in s by kind; None where the machine does not tell it of all (lxcfs numbers anew)."""
    tick_s, found = 1 / os.sysconf("SC_CLK_TCK"), dict.fromkeys(_KINDS, 0.0)
    lines = re.findall(r"^cpu(\d+) +(.+)$", _text(root / "proc/stat"), re.MULTILINE)
    ours = [ticks.split() for number, ticks in lines if int(number) in cpus]
    for ticks in ours:
        for kind, count in zip(_KINDS, ticks, strict=False):
            found[kind] += int(count) * tick_s
    return found if cpus and len(ours) == len(cpus) else None


def _pressures(root: Path) -> Iterable[tuple[str, int]]:
    for resource in _PRESSURES:
        if found := re.search(r"^some .*total=(\d+)", _text(root / "proc/pressure" / resource), re.MULTILINE):
            yield resource, int(found[1])


def _swapped(vmstat: str) -> int | None:
    counts = re.findall(r"^pswp(?:in|out) (\d+)$", vmstat, re.MULTILINE)
    return sum(map(int, counts)) if counts else None


def _processes(root: Path) -> Iterable[tuple[int, tuple[str, int]]]:
    for directory in (root / "proc").glob("[0-9]*"):
        before, found, after = _text(directory / "stat").rpartition(")")
        fields = after.split()
        if found and len(fields) > 12:  # proc_pid_stat(5): utime and stime are fields 14 and 15, after the name's 2
            yield int(directory.name), (before.partition("(")[2], int(fields[11]) + int(fields[12]))


@dataclass(frozen=True)
class Seen:
    """What lay between two glances; None where it could not be read. Shares are of all CPUs' time."""

    seconds: float
    stolen: float | None  # by the hypervisor, while a CPU had something to do
    busy: float | None  # somebody's work, without virtoll's own keepers
    heaviest: tuple[str, ...] = ()  # "name (pid): 43 % of a CPU"
    most: float = 0.0  # of one CPU's time, by whoever of them uses most
    waited: Mapping[str, float] = field(default_factory=dict)  # by resource, the share of time in which somebody waited
    swapped_pages: int | None = None


def between(before: Glance, after: Glance, *, ours: frozenset[int] = frozenset(), tick_s: float = 0.01) -> Seen:
    """What happened meanwhile, but for the processes that are ``ours``."""
    seconds = (after.at_ns - before.at_ns) / 1e9
    used = {
        pid: (name, (ticks - before.processes.get(pid, ("", 0))[1]) * tick_s)
        for pid, (name, ticks) in after.processes.items()
    }
    stolen = busy = None
    if before.cpu is not None and after.cpu is not None:
        spent = {kind: max(after.cpu[kind] - before.cpu.get(kind, 0), 0) * tick_s for kind in after.cpu}
        whole = sum(spent.values())
        if whole:
            stolen = spent["steal"] / whole if "steal" in spent else None
            idle = spent.get("idle", 0) + spent.get("iowait", 0) + spent.get("steal", 0)
            mine = sum(cpu_s for pid, (_, cpu_s) in used.items() if pid in ours)
            busy = max(1 - (idle + mine) / whole, 0.0)
    others = sorted(((cpu_s, name, pid) for pid, (name, cpu_s) in used.items() if pid not in ours), reverse=True)
    heavy = [
        f"{name} ({pid}): {cpu_s / seconds:.0%} of a CPU" for cpu_s, name, pid in others if cpu_s / seconds > _HEAVY
    ]
    swapped = None
    if before.swapped_pages is not None and after.swapped_pages is not None:
        swapped = after.swapped_pages - before.swapped_pages
    return Seen(
        seconds=seconds,
        stolen=stolen,
        busy=busy,
        heaviest=tuple(heavy[:_NAMED]),
        most=others[0][0] / seconds if others else 0.0,
        waited={
            resource: (total - before.pressure_us[resource]) / 1e6 / seconds
            for resource, total in after.pressure_us.items()
            if resource in before.pressure_us
        },
        swapped_pages=swapped,
    )


def look(root: Path, *, ours: frozenset[int] = frozenset(), for_s: float = 2.0) -> Seen:
    """Watch for so long, and do nothing meanwhile. ``ours``: virtoll's own keepers; this process is, too."""
    before = glance(root)
    time.sleep(for_s)
    after = glance(root)
    return between(before, after, ours=ours | {os.getpid()}, tick_s=1 / os.sysconf("SC_CLK_TCK"))
