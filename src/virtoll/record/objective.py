"""A service objective: what each window must keep, as a study file writes it, and whether a window kept it.

``latency_p99 < 20 ms`` means: at most one in a hundred of all that was asked for took longer than that, where what
failed, or was never sent, took longer than anything. So a verdict can be told of a window that holds too few for its
percentile to be an estimate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from virtoll import units
from virtoll.record.knee import Objective
from virtoll.record.model import JOINED, Events, Quantity, Window

FAILED = "failed_percent"
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
_LATENCIES = {f"latency_{label}_ms": q for label, q in QUANTILES.items()}
_FORM = re.compile(r"\s*([a-z][a-z0-9_.-]*)\s*(<=|>=|<|>|==|=)?\s*(-?[0-9]+(?:\.[0-9]+)?)?\s*(\S.*?)?\s*")
_LONGEST = 200  # characters
_EXAMPLE = 'write it so: "latency_p99 < 20 ms"'


def quantile_of(objective: Objective) -> float | None:
    """Of a latency, which quantile is bounded; None of anything else."""
    return _LATENCIES.get(objective.metric)


def label_of(objective: Objective) -> str:
    """Of a latency, the word of the quantile that is bounded: "p99", "max"."""
    return objective.metric.split("_")[1]


def known(quantities: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """All that an objective can be of, by the metric's name, where a load has these quantities of its own. One that is
    called as what is told of every load stands in its place, and where neither more nor less of it is better, nothing.
    """
    told = {**{name: Quantity("Latency", "ms", "less") for name in _LATENCIES}, FAILED: Quantity("Failed", "%", "less")}
    return {**{name: quantity for name, quantity in told.items() if name not in quantities}, **_own(quantities)}


def is_own(objective: Objective, quantities: Mapping[str, Quantity]) -> bool:
    """Whether it is of one of a load's own ``quantities``, whatever that is called: a program may print its p99."""
    return objective.metric in _own(quantities)


def _own(quantities: Mapping[str, Quantity]) -> dict[str, Quantity]:
    return {name: quantity for name, quantity in quantities.items() if quantity.better is not None}


def parse(text: str, quantities: Mapping[str, Quantity]) -> Objective:
    """An objective as a study file writes it; ValueError says what would be right.

    A metric may be written without the unit at its end (``latency_p99``, ``stalled``), a time in any unit of time.
    """
    return parse_of(text, known(quantities))


def parse_of(text: str, there: Mapping[str, Quantity], also: Mapping[str, str] | None = None) -> Objective:
    """As `parse`, of the metrics that are ``there``, each better one way; ``also``: other words for some."""
    match = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or match[2] is None or match[3] is None:
        raise ValueError(f"{text[:_LONGEST]!r} is no objective: {_EXAMPLE}")
    word, sign, number, unit = match[1], match[2], float(match[3]), match[4] or ""
    brief: dict[str, str] = {}
    for name in there:
        own = short(name.rpartition(".")[2])
        brief[short(name) if own in brief else own] = name
    metric = word if word in there else (brief | dict(also or {})).get(word)
    if metric is None:
        raise ValueError(f"{text!r}: there is no {word!r} here; there are {', '.join(brief)}")
    quantity = there[metric]
    right = "<" if quantity.better == "less" else ">"
    if sign != right:
        worse = "less" if right == "<" else "more"
        raise ValueError(f"{text!r}: {worse} of {word} is better: write {word} {right} {match[3]} {unit}".rstrip())
    assert quantity.better is not None
    bound = _bound(text, metric, quantity, number, unit)
    return Objective(text=text, metric=metric, better=quantity.better, bound=bound, unit=quantity.unit)


def short(name: str) -> str:
    """A metric's name without its unit."""
    return re.sub(r"_(ms|percent|per_hour|per_s|mbit_per_s)$", "", name)


def _bound(text: str, metric: str, quantity: Quantity, number: float, unit: str) -> float:
    """The bound in the metric's unit. Without one it is taken where the metric's name, or its quantity, says it."""
    if quantity.better == "less" and number <= 0:
        raise ValueError(f"{text!r}: nothing is below {number:g}, so no window could meet it")
    if quantity.unit in _TIMES_NS and (unit or quantity.unit == "ms"):
        if not unit:
            raise ValueError(f"{text!r} lacks its unit: write {number:g} ms, or {number:g} s")
        try:
            return units.parse_duration_ns(f"{number:.12f} {unit}") / _TIMES_NS[quantity.unit]
        except ValueError:
            raise ValueError(f"{text!r}: {metric} is a time: write {number:g} ms, or {number:g} s") from None
    if not unit and metric != FAILED:
        return number
    if unit and unit != quantity.unit:
        raise ValueError(f"{text!r}: {metric} is in {quantity.unit}, and not in {unit}: write how many {quantity.unit}")
    if unit != quantity.unit:
        raise ValueError(f"{text!r}: {metric} is in {quantity.unit}: write {number:g} {quantity.unit}")
    return number


