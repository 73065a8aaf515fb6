"""The answer: what the page says first, and a run prints last."""

from __future__ import annotations

from collections.abc import Sequence

from virtoll.analysis.estimates import Estimate
from virtoll.analysis.ratios import Toll
from virtoll.analysis.verdicts import percent
from virtoll.record.model import Arm
from virtoll.report.findings import Findings
from virtoll.report.isolation import answer_of
from virtoll.report.numbers import significant

MOST_NAMED = 3  # costs of one arm that the answer names; the table has the others
MOST_FREE = 5


def answer(findings: Findings) -> list[str]:
    """The answer, a sentence or few; of a programme, and of neighbours, after the first one for each arm."""
    if findings.is_isolation:
        return answer_of(findings)
    if findings.matrix.baseline is None:
        return ["There is no answer: the run has no native arm to compare with."]
    return _of_programme(findings) if findings.is_programme else [_of_service(findings)]


# -- of a service under a load ---------------------------------------------------------------------------


def _of_service(findings: Findings) -> str:
    """Every arm with the words its verdict allows."""
    tolls = [findings.tolls(findings.headline.name).total(arm) for arm in findings.treatments]
    measured = [toll for toll in tolls if toll is not None and toll.ratio is not None]
    if not measured:
        return "There is no answer yet: no valid trial can be compared with native."
    parts = [_same(measured), *(_one(toll) for toll in measured if toll.verdict.kind in ("costs", "gains"))]
    parts.append(_unsure(measured))
    parts.append(_not_measured(findings, [toll.arm for toll in tolls if toll is not None and toll.ratio is None]))
    what = _headline_words(findings)
    return f"{what}, against native: " + "; ".join(part for part in parts if part) + "."


def _headline_words(findings: Findings) -> str:
    loops = " and ".join(findings.loops) or "closed"
    word = "Throughput" if findings.headline.name == "rate_per_s" else findings.headline.title
    return f"{word} ({loops} loop)"


def _same(tolls: Sequence[Toll]) -> str:
    same = [toll for toll in tolls if toll.verdict.kind == "same"]
    if not same:
        return ""
    widest = max(same, key=lambda toll: toll.margin).verdict.words
    return f"{join([toll.arm.label for toll in same])} {'shows' if len(same) == 1 else 'show'} " + widest.replace(
        "difference shown", "difference"
    )


def _one(toll: Toll) -> str:
    more = times(toll)
    return f"{toll.arm.label} {toll.verdict.words}" + (f" ({more})" if more else "")


def times(toll: Toll) -> str:
    """``13 × slower`` or ``4.7 × as much`` where a percentage is hard to picture; else nothing."""
    if toll.ratio is None or toll.metric.better is None or toll.verdict.kind != "costs":
        return ""
    factor = 1 / toll.ratio.value if toll.metric.better == "more" else toll.ratio.value
    if toll.metric.group:
        words = worse(toll).partition(" [")[0]
        return words if "×" in words else ""
    word = "slower" if toll.metric.name.startswith(("rate_per_s", "total", "latency", "deploy")) else "as much"
    return (
        f"{factor:.2g} × {word}" if factor >= 2 and factor < 100 else f"{factor:,.0f} × {word}" if factor >= 2 else ""
    )


def _unsure(tolls: Sequence[Toll]) -> str:
    unsure = [
        (toll.arm.label, toll.verdict.words.partition(": ")[2]) for toll in tolls if toll.verdict.kind == "unsure"
    ]
    return "cannot tell yet: " + ", ".join(f"{label} ({why})" for label, why in unsure) if unsure else ""


