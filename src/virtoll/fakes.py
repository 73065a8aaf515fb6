"""Public test doubles: whole studies without a machine, exact and instant.

`FakeExperiment` stands in for the lab: every arm costs a known factor of native, so that what a report must say is
known beforehand. `FakeClock` is the time it takes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from virtoll.errors import Problem, TrialError
from virtoll.hosts.base import Host
from virtoll.images.base import Image
from virtoll.lab.client import Client
from virtoll.loads.base import Bulk, Load, Measurement, Session
from virtoll.offers import Offer
from virtoll.probes.base import probes
from virtoll.record.model import (
    BESIDE,
    SERVER,
    Audit,
    BesideRecord,
    Environment,
    Events,
    LogExtent,
    Measured,
    NeighbourRecord,
    Outcome,
    PlannedTrial,
    Quantity,
    Window,
)
from virtoll.record.tables import histogram_table, histograms_table, requests_table, samples_table
from virtoll.study.model import Knee
from virtoll.trial.notes import Course, Notes
from virtoll.trial.searching import KneeSearch, of_generator
from virtoll.trial.subjects import tables_of

FAKE_IMAGE = Image("fake", "0" * 64, Path("/nonexistent"))  # of instances that were made from none
FAKE_FIGURE = 100.0  # of every quantity of every probe on native, in its unit
_WINDOWS = 3
# When a fake's neighbour begins to misbehave and when it ends, since the window's start; no earlier and no later.
FAKE_MISBEHAVES_NS = (2 * 10**9, 4 * 10**9)
_FAKE_PERIOD_NS = 1_000_000  # a request a millisecond
_TIMED_OUT = -2


@dataclass(frozen=True)
class FakeHarm:
    """What a fake's aggressor does to its victim: of its requests ``kept`` are answered (what is lost scatters from
    deployment to deployment), ``rise`` times later, and as late until ``recovery_ns`` after the aggressor's end; for
    the first ``overshoot_ns`` twice as late. ``refused``: why the aggressor cannot start."""

    kept: float = 1.0
    rise: float = 1.0
    recovery_ns: int = 0
    overshoot_ns: int = 0
    outcome: Outcome = "answered"
    refused: str = ""


@dataclass
class FakeClock:
    """A clock that stands still until it is moved."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now_s


class FakeLoad(Load):
    """An open loop of requests, of `FakeSession`s."""

    @property
    def unit(self) -> str:
        """A request."""
        return "request"

    @property
    def loop(self) -> Literal["closed", "open"]:
        """Open."""
        return "open"

    def check(self, host: Host) -> list[Problem]:  # noqa: ARG002
        """Nothing is missing."""
        return []

    def session(self, client: Client, offer: Offer) -> AbstractContextManager[Session]:
        """There is no service."""
        raise NotImplementedError


