"""Every run under a folder: each arm's ratio to native over time, in series of runs that asked for the same."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from virtoll.analysis.change_points import LEAST_RUNS, ChangePoint, can_find, change_points
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.load import Run
from virtoll.analysis.metrics import KNEE, Metric, Wanted, is_told_by_server, told_apart
from virtoll.analysis.ratios import Ratios, of_barred
from virtoll.errors import Problem, StoreError, StudyError, VirtollError
from virtoll.helpers import helpers, met_halfway
from virtoll.record.comparable import booted_anew, differences, digest, without_memory
from virtoll.record.model import Arm
from virtoll.record.store import is_run_directory
from virtoll.report.asked import Asked, asked_differently, configured, identity, unusable
from virtoll.report.changes import wanted_of
from virtoll.report.findings import Findings, skim, told_as_damage
from virtoll.report.words import IN_VAIN, no_level

_SHARE = 4  # runs that a helper takes at a time
_Key = tuple[str, str]  # a metric's name, an arm's label
_DEEPEST = 8  # folders below the one named


@dataclass(frozen=True)
class RunTold:
    """What one run says."""

    directory: Path
    identity: str
    begun: datetime
    virtoll: str
    comparable: Mapping[str, Any]
    # Digest of ``comparable``, or that of the folder's first run on this machine, where it was but booted anew since:
    # what its environment is called where its number might change.
    environment: str
    trials: int  # how many it holds, however they ended
    asked: Asked
    arms: tuple[Arm, ...]  # under test
    metrics: tuple[Metric, ...]
    ratios: Mapping[_Key, Estimate]
    over: Mapping[_Key, tuple[str, ...]]  # of each, the conditions that it is over
    missing: Mapping[_Key, str]  # why there is none
    levels: tuple[str, ...] = ()  # of a ramp, those that its ratios are over


@dataclass(frozen=True)
class Point:
    """One run in the line of an arm."""

    run: RunTold
    environment: int  # from 1, by when it was first seen
    ratio: Estimate
    over: tuple[str, ...]  # conditions

    @property
    def conditions(self) -> frozenset[str]:
        """The same in any order, as runs may have theirs."""
        return frozenset(self.over)

    @property
    def alike(self) -> tuple[int, frozenset[str]]:
        """What it has in common with those it can be compared with."""
        return self.environment, self.conditions


@dataclass(frozen=True)
class Line:
    """One arm in one metric, over the runs of a series."""

    arm: Arm
    metric: Metric
    points: tuple[Point, ...]
    changes: tuple[tuple[Point, ChangePoint], ...]  # with the first point of the new level

    def other_conditions(self) -> Iterator[tuple[Point, Point]]:
        """Each point that is over other conditions than the one before, after that one; but for levels of a ramp, which
        are other ones for all arms (`Series.other_levels`).
        """
        for before, point in pairwise(self.points):
            if before.conditions != point.conditions and before.run.levels == point.run.levels:
                yield before, point


@dataclass(frozen=True)
class Series:
    """Runs that asked for the same, in the order of time."""

    title: str  # the first run's: what later ones are called changes no name that an export has
    runs: tuple[RunTold, ...]
    environments: tuple[int, ...]  # of each
    lines: tuple[Line, ...]

    @property
    def metrics(self) -> list[Metric]:
        """Those of its lines, each once."""
        return list({line.metric.name: line.metric for line in self.lines}.values())

    def moves(self) -> Iterator[tuple[RunTold, int, list[str]]]:
        """Each run whose environment is not that of the run before, its number, and what differs."""
        for before, run, was, now in zip(
            self.runs, self.runs[1:], self.environments, self.environments[1:], strict=False
        ):
            if was != now:
                yield run, now, differences(before.comparable, booted_anew(before.comparable, run.comparable))

    def other_levels(self) -> Iterator[RunTold]:
        """Each run that is told over other levels of its ramp than the run before."""
        for before, run in pairwise(self.runs):
            if before.levels != run.levels:
                yield run

    def configured(self) -> Iterator[tuple[RunTold, list[str]]]:
        """Each run of which something under test is not as in the run before, and what."""
        for before, run in pairwise(self.runs):
            if lines := list(configured(before.asked, run.asked, (before.directory.name, run.directory.name))):
                yield run, lines


@dataclass(frozen=True)
class History:
    """All of a folder's runs."""

    directory: Path
    series: tuple[Series, ...]
    left_out: tuple[tuple[Path, str], ...]  # runs that say nothing, and why
    asked: int = 0  # stretches (alike points of a line) that were long enough to look for changes in
    blind: int = 0  # of these, where no change could have been found: they are too short for so many
    arms: tuple[Arm, ...] = field(default=())

    @property
    def runs(self) -> int:
        """How many are told."""
        return sum(len(each.runs) for each in self.series)


