"""What a misbehaving neighbour takes from a victim: each arm against itself beside a polite neighbour of the same size.

Within a block and an arm, the logarithm of a figure beside an aggressor minus that beside the polite neighbour is one
observation: what sharing alone costs, and what the platform costs, cancel. The t interval has n - 1 degrees of freedom,
n the blocks in which both answered, in one sitting of the run, and there is none where in some block the victim did so
beside the aggressor alone; Holm's correction goes over the whole matrix of arms and aggressors.

The noise floor is the distance between the losses of native and those of native again, over all aggressors: how far a
loss differs from the same loss, or could by chance. That second native arm is no row of the matrix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Estimate, Floats, summarise
from virtoll.analysis.load import AGGRESSOR
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import Metric, TrialMetrics
from virtoll.analysis.ratios import (
    Row,
    Toll,
    TollTable,
    family_of,
    judge_family,
    lost_blocks,
    noise,
    over_conditions,
    whole_blocks,
)
from virtoll.analysis.rules import rule_of
from virtoll.record.model import Arm

POLITE = "polite"
# What became of a victim, worst first; the last two are no harm.
HARMS = ("host harmed", "victim died", "did not answer")
REFUSED = "could not start"
_AGAINST = "geometric mean of ratios to the polite neighbour within blocks, t interval on the log scale, n = blocks"
_BEFORE = "geometric mean of ratios to before the neighbour began, t interval on the log scale, n = blocks"
_LATENCIES = ("p99_rise", "p90_rise", "p50_rise")


@dataclass(frozen=True)
class Settled:
    """How long something took, a deployment each: seconds where it was seen, and bounds where it was not."""

    seconds: tuple[float, ...]
    more_than_s: tuple[float, ...]

    @property
    def n(self) -> int:
        """The deployments it speaks for."""
        return len(self.seconds) + len(self.more_than_s)


@dataclass(frozen=True)
class Exposure:
    """One arm's victim beside one neighbour. ``tolls``: against the same arm's polite neighbour, by metric; of the
    polite neighbour itself, against before it began."""

    arm: Arm
    condition: Condition
    outcomes: Mapping[str, int]  # of the trials that count, by what became of the victim
    refused: str  # why the aggressor could not start, where it could not
    missing: str  # why there is no trial that counts
    tolls: Mapping[str, Toll]
    # By metric of latency, the highest percentile first: in how many of them it lies, while the neighbour was at work,
    # among the requests without an answer. No ratio holds those, so none is given; and it is no protection.
    unanswered: Mapping[str, int]
    unmatched: int  # blocks in which the victim answered, and beside the polite neighbour did not: no loss is given

    @property
    def n(self) -> int:
        """The trials that count."""
        return sum(self.outcomes.values())

    @property
    def harm(self) -> str:
        """The worst that became of the victim; "" where it always answered."""
        return next((harm for harm in HARMS if self.outcomes.get(harm)), "")

    @property
    def kind(self) -> str:
        """The worst that became of it, a reason for there being nothing, or what the tolls say together."""
        if not self.n or self.outcomes.get(REFUSED) == self.n:
            return REFUSED if self.n else "missing"
        kinds = [toll.verdict.kind for toll in self.tolls.values() if toll.ratio is not None or toll.zeros]
        if self.harm or not kinds:
            return self.harm or "unsure"
        if "costs" in kinds:
            return "costs"
        if self.unanswered or any(kind not in ("gains", "same") for kind in kinds):
            return "unsure"
        return "gains" if "gains" in kinds else "same"

    @property
    def worst(self) -> Toll | None:
        """The toll that is the farthest from none."""
        known = [toll for toll in self.tolls.values() if toll.worse is not None]
        return max(known, key=lambda toll: toll.worse.value if toll.worse else 0.0) if known else None


@dataclass(frozen=True)
class Isolation:
    """The matrix of arms and aggressors. ``shown``: the metrics that it is told in, the first of them a loss."""

    matrix: Matrix
    arms: tuple[Arm, ...]  # native is one like the others
    conditions: tuple[Condition, ...]  # the polite neighbour first, where there is one
    shown: tuple[Metric, ...]
    floors: Mapping[str, float | None]  # by metric, relative
    exposures: Mapping[tuple[str, Condition], Exposure]  # by the arm's label

    @property
    def has_control(self) -> bool:
        """Whether there is a polite neighbour to compare with."""
        return any(is_polite(condition) for condition in self.conditions)

    def exposure(self, arm: Arm, condition: Condition) -> Exposure:
        """What became of one arm's victim."""
        return self.exposures[arm.label, condition]

    def conditions_of(self, metric: Metric) -> tuple[Condition, ...]:
        """Those in which it may be told: of a probe, its own cases. Where nothing is told of what stands for it, as of
        a victim that died beside every neighbour, that is a result; of its other quantities, that the case has none.
        """
        cases = {_control(condition) for condition in self.matrix.may_tell(metric.name)}
        mine = (condition for condition in self.conditions if condition.probe == metric.probe)
        return tuple(condition for condition in mine if metric.headline or _control(condition) in cases)

    def beside_polite(self, exposure: Exposure) -> Exposure | None:
        """What became of the same arm's victim beside the polite neighbour, all else being equal; None without one."""
        return self.exposures.get((exposure.arm.label, _control(exposure.condition)))

    def name(self, condition: Condition) -> str:
        """The neighbour, and what else varies."""
        others = tuple(path for path in self.matrix.varying if path != AGGRESSOR)
        words = condition.label(others) if others else ""
        return f"{condition.get(AGGRESSOR)}, {words}" if words else str(condition.get(AGGRESSOR))

    def settled(self, metric: str, arm: Arm, condition: Condition) -> Settled:
        """Times that may lie beyond the window: ``metric`` is "recovery" or "settling"."""
        cells = [self.matrix.cell(block, arm, condition) for block in self.matrix.blocks]
        known = [cell.values for cell in cells if cell is not None]
        seconds, bound = f"{metric}_s", f"{metric}_more_than_s"
        return Settled(
            tuple(values[seconds] for values in known if seconds in values),
            tuple(values[bound] for values in known if bound in values),
        )

    def peak(self, metric: str, arm: Arm, condition: Condition) -> Estimate | None:
        """Geometric mean over deployments of a ratio to a level ("overshoot", "rebound"); None without one."""
        values = self.matrix.values(metric)[:, self.matrix.arms.index(arm), self.matrix.conditions.index(condition)]
        logs = _logs(values)
        if not np.isfinite(logs).any() or (values <= 0).any():  # a 0 has no ratio, and the others would flatter
            return None
        method = "geometric mean over deployments, t interval on the log scale"
        return rule_of(self.matrix.run.plan).interval(summarise(logs), method)