@dataclass
class FakeSession(Session):
    """A service of one queue (M/M/1): at an intensity x its latency is exponentially distributed, of mean
    ``alone_ns`` / (1 - x / ``capacity_per_s``); what comes beyond its capacity fails. So a share 1 - q of what is asked
    takes longer than t from x = capacity (1 - alone ln(1 / (1 - q)) / t) on, which is the knee.

    The capacity of each window is off by log-normal noise of ``spread``. Beyond ``generator_per_s`` the generator sends
    all so late that it is a hundred times the latency. ``clock`` moves on with each window.
    """

    capacity_per_s: float
    alone_ns: float
    clock: FakeClock
    noise: random.Random
    spread: float = 0.0
    generator_per_s: float = math.inf
    drift: Callable[[float], float] = lambda _now_s: 1.0  # what the machine is slower by, at a time of ``clock``

    def warm_up(self, duration_ns: int | None = None) -> None:
        """It is warm."""

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        """A window of as many requests as are due on the average."""
        assert intensity is not None
        assert duration_ns is not None
        start_ns, asked = round(self.clock.now_s * 1e9), round(intensity * duration_ns / 1e9)
        self.clock.now_s += duration_ns / 1e9
        capacity_per_s = self.capacity_per_s / self.drift(self.clock.now_s)
        capacity_per_s *= self.noise.lognormvariate(0, self.spread) if self.spread else 1.0
        busy = min(0.999, intensity / capacity_per_s)
        failed = max(0, asked - round(capacity_per_s * duration_ns / 1e9))
        is_late = intensity > self.generator_per_s
        events = Events(
            intended=asked,
            offered=asked,
            completed=asked - failed,
            failures={"timeout": failed} if failed else {},
            censored=failed,
            late=asked if is_late else 0,
        )
        window = Window(
            start_ns=start_ns,
            duration_ns=duration_ns,
            work=asked - failed,
            counts={"completed": asked - failed},
            events={"request": events},
            cpu_ns=duration_ns // 5,
            at=intensity,
        )
        mean_ns = self.alone_ns / (1 - busy) * (100 if is_late else 1)
        return Measurement("fake 1", window, Bulk(_exponential(asked - failed, mean_ns)))


# Of two thousand equal shares all of the slowest twentieth are told apart, which objectives ask for, and of the others
# twenty at a time.
_FAKE_SHARES = np.concatenate((np.arange(0, 1900, 20), np.arange(1900, 2001)))
_FAKE_EDGES = -np.log1p(-_FAKE_SHARES / 2001)  # of a mean of 1


def _exponential(count: int, mean_ns: float) -> list[tuple[int, int, int]]:
    """A histogram of ``count`` exponentially distributed latencies, as evenly as can be."""
    edges = np.rint(mean_ns * _FAKE_EDGES).astype(np.int64)
    until = np.rint(count * _FAKE_SHARES / 2000).astype(np.int64)
    counts = np.diff(until)
    parts = np.column_stack((edges[:-1], edges[1:], counts))[counts > 0]
    return [(lower, upper, number) for lower, upper, number in parts.tolist()]


