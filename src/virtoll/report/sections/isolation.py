"""From which neighbours each platform protects a victim: the matrix of arms and neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import altair as alt

from virtoll.analysis.isolation import HARMS, REFUSED, Exposure, Isolation, is_polite
from virtoll.analysis.metrics import Metric
from virtoll.analysis.ratios import tested_of
from virtoll.analysis.rules import rule_of
from virtoll.record.model import Arm
from virtoll.report import ending, method, tables
from virtoll.report.drawing import Figure, Layout, Row, data, styled, wrapped
from virtoll.report.findings import Findings
from virtoll.report.isolation import (
    apart,
    called,
    change_in,
    harms,
    heads,
    lines,
    not_compared,
    recovery_words,
    short,
    too_few,
    unanswered,
    uncompared,
    whole,
    with_interval,
)
from virtoll.report.numbers import MISSING
from virtoll.report.palette import BAND, BETTER, INK, PAPER, WORSE
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table
from virtoll.report.words import join
from virtoll.units import exact_percent, percent


class Protection(Section):
    """The answer of a study of neighbours."""

    name: ClassVar[str] = "isolation"
    summary: ClassVar[str] = "From which neighbours is a victim protected?"
    rank: ClassVar[int] = 120

    def applies(self, findings: Findings) -> bool:
        """With neighbours."""
        return findings.is_isolation

    def answer(self, findings: Findings) -> list[str]:
        """What is compared, then for each arm which neighbours it is protected from, and what the others take."""
        return answer_of(findings)

    def figures(self, findings: Findings) -> list[Figure]:
        """The matrix."""
        return [figure for figure in [_heat_map(findings)] if figure is not None]

    def tables(self, findings: Findings) -> list[Table]:
        """Each quantity's losses with their intervals."""
        told = findings.isolation
        return [
            losses(told, metric, findings.requests).placed("isolation", look="probes", folded=False)
            for metric in told.shown
        ]

    def method(self, findings: Findings) -> list[str]:
        """What is compared with what."""
        return [
            method.one_observation(findings),
            _AGAINST_ITSELF + method.log_scale(findings),
            _NO_ANSWER,
            *_of_a_load(findings),
            _floor(findings),
            method.words(findings),
            ending.promise(findings),
            f"{method.company(findings)} docs/ISOLATION.md says what each figure can and cannot tell.",
        ]


_AGAINST_ITSELF = (
    "**Each arm against itself.** A victim beside an aggressor is compared with the same arm's victim beside a polite "
    "neighbour of the same size, in the same block; native is an arm like the others. What the platform costs, and "
    "what sharing costs, cancel. "
)
_NO_ANSWER = (
    "**No answer is a result.** A victim that did not answer, or died, is counted as such and enters no ratio; where "
    "it was so beside the polite neighbour in some block, the others are not compared: they would be held against the "
    "better ones. An aggressor that could not start is a reason, never a zero."
)


def _of_a_load(findings: Findings) -> list[str]:
    if findings.is_programme:
        return []
    work, unit = findings.requests, findings.request
    return [
        f"**Goodput counts by intended start.** {work[:1].upper()}{work[1:]} come on a schedule whatever the service "
        "does; goodput is those answered correctly within the time-out, of those that were to start before, during "
        f"and after the aggressor's time. Percentiles are of all of these, a {unit} without an answer slower than any: "
        "one that lies among those has no value, which is worse than any. Those of the course's tenths of a second are "
        "of the answered ones, so read them with the goodput."
    ]


def _floor(findings: Findings) -> str:
    if findings.matrix.floor is None:
        return "**The noise floor** is not known: this run has no second native arm."
    return "**The noise floor** is how far native's losses lie from those of a second native arm, or could by chance."


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
    "not compared": ["not", "compared"],
}
_STRONG = f"datum.step == '{WORSE[-1][0]}' || datum.step == '{_HARM}'"
_SHARING = "; the polite row against before the neighbour began: what sharing alone costs"


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
            .encode(text=f"{place}{'_narrow' if narrow else ''}:N", color=alt.ColorValue(ink))
            .transform_filter(which)
            for place, dy in (("only", 0), ("above", -_LINE / 2), ("below", _LINE / 2))
            for ink, which in ((PAPER[0], _STRONG), (INK[0], f"!({_STRONG})"))
        ]
        cells = base.mark_rect(aria=True).encode(color=fill, description="whole:N")
        return styled(alt.layer(cells, *texts, width=layout.width - room - 30, height=38 * len(names)))

    seen = " (above) and ".join(short(metric) for metric in told.shown[:2])
    sharing = "" if told.shown[0].probe else _SHARING
    caption = (
        f"Each arm's {seen} (below) against its own beside a polite neighbour, paired within blocks{sharing}. Colour "
        "by the worse of the two: up to 1.5, 3 and 10 times worse, and beyond, where a latency was not answered too. "
        "Grey: no difference shown, or below 10 %; blue: better; a question mark: chance may have made it. Where there "
        "is neither colour nor grey but full contrast, the victim did not answer, died, or the host was harmed. "
        "Intervals are in the tables below, and show where a pointer rests."
    )
    return Figure("isolation", "From which neighbours is a victim protected?", caption, draw)


