"""What changed from run A to run B: ratios of ratios, and the words a rule allows for them.

A run says of each of its blocks an arm's log ratio to the baseline, in which the machine cancels. Two runs are two
independent samples of such observations: their change is the difference of their means, each with the location, the
weights and the error that its own run is told with (`ratios`). Where both intervals are Student's, that of the
difference is Welch's (Biometrika 34, 1947; degrees of freedom: Satterthwaite, Biometrics Bulletin 2, 1946). An interval
that holds at several looks has no such distribution, and where a pilot's spread chose the number of blocks the two
errors are no two chi-squares: then the half-widths are added in quadrature, which keeps each run's own promise (Zou &
Donner, Statistics in Medicine 27, 2008). Where one run holds both configurations, a block says the difference itself,
and all that a block has in common cancels once more (`Paired`). docs/METHODOLOGY.md says why.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from virtoll.analysis.estimates import LEVEL, Estimate, Summary, holm, ratio_bounds, t_below, t_quantile
from virtoll.analysis.hosts import ENOUGH, UNEVEN
from virtoll.analysis.metrics import Metric
from virtoll.analysis.ratios import Row
from virtoll.analysis.rules import Rule
from virtoll.analysis.verdicts import EQUIVALENCE, POWER, cost_percent, interval_words
from virtoll.record.model import Arm
from virtoll.units import exact_percent

MOST_PERCENT = 1000  # what is more is not told in numbers
_LARGEST_LOG = math.log(sys.float_info.max)  # of few blocks in a long table the half-width is more
Kind = Literal["worse", "better", "same", "unsure", "missing"]
Gate = Literal["beyond", "within", "open"]
_RATIO = "geometric mean ratio to native in B over that in A, both of paired ratios within blocks"
_PAIRED = "geometric mean of the ratio to native in B over that in A, paired within blocks, t interval"
_INTERVALS = {True: "Welch's t interval", False: "intervals of both runs added in quadrature"}


def are_students(rules: Sequence[Rule]) -> bool:
    """Whether runs' intervals are Student's, of numbers of blocks that their spreads had no part in."""
    return not any(rule.by_plan or rule.pilot is not None for rule in rules)


class Difference(ABC):
    """A difference of means of log ratios, B less A, with its standard error."""

    @property
    @abstractmethod
    def mean(self) -> float:
        """Of the logarithm."""

    @property
    @abstractmethod
    def error(self) -> float:
        """Its standard error."""

    @property
    @abstractmethod
    def freedom(self) -> float:
        """Degrees of freedom of that error."""

    @property
    @abstractmethod
    def is_t(self) -> bool:
        """Whether it has Student's distribution with that freedom."""

    @abstractmethod
    def half_width(self, level: float = LEVEL) -> float:
        """Of an interval for the difference; inf or nan where a run has none."""

    @abstractmethod
    def lacks(self) -> str:
        """What keeps it from an interval; "" where nothing does."""

    @abstractmethod
    def estimate(self) -> Estimate:
        """The ratio of ratios; without an interval where one is lacking."""

    def p(self, at: float = 0.0) -> float:
        """Two-sided p of the test that the difference is ``at``; nan where it has none."""
        if not self.is_t:
            return math.nan
        away = self.mean - at
        if self.error == 0:
            return 1.0 if away == 0 else 0.0
        return 2 * t_below(-abs(away) / self.error, self.freedom)


@dataclass(frozen=True)
class Paired(Difference):
    """The mean over the blocks of one run, each of which says the difference."""

    within: Summary
    rule: Rule  # by which the run has as many blocks as it has

    @property
    def mean(self) -> float:
        """Of the logarithm."""
        return self.within.mean

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.within.error

    @property
    def freedom(self) -> float:
        """Student's."""
        return self.within.freedom

    @property
    def is_t(self) -> bool:
        """Whether it has Student's distribution."""
        return are_students([self.rule])

    def half_width(self, level: float = LEVEL) -> float:
        """As the run's rule has it."""
        return self.rule.half_width(self.within, level)

    def lacks(self) -> str:
        """What the rule lacks."""
        return self.rule.lacks(self.within)

    def estimate(self) -> Estimate:
        """The ratio of ratios."""
        return self.rule.interval(self.within, _PAIRED)


