"""Everything a report says, computed once: the matrix, the toll tables, the judged papers, the cross-checks."""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from virtoll.analysis.calibration import calibration
from virtoll.analysis.claims import JudgedPaper, judge_paper
from virtoll.analysis.components import Components, components_of
from virtoll.analysis.conditions import Condition, each_condition
from virtoll.analysis.crosscheck import CrossCheck, cross_checks
from virtoll.analysis.estimates import Summary
from virtoll.analysis.hosts import Apart, apart, by_host
from virtoll.analysis.isolation import Isolation, isolation
from virtoll.analysis.load import Run, by_configuration, by_server, parted, read_run
from virtoll.analysis.matrix import Matrix, build_matrix
from virtoll.analysis.measuring import measure_all
from virtoll.analysis.metrics import (
    ALL,
    KNEE,
    LIVE_AGE,
    SERVER_CPUS,
    Metric,
    TrialMetrics,
    Wanted,
    is_told_by_server,
    request_of,
    unit_of,
)
from virtoll.analysis.papers import read_paper
from virtoll.analysis.ramps import unfolded
from virtoll.analysis.ratios import DECLARED_MARGIN, Toll, TollTable, log_ratios, toll_table
from virtoll.analysis.rules import Rule, rule_of
from virtoll.analysis.server import fixed_by, is_held, met_by_all, met_under, tells
from virtoll.analysis.side_by_side import SideBySide, side_by_side
from virtoll.errors import StoreError, VirtollError
from virtoll.features import Features
from virtoll.record.calibration import Calibration
from virtoll.record.model import NOT_BOOKED, NOT_LIMITED, PROBE, SERVER, Arm, TrialRecord
from virtoll.report.begin import uncollected
from virtoll.units import plural

_LATENCIES = ("latency_p99_ms", "latency_p90_ms", "latency_p50_ms")


