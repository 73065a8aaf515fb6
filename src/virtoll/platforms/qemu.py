"""The driver of QEMU system emulation. `kvm` and `qemu-tcg` are this driver and differ in the accelerator alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from virtoll.errors import PlatformError, Problem
from virtoll.hosts.base import Host
from virtoll.images import disk
from virtoll.images.base import Image
from virtoll.images.kernel import VIRTIO, Devices
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms.base import Instance
from virtoll.platforms.booted import FOR_A_DISK_AND_A_KERNEL, Booted, silent
from virtoll.platforms.qemu_command import (
    CPU_MODEL,
    PAST_THE_HOSTS_CACHE,
    Accelerator,
    DiskCache,
    DiskIo,
    Guest,
    command_line,
)
from virtoll.platforms.qmp import Qmp
from virtoll.platforms.vm import Machine, booted, configure, explained, pin, started
from virtoll.study.limits import Limits

_MONITOR_THREADS = 256  # besides the vCPUs'; QEMU's pool for the disk grows to 64


@dataclass(frozen=True)
class QemuSettings:
    """``kernel``: the guest's own kernel (a path on the host; "": the distribution's for virtual machines).

    ``disk_cache`` and ``disk_io``: QEMU's cache= and aio= of the disk (qemu(1), -drive). *writeback*, QEMU's own, uses
    the host's page cache and passes syncs on; *none* goes past it (O_DIRECT); *writethrough* and *directsync* are the
    same with each write synced; *unsafe* passes no sync on. *native* (Linux AIO) takes *none* or *directsync*.
    """

    kernel: str = ""
    disk_cache: DiskCache = "writeback"
    disk_io: DiskIo = "threads"


class Qemu(Booted):
    """A virtual machine: virtio disk, NIC and agent's port on a PC, booted from a kernel given by QEMU."""

    accelerator: ClassVar[Accelerator]
    kinds: ClassVar[tuple[Kind, ...]] = ("tap", "user")
    runtimes: ClassVar[tuple[str, ...]] = ("qemu-system-x86_64",)
    devices: ClassVar[Devices] = VIRTIO
    needed: ClassVar[Mapping[str, str]] = {
        "qemu-system-x86_64": "apt-get install qemu-system-x86",
        "qemu-img": "apt-get install qemu-utils",
        **FOR_A_DISK_AND_A_KERNEL,
    }
    Settings = QemuSettings

    def check(self, host: Host) -> list[Problem]:
        """What anybody needs who boots a kernel, and settings that do not go together."""
        if problems := super().check(host):
            return problems
        if self.settings.disk_io == "native" and self.settings.disk_cache not in PAST_THE_HOSTS_CACHE:
            what = f'disk_io = "native" does not go with disk_cache = "{self.settings.disk_cache}"'
            return [Problem(what, self.name, f"QEMU takes it with {' or '.join(PAST_THE_HOSTS_CACHE)}")]
        return []

    @contextmanager
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> Iterator[Instance]:
        """Boot a guest over a fresh copy-on-write disk; it is up when its agent has answered."""
        base = disk.ext4(lab.host, image, limits.disk_bytes, silent)
        disk.qcow2_overlay(lab.host, base, directory / "disk.qcow2")
        with ExitStack() as stack:
            qmp_ours, qmp_theirs = _connected(stack)
            agent_ours, agent_theirs = _connected(stack)
            guest = Guest(
                accelerator=self.accelerator,
                kernel=self.kernel(lab.host, silent),
                vcpus=limits.vcpus,
                memory_bytes=limits.memory_bytes,
                disk="disk.qcow2",
                disk_cache=self.settings.disk_cache,
                disk_io=self.settings.disk_io,
                attachment=attachment,
                qmp_fd=qmp_theirs.fileno(),
                agent_fd=agent_theirs.fileno(),
            )
            argv = command_line(guest)
            machine = stack.enter_context(
                started(
                    "QEMU",
                    argv,
                    lab=lab,
                    limits=limits,
                    attachment=attachment,
                    directory=directory,
                    memory_bytes=limits.memory_bytes + self.overhead_bytes,
                    pids=limits.vcpus + _MONITOR_THREADS,
                    start_on=lab.generator.cpus,
                    pass_fds=(qmp_theirs.fileno(), agent_theirs.fileno()),
                )
            )
            qmp_theirs.close()
            agent_theirs.close()
            with explained(machine):
                version = self._release(machine, qmp_ours, limits)
            agent = booted(machine, agent_ours)
            stack.callback(agent.close)
            configure(agent, limits, "eth0", attachment)
            facts = {
                "accelerator": self.accelerator,
                "qemu": version,
                "cpu_model": CPU_MODEL[self.accelerator],
                "kernel": guest.kernel.version,
                "kernel_digest": guest.kernel.digest,
                "memory_overhead_bytes": self.overhead_bytes,
                "argv": argv,
                "disk_limit": disk.DISK_LIMIT,
            }
            with explained(machine):
                yield Instance(
                    self.name,
                    agent,
                    attachment,
                    machine.accounting,
                    limits,
                    facts,
                    machine.is_running,
                    image,
                    machine.stopped,
                    takes_hosts_tasks=False,
                )

    def _release(self, machine: Machine, connection: socket.socket, limits: Limits) -> str:
        """Prove the accelerator, place the vCPUs, let the guest run. Returns QEMU's version."""
        qmp = Qmp(connection)
        self._prove_accelerator(qmp)
        if limits.budget == "vcpus":
            pin([cpu["thread-id"] for cpu in qmp.execute("query-cpus-fast")], machine.cpus)
        version = qmp.execute("query-version")
        qmp.execute("cont")
        return "{major}.{minor}.{micro} ".format(**version["qemu"]) + str(version["package"])

    def _prove_accelerator(self, qmp: Qmp) -> None:
        kvm_enabled = bool(qmp.execute("query-kvm")["enabled"])
        if kvm_enabled != (self.accelerator == "kvm"):
            raise PlatformError(
                f"QEMU runs {'with' if kvm_enabled else 'without'} KVM though {self.accelerator} was asked for",
                where="QMP query-kvm",
                remedy="look at the instance's monitor.log; is qemu-system-x86_64 a wrapper of somebody's?",
            )


def _connected(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection: ours, and the one that QEMU inherits."""
    ours, theirs = socket.socketpair()
    return stack.enter_context(ours), stack.enter_context(theirs)
