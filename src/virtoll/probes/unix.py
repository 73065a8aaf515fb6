"""UnixBench's tests: what a call, a pipe, a process and a small file cost inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll.errors import Problem
from virtoll.probes.base import Timed
from virtoll.probes.native import NativeProbe
from virtoll.record.model import Quantity
from virtoll.study.limits import Limits
from virtoll.units import within

# Beside the copies: the agent, its probe, and what a service's image runs anyway.
_SPARE_PIDS = 16
_LEAST_BUFFER_BYTES = 8
_BUFFERS = 2000  # of each of a copy's two files (rust/probe/src/unix/files.rs)


@dataclass(frozen=True)
class Copied(Timed):
    """``copies`` of the test run at once, and their rates are summed."""

    copies: int = within(1, least=1, most=1024)


@dataclass(frozen=True)
class ShellSettings(Copied):
    """``scripts`` run at once in each copy."""

    scripts: int = within(1, least=1, most=1024)
    directory: str = "/var/tmp"


@dataclass(frozen=True)
class FileSettings(Copied):
    """The files lie in ``directory``, 2000 buffers long; what is read or written is in the page cache."""

    operation: Literal["copy", "read", "write"] = "copy"
    buffer_bytes: int = within(1024, least=_LEAST_BUFFER_BYTES, most=1024**2)
    directory: str = "/var/tmp"


class UnixTest(NativeProbe):
    """One of UnixBench's tests, as some copies at once."""

    Settings = Copied
    processes_per_copy: ClassVar[int] = 1

    def processes(self) -> int:
        """How many processes it has at once."""
        return int(self.settings.copies) * self.processes_per_copy

    def check(self, limits: Limits) -> list[Problem]:
        """No more processes than the instance may have."""
        room = limits.pids - _SPARE_PIDS
        if self.processes() <= room:
            return []
        what = f"{self.settings.copies} copies need {self.processes()} processes, and [limits] pids leaves {room}"
        most = room * self.settings.copies // self.processes()
        remedy = f"run at most {most} copies" if most else "raise [limits] pids"
        return [Problem(what, f"probe {self.name}", remedy)]


class Arithmetic(UnixTest):
    """Double arithmetic: a sum of a hundred quotients is a loop."""

    name: ClassVar[str] = "unix-arithmetic"
    summary: ClassVar[str] = "UnixBench's index: arithmetic in double precision (the CPU, hardly the kernel)"
    quantities: ClassVar[dict[str, Quantity]] = {"loops_per_s": Quantity("Double arithmetic", "/s", "more")}
    headline: ClassVar[str] = "loops_per_s"


class Context(UnixTest):
    """Two processes hand a number to and fro over two pipes: a loop is two switches."""

    name: ClassVar[str] = "unix-context"
    summary: ClassVar[str] = "UnixBench's index: two processes that take turns over pipes (context switches)"
    quantities: ClassVar[dict[str, Quantity]] = {"loops_per_s": Quantity("Context switching", "/s", "more")}
    headline: ClassVar[str] = "loops_per_s"
    processes_per_copy: ClassVar[int] = 2


class Dhrystone(UnixTest):
    """Dhrystone 2.1."""

    name: ClassVar[str] = "unix-dhrystone"
    summary: ClassVar[str] = "UnixBench's index: Dhrystone 2.1, to compare integers and strings with old figures"
    quantities: ClassVar[dict[str, Quantity]] = {"dhrystones_per_s": Quantity("Dhrystone", "/s", "more")}
    headline: ClassVar[str] = "dhrystones_per_s"


class Execl(UnixTest):
    """A program replaces itself by itself."""

    name: ClassVar[str] = "unix-execl"
    summary: ClassVar[str] = "UnixBench's index: a program that replaces itself (execl), as scripts and CGI do"
    quantities: ClassVar[dict[str, Quantity]] = {"execs_per_s": Quantity("Program start (execl)", "/s", "more")}
    headline: ClassVar[str] = "execs_per_s"
    processes_per_copy: ClassVar[int] = 2


