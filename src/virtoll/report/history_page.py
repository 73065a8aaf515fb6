"""The page of a folder's history: one self-contained HTML file, in the look of the reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import altair as alt
from markupsafe import Markup

from virtoll import __version__
from virtoll.analysis.change_points import LEAST_PART, LEAST_RUNS
from virtoll.analysis.metrics import Metric
from virtoll.errors import StoreError
from virtoll.files.confined import write_inside
from virtoll.helpers import helpers
from virtoll.report.drawing import NARROW, WIDE, Figure, Layout, Row, data, styled
from virtoll.report.history import History, Line, Point, Series
from virtoll.report.history_forms import sentences, without
from virtoll.report.numbers import interval
from virtoll.report.page import Drawn, style_sheet, template
from virtoll.report.palette import INK, MUTED, Style, pairs, styles
from virtoll.report.render import specification, svgs, themed
from virtoll.report.tables import Cell, Table

NAME = "history.html"
_MOST_DIFFERENCES, _LONGEST = 50, 500  # of two environments that are told; characters of one
_METHOD = (
    "Each point is one run: an arm's ratio to native, by the blocks of that run, over all of its conditions, with the "
    "95 % interval of the rule that the run has. The machine cancels in it; what differs from run to run does not.",
    "A line holds runs that asked for the same (service, load, its settings, design, conditions). It is broken where "
    "the environment changes (machine, kernel, versions, images, mitigations, tuning), and where the arm is told over "
    "other conditions: those that its study asks of it, or the levels of a ramp that all arms met.",
    f"Changes of level are looked for within one environment and over the same conditions, of {LEAST_RUNS} runs or "
    "more: Pettitt's test (Applied Statistics 28, 1979), its p by permutation and shared over all stretches that were "
    f"asked (Bonferroni), cut again within both parts (binary segmentation), {LEAST_PART} runs or more in each. One "
    "run alone is never a change. How large a change is, is told after it was looked for: such figures are a little "
    "too large.",
)


@dataclass(frozen=True)
class Part:
    """One series on the page."""

    series: Series
    figures: tuple[Figure, ...]
    without: tuple[str, ...]  # arms that there is no ratio of
    tables: tuple[Table, ...]


def write_page(told: History, out: Path | None = None) -> Path:
    """Write the page, by itself into the folder; its path. StoreError when that cannot be done."""
    text = _render(told).encode()
    try:
        if out is None:
            return write_inside(told.directory, NAME, text)
        out.write_bytes(text)
    except OSError as error:
        raise StoreError(
            f"the page cannot be written: {error.strerror}",
            where=str(error.filename or out),
            remedy="name another file with --out, or make room",
        ) from error
    return out


def _render(told: History) -> str:
    look = styles(told.arms)
    parts = [
        Part(series, tuple(_figures(number, series, look)), tuple(without(series)), (_table(series), *_moves(series)))
        for number, series in enumerate(told.series, 1)
    ]
    return template("history.html").render(
        title=f"What changed in {told.directory.resolve().name}?",
        virtoll=__version__,
        style=Markup(style_sheet(pairs(look))),
        sentences=sentences(told),
        parts=parts,
        drawn=_drawn([figure for part in parts for figure in part.figures], look),
        method=_METHOD,
        left_out=[(str(path), why) for path, why in told.left_out],
    )


def _drawn(figures: list[Figure], look: Mapping[str, Style]) -> dict[str, Drawn]:
    """Every figure in its two forms, drawn by another process while this one lays out the next."""
    with helpers(1) as other:
        asked = {
            each.name: other.submit(svgs, each.name, [specification(each.draw(layout)) for layout in (WIDE, NARROW)])
            for each in figures
        }
        return {
            name: Drawn(*(Markup(themed(text, pairs(dict(look)))) for text in answer.result()))
            for name, answer in asked.items()
        }


def _figures(number: int, series: Series, look: Mapping[str, Style]) -> Iterator[Figure]:
    for at, metric in enumerate(series.metrics, 1):
        lines = [line for line in series.lines if line.metric.name == metric.name]
        caption = (
            f"{metric.title}: ratio to native of each run, with its 95 % interval. Upright lines: the environment "
            "changed there, to the one of that number. Level lines: what Pettitt's test tells apart."
        )
        yield Figure(f"history-{number}-{at}", metric.title, caption, _Panels(series, lines, metric, look).draw)


@dataclass(frozen=True)
class _Panels:
    """An arm a panel, its runs in the order of time."""

    series: Series
    lines: list[Line]
    metric: Metric
    look: Mapping[str, Style]

    def draw(self, layout: Layout) -> alt.TopLevelMixin:
        columns = min(2 if layout.columns > 1 else 1, len(self.lines))
        charts = [self._panel(line, layout.panel(columns)) for line in self.lines]
        return styled(alt.concat(*charts, columns=columns, spacing=22))

    def _panel(self, line: Line, width: int) -> Any:
        style, rows = self.look[line.arm.label], list(_point_rows(line))
        extent = _extent(rows)
        times = [_ms(run.begun.timestamp()) for run in self.series.runs]
        room = (max(times) - min(times)) * 0.03 or 43_200_000.0
        x = alt.X("x:T").scale(type="utc", domain=[min(times) - room, max(times) + room], nice=False)
        x = x.axis(title=None, grid=False, tickCount=4, format="%Y-%m-%d", labelOverlap=True)
        y = alt.Y("value:Q").scale(domain=extent, nice=False, zero=False)
        y = y.axis(title="ratio to native", tickCount=4, format=",~r", domain=False)
        dots = alt.Chart(data(rows)).encode(x=x, y=y)
        layers = [
            alt.Chart(data([{"value": 1.0}])).mark_rule(color=MUTED[0], clip=True).encode(y=y),
            *self._moves(x, extent),
            dots.mark_rule(color=style.light, strokeWidth=1.4, clip=True).encode(
                y=alt.Y("low:Q").scale(domain=extent), y2="high:Q"
            ),
            dots.mark_line(color=style.light, strokeWidth=1.0, clip=True).encode(detail="environment:N"),
            dots.mark_point(color=style.light, shape=style.shape, filled=True, size=34, opacity=1, clip=True),
        ]
        if levels := list(_level_rows(line)):
            level = alt.Chart(data(levels)).encode(x=x, x2="x2:Q", y=y)
            layers.append(level.mark_rule(color=INK[0], strokeWidth=2.2, clip=True))
        return alt.layer(*layers, width=width, height=130, title=line.arm.label)

    def _moves(self, x: alt.X, extent: list[float]) -> list[alt.Chart]:
        rows: list[Row] = [
            {"x": _ms(run.begun.timestamp()), "words": str(number), "value": extent[1]}
            for run, number, _ in self.series.moves()
        ]
        if not rows:
            return []
        base = alt.Chart(data(rows)).encode(x=x)
        top = alt.Y("value:Q").scale(domain=extent)
        return [
            base.mark_rule(color=MUTED[0], strokeDash=[3, 3]),
            base.mark_text(align="left", baseline="top", dx=3, fontSize=10, color=MUTED[0]).encode(
                y=top, text="words:N"
            ),
        ]


def _point_rows(line: Line) -> Iterator[Row]:
    """``environment``: of its stretch, which ends where that changes, or the conditions that ratios are over."""
    stretches = groupby(line.points, lambda point: point.alike)
    for number, (_, points) in enumerate(stretches):
        for point in points:
            low, high = point.ratio.low or point.ratio.value, point.ratio.high or point.ratio.value
            yield {
                "x": _ms(point.run.begun.timestamp()), "value": point.ratio.value, "low": low, "high": high,
                "environment": f"{number}",
            }  # fmt: skip


def _level_rows(line: Line) -> Iterator[Row]:
    """The levels between changes, of each stretch that has any: geometric means over its runs."""
    for alike in dict.fromkeys(point.alike for point, _ in line.changes):
        mine = [point for point in line.points if point.alike == alike]
        cuts = sorted(change.at for point, change in line.changes if point.alike == alike)
        for start, end in pairwise([0, *cuts, len(mine)]):
            part = mine[start:end]
            mean = math.exp(sum(math.log(point.ratio.value) for point in part) / len(part))
            ends = [_ms(part[at].run.begun.timestamp()) for at in (0, -1)]
            yield {"x": ends[0], "x2": ends[1], "value": mean}


def _extent(rows: list[Row]) -> list[float]:
    """All values, and of their intervals no more than twice as far as the values lie apart."""
    least, most = min(row["value"] for row in rows), max(row["value"] for row in rows)
    room = max(most - least, 0.04 * most)
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
    return [max(0.0, low, least - 2 * room) - 0.1 * room, min(high, most + 2 * room) + 0.1 * room]


def _ms(seconds: float) -> float:
    return round(seconds * 1000.0)


def _table(series: Series) -> Table:
    """Every run with its ratios."""
    heads = ("Run", "Begun", "Environment", *(f"{line.arm.label}: {line.metric.title}" for line in series.lines))
    found: list[dict[str, Point]] = [{str(p.run.directory): p for p in line.points} for line in series.lines]
    rows = tuple(
        (
            Cell(run.directory.name),
            Cell(f"{run.begun:%Y-%m-%d %H:%M}"),
            Cell(f"{number} ({run.environment})"),
            *(Cell(interval(point.ratio if (point := mine.get(str(run.directory))) else None)) for mine in found),
        )
        for run, number in zip(series.runs, series.environments, strict=True)
    )
    return Table("runs", f"The {len(series.runs)} runs", heads, rows)


def _moves(series: Series) -> Iterator[Table]:
    rows = tuple(
        (Cell(run.directory.name), Cell(str(number)), Cell(_few(differs))) for run, number, differs in series.moves()
    )
    if rows:
        yield Table("environments", "Where the environment changed", ("From run", "Environment", "What differs"), rows)
    made = tuple((Cell(run.directory.name), Cell(_few(differs))) for run, differs in series.configured())
    if made:
        yield Table("configured", "Where what is under test changed", ("From run", "What differs"), made)


def _few(differs: Sequence[str]) -> str:
    """Of fleets each host's own may differ; --json has all."""
    told = [line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..." for line in differs[:_MOST_DIFFERENCES]]
    more = len(differs) - len(told)
    return "; ".join(told) + (f"; and {more:,} more" if more else "")
