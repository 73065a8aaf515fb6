"""How far virtoll can be trusted on a machine: what it says of equal arms, and of arms whose cost is known.

Equal arms are compared in *disjoint pairs* (native with native again, copy 1 with copy 2, ...): comparisons that share
no arm and no block are independent, and the exact interval of their rate of alarms means what it says. The run is cut
into *parts* of a few blocks, each judged as a short run of its own would be. All of it is a t test of paired log ratios
over blocks, as in `ratios`, at 5 % for each comparison: Holm's correction is a table's, and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from virtoll.analysis.estimates import LEVEL, Floats, Summary, holm, p_difference, ratio, summarise
from virtoll.analysis.load import Run
from virtoll.analysis.matrix import Condition, Matrix
from virtoll.analysis.metrics import Metric
from virtoll.analysis.power import proportion, smallest_effect
from virtoll.record.calibration import EXTRA, LINK, QUOTA, Calibration, Known, Noise, Odd, Rate
from virtoll.record.model import Arm, Window

PART_BLOCKS = 4
MINUTES = (5, 10, 30)
POWER = 0.9
TYPICAL_ARMS = 3  # native, native again, and one that is asked about
METRICS = ("rate_per_s", "cpu_s_per_1000", "latency_p50_ms", "latency_p90_ms", "latency_p99_ms")
_JUDGED = METRICS[:2]  # in which costs are known, and arms called odd


def is_calibration(run: Run) -> bool:
    """Whether a run has arms of known cost: no study file can ask for them."""
    return any(entry.get("values") for entry in _entries(run))


def calibration(run: Run, matrix: Matrix) -> Calibration | None:
    """What a calibration's run found; None of any other run, and before two blocks hold a pair of equal arms."""
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
        machine=dict(run.environment.comparable.get("machine", {})),
        run=str(run.directory),
        design=str(run.study.get("design", "blocks")),
        blocks=len({block for block, _, _ in matrix.cells}),
        trial_s=trial_s,
        part_blocks=PART_BLOCKS,
        alarms=_rate(sum(each.count for each in alarms), sum(each.of for each in alarms)),
        noise=noise,
        known=[known for entry in _entries(run) if entry.get("values") for known in _known(bench, entry)],
        odd=[odd for metric, where in bench.cells() if metric.name in _JUDGED for odd in _odd(bench, metric, where)],
    )


def smallest_cost(metric_better: str | None, sd: float, blocks: int) -> float | None:
    """The smallest relative cost that so many blocks find with 90 %; None where none is found."""
    effect = smallest_effect(blocks, POWER)
    if effect is None:
        return None
    return -math.expm1(-effect * sd) if metric_better == "more" else math.expm1(effect * sd)


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
        """Every metric under every condition."""
        for condition in self.matrix.conditions:
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
        seen = {label for _, label, where in self.matrix.cells if where == condition}
        return [arm for arm in self.matrix.arms if arm.label in seen - known]

    def pairs(self, metric: Metric, condition: Condition) -> list[Floats]:
        """Differences of logarithms by block, of pairs of equal arms that share none."""
        arms = self.equal(condition)
        logs = [self.logs(metric, arm, condition) for arm in arms]
        return [other - one for one, other in zip(logs[::2], logs[1::2], strict=False)]

    def trial_seconds(self) -> float:
        """From one block's beginning to the next one's, by trial; at least what its windows take."""
        begun: dict[int, float] = {}
        windows: list[Window] = []
        for record in self.run.records:
            at_s = datetime.fromisoformat(record.started_at).timestamp()
            begun[record.trial.block] = min(at_s, begun.get(record.trial.block, at_s))
            windows += [] if record.measured is None else record.measured.windows
        least = sum(window.duration_ns for window in windows) / 1e9 / max(1, len(self.run.records))
        first, last = min(begun), max(begun)
        if first == last:
            return least
        in_block = len(self.run.plan.trials) / self.run.plan.blocks
        return max(least, (begun[last] - begun[first]) / (last - first) / in_block)


