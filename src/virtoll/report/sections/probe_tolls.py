"""What each platform costs in each probe of a programme."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import altair as alt

from virtoll.analysis.ratios import Toll
from virtoll.record.model import Arm
from virtoll.report import ending, method, narrowing
from virtoll.report.drawing import Figure, Layout, Row, data, styled
from virtoll.report.findings import Findings
from virtoll.report.numbers import significant
from virtoll.report.palette import BAND, BETTER, INK, PAPER, WORSE
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table, verdict
from virtoll.report.words import NO_NATIVE, fewer, join, mid, no_answer, not_measured, worse
from virtoll.units import exact_percent

_MOST_NAMED = 3  # costs of one arm that the answer names; the table has the others
_MOST_FREE = 5


class ProbeTolls(Section):
    """The answer of a programme of probes."""

    name: ClassVar[str] = "probe-tolls"
    summary: ClassVar[str] = "What does each platform cost, probe by probe?"
    rank: ClassVar[int] = 110

    def applies(self, findings: Findings) -> bool:
        """With a programme of probes, and no neighbours."""
        return findings.is_programme and not findings.is_isolation

    def answer(self, findings: Findings) -> list[str]:
        """What each arm gives away: what shows no difference, and its largest costs."""
        return (
            [NO_NATIVE]
            if findings.matrix.baseline is None
            else [
                *_answer(findings),
                *ending.told(findings),
                *narrowing.told(findings),
            ]
        )

    def figures(self, findings: Findings) -> list[Figure]:
        """Probes down, arms across."""
        return [figure for figure in [heat_map(findings)] if figure is not None]

    def tables(self, findings: Findings) -> list[Table]:
        """The same with intervals."""
        return [tolls(findings).placed("tolls", look="probes", folded=False, short="The tolls with their intervals")]

    def method(self, findings: Findings) -> list[str]:
        """What is compared, and in which words."""
        return [
            method.one_observation(findings),
            method.paired(findings),
            method.noise_floor(findings),
            method.words(findings),
            ending.promise(findings),
        ]


def heat_map(findings: Findings) -> Figure | None:
    """Probes down, arms across; None where nothing was compared."""
    arms = [arm for arm in findings.arms if arm.role == "treatment"]
    rows, few = [], []
    for metric in findings.judged:
        for arm in arms:
            toll = findings.tolls(metric.name).total(arm)
            if toll is not None and toll.worse is not None:
                rows.append(_cell(metric.title, arm.label, toll, toll.worse.value))
                few += [f"{mid(metric.title)} of {arm.label} {words}"] if (words := _fewer(findings, toll)) else []
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
                text.encode(text="words:N", color=alt.ColorValue(PAPER[0])).transform_filter(strong),
                text.encode(text="words:N", color=alt.ColorValue(INK[0])).transform_filter(f"!({strong})"),
                width=layout.width - room - 40,
                height=23 * len(names),
            )
        )

    caption = (
        "How many times worse than native: 2 is half the throughput, or twice the time. Geometric means over a probe's "
        f"cases{f' ({_some(few)})' if few else ''}. Grey: no difference shown, or with a question mark cannot tell "
        "yet; blue: better than native."
    )
    return Figure("tolls", "What does each platform cost?", caption, draw)


def _cell(probe: str, arm: str, toll: Toll, worse: float) -> Row:
    kind = toll.verdict.kind
    if kind == "costs":
        step = str(next(bound for bound, _ in WORSE if worse < bound or bound == float("inf")))
    else:
        step = "better" if kind == "gains" else "same"
    words = f"{worse:.2f}" if 0.1 <= worse < 9.95 else significant(worse) if worse < 99.5 else f"{worse:,.0f}"
    return {"probe": probe, "arm": arm, "step": step, "words": f"{words}{' ?' if kind == 'unsure' else ''}"}


def tolls(findings: Findings) -> Table:
    """What stands for each probe, a probe a row, an arm a column."""
    arms = [arm for arm in findings.arms if arm.role != "baseline"]
    rows = []
    for metric in findings.judged:
        count = len(findings.matrix.conditions_of(metric.name))
        head = Cell(metric.title, "", f"{metric.group}{f', {count} cases' if count > 1 else ''}")
        table = findings.tolls(metric.name)
        rows.append((head, *(verdict(table.total(arm), count) for arm in arms)))
    heads = ("Probe", *(arm.label for arm in arms))
    notes = (
        "Each probe by the quantity that stands for it. Costs are worsenings against native in per cent with 95 % "
        "intervals, paired within blocks; geometric means where a probe has several cases, each case weighing alike. "
        + method.error_rates("the arms of a row", findings.rule),
    )
    return Table("tolls", "What each platform costs against native", heads, tuple(rows), notes)


def _answer(findings: Findings) -> list[str]:
    """What each arm gives away: what shows no difference, and its largest costs."""
    seen = [arm for arm in findings.treatments if _totals(findings, arm) or _without_ratio(findings, arm)]
    if not seen:
        return [no_answer(findings)]
    count = len(findings.judged)
    first = f"Against native, by what stands for each of {count} probe{'s' * (count != 1)}:"
    last = not_measured(findings, [arm for arm in findings.treatments if arm not in seen])
    silent = f"Nothing valid was measured by {join(findings.silent)}" if findings.silent else ""
    return [first, *(_arm(findings, arm) for arm in seen), *(f"{words}." for words in (last, silent) if words)]


def _totals(findings: Findings, arm: Arm) -> list[Toll]:
    """An arm's measured tolls in the judged headlines."""
    tolls = (findings.tolls(metric.name).total(arm) for metric in findings.judged)
    return [toll for toll in tolls if toll is not None and toll.ratio is not None]


