"""What a run directory holds, as types. docs/RUN_DIRECTORY.md is the same for readers without virtoll.

RUNDIR/
  study.json        the study as run, every default written out          written once
  plan.json         seed, the ordered trials, the rule that may end it   written once
  extension-N.json  more blocks, where a run was extended (from 1 on)    written once
  kept.json         of a copy that `virtoll keep` made small: what it lacks
  looks.jsonl       one Look a line, where there is a rule; append only, fsynced
  environment.json  the machine, versions, digests, checks of the arms   written once; must match to resume
  hosts/NAME/environment.json  the same of each host, where several measured the blocks; above is what they share
  trials.jsonl      one TrialRecord a line, in the order they were sealed; append only, fsynced
  trials/ID/        raw data of one trial, written before its line:
    latency.parquet    lower_ns, upper_ns, count (int64): the latency histogram; where a load has several windows, of
                       each by its number, from 1: window (int64)
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

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from virtoll.record.knee import Knee
from virtoll.record.rules import StoppingRule

SCHEMA = 3
KEPT = "kept.json"
SERVER = "server"  # in the condition of a trial of a study that sets several services beside each other: its name
# In the condition of a trial of a study that sets two configurations against each other: "A" or "B".
CONFIGURATION = "configuration"
BESIDE = "neighbour.servers"  # the value that says whether the other servers of a study run beside the one measured
# The value that names a ramp's levels, and the path in a condition that one of them has: a ramp's windows are told like
# trials at so many participants, though one session held them all.
LEVELS, LEVEL = "load.levels", "load.participants"
# What comes whatever the server does: participants, viewers, requests of an open loop. (In closed loop a server is as
# busy as it can be with any number of connections: what these change is its throughput.)
INTENSITIES = (LEVEL, "load.viewers", "load.rate_per_s")
# The key, in the facts of what a ramp measured, of the levels that tell nothing of the service: by level, why.
VOID = "void"
# The same of what each level missed of the ramp's objective, in the words of the study; [] where it met all.
MISSED = "missed"
# The same of a ramp without an objective: what the service owes its participants whatever is asked of it.
OWED = "owed"
# The same of each level's quantities that are none of the service's: by name, why.
UNTOLD = "untold"
# What an audit says of a limit where the instance is on a machine of the user's own.
NOT_LIMITED = "not limited by virtoll"
# The fact of a trial that names a helper whose cost is not in the instance's, as it stands in no group of its.
NOT_BOOKED = "not_booked"
# The fact of a trial in rotation that says how long its lead-ins and windows were, and by what pace of the service.
ROTATION = "rotation"
# The fact of a trial that says what work which was none of the lab's took of the instance's CPUs in the windows: CPUs
# on average, and the bound that chance and daemons explain.
OTHERS = "others"
# And the one that says what of ours moves the yardstick of the instance's CPUs (`Window.yardstick_ns`): two lists of
# tries, by how much the logarithm of its time changed where those CPUs idled now and then, and where the generator's
# and the origin's did.
YARDSTICK, OWN_IDLE, OTHERS_IDLE = "yardstick", "own_idle", "others_idle"
# Of a run whose load generator is on another machine: that machine and the link, in an environment's `comparable`; how
# it is reached and its clock, in its notes; and of its windows there, in a trial's facts.
ELSEWHERE = "generator elsewhere"
PROBE = "probe"  # in the condition of a trial of a programme: its case's probe; of any other, a service is driven

# An open loop's request that waited longer than this for the generator itself was sent late. A busy machine's scheduler
# takes a few milliseconds now and then; more is not the service's, and must not be told as its latency.
LATE_NS = 10 * 10**6


# Proofs that fail where the service was too fast for its load: who reads results must know which trials they took.
GENERATOR_HEADROOM, ORIGIN_HEADROOM = "the generator had headroom", "the origin had headroom"
# How the former's detail ends where a tool of somebody else's had none: the trial is valid, as one of that tool's.
MAY_BE_MEASURED = "may be what was measured"
HEADROOM_FOR_ALL = "the generator had headroom for all loads"

COVERAGE = 0.9  # of a window: samples that hold less of it say nothing of it
INTENDED = "intended"  # the key, in a window's counts, of what an open loop's schedule asked for where no events say it
VIEW = "view"  # the key of a window's events that are viewers who began to play
STAY = "stay"  # the key of a window's events that are participants who were in at some time of it, or before
BROWSER = "browser"  # the key of a window's events that are browsers which watched all that was sent
# The key, in its counts, of those that the server sent to, as far as they told, when it began and when it ended.
BROWSERS_SERVED = "browsers_served"
# Checks of what a service owes its users: "requests were answered", "answered correctly before", "squid lived to the
# end"; and that it had an answer for each of them by when the window began.
ANSWERED, CORRECTLY, WENT_ON, LIVED = " were answered", "answered correctly", "views went on", " lived to the end"
ALL_THERE = "all users were there in the window"
STAYED = "participants stayed"
BUFFERS_HELD = "buffers held"  # what a search asks for besides, of viewers who read ahead
BESIDE_IT = " beside it: "  # in the names of checks of other servers, behind theirs
# The keys, in a window's counts, of times at which a viewer was to go on reading, and did so more than LATE_NS late.
WAKES, WAKES_LATE = "wakes", "wakes_late"
# The same of what the load itself sent by the clock, for others to watch.
SENDS, SENDS_LATE = "sends", "sends_late"
# The keys, in a window's values, of the age of live media that came to viewers, and of what they played: both hold how
# late they looked at what came.
MEDIA_AGE, LIVE_LATENCY = "media_age_ms", "live_latency_ms"
UNFINISHED = "unfinished"  # the kind of failure of a join that was under way at the window's end
JOINED = "joined_at_end"  # the key, in a window's counts, of participants who are in when it ends
PRESENT = "present_percent"  # the quantity of participants who are in, of those who were to be
# The keys, in the counts of a window before which viewers paused, of the time in which they waited for play to go on,
# and of all their time, in ms. The same of a closed loop's users, who have no answer yet while others have one after
# another.
STARTING_MS, THERE_MS = "starting_ms", "there_ms"
# The keys, in a window's counts, of viewers who played all through it and whose media had not all come, and of the
# media by which their buffers fell, all together, in ms; and of those who had gathered and did not play when it ended.
STANDING, FALLEN_MS, ABSENT = "standing", "fallen_ms", "absent"
# Shares that hold how late the generator read, or sent, and would be at their best had it been in time; what that is.
BEST: Mapping[str, int] = {
    "stalled_percent": 0,
    "frozen_percent": 0,
    "waiting_percent": 0,
    "watching_percent": 100,
    "audio_silent_percent": 0,
    "audio_waiting_percent": 0,
    "audio_missing_percent": 0,
    "browser_frozen_percent": 0,
}
# The key, in a window's counts, of datagrams that came to the generator, and that its own kernel threw away.
DROPPED = "dropped"
LOST_PERCENT = "lost_percent"  # the key, among a probe's quantities, of requests (or datagrams) that have no time
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


# A trial's id names its directory, as a host's name does: one plain word, whoever wrote the record.
_WORD = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
TrialId = Annotated[str, Field(pattern=f"^{_WORD}$", max_length=200)]
HostName = Annotated[str, Field(pattern=f"^{_WORD}$", max_length=64)]


class PlannedTrial(_Record):
    """One trial of the plan: one arm under one condition, in one block.

    The probes of a programme share a deployment, a trial each, and so do a victim's trials beside its neighbours; any
    other load's trial has its own.
    """

    id: TrialId  # "b02-t007": block and position in the run, both from 1
    block: int
    position: int
    arm: Arm
    condition: dict[str, Any]  # levels of the other factors by dotted path: {"load.connections": 100, ...}
    turn: str = ""  # that of the trials that are measured in turn with each other; "": alone
    group: int = 0  # from 1, of the arms that stand together where the memory does not hold all; 0: it does, or none do
    deployment: str = ""  # trials in a row with the same one share an instance; "" for one of its own
    host: Annotated[str, Field(pattern=f"^({_WORD})?$", max_length=64)] = ""  # that measures its block; "": this one


class Plan(_Record):
    """The randomised plan. Order within a block is the order of ``trials``."""

    schema_version: int = SCHEMA
    seed: int
    blocks: int  # the most there will be, where a rule may end the run before
    trials: list[PlannedTrial]
    estimate_s: float
    rule: StoppingRule | None = None  # None: nothing but its number of blocks ends it
    # How many blocks there were each time when it was extended by somebody who may have seen results; () in plan.json.
    extended: tuple[int, ...] = ()
    is_filled: bool = False  # whether it has the blocks that a budget had time for; false in plan.json

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The labels of the arms that stand beside the baseline, by group; () where no memory divides them."""
        found: dict[int, set[str]] = {}
        for trial in self.trials:
            if trial.group and trial.arm.role != "baseline":
                found.setdefault(trial.group, set()).add(trial.arm.label)
        return tuple(tuple(sorted(found[number])) for number in sorted(found))

    @property
    def hosts(self) -> dict[int, str]:
        """Which host measures each block; {} where no hosts are named: the machine that ran it."""
        return {trial.block: trial.host for trial in self.trials if trial.host}