@dataclass(frozen=True)
class Step(Difference):
    """The difference of two independent means."""

    before: Summary
    after: Summary
    rules: tuple[Rule, Rule]  # by which each run has as many blocks as it has

    @property
    def mean(self) -> float:
        """Of the logarithm."""
        return self.after.mean - self.before.mean

    @property
    def error(self) -> float:
        """Standard error of the difference."""
        return math.hypot(self.before.error, self.after.error)

    @property
    def is_t(self) -> bool:
        """Whether it has Welch's distribution."""
        return are_students(self.rules)

    @property
    def freedom(self) -> float:
        """Welch's degrees of freedom; those of both together where neither run scatters. Of runs of few and of many
        blocks those of the shorter one, which never promise too much: where it happens to scatter little, Welch's are
        the longer one's, and of two blocks and ten 10 % of equal runs differ at 5 %.
        """
        parts = [(s.error**2, s.freedom) for s in (self.before, self.after)]
        few, many = sorted(s.n for s in (self.before, self.after))
        if many > UNEVEN * few or few < min(ENOUGH, many):
            return min(freedom for _, freedom in parts)
        below = sum(part**2 / freedom for part, freedom in parts)
        return self.error**4 / below if below > 0 else sum(freedom for _, freedom in parts)

    def half_width(self, level: float = LEVEL) -> float:
        """Of an interval for the difference; inf or nan where a run has none."""
        if self.is_t:
            return t_quantile((1 + level) / 2, self.freedom) * self.error
        both = zip(self.rules, (self.before, self.after), strict=True)
        return math.hypot(*(rule.half_width(summary, level) for rule, summary in both))

    def lacks(self) -> str:
        """What keeps either run from an interval; "" where nothing does."""
        for name, rule, summary in zip("AB", self.rules, (self.before, self.after), strict=True):
            if lack := rule.lacks(summary):
                return f"run {name}: {lack}"
        return ""

    def estimate(self) -> Estimate:
        """The ratio of ratios; without an interval where a run lacks one."""
        half = math.nan if self.lacks() else self.half_width()
        bounded = math.isfinite(half)
        low, high = ratio_bounds(self.mean, half)
        return Estimate(
            math.exp(self.mean),
            low if bounded else None,
            high if bounded else None,
            LEVEL,
            "ratio",
            min(self.before.n, self.after.n),
            f"{_RATIO}; {_INTERVALS[self.is_t]}",
        )


@dataclass(frozen=True)
class Matched:
    """What both runs say of one arm in one metric, under conditions that both have; ``None``: a run says nothing."""

    arm: Arm
    metric: Metric
    condition: str  # in words; "": all of them together
    before: Row
    after: Row
    rules: tuple[Rule, Rule]
    conditions: int = 1  # how many both were asked under; of which both have a ratio the rows say
    reason: str = ""  # why a run has no ratio
    is_one_run: bool = False  # both are configurations of one, and the change is that of ``within``
    within: Summary | None = None  # of what its blocks say of the change; None: none has both

    @property
    def step(self) -> Difference | None:
        """The change; None where a run has no ratio, or what it has is not all (a 0, or what failed)."""
        before, after = self.before, self.after
        if before.summary is None or after.summary is None or before.barred or after.barred:
            return None
        if self.is_one_run:
            return None if self.within is None else Paired(self.within, self.rules[0])
        return Step(before.summary, after.summary, self.rules)

    @property
    def is_by_plan(self) -> bool:
        """Whether it has a share of the table's error even where it cannot be tested yet."""
        return any(rule.by_plan for rule in self.rules)

    @property
    def is_whole(self) -> bool:
        """Whether it speaks for all conditions that both were asked under."""
        return self.before.conditions == self.conditions


@dataclass(frozen=True)
class Change:
    """One row of a comparison, judged."""

    matched: Matched
    before: Estimate | None  # each run's own ratio to native
    after: Estimate | None
    ratio: Estimate | None  # of the two
    p: float  # of no change, Holm-adjusted over the table; nan without a test
    smallest: float | None  # the smallest worsening that would have been found with 80 % power, relative
    kind: Kind
    words: str
    gate: Gate | None = None  # where it lies to the threshold; None: none was given


def judge_changes(rows: Sequence[Matched], margin: float, threshold: float | None = None) -> tuple[Change, ...]:
    """Word every row, as one family. ``margin``: what counts as no difference; ``threshold``: the relative worsening
    that is held against the intervals.

    The words' order is that of `verdicts`. *Beyond* the threshold is what a test at 5 % over the family says, *within*
    it where the 90 % interval ends before it (one-sided, at 5 %); what is neither is *open*.
    """
    steps = [_testable(row) for row in rows]
    family = max(1, sum(row.is_by_plan or step is not None for row, step in zip(rows, steps, strict=True)))
    p_zero = holm([math.nan if step is None else step.p() for step in steps])
    limits = [_limit(row.metric, threshold) for row in rows]
    p_limit = holm([_p_beyond(*each) for each in zip(rows, steps, limits, strict=True)])
    changes = []
    for row, step, limit, p, p_at in zip(rows, steps, limits, p_zero, p_limit, strict=True):
        kind, words = _worded(row, step, margin, p, family)
        changes.append(
            Change(
                matched=row,
                before=_of_run(row, row.before, 0),
                after=_of_run(row, row.after, 1),
                ratio=None if row.step is None else row.step.estimate(),
                p=p,
                smallest=None if step is None else _smallest(row.metric, step, family),
                kind=kind,
                words=words,
                gate=None if limit is None else _gate(row, step, limit, p_at, family),
            )
        )
    return tuple(changes)


