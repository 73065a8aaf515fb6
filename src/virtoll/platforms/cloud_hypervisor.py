"""Cloud Hypervisor: a monitor for cloud guests, with virtio on PCI and no emulated devices but a serial line.

It is told by its API (vmm/src/api/openapi/cloud-hypervisor.yaml of its source) what the guest is to be. The agent's way
in is a virtio console, which the monitor offers as a pseudo-terminal; what the guest's kernel says goes to the serial
line. The monitor runs as root under its own seccomp filters, in the instance's control group and network namespace.
"""

from __future__ import annotations

import os
import signal
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from virtoll.agent import FdStream, Stream, StreamError
from virtoll.errors import PlatformError
from virtoll.features import BHANAGE, VASCONCELOS, Features, no, partly, yes
from virtoll.images.kernel import VIRTIO_HVC, Devices, Kernel
from virtoll.platforms.console import opened_raw
from virtoll.platforms.kinds import MACHINE
from virtoll.platforms.microvm import DISK, FOR_ANY, MIB, TRIAL_MEMORY_MIB, Guest, Microvm, Start, proved, to_be_had
from virtoll.platforms.under_kvm import TRIED
from virtoll.platforms.vm import Machine, agents_name
from virtoll.platforms.vmm_api import SOCKET, Api

KERNEL_ARGUMENTS = ("console=ttyS0", "quiet", "panic=-1", "cryptomgr.notests")
_API = "/api/v1"
_STDOUT = "/proc/self/fd/1"
# What the terminal does not take at once (it holds some 12 kB) the monitor keeps until the guest says something again:
# where a line does not go on, the agent is asked for the time. Nobody waits for the answer, whose id is no request's.
_NUDGE = b'{"id":4294967295,"op":{"clock":{}}}\n'
_STUCK_S = 0.05
_REPOSITORY = "github.com/cloud-hypervisor/cloud-hypervisor"
_DOCS = f"{_REPOSITORY}, docs"


class CloudHypervisor(Microvm):
    """One guest a process."""

    name = "cloud-hypervisor"
    summary = "a small monitor for cloud guests: KVM, virtio on PCI, no PC besides; needs /dev/kvm"
    kind = "Cloud Hypervisor"
    program = "cloud-hypervisor"
    # Before 50.1 it passes over `image_type`: a guest that writes a qcow2 header with a backing file to its disk, and
    # resets, reads any file of the host's (GHSA-jmr4-g2hv-mjj6). Before 51.2 its disk uses memory that was freed
    # (CVE-2026-45782).
    least: ClassVar[tuple[int, int]] = (51, 2)
    needed: ClassVar[Mapping[str, str]] = {program: to_be_had("51.2", _REPOSITORY), **FOR_ANY}
    vcpu_threads = "vcpu"
    runtimes: ClassVar[tuple[str, ...]] = ("cloud-hypervisor",)
    devices: ClassVar[Devices] = VIRTIO_HVC
    features: ClassVar[Features] = {
        **MACHINE,
        "other-systems": yes("Windows among them", f"{VASCONCELOS}, 2.6; {_DOCS}/windows.md"),
        "shared-base": partly("a disk may be an image over a base, which has to be made", f"{_DOCS}/device_model.md"),
        "unmodified-guest": partly("it needs virtio drivers", f"{_DOCS}/device_model.md"),
        "no-cpu-extensions": no("it needs KVM", f"{BHANAGE}, 2"),
        "live-migration": yes("to a monitor that waits for it", f"{_DOCS}/live_migration.md"),
        "checkpoint": yes("snapshot and restore", f"{_DOCS}/snapshot_restore.md"),
        "resize": partly("up to what it was booted with: CPUs and memory are plugged in", f"{_DOCS}/hotplug.md"),
        "overcommit": yes("its memory is taken when touched, and can be merged with others'", f"{_DOCS}/memory.md"),
    }

    def command_line(self) -> list[str]:
        """All else is told by its API."""
        return ["cloud-hypervisor", "--api-socket", f"path={SOCKET}"]

    @contextmanager
    def monitor(self, start: Start, directory: Path) -> Iterator[tuple[Machine, Callable[[Api], Stream]]]:
        """See `Microvm.monitor`."""
        del directory
        with start() as machine:
            yield machine, lambda api: Terminal(machine, api)

    def version(self, api: Api) -> str:
        """See `Microvm.version`."""
        return str(api.get(f"{_API}/vmm.ping").get("version"))[:100]

    def boot(self, api: Api, guest: Guest) -> None:
        """See `Microvm.boot`."""
        wanted = configuration(guest)
        api.put(f"{_API}/vm.create", wanted)
        api.put(f"{_API}/vm.boot")
        told = api.get(f"{_API}/vm.info")
        proved(self.kind, "a guest that is", "Running", told.get("state"))
        proved(self.kind, "vCPUs", guest.vcpus, _part(told, "config", "cpus", "boot_vcpus"))
        proved(self.kind, "bytes of memory", guest.memory_mib * MIB, _part(told, "config", "memory", "size"))

    def trial(self, kernel: Kernel, directory: Path) -> list[str]:
        """See `UnderKvm.trial`. The guest's reboot at the end makes the monitor begin anew, until its time is over."""
        del directory
        return [
            *("cloud-hypervisor", "--kernel", str(kernel.vmlinuz), "--initramfs", str(kernel.initramfs)),
            *("--cmdline", " ".join((*KERNEL_ARGUMENTS, TRIED))),
            *("--cpus", "boot=1", "--memory", f"size={TRIAL_MEMORY_MIB}M"),
            *("--serial", "tty", "--console", "off"),
        ]


