"""What a study file may set of QEMU's guests, and why it cannot be had: together, of this QEMU, or on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from virtoll.errors import CommandError, PlatformError, Problem
from virtoll.hosts.base import Completed, Host
from virtoll.platforms import huge_pages, vhost
from virtoll.platforms.qemu_command import PAST_THE_HOSTS_CACHE, DiskCache, DiskIo, MachineType

# Since then what waits for a disk in a ring's place is a thread of the ring's process; before, it was one of the
# kernel's own, in nobody's control group (Linux, io_uring/io-wq.c: create_io_thread).
_RINGS_ARE_BOOKED = (5, 12)
# Since then such a thread keeps to the CPUs of its control group (84eacf177faa); some older stable kernels have it too,
# which their numbers do not tell for sure.
_RINGS_ARE_HELD = (6, 12)
_RINGS_ARE_OFF = Path("/proc/sys/kernel/io_uring_disabled")  # since Linux 6.6
_FALLBACK = "falling back"  # in QEMU's words wherever it takes something else than it was told to
_ASKED_S = 20.0
_QUIT = b"quit\n"
# A QEMU without a machine, which opens a file as it would a disk, and ends.
_OPENS_A_RING = (
    *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-machine", "none"),
    *("-blockdev", "driver=file,node-name=probe,filename=/proc/self/exe,read-only=on,locking=off,aio=io_uring"),
    *("-monitor", "stdio"),
)


@dataclass(frozen=True)
class QemuSettings:
    """``kernel``: the guest's own kernel (a path on the host; "": the distribution's for virtual machines).

    ``machine``: *pc* (QEMU's own: of 1996, with PCI), *q35* (of 2009, with PCI Express), or *microvm* (like
    Firecracker's: next to nothing but PCI Express). All boot the same kernel with the same virtio devices.

    ``disk_cache`` and ``disk_io``: QEMU's cache= and aio= of the disk (qemu(1), -drive). *writeback*, QEMU's own, uses
    the host's page cache and passes syncs on; *none* goes past it (O_DIRECT); *writethrough* and *directsync* are the
    same with each write synced; *unsafe* passes no sync on. *threads* is QEMU's own; *native* (Linux AIO) takes *none*
    or *directsync*; *io_uring* takes any (from Linux 6.12 on).

    ``vhost``: the guest's packets are handed on by the kernel (vhost-net), not by QEMU. Of network modes with a tap.

    ``huge_pages``: the guest's memory is of the huge pages that the host has reserved, all of it from the beginning.
    """

    kernel: str = ""
    machine: MachineType = "pc"
    disk_cache: DiskCache = "writeback"
    disk_io: DiskIo = "threads"
    vhost: bool = False
    huge_pages: bool = False


def problems(host: Host, settings: QemuSettings, where: str) -> Iterator[Problem]:
    """Why ``settings`` cannot be had, what costs nothing to know first. Leaves no trace."""
    if settings.disk_io == "native" and settings.disk_cache not in PAST_THE_HOSTS_CACHE:
        what = f'disk_io = "native" does not go with disk_cache = "{settings.disk_cache}"'
        yield Problem(what, where, f"QEMU takes it with {' or '.join(PAST_THE_HOSTS_CACHE)}")
    if settings.vhost and (problem := vhost.problem(host)):
        yield problem
    if settings.huge_pages and (problem := huge_pages.problem(host)):
        yield problem
    if settings.machine != "pc" and (problem := _machine_problem(host, settings.machine)):
        yield problem
    if settings.disk_io == "io_uring" and (problem := _ring_problem(host, os.uname().release)):
        yield problem


def _machine_problem(host: Host, machine: MachineType) -> Problem | None:
    told = _asked(host, ("qemu-system-x86_64", "-machine", "help"))
    if told is None or machine in re.findall(r"^(\S+) ", told.text, re.MULTILINE):
        return None  # where QEMU does not even answer, its own words are in the first trial
    remedy = "machine = \"pc\" is in every QEMU; Debian's and Ubuntu's have all three"
    return Problem(f"this QEMU has no machine {machine}", host.where, remedy)


def _ring_problem(host: Host, release: str) -> Problem | None:
    """Why a disk cannot be read by io_uring: its account, the kernel's leave, or QEMU's own words."""
    remedy = "Linux 6.12 or later; or another disk_io"
    found = re.match(r"(\d{1,4})\.(\d{1,4})", release)
    version = (int(found[1]), int(found[2])) if found else _RINGS_ARE_HELD
    if version < _RINGS_ARE_BOOKED:
        what = f"Linux {release} does a part of io_uring's work in threads of its own, which are in nobody's account"
        return Problem(what, host.where, remedy)
    if version < _RINGS_ARE_HELD:
        what = f"Linux {release} lets a part of io_uring's work run on any CPU: the instance's limit does not bind it"
        remedy += " (some older stable kernels bind it too, which their numbers do not tell)"
        return Problem(what, host.where, remedy)
    off = _RINGS_ARE_OFF.read_text(encoding="utf-8").strip() if _RINGS_ARE_OFF.exists() else "0"
    allow = "sysctl kernel.io_uring_disabled=0"
    if off == "2":
        return Problem("this kernel lets nobody use io_uring", str(_RINGS_ARE_OFF), f"{allow}; or another disk_io")
    told = _asked(host, _OPENS_A_RING)
    if told is None or told.returncode == 0:
        return None
    words = told.stderr.decode(errors="replace").strip().splitlines() or ["no word"]
    if off == "0":
        allow = "a QEMU that is built with liburing (Debian's is)"
    return Problem(f"QEMU opens no file with io_uring: {words[-1][:300]}", host.where, f"{allow}; or another disk_io")


def _asked(host: Host, argv: tuple[str, ...]) -> Completed | None:
    """What QEMU says; None where it has not ended in time."""
    try:
        return host.run(argv, stdin=_QUIT, timeout_s=_ASKED_S, check=False)
    except CommandError:
        return None


def refuse_fallbacks(log: Path) -> None:
    """PlatformError where QEMU says in its own output ``log`` that it does without what it was told to use.

    It tries a ring, Linux AIO or vhost only as the guest first uses them, says so there alone, and goes on.
    """
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if _FALLBACK in line:
            raise PlatformError(
                f"QEMU does not use what the study asks for: {line.strip()[:300]}",
                where=str(log),
                remedy="leave that setting (disk_io, vhost) out, or make its kernel and QEMU offer it",
            )
