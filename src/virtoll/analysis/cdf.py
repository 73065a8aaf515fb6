"""Latency distributions: one curve an arm and condition, with the range over its deployments as a band."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Floats
from virtoll.analysis.load import Histogram
from virtoll.analysis.matrix import Matrix
from virtoll.record.model import Arm

POINTS = 72


@dataclass(frozen=True)
class Curve:
    """Share of requests answered within ``latency_ms``: mean over deployments, and their lowest and highest.

    Every deployment weighs the same, however many requests it completed.
    """

    arm: Arm
    condition: Condition
    latency_ms: Floats
    share: Floats
    low: Floats
    high: Floats
    n: int


def curve(matrix: Matrix, arm: Arm, condition: Condition) -> Curve | None:
    """The distribution of one arm under one condition; None without a histogram of a valid trial."""
    cells = matrix.across(arm, condition).values()
    histograms = [c.histogram for c in cells if c.histogram is not None and c.histogram.completed > 0]
    if not histograms:
        return None
    grid_ns = _grid(histograms)
    shares = np.stack([shares_at(histogram, grid_ns) for histogram in histograms])
    low, high = shares.min(axis=0), shares.max(axis=0)
    return Curve(arm, condition, grid_ns / 1e6, shares.mean(axis=0), low, high, len(histograms))


def shares_at(histogram: Histogram, at_ns: Floats) -> Floats:
    """Share of requests at or below each of ``at_ns``; linear within a bucket. It stays below 1 where some failed."""
    edges = np.empty(2 * len(histogram.count))
    edges[0::2], edges[1::2] = histogram.lower_ns, histogram.upper_ns
    cumulative = np.cumsum(histogram.count) / histogram.total
    heights = np.empty_like(edges)
    heights[0::2], heights[1::2] = np.concatenate(([0.0], cumulative[:-1])), cumulative
    return np.interp(at_ns, edges, heights, left=0.0, right=float(cumulative[-1]))


def _grid(histograms: list[Histogram]) -> Floats:
    """Logarithmic, from the fastest answer to the slowest, so that every curve runs from 0 to 1."""
    low = min(float(h.lower_ns[np.flatnonzero(h.count)[0]]) for h in histograms)
    high = max(float(h.upper_ns[np.flatnonzero(h.count)[-1]]) for h in histograms)
    return np.geomspace(max(1.0, low), max(2.0, high), POINTS)
