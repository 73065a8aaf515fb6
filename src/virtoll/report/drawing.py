"""What all figures share: room, look, scales, and the charts of dots and of distributions."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import altair as alt
import numpy as np

from virtoll.analysis.cdf import Curve
from virtoll.analysis.estimates import Estimate
from virtoll.record.model import Arm
from virtoll.report.findings import Findings
from virtoll.report.palette import INK, MUTED, RULE, styles
from virtoll.report.pooled import Pooled

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
# Pixels a character of 12 takes: in the font that figures are laid out with, and in the widest that a reader without it
# may see instead (DejaVu Sans).
_CHARACTER, _WIDEST = 6.0, 7.3
# Of what fills a band: `opacity` of the mark itself has each band rendered as a picture of its own, which takes long.
BAND_OPACITY = 0.18
Row = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """How much room a figure has: its whole width in pixels and how many panels go side by side."""

    width: int
    columns: int
    labels: int  # room for the arms' names

    def panel(self, columns: int | None = None) -> int:
        """Width of one panel's plotting area, beside its axis."""
        count = self.columns if columns is None else columns
        return (self.width - 40) // count - 52


@dataclass(frozen=True)
class Figure:
    """A figure and its words. ``draw`` makes it for a layout."""

    name: str
    question: str
    caption: str
    draw: Callable[[Layout], alt.TopLevelMixin]


EMPTY: dict[str, Any] = {"$schema": alt.SCHEMA_URL, "data": {"values": []}, "mark": "point"}  # in Vega-Lite
WIDE = Layout(760, 3, 148)
NARROW = Layout(350, 1, 118)


def styled(chart: Any) -> alt.TopLevelMixin:
    """The look: no frame, quiet grid, the same type everywhere."""
    axis = {
        "labelColor": MUTED[0],
        "titleColor": MUTED[0],
        "gridColor": RULE[0],
        "domainColor": RULE[0],
        "tickColor": RULE[0],
        "labelFontSize": 11,
        "titleFontSize": 11.5,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelPadding": 5,
    }
    chart.config = alt.Config(  # in its place: `configure` would make the whole chart anew
        font=FONT,
        aria=False,  # the page describes each figure as a whole, not each of its thousands of marks
        background="transparent",
        padding=4,
        view={"stroke": None},
        axis=axis,
        header={
            "title": None,
            "labelColor": INK[0],
            "labelFontSize": 12,
            "labelFontWeight": "bold",
            "labelPadding": 6,
            "labelAnchor": "start",
        },
        title={"color": INK[0], "fontSize": 12, "fontWeight": "bold", "anchor": "start", "offset": 8},
        legend={
            "title": None,
            "labelColor": INK[0],
            "labelFontSize": 11.5,
            "orient": "top",
            "symbolSize": 70,
            "symbolStrokeWidth": 2,
        },
    )
    return cast(alt.TopLevelMixin, chart)


def data(rows: Iterable[Row]) -> alt.Data:
    """Rows as inline data: CSV in one string, which Altair need not walk through."""
    listed = list(rows)
    first = listed[0] if listed else {}
    out = io.StringIO()
    writer = csv.DictWriter(out, list(first), lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    parse = {name: "string" if isinstance(value, str) else "number" for name, value in first.items()}
    return alt.Data(values=out.getvalue(), format=alt.CsvDataFormat(type="csv", parse=parse))  # type: ignore[no-untyped-call]


def arm_scales(findings: Findings, arms: list[Arm]) -> dict[str, Any]:
    """Colour, shape and dash by arm, with one legend."""
    look, labels = styles(findings.matrix.arms), [arm.label for arm in arms]
    return {
        "color": alt.Color("arm:N").scale(domain=labels, range=[look[label].light for label in labels]),
        "shape": alt.Shape("arm:N").scale(domain=labels, range=[look[label].shape for label in labels]),
        "dash": alt.StrokeDash("arm:N").scale(domain=labels, range=[list(look[label].dash) for label in labels]),
    }


def legend(names: Sequence[str], room: int, **look: Any) -> dict[str, Any]:
    """A legend of as many columns as fit ``room`` pixels; no name is cut, none reaches the next mark in any font."""
    spread = 12 + round(max(map(len, names), default=0) * (_WIDEST - _CHARACTER))

    def width(columns: int) -> float:
        longest = [max(len(name) for name in names[at::columns]) for at in range(columns)]
        return sum(20 + _CHARACTER * length + spread for length in longest)

    columns = next((count for count in range(min(4, len(names)), 1, -1) if width(count) <= room), 1)
    return {"columns": columns, "columnPadding": spread, "labelLimit": room, **look}


def wrapped(names: Sequence[str], room: int) -> str:
    """A label expression that breaks long names into lines of at most ``room`` pixels."""
    width = max(8, int(room / _WIDEST))
    return f"{json.dumps({name: textwrap.wrap(name, width) for name in names}, ensure_ascii=False)}[datum.value]"


def bounds(estimate: Estimate) -> Row:
    """An estimate as columns value, low, high; without an interval all three are the value."""
    low = estimate.value if estimate.low is None else estimate.low
    high = estimate.value if estimate.high is None else estimate.high
    return {"value": estimate.value, "low": low, "high": high}


# Of a logarithmic axis's ticks within a decade, from coarse to fine: of the last no two are further apart than 1.25.
_STEPS = ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9))


