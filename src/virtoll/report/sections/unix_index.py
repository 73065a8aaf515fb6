"""The index in the manner of UnixBench: each test against a machine of 1995, and their geometric mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from virtoll.analysis.conditions import level_label
from virtoll.analysis.estimates import Floats, mean_of_known
from virtoll.analysis.ratios import pairs_of_zeros, summary_under
from virtoll.analysis.unixbench import TESTS, index, test_of
from virtoll.record.model import PROBE, Arm
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING, interval, plus_minus
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table


class UnixIndex(Section):
    """A table for each number of copies."""

    name: ClassVar[str] = "unix-index"
    summary: ClassVar[str] = "An index in the manner of UnixBench"
    rank: ClassVar[int] = 500

    def applies(self, findings: Findings) -> bool:
        """With a programme of probes, and no neighbours."""
        return findings.is_programme and not findings.is_isolation

    def tables(self, findings: Findings) -> list[Table]:
        """None where no such test was run."""
        return [
            table.placed(self.summary, look="probes", folded=at > 0) for at, table in enumerate(unix_index(findings))
        ]


UNIX_INDEX = "unix-index"
_Place = tuple[int, int, int]  # block, group, sitting
_ByPlace = Mapping[_Place, float]
_PAIRED = "geometric mean of paired ratios within blocks, t interval on the log scale, n = blocks"


@dataclass
class _Deployments:
    """Rates by test, for each arm's label and place: those of one number of copies, and the same besides."""

    rates: dict[tuple[str, _Place], dict[str, float]] = field(default_factory=dict)

    @property
    def tests(self) -> list[str]:
        """Those measured anywhere, in UnixBench's order."""
        seen = {test for rates in self.rates.values() for test in rates}
        return [test for test in TESTS if test in seen]

    def of(self, label: str, test: str | None) -> dict[_Place, float]:
        """An arm's index by place, of one test or of all; a deployment that lacks a test has none of all, and one of
        which a rate is 0 has 0.
        """
        asked, found = self.tests if test is None else [test], {}
        for (arm, place), rates in self.rates.items():
            if arm == label and all(each in rates for each in asked):
                mine = {each: rates[each] for each in asked}
                found[place] = index(mine).total if all(mine.values()) else 0.0
        return found


def unix_index(findings: Findings) -> list[Table]:
    """A table for each number of copies (and level of what else is varied); none where no such test was run."""
    groups = _grouped(findings)
    return [
        _table(findings, deployments, words, UNIX_INDEX if len(groups) == 1 else f"{UNIX_INDEX}-{number}")
        for number, (words, deployments) in enumerate(sorted(groups.items()), 1)
    ]


@dataclass(frozen=True)
class _Rate:
    """A test's rate in one deployment."""

    test: str
    value: float
    place: tuple[str, _Place]  # with the arm's label
    words: str  # how many copies, and the levels of the factors
    own: Mapping[str, object]  # what tells the cases of its probe apart besides, by path


def _grouped(findings: Findings) -> dict[str, _Deployments]:
    """By copies and factors; of a test that several cases are (in two directories), by what they differ in, too."""
    rates = list(_rates(findings))
    levels: dict[tuple[str, str, str], set[object]] = {}
    for rate in rates:
        for path, level in rate.own.items():
            levels.setdefault((rate.words, rate.test, path), set()).add(level)
    groups: dict[str, _Deployments] = {}
    for rate in rates:
        own = [level_label(*each) for each in rate.own.items() if len(levels[rate.words, rate.test, each[0]]) > 1]
        deployments = groups.setdefault(", ".join([rate.words, *own]), _Deployments())
        deployments.rates.setdefault(rate.place, {})[rate.test] = rate.value
    return groups


def _rates(findings: Findings) -> Iterator[_Rate]:
    for (block, group, label, condition), cell in findings.matrix.cells.items():
        record = cell.record.measured
        if record is None or condition not in findings.matrix.conditions:
            continue
        mine = f"{condition.probe}."
        factors = [level_label(*each) for each in condition.levels if each[0] != PROBE and not each[0].startswith(mine)]
        copies = record.settings.get("copies", 1)
        words = ", ".join([f"{copies} {'copy' if copies == 1 else 'copies'}", *factors])
        for name, value in cell.values.items():
            test = test_of(name, record.settings)
            if test is not None and value >= 0:
                known = {f"{mine}{setting}" for setting in ("copies", *TESTS[test].settings)}
                own = {path: level for path, level in condition.levels if path.startswith(mine) and path not in known}
                yield _Rate(test, value, (label, (block, group, findings.matrix.sitting(cell))), words, own)


def _table(findings: Findings, deployments: _Deployments, words: str, name: str) -> Table:
    tests, arms = deployments.tests, [arm for arm in findings.arms if arm.role != "floor"]
    rows = [(Cell(TESTS[test].title), *(_cell(findings, deployments, arm, test) for arm in arms)) for test in tests]
    partial = "" if len(tests) == len(TESTS) else f", of {len(tests)} of {len(TESTS)} tests"
    rows.append((Cell("Index", "", "geometric mean"), *(_cell(findings, deployments, arm, None) for arm in arms)))
    notes = (
        "Each test against a SPARCstation 20-61, whose ratings are 10 (UnixBench 5), ± the half-width of its 95 % "
        "interval over deployments; below it the ratio to native. It compares the arms of this run; docs/PROBES.md "
        "says why it is not what UnixBench prints.",
    )
    heads = ("Test", *(arm.label for arm in arms))
    return Table(name, f"UnixBench-style index, {words}{partial}", heads, tuple(rows), notes)


def _cell(findings: Findings, deployments: _Deployments, arm: Arm, test: str | None) -> Cell:
    mine = deployments.of(arm.label, test)
    if not mine:
        return Cell(MISSING, "missing")
    of_blocks = [[rate for (block, *_), rate in mine.items() if block == each] for each in findings.matrix.blocks]
    means = np.array([sum(rates) / len(rates) if rates else np.nan for rates in of_blocks])
    text = plus_minus(findings.matrix.mean(means, ""))
    of = () if arm == findings.matrix.baseline else findings.matrix.natives
    beside = [deployments.of(native.label, test) for native in of]
    if zeros := {block for native in beside for block, *_ in _zeros(mine, native)}:
        return Cell(text, "", f"no ratio: {pairs_of_zeros(len(zeros))}")
    logs = [_logs(findings, mine, native) for native in beside]
    natives = np.sum([np.isfinite(each) for each in logs], axis=0, dtype=float)
    summary = summary_under(findings.rule, mean_of_known(logs)[:, None], natives[:, None]) if logs else None
    return Cell(text, "", "" if summary is None else f"× {interval(findings.rule.interval(summary, _PAIRED))}")


def _zeros(mine: _ByPlace, native: _ByPlace) -> set[_Place]:
    """Where both are known, and either is 0."""
    return {place for place in mine.keys() & native.keys() if not (mine[place] and native[place])}


def _logs(findings: Findings, mine: _ByPlace, native: _ByPlace) -> Floats:
    """By block, the log ratio of an arm's index to that of a native beside it; nan where either is missing."""
    logs = np.full(len(findings.matrix.blocks), np.nan)
    for place in mine.keys() & native.keys():
        logs[findings.matrix.blocks.index(place[0])] = math.log(mine[place] / native[place])
    return logs
