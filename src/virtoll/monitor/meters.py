"""Samples what an instance uses where no control group tells: its meter is asked, and its helpers' group read too."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.platforms.base import Accounting, Meter

Row = tuple[int, str, str, int]  # t_ns (host's CLOCK_MONOTONIC), source, counter, value

PAYLOAD = "payload"
_MEMORY_FILES = {1: "memory.usage_in_bytes", 2: "memory.current"}


@dataclass
class Metered:
    """Asks the meters of ``accountings`` (by their source's name) in a thread, from `start` until `stop`.

    Each tick makes a row of what the instance costs in all, and for ``instance`` also one of its payload, the guest.
    The oldest rows are dropped beyond ``keep_s`` seconds.
    """

    accountings: Mapping[str, Accounting]
    rate_hz: float
    keep_s: float
    cpus: frozenset[int] | None = None  # that the thread keeps to; None: those of its process
    late_ticks: int = 0
    dropped: int = 0  # ticks that were kept no longer
    _ticks: deque[list[Row]] = field(init=False)
    _over: threading.Event = field(default_factory=threading.Event)
    _looking: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._ticks = deque(maxlen=max(1, round(self.keep_s * self.rate_hz)))

    def start(self) -> None:
        """Begin, where there is a meter at all."""
        if any(each.meter is not None for each in self.accountings.values()):
            self._thread = threading.Thread(target=self._run, name="meters", daemon=True)
            self._thread.start()

    def now(self) -> None:
        """Look at once."""
        if self._thread is not None:
            self._look()

    def stop(self) -> list[Row]:
        """End, and give all that was seen, in the order of time."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        return [row for tick in self._ticks for row in tick]

    def _run(self) -> None:
        if self.cpus is not None:
            with suppress(OSError):  # none of them is left: it asks from wherever it may
                os.sched_setaffinity(0, self.cpus)  # of this thread alone
        interval_s = 1 / self.rate_hz
        due_s = time.monotonic()
        while True:
            self._look()
            due_s += interval_s
            wait_s = due_s - time.monotonic()
            if wait_s < 0:
                missed = int(-wait_s / interval_s) + 1
                self.late_ticks += missed
                due_s += missed * interval_s
                wait_s = due_s - time.monotonic()
            if self._over.wait(wait_s):
                return

    def _look(self) -> None:
        with self._looking:
            rows = [row for name, accounting in self.accountings.items() for row in _rows(name, accounting)]
            self.dropped += len(self._ticks) == self._ticks.maxlen
            self._ticks.append(rows)


def _rows(name: str, accounting: Accounting) -> list[Row]:
    """What a meter tells at one instant, and the sum with the helpers' group; nothing of what cannot be told."""
    meter: Meter | None = accounting.meter
    if meter is None:
        return []
    before_ns = time.monotonic_ns()
    used = meter.used()
    helpers = Cgroup(accounting.cgroup, hierarchies())
    counters = {"cpu.usage_ns": helpers.cpu_ns(), "memory.usage_bytes": _memory_bytes(helpers)}
    t_ns = (before_ns + time.monotonic_ns()) // 2
    if used is None:
        return []
    told = {"cpu.usage_ns": used.cpu_ns, "memory.usage_bytes": used.memory_bytes}
    rows = [(t_ns, name, counter, told[counter] + value) for counter, value in counters.items() if value is not None]
    if name == "instance":
        rows += [(t_ns, PAYLOAD, counter, value) for counter, value in told.items()]
    return rows


def _memory_bytes(group: Cgroup) -> int | None:
    file: Path = group.directory("memory") / _MEMORY_FILES[group.hierarchies.version]
    try:
        return int(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
