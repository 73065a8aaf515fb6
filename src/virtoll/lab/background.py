"""Work that has nothing to do with the service but wants the same CPUs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from virtoll.errors import TrialError
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import Cgroup, hierarchies, owned
from virtoll.hosts.local import end_session
from virtoll.lab.base import Lab

_START_S = 60.0
_WEIGHT_V1, _WEIGHT_V2 = 1024, 100  # cpu.shares and cpu.weight of an ordinary group
_MOST = 100  # 100 x 100 is the largest cpu.weight

# By the shell alone: another program that it ran would be counted as a hog while it lives. None computes until standard
# input ends: beside hogs that do, a shell with one process's share of a CPU takes long to start the others.
SCRIPT = """
exec 3<&0
n=$1
while [ $n -gt 0 ]; do { read -r nothing <&3; while :; do :; done; } & n=$((n - 1)); done
wait
"""


@contextmanager
def hogs(lab: Lab, count: int, cpus: frozenset[int], instance: str = "") -> Iterator[Cgroup | None]:
    """``count`` processes that compute for ever on the instance's ``cpus``, as `stress --cpu` does beside the service.

    They run outside the instance, at the default priority. Their cgroup weighs as much as ``count`` ordinary ones,
    so that each hog competes with the whole instance as one process does with another, on every platform alike:
    a guest is one cgroup to the scheduler, however many processes or threads it is made of. Where the ``instance``
    (its cgroup) weighs as much as one can (`Cgroup.go_first`), each hog has a cgroup of its own that does.

    Yields their cgroup, the first of several (None for no hogs). TrialError when they do not start, or not all live to
    the end.
    """
    if not 0 <= count <= _MOST:
        raise ValueError(f"{count} hogs: from 0 to {_MOST}")
    if count == 0:
        yield None
        return
    first = bool(instance) and Cgroup(instance, hierarchies()).goes_first
    names = [(f"background{number}", 1) for number in range(count)] if first else [("background", count)]
    with ExitStack() as stack:
        with ExitStack() as begin:
            crowds = [(stack.enter_context(_crowd(lab, name, size, cpus, begin)), size) for name, size in names]
            for group, size in crowds:
                if first:
                    group.go_first()
                else:
                    _weigh(group, size)
                _await_hogs(group, size)
        yield crowds[0][0]
        for group, size in crowds:
            _expect_hogs(group, size)


@contextmanager
def _crowd(lab: Lab, name: str, count: int, cpus: frozenset[int], begin: ExitStack) -> Iterator[Cgroup]:
    """The cgroup of so many hogs, which compute when ``begin`` is closed."""
    with owned(lab.ledger, f"{lab.cgroup}/{name}", cpus=cpus) as group:
        command = ["sh", "-c", SCRIPT, "sh", str(count)]
        process = lab.host.spawn(command, stdin=subprocess.PIPE, confinement=Confinement(group.procs))
        try:
            assert process.stdin is not None
            begin.enter_context(process.stdin)
            yield group
        finally:
            end_session(process)


def _weigh(group: Cgroup, count: int) -> None:
    if group.hierarchies.version == 2:
        file, weight = "cpu.weight", _WEIGHT_V2
    else:
        file, weight = "cpu.shares", _WEIGHT_V1
    (group.directory("cpu") / file).write_text(str(weight * count), encoding="utf-8")


def _await_hogs(group: Cgroup, count: int) -> None:
    """Return when all run: the hogs and the shell that waits for them."""
    deadline = time.monotonic() + _START_S
    while len(group.pids()) < count + 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    _expect_hogs(group, count)


def _expect_hogs(group: Cgroup, count: int) -> None:
    running = max(0, len(group.pids()) - 1)
    if running != count:
        raise TrialError(
            f"{running} of {count} CPU hogs run",
            where=f"cgroup {group.name}",
            remedy="something on this machine ends processes (earlyoom, a watchdog); `dmesg` may name it",
        )