def history(directory: Path, names: Sequence[str] = ()) -> History:
    """Read every run directory under a folder. ``names``: the metrics, in place of each run's headline.

    StoreError where there is no run to tell of; one that cannot be read is left out, with the reason.
    """
    unread: list[OSError] = []
    paths = sorted(run_directories(directory, unread.append))
    if not paths and unread:
        what = f"there is no run directory under it that can be read: {unread[0].strerror}"
        raise StoreError(what, where=str(unread[0].filename), remedy="read it as its owner, or as root")
    if not paths:
        raise StoreError(
            "there is no run directory under it", where=str(directory), remedy="`virtoll run` makes one below runs/"
        )
    all_found = _all(paths, names)
    of_each: dict[str, RunTold] = {}  # by a run's identity
    for found in all_found:
        if isinstance(found, RunTold):  # a copy may be of a run that was gone on with since
            of_each[found.identity] = max(of_each.get(found.identity, found), found, key=lambda each: each.trials)
    told = list(of_each.values())
    left_out = [(Path(error.filename), f"cannot be read: {error.strerror}") for error in unread]
    for path, found in zip(paths, all_found, strict=True):
        if isinstance(found, str):
            left_out.append((path, found))
        elif (one := of_each[found.identity]).directory != path:
            left_out.append((path, f"it is the same run as {one.directory}, or a copy of it"))
    if names and not any(run.metrics for run in told):
        what = f"no run has a metric that is called {' or '.join(names)} and is judged"
        raise StudyError([Problem(what, "--metrics", "trials.csv of a report names them: rate_per_s, latency_p99_ms")])
    told = _as_booted_first(sorted(told, key=lambda run: (run.begun, str(run.directory))))
    groups = _groups(told)
    environments = _environments(told)
    lengths = [len(mine) for group in groups for _, mine in _stretches(_points(group, environments))]
    stretches = len(lengths)
    blind = sum(not can_find(length, stretches) for length in lengths)
    series = tuple(_series(group, environments, stretches) for group in groups)
    arms = {arm.label: arm for run in told for arm in run.arms}
    return History(directory, series, tuple(left_out), stretches, blind, tuple(arms.values()))


def run_directories(directory: Path, unread: Callable[[OSError], object]) -> Iterator[Path]:
    """Those under a folder, itself among them; no symbolic link is followed, and nothing is looked for within a run.
    ``unread`` is told of each folder that cannot be looked into.
    """
    if not directory.is_dir():
        raise StoreError("there is no such folder", where=str(directory), remedy="name one that holds run directories")
    depth = len(directory.parts)
    for place, below, _ in os.walk(directory, onerror=unread):
        path = Path(place)
        if is_run_directory(path):
            below.clear()
            yield path
        else:
            deep = len(path.parts) - depth >= _DEEPEST
            below[:] = [] if deep else sorted(name for name in below if not name.startswith("."))


# -- one run ------------------------------------------------------------------------------------------------


def _all(paths: Sequence[Path], names: Sequence[str]) -> list[RunTold | str]:
    """What each run says, or why it says nothing; as this process and another come to them, from either end."""
    shares = [paths[at : at + _SHARE] for at in range(0, len(paths), _SHARE)]
    tell = partial(_tell_some, names=tuple(names))
    if len(shares) < 3:  # to begin a process takes as long as some runs
        return [found for share in shares for found in tell(share)]
    with helpers(1) as other:
        found = met_halfway(shares, tell, lambda share: other.submit(tell, share), lambda _share, told: told)
    return [one for share in found for one in share]


def _tell_some(paths: Sequence[Path], names: Sequence[str]) -> list[RunTold | str]:
    return [_tell(path, names) for path in paths]


def _tell(path: Path, names: Sequence[str]) -> RunTold | str:
    try:
        found = skim(path, lambda run: _wanted(run, names))
        with told_as_damage(path):
            if why := unusable(found):
                return why[0]
            return _told(found, names)
    except VirtollError as error:
        return error.problem.what


def _wanted(run: Run, names: Sequence[str]) -> Wanted:
    """Of itself only what a headline needs: the rate is in the records, the server's CPU in the samples."""
    if names:
        return wanted_of(run, names)
    return Wanted(latency=wanted_of(run, ()).latency, usage=is_told_by_server(run), memory=False, inside=False)


