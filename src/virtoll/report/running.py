"""The small table of a run that is going on, from its records alone (no file is read)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from virtoll.analysis.estimates import Estimate, ratio
from virtoll.analysis.matrix import Condition
from virtoll.analysis.ratios import over_conditions
from virtoll.record.model import Arm, TrialRecord


@dataclass(frozen=True)
class RunningRow:
    """One arm so far. ``rate_per_s`` is a geometric mean over its valid trials, ``against_native`` paired.

    A programme has neither: its quantities are too many for a rate.
    """

    arm: Arm
    valid: int
    spoilt: int  # failed or invalid
    rate_per_s: float | None
    against_native: Estimate | None


def running_table(records: Sequence[TrialRecord]) -> list[RunningRow]:
    """A row for every arm seen, baseline first, then in order of first appearance."""
    logs: dict[str, dict[tuple[int, Condition], float]] = {}
    arms: dict[str, Arm] = {}
    spoilt: dict[str, int] = {}
    valid: dict[str, int] = {}
    for record in records:
        label = record.trial.arm.label
        arms.setdefault(label, record.trial.arm)
        mine = logs.setdefault(label, {})
        measured = record.measured
        rate = measured.window.rate_per_s if measured is not None and measured.is_load else None
        if record.status != "valid":
            spoilt[label] = spoilt.get(label, 0) + 1
            continue
        valid[label] = valid.get(label, 0) + 1
        if rate is not None:
            mine[record.trial.block, Condition.of(record.trial)] = math.log(rate)
    base = next((label for label, arm in arms.items() if arm.role == "baseline"), None)
    order = sorted(arms, key=lambda label: ("baseline", "floor", "treatment").index(arms[label].role))
    native = {} if base is None else logs[base]
    return [
        RunningRow(
            arms[label],
            valid.get(label, 0),
            spoilt.get(label, 0),
            math.exp(float(np.mean(list(logs[label].values())))) if logs[label] else None,
            None if label == base else _paired(logs[label], native),
        )
        for label in order
    ]


def _paired(mine: dict[tuple[int, Condition], float], native: dict[tuple[int, Condition], float]) -> Estimate | None:
    both = [key for key in mine if key in native]
    if not both:
        return None
    blocks = sorted({block for block, _ in both})
    conditions = list(dict.fromkeys(condition for _, condition in both))
    table = np.full((len(blocks), len(conditions)), np.nan)
    for block, condition in both:
        key = (block, condition)
        table[blocks.index(block), conditions.index(condition)] = mine[key] - native[key]
    summary = over_conditions(table)
    return None if summary is None else ratio(summary, "paired within blocks so far, t interval on the log scale")
