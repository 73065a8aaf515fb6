"""Rotation: arms that stand side by side and are measured in rounds, and what a block of rounds says.

In every round each arm has one short window, in an order drawn anew; the ratio to native of the same round is taken
on the log scale, and a *location* over the rounds of a block is the block's observation. The deployment is the
replicate: intervals count blocks (`virtoll.analysis.estimates`), never rounds, for what a deployment brings along is
in all of its rounds. docs/METHODOLOGY.md says why, and `python -m bench.simulate` what it is worth.

Values are arrays [..., round] of one metric, the arm's and native's with the same shape; nan where a window is missing
(an arm that died has none from there on). A round counts where both have a value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from virtoll.analysis.estimates import LEVEL, Floats, t_quantile

Counts = npt.NDArray[np.int_]
Location = Literal["mean", "trimmed mean", "median", "ratio of totals"]
LOCATIONS: tuple[Location, ...] = ("mean", "trimmed mean", "median", "ratio of totals")
# Chosen by `python -m bench.simulate --locations`, before any run, and the same for every arm: the narrowest or next to
# it whatever the noise. No window is left out because of its result: a round in the tails still counts as one that was.
DEFAULT_LOCATION: Location = "trimmed mean"
TRIM = 0.2  # of the rounds, at either end
_TRIMS: dict[Location, float] = {"mean": 0.0, "trimmed mean": TRIM}


def round_ratios(arm: Floats, native: Floats) -> Floats:
    """log(arm / native) of each round; nan where either is missing or not positive (a 0 has no ratio)."""
    logs = np.full(np.broadcast(arm, native).shape, np.nan)
    whole = (arm > 0) & (native > 0)  # False for nan
    np.log(np.divide(arm, native, out=np.ones_like(logs), where=whole), out=logs, where=whole)
    return logs


def block_ratios(arm: Floats, native: Floats, location: Location = DEFAULT_LOCATION) -> Floats:
    """Array [...]: a block's observation, the location over its rounds of log(arm / native); nan without a round."""
    logs = round_ratios(arm, native)
    if location == "ratio of totals":
        both = np.isfinite(logs)
        mine, theirs = (np.where(both, values, 0.0).sum(axis=-1) for values in (arm, native))
        totals = np.full(mine.shape, np.nan)
        np.divide(mine, theirs, out=totals, where=theirs > 0)
        np.log(totals, out=totals)
        return totals
    return _located(logs, location)


