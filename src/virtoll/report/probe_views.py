"""What one figure of a programme shows: quantities of a probe under some of its cases, swept or by category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from virtoll.analysis.cdf import curve
from virtoll.analysis.conditions import Condition, level_label, setting_name
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import Metric
from virtoll.record.model import Arm
from virtoll.report import comparison, method
from virtoll.report.drawing import Figure, Row, bounds, curve_rows, shares
from virtoll.report.findings import Findings
from virtoll.report.words import join, left_out, mid

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
    zeros: bool = False  # its values may be 0, and are drawn from there on
    distribution: bool = True  # whether the single events behind it are shown too
    title: str = ""  # of the axis of its values, where the quantity's own is too long for panels

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
    title = view.title or title
    look = comparison.Comparison(absolute, relative, title, findings.margin, view.zeros)
    is_short = view.sweep is not None and len(panels) > MOST_PANELS
    look = look.only(set(panels[:MOST_PANELS])) if is_short else look
    better = f"{words}. " if (words := _better(view.metrics)) else ""
    caption = (
        f"Means over deployments, and ratios to native paired within blocks, with 95 % intervals. {better}"
        + method.band(findings.margin)
        if look.relative
        else f"Means over deployments with 95 % intervals. {better}".rstrip()
    )
    if comparison.is_cut(look):
        caption += " The ratios' scale is that of the arms near native."
    if view.remark:
        caption += f" {view.remark}"
    caption += _undrawn(findings, arms, view)
    name, question = view.name or headline.group, view.question or _question(view.metrics)
    if view.sweep is None:
        return Figure(name, question, caption, comparison.categories(findings, arms, look))
    if is_short:
        caption += f" The first {MOST_PANELS} of {len(panels)} cases are drawn; the tables hold all."
    sweep = comparison.Sweep(view.sweep, sorted({row["x"] for row in absolute}), view.axis, view.linear)
    question = view.question or f"{question}, by {setting_name(view.sweep)}"
    return Figure(name, question, caption, comparison.lines(findings, arms, look, sweep))


def _better(metrics: Sequence[Metric]) -> str:
    """``More is better, but for round trip``: of each that is judged; "" where none is."""
    more, less = ([mid(each.title) for each in metrics if each.better == way] for way in ("more", "less"))
    if not more:
        return "Less is better" if less else ""
    return f"More is better{f', but for {join(less)}' if less else ''}"


def _question(metrics: Sequence[Metric]) -> str:
    """The title, or of several the words they begin with."""
    words = [metric.title.replace(",", "").split() for metric in metrics]
    alike = takewhile(lambda each: len(set(each)) == 1, zip(*words, strict=False))
    same = [first for first, *_ in alike]
    return " ".join(same) if len(metrics) > 1 and same else metrics[0].title


def _rows(findings: Findings, arms: Sequence[Arm], view: View) -> tuple[list[Row], list[Row]]:
    """Rows of absolute values and of ratios to native."""
    absolute, relative = [], []
    for metric, condition, label in view.entries:
        x = 0 if view.sweep is None else condition.get(view.sweep)
        for arm in arms:
            value = findings.matrix.absolute(metric.name, arm, condition)
            toll = None if metric.better is None else findings.tolls(metric.name).cell(arm, condition)
            if value is not None and (value.value > 0 or view.zeros) and x is not None:
                absolute.append(estimate_row(arm, label, x, value))
            if toll is not None and toll.ratio is not None and x is not None:
                relative.append(estimate_row(arm, label, x, toll.ratio))
    return absolute, relative


def _undrawn(findings: Findings, arms: Sequence[Arm], view: View) -> str:
    """Of what a figure has no mark, in words: cases that have no place on its axis, values of 0 where it has none for
    them, and arms of which some trials tell no value; "" of nothing.
    """
    by_metric: dict[str, list[Condition]] = {}
    for metric, condition, _ in view.entries:
        by_metric.setdefault(metric.name, []).append(condition)
    missing = [left_out(findings, name, conditions) for name, conditions in by_metric.items()]
    if view.sweep is not None and any((view.sweep, None) in condition.levels for _, condition, _ in view.entries):
        missing.append(f"Not drawn: {level_label(view.sweep, None)}, which has no place on the axis.")
    zeros = dict.fromkeys(
        f"{arm.label} ({where})" if (where := findings.matrix.label(condition, metric.name)) else arm.label
        for metric, condition, _ in view.entries
        for arm in ([] if view.zeros else arms)
        if (view.sweep is None or condition.get(view.sweep) is not None)
        and (value := findings.matrix.absolute(metric.name, arm, condition)) is not None
        and value.value <= 0
    )
    missing += [f"Not drawn, for it is 0: {join([*zeros])}."] if zeros else []
    return "".join(f" {words}" for words in dict.fromkeys(filter(None, missing)))


def estimate_row(arm: Arm, panel: str, x: Any, estimate: Estimate) -> Row:
    """A row of data: an arm's estimate at x in a panel."""
    return {"arm": arm.label, "panel": panel, "x": x, **bounds(estimate)}


