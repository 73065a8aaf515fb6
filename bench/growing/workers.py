"""What workers cost a trial beside the local way: 1 to 16 of them, each a process of its own, with TLS on loopback.

The same study is run by `virtoll run` and by `virtoll run --cluster`, in turn, above fakes that measure nothing: what a
trial takes is the engine's. It counts from the plan's line in the command's JSON to the last trial's, so neither what
a command takes to start nor its report. All share this machine: of many workers the wall time says how fast its
CPUs can do the work of all of them, and the coordinator's and the scheduler's own CPU time what would scale.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from authority import Authority
from bench.growing.curves import Growth, Panel, Reading
from bench.growing.effort import Effort, say
from fleet_commands import HOST, Commands
from on_fakes import STUDY

_WORKERS, _QUICK_WORKERS = (1, 2, 4, 8, 16), (1, 2)
_BLOCKS, _QUICK_BLOCKS = 96, 16  # over all workers; each has two at least
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LOCAL, _CLUSTER = "virtoll run", "virtoll run --cluster"


@dataclass(frozen=True)
class Took:
    """One run, a trial of it: milliseconds of the clock, and of CPU time by whose it is."""

    wall_ms: float
    cpu_ms: dict[str, float]


@dataclass
class Pair:
    """A cluster's runs and as many local ones, in turn."""

    workers: int
    local: list[Took] = field(default_factory=list)
    cluster: list[Took] = field(default_factory=list)

    def over_ms(self) -> list[float]:
        """A trial by the cluster over one of the local run before it."""
        return [theirs.wall_ms - ours.wall_ms for ours, theirs in zip(self.local, self.cluster, strict=True)]


def measure(effort: Effort) -> list[Growth]:
    """The growth against workers."""
    return [growth(measured(effort))]


def growth(pairs: Sequence[Pair]) -> Growth:
    """As panels: wall time, and CPU time by whose it is."""

    def cpu(who: str) -> list[Reading]:
        return [Reading(pair.workers, took.cpu_ms[who]) for pair in pairs for took in pair.cluster]

    wall = {
        _LOCAL: [Reading(pair.workers, took.wall_ms) for pair in pairs for took in pair.local],
        _CLUSTER: [Reading(pair.workers, took.wall_ms) for pair in pairs for took in pair.cluster],
    }
    one = {who: cpu(who) for who in ("coordinator", "scheduler")}
    told = [
        f"{pair.workers} {'worker' if pair.workers == 1 else 'workers'}: {spread(pair.over_ms())} ms a trial over the "
        "local way"
        for pair in pairs
    ]
    cpus = len(os.sched_getaffinity(0))
    panels = [
        Panel(f"wall time of a trial, ms (all on {cpus} CPUs)", wall, told=told),
        Panel("CPU time of a trial, ms: of one for all", one, most=0),
        Panel("CPU time of a trial, ms: of the workers", {"all workers": cpu("workers")}),
    ]
    return Growth("workers", "A trial against workers", "workers", panels)


def spread(values: Sequence[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def measured(effort: Effort) -> list[Pair]:
    """A pair for each number of workers."""
    blocks = _QUICK_BLOCKS if effort.quick else _BLOCKS
    return [pair(workers, blocks, effort.rounds) for workers in effort.sizes(_WORKERS, _QUICK_WORKERS)]


def pair(workers: int, blocks: int, rounds: int) -> Pair:
    """So many rounds of one local run and one by ``workers``."""
    found = Pair(workers)
    with tempfile.TemporaryDirectory(prefix="virtoll-bench-") as scratch, _fleet(Path(scratch), workers) as fleet:
        own = max(2, blocks // workers)
        there = ["--cluster", fleet.address, "--tls", str(fleet.tls["run"])]
        others = {"scheduler": [fleet.running["scheduler"].pid]}
        others["workers"] = [process.pid for name, process in fleet.running.items() if name != "scheduler"]
        for number in range(rounds):
            found.local.append(_run(fleet, f"local-{number}", own * workers, [], {}))
            found.cluster.append(_run(fleet, f"cluster-{number}", own, there, others))
            say(f"workers: {workers}: {found.local[-1]} {found.cluster[-1]}")
    return found


@contextmanager
def _fleet(directory: Path, workers: int) -> Iterator[Commands]:
    names = [f"node{number:02d}" for number in range(1, workers + 1)]
    tls = Authority.made(directory / "ca").host("host")
    commands = Commands(directory, dict.fromkeys(("scheduler", "run", *names), tls))
    try:
        commands.start_scheduler()
        for name in names:
            commands.start_worker(name)
        yield commands
    finally:
        commands.end()


def _run(fleet: Commands, name: str, blocks: int, options: Sequence[str], others: dict[str, list[int]]) -> Took:
    """A run of so many blocks (of each host), timed from its plan to its last seal. ``others``: processes at work
    for it, by what they are.
    """
    study = fleet.directory / f"{name}.toml"
    study.write_text(STUDY.replace("blocks = 2", f"blocks = {blocks}\nseed = 1"))
    state = {"VIRTOLL_STATE": str(fleet.directory / "state-local"), "FLEET_HOLD": str(fleet.directory / "hold-none")}
    command = [sys.executable, str(HOST), "run", str(study), "--out", str(fleet.directory / name), "--json", *options]
    said = fleet.directory / f"{name}.said"
    with (
        said.open("w") as told,
        subprocess.Popen(
            command, env={**os.environ, **state}, stdout=subprocess.PIPE, stderr=told, text=True
        ) as process,
    ):
        who = {"coordinator": [process.pid], **others}
        assert process.stdout is not None
        trials = sealed = 0
        begun: tuple[float, dict[str, float]] | None = None
        ended: tuple[float, dict[str, float]] | None = None
        for line in process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "planned":
                begun, trials = (time.monotonic(), _cpu_s(who)), event["trials"]
            sealed += event["event"] == "sealed"
            if trials and sealed == trials and ended is None:
                ended = time.monotonic(), _cpu_s(who)
    if process.returncode or begun is None or ended is None:
        raise SystemExit(
            f"{name}: {sealed} of {trials} trials, exit code {process.returncode}: {said.read_text()[-2000:]}"
        )
    cpu_ms = {each: (ended[1][each] - begun[1][each]) / trials * 1e3 for each in who}
    return Took((ended[0] - begun[0]) / trials * 1e3, cpu_ms)


def _cpu_s(who: dict[str, list[int]]) -> dict[str, float]:
    return {each: sum(map(_process_cpu_s, pids)) for each, pids in who.items()}


def _process_cpu_s(pid: int) -> float:
    """User and system time of all its threads (proc(5), stat: fields 14 and 15), in ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
