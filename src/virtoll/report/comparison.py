"""Charts that set arms side by side: absolute values on the left, ratios to native on the right; on phones below."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from virtoll.analysis.conditions import level_value, setting_name
from virtoll.record.model import Arm
from virtoll.report.drawing import (
    Layout,
    Row,
    arm_scales,
    data,
    legend,
    log_extent,
    log_ticks,
    positive,
    styled,
    wrapped,
)
from virtoll.report.findings import Findings
from virtoll.report.palette import BAND, INK, MUTED

Draw = Callable[[Layout], alt.TopLevelMixin]
# A logarithmic axis pays from this ratio of the largest to the smallest value on.
_LOG_ABSOLUTE, _LOG_RATIO = 10.0, 4.0
# Ratios within these bounds are near native.
_NEAR = (0.5, 2.0)
_LABEL_WIDTH = 48  # pixels between the labels of a sweep


@dataclass(frozen=True)
class Comparison:
    """Rows (arm, panel, x, value, low, high) of absolute values and of ratios, and the former's axis title."""

    absolute: list[Row]
    relative: list[Row]
    title: str
    margin: float
    linear: bool = False  # the absolute values, whatever they span; they may be 0

    def only(self, panels: Collection[str]) -> Comparison:
        """The same with some of its panels."""
        some = ([row for row in rows if row["panel"] in panels] for rows in (self.absolute, self.relative))
        return replace(self, absolute=next(some), relative=next(some))


@dataclass(frozen=True)
class Sweep:
    """The setting along the horizontal axis, and its levels."""

    path: str
    levels: list[Any]
    title: str = ""  # where the setting's name does not say enough
    linear: bool = False  # whatever they span

    def axis(self, width: int) -> alt.X:
        """Logarithmic where the levels span a decade and more; labelled at the levels, as many as there is room for."""
        log = not self.linear and min(self.levels) > 0 and max(self.levels) / min(self.levels) >= 10
        shown = self._labelled(width, log=log)
        words = {f"{level:.15g}": level_value(self.path, level) for level in shown}  # as the axis prints a number
        axis = alt.Axis(
            title=self.title or setting_name(self.path),
            values=shown,
            labelExpr=f"{json.dumps(words, ensure_ascii=False)}[datum.value]",
            labelOverlap=False,
            labelFlush=False,
            grid=False,
        )
        ends = [min(self.levels), max(self.levels)]  # of all levels, though of some no ratio is known
        domain = ends if ends[0] < ends[1] else alt.Undefined
        scale = alt.Scale(type="log" if log else "linear", domain=domain, nice=False, zero=False, padding=10)
        return alt.X("x:Q").scale(scale).axis(axis)

    def _labelled(self, width: int, *, log: bool) -> list[Any]:
        """The levels whose labels do not meet, from the least on."""
        places = [math.log(level) if log else level for level in sorted(self.levels)]
        room = (max(places) - min(places)) * _LABEL_WIDTH / width
        shown: list[int] = []
        for at, place in enumerate(places):
            if not shown or place - places[shown[-1]] >= room:
                shown.append(at)
        return [sorted(self.levels)[at] for at in shown]


