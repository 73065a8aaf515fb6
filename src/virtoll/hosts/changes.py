"""What stays changed on a machine when the command that changed it has ended: settings, and processes that keep
something up. Both are lines of a ledger, and are undone from that line alone.

A setting is put back only in the same boot of the machine, and where it still is what virtoll set it to: whoever has
changed it since wants it so. A process is ended only where it is the very one that was started: same number, same
start, same boot.
"""

from __future__ import annotations

import os
import re
import select
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from virtoll.errors import HostError
from virtoll.hosts import cgroup
from virtoll.hosts.base import Host
from virtoll.hosts.processes import Process, is_alive, process

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_GRACE_MS = 15_000  # for a killed process to end
_REMEDY = "run it as root; where that was done, the kernel or the hypervisor allows no change"


def _boot() -> str:
    return _BOOT.read_text(encoding="ascii").strip()


@dataclass(frozen=True)
class Setting:
    """A file of one word in /sys or /proc, what it was, and what it is set to until the machine is booted anew."""

    path: Path
    before: str
    after: str
    boot: str = field(default_factory=_boot)  # "" where a ledger from before 2026-11-28 does not tell

    @property
    def name(self) -> str:
        """As a ledger knows it."""
        return f"{self.told} of boot {self.boot}"

    @property
    def told(self) -> str:
        """As a reader does."""
        return f"{self.path} (was {self.before}, set to {self.after})"

    @classmethod
    def named(cls, name: str) -> Self:
        """The setting of a ledger's line."""
        found = re.fullmatch(r"(.+) \(was (\S+), set to (\S+)\)(?: of boot (\S+))?", name)
        if found is None:
            raise HostError("no setting of virtoll's", where=name)
        return cls(Path(found[1]), found[2], found[3], found[4] or "")

    def apply(self) -> None:
        """Set it, and see that it is set."""
        _write(self.path, self.after)
        if (now := chosen(self.path)) != self.after:
            what = f"was told {self.after!r} and is {now!r}"
            raise HostError(what, where=str(self.path), remedy="the machine's own manager may hold it (tuned, TLP)")

    def undo(self) -> None:
        """Put back what was there, unless somebody has set something else since, or the file has gone (a CPU's)."""
        if self.holds():
            _write(self.path, self.before)

    def holds(self) -> bool:
        """Whether it is what virtoll has set it to."""
        return self._is_of_this_boot() and chosen(self.path) == self.after

    def why_left(self) -> str:
        """Why it is not to be put back; "" where it is, is so already, or has gone."""
        if not self._is_of_this_boot():
            return "the machine was booted anew since"
        if (now := chosen(self.path)) is None and self.path.exists():
            return "it cannot be read: its CPU may be switched off, and comes back with it as it was set"
        return "" if now in (self.before, self.after, None) else "somebody has changed it since"

    def _is_of_this_boot(self) -> bool:
        return self.boot in ("", _boot())


def chosen(path: Path) -> str | None:
    """A setting's word, the one in brackets where the file lists them all; None where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
    bracketed = re.search(r"\[(\S+)\]", text)
    return bracketed[1] if bracketed else text


def _write(path: Path, value: str) -> None:
    try:
        path.write_text(value, encoding="utf-8")
    except OSError as error:
        raise HostError(f"cannot write {value!r}: {error.strerror}", where=str(path), remedy=_REMEDY) from error


@dataclass(frozen=True)
class Keeper:
    """A process of virtoll's that goes on after its command, and what it is there for."""

    pid: int
    started: int  # clock ticks after boot
    boot: str
    purpose: str

    @property
    def name(self) -> str:
        """As a ledger and a reader know it."""
        return f"{self.pid} ({self.purpose}; begun at tick {self.started} of boot {self.boot})"

    @classmethod
    def named(cls, name: str) -> Self:
        """The process of a ledger's line."""
        found = re.fullmatch(r"(\d+) \((.+); begun at tick (\d+) of boot (\S+)\)", name)
        if found is None:
            raise HostError("no process of virtoll's", where=name)
        return cls(int(found[1]), int(found[3]), found[4], found[2])

    @classmethod
    def of(cls, pid: int, purpose: str) -> Self:
        """A living child of ours."""
        found = process(pid)
        if found is None or found.is_dead:
            raise HostError("ended at once", where=f"process {pid} ({purpose})")
        return cls(pid, found.started, _boot(), purpose)

    def holds(self) -> bool:
        """Whether this very process still is at work."""
        return self.boot == _boot() and is_alive(Process(self.pid, self.started, session=0, is_dead=False))

    def end(self) -> None:
        """Kill it and wait until it is dead; never another that has got its number."""
        if not self.holds():
            return  # its number may be a thread's by now, of which there is no descriptor
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.holds():  # looked at while the descriptor is held: it had its number when that was opened
                    _hurry(self.pid)
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    _wait(descriptor, self)
            finally:
                os.close(descriptor)


def _hurry(pid: int) -> None:
    """Let it have a CPU to die on: one that gives way to all else may wait for minutes on a busy machine."""
    with suppress(OSError, HostError):  # else it dies as soon as it can
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, pid, 0)
        cgroup.Cgroup("", cgroup.hierarchies()).directory("cpu").joinpath("cgroup.procs").write_text(str(pid))


def _wait(descriptor: int, keeper: Keeper) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(_GRACE_MS):
        raise HostError("does not die", where=f"process {keeper.name}", remedy=f"cat /proc/{keeper.pid}/stack")


def undo_setting(host: Host, name: str) -> None:
    """Undo the setting of a ledger's line."""
    del host  # files of the machine that this code runs on
    Setting.named(name).undo()


def why_setting_is_left(host: Host, name: str) -> str:
    """Why the setting of a ledger's line is not to be undone; "" where it is."""
    del host
    return Setting.named(name).why_left()


def end_keeper(host: Host, name: str) -> None:
    """End the process of a ledger's line."""
    del host
    Keeper.named(name).end()
