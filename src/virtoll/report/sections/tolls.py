"""What each platform costs a service under a load: by its headline quantity, and in each respect beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, ClassVar

import altair as alt

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.metrics import OF_A_WINDOW
from virtoll.analysis.ratios import Toll, TollTable, tested_of
from virtoll.record.model import Arm
from virtoll.report import ending, method, narrowing
from virtoll.report.drawing import (
    Figure,
    Layout,
    Row,
    arm_lines,
    arm_scales,
    bounds,
    data,
    log_extent,
    log_ticks,
    percent_of,
    styled,
)
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING, interval
from virtoll.report.palette import BAND, INK, MUTED
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table, verdict
from virtoll.report.words import (
    NO_NATIVE,
    fewer,
    join,
    lower,
    no_answer,
    no_level,
    not_measured,
    not_told,
    over,
    over_all,
    replicates_of,
    times,
    with_fewer,
)

# The columns of the table of tolls, after the headline metric and the load's own quantities.
_BESIDE = (OF_A_WINDOW, "latency_p99_ms", "cpu_s_per_1000", "memory_peak_mib", "deploy_s")


class Tolls(Section):
    """The answer of a study of a service."""

    name: ClassVar[str] = "tolls"
    summary: ClassVar[str] = "What does each platform cost?"
    rank: ClassVar[int] = 100
    of_each_server: ClassVar[bool] = True

    def applies(self, findings: Findings) -> bool:
        """Under a load alone."""
        return findings.is_load

    def answer(self, findings: Findings) -> list[str]:
        """Every arm with the words its verdict allows."""
        return (
            [NO_NATIVE]
            if findings.matrix.baseline is None
            else [
                *([] if findings.is_search else [_answer(findings)]),
                *ending.told(findings),
                *narrowing.told(findings),
            ]
        )

    def figures(self, findings: Findings) -> list[Figure]:
        """The headline's ratios to native."""
        return [figure for figure in [_figure(findings)] if figure is not None]

    def tables(self, findings: Findings) -> list[Table]:
        """An arm a row; and the headline by condition."""
        by_condition = _by_condition(findings).placed("tolls", look="matrix", folded=True, short=_SHORT)
        return [_tolls(findings).placed(look="tolls"), by_condition]

    def method(self, findings: Findings) -> list[str]:
        """What is compared, and in which words."""
        return [
            method.one_observation(findings),
            method.paired(findings),
            method.noise_floor(findings),
            method.words(findings),
            ending.promise(findings),
            method.loop(findings),
        ]


_SHORT = "The same by condition, in numbers"


def _figure(findings: Findings) -> Figure | None:
    table = findings.tolls(findings.headline.name)
    arms = [arm for arm in findings.arms if arm.role != "baseline"]
    rows: list[Row] = []
    points: list[Row] = []
    measured: list[int] = []
    few: list[str] = []
    for arm in arms:
        toll = table.total(arm)
        if toll is None or toll.ratio is None:
            continue
        rows.append({"arm": arm.label, **bounds(toll.ratio), "words": _words(toll.ratio)})
        measured.append(toll.ratio.n)
        few += [f"{arm.label} {words}"] if (words := fewer(toll, len(findings.compared))) else []
        cells = [cell for cell in table.cells if cell.arm == arm and cell.ratio is not None]
        points += [{"arm": arm.label, "value": cell.ratio.value} for cell in cells if cell.ratio is not None]
    if not rows:
        return None
    margin = findings.margin
    values = [row["value"] for row in (*rows, *points)]
    near = [row for row in rows if 0.6 <= row["value"] <= 1.6]
    is_far = min(values) < 0.5 or max(values) > 1.8  # a linear axis, as below, would not hold it
    zoom = is_far and len(near) > 1
    what = lower(findings.headline.title)

    def panel(shown: list[Row], title: str, layout: Layout, width: int, *, log: bool, whole: bool = True) -> Any:
        """``whole``: its axis holds every stroke, too."""
        names = [row["arm"] for row in shown]
        strokes = [{**p, "low": p["value"], "high": p["value"]} for p in points if whole and p["arm"] in names]
        extent = log_extent([*shown, *strokes, {"value": 1, "low": 1, "high": 1 + margin}])
        if not log:
            low, high = (of(row[end] for row in (*shown, *strokes)) for of, end in ((min, "low"), (max, "high")))
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
                x=alt.XValue(width + 10),  # type: ignore[no-untyped-call]
                y=y,
                text="words:N",
            ),
            width=width,
            height=28 * len(shown),
        )

    def draw(layout: Layout) -> alt.TopLevelMixin:
        width = layout.width - layout.labels - 120
        whole = panel(rows, f"{what}, as a share of native's", layout, width, log=is_far)
        if not zoom:
            return styled(whole)
        close = panel(near, "the same, near native", layout, width, log=False, whole=False)
        return styled(alt.vconcat(whole, close, spacing=26))

    all_of = over_all(findings) + (f" ({join(few)})" if few else "")
    caption = (
        f"Each arm's {what} over native's, paired within blocks: the mark is the geometric mean over {all_of}, the bar "
        f"its 95 % interval over {replicates_of(findings, measured)}, each small stroke one condition. "
        + method.band(margin)
    )
    if zoom:
        caption += " Above on a logarithmic scale; below the arms near native, magnified."
    elif is_far:
        caption += " Logarithmic scale."
    return Figure("tolls", "What does each platform cost?", caption, draw)


