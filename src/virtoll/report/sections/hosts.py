"""How far the hosts of a run differ in what each arm costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from virtoll.analysis.estimates import LEVEL, Summary, holm
from virtoll.analysis.hosts import MANY, Apart
from virtoll.analysis.metrics import Metric
from virtoll.analysis.rules import FIXED
from virtoll.plain import listed
from virtoll.record.model import Arm
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING, interval, number
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table
from virtoll.report.words import join

_MOST_COLUMNS = 12  # hosts that a page has room for beside each other
_MOST_DECIMALS = 6  # of a ratio
_QUARTERS = ("Hosts", "Least", "Lower quarter", "Middle", "Upper quarter", "Most")
_OF_QUARTERS = (
    " (its mean): the least of all hosts, what a quarter, a half and three quarters of them stay below, and the most; "
    "trials.csv names the host of each trial"
)
_METHOD = "geometric mean of the host's own ratios within blocks, t interval"


class Hosts(Section):
    """Every arm's ratio to native, host by host."""

    name: ClassVar[str] = "hosts"
    summary: ClassVar[str] = "How far do the hosts differ?"
    rank: ClassVar[int] = 130
    of_each_server: ClassVar[bool] = True

    def applies(self, findings: Findings) -> bool:
        """Where several measured it."""
        return len(set(findings.matrix.hosts)) > 1 and findings.matrix.baseline is not None

    def answer(self, findings: Findings) -> list[str]:
        """Where they differ by more than chance: then the mean over them is the toll of none of them."""
        found = _compared(findings)
        differing = [row for row, p in zip(found, _tests(found), strict=True) if p < 1 - LEVEL]
        if not differing:
            return []
        told = [f"{row.name}: {_range(row)}" for row in differing[:4]]
        more = f", and {len(differing) - 4} more" if len(differing) > 4 else ""
        return [
            f"The hosts differ by more than chance in what an arm costs (ratio to native: {'; '.join(told)}{more}). "
            "What is told of all of them together is their mean, and the toll of none of them."
        ]

    def text(self, findings: Findings) -> list[str]:
        """What all intervals speak of."""
        hosts = sorted(set(findings.matrix.hosts))
        if len(hosts) >= MANY:
            return [
                f"{len(hosts)} hosts, each with a mean of its own: the host is what is counted (n), and intervals "
                "speak of hosts like these. How far they lie apart is in them."
            ]
        return [
            f"{join(hosts)} were measured, and all intervals over them speak of their mean alone: of another host they "
            f"say nothing, for fewer than {MANY} hosts do not tell how hosts differ."
        ]

    def tables(self, findings: Findings) -> list[Table]:
        """An arm a row; a host a column, or of more than a page holds their quarters."""
        found = _compared(findings)
        if not found:
            return []
        hosts = tuple(sorted(set(findings.matrix.hosts)))
        is_short = len(hosts) > _MOST_COLUMNS
        own, told = (_QUARTERS, _quarters) if is_short else (hosts, lambda row: [_own(row, host) for host in hosts])
        rows = tuple(
            (Cell(row.name), *map(Cell, told(row)), Cell(row.scatter), Cell(_p(p)))
            for row, p in zip(found, _tests(found), strict=True)
        )
        notes = [
            f"Ratios to native on the host itself{_OF_QUARTERS if is_short else ', 95 %'}. Hosts apart: how many per "
            "cent the hosts scatter (one standard deviation) beyond what chance makes of their blocks. p: of no "
            "difference between them (parametric bootstrap, Holm's correction over the table)."
        ]
        if left := _left_out(found, hosts):
            notes.append(left)
        heads = ("Arm", *own, "Hosts apart", "p")
        return [Table("hosts", "Ratio to native, host by host", heads, rows, tuple(notes)).placed(look="tolls")]

    def method(self, findings: Findings) -> list[str]:
        """What is the replicate."""
        by = (
            "each host's own mean is one observation (n: hosts), since there are enough of them"
            if len(set(findings.matrix.hosts)) >= MANY
            else "blocks are, within their hosts, since there are few"
        )
        return [
            "**Hosts are a blocking factor.** A block is measured on one host, native and all arms, so that ratios are "
            f"of one machine; all hosts weigh the same. What is counted was settled before the first trial: {by}."
        ]


@dataclass
class _Row:
    """One arm in one metric."""

    arm: Arm
    metric: Metric
    each: Mapping[str, Summary]
    apart: Apart | None

    @property
    def name(self) -> str:
        return f"{self.arm.label}, {self.metric.title}" if self.metric.group else self.arm.label

    @property
    def scatter(self) -> str:
        return MISSING if self.apart is None else f"{number(math.expm1(self.apart.deviation) * 100, 0.1)} %"


def _own(row: _Row, host: str) -> str:
    return interval(FIXED.interval(row.each[host], _METHOD) if host in row.each else None)


def _quarters(row: _Row) -> list[str]:
    """Of the hosts that hold it: how many, who has least and most, and what a quarter, a half and three quarters stay
    below.
    """
    known = sorted((summary.mean, host) for host, summary in row.each.items())
    if not known:
        return ["0", *[MISSING] * (len(_QUARTERS) - 1)]
    between = np.quantile([mean for mean, _ in known], (0.25, 0.5, 0.75)).tolist()
    least, most = (f"{math.exp(mean):.3f} ({host})" for mean, host in (known[0], known[-1]))
    return [f"{len(known):,}", least, *(f"{math.exp(mean):.3f}" for mean in between), most]


def _compared(findings: Findings) -> list[_Row]:
    """What the answer is given in, of every arm of which something is known; the floor last."""
    metrics = findings.judged if findings.is_programme else [findings.headline]
    rows = []
    for metric in metrics:
        for arm in (arm for arm in findings.arms if arm.role != "baseline"):
            toll = findings.tolls(metric.name).total(arm)
            if toll is not None and toll.ratio is not None:
                rows.append(_Row(arm, metric, *findings.by_host(metric.name, arm)))
    return rows


def _tests(rows: list[_Row]) -> list[float]:
    """Adjusted; the floor is no arm under test."""
    return holm([row.apart.p if row.apart is not None and row.arm.role != "floor" else math.nan for row in rows])


def _p(p: float) -> str:
    if math.isnan(p):
        return MISSING
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def _range(row: _Row) -> str:
    """``0.81 on node1 to 0.92 on node3``: the least and the most of the hosts' own, with the decimals that tell them
    apart.
    """
    known = sorted((summary.mean, host) for host, summary in row.each.items() if summary.n > 1)
    ratios, digits = [math.exp(mean) for mean, _ in (known[0], known[-1])], 2
    while digits < _MOST_DECIMALS and ratios[1] - ratios[0] < 2 * 10**-digits:
        digits += 1
    (low, high), (first, last) = (f"{ratio:.{digits}f}" for ratio in ratios), (known[0][1], known[-1][1])
    return f"{low} on {first} to {high} on {last}"


def _left_out(rows: list[_Row], hosts: tuple[str, ...]) -> str:
    """Which hosts lack something, and what that takes from the mean over all."""
    least = 1 if len(hosts) >= MANY else 2
    told = [
        f"{row.name}: {join(missing) if len(missing) <= _MOST_COLUMNS else listed(missing)}"
        for row in rows
        if (missing := [host for host in hosts if host not in row.each or row.each[host].n < least])
    ]
    if not told:
        return ""
    if least > 1:
        why = "A mean of these hosts has no interval where one of them has fewer than 2 blocks, or not all conditions"
    else:
        why = "No part in the mean over hosts, for it has no block, or not all conditions"
    return f"{why}: {'; '.join(told)}."
