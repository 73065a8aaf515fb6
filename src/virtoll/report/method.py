"""How numbers came about, in the words that several sections share: each item is printed once."""

from __future__ import annotations

from collections.abc import Sequence

from virtoll.analysis.load import AGGRESSOR
from virtoll.analysis.rules import FIXED, OverHosts, Rule, TwoStage
from virtoll.record.model import ROTATION
from virtoll.record.told import in_groups
from virtoll.report.findings import Findings
from virtoll.report.words import join, replicates_of
from virtoll.units import format_duration


def one_observation(findings: Findings) -> str:
    """What counts once."""
    seed = findings.run.plan.seed
    many = "windows it has" if findings.is_programme else f"{findings.work} it serves"
    if _neighbours_share(findings):
        return (
            f"**One block is one observation.** Every block deploys each arm's victim once{_conditions(findings)}, in "
            f"random order (seed {seed}), and its neighbours live beside it one after the other, in an order of their "
            "own, each made for its trial and ended with it. A victim that a trial did not leave well is deployed "
            f"anew. However many {many}, a trial counts once."
        )
    if findings.is_programme and not findings.is_isolation:
        return (
            "**One deployment is one observation.** Every block deploys every arm once, in random order (seed "
            f"{seed}); all cases of the programme run on that instance one after the other, in an order of their own"
            f"{', each on all arms in turn' if findings.is_rotation else ''}. "
            "A case's value is the mean over its windows, and counts once; how much the windows of one deployment "
            f"scatter is told below each table, and enters no interval.{_groups(findings)}"
        )
    if findings.is_rotation:
        return (
            "**One deployment is one observation.** In every block all arms"
            f"{' of a group' * bool(findings.run.plan.groups)} are deployed beside each other, each in "
            f"namespaces of its own, and measured in turn (seed {seed}): in each round every arm has one short window, "
            f"in an order drawn anew{_paced(findings)}. A trial is all of its windows together: what was done in them "
            f"by the time they lasted. However many rounds it has, and {findings.work} they serve, it counts once."
            f"{_groups(findings)}"
        )
    if findings.run.is_beside_others:
        return (
            "**One block is one observation.** Every block deploys every arm for each server under each condition "
            f"once, in random order (seed {seed}); on that instance the server is measured alone and beside the "
            "others, in an order drawn for each. The others are deployed for each trial beside them and ended with "
            f"it. However many {many}, a trial counts once."
        )
    if findings.run.parts:
        return (
            "**One deployment is one observation.** Every block deploys every arm once for its ramp, in random order "
            f"(seed {seed}), and all levels are measured on that instance, in one session. Each level is told like a "
            f"trial at so many participants. However many {many}, it counts once."
        )
    return (
        "**One deployment is one observation.** Every block holds every arm under every condition once, in random "
        f"order (seed {seed}), each on an instance made for that {'condition' if findings.is_programme else 'trial'} "
        f"alone. However many {many}, it counts once."
    )


def _paced(findings: Findings) -> str:
    """Which arms had longer windows than the study says, and how long; "" where none had."""
    spans_ns: dict[str, list[int]] = {}
    for record in findings.run.records:
        length_ns = record.facts.get(ROTATION, {}).get("window_ns", 0)
        if length_ns > findings.run.given(record.trial.condition).get("rotation.window_ns", length_ns):
            spans_ns.setdefault(record.trial.arm.label, []).append(length_ns)
    told = [f"{label} {_span(each)}" for label, each in sorted(spans_ns.items())]
    fewer = {
        record.trial.arm.label
        for record in findings.run.records
        if record.facts.get(ROTATION, {}).get("every_rounds", 1) > 1
    }
    rounds = f", and {join(sorted(fewer))} not in each round" if fewer else ""
    return f" (longer where an arm was slow in its warm-up: {join(told)}{rounds})" if told else ""


def _span(lengths_ns: Sequence[int]) -> str:
    """``400 ms`` or ``1.2 to 2 s``, to the millisecond."""
    least, most = (format_duration(round(each, -6)) for each in (min(lengths_ns), max(lengths_ns)))
    return least if least == most else f"{least} to {most}"


def _neighbours_share(findings: Findings) -> bool:
    """Whether a victim had several neighbours; runs of earlier versions have one for each."""
    seen: dict[str, set[str]] = {}
    for trial in findings.run.plan.trials:
        if AGGRESSOR in trial.condition:
            seen.setdefault(trial.deployment or trial.id, set()).add(str(trial.condition[AGGRESSOR]))
    return any(len(names) > 1 for names in seen.values())


def _conditions(findings: Findings) -> str:
    """`` under each condition (...)``: what varies beside the neighbour; "" where nothing does."""
    factors = findings.run.study.get("factors")
    others = [path for path in factors if path.partition(".")[0] != "neighbour"] if isinstance(factors, dict) else []
    return f" under each condition ({', '.join(others)})" if others else ""


def _groups(findings: Findings) -> str:
    """Where not all arms stood beside each other: which did, and what that means."""
    told = in_groups(findings.run.plan)
    if not told:
        return ""
    return (
        f" {told[:1].upper()}{told[1:]}. The groups followed one another, in an order drawn for each block; arms of "
        "different groups were never measured in the same rounds, and are compared through native alone. Native's own "
        "figures are means over its groups, a block each."
    )


