"""When a run ends because of what it has found: the rule is made before the first trial, and looks between blocks.

What a look finds is what the report would say at that moment, by the same functions, and is kept: `looks.jsonl`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from virtoll.analysis.estimates import LEVEL, Summary, t_quantile
from virtoll.analysis.ratios import Toll
from virtoll.analysis.rules import TwoStage
from virtoll.analysis.stopping import FIRST_LOOK, stein_half_width
from virtoll.analysis.verdicts import percent
from virtoll.errors import Problem, StudyError
from virtoll.platforms.base import platforms
from virtoll.record.model import Extension, Plan
from virtoll.record.rules import MOST_LOOKS, Compared, Decide, Look, Precision
from virtoll.record.store import RunDirectory
from virtoll.report.findings import find
from virtoll.report.words import join
from virtoll.study.model import Study
from virtoll.study.plan import make_plan
from virtoll.trial.treatment import treatments
from virtoll.units import format_duration

PILOT = 8  # blocks: with 5 the second stage is half as long again, with 10 no shorter
MOST_BLOCKS = 100  # where neither --blocks nor --budget says how many there may be
_DECIDED = ("costs", "gains", "same")


@dataclass(frozen=True)
class Asked:
    """What of a request makes a rule. Both shares are relative: 0.05 for 5 %."""

    decide: float | None = None
    precision: float | None = None
    blocks: int | None = None
    budget_s: float | None = None


def with_room(study: Study, asked: Asked) -> Study:
    """The study with the blocks that a rule may need or a budget may hold, and with the margin that it decides by.

    StudyError for two rules at once; beside neighbours, where no arm is compared with native; and for several servers.
    """
    if asked.blocks is None and (asked.precision is not None or asked.budget_s is not None):
        study = dataclasses.replace(study, blocks=MOST_BLOCKS)
    if asked.decide is None and asked.precision is None:
        return study
    option = "--decide" if asked.decide is not None else "--precision"
    if asked.decide is not None and asked.precision is not None:
        what = "--decide ends a run when arms are told apart, --precision when intervals are narrow: not both"
        raise StudyError([Problem(what, "--decide, --precision", "give the one that you would act on")])
    if any(treatment.neighbour.aggressor for treatment in treatments(study)):
        what = f"{study.name} asks what neighbours do to an arm, and compares none with native"
        raise StudyError([Problem(what, option, "leave it out, or name a study without neighbours")])
    if study.servers:
        what = f"{study.name} sets several services beside each other: no one toll of theirs could end its run"
        raise StudyError([Problem(what, option, "leave it out, or make a study of each service")])
    if asked.decide is not None:
        study = dataclasses.replace(study, margin=asked.decide)
    return study


def with_rule(plan: Plan, asked: Asked) -> Plan:
    """The plan with the rule that was asked for. StudyError where it holds too few blocks for one."""
    block_s = plan.estimate_s / plan.blocks
    if asked.decide is not None:
        if plan.blocks < FIRST_LOOK:
            raise _too_few(plan, "--decide", f"the first look is after {FIRST_LOOK} blocks", 20, FIRST_LOOK * block_s)
        if plan.blocks > MOST_LOOKS:
            what = f"it looks after every block, {MOST_LOOKS:,} times at most, and there may be {plan.blocks:,} blocks"
            raise StudyError([Problem(what, "--decide", f"allow fewer: --blocks {MOST_LOOKS}, or less")])
        rule = Decide(margin=asked.decide, looks=tuple(range(FIRST_LOOK, plan.blocks + 1)))
        return plan.model_copy(update={"rule": rule})
    if asked.precision is not None:
        if plan.blocks <= PILOT:
            raise _too_few(plan, "--precision", f"the pilot alone is {PILOT} blocks", 30, (PILOT + 1) * block_s)
        rule_of_two = Precision(half_width=asked.precision, pilot=PILOT, most=plan.blocks)
        return plan.model_copy(update={"rule": rule_of_two})
    return plan


def _too_few(plan: Plan, option: str, what: str, blocks: int, least_s: float) -> StudyError:
    least = format_duration(least_s * 1e9)
    remedy = f"allow more: --blocks {blocks}, or a --budget of at least {least}"
    return StudyError([Problem(f"{what}, and there are at most {plan.blocks}", option, remedy)])


def refuse_another(plan: Plan, asked: Asked) -> list[Problem]:
    """What is wrong with a rule, or a number of blocks, for a run that is gone on with: only its own will do."""
    rule, problems = plan.rule, []
    own = {
        "--decide": rule.margin if isinstance(rule, Decide) else None,
        "--precision": rule.half_width if isinstance(rule, Precision) else None,
    }
    for option, given in (("--decide", asked.decide), ("--precision", asked.precision)):
        if given is not None and given != own[option]:
            what = f"the rule that ends this run was fixed before its first trial: {in_words(plan)}"
            remedy = "leave it out to go on with this run, or begin a new one from the study"
            problems.append(Problem(what, option, remedy))
    if asked.blocks is not None and asked.blocks != plan.blocks:
        if rule is not None:
            what = f"the rule that ends this run was fixed before its first trial: {in_words(plan)}"
            least, most = (FIRST_LOOK, MOST_LOOKS) if isinstance(rule, Decide) else (PILOT + 1, asked.blocks)
            anew = f", or begin a new one with --blocks {asked.blocks}" if least <= asked.blocks <= most else ""
            remedy = f"leave it out to go on with this run{anew}"
            problems.append(Problem(what, "--blocks", remedy))
        elif asked.blocks < plan.blocks:
            what = f"a run's plan is fixed, and it has {plan.blocks} blocks"
            problems.append(Problem(what, "--blocks", f"leave it out, or ask for more than {plan.blocks} in all"))
    return problems


def in_words(plan: Plan) -> str:
    """What may end a run, for its beginning: a few words."""
    rule = plan.rule
    if isinstance(rule, Decide):
        first, last = rule.looks[0], rule.looks[-1]
        looks = f"looks after {first} to {last} blocks" if first < last else f"one look, after {last} blocks"
        return f"it ends when every arm is decided, different or within {percent(rule.margin * 100)} % ({looks})"
    if isinstance(rule, Precision):
        width = percent(rule.half_width * 100)
        return f"for ± {width} %, the number of blocks is told after a pilot of {rule.pilot} (at most {rule.most})"
    return f"it ends after {plan.blocks} blocks"


def first_look(plan: Plan) -> int | None:
    """After how many blocks; None without a rule."""
    if isinstance(plan.rule, Decide):
        return plan.rule.looks[0]
    return None if plan.rule is None else plan.rule.pilot


def extension(plan: Plan, study: Study, blocks: int) -> Extension | None:
    """What a run lacks of so many blocks in all, drawn on from its own seed; None where it has them.

    StudyError where this virtoll draws another order than the one that planned it.
    """
    if blocks <= plan.blocks:
        return None
    planned = {trial.arm.label for trial in plan.trials}
    arms = [entry.arm for entry in study.arms if entry.arm.label in planned]
    overhead_s = {name: cls.expected_overhead_s for name, cls in platforms().items()}
    longer = dataclasses.replace(study, blocks=blocks, seed=plan.seed)
    whole = make_plan(longer, arms, overhead_s, groups=plan.groups)
    done = len(plan.trials)
    if whole.trials[:done] != plan.trials:
        what = "its seed gives another order than its plan has: it was planned by another virtoll"
        raise StudyError([Problem(what, "--blocks", "begin a new run from the study")])
    return Extension(
        made_at=_now(),
        blocks=blocks,
        trials=whole.trials[done:],
        estimate_s=whole.estimate_s * (1 - plan.blocks / blocks),
    )


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
            return _decided(rule, whole, find(self._directory.path).answering())
        if is_first:
            there = max((record.trial.block for record in self._directory.records()), default=whole)
            return _piloted(rule, max(whole, there), find(self._directory.path, blocks=rule.pilot).answering())
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


def _decided(rule: Decide, whole: int, tolls: Sequence[Toll]) -> Look:
    known = [toll for toll in tolls if toll.ratio is not None]
    still = [toll for toll in known if toll.verdict.kind not in _DECIDED]
    most = rule.looks[-1]
    if known and not still:
        return _look(whole, tolls, whole, f"every arm is decided{_unwaited(tolls)}")
    why = f"undecided: {_names(still)}" if still else "nothing can be compared with native yet"
    if whole >= most:
        return _look(whole, tolls, whole, f"all {most} blocks are there; {why}")
    needed = max((toll.verdict.needed or most for toll in still), default=most)
    return _look(whole, tolls, min(most, max(whole + 1, needed)), why)


def _piloted(rule: Precision, there: int, tolls: Sequence[Toll]) -> Look:
    """The number of blocks, computed once, by the ``tolls`` of the pilot: the first blocks of the plan, though more are
    ``there`` (after a kill that took the first look away).
    """
    whole = rule.pilot
    asks = f"± {percent(rule.half_width * 100)} %"
    pilots = {_name(toll): pilot for toll in tolls if (pilot := _spread(toll)) is not None}
    if not pilots:
        why = f"the pilot of {whole} blocks holds no arm with a spread: how many blocks {asks} needs cannot be told"
        look = _look(whole, tolls, whole, f"{why}; see its failed trials, and begin a new run")
        return look.model_copy(update={"blocks": there})
    lost = {name: whole - pilot.n for name, pilot in pilots.items()}  # whole blocks, and n counts pairs
    needed = {name: TwoStage(rule).needed(pilot) + lost[name] for name, pilot in pilots.items()}
    name = max(needed, key=lambda name: needed[name])
    by = f"by {name}, which scatters most"
    if lost[name]:
        by = f"by {name}, of which {lost[name]} of the pilot's {whole} blocks hold nothing"
    left_out = _left_out([toll for toll in tolls if _spread(toll) is None], tolls)
    without = f"; no interval in this run, for want of a spread in the pilot: {left_out}" if left_out else ""
    if needed[name] <= rule.most:
        blocks = max(there, needed[name])
        return _look(whole, tolls, blocks, f"{asks} needs {blocks} blocks, {by}{without}")
    widest = math.expm1(stein_half_width(pilots[name], max(there, rule.most) - lost[name])) * 100
    why = (
        f"{asks} would need {needed[name]:,} blocks, {by}, and there are at most "
        f"{rule.most}: these will give about ± {widest:.2g} %; for more, begin a new run with --blocks {needed[name]}"
    )
    return _look(whole, tolls, max(there, rule.most), f"{why}{without}")


def _narrowed(rule: Precision, whole: int, tolls: Sequence[Toll]) -> Look:
    """The last look: whether the intervals are as narrow as was asked for, where more pairs were lost since."""
    halves = {_name(toll): half for toll in tolls if (half := _half(toll)) is not None}
    name = max(halves, key=lambda name: halves[name], default="")
    why = f"the {whole} blocks are there that followed from the pilot of {rule.pilot}"
    if name and halves[name] > math.log1p(rule.half_width) * (1 + 1e-9):
        why += f"; the widest interval is ± {math.expm1(halves[name]) * 100:.2g} %, of {name}"
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
