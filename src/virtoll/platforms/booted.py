"""What platforms share whose guest boots a kernel of the distribution's from a disk of the image: QEMU's and Xen's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.images import disk, kernel
from virtoll.images.base import Image
from virtoll.images.kernel import Devices, Kernel
from virtoll.platforms.base import Platform
from virtoll.study.limits import Limits


class Booted(Platform):
    """Its ``Settings`` have ``kernel``: the guest's own (a path on the host; "": the distribution's)."""

    devices: ClassVar[Devices]

    def prepare(self, host: Host, image: Image, limits: Limits, progress: Callable[[str], None]) -> None:
        """The guest's kernel and its disk."""
        self.kernel(host, progress)
        disk.ext4(host, image, limits.disk_bytes, progress)

    def versions(self, host: Host) -> dict[str, str]:
        """Those of the programs, and the guest's kernel with its initramfs."""
        found = self.kernel(host, silent)
        name = f"kernel of {self.name} {self.settings.kernel}".strip()
        return {**super().versions(host), name: f"{found.version}, sha256 {found.digest}"}

    def kernel(self, host: Host, progress: Callable[[str], None]) -> Kernel:
        """The kernel that the settings ask for."""
        return kernel.guest_kernel(host, progress, self.own_kernel(), self.devices)

    def kernel_problem(self, host: Host) -> Problem | None:
        """Why it cannot be had, if it cannot. Fetches and writes nothing."""
        return kernel.kernel_problem(host, self.own_kernel(), self.devices)

    def own_kernel(self) -> Path | None:
        """The path that the settings name."""
        return Path(self.settings.kernel) if self.settings.kernel else None


def silent(_line: str) -> None:
    """What is in the cache already needs no report."""
