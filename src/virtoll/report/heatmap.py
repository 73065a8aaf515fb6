"""The big picture of a programme: how many times worse than native each arm is in each probe."""

from __future__ import annotations

import altair as alt

from virtoll.analysis.ratios import Toll
from virtoll.report.drawing import Figure, Layout, Row, data, styled
from virtoll.report.findings import Findings
from virtoll.report.numbers import significant
from virtoll.report.palette import BAND, BETTER, INK, PAPER, WORSE


def heat_map(findings: Findings) -> Figure | None:
    """Probes down, arms across; None where nothing was compared."""
    arms = [arm for arm in findings.arms if arm.role == "treatment"]
    rows = []
    for metric in findings.judged:
        for arm in arms:
            toll = findings.tolls(metric.name).total(arm)
            if toll is not None and toll.worse is not None:
                rows.append(_cell(metric.title, arm.label, toll, toll.worse.value))
    if not rows:
        return None
    names = list(dict.fromkeys(row["probe"] for row in rows))
    labels = [arm.label for arm in arms if any(row["arm"] == arm.label for row in rows)]
    steps = {"same": BAND, "better": BETTER, **{str(step): pair for step, pair in WORSE}}

    def draw(layout: Layout) -> alt.TopLevelMixin:
        room = layout.labels + (80 if layout.columns > 1 else 12)
        axis = alt.Axis(
            title=None,
            domain=False,
            ticks=False,
            labelColor=INK[0],
            labelFontSize=11.5 if layout.columns > 1 else 10,
            labelLimit=room,
        )
        top = alt.Axis(
            title=None, domain=False, ticks=False, labelColor=INK[0], labelFontSize=11.5,
            orient="top", labelAngle=-30 if layout.columns > 1 else -60,
        )  # fmt: skip
        y = alt.Y("probe:N").scale(domain=names, paddingInner=0.06).axis(axis)
        x = alt.X("arm:N").scale(domain=labels, paddingInner=0.03).axis(top)
        fill = alt.Color("step:N").scale(domain=list(steps), range=[pair[0] for pair in steps.values()]).legend(None)
        base = alt.Chart(data(rows)).encode(x=x, y=y)
        text = base.mark_text(fontSize=11 if layout.columns > 1 else 9.5)
        strong = f"datum.step == '{WORSE[-1][0]}'"
        return styled(
            alt.layer(
                base.mark_rect().encode(color=fill),
                text.encode(text="words:N", color=alt.value(PAPER[0])).transform_filter(strong),
                text.encode(text="words:N", color=alt.value(INK[0])).transform_filter(f"!({strong})"),
            ).properties(width=layout.width - room - 40, height=23 * len(names))
        )

    caption = (
        "How many times worse than native: 2 is half the throughput, or twice the time. Geometric means over a probe's "
        "cases. Grey: no difference shown, or with a question mark cannot tell yet; blue: better than native."
    )
    return Figure("tolls", "What does each platform cost?", caption, draw)


def _cell(probe: str, arm: str, toll: Toll, worse: float) -> Row:
    kind = toll.verdict.kind
    if kind == "costs":
        step = str(next(bound for bound, _ in WORSE if worse < bound or bound == float("inf")))
    else:
        step = "better" if kind == "gains" else "same"
    words = f"{worse:.2f}" if worse < 9.95 else significant(worse) if worse < 99.5 else f"{worse:,.0f}"
    return {"probe": probe, "arm": arm, "step": step, "words": f"{words}{' ?' if kind == 'unsure' else ''}"}
