"""Proxmox VE's virtual machines: made by qm(1) on a volume of the host's storage, run by QEMU as Proxmox starts it.

NOT YET RUN ON A LIVE HOST. It was written from qm(1), qm.conf(5), pvesm(1), pmxcfs(8) and the public source of
qemu-server, and has run against a stand-in for Proxmox's programs (tests/proxmox_double.py), which is no Proxmox.

The machine is Proxmox's: its QEMU, its PC, its disk (virtio-blk) and its way to start, limit and end it. What `args`
adds is what any virtual machine of virtoll's has: the guest's kernel, a port for the agent, a console for the log, and
a tap. Proxmox has no device of the lab's (net0 would be a port of a bridge of the host's): QEMU makes the tap, in the
host's own network namespace, and it is moved into the lab's when QEMU holds it and the guest is not let go yet (-S,
`qm resume`). `qm` cannot be started in the lab's: it speaks to the cluster's file system by an abstract socket, which
is a namespace's own (libqb).

Proxmox puts QEMU into a control group of its own choice (qemu.slice/NUMBER.scope), which holds all that the guest
costs.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from virtoll.errors import PlatformError, Problem
from virtoll.features import BHANAGE, Features, no, partly, yes
from virtoll.hosts import proxmox
from virtoll.hosts.base import Host
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.images import disk
from virtoll.images.base import Image
from virtoll.images.kernel import VIRTIO, Devices, Kernel
from virtoll.lab.base import Lab
from virtoll.networks import wires
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms import proxmox_host, under_kvm, vhost
from virtoll.platforms.base import Accounting, Instance
from virtoll.platforms.booted import FOR_A_DISK_AND_A_KERNEL, Booted, silent
from virtoll.platforms.groups import instance_cpus
from virtoll.platforms.kinds import MACHINE
from virtoll.platforms.logs import bounded
from virtoll.platforms.proxmox_host import UNTRIED, OnProxmox
from virtoll.platforms.qemu_command import (
    AGENT_PORT,
    KERNEL_ARGUMENTS,
    OVERHEAD_BYTES,
    PAST_THE_HOSTS_CACHE,
    DiskCache,
)
from virtoll.platforms.requirements import refuse_kind
from virtoll.platforms.vm import HOSTNAME, Machine, booted, configure, explained, pin
from virtoll.study.limits import Limits

LEAST = (7, 3)  # since then a virtual machine has `affinity`
DISK_LIMIT = "enforced: limits.disk are free on the guest's disk (ext4, no journal, on a volume of Proxmox's)"

_CHAPTER = "pve.proxmox.com/pve-docs/chapter-qm.html"
_CONNECT_S = 10.0
_POLL_S = 0.02
_MIB = 1024**2


@dataclass(frozen=True)
class ProxmoxVmSettings:
    """``storage``: the store that the virtual machines' disks are made on.

    ``kernel``: the guest's own kernel (a path on the host; "": the distribution's for virtual machines).
    ``cpu``: the type of CPU that the guest is shown (qm(1), --cpu). ``cache``: QEMU's cache= of the disk; *none* is
    Proxmox's own.
    """

    storage: str = proxmox_host.storage_field()
    kernel: str = ""
    cpu: str = proxmox_host.word_field("host", "be the name of a type of CPU, as qm(1) has it")
    cache: DiskCache = "none"


@dataclass(frozen=True)
class Wanted:
    """What a virtual machine is to be."""

    number: int
    limits: Limits
    settings: ProxmoxVmSettings
    kernel: Kernel
    disk: Path  # an ext4 file, which is copied
    cpus: frozenset[int]  # on which all of QEMU may run
    mac: str
    console: Path  # what the guest prints is written to

    @property
    def link(self) -> str:
        """The tap, as long as it is not the lab's."""
        return f"vt{self.number}"

    @property
    def disk_io(self) -> str:
        """Not io_uring, Proxmox's own: before Linux 6.12 its threads run on any CPU, whatever QEMU is held to."""
        return "native" if self.settings.cache in PAST_THE_HOSTS_CACHE else "threads"


