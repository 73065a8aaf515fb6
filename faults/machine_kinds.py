"""The kinds of faults of real runs."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from faults import place
from faults.base import Kind
from faults.children import HANG_S
from faults.machine import Plan, Struck, injected
from faults.virtolls import Session, Virtoll

_ANY = 3 * ("service", "probe", "hogs", "docker", "docker-service", "lxc", "uml")
_WITH_SLOW = (*_ANY, "qemu-tcg")  # a guest whose every instruction is emulated: seldom
_MEMORY = Path("/sys/fs/cgroup/memory") if Path("/sys/fs/cgroup/memory").is_dir() else Path("/sys/fs/cgroup")
_LIVING = ("phase window", "phase verify", "phase prove", "phase start", "phase warm-up")


def _signalled(number: signal.Signals, struck: Struck, *, group: bool = False) -> bool:
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(struck.session.pid, number)
        return True
    return False


def _cut_short(_virtoll: Virtoll, session: Session) -> bool:
    """Whether it ended otherwise than by itself: the signal came in time."""
    return session.code not in (0, 1)


def _twice(struck: Struck) -> bool:
    hit = _signalled(signal.SIGINT, struck, group=True)
    pause_s = struck.random.random() ** 2 * 0.5
    time.sleep(pause_s)
    struck.virtoll.look(struck.session)
    if not struck.session.over:
        _signalled(signal.SIGINT, struck, group=True)
    struck.verdict.when += f", again {pause_s:.3f} s later"
    return hit


def _killed(struck: Struck, *comms: str, within: str = "", all_: bool = False) -> bool:
    """Kill one of these processes (or all), drawn."""
    pids = struck.awaited_pids(*comms, within=within)
    if not pids:
        return False
    for pid in pids if all_ else [struck.random.choice(pids)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    struck.verdict.when += f", {'all ' if all_ else ''}of {len(pids)}"
    return True


def _stopped(struck: Struck, *comms: str, within: str = "", for_s: float) -> bool:
    """Stop these processes, and let them go on after a while."""
    pids = struck.awaited_pids(*comms, within=within)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    time.sleep(for_s if pids else 0)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    struck.verdict.when += f", for {for_s:.2f} s"
    return bool(pids)


def _killed_again(struck: Struck, *, clean: bool) -> bool:
    """kill -9, and once more in what is to mend it."""
    hit = _signalled(signal.SIGKILL, struck)
    struck.virtoll.await_end(struck.session)
    pause_s = struck.random.random() * (0.4 if clean else 3.0)
    session = struck.virtoll.clean() if clean else struck.virtoll.resume()
    until = time.monotonic() + pause_s
    while time.monotonic() < until and not session.over:
        struck.virtoll.look(session)
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        if not session.over:
            os.kill(session.pid, signal.SIGKILL)
    struck.virtoll.await_end(session)
    struck.verdict.when += f", {'clean' if clean else 'the next'} after {pause_s:.3f} s"
    return hit


@contextlib.contextmanager
def _small_disk(random_: random.Random, virtoll: Virtoll, *, state: bool) -> Iterator[None]:
    """The run directory, or the state directory, on a small file system; it gets room again afterwards."""
    point = virtoll.state if state else virtoll.directory / "small"
    point.mkdir()
    size = random_.choice((4, 8, 16, 32, 64)) if state else random_.randrange(8, 400, 4)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k,mode=0700", "tmpfs", str(point)], check=True)
    if not state:
        virtoll.out = point / "out"
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,size=512m", str(point)], check=True)


@contextlib.contextmanager
def _little_memory(random_: random.Random, virtoll: Virtoll) -> Iterator[None]:
    """virtoll and its short commands in a cgroup with little memory, for its first session."""
    group = _MEMORY / f"virtoll-faults-{virtoll.directory.parent.name}"
    group.mkdir()
    limit = "memory.limit_in_bytes" if (group / "memory.limit_in_bytes").exists() else "memory.max"
    (group / limit).write_text(str(round(2 ** random_.uniform(20, 25.5))))
    virtoll.memory_group = group
    try:
        yield
    finally:
        virtoll.memory_group = None
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        until = time.monotonic() + HANG_S
        while time.monotonic() < until:
            place.reap()
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.02)


def _ran_out(virtoll: Virtoll, _session: Session) -> bool:
    """Whether the kernel killed for want of memory."""
    assert virtoll.memory_group is not None
    counts = next(
        path for name in ("memory.oom_control", "memory.events") if (path := virtoll.memory_group / name).exists()
    )
    return any(int(line.split()[1]) for line in counts.read_text().splitlines() if line.startswith("oom_kill "))


def _was_full(virtoll: Virtoll, session: Session) -> bool:
    """Whether the disk was too small."""
    log = virtoll.out / "trials.jsonl"
    told = session.complaint() + (log.read_text() if log.exists() else "")
    return session.code in (3, 4) or "o space left" in told


def _memory_taken(struck: Struck) -> bool:
    """The instance's limit is set below what it uses: the kernel kills in it."""
    hit = False
    for limit in _files(struck, "memory", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError):
            used = int((limit.parent / "memory.usage_in_bytes").read_text())
            limit.write_text(str(max(used // 4, 65536)))
        hit = True
    return hit


def _files(struck: Struck, controller: str, name: str) -> list[Path]:
    groups = place.cgroups(tuple(struck.virtoll.tags))
    return [group / name for group in groups if f"/{controller}/" in str(group) and group.name == "payload"]


def _kind(name: str, sentence: str, weight: float, plan: Plan) -> Kind:
    return Kind(name, sentence, "machine", weight, partial(injected, plan))


def _end(number: signal.Signals, *codes: int, group: bool = False) -> Plan:
    return Plan(partial(_signalled, number, group=group), _WITH_SLOW, codes=codes, happened=_cut_short)


_INTERRUPTED = (130, -signal.SIGINT)
KINDS = [
    _kind("virtoll-killed", "kill -9 of virtoll", 4, _end(signal.SIGKILL, -signal.SIGKILL)),
    _kind("virtoll-terminated", "SIGTERM of virtoll", 3, _end(signal.SIGTERM, 130, -signal.SIGTERM)),
    _kind("terminal-closed", "SIGHUP of virtoll", 1, _end(signal.SIGHUP, 130, -signal.SIGHUP)),
    _kind("ctrl-c", "Ctrl-C to virtoll's process group", 4, _end(signal.SIGINT, *_INTERRUPTED, group=True)),
    _kind("ctrl-c-twice", "a second Ctrl-C while the first is being obeyed", 3,
          Plan(_twice, _ANY, codes=_INTERRUPTED, happened=_cut_short)),
    _kind("clean-killed", "kill -9 of virtoll, then of `virtoll clean`", 1.5,
          Plan(partial(_killed_again, clean=True), _ANY, codes=(-signal.SIGKILL,), happened=_cut_short)),
    _kind("resume-killed", "kill -9 of virtoll, then of the run that goes on", 1.5,
          Plan(partial(_killed_again, clean=False), _ANY, codes=(-signal.SIGKILL,), happened=_cut_short)),
    _kind("dockerd-killed", "kill -9 of dockerd", 2,
          Plan(lambda struck: _killed(struck, "dockerd"), ("docker", "docker-service"))),
    _kind("containerd-killed", "kill -9 of containerd, or of a container's shim", 1,
          Plan(lambda struck: _killed(struck, "containerd", "containerd-shim"), ("docker", "docker-service"))),
    _kind("instance-killed", "kill -9 of a process of an instance", 3,
          Plan(lambda struck: _killed(struck, within="/payload"), _ANY, among=_LIVING)),
    _kind("instance-all-killed", "kill -9 of all processes of an instance", 2,
          Plan(lambda struck: _killed(struck, within="/payload", all_=True), _ANY, among=_LIVING)),
    _kind("generator-killed", "kill -9 of the load generator", 2,
          Plan(lambda struck: _killed(struck, "virtoll-load"), ("service", "docker-service"),
               among=("phase window", "phase verify"))),
    _kind("generator-stopped", "the load generator stopped for a while", 1,
          Plan(lambda struck: _stopped(struck, "virtoll-load", for_s=struck.random.random()),
               ("service", "docker-service"), among=("phase window",))),
    _kind("instance-stopped", "every process of an instance stopped for a while: its agent is silent", 1,
          Plan(lambda struck: _stopped(struck, within="/payload", for_s=2 * struck.random.random()), _ANY,
               among=_LIVING)),
    _kind("run-disk-full", "a full disk under the run directory", 3,
          Plan(lambda _struck: True, ("service", "probe", "hogs"), codes=(4,), among=("begun",),
               around=partial(_small_disk, state=False), happened=_was_full, lasting=True)),
    _kind("state-disk-full", "a full disk under the state directory", 2,
          Plan(lambda _struck: True, ("service", "probe", "hogs"), codes=(3, 4), among=("begun",),
               around=partial(_small_disk, state=True), happened=_was_full, lasting=True)),
    _kind("virtoll-out-of-memory", "a memory limit on virtoll itself, below what it needs", 2,
          Plan(lambda _struck: True, ("service", "probe", "hogs"), codes=(-signal.SIGKILL, 3, 4), among=("begun",),
               around=_little_memory, happened=_ran_out, lasting=True)),
    _kind("instance-out-of-memory", "an instance's memory taken away below what it uses", 1.5,
          Plan(_memory_taken, ("service", "docker-service", "lxc", "probe"), among=_LIVING)),
]  # fmt: skip
