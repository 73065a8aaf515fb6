"""How far virtoll can be trusted on a machine: what it says of equal arms, and of arms whose cost is known.

Equal arms are compared in *disjoint pairs* (native with native again, copy 1 with copy 2, ...): comparisons that share
no arm and no block are independent, and the exact interval of their rate of alarms means what it says. The run is cut
into *parts* of a few blocks, each judged as a short run of its own would be. All of it is a t test of paired log ratios
over blocks, as in `ratios`, at 5 % for each comparison: Holm's correction is a table's, and is left out. A known cost
is compared with both natives, as every arm of a study is; equal arms are compared one with one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import LEVEL, Floats, Summary, mean_of_known, p_difference, ratio, summarise
from virtoll.analysis.load import Run
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import Metric
from virtoll.analysis.narrowing import pace_of
from virtoll.analysis.power import proportion, smallest_effect
from virtoll.analysis.ratios import log_ratios
from virtoll.record.calibration import EXTRA, LINK, QUOTA, Calibration, Known, Noise, Odd, Rate, machine_of
from virtoll.record.model import Arm

PART_BLOCKS = 4
MINUTES = (5, 10, 30)
POWER = 0.9
TYPICAL_ARMS = 3  # native, native again, and one that is asked about
METRICS = ("rate_per_s", "cpu_s_per_1000", "latency_p50_ms", "latency_p90_ms", "latency_p99_ms")
_LIMIT = 0.85  # what native must use of what limits it, by what the counters and headers leave
_JUDGED = METRICS[:2]  # in which costs are known, and arms called odd


def is_calibration(run: Run) -> bool:
    """Whether a run has arms of known cost: no study file can ask for them."""
    return any(entry.get("values") for entry in _entries(run))


def calibration(run: Run, matrix: Matrix) -> Calibration | None:
    """What a calibration's run found; None of any other run, and before a pair of equal arms can be tested in
    throughput: two blocks of a part hold it, and it does not differ by the same in all of them.
    """
    if not is_calibration(run) or matrix.baseline is None:
        return None
    bench = _Bench(run, matrix)
    trial_s = bench.trial_seconds()
    noise = [found for metric, condition in bench.cells() if (found := _noise(bench, metric, condition, trial_s))]
    alarms = [each.alarms for each in noise if each.metric == METRICS[0]]
    if not alarms:
        return None
    return Calibration(
        created_at=run.environment.created_at,
        virtoll=run.environment.virtoll,
        machine=machine_of(run.environment.comparable, run.environment.notes),
        run=str(run.directory),
        design=str(run.study.get("design", "blocks")),
        blocks=len({block for block, *_ in matrix.cells}),
        trial_s=trial_s,
        part_blocks=PART_BLOCKS,
        alarms=_rate(sum(each.count for each in alarms), sum(each.of for each in alarms)),
        noise=noise,
        known=[known for entry in _entries(run) if entry.get("values") for known in _known(bench, entry)],
        not_judged=[why for condition in matrix.conditions if (why := bench.unlimited(condition))],
        odd=[odd for metric, where in bench.cells() if metric.name in _JUDGED for odd in _odd(bench, metric, where)],
    )


def smallest_cost(metric_better: str | None, sd: float, blocks: int, natives: int = 2, family: int = 1) -> float | None:
    """The smallest relative cost that so many blocks find with 90 % against so many natives in each, where the log
    ratio of two equal arms scatters by ``sd``, of an arm that is judged first of a ``family`` of so many (Holm). None
    of one block, and where nothing scattered: a latency may lie in one bucket of its histogram throughout, which says
    nothing of smaller differences.
    """
    effect = smallest_effect(blocks, POWER, (1 - LEVEL) / family)
    if effect is None or sd == 0:
        return None
    logs = effect * sd * math.sqrt((1 + 1 / natives) / 2)  # of 1 + 1 parts of the variance, 1 + 1 / natives are left
    return -math.expm1(-logs) if metric_better == "more" else math.expm1(logs)


def parts(blocks: int) -> list[range]:
    """A run cut into parts of `PART_BLOCKS` blocks, the last with what is left over; one part where there are fewer."""
    starts = list(range(0, max(1, blocks // PART_BLOCKS) * PART_BLOCKS, PART_BLOCKS))
    return [range(start, end) for start, end in zip(starts, [*starts[1:], blocks], strict=True)]


def _entries(run: Run) -> list[Mapping[str, Any]]:
    arms = run.study.get("arms")
    return [entry for entry in arms if isinstance(entry, dict)] if isinstance(arms, list) else []


@dataclass(frozen=True)
class _Bench:
    """The run, as its comparisons need it."""

    run: Run
    matrix: Matrix

    def cells(self) -> Iterator[tuple[Metric, Condition]]:
        """Every metric under every condition; where the CPU is the limit comes first."""
        for condition in sorted(self.matrix.conditions, key=lambda each: each.get(LINK) is not None):
            yield from ((self.matrix.metrics[name], condition) for name in METRICS if name in self.matrix.metrics)

    def logs(self, metric: Metric, arm: Arm, condition: Condition) -> Floats:
        """Logarithms by block; nan where missing, or 0."""
        matrix = self.matrix
        values = matrix.values(metric.name)[:, matrix.arms.index(arm), matrix.conditions.index(condition)]
        logs = np.full_like(values, np.nan)
        np.log(values, out=logs, where=values > 0)
        return logs

    def equal(self, condition: Condition) -> list[Arm]:
        """The arms that are native under one name or another, and were measured under a condition."""
        known = {entry["arm"]["label"] for entry in _entries(self.run) if entry.get("values")}
        seen = {label for _, _, label, where in self.matrix.cells if where == condition}
        return [arm for arm in self.matrix.arms if arm.label in seen - known]

    def apart(self, metric: Metric, over: Arm, under: Arm, condition: Condition) -> Floats:
        """Differences of two arms' logarithms by block; nan where either is missing, or they were not measured in one
        sitting.
        """
        logs = self.logs(metric, over, condition) - self.logs(metric, under, condition)
        return np.where(self.matrix.together((over, condition), (under, condition)), logs, np.nan)

    def pairs(self, metric: Metric, condition: Condition) -> list[Floats]:
        """Differences of logarithms by block, of pairs of equal arms that share none."""
        arms = self.equal(condition)
        return [self.apart(metric, other, one, condition) for one, other in zip(arms[::2], arms[1::2], strict=False)]

    def native_logs(self, name: str, condition: Condition, beside: Arm | None = None) -> Floats:
        """Native's logarithms of a metric by block, the mean of both of its arms (or of those that an arm is compared
        with there); nan where neither is known.
        """
        matrix = self.matrix
        if name not in matrix.metrics or matrix.baseline is None:
            return np.full(len(matrix.blocks), np.nan)
        logs = []
        for native in matrix.natives:
            mine = self.logs(matrix.metrics[name], native, condition)
            met = True if beside is None else matrix.together((beside, condition), (native, condition))
            logs.append(np.where(met, mine, np.nan))
        return mean_of_known(logs)

    def native(self, name: str, condition: Condition) -> float:
        """Native's geometric mean of a metric, over both of its arms; nan where it has none."""
        logs = self.native_logs(name, condition)
        return float(np.exp(np.nanmean(logs))) if np.isfinite(logs).any() else math.nan

    def unlimited(self, condition: Condition) -> str:
        """Why what slows an arm's CPU, or its link, costs no throughput that is known: it was not the limit, or nobody
        knows; "" where it was.
        """
        rate = self.native(METRICS[0], condition)
        if (link := condition.get(LINK)) is not None:
            share = 8 * rate * condition.get("load.object_bytes", math.nan) / link
            told, lacks = f"native filled {100 * share:.0f} % of its link", "what native filled of its link"
        else:
            share = rate * self.native(METRICS[1], condition) / 1000 / self.run.base.get("limits.vcpus", 1)
            told, lacks = f"native got {100 * share:.0f} % of its CPU", "native's CPU time"
        if share >= _LIMIT:
            return ""
        why = f"{lacks} is not known" if math.isnan(share) else f"{told}, which was not its limit"
        return f"What is known of throughput ({condition.label()}) is not judged: {why}."

    def trial_seconds(self) -> float:
        """What a block takes, by trial: the median over blocks, one of which may hold a pause. At least what its
        windows take.
        """
        measured = (record.measured for record in self.run.records)
        windows = [window for each in measured if each is not None for window in each.windows]
        least = sum(window.duration_ns for window in windows) / 1e9 / max(1, len(self.run.records))
        pace, in_block = pace_of(self.run), len(self.run.plan.trials) / self.run.plan.blocks
        return least if pace is None else max(least, pace.block_s / in_block)