class Extension(_Record):
    """Blocks that a run was given after it had begun, whatever it had found by then; or, ``by_time``, as a budget that
    was named before had time for them: nothing that was found had a say in that.
    """

    schema_version: int = SCHEMA
    made_at: str  # ISO 8601, UTC
    blocks: int  # in all, with these
    trials: list[PlannedTrial]  # those that are new
    estimate_s: float  # for these
    by_time: bool = False


class Kept(_Record):
    """That a run is a copy which `virtoll keep` made small (kept.json), and what it lacks."""

    schema_version: int = SCHEMA
    virtoll: str  # the version that made it
    left_out: list[str]


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


class Drain(_Record):
    """What was under way at a window's end and was waited for: whole among the latencies, in the window's work for the
    part of its time that lay within the window."""

    under_way: int
    completed: int
    end_ns: int  # of the last of them, whatever its fate


class LogExtent(_Record):
    """How much of all events requests.parquet holds."""

    logged: int
    # Every event that was to start before this (since the window's start) is in it, and no other; None: all are.
    whole_until_ns: int | None


class Events(_Record):
    """What was asked for one by one in a window, and what became of it: requests, transactions, messages."""

    intended: int  # by the plan; in closed loop the number asked for
    offered: int  # really sent
    completed: int  # answered correctly, in window and drain
    failures: dict[str, int]  # by kind: connect, timeout, reset, status, length, parse, unfinished
    # Of those sent in the lead-in, which are not among the above: how many ended, at any time, and which failed.
    early: int = 0
    early_failures: dict[str, int] = {}
    censored: int  # those without a latency, worse than any that has one: all that failed or (open) were never sent
    drain: Drain | None = None  # None: nothing was under way, or an outside instrument does not tell
    percentiles_ns: dict[str, int] = {}  # as an outside instrument reports them itself
    queued: int | None = None  # open loop: those that had to wait for a free connection
    late: int | None = None  # open loop: those that the generator itself sent more than LATE_NS late
    latest_ns: int | None = None  # open loop: how late the latest of all was sent, by the generator's own fault
    log: LogExtent | None = None  # None: single events were not recorded

    @property
    def failed_share(self) -> float | None:
        """Of all that was sent, in the lead-in too, the part that failed: what is under way when the window begins is
        what hangs above all, so a share of that alone would be none of the service. None: nothing was sent.
        """
        failed = self.censored + sum(self.early_failures.values())
        total = self.completed + self.censored + self.early
        return failed / total if total else None