def view_figures(findings: Findings, views: Sequence[View]) -> list[Figure]:
    """The figures of several views; small ones share theirs."""
    made: list[Figure | None] = []
    for family in _families(views):
        made.append(_ratios(findings, family) if len(family) > 1 else view_figure(findings, family[0]))
        made += [_distribution(findings, view) for view in family if view.distribution]
    return [figure for figure in made if figure is not None]


def _families(views: Sequence[View]) -> list[list[View]]:
    """Small views share a figure with those of their family ("unix"), or else with all that are left over."""
    small: dict[str, list[View]] = {}
    for view in views:
        if view.is_small:
            small.setdefault(_family(view), []).append(view)
    left = [view for family in small.values() if len(family) == 1 for view in family]
    found: list[list[View]] = []
    for view in views:
        group = small.get(_family(view), []) if view.is_small else [view]
        group = left if len(group) == 1 and view in left and len(left) > 1 else group
        if group not in found:
            found.append(group)
    if left in found and len(left) > 1:
        found.append(found.pop(found.index(left)))
    return found


def _family(view: View) -> str:
    return view.metrics[0].group.partition("-")[0]


def _ratios(findings: Findings, views: Sequence[View]) -> Figure | None:
    """Small views in one figure: their ratios to native, for their units differ."""
    arms = [arm for arm in findings.arms if arm.role == "treatment"]
    rows = []
    several = [metric for view in views for metric in view.metrics]
    for metric, condition, label in (entry for view in views for entry in view.entries):
        name = label if label.startswith(metric.title) else ", ".join(part for part in (metric.title, label) if part)
        for arm in arms:
            toll = findings.tolls(metric.name).cell(arm, condition)
            if toll is not None and toll.ratio is not None:
                rows.append(estimate_row(arm, name, 0, toll.ratio))
    if not rows:
        return None
    better = f" {words}." if (words := _better(several)) else ""
    caption = f"Ratios to native with 95 % intervals, paired within blocks. {method.band(findings.margin)}{better}"
    if comparison.is_cut(comparison.Comparison([], rows, "", findings.margin)):
        caption += " The scale is that of the arms near native; the first figure has what lies beyond it."
    families = {_family(view) for view in views}
    name = families.pop() if len(families) == 1 else "others"
    title = f"The {name} probes" if name != "others" else "The other probes"
    return Figure(name, title, caption, comparison.ratios(findings, arms, rows, findings.margin))


def _events_label(findings: Findings, view: View, condition: Condition) -> str:
    """Of a panel: the case, or, in a view of a sweep alone, its level."""
    if view.name and view.sweep is not None:
        return condition.label((view.sweep,))
    return findings.matrix.label(condition, view.metrics[0].name) or "all events"


def _distribution(findings: Findings, view: View) -> Figure | None:
    """The single events behind a probe's figures, where their histograms were kept."""
    metric = view.metrics[0]
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    conditions = dict.fromkeys(condition for _, condition, _ in view.entries)
    known = [
        (_events_label(findings, view, condition), one)
        for condition in conditions
        for arm in arms
        if (one := curve(findings.matrix, arm, condition)) is not None
    ]
    if not known:
        return None
    panels = list(dict.fromkeys(label for label, _ in known))
    shown = {panels[0], panels[-1]} if len(panels) > 4 else set(panels)
    rows = [row for label, one in known if label in shown for row in curve_rows(one, label, unit_ms=1e-3)]
    caption = (
        "Share of single events done within a time. Lines: mean of the deployments' distributions, each weighing the "
        f"same; bands: lowest to highest of the deployments (at least {min(one.n for _, one in known)})."
    )
    if len(shown) < len(panels):
        caption += " The first and the last case are shown."
    draw = shares(findings, arms, rows, "microseconds", "events")
    return Figure(
        f"{view.name or metric.group}-distribution",
        f"{metric.title.partition(',')[0]}: the single events",
        caption,
        draw,
    )
