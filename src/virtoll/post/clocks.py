"""The clock of the generator's machine against ours, and a window moved from that one to this.

Both are CLOCK_MONOTONIC. An exchange brackets the other's reading between two of ours, whatever the way there takes and
the way back (RFC 5905 section 8, without a server's own two): half of its round trip bounds the error, and the shortest
of several is the best.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from virtoll.errors import TrialError
from virtoll.record.model import Window

_EXCHANGES = 7
# What two clocks move apart by themselves at the most, as a share: the kernel disciplines each by as much as 500 ppm
# (MAXFREQ of linux/timex.h). More is a machine that stood still for a moment, or a clock that is being set right.
_MOST_DRIFT = 2 * 500e-6
_ROUNDED_NS = 4  # two readings, an offset and a window's begin, each in whole ns


@dataclass(frozen=True)
class Reading:
    """At ``at_ns`` of ours the other clock was ``ahead_ns`` ahead, to within ``within_ns`` on either side."""

    at_ns: int
    ahead_ns: int
    within_ns: int


def read(ask: Callable[[], int], clock: Callable[[], int] = time.monotonic_ns) -> Reading:
    """Compare the clocks. ``ask``: what the other one says."""
    found: list[Reading] = []
    for _ in range(_EXCHANGES):
        asked_ns = clock()
        there_ns = ask()
        took_ns = clock() - asked_ns
        middle_ns = asked_ns + took_ns // 2
        found.append(Reading(middle_ns, there_ns - middle_ns, took_ns // 2 + 1))
    return min(found, key=lambda reading: reading.within_ns)


@dataclass(frozen=True)
class Moved:
    """A window by our clock, moved by one offset, and how far from it the true one may lie."""

    window: Window
    ahead_ns: int
    within_ns: int


def moved(window: Window, before: Reading, after: Reading) -> Moved:
    """A window of the other machine's, between two readings of its clock.

    What the clocks moved apart between the readings is taken as even, and the offset is that at the window's middle; at
    its ends it is off by half of what they moved in it; or by all that they moved, where that is more than two clocks
    do: nobody knows when. TrialError where the window did not begin between the readings:
    it is none that was asked for. (It may end after the second: an open loop has told when its last request is
    answered, and its schedule may have gone on without one.)
    """
    apart_ns, long_ns = after.ahead_ns - before.ahead_ns, max(1, after.at_ns - before.at_ns)
    middle_ns = window.start_ns + window.duration_ns // 2 - before.ahead_ns
    share = min(1.0, max(0.0, (middle_ns - before.at_ns) / long_ns))
    ahead_ns = before.ahead_ns + round(share * apart_ns)
    drift_ns = abs(apart_ns) * min(1.0, window.duration_ns / long_ns) / 2
    within_ns = max(before.within_ns, after.within_ns)
    is_even = abs(apart_ns) <= _MOST_DRIFT * long_ns + before.within_ns + after.within_ns
    within_ns += round(drift_ns) if is_even else abs(apart_ns)
    ours = _shifted(window, -ahead_ns)
    may_be_ns = within_ns + _ROUNDED_NS
    if ours.asked_from_ns < before.at_ns - may_be_ns or ours.start_ns > after.at_ns + may_be_ns:
        raise TrialError(
            "the window that the generator's machine tells of did not begin in the time in which it was asked for",
            remedy="see whether its clock was set anew, or the machine suspended",
        )
    return Moved(ours, ahead_ns, within_ns)


def _shifted(window: Window, by_ns: int) -> Window:
    """All times of it; lengths stay."""

    def shifted(time_ns: int | None) -> int | None:
        return None if time_ns is None else time_ns + by_ns

    update: dict[str, Any] = {
        name: shifted(getattr(window, name)) for name in ("start_ns", "asked_ns", "until_ns", "begun_ns")
    }
    update["events"] = {
        key: each
        if each.drain is None
        else each.model_copy(update={"drain": each.drain.model_copy(update={"end_ns": each.drain.end_ns + by_ns})})
        for key, each in window.events.items()
    }
    update["parts"] = [part.model_copy(update={"window": _shifted(part.window, by_ns)}) for part in window.parts]
    return window.model_copy(update=update)
