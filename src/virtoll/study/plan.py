"""From a study to a plan: complete blocks, each in an order of its own, drawn from a recorded seed.

A block deploys every arm once under each condition, one condition after another, but for what lives beside it:
conditions that differ in their neighbours alone share a deployment, a trial each, in an order of their own. So do the
cases of a programme. Where a programme explains a service, a block deploys every arm once more for it.

In rotation all arms are deployed beside each other under a condition; that, or each case of a programme, is a turn: a
trial of every arm, measured in turn. Arms that the memory does not hold at once are divided into groups, which follow
one another; the baseline is deployed in each of them.
"""

from __future__ import annotations

import itertools
import math
import random
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from virtoll.errors import Problem, StudyError
from virtoll.record.model import BESIDE, INTENSITIES, LEVELS, PROBE, SERVER, Arm, Plan, PlannedTrial
from virtoll.study.gathering import BUFFERS, EXPLORING, steps
from virtoll.study.model import PLATFORM, Case, Knee, Rotation, Study, settings_of
from virtoll.study.search import DOUBLING, expected_windows, levels, walked
from virtoll.units import enough_time

MOST_TRIALS = 1_000_000  # of a run


def conditions(study: Study, platform: str = "") -> list[dict[str, Any]]:
    """All combinations of factor levels but those excluded for every platform, or for this one, in the study file's
    order; where the knee is searched for, of those that the search does not ask for itself.
    """
    product = itertools.product(*study.factors.values())
    crossed = (_asked(study, dict(zip(study.factors, levels, strict=True))) for levels in product)
    combinations = {repr(combination): combination for combination in crossed}.values()
    return [combination for combination in combinations if not _is_excluded(study, combination, platform)]


def _asked(study: Study, combination: dict[str, Any]) -> dict[str, Any]:
    """What of a combination is asked of a server that is searched for its knee, beside others that are not."""
    if not study.values(combination).get("knee.objective"):
        return combination
    return {path: level for path, level in combination.items() if path not in INTENSITIES}


def _is_excluded(study: Study, condition: Mapping[str, Any], platform: str = "") -> bool:
    """By a rule for all platforms, or for this one."""
    known = {**condition, PLATFORM: platform}
    return any(all(known.get(path) in levels for path, levels in rule.items()) for rule in study.exclude)


