"""Charts that set arms side by side: absolute values on the left, ratios to native on the right; on phones below."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from virtoll.analysis.matrix import level_value, setting_name
from virtoll.record import Arm
from virtoll.report.drawing import Layout, Row, arm_scales, data, log_extent, log_ticks, positive, styled
from virtoll.report.findings import Findings
from virtoll.report.palette import BAND, INK, MUTED

Draw = Callable[[Layout], alt.TopLevelMixin]
# A logarithmic axis pays from this ratio of the largest to the smallest value on.
_LOG_ABSOLUTE, _LOG_RATIO = 10.0, 4.0


@dataclass(frozen=True)
class Comparison:
    """Rows (arm, panel, x, value, low, high) of absolute values and of ratios, and the former's axis title."""

    absolute: list[Row]
    relative: list[Row]
    title: str
    margin: float

    def only(self, panels: Collection[str]) -> Comparison:
        """The same with some of its panels."""
        some = ([row for row in rows if row["panel"] in panels] for rows in (self.absolute, self.relative))
        return replace(self, absolute=next(some), relative=next(some))


@dataclass(frozen=True)
class Sweep:
    """The setting along the horizontal axis, and its levels."""

    path: str
    levels: list[Any]

    def axis(self, width: int) -> alt.X:
        """Logarithmic where the levels span a decade and more; labelled at the levels, as many as there is room for."""
        log = min(self.levels) > 0 and max(self.levels) / min(self.levels) >= 10
        every = -(-len(self.levels) * 46 // width)
        shown = self.levels[::every]
        words = {str(level): level_value(self.path, level) for level in shown}
        axis = alt.Axis(
            title=setting_name(self.path),
            values=shown,
            labelExpr=f"{json.dumps(words, ensure_ascii=False)}[datum.value]",
            labelOverlap=False,
            labelFlush=False,
            grid=False,
        )
        scale = alt.Scale(type="log" if log else "linear", nice=False, zero=False, padding=10)
        return alt.X("x:Q").scale(scale).axis(axis)


@dataclass(frozen=True)
class _Measure:
    """One side of a comparison: its rows and the scale of their values."""

    rows: list[Row]
    title: str
    log: bool
    margin: float | None  # of a ratio: a band and a line at 1

    @classmethod
    def absolute(cls, look: Comparison) -> _Measure:
        return cls(look.absolute, look.title, _span(look.absolute) >= _LOG_ABSOLUTE, None)

    @classmethod
    def relative(cls, rows: list[Row], margin: float, title: str = "ratio to native") -> _Measure:
        with_one = [*rows, {"value": 1.0}]
        return cls(rows, title, _span(with_one) >= _LOG_RATIO, margin)

    @property
    def extent(self) -> list[float]:
        """Ends of the axis."""
        around = [] if self.margin is None else [{"value": 1.0, "low": 1 / (1 + self.margin), "high": 1 + self.margin}]
        rows = [*self.rows, *around]
        if self.log:
            return log_extent(rows)
        low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
        return [0.0, high * 1.06] if self.margin is None else [low - (high - low) * 0.08, high + (high - low) * 0.08]

    def scale(self) -> alt.Scale:
        """Of the values."""
        return alt.Scale(type="log" if self.log else "linear", domain=self.extent, nice=False, zero=False)

    def axis(self, **more: Any) -> alt.Axis:
        """Of the values, few round ticks."""
        ticks = log_ticks(*self.extent) if self.log else alt.Undefined
        return alt.Axis(title=self.title, values=ticks, format=",~r", tickCount=5, domain=False, ticks=False, **more)

    def around_one(self, channel: type[alt.X] | type[alt.Y]) -> list[alt.Chart]:
        """For a ratio: the band of the margin and the line at 1."""
        if self.margin is None:
            return []
        start, end = ("x", "x2") if channel is alt.X else ("y", "y2")
        band = {start: channel("from:Q").scale(self.scale()).axis(None), end: f"{end}:Q"}
        rows = [{"from": 1 / (1 + self.margin), end: 1 + self.margin, "value": 1.0}]
        line = {start: channel("value:Q").scale(self.scale()).axis(None)}
        return [
            alt.Chart(data(rows)).mark_rect(color=BAND[0]).encode(**band),
            alt.Chart(data(rows)).mark_rule(color=MUTED[0]).encode(**line),
        ]


def _span(rows: Sequence[Row]) -> float:
    values = [row["value"] for row in rows if row["value"] > 0]
    return max(values) / min(values) if values else 1.0


def lines(findings: Findings, arms: list[Arm], look: Comparison, sweep: Sweep) -> Draw:
    """Lines over a swept setting, a row of two charts for each panel."""
    panels = list(dict.fromkeys(row["panel"] for row in look.absolute))
    sides = (_Measure.absolute(look), _Measure.relative(look.relative, look.margin))

    def chart(side: _Measure, panel: str, width: int, layout: Layout) -> Any:
        rows = [row for row in side.rows if row["panel"] == panel]
        marks = arm_scales(findings, arms)
        x = sweep.axis(width)
        y = alt.Y("value:Q").scale(side.scale()).axis(side.axis())
        colour = marks["color"].legend(columns=2 if layout.columns == 1 else 4, symbolStrokeWidth=0)
        base = alt.Chart(data(positive(rows) if side.log else rows)).encode(color=colour)
        layers = alt.layer(
            *side.around_one(alt.Y),
            base.mark_line(strokeWidth=1.7).encode(x=x, y=y, strokeDash=marks["dash"].legend(None)),
            base.mark_rule(strokeWidth=1.6, clip=True).encode(x=x, y=alt.Y("low:Q").scale(side.scale()), y2="high:Q"),
            base.mark_point(filled=True, size=38, opacity=1).encode(x=x, y=y, shape=marks["shape"]),
        ).properties(width=width, height=190 if len(panels) < 3 else 140)
        return layers.properties(title=panel) if panel else layers

    def draw(layout: Layout) -> alt.TopLevelMixin:
        return styled(_rows_of(lambda side, panel, width: chart(side, panel, width, layout), sides, panels, layout))

    return draw


def _rows_of(
    chart: Callable[[_Measure, str, int], Any], sides: Sequence[_Measure], panels: Sequence[str], layout: Layout
) -> Any:
    """The two sides beside each other, a row for each panel; on a phone one below the other."""
    if layout.columns == 1:
        return alt.vconcat(*(chart(side, panel, layout.width - 80) for panel in panels for side in sides), spacing=18)
    rows = [alt.hconcat(*(chart(side, panel, layout.panel(2)) for side in sides), spacing=26) for panel in panels]
    return alt.vconcat(*rows, spacing=18)


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
    sides = (_Measure.absolute(shown), _Measure.relative(shown.relative, shown.margin))

    def draw(layout: Layout) -> alt.TopLevelMixin:
        room = min(layout.labels, 8 * max(len(row["panel"]) for row in shown.absolute) + 8)
        if layout.columns == 1:
            charts = [_dots(look, side, layout, layout.width - room - 40, room) for side in sides]
            return styled(alt.vconcat(*charts, spacing=18))
        width = (layout.width - room - 70) // 2
        first, second = (_dots(look, side, layout, width, room) for side in sides)
        return styled(alt.hconcat(first, second, spacing=20))

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
    seen = [label for label in look.labels if any(row["arm"] == label for row in side.rows)]
    marks = look.scales
    axis = alt.Axis(
        title=None, domain=False, ticks=False, labelLimit=room, labelColor=INK[0], labelFontSize=11.5, grid=False
    )
    y = alt.Y("panel:N").scale(domain=names, paddingInner=0.25).axis(axis)
    offset = alt.YOffset("arm:N").scale(domain=seen)
    x = alt.X("value:Q").scale(side.scale()).axis(side.axis())
    colour = marks["color"].legend(columns=2 if layout.columns == 1 else 4, symbolStrokeWidth=0)
    base = alt.Chart(data(positive(side.rows) if side.log else side.rows)).encode(y=y, yOffset=offset, color=colour)
    return alt.layer(
        *side.around_one(alt.X),
        base.mark_rule(strokeWidth=1.8, clip=True).encode(x=alt.X("low:Q").scale(side.scale()), x2="high:Q"),
        base.mark_point(filled=True, size=42, opacity=1).encode(x=x, shape=marks["shape"]),
    ).properties(width=width, height=max(60, len(names) * (len(seen) * 9 + 8)))


def agreement(rows: list[Row], margin: float) -> Draw:
    """Theirs over ours: a line for each quantity, a mark for each instrument."""
    side = _Measure.relative(rows, margin, "theirs / ours")

    def draw(layout: Layout) -> alt.TopLevelMixin:
        room = layout.labels * 2 if layout.columns > 1 else layout.labels + 20
        names = list(dict.fromkeys(row["panel"] for row in rows))
        tools = list(dict.fromkeys(row["instrument"] for row in rows))
        axis = alt.Axis(title=None, domain=False, ticks=False, labelLimit=room, labelColor=INK[0], labelFontSize=11.5)
        y = alt.Y("panel:N").scale(domain=names).axis(axis)
        x = alt.X("value:Q").scale(side.scale()).axis(side.axis())
        shape = alt.Shape("instrument:N").scale(domain=tools)
        base = alt.Chart(data(positive(rows) if side.log else rows)).encode(y=y)
        return styled(
            alt.layer(
                *side.around_one(alt.X),
                base.mark_rule(strokeWidth=1.8, clip=True, color=INK[0]).encode(
                    x=alt.X("low:Q").scale(side.scale()), x2="high:Q"
                ),
                base.mark_point(filled=True, size=55, opacity=1, color=INK[0]).encode(x=x, shape=shape),
            ).properties(width=layout.width - room - 50, height=18 * len(names))
        )

    return draw
