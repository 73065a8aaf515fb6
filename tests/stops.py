"""Where nothing could begin on the whole machine: what was waited for then was not slow, and could not be.

The kernel has all forks and ends of processes wait while one is moved to another control group, and the move waits for
the forks that are under way (cgroup_threadgroup_rwsem). Where those are a fork bomb's that has used its quota up,
that can take minutes. (Seen: six workers beside two busy loops, nobody forked for 106 s, and dockerd "did not answer
within 60 s".) A virtual machine that its host paused looks the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_TICK_S = 1.0
_LEAST_S = 10.0  # no thread waits as long for a CPU


def _begin() -> None:
    """A thread, which waits as any process does."""
    thread = threading.Thread(target=lambda: None, name="begins", daemon=True)
    thread.start()
    thread.join()


class Stops:
    """``found``: a line for each, in words."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic, begin: Callable[[], None] = _begin) -> None:
        self.found: list[str] = []
        self._now_s, self._begin, self._last_s = now_s, begin, now_s()

    def tick(self) -> None:
        """To be called once a second."""
        self._begin()
        before_s, self._last_s = self._last_s, self._now_s()
        still_s = self._last_s - before_s - _TICK_S
        if still_s >= _LEAST_S:
            since = datetime.now(UTC) - timedelta(seconds=still_s)
            self.found.append(
                f"for {still_s:.0f} s from {since:%H:%M:%S} UTC on; what timed out then says no more than this"
            )

    def watch(self) -> Callable[[], None]:
        """In a thread, until what is given back is called."""
        ended = threading.Event()

        def ticking() -> None:
            while not ended.wait(_TICK_S):
                self.tick()

        thread = threading.Thread(target=ticking, name="stops", daemon=True)
        thread.start()

        def end() -> None:
            ended.set()
            thread.join()

        return end
