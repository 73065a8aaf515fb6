"""What advice lacks: what was not measured or cannot be told, why, and the command that would tell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from virtoll.analysis.objectives import Held
from virtoll.analysis.ratios import whole_blocks
from virtoll.features import supported
from virtoll.report.advice import Advice, Part
from virtoll.report.findings import Findings
from virtoll.report.numbers import interval
from virtoll.report.words import lower


@dataclass(frozen=True)
class Untold:
    """What was not measured, why, and the command that would measure it ("" where there is none)."""

    what: str
    why: str
    command: str


def untold(advice: Advice) -> list[Untold]:
    """All of it, each once."""
    found = [*_skipped(advice), *_lost(advice), *_unsure(advice), *_never_run(advice)]
    return list(dict.fromkeys(found))


def _would_measure(run: Findings, advice: Advice, platform: str, why: str) -> Untold:
    """How to measure a platform in the study of a run: `--platforms` names any, whether the study does or not."""
    return Untold(platform, why, f"virtoll run {_study(run, advice)} --platforms {shlex.quote(platform)}")


def _study(run: Findings, advice: Advice) -> str:
    name = str(run.run.study.get("name", "STUDY"))
    return name if name in advice.known.studies else shlex.quote(f"{name}.toml")


def _more_blocks(part: Part, advice: Advice, n: int, needed: int) -> str:
    """How to get from ``n`` blocks that hold a value to as many as are ``needed``: as many were lost as are whole and
    hold none. A run's plan is never made shorter, and one with a rule that ends it takes no other length.
    """
    run, planned = f"virtoll run {_directory(part)}", len(part.findings.matrix.blocks)
    whole = int(whole_blocks(part.findings.matrix).sum())
    total = needed + max(0, whole - n)
    if part.findings.run.plan.rule is not None:
        return f"virtoll run {_study(part.findings, advice)} --blocks {total}"
    return run if total <= planned else f"{run} --blocks {total}"


def _directory(part: Part) -> str:
    return shlex.quote(str(part.findings.run.directory))


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
            if toll is None or toll.ratio is not None:
                continue
            why, command = f"{lower(part.metric.title)}: {toll.verdict.words}", f"virtoll report {_directory(part)}"
            if not toll.zeros:
                asked = [c for c in matrix.conditions_of(part.metric.name) if matrix.is_asked(arm, c)]
                why = next((matrix.why_missing(part.metric.name, arm, c) for c in asked), "the study does not ask it")
                whole, planned = int(whole_blocks(matrix).sum()), len(matrix.blocks)
                again = _more_blocks(part, advice, whole, max(2, 2 * planned))
                command = again if whole == planned else f"virtoll run {_directory(part)}"
            yield Untold(f"{arm.label} in {part.name}", why, command)


def _unsure(advice: Advice) -> Iterator[Untold]:
    """What more blocks would tell: of verdicts, and of objectives whose bound an interval holds."""
    for part in advice.parts:
        for candidate in (place.candidate for place in advice.places):
            label, toll = candidate.arm.label, candidate.tolls.get(part.name)
            if toll is not None and toll.verdict.kind == "unsure" and toll.verdict.needed:
                what = f"whether {label} differs from native in {part.name}"
                n = 0 if toll.ratio is None else toll.ratio.n
                command = _more_blocks(part, advice, n, toll.verdict.needed)
                yield Untold(what, f"{lower(part.metric.title)} {interval(toll.ratio)} of native's", command)
            for one in candidate.held.get(part.name, ()):
                if one.told in ("cannot tell", "not measured"):
                    n = 0 if one.estimate is None else one.estimate.n
                    command = _more_blocks(part, advice, n, one.needed) if one.needed else ""
                    yield Untold(f"{one.objective.text} of {label} in {part.name}", figure(part, one), command)


def figure(part: Part, one: Held) -> str:
    """What an objective goes by: the interval and where, or why there is none."""
    label = "" if one.condition is None else part.findings.matrix.label(one.condition, one.objective.metric)
    where = f" at {label}" if label else ""
    where += f", the worst of {one.conditions} conditions" if one.conditions > 1 else ""
    told = one.why if one.estimate is None else f"{interval(one.estimate)} {one.objective.unit}".rstrip()
    return f"{told}{where}"


def _never_run(advice: Advice) -> Iterator[Untold]:
    """Platforms that no need speaks against, and that are in no run."""
    seen = {arm.platform for run in advice.runs for arm in run.matrix.arms}
    seen |= {skipped.arm.platform for run in advice.runs for skipped in run.run.environment.skipped}
    for platform, stated in advice.known.features.items():
        if platform in seen or any(supported(stated, need).answer == "no" for need in advice.needs):
            continue
        if platform in advice.known.drivers:
            yield _would_measure(advice.runs[0], advice, platform, "in none of these runs")
        else:
            yield Untold(platform, "virtoll has no driver for it yet: known by documents alone", "")