class ProxmoxVm(OnProxmox, Booted):
    """Virtual machines of Proxmox VE, under KVM."""

    name: ClassVar[str] = "proxmox-vm"
    summary: ClassVar[str] = "virtual machines of a Proxmox VE host (qm), on its storage; not yet run on a live host"
    kinds: ClassVar[tuple[Kind, ...]] = ("vif",)
    runtimes: ClassVar[tuple[str, ...]] = ("kvm",)  # as Proxmox calls its QEMU
    devices: ClassVar[Devices] = VIRTIO
    needed = FOR_A_DISK_AND_A_KERNEL
    content: ClassVar[str] = "images"
    expected_overhead_s: ClassVar[float] = 20.0
    overhead_bytes: ClassVar[int] = OVERHEAD_BYTES["kvm"]
    features: ClassVar[Features] = {
        **MACHINE,
        "shared-base": partly(
            "linked clones of a template, where the storage has them", f"{_CHAPTER}, Copies and Clones"
        ),
        "no-cpu-extensions": no("it is made of them; kvm = 0 emulates, and is no arm of this one", f"{BHANAGE}, 2"),
        "stock-kernel": no("Proxmox's own, of Ubuntu's", "pve.proxmox.com/wiki/Proxmox_VE_Kernel"),
        "live-migration": yes("qm migrate --online, within a cluster", f"{_CHAPTER}, Migration"),
        "checkpoint": yes("a snapshot with its memory, and hibernation", f"{_CHAPTER}, Hibernation"),
    }
    Settings: ClassVar[type[Any]] = ProxmoxVmSettings
    settings: ProxmoxVmSettings

    def check(self, host: Host) -> list[Problem]:
        """Whether this is a Proxmox VE host with KVM and vhost-net, and a kernel for guests."""
        found = proxmox_host.problems(host, "qm", self.settings.storage, self.content, LEAST) or super().check(host)
        return found or [one for one in (under_kvm.device_problem(host), vhost.problem(host)) if one]

    @contextmanager
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> Iterator[Instance]:
        """Boot a guest from a copy of the disk; it is up when its agent has answered."""
        refuse_kind(self, attachment)
        host, cpus, guest = lab.host, instance_cpus(lab, limits), proxmox.drawn()
        with ExitStack() as stack:
            logs = stack.enter_context(ExitStack())
            console = logs.enter_context(bounded(directory / "console.log"))
            stack.enter_context(lab.ledger.owning("proxmox-vm", guest.name))
            wanted = Wanted(
                number=guest.number,
                limits=limits,
                settings=self.settings,
                kernel=self.kept_kernel(host),
                disk=disk.ext4(host, image, limits.disk_bytes, silent),
                cpus=cpus if limits.budget == "inclusive" else cpus | lab.generator.cpus,
                mac=attachment.mac,
                console=Path(f"/proc/{os.getpid()}/fd/{console}"),
            )
            known_by = ["--tags", guest.tag, "--description", f"virtoll, run {lab.run_tag}: {directory.name}"]
            made = ["qm", "create", str(guest.number), *create_options(wanted), *known_by]
            proxmox_host.run(host, self.name, made, proxmox_host.MAKE_S)
            host.run(["sync"], timeout_s=proxmox_host.MAKE_S)  # what is written back later would be among others' work
            started = proxmox_host.run(host, self.name, ["qm", "start", str(guest.number)])
            group = Cgroup(control_group(guest.number), hierarchies())
            pid = monitor(guest.number, group)
            process = stack.enter_context(watched(pid))
            machine = Machine("QEMU", process, group, cpus, directory, logs)
            with explained(machine):
                carriers = place(machine, limits, lab.generator.cpus)
                wire(lab, attachment, wanted.link)
                connection = stack.enter_context(connected(proxmox.agent_socket(guest.number)))
                resumed = proxmox_host.run(host, self.name, ["qm", "resume", str(guest.number)])
            agent = booted(machine, connection)
            stack.callback(agent.close)
            configure(agent, limits, "eth0", attachment)
            facts = self._facts(wanted, carriers, command_line(pid))
            facts["proxmox"] = proxmox_host.version(host)
            facts["commands"] = [made, started, resumed]
            with explained(machine):
                yield Instance(
                    self.name,
                    agent,
                    attachment,
                    Accounting(group.name, directory, counters=under_kvm.exits(pid), is_disk_elsewhere=True),
                    limits,
                    facts,
                    machine.is_running,
                    image,
                    machine.stopped,
                    hosts_tasks_each=0,
                )

    def _facts(self, wanted: Wanted, carriers: dict[int, str], argv: list[str]) -> dict[str, Any]:
        machine_type = re.search(
            r"(?:^|,)type=([\w.+-]+)", argv[argv.index("-machine") + 1] if "-machine" in argv else ""
        )
        return {
            "accelerator": "kvm",
            "machine_type": machine_type[1] if machine_type else "untold",
            "cpu_model": wanted.settings.cpu,
            "disk_cache": wanted.settings.cache,
            "disk_io": wanted.disk_io,
            "network_backend": "vhost-net",
            "vhost_threads": sorted(carriers.values()),
            "kernel": wanted.kernel.version,
            "kernel_digest": wanted.kernel.digest,
            "memory_overhead_bytes": self.overhead_bytes,
            "argv": argv,
            "disk_limit": DISK_LIMIT,
            "untried": UNTRIED,
        }