class FileCopy(UnixTest):
    """Writing, reading or copying a small file in small buffers, through the page cache."""

    Settings = FileSettings
    name: ClassVar[str] = "unix-file"
    summary: ClassVar[str] = "UnixBench's index: small files in small buffers, system calls more than disk"
    quantities: ClassVar[dict[str, Quantity]] = {"kib_per_s": Quantity("Small file", "KiB/s", "more")}
    headline: ClassVar[str] = "kib_per_s"

    def check(self, limits: Limits) -> list[Problem]:
        """The two files of each copy must fit the disk, and the memory that caches them."""
        settings = self.settings
        problems = super().check(limits)
        need = 2 * _BUFFERS * settings.buffer_bytes * settings.copies
        for limit, room in (("disk", limits.disk_bytes), ("memory", limits.memory_bytes // 2)):
            if need > room:
                most = room // (2 * _BUFFERS * settings.copies)
                what = f"the files of {settings.copies} copies are {need} bytes, and [limits] {limit} leaves {room}"
                remedy = f"choose a buffer of at most {most} B"
                if most < _LEAST_BUFFER_BYTES:
                    remedy = f"run fewer copies, or raise [limits] {limit}"
                problems.append(Problem(what, f"probe {self.name}", remedy))
        return problems


class Pipe(UnixTest):
    """512 bytes through a pipe and back, in one process."""

    name: ClassVar[str] = "unix-pipe"
    summary: ClassVar[str] = "UnixBench's index: 512 bytes through a pipe in one process, the cost of system calls"
    quantities: ClassVar[dict[str, Quantity]] = {"loops_per_s": Quantity("Pipe throughput", "/s", "more")}
    headline: ClassVar[str] = "loops_per_s"


class Shell(UnixTest):
    """Shell scripts that sort, dump, search and count a text; some at once."""

    Settings = ShellSettings
    name: ClassVar[str] = "unix-shell"
    summary: ClassVar[str] = "UnixBench's index: shell scripts, one or several at once (builds, cron jobs)"
    quantities: ClassVar[dict[str, Quantity]] = {"loops_per_min": Quantity("Shell scripts", "/min", "more")}
    headline: ClassVar[str] = "loops_per_min"

    def processes(self) -> int:
        """The copy, its outer script, and of each script the shell and the three processes of its longest pipeline."""
        settings: ShellSettings = self.settings
        return settings.copies * (2 + 4 * settings.scripts)


class Spawn(UnixTest):
    """A child is made by fork, ends and is waited for."""

    name: ClassVar[str] = "unix-spawn"
    summary: ClassVar[str] = "UnixBench's index: processes forked and waited for (servers that fork)"
    quantities: ClassVar[dict[str, Quantity]] = {"processes_per_s": Quantity("Process creation", "/s", "more")}
    headline: ClassVar[str] = "processes_per_s"
    processes_per_copy: ClassVar[int] = 2


class Syscall(UnixTest):
    """Five cheap system calls are a loop: dup, close, getppid, getuid, umask."""

    name: ClassVar[str] = "unix-syscall"
    summary: ClassVar[str] = "UnixBench's index: five cheap system calls, the price of entering the kernel"
    quantities: ClassVar[dict[str, Quantity]] = {"loops_per_s": Quantity("System calls", "/s", "more")}
    headline: ClassVar[str] = "loops_per_s"


class Whetstone(UnixTest):
    """Whetstone in double precision."""

    name: ClassVar[str] = "unix-whetstone"
    summary: ClassVar[str] = "UnixBench's index: Whetstone, floating point with the mathematical library"
    quantities: ClassVar[dict[str, Quantity]] = {"mwips": Quantity("Whetstone", "MWIPS", "more")}
    headline: ClassVar[str] = "mwips"
