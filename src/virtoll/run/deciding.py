"""When a run ends because of what it has found: the rule is made before the first trial, and looks between blocks.

What a look finds is what the report would say at that moment, by the same functions, and is kept: `looks.jsonl`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from virtoll.analysis.estimates import LEVEL, Summary, t_quantile
from virtoll.analysis.ratios import Toll
from virtoll.analysis.rules import TwoStage, in_blocks
from virtoll.analysis.stopping import stein_half_width
from virtoll.record.rules import Compared, Decide, Look, Precision
from virtoll.record.store import RunDirectory
from virtoll.report.ending import WIDEST
from virtoll.report.findings import Findings, find
from virtoll.report.words import join, no_level
from virtoll.units import exact_percent

_DECIDED = ("costs", "gains", "same")


class Looks:
    """Looks at a run between its blocks; ``tell`` is told what each found."""

    def __init__(self, directory: RunDirectory, tell: Callable[[Look], None]) -> None:
        self._directory, self._tell = directory, tell

    def end_it(self) -> bool:
        """Whether the run's rule ends it here. Takes the look that is due, and no look twice."""
        plan = self._directory.plan
        if plan.rule is None:
            return False
        looks, whole = self._directory.looks(), self._whole()
        if looks and looks[-1].ends:
            return True
        if not _is_due(plan.rule, looks, whole):
            return False
        look = self._taken(plan.rule, whole, is_first=not looks)
        self._directory.keep_look(look)
        with suppress(OSError):  # a reader who is gone is met again, and told of, when the next trial begins
            self._tell(look)
        return look.ends or self.end_it()  # one that a kill took away may have another behind it

    def _taken(self, rule: Decide | Precision, whole: int, *, is_first: bool) -> Look:
        """The look that is due after so many ``whole`` blocks; a pilot's is of the pilot's alone, however late."""
        if isinstance(rule, Decide):
            findings = find(self._directory.path)
            return _decided(rule, whole, findings.answering(), _hopeless(findings, whole))
        if is_first:
            there = max((record.trial.block for record in self._directory.records()), default=whole)
            findings = find(self._directory.path, blocks=rule.pilot)
            return _piloted(rule, max(whole, there), findings)
        return _narrowed(rule, whole, find(self._directory.path).answering())

    def _whole(self) -> int:
        """How many blocks are there from the first on, with nothing pending."""
        pending = self._directory.pending()
        return min((trial.block for trial in pending), default=self._directory.last_block() + 1) - 1


def _is_due(rule: Decide | Precision, looks: Sequence[Look], whole: int) -> bool:
    if looks and looks[-1].block >= whole:
        return False
    if isinstance(rule, Decide):
        return whole in rule.looks
    return whole >= (looks[-1].blocks if looks else rule.pilot)


def _hopeless(findings: Findings, whole: int) -> str:
    """Why no later block could be compared with native: of a ramp, where by now no level is; "" where one could."""
    is_fixed = bool(findings.met) and findings.fixed_by is not None and whole >= findings.fixed_by
    return no_level(findings) if is_fixed and not findings.over(findings.headline.name) else ""


def _decided(rule: Decide, whole: int, tolls: Sequence[Toll], hopeless: str) -> Look:
    known = [toll for toll in tolls if toll.ratio is not None]
    still = [toll for toll in known if toll.verdict.kind not in _DECIDED]
    most = rule.looks[-1]
    if known and not still:
        return _look(whole, tolls, whole, f"every arm is decided{_unwaited(tolls)}")
    if hopeless:
        return _look(whole, tolls, whole, f"nothing can be compared with native: {hopeless}")
    why = f"undecided: {_names(still)}" if still else "nothing can be compared with native yet"
    if whole >= most:
        return _look(whole, tolls, whole, f"all {most} blocks are there; {why}")
    needed = max((_in_blocks(toll, whole) or most for toll in still), default=most)
    return _look(whole, tolls, min(most, max(whole + 1, needed)), why)


def _in_blocks(toll: Toll, whole: int) -> int | None:
    """In how many blocks it would be told; None where that is not known."""
    if toll.ratio is None or toll.verdict.needed is None:
        return None
    return in_blocks(toll.verdict.needed, toll.ratio.n, whole - toll.ratio.n)