def _told(found: Findings, names: Sequence[str]) -> RunTold:
    matrix = found.matrix
    headlines = found.judged if found.is_programme else [found.headline]
    metrics = [matrix.metrics[name] for name in names if name in matrix.metrics] if names else headlines
    metrics = told_apart(metric for metric in metrics if metric.better is not None)
    arms = tuple(arm for arm in matrix.arms if arm.role == "treatment")
    ratios: dict[_Key, Estimate] = {}
    over: dict[_Key, tuple[str, ...]] = {}
    missing: dict[_Key, str] = {}
    for metric in metrics:
        held = Ratios.of(matrix, metric.name, found.rule)
        planned = [each for each in matrix.conditions_of(metric.name) if each in found.over(metric.name)]
        for arm in arms:
            asked = [each for each in planned if matrix.is_asked(arm, each)]
            row = held.row(arm, None, [matrix.conditions.index(each) for each in asked])
            if found.met and metric.name != KNEE and (not planned or found.met.get(arm.label) == set()):
                missing[metric.name, arm.label] = IN_VAIN if planned else no_level(found)
            elif row.summary is None or row.barred:
                missing[metric.name, arm.label] = of_barred(row, metric).words if row.barred else "not measured"
            elif row.conditions < len(asked):
                missing[metric.name, arm.label] = f"measured under {row.conditions} of {len(asked)} conditions"
            else:
                ratios[metric.name, arm.label] = found.rule.interval(row.summary, "of paired ratios within blocks")
                over[metric.name, arm.label] = tuple(matrix.label(each) for each in asked)
    begun = datetime.fromisoformat(found.run.environment.created_at)
    begun = begun if begun.tzinfo else begun.replace(tzinfo=UTC)
    environment = found.run.environment
    return RunTold(
        found.run.directory,
        identity(found),
        begun.astimezone(UTC),
        environment.virtoll,
        environment.comparable,
        digest(environment.comparable),
        len(found.run.records),
        Asked.of(found),
        arms,
        tuple(metrics),
        ratios,
        over,
        missing,
        tuple(matrix.label(each) for each in found.compared) if found.met else (),
    )


# -- all of them --------------------------------------------------------------------------------------------


def _groups(runs: Sequence[RunTold]) -> list[list[RunTold]]:
    """Runs that asked for the same, in the order of time: each is compared with the last one of every group."""
    groups: list[list[RunTold]] = []
    for run in runs:
        mine = next((group for group in groups if _is_alike(group[-1], run)), None)
        if mine is None:
            groups.append([run])
        else:
            mine.append(run)
    return groups


def _is_alike(one: RunTold, other: RunTold) -> bool:
    paths = one.asked.varied | other.asked.varied
    if one.asked.keys(paths).keys() != other.asked.keys(paths).keys():
        return False
    return not any(asked_differently(one.asked, other.asked))


def _as_booted_first(runs: Sequence[RunTold]) -> list[RunTold]:
    """Runs in the order of time, each with the name of its environment as it was first booted."""
    found: list[RunTold] = []
    firsts: dict[str, list[RunTold]] = {}  # of environments that differ in their memory alone
    for run in runs:
        alike = firsts.setdefault(digest(without_memory(run.comparable)), [])
        named = (first for first in alike if digest(booted_anew(first.comparable, run.comparable)) == first.environment)
        first = next(named, None)
        if first is None:
            alike.append(run)
        found.append(run if first is None else replace(run, environment=first.environment))
    return found


def _environments(runs: Sequence[RunTold]) -> dict[Path, int]:
    """The number of each run's environment, by when it was first seen; runs are in the order of time."""
    numbers = {name: at for at, name in enumerate(dict.fromkeys(run.environment for run in runs), start=1)}
    return {run.directory: numbers[run.environment] for run in runs}


def _points(group: Sequence[RunTold], environments: Mapping[Path, int]) -> dict[_Key, list[Point]]:
    """The points of every line, by metric and arm."""
    found: dict[_Key, list[Point]] = {}
    for run in group:
        for key, ratio in run.ratios.items():
            found.setdefault(key, []).append(Point(run, environments[run.directory], ratio, run.over[key]))
    return found


def _stretches(points: Mapping[_Key, Sequence[Point]]) -> Iterator[tuple[_Key, list[Point]]]:
    """Of every line the points of one environment, and over the same conditions (levels of a ramp), where they are
    enough to look for changes in: a platform costs another share of each.
    """
    for key, line in points.items():
        for alike in dict.fromkeys(point.alike for point in line):
            mine = [point for point in line if point.alike == alike]
            if len(mine) >= LEAST_RUNS:
                yield key, mine


def _series(group: Sequence[RunTold], environments: Mapping[Path, int], stretches: int) -> Series:
    points = _points(group, environments)
    changes: dict[_Key, list[tuple[Point, ChangePoint]]] = {}
    for key, mine in _stretches(points):
        logs = [math.log(point.ratio.value) for point in mine]
        changes.setdefault(key, []).extend((mine[each.at], each) for each in change_points(logs, stretches))
    arms = {arm.label: arm for run in group for arm in run.arms}
    metrics = {metric.name: metric for run in group for metric in run.metrics}
    lines = tuple(
        Line(arm, metric, tuple(points[name, label]), tuple(changes.get((name, label), ())))
        for name, metric in metrics.items()
        for label, arm in arms.items()
        if (name, label) in points
    )
    return Series(group[0].asked.title, tuple(group), tuple(environments[run.directory] for run in group), lines)
