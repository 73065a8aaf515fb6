"""Where the whole machine stood still: a virtual machine that its host paused, whose clocks went on meanwhile.

Every time-out that was running has then passed at once, whoever it was for, and a test that failed in it tells of the
pause. (Seen: no process began or ended for 106 s, and dockerd "did not answer within 60 s".)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_TICK_S = 1.0
_LEAST_S = 10.0  # no thread that sleeps for a second waits as long for a CPU


class Stops:
    """``found``: a line for each, in words."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.found: list[str] = []
        self._now_s, self._last_s = now_s, now_s()

    def tick(self) -> None:
        """To be called once a second."""
        before_s, self._last_s = self._last_s, self._now_s()
        still_s = self._last_s - before_s - _TICK_S
        if still_s >= _LEAST_S:
            since = datetime.now(UTC) - timedelta(seconds=still_s)
            self.found.append(
                f"for {still_s:.0f} s from {since:%H:%M:%S} UTC on: what timed out then tells of nothing else"
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
