"""Windows on a busy machine, where who serves or who watches may stand still for all of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from virtoll.loads.base import Measurement, Session
from virtoll.record.model import Window

SECOND = 10**9
_MOST = 100


def until(session: Session, holds: Callable[[Sequence[Window]], bool]) -> list[Measurement]:
    """One window of a session after another, until it holds of all of them; at most a hundred."""
    measured: list[Measurement] = []
    while len(measured) < _MOST:
        measured.append(session.measure())
        if holds([one.window for one in measured]):
            break
    return measured


def longer(measure: Callable[[int], Measurement], holds: Callable[[Window], bool], seconds: float) -> Measurement:
    """The first of which it holds, of windows of so many seconds, of four times as many, and of 16 times as many, each
    of other users. Of none: the last.
    """
    for factor in (1, 4, 16):
        measurement = measure(round(factor * seconds * SECOND))
        if holds(measurement.window):
            break
    return measurement


def total(windows: Sequence[Window], count: str) -> int:
    """Of all of them."""
    return sum(window.counts[count] for window in windows)


def lasted_s(windows: Sequence[Window]) -> float:
    """From when the first began to when the last ended, with what lay between them."""
    return (windows[-1].end_ns - windows[0].start_ns) / 1e9


def failures(windows: Sequence[Window]) -> Iterator[dict[str, int]]:
    """Of all that was asked for in each."""
    for window in windows:
        for events in window.events.values():
            yield events.failures
