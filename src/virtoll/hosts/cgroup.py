"""Control groups of both generations, by effect the same: make, limit, join, account, kill, remove.

Version 1 mounts each controller apart, so a group is one directory per hierarchy; version 2 is one tree. A machine
whose cgroup2 mount carries no controller that virtoll limits with ("hybrid") counts as version 1.

On version 2 only groups without children may hold processes, and a group's children have a controller only where its
``cgroup.subtree_control`` says so. What virtoll enables on the way down stays enabled: it changes no limit, nor the
CPUs that somebody keeps to (`virtoll.hosts.affinities`), and taking it away could pull it from under somebody who has
come to use it. (Where systemd takes it away, which it does for what none of its units needs, Linux before 6.2 forgets
those CPUs then: that is after the run, and nobody of ours is there to give them back.)
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from virtoll.errors import HostError
from virtoll.hosts import affinities
from virtoll.hosts.base import Host
from virtoll.hosts.mountinfo import MOUNTINFO, is_read_only, mount_lines, mount_point
from virtoll.hosts.processes import Process, is_alive, process

if TYPE_CHECKING:
    from virtoll.hosts.ledger import Ledger

TOP = "virtoll"  # every group of virtoll's lies below this one
_CONTROLLERS_V1 = ("cpu", "cpuacct", "cpuset", "memory", "pids", "freezer", "blkio")
_CONTROLLERS_V2 = ("cpu", "cpuset", "memory", "pids", "io")
_PERIOD_US = 100_000  # of the CPU quota: the kernel's default, and what `docker --cpus` and LXC use
_MOST_WEIGHT = {1: ("cpu.shares", "262144"), 2: ("cpu.weight", "10000")}  # by version: file, and the kernel's bound
# By version: the file of all memory, and what of memory.stat is cache, of which shared memory is a part.
_KEPT = {1: ("memory.usage_in_bytes", "total_cache", "total_shmem"), 2: ("memory.current", "file", "shmem")}
_MOST_PIDS = 4 * 1024**2  # that a kernel can have, and that it takes for a limit (include/linux/threads.h)
_NO_LIMIT_BYTES = 2**62  # of memory: version 1 writes the largest multiple of a page
_ATTEMPTS = 20
_GRACE_S = 60.0  # for killed processes to leave: a large guest gives its memory back, or comes from its disk


@dataclass(frozen=True)
class Hierarchies:
    """The machine's cgroup mounts: ``mounts`` maps each usable controller to the root of its hierarchy."""

    version: Literal[1, 2]
    mounts: Mapping[str, Path]

    def directory(self, controller: str, name: str) -> Path:
        """Where group ``name`` keeps its files of ``controller``; HostError where the kernel has no such controller."""
        if controller not in self.mounts:
            raise HostError(
                f"no cgroup controller {controller!r}",
                where="/proc/self/mountinfo",
                remedy=f"boot with cgroup_enable={controller}, or mount it below /sys/fs/cgroup",
            )
        return self.mounts[controller] / name

    def directories(self, name: str) -> tuple[Path, ...]:
        """Group ``name`` in every hierarchy (controllers mounted together count once)."""
        return tuple(root / name for root in dict.fromkeys(self.mounts.values()))


def parse_mounts(mountinfo: str, controllers_of: Callable[[Path], str]) -> Hierarchies:
    """Read the hierarchies from /proc/self/mountinfo; ``controllers_of`` gives a cgroup2 mount's cgroup.controllers.

    Of several mounts of one the first counts that can be written to. HostError when neither version carries a CPU and a
    memory controller.
    """
    first: dict[str, Path] = {}
    second: dict[str, Path] = {}
    for line in sorted(mountinfo.split("\n"), key=is_read_only):
        before, _, after = line.partition(" - ")
        words = after.split(" ", 2)
        if not mount_point(before) or len(words) < 3:
            continue  # no line of a mount
        kind, _, options = words
        path = Path(mount_point(before))
        if kind == "cgroup":
            for controller in options.split(","):
                if controller in _CONTROLLERS_V1:
                    first.setdefault(controller, path)
        elif kind == "cgroup2" and not second:
            second = {name: path for name in controllers_of(path).split() if name in _CONTROLLERS_V2}
    if {"cpu", "memory"} <= second.keys():
        return Hierarchies(2, second)
    if {"cpu", "memory"} <= first.keys():
        return Hierarchies(1, first)
    raise HostError(
        "the cgroup controllers cpu and memory are not mounted",
        where="/proc/self/mountinfo",
        remedy="boot with cgroup_enable=memory, or mount -t cgroup2 none /sys/fs/cgroup",
    )


