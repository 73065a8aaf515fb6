"""The plan of a testbed: how many experiments it holds, as a table, a figure and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import altair as alt

from virtoll.analysis.capacity import Grid, capacity, largest_with_all_channels
from virtoll.errors import StoreError
from virtoll.report.drawing import WIDE, Figure, Layout, Row, data, styled
from virtoll.report.palette import INK, MUTED
from virtoll.report.render import files, specification, svg, write_files
from virtoll.report.tables import Cell, Table

NAME = "testbed-capacity"
_STEPS = (1, 2, 5)
_MANY = 200  # channels that a figure would draw as steps of their own
_WORDS = {"nodes": "more nodes than there are"}


def usual_sizes(grid: Grid) -> list[int]:
    """Sizes of experiments for the table: 1, 2, 5, ..., all nodes, and the last where the channels are the limit."""
    round_ones = {step * 10**power for power in range(len(str(grid.nodes))) for step in _STEPS}
    corners = {largest_with_all_channels(grid), largest_with_all_channels(grid.whole)}
    return sorted(size for size in (round_ones | corners | {grid.nodes}) if 1 <= size <= grid.nodes)


def capacity_table(grid: Grid, sizes: Sequence[int]) -> Table:
    """Experiments at once by their size, with and without slices, and which limit binds."""
    rows = []
    for size in sizes:
        sliced, whole = capacity(grid, size), capacity(grid.whole, size)
        binding = " and ".join(_WORDS.get(bound, bound) for bound in sliced.binding)
        limits = f"{sliced.by_channels} by channels, {sliced.by_slices} by {grid.scarce}" if size <= grid.nodes else ""
        rows.append(
            (
                Cell(f"{size:,}"),
                Cell(f"{sliced.experiments:,}"),
                Cell(f"{whole.experiments:,}"),
                Cell(binding, "", limits),
            )
        )
    heads = ("Nodes an experiment", f"Experiments, {_slices(grid)}", "Nodes not sliced", "Limit")
    caption = f"How many experiments at once: {described(grid)}"
    return Table(NAME, caption, heads, tuple(rows), (sentence(grid),))


def as_json(grid: Grid, sizes: Sequence[int]) -> dict[str, Any]:
    """The same for programs; docs/JSON.md has the keys."""
    rows = []
    for size in sizes:
        sliced, whole = capacity(grid, size), capacity(grid.whole, size)
        rows.append({**asdict(sliced), "experiments_not_sliced": whole.experiments})
    return {"grid": asdict(grid), "sizes": rows, "sentence": sentence(grid)}


def described(grid: Grid) -> str:
    """The grid in words."""
    nodes = f"{grid.nodes:,} node{'s' * (grid.nodes > 1)}"
    interfaces = f"{grid.interfaces:,} interface{'s' * (grid.interfaces > 1)} each"
    channels = f"{grid.channels:,} orthogonal channel{'s' * (grid.channels > 1)}"
    return f"{nodes}, {interfaces}, {channels}, {_slices(grid)}"


def _slices(grid: Grid) -> str:
    return f"{grid.slices} slice{'s' * (grid.slices > 1)} a node"


def sentence(grid: Grid) -> str:
    """Which limit binds, and where."""
    most = largest_with_all_channels(grid)
    slots = grid.nodes * grid.usable_slices
    what = f"the {slots:,} slices that have an interface" if grid.scarce == "interfaces" else f"the {slots:,} slices"
    if most == 0:
        return f"The limit is {what}: there are more channels than that."
    limited = f"Up to {most:,} nodes an experiment the {grid.channels} channels are the limit"
    if most == grid.nodes:
        return f"{limited}: that is every size there can be."
    unsliced = largest_with_all_channels(grid.whole)
    gain = f" Without slices channels go idle beyond {unsliced:,}." if grid.usable_slices > 1 and unsliced else ""
    return f"{limited}, beyond it {what}.{gain}"


def capacity_figure(grid: Grid) -> Figure:
    """Experiments at once against their size, with and without slices, under the ceiling of the channels."""
    arms = {_slices(grid): grid, "nodes not sliced": grid.whole}
    rows = [row for name, one in arms.items() for row in _steps(name, one)]
    names = list(arms) if grid.usable_slices > 1 else list(arms)[:1]

    def draw(layout: Layout) -> alt.TopLevelMixin:
        x = alt.X("x:Q").scale(type="log", nice=False, domain=[1, max(2, grid.nodes)])
        x = x.axis(title="nodes an experiment", grid=False, format=",~r", tickCount=6)
        y = alt.Y("value:Q").scale(domain=[0, grid.channels * 1.12], nice=False)
        y = y.axis(title="experiments at once", tickMinStep=1, format=",~r", domain=False)
        colour = alt.Color("arm:N").scale(domain=names, range=[INK[0], MUTED[0]][: len(names)])
        dash = alt.StrokeDash("arm:N").scale(domain=names, range=[[1, 0], [5, 3]][: len(names)]).legend(None)
        ceiling = alt.Chart(data([{"value": grid.channels, "words": f"{grid.channels} channels"}])).encode(y=y)
        lines = alt.Chart(data(row for row in rows if row["arm"] in names))
        return styled(
            alt.layer(
                ceiling.mark_rule(color=MUTED[0], strokeDash=[2, 2]),
                ceiling.mark_text(align="right", dy=-7, color=MUTED[0], fontSize=11.5).encode(
                    text="words:N", x=alt.value(layout.width - 60)
                ),
                lines.mark_line(strokeWidth=2).encode(
                    x=x, y=y, color=colour.legend(symbolType="stroke"), strokeDash=dash, order="x:Q"
                ),
                width=layout.width - 60,
                height=240,
            )
        )

    caption = f"{described(grid)}. An experiment takes a channel, and a slice with an interface on each of its nodes."
    return Figure(NAME, "How many experiments at once?", caption, draw)


def _steps(name: str, grid: Grid) -> list[Row]:
    """The ends of each step: so many experiments from the size x on, up to the size where the next one begins."""
    rows, start, count, stride = [], 1, grid.channels, max(1, grid.channels // _MANY)
    while count:
        end = min(grid.nodes, grid.nodes * grid.usable_slices // count)
        if end >= start:
            rows += [{"arm": name, "x": at, "value": count} for at in dict.fromkeys((start, end))]
            start = end + 1
        count = min(count - 1, max(count - stride, count * 49 // 50))  # finer below: the last few have the most sizes
    return rows


def write_plan(grid: Grid, sizes: Sequence[int], directory: Path) -> list[Path]:
    """Write figure and table into ``directory``; the paths. StoreError when that cannot be done."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        capacity_table(grid, sizes).write(directory)
        figures = write_files(files(svg(specification(capacity_figure(grid).draw(WIDE)))), directory, NAME)
    except OSError as error:
        raise StoreError(
            f"the plan cannot be written: {error.strerror}",
            where=str(error.filename or directory),
            remedy="name another directory with --out, or make room in this one",
        ) from error
    return [*figures, *(directory / f"{NAME}.{suffix}" for suffix in ("md", "csv", "tex"))]
