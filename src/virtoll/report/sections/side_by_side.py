"""What the servers of a study take from each other, where they are loaded side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from virtoll.analysis.metrics import Metric
from virtoll.analysis.ratios import Toll, tested_of
from virtoll.analysis.rules import Rule
from virtoll.record.model import Arm
from virtoll.report import method
from virtoll.report.findings import Findings
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table, verdict
from virtoll.report.words import join, mid, with_fewer
from virtoll.units import percent


class SideBySide(Section):
    """The answer of a study whose servers are measured alone and beside the others."""

    name: ClassVar[str] = "side-by-side"
    summary: ClassVar[str] = "What do the servers take from each other?"
    rank: ClassVar[int] = 95

    def applies(self, findings: Findings) -> bool:
        """With servers that have run beside each other."""
        return findings.is_side_by_side

    def answer(self, findings: Findings) -> list[str]:
        """A sentence for each server on each arm."""
        told = findings.side_by_side
        if not told.shown:
            return ["What the servers take from each other is not known: none is measured alone as well."]
        return [_sentence(findings, server, arm) for server in told.shown for arm in _arms(findings)]

    def tables(self, findings: Findings) -> list[Table]:
        """For each server its ratios beside the others over alone, and those over native's."""
        made = []
        for server in findings.side_by_side.shown:
            made += [_kept(findings, server), _against(findings, server)]
        return made

    def method(self, findings: Findings) -> list[str]:
        """What is compared with what."""
        return [
            "**Each server against itself.** A server beside the others, each of them in an instance of its own with "
            "the same limits and under its own load, is compared with the same server alone: on the same instance, in "
            "the same block, in an order drawn for each. What the platform costs cancels; native is an arm like the "
            "others. " + method.log_scale(findings),
            "**Platforms are compared by what they keep.** An arm's ratio beside/alone over native's of the same block "
            "says whether its instances take more from each other than processes in control groups do. "
            f"{method.both_natives(findings)}".rstrip(),
            "**What could not be served is a result.** Where a server failed too much of what it was asked beside the "
            "others no ratio is told of that arm: those of the other blocks would be of the better ones.",
            method.words(findings, _family(findings)),
        ]


def _family(findings: Findings) -> str:
    """What is tested together: of one quantity all servers on all arms, whose tables are several."""
    told = findings.side_by_side
    alone, native = (_most_tested(tolls.values(), findings.rule) for tolls in (told.kept, told.against))
    return f"{method.comparisons(alone, 'a column')}, of all servers together ({native} of a column against native)"


def _most_tested(tolls: Iterable[Toll], rule: Rule) -> int:
    """Of how many comparisons a quantity's family is, the most of any."""
    families: dict[str, list[Toll]] = {}
    for toll in tolls:
        families.setdefault(toll.metric.name, []).append(toll)
    return max((tested_of(family, rule) for family in families.values()), default=0)


def _arms(findings: Findings) -> list[Arm]:
    """In the order of all tables, without the second native arm."""
    return [arm for arm in findings.arms if arm.role != "floor"]


def _sentence(findings: Findings, server: str, arm: Arm) -> str:
    """``vlc on docker+routed, beside the others against alone: ...; against native ...``."""
    told = findings.side_by_side
    of = {metric: told.kept.get((server, arm.label, metric.name)) for metric in told.shown[server]}
    tolls = {metric: toll for metric, toll in of.items() if toll is not None}
    planned = told.conditions[server]
    parts = _found(tolls, planned) + _open(tolls, planned) + _barred(findings, server, arm, tolls)
    if arm.role != "baseline":
        over = {m: toll for m in of if (toll := told.against.get((server, arm.label, m.name))) is not None}
        against = _found(over, planned)
        parts += [f"against the same on native: {', '.join(against)}"] if against else []
    why = next((told.missing[key] for m in of if (key := (server, arm.label, m.name)) in told.missing), "")
    what = "; ".join(parts) if parts else f"not known ({why or 'no block holds both'})"
    return f"{server} on {arm.label}, beside the others against alone: {what}."


