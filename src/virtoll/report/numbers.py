"""Numbers as the report prints them: no more digits than their uncertainty bears."""

from __future__ import annotations

import json
import math
from typing import Any

from virtoll.analysis.estimates import Estimate

MISSING = "—"
_MOST_DIGITS = 9  # a nanosecond, of what is told in seconds
_TOLD = 1e-4  # by less than this no ratio is told from 1
_ROUNDED = 1e-12  # of a value: an uncertainty of less is what adding up the same value rounds
_FAR = 1_000_000  # what a bound lies beyond is nothing that anybody knows


def number(value: float, width: float | None = None) -> str:
    """As many decimals as show two digits of the uncertainty ``width``; without one, four digits of the value."""
    scale = width if width and math.isfinite(width) and width > _ROUNDED * abs(value) else abs(value) / 100
    digits = min(_MOST_DIGITS, max(0, 1 - math.floor(math.log10(scale)))) if scale > 0 else 0
    return f"{value:,.{digits}f}"


def significant(value: float) -> str:
    """Two significant digits, thousands set apart, no exponent."""
    if 0 < abs(value) < 0.001:
        return "<0.001" if value > 0 else ">-0.001"
    return f"{float(f'{value:.2g}'):,.0f}" if abs(value) >= 10 else f"{value:.2g}"


def plus_minus(estimate: Estimate | None) -> str:
    """``97.4 ± 0.3``, the papers' form; without an interval the value and its n."""
    if estimate is None:
        return MISSING
    half = estimate.half_width
    if half is None:
        return f"{number(estimate.value)} (n = {estimate.n})"
    half = half if half > _ROUNDED * abs(estimate.value) else 0.0
    return f"{number(estimate.value, half)} ± {number(half, half)}"


def interval(estimate: Estimate | None, at: float | None = None) -> str:
    """``0.86 [0.84, 0.88]``, with the digits that tell its bounds from ``at``, what it is held against: a ratio, if
    nothing else is said, from 1.
    """
    if estimate is None:
        return MISSING
    if estimate.low is None or estimate.high is None:
        return f"{number(estimate.value)} (n = {estimate.n})"
    bounds, is_ratio = (estimate.low, estimate.high), estimate.unit == "ratio"
    at = 1.0 if at is None and is_ratio else at
    if estimate.low <= 0 or estimate.high / estimate.low > 3:  # too wide for common decimals
        low, high = (f"over {_FAR:,}" if is_ratio and each > _FAR else _apart(each, at) for each in bounds)
        return f"{significant(estimate.value)} [{low}, {high}]"
    width = (estimate.high - estimate.low) / 2
    width = max(width, 0.01) if is_ratio and estimate.value >= 0.1 else width  # three decimals will do
    while width > 10**-_MOST_DIGITS and any(misread(each, number(each, width), at) for each in bounds):
        width /= 10
    return f"{number(estimate.value, width)} [{number(estimate.low, width)}, {number(estimate.high, width)}]"


def misread(value: float, text: str, at: float | None = 1.0) -> bool:
    """Whether a value that is told from another (1, of a ratio) is not, as it is printed."""
    if at is None or abs(value - at) < _TOLD * abs(at):
        return False
    return value != at and (float(text.replace(",", "")) - at) * (value - at) <= 0


def _apart(value: float, at: float | None) -> str:
    """Two significant digits, and more where they would not tell it from another value."""
    text, digits = significant(value), 2
    while digits < _MOST_DIGITS and not text.startswith(("<", ">")) and misread(value, text, at):
        digits += 1
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{float(f'{value:.{digits}g}'):,.{decimals}f}"
    return text


def size(memory_bytes: float) -> str:
    """Memory in GiB or MiB: three digits say enough."""
    return f"{memory_bytes / 2**30:.3g} GiB" if memory_bytes >= 2**30 else f"{memory_bytes / 2**20:.3g} MiB"


def setting(key: str, value: Any) -> str:
    """What a record holds under a key, in words: "yes", "512 MiB", "not known"."""
    if value is None:
        return "not known"
    if key.endswith("_bytes") and isinstance(value, int | float) and not isinstance(value, bool):
        return size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, str | int | float) else json.dumps(value)
