"""What a study of neighbours says in words: of one arm beside one neighbour."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from virtoll.analysis.estimates import Estimate
from virtoll.analysis.isolation import HARMS, REFUSED, Exposure, Isolation, Settled
from virtoll.analysis.metrics import Metric
from virtoll.analysis.ratios import Toll
from virtoll.analysis.verdicts import interval_decimals
from virtoll.report.numbers import interval, significant

_SHORT = {"goodput_kept": "goodput", "p99_rise": "p99", "p90_rise": "p90", "p50_rise": "median"}
MINUS = "\u2212"


def short(metric: Metric) -> str:
    """What a metric is called where there is little room: "goodput", "p99"; a probe's by its title."""
    if metric.name in _SHORT:
        return _SHORT[metric.name]
    title = metric.title
    return next((word for mark, word in (("median", "median"), ("99th", "p99")) if mark in title), title.lower())


def change(toll: Toll) -> str:
    """An estimate as few words: ``−20 %`` of what is better more of, ``±0 %`` where none is lost, else ``× 2.0``; a
    question mark for chance."""
    if toll.ratio is None:
        return "not judged" if toll.zeros else ""
    value = toll.ratio.value
    doubt = " ?" if toll.verdict.kind == "unsure" else ""
    return f"{_percent(value) if toll.metric.better == 'more' else _factor(value)}{doubt}"


def change_in(toll: Toll) -> str:
    """The same with what it is of and its interval: ``goodput −20 % [−22, −18]``, ``p99 × 2.0 [1.8, 2.3]``."""
    if toll.ratio is None:
        return f"{short(toll.metric)} not told"
    return f"{short(toll.metric)} {with_interval(toll.ratio, toll.metric)}"


def called(exposure: Exposure, kind: str) -> list[str]:
    """What is called a cost (or a gain) beside one neighbour, each with its interval."""
    return [change_in(toll) for toll in exposure.tolls.values() if toll.verdict.kind == kind]


def with_interval(ratio: Estimate, metric: Metric) -> str:
    """A ratio with its interval, as a change in per cent or as a factor."""
    if metric.better != "more":
        return f"× {interval(ratio)}"
    if ratio.low is None or ratio.high is None:
        return f"{_percent(ratio.value)} (n = {ratio.n})"
    places = interval_decimals(0, (ratio.low - 1) * 100, (ratio.high - 1) * 100)
    low, high = (_signed((bound - 1) * 100, places) for bound in (ratio.low, ratio.high))
    return f"{_signed((ratio.value - 1) * 100, places, none='±0')} % [{low}, {high}]"


def _percent(ratio: float) -> str:
    return f"{_signed((ratio - 1) * 100, 0, none='±0')} %"


def _signed(value: float, places: int, *, none: str = "0") -> str:
    """A change with its sign. ``none``: for no change, since "goodput 0 %" would read as if all of it were lost."""
    words = f"{abs(value):,.{places}f}"
    if float(words.replace(",", "")) == 0:
        return none
    return f"{MINUS if value < 0 else '+'}{words}"


def _factor(value: float) -> str:
    return f"× {_digits(value)}"


def _digits(value: float) -> str:
    """Two decimals near one, then as many as two digits have."""
    return f"{value:.2f}" if value < 2 else f"{value:.1f}" if value < 9.95 else significant(value)


def harms(exposure: Exposure) -> list[str]:
    """What became of the victim, where it did not answer as it should: ``victim died in 1 of 3``."""
    told = []
    for word in (*HARMS, REFUSED):
        count = exposure.outcomes.get(word, 0)
        if count:
            told.append(word if count == exposure.n else f"{word} in {count} of {exposure.n}")
    return told


def unanswered(exposure: Exposure) -> list[str]:
    """The highest percentile that lies among what was not answered: ``p99 unanswered in 1 of 3``."""
    first = next(iter(exposure.unanswered.items()), None)
    if first is None:
        return []
    name, count = first
    return [f"{_SHORT[name]} unanswered" + (f" in {count} of {exposure.n}" if count < exposure.n else "")]


