"""What one figure of a programme shows: quantities of a probe under some of its cases, swept or by category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from virtoll.analysis.estimates import Estimate
from virtoll.analysis.matrix import Condition, Matrix, setting_name
from virtoll.analysis.metrics import Metric
from virtoll.record.model import Arm
from virtoll.report import comparison
from virtoll.report.answer import mid
from virtoll.report.drawing import Figure, Row, bounds
from virtoll.report.findings import Findings

MOST_PANELS = 6
SMALL = 2
_LONGEST_TITLE = 48  # that an axis has room for


@dataclass(frozen=True)
class View:
    """What one figure shows: quantities of a probe in one unit, each under its cases."""

    metrics: tuple[Metric, ...]
    sweep: str | None  # the setting along the horizontal axis
    entries: tuple[tuple[Metric, Condition, str], ...]  # with the panel's or the category's label
    name: str = ""  # of its files; the probe's
    question: str = ""  # what the quantities are called
    axis: str = ""  # what the sweep is called
    linear: bool = False  # its axis, whatever it spans
    remark: str = ""  # what its caption says besides
    distribution: bool = True  # whether the single events behind it are shown too

    @property
    def is_small(self) -> bool:
        """Whether it would fill no figure of its own."""
        return self.sweep is None and len(self.entries) <= SMALL


def panel_label(matrix: Matrix, metric: Metric, condition: Condition, sweep: str | None, *, several: bool) -> str:
    """Of a panel or a category: the quantity, where there are several, and what varies besides the sweep."""
    paths = tuple(path for path in matrix.varying_of(metric.name) if path != sweep)
    words = condition.label(paths) if paths else ""
    if sweep is None and not words:
        return metric.title  # a category must have a name
    return ", ".join(part for part in (metric.title if several else "", words) if part)


def view_figure(findings: Findings, view: View) -> Figure | None:
    """The figure; None where nothing was measured."""
    headline = view.metrics[0]
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    absolute, relative = _rows(findings, arms, view)
    if not absolute:
        return None
    panels = list(dict.fromkeys(row["panel"] for row in absolute))
    title = f"{mid(headline.title)} [{headline.unit}]"
    if len(view.metrics) > 1 or not headline.unit or len(title) > _LONGEST_TITLE:
        title = headline.unit
    look = comparison.Comparison(absolute, relative, title, findings.margin)
    better = {"more": "More is better. ", "less": "Less is better. ", None: ""}[headline.better]
    caption = (
        f"Means over deployments, and ratios to native paired within blocks, with 95 % intervals. {better}"
        f"The grey band is the margin, ± {findings.margin * 100:.3g} %."
        if relative
        else f"Means over deployments with 95 % intervals. {better}".rstrip()
    )
    if comparison.is_cut(look):
        caption += " The ratios' scale is that of the arms near native."
    if view.remark:
        caption += f" {view.remark}"
    name, question = view.name or headline.group, view.question or _question(view.metrics)
    if view.sweep is None:
        return Figure(name, question, caption, comparison.categories(findings, arms, look))
    if len(panels) > MOST_PANELS:
        kept = set(panels[:MOST_PANELS])
        look = look.only(kept)
        caption += f" The first {MOST_PANELS} of {len(panels)} cases are drawn; the tables hold all."
    sweep = comparison.Sweep(view.sweep, sorted({row["x"] for row in absolute}), view.axis, view.linear)
    question = view.question or f"{question}, by {setting_name(view.sweep)}"
    return Figure(name, question, caption, comparison.lines(findings, arms, look, sweep))


def _question(metrics: Sequence[Metric]) -> str:
    """The title, or of several the words they begin with."""
    words = [metric.title.replace(",", "").split() for metric in metrics]
    same = [first for first, *others in zip(*words, strict=False) if all(first == other for other in others)]
    return " ".join(same) if len(metrics) > 1 and same else metrics[0].title


def _rows(findings: Findings, arms: Sequence[Arm], view: View) -> tuple[list[Row], list[Row]]:
    """Rows of absolute values and of ratios to native."""
    absolute, relative = [], []
    for metric, condition, label in view.entries:
        x = 0 if view.sweep is None else condition.get(view.sweep)
        for arm in arms:
            value = findings.matrix.absolute(metric.name, arm, condition)
            toll = None if metric.better is None else findings.tolls(metric.name).cell(arm, condition)
            if value is not None and value.value > 0 and x is not None:
                absolute.append(estimate_row(arm, label, x, value))
            if toll is not None and toll.ratio is not None and x is not None:
                relative.append(estimate_row(arm, label, x, toll.ratio))
    return absolute, relative


def estimate_row(arm: Arm, panel: str, x: Any, estimate: Estimate) -> Row:
    """A row of data: an arm's estimate at x in a panel."""
    return {"arm": arm.label, "panel": panel, "x": x, **bounds(estimate)}
