"""How a crowd of viewers comes to be there for a window of a search: no faster than it is served.

Who joins reads as fast as it can until its buffers are full. A crowd that comes at a pace of its own asks a server for
many times what it will watch, and a window that begins a fixed time later tells of the burst: at which share of what it
can deliver a server fills all buffers in so long. That share is the smaller the fewer viewers a platform carries.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

EXPLORING = 1.25  # how many times as many a search asks for next: those who are too many starve the others
LOOK_NS = 100_000_000  # how long it is looked at whether those who came play
# As many come as are so much of those who are there, or so many; then the others wait for them.
_AT_ONCE, _FEW = 0.1, 10
# For as long as it takes to play so many buffers: of a server that could deliver to N, a tenth of n has full buffers
# after 0.1 n / (N - n) of them, after 2 where n is 95 % of N.
BUFFERS = 2
_WAITING = 0.02  # of the time of all: so much more than before may be spent on the first picture, or in stalls
_RISING = 0.05  # of the time they play: so much may buffers still gain


def gather(
    look: Callable[[int, int], Mapping[str, Any]],
    there: int,
    wanted: int,
    settle_ns: int,
    buffer_ns: int,
    *,
    now_ns: Callable[[], int] = time.monotonic_ns,
) -> bool:
    """Have a crowd of ``there`` become one of ``wanted``, who have watched for ``settle_ns`` at least, and settled: all
    of them play, and their buffers are as full as they become. Returns whether they have; if not, that many are there
    who have not for as long as twice `BUFFERS` buffers last, or fewer of whom those who came last did not begin to
    play.

    ``look``: to have so many be there, and look for so long [ns]: a window of theirs, as the generator tells it
    (rust/load/src/view/mod.rs). Whether buffers rise is told by what was ahead at the most in two looks alike, one
    after the other: so ``settle_ns`` is to be as long as what fills them by turns, a segment or a refill.
    """
    if there == wanted:
        return True
    waited = waiting(look(there, LOOK_NS)) if 0 < there < wanted else 0.0  # who stalls at all times is not waited for
    while there < wanted:
        there = min(wanted, there + max(_FEW, math.ceil(_AT_ONCE * there)))
        until_ns, bound = now_ns() + BUFFERS * buffer_ns, waited + _WAITING
        while (waited := waiting(look(there, LOOK_NS))) > bound:
            if now_ns() >= until_ns:
                return False
    length_ns = max(LOOK_NS, settle_ns)
    until_ns = now_ns() + max(2 * BUFFERS * buffer_ns, 3 * length_ns)  # those who came before have not full ones yet
    look(wanted, length_ns)  # what was ahead at the most until then was of joins
    while not has_settled(look(wanted, length_ns), waited):
        if now_ns() >= until_ns:
            return False
    return True


def waiting(window: Mapping[str, Any]) -> float:
    """The share of the time of all that is spent on the first picture, in stalls, or away."""
    waiting_ns = window["starting_ns"] + window["stalled_ns"] + window["gone_ns"]
    return float(waiting_ns / max(1, window["playing_ns"] + waiting_ns))


def has_settled(window: Mapping[str, Any], waited: float = 0.0) -> bool:
    """Whether all who are there play, but for what they ``waited`` before, and their buffers rise no more."""
    return waiting(window) <= waited + _WAITING and -window["fallen_ns"] <= _RISING * window["playing_ns"]


def steps(there: int, wanted: int) -> int:
    """In how many steps a crowd becomes so large: for estimates."""
    count = 0
    while there < wanted:
        there, count = there + max(_FEW, math.ceil(_AT_ONCE * there)), count + 1
    return count
