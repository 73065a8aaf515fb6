"""Firecracker: a monitor with a handful of virtio devices and no PC around them, as serverless platforms use it.

It is told by its API (src/firecracker/swagger/firecracker.yaml of its source) what the guest is to be. The guest's one
serial line is the monitor's standard input and output: the agent's way in, which it shares with the guest's kernel.
Devices are on virtio-mmio, Firecracker's default, which the guest finds by ACPI (since 1.8). Its jailer is not used:
the monitor runs as root under its own seccomp filters, in the instance's control group and network namespace.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from virtoll.agent import Stream
from virtoll.features import BHANAGE, EIRAS, Features, no, partly, yes
from virtoll.images.kernel import VIRTIO_MMIO, Devices, Kernel
from virtoll.platforms.console import Console
from virtoll.platforms.kinds import MACHINE
from virtoll.platforms.logs import bounded
from virtoll.platforms.microvm import DISK, FOR_ANY, TRIAL_MEMORY_MIB, Guest, Microvm, Start, proved, to_be_had
from virtoll.platforms.under_kvm import TRIED
from virtoll.platforms.vm import Machine, agents_name
from virtoll.platforms.vmm_api import SOCKET, Api

# reboot=k: there is no power to switch off, and a reset of the keyboard's controller ends the monitor; so does a panic.
# The rest leaves out what is slow to look for and not there, and self-tests while booting.
KERNEL_ARGUMENTS = (
    *("console=ttyS0", "quiet", "reboot=k", "panic=-1", "i8042.noaux", "i8042.nomux", "i8042.dumbkbd"),
    "cryptomgr.notests",
)
# It loses what its standard output does not take at once. As much as a pipe may hold by itself (pipe-max-size).
_STDOUT_BYTES = 1024**2
_REPOSITORY = "github.com/firecracker-microvm/firecracker"
_DOCS = f"{_REPOSITORY}, docs"


class Firecracker(Microvm):
    """One guest a process; it ends with its guest."""

    name = "firecracker"
    summary = "a microVM, as serverless platforms isolate functions: KVM and five devices; needs /dev/kvm"
    kind = "Firecracker"
    program = "firecracker"
    least: ClassVar[tuple[int, int]] = (1, 8)
    needed: ClassVar[Mapping[str, str]] = {program: to_be_had("1.8", _REPOSITORY), **FOR_ANY}
    vcpu_threads = "fc_vcpu "
    most_vcpus = 32
    runtimes: ClassVar[tuple[str, ...]] = ("firecracker",)
    devices: ClassVar[Devices] = VIRTIO_MMIO
    features: ClassVar[Features] = {
        **MACHINE,
        "own-kernel": yes("it boots its own on virtual devices", f"{EIRAS}, table I; {_DOCS}/design.md"),
        "other-systems": partly("those that boot without firmware: FreeBSD from 14.0 on", f"{_DOCS}/pvh.md"),
        "shared-base": partly("a drive can be read-only and have many guests", f"{_DOCS}/design.md"),
        "unmodified-guest": partly("its kernel needs virtio and a way to boot without firmware", f"{_DOCS}/pvh.md"),
        "no-cpu-extensions": no("it needs KVM", f"{BHANAGE}, 2; {_DOCS}/getting-started.md"),
        "live-migration": no("a snapshot moves, which is taken of a guest that is paused", f"{_DOCS}/snapshotting"),
        "checkpoint": yes("snapshots", f"{_DOCS}/snapshotting/snapshot-support.md"),
        "resize": partly("memory, by a balloon or as pluggable memory; no CPUs", f"{_DOCS}/memory-hotplug.md"),
        "overcommit": yes("CPUs and memory", f"{_DOCS}/design.md"),
    }

    def command_line(self) -> list[str]:
        """Its log goes to its standard error: by itself it is on standard output, among what the guest says."""
        return ["firecracker", "--api-sock", SOCKET, "--id", "instance", "--log-path", "/proc/self/fd/2"]

    @contextmanager
    def monitor(self, start: Start, directory: Path) -> Iterator[tuple[Machine, Callable[[Api], Stream]]]:
        """See `Microvm.monitor`. Pipes, as it reads of nothing else but a terminal."""
        with ExitStack() as theirs, ExitStack() as ours, ExitStack() as stack:
            stdin, asked = os.pipe()
            theirs.callback(os.close, stdin)
            ours.callback(os.close, asked)
            said, stdout = os.pipe()
            theirs.callback(os.close, stdout)
            ours.callback(os.close, said)
            fcntl.fcntl(stdout, fcntl.F_SETPIPE_SZ, _STDOUT_BYTES)
            machine = stack.enter_context(start(stdin=stdin, stdout=stdout))
            theirs.close()
            log_fd = machine.logs.enter_context(bounded(directory / "console.log"))
            console = Console(said, asked, log_fd, agents_name(machine), machine.process.pid)
            ours.pop_all()  # they are the console's
            stack.callback(console.close)
            machine.logs.callback(console.drain)
            yield machine, lambda _api: console

    def version(self, api: Api) -> str:
        """See `Microvm.version`."""
        return str(api.get("/version").get("firecracker_version"))[:100]

    def boot(self, api: Api, guest: Guest) -> None:
        """See `Microvm.boot`. All is told before the start: nothing of it can be changed later."""
        for target, body in requests(guest).items():
            api.put(target, body)
        machine = api.get("/machine-config")
        proved(self.kind, "vCPUs", guest.vcpus, machine.get("vcpu_count"))
        proved(self.kind, "MiB of memory", guest.memory_mib, machine.get("mem_size_mib"))
        api.put("/actions", {"action_type": "InstanceStart"})
        proved(self.kind, "a guest that is", "Running", api.get("/").get("state"))

    def trial(self, kernel: Kernel, directory: Path) -> list[str]:
        """See `UnderKvm.trial`. A file says what the API would be told."""
        configuration = {
            "boot-source": _boot_source(kernel, (*KERNEL_ARGUMENTS, TRIED)),
            "machine-config": {"vcpu_count": 1, "mem_size_mib": TRIAL_MEMORY_MIB},
            "drives": [],
        }
        file = directory / "guest.json"
        file.write_text(json.dumps(configuration), encoding="utf-8")
        return ["firecracker", "--no-api", "--config-file", str(file)]


def requests(guest: Guest) -> Mapping[str, dict[str, Any]]:
    """What is put where, in this order.

    Of the disk the guest's flushes are passed on (*Writeback*), as QEMU does; by itself Firecracker offers none.
    """
    disk = {
        "drive_id": "disk",
        "path_on_host": DISK,
        "is_root_device": False,  # the initramfs mounts it
        "is_read_only": False,
        "cache_type": "Writeback",
    }
    return {
        "/machine-config": {"vcpu_count": guest.vcpus, "mem_size_mib": guest.memory_mib},
        "/boot-source": _boot_source(guest.kernel, KERNEL_ARGUMENTS),
        "/drives/disk": disk,
        "/network-interfaces/net": {"iface_id": "net", "host_dev_name": guest.tap, "guest_mac": guest.mac},
    }


def _boot_source(kernel: Kernel, arguments: tuple[str, ...]) -> dict[str, str]:
    return {
        "kernel_image_path": str(kernel.vmlinuz),
        "initrd_path": str(kernel.initramfs),
        "boot_args": " ".join(arguments),
    }