def _piloted(rule: Precision, there: int, findings: Findings) -> Look:
    """The number of blocks, computed once, by the ``findings`` of the pilot: the first blocks of the plan, though more
    are ``there`` (after a kill that took the first look away).
    """
    whole, tolls = rule.pilot, findings.answering()
    asks = f"± {exact_percent(rule.half_width)} %"
    pilots = [(toll, pilot) for toll in tolls if (pilot := _spread(toll)) is not None]
    if not pilots:
        why = f"the pilot of {whole} blocks holds no arm with a spread: how many blocks {asks} needs cannot be told"
        told = _hopeless(findings, whole) or "see its failed trials, and begin a new run"
        look = _look(whole, tolls, whole, f"{why}; {told}")
        return look.model_copy(update={"blocks": there})
    # Of each in whole blocks, where n counts pairs.
    each = [(TwoStage(rule).needed(pilot) + whole - pilot.n, toll, pilot) for toll, pilot in pilots]
    needed, toll, pilot = max(each, key=lambda one: one[0])
    name, lost = _name(toll), whole - pilot.n
    by = f"by {name}, which scatters most"
    if lost:
        by = f"by {name}, of which {lost} of the pilot's {whole} blocks hold nothing"
    without = _without(findings, tolls)
    if needed <= rule.most:
        blocks = max(there, needed)
        return _look(whole, tolls, blocks, f"{asks} needs {blocks} blocks, {by}{without}")
    widest = math.expm1(stein_half_width(pilot, max(there, rule.most) - lost)) * 100
    why = (
        f"{asks} would need {needed:,} blocks, {by}, and there are at most "
        f"{rule.most}: these will give about ± {widest:.2g} %; for more, begin a new run with --blocks {needed}"
    )
    return _look(whole, tolls, max(there, rule.most), f"{why}{without}")


def _without(findings: Findings, tolls: Sequence[Toll]) -> str:
    """What gets no interval in a run whose pilot lacks it; "" where it lacks nothing."""
    left_out = _left_out([toll for toll in tolls if _spread(toll) is None], tolls)
    told = f"; no interval in this run, for want of a spread in the pilot: {left_out}" if left_out else ""
    known = [toll for toll in tolls if _spread(toll) is not None]
    lacking = [f"{_name(toll)} under {few}" for toll in known if (few := _lacks(findings, toll))]
    lacking += [f"any arm in probe {probe}" for probe in findings.silent]
    return f"{told}; no interval where later blocks hold what the pilot lacks: {_few(lacking)}" if lacking else told


def _lacks(findings: Findings, toll: Toll) -> str:
    """``1 of 4 conditions``: under which a pilot holds nothing of what a study asks of an arm; "" of none."""
    matrix, over = findings.matrix, findings.over(toll.metric.name)
    asked = [c for c in matrix.conditions_of(toll.metric.name) if c in over and matrix.is_asked(toll.arm, c)]
    return f"{len(asked) - toll.conditions} of {len(asked)} conditions" if toll.conditions < len(asked) else ""


def _narrowed(rule: Precision, whole: int, tolls: Sequence[Toll]) -> Look:
    """The last look: whether the intervals are as narrow as was asked for, where more pairs were lost since."""
    halves = [(half, toll) for toll in tolls if (half := _half(toll)) is not None]
    why = f"the {whole} blocks are there that followed from the pilot of {rule.pilot}"
    half, toll = max(halves, key=lambda one: one[0], default=(0.0, None))
    if toll is not None and half > math.log1p(rule.half_width) * (1 + 1e-9):
        why += f"{WIDEST}± {math.expm1(half) * 100:.2g} %, of {_name(toll)}"
    return _look(whole, tolls, whole, why)


def _look(whole: int, tolls: Sequence[Toll], blocks: int, why: str) -> Look:
    return Look(
        block=whole,
        taken_at=_now(),
        compared=tuple(map(_compared, tolls)),
        blocks=blocks,
        ends=blocks <= whole,
        why=why,
    )


def _compared(toll: Toll) -> Compared:
    return Compared(
        arm=toll.arm.label,
        metric=toll.metric.name,
        ratio=None if toll.ratio is None else toll.ratio.value,
        half_width=_half(toll),
        decided=toll.verdict.kind in _DECIDED,
        words=toll.verdict.words,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _half(toll: Toll) -> float | None:
    """Of the interval, on the logarithmic scale."""
    if toll.ratio is None or toll.ratio.low is None or toll.ratio.high is None or toll.ratio.low <= 0:
        return None
    return math.log(toll.ratio.high / toll.ratio.low) / 2


def _spread(toll: Toll) -> Summary | None:
    """The pilot's summary behind a toll; None where it has no spread."""
    half = _half(toll)
    if toll.ratio is None or not half:
        return None
    n = toll.ratio.n
    return Summary(math.log(toll.ratio.value), half / t_quantile((1 + LEVEL) / 2, n - 1), n)


def _name(toll: Toll) -> str:
    return f"{toll.arm.label} in {toll.metric.title}" if toll.metric.group else toll.arm.label


def _names(tolls: Sequence[Toll]) -> str:
    return _few([_name(toll) for toll in tolls])


def _few(names: Sequence[str]) -> str:
    if not names:
        return ""
    return join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _unwaited(tolls: Sequence[Toll]) -> str:
    unseen = [toll for toll in tolls if toll.ratio is None]
    if not unseen:
        return ""
    one = len(unseen) == 1 or len({toll.arm.label for toll in unseen}) == 1
    return f" ({_left_out(unseen, tolls)} cannot be compared, and {'is' if one else 'are'} not waited for)"


def _left_out(some: Sequence[Toll], tolls: Sequence[Toll]) -> str:
    """Some of the comparisons: an arm alone where they are all that it has, else in what; "" of none."""
    others = {toll.arm.label for toll in tolls if toll not in some}
    return _few(list(dict.fromkeys(_name(toll) if toll.arm.label in others else toll.arm.label for toll in some)))
