"""What a trial's own requests say of a victim: before, during and after its neighbour misbehaved.

Times are nanoseconds since the window's start; a request belongs to the stretch in which it was to start, whenever it
was answered. docs/ISOLATION.md defines every figure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from virtoll.analysis.estimates import Floats
from virtoll.record.model import LATE_NS, LEAST_BEYOND, beyond, most_late
from virtoll.units import plural

BIN_NS = 100_000_000
# It has settled when so many bins in a row lie in the band.
STEADY_BINS = 5
# Half the width of a band in standard deviations of its own bins (W. A. Shewhart's control limits, 1931).
SIGMAS = 3.0
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_ANSWERED = (200, 0)  # as HTTP says it; a protocol without a status


@dataclass(frozen=True)
class Requests:
    """All that an open loop asked for, one by one: when it was to start, how long it took, whether it was answered
    correctly, and whether the generator itself sent it late; and the word for one of them."""

    intended_ns: npt.NDArray[np.int64]
    latency_ns: npt.NDArray[np.int64]
    answered: npt.NDArray[np.bool_]
    late: npt.NDArray[np.bool_]
    word: str = "request"

    @classmethod
    def of(
        cls,
        intended_ns: npt.NDArray[np.int64],
        latency_ns: npt.NDArray[np.int64],
        status: npt.NDArray[np.int16],
        late_ns: npt.NDArray[np.int64],
        word: str = "request",
    ) -> Requests:
        """From the columns of requests.parquet."""
        return cls(intended_ns, latency_ns, np.isin(status, _ANSWERED), late_ns >= LATE_NS, word)

    def between(self, start_ns: int, end_ns: int) -> Requests:
        """Those that were to start in [start, end)."""
        inside = (self.intended_ns >= start_ns) & (self.intended_ns < end_ns)
        latency_ns, answered, late = self.latency_ns[inside], self.answered[inside], self.late[inside]
        return Requests(self.intended_ns[inside], latency_ns, answered, late, self.word)


@dataclass(frozen=True)
class Stretch:
    """A part of the window: how many requests were to start in it, how many were answered, and how fast those were."""

    duration_s: float
    intended: int
    late: int  # how many of them the generator itself sent late
    latencies_ms: Floats  # of the answered ones, ascending: one that was not answered has none
    work: str = "requests"

    @classmethod
    def of(cls, requests: Requests, start_ns: int, end_ns: int) -> Stretch:
        """The stretch [start, end)."""
        mine = requests.between(start_ns, end_ns)
        latencies_ms = np.sort(mine.latency_ns[mine.answered] / 1e6)
        return cls(
            (end_ns - start_ns) / 1e9, len(mine.intended_ns), int(mine.late.sum()), latencies_ms, plural(mine.word)
        )

    @property
    def answered(self) -> int:
        """How many were answered correctly, in whatever time."""
        return len(self.latencies_ms)

    @property
    def goodput_per_s(self) -> float:
        """Requests answered correctly per second of it."""
        return self.answered / self.duration_s

    @property
    def share(self) -> float:
        """The share of its requests that was answered correctly; nan where there was none."""
        return self.answered / self.intended if self.intended else float("nan")

    def quantile_ms(self, q: float) -> float | str:
        """A quantile over all of its requests, those without an answer slower than any; or why there is none."""
        if self._has_too_few(q):
            return f"too few {self.work}: fewer than {LEAST_BEYOND} lie beyond this percentile"
        if self.late > most_late(self.intended, q):
            return (
                f"it may be the generator's own: {self.late} of these {self.intended} {self.work} were sent late by "
                "it, more than half as many as lie beyond this percentile"
            )
        rank = math.ceil(round(self.intended * q, 6))
        if rank > self.answered:
            return f"it lies among the {self.intended - self.answered} of {self.intended} {self.work} without an answer"
        return float(self.latencies_ms[rank - 1])

    def is_unanswered(self, q: float) -> bool:
        """Whether a quantile lies among the requests without an answer: it is missing, and worse than any value."""
        return not self._has_too_few(q) and math.ceil(round(self.intended * q, 6)) > self.answered

    def _has_too_few(self, q: float) -> bool:
        return beyond(self.intended, q) < LEAST_BEYOND


@dataclass(frozen=True)
class Bins:
    """Requests by tenths of a second. A bin in which none was to start has no share; one without an answer no p99."""

    at_s: Floats  # the bins' beginnings, since ``origin``
    intended: Floats
    share: Floats  # answered of those that were to start
    p99_ms: Floats  # of few requests it is the longest

    @classmethod
    def of(cls, requests: Requests, start_ns: int, end_ns: int, origin_ns: int) -> Bins:
        """The whole bins from ``start`` on that end by ``end``."""
        count = max(0, (end_ns - start_ns) // BIN_NS)
        mine = requests.between(start_ns, start_ns + count * BIN_NS)
        which = (mine.intended_ns - start_ns) // BIN_NS
        intended = np.bincount(which, minlength=count).astype(float)
        answered = np.bincount(which[mine.answered], minlength=count).astype(float)
        share = np.divide(answered, intended, out=np.full(count, np.nan), where=intended > 0)
        p99_ms = np.full(count, np.nan)
        by_bin_ms = mine.latency_ns[np.lexsort((mine.latency_ns, which, ~mine.answered))] / 1e6  # the answered first
        some = answered > 0
        ranks = np.cumsum(answered) - answered + np.ceil(0.99 * answered)
        p99_ms[some] = by_bin_ms[ranks[some].astype(int) - 1]
        at_s = (start_ns - origin_ns + np.arange(count) * BIN_NS) / 1e9
        return cls(at_s, intended, share, p99_ms)

    def __len__(self) -> int:
        return len(self.at_s)

    def last(self, count: int) -> Bins:
        """Its last bins."""
        cut = slice(len(self) - count, None)
        return Bins(self.at_s[cut], self.intended[cut], self.share[cut], self.p99_ms[cut])


@dataclass(frozen=True)
class Band:
    """What bins vary by themselves: three of their standard deviations to the worse side of their mean."""

    least_share: float
    most_ms: float

    @classmethod
    def of(cls, bins: Bins) -> Band | None:
        """None where fewer than five bins hold an answer: they say nothing of how they vary."""
        shares, p99_ms = bins.share[np.isfinite(bins.share)], bins.p99_ms[np.isfinite(bins.p99_ms)]
        if len(p99_ms) < STEADY_BINS:
            return None
        return cls(
            float(shares.mean() - SIGMAS * shares.std(ddof=1)), float(p99_ms.mean() + SIGMAS * p99_ms.std(ddof=1))
        )

    def holds(self, bins: Bins) -> npt.NDArray[np.bool_]:
        """Which bins lie in it. A bin in which no request was to start says nothing against it."""
        rounding = 1e-9
        fine = (bins.share >= self.least_share - rounding) & (bins.p99_ms <= self.most_ms * (1 + rounding))
        return np.asarray(fine | (bins.intended == 0))


@dataclass(frozen=True)
class Settling:
    """How long until the bins lay in a band for half a second; ``is_censored``: they did not, so it took longer."""

    seconds: float
    is_censored: bool

    @classmethod
    def of(cls, bins: Bins, band: Band) -> Settling | None:
        """From the first bin on; None where they are too few to tell."""
        inside = band.holds(bins)
        starts = len(bins) - STEADY_BINS + 1
        if starts < 1:
            return None
        for first in range(starts):
            if inside[first : first + STEADY_BINS].all():
                return cls(first * BIN_NS / 1e9, is_censored=False)
        return cls((starts - 1) * BIN_NS / 1e9, is_censored=True)


@dataclass(frozen=True)
class Course:
    """A victim's window, cut where its neighbour began and ended. ``end_ns`` is that of the schedule."""

    requests: Requests
    start_ns: int  # the aggressor's
    stop_ns: int
    end_ns: int

    def stretch(self, name: str) -> Stretch:
        """``before``, ``during`` or ``after``."""
        ends = {
            "before": (0, self.start_ns),
            "during": (self.start_ns, self.stop_ns),
            "after": (self.stop_ns, self.end_ns),
        }
        return Stretch.of(self.requests, *ends[name])

    @property
    def timeline(self) -> Bins:
        """All of the window, by time since the aggressor began."""
        first_ns = self.start_ns % BIN_NS
        return Bins.of(self.requests, first_ns, self.end_ns, self.start_ns)

    @property
    def before(self) -> Bins:
        """The bins that end where the aggressor begins."""
        return Bins.of(self.requests, self.start_ns % BIN_NS, self.start_ns, self.start_ns)

    @property
    def during(self) -> Bins:
        """The bins that begin with the aggressor."""
        return Bins.of(self.requests, self.start_ns, self.stop_ns, self.start_ns)

    @property
    def after(self) -> Bins:
        """The bins that begin where the aggressor ends."""
        return Bins.of(self.requests, self.stop_ns, self.end_ns, self.stop_ns)

    def recovery(self) -> Settling | None:
        """From the aggressor's end until goodput and p99 lie in the band of what they were before."""
        band = Band.of(self.before)
        return None if band is None else Settling.of(self.after, band)

    def settling(self) -> Settling | None:
        """From the aggressor's start until goodput and p99 lie in the band of the second half of its time."""
        during = self.during
        band = Band.of(during.last(len(during) // 2))
        return None if band is None else Settling.of(during, band)

    def overshoot(self) -> float | None:
        """The longest p99 of a bin after the start over the level it settles to: the median of the second half."""
        during = self.during
        return _peak(during, during.last(len(during) // 2))

    def rebound(self) -> float | None:
        """The longest p99 of a bin after the aggressor's end over the median of the bins before it began."""
        return _peak(self.after, self.before)


def _peak(bins: Bins, level: Bins) -> float | None:
    peaks, settled = bins.p99_ms[np.isfinite(bins.p99_ms)], level.p99_ms[np.isfinite(level.p99_ms)]
    if len(settled) < STEADY_BINS or not len(peaks):
        return None
    return float(peaks.max() / np.median(settled))
