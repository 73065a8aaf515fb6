"""Words that several sections share: of a toll, of titles, of lists."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.metrics import Metric
from virtoll.analysis.ratios import Toll
from virtoll.analysis.rules import OverHosts
from virtoll.analysis.server import tells
from virtoll.record.model import Arm
from virtoll.report.findings import Findings
from virtoll.report.numbers import misread, significant

NO_NATIVE = "There is no answer: the run has no native arm to compare with."
_NO_ANSWER = "There is no answer yet: no valid trial can be compared with native."
_NO_OTHER = "There is no answer: the run has no arm but native, and nothing to compare with it"


def times(toll: Toll) -> str:
    """``13 × slower``, ``4.7 × as much`` or (of a knee) ``10 × less`` where a percentage is hard to picture; else
    nothing.
    """
    if toll.ratio is None or toll.metric.better is None or toll.verdict.kind != "costs":
        return ""
    factor = 1 / toll.ratio.value if toll.metric.better == "more" else toll.ratio.value
    if toll.metric.group:
        words = worse(toll).partition(" [")[0]
        return words if "×" in words else ""
    word = "less" if toll.metric.better == "more" else "as much"
    if toll.metric.name.startswith(("rate_per_s", "total", "latency", "deploy")):
        word = "slower"
    return f"{significant(factor) if factor < 99.5 else f'{factor:,.0f}'} × {word}" if factor >= 2 else ""


def fewer(toll: Toll, planned: int) -> str:
    """``over 2 of 4 conditions``, of a toll that does not speak for all that were planned; else nothing."""
    what = "cases" if toll.metric.probe else "conditions"
    return f"over {toll.conditions} of {planned} {what}" if toll.conditions < planned else ""


IN_VAIN = "it met the objective of the ramp at no level"
_NO_LEVEL = "there is no level at which all arms met the objective"


def no_level(findings: Findings) -> str:
    """Why nothing is compared over the levels of a ramp."""
    last = findings.fixed_by
    if last is None:
        return _NO_LEVEL
    if not any(tells(findings.matrix, arm, last) for arm in findings.matrix.arms):
        return f"the first {last} blocks, which choose the levels, tell of none"
    return f"{_NO_LEVEL} in the first {last} blocks, by which that was fixed"


def over(findings: Findings) -> str:
    """What tolls over all conditions are over: ``4 conditions``, ``the 2 of 4 levels at which all arms met the
    objective`` of a ramp.
    """
    of, planned = len(findings.compared), len(findings.matrix.conditions)
    if of < planned:
        return f"the {of} of {planned} levels at which all arms met the objective"
    return f"{of} condition{'s' * (of != 1)}"


def over_all(findings: Findings) -> str:
    """The same, short: ``all conditions``, but for such a ramp."""
    return "all conditions" if len(findings.compared) == len(findings.matrix.conditions) else over(findings)


def with_fewer(name: str, toll: Toll, planned: int) -> str:
    """A name, and in brackets what `fewer` says."""
    return f"{name} ({few})" if (few := fewer(toll, planned)) else name


def drawn_of(findings: Findings, drawn: Collection[Condition]) -> str:
    """`` Drawn: 8 of 20 conditions.``, of a figure that has no room for all; else nothing."""
    matrix = findings.matrix
    if len(drawn) == len(matrix.conditions):
        return ""
    many_sizes = len(matrix.levels("load.object_bytes")) > 2
    which = ", all of the smallest or the 1 MB (or largest) objects" if many_sizes else ""
    return f" Drawn: {len(drawn)} of {len(matrix.conditions)} conditions{which}."


def left_out(findings: Findings, metric: str, conditions: Collection[Condition]) -> str:
    """``Left out: native+host (in 2 of 6 trials it is at a knee that is a bound).``: of which arms a figure has no mark
    (under some of these conditions), since that of the other trials would be of the better, or the worse, ones; else
    nothing.
    """
    matrix, parts = findings.matrix, []
    for arm in (arm for arm in findings.arms if arm.role != "floor"):
        for condition in conditions:
            lost, made = matrix.barred(metric, arm, condition)
            if lost:
                where = f" at {label}" if (label := matrix.label(condition)) else ""
                parts.append(f"{arm.label}{where} (in {lost} of {made} trials it {matrix.metrics[metric].censoring})")
    return f"Left out: {join(parts)}." if parts else ""


def join(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def unseen(findings: Findings, what: str) -> list[str]:
    """A sentence of the arms on machines of the user's own, if there are any: ``what`` of them is not told, and why."""
    if not (labels := findings.elsewhere):
        return []
    whose = "a machine of its own" if len(labels) == 1 else "machines of their own"
    return [f"Not told of {join(labels)}: {what}. That is {whose}, of which nothing is seen from outside."]