@dataclass
class FakeExperiment:
    """Takes ``tolls[platform]`` times native's time, with log-normal noise of ``spread`` between deployments; of one
    arm among those of a platform ``tolls[LABEL]``.

    A probe reports `FAKE_FIGURE` for each of its quantities on native, and ``tolls["PLATFORM/PROBE"]``, where there is
    one, times worse elsewhere; an outside instrument in its place reads ``instruments[NAME]`` times that. What a probe
    measures, and its headline (the first), is as registered, or as ``quantities`` says.

    Where the study has neighbours, a victim asked a thousand times a second suffers ``harms["PLATFORM/AGGRESSOR"]`` or
    else ``harms[AGGRESSOR]`` from `FAKE_MISBEHAVES_NS` on; a probe beside it is ``rise`` times worse.

    Where the study sets servers side by side, one takes ``beside["PLATFORM/SERVER"]``, or else ``beside[SERVER]``,
    times as long beside the others as alone; infinitely long: it does not answer.

    With a ``knee`` it is searched for at a `FakeSession` of ``capacity_per_s`` (of native; over the toll elsewhere).

    ``proofs`` are checks that pass in each trial, by name, with their detail.
    ``fail`` maps trial ids to what happens in them: an exception is raised, a string fails the check of that name.
    """

    tolls: Mapping[str, float]
    seed: int = 1
    spread: float = 0.0
    native_latency_ns: int = 1_000_000
    window_ns: int = 1_000_000_000
    fail: Mapping[str, BaseException | str] = field(default_factory=dict)
    quantities: Mapping[str, Mapping[str, Quantity]] = field(default_factory=dict)
    instruments: Mapping[str, float] = field(default_factory=dict)
    harms: Mapping[str, FakeHarm] = field(default_factory=dict)
    beside: Mapping[str, float] = field(default_factory=dict)
    proofs: Mapping[str, str] = field(default_factory=dict)
    knee: Knee | None = None
    capacity_per_s: float = 10_000.0
    generator_per_s: float = math.inf
    audits: Mapping[str, Audit] = field(default_factory=dict)  # by the arm's label: noted in its first trial
    rounds: int = 4  # of trials that are measured in turn
    drift: Callable[[float], float] = lambda _now_s: 1.0  # what the machine is slower by, at a time of ``clock``
    # What the yardstick of the CPUs takes at such a time (ns); None: nobody reads one.
    yardstick: Callable[[float], float] | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    before: Callable[[PlannedTrial], None] = lambda _trial: None
    performed: list[str] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        """Make up the measurement a trial asks for: a probe's, or a closed-loop one on one connection."""
        self.performed.append(trial.id)
        self.before(trial)
        what = self.fail.get(trial.id)
        if isinstance(what, BaseException):
            raise what
        if trial.arm.label not in self._seen:
            notes.audit = self.audits.get(trial.arm.label)
            self._seen.add(trial.arm.label)
        noise = random.Random(f"{self.seed}/{trial.id}")
        if self.knee is not None and "probe" not in trial.condition:
            yield from self._searched(self.knee, trial, notes, noise)
        elif trial.turn and "probe" not in trial.condition:
            yield from self._in_rounds(trial, notes, noise)
        else:
            yield from self._at_once(trial, notes, noise)
        for name, detail in self.proofs.items():
            notes.check(name, True, detail)
        notes.check("limits in force", what != "limits in force", "1.00 of 1 CPU used")

    def _at_once(self, trial: PlannedTrial, notes: Notes, noise: random.Random) -> Course:
        yield
        with notes.phase("window"):
            self.clock.now_s += self.window_ns / 1e9
        yield
        if "probe" in trial.condition:
            self._probe(trial, notes, noise)
        elif "neighbour.aggressor" in trial.condition:
            self._victim(trial, notes, noise)
        elif math.isinf(self._crowding(trial)):
            notes.outcome = "did not answer"
            notes.check("requests were answered", False, "0 of 1000 completed")
        else:
            self._loaded(notes, [self._served(trial, self._factor(noise))])
            if trial.condition.get(BESIDE) == "others" and notes.measured is not None:
                notes.beside = [BesideRecord(server="another", measured=notes.measured)]

    def _crowding(self, trial: PlannedTrial) -> float:
        """How many times as long a server takes beside the others."""
        if trial.condition.get(BESIDE) != "others":
            return 1.0
        server = str(trial.condition[SERVER])
        return self.beside.get(f"{trial.arm.platform}/{server}") or self.beside.get(server, 1.0)

    def _searched(self, knee: Knee, trial: PlannedTrial, notes: Notes, noise: random.Random) -> Course:
        search = KneeSearch(knee, FakeLoad(), 1, trial.id)
        capacity_per_s = self.capacity_per_s / self._toll(trial) / self._factor(noise)
        alone_ns, most_per_s = self.native_latency_ns, self.generator_per_s
        session = FakeSession(capacity_per_s, alone_ns, self.clock, noise, self.spread, most_per_s, self.drift)
        while search.asked is not None:
            yield
            search.measure(session)
        notes.waits = True
        yield
        notes.measured = search.measured()
        notes.tables |= tables_of(search.measurements, "open")
        assert notes.measured.knee is not None
        of_generator(notes, notes.measured.knee, notes.measured)

    def _in_rounds(self, trial: PlannedTrial, notes: Notes, noise: random.Random) -> Course:
        deployment = self._factor(noise)
        served: list[tuple[int, Window]] = []
        for _ in range(self.rounds):
            yield
            with notes.phase("window"):
                self.clock.now_s += self.window_ns / 1e9
            served.append(self._served(trial, deployment))
        yield
        self._loaded(notes, served)

    def _served(self, trial: PlannedTrial, noise: float) -> tuple[int, Window]:
        """The latency of all requests of the window that just ended, and the window."""
        toll = self._toll(trial) * self._crowding(trial)
        latency_ns = round(self.native_latency_ns * toll * noise * self.drift(self.clock.now_s))
        completed = self.window_ns // latency_ns
        start_ns = round(self.clock.now_s * 1e9)
        events = Events(intended=completed, offered=completed, completed=completed, failures={}, censored=0)
        return latency_ns, self._window(start_ns, events, int(trial.condition.get("load.object_bytes", 1000)))

    def _loaded(self, notes: Notes, served: list[tuple[int, Window]]) -> None:
        """One CPU is busy in each window, and idle between them."""
        windows = [window for _, window in served]
        notes.measured = Measured(name="http", instrument="fake 1", unit="request", loop="closed", windows=windows)
        each = [[(latency_ns, latency_ns + 1, round(window.work))] for latency_ns, window in served]
        notes.tables["latency"] = histogram_table(each[0]) if len(each) == 1 else histograms_table(each)
        rows = [
            (at_ns, "instance", "cpu.usage_ns", (number + part) * self.window_ns)
            for number, window in enumerate(windows)
            for part, at_ns in enumerate((window.start_ns, window.end_ns))
        ]
        notes.tables["outside"] = samples_table(rows)

    def _window(self, start_ns: int, events: Events, object_bytes: int) -> Window:
        return Window(
            start_ns=start_ns,
            duration_ns=self.window_ns,
            work=events.completed,
            counts={"completed": events.completed, "body_bytes": events.completed * object_bytes},
            events={"request": events},
            cpu_ns=self.window_ns // 5,
            yardstick_ns=None if self.yardstick is None else self.yardstick(self.clock.now_s),
        )

    def _harm(self, trial: PlannedTrial) -> FakeHarm:
        aggressor = str(trial.condition.get("neighbour.aggressor", ""))
        mine = self.harms.get(f"{trial.arm.platform}/{aggressor}")
        return mine or self.harms.get(aggressor) or FakeHarm()

    def _victim(self, trial: PlannedTrial, notes: Notes, noise: random.Random) -> None:
        harm = self._harm(trial)
        start_ns = round(self.clock.now_s * 1e9)
        begins_ns, ends_ns = FAKE_MISBEHAVES_NS
        intended_ns = np.arange(0, self.window_ns, _FAKE_PERIOD_NS, dtype=np.int64)
        at_work = (intended_ns >= begins_ns) & (intended_ns < ends_ns)
        late = (intended_ns >= begins_ns) & (intended_ns < ends_ns + harm.recovery_ns)
        if harm.refused:
            at_work, late = np.zeros_like(at_work), np.zeros_like(late)
        rise = harm.rise * self._factor(noise)
        factors = np.where(late, rise, 1.0)
        factors[at_work & (intended_ns < begins_ns + harm.overshoot_ns)] *= 2
        latency_ns = (self.native_latency_ns * self._toll(trial) * self._factor(noise) * factors).astype(np.int64)
        # Evenly among those that come while the aggressor is at work: the n-th is lost where the sum of losses grows.
        share = min(1.0, (1 - harm.kept) * self._factor(noise)) if harm.kept else 1.0
        lost = np.diff(np.floor(np.cumsum(at_work) * share + 1e-9), prepend=0.0) > 0
        if harm.outcome == "victim died":
            lost |= intended_ns >= begins_ns
        status = np.where(lost, _TIMED_OUT, 200).astype(np.int16)
        completed = int((~lost).sum())
        events = Events(
            intended=len(intended_ns),
            offered=len(intended_ns),
            completed=completed,
            failures={"timeout": int(lost.sum())} if lost.any() else {},
            censored=int(lost.sum()),
            late=0,
            log=LogExtent(logged=len(intended_ns), whole_until_ns=None),
        )
        window = self._window(start_ns, events, 1000)
        notes.measured = Measured(name="http", instrument="fake 1", unit="request", loop="open", windows=[window])
        notes.tables["requests"] = requests_table(intended_ns, latency_ns, status, np.zeros_like(intended_ns))
        notes.tables["outside"] = samples_table(
            [(start_ns, "instance", "cpu.usage_ns", 0), (start_ns + self.window_ns, "instance", "cpu.usage_ns", 10**9)]
        )
        self._neighbour(trial, notes, harm, start_ns)

    def _neighbour(self, trial: PlannedTrial, notes: Notes, harm: FakeHarm, window_ns: int) -> None:
        begins_ns, ends_ns = (window_ns + at_ns for at_ns in FAKE_MISBEHAVES_NS)
        notes.neighbour = NeighbourRecord(
            aggressor=str(trial.condition["neighbour.aggressor"]),
            settings={},
            start_ns=None if harm.refused else begins_ns,
            end_ns=None if harm.refused else ends_ns,
            ended="refused" if harm.refused else "time",
            reason=harm.refused,
            counts={} if harm.refused else {"wakeups": 20_000, "written_bytes": 4_000_000},
        )
        notes.outcome = None if harm.refused else harm.outcome
        rows = [(at_ns, "neighbour", "wakeups", at_ns - begins_ns) for at_ns in range(begins_ns, ends_ns, 10**8)]
        notes.tables["neighbour"] = samples_table([] if harm.refused else rows)

    def _probe(self, trial: PlannedTrial, notes: Notes, noise: random.Random) -> None:
        name = str(trial.condition["probe"])
        quantities = self.quantities.get(name) or probes()[name].quantities
        registered = "" if name in self.quantities else probes()[name].headline
        instrument = str(trial.condition.get("instrument", ""))
        toll, deployment = self._toll(trial, name) * self._harm(trial).rise, self._factor(noise)
        read = self.instruments[instrument] if instrument else 1.0
        start_ns = round(self.clock.now_s * 1e9)
        if "neighbour.aggressor" in trial.condition:
            self._neighbour(trial, notes, self._harm(trial), start_ns)
            if self._harm(trial).outcome != "answered":
                return
        factors = {"more": 1 / toll, "less": toll, None: 1.0}
        values = {
            key: [
                FAKE_FIGURE * factors[quantity.better] * read * deployment * self._factor(noise)
                for _ in range(_WINDOWS)
            ]
            for key, quantity in quantities.items()
        }
        notes.measured = Measured(
            name=name,
            instrument=f"{instrument or 'fake'} 1",
            settings={path.partition(".")[2]: v for path, v in trial.condition.items() if path.startswith(f"{name}.")},
            headline=registered or next(iter(quantities)),
            quantities=dict(quantities),
            windows=[
                Window(
                    start_ns=start_ns + index * self.window_ns // _WINDOWS,
                    duration_ns=self.window_ns // _WINDOWS,
                    work=1000,
                    values={key: of_key[index] for key, of_key in values.items()},
                )
                for index in range(_WINDOWS)
            ],
        )

    def _factor(self, noise: random.Random) -> float:
        return noise.lognormvariate(0, self.spread) if self.spread else 1.0

    def _toll(self, trial: PlannedTrial, probe: str = "") -> float:
        platform, label = trial.arm.platform, trial.arm.label
        try:
            return self.tolls.get(label) or self.tolls.get(f"{platform}/{probe}") or self.tolls[platform]
        except KeyError:
            what = f"the fake knows no {platform}"
            raise TrialError(what, where=trial.id, remedy="add it to tolls") from None


def fake_environment(**comparable: Any) -> Environment:
    """An environment as a run directory holds it."""
    return Environment(
        created_at="2026-01-01T00:00:00.000+00:00",
        virtoll="fake",
        comparable={"kernel": "6.1.0-fake", **comparable},
        notes={},
    )