class Booked(_Record):
    """CPU time that the kernel booked of the instance's control groups between two looks of whoever asked (of several
    generators the first): right after a window's begin, and right after its end; or of this machine, where the
    generator is elsewhere: those nearest to both.
    """

    from_ns: int
    to_ns: int
    cpu_ns: dict[str, int]  # by source: "instance", "helpers"; {}: it could not be read, and the times are the window's


class Window(_Record):
    """A stretch in which an instrument measured. Rate and costs are those of the window alone.

    A load's window is the stretch in which it asked, after its lead-in. Closed loop: from the first request's start, or
    the lead-in's end, to the time limit, or until the last of the requests asked for was sent. Open loop: the schedule.
    What is still under way then is waited for (`Drain`). Times are CLOCK_MONOTONIC ns where the instrument ran.
    """

    start_ns: int
    duration_ns: int = Field(ge=0)  # 0: all was asked at once, and there is no rate to speak of
    # Units of work done in it: those completed within, and of those that were under way at its begin or end and ended
    # well, the part of their time (from when it was sent) that lay within, where the instrument tells it.
    work: float = Field(ge=0, allow_inf_nan=False)
    # When the same users began to ask, where that was before: its lead-in. What they asked for then is part of ``work``
    # and ``served``, and no event. None: it had none, and nothing was under way at its begin.
    asked_ns: int | None = None
    # Units done of all that was asked for from `asked_from_ns` on, until the last ended at `until_ns`, where nothing
    # was asked for right before; None: it does not tell. What these cost is known whole, however they lie to its ends.
    served: float | None = None
    # From then on nothing was under way; None: it does not tell. Of viewers: the last start-up's end, for which all are
    # kept, or when all paused; of a program: its own.
    until_ns: int | None = None
    values: dict[str, float] = {}  # by quantity
    censored: list[str] = []  # quantities without a value that are worse than any: they are of what did not come
    counts: dict[str, int] = {}  # of a load: ``completed`` within it, ``body_bytes`` of those; see INTENDED
    events: dict[str, Events] = {}  # by what was asked for one by one: "request", "round"
    cpu_ns: int | None = None  # what the instrument itself used, over `cpu_span_ns`; None: it does not tell
    cpu_span_ns: int | None = None  # a longer stretch that holds the window (all of a program's run); None: the window
    booked: Booked | None = None  # None: the instrument does not look, or there is nothing to look at
    # How long a small fixed piece of work took on the instance's CPUs meanwhile, as a rule: how slow they were, whoever
    # made them so. None: nobody looked, or the window was too short.
    yardstick_ns: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    at: float | None = None  # the level, where several were tried: users, or requests per second
    begun_ns: int | None = None  # when it really began, where a start was agreed on; None: there was none, or not told
    parts: list[GeneratorPart] = []  # of each of several generators: the window is their sum; []: there was one

    def tells(self, key: str) -> bool:
        """Whether it has a quantity's value, or that this is worse than any."""
        return key in self.values or key in self.censored

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.duration_ns

    @property
    def asked_from_ns(self) -> int:
        """When its users began to ask: with its lead-in, or with itself."""
        return self.start_ns if self.asked_ns is None else self.asked_ns

    @property
    def rate_per_s(self) -> float | None:
        """Units of work per second; None where there is no rate to speak of."""
        return self.work * 1e9 / self.duration_ns if self.work and self.duration_ns > 0 else None

    @property
    def cpus(self) -> float | None:
        """How many CPUs the instrument itself used, over the stretch that its CPU time is of; None: not known."""
        return self._cpus_over(self.duration_ns if self.cpu_span_ns is None else self.cpu_span_ns)

    @property
    def cpus_at_most(self) -> float | None:
        """How many CPUs it can have used within the window: as if all of its CPU time lay there; None: not known."""
        return self._cpus_over(self.duration_ns)

    def _cpus_over(self, span_ns: int) -> float | None:
        return None if self.cpu_ns is None or span_ns <= 0 else self.cpu_ns / span_ns


