"""How much each platform carries under a service objective, and how that was found, window by window."""

from __future__ import annotations

from statistics import geometric_mean, median
from typing import Any, ClassVar

import altair as alt

from virtoll.analysis.conditions import Condition
from virtoll.analysis.knees import bound_words, contradictions, told
from virtoll.analysis.metrics import KNEE
from virtoll.analysis.ratios import Toll
from virtoll.record.knee import Knee, Objective
from virtoll.record.model import Arm, Measured
from virtoll.record.objective import short
from virtoll.report.drawing import Figure, Layout, Row, arm_scales, data, legend, log_ticks, styled
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING, plus_minus
from virtoll.report.palette import MUTED
from virtoll.report.sections.base import Section
from virtoll.report.sections.tolls import same, unsure
from virtoll.report.tables import Cell, Table
from virtoll.report.words import NO_NATIVE, drawn_of, join, left_out, no_answer, not_measured, with_fewer, worse


class KneeSection(Section):
    """The answer of a study that searches for the knee."""

    name: ClassVar[str] = "knee"
    summary: ClassVar[str] = "How much does each platform carry?"
    rank: ClassVar[int] = 90
    of_each_server: ClassVar[bool] = True

    def applies(self, findings: Findings) -> bool:
        """Where it was searched for."""
        return findings.is_search

    def answer(self, findings: Findings) -> list[str]:
        """What native carries, and the others against it."""
        return [NO_NATIVE] if findings.matrix.baseline is None else [_answer(findings)]

    def text(self, findings: Findings) -> list[str]:  # noqa: ARG002
        """Of what the costs beside the knee are."""
        return ["CPU time and memory are those at each arm's own knee: of the windows that decided it."]

    def figures(self, findings: Findings) -> list[Figure]:
        """What each window told, by its intensity: a figure for each part of the objective that ended a search."""
        missed = _missed(_searches(findings))
        objective = [each for _, knee in _searches(findings)[:1] for each in knee.objective]
        parts = enumerate((each for each in objective if each.text in missed), 1)
        made = (_windows(findings, objective, number) for number, objective in parts)
        return [figure for figure in made if figure is not None]

    def tables(self, findings: Findings) -> list[Table]:
        """An arm a row."""
        return [_knees(findings).placed(look="matrix")]

    def method(self, findings: Findings) -> list[str]:
        """By which rule it is found; and how coarse that is of few users, who are counted."""
        searches = [knee for _, knee in _searches(findings)]
        told = [_METHOD.format(knee.windows, step=knee.precision * 100) for knee in searches[:1]]
        steps = [knee.upper / knee.lower - 1 for knee in searches if knee.lower and knee.upper is not None]
        if steps and max(steps) > 1.001 * searches[0].precision:
            told.append(_COARSE.format(unit=searches[0].unit, step=max(steps) * 100))
        return told


_COARSE = (
    "**Of few {unit} a step is one more**, here up to {step:.0f} % more: knees that are alike in all deployments may "
    "differ by as much, and no interval holds that."
)
_METHOD = (
    "**The knee** is the largest intensity at which most of {0} fresh windows meet the objective, where of {0} at the "
    "next, at most {step:.3g} % higher, most do not (RFC 9971: one search goal, its exceed ratio 0.5). The windows "
    "that led there do not count. Where the steps lie is drawn for each trial, so that what they cut off is in the "
    "interval. A window that missed the objective while the generator was in the way tells nothing of the service."
)


def _searches(
    findings: Findings, arm: Arm | None = None, condition: Condition | None = None
) -> list[tuple[Measured, Knee]]:
    """The searches of valid trials, of one arm and condition where they are given."""
    found = []
    for (_, _, label, of), trial in findings.matrix.cells.items():
        measured = trial.record.measured
        is_asked = (arm is None or arm.label == label) and (condition is None or condition == of)
        if is_asked and measured is not None and measured.knee is not None:
            found.append((measured, measured.knee))
    return found


def _answer(findings: Findings) -> str:
    tolls = [findings.tolls(KNEE).total(arm) for arm in findings.treatments]
    measured = [toll for toll in tolls if toll is not None and toll.ratio is not None]
    barred = [toll for toll in tolls if toll is not None and toll.zeros]
    if not measured and not barred:
        return no_answer(findings)
    planned = len(findings.matrix.conditions)
    judged = [toll for toll in measured if toll.verdict.kind in ("costs", "gains")]
    parts = [same(measured, planned), *(_one(toll, planned) for toll in judged), unsure(measured, planned)]
    if barred:
        parts.append("no ratio: " + ", ".join(f"{toll.arm.label} ({_why(findings, toll)})" for toll in barred))
    unseen = [toll.arm for toll in tolls if toll is not None and toll.ratio is None and toll not in barred]
    parts.append(not_measured(findings, unseen))
    unit, under = findings.headline.unit, join(findings.run.objective)
    return f"{_native(findings)}{unit} under {under}, against native: {'; '.join(part for part in parts if part)}."


