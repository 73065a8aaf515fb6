"""QEMU with KVM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from virtoll.features import BHANAGE, Features, no
from virtoll.images.kernel import Kernel
from virtoll.platforms.kinds import MACHINE, MICROVM
from virtoll.platforms.qemu import Qemu
from virtoll.platforms.qemu_command import KERNEL_ARGUMENTS, OVERHEAD_BYTES, Accelerator, Guest, command_line
from virtoll.platforms.under_kvm import TRIED, UnderKvm

_EXTENSIONS: Features = {"no-cpu-extensions": no("it is made of them", f"{BHANAGE}, 2")}


class Kvm(UnderKvm, Qemu):
    """The driver of `qemu-tcg` with the other accelerator."""

    name = "kvm"
    summary = "what clouds rent out: a full virtual machine with its own kernel; needs /dev/kvm"
    expected_overhead_s = 4.0
    features: ClassVar[Features] = {**MACHINE, **_EXTENSIONS}
    variants: ClassVar[Mapping[str, Features]] = {"microvm": {**MICROVM, **_EXTENSIONS}}
    accelerator: ClassVar[Accelerator] = "kvm"
    overhead_bytes = OVERHEAD_BYTES["kvm"]

    def trial(self, kernel: Kernel, directory: Path) -> list[str]:  # noqa: ARG002
        """See `UnderKvm.trial`."""
        machine = self.settings.machine
        guest = Guest("kvm", kernel, 1, 256 * 1024**2, kernel_arguments=(*KERNEL_ARGUMENTS, TRIED), machine=machine)
        return command_line(guest)

    def tried_as(self) -> str:
        """See `UnderKvm.tried_as`."""
        return self.settings.machine
