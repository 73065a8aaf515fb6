"""What many hosts cost the one who gives orders: 10 to 10,000, whose workers are made up and whose answers are not.

The coordinator is `virtoll run --cluster` as it is (`virtoll.run.over_hosts`), in a process of its own, without Dask:
hosts answer in the same process, with messages as a worker packs them, whose records are as long as a real trial's.
Their own time is taken out. So nothing is told of Dask's scheduler, or of the network, and all else is: orders and
answers, the agreement, the plan, the store with its fsyncs, and then the report of what was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np

from bench._thorough import _thorough
from bench._verbs import AS_INSTALLED
from bench.growing.curves import Growth, Panel, Reading
from bench.growing.effort import Effort, say
from bench.growing.report import _write_bulk
from bench.report import _build
from synthetic import Recipe, _record
from virtoll import __version__
from virtoll.catalogue import catalogue
from virtoll.record.model import Arm, Environment, PlannedTrial, TrialRecord
from virtoll.run import over_hosts
from virtoll.run.environment import machine
from virtoll.run.fleet import Answer
from virtoll.run.handed import Handed, packed
from virtoll.run.hosting import Offer, Order, Ready
from virtoll.run.request import Request
from virtoll.study.file import read_study

_HOSTS, _QUICK_HOSTS = (10, 100, 1000, 10_000), (5, 20)
_MANY = 1000  # from here on one round
_BLOCKS = 2  # of each host
_STUDY = f"""
name = "fleet"
question = "What does docker cost on these hosts?"
blocks = {_BLOCKS}
seed = 1
[service]
name = "nginx"
[load]
name = "http"
time_limit = "10 s"
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
"""
_TRIALS = 3 * _BLOCKS  # of each host: native twice, and docker
_RECIPE = Recipe(truth={"native+host": 1.0, "native+host (again)": 1.0, "docker+routed": 0.95})
_KEPT = {
    "plan.json": ("plan.json",),
    "trials.jsonl": ("trials.jsonl",),
    "environments": ("environment.json", "hosts"),
    "report": ("report",),
}
_APART = 0.1  # hosts' speeds: standard deviation of logarithms
_SAMPLES = 400  # of each trial


@dataclass
class Cost:
    """Of one run."""

    hosts: int
    orders: int = 0
    orders_bytes: int = 0
    answers_bytes: int = 0
    before_cpu_s: float = 0.0  # until the first trial is asked for
    trial_cpu_ms: float = 0.0  # of each trial, from its order to its seal
    trial_wall_ms: float = 0.0
    peak_mib: float = 0.0  # resident
    sizes: dict[str, int] = field(default_factory=dict)  # bytes, by what is in the run directory
    report_s: float = 0.0
    report_cpu_s: float = 0.0
    report_peak_mib: float = 0.0


def measure(effort: Effort) -> list[Growth]:
    """Against hosts: messages and files, the coordinator's time and memory, and the report's."""
    sizes = effort.sizes(_HOSTS, _QUICK_HOSTS)
    costs = [of_run(size) for size in sizes for _ in range(effort.rounds if size < _MANY else 1)]
    return [_coordinator(costs), _files(costs), _report(costs)]


def _panel(title: str, costs: Sequence[Cost], most: float, **series: str) -> Panel:
    """A line for each field of `Cost`."""
    return Panel(
        title,
        {name.replace("_", " "): [Reading(c.hosts, getattr(c, key)) for c in costs] for name, key in series.items()},
        most=most,
    )


def _coordinator(costs: Sequence[Cost]) -> Growth:
    panels = [
        _panel("a trial, ms", costs, 0, wall_time="trial_wall_ms", CPU="trial_cpu_ms"),
        _panel("before the first trial, s", costs, 1, CPU="before_cpu_s"),
        _panel("memory, MiB", costs, 1, peak_resident="peak_mib"),
    ]
    return Growth("hosts", f"The coordinator against its hosts ({_TRIALS} trials each)", "hosts", panels)


def _files(costs: Sequence[Cost]) -> Growth:
    files = {name: [Reading(cost.hosts, cost.sizes[name] / 1e6) for cost in costs] for name in _KEPT}
    messages = {
        "orders": [Reading(cost.hosts, cost.orders_bytes / 1e6) for cost in costs],
        "answers": [Reading(cost.hosts, cost.answers_bytes / 1e6) for cost in costs],
    }
    panels = [
        _panel("messages", costs, 1, orders_and_as_many_answers="orders"),
        Panel("of messages, MB", messages, most=1),
        Panel("of files, MB", files, most=1),
    ]
    return Growth("hosts-bytes", f"What is sent and kept against hosts ({_TRIALS} trials each)", "hosts", panels)


def _report(costs: Sequence[Cost]) -> Growth:
    panels = [
        _panel("time, s", costs, 1, wall_time="report_s", CPU="report_cpu_s"),
        _panel("memory, MiB", costs, 1, peak_resident="report_peak_mib"),
    ]
    return Growth("hosts-report", f"The report against hosts ({_TRIALS} trials each)", "hosts", panels)


def of_run(hosts: int) -> Cost:
    """A run of so many hosts, and its report, each in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="virtoll-bench-") as scratch:
        run, told = Path(scratch, "run"), Path(scratch, "told.json")
        command = [sys.executable, "-m", __spec__.name, str(hosts), str(run), str(told)]
        process = subprocess.Popen(command, env=AS_INSTALLED)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"the coordinator of {hosts} hosts failed with exit code {process.returncode}")
        cost = Cost(**json.loads(told.read_text()))
        cost.peak_mib = usage.ru_maxrss / 1024
        cost.report_s, cost.report_cpu_s, peak_bytes = _build(run)
        cost.report_peak_mib = peak_bytes / 1024**2
        cost.sizes = sizes_of(run)
    say(f"hosts: {cost}")
    return cost