def _noise(bench: _Bench, metric: Metric, condition: Condition, trial_s: float) -> Noise | None:
    pairs = [pair for pair in bench.pairs(metric, condition) if np.isfinite(pair).sum() >= 2]
    if not pairs:
        return None
    whole = [summarise(pair) for pair in pairs]
    freedom = sum(each.freedom for each in whole)
    sd = math.sqrt(sum(each.deviation**2 * each.freedom for each in whole) / freedom)
    p_values = [p_difference(part) for pair in pairs for part in _by_part(pair)]
    judged = [p for p in p_values if not math.isnan(p)]  # not where a part's differences are all alike, but not 0
    if not judged:  # nor where many trials were lost: no part holds two blocks of any pair
        return None
    alarms = sum(p < 1 - LEVEL for p in judged)
    block_s = trial_s * TYPICAL_ARMS
    fits = {str(minutes): int(minutes * 60 / block_s) if block_s > 0 else 0 for minutes in MINUTES}
    return Noise(
        condition=condition.label(),
        metric=metric.name,
        title=metric.title,
        sd=sd,
        freedom=freedom,
        floor=math.expm1(Summary(0.0, sd / math.sqrt(whole[0].n), whole[0].n).half_width()),
        alarms=_rate(alarms, len(judged)),
        smallest={minutes: smallest_cost(metric.better, sd, n) for minutes, n in fits.items()},
    )


