"""The words a result may be given, fixed by rule (docs/METHODOLOGY.md).

In this order:

1. no interval yet (of one block, or before the first look): *cannot tell yet*, with what is missing;
2. the test of equivalence at 5 % says that the ratio lies within the study's margin: *no difference shown (within
   m %)*. It does where the 90 % interval lies in it (two one-sided tests: Schuirmann, J. Pharmacokin. Biopharm. 15,
   1987);
3. a difference is significant (Holm-adjusted over the table, p < 0.05): *costs x % [low, high]* or *gains x % [low,
   high]*. A cost is always a worsening;
4. else *cannot tell yet*, and how many blocks 80 % power would need by the spread seen so far: in a new run, or more in
   this one, whose intervals are then those of a run that was extended.

Intervals and tests are those of the rule in force (`rules`): Student's and Holm's where the number of blocks was fixed.

Chosen among seven rules by `python -m bench.rules`. The noise floor of native against native decides nothing: what
chance makes of native it makes of every arm, and an arm's own interval holds that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from virtoll.analysis.estimates import LEVEL, Summary, t_below, t_quantile
from virtoll.analysis.metrics import Metric
from virtoll.analysis.rules import FIXED, AtAnyTime, OverHosts, Rule, in_blocks, inflation
from virtoll.units import exact_percent

Kind = Literal["costs", "gains", "same", "unsure", "missing", "floor", "unjudged"]
POWER = 0.8
EQUIVALENCE = 2 * LEVEL - 1  # the level of the interval that two one-sided tests at 5 % look at
MOST_BLOCKS = 1000
MOST_DIGITS = 4


@dataclass(frozen=True)
class Verdict:
    """A kind for colours and sorting, and the words to print."""

    kind: Kind
    words: str
    needed: int | None = None  # blocks in all that hold it, about, that it would take this run to tell
    anew: int | None = None  # and a new one, of a fixed number


def judge(
    metric: Metric,
    summary: Summary | None,
    p: float,
    *,
    margin: float,
    family: int,
    rule: Rule = FIXED,
    lost: int = 0,
    ahead: int = 0,
) -> Verdict:
    """The words for a mean log ratio. ``p`` is adjusted, over a ``family`` of tests; the margin is relative.

    ``lost``: how many whole blocks hold nothing of it; ``ahead``: how many are planned and yet to come.
    """
    if summary is None:
        return Verdict("missing", "not measured")
    if metric.better is None:
        return Verdict("unjudged", "shown, not judged")
    if lacks := rule.lacks(summary):
        return Verdict("unsure", f"cannot tell yet: {lacks}")
    if abs(summary.mean) + rule.half_width(summary, EQUIVALENCE) <= math.log1p(margin):
        return Verdict("same", f"no difference shown (within {exact_percent(margin)} %)")
    if rule.differs(summary, p, family):
        return _difference(metric, summary, rule.half_width(summary))
    anew = blocks_needed(summary, math.log1p(margin), family)
    needed, asks = _asks(summary, math.log1p(margin), family, rule, anew, lost=lost, ahead=ahead)
    return Verdict("unsure", f"cannot tell yet: {asks}", needed, anew)


def _asks(
    summary: Summary, margin: float, family: int, rule: Rule, anew: int, *, lost: int, ahead: int
) -> tuple[int, str]:
    """How many blocks that hold it this run would have to have, and what to do; a run of fixed length pays for being
    extended.
    """
    fixed = needed = anew if rule is FIXED else blocks_needed(summary, margin, family, rule)
    there, in_all = summary.n + lost, in_blocks(fixed, summary.n, lost)
    if rule is FIXED and in_all - there <= ahead:
        return fixed, rule.asks(fixed, summary, lost)
    if rule is FIXED:
        needed = blocks_needed(summary, margin, family, AtAnyTime())
    if isinstance(rule, OverHosts):
        return needed, rule.asks(needed, summary)
    if fixed - summary.n >= MOST_BLOCKS:
        return needed, f"needs more than {MOST_BLOCKS:,} more blocks"
    if rule is not FIXED:
        return needed, rule.asks(needed, summary, lost)
    many = needed - summary.n >= MOST_BLOCKS
    more = f"more than {MOST_BLOCKS:,}" if many else f"{in_blocks(needed, summary.n, lost) - there}"
    return needed, f"needs about {in_all} blocks in a new run, or {more} more in this one"


def _difference(metric: Metric, summary: Summary, half: float) -> Verdict:
    cost, low, high = cost_percent(metric, math.exp(summary.mean), *_bounds(summary, half))
    if cost >= 0:
        return Verdict("costs", f"costs {interval_words(cost, low, high)}")
    return Verdict("gains", f"gains {interval_words(-cost, -high, -low)}")


def _bounds(summary: Summary, half: float) -> tuple[float, float]:
    return math.exp(summary.mean - half), math.exp(summary.mean + half)


def cost_percent(metric: Metric, value: float, low: float, high: float) -> tuple[float, float, float]:
    """Ratios to the baseline as a worsening in per cent: 0.88 of the throughput costs 12, 1.12 of the time too."""
    if metric.better == "more":
        return (1 - value) * 100, (1 - high) * 100, (1 - low) * 100
    return (value - 1) * 100, (low - 1) * 100, (high - 1) * 100


def interval_words(value: float, low: float, high: float) -> str:
    """``12 % [9, 15]``, in `interval_decimals`."""
    digits = interval_decimals(value, low, high)
    return f"{value:,.{digits}f} % [{low:,.{digits}f}, {high:,.{digits}f}]"


def interval_decimals(value: float, low: float, high: float) -> int:
    """As many decimals as the interval's width bears, and as it takes to keep one that holds no 0, or ends before 100
    (where nothing would be left), from showing it.
    """
    digits, (nearest, farthest) = decimals(high - low, value), sorted((abs(low), abs(high)))
    while nearest >= 10**-MOST_DIGITS and float(f"{nearest:.{digits}f}") == 0:
        digits += 1
    while 100 - farthest >= 10**-MOST_DIGITS and float(f"{farthest:.{digits}f}") == 100:
        digits += 1
    return digits


def decimals(width: float, value: float) -> int:
    """One decimal where the interval is narrow enough, and the value small enough, to bear it."""
    return 1 if width < 5 and abs(value) < 100 else 0


def blocks_needed(summary: Summary, margin: float, family: int, rule: Rule = FIXED) -> int:
    """Blocks in all, by a rule, for 80 % power to settle the question: the fewest that are as many times
    `_fixed_blocks` as the squares of the rule's half-widths are of Student's by then.
    """
    fixed = _fixed_blocks(summary, margin, family)
    if rule is FIXED:
        return fixed  # its half-widths are Student's
    return _fewest(fixed, summary.n + MOST_BLOCKS, lambda n: fixed * inflation(rule, summary, family, n) <= n)


def _fewest(low: int, high: int, enough: Callable[[int], bool]) -> int:
    """The first number in [low, high] from which on it is enough; ``high`` where none is."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def _fixed_blocks(summary: Summary, margin: float, family: int) -> int:
    """Blocks in all for 80 % power to settle the question, one way or the other, from the spread seen so far.

    Two-sided t test at 5 % (divided by the family, as Holm's first step does) to show a difference of the size seen,
    or the test of equivalence to show that there is none beyond the margin (log scale); the cheaper of the two. Either
    of the latter's one-sided tests may fail: of equal arms each with half of what power leaves.
    """
    deviation, size = summary.deviation, abs(summary.mean)

    def settles(n: int) -> bool:
        error, freedom = deviation / math.sqrt(n), n - 1
        detect = (t_quantile(1 - (1 - LEVEL) / 2 / family, freedom) + t_quantile(POWER, freedom)) * error
        if size > 0 and detect <= size:
            return True
        reach = margin - t_quantile((1 + EQUIVALENCE) / 2, freedom) * error  # a mean as far off as this is equivalent
        if error == 0:
            return reach >= size
        return t_below((reach - size) / error, freedom) - t_below((-reach - size) / error, freedom) >= POWER

    return _fewest(summary.n + 1, summary.n + MOST_BLOCKS, settles)
