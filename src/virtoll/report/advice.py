"""Which platform to take: the candidates of several runs, ranked by the rules of `analysis.advice`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from virtoll.analysis.advice import Candidate, Ranked, ranked
from virtoll.analysis.carrying import Carrying, of_searches
from virtoll.analysis.conditions import Condition
from virtoll.analysis.metrics import OF_SEARCH, Metric
from virtoll.analysis.objectives import AmbiguousError, Held, held, objective_of
from virtoll.analysis.ratios import Toll, TollTable
from virtoll.errors import Problem, StudyError
from virtoll.features import FEATURES, Features, Support, no, of_arm, supported
from virtoll.plain import typed
from virtoll.record.knee import Objective
from virtoll.record.model import Arm
from virtoll.report.asked import identity
from virtoll.report.findings import Findings
from virtoll.study.values import nearest


@dataclass(frozen=True)
class Known:
    """What is known besides the runs: each platform's features, the ready-made studies, and the network modes in which
    an instance shares its host's devices.
    """

    features: Mapping[str, Features]
    studies: Collection[str]
    shared: Collection[str] = ()


@dataclass(frozen=True)
class Part:
    """What candidates are compared by: a run's headline; of several servers, or of a programme's probes, each one's."""

    name: str
    findings: Findings
    metric: Metric

    @property
    def met(self) -> Mapping[str, set[Condition]]:
        """By arm's label, at which levels of a ramp it met the ramp's objective; empty of any other run."""
        return self.findings.met

    @property
    def table(self) -> TollTable:
        """Every arm against native."""
        return self.findings.tolls(self.metric.name)

    def toll(self, arm: Arm) -> Toll | None:
        """An arm's against native; None where there is none."""
        return self.table.total(arm)

    @property
    def over(self) -> tuple[Condition, ...]:
        """The conditions that a toll is to be over, of an arm that is asked them all."""
        planned = self.findings.matrix.conditions_of(self.metric.name)
        return tuple(condition for condition in self.findings.over(self.metric.name) if condition in planned)

    def under(self, arm: Arm) -> frozenset[Condition]:
        """The conditions that an arm's toll is of."""
        mine = (cell.condition for cell in self.table.cells if cell.arm == arm and cell.ratio)
        return frozenset(self.over).intersection(mine)

    def lost(self, arm: Arm) -> tuple[Condition, ...]:
        """The conditions that the study asks of an arm and of which less is known than of native: nothing valid, or not
        the headline.
        """
        matrix = self.findings.matrix
        asked = (c for c in self.over if matrix.is_asked(arm, c))
        return tuple(c for c in asked if any(self._known(n, c) > self._known(arm, c) for n in matrix.against(arm)))

    def _known(self, arm: Arm, condition: Condition) -> int:
        """2: the headline, be it a bound or among what failed; 1: valid trials that do not tell it; 0: nothing."""
        cells, name = self.findings.matrix.across(arm, condition).values(), self.metric.name
        return bool(cells) + any(name in cell.values or name in cell.censored for cell in cells)

    def in_vain(self, arm: Arm) -> str:
        """What an arm "is not shown" to do, where it is shown to meet the objective of a search (in some deployment),
        or of a ramp, at nothing that was tried; else "".
        """
        if self.met:
            return _IN_VAIN if self.met.get(arm.label) == set() else ""
        mine = of_searches(self.findings.matrix) if self.findings.is_search else ()
        return next((words for each in mine if each.arm == arm and (words := _vain(each))), "")


_IN_VAIN = "is not shown to meet the objective at anything that was tried"


def _vain(searched: Carrying) -> str:
    if searched.below is not None:
        is_all = searched.bounded == searched.of
        return _IN_VAIN if is_all else f"{_IN_VAIN} in {searched.bounded} of {searched.of} deployments"
    if searched.at_least == 0:
        return "is not shown to meet the objective in some deployment, where the generator was in the way of the least"
    return ""


