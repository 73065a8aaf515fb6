"""Where the width of the intervals comes from: windows, or what differs from block to block."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from virtoll.analysis.components import Components
from virtoll.analysis.metrics import Metric
from virtoll.analysis.narrowing import LEAST_BLOCKS
from virtoll.record.model import Arm
from virtoll.report.findings import Findings
from virtoll.report.numbers import significant
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table
from virtoll.report.words import over

_COST = "cpu_s_per_1000"


class VarianceComponents(Section):
    """The last before the method: how the answer's spread is made up."""

    name: ClassVar[str] = "components"
    summary: ClassVar[str] = "Where does the scatter come from?"
    rank: ClassVar[int] = 950
    of_each_server: ClassVar[bool] = True

    def applies(self, findings: Findings) -> bool:
        """Where arms are compared with native."""
        return not findings.is_isolation and findings.matrix.baseline is not None and bool(quantities(findings))

    def tables(self, findings: Findings) -> list[Table]:
        """A quantity and arm a row; none where no deployment has more than one window."""
        found = all_components(findings)
        return [_table(findings, found).placed(folded=True)] if _told(found) else []

    def method(self, findings: Findings) -> list[str]:
        """What the components are, and whose formulas."""
        found = all_components(findings)
        if _told(found):
            return [_METHOD]
        why = next((each for _, _, each in found if isinstance(each, str)), "nothing was measured")
        return [f"**Where the scatter comes from is not known**: {why}."]


_METHOD = (
    "**Scatter has two parts** (standard deviations of log ratios to native): what the windows of a deployment explain "
    "of a block's observation, which more windows lessen, and the rest, which only more blocks do. One-way random "
    "effects, method of moments (Searle, Casella & McCulloch 1992), of the ratio's linearised form (Cochran 1977); a "
    "rest that comes out below 0 is told as 0. Windows of a deployment that resemble each other count for the rest."
)


def quantities(findings: Findings) -> list[Metric]:
    """The answer's, and the CPU time of a load's unit of work."""
    if findings.is_programme:
        return findings.judged
    names = [findings.headline.name, _COST]
    return [metric for name, metric in findings.matrix.metrics.items() if name in names]


def all_components(findings: Findings) -> list[tuple[Metric, Arm, Components | str]]:
    """Of every quantity and arm, native again's too, or the reason why there are none."""
    arms = [arm for arm in findings.arms if arm.role != "baseline"]
    return [(m, arm, findings.components(m.name, arm)) for m in quantities(findings) for arm in arms]


def as_json(findings: Findings) -> list[dict[str, Any]]:
    """The same for programs, of each of several servers; docs/JSON.md has the keys."""
    whose = (findings.servers or {"": findings}) if _compares(findings) else {}
    return [
        {**({"server": server} if server else {}), **_entry(metric, arm, found)}
        for server, each in whose.items()
        for metric, arm, found in all_components(each)
    ]


def _compares(findings: Findings) -> bool:
    return VarianceComponents().applies(findings)


def _entry(metric: Metric, arm: Arm, found: Components | str) -> dict[str, Any]:
    head = {"arm": arm.label, "quantity": metric.name}
    if isinstance(found, str):
        return {**head, "missing": found}
    known = found.blocks > 1
    interval = found.share_interval
    return {
        **head,
        "window_sd": math.sqrt(found.window),
        "windows_sd": math.sqrt(found.of_windows),
        "between_sd": math.sqrt(found.of_blocks) if known else None,
        "block_sd": math.sqrt(found.observation) if known else None,
        "windows_share": found.share if known else None,
        "windows_share_low": None if interval is None else interval[0],
        "windows_share_high": None if interval is None else interval[1],
        "windows": found.windows,
        "blocks": found.blocks,
        "in_rounds": found.is_paired,
    }


def _told(found: list[tuple[Metric, Arm, Components | str]]) -> bool:
    return any(not isinstance(each, str) for _, _, each in found)


def _table(findings: Findings, found: list[tuple[Metric, Arm, Components | str]]) -> Table:
    heads = ("Quantity", "Arm", "One window", "A block: of its windows", "The rest", "In all", "Windows’ share")
    rows = tuple((Cell(metric.title), Cell(arm.label), *_cells(each)) for metric, arm, each in found)
    notes = (
        "Standard deviations of log ratios to native, in per cent. One window: one of each deployment that is in the "
        "ratio, in rotation those of the same round. A block: what its windows explain of its observation, and what "
        "is left between blocks (the deployments’ own, and what drifts more slowly than a block). The share is of the "
        "variance, with its 95 % "
        f"interval; {_over(findings)}.",
    )
    return Table("components", "Where the scatter from block to block comes from", heads, rows, notes)


def _over(findings: Findings) -> str:
    count = len(findings.matrix.conditions)
    if findings.met and len(findings.compared) < count:
        return f"a block’s observation is the mean over {over(findings)}"
    return "one condition" if count == 1 else "a block’s observation is the mean over its conditions"


def _cells(found: Components | str) -> tuple[Cell, ...]:
    if isinstance(found, str):
        return (Cell("not known", "missing", found), *[Cell("—", "missing")] * 4)
    window, of_windows = _percent(found.window), _percent(found.of_windows)
    if found.blocks < 2:
        unknown = Cell("not known", "missing", "one block shows no scatter between blocks")
        return Cell(window), Cell(of_windows, "", f"{found.windows:.3g} windows"), unknown, unknown, unknown
    rest = Cell(_percent(found.of_blocks), "", "its estimate is below 0" if found.between < 0 else "")
    in_all = Cell(_percent(found.observation), "", f"{found.blocks} blocks")
    return Cell(window), Cell(of_windows, "", f"{found.windows:.3g} windows"), rest, in_all, _share(found)


def _share(found: Components) -> Cell:
    interval = found.share_interval
    if interval is None:
        return Cell("—", "missing")
    told = f"[{interval[0] * 100:.0f}, {interval[1] * 100:.0f}]"
    if found.blocks < LEAST_BLOCKS:
        return Cell("not known", "missing", f"of {found.blocks} blocks: {told} %")
    return Cell(f"{found.share * 100:.0f} %", "", told)


def _percent(variance: float) -> str:
    return f"{significant(math.sqrt(variance) * 100)} %"
