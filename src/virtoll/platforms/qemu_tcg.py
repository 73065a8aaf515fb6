"""QEMU with its own translator: a virtual machine without hardware help."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from virtoll import strict_json
from virtoll.binaries import binary
from virtoll.errors import Problem
from virtoll.features import Features, yes
from virtoll.hosts.base import Host
from virtoll.images.base import Image
from virtoll.platforms.kinds import MACHINE
from virtoll.platforms.qemu import Qemu
from virtoll.platforms.qemu_command import OVERHEAD_BYTES, Accelerator
from virtoll.study.limits import Limits

_EXTENSIONS: Features = {
    "no-cpu-extensions": yes("each instruction is translated", "qemu.org/docs/master/system/introduction.html")
}

_PACES_KHZ: dict[str, int | None] = {}  # by host
_APART_SHARE = 0.001


class QemuTcg(Qemu):
    """Runs everywhere; each guest instruction is translated."""

    name = "qemu-tcg"
    summary = "a virtual machine where there is no /dev/kvm: the CPU is emulated, many times slower"
    expected_overhead_s = 7.0
    features: ClassVar[Features] = {**MACHINE, **_EXTENSIONS}
    accelerator: ClassVar[Accelerator] = "tcg"
    overhead_bytes = OVERHEAD_BYTES["tcg"]

    def prepare(self, host: Host, image: Image, limits: Limits, progress: Callable[[str], None]) -> None:
        """Besides the guest's kernel and disk, the pace of its clock: no deployment is to wait for it."""
        super().prepare(host, image, limits, progress)
        _tsc_khz(host)

    def kernel_arguments(self, host: Host) -> tuple[str, ...]:
        """QEMU's translator hands the host's time stamp counter on, and a guest that counts its ticks between two looks
        at an emulated PIT gets them wrong by times where the host is busy (seen: a guest for which 93 s had passed in
        17; Linux believes the PIT even where the HPET says otherwise). So it is told their pace, which it refines by
        the HPET later on, as always.
        """
        khz = _tsc_khz(host)
        told = () if khz is None else (f"tsc_early_khz={khz}",)
        return (*super().kernel_arguments(host), *told)

    def check(self, host: Host) -> list[Problem]:
        """Linux finds nothing to set its timers by on a microvm with ACPI, where KVM does not tell (seen: Linux 6.1
        under QEMU 7.2 stands still after "Unable to calibrate against PIT").
        """
        if self.settings.machine != "microvm":
            return super().check(host)
        what = "an emulated microvm does not boot: Linux has nothing there to set its timers by, which KVM tells it"
        return [Problem(what, self.name, 'write machine = "q35" or "pc", or take platform kvm')]


def _tsc_khz(host: Host) -> int | None:
    """The pace of the host's time stamp counter, to 0.1 MHz; None where it has none, or two looks do not agree: its
    CPUs' counters may be apart. Measured once: all guests of a run boot alike.
    """
    if host.where not in _PACES_KHZ:
        found = [_look(host) for _ in range(2)]
        is_one = all(found) and max(found) - min(found) <= _APART_SHARE * min(found)
        _PACES_KHZ[host.where] = round(found[0], -2) if is_one else None
    return _PACES_KHZ[host.where]


def _look(host: Host) -> int:
    """Its ticks a millisecond, as the probe tells; 0 where there is none."""
    probe = [str(binary("virtoll-agent")), "probe", "clock", "--windows", "1", "--time-ns", "20000000", "--json"]
    return int(strict_json.loads(host.run(probe).stdout)["facts"].get("tsc_khz", 0))