def _native(findings: Findings) -> str:
    """``native+host carries 9,100 ± 200 `` where that is one number; else only what is compared."""
    matrix = findings.matrix
    if matrix.baseline is None or len(matrix.conditions) > 1:
        return "The knee in "
    estimate = matrix.absolute(KNEE, matrix.baseline, matrix.conditions[0])
    return "The knee in " if estimate is None else f"{matrix.baseline.label} carries {plus_minus(estimate)} "


def _one(toll: Toll, planned: int) -> str:
    more = worse(toll)
    if toll.verdict.kind == "gains":
        more = toll.verdict.words.partition(" ")[2].replace(" % [", " % more [")
    return with_fewer(f"{toll.arm.label} carries {more}", toll, planned)


def _why(findings: Findings, toll: Toll) -> str:
    """The bounds that stand in a ratio's way: the arm's own, or else those of a native it is compared with."""
    if own := _bounds(findings, toll.arm):
        return own
    natives = ((native, _bounds(findings, native)) for native in findings.matrix.against(toll.arm))
    return next((f"{native.label}: {bounds}" for native, bounds in natives if bounds), toll.verdict.words)


def _bounds(findings: Findings, arm: Arm, condition: Condition | None = None) -> str:
    """The bounds that an arm's searches ended at, under one condition or any: of each kind the lowest, and of how many
    trials, if not of all.
    """
    searches = _searches(findings, arm, condition)
    kinds: dict[tuple[str, bool], list[tuple[Measured, Knee]]] = {}
    for measured, knee in searches:
        if knee.value is None:
            kinds.setdefault((knee.ended, knee.lower is None), []).append((measured, knee))
    found = []
    for mine in kinds.values():
        lowest = min(mine, key=lambda search: search[1].lower or 0.0)
        of = f", in {len(mine)} of {len(searches)} trials" if len(mine) < len(searches) else ""
        found.append(bound_words(*lowest) + of)
    return "; ".join(found)


# -- the table --------------------------------------------------------------------------------------------


def _knees(findings: Findings) -> Table:
    matrix = findings.matrix
    many = len(matrix.conditions) > 1
    rows = []
    for condition in matrix.conditions:
        for arm in findings.arms:
            searches = _searches(findings, arm, condition)
            label = f"{arm.label}, {matrix.label(condition)}" if many else arm.label
            rows.append((Cell(label), *_cells(findings, arm, condition, searches)))
    value = f"Knee [{findings.headline.unit}]"
    heads = ("Arm", value, "Between", "Missed at the next step", "Windows", "Contradicting")
    notes = (
        "Knee: mean over blocks ± half-width of its 95 % interval. Between: the largest intensity that was confirmed "
        "to meet the objective and the next, which was confirmed not to, lowest and highest over blocks; without an "
        "end where a search ended at a bound. Windows: "
        "median of a search. Contradicting: of all windows, those that missed the objective at the knee or below it, "
        "or met it above.",
    )
    caption = f"The largest load under {join(findings.run.objective)}" if findings.run.objective else "Knees"
    return Table("knees", caption, heads, tuple(rows), notes)


def _cells(
    findings: Findings, arm: Arm, condition: Condition, searches: list[tuple[Measured, Knee]]
) -> tuple[Cell, ...]:
    if not searches:
        why = findings.matrix.why_missing(KNEE, arm, condition)
        return Cell(MISSING, "missing", why), *[Cell(MISSING, "missing")] * 4
    knees = [knee for _, knee in searches]
    windows = [len(knee.steps) for knee in knees]
    against = sum(contradictions(measured, knee) for measured, knee in searches)
    return (
        _value(findings, arm, condition),
        Cell(_range(knees)),
        Cell(", ".join(_missed(searches)) or MISSING),
        Cell(f"{median(windows):g}"),
        Cell(f"{against} of {sum(windows)}"),
    )


def _value(findings: Findings, arm: Arm, condition: Condition) -> Cell:
    estimate = findings.matrix.absolute(KNEE, arm, condition)
    if estimate is not None:
        return Cell(plus_minus(estimate))
    lost, n = findings.matrix.censored(KNEE, arm, condition)
    return Cell(f"a bound in {lost} of {n}", "missing", _bounds(findings, arm, condition))


def _range(knees: list[Knee]) -> str:
    """From the lowest that is known to be met to the highest that is known not to be; open where a search found none.

    A knee below the least lies somewhere from 0 on.
    """
    lowers = [knee.lower for knee in knees if knee.lower is not None]
    uppers = [knee.upper for knee in knees if knee.upper is not None]
    least = min(lowers) if len(lowers) == len(knees) else 0.0
    if len(uppers) == len(knees):
        return f"{told(least)} – {told(max(uppers))}"
    return f"{told(least)} or more" if lowers else MISSING


def _missed(searches: list[tuple[Measured, Knee]]) -> list[str]:
    """What was missed by the windows that decided the next intensity, each part of the objective once."""
    found: dict[str, None] = {}
    for measured, knee in searches:
        for number in knee.deciding([window.at for window in measured.windows], knee.upper):
            found |= dict.fromkeys(knee.steps[number].missed)
    return list(found)


