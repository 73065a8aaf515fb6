"""User Mode Linux: a Linux kernel that runs as an ordinary process of the host, without any virtualization hardware.

The kernel is one process with a few helpers; every process of the guest is a process of the host that the kernel
traces. All of them are in the instance's cgroup, in a jail (`uml_jail`), and no user of the host's. The guest's memory
is a file on the jail's own tmpfs that UML unlinks as soon as it has opened it; its pages are booked in the cgroup. The
disk is UML's own copy-on-write file over the image's ext4.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from virtoll.errors import PlatformError, Problem
from virtoll.features import BHANAGE, UNKNOWN, Features, no, partly, yes
from virtoll.hosts.base import Host
from virtoll.hosts.programs import find
from virtoll.images import disk
from virtoll.images.base import AGENT, Image
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind
from virtoll.platforms import uml_jail
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.groups import instance_cpus
from virtoll.platforms.requirements import other_machine
from virtoll.platforms.uml_jail import Jail
from virtoll.platforms.vm import Machine, booted, configure, explained, pin, started
from virtoll.study.limits import Limits

_HOWTO = "docs.kernel.org/virt/uml/user_mode_linux_howto_v2.html"
_KERNEL = "linux.uml"
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_CPU = Path("/proc/cpuinfo")
_FIRST_OF_ANY_STATE = (6, 13)  # of UML's kernels, by their sources: it asks how large a CPU's state is
OVERHEAD_BYTES = 128 * 1024**2  # of the kernel's own text and data, and the host's view of each guest process
# The kernel makes a process of the host for each address space of its guest; one that is exec'ing has two. Besides: the
# kernel and its helpers, and what it starts itself or has not yet ended.
_HOST_PIDS_EACH, _HOST_PIDS = 2, 64

# Seen with 6.1: the serial line stops for ever at a line that fills the terminal's buffer (4096 bytes).
_LONGEST_REQUEST_BYTES = 3800

# Seen with 6.1: its helper writes the disk's file, and calls no fsync for thousands of the guest's flushes.
DISK_FLUSH = "not passed on: UML's block driver acknowledges the guest's flushes and syncs no file of the host"


class Uml(Platform):
    """Linux on Linux. Always one CPU: the kernel is uniprocessor."""

    name = "uml"
    summary = "a kernel of its own without hardware virtualization: User Mode Linux, one CPU"
    most_vcpus = 1
    runtimes: ClassVar[tuple[str, ...]] = (_KERNEL,)
    expected_overhead_s = 3.5
    overhead_bytes = OVERHEAD_BYTES
    kinds: ClassVar[tuple[Kind, ...]] = ("tap",)
    features: ClassVar[Features] = {
        "own-kernel": yes("Linux as a process of the host", _HOWTO),
        "other-systems": no("Linux alone", _HOWTO),
        "own-distribution": yes("its disk is its own", f"{BHANAGE}, 2"),
        "changed-kernel": partly(
            "its kernel is its own, though the paper's table has an overlay", f"{BHANAGE}, table 1"
        ),
        "root-inside": yes("of the guest alone", f"{BHANAGE}, 2"),
        "separate-files": partly(
            "its kernel can mount directories of the host (hostfs)", f"{_HOWTO}, Host file access"
        ),
        "fault-isolation": yes("what breaks its kernel ends a process of the host", _HOWTO),
        "own-network": yes("virtual Ethernet devices", _HOWTO),
        "shared-base": yes("copy-on-write files over one image", f"{_HOWTO}, Using layered block devices"),
        "unmodified-guest": no("the kernel is built for it (ARCH=um)", f"{BHANAGE}, 2; {_HOWTO}"),
        "no-cpu-extensions": yes("nothing of the CPU is virtualized", f"{BHANAGE}, 2"),
        "stock-kernel": yes("it is a program as any", _HOWTO),
        "live-migration": no("its documents know of none", _HOWTO),
        "checkpoint": no("its documents know of none", _HOWTO),
        "own-resource-view": yes("its kernel counts what it was started with", _HOWTO),
        "resize": UNKNOWN,
        "overcommit": UNKNOWN,
    }

    def check(self, host: Host) -> list[Problem]:
        """The missing kernel or tool, and a host that lets nobody but root trace processes."""
        if problems := other_machine(host):
            return problems
        needed = {_KERNEL: "user-mode-linux", "mkfs.ext4": "e2fsprogs"}
        problems = [
            Problem(f"{program} is missing", host.where, f"apt-get install {package}")
            for program, package in needed.items()
            if find(program) is None
        ]
        if find(_KERNEL) is not None:
            version = host.run([_KERNEL, "--version"], check=False).text
            problems += state_problems(version, _CPU.read_text(encoding="utf-8"), host.where)
        scope = _PTRACE_SCOPE.read_text(encoding="utf-8") if _PTRACE_SCOPE.exists() else "0"
        return problems + tracing_problems(int(scope), host.where)

    def prepare(self, host: Host, image: Image, limits: Limits, progress: Callable[[str], None]) -> None:
        """The guest's disk."""
        disk.ext4(host, image, limits.disk_bytes, progress)

    @contextmanager
    def deploy(
        self, lab: Lab, image: Image, limits: Limits, attachment: Attachment, directory: Path
    ) -> Iterator[Instance]:
        """Boot a guest over a fresh copy-on-write disk; it is up when its agent has answered."""
        if limits.vcpus != 1:
            raise PlatformError(
                f"User Mode Linux has one CPU, {limits.vcpus} were asked for",
                where="limits.vcpus",
                remedy="compare with vcpus = 1, or leave uml out of this study",
            )
        base = disk.ext4(lab.host, image, limits.disk_bytes, lambda _line: None)
        _send_single_frames(lab.host, attachment)
        with ExitStack() as stack:
            ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
            jail = Jail.made(directory)
            files = {**uml_jail.program_files(lab.host, _kernel()), base.resolve(): uml_jail.BASE}
            argv = command_line(limits.memory_bytes, attachment, theirs.fileno())
            machine = stack.enter_context(
                started(
                    "UML",
                    jail.entered(files, limits.memory_bytes + OVERHEAD_BYTES, argv),
                    lab=lab,
                    limits=limits,
                    attachment=attachment,
                    directory=directory,
                    memory_bytes=limits.memory_bytes + OVERHEAD_BYTES,
                    start_on=instance_cpus(lab, limits),
                    pass_fds=(theirs.fileno(),),
                    pids=_HOST_PIDS_EACH * limits.pids + _HOST_PIDS,
                    home=uml_jail.DISK,
                    temporary=uml_jail.MEMORY,
                )
            )
            theirs.close()
            agent = booted(machine, ours, longest_request_bytes=_LONGEST_REQUEST_BYTES)
            stack.callback(agent.close)
            if limits.budget == "vcpus":
                pin(helpers(machine), lab.generator.cpus)
            configure(agent, limits, "vec0", attachment)
            facts = {
                "uml": lab.host.run([_KERNEL, "--version"]).text,
                "memory_overhead_bytes": OVERHEAD_BYTES,
                "argv": argv,
                "disk_limit": disk.DISK_LIMIT,
                "disk_flush": DISK_FLUSH,
            }
            with explained(machine):
                yield Instance(
                    self.name, agent, attachment, machine.accounting, limits, facts, machine.is_running, image
                )


