"""What advice lacks: what was not measured or cannot be told, why, and the command that would tell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from virtoll.analysis.conditions import Condition
from virtoll.analysis.objectives import Held
from virtoll.analysis.ratios import whole_blocks
from virtoll.analysis.rules import in_blocks
from virtoll.features import is_variant, supported
from virtoll.plain import typed
from virtoll.record.model import Arm
from virtoll.report.advice import Advice, Part
from virtoll.report.findings import Findings
from virtoll.report.numbers import interval
from virtoll.report.words import IN_VAIN, lower, no_level

# What makes a run the study that it is, beside its file and `--quick`, and how each is written.
_MADE_BY = {"--memory": re.compile(r"[0-9]+[A-Za-z]+"), "--platforms": re.compile(r"[a-z0-9-]+(,[a-z0-9-]+)*")}


@dataclass(frozen=True)
class Untold:
    """What was not measured, why, and the command that would measure it ("" where there is none)."""

    what: str
    why: str
    command: str


def untold(advice: Advice) -> list[Untold]:
    """All of it, each once."""
    found = [*_skipped(advice), *_lost(advice), *_unsure(advice), *_by_levels(advice), *_never_run(advice)]
    return list(dict.fromkeys(found))


def _would_measure(run: Findings, advice: Advice, platform: str, why: str) -> Untold:
    """How to measure a platform in the study of a run: `--platforms` names any, whether the study does or not. Of two
    configurations there is no way but to measure it in both of the runs that they are from.
    """
    is_of_two = bool(run.run.study.get("configurations"))
    begun = f"virtoll {_begun(run, advice, without='--platforms')} --platforms {shlex.quote(platform)}{run.run.far}"
    return Untold(platform, why, "" if is_of_two else begun)


def _begun(run: Findings, advice: Advice, without: str = "") -> str:
    """What begins a run of the same study: by its own command, of which the file counts and what makes it that study
    (a record may be anybody's), ``without`` one of these options; by the study's name where there is none.
    """
    words = _words(run.run.study.get("command"))
    if run.run.study.get("configurations") and words[:1] == ["compare"]:
        return shlex.join([*words[:3], "--again"])
    name = str(run.run.study.get("name", "STUDY"))
    file = words[0] if words else name if name in advice.known.studies else f"{name}.toml"
    options = ["--quick"] * ("--quick" in words)
    for option, value in pairwise(words):
        written = None if option == without else _MADE_BY.get(option)
        options += [option, value] if written and written.fullmatch(value) else []
    return shlex.join(["run", file, *options])


def _words(command: object) -> list[str]:
    """Of what `virtoll` was told; none where it is no command, or begins with an option."""
    try:
        words = shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        return []
    return [] if not words or words[0].startswith("-") else words


def _more_blocks(
    part: Part, advice: Advice, n: int, needed: int, anew: int | None = None, *, is_plain: bool = False
) -> str:
    """How to get from ``n`` blocks that hold a value to as many as are ``needed``: as many were lost as are whole and
    hold none, and as many of those that come will be. A run's plan is never made shorter, and one with a rule that ends
    it takes no other length, nor does a copy that was kept small: a new run is begun, of as many as it needs ``anew``,
    where that is another number. So it is beyond the plan of what goes by plain intervals (``is_plain``): who extends a
    run until these tell errs more often than they say. Of several hosts: twice as many on each, since what it takes
    hangs on each.
    """
    far = part.findings.run.far
    if hosts := set(part.findings.run.plan.hosts.values()):  # such a run is not extended
        more = 2 * part.findings.run.plan.blocks // len(hosts)
        return f"virtoll {_begun(part.findings, advice)} --blocks {more}{far}"
    run, planned = f"virtoll run {_directory(part)}", len(part.findings.matrix.blocks)
    whole = int(whole_blocks(part.findings.matrix).sum())
    lost = max(0, whole - n)
    total, is_over = in_blocks(needed, n, lost), part.findings.run.plan.rule is not None or part.findings.run.is_kept
    if is_over or (is_plain and total > planned):
        return f"virtoll {_begun(part.findings, advice)} --blocks {in_blocks(anew or needed, n, lost)}{far}"
    return f"{run}{far}" if total <= planned else f"{run} --blocks {total}{far}"


def _directory(part: Part) -> str:
    return typed(part.findings.run.directory)


def _skipped(advice: Advice) -> Iterator[Untold]:
    """Arms that the machine did not offer."""
    for run in advice.runs:
        for skipped in run.run.environment.skipped:
            told = _would_measure(run, advice, skipped.arm.platform, f"{skipped.reason}; where that is mended")
            yield replace(told, what=skipped.arm.label)


def _lost(advice: Advice) -> Iterator[Untold]:
    """Arms of which nothing valid, or nothing that can be compared, is known."""
    for part in advice.parts:
        matrix = part.findings.matrix
        for arm in part.findings.treatments:
            toll = part.toll(arm)
            if part.met and (not part.findings.compared or part.met.get(arm.label) == set()):
                why = IN_VAIN if part.findings.compared else no_level(part.findings)
                yield Untold(f"{arm.label} in {part.name}", why, f"virtoll report {_directory(part)}")
                continue
            if toll is None or toll.ratio is not None:
                yield from _lost_under(part, arm)
                continue
            why, command = f"{lower(part.metric.title)}: {toll.verdict.words}", f"virtoll report {_directory(part)}"
            if not toll.zeros:
                asked = [c for c in matrix.conditions_of(part.metric.name) if matrix.is_asked(arm, c)]
                why = next((matrix.why_missing(part.metric.name, arm, c) for c in asked), "the study does not ask it")
                whole, planned = int(whole_blocks(matrix).sum()), len(matrix.blocks)
                again = _more_blocks(part, advice, whole, max(2, 2 * planned))
                is_over = whole == planned or part.findings.run.is_kept
                command = again if is_over else f"virtoll run {_directory(part)}{part.findings.run.far}"
            yield Untold(f"{arm.label} in {part.name}", why, command)


def _lost_under(part: Part, arm: Arm) -> Iterator[Untold]:
    """Conditions under which nothing valid is known of an arm that has a ratio by others."""
    for condition in part.lost(arm):
        why = part.findings.matrix.why_missing(part.metric.name, arm, condition)
        yield Untold(f"{arm.label}{at(part, condition)} in {part.name}", why, f"virtoll report {_directory(part)}")


def _unsure(advice: Advice) -> Iterator[Untold]:
    """What more blocks would tell: of verdicts, and of objectives whose bound an interval holds."""
    for part in advice.parts:
        for candidate in (place.candidate for place in advice.places):
            label, toll = candidate.arm.label, candidate.tolls.get(part.name)
            if toll is not None and toll.verdict.kind == "unsure" and toll.verdict.needed:
                what = f"whether {label} differs from native in {part.name}"
                n = 0 if toll.ratio is None else toll.ratio.n
                command = _more_blocks(part, advice, n, toll.verdict.needed, toll.verdict.anew)
                yield Untold(what, f"{lower(part.metric.title)} {interval(toll.ratio)} of native's", command)
            for one in candidate.held.get(part.name, ()):
                if one.told in ("cannot tell", "not measured"):
                    command = _would_decide(part, candidate.arm, one, advice)
                    yield Untold(f"{one.objective.text} of {label} in {part.name}", figure(part, one), command)


def _by_levels(advice: Advice) -> Iterator[Untold]:
    """Of a ramp, whose highest levels are to be missed: up to where an objective is met. A plan is of one host."""
    for part in (each for each in advice.parts if len(set(each.findings.matrix.hosts)) < 2):
        held = [one for place in advice.places for one in place.candidate.held.get(part.name, ())]
        for text in dict.fromkeys(one.objective.text for one in held if part.met):
            command = f"virtoll plan {_directory(part)} --users 100 --objective {shlex.quote(text)}"
            yield Untold(f"up to which level {text} is met in {part.name}", "advice asks it of every level", command)


def _would_decide(part: Part, arm: Arm, one: Held, advice: Advice) -> str:
    """What would tell of an objective: more blocks (without an estimate there is one), or a run that has the arm; ""
    of nothing that is known, and of an arm that `--platforms` does not make: it takes a platform as the study has it,
    or else without settings.
    """
    if one.needed:
        return _more_blocks(part, advice, 1 if one.estimate is None else one.estimate.n, one.needed, is_plain=True)
    skipped = [each.arm for each in part.findings.run.environment.skipped]
    is_new = all(each.platform != arm.platform for each in (*part.findings.matrix.arms, *skipped))
    if (is_new and not arm.settings) or any(each.label == arm.label for each in skipped):
        return _would_measure(part.findings, advice, arm.platform, "").command
    return ""


def at(part: Part, condition: Condition, metric: str | None = None) -> str:
    """Under which condition, of those of a metric (the part's); "" where there is one."""
    label = part.findings.matrix.label(condition, metric or part.metric.name)
    return f" at {label}" if label else ""


def figure(part: Part, one: Held) -> str:
    """What an objective goes by: the interval and where, or why there is none."""
    where = "" if one.condition is None else at(part, one.condition, one.objective.metric)
    where += f", the worst of {one.conditions} conditions" if one.conditions > 1 else ""
    told = one.why
    if one.estimate is not None:
        told = f"{interval(one.estimate, one.objective.bound)} {one.objective.unit}".rstrip()
        told += f" ({one.why})" if one.why else ""
    return f"{told}{where}"


def _never_run(advice: Advice) -> Iterator[Untold]:
    """Platforms that no need speaks against, and that are in no run."""
    seen = {arm.platform for run in advice.runs for arm in run.matrix.arms}
    seen |= {skipped.arm.platform for run in advice.runs for skipped in run.run.environment.skipped}
    for platform, stated in advice.known.features.items():
        if is_variant(platform) or platform in seen:
            continue
        if any(supported(stated, need).answer == "no" for need in advice.needs):
            continue
        yield _would_measure(advice.runs[0], advice, platform, "in none of these runs")