@dataclass
class Findings:
    """A run, analysed. Toll tables and components of variance are made when first asked for."""

    run: Run
    matrix: Matrix
    margin: float
    papers: tuple[JudgedPaper, ...]
    servers: Mapping[str, Findings] = field(default_factory=dict)  # of each, where a study sets several side by side
    among: Run | None = None  # of one server of several: the run of all, whose rounds and blocks are the same
    features: Mapping[str, Features] = field(default_factory=dict)  # by platform, where whoever asks knows any
    explanation: Findings | None = None  # of the programme that explains a service: nothing else here knows of it
    _tolls: dict[str, TollTable] = field(default_factory=dict)
    _components: dict[tuple[str, str], Components | str] = field(default_factory=dict)
    _apart: dict[tuple[str, str], tuple[dict[str, Summary], Apart | None]] = field(default_factory=dict)

    @property
    def is_programme(self) -> bool:
        """Whether probes were run, rather than a service loaded."""
        return bool(self.run.programme)

    @property
    def is_isolation(self) -> bool:
        """Whether it was studied what neighbours do to a victim, a service or a probe."""
        return bool(self.run.neighbours)

    @property
    def is_load(self) -> bool:
        """Whether a service was loaded, with no neighbour beside it."""
        return not self.is_programme and not self.is_isolation

    @property
    def is_search(self) -> bool:
        """Whether the load's knee was searched for."""
        return self.is_load and bool(self.run.objective)

    @property
    def is_rotation(self) -> bool:
        """Whether arms stood beside each other and were measured in turn."""
        return any(trial.turn for trial in self.run.plan.trials)

    @cached_property
    def blocks(self) -> int:
        """How many blocks hold a valid trial; planned are those of the matrix."""
        return len({block for block, *_ in self.matrix.cells})

    @cached_property
    def unit(self) -> str:
        """The load's unit of work: "request", "transaction"."""
        return unit_of(self.run)

    @property
    def work(self) -> str:
        """Several of them: "requests"."""
        return plural(self.unit)

    @cached_property
    def request(self) -> str:
        """What the load asks for one by one, and latencies are of: the unit, or several of them in a "round"."""
        return request_of(self.run)

    @property
    def requests(self) -> str:
        """Several of those: "rounds"."""
        return plural(self.request)

    @cached_property
    def untold(self) -> dict[str, list[Metric]]:
        """The metrics of which no valid trial has a value, by the reason that most of the trials give."""
        valid = list(self.matrix.cells.values())
        found: dict[str, list[Metric]] = {}
        for metric in self.matrix.metrics.values():
            reasons = Counter(trial.missing[metric.name] for trial in valid if metric.name in trial.missing)
            if reasons and not any(metric.name in trial.values for trial in valid):
                found.setdefault(reasons.most_common(1)[0][0], []).append(metric)
        return found

    @cached_property
    def elsewhere(self) -> list[str]:
        """The labels of arms on machines of the user's own: neither limited here nor seen from outside."""
        told = {r.trial.arm.label for r in self.run.records if r.facts.get("limits") == NOT_LIMITED}
        return [arm.label for arm in self.arms if arm.label in told]

    @cached_property
    def not_booked(self) -> dict[str, str]:
        """By arm's label, the helper whose cost is not in its own."""
        records = self.run.records
        return {r.trial.arm.label: str(r.facts[NOT_BOOKED]) for r in records if NOT_BOOKED in r.facts}

    @cached_property
    def isolation(self) -> Isolation:
        """Every arm beside every neighbour."""
        return isolation(self.matrix, self.margin)

    @property
    def is_side_by_side(self) -> bool:
        """Whether servers were measured beside each other too, and not each alone."""
        return bool(self.servers) and self.run.is_beside_others

    @cached_property
    def side_by_side(self) -> SideBySide:
        """Every server on every arm, beside the others against alone."""
        shown = {name: each.of_a_server for name, each in self.servers.items()}
        matrices = {name: each.matrix for name, each in self.servers.items()}
        return side_by_side(matrices, shown, self.margin)

    @property
    def of_a_server(self) -> list[Metric]:
        """What a server is told by: its headline, its load's own quantities, and what it costs; and its knee, where one
        of several servers was searched for it.
        """
        beside = (self.matrix.metrics.get(name) for name in ("cpu_s_per_1000", KNEE))
        return [*dict.fromkeys([self.headline, *self.own, *(metric for metric in beside if metric is not None)])]

    @cached_property
    def calibration(self) -> Calibration | None:
        """What a calibration says of its machine; None of any other run."""
        return calibration(self.run, self.matrix)

    @cached_property
    def headlines(self) -> list[Metric]:
        """The metrics that stand for their load or probes, in the study's order."""
        return [metric for metric in self.matrix.metrics.values() if metric.headline]

    @cached_property
    def judged(self) -> list[Metric]:
        """The headlines of which more, or less, is better: those that can cost something."""
        return [metric for metric in self.headlines if metric.better is not None]

    @cached_property
    def own(self) -> list[Metric]:
        """A load's own quantities of which more, or less, is better."""
        return [m for m in self.matrix.metrics.values() if m.is_a_loads_own and m.better is not None]

    @cached_property
    def silent(self) -> list[str]:
        """The probes that were run and of which nothing valid is known."""
        run = {str(record.trial.condition[PROBE]) for record in self.run.records if PROBE in record.trial.condition}
        known = {metric.group for metric in self.matrix.metrics.values()}
        named = dict.fromkeys(case["probe"] for case in self.run.programme)
        return [probe for probe in named if probe in run and probe not in known]

    @cached_property
    def cross_checks(self) -> list[CrossCheck]:
        """What outside instruments read over what our probes read."""
        return cross_checks(self.matrix, self.margin)

    @cached_property
    def loops(self) -> tuple[str, ...]:
        """The kinds of loop the load ran in: "closed", "open"; of several servers, those that were not searched."""
        searched = self.matrix.searched
        under = zip(self.matrix.trials, each_condition(t.record.trial for t in self.matrix.trials), strict=True)
        measured = (trial.record.measured for trial, condition in under if condition not in searched)
        return tuple(sorted({each.loop for each in measured if each is not None and each.loop is not None}))

    @cached_property
    def keeps_to_intended(self) -> bool:
        """Whether an open loop's latencies run from the intended starts: whoever tells them knows how late each was
        sent. Programs of other people's that do not may take them from when they came to send it; so may those that
        tell no single events.
        """
        measured = (trial.record.measured for trial in self.matrix.trials)
        events = [each.events for each in measured if each is not None and each.loop == "open"]
        return all(each is not None and each.late is not None for each in events)

    @cached_property
    def headline(self) -> Metric:
        """What the answer is given in: throughput in closed loop; in open loop, where the rate is set, latency; of a
        search the knee; of conferences of several sizes the server's CPU; of what is live with low latency its age.

        Of the latencies it is the highest percentile that most trials have, native's among them; where a rule may end
        the run, the one of its first look: what later trials have must not change what is tested.
        """
        if self.is_search:
            return self.matrix.metrics[KNEE]
        if is_told_by_server(self.run):
            return self.matrix.metrics[SERVER_CPUS]
        if self.loops != ("open",):
            return self.matrix.metrics["rate_per_s"]
        if fixed := self._looked_at:
            return self.matrix.metrics[fixed]
        if LIVE_AGE in self.matrix.metrics and self._most_have(LIVE_AGE):
            return self.matrix.metrics[LIVE_AGE]
        own = (metric.name for metric in self.own)  # a load that tells of no single unit of work has means
        told = (name for name in (*_LATENCIES, *own) if self._most_have(name))
        return self.matrix.metrics[next(told, _LATENCIES[-1])]

    @property
    def _looked_at(self) -> str:
        """What the first look at which anything could be compared was taken in; "" without one."""
        compared = (each for look in self.run.looks for each in look.compared if each.ratio is not None)
        name = next((each.metric for each in compared), "")
        return name if name in self.matrix.metrics else ""

    def _most_have(self, metric: str) -> bool:
        """Whether most of the valid trials have a value, and most of the baseline's."""
        matrix = self.matrix
        told = {cell: trial for cell, trial in matrix.cells.items() if cell[3] not in matrix.searched}
        mine = [trial for (_, _, label, _), trial in told.items() if matrix.is_baseline(label)]
        both = (list(told.values()), mine if matrix.baseline else [])
        return all(2 * sum(metric in trial.values for trial in trials) > len(trials) for trials in both if trials)

    @cached_property
    def treatments(self) -> list[Arm]:
        """The arms under test, cheapest first; what was not measured comes last. Beside neighbours as the study has
        them: there each arm is compared with itself."""
        arms = [arm for arm in self.matrix.arms if arm.role == "treatment"]
        return arms if self.is_isolation else sorted(arms, key=self._cost)

    @cached_property
    def arms(self) -> list[Arm]:
        """All arms in the order of figures and tables: baseline, treatments cheapest first, floor."""
        outer = {role: [arm for arm in self.matrix.arms if arm.role == role] for role in ("baseline", "floor")}
        return [*outer["baseline"], *self.treatments, *outer["floor"]]

    @property
    def excluded(self) -> list[TrialRecord]:
        """Trials that failed or are not valid."""
        return [record for record in self.run.records if record.status != "valid"]

    def _cost(self, arm: Arm) -> float:
        """How dear an arm is, for their order; a programme's by the geometric mean over its probes."""
        metrics = self.judged if self.is_programme else [self.headline]
        tolls = (self.tolls(metric.name).total(arm) for metric in metrics)
        costs = [math.log(toll.worse.value) for toll in tolls if toll is not None and toll.worse is not None]
        return sum(costs) / len(costs) if costs else float("inf")

    @cached_property
    def met(self) -> Mapping[str, set[Condition]]:
        """By arm's label, at which levels of a ramp it met the ramp's objective; of an arm of which nothing is known
        there is none, and the whole is empty of any other run.
        """
        matrix = self.matrix
        return {arm.label: met_under(matrix, arm) for arm in matrix.arms if tells(matrix, arm)}

    @cached_property
    def fixed_by(self) -> int | None:
        """The last block that has a say in which levels of a ramp are compared; None: the last of all."""
        return fixed_by(self.matrix, self.rule)

    @cached_property
    def compared(self) -> tuple[Condition, ...]:
        """What a toll over all conditions is over: of a ramp the levels at which all met its objective, but for who met
        it at none: a server at its limit delivers less, and is the cheaper for it. A rule that may look before all
        blocks are there tests the levels that its first ones told of (`fixed_by`). Where some servers alone were
        searched for their knee, the others': each is loaded at its own knee there.
        """
        matrix, searched = self.matrix, self.matrix.searched
        if not is_held(matrix):
            return tuple(condition for condition in matrix.conditions if condition not in searched)
        told = met_by_all(met_under(matrix, arm, self.fixed_by) for arm in matrix.arms)
        return tuple(condition for condition in matrix.conditions if condition in told - searched)

    def over(self, metric: str) -> tuple[Condition, ...]:
        """The same of a metric: what users feel, a load's own quantities, no limit makes better."""
        if metric == KNEE:
            return self.matrix.conditions_of(KNEE)
        return self.matrix.conditions if self.matrix.metrics[metric].is_a_loads_own else self.compared

    def columns(self, metric: str) -> list[int]:
        """Where those stand among the matrix's conditions."""
        return [self.matrix.conditions.index(condition) for condition in self.over(metric)]

    def tolls(self, metric: str) -> TollTable:
        """The toll table of a metric."""
        if metric not in self._tolls:
            self._tolls[metric] = toll_table(self.matrix, metric, self.margin, self.rule, self.over(metric))
        return self._tolls[metric]

    def components(self, metric: str, arm: Arm) -> Components | str:
        """Where the scatter of an arm's metric against native comes from; or the reason why that is not known."""
        key = metric, arm.label
        if key not in self._components:
            self._components[key] = components_of(self.matrix, metric, arm, self.over(metric))
        return self._components[key]

    def by_host(self, metric: str, arm: Arm) -> tuple[dict[str, Summary], Apart | None]:
        """An arm's ratio to native on each host, and how far the hosts lie apart in it."""
        key = metric, arm.label
        if key not in self._apart:
            matrix, mine = self.matrix, self.matrix.arms.index(arm)
            each = by_host(matrix.hosts, log_ratios(matrix, metric)[:, mine, self.columns(metric)])
            self._apart[key] = each, apart(each)
        return self._apart[key]

    @cached_property
    def rule(self) -> Rule:
        """By which the run has as many blocks as it has: what intervals and words go by."""
        return rule_of(self.run.plan)

    def answering(self) -> list[Toll]:
        """The comparisons that the answer is given in, over all conditions: every arm under test, by the headline or,
        in a programme, by what stands for each probe.
        """
        metrics = self.judged if self.is_programme else [self.headline]
        tolls = [toll for metric in metrics for toll in self.tolls(metric.name).overall]
        return [toll for toll in tolls if toll.arm.role == "treatment"]

    def reason(self, metric: str) -> str:
        """Why a metric has no value in any valid trial; "" where it has one, or there is no such trial."""
        return next((why for why, metrics in self.untold.items() if any(m.name == metric for m in metrics)), "")

    def shown_conditions(self, most: int = 8) -> list[Condition]:
        """Conditions for figures that have room for few: the extreme object sizes, under as many other settings as
        there is room for; `words.drawn_of` says where that is not all.
        """
        path = "load.object_bytes"
        sizes = self.matrix.levels(path)
        wanted = {sizes[0], 1_000_000 if 1_000_000 in sizes else sizes[-1]} if sizes else set()
        under: dict[tuple[tuple[str, Any], ...], list[Condition]] = {}
        for condition in self.matrix.conditions:
            if condition.get(path) in wanted:
                under.setdefault(tuple(level for level in condition.levels if level[0] != path), []).append(condition)
        picked = [condition for each in under.values() for condition in each][:most]
        return sorted(picked, key=lambda condition: sizes.index(condition.get(path)))


