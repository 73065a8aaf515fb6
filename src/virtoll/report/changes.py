"""Two run directories compared: what both asked for, what each says of it, and what only one of them has."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from virtoll.analysis.changes import Change, Matched, Step, differs_from_itself, judge_changes
from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.load import Run
from virtoll.analysis.metrics import Metric, Wanted
from virtoll.analysis.ratios import Ratios, Row, of_barred, summary_under
from virtoll.analysis.rules import Rule
from virtoll.errors import IncomparableError, Problem, StudyError
from virtoll.helpers import helpers
from virtoll.record.comparable import differences
from virtoll.record.model import Arm
from virtoll.record.store import INTERRUPTED
from virtoll.report.asked import Asked, configured, refuse
from virtoll.report.begin import uncollected
from virtoll.report.findings import Findings, skim, told_as_damage

_MEMORY = ("memory_", "rss_")
_USAGE = ("cpu_", "helpers_", *_MEMORY, "server_", "to_server", "from_server", "switches_", "packets_")


@dataclass(frozen=True)
class Native:
    """Native's own figure in both runs: shown, never judged, for what a machine did from one run to the next is in no
    interval.
    """

    metric: Metric
    condition: str
    before: Estimate | None  # in the metric's unit; None over several conditions
    after: Estimate | None
    ratio: Estimate  # of B over the first


@dataclass(frozen=True)
class Compared:
    """Two runs, compared."""

    before: Findings
    after: Findings
    margin: float
    threshold: float | None
    changes: tuple[Change, ...]  # the table
    only: tuple[str, ...]  # what only one run has, and what neither tells
    lacking: tuple[str, ...]  # of those, what A has and the second has not
    configured: tuple[str, ...]  # settings that differ
    environment: tuple[str, ...]  # keys of the environments that differ, with both values
    natives: tuple[Native, ...]  # none where environments differ
    notes: tuple[str, ...]  # what a reader must know of either run

    @property
    def gate(self) -> str:
        """Of all rows together: "beyond" where one is, else "open" where one is or B lacks something, else
        "within"; "" without a threshold.
        """
        if self.threshold is None:
            return ""
        gates = {change.gate for change in self.changes}
        if "beyond" in gates:
            return "beyond"
        return "open" if "open" in gates or self.lacking else "within"


def compare(
    before: Path,
    after: Path,
    *,
    threshold: float | None = None,
    names: Sequence[str] = (),
    by_condition: bool = False,
) -> Compared:
    """Read two run directories and compare them. ``threshold``: a relative worsening; ``names``: the metrics, in place
    of the answer's.

    StoreError where a run cannot be read, IncomparableError where the two cannot be compared, StudyError for a metric
    that there is none of.
    """
    with uncollected():
        with helpers(1):
            first, second = (skim(path, lambda run: wanted_of(run, names)) for path in (before, after))
        with told_as_damage(f"{before} or {after}"):
            return _compared(first, second, threshold, names, by_condition=by_condition)


def _compared(
    before: Findings, after: Findings, threshold: float | None, names: Sequence[str], *, by_condition: bool
) -> Compared:
    refuse(before, after)
    both = _Both(before, after)
    metrics = both.metrics(names)
    margin = min(before.margin, after.margin) if threshold is None else threshold
    rows = [row for metric in metrics for row in both.rows(metric, by_condition=by_condition)]
    if not rows:
        raise IncomparableError(
            "the two runs have no arm, condition and metric in common",
            where=both.where,
            remedy=" ".join(both.only()) or "measure what one of them has with the other's study",
        )
    environment = differences(before.run.environment.comparable, after.run.environment.comparable)
    natives = [] if environment else [each for metric in metrics for each in both.natives(metric, by_condition)]
    return Compared(
        before=before,
        after=after,
        margin=margin,
        threshold=threshold,
        changes=judge_changes(rows, margin, threshold),
        only=tuple(both.only()),
        lacking=tuple(both.lacking(metrics, of_all=not names)),
        configured=tuple(configured(Asked.of(before), Asked.of(after))),
        environment=tuple(environment),
        natives=tuple(natives),
        notes=(*_notes(before, after), *both.odd(metrics), *both.excluded()),
    )


def wanted_of(run: Run, names: Sequence[str]) -> Wanted:
    """What of its trials' files the comparison needs."""
    measured = (record.measured for record in run.records)
    is_open = any(each is not None and each.loop == "open" for each in measured)
    asked = [*names] or ["cpu_s_per_1000", *["latency"] * is_open]
    return Wanted(
        latency=any(name.startswith("latency") for name in asked),
        usage=any(name.startswith(_USAGE) for name in asked),
        memory=any(name.startswith(_MEMORY) for name in asked),
        inside=any(name.endswith(("_inside", "inside_mib")) for name in asked),
    )