def of_two_machines(elsewhere: Sequence[str]) -> list[str]:
    """A sentence of the arms on machines of the user's own, if there are any: what their ratios hold."""
    if not elsewhere:
        return []
    on = "a machine of its own" if len(elsewhere) == 1 else "machines of their own"
    return [
        f"{join(elsewhere)}: on {on}, so that a ratio to native is of two machines: their hardware, and the network "
        "between them, are in it and cannot be told from what the platform costs."
    ]


def blocks_of(findings: Findings, measured: Sequence[int]) -> str:
    """``5 blocks``, ``3 of 20 blocks``, ``4 to 5 of 5 blocks``: those measured, and how many were planned."""
    least, most, planned = min(measured), max(measured), len(findings.matrix.blocks)
    return _of_planned(least, most, planned, "block")


def replicates_of(findings: Findings, measured: Sequence[int]) -> str:
    """As `blocks_of`; in hosts, where there are so many that the host is what intervals count."""
    rule = findings.rule
    if not (isinstance(rule, OverHosts) and rule.is_of_hosts):
        return blocks_of(findings, measured)
    return _of_planned(min(measured), max(measured), len(set(rule.hosts)), "host")


def _of_planned(least: int, most: int, planned: int, what: str) -> str:
    told = f"{least}" if least == most else f"{least} to {most}"
    return f"{told}{f' of {planned}' if least < planned else ''} {what}{'s' * (planned != 1)}"


def not_measured(findings: Findings, unseen: Sequence[Arm]) -> str:
    """Which arms were not: those this machine cannot offer, and those of which nothing valid is known; "" of none."""
    skipped = [skipped.arm.label for skipped in findings.run.environment.skipped] + [arm.label for arm in unseen]
    return f"{join(skipped)} {'was' if len(skipped) == 1 else 'were'} not measured" if skipped else ""


def no_answer(findings: Findings) -> str:
    """Why nothing is compared in a run that has a native arm."""
    if findings.treatments:
        return _NO_ANSWER
    return f"{'; '.join(filter(None, (_NO_OTHER, not_measured(findings, []))))}."


def worse(toll: Toll) -> str:
    """``12 % less [10, 14]``, ``30 % more [28, 32]``; far from native ``4.1 × native's [3.9, 4.3]``, ``60 × less``."""
    if toll.ratio is None or toll.worse is None:
        return ""
    less = toll.metric.better == "more"
    if toll.worse.value >= (4 if less else 2):
        return f"{_times(toll.worse)[0]} × {'less' if less else 'native’s'}{_times(toll.worse)[1]}"
    return toll.verdict.words.partition(" ")[2].replace(" % [", f" % {'less' if less else 'more'} [")


def _times(factor: Estimate) -> tuple[str, str]:
    """A factor and its interval, with as many decimals as the interval bears, and as tell a bound from 1."""
    if factor.low is None or factor.high is None:
        return significant(factor.value), ""
    digits = 0 if factor.value >= 10 else 1
    while any(misread(bound, f"{bound:.{digits}f}") for bound in (factor.low, factor.high)):
        digits += 1
    return f"{factor.value:,.{digits}f}", f" [{factor.low:,.{digits}f}, {factor.high:,.{digits}f}]"


def mid(title: str) -> str:
    """A title in the middle of a sentence. A single word, or one in capitals, is a name; a comma would end it."""
    first, _, rest = title.replace(", ", " ").partition(" ")
    return f"{first.lower() if first[1:].islower() else first} {rest}" if rest else first


def lower(title: str) -> str:
    """A title in lower case, but for words that are written in capitals."""
    return " ".join(word if len(word) > 1 and word.isupper() else word.lower() for word in title.split(" "))


def not_told(metrics: Sequence[Metric], why: str) -> str:
    """Of which metrics there is no value, and why: for text, where a table would be empty."""
    return f"Not told: {join([mid(metric.title) for metric in metrics])} ({why})."
