"""What a run directory holds, as types. docs/RUN_DIRECTORY.md is the same for readers without virtoll.

RUNDIR/
  study.json        the study as run, every default written out          written once
  plan.json         seed and the ordered trials                          written once
  environment.json  the machine, versions, digests, checks of the arms   written once; must match to resume
  trials.jsonl      one TrialRecord a line, in the order they were sealed; append only, fsynced
  trials/ID/        raw data of one trial, written before its line:
    latency.parquet    lower_ns, upper_ns, count (int64): the latency histogram
    lateness.parquet   the same of how long each request of an open loop waited for the generator itself
    requests.parquet   intended_ns, latency_ns (int64; since the window's start), status (int16), and of an open loop
                       late_ns (int64: how long it waited for the generator itself; -1: it was never sent)
    outside.parquet    t_ns (int64, host's CLOCK_MONOTONIC), source, counter (dictionary), value (int64)
    inside.parquet     the same, from inside; t_ns already moved to the host's clock
    neighbour.parquet  t_ns (int64, host's CLOCK_MONOTONIC), source, counter, value: what the neighbour did
    log.txt            what virtoll and the service said
  report/           made by `virtoll report`; nothing else reads it
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = 2

# An open loop's request that waited longer than this for the generator itself was sent late. A busy machine's scheduler
# takes a few milliseconds now and then; more is not the service's, and must not be told as its latency.
LATE_NS = 10 * 10**6


COVERAGE = 0.9  # of a window: samples that hold less of it say nothing of it
LEAST_BEYOND = 5  # a percentile is told only when at least this many requests lie beyond it, failed ones too


def beyond(requests: int, q: float) -> float:
    """How many of ``requests`` lie beyond quantile ``q``."""
    return round(requests * (1 - q), 6)


def most_late(requests: int, q: float) -> float:
    """How many of ``requests`` may be sent late where quantile ``q`` is told: half of those that lie beyond it.

    Were they all the slowest, the quantile would move no farther than to that of the other half: p99 to p99.5.
    """
    return beyond(requests, q) / 2


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Arm(_Record):
    """One way to deploy: a platform in a network mode with its settings. ``label`` is what reports print."""

    label: str  # "docker+routed", "lxc+routed (lxcfs)", "native+host", "native+host (again)"
    platform: str
    network: str
    settings: dict[str, Any] = {}
    role: Literal["baseline", "floor", "treatment"] = "treatment"  # floor: the second native arm


# A trial's id names its directory: one plain word, whoever wrote the record.
TrialId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=200)]


class PlannedTrial(_Record):
    """One trial of the plan: one arm under one condition, in one block.

    A load's trial has a deployment of its own; the probes of a programme share one, a trial each.
    """

    id: TrialId  # "b02-t007": block and position in the run, both from 1
    block: int
    position: int
    arm: Arm
    condition: dict[str, Any]  # levels of the other factors by dotted path: {"load.connections": 100, ...}
    deployment: str = ""  # trials in a row with the same one share an instance; "" for one of its own


class Plan(_Record):
    """The randomised plan. Order within a block is the order of ``trials``."""

    schema_version: int = SCHEMA
    seed: int
    blocks: int
    trials: list[PlannedTrial]
    estimate_s: float


class Check(_Record):
    """One proof a trial gives of itself. ``passed`` None: could not be checked, the detail says why."""

    name: str
    passed: bool | None
    detail: str


class Phase(_Record):
    """A stretch of a trial's wall time: attach, deploy, start, verify, warm-up, window, teardown."""

    name: str
    start_ns: int
    duration_ns: int


class LoadWindow(_Record):
    """The stretch in which the generator asked. Rate and costs are those of the window alone.

    Closed loop: from the first request's start to the time limit, or until the last of the requests asked for was sent.
    Open loop: the schedule.
    """

    start_ns: int
    end_ns: int
    completed: int  # answered correctly within it
    # What was under way at its end and answered correctly later, each for the part of its time (from when it was sent)
    # that lay within. None: an outside instrument does not tell, or all was sent at once (see rust/load/src/http.rs).
    partial: float | None = None
    body_bytes: int | None  # of the completed ones, without the partial
    cpu_user_ns: int | None  # the generator's own, within it
    cpu_system_ns: int | None

    @property
    def duration_ns(self) -> int:
        """Its length; 0 where all requests were sent at once."""
        return self.end_ns - self.start_ns

    @property
    def served(self) -> float:
        """How many requests were served in it: the completed ones and the parts of those that ended after it."""
        return self.completed + (self.partial or 0.0)

    @property
    def requests_per_s(self) -> float | None:
        """Served requests per second; None where there is no rate to speak of."""
        return self.served * 1e9 / self.duration_ns if self.served > 0 and self.duration_ns > 0 else None

    @property
    def generator_cpus(self) -> float | None:
        """How many CPUs the generator used; None where that is not known."""
        if self.cpu_user_ns is None or self.cpu_system_ns is None or self.duration_ns <= 0:
            return None
        return (self.cpu_user_ns + self.cpu_system_ns) / self.duration_ns


