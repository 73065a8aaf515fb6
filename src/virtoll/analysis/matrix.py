"""Trials laid out as the plan crossed them: block x arm x condition, one array a metric.

Where a study deploys native twice in each block (baseline and floor), an arm is compared with both (`Matrix.against`).
Where a block has several groups of arms, the baseline has a trial in each: it counts by their mean, and what stands
opposite an arm's trial is native's of the same group (`Matrix.opposite`); the floor is in one group, as any arm is.
Trials of a block are compared where they are of one sitting (`Matrix.sitting`), and not where the run was gone on with
between them.

In a programme the cases of its probes are conditions, and a metric is planned only in those of its own probe. Trials
in which an outside instrument stood in for a probe are among the cells, but their conditions are not the matrix's: no
mean and no toll meets them. `crosscheck` compares them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from virtoll.analysis.conditions import INSTRUMENT, Condition, each_condition
from virtoll.analysis.estimates import Estimate, Floats, Summary, mean, mean_of, over_conditions
from virtoll.analysis.hosts import MANY, over_hosts
from virtoll.analysis.load import Run
from virtoll.analysis.metrics import KNEE, OF_SEARCH, Metric, TrialMetrics, barring, metrics_of
from virtoll.analysis.sittings import in_one_sitting, sittings_of
from virtoll.errors import StoreError
from virtoll.record.model import LOST_PERCENT, SERVER, Arm
from virtoll.record.store import is_interrupted

Cell = tuple[int, int, str, Condition]  # block, group, arm's label, condition
Side = tuple[Arm, Condition]  # of a comparison


@dataclass(frozen=True)
class Matrix:
    """What was planned against what was measured. Values of trials that are not valid are nan, never used."""

    run: Run
    arms: tuple[Arm, ...]  # baseline, floor, then the treatments in the study's order
    conditions: tuple[Condition, ...]
    blocks: tuple[int, ...]
    trials: tuple[TrialMetrics, ...]  # all that were sealed, in their order
    cells: dict[Cell, TrialMetrics]  # the valid ones
    metrics: Mapping[str, Metric]  # what this run's trials can say
    groups: Mapping[tuple[int, str], int] = field(default_factory=dict)  # by block and arm's label; 0: it had none
    _arrays: dict[str, Floats] = field(default_factory=dict)
    _planned: dict[str, tuple[Condition, ...]] = field(default_factory=dict)

    @property
    def baseline(self) -> Arm | None:
        """The arm everything is compared with."""
        return next((arm for arm in self.arms if arm.role == "baseline"), None)

    def is_baseline(self, label: str) -> bool:
        """Whether it is the baseline's label."""
        return self.baseline is not None and self.baseline.label == label

    @property
    def floor(self) -> Arm | None:
        """The second arm of the baseline's kind."""
        return next((arm for arm in self.arms if arm.role == "floor"), None)

    @cached_property
    def natives(self) -> tuple[Arm, ...]:
        """The arms that are native under one name or the other, the baseline first."""
        return tuple(arm for arm in (self.baseline, self.floor) if arm is not None) if self.baseline else ()

    def against(self, arm: Arm) -> tuple[Arm, ...]:
        """The natives that an arm is compared with: all of them. Native again is compared with native, which is what
        native differs from native by; and native with itself.
        """
        return self.natives[:1] if arm in self.natives else self.natives

    @property
    def varying(self) -> tuple[str, ...]:
        """The factors that have more than one level."""
        return _varying(self.conditions)

    def varying_of(self, metric: str) -> tuple[str, ...]:
        """What has more than one level among a metric's own conditions."""
        return _varying(self.conditions_of(metric))

    def conditions_of(self, metric: str) -> tuple[Condition, ...]:
        """The conditions in which a metric was planned: all, those whose load has it, those of a search or of no
        search, or the cases of its probe that report it.

        A case of which nothing valid is known, or which lost too much on every arm, counts for its probe's headline, so
        that what is missing shows.
        """
        known = self._planned
        if metric not in known:
            probe = self.metrics[metric].probe
            mine = tuple(condition for condition in self.conditions if self._asks(metric, condition))
            known[metric] = tuple(c for c in mine if not probe or self._reports(metric, c))
        return known[metric]

    def may_tell(self, metric: str) -> tuple[Condition, ...]:
        """The same, and the cases of its probe of which nothing valid is known of any arm, or which all lost too much
        in: whether those report it, nobody knows.
        """
        known = self.conditions_of(metric)
        return tuple(c for c in self.conditions if c in known or (self._asks(metric, c) and self._is_void(c)))

    def _is_void(self, condition: Condition) -> bool:
        """Whether no trial is valid, or each lost so much that its probe's headline is told of none."""
        cells, probe = self._under(condition), condition.probe
        headlines = {metric.name for metric in self.metrics.values() if metric.probe == probe and metric.headline}
        if cells and not (probe and headlines):
            return False
        told = any(headlines & (cell.values.keys() | cell.censored) for cell in cells)
        return not told and all(cell.values.get(f"{probe}.{LOST_PERCENT}", 0.0) > 0 for cell in cells)

    def _under(self, condition: Condition) -> list[TrialMetrics]:
        return [cell for arm in self.arms for cell in self.across(arm, condition).values()]

    def _asks(self, metric: str, condition: Condition) -> bool:
        """Whether a condition is of the probe, or of the load, whose own quantity it is; any is of all others."""
        of = self.metrics[metric]
        if self.searched and (metric not in OF_SEARCH if condition in self.searched else metric == KNEE):
            return False
        if of.is_a_loads_own and (servers := self.run.study.get("servers")):
            return bool(servers[condition.get(SERVER)]["load"] == of.group)
        return not of.probe or condition.probe == of.probe

    @cached_property
    def searched(self) -> frozenset[Condition]:
        """The conditions of the servers that were searched for their knee, where others were not; else none."""
        if self.run.objective or not self.run.has_search:
            return frozenset()
        return frozenset(each for each in self.conditions if self.run.is_search(dict(each.levels)))

    def _reports(self, metric: str, condition: Condition) -> bool:
        is_told = any(metric in cell.values or metric in cell.censored for cell in self._under(condition))
        return is_told or (self.metrics[metric].headline and self._is_void(condition))

    def cell(self, block: int, arm: Arm, condition: Condition) -> TrialMetrics | None:
        """The valid trial of one arm under one condition in one block; of the baseline's several groups the first's."""
        _, cell = self._first.get((self._at[block], arm.label, condition), (0, None))
        return cell

    def across(self, arm: Arm, condition: Condition) -> dict[tuple[int, int], TrialMetrics]:
        """The valid trials of one arm under one condition, by the number of their block among ``blocks``, and group."""
        return self._across.get((arm.label, condition), {})

    @cached_property
    def _at(self) -> dict[int, int]:
        """Of each block its number among ``blocks``."""
        return {block: at for at, block in enumerate(self.blocks)}

    @cached_property
    def _across(self) -> dict[tuple[str, Condition], dict[tuple[int, int], TrialMetrics]]:
        found: dict[tuple[str, Condition], dict[tuple[int, int], TrialMetrics]] = {}
        for (block, group, label, condition), cell in sorted(self.cells.items(), key=lambda item: item[0][:2]):
            found.setdefault((label, condition), {})[self._at[block], group] = cell
        return found

    def levels(self, path: str, metric: str | None = None) -> list[Any]:
        """The levels of one factor (among a metric's conditions), ascending where they can be ordered. Who is searched
        for its knee is at none of the intensity's.
        """
        among = self.conditions if metric is None else self.conditions_of(metric)
        asked = (condition for condition in among if condition not in self.searched or path in dict(condition.levels))
        found = list(dict.fromkeys(condition.get(path) for condition in asked))
        return sorted(found) if all(isinstance(level, int | float) for level in found) else found

    def label(self, condition: Condition, metric: str | None = None) -> str:
        """The condition in words, by what varies in this run, or among a metric's conditions."""
        if metric is None or not self.metrics[metric].probe:
            return condition.label(self.varying or None)
        among = self.conditions_of(metric)
        return condition.label(_varying(among if condition in among else self.may_tell(metric)))

    def values(self, metric: str) -> Floats:
        """Array [block, arm, condition] of a metric; nan where there is no valid value."""
        if metric not in self._arrays:
            array = np.full((len(self.blocks), len(self.arms), len(self.conditions)), np.nan)
            columns = [(self._number[condition], condition) for condition in self.conditions_of(metric)]
            for a, arm in enumerate(self.arms):
                for c, condition in columns:
                    array[:, a, c] = self._by_block(metric, arm, condition)
            self._arrays[metric] = array
        return self._arrays[metric]

    @cached_property
    def _number(self) -> dict[Condition, int]:
        """Of each condition, among ``conditions``: there are many, and to look for one takes long."""
        return {condition: number for number, condition in enumerate(self.conditions)}

    def _by_block(self, metric: str, arm: Arm, condition: Condition) -> Floats:
        """An arm's value in each block: a mean where it stands in several groups; nan where there is none."""
        found: dict[int, list[float]] = {}
        for (b, _), cell in self.across(arm, condition).items():
            found.setdefault(b, []).append(cell.values.get(metric, np.nan))
        means = np.full(len(self.blocks), np.nan)
        for b, values in found.items():
            known = [value for value in values if math.isfinite(value)]
            means[b] = sum(known) / len(known) if known else np.nan
        return means

    def opposite(self, metric: str, native: Arm) -> Floats:
        """Array [block, arm, condition]: what a native did in the group and the sitting of the arm's trial; nan where
        that is not known.

        Opposite the baseline is what it did itself.
        """
        mine = self.arms.index(native)
        array = np.repeat(self.values(metric)[:, mine : mine + 1, :], len(self.arms), axis=1)
        if any(self.groups.values()) or self._is_torn:
            for c, condition in enumerate(self.conditions):
                for a, arm in enumerate(self.arms):
                    array[:, a, c] = self.beside(metric, (arm, condition), condition, native)
        return array

    def together(self, one: Side, other: Side) -> npt.NDArray[np.bool_]:
        """By block, whether two cells hold trials that stood in the same group, in one sitting; no arm did so with a
        baseline that was in several groups.
        """
        groups = [[self.groups.get((block, arm.label), 0) for block in self.blocks] for arm, _ in (one, other)]
        met = in_one_sitting([self.sittings(one), self.sittings(other)])
        return np.array([is_one and a == b for is_one, a, b in zip(met, *groups, strict=True)])

    def beside(self, metric: str, side: Side, condition: Condition, native: Arm) -> Floats:
        """By block, what a native did under a condition in the group and the sitting of another arm's trial (under its
        own); nan where it is not known.
        """
        arm, _ = side
        if arm == self.baseline:
            return self._by_block(metric, native, condition)
        natives, found = self.across(native, condition), np.full(len(self.blocks), np.nan)
        for b, block in enumerate(self.blocks):
            cell = natives.get((b, self.groups.get((block, arm.label), 0)))
            if cell is not None and self.is_beside(cell, side):
                found[b] = cell.values.get(metric, np.nan)
        return found

    def is_beside(self, native: TrialMetrics, side: Side) -> bool:
        """Whether a trial of native's is of the group that another arm is of in its block, and of the sitting of that
        arm's trial, where that is valid.
        """
        (arm, _), plan = side, native.record.trial
        mine = self.cell(plan.block, *side)
        is_one = mine is None or self.sitting(mine) == self.sitting(native)
        return is_one and self.groups.get((plan.block, arm.label), 0) == plan.group

    def pair(self, b: int, arm: Arm, condition: Condition, native: Arm) -> tuple[TrialMetrics, TrialMetrics] | None:
        """An arm's valid trial in the ``b``-th block and a native's of the same group and sitting; None where one is
        missing.

        Of the baseline itself its first trial, twice.
        """
        mine = self._first.get((b, arm.label, condition))
        if mine is None:
            return None
        other = self.across(native, condition).get((b, mine[0]))
        return None if other is None or self.sitting(mine[1]) != self.sitting(other) else (mine[1], other)

    def sitting(self, trial: TrialMetrics) -> int:
        """A number that the trials of one sitting share: those of two are not compared (`sittings_of`)."""
        return self._sittings[trial.record.trial.id]

    def sittings(self, side: Side) -> list[set[int]]:
        """By block, those of a cell's valid trials: of the baseline in several groups there may be two."""
        found: list[set[int]] = [set() for _ in self.blocks]
        for (b, _), cell in self.across(*side).items():
            found[b].add(self.sitting(cell))
        return found

    @cached_property
    def _sittings(self) -> dict[str, int]:
        return sittings_of(trial.record for trial in self.trials)

    @cached_property
    def parts(self) -> frozenset[tuple[int, int]]:
        """Each block with each sitting that a valid trial of it is of: one that was cut short has two or more."""
        return frozenset((block, self.sitting(cell)) for (block, *_), cell in self.cells.items())

    @cached_property
    def _is_torn(self) -> bool:
        """Whether some block holds trials of two sittings."""
        return len({block for block, _ in self.parts}) < len(self.parts)

    @cached_property
    def _first(self) -> dict[tuple[int, str, Condition], tuple[int, TrialMetrics]]:
        """The first of an arm's valid trials in a block, by the block's number, and the group that it is of."""
        found: dict[tuple[int, str, Condition], tuple[int, TrialMetrics]] = {}
        for (label, condition), cells in self._across.items():
            for (b, group), cell in cells.items():
                found.setdefault((b, label, condition), (group, cell))
        return found

    def absolute(self, metric: str, arm: Arm, condition: Condition) -> Estimate | None:
        """Mean over deployments in the metric's unit; None when nothing valid was measured, or one was `censored`."""
        if self.censored(metric, arm, condition)[0]:
            return None
        values = self.values(metric)[:, self.arms.index(arm), self._number[condition]]
        return self.mean(values, self.metrics[metric].unit) if np.isfinite(values).any() else None

    def mean(self, values: Floats, unit: str) -> Estimate:
        """The mean of one value a block, nan where there is none; over hosts where there are several. ValueError of
        no value at all.
        """
        if len(set(self.hosts)) < 2:
            return mean(values, unit)
        summary = self._over_hosts(values[:, None])
        if summary is None:
            raise ValueError("no finite value to summarise")
        return mean_of(summary, unit, "mean over hosts of the mean over deployments, t interval")

    def mean_over(self, values: Floats, unit: str) -> Estimate | None:
        """The mean over conditions of [block, condition], each weighing the same whatever it lost; None without any."""
        of_hosts = len(set(self.hosts)) > 1
        summary = self._over_hosts(values) if of_hosts else over_conditions(values)
        whose = "hosts of those over conditions" if of_hosts else "conditions"
        return None if summary is None else mean_of(summary, unit, f"mean over {whose} of means, t interval")

    def _over_hosts(self, values: Floats) -> Summary | None:
        return over_hosts(self.hosts, values, is_of_hosts=len(set(self.hosts)) >= MANY)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """By block, the host that measured it; "" where the plan names none."""
        named = self.run.plan.hosts
        return tuple(named.get(block, "") for block in self.blocks)

    def censored(self, metric: str, arm: Arm, condition: Condition) -> tuple[int, int]:
        """In how many of a cell's valid trials a metric lies among the failed requests, and how many trials there are;
        with those that did not answer beside other servers.

        A mean over the others would be of the better ones only.
        """
        cells = self.across(arm, condition).values()
        silent = len(self.silent(metric, arm, condition))
        return silent + sum(metric in cell.censored for cell in cells), silent + len(cells)

    def barred(self, metric: str, arm: Arm, condition: Condition) -> tuple[int, int]:
        """The same, where what was used at a knee goes with the knee (`metrics.barring`)."""
        return max(self.censored(name, arm, condition) for name in barring(metric) & self.metrics.keys())

    def silent(self, metric: str, arm: Arm, condition: Condition) -> list[TrialMetrics]:
        """The trials in which a server `did_not_answer`, where that is worse than any value of the metric: not of how
        long it was deployed before.
        """
        if metric == "deploy_s" or condition not in self.conditions_of(metric):
            return []
        return self._silent.get((arm.label, condition), [])

    @cached_property
    def _silent(self) -> dict[tuple[str, Condition], list[TrialMetrics]]:
        found: dict[tuple[str, Condition], list[TrialMetrics]] = {}
        for trial in self.trials:
            if trial.did_not_answer:
                plan = trial.record.trial
                found.setdefault((plan.arm.label, Condition.of(plan)), []).append(trial)
        return found

    def failed(self, arm: Arm, condition: Condition | None = None) -> str:
        """In how many of its trials (under one condition, or any) an arm's service `failed_its_users`, which are not
        valid: "failed its users in 5 of 8 trials (...)"; "" where in none, where there are no others, or of probes.
        """
        if self.run.programme:
            return ""
        mine = [trial for trial in self.trials if trial.record.trial.arm.label == arm.label]
        under = each_condition(trial.record.trial for trial in mine)
        others = {each for each in self.conditions if condition in (None, each) and self.across(arm, each)}
        here = [trial for trial, each in zip(mine, under, strict=True) if each in others]
        failed = [trial for trial in here if trial.failed_its_users]
        of = sum(not is_interrupted(trial.record) for trial in here)
        if not failed:
            return ""
        lost = "" if failed[0].record.status == "invalid" else ", or was lost in its window,"
        return f"failed its users{lost} in {len(failed)} of {of} trials ({failed[0].record.reason})"

    def why_missing(self, metric: str, arm: Arm, condition: Condition) -> str:
        """Why a cell has no value, or none to compare it with: the first reason a trial of it gives, or of the baseline
        beside it.
        """
        if not self.is_asked(arm, condition):
            return "the study does not ask it of this arm"
        if why := self._why_missing(metric, arm, condition):
            return why
        if self.baseline is None or arm == self.baseline or not self.across(arm, condition):
            return "not run yet"
        group = {self.groups.get((block, arm.label), 0) for block in self.blocks}
        why = self._why_missing(metric, self.baseline, condition, group)
        return f"{self.baseline.label}: {why}" if why else "in no block beside native"

    def _why_missing(self, metric: str, arm: Arm, condition: Condition, groups: Collection[int] = ()) -> str:
        """What the first trial that has no value (of these groups, or of any) says; "" where there is none."""
        for trial in self.trials:
            plan = trial.record.trial
            if plan.arm.label != arm.label or Condition.of(plan) != condition or (groups and plan.group not in groups):
                continue
            if trial.record.status != "valid":
                return f"{trial.record.status}: {trial.record.reason}"
            if metric in trial.missing:
                return trial.missing[metric]
            if metric not in trial.values:
                return "the probe did not report it"
        return ""

    def is_asked(self, arm: Arm, condition: Condition) -> bool:
        """Whether it was planned at all: a rule of exclusion may be for some platforms."""
        return (arm.label, condition) in self._asked

    @cached_property
    def _asked(self) -> set[tuple[str, Condition]]:
        planned = self.run.plan.trials
        return {(trial.arm.label, under) for trial, under in zip(planned, each_condition(planned), strict=True)}

    def notes(self, metric: str, arm: Arm, condition: Condition) -> list[str]:
        """How to read a cell's values, each note once."""
        cells = self.across(arm, condition).values()
        return list(dict.fromkeys(cell.notes[metric] for cell in cells if metric in cell.notes))

    def spread_within(self, metric: str, arm: Arm) -> float | None:
        """Median over an arm's trials of the coefficient of variation over the windows of one deployment."""
        cells = [cell for c in self.conditions_of(metric) for cell in self.across(arm, c).values()]
        spreads = [cell.spread[metric] for cell in cells if metric in cell.spread]
        return float(np.median(spreads)) if spreads else None