def is_polite(condition: Condition) -> bool:
    """Whether the neighbour is the control."""
    return bool(condition.get(AGGRESSOR) == POLITE)


def isolation(matrix: Matrix, margin: float) -> Isolation:
    """Judge every arm beside every neighbour."""
    shown = tuple(matrix.metrics[name] for name in _shown(matrix))
    order = {name: number for number, name in enumerate(matrix.run.neighbours)}
    exposed = [condition for condition in matrix.conditions if condition.get(AGGRESSOR)]
    conditions = tuple(sorted(exposed, key=lambda c: (not is_polite(c), order.get(str(c.get(AGGRESSOR)), len(order)))))
    arms = tuple(arm for arm in matrix.arms if arm.role != "floor")
    tables = [loss_table(matrix, metric.name, margin) for metric in shown]
    sharing = [sharing_table(matrix, metric.name, margin) for metric in shown if not metric.probe]
    exposures = {}
    for arm in arms:
        for condition in conditions:
            known = ((table, table.cell(arm, condition)) for table in (*tables, *sharing))
            tolls = {table.metric.name: toll for table, toll in known if toll is not None}
            exposures[arm.label, condition] = _exposure(matrix, arm, condition, tolls)
    floors = {metric.name: loss_floor(matrix, metric.name) for metric in shown}
    return Isolation(matrix, arms, conditions, shown, floors, exposures)


def _shown(matrix: Matrix) -> list[str]:
    """A service by its goodput and by its latency's highest percentile that had requests enough; a probe by what
    stands for it, and the first other quantity that can cost something."""
    if matrix.run.programme:
        judged = [metric for metric in matrix.metrics.values() if metric.better is not None]
        judged.sort(key=lambda metric: not metric.headline)
        return [metric.name for probe in dict.fromkeys(m.probe for m in judged) for metric in _two(judged, probe)]
    known = {name: int(np.isfinite(matrix.values(name)).sum()) for name in _LATENCIES}
    most = max(known.values())
    return ["goodput_kept", next(name for name, count in known.items() if 2 * count >= most)]


def _two(metrics: list[Metric], probe: str) -> list[Metric]:
    return [metric for metric in metrics if metric.probe == probe][:2]


