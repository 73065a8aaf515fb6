"""A mainline container wired and limited as OpenVZ does it; it is not OpenVZ, whose kernel is another one.

Of OpenVZ it has what a mainline kernel can be told: a routed device without neighbours (venet, the network mode), a
disk of its own on a loop device (ploop) instead of an overlay, memory and processes limited as its beancounters
physpages, swappages and numproc do, all others unlimited (its sample configuration for vswap), and the CPU shared by
weight (cpuunits) below the cap that every platform has (cpulimit). OpenVZ's own scheduler, its accounting of kernel
memory and sockets for each container, and its view of /proc are the kernel's, and not here. LXC runs it.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from virtoll.errors import Problem
from virtoll.features import Features, no
from virtoll.hosts.base import Host
from virtoll.images import disk, loop
from virtoll.images.base import Image
from virtoll.lab.base import Lab
from virtoll.networks.base import Kind
from virtoll.platforms.groups import Groups
from virtoll.platforms.lxc import Lxc, LxcSettings
from virtoll.study.limits import Limits
from virtoll.units import within


@dataclass(frozen=True)
class OpenvzProfileSettings(LxcSettings):
    """``cpuunits``: the instance's weight where others want the same CPU; 1000 is that of every other platform's, and
    all that there is with budget "vcpus", where the instance goes first.

    ``lxcfs``: as LXC's. OpenVZ shows a container its own memory and CPUs by itself, without a daemon.
    """

    cpuunits: int = within(1000, least=10, most=100_000)


class OpenvzProfile(Lxc):
    """LXC's container, OpenVZ's wiring and limits."""

    name: ClassVar[str] = "openvz-profile"
    summary: ClassVar[str] = "an LXC container wired and limited as OpenVZ does it (venet, own disk); not OpenVZ itself"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth",)
    features: ClassVar[Features] = {
        **Lxc.features,
        "shared-base": no("each has a disk of its own, copied from one", "docs/METHODOLOGY.md"),
    }
    default_network: ClassVar[str] = "venet"
    disk_limit: ClassVar[str] = loop.DISK_LIMIT
    Settings: ClassVar[type[OpenvzProfileSettings]] = OpenvzProfileSettings
    settings: OpenvzProfileSettings

    def lacks(self, host: Host, limits: Limits, instances: int = 1) -> list[Problem]:  # noqa: ARG002
        """See `Platform.lacks`."""
        if limits.budget == "inclusive" or self.settings.cpuunits == OpenvzProfileSettings.cpuunits:
            return []
        what = 'with budget "vcpus" an instance weighs as much as one can, as the generator whose CPUs it shares'
        return [Problem(what, "cpuunits", 'leave cpuunits out, or use budget = "inclusive"')]

    def prepare(self, host: Host, image: Image, limits: Limits, progress: Callable[[str], None]) -> None:
        """The disk that each instance's is copied from."""
        disk.ext4(host, image, limits.disk_bytes, progress)

    def root(self, lab: Lab, image: Image, limits: Limits, directory: Path) -> AbstractContextManager[Path]:
        """A disk of its own."""
        base = disk.ext4(lab.host, image, limits.disk_bytes, lambda _line: None)
        return loop.mounted_copy(lab.host, lab.ledger, base, directory)

    def limit_further(self, groups: Groups, limits: Limits) -> dict[str, Any]:
        """Its weight, among all instances of the lab, where it does not go first; and its limits in OpenVZ's words."""
        told = {"beancounters": beancounters(limits)}
        if limits.budget == "vcpus":
            return told
        file, value = cpu_weight(groups.whole.hierarchies.version, self.settings.cpuunits)
        (groups.whole.directory("cpu") / file).write_text(value, encoding="utf-8")
        return {"cpuunits": self.settings.cpuunits, file: value, **told}


def cpu_weight(cgroup_version: Literal[1, 2], cpuunits: int) -> tuple[str, str]:
    """The file and value of a cgroup that are ``cpuunits``.

    On version 1 as libvzctl has it (cpuunits * 1024 / 1000); on version 2, too, OpenVZ's default is the kernel's.
    """
    return ("cpu.weight", str(cpuunits // 10)) if cgroup_version == 2 else ("cpu.shares", str(cpuunits * 1024 // 1000))


def beancounters(limits: Limits) -> dict[str, int]:
    """What limits are in /proc/user_beancounters' words: pages for memory and swap, and processes."""
    return {"physpages": limits.memory_bytes // resource.getpagesize(), "swappages": 0, "numproc": limits.pids}