@cache
def hierarchies() -> Hierarchies:
    """This machine's."""
    mountinfo = os.fsdecode(Path(MOUNTINFO).read_bytes())
    return parse_mounts(mountinfo, _controllers_of)


def _controllers_of(path: Path) -> str:
    """The controllers of a mount of version 2; none of one that something lies over, as tmpfs does for version 1."""
    with contextlib.suppress(FileNotFoundError):
        return (path / "cgroup.controllers").read_text(encoding="utf-8")
    return ""


@dataclass(frozen=True)
class Cgroup:
    """One control group, in every hierarchy."""

    name: str  # relative to each hierarchy's root: "virtoll/ab12/i"
    hierarchies: Hierarchies

    @property
    def procs(self) -> tuple[Path, ...]:
        """The files that a process joins the group by (Confinement.cgroup_procs)."""
        return tuple(path / "cgroup.procs" for path in self.hierarchies.directories(self.name))

    def directory(self, controller: str) -> Path:
        """Where the group's files of ``controller`` lie."""
        return self.hierarchies.directory(controller, self.name)

    def pids(self) -> list[int]:
        """Every process of the group and of the groups below it, in any hierarchy."""
        return sorted(
            {
                int(line)
                for top in self.hierarchies.directories(self.name)
                for directory in _subtree(top)
                for line in _lines(directory / "cgroup.procs")
            }
            - {0}  # a process of a PID namespace that we cannot see
        )

    @property
    def found_by(self) -> tuple[Path, ...]:
        """The file by which a process joins that is to be found here and not to be limited."""
        return (self.directory("freezer") / "cgroup.procs",) if "freezer" in self.hierarchies.mounts else self.procs[:1]

    @property
    def cpu_file(self) -> Path:
        """What tells the CPU time that all in it and below has used: nanoseconds alone (version 1), or ``usage_usec``
        among others. HostError where the kernel has no such controller.
        """
        if self.hierarchies.version == 2:
            return self.directory("cpu") / "cpu.stat"
        return self.directory("cpuacct") / "cpuacct.usage"

    def cpu_ns(self) -> int | None:
        """CPU time that all in it and below has used; None where the kernel does not tell."""
        try:
            told = self.cpu_file.read_text(encoding="utf-8").split()
            if self.hierarchies.version == 2:
                return int(told[told.index("usage_usec") + 1]) * 1000
            return int(told[0])
        except (HostError, OSError, ValueError, IndexError):
            return None

    def quota_cpus(self) -> float | None:
        """How many CPUs' time all in it and below gets; None: as much as there is. OSError where nobody tells."""
        directory = self.directory("cpu")
        if self.hierarchies.version == 2:
            quota, period = (directory / "cpu.max").read_text(encoding="utf-8").split()
            return None if quota == "max" else int(quota) / int(period)
        quota_us = int((directory / "cpu.cfs_quota_us").read_text(encoding="utf-8"))
        return None if quota_us < 0 else quota_us / int((directory / "cpu.cfs_period_us").read_text(encoding="utf-8"))

    def limit_bytes(self) -> int | None:
        """How much memory all in it and below may have; None: as much as there is. OSError where nobody tells."""
        name = "memory.max" if self.hierarchies.version == 2 else "memory.limit_in_bytes"
        text = (self.directory("memory") / name).read_text(encoding="utf-8").strip()
        return None if text == "max" or int(text) > _NO_LIMIT_BYTES else int(text)

    def held_bytes(self) -> int:
        """Memory that all in it and below keeps from others: no page cache, which is given back where it is wanted. 0
        where the kernel does not tell.
        """
        names = ("anon", "shmem") if self.hierarchies.version == 2 else ("total_rss", "total_shmem")
        try:
            lines = (self.directory("memory") / "memory.stat").read_text(encoding="utf-8").splitlines()
            return sum(int(value) for name, value in map(str.split, lines) if name in names)
        except (OSError, ValueError):
            return 0

    def kept_bytes(self) -> int | None:
        """All memory of it and below, the kernel's for it too, but for the page cache: that is given back where its
        limit is reached. None where the kernel does not tell.
        """
        used, cache, shared = _KEPT[self.hierarchies.version]
        try:
            directory = self.directory("memory")
            used_bytes = int((directory / used).read_text(encoding="utf-8"))
            lines = (directory / "memory.stat").read_text(encoding="utf-8").splitlines()
            told = {name: int(value) for name, value in map(str.split, lines)}
        except (HostError, OSError, ValueError):
            return None
        return max(0, used_bytes - told.get(cache, 0) + told.get(shared, 0))

    def tasks(self) -> int:
        """How many processes and threads are in it and below. 0 where the kernel does not tell."""
        try:
            return int((self.directory("pids") / "pids.current").read_text(encoding="utf-8"))
        except (HostError, OSError, ValueError):
            return 0

    def go_first(self) -> None:
        """Of those beside it that want the same CPU let it have that first: it weighs as much as a group can."""
        file, most = _MOST_WEIGHT[self.hierarchies.version]
        _write(self.directory("cpu") / file, most)

    @property
    def goes_first(self) -> bool:
        """Whether it was told to `go_first`."""
        file, most = _MOST_WEIGHT[self.hierarchies.version]
        return _lines(self.directory("cpu") / file) == [most]

    def add(self, pid: int) -> None:
        """Move a running process in."""
        for path in self.procs:
            _write(path, str(pid))

    def add_living(self, tasks: Iterable[int]) -> list[int]:
        """Move those in that have not ended meanwhile; which these are. Of the kernel's threads, that come and go."""
        living = []
        for task in tasks:
            with contextlib.suppress(ProcessLookupError):
                for path in self.procs:
                    _write(path, str(task), of_a_task=True)
                living.append(task)
        return living

    def kill(self) -> None:
        """End every process of the subtree, fork bombs too; HostError if one still lives after 60 s.

        A process leaves its group before it has died: what it holds is given back only then.
        """
        deadline = time.monotonic() + _GRACE_S
        dying: dict[int, Process] = {}
        while True:
            pids = self.pids()
            dying = {pid: one for pid, one in dying.items() if is_alive(one)}
            dying |= {pid: one for pid in pids if pid not in dying and (one := process(pid)) and not one.is_dead}
            if not pids and not dying:
                return
            if time.monotonic() > deadline:
                raise HostError(
                    f"processes {sorted({*pids, *dying})} do not die",
                    where=f"cgroup {self.name}",
                    remedy="cat /proc/PID/stack shows what each waits for (a dead disk or network mount?)",
                )
            if pids:
                self._kill_once(pids)
            time.sleep(0.001)

    def _kill_once(self, pids: list[int]) -> None:
        """SIGKILL all at one instant: in the kernel where it can (5.14), else frozen, so that nobody can fork away."""
        kill_file = self.hierarchies.directories(self.name)[0] / "cgroup.kill"
        if self.hierarchies.version == 2 and kill_file.exists():
            _write(kill_file, "1")
            return
        self._freeze(True)
        try:
            for pid in [*pids, *self.pids()]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        finally:
            self._freeze(False)

    def _freeze(self, frozen: bool) -> None:
        """Ask for it and wait at most 50 ms: a task in the kernel freezes late, and the next round will find it."""
        if self.hierarchies.version == 2:
            file, value = self.directory("cpu") / "cgroup.freeze", "1" if frozen else "0"
        elif "freezer" in self.hierarchies.mounts:
            file, value = self.directory("freezer") / "freezer.state", "FROZEN" if frozen else "THAWED"
        else:
            return
        with contextlib.suppress(FileNotFoundError):
            file.write_text(value, encoding="utf-8")
            deadline = time.monotonic() + 0.05
            while frozen and value == "FROZEN" and time.monotonic() < deadline:
                if _lines(file) == ["FROZEN"]:
                    break
                time.sleep(0.001)

    def remove(self) -> None:
        """Kill what is inside and remove the whole subtree; no error where it is already gone."""
        tops = self.hierarchies.directories(self.name)
        deadline = time.monotonic() + _GRACE_S
        while any(top.is_dir() for top in tops):
            self.kill()
            for top in tops:
                for directory in _subtree(top):
                    _rmdir(directory)
            if time.monotonic() > deadline:
                raise HostError(
                    "cannot be removed: something makes new groups or processes in it",
                    where=f"cgroup {self.name}",
                    remedy="end the container manager that uses it (systemd-cgls, or cat cgroup.procs)",
                )