_TIMES_NS = {"ms": 1e6, "s": 1e9}


Histogram = Sequence[tuple[int, int, int]]  # (lower_ns, upper_ns, count), ascending


def values_of(
    objectives: Sequence[Objective], window: Window, asked: str, histogram: Histogram | None
) -> dict[str, float | None]:
    """What a window says of each objective's metric, by its name; None: worse than any value, for what it would be of
    failed, or nobody was answered soon enough to ask within the window, or to be served in it at all.

    ``asked``: the word of the window's events ("request"); ``histogram``: of its latencies. ValueError where something
    cannot be told.
    """
    return {each.metric: _value(each, window, window.events.get(asked), histogram) for each in objectives}


def _value(objective: Objective, window: Window, events: Events | None, histogram: Histogram | None) -> float | None:
    q = quantile_of(objective)
    if objective.metric in window.values or (q is None and objective.metric != FAILED):
        return _quantity(objective.metric, window, events)
    if events is None:
        raise ValueError("the load does not tell what became of what it asked for")
    total = events.completed + events.censored
    if not total and window.asked_ns is None:
        raise ValueError("nothing was asked for in it")
    if q is None:
        return 100 * (events.failed_share or 0.0)
    if not total:  # all who asked in its lead-in waited through it
        return None
    return _latency_ms(objective.metric, q, events, histogram)


def _quantity(metric: str, window: Window, events: Events | None) -> float | None:
    """A quantity of the load's own. Of a window in which nobody was served there may be nothing that it could be of."""
    if metric in window.values:
        return window.values[metric]
    if metric in window.censored or (events is not None and _was_in_vain(window, events)):
        return None
    raise ValueError(f"{metric} was not told")


def _was_in_vain(window: Window, events: Events) -> bool:
    """Whether all that was asked for failed; or some failed, or was under way still when the window ended, or was let
    in, and in it nothing was done, or nothing came.
    """
    waited = events.censored > 0 or events.drain is not None or window.counts.get(JOINED, 0) > 0
    was_idle = not window.work or window.counts.get("body_bytes") == 0
    return (events.censored > 0 and not events.completed) or (waited and was_idle)


def _latency_ms(metric: str, q: float, events: Events, histogram: Histogram | None) -> float | None:
    """The upper bound of the bucket that holds the quantile, as the analysis has it (`Histogram.quantile_ns`)."""
    if histogram is None:
        if _rank(q, events.completed + events.censored) > events.completed:  # wherever the instrument has what failed
            return None
        told_ns = events.percentiles_ns.get(metric.split("_")[1])
        if told_ns is None or events.censored:
            raise ValueError(f"{metric} was not told, or not of what failed")
        return told_ns / 1e6
    found_ns = quantile_ns(histogram, q, events.completed + events.censored)
    return None if found_ns is None else found_ns / 1e6


def quantile_ns(histogram: Histogram, q: float, total: int) -> int | None:
    """The upper bound of the bucket that holds quantile ``q`` of so many, of which those that are missing in the
    histogram are greater than all others; None where it is one of these.
    """
    rank = _rank(q, total)
    for _, upper_ns, count in histogram:
        rank -= count
        if rank <= 0:
            return upper_ns
    return None


def _rank(q: float, total: int) -> int:
    return max(1, math.ceil(round(q * total, 6)))


def missed(objectives: Sequence[Objective], values: Mapping[str, float | None]) -> list[Objective]:
    """The objectives that these values do not meet."""
    return [each for each in objectives if not each.is_met(values[each.metric])]


def is_missed_anyway(objectives: Sequence[Objective], values: Mapping[str, float | None], late_ns: int | None) -> bool:
    """Whether a latency misses its bound even if all that was asked for was sent as late as the latest, ``late_ns``, by
    the generator's own fault (None: it is not known).
    """
    if late_ns is None:
        return False
    latencies = [(each, values[each.metric]) for each in objectives if quantile_of(each) is not None]
    return any(value is not None and not each.is_met(value - late_ns / 1e6) for each, value in latencies)
