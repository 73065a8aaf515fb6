"""Whether more windows in each block, or more blocks, would narrow an interval that is too wide for its question."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace

from virtoll.analysis.load import Run
from virtoll.analysis.narrowing import TIMES, Narrowing, Pace, narrowing, pace_of
from virtoll.analysis.ratios import Toll, log_ratios, over_conditions
from virtoll.analysis.rules import FIXED
from virtoll.plain import typed
from virtoll.record.model import TrialRecord
from virtoll.report.asked import command
from virtoll.report.findings import Findings
from virtoll.report.numbers import significant
from virtoll.report.words import mid
from virtoll.units import format_duration

_RULES = ("--decide", "--precision")


def told(findings: Findings) -> list[str]:
    """A sentence or two on the widest interval that leaves its question open; none where all are narrow enough, blocks
    are still to come, or the components are not known. None of a calibration: no study's command runs it anew.
    """
    toll = None if findings.calibration is not None else widest(findings)
    if toll is None or _is_going_on(findings):
        return []
    found = of_toll(findings, toll)
    return [] if found is None else [_words(findings, toll, found)]


def widest(findings: Findings) -> Toll | None:
    """Of what the answer is given in, the widest interval that leaves something to tell: *cannot tell yet*, or wider
    than the study's margin to either side (of native's value, or of the arm's where that is less).
    """
    found = [(size, toll) for toll in findings.answering() if (size := _size(toll)) is not None]
    asked = [
        (size, toll) for size, toll in found if toll.verdict.kind == "unsure" or size > math.log1p(findings.margin)
    ]
    return max(asked, key=lambda each: each[0], default=(0.0, None))[1]


def of_toll(findings: Findings, toll: Toll) -> Narrowing | None:
    """What would narrow it; None where that is not known, and of a run by hosts, one alone too: it is not extended."""
    if findings.run.plan.hosts:
        return None
    components = findings.components(toll.metric.name, toll.arm)
    pace = _pace(findings, toll.metric.probe)
    if isinstance(components, str) or pace is None:
        return None
    logs = log_ratios(findings.matrix, toll.metric.name)[:, findings.matrix.arms.index(toll.arm), :]
    summary = over_conditions(logs[:, findings.columns(toll.metric.name)])
    return None if summary is None else narrowing(components, summary, pace, findings.run.plan.blocks - summary.n)


def _pace(findings: Findings, probe: str) -> Pace | None:
    """Of all servers, of which blocks and rounds are; who is searched for its knee has its time in a block alone."""
    run = _of_all(findings)
    measured: list[TrialRecord] = []
    beside = [] if findings.explanation is None else [*findings.explanation.run.records]
    for record in run.records:
        (beside if run.is_search(record.trial.condition) else measured).append(record)
    return pace_of(replace(run, records=tuple(measured)), probe, beside)


def _of_all(findings: Findings) -> Run:
    """The run, of one server of several that of all."""
    return findings.among or findings.run


def _size(toll: Toll) -> float | None:
    """Half the interval's width on the log scale, in parts of native's value or the arm's; None without one."""
    ratio = toll.ratio
    if ratio is None or ratio.low is None or ratio.high is None or not ratio.low > 0:
        return None
    return math.log(ratio.high / ratio.low) / 2 * min(1.0, ratio.value, 1 / ratio.value)


def _is_going_on(findings: Findings) -> bool:
    run = _of_all(findings)
    return any(trial.id not in run.made for trial in run.plan.trials)


def _words(findings: Findings, toll: Toll, found: Narrowing) -> str:
    assert toll.ratio is not None
    assert toll.ratio.low
    assert toll.ratio.high
    quantity = "throughput" if toll.metric.name == "rate_per_s" else mid(toll.metric.title)
    n, what = toll.ratio.n, f"{toll.arm.label}’s {quantity}"
    now = math.log(toll.ratio.high / toll.ratio.low) / 2
    as_it_is = "" if findings.rule is FIXED else f" ({_half(found.now)} by a fixed number of as many blocks)"
    windows, change = _of_windows(findings, toll)
    by_windows = f"{windows} ({change}) would give about {_half(found.windows)} for {_time(found.windows_s)} more"
    blocks = f"{found.more} more block{'s' * (found.more > 1)}"
    then = _run(findings, findings.run.plan.blocks + found.more)
    by_blocks = f"{blocks} ({then}) about {_half(found.blocks)} for {_time(found.blocks_s)} more"
    cheaper = windows.replace("twice the", "more") if found.by_windows else "more blocks"
    return (
        f"{what} is known to {_half(now)}{as_it_is}. In a new run {by_windows}, {by_blocks}: {cheaper} narrow it more "
        f"cheaply, as far as {n} blocks tell.{_here(findings, found)}"
    )


def _of_windows(findings: Findings, toll: Toll) -> tuple[str, str]:
    """What to have more of, and what to write for it."""
    probe, base = toll.metric.probe, findings.run.base
    words = _command(findings)
    study, is_own = words[1], bool(findings.run.configurations)
    copied = "" if is_own or "toml" in study or "/" in study else f" in a copy of virtoll/studies/{study}.toml"
    is_quick = "--quick" in words
    if not probe:
        table = "[quick.rotation]" if is_quick else "[rotation]"
        rounds = base.get("rotation.rounds")
        told = f"rounds = {TIMES * rounds if isinstance(rounds, int) else '…'} under {table}"
        return "twice the rounds", f"{told}{copied}"
    measured = (record.measured for record in findings.run.records)
    settings = {each.settings.get("windows") for each in measured if each is not None and each.name == probe}
    (windows,) = settings if len(settings) == 1 else (None,)
    number = f"windows = {TIMES * windows}" if isinstance(windows, int) else "windows"
    where = f"under the probe “{probe}”{', of [[quick.probes]] where there are any' * is_quick}"
    return "twice the windows", f"{number} {where}{copied}"


def _command(findings: Findings) -> list[str]:
    """What `virtoll` was told, but for a rule that ends it."""
    words = shlex.split(command(findings.run))
    rules = {at for at, word in enumerate(words) if word in _RULES}
    return [word for at, word in enumerate(words) if at not in rules and at - 1 not in rules]


def _run(findings: Findings, blocks: int) -> str:
    return f"“virtoll {shlex.join(_command(findings))} --blocks {blocks}”"


def _here(findings: Findings, found: Narrowing) -> str:
    """What this run would need for as much; "" where it is not gone on with: it has a rule, or is a copy."""
    if findings.run.plan.rule is not None or findings.run.is_kept:
        return ""
    if found.here is None:
        return " This run cannot be extended to as much: its intervals would be those of a run without a plan."
    more = found.here - findings.run.plan.blocks
    command = f"virtoll run {typed(findings.run.directory)} --blocks {found.here}"
    return f" Gone on with, this run would need {more} more for as much (“{command}”)."


def _half(half: float) -> str:
    return f"± {significant(math.expm1(half) * 100)} %"


def _time(seconds: float) -> str:
    return format_duration(max(1, round(seconds)) * 1e9)