def uncompared(told: Isolation, exposure: Exposure) -> str:
    """What became of a victim beside the polite neighbour, where it never answered there, or not in some block, and did
    beside this one: ``victim died in 1 of 3``; "" where there is something to compare it with, or nothing to be
    compared.
    """
    polite = told.beside_polite(exposure)
    if polite is None or not exposure.outcomes.get("answered"):
        return ""
    if polite.outcomes.get("answered") and not exposure.unmatched:
        return ""
    return "; ".join(harms(polite)) or polite.missing


def not_compared(told: Isolation, exposure: Exposure) -> str:
    """The same with its head; "" where it is compared."""
    why = uncompared(told, exposure)
    return f"not compared, beside the polite neighbour: {why}" if why else ""


def apart(told: Isolation, exposures: Sequence[Exposure]) -> tuple[dict[str, list[Exposure]], list[Exposure]]:
    """Those that are not compared, by what became of the victim beside the polite neighbour; and the others."""
    found: dict[str, list[Exposure]] = {}
    for one in exposures:
        if (why := uncompared(told, one)) and not one.unanswered:
            found.setdefault(why, []).append(one)
    without = {id(one) for each in found.values() for one in each}
    return found, [one for one in exposures if id(one) not in without]


def lines(exposure: Exposure, *, brief: bool = False, why: str = "too few answers") -> list[str]:
    """A cell of the heat map: at most two short lines; ``brief``: without the names of what they are of; ``why``: what
    stands where nothing is told.
    """
    if exposure.kind == "missing":
        return ["not measured"]
    known = [toll for toll in exposure.tolls.values() if toll.ratio is not None or toll.zeros]
    changes = [change(toll) if brief else f"{short(toll.metric)} {change(toll)}" for toll in known]
    return [*harms(exposure), *changes[:1], *unanswered(exposure), *changes[1:]][:2] or [why]


def settled_words(settled: Settled) -> str:
    """The median and the range: ``0.3 s (0.1 to 0.8)``, ``more than 1.5 s``; "" where nothing is known.

    A bound stands for something longer, so a median that it could move is told as *more than*.
    """
    if not settled.n:
        return ""
    seen, bounds = settled.seconds, settled.more_than_s
    least = sorted((*seen, *bounds))
    middle = median(least)
    more = "" if middle == median((*seen, *(float("inf") for _ in bounds))) else "more than "
    low, high = least[0], least[-1]
    parts = []
    if low < high:
        first = "" if low in seen else "more than "
        last = "more than " if high in bounds else "at least " if bounds else ""
        parts.append(f"{first}{low:.1f} to {last}{high:.1f}")
    if seen and bounds:
        parts.append(f"seen in {len(seen)} of {settled.n}")
    return f"{more}{middle:.1f} s" + (f" ({'; '.join(parts)})" if parts else "")


def whole(told: Isolation, exposure: Exposure) -> str:
    """Everything about one arm beside one neighbour in a sentence, for who points at it."""
    head = f"{exposure.arm.label} beside {told.name(exposure.condition)}"
    if exposure.kind == "missing":
        return f"{head}: not measured: {exposure.missing}"
    parts = [*harms(exposure), exposure.refused]
    parts += [
        f"{change_in(toll)}: {toll.verdict.words}" for toll in exposure.tolls.values() if toll.ratio or toll.zeros
    ]
    parts += [*unanswered(exposure), not_compared(told, exposure)]
    recovery = recovery_words(told, exposure)
    parts.append(f"recovery {recovery}" if recovery else "")
    parts.append(f"{exposure.n} block{'s' * (exposure.n != 1)}")
    return f"{head}: {'; '.join(part for part in parts if part)}"


def recovery_words(told: Isolation, exposure: Exposure) -> str:
    """How long the victim took to recover; "" where it could not be told, or had died."""
    if exposure.harm == "victim died" or "recovery_s" not in told.matrix.metrics:
        return ""
    return settled_words(told.settled("recovery", exposure.arm, exposure.condition))


def too_few(work: str) -> str:
    """Why a percentile is not told."""
    return f"too few {work}, or too few of them answered, to tell"


def heads(told: Isolation) -> tuple[str, ...]:
    """Of a table that gives each neighbour a row and each arm a column."""
    return ("Neighbour", *(arm.label for arm in told.arms))