def _worse(exposure: Exposure) -> float:
    """How many times worse at the worst; a latency that is among what was not answered is worse than any value."""
    if exposure.unanswered:
        return float("inf")
    worst = exposure.worst
    return 1.0 if worst is None or worst.worse is None else worst.worse.value


def _cell(told: Isolation, exposure: Exposure) -> Row:
    worst = exposure.worst
    worse = _worse(exposure)
    if exposure.kind in HARMS:
        step = _HARM
    elif exposure.kind in (REFUSED, "missing") or (worst is None and not exposure.unanswered):
        step = _NOTHING
    elif exposure.kind == "gains" and worse < 1 / 1.1:
        step = "better"
    elif exposure.kind == "same" or worse < 1.1:
        step = "same"
    else:
        step = str(next(bound for bound, _ in WORSE if worse < bound or bound == float("inf")))
    name = told.name(exposure.condition)
    why = "not compared" if uncompared(told, exposure) else "too few answers"
    words, brief = lines(exposure, why=why), lines(exposure, brief=True, why=why)
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


def _head(told: Isolation, exposure: Exposure) -> Cell:
    return Cell(told.name(exposure.condition), "", "against before it began" if is_polite(exposure.condition) else "")


def losses(told: Isolation, metric: Metric, work: str) -> Table:
    """One metric beside each neighbour against beside the polite one, with intervals and verdicts."""
    rows = []
    for condition in told.conditions_of(metric):
        exposures = [told.exposure(arm, condition) for arm in told.arms]
        if is_polite(condition) and metric.probe:  # a probe sees no before
            continue
        rows.append((_head(told, exposures[0]), *(_loss(told, exposure, metric, work) for exposure in exposures)))
    rule = rule_of(told.matrix.run.plan)
    beside = [exposure for exposure in told.exposures.values() if not is_polite(exposure.condition)]
    known = [toll for exposure in beside if (toll := exposure.tolls.get(metric.name)) is not None]
    rates = method.error_rates(method.comparisons(tested_of(known, rule), "this table"), rule)
    notes = (
        "Ratios to the same arm beside the polite neighbour, paired within blocks, with 95 % intervals; only trials in "
        f"which the victim answered. Unanswered: the percentile lies among the {work} without an answer, worse than "
        f"any, so there is no ratio. {rates} {_noise(told, metric)}",
    )
    return Table(
        f"losses-{tables.file_name(metric.name)}",
        f"{_what(metric)}, beside each neighbour against beside a polite one",
        heads(told),
        tuple(rows),
        notes,
    )


def _noise(told: Isolation, metric: Metric) -> str:
    """How far native's losses differ from native's."""
    if told.matrix.floor is None:
        return "The run has no second native arm, so the noise floor is not known."
    floor = told.floors[metric.name]
    if floor is None:
        return "The noise floor is unknown: beside no neighbour do both natives have a ratio in each of enough blocks."
    return f"Noise floor (native's losses against those of native again): {percent(floor * 100)} %."


def _what(metric: Metric) -> str:
    """What the cells say: the change of what is better more of (`with_interval`), the rise of anything else."""
    return f"Change of {short(metric)}" if metric.better == "more" else metric.title


def _loss(isolation: Isolation, exposure: Exposure, metric: Metric, work: str) -> Cell:
    toll = exposure.tolls.get(metric.name)
    told = "; ".join(harms(exposure))
    if exposure.kind == "missing":
        return Cell(MISSING, "missing", exposure.missing)
    if toll is not None and toll.zeros:
        return Cell("not judged", toll.verdict.kind, "; ".join([*harms(exposure), toll.verdict.words]))
    if toll is None or toll.ratio is None:
        told = "; ".join([*harms(exposure), *(_unanswered(exposure, metric))])
        kind = "costs" if exposure.harm or metric.name in exposure.unanswered else "missing"
        why = not_compared(isolation, exposure) or ("" if told else too_few(work))
        return Cell(told or MISSING, kind, exposure.refused or why)
    # Of a cost the interval is told already.
    words = toll.verdict.kind if toll.verdict.kind in ("costs", "gains") else toll.verdict.words
    return Cell(with_interval(toll.ratio, metric), toll.verdict.kind, "; ".join(part for part in (told, words) if part))


def _unanswered(exposure: Exposure, metric: Metric) -> list[str]:
    """``unanswered in 1 of 3``: the percentile lies among what was not answered."""
    count = exposure.unanswered.get(metric.name, 0)
    return [f"unanswered in {count} of {exposure.n}"] if count else []


# An estimate that chance may have made is named in the answer from this ratio on; the table has the others.
_WORTH_NAMING = 1.5


