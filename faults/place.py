"""A place of one's own on a machine that others use too, and what is in it.

The harness lives in mount, network, process and IPC namespaces of its own, with a /run, /tmp, /dev/shm of its own and
a /var/lib whose changes are its own: whatever is new there came from here. What namespaces do not part (cgroups, loop
devices) is told apart by the tags of the runs that were begun here and by the work directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import leaks

INSIDE = "VIRTOLL_FAULTS_WORK"  # the work directory; set inside the place
STATE = "state"  # of every run, below the work directory
_PREMADE = ("lock", "mount", "netns")  # in /run: every system has these once mount(8) and ip-netns(8) were used
_KEEP = ("/", "/proc", "/sys", "/dev")  # mounts that stay; those below /proc, /sys and /dev too
# What the kernel counts or draws by itself.
_VOLATILE = ("kernel/random/", "kernel/ns_last_pid", "fs/dentry-state", "fs/inode-", "fs/file-nr", "fs/aio-nr",
             "kernel/pty/nr", "fs/quota", "net/netfilter/nf_conntrack_count", "kernel/perf_event_max_sample_rate",
             "fs/binfmt_misc")  # fmt: skip

Inventory = dict[str, frozenset[str]]


def enter(module: str, arguments: list[str]) -> int:
    """Run ``python -m module arguments`` inside a new place; its exit code. The work directory is gone afterwards."""
    work = tempfile.mkdtemp(prefix="virtoll-faults-", dir="/var/tmp")
    tests = Path(__file__).parent.parent / "tests"
    told = {INSIDE: work, leaks.MARK: Path(work).name, "PYTHONPATH": f"{tests}:{os.environ.get('PYTHONPATH', '')}"}
    command = ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"]
    python = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen([*command, "--propagation=private", "--", *python], env={**os.environ, **told})
    signal.signal(signal.SIGTERM, lambda _number, _frame: process.kill())  # and unshare takes all inside with it
    try:
        return process.wait()
    except KeyboardInterrupt:
        return process.wait()
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(work, ignore_errors=True)


def settle(work: Path) -> None:
    """Inside: let go of everybody else's mounts, and cover what this place has for itself."""
    _stand_at_the_top()
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in reversed(points):
        if point not in _KEEP and not point.startswith(("/proc/", "/sys/", "/dev/")):
            subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
    for name, mode in (("run", 0o755), ("tmp", 0o1777), ("upper", 0o755), ("overlay", 0o755)):
        (work / "own" / name).mkdir(parents=True)
        (work / "own" / name).chmod(mode)
    for name in _PREMADE:
        (work / "own/run" / name).mkdir(parents=True)
    # LXC locks a directory of containers below this one, which is the same for every run with this state directory.
    Path(f"{work}/own/run/lxc/lock{work}/{STATE}").mkdir(parents=True)
    own = work / "own"
    commands = [
        ["mount", "--bind", str(own / "run"), "/run"],
        ["mount", "--bind", str(own / "tmp"), "/tmp"],
        ["mount", "-t", "overlay", "-o", f"lowerdir=/var/lib,upperdir={own}/upper,workdir={own}/overlay", "overlay",
         "/var/lib"],
        ["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"],
        ["ip", "link", "set", "lo", "up"],
    ]  # fmt: skip
    for command in commands:
        subprocess.run(command, check=True)