def _words(estimate: Estimate) -> str:
    """``85 % [84, 86]``: a ratio as a share of native's, with the decimals that tell a bound from 100."""
    if estimate.low is None or estimate.high is None:
        return percent_of(estimate.value)
    bounds, digits = (estimate.low, estimate.high), 0
    while any(abs(each - 1) >= _TOLD and float(f"{each * 100:.{digits}f}") == 100 for each in bounds):
        digits += 1
    value, low, high = (percent_of(each, digits).removesuffix(" %") for each in (estimate.value, *bounds))
    return f"{value} % [{low}, {high}]"


_TOLD = 1e-4  # by less than this no bound is told from native's own


def _tolls(findings: Findings) -> Table:
    """The table of tolls: an arm a row, what it costs in each respect."""
    own = [metric.name for metric in findings.own]
    there = [name for name in _BESIDE if name in findings.matrix.metrics]
    beside = [name for name in (*own, *there) if any(toll.ratio or toll.zeros for toll in findings.tolls(name).overall)]
    metrics = list(dict.fromkeys([findings.headline.name, *beside]))
    rows = []
    for arm in findings.arms:
        if arm.role == "baseline":
            continue
        totals = [(findings.tolls(name).total(arm), len(findings.over(name))) for name in metrics]
        rows.append((Cell(arm.label), *(verdict(toll, planned) for toll, planned in totals)))
    rows += [
        (
            Cell(skipped.arm.label),
            Cell("not measured", "missing", textwrap.shorten(skipped.reason, 80, placeholder=" …")),
            *[Cell(MISSING)] * (len(metrics) - 1),
        )
        for skipped in findings.run.environment.skipped
    ]
    judged = [[toll for toll in findings.tolls(name).overall if toll.arm.role != "floor"] for name in metrics]
    family = max((tested_of(tolls, findings.rule) for tolls in judged), default=0)
    is_over_some = len(findings.compared) < len(findings.matrix.conditions)
    felt = " (what users feel: over all levels)" if is_over_some and own else ""
    notes = (
        "Costs are worsenings against native in per cent with 95 % intervals, geometric means over "
        f"{over(findings)}{felt}. " + method.error_rates(method.comparisons(family, "a column"), findings.rule),
        *(not_told([findings.matrix.metrics[name]], why) for name in there if (why := findings.reason(name))),
    )
    heads = ("Arm", *(findings.matrix.metrics[name].title for name in metrics))
    return Table("tolls", "What each platform costs against native", heads, tuple(rows), notes)