def _without_ratio(findings: Findings, arm: Arm) -> list[Toll]:
    """An arm's tolls in the judged headlines that a 0, or what was lost, leaves without a ratio."""
    tolls = (findings.tolls(metric.name).total(arm) for metric in findings.judged)
    return [toll for toll in tolls if toll is not None and toll.zeros]


def _why(tolls: Sequence[Toll]) -> str:
    """What leaves these without a ratio, and in how many of them where that is not the same in all."""
    found = Counter(why for toll in tolls for why in _reasons(toll))
    if found.keys() == {_ZERO}:
        return f", of which {_ZERO}"
    each = found if len(found) == 1 else [f"in {count} {why}" for why, count in found.items()]
    return f" ({', '.join(each)})"


_ZERO = "a value is 0"


def _reasons(toll: Toll) -> list[str]:
    return [_ZERO] * (toll.zeros > toll.failed) + [f"it {toll.metric.censoring}"] * (toll.failed > 0)


def _arm(findings: Findings, arm: Arm) -> str:
    tolls = _totals(findings, arm)
    kinds = {kind: [toll for toll in tolls if toll.verdict.kind == kind] for kind in ("costs", "gains", "same")}
    parts = []
    if kinds["costs"]:
        largest = sorted(kinds["costs"], key=_size, reverse=True)
        more = len(largest) - _MOST_NAMED
        named = [_named(findings, toll, worse(toll)) for toll in largest[:_MOST_NAMED]]
        parts.append(
            ("costs most in " if more > 0 else "costs in ")
            + join(named)
            + (f", and in {more} more" if more > 0 else "")
        )
    if kinds["gains"]:
        named = [_named(findings, toll) for toll in kinds["gains"]]
        parts.append(f"better than native in {_some(named)}")
    if kinds["same"]:
        named = [_named(findings, toll) for toll in kinds["same"]]
        within = exact_percent(max(toll.margin for toll in kinds["same"]))
        is_whole = not any(_fewer(findings, toll) for toll in kinds["same"])
        what = f"all {len(named)}" if is_whole and len(named) == len(tolls) > 2 else _some(named)
        parts.append(f"no difference shown (within {within} %) in {what}")
    unsure = len(tolls) - sum(len(some) for some in kinds.values())
    if unsure:
        parts.append(f"cannot tell yet in {unsure}")
    without = _without_ratio(findings, arm)
    if without:
        parts.append(f"not judged in {len(without)}{_why(without)}")
    unseen = len(findings.judged) - len(tolls) - len(without)
    if unseen:
        parts.append(f"not measured in {unseen}")
    return f"{arm.label}: {'; '.join(parts)}."


def _fewer(findings: Findings, toll: Toll) -> str:
    """What `fewer` says, by the cases of the toll's probe."""
    return fewer(toll, len(findings.matrix.conditions_of(toll.metric.name)))


def _named(findings: Findings, toll: Toll, size: str = "") -> str:
    words = "; ".join(part for part in (size, _fewer(findings, toll)) if part)
    return mid(toll.metric.title) + (f" ({words})" if words else "")


def _some(names: Sequence[str]) -> str:
    """The first few of many."""
    more = len(names) - _MOST_FREE
    return join(names) if more <= 1 else f"{', '.join(names[:_MOST_FREE])} and {more} more"


def _size(toll: Toll) -> float:
    return 0.0 if toll.worse is None else toll.worse.value
