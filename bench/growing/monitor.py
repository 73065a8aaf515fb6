"""The monitor's cost against the instances it watches from outside at a time, 1 to 500.

The instances are control groups with one idle process each (as in `bench.agent`), all of them there from the start:
a size is how many of them are watched. A sample is one tick, all files of all watched instances and of the host.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.agent import cpu_ns
from bench.growing.curves import Growth, Panel, Reading
from bench.growing.effort import Effort, most_files, say
from virtoll.agent import AgentClient, PipeStream, Source
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import hierarchies, owned
from virtoll.hosts.ledger import opened
from virtoll.hosts.local import LocalHost, end_session
from virtoll.monitor import cgroup_sources, host_agent_command, host_sources
from virtoll.record.tables import packed, samples_table

_INSTANCES, _QUICK = (1, 5, 25, 100, 250, 500), (1, 10, 40)
_RATE_HZ = 10.0  # no tick is late for those before it: what is said once is shared by as many samples at each size
_SECONDS, _QUICK_SECONDS = 3.0, 0.5


class _CountingStream(PipeStream):
    """An agent's stream that counts what it says."""

    received_bytes = 0

    def receive_line(self, timeout_s: float) -> bytes:
        """The next line, counted."""
        line = super().receive_line(timeout_s)
        self.received_bytes += len(line) + 1
        return line


@dataclass(frozen=True)
class _Cost:
    """Of one sample."""

    taking_ms: float  # CPU of the agent
    fetching_ms: float  # CPU of the agent and of virtoll, after the window
    stream_bytes: float
    parquet_bytes: float


def measure(effort: Effort) -> list[Growth]:
    """CPU and bytes of a sample."""
    sizes = effort.sizes(_INSTANCES, _QUICK)
    costs: dict[int, list[_Cost]] = {}
    host = LocalHost()
    with _instances(host, max(sizes)) as instances:
        files = {size: sum(map(len, instances[:size])) + len(host_sources()) for size in sizes}
        told = [f"{size} not measured: {files[size]} files, and a process may open {most_files()} (ulimit -Hn)"
                for size in sizes if files[size] > most_files()]  # fmt: skip
        allowed = [size for size in sizes if files[size] <= most_files()]
        _cost(host, host_sources(), _QUICK_SECONDS)  # the first one pays for what is loaded once
        for number, size in effort.shuffled(allowed):
            sources = [*host_sources(), *(source for instance in instances[:size] for source in instance)]
            costs.setdefault(size, []).append(_cost(host, sources, _QUICK_SECONDS if effort.quick else _SECONDS))
            say(f"monitor: round {number}, {size} instances, {len(sources)} files")

    def readings(quantity: str) -> list[Reading]:
        return [Reading(size, getattr(cost, quantity)) for size, of_size in costs.items() for cost in of_size]

    cpu = {"taking it (agent)": readings("taking_ms"), "fetching it after the window": readings("fetching_ms")}
    bytes_ = {"in the Parquet file": readings("parquet_bytes"), "on the agent's stream": readings("stream_bytes")}
    panels = [Panel("CPU of a sample, ms", cpu, most=1, told=told), Panel("size of a sample, bytes", bytes_, most=1)]
    return [Growth("monitor", "The monitor against the instances it watches", "instances watched", panels)]


@contextmanager
def _instances(host: LocalHost, count: int) -> Iterator[list[list[Source]]]:
    """So many idle control groups; of each, what is read of it."""
    with (
        tempfile.TemporaryDirectory(prefix="virtoll-bench-") as directory,
        opened(host, Path(directory), "growth") as ledger,
        ExitStack() as end,
    ):
        top = end.enter_context(owned(ledger, "virtoll/bench-growth"))
        sources = []
        for number in range(count):
            group = end.enter_context(owned(ledger, f"{top.name}/{number}"))
            process = host.spawn(["sleep", "3600"], confinement=Confinement(group.procs))
            end.callback(end_session, process)
            sources.append(cgroup_sources(f"instance{number}", group.name, hierarchies()))
        yield sources


def _cost(host: LocalHost, sources: Sequence[Source], seconds: float) -> _Cost:
    """Sample for a while, with an agent of its own, and fetch it."""
    process = host.spawn(host_agent_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        stream = _CountingStream(process)
        agent = AgentClient(stream)
        agent.start_sampling(sources, _RATE_HZ, keep_s=4 * seconds)
        before_ns, used_ns = time.monotonic_ns(), cpu_ns(process.pid)
        time.sleep(seconds)
        used_ns = cpu_ns(process.pid) - used_ns
        after_ns, fetching_ns, received = time.monotonic_ns(), _both_ns(process.pid), stream.received_bytes
        samples = agent.collect()
        rows = [
            (t_ns, *_split(name), value)
            for name, values in samples.counters.items()
            for t_ns, value in zip(samples.times_ns, values, strict=True)
            if value is not None
        ]
        file = packed(samples_table(rows))
        fetching_ns = _both_ns(process.pid) - fetching_ns
        agent.close()
        process.wait(timeout=30)
    finally:
        end_session(process)
    taken = sum(before_ns <= t_ns <= after_ns for t_ns in samples.times_ns)
    if not taken or not rows:
        raise SystemExit(f"bench.growth: no sample of {len(sources)} files was taken in {seconds:g} s")
    kept = len(samples.times_ns)
    return _Cost(
        taking_ms=used_ns / taken / 1e6,
        fetching_ms=fetching_ns / kept / 1e6,
        stream_bytes=(stream.received_bytes - received) / kept,
        parquet_bytes=len(file) / kept,
    )


def _split(name: str) -> tuple[str, str]:
    source, _, counter = name.partition(".")
    return source, counter


def _both_ns(pid: int) -> int:
    """CPU time of an agent and of this process."""
    return cpu_ns(pid) + time.process_time_ns()