def sizes_of(run: Path) -> dict[str, int]:
    """Bytes of what a run directory holds."""
    return {what: sum(_bytes(run / name) for name in names) for what, names in _KEPT.items()}


def _bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file())


# -- in the coordinator's process ------------------------------------------------------------------------------


class MadeUp:
    """Hosts that answer at once, as `virtoll.run.fleet.Cluster`: each trial with a record of its own."""

    notes: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, hosts: int) -> None:
        self.hosts = tuple(f"node{number:05d}" for number in range(1, hosts + 1))
        self.orders = self.orders_bytes = self.answers_bytes = 0
        self.own_cpu_s = self.own_wall_s = 0.0  # what the hosts took
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._arms = [entry.arm for entry in study().arms]
        self._rng = np.random.default_rng(1)
        self._apart = {host: math.exp(self._rng.normal(0, _APART)) for host in self.hosts}
        self._files: dict[str, dict[str, bytes]] = {}
        self._machine = machine()

    def ask(self, host: str, order: bytes) -> None:
        """Keep it until somebody waits for an answer."""
        self.orders += 1
        self.orders_bytes += len(order)
        self._waiting.append((host, order))

    def next(self) -> Answer:
        """The answer to the order that was given first."""
        with self._elsewhere():
            host, data = self._waiting.popleft()
            order = Order.model_validate_json(data)
            answer = getattr(self, f"_{order.kind}")(host, order)
        self.answers_bytes += len(answer)
        return Answer(host, answer)

    def close(self) -> None:
        """Nobody is there."""

    @contextmanager
    def _elsewhere(self) -> Iterator[None]:
        """What would take another machine's time."""
        cpu_s, wall_s = time.process_time(), time.monotonic()
        yield
        self.own_cpu_s += time.process_time() - cpu_s
        self.own_wall_s += time.monotonic() - wall_s

    def _look(self, _host: str, _order: Order) -> bytes:
        offer = Offer(virtoll=__version__, wall_s=time.time(), arms=self._arms, skipped=[])
        return offer.model_dump_json().encode()

    def _prepare(self, host: str, _order: Order) -> bytes:
        ready = Ready(environment=_environment({**self._machine, "node": host}), groups=[], free_bytes=2**40)
        return ready.model_dump_json().encode()

    def _wire(self, _host: str, _order: Order) -> bytes:
        return b""

    _end = _wire

    def _perform(self, host: str, order: Order) -> bytes:
        return packed([self._handed(host, trial) for trial in order.trials])

    def _handed(self, host: str, trial: PlannedTrial) -> Handed:
        record, _ = _record(_RECIPE, trial, self._apart[host], 0, self._rng)
        return Handed(_thorough(record), self._files_of(trial.arm, record))

    def _files_of(self, arm: Arm, record: TrialRecord) -> dict[str, bytes]:
        """The same for each trial of an arm: what they hold is another bench's."""
        if arm.label not in self._files:
            assert record.measured is not None
            with tempfile.TemporaryDirectory(prefix="virtoll-bench-") as scratch:
                _write_bulk(Path(scratch), record.measured.window.model_dump(), _SAMPLES)
                self._files[arm.label] = {path.name: path.read_bytes() for path in Path(scratch).iterdir()}
        return self._files[arm.label]


def study() -> Any:
    """What is asked of every host."""
    return read_study(_STUDY, "bench/growing/hosts.py", catalogue())


def _environment(there: dict[str, Any]) -> Environment:
    """As long as a real one."""
    digest = "0123456789abcdef" * 4
    comparable = {
        "machine": there,
        "images": {"instance": digest},
        "packages": {f"package{number}": f"1.2.{number}-3+deb12u1" for number in range(20)},
        "runtimes": {"docker": "20.10.24+dfsg1", "containerd": "1.6.20~ds1", "runc": "1.1.5+ds1"},
        "agent": digest,
        "load generators": {"virtoll-load": digest},
    }
    notes = {"load_average": 0.1, "memory_available_bytes": 2**34, "uptime_s": 1e6}
    return Environment(
        created_at="2026-01-01T00:00:00.000+00:00", virtoll=__version__, comparable=comparable, notes=notes
    )


def coordinate(hosts: int, out: Path) -> Cost:
    """A run of made-up hosts into ``out``, without its report, as this process does it."""
    made, cost = MadeUp(hosts), Cost(hosts)
    measuring = over_hosts.measure

    def measured(*arguments: Any) -> str:
        before_wall_s, before_cpu_s = own(made)
        cost.before_cpu_s = before_cpu_s
        why = measuring(*arguments)
        wall_s, cpu_s = own(made)
        trials = hosts * _TRIALS
        cost.trial_wall_ms, cost.trial_cpu_ms = (
            (wall_s - before_wall_s) / trials * 1e3,
            (cpu_s - before_cpu_s) / trials * 1e3,
        )
        return why

    with (
        mock.patch.object(over_hosts, "connected", return_value=made),
        mock.patch.object(over_hosts, "finish", return_value=0),
        mock.patch.object(over_hosts, "measure", measured),
    ):
        over_hosts.begin(study(), Request(study="", cluster=""), "fleet.toml", out)
    cost.orders, cost.orders_bytes, cost.answers_bytes = made.orders, made.orders_bytes, made.answers_bytes
    return cost


def own(made: MadeUp) -> tuple[float, float]:
    """Seconds of the clock and of CPU so far, without the hosts'."""
    return time.monotonic() - made.own_wall_s, time.process_time() - made.own_cpu_s


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("hosts", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("told", type=Path)
    given = parser.parse_args()
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        found = coordinate(given.hosts, given.out)
    given.told.write_text(json.dumps(asdict(found)))