class Drain(_Record):
    """What was under way at the window's end and was waited for: whole among the latencies, in the rate for the part of
    its time that lay within the window."""

    under_way: int
    completed: int
    end_ns: int  # of the last of them, whatever its fate


class LogExtent(_Record):
    """How much of all requests requests.parquet holds."""

    logged: int
    # Every request that was to start before this (since the window's start) is in it, and no other; None: all are.
    whole_until_ns: int | None


class LoadRecord(_Record):
    """loads.base.LoadResult without the bulk. Counts are requests; times CLOCK_MONOTONIC ns of the host."""

    instrument: str
    loop: Literal["closed", "open"]
    intended: int
    offered: int
    completed: int  # in window and drain
    failures: dict[str, int]
    censored: int  # requests without a latency, worse than any that has one: all that failed or (open) were never sent
    window: LoadWindow
    drain: Drain | None  # None: nothing was under way, or an outside instrument does not tell
    percentiles_ns: dict[str, int] = {}
    queued: int | None = None  # open loop: requests that had to wait for a free connection
    late: int | None = None  # open loop: requests that the generator itself sent more than LATE_NS late
    log: LogExtent | None = None  # None: single requests were not recorded

    @property
    def requests_per_s(self) -> float | None:
        """Served requests per second of the window; None where there is no rate to speak of."""
        return self.window.requests_per_s


class Quantity(_Record):
    """What a probe measured under one key, window by window. ``better`` None: shown, never judged."""

    title: str
    unit: str
    better: Literal["more", "less"] | None
    windows: list[float]


class ProbeWindow(_Record):
    """When a window was, by CLOCK_MONOTONIC where the probe ran, and how many units of work it held."""

    start_ns: int
    duration_ns: int
    work: int


class ProbeRecord(_Record):
    """What a probe, or an outside instrument in its place, measured in one trial."""

    probe: str
    instrument: str  # name and version of what produced this
    settings: dict[str, Any]
    headline: str  # the quantity that stands for the probe
    quantities: dict[str, Quantity]
    windows: list[ProbeWindow]
    facts: dict[str, Any] = {}
    notes: list[str] = []


class NeighbourRecord(_Record):
    """What the neighbour did beside the victim. Times are CLOCK_MONOTONIC ns of the host.

    ``start_ns`` None: it never began. ``end_ns`` None: it never began, was still at work when it was stopped
    (``stopped_by`` *agent*), or nobody knows (`end_is_unknown`).
    """

    aggressor: str
    settings: dict[str, Any]
    start_ns: int | None = None
    end_ns: int | None = None
    ended: Literal["time", "told", "refused", "killed"]
    stopped_by: Literal["itself", "agent", "host"] = "itself"
    reason: str = ""  # why it could not begin, or was ended before its time
    restarts: int = 0  # how often it was killed (by the kernel, for want of memory) and began again
    killed_by: list[int] = []  # the signals
    counts: dict[str, int] = {}  # what it did, by the aggressor's own words (docs/AGGRESSORS.md)
    processes_peak: int | None = None
    flood: dict[str, int] = {}  # what its part on the generator's side did

    @property
    def end_is_unknown(self) -> bool:
        """Whether it began and nobody knows when it ended: its report is lost, and its agent did not see it alive."""
        return self.start_ns is not None and self.end_ns is None and self.stopped_by != "agent"


Outcome = Literal["answered", "did not answer", "victim died", "host harmed"]


class TrialRecord(_Record):
    """A sealed trial. Failed and invalid ones are kept and shown, never averaged."""

    schema_version: int = SCHEMA
    trial: PlannedTrial
    status: Literal["valid", "invalid", "failed"]
    reason: str = ""  # why invalid or failed, in one paragraph
    started_at: str  # ISO 8601, UTC
    checks: list[Check] = []
    phases: list[Phase] = []
    load: LoadRecord | None = None
    probe: ProbeRecord | None = None
    neighbour: NeighbourRecord | None = None
    outcome: Outcome | None = None  # of a victim beside a neighbour: what became of it is a result, not a failure
    facts: dict[str, Any] = {}  # what ran: versions, accelerator, command line
    believes: dict[str, Any] = {}  # what the instance thinks it has (cpus, memory_bytes, kernel)
    clock: dict[str, int] = {}  # offset_before_ns, round_trip_before_ns, offset_after_ns, round_trip_after_ns


class SkippedArm(_Record):
    """An arm the study names and this machine cannot offer. Shown as not measured, with the reason."""

    arm: Arm
    reason: str


class Environment(_Record):
    """The machine and everything whose version matters. ``comparable`` must be equal for a run to be resumed."""

    schema_version: int = SCHEMA
    created_at: str
    virtoll: str
    comparable: dict[str, Any]  # kernel, cpu model, cpus, memory, mitigations, image digest, tool versions
    notes: dict[str, Any]  # what may change: load average, free memory, frequency governor
    skipped: list[SkippedArm] = []
    warnings: list[str] = []
