"""What a study of neighbours says in words: of one arm beside one neighbour, and as the answer, a sentence an arm."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from virtoll.analysis.estimates import Estimate
from virtoll.analysis.isolation import HARMS, REFUSED, Exposure, Isolation, Settled, is_polite
from virtoll.analysis.metrics import Metric
from virtoll.analysis.ratios import Toll
from virtoll.analysis.verdicts import decimals, percent
from virtoll.record.model import Arm
from virtoll.report.findings import Findings
from virtoll.report.numbers import interval, significant

_SHORT = {"goodput_kept": "goodput", "p99_rise": "p99", "p90_rise": "p90", "p50_rise": "median"}
MINUS = "\u2212"
# An estimate that chance may have made is named in the answer from this ratio on; the table has the others.
_WORTH_NAMING = 1.5


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
        return ""
    value = toll.ratio.value
    doubt = " ?" if toll.verdict.kind == "unsure" else ""
    return f"{_percent(value) if toll.metric.better == 'more' else _factor(value)}{doubt}"


def change_in(toll: Toll) -> str:
    """The same with what it is of and its interval: ``goodput −20 % [−22, −18]``, ``p99 × 2.0 [1.8, 2.3]``."""
    if toll.ratio is None:
        return f"{short(toll.metric)} not told"
    return f"{short(toll.metric)} {with_interval(toll.ratio, toll.metric)}"


def with_interval(ratio: Estimate, metric: Metric) -> str:
    """A ratio with its interval, as a change in per cent or as a factor."""
    if metric.better != "more":
        return f"× {interval(ratio)}"
    if ratio.low is None or ratio.high is None:
        return f"{_percent(ratio.value)} (n = {ratio.n})"
    places = decimals((ratio.high - ratio.low) * 100, 0)
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
    """The highest percentile that lies among the requests without an answer: ``p99 unanswered in 1 of 3``."""
    first = next(iter(exposure.unanswered.items()), None)
    if first is None:
        return []
    name, count = first
    return [f"{_SHORT[name]} unanswered" + (f" in {count} of {exposure.n}" if count < exposure.n else "")]


def lines(exposure: Exposure, *, brief: bool = False) -> list[str]:
    """A cell of the heat map: at most two short lines; ``brief``: without the names of what they are of."""
    if exposure.kind == "missing":
        return ["not measured"]
    known = [toll for toll in exposure.tolls.values() if toll.ratio is not None]
    changes = [change(toll) if brief else f"{short(toll.metric)} {change(toll)}" for toll in known]
    return [*harms(exposure), *changes[:1], *unanswered(exposure), *changes[1:]][:2] or ["too few answers"]


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
    parts += [f"{change_in(toll)}: {toll.verdict.words}" for toll in exposure.tolls.values() if toll.ratio is not None]
    parts += unanswered(exposure)
    recovery = recovery_words(told, exposure)
    parts.append(f"recovery {recovery}" if recovery else "")
    parts.append(f"{exposure.n} block{'s' * (exposure.n != 1)}")
    return f"{head}: {'; '.join(part for part in parts if part)}"


def recovery_words(told: Isolation, exposure: Exposure) -> str:
    """How long the victim took to recover; "" where it could not be told, or had died."""
    if exposure.harm == "victim died" or "recovery_s" not in told.matrix.metrics:
        return ""
    return settled_words(told.settled("recovery", exposure.arm, exposure.condition))


# -- the answer ------------------------------------------------------------------------------------------


def answer_of(findings: Findings) -> list[str]:
    """What is compared, then for each arm which neighbours it is protected from, and what the others take."""
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
    last = [f"{_join(unseen)} {'was' if len(unseen) == 1 else 'were'} not measured."] if unseen else []
    return [first, *sentences, *last]


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
            f"protected from {_join([names[id(one)] for one in same])} (no difference within {percent(margin * 100)} %)"
        )
    for harm in HARMS:
        parts += [f"beside {names[id(one)]} {_harm(told, one)}" for one in kinds.get(harm, [])]
    parts += [f"{names[id(one)]} costs {_costs(one)}" for one in _largest_first(kinds.get("costs", []))]
    if unsure := kinds.get("unsure"):
        parts.append("cannot tell yet: " + ", ".join(_unsure(names[id(one)], one) for one in _largest_first(unsure)))
    parts += [f"{names[id(one)]} could not start: {_clause(one.refused)}" for one in kinds.get(REFUSED, [])]
    if missing := kinds.get("missing"):
        parts.append(f"not measured beside {_join([names[id(one)] for one in missing])}")
    return f"{arm.label}: {'; '.join(parts)}." + _sharing(told, arm)


def _harm(told: Isolation, exposure: Exposure) -> str:
    """``it did not answer in 1 of 3 (recovery: 0.4 s)``."""
    words = " and ".join(("it " if word.startswith("did") else "the ") + word for word in harms(exposure))
    recovery = recovery_words(told, exposure)
    return f"{words} (recovery: {recovery})" if recovery else words


def _costs(exposure: Exposure) -> str:
    """What is called a cost, each with its interval, and what no interval can hold."""
    costs = [change_in(toll) for toll in exposure.tolls.values() if toll.verdict.kind == "costs"]
    return _join(costs + unanswered(exposure))


def _unsure(name: str, exposure: Exposure) -> str:
    worst = exposure.worst
    large = worst is not None and worst.worse is not None and worst.worse.value >= _WORTH_NAMING
    told = [change_in(worst)] if worst is not None and large else []
    told += unanswered(exposure)
    return f"{name} ({_join(told)})" if told else name


def _largest_first(exposures: Sequence[Exposure]) -> list[Exposure]:
    def size(exposure: Exposure) -> float:
        worst = exposure.worst
        return 0.0 if worst is None or worst.worse is None else worst.worse.value

    return sorted(exposures, key=size, reverse=True)


def _sharing(told: Isolation, arm: Arm) -> str:
    """What a polite neighbour costs already, where it costs something."""
    polite = (told.exposure(arm, condition) for condition in told.conditions if is_polite(condition))
    costs = [_costs(exposure) for exposure in polite if exposure.kind == "costs"]
    return f" Sharing with a polite neighbour already costs {costs[0]}." if costs else ""


def _clause(reason: str) -> str:
    """A reason in the middle of a sentence: its first line, without its full stop."""
    return (reason.splitlines() or ["no reason was given"])[0].rstrip(".")


def _join(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
