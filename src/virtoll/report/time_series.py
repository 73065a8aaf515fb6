"""The slices of a testbed over time: throughput about the steps of one of them, processes under a fork bomb in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import numpy as np

from virtoll.analysis.conditions import Condition
from virtoll.analysis.load import Series
from virtoll.analysis.metrics import TrialMetrics
from virtoll.record.model import Arm, Measured
from virtoll.report.drawing import BAND_OPACITY, Figure, Layout, Row, arm_scales, data, styled
from virtoll.report.findings import Findings
from virtoll.report.palette import MUTED, RULE
from virtoll.units import format_bit_rate, parse_bit_rate

SLICES = ("slice1", "slice2")
_DASHES = {"slice 1": [1, 0], "slice 2": [4, 2]}
_MOST_POINTS = 400  # of a line: no more can be seen


def time_figures(findings: Findings) -> list[Figure]:
    """Throughput about the steps, and processes under the bombs, where there is data for them."""
    return [figure for figure in (steps_figure(findings), processes_figure(findings)) if figure is not None]


def steps_figure(findings: Findings) -> Figure | None:
    """Throughput of both slices while slice 2 steps up; None where no flow stepped."""
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    cases = [case for case in findings.matrix.conditions if case.get("flow.steps")]
    if not cases:
        return None
    case = cases[0]
    found = [(arm, trial) for arm in arms for trial in _trials(findings, arm, case)]
    rows = [row for arm in arms for row in _throughput_rows(findings, arm, case)]
    if not rows:
        return None
    settings = _record(found[0][1]).settings
    top = max(row["high"] for row in rows) * 1.16
    caption = (
        f"Slice 1 (whole line) is offered {format_bit_rate(settings['rate_bit_per_s'])} all the time, slice 2 (dashed) "
        "what stands above each step, in bit/s. What arrived, in the probe's intervals: mean over deployments, and "
        "from least to most. If a step of slice 2 shows in the line of slice 1, the slices are not isolated."
        + _first_of(findings, cases)
    )
    draw = _panels(findings, arms, rows, "Mbit/s received", top=top, marks=_step_marks(settings))
    return Figure("flow-steps", "Does slice 1 feel the steps of slice 2?", caption, draw)


def _first_of(findings: Findings, cases: Sequence[Condition]) -> str:
    """A sentence of which case is drawn, where a probe has several."""
    if len(cases) == 1:
        return ""
    metric = next(each.name for each in findings.matrix.metrics.values() if each.probe == cases[0].probe)
    return f" Drawn: the first of {len(cases)} cases ({findings.matrix.label(cases[0], metric)})."


def _trials(findings: Findings, arm: Arm, case: Condition) -> Iterator[TrialMetrics]:
    for block in findings.matrix.blocks:
        trial = findings.matrix.cell(block, arm, case)
        if trial is not None and trial.record.measured is not None:
            yield trial


def _record(trial: TrialMetrics) -> Measured:
    assert trial.record.measured is not None
    return trial.record.measured


def _step_marks(settings: dict[str, Any]) -> list[Row]:
    """Where each step begins and what slice 2 is offered in it, in seconds from the end of the warm-up."""
    rates = [parse_bit_rate(word) for word in settings["steps"].split(",")]
    length_s = settings["time_ns"] / 1e9
    return [{"x": at * length_s, "words": format_bit_rate(rate).removesuffix("bit/s")} for at, rate in enumerate(rates)]


def _throughput_rows(findings: Findings, arm: Arm, case: Condition) -> Iterator[Row]:
    """Of each slice, interval by interval: mean, least and most over the deployments."""
    by_slice: dict[str, list[tuple[Series, float]]] = {}
    for trial in _trials(findings, arm, case):
        warm_up_s = _record(trial).settings["warm_up_ns"] / 1e9
        series = findings.run.samples(trial.record.trial.id, "series")
        for name in SLICES:
            received = series.get((name, "received_bytes"))
            if received is not None and len(received.t_ns) > 1:
                by_slice.setdefault(name, []).append((received, warm_up_s))
    for name, found in by_slice.items():
        every = max(-(-(len(received.t_ns) - 1) // _MOST_POINTS) for received, _ in found)
        rates = (_rates(received, warm_up_s, every) for received, warm_up_s in found)
        curves = [each for each in rates if len(each[1])]  # one that was cut short hides no other
        count = min(len(rates) for _, rates in curves)
        times = np.mean([times[:count] for times, _ in curves], axis=0)
        at_each = np.stack([rates[:count] for _, rates in curves])
        for at in range(count):
            yield {
                "arm": arm.label, "slice": _title(name), "line": name, "x": _short(times[at]),
                "value": _short(at_each[:, at].mean()), "low": _short(at_each[:, at].min()),
                "high": _short(at_each[:, at].max()),
            }  # fmt: skip


def _rates(received: Series, warm_up_s: float, every: int) -> tuple[Any, Any]:
    """Mbit/s over each ``every`` intervals of a running total, and their middle in seconds after the warm-up."""
    t_ns, total = received.t_ns[::every], received.value[::every]
    middle_s = ((t_ns[1:] + t_ns[:-1]) / 2 - t_ns[0]) / 1e9 - warm_up_s
    return middle_s, np.diff(total) * 8e3 / np.diff(t_ns)


def processes_figure(findings: Findings) -> Figure | None:
    """Processes in each slice while both hold a fork bomb; None where none went off."""
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    cases = [case for case in findings.matrix.conditions if case.probe == "fork-bomb"]
    if not cases:
        return None
    rows = [row for arm in arms for trial in _trials(findings, arm, cases[0]) for row in _process_rows(findings, trial)]
    if not rows:
        return None
    caption = (
        "Processes of the bomb in slice 1 (whole line) and slice 2 (dashed), a line for each deployment: as the host "
        "counts them in its control groups, or, of a guest with a kernel of its own, as the bomb counts itself. The "
        "limit of processes is the same for every arm." + _first_of(findings, cases)
    )
    top = max(row["value"] for row in rows) * 1.06
    return Figure(
        "fork-bomb-processes",
        "How many processes does a fork bomb come to in each slice?",
        caption,
        _panels(findings, arms, rows, "processes", top=top, marks=[]),
    )


def _process_rows(findings: Findings, trial: TrialMetrics) -> Iterator[Row]:
    start_ns = _record(trial).windows[0].start_ns
    series = findings.run.samples(trial.record.trial.id, "series")
    for name in SLICES:
        counted = series.get((name, "processes_outside")) or series.get((name, "processes"))
        if counted is None:
            continue
        every = -(-len(counted.t_ns) // _MOST_POINTS)
        for t_ns, count in zip(counted.t_ns[::every], counted.value[::every], strict=True):
            yield {
                "arm": trial.record.trial.arm.label, "slice": _title(name),
                "line": f"{name} {trial.record.trial.block}", "x": _short((int(t_ns) - start_ns) / 1e9),
                "value": int(count), "low": int(count), "high": int(count),
            }  # fmt: skip


def _title(name: str) -> str:
    return name.replace("slice", "slice ")


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _panels(findings: Findings, arms: list[Arm], rows: list[Row], title: str, *, top: float, marks: list[Row]) -> Any:
    """An arm a panel, both slices in it, from 0 to ``top``; ``marks`` stand upright at their x, their words on top."""
    extent = [0, top]
    shown = [arm for arm in arms if any(row["arm"] == arm.label for row in rows)]
    labels = [arm.label for arm in shown]
    blank: Row = {**dict.fromkeys(rows[0], 0), "slice": _title(SLICES[0])}
    lines = [{**row, "words": ""} for row in rows]
    uprights = [{**blank, "arm": label, "value": top, **mark, "line": "mark"} for label in labels for mark in marks]

    def draw(layout: Layout) -> alt.TopLevelMixin:
        columns = min(2 if layout.columns > 1 else 1, len(labels))
        colour = arm_scales(findings, shown)["color"].legend(None)
        dash = alt.StrokeDash("slice:N").scale(domain=list(_DASHES), range=list(_DASHES.values()))
        x = alt.X("x:Q").scale(nice=False, zero=False).axis(title="seconds", grid=False, tickCount=6)
        y = alt.Y("value:Q").scale(domain=extent, nice=False).axis(title=title, tickCount=4, format=",~r", domain=False)
        base = alt.Chart().encode(x=x)
        of_slices = base.transform_filter("datum.line != 'mark'").encode(detail="line:N", color=colour)
        upright = base.transform_filter("datum.line == 'mark'")
        layers = alt.layer(
            upright.mark_rule(color=RULE[0]),
            upright.mark_text(align="left", baseline="top", dx=2, fontSize=9.5, color=MUTED[0]).encode(
                y=y, text="words:N"
            ),
            of_slices.mark_area(fillOpacity=BAND_OPACITY).encode(y=alt.Y("low:Q").scale(domain=extent), y2="high:Q"),
            of_slices.mark_line(strokeWidth=1.5).encode(
                y=y, strokeDash=dash.legend(symbolType="stroke", symbolStrokeColor=MUTED[0])
            ),
            data=data([*lines, *uprights]),
            width=layout.panel(columns),
            height=130,
        )
        facet = layers.facet(facet=alt.Facet("arm:N").sort(labels), columns=columns)
        return styled(facet)

    return draw
