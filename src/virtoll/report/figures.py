"""The figures: one Vega-Lite specification each (through Altair), drawn wide for page and paper, narrow for phones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt
import numpy as np

from virtoll.analysis.cdf import curve
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.matrix import Condition, Matrix, level_label
from virtoll.analysis.verdicts import margin_of
from virtoll.record.model import Arm
from virtoll.report.drawing import (
    Figure,
    Layout,
    Row,
    arm_lines,
    arm_scales,
    bounds,
    curve_rows,
    data,
    dots,
    legend,
    log_extent,
    log_ticks,
    percent_of,
    positive,
    shares,
    styled,
)
from virtoll.report.findings import Findings
from virtoll.report.palette import BAND, INK, MUTED

SIZE = "load.object_bytes"


def figures(findings: Findings) -> list[Figure]:
    """The figures this run has data for."""
    made = [
        _tolls(findings),
        _by_size(findings),
        _distributions(findings),
        _cpu(findings),
        _memory(findings),
        _deployment(findings),
        _steadiness(findings),
    ]
    return [figure for figure in made if figure is not None]


# -- the tolls -------------------------------------------------------------------------------------------


def _tolls(findings: Findings) -> Figure | None:
    table = findings.tolls(findings.headline.name)
    arms = [arm for arm in findings.arms if arm.role != "baseline"]
    rows: list[Row] = []
    points: list[Row] = []
    for arm in arms:
        toll = table.total(arm)
        if toll is None or toll.ratio is None:
            continue
        rows.append({"arm": arm.label, **bounds(toll.ratio), "words": _words(toll.ratio)})
        cells = [cell for cell in table.cells if cell.arm == arm and cell.ratio is not None]
        points += [{"arm": arm.label, "value": cell.ratio.value} for cell in cells if cell.ratio is not None]
    if not rows:
        return None
    floor = next((toll.floor for toll in table.overall if toll.floor is not None), None)
    margin = margin_of(findings.margin, floor)
    values = [row["value"] for row in rows]
    near = [row for row in rows if 0.6 <= row["value"] <= 1.6]
    zoom = len(near) > 1 and (min(values) < 0.5 or max(values) > 2)
    what = findings.headline.title.lower()

    def panel(shown: list[Row], title: str, layout: Layout, width: int, log: bool) -> Any:
        names = [row["arm"] for row in shown]
        extent = log_extent([*shown, {"value": 1, "low": 1, "high": 1 + margin}])
        if not log:
            low, high = min(row["low"] for row in shown), max(row["high"] for row in shown)
            extent = [max(0.4, min(low, 0.97)) - 0.02, min(1.8, max(high, 1.03)) + 0.02]
        scale = alt.Scale(type="log" if log else "linear", domain=extent, zero=False, nice=False)
        axis = alt.Axis(
            format="%",
            tickCount=6,
            labelOverlap="greedy",
            labelSeparation=8,
            title=title,
            values=log_ticks(*extent) if log else alt.Undefined,
        )
        x = alt.X("value:Q").scale(scale).axis(axis)
        y = arm_lines(names, layout, grid=False, least_width=layout.labels)
        look = arm_scales(findings, [arm for arm in arms if arm.label in names])
        band = (
            alt.Chart(data([{"low": 1 / (1 + margin), "high": 1 + margin}]))
            .mark_rect(color=BAND[0])
            .encode(x=alt.X("low:Q").scale(scale), x2="high:Q")
        )
        native = alt.Chart(data([{"value": 1}])).mark_rule(color=MUTED[0], strokeWidth=1).encode(x=x)
        cells = alt.Chart(data(p for p in points if p["arm"] in names and extent[0] <= p["value"] <= extent[1]))
        base = alt.Chart(data(shown))
        colour, shape = look["color"].legend(None), look["shape"].legend(None)
        return alt.layer(
            band,
            native,
            cells.mark_tick(thickness=1.5, size=11, opacity=0.35).encode(x=x, y=y, color=colour),
            base.mark_rule(strokeWidth=2.5, clip=True).encode(
                x=alt.X("low:Q").scale(scale), x2="high:Q", y=y, color=colour
            ),
            base.mark_point(filled=True, size=95, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
            base.mark_text(align="left", fontSize=11.5, color=INK[0]).encode(
                x=alt.value(width + 10), y=y, text="words:N"
            ),
        ).properties(width=width, height=28 * len(shown))

    def draw(layout: Layout) -> alt.TopLevelMixin:
        width = layout.width - layout.labels - 120
        whole = panel(rows, f"{what}, as a share of native's", layout, width, log=zoom)
        if not zoom:
            return styled(whole)
        close = panel(near, "the same, near native", layout, width, log=False)
        return styled(alt.vconcat(whole, close, spacing=26))

    caption = (
        f"Each arm's {what} over native's, paired within blocks: the mark is the geometric mean over all conditions, "
        f"the bar its 95 % interval over {len(findings.matrix.blocks)} blocks, each small stroke one condition. "
        f"The grey band (± {margin * 100:.1f} %) is what counts as no difference."
    )
    if zoom:
        caption += " Above on a logarithmic scale; below the arms near native, magnified."
    return Figure("tolls", "What does each platform cost?", caption, draw)


def _words(estimate: Estimate) -> str:
    """``85.1 % [84, 86]``: a ratio as a share of native's."""
    value = percent_of(estimate.value)
    if estimate.low is None or estimate.high is None:
        return value
    low, high = (percent_of(bound).removesuffix(" %") for bound in (estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


# -- absolute values by object size ----------------------------------------------------------------------


def _panels(matrix: Matrix, conditions: Iterable[Condition], apart: str | None) -> dict[Condition, str]:
    """Panel title by condition: what varies besides ``apart``."""
    paths = tuple(path for path in matrix.varying if path != apart)
    return {condition: condition.label(paths) if paths else "" for condition in conditions}


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
                level = condition.get(path)
                x = "all" if level is None else level_label(path, level)
                rows.append({"arm": arm.label, "x": x, "panel": panels[condition], **bounds(estimate)})
    if not rows:
        return None
    rows = positive(rows)
    order = [level_label(path, level) for level in matrix.levels(path) if level is not None] or ["all"]
    what = f"{metric.title.lower()} [{metric.unit}]"

    def draw(layout: Layout) -> alt.TopLevelMixin:
        look = arm_scales(findings, arms)
        titles = list(dict.fromkeys(row["panel"] for row in rows))
        columns = min(2 if layout.columns > 1 else 1, len(titles))
        # Ordinals drawn on a numeric axis would lie about distance; sizes are labelled, one step each.
        x = alt.X("x:N").scale(domain=order, type="point", padding=0.35).axis(title=None, labelAngle=0, grid=False)
        scale = alt.Scale(type="log", nice=False, domain=log_extent(rows))
        ticks = log_ticks(*log_extent(rows))
        y = alt.Y("value:Q").scale(scale).axis(title=what, values=ticks, format=",~r", domain=False, ticks=False)
        key = legend([arm.label for arm in arms], layout.width - 70, symbolStrokeWidth=0)
        base = alt.Chart().encode(color=look["color"].legend(**key))
        layers = alt.layer(
            base.mark_line(strokeWidth=1.8).encode(x=x, y=y, strokeDash=look["dash"].legend(None)),
            base.mark_rule(strokeWidth=2, clip=True).encode(x=x, y=alt.Y("low:Q").scale(scale), y2="high:Q"),
            base.mark_point(filled=True, size=55, opacity=1).encode(x=x, y=y, shape=look["shape"]),
            data=data(rows),
        ).properties(width=layout.panel(columns), height=230)
        if len(titles) == 1:
            return styled(layers)
        return styled(layers.facet(facet=alt.Facet("panel:N").sort(titles), columns=columns))

    loops = " and ".join(findings.loops)
    caption = (
        f"Mean over deployments with its 95 % interval, {loops} loop, logarithmic scale. "
        f"{'More' if metric.better == 'more' else 'Less'} is better."
    )
    name = "object size" if path == SIZE else path.rsplit(".", 1)[-1].replace("_", " ")
    return Figure("absolute", f"How much is that, by {name}?", caption, draw)


# -- latency distributions -------------------------------------------------------------------------------


def _distributions(findings: Findings) -> Figure | None:
    matrix = findings.matrix
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    conditions = findings.shown_conditions()
    curves = [(matrix.label(c) or "all requests", curve(matrix, arm, c)) for c in conditions for arm in arms]
    known = [(label, one) for label, one in curves if one is not None]
    if not known:
        return None
    rows = [row for label, one in known for row in curve_rows(one, label)]
    least = min(one.n for _, one in known)
    draw = shares(findings, arms, rows, "latency [ms]", "requests answered")
    loops = " and ".join(findings.loops)
    caption = (
        "Share of requests answered within a time. Lines: mean of the deployments' distributions, each weighing the "
        f"same; bands: lowest to highest of the deployments (at least {least}). {loops.capitalize()} loop"
    )
    caption += (
        ": a client that waits for each answer asks less while the service stalls, so long stalls are too rare here."
        if "closed" in findings.loops
        else ": latency runs from the intended start of each request."
    )
    if len(conditions) < len(matrix.conditions):
        caption += " The smallest and the 1 MB (or largest) objects are shown."
    return Figure("latency", "How long do requests wait?", caption, draw)


# -- dots: CPU, memory, deployment -----------------------------------------------------------------------


def _cpu(findings: Findings) -> Figure | None:
    matrix = findings.matrix
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    conditions = findings.shown_conditions(4)
    rows: list[Row] = []
    for condition in conditions:
        for arm in arms:
            for metric, seen in (("cpu_s_per_1000", "outside"), ("cpu_s_per_1000_inside", "inside")):
                estimate = matrix.absolute(metric, arm, condition)
                if estimate is not None and estimate.value > 0:
                    panel = matrix.label(condition) or "all requests"
                    rows.append({"arm": arm.label, "panel": panel, "seen": seen, **bounds(estimate)})
    if not any(row["seen"] == "outside" for row in rows):
        return None
    what = "CPU-seconds per 1,000 requests"
    caption = (
        "Filled marks: all CPU time the host spent on the instance, helpers included (QEMU's and UML's own threads, "
        "docker-proxy). Rings: CPU time as the instance itself counts it. Where the two part, a monitor inside "
        "would miss the difference; an instance that is shown the whole machine's counters counts its neighbours too. "
        "Logarithmic scale."
    )
    shares = [(arm, findings.pooled("helpers_percent", arm)) for arm in arms]
    known = [f"{arm.label} {estimate.value:.0f} %" for arm, estimate in shares if estimate is not None]
    caption += f" Share of helpers where it can be told: {', '.join(known)}." if known else ""
    return Figure("cpu", "What does a request cost in CPU?", caption, dots(findings, arms, rows, what, log=True))


def _memory(findings: Findings) -> Figure | None:
    pairs = (("memory_peak_mib", "outside"), ("rss_peak_mib", "inside"))
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    rows = _pooled_rows(findings, arms, pairs)
    caption = (
        "Filled marks: peak of all memory booked to the instance on the host, page cache included; rings: peak of its "
        "resident memory. Means over blocks with 95 % intervals."
    )
    draw = dots(findings, arms, rows, "MiB", log=False)
    return Figure("memory", "How much memory does it take?", caption, draw) if rows else None


def _deployment(findings: Findings) -> Figure | None:
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    rows = _pooled_rows(findings, arms, (("deploy_s", "outside"),))
    caption = "From the order to deploy to an instance whose agent answers. Means over blocks with 95 % intervals."
    draw = dots(findings, arms, rows, "seconds", log=True)
    return Figure("deployment", "How long until it is there?", caption, draw) if rows else None


def _pooled_rows(findings: Findings, arms: list[Arm], metrics: tuple[tuple[str, str], ...]) -> list[Row]:
    rows: list[Row] = []
    for arm in arms:
        for metric, seen in metrics:
            estimate = findings.pooled(metric, arm)
            if estimate is not None and estimate.value > 0:
                rows.append({"arm": arm.label, "panel": "", "seen": seen, **bounds(estimate)})
    return rows


# -- did the machine hold still? -------------------------------------------------------------------------


def _steadiness(findings: Findings) -> Figure | None:
    matrix, metric = findings.matrix, findings.headline
    if matrix.baseline is None or len(matrix.blocks) < 2:
        return None
    values = matrix.values(metric.name)
    arms = [arm for arm in matrix.arms if arm.role in ("baseline", "floor")]
    base = values[:, matrix.arms.index(matrix.baseline), :]
    measured = np.isfinite(base).any(axis=0)
    if not measured.any():
        return None
    centre = np.full(base.shape[1], np.nan)
    centre[measured] = np.nanmean(base[:, measured], axis=0)
    rows = []
    for (block, label, condition), cell in matrix.cells.items():
        value = cell.values.get(metric.name)
        if value is not None and any(arm.label == label for arm in arms):
            relative = value / centre[matrix.conditions.index(condition)]
            if np.isfinite(relative):
                position = cell.record.trial.position
                rows.append({"arm": label, "x": position, "value": float(f"{relative:.4g}"), "block": block})
    if len(rows) < 3:
        return None

    def draw(layout: Layout) -> alt.TopLevelMixin:
        look = arm_scales(findings, arms)
        chart = alt.Chart(data(rows))
        x = alt.X("x:Q").scale(nice=False).axis(title="position in the run", grid=False, tickMinStep=1)
        y = alt.Y("value:Q").scale(zero=False).axis(title="against its mean", format="%", tickCount=5, domain=False)
        rule = alt.Chart(data([{"value": 1}])).mark_rule(color=MUTED[0]).encode(y="value:Q")
        colour = look["color"].legend(**legend([arm.label for arm in arms], layout.width - 70))
        points = chart.mark_point(filled=True, size=34, opacity=0.85).encode(
            x=x, y=y, color=colour, shape=look["shape"]
        )
        return styled(alt.layer(rule, points).properties(width=layout.width - 90, height=150))

    caption = (
        f"Every native trial's {metric.title.lower()} against the mean of its condition, in the order they ran. A "
        "slope or a step is drift of the machine: pairing within blocks takes it out of the tolls. Scatter is noise."
    )
    return Figure("steadiness", "Did the machine hold still?", caption, draw)
