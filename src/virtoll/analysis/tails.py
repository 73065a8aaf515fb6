"""The 99th percentile of a window: what the tail is like in an ordinary window of a trial in rotation.

Beside the percentile of all of a trial's requests, which a machine that stops now and then moves by tens of per cent
(a few bad windows of many hold all of the slowest 1 %), each window's own is compared with native's of the same round,
and the median over rounds is told. It is little moved by bad windows, and so does not see what an arm does in few of
its own: the two are told as what they are, two quantities. `python -m bench.tails` has the choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from virtoll.analysis.load import Histogram
from virtoll.record.model import LEAST_BEYOND, beyond

Q = 0.99


def windows_ms(windows: Sequence[Histogram]) -> list[float]:
    """Each window's 99th percentile; inf where it lies among what failed, or nothing was asked for."""
    each = [window.quantile_ns(Q) for window in windows]
    return [math.inf if one is None else one / 1e6 for one in each]


def typical_ms(each: Sequence[float]) -> float | str:
    """The median over windows; or the reason why there is none."""
    value = float(np.median(each))
    return value if math.isfinite(value) else "in half of the windows it lies among what failed, or nothing was asked"


def holds_enough(totals: Sequence[float], q: float = Q) -> bool:
    """Whether windows, or trials, with so many requests (the median) have company enough beyond quantile ``q``."""
    return beyond(int(np.median(totals)), q) >= LEAST_BEYOND