@dataclass(frozen=True)
class _Measure:
    """One side of a comparison: its rows and the scale of their values."""

    rows: list[Row]
    title: str
    log: bool
    extent: list[float]  # ends of the axis; what lies beyond is cut off
    margin: float | None = None  # of a ratio: a band and a line at 1

    @classmethod
    def absolute(cls, look: Comparison) -> _Measure:
        """From zero, or on a logarithmic axis where the values span a decade."""
        log = not look.linear and _span(look.absolute) >= _LOG_ABSOLUTE
        extent = log_extent(look.absolute) if log else [0.0, max(row["high"] for row in look.absolute) * 1.06 or 1.0]
        return cls(look.absolute, look.title, log, extent)

    @classmethod
    def relative(cls, rows: list[Row], margin: float, title: str = "ratio to native", *, near: bool = True) -> _Measure:
        """About 1. ``near``: where some ratios are near and others far, the near ones have the room."""
        close = [row for row in rows if _NEAR[0] <= row["value"] <= _NEAR[1]]
        shown = close if near and len(close) > 1 else rows
        around = {"value": 1.0, "low": 1 / (1 + margin), "high": 1 + margin}
        log = _span([*shown, around]) >= _LOG_RATIO
        if log:
            return cls(rows, title, log, log_extent([*shown, around]), margin)
        values = [row["value"] for row in [*shown, around]]
        span = max(max(values) - min(values), 4 * margin)  # a wide interval may not flatten what can be seen
        low = max(min(values) - span, min(row["low"] for row in [*shown, around]))
        high = min(max(values) + span, max(row["high"] for row in [*shown, around]))
        room = (high - low) * 0.08
        return cls(rows, title, log, [max(0.0, low - room), high + room], margin)

    @property
    def cut(self) -> bool:
        """Whether some of the values lie beyond the axis."""
        return any(not self.extent[0] <= row["value"] <= self.extent[1] for row in self.rows)

    @property
    def cuts_intervals(self) -> bool:
        """Whether some of the intervals do. (A clipped mark is slow to draw: only where it must be.)"""
        return any(row["low"] < self.extent[0] or row["high"] > self.extent[1] for row in self.rows)

    def channel(self, kind: type[alt.X] | type[alt.Y], field: str = "value:Q", **more: Any) -> Any:
        """The axis of the values; every layer has the same."""
        ticks = log_ticks(*self.extent) if self.log else alt.Undefined
        axis = alt.Axis(title=self.title, values=ticks, format=",~r", tickCount=5, domain=False, ticks=False, **more)
        scale = alt.Scale(type="log" if self.log else "linear", domain=self.extent, nice=False, zero=False)
        return kind(field).scale(scale).axis(axis)

    def data(self, panels: Sequence[str]) -> alt.Data:
        """The rows; for a ratio, in each panel one more for the band of the margin and the line at 1."""
        rows = [{**row, "what": "arm"} for row in (positive(self.rows) if self.log else self.rows)]
        if self.margin is not None:
            around = {"value": 1.0, "low": 1 / (1 + self.margin), "high": 1 + self.margin, "what": "one"}
            rows += [{**dict.fromkeys(self.rows[0], ""), "panel": panel, **around} for panel in panels]
        return data(rows)

    def around_one(self, kind: type[alt.X] | type[alt.Y]) -> list[alt.Chart]:
        """For a ratio: the band of the margin and the line at 1."""
        if self.margin is None:
            return []
        start, end = ("x", "x2") if kind is alt.X else ("y", "y2")
        base = alt.Chart().transform_filter(_IS_ONE)
        return [
            base.mark_rect(color=BAND[0]).encode(**{start: self.channel(kind, "low:Q"), end: "high:Q"}),
            base.mark_rule(color=MUTED[0]).encode(**{start: self.channel(kind)}),
        ]


_IS_ONE, _IS_ARM = "datum.what == 'one'", "datum.what == 'arm'"


def _span(rows: Sequence[Row]) -> float:
    values = [row["value"] for row in rows if row["value"] > 0]
    return max(values) / min(values) if values else 1.0


def is_cut(shown: Comparison) -> bool:
    """Whether some ratios lie beyond the axis, so that those near native can be told apart."""
    return bool(shown.relative) and _Measure.relative(shown.relative, shown.margin).cut


def _sides(shown: Comparison) -> list[_Measure]:
    """What there is to see: ratios only where there is something to compare with."""
    relative = [_Measure.relative(shown.relative, shown.margin)] if shown.relative else []
    return [_Measure.absolute(shown), *relative]


def lines(findings: Findings, arms: list[Arm], shown: Comparison, sweep: Sweep) -> Draw:
    """Lines over a swept setting; panels below each other, absolute values and ratios in two columns."""
    panels = list(dict.fromkeys(row["panel"] for row in shown.absolute))
    sides, marks = _sides(shown), arm_scales(findings, arms)

    def chart(side: _Measure, layout: Layout) -> Any:
        width = layout.width - 80 if layout.columns == 1 or len(sides) == 1 else layout.panel(2)
        x, y = sweep.axis(width), side.channel(alt.Y)
        key = legend([arm.label for arm in arms], layout.width - 70, symbolStrokeWidth=0)
        colour = marks["color"].legend(**key)
        base = alt.Chart().transform_filter(_IS_ARM).encode(color=colour)
        layers = alt.layer(
            *side.around_one(alt.Y),
            base.mark_line(strokeWidth=1.7, clip=side.cut).encode(x=x, y=y, strokeDash=marks["dash"].legend(None)),
            base.mark_rule(strokeWidth=1.6, clip=side.cuts_intervals).encode(
                x=x, y=side.channel(alt.Y, "low:Q"), y2="high:Q"
            ),
            base.mark_point(filled=True, size=38, opacity=1, clip=side.cut).encode(x=x, y=y, shape=marks["shape"]),
            data=side.data(panels),
            width=width,
            height=190 if len(panels) < 3 else 140,
        )
        return layers if len(panels) == 1 else layers.facet(facet=alt.Facet("panel:N").sort(panels), columns=1)

    def draw(layout: Layout) -> alt.TopLevelMixin:
        charts = [chart(side, layout) for side in sides]
        return styled(alt.vconcat(*charts, spacing=18) if layout.columns == 1 else alt.hconcat(*charts, spacing=26))

    return draw


