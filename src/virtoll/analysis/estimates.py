"""Estimates: a value never travels without its interval, its unit, its n and its method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import numpy as np
import numpy.typing as npt

LEVEL = 0.95
_ROUNDED = 1e-12  # no measurement tells values apart by so little
_FARTHEST = 700.0  # from 0, on the log scale: beyond lies nothing that is measured, and soon no number
Floats = npt.NDArray[np.float64]


@cache
def t_quantile(q: float, freedom: float) -> float:
    """Quantile of Student's t (kept: a report asks for few different ones, thousands of times)."""
    from scipy import special  # slow to import, and most verbs ask for no interval

    return float(special.stdtrit(freedom, q))


def t_below(value: float, freedom: float) -> float:
    """Share of Student's t that lies below ``value``."""
    from scipy import special

    return float(special.stdtr(freedom, value))


@dataclass(frozen=True)
class Estimate:
    """An estimated quantity. ``low`` and ``high`` are None when n is too small for an interval (n = 1)."""

    value: float
    low: float | None
    high: float | None
    level: float
    unit: str
    n: int
    method: str

    @property
    def half_width(self) -> float | None:
        """Half the interval's width; None without an interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def with_method(self, method: str) -> Self:
        """The same estimate, its method described otherwise."""
        return replace(self, method=method)


@dataclass(frozen=True)
class Summary:
    """Mean of n independent values, its standard error (nan for n = 1) and degrees of freedom."""

    mean: float
    error: float
    n: int
    # Of how many values the spread is known, where it is not of all: of a pilot, of the blocks within several hosts, or
    # of conditions that do not hold the same blocks.
    spread_of: float | None = None

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the standard error."""
        return (self.n if self.spread_of is None else self.spread_of) - 1

    @property
    def is_alike(self) -> bool:
        """Whether all values are the same, but for what adding them up rounds: a spread of 0 measures no chance."""
        return self.error <= _ROUNDED * max(1.0, abs(self.mean))

    @property
    def deviation(self) -> float:
        """Standard deviation of one value."""
        return self.error * math.sqrt(self.n)

    def half_width(self, level: float = LEVEL) -> float:
        """Half-width of the t interval; nan for n = 1."""
        if self.n < 2:
            return math.nan
        return t_quantile((1 + level) / 2, self.freedom) * self.error


def summarise(values: Sequence[float] | Floats) -> Summary:
    """Mean and standard error of the finite ones among ``values``. ValueError when there is none."""
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    if finite.size == 0:
        raise ValueError("no finite value to summarise")
    error = float(finite.std(ddof=1) / math.sqrt(finite.size)) if finite.size > 1 else math.nan
    return Summary(float(finite.mean()), error, int(finite.size))


def mean(values: Sequence[float] | Floats, unit: str) -> Estimate:
    """Arithmetic mean with its t interval over deployments (the papers' form)."""
    return mean_of(summarise(values), unit, "mean over deployments, t interval")


def mean_of(summary: Summary, unit: str, method: str) -> Estimate:
    """A mean with its t interval."""
    half = summary.half_width()
    bounded = math.isfinite(half)
    return Estimate(
        summary.mean,
        summary.mean - half if bounded else None,
        summary.mean + half if bounded else None,
        LEVEL,
        unit,
        summary.n,
        method,
    )


def ratio(log_ratios: Summary, method: str, half: float | None = None) -> Estimate:
    """Geometric mean ratio with its t interval, or one of another ``half`` width, all on the log scale."""
    half = log_ratios.half_width() if half is None else half
    bounded = math.isfinite(half)
    low, high = ratio_bounds(log_ratios.mean, half)
    return Estimate(
        math.exp(log_ratios.mean),
        low if bounded else None,
        high if bounded else None,
        LEVEL,
        "ratio",
        log_ratios.n,
        method,
    )


def ratio_bounds(mean: float, half: float) -> tuple[float, float]:
    """The ends of an interval of a log ratio, as ratios. What is known of few values, in a long table or at any time,
    may be known to within more than there are numbers for.
    """
    low, high = (min(max(mean + side, -_FARTHEST), _FARTHEST) for side in (-half, half))
    return math.exp(low), math.exp(high)


