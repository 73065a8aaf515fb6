"""The tables of a study of neighbours: losses, transients, what the neighbours did, and whether the limits bite."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from virtoll.analysis.isolation import Exposure, Isolation, is_polite
from virtoll.analysis.load import AGGRESSOR
from virtoll.analysis.metrics import Metric
from virtoll.record.model import NeighbourRecord
from virtoll.report import tables
from virtoll.report.findings import Findings
from virtoll.report.isolation import harms, recovery_words, settled_words, short, with_interval
from virtoll.report.numbers import MISSING, interval, number
from virtoll.report.tables import Cell, Table
from virtoll.units import format_bytes, format_duration

_LIMIT = re.compile(r"(?:the )?(?P<limit>.*?) bites")
# What a limit does when it bites, by the words of its check's detail; the first that is said.
_EFFECTS = {
    "killed": ("killed", "the instance ended"),
    "refused": ("refused", "No space left", "annot fork", "nable to fork", "unavailable", "annot allocate"),
    "throttled": ("throttled", "busy threads got"),
}
_TOO_FEW = "too few requests, or too few of them answered, to tell"
_UNTOLD = ("settling", "recovery")  # times that may lie beyond the window: a mean of the others would flatter


def isolation_tables(findings: Findings) -> list[Table]:
    """Every table of a study of neighbours."""
    told = findings.isolation
    made = [losses(told, metric) for metric in told.shown]
    made += [table for table in (recovery(told), transients(told), doings(told), limits(findings)) if table is not None]
    shown = (name for name in findings.matrix.metrics if not name.startswith(_UNTOLD))
    absolutes = [tables.absolute(findings, name) for name in shown]
    return [*made, *(table for table in absolutes if table is not None)]


def _heads(told: Isolation) -> tuple[str, ...]:
    return ("Neighbour", *(arm.label for arm in told.arms))


def _head(told: Isolation, exposure: Exposure) -> Cell:
    return Cell(told.name(exposure.condition), "", "against before it began" if is_polite(exposure.condition) else "")


def losses(told: Isolation, metric: Metric) -> Table:
    """One metric beside each neighbour against beside the polite one, with intervals and verdicts."""
    rows = []
    for condition in told.conditions:
        exposures = [told.exposure(arm, condition) for arm in told.arms]
        if is_polite(condition) and metric.probe:  # a probe sees no before
            continue
        rows.append((_head(told, exposures[0]), *(_loss(exposure, metric) for exposure in exposures)))
    floor = told.floors[metric.name]
    family = sum(
        toll.verdict.kind not in ("missing", "unjudged") and not is_polite(exposure.condition)
        for exposure in told.exposures.values()
        if (toll := exposure.tolls.get(metric.name)) is not None
    )
    notes = (
        "Ratios to the same arm beside the polite neighbour, paired within blocks, with 95 % intervals; only trials in "
        "which the victim answered. Unanswered: the percentile lies among the requests without an answer, worse than "
        f"any, so there is no ratio. Words are chosen at a family-wise error rate of 5 % over the {family} comparisons "
        "of this table (Holm). "
        + (
            "The run has no second native arm, so the noise floor is not known."
            if floor is None
            else f"Noise floor (native's losses against those of native again): {floor * 100:.1f} %."
        ),
    )
    return Table(
        f"losses-{tables.file_name(metric.name)}",
        f"{_what(metric)}, beside each neighbour against beside a polite one",
        _heads(told),
        tuple(rows),
        notes,
    )


def _what(metric: Metric) -> str:
    """What the cells say: the change of what is better more of (`with_interval`), the rise of anything else."""
    return f"Change of {short(metric)}" if metric.better == "more" else metric.title


def _loss(exposure: Exposure, metric: Metric) -> Cell:
    toll = exposure.tolls.get(metric.name)
    told = "; ".join(harms(exposure))
    if exposure.kind == "missing":
        return Cell(MISSING, "missing", exposure.missing)
    if toll is None or toll.ratio is None:
        told = "; ".join([*harms(exposure), *(_unanswered(exposure, metric))])
        kind = "costs" if exposure.harm or metric.name in exposure.unanswered else "missing"
        return Cell(told or MISSING, kind, exposure.refused or ("" if told else _TOO_FEW))
    # Of a cost the interval is told already.
    words = toll.verdict.kind if toll.verdict.kind in ("costs", "gains") else toll.verdict.words
    return Cell(with_interval(toll.ratio, metric), toll.verdict.kind, "; ".join(part for part in (told, words) if part))


def _unanswered(exposure: Exposure, metric: Metric) -> list[str]:
    """``unanswered in 1 of 3``: the percentile lies among the requests without an answer."""
    count = exposure.unanswered.get(metric.name, 0)
    return [f"unanswered in {count} of {exposure.n}"] if count else []


def recovery(told: Isolation) -> Table | None:
    """How long each victim took to be well again; None of a probe, which sees no after."""
    if "recovery_s" not in told.matrix.metrics:
        return None
    rows = []
    for condition in told.conditions:
        exposures = [told.exposure(arm, condition) for arm in told.arms]
        cells = []
        for exposure in exposures:
            words = recovery_words(told, exposure)
            late = words.startswith("more")
            cells.append(Cell(words or MISSING, "costs" if late else "" if words else "missing", _why(exposure, words)))
        rows.append((Cell(told.name(condition)), *cells))
    notes = (
        "From the aggressor's end until goodput and the 99th percentile of 100 ms bins lie, for 500 ms, in the band of "
        "the bins before it began (three standard deviations to the worse side of their mean). Median, and in brackets "
        "the range, over deployments; more than: not within the window. The polite neighbour's row is what chance "
        "alone makes of it.",
    )
    return Table("recovery", "Recovery time after the neighbour's end", _heads(told), tuple(rows), notes)


def _why(exposure: Exposure, words: str) -> str:
    if words:
        return ""
    return "; ".join(harms(exposure)) or exposure.missing or _TOO_FEW


def transients(told: Isolation) -> Table | None:
    """Overshoot and settling time at both steps; None of a probe."""
    if "overshoot" not in told.matrix.metrics:
        return None
    rows = []
    for condition in told.conditions:
        cells = []
        for arm in told.arms:
            start, end = (told.peak(name, arm, condition) for name in ("overshoot", "rebound"))
            settling = settled_words(told.settled("settling", arm, condition))
            parts = [
                f"settled after {settling}" if settling else "",
                f"peak after the end × {interval(end)}" if end is not None else "",
            ]
            detail = "; ".join(part for part in parts if part)
            cells.append(Cell(MISSING if start is None else f"× {interval(start)}", "" if start else "missing", detail))
        rows.append((Cell(told.name(condition)), *cells))
    notes = (
        "Above: overshoot, the longest 99th percentile of a 100 ms bin after the start over the level that it settles "
        "to (the median of the second half of the neighbour's time). Settled: bins stay for 500 ms in the band of that "
        "second half. Peak after the end: the longest bin after it over the median before the start. A largest of many "
        "bins lies above their median by chance alone: compare with the polite row.",
    )
    return Table(
        "transients", "Overshoot and settling at the neighbour's start and end", _heads(told), tuple(rows), notes
    )


# -- the neighbours, and the limits ----------------------------------------------------------------------


def doings(told: Isolation) -> Table | None:
    """What each neighbour did, by its own counts; None where nothing was recorded."""
    rows = []
    for condition in told.conditions:
        cells = []
        for arm in told.arms:
            records = [
                trial.record.neighbour
                for trial in told.matrix.trials
                if trial.record.neighbour is not None
                and trial.record.trial.arm.label == arm.label
                and trial.record.trial.condition.get(AGGRESSOR) == condition.get(AGGRESSOR)
                and trial.record.status == "valid"
            ]
            cells.append(_doing(records))
        rows.append((Cell(told.name(condition)), *cells))
    if all(cell.text == MISSING for row in rows for cell in row[1:]):
        return None
    notes = ("Means over its deployments, by the aggressor's own count while it was at work.",)
    return Table("neighbours", "What the neighbours did", _heads(told), tuple(rows), notes)


def _doing(records: list[NeighbourRecord]) -> Cell:
    began = [record for record in records if record.start_ns is not None]
    if not began:
        reason = next((record.reason for record in records), "")
        return Cell("could not start" if records else MISSING, "missing", reason)
    keys = list(dict.fromkeys(key for record in began for key in record.counts))
    means = {key: float(np.mean([r.counts[key] for r in began if key in r.counts])) for key in keys}
    done = [_amount(key, value) for key, value in means.items() if value > 0]
    spans = [(r.end_ns - r.start_ns) / 1e9 for r in began if r.end_ns is not None and r.start_ns is not None]
    ended = Counter(record.ended for record in began if record.ended not in ("time", "told"))
    details = [f"{float(np.mean(spans)):.1f} s" if spans else ""]
    details += [f"{how} in {count} of {len(began)}" for how, count in ended.items()]
    restarts = sum(record.restarts for record in began)
    details.append(f"killed and begun again {restarts} ×" if restarts else "")
    if len(began) < len(records):
        details.append(f"could not start in {len(records) - len(began)} of {len(records)}")
    return Cell(", ".join(done) or "nothing", "" if done else "unsure", "; ".join(part for part in details if part))


def _amount(key: str, value: float) -> str:
    """``4 MB written``, ``20,000 wakeups``."""
    for suffix, words in (("_bytes", format_bytes), ("_ns", format_duration)):
        if key.endswith(suffix):
            return f"{words(float(f'{value:.3g}'))} {key.removesuffix(suffix).replace('_', ' ')}"
    return f"{number(value, value / 10) if value < 10 else f'{value:,.0f}'} {key.replace('_', ' ')}"


def limits(findings: Findings) -> Table | None:
    """Each limit by its effect, from the proofs that each arm gave; None where none was tried."""
    seen: dict[str, dict[str, list[tuple[bool | None, str]]]] = {}
    for record in findings.run.records:
        for check in record.checks:
            match = _LIMIT.fullmatch(check.name)
            if match is not None:
                mine = seen.setdefault(match["limit"], {}).setdefault(record.trial.arm.label, [])
                mine.append((check.passed, check.detail))
    if not seen:
        return None
    arms = [arm for arm in findings.arms if any(arm.label in by_arm for by_arm in seen.values())]
    rows = tuple((Cell(arm.label), *(_limit(by_arm.get(arm.label, [])) for by_arm in seen.values())) for arm in arms)
    heads = ("Arm", *(limit[:1].upper() + limit[1:] for limit in seen))
    notes = ("Tried from inside, once for each arm and set of limits: more was asked for than is allowed.",)
    return Table("limits", "Do the limits bite, and what happens then?", heads, rows, notes)


def _limit(checks: list[tuple[bool | None, str]]) -> Cell:
    """The worst of what was seen: a limit that once did not bite is none."""
    if not checks:
        return Cell(MISSING, "missing", "not tried")
    order = {False: 0, True: 1, None: 2}
    passed, detail = min(checks, key=lambda check: order[check[0]])
    if passed is None:
        return Cell("not tried", "missing", detail)
    if not passed:
        return Cell("does not bite", "costs", detail)
    effect = next((word for word, marks in _EFFECTS.items() if any(mark in detail for mark in marks)), "bites")
    return Cell(effect, "same", detail)
