"""What two runs both have, and what only one of them has: arms, conditions and metrics, side by side."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from virtoll.analysis.changes import Difference, Matched, Paired, Step, differs_from_itself
from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Estimate, Floats, Summary
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import KNEE, Metric, told_apart
from virtoll.analysis.ratios import Ratios, Row, of_barred, summary_under
from virtoll.analysis.rules import Rule
from virtoll.analysis.sittings import in_one_sitting
from virtoll.errors import Problem, StudyError
from virtoll.record.model import Arm, TrialRecord
from virtoll.record.store import INTERRUPTED
from virtoll.report.asked import Asked, asked_differently, configured
from virtoll.report.findings import Findings
from virtoll.report.reservations import how_to_read

_OTHER = "lost: in those blocks ratios are to the other native alone"


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


class Both:
    """Arms, conditions and metrics of two runs, side by side."""

    def __init__(self, before: Findings, after: Findings) -> None:
        self.sides = before, after
        self.rules: tuple[Rule, Rule] = before.rule, after.rule
        self.is_one_run = before.run.directory == after.run.directory
        self.where = " and ".join(dict.fromkeys(str(each.run.directory) for each in self.sides))
        self._asked = asked = [Asked.of(each) for each in self.sides]
        keys = [each.keys(asked[0].varied | asked[1].varied) for each in asked]
        self._pairs = {key: (keys[0][key], keys[1][key]) for key in keys[0] if key in keys[1]}
        self._alone = [[c for key, c in keys[0].items() if key not in keys[1]]]
        self._alone += [[c for key, c in keys[1].items() if key not in keys[0]]]
        self._arms = [{arm.label: arm for arm in each.matrix.arms} for each in self.sides]

    def notes(self) -> Iterator[str]:
        """What a reader must know of either run."""
        yield from self._of_each([each.run.notes for each in self.sides])

    def readings(self) -> Iterator[str]:
        """How to read either run's figures."""
        yield from self._of_each([how_to_read(each) for each in self.sides])

    def _of_each(self, told: Sequence[Sequence[str]]) -> Iterator[str]:
        """Once, where one run says the same of both of its configurations."""
        if self.is_one_run and told[0] == told[1]:
            yield from told[0]
            return
        for name, notes in zip("AB", told, strict=True):
            yield from (f"{name}: {note}" for note in notes)

    def configured(self) -> Iterator[str]:
        """What is under test, and differs; of one run's configurations all that does."""
        one, other = self._asked
        if self.is_one_run:
            yield from asked_differently(one, other)
        yield from configured(one, other)

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
        return told_apart(known[name] for name in dict.fromkeys(names))

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
        logs = [
            side.logs[:, side.matrix.arms.index(arm), mine] for side, arm, mine in zip(held, arms, columns, strict=True)
        ]
        have = [np.isfinite(each).any(axis=0) for each in logs]
        change = self._by_block(logs)
        shared = np.asarray(have[0] & have[1] if change is None else np.isfinite(change).any(axis=0))
        both = all(each.any() for each in have)  # else one's own ratio is shown, beside nothing
        rows = []
        for at, (side, arm, mine) in enumerate(zip(held, arms, columns, strict=True)):
            every = side.row(arm, None, mine)
            kept = [column for column, keep in zip(mine, shared, strict=True) if keep]
            some = side.row(arm, None, kept) if both else every
            if both and change is not None:
                some = replace(some, summary=self._where_told(change, logs[at], at))
            if self._in_vain(metric, at, arm):
                some = replace(some, summary=None)
            rows.append(replace(some, zeros=every.zeros, failed=every.failed))
        told = self.sides[0].matrix.label(pairs[0][0], metric.name) if by_condition else ""
        reason = self._reason(metric, arms, pairs, rows)
        if both and not shared.any() and not any(each.barred for each in rows):
            blocks = "in different blocks, or " * self.is_one_run
            reason = f"A and B have a ratio {blocks}under different conditions only"
        within = None if change is None else summary_under(self.rules[0], change)
        return Matched(arms[0], metric, told, rows[0], rows[1], self.rules, len(pairs), reason, self.is_one_run, within)

    def _by_block(self, logs: Sequence[Floats]) -> Floats | None:
        """Of one run what each block says of the change, [block, condition]; None of two runs."""
        if not self.is_one_run:
            return None
        blocks = self._blocks()
        found = np.full((2, len(blocks), logs[0].shape[1]), np.nan)
        for at, (side, mine) in enumerate(zip(self.sides, logs, strict=True)):
            found[at, [blocks.index(block) for block in side.matrix.blocks]] = mine
        return np.asarray(found[1] - found[0])

    def _blocks(self) -> list[int]:
        """Those of either side."""
        return sorted({block for side in self.sides for block in side.matrix.blocks})

    def _where_told(self, change: Floats, logs: Floats, at: int) -> Summary | None:
        """Of one run's configuration what it has where the change is told: those of other blocks are in no change."""
        mine = [self._blocks().index(block) for block in self.sides[at].matrix.blocks]
        return summary_under(self.rules[at], np.where(np.isfinite(change[mine]), logs, np.nan))

    def _reason(
        self, metric: Metric, arms: Sequence[Arm], pairs: Sequence[tuple[Condition, Condition]], rows: Sequence[Row]
    ) -> str:
        for at, name in enumerate("AB"):
            if rows[at].barred:
                return f"{name}: {of_barred(rows[at], metric).words}"
            if label := self._in_vain(metric, at, arms[at]):
                return f"{name}: {label} met the objective of the ramp at no level"
            if rows[at].summary is None:
                why = self.sides[at].matrix.why_missing(metric.name, arms[at], pairs[0][at])
                return f"not measured in {name}: {why}"
        return ""

    def _in_vain(self, metric: Metric, at: int, arm: Arm) -> str:
        """Who of an arm and native met the objective of a ramp nowhere, and has no cost at it; "" where neither."""
        side = self.sides[at]
        assert side.matrix.baseline is not None
        both = (arm.label, side.matrix.baseline.label)
        met = {} if metric.is_a_loads_own or metric.name == KNEE else side.met
        return next((label for label in both if label in met and not met[label]), "")

    def natives(self, metric: Metric, by_condition: bool) -> Iterator[Native]:
        """Native's own figures under the conditions that both have."""
        common = self._conditions(metric)
        for group in [[pair] for pair in common] if by_condition else [common] * bool(common):
            if any(self._is_barred(metric, [pair[at] for pair in group], at) for at in (0, 1)):
                continue
            logs = [self._native_logs(metric, [pair[at] for pair in group], at) for at in (0, 1)]
            change = self._natives_change(logs, group)
            if change is None:
                continue
            told = self.sides[0].matrix.label(group[0][0], metric.name) if by_condition else ""
            own = [self._absolute(metric, group, at) for at in (0, 1)]
            yield Native(metric, told, own[0], own[1], change.estimate())

    def _natives_change(
        self, logs: Sequence[Floats], group: Sequence[tuple[Condition, Condition]]
    ) -> Difference | None:
        """None where a run has none of it, or where both configurations share their native."""
        change = self._by_block(logs)
        if change is not None:
            within = summary_under(self.rules[0], np.where(self._natives_met(group), change, math.nan))
            is_shared = self.sides[0].run.base == self.sides[1].run.base
            return None if within is None or is_shared else Paired(within, self.rules[0])
        both = np.isfinite(logs[0]).any(axis=0) & np.isfinite(logs[1]).any(axis=0)
        means = [summary_under(rule, each[:, both]) for rule, each in zip(self.rules, logs, strict=True)]
        if means[0] is None or means[1] is None:
            return None
        return Step(means[0], means[1], self.rules)

    def _natives_met(self, group: Sequence[tuple[Condition, Condition]]) -> Any:
        """Array [block, condition] of one run: whether native was measured as A and as B in one sitting."""
        return np.stack([in_one_sitting([self._sittings(at, pair[at]) for at in (0, 1)]) for pair in group], axis=-1)

    def _sittings(self, at: int, condition: Condition) -> Any:
        """Of native's trials of one side, by the blocks of both."""
        matrix = self.sides[at].matrix
        assert matrix.baseline is not None
        known = dict(zip(matrix.blocks, matrix.sittings((matrix.baseline, condition)), strict=True))
        return [known.get(block, set()) for block in self._blocks()]

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
            matrix.barred(metric.name, matrix.baseline, condition)[0] for condition in conditions
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
                held = Ratios.of(matrix, metric.name, side.rule)
                row = held.row(matrix.floor, None, side.columns(metric.name))
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
            yield from (f"only in {name} all arms met the objective at {each}" for each in self._met_alone(at))
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
        if not all(metric.is_a_loads_own for metric in metrics):
            yield from (f"{level} with the objective met" for level in self._met_alone(0))
        for metric in metrics:
            if self._asked_under(metric) and not self._conditions(metric):
                yield f"a level at which all arms met the objective in both runs, for {metric.title}"
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
        """Of the arms that are compared, and of both natives, the trials that are in no ratio: of an arm that fails now
        and then, the blocks in which it did not are left. Of a native that is lost the other may be left.
        """
        for name, side in zip("AB", self.sides, strict=True):
            natives = [native.label for native in side.matrix.natives]
            for label in (*natives, *self._treatments()):
                ended = [record for record in side.run.records if not record.reason.startswith(INTERRUPTED)]
                mine = [record for record in ended if record.trial.arm.label == label]
                bad: dict[str, list[TrialRecord]] = {}
                for record in (each for each in mine if each.status != "valid"):
                    is_alone = label in natives and _other_stands(side.matrix, record)
                    bad.setdefault(_OTHER if is_alone else "in no ratio", []).append(record)
                for words, lost in bad.items():
                    first = f"the first {lost[0].status}: {lost[0].reason}"
                    yield f"{name}: {len(lost)} of {label}'s {len(mine)} trials are {words}, {first}"

    def _is_judged(self, name: str) -> bool:
        """Whether a metric is judged in both runs, and in the same way."""
        ways = [each.matrix.metrics[name].better if name in each.matrix.metrics else None for each in self.sides]
        return ways[0] is not None and ways[0] == ways[1]

    def _conditions(self, metric: Metric) -> list[tuple[Condition, Condition]]:
        """Those that both were asked under, of which A has the metric: what B then lacks is a ratio. Of ramps the
        levels that both runs are told over (`Findings.over`): who is at its limit in one of them is the cheaper
        there.
        """
        over = [side.over(metric.name) for side in self.sides]
        return [pair for pair in self._asked_under(metric) if pair[0] in over[0] and pair[1] in over[1]]

    def _asked_under(self, metric: Metric) -> list[tuple[Condition, Condition]]:
        mine = self.sides[0].matrix.conditions_of(metric.name)
        return [pair for pair in self._pairs.values() if pair[0] in mine]

    def _met_alone(self, at: int) -> Iterator[str]:
        """The levels at which all arms met the objective in one run, and not in the other."""
        for pair in self._pairs.values():
            if pair[at] in self.sides[at].compared and pair[1 - at] not in self.sides[1 - at].compared:
                yield self.sides[at].matrix.label(pair[at])

    def _treatments(self) -> list[str]:
        mine, theirs = self._arms
        return [arm.label for arm in self.sides[0].treatments if arm.label in theirs and arm.label in mine]

    def _is_asked(self, arms: Sequence[Arm], pair: tuple[Condition, Condition]) -> bool:
        sides = zip(self.sides, arms, pair, strict=True)
        return all(side.matrix.is_asked(arm, condition) for side, arm, condition in sides)


def _other_stands(matrix: Matrix, lost: TrialRecord) -> bool:
    """Whether ratios of the block (and group) of a lost native are to the other: that was measured there, and the
    lost one is no result (as it is that a server did not answer beside others).
    """
    plan = lost.trial
    others = [native.label for native in matrix.natives if native.label != plan.arm.label]
    there = ((plan.block, plan.group, label, Condition.of(plan)) in matrix.cells for label in others)
    return lost.outcome != "did not answer" and any(there)


def of_the_answer(findings: Findings) -> list[Metric]:
    """By which a run is told, of what can be judged."""
    told = findings.judged if findings.is_programme else findings.of_a_server
    return [metric for metric in told if metric.better is not None]