def limit_files(
    version: Literal[1, 2], *, cpu_quota: float | None, memory_bytes: int | None, pids: int | None
) -> list[tuple[str, str, str]]:
    """The (controller, file, value) that put limits in force; swap is never a way out of the memory limit."""
    files: list[tuple[str, str, str]] = []
    if cpu_quota is not None:
        quota_us = round(cpu_quota * _PERIOD_US)
        if version == 2:
            files += [("cpu", "cpu.max", f"{quota_us} {_PERIOD_US}")]
        else:
            files += [("cpu", "cpu.cfs_period_us", str(_PERIOD_US)), ("cpu", "cpu.cfs_quota_us", str(quota_us))]
    if memory_bytes is not None:
        if version == 2:
            files += [("memory", "memory.max", str(memory_bytes)), ("memory", "memory.swap.max", "0")]
        else:
            files += [("memory", "memory.limit_in_bytes", str(memory_bytes))]
            files += [("memory", "memory.memsw.limit_in_bytes", str(memory_bytes))]
    if pids is not None:
        files += [("pids", "pids.max", str(min(pids, _MOST_PIDS)))]
    return files


# Kernels built or booted without swap accounting have no such file (before 6.1, many need swapaccount=1), and swap all
# the same: of version 1 see `_keep_from_swap`, of version 2 nothing does it.
_OPTIONAL = frozenset({"memory.swap.max", "memory.memsw.limit_in_bytes"})