def _rate(count: int, of: int) -> Rate:
    told = proportion(count, of)
    return Rate(count=count, of=of, low=told.low or 0.0, high=1.0 if told.high is None else told.high)


def _by_part(logs: Floats) -> list[Summary]:
    """A comparison's parts, each by itself; one that has no interval is none."""
    cut = [logs[part.start : part.stop] for part in parts(len(logs))]
    return [summarise(part) for part in cut if np.isfinite(part).sum() >= 2]


def _odd(bench: _Bench, metric: Metric, condition: Condition) -> Iterator[Odd]:
    """Equal arms that differ from the others' mean over the whole run, by more than chance in one calibration of 20. In
    each block those others count that were measured there.

    The one that differs most comes first, and is no equal of the others any more: it would make each of them differ.
    """
    equal = bench.equal(condition)
    left = {arm.label: arm for arm in equal if np.isfinite(bench.logs(metric, arm, condition)).sum() >= 2}
    tables = len(_JUDGED) * len(bench.matrix.conditions)
    while len(left) > 1:
        apart = {
            label: mean_of_known([bench.apart(metric, arm, each, condition) for each in left.values() if each != arm])
            for label, arm in list(left.items())[-_tested(len(left)) :]
        }
        mine = {arm: summarise(each) for arm, each in apart.items() if np.isfinite(each).sum() >= 2}
        p_values = {arm: p for arm, summary in mine.items() if not math.isnan(p := p_difference(summary))}
        if not p_values:
            return
        arm = min(p_values, key=lambda each: p_values[each])
        if p_values[arm] * len(mine) >= (1 - LEVEL) / tables:
            return
        told = ratio(mine[arm], "")
        bounds = {"by": told.value - 1, "low": (told.low or 0.0) - 1, "high": (told.high or told.value) - 1}
        yield Odd(arm=arm, condition=condition.label(), title=metric.title, **bounds)
        del left[arm]


