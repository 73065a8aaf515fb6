"""An objective ("latency_p99 < 200 ms") held against what was measured: by an arm's intervals, under each condition.

It is *met* where the 95 % interval lies wholly on its good side under every condition that was planned, *missed* where
it lies wholly on the other under any, and else nobody can tell. The intervals are the plain ones of absolute values:
means over deployments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Estimate, Summary
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import AT_KNEE, AT_LEAST, KNEE, Metric
from virtoll.analysis.rules import rule_of
from virtoll.record.knee import Objective
from virtoll.record.model import Arm, Quantity
from virtoll.record.objective import parse_of, short

Told = Literal["met", "missed", "cannot tell", "not measured"]

_ORDER: tuple[Told, ...] = ("missed", "not measured", "cannot tell", "met")  # which condition speaks for all
_LATENCY_WORDS = {label: f"latency_{label}_ms" for label in ("p50", "p90", "p99", "p999", "max")}
MOST_BLOCKS = 1000


@dataclass(frozen=True)
class Held:
    """What one objective says of an arm, and by which condition: the one that is worst for it."""

    objective: Objective
    told: Told
    condition: Condition | None = None
    estimate: Estimate | None = None
    why: str = ""  # where there is no estimate
    conditions: int = 0  # how many were looked at
    needed: int | None = None  # blocks in all, about, by which the interval would be narrow enough


def objective_of(text: str, metrics: Mapping[str, Metric]) -> Objective:
    """An objective in the metrics that these runs have. ValueError names them where it is in none of them, or where
    several probes, or loads, have one of that name.
    """
    there, words = {}, {word: name for word, name in _LATENCY_WORDS.items() if name in metrics}
    for name, metric in metrics.items():
        if metric.better is not None:
            there[name] = Quantity(metric.title, metric.unit, metric.better)
            for word in _words(name, metric):
                words.setdefault(word, name)
    found = parse_of(text, there, words)
    word = text.split("<", maxsplit=1)[0].split(">", maxsplit=1)[0].strip()
    of_its_unit = (name for name, quantity in there.items() if quantity.unit == found.unit)
    of = [name for name in of_its_unit if word in _words(name, metrics[name])]
    if word not in there and len(of) > 1:
        raise AmbiguousError(f"{text!r}: {word!r} may be any of {', '.join(of)}: write one of these")
    return found


class AmbiguousError(ValueError):
    """An objective's word stands for several metrics of its unit."""


def _words(name: str, metric: Metric) -> tuple[str, str, str]:
    """What stands for a metric: its name without its load's, or probe's; the same without its unit; and as reports call
    it, where that is one word ("throughput").
    """
    own = name.partition(".")[2] or name
    return own, short(own), metric.title.lower()


def held(matrix: Matrix, objective: Objective, arm: Arm) -> Held:
    """The worst of an arm's conditions; *not measured* where the metric was planned in none of them."""
    conditions = [c for c in matrix.may_tell(objective.metric) if matrix.is_asked(arm, c)]
    if not conditions:
        return Held(objective, "not measured", why="the study does not ask it of this arm")
    each = [_under(matrix, objective, arm, condition) for condition in conditions]
    worst = min(each, key=lambda one: (_ORDER.index(one.told), -_beyond(one)))
    return Held(objective, worst.told, worst.condition, worst.estimate, worst.why, len(each), worst.needed)


def _beyond(one: Held) -> float:
    """How far a value lies on the bad side of its bound; negative on the good one."""
    if one.estimate is None:
        return 0.0
    far = one.estimate.value - one.objective.bound
    return far if one.objective.better == "less" else -far


def _under(matrix: Matrix, objective: Objective, arm: Arm, condition: Condition) -> Held:
    one = _of_valid(matrix, objective, arm, condition)
    why = _why_some_alone(matrix, objective, arm, condition, one.told)
    return replace(one, told="cannot tell", why=why) if why else one


def _why_some_alone(matrix: Matrix, objective: Objective, arm: Arm, condition: Condition, told: Told) -> str:
    """Why a value that met its bound, or missed it, is of some deployments alone. Where the service failed its users in
    others, which are not valid, it is of the better ones. Where knees are bounds, of the slower ones or the faster.
    """
    if objective.metric == "deploy_s":
        return ""
    if told == "met" and (failed := matrix.failed(arm, condition)):
        return f"the service {failed}"
    if told not in ("met", "missed") or objective.metric not in AT_KNEE:
        return ""
    bounds, made = matrix.barred(objective.metric, arm, condition)
    return f"in {bounds} of {made} trials its knee is a bound" if bounds else ""


def _of_valid(matrix: Matrix, objective: Objective, arm: Arm, condition: Condition) -> Held:
    if matrix.censored(objective.metric, arm, condition)[0]:
        return _of_censored(matrix, objective, arm, condition)
    estimate = matrix.absolute(objective.metric, arm, condition)
    if estimate is None:
        why = matrix.why_missing(objective.metric, arm, condition) or "no valid trial tells it"
        return Held(objective, "not measured", condition, why=why)
    if estimate.low is None or estimate.high is None:
        return _without_interval(matrix, objective, condition, estimate)
    return _by_interval(objective, condition, estimate)