def make(
    layout: Hierarchies,
    name: str,
    *,
    cpus: frozenset[int] | None = None,
    cpu_quota: float | None = None,
    memory_bytes: int | None = None,
    pids: int | None = None,
) -> Cgroup:
    """Make group ``name`` with its limits, and the groups above it where they are missing."""
    group = Cgroup(name, layout)
    _make_path(layout, name.split("/"))
    if cpus is not None:
        _write(group.directory("cpuset") / "cpuset.cpus", ",".join(str(cpu) for cpu in sorted(cpus)))
    for controller, file, value in limit_files(
        layout.version, cpu_quota=cpu_quota, memory_bytes=memory_bytes, pids=pids
    ):
        path = group.directory(controller) / file
        if file not in _OPTIONAL or path.exists():
            _write(path, value)
    if layout.version == 1 and memory_bytes is not None:
        _keep_from_swap(group.directory("memory"))
    return group


def _keep_from_swap(directory: Path) -> None:
    """Where swap cannot be limited: what reaches its limit of memory is not swapped out for it. Groups below it inherit
    that (Linux, cgroup-v1/memory.rst, 5.3).
    """
    if not (directory / "memory.memsw.limit_in_bytes").exists():
        with contextlib.suppress(OSError):  # before Linux 3.16 such a group may have none of its own
            (directory / "memory.swappiness").write_text("0", encoding="utf-8")


def _make_path(layout: Hierarchies, parts: list[str]) -> None:
    """Make a group and those above it. Another virtoll may remove the empty top one in between, and systemd take back
    controllers from the root as long as nobody has handed them further down: then start again.
    """
    for _ in range(_ATTEMPTS):
        try:
            for depth in range(1, len(parts) + 1):
                _make_one(layout, "/".join(parts[:depth]))
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.ENODEV:  # a group that is going
                raise _cannot_write(layout.directories("/".join(parts))[0], "mkdir", error) from error
            continue
        return
    raise HostError("vanishes while it is made", where=f"cgroup {'/'.join(parts)}", remedy="virtoll clean")


