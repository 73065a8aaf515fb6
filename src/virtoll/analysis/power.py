"""What an experiment can find before it is made: the power of the paired t test, exactly (noncentral t)."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from virtoll.analysis.estimates import LEVEL, Estimate, t_quantile

_NODES = 400


def power(effect: float, n: int, alpha: float = 1 - LEVEL) -> float:
    """Chance that a two-sided t test of n blocks says different; ``effect``: true mean over standard deviation.

    The noncentral t by its definition: over the chi of the standard deviation, the normal's share beyond the critical t
    times it. (scipy's own is nan in places: 8 of 2 blocks, 16 of 10.)
    """
    from scipy import special

    shares, weights = np.polynomial.legendre.leggauss(_NODES)
    deviations = np.sqrt(2 * special.gammaincinv((n - 1) / 2, (shares + 1) / 2) / (n - 1))
    critical, shift = t_quantile(1 - alpha / 2, n - 1) * deviations, abs(effect) * math.sqrt(n)
    beyond = special.ndtr(shift - critical) + special.ndtr(-shift - critical)
    return float(weights @ beyond) / 2


@cache
def smallest_effect(n: int, wanted: float, alpha: float = 1 - LEVEL) -> float | None:
    """The smallest effect (true mean over standard deviation) that n blocks find with power ``wanted``, n from 2 on."""
    from scipy import optimize

    if n < 2:
        return None
    highest = 4 / math.sqrt(n)
    while power(highest, n, alpha) < wanted:
        highest *= 2
    return float(optimize.brentq(lambda effect: power(effect, n, alpha) - wanted, 0.0, highest, xtol=1e-6))


def proportion(count: int, of: int) -> Estimate:
    """A rate with its exact interval (Clopper & Pearson, Biometrika 26, 1934). ValueError for none of none."""
    from scipy import special

    if not 0 <= count <= of or of == 0:
        raise ValueError(f"{count} of {of} is no rate")
    tail = (1 - LEVEL) / 2
    low = 0.0 if count == 0 else float(special.betaincinv(count, of - count + 1, tail))
    high = 1.0 if count == of else float(special.betaincinv(count + 1, of - count, 1 - tail))
    return Estimate(count / of, low, high, LEVEL, "rate", of, "exact interval of a proportion")