def _located(logs: Floats, location: Location) -> Floats:
    """The location over the last axis of what is not nan."""
    ordered, counts = np.sort(logs, axis=-1), np.isfinite(logs).sum(axis=-1)  # nan is sorted last
    halves, shares = np.maximum((counts - 1) // 2, 0), np.floor(_TRIMS.get(location, 0.0) * counts).astype(int)
    cut = halves if location == "median" else shares
    rank = np.arange(logs.shape[-1])
    kept = (rank >= cut[..., None]) & (rank < (counts - cut)[..., None])
    located = np.full(counts.shape, np.nan)
    np.divide(np.where(kept, ordered, 0.0).sum(axis=-1), kept.sum(axis=-1), out=located, where=counts > 0)
    return located


@dataclass(frozen=True)
class Components:
    """Variances on the log scale, by where they come from: what is left in a block's ratio, and what cancels in it.

    A block's observation of n rounds has the variance ``deployment + window / n``. ``window`` is that of one round's
    ratio as the location meets it: for a trimmed mean the winsorized one, which a burst hardly moves (so both arms'
    windows are in it). ``deployment`` is what all rounds of a block share and another block does not.
    ``round`` and ``drift`` are what arm and native have in common in a round, and in a block: a design without rounds
    would have to live with them. nan where there are too few rounds or blocks to tell.
    """

    window: float
    deployment: float
    round: float
    drift: float
    rounds: float  # harmonic mean over blocks of the rounds that counted
    blocks: int  # that had a ratio

    @property
    def observation(self) -> float:
        """The variance of one block's observation, as this many rounds give it."""
        return self.deployment + self.window / self.rounds

    @property
    def share_of_windows(self) -> float:
        """How much of the variance of an observation more rounds would lessen: 0 to 1."""
        return self.window / self.rounds / self.observation if self.observation > 0 else 0.0


def components(arm: Floats, native: Floats) -> Components:
    """Variance components of arrays [block, round], by the method of moments; blocks may differ in their rounds.

    They are those of the default location. Within blocks: the variance of a trimmed mean of n rounds, of which h are
    kept, is the winsorized sum of squares over h (h - 1) (Tukey & McLaughlin, Sankhya A 25, 1963). Between: the
    variance of the blocks' observations less what their windows explain (unweighted means: Searle, Casella &
    McCulloch, Variance Components, 1992, ch. 3), not below 0. What is common to both arms is a covariance.
    """
    logs = round_ratios(arm, native)
    counts = np.isfinite(logs).sum(axis=-1)
    some = counts > 0
    blocks = int(some.sum())
    rounds = float(blocks / (1 / counts[some]).sum()) if blocks else math.nan
    window = _window_variance(logs[some], counts[some])
    between = float(_located(logs[some], DEFAULT_LOCATION).var(ddof=1)) if blocks > 1 else math.nan
    both = np.isfinite(logs)
    mine, theirs = (np.log(np.where(both, values, 1.0)) for values in (arm, native))
    within, over = _covariances(mine, theirs, both)
    deployment, drift = (
        max(0.0, all_in - part / rounds) if math.isfinite(all_in + part) else math.nan
        for all_in, part in ((between, window), (over, within))
    )
    return Components(window, deployment, within, drift, rounds, blocks)


def _window_variance(logs: Floats, counts: Counts) -> float:
    """Rounds times the variance of a block's trimmed mean, pooled over blocks by their degrees of freedom."""
    total, freedom = 0.0, 0
    for row, count in zip(np.sort(logs, axis=-1), counts.tolist(), strict=True):
        cut = math.floor(TRIM * count)
        kept = count - 2 * cut
        winsorized = np.clip(row[:count], row[cut], row[count - cut - 1])
        total += count / kept * float(((winsorized - winsorized.mean()) ** 2).sum())
        freedom += kept - 1
    return total / freedom if freedom else math.nan


def _covariances(mine: Floats, theirs: Floats, both: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Of what arm and native have in common: over the rounds of a block (pooled), and over the blocks' means."""
    products, freedom, means = 0.0, 0, []
    for one, other, there in zip(mine, theirs, both, strict=True):
        if there.any():
            means.append((one[there].mean(), other[there].mean()))
            products += float(((one[there] - means[-1][0]) * (other[there] - means[-1][1])).sum())
            freedom += int(there.sum()) - 1
    within = max(0.0, products / freedom) if freedom else math.nan
    over = float(np.cov(np.array(means).T)[0, 1]) if len(means) > 1 else math.nan
    return within, over


@dataclass(frozen=True)
class Costs:
    """What a block takes, in seconds: everybody's deployment once, and in each round every arm's window."""

    deployment_s: float  # of all arms of a block, as they are made; and what else comes once a block
    window_s: float  # one window with its lead-in
    arms: int  # windows in a round

    def block_s(self, rounds: int) -> float:
        """Seconds of a block of so many rounds."""
        return self.deployment_s + rounds * self.arms * self.window_s


MOST_BLOCKS, MOST_ROUNDS, FEWEST_BLOCKS = 1000, 1000, 4


@dataclass(frozen=True)
class Advice:
    """What it would take to know a ratio to within a half-width: rounds and blocks *in all*. None: no number is enough
    (of rounds), or more than `MOST_BLOCKS`.
    """

    more_rounds: int | None  # rounds a block, in as many blocks as now
    more_blocks: int | None  # blocks of as many rounds as now
    rounds: int  # the cheapest way, from nothing: blocks of so many rounds,
    blocks: int | None  # so many of them,
    seconds: float  # and that long; inf without a way


def expected_half_width(variances: Components, rounds: int, blocks: int, level: float = LEVEL) -> float:
    """Half-width, on the log scale, of the t interval over so many blocks of so many rounds; inf for one block."""
    if blocks < 2:
        return math.inf
    variance = variances.deployment + variances.window / rounds
    return t_quantile((1 + level) / 2, blocks - 1) * math.sqrt(variance / blocks)


def advise(
    variances: Components, costs: Costs, half_width: float, *, rounds: int, blocks: int, level: float = LEVEL
) -> Advice:
    """Whether more rounds or more blocks would narrow the interval to ``half_width`` (log scale), and how many.

    ``rounds`` and ``blocks`` are those of now. The cheapest way weighs a deployment's seconds against a round's: its
    number of rounds is near sqrt(window / deployment variance x deployment / round seconds) (Cochran, Sampling
    Techniques, 1977, section 10.6), and is found here by trying. The components are estimates from few blocks: so is
    the advice. ValueError where they are not known.
    """
    if not math.isfinite(variances.window + variances.deployment):
        raise ValueError("the variance components are not known: they need two blocks, and rounds enough in one")

    def blocks_of(r: int) -> int | None:
        return _least(lambda b: expected_half_width(variances, r, b, level) <= half_width, FEWEST_BLOCKS, MOST_BLOCKS)

    tried = range(1, 65), np.geomspace(65, MOST_ROUNDS, 40).astype(int).tolist()
    ways = [(b * costs.block_s(r), r, b) for r in itertools.chain(*tried) if (b := blocks_of(r)) is not None]
    seconds, best_rounds, best_blocks = min(ways, default=(math.inf, rounds, None))
    by_rounds = _least(lambda r: expected_half_width(variances, r, blocks, level) <= half_width, 1, MOST_ROUNDS)
    return Advice(by_rounds, blocks_of(rounds), best_rounds, best_blocks, seconds)


def _least(enough: Callable[[int], bool], low: int, high: int) -> int | None:
    """The least number from ``low`` to ``high`` that is enough, more being no less; None where ``high`` is not."""
    if not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def advice_words(advice: Advice, half_width: float, *, rounds: int, blocks: int) -> str:
    """What would narrow the interval to ``half_width`` (log scale), in a sentence; ``rounds`` and ``blocks`` of now."""
    wanted = f"for ± {math.expm1(half_width) * 100:.2g} %"
    if advice.blocks is None:
        return f"{wanted} even {MOST_BLOCKS:,} blocks are too few"
    if advice.more_blocks is not None and advice.more_blocks <= blocks:
        return f"{blocks} blocks of {rounds} rounds are enough {wanted}"
    ways = []
    if advice.more_blocks is not None:
        ways.append(f"about {advice.more_blocks - blocks} more blocks of {rounds} rounds")
    if advice.more_rounds is not None:
        ways.append(f"{advice.more_rounds} rounds in each of {blocks} blocks")
    said = " or ".join(ways) or f"no more rounds in {blocks} blocks, nor blocks of {rounds} rounds, would do"
    minutes = f"{advice.seconds / 60:.1f}" if advice.seconds < 600 else f"{advice.seconds / 60:,.0f}"
    return f"{wanted}: {said}; quickest from new: {advice.blocks} blocks of {advice.rounds} rounds, {minutes} min"