def _testable(row: Matched) -> Difference | None:
    step = row.step
    return None if step is None or step.lacks() else step


def _of_run(row: Matched, of: Row, which: int) -> Estimate | None:
    if of.summary is None or of.barred:
        return None
    return row.rules[which].interval(of.summary, "geometric mean of paired ratios within blocks, t interval")


def _worded(row: Matched, step: Difference | None, margin: float, p: float, family: int) -> tuple[Kind, str]:
    if row.step is None:
        return "missing", row.reason or "not measured"
    if step is None:
        return "unsure", f"cannot tell: {row.step.lacks()}"
    if abs(step.mean) + step.half_width(EQUIVALENCE) <= math.log1p(margin):
        return "same", f"no difference shown (within {exact_percent(margin)} %)"
    cost, low, high = worsening(row.metric, step)
    if not _differs(step, p, family):
        return "unsure", f"cannot tell: from {_way(low)} to {_way(high)}"
    if cost >= 0:
        return "worse", f"worse by {interval_words(cost, low, high)}"
    return "better", f"better by {interval_words(-cost, -high, -low)}"


def _way(cost: float) -> str:
    """One end of an interval, in per cent: ``2.5 % better``."""
    size = f"{abs(cost):.{0 if abs(cost) >= 10 else 1}f}" if abs(cost) <= MOST_PERCENT else f"over {MOST_PERCENT:,}"
    return f"{size} % {'worse' if cost >= 0 else 'better'}"


def worsening(metric: Metric, step: Difference) -> tuple[float, float, float]:
    """The change as a worsening in per cent, with its 95 % interval."""
    return cost_percent(metric, math.exp(step.mean), *ratio_bounds(step.mean, step.half_width()))


def _differs(step: Difference, p: float, family: int) -> bool:
    if step.is_t:
        return p < 1 - LEVEL
    return abs(step.mean) > step.half_width(1 - (1 - LEVEL) / family)


def _smallest(metric: Metric, step: Difference, family: int) -> float:
    """By the first of Holm's steps, and the scatter of both runs; inf where none, however large, would have been."""
    found = step.half_width(1 - (1 - LEVEL) / family) + t_quantile(POWER, step.freedom) * step.error
    if metric.better == "more":
        return -math.expm1(-found)
    return math.expm1(found) if found < _LARGEST_LOG else math.inf


# -- the threshold ------------------------------------------------------------------------------------------


def _limit(metric: Metric, threshold: float | None) -> float | None:
    """How far from 0 a worsening by the threshold lies, on the log scale."""
    if threshold is None:
        return None
    return -math.log1p(-threshold) if metric.better == "more" else math.log1p(threshold)


def _worse(metric: Metric, step: Difference) -> float:
    """The change on the log scale, a worsening above 0."""
    return -step.mean if metric.better == "more" else step.mean


def _p_beyond(row: Matched, step: Difference | None, limit: float | None) -> float:
    """Of the test that the change lies at the threshold, where it lies beyond; 1 where it does not."""
    if step is None or limit is None or not step.is_t:
        return math.nan
    away = _worse(row.metric, step)
    return step.p(math.copysign(limit, step.mean)) if away > limit else 1.0


def _gate(row: Matched, step: Difference | None, limit: float, p: float, family: int) -> Gate:
    if step is None:
        return "open"
    away = _worse(row.metric, step)
    if step.is_t:
        is_beyond = away > limit and p < 1 - LEVEL
    else:
        is_beyond = away - step.half_width(1 - (1 - LEVEL) / family) > limit
    if is_beyond:
        return "beyond"
    return "within" if row.is_whole and away + step.half_width(EQUIVALENCE) <= limit else "open"


def differs_from_itself(row: Row, rule: Rule) -> bool:
    """Whether native again differs from native by more than chance (5 %), as the rule of their run tests it."""
    if row.summary is None or row.barred or rule.lacks(row.summary):
        return False
    (p,) = rule.tests([row.summary])
    return rule.differs(row.summary, p, 1)