def find(directory: Path, *, blocks: int | None = None, wanted: Callable[[Run], Wanted] = lambda _run: ALL) -> Findings:
    """Read and analyse a run directory, as it was after so many ``blocks``; ``wanted``: of what the trials of its study
    shall tell.

    StoreError when that cannot be done.
    """
    with told_as_damage(directory), uncollected():
        return _found(unfolded(read_run(directory, blocks=blocks)), wanted=wanted)


def skim(directory: Path, wanted: Callable[[Run], Wanted]) -> Findings:
    """Read a run directory and analyse no more of its study than is wanted: no papers, no server by itself, and not
    what explains a service. StoreError when that cannot be done.
    """
    with told_as_damage(directory), uncollected():
        run, _ = parted(unfolded(read_run(directory)))
        return Findings(run, build_matrix(run, measure_all(run, wanted(run))), _margin(run), ())


def halved(directory: Path, wanted: Callable[[Run], Wanted]) -> tuple[Findings, Findings]:
    """The same of a run that measured two configurations in the same blocks: of either. StoreError of any other run."""
    with told_as_damage(directory), uncollected():
        halves = by_configuration(parted(unfolded(read_run(directory)))[0])
        one, other = (
            Findings(half, build_matrix(half, measure_all(half, wanted(half))), _margin(half), ()) for half in halves
        )
        return one, other


