"""What a reader must know before the numbers: where they are no fair sample, or say another thing than they seem to."""

from __future__ import annotations

from virtoll.analysis.matrix import Condition
from virtoll.record.model import GENERATOR_HEADROOM
from virtoll.report.findings import Findings
from virtoll.report.words import join

BUSY = 0.8  # of its CPUs: what used less in closed loop was not what limited the rate


def reservations(findings: Findings) -> list[str]:
    """All that apply to a run, a sentence or two each."""
    return [*_outrun(findings), *_unsaturated(findings)]


def _outrun(findings: Findings) -> list[str]:
    """Trials that the generator was too slow for were their arms' fastest: those that are left are no fair sample."""
    outrun = [
        trial.record.trial.arm.label
        for trial in findings.matrix.trials
        if any(check.name == GENERATOR_HEADROOM and check.passed is False for check in trial.record.checks)
    ]
    if not outrun:
        return []
    return [
        f"the generator had no headroom in {len(outrun)} {'trial' if len(outrun) == 1 else 'trials'}, the "
        f"fastest of {join(sorted(set(outrun)))}: "
        "what is left of these is slower than they are. Ask at a rate (loop = open), for less at a time, or on a "
        "machine with more CPUs"
    ]


def _unsaturated(findings: Findings) -> list[str]:
    """A closed loop of few users waits for answers and wakes for them: its rate is no capacity."""
    if not findings.is_load or findings.loops != ("closed",):
        return []
    shares = {condition: share for condition in findings.matrix.conditions if (share := _busy(findings, condition))}
    idle = {condition: share for condition, share in shares.items() if share < BUSY}
    if not idle:
        return []
    named = len(findings.matrix.conditions) > 1
    where = {condition: f" under {findings.matrix.label(condition)}" if named else "" for condition in idle}
    told = join([f"{share:.0%}{where[condition]}" for condition, share in idle.items()])
    return [
        f"native used {told} of its CPU: the rate says there how quickly users and service answer each other, which "
        f"scatters with every wake-up, and not how much the service can do. Judge by the CPU time of a "
        f"{findings.unit}, or ask with more users"
    ]


def _busy(findings: Findings, condition: Condition) -> float | None:
    """The share of its CPUs that native used, mean over its trials; None: not known."""
    matrix = findings.matrix
    if matrix.baseline is None:
        return None
    vcpus = {**findings.run.base, **dict(condition.levels)}.get("limits.vcpus", 1)
    used = [
        trial.values["rate_per_s"] * trial.values["cpu_s_per_1000"] / 1000 / vcpus
        for trial in matrix.across(matrix.baseline, condition).values()
        if trial.values.keys() >= {"rate_per_s", "cpu_s_per_1000"}
    ]
    return sum(used) / len(used) if used else None