@dataclass(frozen=True)
class _Marks:
    """The arms of a chart, and their colours, shapes and dashes."""

    labels: list[str]
    scales: dict[str, Any]

    @classmethod
    def of(cls, findings: Findings, arms: list[Arm]) -> _Marks:
        return cls([arm.label for arm in arms], arm_scales(findings, arms))


def categories(findings: Findings, arms: list[Arm], shown: Comparison) -> Draw:
    """Dots by category, the arms of one below each other."""
    look = _Marks.of(findings, arms)
    sides = _sides(shown)

    def draw(layout: Layout) -> alt.TopLevelMixin:
        most = layout.labels + 26 * (layout.columns == 1)
        room = min(most, 7 * max(len(row["panel"]) for row in shown.absolute) + 8)
        if layout.columns == 1:
            charts = [_dots(look, side, layout, layout.width - room - 40, room) for side in sides]
            return styled(alt.vconcat(*charts, spacing=18))
        width = (layout.width - room - 70) // 2
        charts = [_dots(look, side, layout, width, room if side is sides[0] else 0) for side in sides]
        return styled(alt.hconcat(*charts, spacing=24))

    return draw


def ratios(findings: Findings, arms: list[Arm], rows: list[Row], margin: float) -> Draw:
    """Dots of ratios to native by category, alone."""
    look, side = _Marks.of(findings, arms), _Measure.relative(rows, margin)

    def draw(layout: Layout) -> alt.TopLevelMixin:
        room = layout.labels + (40 if layout.columns > 1 else 0)
        return styled(_dots(look, side, layout, layout.width - room - 40, room))

    return draw


def _dots(look: _Marks, side: _Measure, layout: Layout, width: int, room: int) -> Any:
    names = list(dict.fromkeys(row["panel"] for row in side.rows))
    marks = look.scales
    axis = alt.Axis(
        title=None, domain=False, ticks=False, labels=room > 0, labelLimit=max(room, 1), labelColor=INK[0],
        labelFontSize=11.5, grid=False, labelExpr=wrapped(names, room),
    )  # fmt: skip
    y = alt.Y("panel:N").scale(domain=names, paddingInner=0.25).axis(axis)
    offset = alt.YOffset("arm:N").scale(domain=look.labels)
    x = side.channel(alt.X)
    colour = marks["color"].legend(**legend(look.labels, layout.width - room - 20, symbolStrokeWidth=0))
    base = alt.Chart().transform_filter(_IS_ARM).encode(y=y, yOffset=offset, color=colour)
    return alt.layer(
        *side.around_one(alt.X),
        base.mark_rule(strokeWidth=1.8, clip=side.cuts_intervals).encode(x=side.channel(alt.X, "low:Q"), x2="high:Q"),
        base.mark_point(filled=True, size=42, opacity=1, clip=side.cut).encode(x=x, shape=marks["shape"]),
        data=side.data(names[:1]),
        width=width,
        height=max(60, len(names) * (len(look.labels) * (8 if len(names) < 16 else 6.5) + 8)),
    )


def agreement(rows: list[Row], margin: float) -> Draw:
    """Theirs over ours: a line for each quantity, a mark for each instrument."""
    side = _Measure.relative(rows, margin, "theirs / ours", near=False)

    def draw(layout: Layout) -> alt.TopLevelMixin:
        room = layout.labels * 2 if layout.columns > 1 else layout.labels + 20
        names = list(dict.fromkeys(row["panel"] for row in rows))
        tools = list(dict.fromkeys(row["instrument"] for row in rows))
        axis = alt.Axis(title=None, domain=False, ticks=False, labelLimit=room, labelColor=INK[0], labelFontSize=11.5)
        y = alt.Y("panel:N").scale(domain=names).axis(axis)
        x = side.channel(alt.X)
        shape = alt.Shape("instrument:N").scale(domain=tools).legend(**legend(tools, layout.width - room - 20))
        base = alt.Chart().transform_filter(_IS_ARM).encode(y=y)
        return styled(
            alt.layer(
                *side.around_one(alt.X),
                base.mark_rule(strokeWidth=1.8, clip=side.cuts_intervals, color=INK[0]).encode(
                    x=side.channel(alt.X, "low:Q"), x2="high:Q"
                ),
                base.mark_point(filled=True, size=55, opacity=1, color=INK[0]).encode(x=x, shape=shape),
                data=side.data(names[:1]),
                width=layout.width - room - 50,
                height=18 * len(names),
            )
        )

    return draw