def _send_single_frames(host: Host, attachment: Attachment) -> None:
    """Have the host split what it sends to the guest into frames of the link's size.

    UML's driver tells the tap that it takes segments of up to 64 KiB, then cuts them at its buffers of one frame: a
    transfer of 100 kB takes seconds of retransmissions (seen with 6.1; 1 kB never shows it).
    """
    host.run(["ip", "-n", attachment.netns, "link", "set", attachment.device, "gso_max_segs", "1"])


def _kernel() -> Path:
    found = find(_KERNEL)
    if found is None:
        raise PlatformError(f"{_KERNEL} is missing", where="uml", remedy="apt-get install user-mode-linux")
    return Path(found).resolve()


def command_line(memory_bytes: int, attachment: Attachment, agent_fd: int) -> list[str]:
    """The argv; the files are the jail's. The agent's channel is the serial line ttyS0."""
    return [
        uml_jail.KERNEL,
        f"mem={memory_bytes // 1024}K",
        f"ubd0={uml_jail.DISK}/disk.cow,{uml_jail.BASE}",
        "root=/dev/ubda",
        "rootfstype=ext4",
        "rw",
        f"vec0:transport=tap,ifname={attachment.device},depth=128,mac={attachment.mac}",
        f"uml_dir={uml_jail.DISK}",
        "umid=guest",
        "con=null",
        "con0=null,fd:1",
        "ssl=null",
        f"ssl0=fd:{agent_fd}",
        "initcall_blacklist=init_hostfs",  # the guest has no business with files of the host's, not even the jail's
        "quiet",
        "pty.legacy_count=0",  # 256 BSD terminals that nobody uses are a fifth of the boot
        "console=tty0",  # said here, or UML appends it to the agent's own arguments
        f"init={AGENT}",
        "--",
        *("serve", "--init", "--device", "/dev/ttyS0"),
    ]


def helpers(machine: Machine) -> list[int]:
    """UML's own helper processes (disk, signals): those in its cgroup that it does not trace as the guest's."""
    found = []
    for pid in machine.group.pids():
        with suppress(FileNotFoundError, ProcessLookupError):  # one of the guest's that has just ended
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            if pid != machine.process.pid and "TracerPid:\t0\n" in status:
                found.append(pid)
    return found


def tracing_problems(scope: int, where: str) -> list[Problem]:
    """Why a kernel that is not root could not trace its guest's processes: Yama's ``ptrace_scope`` of 2 or 3."""
    if scope < 2:
        return []
    what = f"kernel.yama.ptrace_scope is {scope}: UML, which does not run as root, may not trace its own processes"
    return [Problem(what, where, "sysctl kernel.yama.ptrace_scope=1 (from 3 only a reboot leads back)")]


def state_problems(version: str, cpuinfo: str, where: str) -> list[Problem]:
    """Why a UML of this version would panic at its first process on this CPU, of Linux's ``/proc/cpuinfo``.

    It keeps the registers of its guest's processes in 2,696 bytes, up to AVX-512's. With AMX's matrices they are
    11,008, and the host sets all of them or none (seen with 6.1: "ptrace set fp regs failed, errno = 14").
    """
    found = re.match(r"(\d{1,4})\.(\d{1,4})", version)
    is_of_any = found is None or (int(found[1]), int(found[2])) >= _FIRST_OF_ANY_STATE
    if is_of_any or re.search(r"\bamx_tile\b", cpuinfo) is None:
        return []
    what = f"UML {version.strip()} has no room for the registers of a CPU with AMX, and panics as it boots"
    least = ".".join(map(str, _FIRST_OF_ANY_STATE))
    remedy = f"boot this machine with clearcpuid=amx_tile, or put a linux.uml of {least} or later before Debian's"
    return [Problem(what, where, remedy)]
