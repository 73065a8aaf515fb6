"""What the kernel books of the instance while the generator, which cannot look, measures from another machine.

A window's ends are known when it is over. So a thread looks all the while, and the looks next to the ends count.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from virtoll.record.model import Booked, Window

_EVERY_S = 0.005
_LEAVE_S = 10.0


@dataclass
class Looks:
    """The thread, for the length of a block. ``books``: see `Client.books`; ``cpus``: where it computes, which is
    beside the instance.
    """

    books: Mapping[str, Path]
    cpus: frozenset[int]
    _times_ns: list[int] = field(default_factory=list)
    _cpu_ns: list[dict[str, int]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self.books:
            self._thread = threading.Thread(target=self._look_on, name="looks", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(_LEAVE_S)

    def booked(self, window: Window) -> Booked | None:
        """What was booked between the looks next to a window's ends; None where there is nothing to look at."""
        if not self.books:
            return None
        if len(self._times_ns) < 2:
            return Booked(from_ns=window.start_ns, to_ns=window.end_ns, cpu_ns={})
        first, last = self._nearest(window.start_ns), self._nearest(window.end_ns)
        before, after = self._cpu_ns[first], self._cpu_ns[last]
        return Booked(
            from_ns=self._times_ns[first],
            to_ns=self._times_ns[last],
            cpu_ns={name: after[name] - before[name] for name in before.keys() & after.keys()},
        )

    def _nearest(self, time_ns: int) -> int:
        at = bisect_left(self._times_ns, time_ns)
        around = [i for i in (at - 1, at) if 0 <= i < len(self._times_ns)]
        return min(around, key=lambda i: abs(self._times_ns[i] - time_ns))

    def _look_on(self) -> None:
        with suppress(OSError):
            os.sched_setaffinity(0, self.cpus)  # of this thread alone
        while True:
            self._look()
            if self._over.wait(_EVERY_S):
                self._look()
                return

    def _look(self) -> None:
        before_ns = time.monotonic_ns()
        found = {name: used for name, path in self.books.items() if (used := used_ns(path)) is not None}
        # In this order: who looks at an end that has no look of its own finds fewer of the second.
        self._cpu_ns.append(found)
        self._times_ns.append((before_ns + time.monotonic_ns()) // 2)


def used_ns(book: Path) -> int | None:
    """CPU time that a counter (`Cgroup.cpu_file`) tells; None where it cannot be read."""
    try:
        words = book.read_text(encoding="utf-8").split()
        return int(words[words.index("usage_usec") + 1]) * 1000 if "usage_usec" in words else int(words[0])
    except (OSError, ValueError, IndexError):
        return None