# -- the figure -------------------------------------------------------------------------------------------


def _windows(findings: Findings, objective: Objective, number: int) -> Figure | None:
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    shown = findings.shown_conditions(4)
    cells = [(arm, condition) for condition in shown for arm in arms]
    rows = [row for arm, condition in cells for row in _rows(findings, arm, condition, objective.metric)]
    knees = [row["x"] for row in rows if row["what"] == "knee"]
    least = min(knees, default=0.0) / _SHOWN
    rows = [row for row in rows if row["x"] >= least]
    values = [row["value"] for row in rows if row["value"] is not None and row["value"] > 0]
    if not values:
        return None
    log = objective.unit == "ms"
    extent = [min([objective.bound, *values]) / 1.5 if log else 0.0, max([objective.bound, *values]) * 1.5]
    edge, worst = ("upper", extent[1]) if objective.better == "less" else ("lower", extent[0])
    for row in rows:
        row["value"] = worst if row["value"] is None else max(extent[0], row["value"])
    draw = _chart(findings, arms, rows, objective, extent, log=log)
    from_on = f" from a {_IN_WORDS} of the lowest knee on" if knees else ""
    upright = " Upright lines: the knees, geometric means over blocks." if knees else ""
    if missing := left_out(findings, KNEE, shown):
        upright += f" Knees are {missing[0].lower()}{missing[1:]}"
    caption = (
        f"The windows of all searches, at their intensities{from_on}; dashed: "
        f"{objective.text}. Filled marks met the whole objective, rings did not, or tell nothing of the service, for "
        f"the generator was in the way; at the {edge} edge lies what is worse than any value, for it is among the "
        f"failed, or nobody was served.{upright} "
        f"{'Both scales are' if log else 'The intensity is'} logarithmic."
    )
    panels = {row["panel"] for row in rows}
    caption += drawn_of(findings, [c for c in shown if findings.matrix.label(c) in panels])
    question = f"How much does each platform carry before {objective.text} is missed?"
    return Figure(f"knee-windows-{number}", question, caption, draw)


_SHOWN, _IN_WORDS = 4, "quarter"  # below, next to nothing happens


def _rows(findings: Findings, arm: Arm, condition: Condition, metric: str) -> list[Row]:
    """A row a window, and one for the knee where it is known."""
    head = {"arm": arm.label, "panel": findings.matrix.label(condition)}
    rows: list[Row] = [
        {**head, "x": window.at, "value": step.values[metric], "what": "met" if step.told == "met" else "missed"}
        for measured, knee in _searches(findings, arm, condition)
        for window, step in zip(measured.windows, knee.steps, strict=True)
        if metric in step.values
    ]
    if not findings.matrix.censored(KNEE, arm, condition)[0]:
        lowers = [knee.lower for _, knee in _searches(findings, arm, condition) if knee.lower]
        rows += [{**head, "x": geometric_mean(lowers), "value": 0.0, "what": "knee"}] if lowers else []
    return rows


def _chart(
    findings: Findings, arms: list[Arm], rows: list[Row], objective: Objective, extent: list[float], *, log: bool
) -> Any:
    """Points, an arm a colour and a shape, and the bound."""

    def draw(layout: Layout) -> alt.TopLevelMixin:
        look = arm_scales(findings, arms)
        titles = list(dict.fromkeys(row["panel"] for row in rows))
        columns = min(2 if layout.columns > 1 else 1, len(titles))
        x = alt.X("x:Q").scale(type="log", nice=False, padding=8)
        x = x.axis(title=findings.headline.unit, format=",~r", tickCount=8, labelOverlap="greedy")
        scale = alt.Scale(type="log" if log else "linear", domain=extent, nice=False)
        name = short(objective.metric) + (f" [{objective.unit}]" if objective.unit else "")
        marks = log_ticks(*extent) if log else alt.Undefined
        y = alt.Y("value:Q").scale(scale).axis(title=name, format=",~r", values=marks, domain=False)
        key = legend([arm.label for arm in arms], layout.width - 70, symbolOpacity=1)
        colour = look["color"].legend(**key)
        base = alt.Chart().encode(x=x, y=y, color=colour, shape=look["shape"].legend(**key))
        layers = alt.layer(
            alt.Chart()
            .mark_rule(color=MUTED[0], strokeWidth=1, strokeDash=[4, 3])
            .encode(y=alt.datum(objective.bound)),
            base.mark_point(filled=True, size=42, opacity=0.85).transform_filter("datum.what == 'met'"),
            base.mark_point(filled=False, size=42, strokeWidth=1.4).transform_filter("datum.what == 'missed'"),
            alt.Chart().mark_rule(strokeWidth=1.2).encode(x=x, color=colour).transform_filter("datum.what == 'knee'"),
            data=data(rows),
            width=layout.panel(columns),
            height=230,
        )
        if len(titles) == 1:
            return styled(layers)
        facet = layers.facet(facet=alt.Facet("panel:N").sort(titles), columns=columns)
        return styled(facet.resolve_scale(x="independent"))

    return draw
