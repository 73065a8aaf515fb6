"""How a victim fares around the two steps, when its neighbour begins to misbehave and when it ends."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import altair as alt
import numpy as np

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Floats
from virtoll.analysis.isolation import Exposure, Isolation, is_polite
from virtoll.analysis.victim import BIN_NS
from virtoll.record.model import Arm
from virtoll.report.drawing import Figure, Layout, Row, arm_scales, data, legend, log_ticks, styled, wrapped
from virtoll.report.findings import Findings
from virtoll.report.isolation import harms, heads, recovery_words, settled_words, too_few
from virtoll.report.numbers import MISSING, interval
from virtoll.report.palette import BAND, MUTED
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table


class CourseOfTime(Section):
    """Bins of 100 ms, and what they say in one number."""

    name: ClassVar[str] = "course"
    summary: ClassVar[str] = "How does the victim fare around the steps?"
    rank: ClassVar[int] = 320

    def applies(self, findings: Findings) -> bool:
        """With neighbours of a service: a probe sees no before."""
        return findings.is_isolation and not findings.is_programme

    def figures(self, findings: Findings) -> list[Figure]:
        """Latency, then goodput."""
        return [figure for what in ("p99_ms", "share") if (figure := _course(findings, what)) is not None]

    def tables(self, findings: Findings) -> list[Table]:
        """Recovery, and transients."""
        told, work = findings.isolation, findings.requests
        made = (recovery(told, work), transients(told))
        return [table.placed("course-latency", look="probes", folded=True) for table in made if table is not None]


_WHAT = {
    "p99_ms": ("course-latency", "How does the victim fare around the steps?", "p99 [ms]"),
    "share": ("course-goodput", "And how many {work} are answered?", "answered"),
}


_CAPTIONS = {
    "p99_ms": "The 99th percentile of 100 ms bins (of few {work} it is the longest), geometric means over blocks on "
    "a logarithmic scale. It is that of the answered {work} alone, over the blocks in which any was answered: a gap is "
    "a time without an answer in any block.",
    "share": "The share of each 100 ms bin's {work} that was answered correctly, by intended start; means over blocks.",
}


def _course(findings: Findings, quantity: str) -> Figure | None:
    """Small multiples arm x neighbour: bins of 100 ms, a mean over blocks; narrow, the arms of a neighbour together."""
    told = findings.isolation
    rows = [
        row
        for condition in told.conditions
        for arm in told.arms
        for row in _course_rows(told, arm, condition, quantity)
    ]
    if not rows:
        return None
    spans = [row for row in rows if row["what"] == "span"]
    name, question, title = _WHAT[quantity]
    known = [row["value"] for row in rows if row["what"] != "span"]
    extent = [min(known) / 1.2, max(known) * 1.2] if quantity == "p99_ms" else [0.0, 1.05]
    arms = [arm for arm in told.arms if any(row["arm"] == arm.label for row in spans)]
    names = [n for c in told.conditions if any(row["neighbour"] == (n := told.name(c)) for row in spans)]

    def draw(layout: Layout) -> alt.TopLevelMixin:
        return styled(_grid(layout) if layout.columns > 1 else _column(layout))

    def scales() -> tuple[alt.X, alt.Y]:
        x = alt.X("x:Q").scale(nice=False).axis(title=None, tickCount=3, grid=False)
        log = quantity == "p99_ms"
        scale = alt.Scale(type="log" if log else "linear", domain=extent, nice=False)
        ticks = _few(log_ticks(*extent)) if log else [0, 0.5, 1]
        form = ",~r" if log else "%"
        y = alt.Y("value:Q").scale(scale).axis(title=title, values=ticks, format=form, domain=False, titleFontSize=9.5)
        return x, y

    def layers(shown: list[Row], colour: Any, width: int, height: int) -> Any:
        x, y = scales()
        base = alt.Chart()
        shade = base.transform_filter("datum.what == 'span'")
        course = base.transform_filter("datum.what == 'course'").mark_line(strokeWidth=1.3)
        polite = base.transform_filter("datum.what == 'polite'").mark_line(strokeWidth=1, color=MUTED[0], opacity=0.65)
        return alt.layer(
            shade.mark_rect(color=BAND[0], clip=True).encode(x=x, x2="end:Q"),
            polite.encode(x=x, y=y, detail="part:N"),
            course.encode(x=x, y=y, color=colour, detail="part:N"),
            data=data(shown),
            width=width,
            height=height,
        )

    def _grid(layout: Layout) -> Any:
        there = {(row["arm"], row["neighbour"]) for row in spans}
        absent = [(arm.label, name) for arm in arms for name in names if (arm.label, name) not in there]
        # A grid with a hole would move up what comes after it.
        holes = [{**rows[0], "arm": label, "neighbour": name, "what": "hole"} for label, name in absent]
        shown = [*rows, *holes]
        width = (layout.width - 150) // len(names) - 12
        colour = arm_scales(findings, arms)["color"].legend(None)
        head = alt.Header(
            labelAngle=0, labelAlign="left", labelAnchor="middle", labelFontSize=10.5, labelLimit=110,
            labelExpr=wrapped([arm.label for arm in arms], 110),
        )  # fmt: skip
        across = alt.Header(labelFontSize=11, labelAnchor="start")
        column = alt.Column("neighbour:N").sort(names).header(across)
        row = alt.Row("arm:N").sort([arm.label for arm in arms]).header(head)
        return (
            layers(shown, colour, width, 58).facet(row=row, column=column).properties(spacing={"row": 10, "column": 12})
        )

    def _column(layout: Layout) -> Any:
        shown = [row for row in rows if row["what"] != "polite"]
        key = legend([arm.label for arm in arms], layout.width - 50, symbolType="stroke")
        colour = arm_scales(findings, arms)["color"].legend(**key)
        facet = alt.Facet("neighbour:N").sort(names)
        return layers(shown, colour, layout.width - 70, 90).facet(facet=facet, columns=1)

    caption = (
        f"{_CAPTIONS[quantity].format(work=findings.requests)} Seconds since the neighbour began to misbehave; shaded: "
        "while it was at work. Thin grey line, where there is room for it: the same arm beside the polite neighbour."
    )
    return Figure(name, question.format(work=findings.requests), caption, draw)


def _course_rows(told: Isolation, arm: Arm, condition: Condition, quantity: str) -> list[Row]:
    """The bins of one arm beside one neighbour, those beside the polite one for comparison, and the shaded span."""
    mine = _mean_course(told, arm, condition, quantity)
    if not mine:
        return []
    head = {"arm": arm.label, "neighbour": told.name(condition)}
    rows = [{**head, "what": "course", **at} for at in mine]
    control = next((c for c in told.conditions if is_polite(c) and _rest(c) == _rest(condition)), None)
    if control is not None and control != condition:
        polite = _mean_course(told, arm, control, quantity)
        rows += [{**head, "what": "polite", **at} for at in polite]
    return [
        *rows,
        {**head, "what": "span", "part": 0, "x": 0.0, "end": _duration_s(told, arm, condition), "value": 0.0},
    ]


def _rest(condition: Condition) -> tuple[tuple[str, Any], ...]:
    return tuple(level for level in condition.levels if level[0] != "neighbour.aggressor")


def _mean_course(told: Isolation, arm: Arm, condition: Condition, quantity: str) -> list[Row]:
    """A row a bin, the mean over blocks; a bin without a value ends a part of the line."""
    cells = [told.matrix.cell(block, arm, condition) for block in told.matrix.blocks]
    courses = [cell.timeline for cell in cells if cell is not None and cell.timeline is not None]
    found: dict[int, list[float]] = {}
    for course in courses:
        values: Floats = getattr(course, quantity)
        for at_s, value in zip(course.at_s, values, strict=True):
            if np.isfinite(value):
                found.setdefault(round(at_s * 1e9 / BIN_NS), []).append(float(value))
    rows, part, last = [], 0, None
    for index in sorted(found):
        part += last is not None and index > last + 1
        last = index
        mean, at_s = _mean(found[index], geometric=quantity == "p99_ms"), index * BIN_NS / 1e9
        rows.append({"part": part, "x": at_s, "end": at_s, "value": float(f"{mean:.3g}")})
    return rows


def _mean(values: list[float], *, geometric: bool) -> float:
    return float(np.exp(np.mean(np.log(values)))) if geometric else float(np.mean(values))


def _duration_s(told: Isolation, arm: Arm, condition: Condition) -> float:
    cells = [told.matrix.cell(block, arm, condition) for block in told.matrix.blocks]
    records = [cell.record.neighbour for cell in cells if cell is not None]
    spans = [(r.end_ns - r.start_ns) / 1e9 for r in records if r is not None and r.start_ns and r.end_ns]
    return round(float(np.mean(spans)), 3) if spans else 0.0


def recovery(told: Isolation, work: str) -> Table | None:
    """How long each victim took to be well again; None of a probe, which sees no after."""
    if "recovery_s" not in told.matrix.metrics:
        return None
    rows = []
    for condition in told.conditions:
        exposures = [told.exposure(arm, condition) for arm in told.arms]
        cells = []
        for exposure in exposures:
            words = recovery_words(told, exposure)
            late = words.startswith("more")
            cells.append(
                Cell(words or MISSING, "costs" if late else "" if words else "missing", _why(exposure, words, work))
            )
        rows.append((Cell(told.name(condition)), *cells))
    notes = (
        "From the aggressor's end until goodput and the 99th percentile of 100 ms bins lie, for 500 ms, in the band of "
        "the bins before it began (three standard deviations to the worse side of their mean). Median, and in brackets "
        "the range, over deployments; more than: not within the window. The polite neighbour's row is what chance "
        "alone makes of it.",
    )
    return Table("recovery", "Recovery time after the neighbour's end", heads(told), tuple(rows), notes)


def _why(exposure: Exposure, words: str, work: str) -> str:
    if words:
        return ""
    return "; ".join(harms(exposure)) or exposure.missing or too_few(work)


def transients(told: Isolation) -> Table | None:
    """Overshoot and settling time at both steps; None of a probe."""
    if "overshoot" not in told.matrix.metrics:
        return None
    rows = []
    for condition in told.conditions:
        cells = []
        for arm in told.arms:
            start, end = (told.peak(name, arm, condition) for name in ("overshoot", "rebound"))
            settling = settled_words(told.settled("settling", arm, condition))
            parts = [
                f"settled after {settling}" if settling else "",
                f"peak after the end × {interval(end)}" if end is not None else "",
            ]
            detail = "; ".join(part for part in parts if part)
            cells.append(Cell(MISSING if start is None else f"× {interval(start)}", "" if start else "missing", detail))
        rows.append((Cell(told.name(condition)), *cells))
    notes = (
        "Above: overshoot, the longest 99th percentile of a 100 ms bin after the start over the level that it settles "
        "to (the median of the second half of the neighbour's time). Settled: bins stay for 500 ms in the band of that "
        "second half. Peak after the end: the longest bin after it over the median before the start. A largest of many "
        "bins lies above their median by chance alone: compare with the polite row.",
    )
    return Table(
        "transients", "Overshoot and settling at the neighbour's start and end", heads(told), tuple(rows), notes
    )


def _few(ticks: list[float]) -> list[float]:
    """Powers of ten, where there are two of them."""
    tens = [tick for tick in ticks if round(math.log10(tick), 9).is_integer()]
    return tens if len(tens) > 1 else ticks
