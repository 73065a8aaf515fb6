"""A guest's memory in huge pages: of the pool that the user has reserved, taken whole when the guest begins.

No memory control group books such pages (Linux, Documentation/admin-guide/cgroup-v2.rst: memory_hugetlb_accounting,
off by itself, and since 6.6 only). How much of them a guest holds is known, though: all of its memory, all the time.
"""

from __future__ import annotations

from pathlib import Path

from virtoll.errors import Problem
from virtoll.hosts.base import Host

_MEMINFO, _MOUNTS = Path("/proc/meminfo"), Path("/proc/mounts")
_WITHOUT = "or leave huge_pages out"


def problem(host: Host) -> Problem | None:
    """Why a guest cannot have them, as far as it can be told without knowing its size."""
    pool = _pool(host)
    if not pool.get("HugePages_Total"):
        size = f"{pool.get('Hugepagesize', 2048)} kB"
        remedy = f"sysctl vm.nr_hugepages=N, N times {size} for all guests at once and one more, to prove its limits"
        return Problem("this machine has no huge pages reserved", host.where, f"{remedy}; {_WITHOUT}")
    if "memory_hugetlb_accounting" in host.read(_MOUNTS).decode(errors="replace"):
        what = "the memory controller books huge pages here, and virtoll would count them twice"
        return Problem(what, str(_MOUNTS), f"mount cgroup2 without memory_hugetlb_accounting; {_WITHOUT}")
    return None


def lacking(host: Host, memory_bytes: int, guests: int = 1) -> Problem | None:
    """Why guests of so much memory each cannot have it now, in whole pages: QEMU would say less of what it lacks."""
    pool, where = _pool(host), f"{host.where}: {_MEMINFO}"
    size_bytes = pool.get("Hugepagesize", 0) * 1024
    if not size_bytes or memory_bytes % size_bytes:
        what = f"{memory_bytes} B are no whole number of huge pages of {size_bytes} B"
        return Problem(what, where, f"choose such a [limits] memory; {_WITHOUT}")
    wanted = guests * memory_bytes // size_bytes
    free = pool.get("HugePages_Free", 0) - pool.get("HugePages_Rsvd", 0)
    if free >= wanted:
        return None
    total = pool.get("HugePages_Total", 0) + wanted - free
    remedy = f"sysctl vm.nr_hugepages={total} (soon after a boot: later, memory may be too scattered)"
    whose = "the guest's memory takes" if guests == 1 else f"{guests} guests' memory at once takes"
    return Problem(f"{whose} {wanted} huge pages, and {free} are free", where, remedy)


def _pool(host: Host) -> dict[str, int]:
    """The lines of /proc/meminfo, whose sizes are in kB."""
    lines = (line.split() for line in host.read(_MEMINFO).decode().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}