def log_ticks(low: float, high: float) -> list[float]:
    """Few round ticks for a logarithmic axis: powers of ten where it is long, and where it is short as many as it takes
    to have two. An axis from `log_extent` has.
    """
    for steps in _STEPS if high / low >= 200 else _STEPS[1:]:
        ticks = [step * 10.0**power for power in range(-6, 10) for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) > 1:
            break
    return ticks


def log_extent(rows: list[Row]) -> list[float]:
    """Ends of a logarithmic axis: the values, and of their intervals no more than a factor of three beyond."""
    least, most = min(row["value"] for row in rows), max(row["value"] for row in rows)
    low = max(least / 3, min((row["low"] for row in rows if row["low"] > 0), default=least))
    high = min(most * 3, max(row["high"] for row in rows))
    return [min(low, least) / 1.25, max(high, most) * 1.25]


def positive(rows: list[Row]) -> list[Row]:
    """The rows for a logarithmic axis: an interval that reaches zero or below ends beyond the axis instead."""
    return [{**row, "low": row["low"] if row["low"] > 0 else row["value"] / 1e3} for row in rows]


def value_scale(rows: list[Row], *, log: bool) -> tuple[alt.Scale, Any]:
    """The scale of the rows' values, logarithmic or from 0, and where its ticks are."""
    if not log:
        return alt.Scale(zero=True, nice=True), alt.Undefined
    extent = log_extent(rows)
    return alt.Scale(type="log", nice=False, domain=extent), log_ticks(*extent)


def percent_of(ratio: float, digits: int = 0) -> str:
    """A ratio as a share: 0.86 is ``86 %``. ``digits``: decimals at the least."""
    return f"{ratio * 100:.{max(digits, int(ratio < 0.1))}f} %"


def arm_lines(names: list[str], layout: Layout, *, grid: bool, least_width: int) -> alt.Y:
    """The vertical axis of figures that give each arm a line."""
    words = wrapped(names, layout.labels)
    centred = [{"test": f"length({words}) == {lines}", "value": -7 * (lines - 1)} for lines in (2, 3)]
    axis = alt.Axis(
        title=None,
        domain=False,
        ticks=False,
        labelFontSize=12,
        labelLineHeight=14,
        labelColor=INK[0],
        labelLimit=layout.labels,
        labelExpr=words,
        labelOffset={"condition": centred, "value": 0},
        minExtent=least_width,
        grid=grid,
    )
    return alt.Y("arm:N").scale(domain=names).axis(axis)