def join(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _not_measured(findings: Findings, unseen: Sequence[Arm]) -> str:
    skipped = [skipped.arm.label for skipped in findings.run.environment.skipped] + [arm.label for arm in unseen]
    return f"{join(skipped)} {'was' if len(skipped) == 1 else 'were'} not measured" if skipped else ""


# -- of a programme of probes ----------------------------------------------------------------------------


def _of_programme(findings: Findings) -> list[str]:
    """What each arm gives away: what shows no difference, and its largest costs."""
    if not any(_totals(findings, arm) for arm in findings.treatments):
        return ["There is no answer yet: no valid trial can be compared with native."]
    count = len(findings.judged)
    first = f"Against native, by what stands for each of {count} probe{'s' * (count != 1)}:"
    seen = [arm for arm in findings.treatments if _totals(findings, arm)]
    last = _not_measured(findings, [arm for arm in findings.treatments if arm not in seen])
    silent = f"Nothing valid was measured by {join(findings.silent)}" if findings.silent else ""
    return [first, *(_arm(findings, arm) for arm in seen), *(f"{words}." for words in (last, silent) if words)]


def _totals(findings: Findings, arm: Arm) -> list[Toll]:
    """An arm's measured tolls in the judged headlines."""
    tolls = (findings.tolls(metric.name).total(arm) for metric in findings.judged)
    return [toll for toll in tolls if toll is not None and toll.ratio is not None]


def _without_ratio(findings: Findings, arm: Arm) -> int:
    """In how many judged headlines an arm was measured, and a 0 leaves no ratio."""
    tolls = (findings.tolls(metric.name).total(arm) for metric in findings.judged)
    return sum(1 for toll in tolls if toll is not None and toll.zeros)


def _arm(findings: Findings, arm: Arm) -> str:
    tolls = _totals(findings, arm)
    kinds = {kind: [toll for toll in tolls if toll.verdict.kind == kind] for kind in ("costs", "gains", "same")}
    parts = []
    if kinds["costs"]:
        largest = sorted(kinds["costs"], key=_size, reverse=True)
        more = len(largest) - MOST_NAMED
        named = [f"{mid(toll.metric.title)} ({worse(toll)})" for toll in largest[:MOST_NAMED]]
        parts.append(
            ("costs most in " if more > 0 else "costs in ")
            + join(named)
            + (f", and in {more} more" if more > 0 else "")
        )
    if kinds["gains"]:
        named = [mid(toll.metric.title) for toll in kinds["gains"]]
        parts.append(f"better than native in {_some(named)}")
    if kinds["same"]:
        named = [mid(toll.metric.title) for toll in kinds["same"]]
        within = percent(max(toll.margin for toll in kinds["same"]) * 100)
        what = f"all {len(named)}" if len(named) == len(tolls) > 2 else _some(named)
        parts.append(f"no difference shown (within {within} %) in {what}")
    unsure = len(tolls) - sum(len(some) for some in kinds.values())
    if unsure:
        parts.append(f"cannot tell yet in {unsure}")
    without = _without_ratio(findings, arm)
    if without:
        parts.append(f"not judged in {without}, of which a value is 0")
    unseen = len(findings.judged) - len(tolls) - without
    if unseen:
        parts.append(f"not measured in {unseen}")
    return f"{arm.label}: {'; '.join(parts)}."


def _some(names: Sequence[str]) -> str:
    """The first few of many."""
    more = len(names) - MOST_FREE
    return join(names) if more <= 1 else f"{', '.join(names[:MOST_FREE])} and {more} more"


def _size(toll: Toll) -> float:
    return 0.0 if toll.worse is None else toll.worse.value


def worse(toll: Toll) -> str:
    """``12 % less [10, 14]``, ``30 % more [28, 32]``; far from native ``4.1 × native's [3.9, 4.3]``, ``60 × less``."""
    if toll.ratio is None or toll.worse is None:
        return ""
    less = toll.metric.better == "more"
    if toll.worse.value >= (4 if less else 2):
        return f"{_times(toll.worse)[0]} × {'less' if less else 'native’s'}{_times(toll.worse)[1]}"
    return toll.verdict.words.partition(" ")[2].replace(" % [", f" % {'less' if less else 'more'} [")


def _times(factor: Estimate) -> tuple[str, str]:
    """A factor and its interval, with as many decimals as the interval bears."""
    if factor.low is None or factor.high is None:
        return significant(factor.value), ""
    digits = 0 if factor.value >= 10 else 1
    return f"{factor.value:,.{digits}f}", f" [{factor.low:,.{digits}f}, {factor.high:,.{digits}f}]"


def mid(title: str) -> str:
    """A title in the middle of a sentence. A single word, or one in capitals, is a name; a comma would end it."""
    first, _, rest = title.replace(",", "").partition(" ")
    return f"{first.lower() if first[1:].islower() else first} {rest}" if rest else first
