"""Advice for people and for programs. Every sentence names the figures that it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from virtoll.analysis.advice import STANDINGS, Candidate, Ranked, all_before, better_in
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.objectives import Held
from virtoll.analysis.ratios import Toll
from virtoll.report.advice import Advice, Part
from virtoll.report.numbers import interval
from virtoll.report.reservations import cautions
from virtoll.report.untold import at, figure, untold
from virtoll.report.words import fewer, join, lower, of_two_machines
from virtoll.units import exact_percent

_HEADS = {
    "fits": "Fit",
    "open": "Open: nothing speaks against them, and not all is shown",
    "does not fit": "Do not fit",
}


def as_text(advice: Advice) -> str:
    """The answer, each candidate with its figures, and what is not known."""
    elsewhere = list(dict.fromkeys(label for run in advice.runs for label in run.elsewhere))
    lines = [answer(advice), *of_two_machines(elsewhere), "", *_asked(advice)]
    for standing in STANDINGS:
        group = [place for place in advice.places if place.candidate.standing == standing]
        if group:
            lines += ["", f"{_HEADS[standing]}:"]
            lines += [line for place in group for line in _place(advice, place)]
    missing = untold(advice)
    if missing:
        lines += ["", "Not measured, or not shown; and what would tell:"]
        lines += [f"  {one.what}: {one.why}{f': `{one.command}`' if one.command else ''}" for one in missing]
    return "\n".join(lines)


def answer(advice: Advice) -> str:
    """One sentence: whom to take, by which figures."""
    of = {standing: [p for p in advice.places if p.candidate.standing == standing] for standing in STANDINGS}
    if of["fits"]:
        return _of_fitting(advice, of["fits"])
    if of["open"]:
        return " ".join(["Nothing is shown to fit.", *_of_open(advice, of["open"])])
    failing = "; ".join(f"{place.label} ({_failing(advice, place)})" for place in advice.places)
    return f"Nothing that was measured fits: {failing}."


def _of_open(advice: Advice, places: Sequence[Ranked]) -> Iterator[str]:
    quiet = [place for place in places if not any(place.candidate.failed.values()) and not place.candidate.in_vain]
    if quiet:
        named = join([_with_figures(advice, place) for place in quiet])
        yield f"Nothing speaks against {named}: below is what would tell."
    for place in places:
        yield from (f"{place.label} {failed}." for failed in dict.fromkeys(place.candidate.failed.values()) if failed)
        yield from (f"{place.label} {words} in {name}." for name, words in sorted(place.candidate.in_vain.items()))


def _of_fitting(advice: Advice, places: Sequence[Ranked]) -> str:
    """Whom of those that fit to take. Of one whose intervals are wide it may be known of nobody that he comes before
    it, and of nobody that he comes after: it is not named among those to take.
    """
    first, later = ([place for place in places if (place.rank == 1) is is_first] for is_first in (True, False))
    ahead = _ahead(places)
    leading = [place for place in first if all(place.label in ahead[other.label] for other in later)] or first
    named = join([_with_figures(advice, place) for place in leading])
    said = []
    if len(leading) > 1:
        said.append(f"Take any of {named}: they fit, and {_tie(leading)}{_after(leading, later, ahead)}.")
    elif behind := [place.label for place in later if leading[0].label in ahead[place.label]]:
        said.append(f"Take {named}: it fits, and comes before {join(behind)}.")
    else:
        said.append(f"Take {named}: {'it fits' if later else 'nothing else is shown to fit'}.")
    for place in first:
        if place not in leading:
            others = join([other.label for other in later if place.label not in ahead[other.label]])
            said.append(f"{_with_figures(advice, place)} may be better or worse than {others}: that is not known.")
    return " ".join(said)


def _ahead(places: Sequence[Ranked]) -> dict[str, set[str]]:
    """Who comes before each, and before those in turn."""
    before = {place.label: place.before for place in places}
    return {label: all_before(label, before) for label in before}


def _after(leading: Sequence[Ranked], later: Sequence[Ranked], ahead: Mapping[str, set[str]]) -> str:
    """Who is shown to come after whom: after all of them where nothing else is said."""
    of = {other.label: [place.label for place in leading if place.label in ahead[other.label]] for other in later}
    if all(len(labels) == len(leading) for labels in of.values()):
        one = len(later) == 1
        return f"; {join(list(of))} {'comes' if one else 'come'} after" if later else ""
    return "".join(f"; {label} comes after {join(labels)}" for label, labels in of.items() if labels)


def _tie(places: Sequence[Ranked]) -> str:
    """Whether those of one rank are known to be alike, or are only not told apart."""
    verdicts = (toll.verdict.kind for place in places for toll in place.candidate.tolls.values() if toll is not None)
    undecided = any(kind in ("unsure", "missing", "unjudged") for kind in verdicts)
    return "cannot be told apart yet" if undecided else "stay tied"


def _with_figures(advice: Advice, place: Ranked) -> str:
    """The arm, with its ratio where there is only one."""
    ratios = [(part, place.candidate.tolls[part.name]) for part in advice.parts if part.name in place.candidate.tolls]
    if len(ratios) != 1:
        return place.label
    ((part, toll),) = ratios
    if toll is None or toll.ratio is None:
        return place.label
    return f"{place.label} ({_ratio(part, toll)})"


def _failing(advice: Advice, place: Ranked) -> str:
    """Why it does not fit: what it lacks, and what it missed."""
    lacks = [f"{need}: no" for need, one in place.candidate.needs.items() if one.answer == "no"]
    missed = [
        f"{one.objective.text}: {figure(part, one)}"
        for part in advice.parts
        for one in place.candidate.held.get(part.name, ())
        if one.told == "missed"
    ]
    return ", ".join([*lacks, *missed])


def _asked(advice: Advice) -> Iterator[str]:
    for part in advice.parts:
        blocks, loops = part.findings.blocks, "".join(f", {loop} loop" for loop in part.findings.loops)
        yield (
            f"{part.name}: {lower(part.metric.title)} against native within blocks, over all {_over(part)} "
            f"({blocks} block{'s' * (blocks != 1)}{loops}; {part.findings.run.directory})"
        )
    for run in advice.runs:
        yield from (f"{run.run.directory.name}: {note}" for note in cautions(run))
    for objective in advice.objectives:
        yield f"objective: {objective}, by 95 % intervals of means over deployments, under every condition"
    if advice.needs:
        yield f"needs: {', '.join(advice.needs)}, as documented (`virtoll list platforms --features`)"


def _over(part: Part) -> str:
    return "levels at which all met the objective of the ramp" if part.met else "conditions"


def _place(advice: Advice, place: Ranked) -> Iterator[str]:
    fits = place.candidate.standing != "does not fit"
    is_native = place.candidate.arm.role == "baseline"
    yield f"  {f'{place.rank}. ' if fits else ''}{place.label}{': the others are compared with it' * is_native}"
    for part in advice.parts:
        if (toll := place.candidate.tolls.get(part.name)) is not None:
            ratio = _ratio(part, toll) if toll.ratio else lower(part.metric.title)
            yield f"       {part.name}: {ratio}: {toll.verdict.words}"
        for one in place.candidate.held.get(part.name, ()):
            yield f"       {part.name}: {_objective(part, one)}"
        for condition in place.candidate.lost.get(part.name, ()) if part.name in place.candidate.tolls else ():
            title = lower(part.metric.title)
            yield f"       {part.name}: {title} is not known{at(part, condition)}, and the ratio is of the others"
        if failed := place.candidate.failed.get(part.name):
            yield f"       {part.name}: it {failed}, and what is told is of the others, which are the better ones"
        if words := place.candidate.in_vain.get(part.name):
            yield f"       {part.name}: it {words}"
    if not place.candidate.tolls:
        yield "       nothing of it can be compared with native"
    for need, told in place.candidate.needs.items():
        yield f"       {need}: {told.answer}: {told.why}{f' [{told.source}]' if told.source else ''}"
    by_label = {other.label: other.candidate for other in advice.places}
    for label in place.before if fits else ():
        yield f"       after {label}: {'; '.join(_against(advice, by_label[label], place.candidate))}"
    for label in place.tied if fits else ():
        yield f"       tied with {label}: {_why_tied(advice, place.candidate, by_label[label])}"


def _objective(part: Part, one: Held) -> str:
    return f"{one.objective.text}: {one.told}: {figure(part, one)}"


def _against(advice: Advice, one: Candidate, other: Candidate) -> Iterator[str]:
    """By which figures one comes before another."""
    for part in advice.parts:
        if part.name in one.tolls and part.name in other.tolls:
            mine, theirs = one.tolls[part.name], other.tolls[part.name]
            if better_in(part.name, one, other) == 1:
                figures = f"{_of_native(mine)} against {_of_native(theirs)}"
                yield f"{figures} of native's {lower(part.metric.title)} in {part.name}"


def _why_tied(advice: Advice, one: Candidate, other: Candidate) -> str:
    """By which figures neither comes before the other."""
    both = [part for part in advice.parts if part.name in one.tolls and part.name in other.tolls]
    told = {part.name: better_in(part.name, one, other) for part in both}
    here, there = ([name for name, which in told.items() if which == sign] for sign in (1, -1))
    if not both:
        return "of no run both are known"
    if here or there:
        sides = [f"better in {'; '.join(here)}"] * bool(here) + [f"worse in {'; '.join(there)}"] * bool(there)
        return f"{' and '.join(sides)}, which decides no order"
    if len(both) > 1:
        return f"in none of {len(both)} comparisons is either shown to be better"
    (part,) = both
    for toll in (one.tolls[part.name], other.tolls[part.name]):
        if toll is not None and toll.ratio is None:
            return f"{lower(part.metric.title)}: {toll.verdict.words}"
    figures = f"{_of_native(one.tolls[part.name])} and {_of_native(other.tolls[part.name])}"
    mine, theirs = one.tolls[part.name], other.tolls[part.name]
    if mine is not None and theirs is not None and one.under.get(part.name) != other.under.get(part.name):
        return f"{figures} of native's {lower(part.metric.title)} are not of the same conditions"
    margin = f"{exact_percent(part.findings.margin)} %"
    return f"{figures} of native's {lower(part.metric.title)} are not shown to differ by more than {margin}"


def _of_native(toll: Toll | None) -> str:
    return "1" if toll is None else interval(toll.ratio)


def _ratio(part: Part, toll: Toll) -> str:
    """``0.867 [0.859, 0.874] of native's throughput, over 2 of 4 conditions``."""
    few = fewer(toll, len(part.over))
    return f"{_of_native(toll)} of native's {lower(part.metric.title)}{', ' * bool(few)}{few}"