def loss_table(matrix: Matrix, metric_name: str, margin: float) -> TollTable:
    """Every arm beside every aggressor against the same arm beside the polite neighbour, as one family."""
    exposed = [condition for condition in matrix.conditions_of(metric_name) if condition.get(AGGRESSOR)]
    aggressors = [condition for condition in exposed if not is_polite(condition)]
    rows = _rows(matrix, metric_name, aggressors, _losses(matrix, metric_name), _zeros(matrix, metric_name))
    floor = loss_floor(matrix, metric_name)
    return _table(matrix, metric_name, [replace(row, floor=floor) for row in rows], margin, _AGAINST)


def sharing_table(matrix: Matrix, metric_name: str, margin: float) -> TollTable:
    """What the polite neighbour costs each arm against before it began: a family of its own."""
    polite = [condition for condition in matrix.conditions_of(metric_name) if is_polite(condition)]
    figures = _figures(matrix, metric_name)
    return _table(
        matrix, metric_name, _rows(matrix, metric_name, polite, _logs(figures), figures <= 0), margin, _BEFORE
    )


def _rows(
    matrix: Matrix, metric_name: str, conditions: Sequence[Condition], logs: Floats, zeros: npt.NDArray[np.bool_]
) -> list[Row]:
    """What each arm is judged by under each of ``conditions``; ``zeros``: what has no logarithm."""
    rows, whole = [], whole_blocks(matrix)
    for a, arm in enumerate(matrix.arms):
        if arm.role == "floor":
            continue
        for condition in conditions:
            c = matrix.conditions.index(condition)
            if _unanswered(_cells(matrix, arm, condition), metric_name) or _unmatched(matrix, arm, condition):
                rows.append(Row(arm, condition, None, None, 1))  # the rest would speak for the better ones alone
            else:
                mine = logs[:, a, c : c + 1]
                failed = _unanswered_beside_polite(matrix, arm, condition, metric_name)
                row = Row(arm, condition, over_conditions(mine), None, 1, int(zeros[:, a, c].sum()), failed)
                rows.append(replace(row, lost=lost_blocks(mine, whole), ahead=int((~whole).sum())))
    return rows


def _table(matrix: Matrix, metric_name: str, rows: list[Row], margin: float, method: str) -> TollTable:
    metric = matrix.metrics[metric_name]
    rule = rule_of(matrix.run.plan)
    return TollTable(metric, (), judge_family(metric, rows, margin, method, rule), family_of(rows, rule))


def loss_floor(matrix: Matrix, metric_name: str) -> float | None:
    """How far the losses of native and of native again lie apart, or could by chance, relative: over the aggressors
    beside which no pair lacks its ratio for a 0 or for want of an answer, since the other blocks are the better ones.
    """
    if matrix.baseline is None or matrix.floor is None:
        return None
    natives, logs = [matrix.arms.index(arm) for arm in matrix.natives], _losses(matrix, metric_name)
    zeros = _zeros(matrix, metric_name)[:, natives, :]
    barred = [
        bool(zeros[:, :, c].any()) or any(_lacks_answers(matrix, arm, each, metric_name) for arm in matrix.natives)
        for c, each in enumerate(matrix.conditions)
    ]
    first, again = (logs[:, at, :] for at in natives)
    met = [matrix.together((matrix.baseline, each), (matrix.floor, each)) for each in matrix.conditions]
    is_left = np.stack(met, axis=-1) & ~np.array(barred)
    return noise(np.where(is_left, first - again, np.nan), rule_of(matrix.run.plan))


def _lacks_answers(matrix: Matrix, arm: Arm, condition: Condition, metric_name: str) -> bool:
    """Whether in some block the victim did not answer, or a percentile lies among the requests without an answer, here
    or beside the polite one.
    """
    cells = _cells(matrix, arm, condition)
    beside_polite = _unanswered_beside_polite(matrix, arm, condition, metric_name) or _unmatched(matrix, arm, condition)
    return bool(beside_polite or _unanswered(cells, metric_name) or any(outcome(cell) in HARMS for cell in cells))


def _losses(matrix: Matrix, metric_name: str) -> Floats:
    """Array [block, arm, condition] of log(beside it / beside the polite neighbour); nan for the latter itself."""
    figures = _figures(matrix, metric_name)
    return _logs(figures) - _logs(_beside_polite(matrix, figures))


def _zeros(matrix: Matrix, metric_name: str) -> npt.NDArray[np.bool_]:
    """Array [block, arm, condition]: whether it and the polite neighbour's are both known, and one of them is 0."""
    figures = _figures(matrix, metric_name)
    control = _beside_polite(matrix, figures)
    return np.isfinite(figures) & np.isfinite(control) & ((figures <= 0) | (control <= 0))