def p_difference(summary: Summary) -> float:
    """Two-sided p of the t test against a mean of 0; nan for n = 1, and of values that are all alike but not 0."""
    if summary.n < 2:
        return math.nan
    if summary.is_alike:
        return 1.0 if summary.mean == 0 else math.nan
    return 2 * t_below(-abs(summary.mean) / summary.error, summary.freedom)


def mean_of_known(each: Sequence[Floats]) -> Floats:
    """Of arrays of one shape, entry by entry, the mean of those that are finite; nan where none is."""
    stacked = np.stack(each)
    known = np.isfinite(stacked)
    count = known.sum(axis=0)
    total = np.where(known, stacked, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values (Scand. J. Stat. 6, 1979). A nan is no test: kept, and not counted."""
    tested = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    adjusted = list(p_values)
    highest = 0.0
    for rank, (p, index) in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - rank) * p))
        adjusted[index] = highest
    return adjusted


def over_conditions(logs: Floats) -> Summary | None:
    """Mean over conditions of per-condition means of ``logs`` [block, condition], its error from leaving out blocks.

    The error is the jackknife's (Quenouille, Biometrika 43, 1956; Tukey, Ann. Math. Stat. 29, 1958; Efron, The
    Jackknife, the Bootstrap and Other Resampling Plans, 1982, ch. 3), in its form about the estimate itself, which is
    the larger one: what the mean would be without each block in turn. n is the number of blocks that hold anything.
    With every cell present that is the standard error of the blocks' means over conditions. Where a cell is missing,
    a block moves the mean by as much as it has to say in it; one that alone holds a condition takes it away, and how
    far the conditions lie apart is then in the error as well. The spread is known of fewer blocks then (`_known_of`).
    None when nothing was measured.
    """
    measured = logs[:, np.isfinite(logs).any(axis=0)]
    blocks = measured[np.isfinite(measured).any(axis=1)]
    if blocks.size == 0:
        return None
    mean = float(np.nanmean(blocks, axis=0).mean())
    n = len(blocks)
    if n < 2:
        return Summary(mean, math.nan, n)
    moved = _without_each(blocks) - mean
    return Summary(mean, math.sqrt((n - 1) / n * float(moved @ moved)), n, _known_of(blocks))


def _known_of(blocks: Floats) -> float | None:
    """Of how many blocks the spread of a mean over conditions is known, of [block, condition]; None: of all, as where
    no cell is missing.

    One more than Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946): a condition that two of ten blocks
    hold makes most of the error, and that is then known by two values. The fewer of those of equal variances and of the
    variances seen: a condition that scatters more than others weighs more in the error, and few values tell it to
    scatter less by chance.
    """
    n, held = len(blocks), np.isfinite(blocks).sum(axis=0).astype(float)
    if (held == n).all():
        return None
    several = held > 1  # of the others no variance is seen
    seen = np.zeros_like(held)
    if several.any():
        seen[several] = np.nanvar(blocks[:, several], axis=0, ddof=1)
    freedom = min(_satterthwaite(np.ones_like(held), held), _satterthwaite(seen, held))
    return freedom + 1 if freedom < n - 1 else None


def _satterthwaite(variances: Floats, held: Floats) -> float:
    """Degrees of freedom of the error of a mean over conditions, of such variances and so many blocks each."""
    squares = variances / held
    below = float((squares**2 / np.maximum(1, held - 1)).sum())
    return float(squares.sum()) ** 2 / below if below > 0 else math.inf


def _without_each(blocks: Floats) -> Floats:
    """The mean over conditions of per-condition means of [block, condition] without each block in turn."""
    held = np.isfinite(blocks)
    values = np.where(held, blocks, 0.0)
    left, count = values.sum(axis=0) - values, held.sum(axis=0) - held
    means = np.divide(left, count, out=np.full_like(left, np.nan), where=count > 0)
    return np.asarray(np.nanmean(means, axis=1))