def answer_of(findings: Findings) -> list[str]:
    """What is compared, then for each arm which neighbours it is protected from, what the others take, and how the run
    came to its end.
    """
    told = findings.isolation
    victim = str(findings.run.study.get("service") or " and ".join(dict.fromkeys(_probes(findings))))
    if not told.has_control:
        return ["There is no answer: the study has no polite neighbour to compare with."]
    measured = [arm for arm in told.arms if any(told.exposure(arm, c).n for c in told.conditions)]
    if not measured:
        return ["There is no answer yet: no valid trial has a neighbour."]
    first = (
        f"What a misbehaving neighbour takes from {victim}, each platform against itself beside a polite neighbour of "
        "the same size:"
    )
    sentences = [_arm(told, arm) for arm in measured]
    skipped = [skipped.arm.label for skipped in findings.run.environment.skipped]
    unseen = skipped + [arm.label for arm in told.arms if arm not in measured]
    last = [f"{join(unseen)} {'was' if len(unseen) == 1 else 'were'} not measured."] if unseen else []
    return [first, *sentences, *last, *ending.told(findings)]


def _probes(findings: Findings) -> list[str]:
    return [str(case["probe"]) for case in findings.run.programme]


def _arm(told: Isolation, arm: Arm) -> str:
    exposures = [told.exposure(arm, condition) for condition in told.conditions if not is_polite(condition)]
    names = {id(exposure): told.name(exposure.condition) for exposure in exposures}
    kinds: dict[str, list[Exposure]] = {}
    for exposure in exposures:
        kinds.setdefault(exposure.kind, []).append(exposure)
    parts = []
    if same := kinds.get("same"):
        margin = max(toll.margin for exposure in same for toll in exposure.tolls.values())
        parts.append(
            f"protected from {join([names[id(one)] for one in same])} (no difference within {exact_percent(margin)} %)"
        )
    for harm in HARMS:
        parts += [f"beside {names[id(one)]} {_harm(told, one)}" for one in kinds.get(harm, [])]
    parts += [
        f"{names[id(one)]} costs {_costs(one)}{_gains(one, ', but')}" for one in _largest_first(kinds.get("costs", []))
    ]
    parts += [f"beside {names[id(one)]} it{_gains(one)}" for one in kinds.get("gains", [])]
    without, unsure = apart(told, kinds.get("unsure", []))
    for why, those in without.items():
        named = join([names[id(one)] for one in those])
        parts.append(f"not compared beside {named} (beside the polite neighbour: {why})")
    if unsure:
        parts.append("cannot tell yet: " + ", ".join(_unsure(names[id(one)], one) for one in _largest_first(unsure)))
    parts += [f"{names[id(one)]} could not start: {_clause(one.refused)}" for one in kinds.get(REFUSED, [])]
    if missing := kinds.get("missing"):
        parts.append(f"not measured beside {join([names[id(one)] for one in missing])}")
    return f"{arm.label}: {'; '.join(parts)}." + _sharing(told, arm)


_BECAME = {
    "host harmed": "the host was harmed",
    "victim died": "the victim died",
    "did not answer": "it did not answer",
    REFUSED: "the neighbour could not start",
}


def _harm(told: Isolation, exposure: Exposure) -> str:
    """``it did not answer in 1 of 3 (recovery: 0.4 s)``."""
    each = (word.partition(" in ") for word in harms(exposure))
    words = join([f"{_BECAME[what]}{mark}{of}" for what, mark, of in each])
    recovery = recovery_words(told, exposure)
    return f"{words} (recovery: {recovery})" if recovery else words


def _costs(exposure: Exposure) -> str:
    """What is called a cost, each with its interval, and what no interval can hold."""
    return join(called(exposure, "costs") + unanswered(exposure))


def _gains(exposure: Exposure, head: str = "") -> str:
    """`` gains p99 × 0.8 [0.7, 0.9]``; "" where nothing is called a gain."""
    gains = called(exposure, "gains")
    return f"{head} gains {join(gains)}" if gains else ""


def _unsure(name: str, exposure: Exposure) -> str:
    worst = exposure.worst
    large = worst is not None and worst.worse is not None and worst.worse.value >= _WORTH_NAMING
    told = [change_in(worst)] if worst is not None and large else []
    told += unanswered(exposure)
    parts = [*([join(told)] if told else []), _gains(exposure).strip()]
    parts += [f"{short(toll.metric)}: {toll.verdict.words}" for toll in exposure.tolls.values() if toll.zeros]
    words = "; ".join(part for part in parts if part)
    return f"{name} ({words})" if words else name


def _largest_first(exposures: Sequence[Exposure]) -> list[Exposure]:
    return sorted(exposures, key=_worse, reverse=True)


def _sharing(told: Isolation, arm: Arm) -> str:
    """What a polite neighbour costs already, where it costs something; under which condition, of several."""
    polite = [told.exposure(arm, condition) for condition in told.conditions if is_polite(condition)]
    costs = {told.name(one.condition).partition(", ")[2]: _costs(one) for one in polite if one.kind == "costs"}
    each = [f"{words} ({under})" if under else words for under, words in costs.items()]
    return f" Sharing with a polite neighbour already costs {'; '.join(each)}." if costs else ""


def _clause(reason: str) -> str:
    """A reason in the middle of a sentence: its first line, without its full stop."""
    return (reason.splitlines() or ["no reason was given"])[0].rstrip(".")
