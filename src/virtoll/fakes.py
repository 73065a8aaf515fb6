"""Public test doubles: whole studies without a machine, exact and instant.

`FakeExperiment` stands in for the lab: every arm costs a known factor of native, so that what a report must say is
known beforehand. `FakeClock` is the time it takes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from virtoll.errors import TrialError
from virtoll.probes.base import Quantity, probes
from virtoll.record import Environment, LoadRecord, PlannedTrial, ProbeRecord, ProbeWindow
from virtoll.record import Quantity as RecordedQuantity
from virtoll.run import Notes
from virtoll.store import histogram_table, samples_table

FAKE_FIGURE = 100.0  # of every quantity of every probe on native, in its unit
_WINDOWS = 3


@dataclass
class FakeClock:
    """A clock that stands still until it is moved."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now_s


@dataclass
class FakeExperiment:
    """Takes ``tolls[platform]`` times native's time, with log-normal noise of ``spread`` between deployments.

    A probe reports `FAKE_FIGURE` for each of its quantities on native, and ``tolls["PLATFORM/PROBE"]``, where there is
    one, times worse elsewhere; an outside instrument in its place reads ``instruments[NAME]`` times that. What a probe
    measures, and its headline (the first), is as registered, or as ``quantities`` says.

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
    clock: FakeClock = field(default_factory=FakeClock)
    before: Callable[[PlannedTrial], None] = lambda _trial: None
    performed: list[str] = field(default_factory=list)

    def perform(self, trial: PlannedTrial, notes: Notes) -> None:
        """Make up the measurement a trial asks for: a probe's, or a closed-loop one on one connection."""
        self.performed.append(trial.id)
        self.before(trial)
        what = self.fail.get(trial.id)
        if isinstance(what, BaseException):
            raise what
        with notes.phase("window"):
            self.clock.now_s += self.window_ns / 1e9
        noise = random.Random(f"{self.seed}/{trial.id}")
        if "probe" in trial.condition:
            self._probe(trial, notes, noise)
        else:
            self._load(trial, notes, noise)
        notes.check("limits in force", what != "limits in force", "1.00 of 1 CPU used")

    def _load(self, trial: PlannedTrial, notes: Notes, noise: random.Random) -> None:
        latency_ns = round(self.native_latency_ns * self._toll(trial) * self._factor(noise))
        completed = self.window_ns // latency_ns
        start_ns = round(self.clock.now_s * 1e9)
        notes.load = LoadRecord(
            instrument="fake 1",
            loop="closed",
            intended=completed,
            offered=completed,
            completed=completed,
            failures={},
            start_ns=start_ns,
            end_ns=start_ns + self.window_ns,
            body_bytes=completed * int(trial.condition.get("load.object_bytes", 1000)),
            cpu_user_ns=self.window_ns // 10,
            cpu_system_ns=self.window_ns // 10,
            lag_max_ns=None,
        )
        notes.tables["latency"] = histogram_table([(latency_ns, latency_ns + 1, completed)])
        notes.tables["outside"] = samples_table(
            [(start_ns, "instance", "cpu.usage_ns", 0), (start_ns + self.window_ns, "instance", "cpu.usage_ns", 10**9)]
        )

    def _probe(self, trial: PlannedTrial, notes: Notes, noise: random.Random) -> None:
        name = str(trial.condition["probe"])
        quantities = self.quantities.get(name) or probes()[name].quantities
        registered = "" if name in self.quantities else probes()[name].headline
        instrument = str(trial.condition.get("instrument", ""))
        toll, deployment = self._toll(trial, name), self._factor(noise)
        read = self.instruments[instrument] if instrument else 1.0
        start_ns = round(self.clock.now_s * 1e9)
        factors = {"more": 1 / toll, "less": toll, None: 1.0}
        notes.probe = ProbeRecord(
            probe=name,
            instrument=f"{instrument or 'fake'} 1",
            settings={path.partition(".")[2]: v for path, v in trial.condition.items() if path.startswith(f"{name}.")},
            headline=registered or next(iter(quantities)),
            quantities={
                key: RecordedQuantity(
                    title=quantity.title,
                    unit=quantity.unit,
                    better=quantity.better,
                    windows=[
                        FAKE_FIGURE * factors[quantity.better] * read * deployment * self._factor(noise)
                        for _ in range(_WINDOWS)
                    ],
                )
                for key, quantity in quantities.items()
            },
            windows=[
                ProbeWindow(
                    start_ns=start_ns + index * self.window_ns // _WINDOWS,
                    duration_ns=self.window_ns // _WINDOWS,
                    work=1000,
                )
                for index in range(_WINDOWS)
            ],
        )

    def _factor(self, noise: random.Random) -> float:
        return noise.lognormvariate(0, self.spread) if self.spread else 1.0

    def _toll(self, trial: PlannedTrial, probe: str = "") -> float:
        platform = trial.arm.platform
        try:
            return self.tolls.get(f"{platform}/{probe}") or self.tolls[platform]
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