def dots(
    findings: Findings, arms: list[Arm], rows: list[Row], title: str, *, log: bool
) -> Callable[[Layout], alt.TopLevelMixin]:
    """Horizontal dots with intervals, an arm a line; what is seen from inside is a ring."""
    rows = positive(rows) if log else rows

    def draw(layout: Layout) -> alt.TopLevelMixin:
        look = arm_scales(findings, arms)
        titles = list(dict.fromkeys(row["panel"] for row in rows))
        columns = min(2 if layout.columns > 1 else 1, len(titles))
        width = (layout.width - layout.labels - 36 * columns) // columns if columns == 1 else 245
        scale, ticks = value_scale(rows, log=log)
        axis = alt.Axis(title=title, values=ticks, tickCount=5, format=",~r", domain=False)
        names = [arm.label for arm in arms if any(row["arm"] == arm.label for row in rows)]
        y = arm_lines(names, layout, grid=True, least_width=layout.labels if columns == 1 else 0)
        base = alt.Chart().encode(y=y, color=look["color"].legend(None))
        outside, inside = "datum.seen == 'outside'", "datum.seen == 'inside'"
        x = alt.X("value:Q").scale(scale).axis(axis)
        shape = look["shape"].legend(None)
        layers = alt.layer(
            base.mark_rule(strokeWidth=2, clip=True)
            .encode(x=alt.X("low:Q").scale(scale), x2="high:Q")
            .transform_filter(outside),
            base.mark_point(filled=True, size=65, opacity=1).encode(x=x, shape=shape).transform_filter(outside),
            base.mark_point(filled=False, size=150, strokeWidth=1.5).encode(x=x, shape=shape).transform_filter(inside),
            data=data(rows),
            width=width,
            height=26 * len(names),
        )
        if len(titles) == 1:
            return styled(layers)
        return styled(layers.facet(facet=alt.Facet("panel:N").sort(titles), columns=columns))

    return draw


def curve_rows(curve: Curve, panel: str, unit_ms: float = 1.0) -> list[Row]:
    """A distribution as rows, no finer than can be seen; ``unit_ms``: the axis's unit in milliseconds."""
    shown = zip(
        _digits(curve.latency_ms / unit_ms, 4),
        *(_digits(values, 3) for values in (curve.share, curve.low, curve.high)),
        strict=True,
    )
    return [
        {"arm": curve.arm.label, "panel": panel, "x": x, "share": share, "low": low, "high": high}
        for x, share, low, high in shown
    ]


def _digits(values: Any, digits: int) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in np.asarray(values)]


def _ticks(rows: list[Row]) -> list[float]:
    """For the logarithmic axes of all panels, each of which has its own extent."""
    panels: dict[str, list[float]] = {}
    for row in rows:
        if row["x"] > 0:
            panels.setdefault(row["panel"], []).append(row["x"])
    return sorted({tick for values in panels.values() for tick in log_ticks(min(values), max(values))})


def shares(
    findings: Findings, arms: list[Arm], rows: list[Row], x_title: str, y_title: str
) -> Callable[[Layout], alt.TopLevelMixin]:
    """Cumulative distributions, a line and a band for each arm, in panels."""

    def draw(layout: Layout) -> alt.TopLevelMixin:
        look = arm_scales(findings, arms)
        titles = list(dict.fromkeys(row["panel"] for row in rows))
        columns = min(2 if layout.columns > 1 else 1, len(titles))
        x = alt.X("x:Q").scale(type="log", nice=False).axis(title=x_title, format="~g", values=_ticks(rows))
        y = alt.Y("share:Q").scale(domain=[0, 1]).axis(title=y_title, format="%", tickCount=4, domain=False)
        base = alt.Chart().encode(x=x)
        key = legend([arm.label for arm in arms], layout.width - 70, symbolOpacity=1, symbolType="stroke")
        colour = look["color"].legend(**key)
        layers = alt.layer(
            base.mark_area(fillOpacity=BAND_OPACITY).encode(
                y=alt.Y("low:Q").scale(domain=[0, 1]), y2="high:Q", color=colour
            ),
            base.mark_line(strokeWidth=1.8).encode(y=y, color=colour, strokeDash=look["dash"]),
            data=data(rows),
            width=layout.panel(columns),
            height=200,
        )
        if len(titles) == 1:
            return styled(layers)
        facet = layers.facet(facet=alt.Facet("panel:N").sort(titles), columns=columns)
        return styled(facet.resolve_scale(x="independent"))

    return draw


def pooled_rows(pooled: Pooled, arms: list[Arm], metrics: tuple[tuple[str, str], ...]) -> list[Row]:
    """Rows for `dots` of metrics that hardly depend on the condition; of each, whence it is seen."""
    rows: list[Row] = []
    for arm in arms:
        for metric, seen in metrics:
            estimate = pooled.mean(metric, arm)
            if estimate is not None and estimate.value > 0:
                rows.append({"arm": arm.label, "panel": "", "seen": seen, **bounds(estimate)})
    return rows
