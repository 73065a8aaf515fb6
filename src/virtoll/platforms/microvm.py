"""What Firecracker's and Cloud Hypervisor's drivers share: a small monitor over KVM, told by HTTP what it is to run.

The guest is that of `kvm`: the same kernel, unpacked, an initramfs of virtoll's own with the monitor's few drivers, the
image's disk, a tap. The disk is a copy for each deployment, as a raw file; holes stay holes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from virtoll.agent import Stream
from virtoll.errors import PlatformError, Problem
from virtoll.hosts.base import Host
from virtoll.images import disk, loop, vmlinux
from virtoll.images.base import Image
from virtoll.images.kernel import Kernel
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms.base import Instance
from virtoll.platforms.booted import FOR_A_DISK_AND_A_KERNEL, silent
from virtoll.platforms.console import LONGEST_REQUEST_BYTES
from virtoll.platforms.qemu_command import OVERHEAD_BYTES
from virtoll.platforms.requirements import refuse_kind, too_old
from virtoll.platforms.under_kvm import UnderKvm
from virtoll.platforms.vm import Machine, answered, configure, explained, pin, started
from virtoll.platforms.vmm_api import Api, answering
from virtoll.study.limits import Limits

MIB = 1024**2
DISK = "disk.ext4"  # in the monitor's working directory, as its socket is
TRIAL_MEMORY_MIB = 256
NOT_LIVE = "not yet run on a live host"
_MONITOR_THREADS = 64  # besides the vCPUs'

Start = Callable[..., AbstractContextManager[Machine]]
FOR_ANY = {**FOR_A_DISK_AND_A_KERNEL, **{name: f"apt-get install {one}" for name, one in vmlinux.UNPACKERS.items()}}


@dataclass(frozen=True)
class Guest:
    """What a monitor is told."""

    kernel: Kernel
    vcpus: int
    memory_mib: int
    tap: str
    mac: str


@dataclass(frozen=True)
class MicrovmSettings:
    """``kernel``: the guest's own kernel (a path on the host; "": the distribution's for virtual machines)."""

    kernel: str = ""


class Microvm(UnderKvm):
    """A monitor of one process, whose threads run the vCPUs and the devices."""

    kind: ClassVar[str]  # as errors call it
    program: ClassVar[str]
    least: ClassVar[tuple[int, int]]  # the version from which on it does what it is asked for here
    vcpu_threads: ClassVar[str]  # how the names of its vCPUs' threads begin
    kinds: ClassVar[tuple[Kind, ...]] = ("tap",)
    caveat: ClassVar[str] = f"tried on a double of its API alone; {NOT_LIVE}"
    expected_overhead_s: ClassVar[float] = 4.0
    overhead_bytes: ClassVar[int] = OVERHEAD_BYTES["kvm"]  # as QEMU's, so that no arm is given more
    Settings: ClassVar[type[Any]] = MicrovmSettings

    @abstractmethod
    def command_line(self) -> list[str]:
        """The argv of a monitor that waits for requests at `vmm_api.SOCKET`."""

    @abstractmethod
    def monitor(self, start: Start, directory: Path) -> AbstractContextManager[tuple[Machine, Callable[[Api], Stream]]]:
        """Start it, and what gives the agent's stream once the guest runs."""

    @abstractmethod
    def boot(self, api: Api, guest: Guest) -> None:
        """Have the guest made and let it run. PlatformError where it is not what was asked for."""

    @abstractmethod
    def version(self, api: Api) -> str:
        """The monitor's own."""

    def check(self, host: Host) -> list[Problem]:
        """What `UnderKvm.check` finds, and a program that is too old."""
        remedy = self.needed[self.program]
        return too_old(host, self.program, self.least, remedy=remedy) or super().check(host)

    def untried(self, host: Host) -> str:
        """See `Platform.untried`."""
        return "; ".join(told for told in (super().untried(host), f"how far the driver works: {self.caveat}") if told)

    def as_booted(self, host: Host, found: Kernel, progress: Callable[[str], None]) -> Kernel:
        """It unpacked."""
        return vmlinux.unpacked(host, found, progress)

    @contextmanager
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> Iterator[Instance]:
        """Boot a guest from a copy of the disk; it is up when its agent has answered."""
        refuse_kind(self, attachment)
        kernel = self.kept_kernel(lab.host)
        guest = Guest(kernel, limits.vcpus, limits.memory_bytes // MIB, attachment.device, attachment.mac)
        base = disk.ext4(lab.host, image, limits.disk_bytes, silent)
        loop.copied(lab.host, base, directory / DISK)
        argv = self.command_line()
        start = partial(
            started,
            self.kind,
            argv,
            lab=lab,
            limits=limits,
            attachment=attachment,
            directory=directory,
            memory_bytes=limits.memory_bytes + self.overhead_bytes,
            pids=limits.vcpus + _MONITOR_THREADS,
            start_on=lab.generator.cpus,
        )
        with ExitStack() as stack:
            machine, stream = stack.enter_context(self.monitor(start, directory))
            with explained(machine), answering(machine) as api:
                version = self.version(api)
                self.boot(api, guest)
                if limits.budget == "vcpus":
                    pin(vcpu_threads(machine, self.vcpu_threads, limits.vcpus), machine.cpus)
                way = stream(api)
            agent = answered(machine, way, longest_request_bytes=LONGEST_REQUEST_BYTES)
            stack.callback(agent.close)
            configure(agent, limits, "eth0", attachment)
            facts = {
                "accelerator": "kvm",
                self.program.replace("-", "_"): version,
                "kernel": kernel.version,
                "kernel_digest": kernel.digest,
                "memory_overhead_bytes": self.overhead_bytes,
                "argv": argv,
                "requests": api.requests,
                "disk_limit": disk.DISK_LIMIT,
            }
            with explained(machine):
                yield Instance(
                    self.name,
                    agent,
                    attachment,
                    replace(machine.accounting, counters=self.counters(machine.process.pid)),
                    limits,
                    facts,
                    machine.is_running,
                    image,
                    machine.stopped,
                    hosts_tasks_each=0,
                )


def to_be_had(least: str, repository: str) -> str:
    """What to do where a monitor is missing: no distribution of ours packs one."""
    return f"put version {least} or later into PATH, one file, from {repository}/releases; or leave the platform out"


def vcpu_threads(machine: Machine, prefix: str, count: int) -> list[int]:
    """The threads of the vCPUs, by their names. PlatformError where they are not so many: some would run elsewhere."""
    names = {}
    for task in Path(f"/proc/{machine.process.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # one that has just ended
            names[int(task.name)] = (task / "comm").read_text(encoding="utf-8", errors="replace").strip()
    found = [thread for thread, name in names.items() if name.startswith(prefix)]
    if len(found) != count:
        raise PlatformError(
            f"{len(found)} threads of {machine.kind}'s are called {prefix}..., and {count} vCPUs were asked for",
            where=f"threads {', '.join(sorted(names.values()))}",
            remedy='use budget = "inclusive", which needs not tell them apart',
        )
    return found


def proved(kind: str, what: str, asked: object, told: object) -> None:
    """PlatformError where a monitor tells of something else than it was asked for."""
    if told != asked:
        raise PlatformError(
            f"{kind} tells of {what} {str(told)[:100]!r} though {asked!r} was asked for",
            where=f"{kind}'s API",
            remedy="is the program in PATH a wrapper of somebody's?",
        )
