"""Which arms of a study in rotation stand beside each other: all that the memory holds, and the baseline always.

Where it does not hold all of them, they are divided into as few groups as fit, each with a baseline of its own. What an
arm takes is the most that it may: its limit, and what its platform may take besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from virtoll.hosts.base import Host
from virtoll.hosts.cgroup import hierarchies, left_bytes
from virtoll.hosts.meminfo import meminfo_bytes
from virtoll.record.model import Arm
from virtoll.trial.deployer import make_platform
from virtoll.trial.treatment import Treatment
from virtoll.units import format_bytes

Groups = tuple[tuple[str, ...], ...]


def free_bytes(host: Host) -> int:
    """How much memory instances may take on a host now: in a container with a limit no more than that leaves."""
    free = meminfo_bytes(host.read(Path("/proc/meminfo")).decode(), "MemAvailable")
    left = left_bytes(hierarchies())
    return free if left is None else min(free, left[0])


@dataclass(frozen=True)
class Room:
    """The memory there is for arms side by side, and the most that an instance may use within its limit."""

    free_bytes: int
    limit_bytes: int

    @classmethod
    def on(cls, host: Host, asked: Sequence[Treatment]) -> Room:
        """What a host has free now."""
        return cls(free_bytes(host), max(each.limits.memory_bytes for each in asked))

    def lacks(self, arms: Sequence[Arm]) -> str:
        """Why it does not hold these arms at once, in bytes needed and free; "" where it does."""
        # And one more: the limits are proved on an instance of their own, which fills its memory.
        needed = self.limit_bytes + sum(map(self._size, arms))
        if needed <= self.free_bytes:
            return ""
        who = " and ".join(arm.label for arm in arms) if len(arms) < 3 else f"{len(arms)} arms"
        side = " side by side" if len(arms) > 1 else ""
        told = f"{who}{side}, and one more to prove the limits, may take {format_bytes(needed)}"
        return f"{told}, and {format_bytes(self.free_bytes)} are free"

    def groups(self, arms: Sequence[Arm]) -> Groups:
        """The labels of the arms that stand together, the baseline left out; () where all arms do.

        An arm that not even the baseline leaves room for is in a group by itself: see `lacks`.
        """
        if not self.lacks(arms):
            return ()
        native = sum(self._size(arm) for arm in arms if arm.role == "baseline")
        sizes = {arm.label: self._size(arm) for arm in arms if arm.role != "baseline"}
        return divided(sizes, self.free_bytes - self.limit_bytes - native)

    def _size(self, arm: Arm) -> int:
        platform = make_platform(arm)
        if platform.is_elsewhere:
            return 0
        return platform.overhead_bytes + (0 if platform.is_pooled else self.limit_bytes)


def divided(sizes: Mapping[str, int], room: int) -> Groups:
    """As few groups as there can be of which none is larger than ``room``, but those of one that is so by itself.

    The largest come first, each into the first group that holds it; where that takes a group more than it must, what
    it took is tried otherwise.
    """
    largest_first = sorted(sizes, key=lambda label: -sizes[label])
    for count in range(1, len(sizes) + 1):
        found = _into([()] * count, largest_first, sizes, room, set())
        if found is not None:
            return tuple(tuple(label for label in sizes if label in group) for group in found)
    return ()


def _into(
    groups: Sequence[tuple[str, ...]],
    left: Sequence[str],
    sizes: Mapping[str, int],
    room: int,
    failed: set[tuple[int, ...]],
) -> Sequence[tuple[str, ...]] | None:
    """These groups with all that is left; None where they do not hold it. ``failed``: how full they may not be."""
    if not left:
        return groups
    full = [sum(sizes[label] for label in group) for group in groups]
    key = (len(left), *sorted(full))
    if key in failed:
        return None
    label = left[0]
    for at, taken in enumerate(full):
        if (taken == 0 or taken + sizes[label] <= room) and taken not in full[:at]:
            found = _into([*groups[:at], (*groups[at], label), *groups[at + 1 :]], left[1:], sizes, room, failed)
            if found is not None:
                return found
    failed.add(key)
    return None