def control_group(number: int) -> str:
    """Where Proxmox has systemd put a virtual machine (PVE::QemuServer::CGroup, get_subdir)."""
    return f"qemu.slice/{number}.scope"


def monitor(number: int, group: Cgroup) -> int:
    """QEMU's process, as Proxmox keeps its number; PlatformError where it is not where its cost is looked for."""
    there = proxmox_host.processes(ProxmoxVm.name, group.name)
    path = proxmox.RUNNING / f"{number}.pid"
    try:
        pid = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise PlatformError(f"nothing tells which process QEMU is: {error}", where=str(path)) from error
    if pid not in there:
        what = f"QEMU is process {pid}, and in control group {group.name} there are {there}"
        raise PlatformError(
            what, where=str(path), remedy="this Proxmox has others there: please tell virtoll's authors"
        )
    return pid


def command_line(pid: int) -> list[str]:
    """What a process was started with."""
    try:
        told = (proxmox.PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return told.decode(errors="replace").split("\0")[:-1]


def create_options(wanted: Wanted) -> list[str]:
    """Of `qm create`: memory in MiB, a part of one left out; a quota only where helpers are within it.

    The guest's end is QEMU's: without `reboot` Proxmox would have it start again.
    """
    limits, settings = wanted.limits, wanted.settings
    inclusive = limits.budget == "inclusive"
    drive = f"{settings.storage}:0,import-from={wanted.disk.resolve()},cache={settings.cache},aio={wanted.disk_io}"
    return [
        *("--name", HOSTNAME, "--ostype", "l26", "--kvm", "1", "--cpu", settings.cpu),
        *("--sockets", "1", "--cores", str(limits.vcpus), "--numa", "0"),
        *("--affinity", ",".join(str(cpu) for cpu in sorted(wanted.cpus))),
        *(("--cpulimit", str(limits.vcpus)) if inclusive else ()),
        *("--memory", str(limits.memory_bytes // _MIB), "--balloon", "0"),
        *("--virtio0", drive),
        *("--vga", "none", "--tablet", "0", "--agent", "0", "--reboot", "0", "--onboot", "0"),
        *("--args", shlex.join(arguments(wanted))),
    ]


def arguments(wanted: Wanted) -> list[str]:
    """What QEMU is told besides what Proxmox tells it. The guest waits (-S) until it is let go.

    The network device is as Proxmox makes one (virtio, vhost, its length of the receive queue), on a tap of nobody's.
    """
    path = proxmox.agent_socket(wanted.number)
    return [
        "-S",
        *("-kernel", str(wanted.kernel.vmlinuz), "-initrd", str(wanted.kernel.initramfs)),
        *("-append", " ".join(KERNEL_ARGUMENTS)),
        *("-chardev", f"file,id=virtoll-console,path={wanted.console}", "-serial", "chardev:virtoll-console"),
        *("-device", "virtio-serial-pci,id=virtoll-ports,max_ports=2"),
        *("-chardev", f"socket,id=virtoll-agent,path={path},server=on,wait=off"),
        *("-device", f"virtserialport,bus=virtoll-ports.0,chardev=virtoll-agent,name={AGENT_PORT}"),
        *("-netdev", f"tap,id=virtoll-net,ifname={wanted.link},script=no,downscript=no,vhost=on,vhostforce=on"),
        *("-device", f"virtio-net-pci,netdev=virtoll-net,mac={wanted.mac},romfile=,rx_queue_size=1024"),
    ]


def wire(lab: Lab, attachment: Attachment, link: str) -> None:
    """Bring QEMU's tap into the SUT's namespace, under the name that the mode's wiring speaks of."""
    lab.host.run(["ip", "link", "set", link, "netns", attachment.netns, "name", attachment.device])
    wires.configure(lab, attachment.wiring)


def place(machine: Machine, limits: Limits, helpers: frozenset[int]) -> dict[int, str]:
    """Put vCPUs, and who carries packets, on the CPUs where they belong. Returns those carriers, by number."""
    carriers = vhost.take_in(machine.process.pid, machine.group)
    if limits.budget == "vcpus":
        threads = vcpu_threads(machine.process.pid)
        if len(threads) != limits.vcpus:
            raise PlatformError(
                f"QEMU has {len(threads)} threads of vCPUs by their names, and not {limits.vcpus}",
                where=f"/proc/{machine.process.pid}/task",
                remedy='this QEMU names them otherwise: please tell its authors; budget = "inclusive" needs no names',
            )
        pin(threads, machine.cpus)
    pin(list(carriers), machine.cpus if limits.budget == "inclusive" else helpers)
    return carriers


def vcpu_threads(pid: int) -> list[int]:
    """By the names that QEMU gives them (debug-threads=on, which Proxmox asks for)."""
    found = []
    for task in (proxmox.PROC / str(pid) / "task").glob("[0-9]*"):
        with suppress(OSError):
            if re.fullmatch(r"CPU \d{1,4}/KVM", (task / "comm").read_text(encoding="utf-8", errors="replace").strip()):
                found.append(int(task.name))
    return found


def connected(path: Path) -> socket.socket:
    """The way to the agent, which QEMU offers as soon as it runs. PlatformError where it does not."""
    deadline = time.monotonic() + _CONNECT_S
    while True:
        ours = socket.socket(socket.AF_UNIX)
        try:
            ours.connect(str(path))
        except OSError as error:
            ours.close()
            if time.monotonic() < deadline and isinstance(error, FileNotFoundError | ConnectionRefusedError):
                time.sleep(_POLL_S)
                continue
            raise PlatformError(
                f"QEMU offers no way to the agent: {error.strerror or error}",
                where=str(path),
                remedy="qm showcmd NUMBER",
            ) from error
        return ours


class Watched:
    """A process that is no child of ours, by a descriptor: its number may be another's once it has ended."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd = fd  # the caller closes it

    @property
    def returncode(self) -> int | None:
        """Nobody but its parent is told."""
        return None

    def poll(self) -> int | None:
        """None while it runs."""
        return 0 if self._has_ended(0) else None

    def wait(self, timeout: float | None = None) -> int:
        """See `Process.wait`."""
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return 0

    def send_signal(self, sig: int) -> None:
        """Nothing where it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, sig)

    def _has_ended(self, timeout_s: float | None) -> bool:
        ready = select.poll()
        ready.register(self._fd, select.POLLIN)
        return bool(ready.poll(None if timeout_s is None else timeout_s * 1000))


@contextmanager
def watched(pid: int) -> Iterator[Watched]:
    """A process by its number, which must be there."""
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        raise PlatformError(f"QEMU has ended at once: {error.strerror}", where=f"process {pid}") from error
    try:
        yield Watched(pid, fd)
    finally:
        os.close(fd)