@contextmanager
def told_as_damage(directory: Path | str) -> Iterator[None]:
    """A StoreError for whatever the analysis stumbles over.

    What a run holds was checked for its form when it was read; that it makes sense (a level that fits its factor, a
    case that names a probe) is not known before it is used, and a run may come from anywhere.
    """
    try:
        yield
    except (VirtollError, OSError):
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise StoreError(
            f"what it holds makes no sense to the analysis: {type(error).__name__}: {str(error)[:300]} "
            f"({Path(place.filename).name}:{place.lineno})",
            where=str(directory),
            remedy="was it changed, or damaged? if it is as this virtoll wrote it, this is a bug of virtoll's",
        ) from error


def _found(run: Run, *, wanted: Callable[[Run], Wanted]) -> Findings:
    study, programme = parted(run)
    trials = measure_all(study, wanted(study))
    servers = {
        name: replace(_analysed(each, _of_server(name, trials)), among=study) for name, each in by_server(study).items()
    }
    explanation = None if programme is None else _analysed(programme, measure_all(programme))
    return replace(_analysed(study, trials), servers=servers, explanation=explanation)


def _of_server(name: str, trials: list[TrialMetrics]) -> list[TrialMetrics]:
    return [trial for trial in trials if trial.record.trial.condition.get(SERVER) == name]


def _analysed(run: Run, trials: list[TrialMetrics]) -> Findings:
    matrix, margin = build_matrix(run, trials), _margin(run)
    papers = tuple(judge_paper(read_paper(name), matrix, margin) for name in run.study.get("claims", ()))
    return Findings(run, matrix, margin, papers)


def _margin(run: Run) -> float:
    declared = run.study.get("margin", DECLARED_MARGIN)
    return float(declared) if isinstance(declared, int | float) else DECLARED_MARGIN
