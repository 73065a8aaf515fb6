"""How fast the machine's CPUs were in each arm's windows, and what ratios would be if they had always been as fast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from virtoll.analysis.estimates import Estimate, Floats, Summary
from virtoll.analysis.metrics import Metric
from virtoll.analysis.ratios import log_ratios, natives_of, summary_under
from virtoll.analysis.speed import AtOneSpeed, at_one_speed, moved
from virtoll.record.model import Arm
from virtoll.report.findings import Findings
from virtoll.report.numbers import interval, significant
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table

_ASKED = "rate_per_s", "cpu_s_per_1000"
_PAIRED = "paired within blocks, on the log scale"
_EVERY_NS = 4e6  # on average: rust/agent/src/yardstick.rs


class Speed(Section):
    """Before the components of the scatter: how much of it is none of the arms'."""

    name: ClassVar[str] = "speed"
    summary: ClassVar[str] = "How fast were the CPUs themselves?"
    rank: ClassVar[int] = 940
    of_each_server: ClassVar[bool] = True

    def applies(self, findings: Findings) -> bool:
        """Where arms are measured in turn under a load on one machine, and compared."""
        matrix = findings.matrix
        is_one = len(set(matrix.hosts)) < 2
        return findings.is_load and findings.is_rotation and matrix.baseline is not None and is_one

    def tables(self, findings: Findings) -> list[Table]:
        """A quantity and arm a row; none where nothing is known of any."""
        rows = all_told(findings)
        return [_table(findings, rows).placed(folded=True)] if _known(rows) else []

    def method(self, findings: Findings) -> list[str]:
        """What is told, or why nothing is."""
        rows = all_told(findings)
        if _known(rows):
            return [_METHOD.format(share=significant(_share_of_cpu(findings))) + _moved(findings)]
        why = next((row for _, _, row in rows if isinstance(row, str)), "nothing is compared with native")
        return [f"**How fast the CPUs themselves were is not known**: {why if _times_ns(findings) else _NOBODY}."]


_NOBODY = "no yardstick was read in a valid trial"
_METHOD = (
    "**How fast the CPUs were is told beside the ratios, and is not in them.** On a machine that others share a CPU "
    "is slower at one time than at another. A small piece of work that is the same for all arms (system calls that do "
    "nothing) is timed on the instance’s CPUs every 4 ms of each window, which takes {share} % of them. How an arm’s "
    "rounds differ from native’s as those times do (least squares within blocks) gives a slope; a ratio *at one speed* "
    "is less the slope times the mean difference of their logarithms. Where an arm’s CPUs took as long as "
    "native’s it is the same toll (a control variate: Lavenberg and Welch 1981); an arm that moves those times itself, "
    "as one that never lets its CPU idle may, has another: that on CPUs which are kept at one speed."
)


@dataclass(frozen=True)
class Told:
    """One arm in one quantity."""

    metric: Metric
    arm: Arm
    measured: Estimate
    held: Estimate
    times: Estimate  # how much longer the yardstick took, over native's
    shares: tuple[float, ...]  # of the rounds' variance, by condition


def all_told(findings: Findings) -> list[tuple[Metric, Arm, Told | str]]:
    """Of each quantity and arm, or the reason why it is not known."""
    metrics = [metric for name, metric in findings.matrix.metrics.items() if name in _ASKED]
    arms = [arm for arm in findings.arms if arm.role != "baseline"]
    return [(metric, arm, _told(findings, metric, arm)) for metric in metrics for arm in arms]


def told(findings: Findings) -> list[Told]:
    """Those that are known."""
    return _known(all_told(findings))


def _known(rows: Sequence[tuple[Metric, Arm, Told | str]]) -> list[Told]:
    return [row for _, _, row in rows if isinstance(row, Told)]


def _told(findings: Findings, metric: Metric, arm: Arm) -> Told | str:
    matrix, toll = findings.matrix, findings.tolls(metric.name).total(arm)
    if toll is None or toll.ratio is None or toll.zeros:
        return "it has no ratio to native"
    number, conditions = matrix.arms.index(arm), findings.over(metric.name)
    every = log_ratios(matrix, metric.name)[:, number, findings.columns(metric.name)]
    asked = [c for c in range(len(conditions)) if np.isfinite(every[:, c]).any()]
    found = at_one_speed(matrix, metric.name, arm, [conditions[c] for c in asked], every[:, asked])
    if isinstance(found, str):
        return found
    natives = None
    if findings.rule.pilot is not None:
        natives = natives_of(matrix, metric.name)[:, number, findings.columns(metric.name)][:, asked]
    held, times = _estimates(findings, found, natives)
    return Told(metric, arm, toll.ratio, held, times, tuple(line.share for line in found.lines))


