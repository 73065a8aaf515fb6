"""How many files a program that virtoll starts may have open, its limit raised as far as it may."""

from __future__ import annotations

import resource
from pathlib import Path

from virtoll.errors import Problem

_SPARE = 64  # of its own, beside what it opens for each
_CAP_SYS_RESOURCE = 24  # capabilities(7)
_NR_OPEN, _STATUS = Path("/proc/sys/fs/nr_open"), Path("/proc/self/status")


def most_open_files() -> tuple[int, bool]:
    """So many; and whether it is fs.nr_open that says so, rather than a hard limit that must not be raised."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    nr_open = int(_NR_OPEN.read_text())
    hard = nr_open if hard == resource.RLIM_INFINITY else hard
    effective = next((line for line in _STATUS.read_text().splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    may_raise = bool(int(effective.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return (max(hard, nr_open), True) if may_raise else (hard, False)


def too_many(who: str, number: int, each: int, where: str) -> list[Problem]:
    """What is said where so many ("viewers"), of whom each takes so many open files at the least, are more than may be
    open.
    """
    needed, (most, is_of_kernel) = number * each + _SPARE, most_open_files()
    if needed <= most:
        return []
    limit = "fs.nr_open" if is_of_kernel else "the hard limit of open files, which must not be raised here"
    raised = f"`sysctl fs.nr_open={needed}`" if is_of_kernel else f"run as root, or with `ulimit -Hn {needed}`"
    what = f"{number:,} {who} take {needed:,} open files, and the generator may have {most:,} ({limit})"
    return [Problem(what, where, f"{raised}, or let there be {(most - _SPARE) // each:,} {who} at the most")]
