"""How much the headline quantity is in its unit, by what was varied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import altair as alt

from virtoll.analysis.conditions import Condition, level_label, setting_name
from virtoll.analysis.matrix import Matrix
from virtoll.report.drawing import (
    Figure,
    Layout,
    arm_scales,
    bounds,
    data,
    dots,
    legend,
    positive,
    styled,
    value_scale,
)
from virtoll.report.findings import Findings
from virtoll.report.sections.base import Section
from virtoll.report.words import lower


class Absolute(Section):
    """The headline in its unit."""

    name: ClassVar[str] = "absolute"
    summary: ClassVar[str] = "How much is that?"
    rank: ClassVar[int] = 200

    def applies(self, findings: Findings) -> bool:
        """Under a load alone."""
        return findings.is_load

    def figures(self, findings: Findings) -> list[Figure]:
        """Against the first setting that varies."""
        return [figure for figure in [_by_size(findings)] if figure is not None]


SIZE = "load.object_bytes"


def _panels(matrix: Matrix, conditions: Iterable[Condition], apart: str | None) -> dict[Condition, str]:
    """Panel title by condition: what varies besides ``apart``."""
    paths = tuple(path for path in matrix.varying if path != apart)
    return {condition: condition.label(paths) if paths else "" for condition in conditions}


_ALL = "all"


def _label(condition: Condition, path: str) -> str:
    """Where a condition stands on the axis; "none" is a level too."""
    named = dict(condition.levels)
    return level_label(path, named[path]) if path in named else _ALL


def _by_size(findings: Findings) -> Figure | None:
    matrix, metric = findings.matrix, findings.headline
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    path = SIZE if len(matrix.levels(SIZE)) > 1 else next(iter(matrix.varying), SIZE)
    panels = _panels(matrix, matrix.conditions, path)
    rows = []
    for arm in arms:
        for condition in matrix.conditions:
            estimate = matrix.absolute(metric.name, arm, condition)
            if estimate is not None:
                x = _label(condition, path)
                rows.append({"arm": arm.label, "x": x, "panel": panels[condition], **bounds(estimate)})
    if not rows:
        return None
    log = all(row["value"] > 0 for row in rows)  # a 0 has no place there (native that lost nothing, say)
    rows, what = positive(rows) if log else rows, f"{lower(metric.title)} [{metric.unit}]"
    caption = _caption(findings, log=log)
    if not matrix.varying:
        lines = [{**row, "seen": "outside"} for row in rows]
        return Figure("absolute", "How much is that?", caption, dots(findings, arms, lines, what, log=log))
    shown = {row["x"] for row in rows}
    order = [x for x in (*(level_label(path, level) for level in matrix.levels(path)), _ALL) if x in shown]

    def draw(layout: Layout) -> alt.TopLevelMixin:
        look = arm_scales(findings, arms)
        titles = list(dict.fromkeys(row["panel"] for row in rows))
        columns = min(2 if layout.columns > 1 else 1, len(titles))
        # Ordinals drawn on a numeric axis would lie about distance; sizes are labelled, one step each.
        x = alt.X("x:N").scale(domain=order, type="point", padding=0.35).axis(title=None, labelAngle=0, grid=False)
        scale, ticks = value_scale(rows, log=log)
        axis = alt.Axis(title=what, values=ticks, tickCount=5, format=",~r", domain=False, ticks=False)
        y = alt.Y("value:Q").scale(scale).axis(axis)
        key = legend([arm.label for arm in arms], layout.width - 70, symbolStrokeWidth=0)
        base = alt.Chart().encode(color=look["color"].legend(**key))
        layers = alt.layer(
            base.mark_line(strokeWidth=1.8).encode(x=x, y=y, strokeDash=look["dash"].legend(None)),
            base.mark_rule(strokeWidth=2, clip=True).encode(x=x, y=alt.Y("low:Q").scale(scale), y2="high:Q"),
            base.mark_point(filled=True, size=55, opacity=1).encode(x=x, y=y, shape=look["shape"]),
            data=data(rows),
            width=layout.panel(columns),
            height=230,
        )
        if len(titles) == 1:
            return styled(layers)
        return styled(layers.facet(facet=alt.Facet("panel:N").sort(titles), columns=columns))

    name = "object size" if path == SIZE else setting_name(path)
    question = f"How much is that, by {name}?" if path in matrix.varying else "How much is that?"
    return Figure("absolute", question, caption, draw)


def _caption(findings: Findings, *, log: bool) -> str:
    loops, scale = " and ".join(findings.loops), "logarithmic scale" if log else "drawn from 0"
    return (
        f"Mean over deployments with its 95 % interval, {loops} loop, {scale}. "
        f"{'More' if findings.headline.better == 'more' else 'Less'} is better."
    )
