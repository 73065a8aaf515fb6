"""From a study to a plan: complete blocks, each in an order of its own, drawn from a recorded seed.

A block deploys every arm under every condition once. A load's deployment is one trial; a programme's is one trial for
each of its cases, in an order of their own.
"""

from __future__ import annotations

import itertools
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from virtoll.errors import Problem, StudyError
from virtoll.record.model import Arm, Plan, PlannedTrial
from virtoll.study.model import Case, Study


def conditions(study: Study) -> list[dict[str, Any]]:
    """All combinations of factor levels that no exclusion rule matches, in the study file's order."""
    combinations = [
        dict(zip(study.factors, levels, strict=True)) for levels in itertools.product(*study.factors.values())
    ]
    return [
        combination
        for combination in combinations
        if not any(all(combination.get(path) == value for path, value in rule.items()) for rule in study.exclude)
    ]


def cases(study: Study, arm: Arm) -> list[Case]:
    """The cases of the programme that an arm measures: outside instruments stand beside the probes on the baseline."""
    return [case for case in study.programme if not case.instrument or arm.role == "baseline"]


def deployment_seconds(study: Study, arm: Arm, condition: Mapping[str, Any], overhead_s: float) -> float:
    """A generous estimate of one deployment's wall time: its windows' bounds, warm-up and its platform's overhead."""
    values = study.values(condition)
    window_ns = sum(value or 0 for path, value in values.items() if path in _WINDOW_PATHS)
    return float(window_ns) / 1e9 + sum(case.expected_s for case in cases(study, arm)) + overhead_s


_WINDOW_PATHS = ("load.time_limit_ns", "load.warm_up_ns")


def make_plan(
    study: Study, arms: Sequence[Arm], overhead_s: Mapping[str, float], *, budget_s: float | None = None
) -> Plan:
    """Randomised complete blocks: every arm under every condition deployed once a block.

    ``overhead_s``: expected seconds beside the window, by platform. With a budget the number of blocks is what
    fits, at most the study's own; StudyError when not even two do.
    """
    treatments = [(arm, condition) for arm in arms for condition in conditions(study)]
    if not treatments:
        raise StudyError([Problem("nothing is left to measure", "[[exclude]]", "exclude fewer conditions")])
    block_s = sum(deployment_seconds(study, arm, condition, overhead_s[arm.platform]) for arm, condition in treatments)
    blocks = study.blocks
    if budget_s is not None:
        blocks = min(blocks, int(budget_s / block_s))
        if blocks < 2:
            raise StudyError(
                [
                    Problem(
                        f"a budget of {budget_s:.0f} s holds fewer than two blocks of about {block_s:.0f} s",
                        "--budget",
                        f"allow at least {2 * block_s:.0f} s, or take fewer platforms or levels",
                    )
                ]
            )
    seed = study.seed if study.seed is not None else secrets.randbits(32)
    trials = _randomised(study, treatments, blocks, seed)
    return Plan(seed=seed, blocks=blocks, trials=trials, estimate_s=blocks * block_s)


def _randomised(
    study: Study, treatments: Sequence[tuple[Arm, dict[str, Any]]], blocks: int, seed: int
) -> list[PlannedTrial]:
    shuffler = random.Random(seed)
    trials: list[PlannedTrial] = []
    deployments = 0
    for block in range(1, blocks + 1):
        for arm, condition in shuffler.sample(treatments, len(treatments)):
            deployments += 1
            mine = [dict(case.condition) for case in cases(study, arm)] if study.programme else [{}]
            for case in shuffler.sample(mine, len(mine)):
                position = len(trials) + 1
                trials.append(
                    PlannedTrial(
                        id=f"b{block:02d}-t{position:04d}",
                        block=block,
                        position=position,
                        arm=arm,
                        condition={**condition, **case},
                        deployment=f"b{block:02d}-d{deployments:04d}",
                    )
                )
    return trials


def with_only(study: Study, platforms: Sequence[str]) -> Study:
    """The study with just these platforms (and always its native baseline)."""
    known = {entry.arm.platform for entry in study.arms}
    missing = [name for name in platforms if name not in known]
    if missing:
        remedy = f"it has: {', '.join(sorted(known))}"
        raise StudyError(
            [Problem(f"{name!r} is no platform of study {study.name!r}", "--platforms", remedy) for name in missing]
        )
    kept = tuple(entry for entry in study.arms if entry.arm.platform in platforms or entry.arm.role != "treatment")
    return replace(study, arms=kept)