def configuration(guest: Guest) -> dict[str, Any]:
    """The VmConfig. Of a tap that is there it is told the name alone; one pair of queues, as the tap has one."""
    return {
        "cpus": {"boot_vcpus": guest.vcpus, "max_vcpus": guest.vcpus},
        "memory": {"size": guest.memory_mib * MIB},
        "payload": {
            "kernel": str(guest.kernel.vmlinuz),
            "initramfs": str(guest.kernel.initramfs),
            "cmdline": " ".join(KERNEL_ARGUMENTS),
        },
        "disks": [{"path": DISK, "image_type": "Raw"}],
        "net": [{"tap": guest.tap, "mac": guest.mac, "num_queues": 2}],
        "serial": {"mode": "File", "file": _STDOUT},
        "console": {"mode": "Pty"},
    }


class Terminal(FdStream):
    """The pseudo-terminal of the guest's virtio console.

    It ends with the guest. Of one that resets itself (a panic) the monitor lives on and boots it anew, with another
    terminal: nobody asked for that guest, so the monitor is ended, and the end is told as any other.
    """

    def __init__(self, machine: Machine, api: Api) -> None:
        path = _part(api.get(f"{_API}/vm.info"), "config", "console", "file")
        try:
            fd = opened_raw(path if isinstance(path, str) and path.startswith("/dev/pts/") else "")
        except (OSError, termios.error) as error:
            told = f"its console cannot be used: {error.args[-1]}; {machine.last_words()}"
            raise PlatformError(told, where=f"console {str(path)[:100]!r}", remedy="is /dev/pts mounted?") from error
        super().__init__(fd, fd, agents_name(machine), machine.process.pid)
        os.set_blocking(fd, False)
        self._machine = machine

    def _more(self, timeout_s: float) -> bool:
        """See `FdStream._more`. Of a line that has begun the monitor may hold the rest: see `_NUDGE`."""
        deadline = time.monotonic() + timeout_s
        while self._pending and time.monotonic() + _STUCK_S < deadline:
            if super()._more(_STUCK_S):
                return True
            self.send(_NUDGE)
        return super()._more(deadline - time.monotonic())

    def send(self, data: bytes) -> None:
        """See `FdStream.send`."""
        try:
            super().send(data)
        except StreamError as error:
            if isinstance(error.__cause__, OSError):  # it is hung up; else the agent takes nothing
                self._end()
            raise

    def _fill(self) -> None:
        try:
            super()._fill()
        except StreamError:
            self._end()
            raise

    def _end(self) -> None:
        self._machine.process.send_signal(signal.SIGKILL)
        self._machine.process.wait()


def _part(told: Any, *names: str) -> Any:
    """What is there under these names, one in the other; None for nothing."""
    for name in names:
        told = told.get(name) if isinstance(told, dict) else None
    return told