def _tested(arms: int) -> int:
    """How many of so many equal arms can be called odd: of two each differs from the other, and the second is told."""
    return 1 if arms == 2 else arms


def _known(bench: _Bench, entry: Mapping[str, Any]) -> Iterator[Known]:
    """A known cost in throughput, and one of CPU time in that as well."""
    arm = next((arm for arm in bench.matrix.arms if arm.label == entry["arm"]["label"]), None)
    if arm is None:
        return
    for number, condition in enumerate(bench.matrix.conditions):
        judged = _JUDGED[1:] if bench.unlimited(condition) else _JUDGED
        request_s = np.exp(bench.native_logs(METRICS[1], condition, beside=arm)) / 1000
        for metric in (bench.matrix.metrics[name] for name in judged if name in bench.matrix.metrics):
            logs = log_ratios(bench.matrix, metric.name)[:, bench.matrix.arms.index(arm), number]
            truth = _truth(entry, metric, request_s)
            if truth is not None and np.isfinite(logs - truth[1]).sum() >= 2:
                yield _recovered(arm, metric, condition, truth, logs)


def _truth(entry: Mapping[str, Any], metric: Metric, request_s: Floats) -> tuple[str, Floats] | None:
    """How a cost was made, and the true ratio to native by block, as a logarithm (nan: not known); None where a metric
    does not show it.

    Burnt CPU time is known beside what native takes for a request there, ``request_s`` of its CPU. That is its cost in
    throughput too: what keeps the CPU from native (time that another machine takes) keeps it from who burns, as long.
    """
    values, share = entry["values"], entry.get("share")
    throughput = metric.name == "rate_per_s"
    if share is not None:
        way = "CPU quota" if QUOTA in values else "link rate"
        return (way, np.full_like(request_s, math.log(share))) if throughput else None
    if EXTRA not in values:
        return None
    more = np.log1p(float(values[EXTRA]) / 1e9 / request_s)
    return "burnt CPU time", -more if throughput else more


def _recovered(arm: Arm, metric: Metric, condition: Condition, truth: tuple[str, Floats], logs: Floats) -> Known:
    """What was told of a cost, over the blocks in which it is known; held against what it was in each."""
    way, true = truth
    off = logs - true
    logs = np.where(np.isfinite(off), logs, np.nan)
    whole, short = summarise(logs), _by_part(logs)
    told = ratio(whole, "")
    costs = [_cost(metric, each) for each in (told.value, told.low or told.value, told.high or told.value)]
    return Known.model_validate(
        {
            "arm": arm.label,
            "way": way,
            "condition": condition.label(),
            "metric": metric.name,
            "title": metric.title,
            "true": _cost(metric, math.exp(float(np.mean(true[np.isfinite(off)])))),
            "found": costs[0],
            "low": min(costs[1:]),
            "high": max(costs[1:]),
            "is_found": _is_cost(metric, whole),
            "is_covered": _is_covered(summarise(off)),
            "parts": len(short),
            "parts_found": sum(_is_cost(metric, part) for part in short),
            "parts_covered": sum(_is_covered(part) for part in _by_part(off)),
        }
    )


def _cost(metric: Metric, ratio_to_native: float) -> float:
    return 1 - ratio_to_native if metric.better == "more" else ratio_to_native - 1


def _is_cost(metric: Metric, summary: Summary) -> bool:
    is_worse = summary.mean < 0 if metric.better == "more" else summary.mean > 0
    return is_worse and p_difference(summary) < 1 - LEVEL


def _is_covered(off: Summary) -> bool:
    """Whether what was told is off the truth by no more than chance."""
    return abs(off.mean) <= off.half_width() + 1e-12  # rounding alone is no miss
