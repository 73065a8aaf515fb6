"""Gunther's universal scalability law, fitted to what a service delivered at several numbers of users.

    X(N) = g N / (1 + a (N - 1) + b N (N - 1))        a, b >= 0

(N. J. Gunther, Guerrilla Capacity Planning, 2007): g what one user gets delivered, a what is waited for (contention),
b what all keep coherent with all (crosstalk). The highest level is not fitted: the law has to foretell it. Where it
does not, or is off at a level that it was fitted to, it is refused. What is uncertain of it is told by leaving out each
block in turn (the jackknife).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np

from virtoll.analysis.estimates import LEVEL, Floats, Summary, summarise, t_quantile

LEAST_LEVELS = 5  # three parameters, a level to tell them from, and the one that is foretold
WIDEST = 1.5  # an interval whose ends are farther apart fits any law
TOLERANCE = 0.05  # relative: how far the law may be off a level that it was fitted to, where its interval allows less


@dataclass(frozen=True)
class Law:
    """A law that holds. ``foretold``, ``measured``: (value, low, high) at the highest level, which was not fitted."""

    gain: float
    contention: float
    crosstalk: float
    levels: tuple[float, ...]  # that it was fitted to
    off: float  # relative: the most that it is off at one of these
    at: float
    foretold: tuple[float, float, float]
    measured: tuple[float, float, float]

    @property
    def peak(self) -> float:
        """The number of users beyond which more would get less delivered. inf where it lies beyond the highest level:
        a fit leaves of crosstalk what chance does, and is never at 0. At the lowest where it lies below.
        """
        useful = 1 - self.contention
        if useful > self.crosstalk * self.at**2:
            return math.inf
        return max(self.levels[0], math.sqrt(useful / self.crosstalk) if self.crosstalk else 0.0)


def delivered(n: Floats | float, gain: float, contention: float, crosstalk: float) -> Floats:
    """X(N)."""
    n = np.asarray(n, dtype=float)
    return gain * n / (1 + contention * (n - 1) + crosstalk * n * (n - 1))


def fit(levels: Floats, values: Floats) -> Law | str:
    """The law of ``values`` [block, level], or why there is none."""
    order = np.argsort(levels)
    levels, values = np.asarray(levels, dtype=float)[order], values[:, order]
    whole = values[np.isfinite(values).all(axis=1) & (values > 0).all(axis=1)]
    if len(levels) < LEAST_LEVELS:
        return f"{len(levels)} levels: it takes {LEAST_LEVELS}, the highest of which is not fitted but foretold"
    if len(whole) < 2:
        return "fewer than two blocks hold all levels: what is uncertain of it would not be known"
    logs = np.log(whole)
    lower, top = levels[:-1], levels[-1]
    found = _fitted(lower, logs[:, :-1].mean(axis=0))
    if found is None:
        return "the fit does not converge"
    off = np.exp(np.abs(np.log(delivered(lower, *found)) - logs[:, :-1].mean(axis=0))) - 1
    allowed = [max(TOLERANCE, math.expm1(summarise(column).half_width())) for column in logs[:, :-1].T]
    worst = int(np.argmax(off - np.array(allowed)))
    if off[worst] > allowed[worst]:
        far, most = off[worst] * 100, allowed[worst] * 100
        return f"it does not fit: {far:.0f} % off at {lower[worst]:g}, where up to {most:.0f} % could be by chance"
    foretold, measured = _foretold(lower, top, logs, found), summarise(logs[:, -1])
    why = _why_untrue(top, foretold, measured, [summarise(column) for column in logs[:, :-1].T])
    if why or foretold is None:
        return why
    return Law(*found, tuple(lower.tolist()), float(off.max()), float(top), _bounds(foretold), _bounds(measured))


def _why_untrue(top: float, foretold: Summary | None, measured: Summary, fitted: list[Summary]) -> str:
    """Why a law that fits does not hold at the level that it foretells, or cannot be told to; "" where it does."""
    if foretold is None:
        return "without one of the blocks the fit does not converge, and what is uncertain of it is not known"
    apart, allowed = abs(foretold.mean - measured.mean), foretold.half_width() + measured.half_width()
    if apart > max(math.log1p(TOLERANCE), allowed):
        return (
            f"it does not hold: at {top:g}, which was not fitted, it foretells {math.exp(foretold.mean):.4g}, and "
            f"{math.exp(measured.mean):.4g} was measured"
        )
    widest = math.exp(2 * max(each.half_width() for each in (foretold, measured, *fitted)))
    if widest <= WIDEST:
        return ""
    return (
        f"whether it holds cannot be told: of {measured.n} blocks that hold all levels one is known within a factor of "
        f"{widest:.2g} only, and {WIDEST:g} is the most that says anything"
    )


def _fitted(levels: Floats, logs: Floats) -> tuple[float, float, float] | None:
    """Least squares of logarithms: each level weighs alike."""
    from scipy.optimize import curve_fit  # slow to import

    def model(n: Floats, gain: float, contention: float, crosstalk: float) -> Floats:
        return np.log(delivered(n, math.exp(gain), contention, crosstalk))

    start = (float(logs[0] - math.log(levels[0])), 0.01, 1e-6)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a covariance that is not asked for
            found, _ = curve_fit(
                model, levels, logs, p0=start, bounds=([-np.inf, 0, 0], [np.inf, 1, np.inf]), x_scale=(1, 0.01, 1e-4)
            )
    except (RuntimeError, ValueError):
        return None
    return math.exp(found[0]), float(found[1]), float(found[2])


def _foretold(lower: Floats, top: float, logs: Floats, found: tuple[float, float, float]) -> Summary | None:
    """Log of what the law says at the highest level; its error is the jackknife's over blocks. None where there is none
    without one of them: the error of those that are left would be too small.
    """
    n, whole = len(logs), math.log(float(delivered(top, *found)))
    without = [_fitted(lower, np.delete(logs, block, axis=0)[:, :-1].mean(axis=0)) for block in range(n)]
    known = [math.log(float(delivered(top, *each))) for each in without if each is not None]
    if len(known) < n:
        return None
    moved = np.array(known) - whole
    return Summary(whole, math.sqrt((n - 1) / n * float(moved @ moved)), n)


def _bounds(summary: Summary) -> tuple[float, float, float]:
    half = t_quantile((1 + LEVEL) / 2, summary.freedom) * summary.error
    return math.exp(summary.mean), math.exp(summary.mean - half), math.exp(summary.mean + half)
