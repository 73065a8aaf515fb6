"""The figures of a study of neighbours: the matrix as a heat map, and the victims' course around the two steps."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from virtoll.analysis.estimates import Floats
from virtoll.analysis.isolation import HARMS, REFUSED, Exposure, Isolation, is_polite
from virtoll.analysis.matrix import Condition
from virtoll.analysis.victim import BIN_NS
from virtoll.record.model import Arm
from virtoll.report.drawing import Figure, Layout, Row, arm_scales, data, legend, log_ticks, styled, wrapped
from virtoll.report.findings import Findings
from virtoll.report.isolation import lines, short, whole
from virtoll.report.palette import BAND, BETTER, INK, MUTED, PAPER, WORSE

_HARM, _NOTHING = "harm", "nothing"
_NO_TEXT = "\u00a0"  # an empty field would be read as null
_LINE = 13  # height of a line of a cell's text
_NARROW_WORDS = {
    "did not answer": ["no", "answer"],
    "victim died": ["victim", "died"],
    "host harmed": ["host", "harmed"],
    "could not start": ["could not", "start"],
    "not measured": ["not", "measured"],
    "too few answers": ["too few", "answers"],
}
_STRONG = f"datum.step == '{WORSE[-1][0]}' || datum.step == '{_HARM}'"
_SHARING = "; the polite row against before the neighbour began: what sharing alone costs"


def isolation_figures(findings: Findings) -> list[Figure]:
    """The figures this run of a study of neighbours has data for."""
    made = [_heat_map(findings), _course(findings, "p99_ms"), _course(findings, "share")]
    return [figure for figure in made if figure is not None]


# -- the matrix ------------------------------------------------------------------------------------------


def _heat_map(findings: Findings) -> Figure | None:
    told = findings.isolation
    arms = [arm for arm in told.arms if any(told.exposure(arm, c).n for c in told.conditions)]
    rows = [
        _cell(told, told.exposure(arm, condition))
        for condition in told.conditions
        if not (is_polite(condition) and told.shown[0].probe)
        for arm in arms
    ]
    if not rows:
        return None
    names = list(dict.fromkeys(row["neighbour"] for row in rows))
    labels = [arm.label for arm in arms]
    fills = {"same": BAND, "better": BETTER, **{str(s): pair for s, pair in WORSE}, _HARM: INK, _NOTHING: PAPER}

    def draw(layout: Layout) -> alt.TopLevelMixin:
        narrow = layout.columns == 1
        room = min(layout.labels - 20, 7 * max(len(name) for name in names)) if narrow else layout.labels + 20
        size = 10.5 if narrow else 11.5
        plain: dict[str, Any] = {
            "title": None,
            "domain": False,
            "ticks": False,
            "labelColor": INK[0],
            "labelFontSize": size,
        }
        axis = alt.Axis(**plain, labelLimit=room, minExtent=room, labelExpr=wrapped(names, room))
        lines = alt.Undefined if narrow else "split(datum.value, /(?=[+(])/)"
        top = alt.Axis(
            **plain, orient="top", labelAngle=-60 if narrow else 0, labelPadding=4 if narrow else 20, labelExpr=lines
        )
        y = alt.Y("neighbour:N").scale(domain=names, paddingInner=0.05).axis(axis)
        x = alt.X("arm:N").scale(domain=labels, paddingInner=0.03).axis(top)
        fill = alt.Color("step:N").scale(domain=list(fills), range=[pair[0] for pair in fills.values()]).legend(None)
        base = alt.Chart(data(rows)).encode(x=x, y=y)
        texts = [
            base.mark_text(fontSize=9 if narrow else 11, dy=dy)
            .encode(text=f"{place}{'_narrow' if narrow else ''}:N", color=alt.value(ink))
            .transform_filter(which)
            for place, dy in (("only", 0), ("above", -_LINE / 2), ("below", _LINE / 2))
            for ink, which in ((PAPER[0], _STRONG), (INK[0], f"!({_STRONG})"))
        ]
        cells = base.mark_rect(aria=True).encode(color=fill, description="whole:N")
        return styled(alt.layer(cells, *texts).properties(width=layout.width - room - 30, height=38 * len(names)))

    seen = " (above) and ".join(short(metric) for metric in told.shown[:2])
    sharing = "" if told.shown[0].probe else _SHARING
    caption = (
        f"Each arm's {seen} (below) against its own beside a polite neighbour, paired within blocks{sharing}. Colour "
        "by the worse of the two: up to 1.5, 3 and 10 times worse, and beyond. Grey: no difference shown, or below "
        "10 %; a question mark: chance may have made it. Where there is neither colour nor grey but full contrast, the "
        "victim did not answer, died, or the host was harmed. Intervals are in the tables below, and show where a "
        "pointer rests."
    )
    return Figure("isolation", "From which neighbours is a victim protected?", caption, draw)


def _cell(told: Isolation, exposure: Exposure) -> Row:
    worst = exposure.worst
    worse = 1.0 if worst is None or worst.worse is None else worst.worse.value
    if exposure.kind in HARMS:
        step = _HARM
    elif exposure.kind in (REFUSED, "missing"):
        step = _NOTHING
    elif not exposure.unanswered and (exposure.kind == "same" or worse < 1.1):
        step = "same"
    else:
        step = str(next(bound for bound, _ in WORSE if worse < bound or bound == float("inf")))
    name = told.name(exposure.condition)
    words, brief = lines(exposure), lines(exposure, brief=True)
    return {
        "neighbour": f"{name} (against before)" if is_polite(exposure.condition) else name,
        "arm": exposure.arm.label,
        "step": step,
        "whole": whole(told, exposure),
        **_places(words, ""),
        **_places(_narrowed(brief), "_narrow"),
    }


def _narrowed(words: list[str]) -> list[str]:
    """``victim died in 1 of 3`` and its like on two lines."""
    if words[0] in _NARROW_WORDS:
        return _NARROW_WORDS[words[0]]
    return words[0].split(" in ") if " in " in words[0] else words


def _places(words: list[str], suffix: str) -> Row:
    """One line in the middle of a cell, or two about it."""
    only, above, below = (words[0], _NO_TEXT, _NO_TEXT) if len(words) == 1 else (_NO_TEXT, words[0], words[1])
    return {f"only{suffix}": only, f"above{suffix}": above, f"below{suffix}": below}


# -- the course ------------------------------------------------------------------------------------------

_WHAT = {
    "p99_ms": ("course-latency", "How does the victim fare around the steps?", "p99 [ms]"),
    "share": ("course-goodput", "And how many requests are answered?", "answered"),
}
_CAPTIONS = {
    "p99_ms": "The 99th percentile of 100 ms bins (of few requests it is the longest), geometric means over blocks on "
    "a logarithmic scale. It is that of the answered requests alone: a gap is a time without an answer.",
    "share": "The share of each 100 ms bin's requests that was answered correctly, by intended start; means over "
    "blocks.",
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
        ticks = [tick for tick in log_ticks(*extent) if f"{tick:g}"[0] == "1"] if log else [0, 0.5, 1]
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
        ).properties(width=width, height=height)

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
        f"{_CAPTIONS[quantity]} Seconds since the neighbour began to misbehave; shaded: while it was at work. Thin "
        "grey line, where there is room for it: the same arm beside the polite neighbour."
    )
    return Figure(name, question, caption, draw)


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
