"""What a group of processes takes from the host: memory, page tables, the kernel's own memory for it, CPU time.

Sources: proc(5) for /proc/PID/smaps_rollup (Pss: each page divided by how many map it) and VmPTE in /proc/PID/status;
the kernel's Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst for the groups' files; kcmp(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from virtoll.hosts.cgroup import Cgroup
from virtoll.probes.base import ProbeError

MIB = 1024**2
_KCMP = {"x86_64": 312, "aarch64": 272}  # system call numbers: the C library has no function for it
_KCMP_VM = 1
_PROC = Path("/proc")


@dataclass(frozen=True)
class Footprint:
    """Bytes that a group's processes take; memory that several of them share as one (threads, vfork) counts once."""

    processes: int
    pss_bytes: int
    private_bytes: int  # of it, what nobody else maps: freed if the group ended
    page_tables_bytes: int


def footprint(group: Cgroup) -> Footprint:
    """What all processes of ``group`` and the groups below it take now. ProbeError where the kernel does not tell."""
    pids = group.pids()
    owners = with_own_memory(pids)
    rollups = [_fields(_PROC / str(pid) / "smaps_rollup") for pid in owners]
    statuses = [_fields(_PROC / str(pid) / "status") for pid in owners]
    if not any("Pss" in found for found in rollups) and not (_PROC / "self/smaps_rollup").exists():
        raise ProbeError(
            "the kernel does not say what memory a process takes",
            kind="system",
            where="/proc/PID/smaps_rollup",
            remedy="use a kernel with CONFIG_PROC_PAGE_MONITOR (smaps_rollup: Linux 4.14 or later)",
        )
    return Footprint(
        processes=len(pids),
        pss_bytes=sum(found.get("Pss", 0) for found in rollups),
        private_bytes=sum(found.get("Private_Clean", 0) + found.get("Private_Dirty", 0) for found in rollups),
        page_tables_bytes=sum(found.get("VmPTE", 0) for found in statuses),
    )


def with_own_memory(pids: Iterable[int]) -> list[int]:
    """One process for each address space: User Mode Linux's helpers, for one, run in their kernel's."""
    found: list[int] = []
    for pid in pids:
        shared = {other: _share_memory(pid, other) for other in found}
        if None in shared.values():
            if _share_memory(pid, pid) is None:
                continue  # it has just ended; otherwise another one has, which takes nothing any more
            found = [other for other in found if shared[other] is not None]
        if not any(shared.values()):
            found.append(pid)
    return found


def kernel_bytes(group: Cgroup) -> int | None:
    """The kernel's memory charged to ``group`` (stacks, page tables, slabs, sockets); None where it is not told."""
    memory = group.directory("memory")
    if group.hierarchies.version == 1:
        return _integer(memory / "memory.kmem.usage_in_bytes")
    return _keyed(memory / "memory.stat", "kernel")  # since Linux 5.18


def cpu_ns(group: Cgroup) -> int:
    """CPU time of ``group`` since it was made; ProbeError where the kernel does not account for it."""
    if group.hierarchies.version == 1:
        used = _integer(group.directory("cpuacct") / "cpuacct.usage")
    else:
        usec = _keyed(group.directory("cpu") / "cpu.stat", "usage_usec")
        used = None if usec is None else usec * 1000
    if used is None:
        raise ProbeError(
            "the group's CPU time cannot be read",
            kind="system",
            where=f"cgroup {group.name}",
            remedy="the instance has ended, or the kernel has no CPU accounting (CONFIG_CGROUP_CPUACCT)",
        )
    return used


def _share_memory(pid: int, other: int) -> bool | None:
    """None: one of them has ended."""
    number = _KCMP.get(platform.machine())
    if number is None:
        raise _no_kcmp(f"its number on {platform.machine()} is not known")
    answer: int = ctypes.CDLL(None, use_errno=True).syscall(number, pid, other, _KCMP_VM, 0, 0)
    if answer >= 0:
        return answer == 0
    if ctypes.get_errno() == errno.ESRCH:
        return None
    raise _no_kcmp(os.strerror(ctypes.get_errno()))


def _no_kcmp(why: str) -> ProbeError:
    return ProbeError(
        f"the kernel does not say which processes share their memory: {why}",
        kind="system",
        where="kcmp(2)",
        remedy="run as root, on a kernel with CONFIG_KCMP",
    )


def _fields(path: Path) -> dict[str, int]:
    """The sizes in a file of /proc, in bytes; none when the process has just ended, or is a zombie."""
    try:
        return _parsed(path.read_text(encoding="utf-8", errors="replace"))  # a process may call itself anything
    except (FileNotFoundError, ProcessLookupError):
        return {}


def _parsed(text: str) -> dict[str, int]:
    """The lines ``Name:  123 kB`` in bytes."""
    lines = (line.split() for line in text.splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}


def _integer(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="utf-8"))
    except OSError:
        return None


def _keyed(path: Path, key: str) -> int | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(words[1]) for line in lines if (words := line.split())[0] == key), None)