def _estimates(findings: Findings, found: AtOneSpeed, natives: Floats | None) -> tuple[Estimate, Estimate]:
    rule = findings.rule
    held, times = (summary_under(rule, each, natives) for each in (found.logs, found.apart))
    assert held is not None  # some are known
    assert times is not None
    return rule.interval(found.summary(held), _PAIRED), rule.interval(times, _PAIRED)


def _times_ns(findings: Findings) -> list[float]:
    return [window.yardstick_ns for window in _all(findings) if window.yardstick_ns is not None]


def _all(findings: Findings) -> list[Any]:
    records = (record for record in findings.run.records if record.status == "valid")
    return [window for record in records if record.measured is not None for window in record.measured.windows]


def _share_of_cpu(findings: Findings) -> float:
    """In per cent: of two times as long as is timed, every `_EVERY_NS`."""
    return 100 * 2 * float(np.median(_times_ns(findings))) / _EVERY_NS


def _moved(findings: Findings) -> str:
    """What was found before the first trial on those CPUs, where that was several times the most; "": nothing was."""
    tried = [found for record in findings.run.records if (found := moved(record)) is not None]
    if not tried:
        return ""
    own, others = (max((each[at] for each in tried), key=_most) for at in (0, 1))
    return (
        f" Tried while nothing was measured: times change by {_percent(own)} where the CPU idles for a tenth of a "
        f"millisecond now and then, and by {_percent(others)} where the other CPUs of the lab idle."
    )


def _most(found: Summary) -> float:
    return abs(found.mean) + found.half_width()


def _percent(found: Summary) -> str:
    middle, half = (100 * math.expm1(each) for each in (found.mean, found.half_width()))
    return f"{middle:+.1f} ± {half:.1f} %"


def _table(findings: Findings, rows: Sequence[tuple[Metric, Arm, Told | str]]) -> Table:
    heads = ("Quantity", "Arm", "As measured", "At one speed", "Its CPUs’ times, against native’s", "Share of scatter")
    cells = tuple(
        (Cell(metric.title), Cell(arm.label), _measured(findings, metric, arm), *_cells(row))
        for metric, arm, row in rows
    )
    notes = (
        "Ratios to native; what the answer says is as measured. Times: how much longer the same work took on the CPUs "
        "in the arm’s windows than in native’s. Share: of the variance of rounds within blocks that goes with those "
        "times.",
    )
    return Table("speed", "Ratios to native as measured, and at one speed of the CPUs", heads, cells, notes)


def _measured(findings: Findings, metric: Metric, arm: Arm) -> Cell:
    toll = findings.tolls(metric.name).total(arm)
    return Cell("—", "missing") if toll is None or toll.ratio is None else Cell(interval(toll.ratio))


def _cells(row: Told | str) -> tuple[Cell, ...]:
    """At one speed, and what it is made of."""
    if isinstance(row, str):
        return (Cell("not known", "missing", row), *[Cell("—", "missing")] * 2)
    return Cell(interval(row.held)), Cell(interval(row.times)), Cell(_shares(row.shares))


def _shares(shares: tuple[float, ...]) -> str:
    low, high = (f"{100 * each:.0f}" for each in (min(shares), max(shares)))
    return f"{low} %" if low == high else f"{low} to {high} %"


def as_json(findings: Findings) -> list[dict[str, Any]]:
    """The same for programs, of each of several servers; docs/JSON.md has the keys."""
    whole = (findings.servers or {"": findings}) if Speed().applies(findings) else {}
    return [
        {
            **({"server": server} if server else {}),
            "arm": row.arm.label,
            "quantity": row.metric.name,
            "shares": list(row.shares),
            "at_one_speed": _bounds(row.held),
            "times": _bounds(row.times),
        }
        for server, each in whole.items()
        for row in told(each)
    ]


def _bounds(found: Estimate) -> dict[str, float | None]:
    return {"ratio": found.value, "low": found.low, "high": found.high}
