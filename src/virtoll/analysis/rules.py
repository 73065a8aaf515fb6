"""The rule by which a run's blocks came to be as many as they are: its intervals, its tests, and what it asks for.

Who looks at results before deciding whether to go on must pay for it. Which rule is in force follows from the plan
alone: the group-sequential test or Stein's two stages where it has one, the t mixture where a run was extended without,
and else the number of blocks was fixed. The mathematics is in `stopping`; every ratio to native in the report goes
through here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from virtoll.analysis.estimates import LEVEL, Estimate, Summary, holm, p_difference, ratio, t_below, t_quantile
from virtoll.analysis.hosts import MANY
from virtoll.analysis.stopping import (
    PHI,
    GroupSequential,
    mixture_critical,
    mixture_half_width,
    stein_blocks,
)
from virtoll.record.model import Plan
from virtoll.record.rules import MOST_LOOKS, Decide, Precision
from virtoll.units import percent

_ALIKE = "are all alike, and chance has no measure without a spread"

Tests = Sequence["Summary | None"]  # of a family; None: no test


class Rule:
    """A number of blocks that was fixed before the first trial: Student's t, and Holm's correction."""

    method = "t interval"  # what its intervals are called
    shared = "Holm"  # how the error of a table is shared by its comparisons
    replicate = "block"  # what n counts
    by_plan = False  # whether it is shared by all comparisons that were planned, or by those that can be made

    @property
    def pilot(self) -> int | None:
        """How many blocks, from the first on, have the spread that stands for that of all; None: all of them."""
        return None

    @property
    def most(self) -> int | None:
        """How many blocks there may be; None: as many as one likes."""
        return None

    def fixed_by(self, begun: int | None) -> int | None:  # noqa: ARG002
        """The block after which somebody may first see a result, where block ``begun`` is the first that has any (None:
        none has): what later ones find must not change what is tested. None: the last of all.
        """
        return None

    def half_width(self, summary: Summary, level: float = LEVEL) -> float:
        """Half-width of an interval for the mean (log scale); nan or inf where there is none."""
        return summary.half_width(level)

    def interval(self, summary: Summary, method: str) -> Estimate:
        """The ratio with the rule's 95 % interval; without one where the rule lacks something."""
        told = method.replace(FIXED.method, self.method)
        return ratio(summary, told, math.nan if self.lacks(summary) else self.half_width(summary))

    def tests(self, family: Tests) -> list[float]:
        """For each of a family of tests of no difference its adjusted p; nan where there is none."""
        return holm([math.nan if summary is None else p_difference(summary) for summary in family])

    def differs(self, summary: Summary, p: float, family: int) -> bool:  # noqa: ARG002
        """Whether a difference is shown, at 5 % over the family; ``p``: of `tests`."""
        return p < 1 - LEVEL

    def lacks(self, summary: Summary) -> str:
        """What is missing for any interval; "" where there is one."""
        if summary.n < 2:
            return "one block has no spread, needs at least 2 more blocks"
        return f"its {summary.n} {self.replicate}s {_ALIKE}; needs more {self.replicate}s" if _is_off(summary) else ""

    def asks(self, needed: int, summary: Summary, lost: int = 0) -> str:
        """How to get from the blocks there are to as many that hold it as are ``needed``; so many whole ones were
        ``lost``.
        """
        more = in_blocks(needed, summary.n, lost) - summary.n - lost
        return f"needs about {_blocks(max(1, more), 'more ')}"


FIXED = Rule()


class _AtAnyLook(Rule):
    """What holds at several looks together: a difference is shown where the interval at the family's level says so.

    The error is shared equally (Bonferroni): Holm's steps would need the order of the looks as well.
    """

    shared = "in equal shares, over all looks together"
    by_plan = True  # else the shares would shrink while one looks, as arms begin to work

    @staticmethod
    def _widened(half: float, summary: Summary) -> float:
        """A half-width of n - 1 degrees of freedom, where the spread has fewer: as far out in Student's t of those."""
        if summary.spread_of is None or not summary.error > 0 or not math.isfinite(half):
            return half
        beyond = t_below(-half / summary.error, summary.n - 1)
        return -t_quantile(beyond, summary.freedom) * summary.error

    def tests(self, family: Tests) -> list[float]:
        """No p: what decides is the interval."""
        return [math.nan] * len(family)

    def differs(self, summary: Summary, p: float, family: int) -> bool:  # noqa: ARG002
        """Whether the interval at the family's level leaves out no difference."""
        return abs(summary.mean) > self.half_width(summary, 1 - (1 - LEVEL) / max(1, family))


