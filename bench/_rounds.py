"""Rotation: arms that stand side by side and are measured in rounds, and what a block of rounds says.

In every round each arm has one short window, in an order drawn anew; the ratio to native of the same round is taken
on the log scale, and a *location* over the rounds of a block is the block's observation. The deployment is the
replicate: intervals count blocks (`virtoll.analysis.estimates`), never rounds, for what a deployment brings along is
in all of its rounds. docs/METHODOLOGY.md says why, and `python -m bench.simulate` what it is worth.

Values are arrays [..., round] of one metric, the arm's and native's with the same shape; nan where a window is missing
(an arm that died has none from there on). A round counts where both have a value.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from virtoll.analysis.estimates import Floats

Counts = npt.NDArray[np.int_]
Location = Literal["mean", "trimmed mean", "median", "ratio of totals"]
LOCATIONS: tuple[Location, ...] = ("mean", "trimmed mean", "median", "ratio of totals")
# The product's own: a trial is all of its windows together. Others are narrower under bursts that meet all arms alike
# (`python -m bench.simulate --locations`), and wrong of an arm that stalls by itself.
DEFAULT_LOCATION: Location = "ratio of totals"
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
        both = np.isfinite(arm) & np.isfinite(native)
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