def _make_one(layout: Hierarchies, name: str) -> None:
    """Make one group whose parent exists. v1 cpusets start empty and take nobody in: fill them from the parent; and v1
    memory is the group's own alone, without what lies below it, where nobody asked for more (before Linux 5.11).
    """
    for directory in layout.directories(name):
        if layout.version == 2:
            _enable(directory.parent, layout.mounts)
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
    if layout.version == 1 and "memory" in layout.mounts and "/" not in name:  # those below it inherit it
        below = layout.directory("memory", name) / "memory.use_hierarchy"
        if below.exists() and below.read_text(encoding="utf-8").strip() == "0":
            try:
                below.write_text("1", encoding="utf-8")
            except OSError as error:
                raise _cannot_write(below, "1", error) from error
    if layout.version == 1 and "cpuset" in layout.mounts:
        directory = layout.directory("cpuset", name)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if not (directory / file).read_text(encoding="utf-8").strip():
                _fill(directory / file, (directory.parent / file).read_text(encoding="utf-8").strip())


def _fill(file: Path, value: str) -> None:
    """As `_write`; what says that the group is going is the caller's, as everywhere while a group is made."""
    try:
        file.write_text(value, encoding="utf-8")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            raise
        raise _cannot_write(file, value, error) from error


def _enable(parent: Path, controllers: Mapping[str, Path]) -> None:
    """Hand v2 controllers down to the children of ``parent``. ENOENT or ENODEV where it has just gone, or where systemd
    has just taken back what was handed down to itself: it does so for what none of its units needs (cpuset, io).
    """
    file = parent / "cgroup.subtree_control"
    missing = _missing(parent, controllers)
    if not missing:
        return
    # Below the top one are the machine's own services; below the others nobody but ours.
    is_everybodys = "cpuset" in missing and parent == controllers["cpuset"]
    try:
        with affinities.kept() if is_everybodys else nullcontext():
            file.write_text(" ".join(f"+{name}" for name in missing), encoding="utf-8")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            raise
        if error.errno != errno.EBUSY:
            raise _cannot_write(file, " ".join(missing), error) from error
        raise _holds_processes(parent) from error


def left_bytes(layout: Hierarchies) -> tuple[int, int] | None:
    """Of the memory that all below the top group may have together, how much is left, and how much that is; None where
    it may have all. A container's own limit is there, and nothing in /proc/meminfo knows it.
    """
    top = Cgroup("", layout)
    try:
        most_bytes = top.limit_bytes()
    except OSError:  # the machine's own top of version 2 has no such file
        return None
    kept_bytes = top.kept_bytes()
    return None if most_bytes is None or kept_bytes is None else (max(0, most_bytes - kept_bytes), most_bytes)


def counted_tasks(layout: Hierarchies) -> tuple[int, int] | None:
    """How many tasks all below the top group have together, and how many they may have; None where nobody limits that
    there: of the machine's own top there is no such file, of a container's there may be.
    """
    top = Cgroup("", layout)
    try:
        most = int((top.directory("pids") / "pids.max").read_text(encoding="utf-8"))
    except (HostError, OSError, ValueError):  # "max"
        return None
    return top.tasks(), most


def expect_handed_down(layout: Hierarchies) -> None:
    """HostError where no group below the top one could be limited. Changes nothing.

    A container's top one is a group as any other, which may hold processes: only the machine's own has no type.
    """
    top = next(iter(layout.mounts.values()))
    if layout.version == 1 or not (top / "cgroup.type").exists() or not _lines(top / "cgroup.procs"):
        return
    if _missing(top, layout.mounts):
        raise _holds_processes(top)


def _holds_processes(parent: Path) -> HostError:
    return HostError(
        "cgroup v2 gives no controllers to the children of a group that holds processes itself",
        where=str(parent),
        remedy="move its processes to a child group first; in a container, start it with --cgroupns=host",
    )


def _missing(parent: Path, controllers: Iterable[str]) -> list[str]:
    """What is not handed down to the children of ``parent``."""
    return sorted(set(controllers) - set(" ".join(_lines(parent / "cgroup.subtree_control")).split()))


