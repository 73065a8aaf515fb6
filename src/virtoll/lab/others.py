"""What work that is none of the lab's took of an instance's CPUs: a build, a backup, somebody's browser.

No load average tells it that was read before a run: other work comes and goes. Where it takes what a service was
promised, that misses an objective which it would have met.

It is the difference of two counts of time in user space: of the instance's CPUs as /proc/stat has it (proc(5): user and
nice, guests' among them), and of all in the lab's own control group that may compute there, and of this process. Time
in the kernel is left out: interrupts are in no group, and much of a network's work is done in them. What of the lab's
has computed on other CPUs is taken off as well, so that it is rather too little than too much.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts.cgroup import Cgroup, Hierarchies, group_exists, hierarchies
from virtoll.hosts.tuning import groups_awake
from virtoll.lab.base import Lab
from virtoll.lab.client import LOAD, ORIGIN

STAT = Path("/proc/stat")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LEAST_CPUS = 0.1  # what daemons take is less
_SIGMAS = 3


@dataclass(frozen=True)
class Look:
    """What others have had by now."""

    at_ns: int  # CLOCK_MONOTONIC
    user_s: float | None  # since some time in the past; None where the kernel does not tell
    cpus: int  # of the instance


@dataclass(frozen=True)
class Others:
    """What they took between two looks."""

    cpus: float  # on average: CPU seconds a second
    bound: float  # what chance and daemons explain

    @property
    def words(self) -> str:
        """That it was more than that; "" where it was not."""
        return f"other work took {self.cpus:.2f} of the instance's CPUs meanwhile" if self.cpus >= self.bound else ""


def look(lab: Lab, cpus: Collection[int], groups: Iterable[str] = ()) -> Look:
    """``cpus``: the instance's; ``groups``: control groups of what belongs to the lab and need not be below its own:
    one that is not leaves unknown what is whose.
    """
    at_ns, theirs = time.monotonic_ns(), None
    if all(f"{group}/".startswith(f"{lab.cgroup}/") for group in groups):
        layout = hierarchies()
        # The loops of `virtoll tune awake` are on each CPU, and nice.
        there, ours = user_s_of(STAT, cpus, nice=not groups_awake(layout)), _ours_s(lab, layout)
        if there is not None and ours is not None:
            theirs = there - ours
    return Look(at_ns, theirs, len(cpus))


def _ours_s(lab: Lab, layout: Hierarchies) -> float | None:
    """Of all but those who keep to other CPUs than any instance's."""
    whole = group_user_s(Cgroup(lab.cgroup, layout))
    elsewhere = [Cgroup(f"{lab.cgroup}/{name}", layout) for name in ("generator", "monitor", LOAD, ORIGIN)]
    apart = [group_user_s(group) for group in elsewhere if group_exists(group.name)]
    if whole is None or None in apart:
        return None
    return whole - sum(filter(None, apart)) + os.times().user


def between(before: Look, after: Look) -> Others | None:
    """None where it is not known."""
    return over_all([(before, after)])


def over_all(stretches: Sequence[tuple[Look, Look]]) -> Others | None:
    """Of several stretches together, each from a look to a later one.

    The kernel may tell user from system time by what runs at each tick, some hundred times a second: the difference has
    then a standard deviation of at most half a tick for each tick (binomial).
    """
    length_s, theirs_s, cpus = 0.0, 0.0, 0
    for before, after in stretches:
        if before.user_s is None or after.user_s is None:
            return None
        length_s += (after.at_ns - before.at_ns) / 1e9
        theirs_s += after.user_s - before.user_s
        cpus = after.cpus
    if length_s <= 0:
        return None
    by_chance = 0.5 * math.sqrt(cpus / (_TICKS_PER_S * length_s))
    return Others(max(0.0, theirs_s) / length_s, _LEAST_CPUS + _SIGMAS * by_chance)


def user_s_of(stat: Path, cpus: Collection[int], *, nice: bool = True) -> float | None:
    """Time of these CPUs in user space, in s, by /proc/stat, with or without that of processes that are ``nice``; None
    where it does not tell of all of them.
    """
    names, ticks = {f"cpu{cpu}" for cpu in cpus}, 0
    try:
        for line in stat.read_text(encoding="ascii").splitlines():
            name, _, numbers = line.partition(" ")
            if name in names:
                names.remove(name)
                user, its_nice, *_ = numbers.split()
                ticks += int(user) + (int(its_nice) if nice else 0)
    except (OSError, ValueError):
        return None
    return None if names else ticks / _TICKS_PER_S


def group_user_s(group: Cgroup) -> float | None:
    """The same of all in a control group and below; None where the kernel does not tell."""
    is_2 = group.hierarchies.version == 2
    try:
        file = group.directory("cpu") / "cpu.stat" if is_2 else group.directory("cpuacct") / "cpuacct.stat"
        told = dict(line.split() for line in file.read_text(encoding="ascii").splitlines())
        return int(told["user_usec"]) / 1e6 if is_2 else int(told["user"]) / _TICKS_PER_S
    except (HostError, OSError, ValueError, KeyError):
        return None