def _varying(conditions: Sequence[Condition]) -> tuple[str, ...]:
    paths = dict.fromkeys(path for condition in conditions for path, _ in condition.levels)
    return tuple(path for path in paths if len({c.get(path) for c in conditions}) > 1)


def build_matrix(run: Run, trials: list[TrialMetrics]) -> Matrix:
    """Lay the trials out. StoreError when two valid trials claim the same cell."""
    planned = run.plan.trials
    arms = sorted({trial.arm.label: trial.arm for trial in planned}.values(), key=_arm_order(run))
    own = (trial for trial in planned if INSTRUMENT not in trial.condition)
    conditions = sorted(dict.fromkeys(each_condition(own)), key=_condition_order(run))
    cells: dict[Cell, TrialMetrics] = {}
    claimed: dict[Cell, str] = {}
    for trial, under in zip(trials, each_condition(trial.record.trial for trial in trials), strict=True):
        plan = trial.record.trial
        if trial.record.status != "valid":
            continue
        once = plan.group if plan.arm.role == "baseline" else 0  # which is in every group; the others are in one
        claim = (plan.block, once, plan.arm.label, under)
        if claim in claimed:
            raise StoreError(
                f"trials {claimed[claim]} and {plan.id} hold the same treatment of the same block",
                where=str(run.directory / "plan.json"),
                remedy="a block holds each treatment once; the plan was changed by hand",
            )
        claimed[claim] = plan.id
        cells[plan.block, plan.group, plan.arm.label, under] = trial
    blocks = tuple(sorted({trial.block for trial in planned}))
    groups = {(trial.block, trial.arm.label): trial.group for trial in planned if trial.arm.role != "baseline"}
    unplaced = {name for cell in cells.values() for name in cell.unplaced}
    metrics = {
        name: replace(each, censoring=f"{each.censoring}, or may") if name in unplaced else each
        for name, each in metrics_of(run).items()
    }
    return Matrix(run, tuple(arms), tuple(conditions), blocks, tuple(trials), cells, metrics, groups)


def _condition_order(run: Run) -> Callable[[Condition], tuple[int, list[tuple[int, float, str]]]]:
    """A programme's cases as its study names them; then by levels, ascending."""
    cases = [case["condition"].items() for case in run.programme if not case["instrument"]]

    def key(condition: Condition) -> tuple[int, list[tuple[int, float, str]]]:
        levels = dict(condition.levels).items()
        case = next((number for number, case in enumerate(cases) if case <= levels), len(cases))
        return case, [_sort_key(level) for _, level in condition.levels]

    return key


def _arm_order(run: Run) -> Callable[[Arm], tuple[int, int, str]]:
    """Baseline, floor, then the treatments as the study first names them, then by label."""
    roles = {"baseline": 0, "floor": 1, "treatment": 2}
    study = json.dumps(run.study)

    def key(arm: Arm) -> tuple[int, int, str]:
        named = [study.find(json.dumps(word)) for word in (arm.label, arm.platform)]
        return roles[arm.role], next((at for at in named if at >= 0), len(study)), arm.label

    return key


def _sort_key(level: Any) -> tuple[int, float, str]:
    number = isinstance(level, int | float)
    return (0, float(level), "") if number else (1, 0.0, {"off": "0", "on": "1"}.get(str(level), str(level)))