@contextmanager
def owned(
    ledger: Ledger,
    name: str,
    *,
    cpus: frozenset[int] | None = None,
    cpu_quota: float | None = None,
    memory_bytes: int | None = None,
    pids: int | None = None,
) -> Iterator[Cgroup]:
    """A new cgroup ``name`` ("virtoll/...") for the length of the block; then all in it is killed and it is removed.

    ``cpu_quota`` is in CPUs (1.0: one whole CPU). HostError when the group exists already.
    """
    layout = hierarchies()
    parts = name.split("/")
    if parts[0] != TOP or len(parts) < 2:
        raise ValueError(f"cgroup {name!r}: virtoll's groups lie below {TOP!r}")
    with ExitStack() as stack:
        for depth in range(2, len(parts)):
            above = "/".join(parts[:depth])
            if not all(path.is_dir() for path in layout.directories(above)):
                stack.enter_context(ledger.owning("cgroup-above", above))
        stack.enter_context(ledger.owning("cgroup", name))
        yield make(layout, name, cpus=cpus, cpu_quota=cpu_quota, memory_bytes=memory_bytes, pids=pids)


def namesakes(group: Cgroup) -> tuple[Path, ...]:
    """Make the group in the hierarchies that virtoll does not limit with (systemd's), and give the files to join it by.

    For runtimes that make groups there, below wherever they are started. What owns the group removes them, too.
    """
    limited = set(group.hierarchies.mounts.values())
    others = Hierarchies(1, {str(root): root for root in _all_roots() if root not in limited})
    _make_path(others, group.name.split("/"))
    return Cgroup(group.name, others).procs


def group_exists(name: str) -> bool:
    """Whether there is a cgroup of this name, in any hierarchy."""
    return any(path.is_dir() for path in hierarchies().directories(name))


def remove_tree(host: Host, name: str) -> None:
    """Kill every process in cgroup ``name`` (relative, below every controller) and remove the tree."""
    del host  # cgroups are files of the machine that this code runs on
    Cgroup(name, hierarchies()).remove()
    for root in _all_roots():
        for directory in _subtree(root / name):
            _rmdir(directory)
    _remove_empty(TOP)


def remove_above(host: Host, name: str) -> None:
    """Remove cgroup ``name``, made only to hold others, where nothing is in it any more."""
    del host
    _remove_empty(name)
    _remove_empty(TOP)


def _remove_empty(name: str) -> None:
    for root in _all_roots():
        _rmdir(root / name)


def _all_roots() -> tuple[Path, ...]:
    """Every cgroup mount there is now: runtimes make a group's namesake in hierarchies that virtoll does not limit
    with, too, and in one that was mounted while virtoll ran. None that is read-only, as a container may be shown its
    host's: nobody makes a group through it, and it would refuse to remove one that is not there.
    """
    lines = (line for line in mount_lines(Path(MOUNTINFO).read_bytes()) if not is_read_only(line))
    mounts = (line.partition(" - ") for line in lines)
    return tuple(Path(mount_point(before)) for before, _, after in mounts if after.startswith("cgroup"))


def _subtree(top: Path) -> list[Path]:
    """``top`` and all groups below, deepest first; groups may come and go meanwhile."""
    return [Path(directory) for directory, _, _ in os.walk(top, topdown=False)]


def _rmdir(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        try:
            directory.rmdir()
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise


def _lines(path: Path) -> list[str]:
    """A group file's lines; none when the group has just gone (ENODEV while it goes)."""
    try:
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
            return []
        raise


def _write(path: Path, value: str, *, of_a_task: bool = False) -> None:
    """HostError where it is refused; ProcessLookupError for want of the task that was to be moved, if it is one's."""
    try:
        path.write_text(value, encoding="utf-8")
    except OSError as error:
        if of_a_task and error.errno == errno.ESRCH:
            raise
        raise _cannot_write(path, value, error) from error


def _cannot_write(path: Path, value: str, error: OSError) -> HostError:
    remedy = "run as root; compare with the limits of the groups above it"
    if error.errno == errno.EINVAL and path.name == "cpuset.cpus":  # cpuset(7)
        theirs = "cpuset.cpu_exclusive, which `cset shield` sets, or a partition"
        remedy = f"end the group beside those in this path that has some of these CPUs to itself ({theirs})"
    is_handed_down = path.name == "cgroup.subtree_control"
    if error.errno == errno.EINVAL and is_handed_down and "cpu" in value.split():  # cgroup-v2.rst, "CPU"
        listed = "`ps -eLo cls,pid,cgroup,comm | grep -E '^ *(FF|RR)'`, those of a group that is not /"
        remedy = f"processes of realtime policy are in control groups ({listed}): end them, or put them into the root's"
    return HostError(f"cannot write {value!r}: {error.strerror}", where=str(path), remedy=remedy)