def _beside_polite(matrix: Matrix, figures: Floats) -> Floats:
    """Array [block, arm, condition] of the figure beside the polite neighbour in the same sitting; nan for the latter
    itself, and where a victim is alone.
    """
    beside = np.full_like(figures, np.nan)
    for c, condition in enumerate(matrix.conditions):
        control = _control(condition)
        if condition.get(AGGRESSOR) and control != condition and control in matrix.conditions:
            polite = figures[:, :, matrix.conditions.index(control)]
            met = [matrix.together((arm, condition), (arm, control)) for arm in matrix.arms]
            beside[:, :, c] = np.where(np.stack(met, axis=-1), polite, np.nan)
    return beside


def _figures(matrix: Matrix, metric_name: str) -> Floats:
    """Array [block, arm, condition] of a figure; nan where the victim did not answer as it should."""
    figures = matrix.values(metric_name).copy()
    for b, block in enumerate(matrix.blocks):
        for a, arm in enumerate(matrix.arms):
            for c, condition in enumerate(matrix.conditions):
                cell = matrix.cell(block, arm, condition)
                if cell is not None and outcome(cell) != "answered":
                    figures[b, a, c] = np.nan
    return figures


def _control(condition: Condition) -> Condition:
    """The same condition beside the polite neighbour."""
    return Condition.of_levels({**dict(condition.levels), AGGRESSOR: POLITE})


def _logs(values: Floats) -> Floats:
    logs = np.full_like(values, np.nan)
    np.log(values, out=logs, where=values > 0)
    return logs


def _exposure(matrix: Matrix, arm: Arm, condition: Condition, tolls: Mapping[str, Toll]) -> Exposure:
    cells = _cells(matrix, arm, condition)
    outcomes = Counter(outcome(cell) for cell in cells)
    reasons = [cell.record.neighbour.reason for cell in cells if outcome(cell) == REFUSED and cell.record.neighbour]
    missing = "" if cells else matrix.why_missing(next(iter(tolls), ""), arm, condition)
    unanswered = {name: count for name in _LATENCIES if (count := _unanswered(cells, name))}
    unmatched = _unmatched(matrix, arm, condition)
    return Exposure(arm, condition, outcomes, next(iter(reasons), ""), missing, tolls, unanswered, unmatched)


def _cells(matrix: Matrix, arm: Arm, condition: Condition) -> list[TrialMetrics]:
    return [cell for block in matrix.blocks if (cell := matrix.cell(block, arm, condition)) is not None]


def _unanswered(cells: Sequence[TrialMetrics], metric_name: str) -> int:
    """In how many trials a percentile lies among the requests without an answer; of others the outcome tells."""
    return sum(1 for cell in cells if metric_name in cell.unanswered and outcome(cell) == "answered")


def _unanswered_beside_polite(matrix: Matrix, arm: Arm, condition: Condition, metric_name: str) -> int:
    """In how many blocks in which the victim answered beside a neighbour its percentile beside the polite one has no
    value: those of the others alone would be held against the better ones.
    """
    return 0 if is_polite(condition) else _unanswered(_held_against(matrix, arm, condition), metric_name)


def _unmatched(matrix: Matrix, arm: Arm, condition: Condition) -> int:
    """In how many of such blocks the victim itself did not answer, or died, beside the polite one: for as good a reason
    there is no loss.
    """
    return sum(1 for polite in _held_against(matrix, arm, condition) if outcome(polite) in HARMS)


def _held_against(matrix: Matrix, arm: Arm, condition: Condition) -> list[TrialMetrics]:
    """The trials beside the polite neighbour, of the blocks in which the victim answered beside another in the same
    sitting.
    """
    pairs = ((matrix.cell(b, arm, condition), matrix.cell(b, arm, _control(condition))) for b in matrix.blocks)
    both = ((beside, polite) for beside, polite in pairs if beside is not None and polite is not None)
    met = ((beside, polite) for beside, polite in both if matrix.sitting(beside) == matrix.sitting(polite))
    return [polite for beside, polite in met if outcome(beside) == "answered"]


def outcome(trial: TrialMetrics) -> str:
    """What became of a trial's victim. One that answered nothing while the aggressor was at work did not answer.

    Harm goes before a neighbour that never began: it is only recorded where the neighbour may have done it.
    """
    if trial.record.outcome in HARMS:
        return str(trial.record.outcome)
    neighbour = trial.record.neighbour
    if neighbour is not None and neighbour.start_ns is None:
        return REFUSED
    return "did not answer" if trial.values.get("goodput_during_per_s") == 0 else "answered"


__all__ = ["HARMS", "POLITE", "REFUSED", "Exposure", "Isolation", "Settled", "is_polite", "isolation", "outcome"]
