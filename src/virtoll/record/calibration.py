"""What a calibration found, as it is kept: docs/JSON.md has the keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from virtoll.record.comparable import MEASURED_BY

ALARMS = 0.05  # of comparisons of equal arms: what is chance
QUOTA, EXTRA, LINK = (
    "throttle.quota_percent",
    "service.extra_ns",
    "link.rate_bit_per_s",
)  # by which an arm's cost is known


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Rate(_Kept):
    """So many of so many, with the exact 95 % interval of the rate they were drawn from."""

    count: int = Field(ge=0)
    of: int = Field(ge=1)
    low: float
    high: float


class Noise(_Kept):
    """What one metric of equal arms scatters by under one condition.

    ``sd``: standard deviation of a block's log ratio of two equal arms, with its ``freedom``; ``floor``: half-width of
    the 95 % interval of all blocks' mean, relative; ``smallest``: by minutes, the smallest relative cost that a run of
    native, native again and one more arm finds with 90 %, None where too few blocks fit in, or nothing scattered.
    """

    condition: str
    metric: str
    title: str
    sd: float
    freedom: int
    floor: float
    alarms: Rate
    smallest: dict[str, float | None]


class Known(_Kept):
    """A known cost, and what was found. Costs are relative: 0.05 is 5 % less throughput, or 5 % more CPU time."""

    arm: str
    way: Literal["CPU quota", "burnt CPU time", "link rate"]
    condition: str
    metric: str
    title: str
    true: float
    found: float
    low: float
    high: float
    is_found: bool  # a cost, at p < 0.05
    is_covered: bool  # the truth lies in the interval
    parts: int  # of the run: groups of blocks, each judged by itself
    parts_found: int
    parts_covered: int


class Odd(_Kept):
    """An arm that differs from its equals by more than chance: relatively ``by`` so much, with the interval."""

    arm: str
    condition: str
    title: str
    by: float
    low: float
    high: float


def machine_of(comparable: Mapping[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
    """The machine that a calibration is of, and promises for: as an environment tells it, tuned as it was then, and
    those of its CPUs that virtoll had (runs from before 2026-11-27 do not tell which): they need not be of one kind.
    """
    tuned, by = comparable.get("tuned"), notes.get(MEASURED_BY)
    cpus = by.get("cpus") if isinstance(by, dict) else None
    told = {"tuned": tuned, "cpu_numbers": cpus}
    return {**comparable.get("machine", {}), **{key: value for key, value in told.items() if value}}


class Calibration(_Kept):
    """A calibration. ``trial_s``: what one arm takes of a block under one condition, its deployment included.

    ``alarms``: comparisons of equal arms in throughput, under all conditions; none shares a trial with another.
    """

    schema_version: Literal[1] = 1
    created_at: str
    virtoll: str
    machine: dict[str, Any]
    run: str  # its run directory, as it was called
    design: str
    blocks: int
    trial_s: float
    part_blocks: int  # blocks in a part of the run, at least
    alarms: Rate
    noise: list[Noise]
    known: list[Known]
    not_judged: list[str]  # known costs that were none, and why: sentences
    odd: list[Odd]

    @property
    def is_trusted(self) -> bool:
        """Whether nothing speaks against it: no arm differs from its equals, and alarms are not more than 5 %."""
        return not self.odd and self.alarms.low <= ALARMS
