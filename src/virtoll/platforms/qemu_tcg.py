"""QEMU with its own translator: a virtual machine without hardware help."""

from __future__ import annotations

from typing import ClassVar

from virtoll.errors import Problem
from virtoll.features import Features, yes
from virtoll.hosts.base import Host
from virtoll.platforms.kinds import MACHINE
from virtoll.platforms.qemu import Qemu
from virtoll.platforms.qemu_command import OVERHEAD_BYTES, Accelerator

_EXTENSIONS: Features = {
    "no-cpu-extensions": yes("each instruction is translated", "qemu.org/docs/master/system/introduction.html")
}


class QemuTcg(Qemu):
    """Runs everywhere; each guest instruction is translated."""

    name = "qemu-tcg"
    summary = "a virtual machine where there is no /dev/kvm: the CPU is emulated, many times slower"
    expected_overhead_s = 7.0
    features: ClassVar[Features] = {**MACHINE, **_EXTENSIONS}
    accelerator: ClassVar[Accelerator] = "tcg"
    overhead_bytes = OVERHEAD_BYTES["tcg"]

    def check(self, host: Host) -> list[Problem]:
        """Linux finds nothing to set its timers by on a microvm with ACPI, where KVM does not tell (seen: Linux 6.1
        under QEMU 7.2 stands still after "Unable to calibrate against PIT").
        """
        if self.settings.machine != "microvm":
            return super().check(host)
        what = "an emulated microvm does not boot: Linux has nothing there to set its timers by, which KVM tells it"
        return [Problem(what, self.name, 'write machine = "q35" or "pc", or take platform kvm')]
