"""The rule that may end a run, as it is asked for: made before the first trial, and fixed from then on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime

from virtoll.errors import Problem, StudyError
from virtoll.platforms.base import expected_overheads_s
from virtoll.record.model import Extension, Plan
from virtoll.record.rules import FIRST_LOOK, MOST_LOOKS, Decide, Precision
from virtoll.study.model import Study
from virtoll.study.plan import make_plan
from virtoll.trial.treatment import treatments
from virtoll.units import enough_time, exact_percent

PILOT = 8  # blocks: with 5 the second stage is half as long again, with 10 no shorter
_SLOWER = 1.05  # than those before may a block be that is begun in the last moment
MOST_BLOCKS = 100  # where --blocks does not say how many there may be; a budget may hold fewer


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
    remedy = f"allow more: --blocks {blocks}, or a --budget of at least {enough_time(least_s)}"
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
        elif asked.blocks < plan.blocks and not plan.hosts:  # of several hosts none is extended, either
            what = f"a run's plan is fixed, and it has {plan.blocks} blocks"
            problems.append(Problem(what, "--blocks", f"leave it out, or ask for more than {plan.blocks} in all"))
    return problems


def in_words(plan: Plan) -> str:
    """What may end a run, for its beginning: a few words."""
    rule = plan.rule
    if isinstance(rule, Decide):
        first, last = rule.looks[0], rule.looks[-1]
        looks = f"looks after {first} to {last} blocks" if first < last else f"one look, after {last} blocks"
        return f"it ends when every arm is decided, different or within {exact_percent(rule.margin)} % ({looks})"
    if isinstance(rule, Precision):
        width = exact_percent(rule.half_width)
        return f"for ± {width} %, the number of blocks is told after a pilot of {rule.pilot} (at most {rule.most})"
    return f"it ends after {plan.blocks} blocks"


def first_look(plan: Plan) -> int | None:
    """After how many blocks; None without a rule."""
    if isinstance(plan.rule, Decide):
        return plan.rule.looks[0]
    return None if plan.rule is None else plan.rule.pilot


def in_time_left(plan: Plan, study: Study, left_s: float, trial_s: float) -> Extension | None:
    """The blocks that a budget has time for beyond those that were expected to fit, at the pace of those that are done:
    half of them, or the last, so that none of them is cut short; None where there are none, or a rule ends the run.
    """
    if plan.rule is not None or any(entry.values for entry in study.arms):
        return None
    fit = int(left_s / (_SLOWER * trial_s * len(plan.trials) / plan.blocks))
    blocks = min(study.blocks, plan.blocks + max(fit // 2, min(fit, 1)))
    more = extension(plan, study, blocks)
    return None if more is None else more.model_copy(update={"by_time": True})


def extension(plan: Plan, study: Study, blocks: int) -> Extension | None:
    """What a run lacks of so many blocks in all, drawn on from its own seed; None where it has them.

    StudyError where this virtoll draws another order than the one that planned it, and of a calibration.
    """
    if blocks <= plan.blocks:
        return None
    if any(entry.values for entry in study.arms):  # costs that are known: no study file can ask for them
        what = "a calibration is not extended: what it says holds for a number of blocks that was fixed beforehand"
        raise StudyError([Problem(what, "--blocks", "leave it out to go on with this one, or begin a new one")])
    planned = {trial.arm.label for trial in plan.trials}
    arms = [entry.arm for entry in study.arms if entry.arm.label in planned]
    longer = dataclasses.replace(study, blocks=blocks, seed=plan.seed)
    whole = make_plan(longer, arms, expected_overheads_s(), groups=plan.groups)
    done = len(plan.trials)
    if whole.trials[:done] != plan.trials:
        what = "its seed gives another order than its plan has: it was planned by another virtoll"
        raise StudyError([Problem(what, "--blocks", "begin a new run from the study")])
    return Extension(
        made_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        blocks=blocks,
        trials=whole.trials[done:],
        estimate_s=whole.estimate_s * (1 - plan.blocks / blocks),
    )
