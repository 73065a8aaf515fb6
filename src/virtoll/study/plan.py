"""From a study to a plan: complete blocks, each in an order of its own, drawn from a recorded seed.

A block deploys every arm under every condition once. A load's deployment is one trial; a programme's is one trial for
each of its cases, in an order of their own. Where a programme explains a service, a block deploys every arm once more
for it.
"""

from __future__ import annotations

import itertools
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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


def explaining_condition(study: Study) -> dict[str, Any]:
    """What the probes that explain a service are deployed under: its first condition, but for what is its own, its
    origin's or its load's.
    """
    first = next(iter(conditions(study)), {})
    return {path: level for path, level in first.items() if path.partition(".")[0] not in _OF_THE_SERVICE}


_OF_THE_SERVICE = ("service", "origin", "load")


@dataclass(frozen=True)
class Deployment:
    """One arm, deployed under one condition, for a trial of a service under its load, or for one of each case."""

    arm: Arm
    condition: Mapping[str, Any]
    cases: tuple[Case, ...] = ()


def deployments(study: Study, arms: Sequence[Arm]) -> list[Deployment]:
    """What a block deploys, each once."""
    everywhere = [(arm, condition) for arm in arms for condition in conditions(study)]
    if not study.service:
        return [Deployment(arm, condition, tuple(cases(study, arm))) for arm, condition in everywhere]
    own = [Deployment(arm, condition) for arm, condition in everywhere]
    if not (own and study.is_explained):
        return own
    return own + [Deployment(arm, explaining_condition(study), tuple(cases(study, arm))) for arm in arms]


def deployment_seconds(study: Study, deployment: Deployment, overhead_s: float) -> float:
    """A generous estimate of its wall time: its windows' bounds, warm-up and its platform's overhead."""
    if deployment.cases:
        return sum(case.expected_s for case in deployment.cases) + overhead_s
    values = study.values(deployment.condition)
    window_ns = sum(value or 0 for path, value in values.items() if path in _WINDOW_PATHS)
    return float(window_ns) / 1e9 + overhead_s


_WINDOW_PATHS = ("load.time_limit_ns", "load.warm_up_ns")


def make_plan(
    study: Study, arms: Sequence[Arm], overhead_s: Mapping[str, float], *, budget_s: float | None = None
) -> Plan:
    """Randomised complete blocks: every arm under every condition deployed once a block.

    ``overhead_s``: expected seconds beside the window, by platform. With a budget the number of blocks is what
    fits, at most the study's own; StudyError when not even two do.
    """
    block = deployments(study, arms)
    if not block:
        raise StudyError([Problem("nothing is left to measure", "[[exclude]]", "exclude fewer conditions")])
    block_s = sum(deployment_seconds(study, each, overhead_s[each.arm.platform]) for each in block)
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
    trials = _randomised(block, blocks, seed)
    return Plan(seed=seed, blocks=blocks, trials=trials, estimate_s=blocks * block_s)


def _randomised(deployed: Sequence[Deployment], blocks: int, seed: int) -> list[PlannedTrial]:
    shuffler = random.Random(seed)
    trials: list[PlannedTrial] = []
    number = 0
    for block in range(1, blocks + 1):
        for deployment in shuffler.sample(deployed, len(deployed)):
            number += 1
            mine = [dict(case.condition) for case in deployment.cases] or [{}]
            for case in shuffler.sample(mine, len(mine)):
                position = len(trials) + 1
                trials.append(
                    PlannedTrial(
                        id=f"b{block:02d}-t{position:04d}",
                        block=block,
                        position=position,
                        arm=deployment.arm,
                        condition={**deployment.condition, **case},
                        deployment=f"b{block:02d}-d{number:04d}",
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