class GeneratorPart(_Record):
    """What one of several generators did in a window that all of them made."""

    generator: int  # from 1
    cpus: list[int]  # those it may use; generators that have the same ones share them
    usable: float | None = None  # how many of them its threads can use; None: it was not recorded, or is not known
    window: Window


def _whole(windows: Sequence[Window]) -> Window:
    """Windows of one level as one, from the first's start on, as long as they are together."""
    first = windows[0]
    units = [unit for unit in first.events if all(unit in window.events for window in windows)]
    names = [name for name in first.counts if all(name in window.counts for window in windows)]
    used_ns, spans_ns = [window.cpu_ns for window in windows], [window.cpu_span_ns for window in windows]
    return Window(
        start_ns=first.start_ns,
        duration_ns=sum(window.duration_ns for window in windows),
        work=sum(window.work for window in windows),
        counts={name: sum(window.counts[name] for window in windows) for name in names},
        events={unit: all_events([window.events[unit] for window in windows]) for unit in units},
        cpu_ns=None if None in used_ns else sum(used for used in used_ns if used is not None),
        cpu_span_ns=None if None in spans_ns else sum(span for span in spans_ns if span is not None),
        at=first.at,
    )


def all_events(of_windows: Sequence[Events]) -> Events:
    """Of several windows, or generators: counts are added; what cannot be (a drain, an instrument's own percentiles) is
    left out.
    """
    late, queued, latest = ([getattr(e, name) for e in of_windows] for name in ("late", "queued", "latest_ns"))
    return Events(
        intended=sum(events.intended for events in of_windows),
        offered=sum(events.offered for events in of_windows),
        completed=sum(events.completed for events in of_windows),
        failures=_by_kind([events.failures for events in of_windows]),
        early=sum(events.early for events in of_windows),
        early_failures=_by_kind([events.early_failures for events in of_windows]),
        censored=sum(events.censored for events in of_windows),
        queued=None if None in queued else sum(queued),
        late=None if None in late else sum(late),
        latest_ns=None if None in latest else max(latest),
    )


