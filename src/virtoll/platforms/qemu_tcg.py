"""QEMU with its own translator: a virtual machine without hardware help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from virtoll.features import Features, yes
from virtoll.platforms.kinds import MACHINE, MICROVM
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
    variants: ClassVar[Mapping[str, Features]] = {"microvm": {**MICROVM, **_EXTENSIONS}}
    accelerator: ClassVar[Accelerator] = "tcg"
    overhead_bytes = OVERHEAD_BYTES["tcg"]
