"""The figures of a programme: the big picture, then each probe against what was swept, or by category."""

from __future__ import annotations

from collections.abc import Sequence

from virtoll.analysis.cdf import curve
from virtoll.analysis.matrix import PROBE, Condition, Matrix
from virtoll.analysis.metrics import Metric
from virtoll.report import comparison
from virtoll.report.answer import join, mid
from virtoll.report.drawing import Figure, bounds, curve_rows, shares
from virtoll.report.findings import Findings
from virtoll.report.heatmap import heat_map
from virtoll.report.probe_tables import case_label
from virtoll.report.probe_views import MOST_PANELS, View, estimate_row, panel_label, view_figure
from virtoll.report.testbed import time_figures, views_of_slices

MOST_CHECKS = 30


def probe_figures(findings: Findings) -> list[Figure]:
    """The figures this run of a programme has data for."""
    views = [view for headline in findings.headlines for view in _views(findings, headline)]
    made = [heat_map(findings)]
    for family in _families(views):
        made.append(_ratios(findings, family) if len(family) > 1 else view_figure(findings, family[0]))
        made += [_distribution(findings, view) for view in family if view.distribution]
    return [figure for figure in (*made, *time_figures(findings), _cross_check(findings)) if figure is not None]


def _views(findings: Findings, headline: Metric) -> list[View]:
    """What there is to see of a probe: one view, but where the testbed has questions of its own."""
    return views_of_slices(findings, headline) or [_view(findings, headline)]


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


def _view(findings: Findings, headline: Metric) -> View:
    """The headline, with the probe's other quantities of the same unit where there is room for them."""
    matrix = findings.matrix
    alike = [m for m in matrix.metrics.values() if (m.group, m.unit) == (headline.group, headline.unit) and m.better]
    metrics = tuple(sorted(alike, key=lambda metric: not metric.headline)) or (headline,)
    sweep = _swept(matrix, headline)
    for shown in (metrics, (headline,)):
        entries = tuple(
            (metric, condition, panel_label(matrix, metric, condition, sweep, several=len(shown) > 1))
            for metric in shown
            for condition in matrix.conditions_of(metric.name)
        )
        if len(shown) == 1 or len({label for _, _, label in entries}) <= MOST_PANELS:
            break
    return View(shown, sweep, entries)


def _swept(matrix: Matrix, metric: Metric) -> str | None:
    """The first setting of the probe, in the study's order, that takes more than two numbers."""
    own = (case["condition"] for case in matrix.run.programme if case["probe"] == metric.group)
    paths: dict[str, None] = dict.fromkeys(
        [*(path for condition in own for path in condition), *matrix.varying_of(metric.name)]
    )
    for path in paths:
        levels = [level for level in matrix.levels(path, metric.name) if level is not None]
        if len(levels) > 2 and all(isinstance(level, int | float) for level in levels) and path != PROBE:
            return path
    return None


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
    less = [mid(metric.title) for metric in several if metric.better == "less"]
    better = "Less is better" if len(less) == len(several) else "More is better"
    caption = (
        "Ratios to native with 95 % intervals, paired within blocks; the grey band is the margin of no difference. "
        f"{better}{f', but for {join(less)}' if less and better.startswith('More') else ''}."
    )
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


def _cross_check(findings: Findings) -> Figure | None:
    checks = findings.cross_checks
    if len(checks) > MOST_CHECKS:
        checks = [check for check in checks if check.metric.headline]
    rows = [
        {"instrument": check.instrument, "panel": case_label(findings, check), **bounds(check.ratio)}
        for check in checks
        if check.ratio is not None
    ]
    if not rows:
        return None
    caption = (
        "What an outside instrument read over what our probe read, paired within native deployments, with 95 % "
        f"intervals. The grey band is ± {findings.margin * 100:.3g} %. They are in no toll."
    )
    if len(checks) < len(findings.cross_checks):
        caption += " What stands for each probe is drawn; the table has all."
    draw = comparison.agreement(rows, findings.margin)
    return Figure("cross-check", "Do other instruments agree?", caption, draw)