def _by_kind(of_windows: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The counts of each kind of failure, added."""
    counts: dict[str, int] = {}
    for failures in of_windows:
        for kind, count in failures.items():
            counts[kind] = counts.get(kind, 0) + count
    return counts


class Quantity(_Record):
    """What the values of one key are. ``better`` says what a cost is; None: it is shown, and never judged."""

    title: str  # "LINPACK", as a report's heading
    unit: str  # "GFLOP/s"
    better: Literal["more", "less"] | None

    def __init__(self, title: str, unit: str, better: Literal["more", "less"] | None) -> None:
        super().__init__(**{"title": title, "unit": unit, "better": better})


class Measured(_Record):
    """What a load, a probe, or an outside instrument in its place measured in one trial."""

    name: str  # of the load or probe: "http", "linpack"
    instrument: str  # name and version of what produced this
    unit: str = ""  # of work: "request"; "" where rate and cost of the work are no result (a probe's)
    request: str = ""  # of a load, what is sent and waited for as one where that is several units of work: "round"
    loop: Literal["closed", "open"] | None = None  # of a load
    settings: dict[str, Any] = {}
    quantities: dict[str, Quantity] = {}
    headline: str = ""  # the quantity that stands for all where there is room for one
    windows: list[Window] = Field(min_length=1)
    knee: Knee | None = None  # of a load whose knee was searched for: what each of the windows told
    facts: dict[str, Any] = {}
    notes: list[str] = []

    @property
    def is_load(self) -> bool:
        """Whether rate and cost of its work are results."""
        return self.loop is not None

    @property
    def pace(self) -> float | None:
        """Of a load what stands for all where there is room for one number: units of work per second, or the knee where
        that was searched for; None: it is not known.
        """
        return self.window.rate_per_s if self.knee is None else self.knee.value

    @property
    def window(self) -> Window:
        """What was done in all of its windows, in all of their time, where they are of one level; else the first."""
        if len(self.windows) == 1 or len({window.at for window in self.windows}) > 1:
            return self.windows[0]
        return _whole(self.windows)

    @property
    def served_nothing(self) -> bool:
        """Of a closed loop: whether its windows lasted and nothing was done in them, which is worse than any rate. When
        as many as were asked for were all sent at once they ended with that, and nothing is known of its rate; in open
        loop nothing may be due.
        """
        window, asked = self.window, int(self.settings.get("requests") or 0)
        events = window.events.get(self.asked)
        ended_with_that = events is not None and 0 < asked <= events.offered
        return self.loop == "closed" and window.duration_ns > 0 and not window.work and not ended_with_that

    @property
    def asked(self) -> str:
        """What a load asks for one by one, and events and latencies are of: its unit of work, or "round"."""
        return self.request or self.unit

    @property
    def events(self) -> Events | None:
        """The events of what was asked for one by one; None where the instrument tells none."""
        return self.window.events.get(self.asked)

    def values(self, key: str) -> list[float]:
        """The values of one quantity, window by window; [] where the instrument did not tell it in each of them."""
        found = [window.values[key] for window in self.windows if key in window.values]
        return found if len(found) == len(self.windows) else []


class NeighbourRecord(_Record):
    """What the neighbour did beside the victim. Times are CLOCK_MONOTONIC ns of the host.

    ``start_ns`` None: it never began. ``end_ns`` None: it never began, was still at work when it was told to end
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


class BesideRecord(_Record):
    """Another server of the study, under its own load at the same time as the one that its trial measures."""

    server: str  # its name
    measured: Measured  # what its load measured meanwhile: that it was at work


Outcome = Literal["answered", "did not answer", "victim died", "host harmed"]


class Audit(_Record):
    """What really held for an instance when its service ran and nothing was measured yet, as text by key.

    docs/RUN_DIRECTORY.md has the keys. What could not be read is in ``missing``, with the reason, and not in ``found``.
    """

    process: str  # whose /proc/PID was read: the service's name, or "agent" where there is none
    condition: dict[str, Any] = {}  # the levels of the trial's condition that decide what should hold: service, limits
    found: dict[str, str]
    missing: dict[str, str] = {}

    @classmethod
    def levels(cls, condition: Mapping[str, Any]) -> dict[str, Any]:
        """Of a trial's condition, what an audit under it depends on: the load and a probe's case it does not."""
        own = ("service.", "limits.")
        return {p: level for p, level in condition.items() if p in (SERVER, CONFIGURATION) or p.startswith(own)}


class TrialRecord(_Record):
    """A sealed trial. Failed and invalid ones are kept and shown, never averaged."""

    schema_version: int = SCHEMA
    trial: PlannedTrial
    status: Literal["valid", "invalid", "failed"]
    reason: str = ""  # why invalid or failed, in one paragraph
    started_at: str  # ISO 8601, UTC
    # Of its run, from 1: one more each time that it is gone on with. None: it was measured before they were counted, or
    # its writer was killed.
    sitting: int | None = Field(default=None, ge=1)
    checks: list[Check] = []
    phases: list[Phase] = []
    measured: Measured | None = None
    neighbour: NeighbourRecord | None = None
    beside: list[BesideRecord] = []  # the other servers at work, where the study sets them side by side
    outcome: Outcome | None = None  # of a victim beside a neighbour: what became of it is a result, not a failure
    facts: dict[str, Any] = {}  # what ran: versions, accelerator, command line
    believes: dict[str, Any] = {}  # what the instance thinks it has (cpus, memory_bytes, kernel)
    clock: dict[str, int] = {}  # offset_before_ns, round_trip_before_ns, offset_after_ns, round_trip_after_ns
    audit: Audit | None = None  # of the first deployment of an arm in a run, and under other settings or limits


class SkippedArm(_Record):
    """An arm the study names and this machine cannot offer. Shown as not measured, with the reason."""

    arm: Arm
    reason: str


class Environment(_Record):
    """The machine and everything whose version matters. ``comparable`` must be equal for a run to be resumed."""

    schema_version: int = SCHEMA
    created_at: str
    virtoll: str
    comparable: dict[str, Any]  # kernel, cpus, memory, mitigations, tuning, image digests, versions
    notes: dict[str, Any]  # what may change: load average, free memory, frequency governor
    skipped: list[SkippedArm] = []
    warnings: list[str] = []