def others(study: Study, condition: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The servers that run beside the one of a condition, by name, and the condition that each is itself measured
    under: one that is excluded there runs beside nobody.
    """
    if study.values(condition).get(BESIDE) != "others" or SERVER not in condition:
        return {}
    found = {name: {**condition, SERVER: name} for name in study.servers if name != condition[SERVER]}
    return {name: each for name, each in found.items() if not _is_excluded(study, each)}


def elsewhere(study: Study, condition: Mapping[str, Any], platform: str) -> list[str]:
    """The servers that run beside the one of a condition, and are excluded there on this platform alone."""
    return [name for name, each in others(study, condition).items() if _is_excluded(study, each, platform)]


def cases(study: Study, arm: Arm) -> list[Case]:
    """The cases of the programme that an arm measures: outside instruments stand beside the probes on the baseline."""
    return [case for case in study.programme if not case.instrument or arm.role == "baseline"]


def explaining_condition(study: Study) -> dict[str, Any]:
    """What the probes that explain a service are deployed under: its first condition, but for what is its own, its
    origin's or its load's; the first that no platform is spared, where there is one.
    """
    asked = [_explainable(study, platform) for platform in {entry.arm.platform for entry in study.arms}]
    first = _explainable(study)
    return next((each for each in first if all(each in mine for mine in asked)), first[0] if first else {})


def _explainable(study: Study, platform: str = "") -> list[dict[str, Any]]:
    """What probes could be deployed under to explain a service on this platform; "": on any."""
    return [
        {path: level for path, level in condition.items() if path.partition(".")[0] not in _OF_THE_SERVICE}
        for condition in conditions(study, platform)
    ]


_OF_THE_SERVICE = ("service", "origin", "load", "rotation", "knee")


@dataclass(frozen=True)
class Deployment:
    """One arm, deployed under one condition, and the conditions of the trials that it is for."""

    arm: Arm
    condition: Mapping[str, Any]
    trials: tuple[dict[str, Any], ...]


def deployments(study: Study, arms: Sequence[Arm]) -> list[Deployment]:
    """What a block deploys, each once."""
    only = {entry.arm.label: entry.only for entry in study.arms}
    everywhere = [
        (arm, condition, together)
        for arm in arms
        for condition, together in _shared(
            condition
            for condition in conditions(study, arm.platform)
            if only.get(arm.label, {}).items() <= condition.items()
        )
    ]
    if not study.is_served:
        return [_probed(study, arm, condition, together) for arm, condition, together in everywhere]
    own = [Deployment(arm, condition, tuple(together)) for arm, condition, together in everywhere]
    if not (own and study.is_explained):
        return own
    explaining = explaining_condition(study)
    explained = [arm for arm in arms if explaining in _explainable(study, arm.platform)]
    return [*own, *(_probed(study, arm, explaining, [explaining]) for arm in explained)]


def _shared(among: Iterable[dict[str, Any]]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """What is deployed under these conditions, and the conditions that each is for: all that differ in who lives
    beside it.
    """
    found: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    for condition in among:
        own = {path: level for path, level in condition.items() if path.partition(".")[0] != "neighbour"}
        found.setdefault(repr(own), (own, []))[1].append(condition)
    return list(found.values())


def _probed(study: Study, arm: Arm, condition: Mapping[str, Any], together: Sequence[Mapping[str, Any]]) -> Deployment:
    trials = tuple({**each, **case.condition} for each in together for case in cases(study, arm))
    return Deployment(arm, condition, trials)


_READY_S = 2.0  # before the common start of all loads, where other servers are loaded beside the one measured
_NEIGHBOUR_SHARE = 0.4  # of a platform's overhead: a neighbour has no service, and proves nothing
_PAUSE_S = 0.25  # until viewers have paused; and their server's clock is asked for before the window and after it
_BETWEEN_S = 0.06  # from the end of a window to the next arm's lead-in
# Of a load with browsers: until Chromium runs, and is gone again; and what is ahead of each window's joins, for the
# browsers are told beforehand when it begins.
_CHROMIUM_S, _AHEAD_S = 6.0, 2.0


def deployment_seconds(study: Study, deployment: Deployment, overhead_s: float) -> float:
    """A generous estimate of its wall time: its windows' bounds, warm-up and its platform's overhead; and of each
    neighbour's.
    """
    trials_s = sum(_trial_seconds(study, condition) for condition in deployment.trials)
    neighbours = sum(1 for condition in deployment.trials if study.values(condition).get("neighbour.aggressor"))
    servers = [len(others(study, condition)) for condition in deployment.trials]
    starts_s = _READY_S * sum(count > 0 for count in servers)
    return trials_s + starts_s + overhead_s * (1 + neighbours * _NEIGHBOUR_SHARE + sum(servers))


def _trial_seconds(study: Study, condition: Mapping[str, Any]) -> float:
    """A generous estimate of the time of its windows, its warm-up, and what it waits for in between."""
    if PROBE in condition:
        return study.case(condition).expected_s
    values = study.values(condition)
    windows = 1 if study.design == "blocks" else settings_of(Rotation, "rotation", values).rounds
    return _load_seconds(study, values) + _browsers_seconds(values, len(values.get(LEVELS) or range(windows)))


def _browsers_seconds(values: Mapping[str, Any], windows: int) -> float:
    """What browsers add to so many windows; of a search, to as many as it takes."""
    if not values.get("load.browsers"):
        return 0.0
    if values.get("knee.objective"):
        windows = search_windows(settings_of(Knee, "knee", values))
    return _CHROMIUM_S + _AHEAD_S * windows


def _load_seconds(study: Study, values: Mapping[str, Any]) -> float:
    """Of its windows, its warm-up, and its users' joins."""
    warm_up_ns = values.get("load.warm_up_ns") or 0
    # Each window has viewers of its own, who join one after another, and settle; so has a warm-up, if there is one.
    joins_ns, settle_ns = _joins_ns(values), values.get("load.settle_ns") or 0
    warm_up_ns += joins_ns if warm_up_ns else 0
    if values.get("knee.objective"):
        rotation = settings_of(Rotation, "rotation", values) if study.design == "rotation" else None
        return _search_seconds(settings_of(Knee, "knee", values), rotation, values)
    if levels := values.get(LEVELS):
        return float(len(levels) * ((values.get("load.time_limit_ns") or 0) + settle_ns) + joins_ns) / 1e9
    if study.design == "blocks":
        return float((values.get("load.time_limit_ns") or 0) + warm_up_ns + joins_ns + settle_ns) / 1e9
    rotation = settings_of(Rotation, "rotation", values)
    turn_s, between_s = rotation.turn_ns / 1e9, _BETWEEN_S
    if values.get("load.pause"):  # who is there stays
        warm_up_ns, between_s = warm_up_ns + joins_ns + settle_ns, between_s + _PAUSE_S
    elif "load.settle_ns" in values:
        turn_s = (rotation.window_ns + joins_ns + settle_ns) / 1e9
    return float(warm_up_ns / 1e9 + rotation.rounds * (turn_s + between_s))


def watched_seconds(study: Study, condition: Mapping[str, Any]) -> float:
    """For how long a trial is watched at the most, about: all but its warm-up (in rotation, of all arms), room for what
    drains, and for a search or a probe that takes longer than others.
    """
    lasts_s = _trial_seconds(study, condition if PROBE in condition else {**condition, "load.warm_up_ns": 0})
    if study.design == "rotation":
        lasts_s = len(study.arms) * (lasts_s + _slower_seconds(study, condition))
    is_known = PROBE not in condition and not study.values(condition).get("knee.objective")
    return _DRAINS_S + lasts_s * (1.05 if is_known else 2)


_DRAINS_S = 120.0


def _slower_seconds(study: Study, condition: Mapping[str, Any]) -> float:
    """How much longer than `_trial_seconds` an arm takes in a rotation at the most, if it is as slow as can be: of what
    is asked for one by one, whose windows follow its pace.
    """
    values = study.values(condition)
    if PROBE in condition or values.get("knee.objective") or "load.settle_ns" in values:
        return 0.0
    rotation = settings_of(Rotation, "rotation", values)
    longest_ns = rotation.longest_ns + max(rotation.lead_in_ns, rotation.longest_ns)
    return float(rotation.rounds * (longest_ns - rotation.turn_ns)) / 1e9


def _joins_ns(values: Mapping[str, Any]) -> float:
    """How long it takes until all are there, viewers or participants, one after another."""
    levels = values.get(LEVELS) or (0,)
    users = values.get("load.viewers") or max(levels) or values.get("load.participants") or 0
    return float((values.get("load.join_ns") or 0) / (values.get("load.compression") or 1) * users)


_OF_A_WINDOW_S = 0.3  # of a search: a generator's start, and what drains


def search_windows(knee: Knee, exploring: float = DOUBLING) -> int:
    """About how many windows a search takes (`search.search`)."""
    intensities = levels(knee.least, max(knee.least, knee.most), knee.precision_share, whole=False)
    return expected_windows(intensities, knee.windows, exploring)


def _search_seconds(knee: Knee, rotation: Rotation | None, values: Mapping[str, Any]) -> float:
    """Of a search for the knee: on the average over where it may lie, where users join one after another."""
    before_s = (values.get("load.warm_up_ns") or 0) / 1e9
    if "load.settle_ns" in values:
        ratio, stays = max(1.0, knee.most / knee.least), rotation is None and "load.churn_share" in values
        knees = [knee.least * ratio ** ((number + 0.5) / _KNEES) for number in range(_KNEES)]
        return before_s + fmean(_crowds_seconds(knee, at, values, stays=stays) for at in knees)
    window_s = knee.window_ns / 1e9 + _OF_A_WINDOW_S
    if rotation is not None:
        window_s += rotation.lead_in_ns / 1e9 + _BETWEEN_S
    if values.get("generators.count", 1) > 1:
        window_s += _TO_AGREE_S
    return before_s + search_windows(knee) * window_s


_TO_AGREE_S = 0.25  # on when a window of several generators begins
_KNEES = 8  # as many places of a knee, at equal ratios


def _crowds_seconds(knee: Knee, at: float, values: Mapping[str, Any], *, stays: bool) -> float:
    """Of the windows of a search for a knee that lies ``at`` so many users. They join and settle anew for each window;
    those who stay do so where they are more, or fewer. Viewers gather as fast as they are served (`study.gathering`);
    half of those who were too many stay, and whom these made wait for their first picture are waited for, as long as
    their patience lasts.
    """
    every_s = values["load.join_ns"] / 1e9 / (values.get("load.compression") or 1)
    settle_s, window_s = values["load.settle_ns"] / 1e9, knee.window_ns / 1e9 + _OF_A_WINDOW_S
    intensities = levels(knee.least, max(knee.least, knee.most), knee.precision_share, whole=True)
    watches = "load.churn_share" in values
    gathers = watches and values.get("load.paced", True)
    recovers = stays and gathers and not values.get("load.pause")
    late_s = values["load.patience_ns"] / 1e9 if watches else 0.0
    late_s += BUFFERS * values["load.buffer_ns"] / 1e9 if gathers else 0.0
    there = seconds = 0.0
    for users, is_met in walked(intensities, knee.windows, at, EXPLORING if gathers else DOUBLING):
        if users != there:
            seconds += max(0.0, users - there) * every_s + settle_s
            seconds += _gathers_s(there, users, at, values) if gathers else 0.0
        seconds += window_s if is_met else window_s + late_s
        there = users if stays and is_met else users // 2 if recovers else 0.0
    return seconds


def _gathers_s(there: float, users: float, at: float, values: Mapping[str, Any]) -> float:
    """How long it takes until as many have full buffers, of a service that could serve few more than ``at``: those who
    come besides fill theirs with what the others leave of what it can deliver.
    """
    most = 1.1 * at
    left = (most - min(users, at)) / (most - min(there, at))
    filled_s = -math.log(left) * values["load.buffer_ns"] / 1e9
    settles_s = float(values["load.settle_ns"]) / 1e9  # once more
    return float(steps(round(there), round(users)) * _LOOKS_S + filled_s + settles_s)


_LOOKS_S = 0.3  # of a step: its look, what is ahead of it, and one more where they have not settled


def make_plan(
    study: Study,
    arms: Sequence[Arm],
    overhead_s: Mapping[str, float],
    *,
    budget_s: float | None = None,
    groups: Sequence[Collection[str]] = (),
) -> Plan:
    """Randomised complete blocks: every arm meets every condition once a block, the baseline once a group.

    ``overhead_s``: expected seconds beside the window, by platform. With a budget the number of blocks is what
    fits, at most the study's own; StudyError when not even two do, or when there are more trials than a run may have.
    ``groups``: the labels of the arms that stand together, the baseline left out, where a rotation's arms cannot all.
    """
    block = _grouped(deployments(study, arms), groups)
    deployed = [deployment for group in block for deployment in group]
    _expect_all(arms, deployed)
    block_s = sum(deployment_seconds(study, each, overhead_s[each.arm.platform]) for each in deployed)
    blocks = study.blocks
    if budget_s is not None:
        blocks = min(blocks, int(budget_s / block_s))
        if blocks < 2:
            raise StudyError(
                [
                    Problem(
                        f"a budget of {budget_s:.0f} s holds fewer than two blocks of about {block_s:.0f} s",
                        "--budget",
                        f"allow at least {enough_time(2 * block_s)}, or take fewer platforms or levels",
                    )
                ]
            )
    if what := too_many(blocks * sum(len(each.trials) for each in deployed)):
        raise StudyError([Problem(what, "blocks", "take fewer blocks, arms or levels")])
    seed = study.seed if study.seed is not None else a_seed()
    trials = _randomised(study, block, blocks, seed)
    return Plan(seed=seed, blocks=blocks, trials=trials, estimate_s=blocks * block_s)


def too_many(trials: int) -> str:
    """Why a run may not have so many; "" where it may."""
    return f"{trials:,} trials would be planned, and {MOST_TRIALS:,} are the most" if trials > MOST_TRIALS else ""


def _expect_all(arms: Sequence[Arm], deployed: Sequence[Deployment]) -> None:
    """StudyError for arms of which the rules of exclusion leave nothing."""
    there = {deployment.arm.label for deployment in deployed}
    if missing := [arm.label for arm in arms if arm.label not in there]:
        whose = f" of {', '.join(missing)}" if there else ""
        raise StudyError([Problem(f"nothing{whose} is left to measure", "[[exclude]]", "exclude fewer conditions")])


def a_seed() -> int:
    """One for a study that names none."""
    return secrets.randbits(32)


def _grouped(deployed: Sequence[Deployment], groups: Sequence[Collection[str]]) -> list[list[Deployment]]:
    """What stands together: all, or group by group with a baseline of its own, for what the others are asked there.

    What the baseline alone is asked, it is asked in the first group.
    """
    if not groups:
        return [list(deployed)]
    grouped = []
    for number, group in enumerate(groups):
        others = [each for each in deployed if each.arm.label in group]
        asked = [condition for each in others for condition in each.trials]
        elsewhere = [condition for each in deployed if each.arm.role != "baseline" for condition in each.trials]
        natives = [
            replace(each, trials=tuple(t for t in each.trials if t in asked or (number == 0 and t not in elsewhere)))
            for each in deployed
            if each.arm.role == "baseline"
        ]
        grouped.append([*(native for native in natives if native.trials), *others])
    return grouped


@dataclass(frozen=True)
class _Drawn:
    """A trial in its place in a block; ``turn``: the number of its turn, ``group`` of its group, 0 for none."""

    deployment: Deployment
    condition: dict[str, Any]
    turn: int = 0
    group: int = 0


def _randomised(study: Study, grouped: Sequence[Sequence[Deployment]], blocks: int, seed: int) -> list[PlannedTrial]:
    shuffler = random.Random(seed)
    draw = _in_rotation if study.design == "rotation" else _one_by_one
    trials: list[PlannedTrial] = []
    number = 0
    for block in range(1, blocks + 1):
        numbers: dict[int, int] = {}
        for drawn in draw(grouped, shuffler):
            if id(drawn.deployment) not in numbers:
                number += 1
                numbers[id(drawn.deployment)] = number
            position = len(trials) + 1
            trials.append(
                PlannedTrial(
                    id=f"b{block:02d}-t{position:04d}",
                    block=block,
                    position=position,
                    arm=drawn.deployment.arm,
                    condition=drawn.condition,
                    turn=f"b{block:02d}-r{drawn.turn:04d}" if drawn.turn else "",
                    group=drawn.group,
                    deployment=f"b{block:02d}-d{numbers[id(drawn.deployment)]:04d}",
                )
            )
    return trials


def _one_by_one(grouped: Sequence[Sequence[Deployment]], shuffler: random.Random) -> Iterator[_Drawn]:
    """Each deployment by itself, its trials in a row; one condition after another, so that what is compared with each
    other is measured within minutes.
    """
    (group,) = grouped
    for deployed in shuffler.sample(together := _together(group), len(together)):
        for deployment in shuffler.sample(deployed, len(deployed)):
            for condition in shuffler.sample(deployment.trials, len(deployment.trials)):
                yield _Drawn(deployment, condition)


def _in_rotation(grouped: Sequence[Sequence[Deployment]], shuffler: random.Random) -> Iterator[_Drawn]:
    """All arms of a group beside each other; what any of them is asked is a turn of all that are."""
    turn = 0
    numbers = list(range(len(grouped)))
    for number in shuffler.sample(numbers, len(numbers)) if len(numbers) > 1 else numbers:
        for deployed, condition in _turns(grouped[number], shuffler):
            turn += 1
            for deployment in shuffler.sample(deployed, len(deployed)):
                if condition in deployment.trials:
                    yield _Drawn(deployment, condition, turn, number + 1 if len(numbers) > 1 else 0)


def _turns(
    group: Sequence[Deployment], shuffler: random.Random
) -> Iterator[tuple[Sequence[Deployment], dict[str, Any]]]:
    """What is deployed beside each other, and each condition that some of it is asked."""
    for deployed in shuffler.sample(together := _together(group), len(together)):
        asked = {str(condition): condition for deployment in deployed for condition in deployment.trials}
        for condition in shuffler.sample(list(asked.values()), len(asked)):
            yield deployed, condition


def _together(group: Sequence[Deployment]) -> list[list[Deployment]]:
    """What is deployed under one condition, for a service or for probes."""
    found: dict[str, list[Deployment]] = {}
    for deployment in group:
        is_probed = any(PROBE in condition for condition in deployment.trials)
        found.setdefault(f"{is_probed} {deployment.condition}", []).append(deployment)
    return list(found.values())


def with_only(study: Study, platforms: Sequence[str]) -> Study:
    """The study with just these platforms (and always its native baseline)."""
    known = {entry.arm.platform for entry in study.arms}
    missing = [name for name in platforms if name not in known]
    if missing:
        remedy = f"it has: {', '.join(sorted(known))}; `virtoll list platforms` shows those that it can be given"
        raise StudyError(
            [Problem(f"{name!r} is no platform of study {study.name!r}", "--platforms", remedy) for name in missing]
        )
    kept = tuple(entry for entry in study.arms if entry.arm.platform in platforms or entry.arm.role != "treatment")
    return replace(study, arms=kept)