def paired(findings: Findings) -> str:
    """What ratios are made of."""
    what = "case" if findings.is_programme else "condition"
    of = f"block, group and {what}" if findings.run.plan.groups else f"block and {what}"
    return (
        f"**Ratios are paired within blocks.** Each arm's value is divided by native's of the same {of}; "
        f"slow drift of the machine cancels. {both_natives(findings)}{log_scale(findings)}"
    )


def both_natives(findings: Findings) -> str:
    """Where native is deployed twice: that ratios are to both, and the figures shown for native the first's; ends in a
    space, or is "".
    """
    if findings.matrix.floor is None:
        return ""
    where = f" (arms that do not stand in the group of {findings.matrix.floor.label}: to the first alone)"
    return (
        "Native is deployed twice in each block, and ratios are to the mean of both (of their logarithms), or to one "
        f"where the other has no valid value{where * bool(findings.run.plan.groups)}: they differ a little from "
        "quotients of the values shown, for native's is that of the first. "
    )


def log_scale(findings: Findings) -> str:
    """Where means and intervals are taken."""
    fewer = ", or fewer over conditions that were lost in some of them" * (len(findings.matrix.conditions) > 1)
    freedom = {
        "t interval": f"; degrees of freedom: n − 1{fewer}",
        TwoStage.method: "; degrees of freedom: the pilot's",
    }
    kind, rule = findings.rule.method, findings.rule
    is_of_hosts = isinstance(rule, OverHosts) and rule.is_of_hosts
    most = replicates_of(findings, [len(set(findings.matrix.hosts)) if is_of_hosts else findings.blocks])
    return (
        f"Means and 95 % {kind.replace('interval', 'intervals')} are taken on the logarithmic scale, over the "
        f"{'hosts' if is_of_hosts else 'blocks'} that hold valid values (n: at most {most}{freedom.get(kind, '')})."
    )


def noise_floor(findings: Findings) -> str:
    """What the second native arm is for."""
    if findings.matrix.floor is None:
        return "**The noise floor is not known**: this run has no second native arm."
    return (
        "**The noise floor is measured.** A second native arm goes through all of it; what it differs from the first "
        "by chance (its distance from 1 or the half-width of its interval, whichever is more) says how small a "
        "difference this run could tell. It decides no word: each arm's own interval holds that noise."
    )


def words(findings: Findings, family: str = "the table") -> str:
    """By which rule a verdict's words are chosen. ``family``: what is tested together."""
    return (
        "**Words follow a rule.** *No difference shown*: the test of equivalence at 5 % holds the ratio to be within ± "
        f"{findings.margin * 100:.3g} % (its 90 % interval lies in it; shown is the 95 % one, which may reach a little "
        f"beyond). *Costs* or *gains*: {_test(findings, family)}. Else *cannot tell yet*, with "
        "the blocks that 80 % power would need. A cost is always a worsening."
    )


def _test(findings: Findings, family: str) -> str:
    if findings.rule.shared == FIXED.shared:
        return f"p < 0.05 after Holm's correction over {family}"
    return f"the {findings.rule.method} at its share of 5 % over {family} (5 % by the comparisons) leaves out 1"


def band(margin: float) -> str:
    """What a figure's grey band has to do with the words, where bars are 95 % intervals."""
    return (
        f"The grey band is the margin, ± {margin * 100:.3g} %: no difference is shown where the 90 % interval lies in "
        "it, which is shorter than the bar."
    )


def comparisons(count: int, of: str) -> str:
    """``the 5 comparisons of a column``: the family of so many."""
    return f"the {count} comparisons of {of}" if count != 1 else f"the one comparison of {of}"


def error_rates(over: str, rule: Rule) -> str:
    """How often a table's words may be wrong; ``over``: the comparisons of a family."""
    return (
        f"Differences are called at a family-wise error rate of 5 % over {over} ({rule.shared}); no difference, at 5 % "
        "each."
    )


def tuned(findings: Findings) -> list[str]:
    """How the machine was tuned, where it was."""
    how = findings.run.environment.comparable.get("tuned")
    if not isinstance(how, dict) or not how:
        return []
    return [f"**The machine was tuned** (`virtoll tune`), for all arms alike: {'; '.join(map(str, how.values()))}."]


def company(findings: Findings) -> str:
    """Which percentiles are told."""
    told = f"**A percentile needs company**: at least five {findings.requests} beyond it, or it is missing."
    return told + of_requests(findings)


_TOGETHER = "round"  # of commands (loads/redis); a join or a start-up is not made of the work that follows it


def of_requests(findings: Findings) -> str:
    """What latencies are of, where that is not the unit of work; "" where it is."""
    request, work = findings.request, findings.work
    if request == findings.unit:
        return ""
    of = f": {work} sent at once and waited for together" if request == _TOGETHER else ""
    return f" Latency is of a {request}{of}. Throughput and CPU are of {work}."


def loop(findings: Findings) -> str:
    """How the load asked, and what its latency is."""
    told = [f"**The loop is {join(findings.loops) if findings.loops else 'not known'}.**"]
    if "closed" in findings.loops:
        told.append(
            "Each connection waits for its answer before it asks again, as `ab` and `wrk` do. Throughput is what the "
            "service can carry; latency is service time under that load, and stalls are under-represented."
        )
    if "open" in findings.loops:
        requests = findings.requests[:1].upper() + findings.requests[1:]
        told.append(
            f"{requests} are sent by a schedule, whatever the service does; latency runs from each intended start."
            if findings.keeps_to_intended
            else f"{requests} are to be sent by a schedule, whatever the service does. **Latency is as the program "
            "that sends them tells it**, maybe from when it came to that: what waited for its turn is in none."
        )
    return " ".join(told)
