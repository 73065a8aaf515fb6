"""Ours against others: what outside instruments read over what our probes read, in the same native deployments.

Within a block both ran on one deployment of the baseline, in one sitting of the run; the difference of their logarithms
is one observation a block, and its mean is the log of a geometric mean ratio with the interval of the rule in force
(`rules`), as for a toll. The two *agree* when the whole interval lies within the study's margin around 1, *disagree*
when it lies wholly outside; else the run *cannot tell*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from virtoll.analysis.conditions import INSTRUMENT, Condition
from virtoll.analysis.estimates import Estimate, Floats
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import Metric, TrialMetrics
from virtoll.analysis.ratios import DECLARED_MARGIN, summary_under
from virtoll.analysis.rules import rule_of

_ByBlock = Sequence[TrialMetrics | None]
Agreement = Literal["agrees", "disagrees", "cannot tell", "not measured"]
_METHOD = "geometric mean of paired ratios within native deployments, t interval on the log scale, n = blocks"


@dataclass(frozen=True)
class CrossCheck:
    """One quantity under one case, by an outside instrument and by our probe. Values are in the metric's unit."""

    instrument: str
    version: str  # name and version as recorded; "" where nothing was
    metric: Metric
    condition: Condition  # our own case
    ours: Estimate | None
    theirs: Estimate | None
    ratio: Estimate | None  # theirs / ours
    outcome: Agreement
    why: str


def cross_checks(matrix: Matrix, margin: float = DECLARED_MARGIN) -> list[CrossCheck]:
    """Every pair of the run, in the order of the probes; empty where nothing stood in for a probe."""
    planned = dict.fromkeys(
        str(trial.condition[INSTRUMENT]) for trial in matrix.run.plan.trials if INSTRUMENT in trial.condition
    )
    asked = {Condition.of(trial) for trial in matrix.run.plan.trials}
    return [
        _compare(matrix, metric, condition, instrument, margin)
        for metric in matrix.metrics.values()
        for condition in matrix.conditions_of(metric.name)
        for instrument in planned
        if condition.by(instrument) in asked and _speaks_of(matrix, metric, condition.by(instrument))
    ]


def _speaks_of(matrix: Matrix, metric: Metric, theirs: Condition) -> bool:
    """Whether an instrument reports this quantity; of one that reported nothing, the headline is what it owes."""
    cells = [cell for (*_, condition), cell in matrix.cells.items() if condition == theirs]
    return any(metric.name in cell.values for cell in cells) if cells else metric.headline


def _compare(matrix: Matrix, metric: Metric, condition: Condition, instrument: str, margin: float) -> CrossCheck:
    cells = [_cells(matrix, one) for one in (condition, condition.by(instrument))]
    ours, theirs = (_values(each, metric.name) for each in cells)
    met = _met(matrix, *cells)
    logs = np.full_like(ours, np.nan)
    both = met & (ours > 0) & (theirs > 0)
    logs[both] = np.log(theirs[both] / ours[both])
    pairs = int((met & np.isfinite(ours) & np.isfinite(theirs)).sum())
    zeros, rule = pairs - int(both.sum()), rule_of(matrix.run.plan)
    summary = None if zeros else summary_under(rule, logs[:, None])
    found = None if summary is None else rule.interval(summary, _METHOD)
    outcome, why = _outcome(found, margin, "" if summary is None else rule.lacks(summary))
    if zeros == pairs > 0:
        why = "one of them is 0 in every deployment"
    elif zeros:  # those of the others would be of where both happened to have some
        outcome, why = "cannot tell", f"one of them is 0 in {zeros} of {pairs} deployments, and a 0 has no ratio"
    elif found is None:
        why = _reason(matrix, condition.by(instrument)) or why
    return CrossCheck(
        instrument=instrument,
        version=_version(matrix, condition.by(instrument)),
        metric=metric,
        condition=condition,
        ours=_mean(matrix, ours, metric),
        theirs=_mean(matrix, theirs, metric),
        ratio=found,
        outcome=outcome,
        why=why,
    )


def _mean(matrix: Matrix, values: Floats, metric: Metric) -> Estimate | None:
    return matrix.mean(values, metric.unit) if np.isfinite(values).any() else None


def _cells(matrix: Matrix, condition: Condition) -> _ByBlock:
    """By block, on the baseline's deployment that instruments stood beside: the one of the block's first group; None
    where there is no valid trial.
    """
    asked = {trial.block: trial.group for trial in matrix.run.plan.trials if INSTRUMENT in trial.condition}
    cells = {} if matrix.baseline is None else matrix.across(matrix.baseline, condition)
    return [cells.get((b, asked.get(block, 0))) for b, block in enumerate(matrix.blocks)]


def _values(cells: _ByBlock, metric: str) -> Floats:
    """By block; nan where there is no valid value."""
    return np.array([math.nan if cell is None else cell.values.get(metric, math.nan) for cell in cells])


def _met(matrix: Matrix, ours: _ByBlock, theirs: _ByBlock) -> npt.NDArray[np.bool_]:
    """By block, whether both were measured in one sitting."""
    both = ([None if cell is None else matrix.sitting(cell) for cell in each] for each in (ours, theirs))
    return np.array([mine is not None and mine == other for mine, other in zip(*both, strict=True)])


def _outcome(found: Estimate | None, margin: float, lacks: str) -> tuple[Agreement, str]:
    if found is None:
        return "not measured", "no native deployment holds both"
    if found.low is None or found.high is None:
        return "cannot tell", lacks
    if 1 / (1 + margin) <= found.low and found.high <= 1 + margin:
        return "agrees", f"the interval lies within {margin * 100:.3g} %"
    if found.high < 1 / (1 + margin) or found.low > 1 + margin:
        return "disagrees", f"the interval lies outside {margin * 100:.3g} %"
    return "cannot tell", f"the interval crosses the margin of {margin * 100:.3g} %"


def _reason(matrix: Matrix, theirs: Condition) -> str:
    records = [trial.record for trial in matrix.trials if Condition.of(trial.record.trial) == theirs]
    return next((f"{record.status}: {record.reason}" for record in records if record.status != "valid"), "")


def _version(matrix: Matrix, theirs: Condition) -> str:
    records = (cell.record.measured for (*_, condition), cell in matrix.cells.items() if condition == theirs)
    return next((record.instrument for record in records if record is not None), "")