def as_json(advice: Advice) -> dict[str, Any]:
    """docs/JSON.md has the keys."""
    parts = {part.name: part for part in advice.parts}
    return {
        "answer": answer(advice),
        "parts": [
            {"part": part.name, "run": str(part.findings.run.directory), "metric": part.metric.name}
            for part in advice.parts
        ],
        "objectives": list(advice.objectives),
        "needs": list(advice.needs),
        "candidates": [_candidate(parts, place) for place in advice.places],
        "not_known": [asdict(one) for one in untold(advice)],
    }


def _candidate(parts: dict[str, Part], place: Ranked) -> dict[str, Any]:
    candidate = place.candidate
    return {
        "arm": place.label,
        "platform": candidate.arm.platform,
        "standing": candidate.standing,
        "rank": None if candidate.standing == "does not fit" else place.rank,
        "after": list(place.before),
        "tied": list(place.tied),
        "needs": {need: asdict(one) for need, one in candidate.needs.items()},
        "ratios": [
            {
                "part": name,
                "verdict": None if toll is None else toll.verdict.kind,
                **_numbers(None if toll is None else toll.ratio),
            }
            for name, toll in candidate.tolls.items()
        ],
        "lost": [
            {"part": name, "condition": parts[name].findings.matrix.label(each, parts[name].metric.name)}
            for name, conditions in candidate.lost.items()
            for each in conditions
        ],
        "failed": [{"part": name, "why": why} for name, why in candidate.failed.items() if why],
        "objectives": [_held(parts[name], name, one) for name, each in candidate.held.items() for one in each],
    }


def _held(part: Part, name: str, one: Held) -> dict[str, Any]:
    label = None if one.condition is None else part.findings.matrix.label(one.condition, one.objective.metric)
    told = {"part": name, "objective": one.objective.text, "told": one.told, "condition": label}
    return {**told, **_numbers(one.estimate), "unit": one.objective.unit, "why": one.why}


def _numbers(estimate: Estimate | None) -> dict[str, Any]:
    if estimate is None:
        return {"value": None, "low": None, "high": None}
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}