def _noise(bench: _Bench, metric: Metric, condition: Condition, trial_s: float) -> Noise | None:
    pairs = [pair for pair in bench.pairs(metric, condition) if np.isfinite(pair).sum() >= 2]
    if not pairs:
        return None
    whole = [summarise(pair) for pair in pairs]
    freedom = sum(each.freedom for each in whole)
    sd = math.sqrt(sum(each.deviation**2 * each.freedom for each in whole) / freedom)
    judged = [part for pair in pairs for part in _by_part(pair)]
    alarms = sum(p_difference(part) < 1 - LEVEL for part in judged)
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
    """Equal arms that differ from the others' mean over the whole run, by more than chance in one calibration of 20."""
    arms = bench.equal(condition)
    if len(arms) < 2:
        return
    logs = np.array([bench.logs(metric, arm, condition) for arm in arms])
    logs = logs[:, np.isfinite(logs).all(axis=0)]
    if logs.shape[1] < 2:
        return
    apart = logs - (logs.sum(axis=0) - logs) / (len(arms) - 1)
    mine = [(arm, summarise(each)) for arm, each in zip(arms, apart, strict=True)]
    mine = mine[1:] if len(mine) == 2 else mine  # of two, each differs from the other
    tables = len(_JUDGED) * len(bench.matrix.conditions)
    for (arm, summary), p in zip(mine, holm([p_difference(each) for _, each in mine]), strict=True):
        if p < (1 - LEVEL) / tables:
            told = ratio(summary, "")
            bounds = {"by": told.value - 1, "low": (told.low or 0.0) - 1, "high": (told.high or told.value) - 1}
            yield Odd(arm=arm.label, condition=condition.label(), title=metric.title, **bounds)


def _known(bench: _Bench, entry: Mapping[str, Any]) -> Iterator[Known]:
    """A known cost in throughput, and one of CPU time in that as well."""
    arm = next((arm for arm in bench.matrix.arms if arm.label == entry["arm"]["label"]), None)
    baseline = bench.matrix.baseline
    if arm is None or baseline is None:
        return
    for condition in bench.matrix.conditions:
        for metric in (bench.matrix.metrics[name] for name in _JUDGED if name in bench.matrix.metrics):
            native = bench.logs(metric, baseline, condition)
            logs = bench.logs(metric, arm, condition) - native
            truth = _truth(entry, metric, float(np.exp(np.nanmean(native))) if np.isfinite(native).any() else math.nan)
            if truth is not None and np.isfinite(logs).sum() >= 2:
                yield _recovered(arm, metric, condition, truth, logs)


def _truth(entry: Mapping[str, Any], metric: Metric, native: float) -> tuple[str, float] | None:
    """How a cost was made, and the true ratio to native; None where a metric does not show it.

    A quota and a link's rate are ratios by themselves. Burnt CPU time is one beside what native takes for a request: of
    its CPU, which is the limit, 1 / rate.
    """
    values, only = entry["values"], entry.get("only", {})
    throughput = metric.name == "rate_per_s"
    if QUOTA in values:
        return ("CPU quota", float(values[QUOTA]) / 100) if throughput else None
    if LINK in values:
        return ("link rate", float(values[LINK]) / float(only[LINK])) if throughput else None
    extra_s = float(values[EXTRA]) / 1e9
    return "burnt CPU time", 1 / (1 + extra_s * native) if throughput else 1 + extra_s * 1000 / native


def _recovered(arm: Arm, metric: Metric, condition: Condition, truth: tuple[str, float], logs: Floats) -> Known:
    way, true = truth
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
            "true": _cost(metric, true),
            "found": costs[0],
            "low": min(costs[1:]),
            "high": max(costs[1:]),
            "is_found": _is_cost(metric, whole),
            "is_covered": _covers(whole, true),
            "parts": len(short),
            "parts_found": sum(_is_cost(metric, part) for part in short),
            "parts_covered": sum(_covers(part, true) for part in short),
        }
    )


def _cost(metric: Metric, ratio_to_native: float) -> float:
    return 1 - ratio_to_native if metric.better == "more" else ratio_to_native - 1


def _is_cost(metric: Metric, summary: Summary) -> bool:
    is_worse = summary.mean < 0 if metric.better == "more" else summary.mean > 0
    return is_worse and p_difference(summary) < 1 - LEVEL


def _covers(summary: Summary, true: float) -> bool:
    return abs(math.log(true) - summary.mean) <= summary.half_width() + 1e-12  # rounding alone is no miss
