"""What platforms share whose guest boots a kernel of the distribution's from a disk of the image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.hosts.programs import find
from virtoll.images import disk, kernel
from virtoll.images.base import Image
from virtoll.images.kernel import Devices, Kernel
from virtoll.platforms.base import Platform
from virtoll.platforms.requirements import other_machine
from virtoll.study.limits import Limits

FOR_A_DISK_AND_A_KERNEL = {
    "mkfs.ext4": "apt-get install e2fsprogs",
    "modprobe": "apt-get install kmod",
}


class Booted(Platform):
    """Its ``Settings`` have ``kernel``: the guest's own (a path on the host; "": the distribution's)."""

    devices: ClassVar[Devices]
    needed: ClassVar[Mapping[str, str]] = {}  # programs that it asks for, and what to do where one is missing

    def check(self, host: Host) -> list[Problem]:
        """A machine that is no x86-64, the programs that are missing, and a kernel that cannot be had."""
        if problems := other_machine(host):
            return problems
        missing = [
            Problem(f"{program} is missing", host.where, remedy)
            for program, remedy in self.needed.items()
            if find(program) is None
        ]
        if missing:
            return missing
        problem = self.kernel_problem(host)
        return [] if problem is None else [problem]

    def prepare(self, host: Host, image: Image, limits: Limits, progress: Callable[[str], None]) -> None:
        """The guest's kernel, which all that are deployed from now on boot, and its disk."""
        self.kernel(host, progress)
        disk.ext4(host, image, limits.disk_bytes, progress)

    def versions(self, host: Host) -> dict[str, str]:
        """Those of the programs, and the guest's kernel with its initramfs."""
        found = self.kept_kernel(host)
        name = f"kernel of {self.name} {self.settings.kernel}".strip()
        return {**super().versions(host), name: f"{found.version}, sha256 {found.digest}"}

    def kernel(self, host: Host, progress: Callable[[str], None]) -> Kernel:
        """The kernel that the settings ask for, as it is to be had now."""
        return self.as_booted(host, kernel.guest_kernel(host, progress, self.own_kernel(), self.devices), progress)

    def kept_kernel(self, host: Host) -> Kernel:
        """That of `prepare`: nothing is looked for or fetched while it is measured how long a guest takes."""
        return self.as_booted(host, kernel.kept_kernel(host, self.own_kernel(), self.devices), silent)

    def as_booted(self, host: Host, found: Kernel, progress: Callable[[str], None]) -> Kernel:  # noqa: ARG002
        """It in the form that the monitor takes."""
        return found

    def kernel_problem(self, host: Host) -> Problem | None:
        """Why it cannot be had, if it cannot. Fetches and writes nothing."""
        return kernel.kernel_problem(host, self.own_kernel(), self.devices)

    def own_kernel(self) -> Path | None:
        """The path that the settings name."""
        return Path(self.settings.kernel) if self.settings.kernel else None


def silent(_line: str) -> None:
    """What is in the cache already needs no report."""
