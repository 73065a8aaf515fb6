"""What a plan says of itself, in words: before a run, at its beginning, and in its report."""

from __future__ import annotations

from virtoll.record.model import Plan


def in_groups(plan: Plan) -> str:
    """Which arms stand together where the memory does not hold all at once; "" where it does, or none do."""
    if not plan.groups:
        return ""
    native = next((trial.arm.label for trial in plan.trials if trial.arm.role == "baseline"), "native")
    told = "; ".join(", ".join(group) for group in plan.groups)
    return (
        f"the memory does not hold all arms at once: {len(plan.groups)} groups in each block, {native} in each ({told})"
    )