@dataclass(frozen=True)
class Sequential(_AtAnyLook):
    """`--decide`: the group-sequential test, with repeated intervals."""

    plan: Decide

    method = "repeated interval"

    @property
    def most(self) -> int:
        """The last look."""
        return self.plan.looks[-1]

    def fixed_by(self, begun: int | None) -> int | None:
        """As many blocks as the first look is after, from that one on: before, no look had an interval."""
        return None if begun is None else begun - 1 + self.plan.looks[0]

    def half_width(self, summary: Summary, level: float = LEVEL) -> float:
        """Of the interval; inf or nan where there is none."""
        test = GroupSequential(self.plan.looks, self.plan.spending, 1 - level)
        return self._widened(test.half_width(summary), summary)

    def lacks(self, summary: Summary) -> str:
        """What is missing."""
        first = self.plan.looks[0]
        if super().lacks(summary) or summary.n >= first:
            return super().lacks(summary)
        return f"the first look is after {_blocks(first)}, and it has {summary.n}"

    def asks(self, needed: int, summary: Summary, lost: int = 0) -> str:
        """More blocks, or a new run."""
        most, whole = self.plan.looks[-1], in_blocks(needed, summary.n, lost)
        if whole <= most:
            return super().asks(needed, summary, lost)
        told = f"needs about {_blocks(whole)} in all, and this run has at most {most}"
        if summary.n + lost < most:
            return told
        return f"{told}: begin a new one with --blocks {whole}" if whole <= MOST_LOOKS else told


@dataclass(frozen=True)
class TwoStage(Rule):
    """`--precision`: Stein's two stages. t intervals, with the pilot's spread and its degrees of freedom."""

    plan: Precision
    blocks: int | None = None  # in all, as far as is known: the most there may be, or what the pilot asked for

    method = "t interval with the pilot's spread"

    @property
    def pilot(self) -> int:
        """How many blocks the pilot has."""
        return self.plan.pilot

    def fixed_by(self, begun: int | None) -> int:  # noqa: ARG002
        """The pilot's last: of what it does not tell there is no interval in the run."""
        return self.pilot

    def lacks(self, summary: Summary) -> str:
        """What is missing."""
        if summary.n >= 2 and not math.isfinite(summary.error):
            return (
                f"the pilot of {_blocks(self.plan.pilot)} holds fewer than two of it, or not all of its conditions: no "
                "spread is known"
            )
        if summary.n >= 2 and _is_off(summary):
            return f"the pilot's blocks {_ALIKE}; needs a longer pilot"
        return super().lacks(summary)

    def asks(self, needed: int, summary: Summary, lost: int = 0) -> str:
        """What the interval is like, and a new run where this one is over."""
        told, whole = f"the interval is ± {percent(math.expm1(self.half_width(summary)) * 100)} %", summary.n + lost
        if self.blocks is None or whole >= self.blocks:
            return f"{told}, and a new run of about {_blocks(in_blocks(needed, summary.n, lost))} would tell"
        return (
            f"{told} in the pilot" if whole <= self.plan.pilot else f"{told} until all {self.blocks} blocks are there"
        )

    def needed(self, pilot: Summary) -> int:
        """Blocks in all for one comparison."""
        return stein_blocks(pilot, math.log1p(self.plan.half_width))


@dataclass(frozen=True)
class AtAnyTime(_AtAnyLook):
    """A run that was extended without a plan: the always-valid interval of the t mixture. ``steps``: how many blocks
    it had at each extension.
    """

    steps: tuple[int, ...] = ()

    method = "always-valid interval"

    def fixed_by(self, begun: int | None) -> int | None:
        """The last that was there when it was first extended with a result."""
        return None if begun is None else next((step for step in self.steps if step >= begun), None)

    def half_width(self, summary: Summary, level: float = LEVEL) -> float:
        """Of the interval; inf or nan where there is none."""
        return self._widened(mixture_half_width(summary, level=level), summary)

    def lacks(self, summary: Summary) -> str:
        """What is missing."""
        if super().lacks(summary) or math.isfinite(self.half_width(summary)):
            return super().lacks(summary)
        least = next(n for n in range(2, 100) if math.isfinite(mixture_critical(n, PHI)))
        return f"an always-valid interval needs at least {_blocks(least)}, and it has {summary.n}"


