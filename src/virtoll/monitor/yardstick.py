"""How fast the instance's CPUs are while a window goes on, whoever makes them slow.

On a machine that others share (the host of a virtual machine, above all) a CPU is slower at one time than at another,
and nothing here tells who is at work. A small fixed piece of work is timed on it again and again, by a program that is
the same one for all arms (rust/agent/src/yardstick.rs). What is ours may move it, too: frequencies that follow the
load, threads that share a core, a hypervisor that gives the core to somebody else as soon as it idles. How far it does
is tried before the first trial: where the CPU idles now and then, and where the other ones of the lab do. The tries are
recorded; `virtoll.analysis.speed` says what is made of them, and of the readings.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Self

from virtoll.agent import PipeStream
from virtoll.binaries import binary
from virtoll.errors import VirtollError
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.cgroup import owned
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.local import end_session
from virtoll.lab.base import CpuPlan

_TRIES = 40
_TRY_S = 0.5  # of each: thrice 10 ms and 25 readings every 2 ms, with room
_PATIENCE_S = 30.0
_MOST_LOSSES = 3
# Of each try by how much the logarithm of the time changed: where the CPU idled now and then, as beside a service, and
# where the generator's and the origin's did, against all at work.
Tries = list[tuple[float, float]]


class Yardstick:
    """Of a run, begun where it is first asked for, and anew where it was lost, some times. Where it cannot be had
    nothing is known, and nobody fails.

    ``group``: the control group that is made for it, right below `TOP`, where it goes before instances; ``cpus``: who
    computes where.
    """

    def __init__(self, host: Host, ledger: Ledger, group: str, cpus: CpuPlan) -> None:
        self._host, self._ledger, self._group, self._cpus = host, ledger, group, cpus
        self._held = ExitStack()  # its process and the group of that
        self._stream: PipeStream | None = None
        self._is_asked = False  # and has not answered yet
        self._losses = 0

    @classmethod
    @contextmanager
    def on_host(cls, host: Host, ledger: Ledger, group: str, cpus: CpuPlan) -> Iterator[Self]:
        """One for the length of the block."""
        made = cls(host, ledger, group, cpus)
        try:
            yield made
        finally:
            made.close()

    def tried(self, cpus: Iterable[int]) -> Tries | None:
        """What of ours moves it; some seconds, in which nothing else should be at work. None: not known."""
        others = self._cpus.generator | self._cpus.origin
        lines = self._asked(f"try {_listed(cpus)} {_listed(others)} {_TRIES}", _TRIES, _TRIES * _TRY_S + _PATIENCE_S)
        try:
            tries = [(float(own), float(other)) for own, other in (line.split() for line in lines)]
        except ValueError:
            return None
        return tries if len(tries) == _TRIES else None

    def begin(self, cpus: Iterable[int]) -> None:
        """Read these CPUs from now on."""
        self._asked(f"begin {_listed(cpus)}")

    def end(self, from_ns: int, to_ns: int) -> float | None:
        """The typical time of a reading that lay within (CLOCK_MONOTONIC), in ns, and read no more; None: not known."""
        for line in self._asked(f"end {from_ns} {to_ns}") if self._stream is not None else ():
            with suppress(ValueError):
                count, time_ns = line.split()
                return float(time_ns) if int(count) and 0 < float(time_ns) < math.inf else None
        return None

    def close(self) -> None:
        """End it."""
        self._stream, self._is_asked = None, False
        self._held.close()

    def _asked(self, line: str, answers: int = 1, timeout_s: float = _PATIENCE_S) -> list[str]:
        """The lines that come back; none where it is lost."""
        try:
            if self._is_asked:  # somebody was interrupted while it answered
                self.close()
            if self._losses == _MOST_LOSSES:
                return []
            stream, self._is_asked = self._stream or self._started(), True
            stream.send(f"{line}\n".encode())
            lines = [stream.receive_line(timeout_s).decode("ascii", "replace") for _ in range(answers)]
            self._is_asked = False
        except (VirtollError, OSError):
            self._losses += 1
            with suppress(VirtollError, OSError):  # what is left is in the ledger, whose end tries once more and tells
                self.close()
            return []
        return lines

    def _started(self) -> PipeStream:
        """It may be where the instance computes, and is told what to do beside it."""
        whole = self._cpus.instance | self._cpus.generator | self._cpus.origin
        group = self._held.enter_context(owned(self._ledger, self._group, cpus=whole))
        group.go_first()
        process = self._host.spawn(
            [str(binary("virtoll-agent")), "yardstick"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            confinement=Confinement(group.procs, None, self._cpus.generator),
        )
        self._held.callback(end_session, process)
        self._stream = PipeStream(process, "the yardstick of the CPUs")
        self._held.callback(self._stream.close)
        return self._stream


def _listed(cpus: Iterable[int]) -> str:
    return ",".join(map(str, sorted(cpus)))
