"""A cost that grows: its readings, the exponent b of cost ~ x^b with its interval, the verdict, and the plot."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt
import numpy as np

from virtoll.analysis.estimates import LEVEL, Estimate, t_quantile
from virtoll.report.drawing import Row, data, log_ticks, styled
from virtoll.report.palette import PAPER
from virtoll.report.render import specification, svg

# An exponent that is no more than this above its target reaches it: x^0.1 is 26 % a decade, less than which neither a
# fit over a decade nor a user can tell.
TOLERANCE = 0.1
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b2528c")
_SHAPES = ("circle", "diamond", "square", "triangle-up")
_WIDTHS, _HEIGHT = {1: 460, 2: 340, 3: 270}, 250  # pixels; of a panel, by how many stand side by side


@dataclass(frozen=True)
class Reading:
    """What it cost once, at one x."""

    x: float
    cost: float


@dataclass(frozen=True)
class Panel:
    """One quantity against x, of one or several who bear it. ``most``: the exponent that none of them is to exceed;
    None where there is no target.
    """

    cost: str  # with its unit: "CPU of a sample, ms"
    series: Mapping[str, Sequence[Reading]]
    most: float | None = None
    told: Sequence[str] = ()  # what a reader must know of it: a size that was not measured, and why


@dataclass(frozen=True)
class Growth:
    """Quantities that were measured against one x."""

    name: str  # of its plot: growth-NAME.svg
    title: str
    x: str  # with its unit: "instances watched"
    panels: Sequence[Panel] = field(default_factory=tuple)


def upper_half(readings: Iterable[Reading]) -> list[Reading]:
    """The readings at the upper half of the values of x, the middle one included: where what grows has its say."""
    listed = list(readings)
    values = sorted({reading.x for reading in listed})
    return [reading for reading in listed if reading.x >= values[len(values) // 2]] if len(values) > 2 else listed


def exponent(readings: Iterable[Reading]) -> Estimate:
    """b of cost ~ x^b: least squares on logarithms over `upper_half`, with the t interval of the slope.

    ValueError for fewer than two values of x, or a cost that is not positive. With two readings there is no interval.
    """
    used = upper_half(readings)
    if len({reading.x for reading in used}) < 2:
        raise ValueError("an exponent needs two values of x")
    if min(min(reading.x, reading.cost) for reading in used) <= 0:
        raise ValueError("an exponent needs positive values")
    x, cost = (column - column.mean() for column in np.log([(reading.x, reading.cost) for reading in used]).T)
    slope = float(x @ cost / (x @ x))
    low, high = None, None
    if len(used) > 2:
        residual = cost - slope * x
        error = float(np.sqrt(residual @ residual / (len(used) - 2) / (x @ x)))
        half = t_quantile((1 + LEVEL) / 2, len(used) - 2) * error
        low, high = slope - half, slope + half
    return Estimate(slope, low, high, LEVEL, "", len(used), "least squares on logarithms, upper half of x")


def verdict(found: Estimate, most: float) -> str:
    """Whether an exponent keeps to its target. One that may still do so by its interval is not known to miss it."""
    if found.value <= most + TOLERANCE:
        return "reached"
    return "MISSED" if found.low is not None and found.low > most else "CANNOT TELL"


def lines(growth: Growth) -> list[str]:
    """The figures in words: medians by x, exponents, verdicts."""
    told = [f"{growth.title}"]
    for panel in growth.panels:
        told.append(f"  {panel.cost}")
        xs = sorted({reading.x for readings in panel.series.values() for reading in readings})
        width = max(len(growth.x), *map(len, panel.series)) + 2
        told.append(f"    {growth.x:{width}}" + "".join(f"{_short(x):>9}" for x in xs))
        for name, readings in panel.series.items():
            medians = dict(_medians(readings))
            row = "".join(f"{_short(medians[x]) if x in medians else '-':>9}" for x in xs)
            told.append(f"    {name:{width}}{row}   {_exponent_text(panel, name)}")
        told += [f"    {line}" for line in panel.told]
    return told


def reached(growth: Growth) -> bool:
    """Whether all of its targets are."""
    return all(_verdict(panel, name) in ("", "reached") for panel in growth.panels for name in panel.series)


def as_json(growth: Growth) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "name": growth.name,
        "x": growth.x,
        "panels": [
            {
                "cost": panel.cost,
                "series": {
                    name: {
                        "readings": [[reading.x, reading.cost] for reading in readings],
                        "exponent": [found.value, found.low, found.high] if (found := _tried(readings)) else None,
                        "verdict": _verdict(panel, name),
                    }
                    for name, readings in panel.series.items()
                },
                "told": list(panel.told),
            }
            for panel in growth.panels
        ],
    }


def _tried(readings: Sequence[Reading]) -> Estimate | None:
    """The exponent; None where there are too few sizes for one."""
    return exponent(readings) if len({reading.x for reading in readings}) > 1 else None


def _verdict(panel: Panel, name: str) -> str:
    """ "" where there is no target."""
    if panel.most is None:
        return ""
    found = _tried(panel.series[name])
    return verdict(found, panel.most) if found else "CANNOT TELL"


def _exponent_text(panel: Panel, name: str) -> str:
    found = _tried(panel.series[name])
    if found is None:
        return "one size alone has no exponent"
    target = f", target <= {panel.most:g}: " if _verdict(panel, name) else ""
    return f"b = {_with_interval(found)}{target}{_verdict(panel, name)}"


def _with_interval(found: Estimate) -> str:
    interval = "" if found.low is None or found.high is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.value:.2f}{interval}"


def _medians(readings: Iterable[Reading]) -> list[tuple[float, float]]:
    by_x: dict[float, list[float]] = {}
    for reading in readings:
        by_x.setdefault(reading.x, []).append(reading.cost)
    return [(x, statistics.median(costs)) for x, costs in sorted(by_x.items())]


def _short(value: float) -> str:
    for bound, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= bound:
            return f"{value / (1e3 if letter == 'k' else bound):.3g}{letter}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


# -- drawn ------------------------------------------------------------------------------------------------------


def drawn(growth: Growth) -> str:
    """Its plot as SVG, on white: readings as marks, medians joined, the fitted line over the upper half dashed."""
    width = _WIDTHS[len(growth.panels)]
    charts = [_panel(growth, panel, width) for panel in growth.panels]
    chart = styled(alt.hconcat(*charts, spacing=36).resolve_scale(color="independent", shape="independent"))
    text = svg(specification(chart))
    return re.sub(r"(<svg[^>]*>)", rf'\1<rect width="100%" height="100%" fill="{PAPER[0]}"/>', text, count=1)


def _panel(growth: Growth, panel: Panel, width: int) -> Any:
    names = {name: _label(panel, name) for name in panel.series}
    rows = [row for name, readings in panel.series.items() for row in _rows(names[name], readings)]
    x, y = _axis("x", growth.x, rows, "~s"), _axis("y", panel.cost, rows, ",~r")
    labels = list(names.values())
    key: dict[str, Any] = {"columns": 1, "labelLimit": width, "symbolOpacity": 1}
    colour = alt.Color("name:N").scale(domain=labels, range=list(_COLOURS[: len(labels)])).legend(**key)
    shape = alt.Shape("name:N").scale(domain=labels, range=list(_SHAPES[: len(labels)])).legend(**key)
    base = alt.Chart().encode(x=x, y=y, color=colour)
    return alt.layer(
        base.transform_filter("datum.what == 'reading'")
        .mark_point(filled=True, size=34, opacity=0.55)
        .encode(shape=shape),
        base.transform_filter("datum.what == 'median'").mark_line(strokeWidth=1.6),
        base.transform_filter("datum.what == 'fit'").mark_line(strokeWidth=1.2, strokeDash=[5, 3]),
        data=data(rows),
    ).properties(width=width, height=_HEIGHT)


def _label(panel: Panel, name: str) -> str:
    found = _tried(panel.series[name])
    return name if found is None else f"{name}: exponent {_with_interval(found)}"


def _rows(label: str, readings: Sequence[Reading]) -> list[Row]:
    rows = [{"name": label, "what": "reading", "x": reading.x, "y": reading.cost} for reading in readings]
    rows += [{"name": label, "what": "median", "x": x, "y": median} for x, median in _medians(readings)]
    return rows + [{"name": label, "what": "fit", "x": x, "y": y} for x, y in _fitted(readings)]


def _fitted(readings: Sequence[Reading]) -> list[tuple[float, float]]:
    """The ends of the fitted line."""
    found = _tried(readings)
    if found is None:
        return []
    used = upper_half(readings)
    log_x, log_cost = (float(np.mean(np.log(column))) for column in zip(*((r.x, r.cost) for r in used), strict=True))
    ends = (min(reading.x for reading in used), max(reading.x for reading in used))
    return [(x, float(np.exp(log_cost + found.value * (np.log(x) - log_x)))) for x in ends]


def _axis(channel: str, title: str, rows: Sequence[Row], form: str) -> Any:
    values = [row[channel] for row in rows]
    extent = [min(values) / 1.25, max(values) * 1.25]
    ends = extent if extent[1] / extent[0] > 3 else [extent[0] / 1.7, extent[1] * 1.7]
    encoding = alt.X(f"{channel}:Q") if channel == "x" else alt.Y(f"{channel}:Q")
    return encoding.scale(type="log", domain=ends, nice=False).axis(
        title=title, values=log_ticks(*ends), format=form, domain=False
    )
