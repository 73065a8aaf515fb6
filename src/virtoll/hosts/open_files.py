"""How many files a program that virtoll starts may have open, its limit raised as far as it may."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from virtoll.errors import Problem

# Of the generator's own, beside what it opens for each: as many, and so many for each of its threads
# (rust/load/src/view/mod.rs: in_turn).
_SPARE, _OF_A_THREAD = 64, 4
_CAP_SYS_RESOURCE = 24  # capabilities(7)
_NR_OPEN, _STATUS, _USERS = Path("/proc/sys/fs/nr_open"), Path("/proc/self/status"), Path("/proc/self/uid_map")
_ALL_USERS = ["0", "0", str(2**32 - 1)]  # user_namespaces(7): of the first namespace


def most_open_files() -> tuple[int, bool]:
    """So many; and whether it is fs.nr_open that says so, rather than a hard limit that must not be raised.

    Root of a user namespace of its own has the capability there, and the kernel asks for that of the first.
    """
    hard, nr_open = _hard(), int(_NR_OPEN.read_text())
    effective = next((line for line in _STATUS.read_text().splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    is_capable = bool(int(effective.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    may_raise = is_capable and _USERS.read_text().split() == _ALL_USERS
    return (max(hard, nr_open), True) if may_raise else (hard, False)


def most_of(each: int, threads: int) -> int:
    """Of those who take so many open files each, as many as a generator of so many threads may open files for."""
    return (most_open_files()[0] - _own(threads)) // each


def too_many(who: str, number: int, each: int, where: str) -> list[Problem]:
    """What is said where so many ("viewers"), of whom each takes so many open files at the least, are more than may be
    open. Nothing is said to who is not root: he measures nothing, and his own limit is not root's.

    The generator has as many threads as CPUs, which are not given out yet: at the most as there are.
    """
    if os.geteuid() != 0:
        return []
    own = _own(os.cpu_count() or 1)
    needed, (most, is_of_kernel) = number * each + own, most_open_files()
    if needed <= most:
        return []
    limit = "fs.nr_open" if is_of_kernel else "the hard limit of open files, which must not be raised here"
    raised = f"`sysctl fs.nr_open={needed}`" if is_of_kernel else f"let virtoll begin with `ulimit -Hn {needed}`"
    what = f"{number:,} {who} take {needed:,} open files, and the generator may have {most:,} ({limit})"
    return [Problem(what, where, f"{raised}, or let there be {(most - own) // each:,} {who} at the most")]


def beyond_hard(service: str, needed: int, where: str, fewer: str) -> list[Problem]:
    """What is said where a ``service`` gives itself a limit of ``needed`` open files that is beyond the hard one, which
    instances have from virtoll: on native Linux and in guests it may (CAP_SYS_RESOURCE), and in containers it is left
    with fewer, down to the soft one. ``fewer``: what settings keep it below.

    The hard limit is that of whoever deploys, on the machine under test. Nothing is said to who is not root.
    """
    if os.geteuid() != 0 or needed <= (hard := _hard()):
        return []
    what = f"{service} gives itself {needed:,} open files, and the hard limit is {hard:,}: in containers it has fewer"
    allowed = f"`sysctl fs.nr_open={needed}` and " if needed > int(_NR_OPEN.read_text()) else ""
    raised = f"let virtoll begin there with {allowed}`ulimit -Hn {needed}` (over ssh: in /etc/security/limits.conf)"
    return [Problem(what, where, f"{raised}{fewer and f', or {fewer}'}")]


def _hard() -> int:
    """The hard limit of this process, of whose kind are those of all that it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return int(_NR_OPEN.read_text()) if hard == resource.RLIM_INFINITY else hard


def _own(threads: int) -> int:
    return _SPARE + _OF_A_THREAD * threads