@dataclass(frozen=True)
class Advice:
    """Who fits, by what was asked."""

    runs: Sequence[Findings]
    parts: Sequence[Part]
    objectives: Sequence[str]
    needs: Sequence[str]
    places: Sequence[Ranked]
    known: Known


def advise(runs: Sequence[Findings], objectives: Sequence[str], needs: Sequence[str], known: Known) -> Advice:
    """The advice. StudyError names an unknown need or metric, or a run that holds nothing to compare by."""
    problems = [_unknown_need(need) for need in needs if need not in FEATURES]
    names = _names(runs)
    problems += _twice(runs, names)
    parts = [part for run, name in zip(runs, names, strict=True) for part in _parts(run, name, problems)]
    asked = _objectives(objectives, parts, problems)
    if problems:
        raise StudyError(problems)
    candidates = [_candidate(arm, parts, asked, needs, known) for arm in _arms(parts)]
    return Advice(runs, parts, objectives, needs, ranked(candidates), known)


def _names(runs: Sequence[Findings]) -> list[str]:
    """What runs are called: by their directories' names, or where these are the same, by the whole paths."""
    paths = [run.run.directory for run in runs]
    return [path.name if len({p.name for p in paths}) == len(paths) else str(path) for path in paths]


def _twice(runs: Sequence[Findings], names: Sequence[str]) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for run, name in zip(runs, names, strict=True):
        if told := first.get(identity(run)):
            yield Problem(f"it is the same run as {told}, or a copy of it", str(run.run.directory), "leave one out")
        first.setdefault(identity(run), name)


def _unknown_need(need: str) -> Problem:
    return Problem(
        f"there is no feature {need!r}{nearest(need, FEATURES)}", "--need", f"there are {', '.join(FEATURES)}"
    )


def _parts(run: Findings, name: str, problems: list[Problem]) -> Iterator[Part]:
    """Of a run; a problem where it has none."""
    where = run.run.directory
    word = typed(where)
    if run.is_isolation or run.calibration is not None:
        what = "it asks what neighbours take" if run.is_isolation else "it asks how far virtoll can be trusted"
        remedy = f"`virtoll report {word}` has its answer; give runs of a service or of probes here"
        problems.append(Problem(f"{what}, and of no platform's cost", str(where), remedy))
    elif run.matrix.baseline is None:
        remedy = "give a run with a native arm"
        problems.append(Problem("it has no native arm, with which all others are compared", str(where), remedy))
    elif run.is_programme and not run.judged:
        remedy = f"`virtoll report {word}` lists its trials; `virtoll run {word}{run.run.far}` goes on with it"
        problems.append(Problem("none of its probes has told anything yet", str(where), remedy))
    elif run.is_programme:
        yield from (Part(f"{name}, {metric.probe}", run, metric) for metric in run.judged)
    elif run.servers:
        yield from (Part(f"{name}, {server}", one, one.headline) for server, one in run.servers.items())
    else:
        yield Part(name, run, run.headline)


def _objectives(texts: Sequence[str], parts: Sequence[Part], problems: list[Problem]) -> dict[str, list[Objective]]:
    """By part those that it can tell of; a problem for each that none can, or that may be of several of a part's."""
    found: dict[str, list[Objective]] = {part.name: [] for part in parts}
    for text in texts if parts else ():
        try:
            told = {part.name: one for part in parts if (one := _objective(text, part)) is not None}
        except AmbiguousError as error:
            problems.append(Problem(str(error), "--objective"))
            continue
        told = _of_levels(told, parts)
        for name in _once_a_run(told, parts):
            found[name].append(told[name])
        if not told:
            problems.append(Problem(_why_unknown(text, parts), "--objective"))
    return found


def _of_levels(told: dict[str, Objective], parts: Sequence[Part]) -> dict[str, Objective]:
    """Without the searches, which tell of no level, where others can tell of what they cannot."""
    silent = {p.name for p in parts if p.findings.is_search and p.name in told and told[p.name].metric not in OF_SEARCH}
    return {name: one for name, one in told.items() if name not in silent} or told


