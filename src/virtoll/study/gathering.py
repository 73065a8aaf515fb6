"""How a crowd of viewers comes to be there for a window of a search: no faster than it is served.

Who joins reads as fast as it can until its buffers are full. A crowd that comes at a pace of its own asks a server for many
times what it will watch, and a window that begins a fixed time later tells of the burst: at which share of what it can
deliver a server fills all buffers in so long. That share is the smaller the fewer viewers a platform carries.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

EXPLORING = 1.25  # how many times as many a search asks for next: those who are too many starve the others
LOOK_NS = 100_000_000  # how long it is looked at whether they have settled
_AT_ONCE, _FEW = 0.1, 10  # as many come as are so much of those who are there, or so many; then the others wait for them
# For as long as it takes to play so many buffers: of a server that could deliver to N, a tenth of n has full buffers after
# 0.1 n / (N - n) of them, after 2 where n is 95 % of N.
BUFFERS = 2
_WAITING = 0.02  # of the time of all: so much may still be spent on the first picture, or in stalls
_RISING = 0.05  # of the time they play: so much may buffers still gain


def gather(
    look: Callable[[int, int], Mapping[str, Any]],
    there: int,
    wanted: int,
    settle_ns: int,
    buffer_ns: int,
    now_ns: Callable[[], int] = time.monotonic_ns,
) -> bool:
    """Have a crowd of ``there`` become one of ``wanted``, who have watched for ``settle_ns`` at least, and settled: all of
    them play, and their buffers are as full as they become. Returns whether they have; if not, that many, or fewer, are
    there who have not for as long as `BUFFERS` buffers last.

    ``look``: to have so many be there, let them watch for so long [ns], and look: a window of theirs, as the generator
    tells it (rust/load/src/view/mod.rs).
    """
    while there != wanted:
        there = min(wanted, there + max(_FEW, math.ceil(_AT_ONCE * there)))
        seen = look(there, settle_ns if there == wanted else 0)
        until_ns = now_ns() + BUFFERS * buffer_ns
        while not has_settled(seen):
            if now_ns() >= until_ns:
                return False
            seen = look(there, 0)
    return True


def has_settled(window: Mapping[str, Any]) -> bool:
    """Whether all who are there play, and their buffers rise no more."""
    playing_ns = window["playing_ns"]
    waiting_ns = window["starting_ns"] + window["stalled_ns"] + window["gone_ns"]
    return waiting_ns <= _WAITING * (playing_ns + waiting_ns) and -window["fallen_ns"] <= _RISING * playing_ns


def steps(there: int, wanted: int) -> int:
    """In how many steps a crowd becomes so large: for estimates."""
    count = 0
    while there < wanted:
        there, count = there + max(_FEW, math.ceil(_AT_ONCE * there)), count + 1
    return count