def _by_condition(findings: Findings) -> Table:
    """The headline metric's ratio to native, a condition a row."""
    table = findings.tolls(findings.headline.name)
    arms = [arm for arm in findings.arms if arm.role != "baseline"]
    rows = []
    for condition in findings.matrix.conditions:
        cells = [_ratio(findings, table.cell(arm, condition), arm, condition) for arm in arms]
        rows.append((Cell(findings.matrix.label(condition) or "the only condition"), *cells))
    notes = (
        f"{findings.headline.title} over native's, paired within blocks, with 95 % intervals. "
        + method.error_rates(method.comparisons(table.family, "this table"), findings.rule),
    )
    heads = ("Condition", *(arm.label for arm in arms))
    return Table(
        "tolls-by-condition", f"{findings.headline.title} against native, by condition", heads, tuple(rows), notes
    )


def _ratio(findings: Findings, toll: Toll | None, arm: Arm, condition: Condition) -> Cell:
    if toll is not None and toll.zeros:
        return Cell("not judged", toll.verdict.kind, toll.verdict.words)
    if toll is None or toll.ratio is None:
        return Cell(MISSING, "missing", findings.matrix.why_missing(findings.headline.name, arm, condition))
    return Cell(interval(toll.ratio), toll.verdict.kind, toll.verdict.words)


def _answer(findings: Findings) -> str:
    """Every arm with the words its verdict allows."""
    told = judged_words(findings, findings.tolls(findings.headline.name), len(findings.compared))
    if told:
        return f"{_headline_words(findings)}, against native: {told}."
    return no_answer(findings) if findings.compared else f"Nothing is compared with native: {no_level(findings)}."


def judged_words(findings: Findings, table: TollTable, planned: int) -> str:
    """Every arm of a table of tolls with the words its verdict allows; "" where nothing is compared. ``planned``: the
    conditions that each should speak for.
    """
    tolls = [table.total(arm) for arm in findings.treatments]
    measured = [toll for toll in tolls if toll is not None and toll.ratio is not None]
    barred = [toll for toll in tolls if toll is not None and toll.zeros]
    if not measured and not barred:
        return ""
    judged = [toll for toll in measured if toll.verdict.kind in ("costs", "gains")]
    parts = [same(measured, planned), *(_one(toll, planned) for toll in judged), unsure(measured, planned)]
    if barred:
        parts.append("not judged: " + ", ".join(f"{toll.arm.label} ({toll.verdict.words})" for toll in barred))
    unseen = [toll.arm for toll in tolls if toll is not None and toll.ratio is None and toll not in barred]
    parts.append(not_measured(findings, unseen))
    return "; ".join(part for part in parts if part)


def _headline_words(findings: Findings) -> str:
    loops = " and ".join(findings.loops) or "closed"
    word = "Throughput" if findings.headline.name == "rate_per_s" else findings.headline.title
    return f"{word} ({loops} loop)"


def same(tolls: Sequence[Toll], planned: int) -> str:
    """Of those that show no difference; "" of none. ``planned``: the conditions that each should speak for."""
    found = [toll for toll in tolls if toll.verdict.kind == "same"]
    if not found:
        return ""
    words = found[0].verdict.words.replace("difference shown", "difference")
    names = [with_fewer(toll.arm.label, toll, planned) for toll in found]
    return f"{join(names)} {'shows' if len(found) == 1 else 'show'} {words}"


def _one(toll: Toll, planned: int) -> str:
    more = "; ".join(part for part in (times(toll), fewer(toll, planned)) if part)
    return f"{toll.arm.label} {toll.verdict.words}" + (f" ({more})" if more else "")


def unsure(tolls: Sequence[Toll], planned: int) -> str:
    """Of those of which nothing can be told yet, and why; of many, of the one that needs most; "" of none."""
    found = [toll for toll in tolls if toll.verdict.kind == "unsure"]
    if len(found) <= _FEW:
        told = ", ".join(
            f"{toll.arm.label} ({'; '.join(part for part in (_why(toll), fewer(toll, planned)) if part)})"
            for toll in found
        )
    else:
        most = max(found, key=lambda toll: toll.verdict.needed or 0)
        which = "" if len({_why(toll) for toll in found}) == 1 else f"the most, {most.arm.label}: "
        told = f"{join([with_fewer(toll.arm.label, toll, planned) for toll in found])} ({which}{_why(most)})"
    return f"cannot tell yet: {told}" if found else ""


_FEW = 3


def _why(toll: Toll) -> str:
    return toll.verdict.words.partition(": ")[2]