def _once_a_run(told: Mapping[str, Objective], parts: Sequence[Part]) -> list[str]:
    """Of the parts that can tell of an objective those that do: of a programme's probes the one whose metric it is."""
    chosen: dict[int, str] = {}
    for part in parts:
        if part.name in told:
            is_own = part.findings.matrix.metrics[told[part.name].metric].probe == part.metric.probe
            if is_own or id(part.findings) not in chosen:
                chosen[id(part.findings)] = part.name
    return list(chosen.values())


def _objective(text: str, part: Part) -> Objective | None:
    try:
        return objective_of(text, part.findings.matrix.metrics)
    except AmbiguousError:
        raise
    except ValueError:
        return None


def _why_unknown(text: str, parts: Sequence[Part]) -> str:
    """What is wrong with an objective, by all metrics that there are."""
    metrics = {name: metric for part in parts for name, metric in part.findings.matrix.metrics.items()}
    try:
        objective_of(text, metrics)
    except ValueError as error:
        return str(error)
    return f"{text!r} is of several runs' metrics together, and of none's alone"


def _arms(parts: Sequence[Part]) -> list[Arm]:
    """Native and all arms under test, each once by its label."""
    arms = (arm for part in parts for arm in part.findings.arms if arm.role != "floor")
    return list({arm.label: arm for arm in arms}.values())


def _candidate(
    arm: Arm,
    parts: Sequence[Part],
    objectives: Mapping[str, Sequence[Objective]],
    needs: Sequence[str],
    known: Known,
) -> Candidate:
    told: dict[str, list[Held]] = {}
    tolls: dict[str, Toll | None] = {}
    under: dict[str, frozenset[Condition]] = {}
    lost: dict[str, tuple[Condition, ...]] = {}
    failed: dict[str, str] = {}
    in_vain: dict[str, str] = {}
    for part in parts:
        mine = next((each for each in part.findings.matrix.arms if each.label == arm.label), None)
        if mine is None:
            told[part.name] = [Held(one, "not measured", why="it is not in this run") for one in objectives[part.name]]
            continue
        toll = part.toll(mine)
        if _is_known(part, mine) if mine.role == "baseline" else toll is not None and _tells(part, mine, toll):
            tolls[part.name] = toll
        under[part.name], lost[part.name] = part.under(mine), part.lost(mine)
        failed[part.name] = part.findings.matrix.failed(mine)
        in_vain |= {part.name: words} if (words := part.in_vain(mine)) else {}
        told[part.name] = [held(part.findings.matrix, one, mine) for one in objectives[part.name]]
    answers = {need: _support(arm, need, known) for need in needs}
    return Candidate(arm, answers, told, tolls, under, lost, failed, in_vain)


def _support(arm: Arm, need: str, known: Known) -> Support:
    """What an arm's platform answers; in a network mode that shares the host's devices it has none of its own."""
    if need == "own-network" and arm.network in known.shared:
        return no(f"in network mode {arm.network} it has its host's", "virtoll list networks")
    return supported(of_arm(known.features, arm.platform, arm.settings)[1], need)


def _tells(part: Part, arm: Arm, toll: Toll) -> bool:
    """Whether there is a ratio, or all searches of an arm ended at the most that was tried or could be offered: that is
    no ratio, and nothing that speaks against it either. What met a ramp's objective nowhere has no cost at it.
    """
    if part.met and not part.met.get(arm.label):
        return False
    if toll.ratio is not None or not part.findings.is_search:
        return toll.ratio is not None
    mine = [each for each in of_searches(part.findings.matrix) if each.arm == arm]
    return bool(mine) and all(each.at_least for each in mine)


def _is_known(part: Part, arm: Arm) -> bool:
    """Whether any of an arm's trials is valid."""
    return any(label == arm.label for _, _, label, _ in part.findings.matrix.cells)
