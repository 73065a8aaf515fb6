"""What the last calibration of a run's machine promises for the run: an item of every report's method."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from virtoll.analysis.calibration import smallest_cost
from virtoll.analysis.rules import FIXED
from virtoll.record.calibration import ALARMS, Calibration, Known, Noise, Rate
from virtoll.record.model import ELSEWHERE
from virtoll.report.findings import Findings
from virtoll.units import percent

NOTES = ("calibration", "not_calibrated")  # of a run's environment
_REMEDY = "`virtoll calibrate --quick`{} measures it in ten minutes"


def promise(findings: Findings) -> str:
    """What is known of how often virtoll is wrong there, and of how small a cost this run can find."""
    if findings.calibration is not None:
        return "**This is a calibration** itself; what it found is above, and is kept for later runs' reports."
    notes, hosts = findings.run.environment.notes, sorted(set(findings.run.plan.hosts.values()))
    if len(hosts) > 1:
        return (
            "**A calibration is of one machine**: how often equal arms are called different on these hosts together, "
            "and how small a cost is found, is not known."
        )
    if ELSEWHERE in findings.run.environment.comparable:
        return (
            "**A calibration is of a lab on one machine**: how often equal arms are called different where the load "
            "comes from another one, and how small a cost is found, is not known."
        )
    kept, remedy = notes.get("calibration"), _REMEDY.format("".join(f" on {host}" for host in hosts))
    if kept is None:
        why, machine = notes.get("not_calibrated", ""), "".join(hosts) or "this machine"
        known = f" ({why})" if isinstance(why, str) and why else ""
        where = "there" if hosts else "here"
        return (
            f"**No calibration of {machine}{known}**: how often equal arms are called different {where}, and how small "
            f"a cost is found, is not known. {remedy}."
        )
    try:
        last = Calibration.model_validate(kept)
    except ValidationError:
        return f"**The machine's calibration cannot be read** from this run's environment.json. {remedy}."
    return _told(findings, last)


def _told(findings: Findings, last: Calibration) -> str:
    told = [
        f"**The machine was calibrated** on {last.created_at[:10]} (virtoll {last.virtoll}, {last.blocks} blocks in "
        f"{last.design}): {of_alarms(last.alarms)}; {of_known(last.known)}.",
        *([] if last.is_trusted else ["**That is not as it should be: small differences are not to be believed.**"]),
    ]
    here = "rotation" if findings.is_rotation else "blocks"
    if last.design != here:
        told.append(f"That was in {last.design}, and says nothing of how small a cost a run in {here} finds.")
    elif (noise := headline_noise(last)) is not None:
        told += _of_cost(findings, noise)
    return " ".join(told)


def _of_cost(findings: Findings, noise: Noise) -> Iterator[str]:
    """Of a run whose intervals are those of a fixed number of blocks: others are wider, by what they find."""
    family = max(1, sum(arm.role == "treatment" for arm in findings.matrix.arms))
    cost = smallest_cost("more", noise.sd, findings.blocks, _natives(findings), family)
    if cost is None or findings.rule is not FIXED:
        return
    whose = f" of one of {family} arms" if family > 1 else ""
    yield (
        f"Its throughput scattered by {share(noise.sd)} from block to block; at that, {findings.blocks} "
        f"blocks find a cost of {share(cost)}{whose} nine times in ten. Another service may scatter more."
    )


def _natives(findings: Findings) -> int:
    """How many natives every arm of the run is compared with: in groups the second is in one of them alone."""
    return 1 if findings.matrix.floor is None or findings.run.plan.groups else 2


def headline_noise(found: Calibration) -> Noise | None:
    """Of throughput, under the first condition: where the CPU is the limit."""
    return next((noise for noise in found.noise if noise.metric == "rate_per_s"), None)


def of_alarms(rate: Rate) -> str:
    """How often equal arms were called different in throughput."""
    return (
        f"{rate.count} of {rate.of} comparisons of equal arms called them different ({share(rate.count / rate.of)} "
        f"[{percent(100 * rate.low)}, {percent(100 * rate.high)}], {share(ALARMS)} is chance)"
    )


def of_known(known: list[Known]) -> str:
    """How many known costs were found, and how many lay within their intervals."""
    if not known:
        return "no known cost was measured"
    found, covered = sum(one.is_found for one in known), sum(one.is_covered for one in known)
    return f"of {len(known)} known costs {found} were found, and {covered} lay within their 95 % intervals"


def share(value: float) -> str:
    """A relative value in per cent."""
    return f"{percent(100 * value)} %"
