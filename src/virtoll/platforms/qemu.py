"""The driver of QEMU system emulation. `kvm` and `qemu-tcg` are this driver and differ in the accelerator alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from virtoll.errors import PlatformError, Problem
from virtoll.hosts.base import Host
from virtoll.images import disk
from virtoll.images.base import Image
from virtoll.images.kernel import VIRTIO, Devices
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms import huge_pages, vhost
from virtoll.platforms.base import Accounting, Instance
from virtoll.platforms.booted import FOR_A_DISK_AND_A_KERNEL, Booted, silent
from virtoll.platforms.qemu_command import CPU_MODEL, KERNEL_ARGUMENTS, Accelerator, Guest, command_line
from virtoll.platforms.qemu_settings import QemuSettings, problems, refuse_fallbacks
from virtoll.platforms.qmp import Qmp
from virtoll.platforms.requirements import refuse_kind
from virtoll.platforms.vm import Machine, booted, configure, explained, pin, started
from virtoll.study.limits import Limits

_ANSWERS_S = 30.0
_CLEARED_S_PER_BYTE = 10 / 1024**3  # before QEMU greets, and by the guest's CPUs
_MONITOR_THREADS = 256  # besides the vCPUs'; QEMU's pool for the disk grows to 64


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
    settings: QemuSettings

    @property
    def attached_as(self) -> tuple[Kind, ...]:
        """vhost is of taps alone."""
        return ("tap",) if self.settings.vhost else self.kinds

    def check(self, host: Host) -> list[Problem]:
        """What anybody needs who boots a kernel, and what the settings ask for."""
        return super().check(host) or list(problems(host, self.settings, self.name))

    def lacks(self, host: Host, limits: Limits, instances: int = 1) -> list[Problem]:
        """The memory that its settings ask for."""
        problem = huge_pages.lacking(host, limits.memory_bytes, instances) if self.settings.huge_pages else None
        return [problem] if problem else []

    @property
    def is_pooled(self) -> bool:
        """See `Platform.is_pooled`."""
        return self.settings.huge_pages

    @contextmanager
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> Iterator[Instance]:
        """Boot a guest over a fresh copy-on-write disk; it is up when its agent has answered. Looked at then and in the
        end: whether QEMU has done without something that it was told to use.
        """
        refuse_kind(self, attachment)
        for problem in self.lacks(lab.host, limits):
            raise PlatformError(problem.what, where=problem.where, remedy=problem.remedy)
        base = disk.ext4(lab.host, image, limits.disk_bytes, silent)
        disk.qcow2_overlay(lab.host, base, directory / "disk.qcow2")
        log = directory / "monitor.log"
        with ExitStack() as stack:
            qmp_ours, qmp_theirs = _connected(stack)
            agent_ours, agent_theirs = _connected(stack)
            guest = Guest(
                accelerator=self.accelerator,
                kernel=self.kept_kernel(lab.host),
                vcpus=limits.vcpus,
                memory_bytes=limits.memory_bytes,
                disk="disk.qcow2",
                disk_cache=self.settings.disk_cache,
                disk_io=self.settings.disk_io,
                machine=self.settings.machine,
                vhost=self.settings.vhost,
                huge_pages=self.settings.huge_pages,
                attachment=attachment,
                qmp_fd=qmp_theirs.fileno(),
                agent_fd=agent_theirs.fileno(),
                kernel_arguments=self.kernel_arguments(lab.host),
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
                    memory_bytes=limits.memory_bytes + self.overhead_bytes - self._huge_bytes(limits),
                    pids=limits.vcpus + _MONITOR_THREADS,
                    start_on=lab.generator.cpus,
                    pass_fds=(qmp_theirs.fileno(), agent_theirs.fileno()),
                )
            )
            qmp_theirs.close()
            agent_theirs.close()
            with explained(machine):
                version, carriers = self._release(machine, qmp_ours, limits, lab.generator.cpus)
            agent = booted(machine, agent_ours)
            stack.callback(agent.close)
            configure(agent, limits, "eth0", attachment)
            refuse_fallbacks(log)
            with explained(machine):
                yield Instance(
                    self.name,
                    agent,
                    attachment,
                    self._accounting(machine, limits),
                    limits,
                    self._facts(guest, argv, version, carriers),
                    machine.is_running,
                    image,
                    machine.stopped,
                    hosts_tasks_each=0,
                )
        refuse_fallbacks(log)  # all of it is there by now

    def _accounting(self, machine: Machine, limits: Limits) -> Accounting:
        counters = self.counters(machine.process.pid)
        return replace(machine.accounting, counters=counters, huge_bytes=self._huge_bytes(limits))

    def _huge_bytes(self, limits: Limits) -> int:
        """Of the guest's memory: what no control group books, and so none has to hold."""
        return limits.memory_bytes if self.settings.huge_pages else 0

    def counters(self, monitor: int) -> dict[str, Path]:  # noqa: ARG002
        """See `Accounting.counters`."""
        return {}

    def kernel_arguments(self, host: Host) -> tuple[str, ...]:  # noqa: ARG002
        """What the guest's kernel is told when it is booted."""
        return KERNEL_ARGUMENTS

    def _facts(self, guest: Guest, argv: list[str], version: str, carriers: Mapping[int, str]) -> dict[str, Any]:
        return {
            "accelerator": guest.accelerator,
            "qemu": version,
            "cpu_model": CPU_MODEL[guest.accelerator],
            "machine_type": guest.machine,
            "disk_cache": guest.disk_cache,
            "disk_io": guest.disk_io,
            "network_backend": "vhost-net" if guest.vhost else "QEMU",
            "vhost_threads": sorted(carriers.values()),
            "kernel": guest.kernel.version,
            "kernel_digest": guest.kernel.digest,
            "memory_overhead_bytes": self.overhead_bytes,
            "argv": argv,
            "memory_pages": "huge" if guest.huge_pages else "usual",
            "disk_limit": disk.DISK_LIMIT,
        }

    def _release(
        self, machine: Machine, connection: socket.socket, limits: Limits, helpers: frozenset[int]
    ) -> tuple[str, dict[int, str]]:
        """Prove the accelerator, place the vCPUs and who carries packets (on CPUs ``helpers``, where these are others),
        let the guest run. Returns QEMU's version and those carriers: the kernel's threads, by number.
        """
        qmp = Qmp(connection, _ANSWERS_S + _CLEARED_S_PER_BYTE * self._huge_bytes(limits))
        self._prove_accelerator(qmp)
        carriers = vhost.take_in(machine.process.pid, machine.group) if self.settings.vhost else {}
        if limits.budget == "vcpus":
            pin([cpu["thread-id"] for cpu in qmp.execute("query-cpus-fast")], machine.cpus)
            pin(list(carriers), helpers)
        version = qmp.execute("query-version")
        qmp.execute("cont")
        return "{major}.{minor}.{micro} ".format(**version["qemu"]) + str(version["package"]), carriers

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