def _found(tolls: dict[Metric, Toll], planned: int) -> list[str]:
    """What is known of each metric; those that say the same together. ``planned``: conditions each should speak for."""
    judged = {metric: toll for metric, toll in tolls.items() if toll.ratio is not None}
    parts = [
        with_fewer(f"{_names([metric])} {toll.verdict.words}", toll, planned)
        for metric, toll in judged.items()
        if toll.verdict.kind in ("costs", "gains")
    ]
    if same := {metric: toll for metric, toll in judged.items() if toll.verdict.kind == "same"}:
        words = next(iter(same.values())).verdict.words.replace(" shown", "")
        parts.append(f"{words} in {_each(same, planned)}")
    return parts


def _open(tolls: dict[Metric, Toll], planned: int) -> list[str]:
    """What cannot be told yet; the tables say what that needs."""
    unsure = {m: toll for m, toll in tolls.items() if toll.ratio is not None and toll.verdict.kind == "unsure"}
    return [f"cannot tell yet of {_each(unsure, planned)}"] if unsure else []


def _each(tolls: Mapping[Metric, Toll], planned: int) -> str:
    """The metrics' names, and of each over how many conditions it is where that is not all."""
    return join([with_fewer(_names([metric]), toll, planned) for metric, toll in tolls.items()])


def _barred(findings: Findings, server: str, arm: Arm, tolls: dict[Metric, Toll]) -> list[str]:
    """What is said of metrics without a ratio: what arose, and what is not judged. What was 0 and stayed so (stalls of
    viewers who had none) is in the table alone.
    """
    parts, unjudged = [], []
    for metric, toll in tolls.items():
        zeros = findings.side_by_side.zeros[server, arm.label, metric.name]
        if zeros.arose:
            parts.append(f"{_names([metric])} 0 alone, and not so beside the others in {zeros.arose} of {zeros.known}")
        elif toll.zeros > zeros.both:
            unjudged.append(metric)
    if unjudged:
        why = dict.fromkeys(tolls[metric].verdict.words for metric in unjudged)
        parts.append(f"{_names(unjudged)} not judged ({'; '.join(why)})")
    return parts


def _names(metrics: Sequence[Metric]) -> str:
    return join([mid(metric.title) if " " in metric.title else metric.title.lower() for metric in metrics])


def _kept(findings: Findings, server: str) -> Table:
    told = findings.side_by_side
    metrics = told.shown[server]
    rows = [(Cell(arm.label), *(_cell(findings, server, arm, metric) for metric in metrics)) for arm in _arms(findings)]
    floors = {m: floor for m in metrics if (floor := told.floors[server, m.name]) is not None}
    known = ", ".join(f"{_names([metric])} {percent(floor * 100)} %" for metric, floor in floors.items())
    notes = (
        "Beside the others against alone, paired within blocks, with 95 % intervals: a cost is a worsening. "
        + (f"Noise floor (native against native again): {known}." if known else "The noise floor is not known."),
    )
    heads = ("Arm", *(metric.title for metric in metrics))
    caption = f"{server} beside the others, against {server} alone"
    return Table(f"side-by-side-{server}", caption, heads, tuple(rows), notes)


def _cell(findings: Findings, server: str, arm: Arm, metric: Metric) -> Cell:
    told, key = findings.side_by_side, (server, arm.label, metric.name)
    cell = verdict(told.kept.get(key), told.conditions[server])
    return Cell(cell.text, cell.kind, cell.detail or told.missing.get(key, "")) if cell.kind == "missing" else cell


def _against(findings: Findings, server: str) -> Table:
    told = findings.side_by_side
    metrics = told.shown[server]
    rows = []
    for arm in _arms(findings):
        if arm.role != "baseline":
            tolls = [told.against.get((server, arm.label, metric.name)) for metric in metrics]
            rows.append((Cell(arm.label), *(verdict(toll, told.conditions[server]) for toll in tolls)))
    notes = (
        "Each arm's ratio beside/alone over native's of the same block: a cost says that more is taken than there.",
    )
    heads = ("Arm", *(metric.title for metric in metrics))
    caption = f"What the others take from {server}, against what they take on native"
    return Table(f"side-by-side-{server}-against-native", caption, heads, tuple(rows), notes)