def _notes(before: Findings, after: Findings) -> Iterator[str]:
    for name, each in zip("AB", (before, after), strict=True):
        yield from (f"{name}: {note}" for note in each.run.notes)


# -- what both have -----------------------------------------------------------------------------------------


class _Both:
    """Arms, conditions and metrics of two runs, side by side."""

    def __init__(self, before: Findings, after: Findings) -> None:
        self.sides = before, after
        self.rules: tuple[Rule, Rule] = before.rule, after.rule
        self.where = f"{before.run.directory} and {after.run.directory}"
        asked = [Asked.of(each) for each in self.sides]
        keys = [each.keys(asked[0].varied | asked[1].varied) for each in asked]
        self._pairs = {key: (keys[0][key], keys[1][key]) for key in keys[0] if key in keys[1]}
        self._alone = [[c for key, c in keys[0].items() if key not in keys[1]]]
        self._alone += [[c for key, c in keys[1].items() if key not in keys[0]]]
        self._arms = [{arm.label: arm for arm in each.matrix.arms} for each in self.sides]

    def metrics(self, names: Sequence[str]) -> list[Metric]:
        """Those asked for, or those of the answer."""
        known = self.sides[0].matrix.metrics
        if not names:
            told = [metric.name for each in self.sides for metric in of_the_answer(each)]
            untold = self._untold()
            names = [name for name in told if self._is_judged(name) and name not in untold]
        for name in names:
            if not self._is_judged(name):
                remedy = f"both have {', '.join(filter(self._is_judged, known))}"
                raise StudyError([Problem(f"no metric {name!r} is judged in both runs", self.where, remedy)])
        return [known[name] for name in dict.fromkeys(names)]

    def rows(self, metric: Metric, *, by_condition: bool) -> Iterator[Matched]:
        """A row for each arm that both have, or for each of its conditions."""
        held = [Ratios.of(each.matrix, metric.name, each.rule) for each in self.sides]
        common = self._conditions(metric)
        groups = [[pair] for pair in common] if by_condition else [common] * bool(common)
        for label in self._treatments():
            arms = [arms[label] for arms in self._arms]
            for group in groups:
                asked = [pair for pair in group if self._is_asked(arms, pair)]
                if asked:
                    yield self._row(metric, arms, asked, held, by_condition=by_condition)

    def _row(
        self,
        metric: Metric,
        arms: Sequence[Arm],
        pairs: Sequence[tuple[Condition, Condition]],
        held: Sequence[Ratios],
        *,
        by_condition: bool,
    ) -> Matched:
        """Over the conditions of which both runs have a ratio: the mix of conditions must not pass for a change."""
        columns = [[each.matrix.conditions.index(pair[at]) for pair in pairs] for at, each in enumerate(self.sides)]
        have = [
            np.isfinite(side.logs[:, side.matrix.arms.index(arm), mine]).any(axis=0)
            for side, arm, mine in zip(held, arms, columns, strict=True)
        ]
        shared = np.asarray(have[0] & have[1])
        both = all(each.any() for each in have)  # else one's own ratio is shown, beside nothing
        rows = []
        for side, arm, mine in zip(held, arms, columns, strict=True):
            every = side.row(arm, None, mine)
            kept = [column for column, keep in zip(mine, shared, strict=True) if keep]
            some = side.row(arm, None, kept) if both else every
            rows.append(replace(some, zeros=every.zeros, failed=every.failed))
        told = self.sides[0].matrix.label(pairs[0][0], metric.name) if by_condition else ""
        reason = self._reason(metric, arms, pairs, rows)
        if both and not shared.any() and not any(each.barred for each in rows):
            reason = "A and B have a ratio under different conditions only"
        return Matched(arms[0], metric, told, rows[0], rows[1], self.rules, len(pairs), reason)

    def _reason(
        self, metric: Metric, arms: Sequence[Arm], pairs: Sequence[tuple[Condition, Condition]], rows: Sequence[Row]
    ) -> str:
        for at, name in enumerate("AB"):
            if rows[at].barred:
                return f"{name}: {of_barred(rows[at], metric).words}"
            if rows[at].summary is None:
                why = self.sides[at].matrix.why_missing(metric.name, arms[at], pairs[0][at])
                return f"not measured in {name}: {why}"
        return ""

    def natives(self, metric: Metric, by_condition: bool) -> Iterator[Native]:
        """Native's own figures under the conditions that both have."""
        common = self._conditions(metric)
        for group in [[pair] for pair in common] if by_condition else [common] * bool(common):
            if any(self._is_barred(metric, [pair[at] for pair in group], at) for at in (0, 1)):
                continue
            logs = [self._native_logs(metric, [pair[at] for pair in group], at) for at in (0, 1)]
            both = np.isfinite(logs[0]).any(axis=0) & np.isfinite(logs[1]).any(axis=0)
            means = [summary_under(rule, each[:, both]) for rule, each in zip(self.rules, logs, strict=True)]
            if means[0] is None or means[1] is None:
                continue
            told = self.sides[0].matrix.label(group[0][0], metric.name) if by_condition else ""
            own = [self._absolute(metric, group, at) for at in (0, 1)]
            yield Native(metric, told, own[0], own[1], Step(means[0], means[1], self.rules).estimate())

    def _native_logs(self, metric: Metric, conditions: Sequence[Condition], at: int) -> Any:
        matrix = self.sides[at].matrix
        assert matrix.baseline is not None
        columns = [matrix.conditions.index(condition) for condition in conditions]
        values = matrix.values(metric.name)[:, matrix.arms.index(matrix.baseline), columns]
        return np.log(values, out=np.full_like(values, math.nan), where=values > 0)

    def _is_barred(self, metric: Metric, conditions: Sequence[Condition], at: int) -> bool:
        """Whether a value of native's is 0 or lies among what failed: the others' mean would be of the better ones."""
        matrix = self.sides[at].matrix
        assert matrix.baseline is not None
        columns = [matrix.conditions.index(condition) for condition in conditions]
        values = matrix.values(metric.name)[:, matrix.arms.index(matrix.baseline), columns]
        return bool((values <= 0).any()) or any(
            matrix.censored(metric.name, matrix.baseline, condition)[0] for condition in conditions
        )

    def _absolute(self, metric: Metric, group: Sequence[tuple[Condition, Condition]], at: int) -> Estimate | None:
        matrix = self.sides[at].matrix
        if len(group) > 1 or matrix.baseline is None:
            return None
        return matrix.absolute(metric.name, matrix.baseline, group[0][at])

    def odd(self, metrics: Sequence[Metric]) -> Iterator[str]:
        """Where native differs from itself by more than chance."""
        for name, side in zip("AB", self.sides, strict=True):
            matrix = side.matrix
            if matrix.floor is None:
                continue
            for metric in metrics:
                row = Ratios.of(matrix, metric.name, side.rule).row(matrix.floor, None, range(len(matrix.conditions)))
                if differs_from_itself(row, side.rule):
                    yield f"{name}: in {metric.title} native differs from itself by more than chance"

    def only(self) -> Iterator[str]:
        """What only one of the runs has."""
        for at, name in enumerate("AB"):
            mine, theirs = self._arms[at], self._arms[1 - at]
            for label, arm in mine.items():
                if arm.role == "treatment" and label not in theirs:
                    yield f"only {name} has {label}{self._why_not(label, 1 - at)}"
            for condition in self._alone[at]:
                yield f"only {name} has the condition {self.sides[at].matrix.label(condition) or 'of its study'}"
            yield from (f"only {name} was asked for {each}" for each in self._asked_alone(at))
        for at, name in enumerate("AB"):
            told = (metric for metric in of_the_answer(self.sides[at]) if not self._is_judged(metric.name))
            yield from (f"only {name} has {metric.title}" for metric in told)
        for name, why in self._untold().items():
            yield f"neither has {self.sides[0].matrix.metrics[name].title}: {why}"

    def _why_not(self, label: str, at: int) -> str:
        """Why a run has no such arm, where it says so."""
        skipped = {each.arm.label: each.reason for each in self.sides[at].run.environment.skipped}
        return f" (the other: {skipped[label].splitlines()[0]})" if label in skipped else ""

    def _asked_alone(self, at: int, among: Collection[Condition] | None = None) -> Iterator[str]:
        """Of the arms and conditions that both have, what one run alone asked for: a rule of exclusion may differ."""
        for label in self._treatments():
            arms = [each[label] for each in self._arms]
            for pair in self._pairs.values():
                of_both = zip(self.sides, arms, pair, strict=True)
                asked = [side.matrix.is_asked(arm, condition) for side, arm, condition in of_both]
                if asked[at] and not asked[1 - at] and (among is None or pair[at] in among):
                    yield f"{label} under {self.sides[at].matrix.label(pair[at])}"

    def lacking(self, metrics: Sequence[Metric], *, of_all: bool) -> Iterator[str]:
        """What A has and B has not, of what these metrics are told of; ``of_all``: they are all that the answer has."""
        mine, theirs = self._arms
        matrix = self.sides[0].matrix
        among = {condition for metric in metrics for condition in matrix.conditions_of(metric.name)}
        yield from (label for label in mine if mine[label].role == "treatment" and label not in theirs)
        yield from (matrix.label(condition) for condition in self._alone[0] if of_all or condition in among)
        yield from self._asked_alone(0, None if of_all else among)
        if of_all:
            yield from (metric.title for metric in of_the_answer(self.sides[0]) if not self._is_judged(metric.name))

    def _untold(self) -> dict[str, str]:
        """What of the answer neither run tells, with A's reason: a search has no CPU per unit of work. What a load or a
        probe stands for is missed, and not left out.
        """
        beside = [m for each in self.sides if not each.is_programme for m in of_the_answer(each) if m != each.headline]
        reasons = {metric.name: [each.reason(metric.name) for each in self.sides] for metric in beside}
        return {name: of_both[0] for name, of_both in reasons.items() if all(of_both) and self._is_judged(name)}

    def excluded(self) -> Iterator[str]:
        """Of the arms that are compared, the trials that are in no ratio: of an arm that fails now and then, the blocks
        in which it did not are left.
        """
        for name, side in zip("AB", self.sides, strict=True):
            native = () if side.matrix.baseline is None else (side.matrix.baseline.label,)
            for label in (*native, *self._treatments()):
                ended = [record for record in side.run.records if not record.reason.startswith(INTERRUPTED)]
                mine = [record for record in ended if record.trial.arm.label == label]
                bad = [f"{record.status}: {record.reason}" for record in mine if record.status != "valid"]
                if bad:
                    yield f"{name}: {len(bad)} of {label}'s {len(mine)} trials are in no ratio, the first {bad[0]}"

    def _is_judged(self, name: str) -> bool:
        """Whether a metric is judged in both runs, and in the same way."""
        ways = [each.matrix.metrics[name].better if name in each.matrix.metrics else None for each in self.sides]
        return ways[0] is not None and ways[0] == ways[1]

    def _conditions(self, metric: Metric) -> list[tuple[Condition, Condition]]:
        """Those that both were asked under, of which A has the metric: what B then lacks is a ratio."""
        mine = self.sides[0].matrix.conditions_of(metric.name)
        return [pair for pair in self._pairs.values() if pair[0] in mine]

    def _treatments(self) -> list[str]:
        mine, theirs = self._arms
        return [arm.label for arm in self.sides[0].treatments if arm.label in theirs and arm.label in mine]

    def _is_asked(self, arms: Sequence[Arm], pair: tuple[Condition, Condition]) -> bool:
        sides = zip(self.sides, arms, pair, strict=True)
        return all(side.matrix.is_asked(arm, condition) for side, arm, condition in sides)


def of_the_answer(findings: Findings) -> list[Metric]:
    """By which a run is told, of what can be judged."""
    told = findings.judged if findings.is_programme else findings.of_a_server
    return [metric for metric in told if metric.better is not None]