def _by_interval(objective: Objective, condition: Condition, estimate: Estimate) -> Held:
    assert estimate.low is not None
    assert estimate.high is not None
    is_at_its_end = estimate.value == 0 or (objective.unit == "%" and estimate.value == 100)
    if math.isclose(estimate.low, estimate.high) and not is_at_its_end:  # but for what adding them up rounds
        why = "all blocks say the same, which is no measure of chance"
        return Held(objective, "cannot tell", condition, estimate, why, needed=estimate.n + 1)
    good, bad = (estimate.high, estimate.low) if objective.better == "less" else (estimate.low, estimate.high)
    if objective.is_met(good):
        return Held(objective, "met", condition, estimate)
    if not objective.is_met(bad):
        return Held(objective, "missed", condition, estimate)
    return Held(objective, "cannot tell", condition, estimate, needed=_needed(estimate, objective.bound))


def _without_interval(matrix: Matrix, objective: Objective, condition: Condition, estimate: Estimate) -> Held:
    """Of one block; or of several hosts of which some lack it, however many blocks there are."""
    if len(set(matrix.hosts)) < 2:
        return Held(objective, "cannot tell", condition, estimate, "one block has no interval", needed=2)
    why = rule_of(matrix.run.plan).lacks(Summary(estimate.value, math.nan, estimate.n))
    return Held(objective, "cannot tell", condition, estimate, why)


def _needed(estimate: Estimate, bound: float) -> int | None:
    """Blocks by which an interval of the same spread would no longer hold the bound; None: of no help within reason."""
    apart, half = abs(estimate.value - bound), estimate.half_width
    if half is None or apart * math.sqrt(MOST_BLOCKS / estimate.n) <= half:
        return None
    return math.ceil(estimate.n * (half / apart) ** 2) + 1


def _of_censored(matrix: Matrix, objective: Objective, arm: Arm, condition: Condition) -> Held:
    """Values that are only known to lie beyond any that was seen; one block decides nothing, as of any other value."""
    told = {KNEE: _of_bounds, **dict.fromkeys(AT_LEAST, _of_least)}
    one = told.get(objective.metric, _of_failed)(matrix, objective, arm, condition)
    known = [*matrix.across(arm, condition).values(), *matrix.silent(objective.metric, arm, condition)]
    blocks = {trial.record.trial.block for trial in known}
    return one if len(blocks) > 1 else replace(one, told="cannot tell", why=f"{one.why} (one block)", needed=2)


def _of_failed(matrix: Matrix, objective: Objective, arm: Arm, condition: Condition) -> Held:
    censored, trials = matrix.censored(objective.metric, arm, condition)
    why = f"in {censored} of {trials} trials it {matrix.metrics[objective.metric].censoring}: worse than any value"
    is_known = not any(objective.metric in cell.unplaced for cell in matrix.across(arm, condition).values())
    return Held(objective, "missed" if censored == trials and is_known else "cannot tell", condition, why=why)


def _of_least(matrix: Matrix, objective: Objective, arm: Arm, condition: Condition) -> Held:
    """Hosts of which some were not full: met where what each was seen to hold meets it, and missed nowhere."""
    metric, cells = objective.metric, matrix.across(arm, condition).values()
    bounds, made = matrix.censored(metric, arm, condition)
    least = min((cell.values.get(metric, cell.values.get(AT_LEAST[metric], 0.0)) for cell in cells), default=0.0)
    why = f"in {bounds} of {made} trials it {matrix.metrics[metric].censoring}: all held at least {least:,.4g}"
    return Held(objective, "met" if objective.is_met(least) else "cannot tell", condition, why=why)


def _some(count: int, of: int) -> str:
    return f" in {count} of {of} trials" if count < of else ""


def _of_bounds(matrix: Matrix, objective: Objective, arm: Arm, condition: Condition) -> Held:
    """Searches that ended at a bound: each block's knee lies at or above its lower one, and below its upper one; what
    did not answer beside other servers has none.
    """
    silent = len(matrix.silent(objective.metric, arm, condition))
    measured = (cell.record.measured for cell in matrix.across(arm, condition).values())
    knees = [each.knee for each in measured if each is not None and each.knee is not None]
    least = 0.0 if silent else min((knee.lower or 0.0) for knee in knees)
    most = max((math.inf if knee.upper is None else knee.upper) for knee in knees) if knees else 0.0
    told: Told = "met" if objective.is_met(least) else "cannot tell" if objective.is_met(most) else "missed"
    if silent:
        why = f"it did not answer{_some(silent, silent + len(knees))}"
    elif below := sum(knee.ended == "below least" for knee in knees):
        why = f"the search ended below its least{_some(below, len(knees))}"
    else:
        at_least = f"at least {least:,.4g}" if least else "nothing is known of its least"
        why = f"the search ended at a bound: {at_least}"
    return Held(objective, told, condition, why=why)