def _stand_at_the_top() -> None:
    """liblxc puts containers below the control groups of process 1, which on a machine is at the top: here it is us."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        if path != "/" and controllers and not controllers.startswith("name="):
            Path("/sys/fs/cgroup", controllers, "cgroup.procs").write_text("0")


def inventory(work: Path, tags: Iterable[str]) -> Inventory:
    """All that is here, by kind. ``tags``: of the runs that were begun here."""
    reap()
    tags = tuple(tags)
    return {
        **leaks.snapshot(),
        "processes": frozenset(f"{pid} {words}" for pid, words in processes()),
        "cgroups": frozenset(str(path) for path in cgroups(tags)),
        "loop devices": frozenset(line for line in _lines("losetup", "-l", "-n", "-O", "NAME,BACK-FILE")
                                  if str(work) in line),
        "addresses": frozenset(_lines("ip", "-o", "address")),
        "routes": frozenset([*_lines("ip", "route", "show", "table", "all"), *_lines("ip", "-6", "route")]),
        "rules": frozenset([*_lines("ip", "rule"), *_lines("ip", "-6", "rule")]),
        "directories": frozenset(),  # all files are looked at instead
        "files": frozenset(_files(work)),
        "sysctls": frozenset(_sysctls()),
    }  # fmt: skip


def differences(before: Inventory, after: Inventory) -> list[str]:
    """One line for each thing that has come or gone."""
    come = [f"left behind: {kind}: {thing}" for kind in after for thing in sorted(after[kind] - before[kind])]
    return come + [f"gone: {kind}: {thing}" for kind in after for thing in sorted(before[kind] - after[kind])]


def left(work: Path, tags: Iterable[str], before: Inventory, within_s: float = leaks.SOON_S) -> list[str]:
    """`differences`, once the kernel has had time to finish what it does late."""
    deadline = time.monotonic() + within_s
    while found := differences(before, inventory(work, tags)):
        if time.monotonic() > deadline:
            return found
        time.sleep(0.1)
    return []


def sweep(work: Path, tags: Iterable[str]) -> None:
    """Remove what a violation left, so that the next fault finds the place as the first did."""
    for pid, _ in processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + leaks.SOON_S
    while list(processes()) and time.monotonic() < deadline:
        reap()
        time.sleep(0.05)
    inside = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in reversed(inside):
        if point.startswith((f"{work}/f", f"{work}/{STATE}/", "/run/", "/tmp/", "/var/lib/")):
            subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
    for line in _lines("losetup", "-l", "-n", "-O", "NAME,BACK-FILE"):
        if str(work) in line:
            subprocess.run(["losetup", "-d", line.split()[0]], check=False)
    for group in sorted(cgroups(tuple(tags)), reverse=True):
        with contextlib.suppress(OSError):
            group.rmdir()
    locks = Path(f"{work}/own/run/lxc/lock{work}/{STATE}")
    premade = [*(work / "own/run" / name for name in _PREMADE), locks, work / "own/run/lxc"]
    for top in (work / "own/run", work / "own/tmp", Path("/dev/shm"), *premade):
        for entry in top.iterdir() if top != work / "own/run/lxc" else []:
            if entry not in premade:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def processes() -> Iterator[tuple[int, str]]:
    """Whoever lives here besides the harness: pid and command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in (1, os.getpid()):
            with contextlib.suppress(OSError):
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()


def cgroups(tags: tuple[str, ...]) -> Iterator[Path]:
    """The cgroups of the runs with these tags, in every hierarchy."""
    for top in Path("/sys/fs/cgroup").iterdir():
        for tag in tags:
            for directory, _, _ in os.walk(top / "virtoll" / tag):
                yield Path(directory)


def reap() -> None:
    """Nobody else buries the orphans of this place."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _files(work: Path) -> Iterator[str]:
    tops = {"/run": work / "own/run", "/tmp": work / "own/tmp", "/var/lib": work / "own/upper",
            "/dev/shm": Path("/dev/shm")}  # fmt: skip
    for shown, top in tops.items():
        for directory, names, files in os.walk(top):
            for name in (*names, *files):
                yield str(Path(shown, Path(directory, name).relative_to(top)))


def _sysctls() -> Iterator[str]:
    top = Path("/proc/sys")
    for directory, _, names in os.walk(top):
        for name in names:
            path = Path(directory, name)
            setting = str(path.relative_to(top))
            if not setting.startswith(_VOLATILE):
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    yield f"{setting} = {path.read_text().strip()}"


def _lines(*argv: str) -> list[str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return [line.strip() for line in done.stdout.splitlines()]
