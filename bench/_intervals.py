"""The figure of `bench.designs`: how an interval narrows with the time that it was given."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from virtoll.analysis.estimates import summarise
from virtoll.report.drawing import Row, data, log_ticks, styled
from virtoll.report.palette import PAPER
from virtoll.report.render import specification, svg

_COLOURS = {"blocks": "#d55e00", "rotation": "#0072b2"}
_LEAST_BLOCKS = 3  # of two blocks an interval is as wide as chance has it
_WIDTH, _HEIGHT = 300, 230


def narrowing(logs: Sequence[float], seconds: Sequence[float]) -> list[tuple[float, float]]:
    """After each block from the third on: the seconds spent until then, and the 95 % interval's half-width in per cent.

    ``logs``: a block's log ratio to native each, nan where there is none; ``seconds``: what each block took.
    """
    found = []
    for count in range(_LEAST_BLOCKS, len(logs) + 1):
        known = np.array([log for log in logs[:count] if math.isfinite(log)])
        if len(known) >= _LEAST_BLOCKS:
            found.append((sum(seconds[:count]), math.expm1(summarise(known).half_width()) * 100))
    return found


def drawn(panels: Mapping[str, Mapping[tuple[str, str], list[tuple[float, float]]]]) -> str:
    """As SVG, on white: a panel a metric, and in it a line for each (design, arm)."""
    charts = [_panel(title, lines) for title, lines in panels.items()]
    text = svg(specification(styled(alt.hconcat(*charts, spacing=36))))
    return re.sub(r"(<svg[^>]*>)", rf'\1<rect width="100%" height="100%" fill="{PAPER[0]}"/>', text, count=1)


def _panel(title: str, lines: Mapping[tuple[str, str], list[tuple[float, float]]]) -> Any:
    rows: list[Row] = [
        {"design": design, "arm": arm, "x": x, "y": y} for (design, arm), points in lines.items() for x, y in points
    ]
    x = _axis(alt.X("x:Q"), "seconds of measuring", [row["x"] for row in rows])
    y = _axis(alt.Y("y:Q"), "half-width of the 95 % interval, %", [row["y"] for row in rows])
    colour = alt.Color("design:N").scale(domain=list(_COLOURS), range=list(_COLOURS.values()))
    base = alt.Chart(data(rows), title=title).encode(x=x, y=y, color=colour, detail="arm:N")
    return alt.layer(base.mark_line(strokeWidth=1.6), base.mark_point(filled=True, size=24)).properties(
        width=_WIDTH, height=_HEIGHT
    )


def _axis(encoding: Any, title: str, values: Sequence[float]) -> Any:
    ends = [min(values) / 1.2, max(values) * 1.2]
    return encoding.scale(type="log", domain=ends, nice=False).axis(
        title=title, values=log_ticks(*ends), format="~r", domain=False
    )
