"""What the agent and the monitor cost: size, memory, CPU while sampling: `python -m bench.agent`.

CPU is the agent process's own CPU clock (user and system, nanoseconds) over the wall time of a round, as a share of
one core; several rounds, median and range. The instances of the outside monitor are control groups with one idle
process each, made and removed here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench._counting import peak_bytes
from virtoll.agent import AgentClient, PipeStream, Source
from virtoll.binaries import binary
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import hierarchies, owned
from virtoll.hosts.ledger import opened
from virtoll.hosts.local import LocalHost, end_session
from virtoll.monitor import cgroup_sources, host_agent_command, host_sources, inside_sources

_INSTANCES = 100
_INSIDE_HZ = 10
_OUTSIDE_HZ = 1


@dataclass(frozen=True)
class Figure:
    """One measured number: the median of its rounds, their range, and what it must not exceed."""

    name: str
    unit: str
    rounds: list[float]
    limit: float

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def reached(self) -> bool:
        return self.median <= self.limit

    def __str__(self) -> str:
        spread = f" [{min(self.rounds):.3g}, {max(self.rounds):.3g}]" if len(self.rounds) > 1 else ""
        verdict = "reached" if self.reached else "MISSED"
        return f"{self.name:52} {self.median:8.3g}{spread:18} {self.unit:14} target {self.limit:g}: {verdict}"


@contextmanager
def agent(host: LocalHost) -> Iterator[tuple[AgentClient, int]]:
    """An agent on the host and its process id."""
    process = host.spawn(host_agent_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        client = AgentClient(PipeStream(process))
        yield client, process.pid
        client.close()
        process.wait(timeout=30)
    finally:
        end_session(process)


def cpu_ns(pid: int) -> int:
    """CPU time of a process: its own CPU clock (clock_getcpuclockid(3) builds the id like this)."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def sampling_cost(client: AgentClient, pid: int, sources: Sequence[Source], rate_hz: float, seconds: float) -> float:
    """Percent of a core used between start and collect. Collecting is not part of it: the window is over then."""
    client.start_sampling(sources, rate_hz)
    before_ns, cpu_before_ns = time.monotonic_ns(), cpu_ns(pid)
    time.sleep(seconds)
    share = (cpu_ns(pid) - cpu_before_ns) / (time.monotonic_ns() - before_ns)
    samples = client.collect()
    expected = int(seconds * rate_hz)
    if len(samples.times_ns) + samples.late_ticks < expected or not samples.counters:
        raise SystemExit(f"only {len(samples.times_ns)} of {expected} ticks were taken: not a measurement")
    return 100 * share


def inside(host: LocalHost, rounds: int, seconds: float) -> list[Figure]:
    """One agent as it runs in an instance."""
    with agent(host) as (client, pid):
        client.facts()
        client.run(["true"])
        costs = [sampling_cost(client, pid, inside_sources(), _INSIDE_HZ, seconds) for _ in range(rounds)]
        memory = Figure("memory after sampling and a command", "MiB RSS (peak)", [peak_bytes(pid) / 1024**2], 8)
    return [memory, Figure(f"sampling inside at {_INSIDE_HZ} Hz", "% of a core", costs, 1)]


def outside(host: LocalHost, rounds: int, seconds: float) -> list[Figure]:
    """One agent on the host that watches many instances."""
    with (
        tempfile.TemporaryDirectory() as directory,
        opened(host, Path(directory), "bench") as ledger,
        ExitStack() as end,
    ):
        sources = host_sources()
        top = end.enter_context(owned(ledger, "virtoll/bench-agent"))
        for number in range(_INSTANCES):
            group = end.enter_context(owned(ledger, f"{top.name}/{number}"))
            process = host.spawn(["sleep", "600"], confinement=Confinement(group.procs))
            end.callback(end_session, process)
            sources += cgroup_sources(f"instance{number}", group.name, hierarchies())
        with agent(host) as (client, pid):
            costs = [sampling_cost(client, pid, sources, _OUTSIDE_HZ, seconds) for _ in range(rounds)]
            memory = Figure(
                f"memory, watching {_INSTANCES} instances", "MiB RSS (peak)", [peak_bytes(pid) / 1024**2], 8
            )
    name = f"watching {_INSTANCES} instances from outside at {_OUTSIDE_HZ} Hz"
    return [memory, Figure(f"{name} ({len(sources)} files)", "% of a core", costs, 1)]


def main() -> int:
    """Measure, print, and say by the exit code whether all targets were reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a round")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    host = LocalHost()
    size = Figure("size of the binary", "MiB", [binary("virtoll-agent").stat().st_size / 2**20], 3)
    figures = [
        size,
        *inside(host, options.rounds, options.seconds),
        *outside(host, options.rounds, options.seconds),
    ]
    for figure in figures:
        print(figure, flush=True)
    if options.json:
        described = [{**asdict(figure), "median": figure.median, "reached": figure.reached} for figure in figures]
        options.json.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    return 0 if all(figure.reached for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
