"""A whole study on fakes: real store, real run loop, real ledger, real client of the agent; a machine that is made up.

Each trial owns two directories by the ledger, talks to a scripted agent as a real trial does, and takes the proof of
the clock. Time is simulated: nobody waits.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from virtoll.agent import client as agent_client
from virtoll.agent.base import Source, StreamTimeoutError
from virtoll.agent.client import MARKER, PROTOCOL, AgentClient
from virtoll.errors import VirtollError
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.local import LocalHost
from virtoll.monitor.monitor import Watched
from virtoll.record.model import Arm, Plan, PlannedTrial, TrialRecord
from virtoll.record.store import RunDirectory, is_run_directory
from virtoll.run.execute import execute, exit_code
from virtoll.trial import proofs
from virtoll.trial.notes import Course, Notes

BLOCKS = 2
_TAG = "faced"  # no tag of a real run: those have four digits
_SEALED_MARK = "sealed"


@dataclass
class SimulatedTime:
    """Stands in for the module `time` where the agent's client waits."""

    now_s: float = 1000.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now_s

    def monotonic_ns(self) -> int:
        """Nanoseconds."""
        return round(self.now_s * 1e9)


Mischief = Callable[[int, str, bytes], bytes]  # message number, operation, answer -> what is said instead


@dataclass
class ScriptedAgent:
    """A stream to an agent that answers as the real one does, unless ``mischief`` answers for it."""

    clock: SimulatedTime
    mischief: Mischief = lambda _number, _op, answer: answer
    skew_ns: int = 0
    where: str = "scripted agent"
    messages: int = 0
    _lines: list[bytes] = field(default_factory=list)

    def send(self, data: bytes) -> None:
        """Take a request, and have its answer ready."""
        request = json.loads(data)
        (op,) = request["op"]
        answer = json.dumps({"id": request["id"], "ok": self._answer(op)}).encode() + b"\n"
        if op == "hello":
            answer = MARKER + b"\n" + answer
        self.messages += 1
        self._lines += self.mischief(self.messages, op, answer).splitlines()

    def has_room(self) -> bool:
        """Always."""
        return True

    def receive_line(self, timeout_s: float) -> bytes:
        """The next line; none: the time is over, at once."""
        if not self._lines:
            self.clock.now_s += max(timeout_s, 0.001)
            raise StreamTimeoutError(f"no answer within {timeout_s:g} s", where=self.where)
        return self._lines.pop(0)

    def close(self) -> None:
        """Nothing is left of it."""

    def _answer(self, op: str) -> dict[str, Any]:
        answers: dict[str, dict[str, Any]] = {
            "hello": {"protocol": PROTOCOL},
            "facts": {"cpus": 1, "memory_bytes": 2**28},
            "run": {"returncode": 0, "stdout": base64.b64encode(b"fine").decode(), "stderr": ""},
            "clock": {"t_ns": self.clock.monotonic_ns() + self.skew_ns},
            "sample_collect": {"counters": ["cpu"], "times_ns": [1, 2], "values": [[1, 2]], "rows": 2, "late_ticks": 0,
                               "dropped": 0, "unreadable": []},
        }  # fmt: skip
        return answers.get(op, {})


@dataclass
class Told:
    """The reporter: what was said to be sealed, on a file that no fault reaches."""

    path: Path
    _write: Callable[[int, bytes], int] = os.write

    def __post_init__(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, word: str, what: str = "") -> None:
        """One line."""
        self._write(self._file, f"{word} {what}\n".encode())

    def trial_started(self, trial: PlannedTrial) -> None:
        """A trial begins."""
        self.note("started", trial.id)

    def phase(self, trial: PlannedTrial, name: str) -> None:
        """Nothing to note."""

    def trial_sealed(self, record: TrialRecord) -> None:
        """A trial is in the store."""
        self.note(_SEALED_MARK, record.trial.id)


@dataclass
class Laboratory:
    """The experiment."""

    ledger: ledgers.Ledger
    directory: Path
    agent: Callable[[SimulatedTime, PlannedTrial], ScriptedAgent] = lambda clock, _trial: ScriptedAgent(clock)
    clock: SimulatedTime = field(default_factory=SimulatedTime)
    fake: FakeExperiment = field(default_factory=lambda: FakeExperiment({"native": 1.0, "docker": 1.1}, spread=0.01))

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        """One trial, with all that a real one does to the ledger and the agent."""
        vars(agent_client)["time"] = self.clock
        outer = self.directory / trial.id
        with self.ledger.owning("directory", str(outer)):
            self.ledger.host.put(outer / "settings", b"x" * 100)
            inner = outer.with_name(f"{trial.id}-more")
            with self.ledger.owning("directory", str(inner)):
                self.ledger.host.put(inner / "file", b"x" * 100)
                yield from self._measure(trial, notes)

    def _measure(self, trial: PlannedTrial, notes: Notes) -> Course:
        agent = AgentClient(self.agent(self.clock, trial), timeout_s=5)
        notes.believes.update(agent.facts())
        agent.put("/etc/setting", b"value")
        before = agent.clock()
        agent.start_sampling([Source("cpu", "integer", "/proc/stat")], 10)
        yield from self.fake.perform(trial, notes)
        samples = agent.collect()
        after = agent.clock()
        watched = Watched([], [], before, after, self.fake.window_ns, samples.late_ticks, samples.dropped, {})
        proofs.of_clock(notes, watched)
        notes.said = agent.run(["tail", "log"]).stdout


def plan() -> Plan:
    """Two arms, two blocks."""
    native = Arm(label="native+host", platform="native", network="host", role="baseline")
    docker = Arm(label="docker+routed", platform="docker", network="routed")
    trials = [
        PlannedTrial(id=f"b{1 + index // 2:02}-t{1 + index:04}", block=1 + index // 2, position=index + 1,
                     arm=(native, docker)[index % 2], condition={})
        for index in range(2 * BLOCKS)
    ]  # fmt: skip
    return Plan(seed=1, blocks=BLOCKS, trials=trials, estimate_s=4.0)


def session(directory: Path, change: Callable[[Laboratory], None] = lambda _laboratory: None) -> int:
    """Begin the study below ``directory``, or go on with it, as `virtoll run` does; the exit code."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    told = Told(directory / "told")
    try:
        out = directory / "runs" / "out"
        if out.exists() and not is_run_directory(out):
            print(f"{out} is there, and no run directory", file=sys.stderr)
            return 2
        run = RunDirectory(out) if out.exists() else RunDirectory.create(out, {"name": "f"}, plan(), fake_environment())
        told.note("created")
        state = directory / "state"
        with run.writing(), ledgers.opened(LocalHost(), state / "ledger", f"fake-{_TAG}") as ledger:
            laboratory = Laboratory(ledger, state / "lab")
            change(laboratory)
            finished = execute(run, laboratory, told)
        return exit_code(run.records(), finished)
    except VirtollError as error:
        print(f"virtoll: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def clean(directory: Path) -> int:
    """`virtoll clean`."""
    try:
        ledgers.clean(LocalHost(), directory / "state" / "ledger")
        return 0
    except VirtollError as error:
        print(f"virtoll: {error}", file=sys.stderr)
        return error.exit_code


def _as_interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt
