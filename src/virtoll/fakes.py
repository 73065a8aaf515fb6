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
from virtoll.record import Environment, LoadRecord, PlannedTrial
from virtoll.run import Notes
from virtoll.store import histogram_table, samples_table


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

    ``fail`` maps trial ids to what happens in them: an exception is raised, a string fails the check of that name.
    """

    tolls: Mapping[str, float]
    seed: int = 1
    spread: float = 0.0
    native_latency_ns: int = 1_000_000
    window_ns: int = 1_000_000_000
    fail: Mapping[str, BaseException | str] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)
    before: Callable[[PlannedTrial], None] = lambda _trial: None
    performed: list[str] = field(default_factory=list)

    def perform(self, trial: PlannedTrial, notes: Notes) -> None:
        """Make up a closed-loop measurement of one second on one connection."""
        self.performed.append(trial.id)
        self.before(trial)
        what = self.fail.get(trial.id)
        if isinstance(what, BaseException):
            raise what
        noise = random.Random(f"{self.seed}/{trial.id}").lognormvariate(0, self.spread) if self.spread else 1.0
        latency_ns = round(self.native_latency_ns * self._toll(trial) * noise)
        with notes.phase("window"):
            self.clock.now_s += self.window_ns / 1e9
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
        notes.check("limits in force", what != "limits in force", "1.00 of 1 CPU used")

    def _toll(self, trial: PlannedTrial) -> float:
        try:
            return self.tolls[trial.arm.platform]
        except KeyError:
            what = f"the fake knows no {trial.arm.platform}"
            raise TrialError(what, where=trial.id, remedy="add it to tolls") from None


def fake_environment(**comparable: Any) -> Environment:
    """An environment as a run directory holds it."""
    return Environment(
        created_at="2026-01-01T00:00:00.000+00:00",
        virtoll="fake",
        comparable={"kernel": "6.1.0-fake", **comparable},
        notes={},
    )