@dataclass(frozen=True)
class OverHosts(Rule):
    """A number of blocks that was fixed, on several hosts. ``hosts``: of each block, from the first on."""

    hosts: tuple[str, ...]

    @property
    def is_of_hosts(self) -> bool:
        """Whether the host is the replicate, and not the block within it: by how many were planned."""
        return len(set(self.hosts)) >= MANY

    @property
    def replicate(self) -> str:  # type: ignore[override]
        """What n counts."""
        return "host" if self.is_of_hosts else "block"

    @property
    def method(self) -> str:  # type: ignore[override]
        """What its intervals are called."""
        return f"t interval by {'hosts' if self.is_of_hosts else 'blocks within hosts'}"

    def interval(self, summary: Summary, method: str) -> Estimate:
        """The ratio with its interval, and what n counts."""
        return super().interval(summary, method.replace("n = blocks", "n = hosts") if self.is_of_hosts else method)

    def lacks(self, summary: Summary) -> str:
        """What is missing."""
        if math.isfinite(summary.error):
            return super().lacks(summary)
        if self.is_of_hosts:
            return "not more than half of the hosts hold all of its conditions"
        return "not every host has two blocks of it under all of its conditions"

    def asks(self, needed: int, summary: Summary, lost: int = 0) -> str:  # noqa: ARG002
        """A new run: one of several hosts is not extended. How many it takes hangs on how each of them scatters."""
        return f"needs {'more hosts' if self.is_of_hosts else 'more blocks on each host'}, in a new run"


def _is_off(summary: Summary) -> bool:
    """Whether all values are alike, and not native's own: a difference that may be chance, which nothing measures. What
    equals native in every block (all was answered, say, beside a neighbour as before it) shows none to be chance.
    """
    return summary.is_alike and summary.mean != 0


def rule_of(plan: Plan) -> Rule:
    """The rule in force."""
    hosts = plan.hosts
    if hosts:  # one alone, too: its run is not extended either
        return OverHosts(tuple(hosts.get(block, "") for block in sorted({trial.block for trial in plan.trials})))
    if isinstance(plan.rule, Decide):
        return Sequential(plan.rule)
    if isinstance(plan.rule, Precision):
        return TwoStage(plan.rule, plan.blocks)
    return AtAnyTime(tuple(plan.extended)) if plan.extended else FIXED


def with_pilots_spread(whole: Summary, pilot: Summary | None, share: float) -> Summary:
    """The mean of all blocks, with the spread of the pilot's, which are so large a ``share`` of all; nan where that has
    none.
    """
    if pilot is None or pilot.n < 2:
        return replace(whole, error=math.nan)
    return replace(whole, error=pilot.error * math.sqrt(share), spread_of=pilot.freedom + 1)


def in_blocks(pairs: int, n: int, lost: int) -> int:
    """Blocks in all for so many ``pairs`` (blocks that hold a ratio), were as many lost as so far: ``n`` pairs, and so
    many that were ``lost``.
    """
    return math.ceil(pairs * (n + lost) / n) if n else pairs + lost


def inflation(rule: Rule, summary: Summary, family: int, blocks: int) -> float:
    """How many times more blocks than a fixed number a rule's interval takes, by the half-widths at so many; inf where
    there is none yet.
    """
    level, n = 1 - (1 - LEVEL) / max(1, family), min(blocks, rule.most or blocks)
    of = None if rule.pilot is None else summary.spread_of  # a pilot's stays; what was lost is as many blocks then
    then = Summary(summary.mean, summary.deviation / math.sqrt(n), n, of)
    plain, wide = then.half_width(level), rule.half_width(then, level)
    return max(1.0, (wide / plain) ** 2) if plain > 0 else 1.0


def _blocks(count: int, more: str = "") -> str:
    return f"{count} {more}block{'s' * (count != 1)}"
