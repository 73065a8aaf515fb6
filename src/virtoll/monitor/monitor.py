"""Watches one instance at a time, from outside by an agent on the host and from inside by the instance's own."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from virtoll.agent import Agent, AgentClient, ClockOffset, PipeStream, Samples, Source, StreamError
from virtoll.binaries import binary
from virtoll.errors import AgentError
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import Cgroup, group_exists, hierarchies
from virtoll.hosts.local import end_session
from virtoll.lab.base import Lab
from virtoll.lab.client import LOAD, ORIGIN
from virtoll.monitor.meters import Metered, Row
from virtoll.monitor.sources import MOST_COUNTERS, cgroup_sources, host_sources, inside_sources, network_source
from virtoll.platforms.base import Accounting, Instance, is_elsewhere

_KEEP_S = 900.0
# Values that a ring may have: on the host all that the agent's may, inside less, for they take memory.
_MOST_OUTSIDE, _MOST_INSIDE = 8 * 1024**2, 2 * 1024**2
_ROOMY_HZ = 15.0  # the samples of `_KEEP_S` at this rate, at least, leave room for all marks of a turn
_HELD = ("memory.usage_bytes", "memory.resident_bytes")
NOBODY: Mapping[str, Accounting] = MappingProxyType({})
_NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Watched:
    """What was seen. A value that could not be read has no row; a source that never could is in ``unreadable``."""

    outside: list[Row]
    inside: list[Row] | None  # None: it was not asked for, or the instance answered no more
    offset_before: ClockOffset
    offset_after: ClockOffset | None  # None: the instance answered no more
    duration_ns: int  # between the two readings of the clock
    late_ticks: int  # of both samplers
    dropped_ticks: int  # rows of the beginning that no longer fitted the samplers' rings
    unreadable: dict[str, str]  # source -> path and reason


@dataclass(frozen=True)
class ClockReading:
    """The instance's clock against ours, and when (ours) that was."""

    at_ns: int
    offset: ClockOffset


class Monitor:
    """Between `start` and `collect` nobody talks to the instance's agent, and nothing leaves the samplers.

    One agent on the host, on the generator's CPUs and in the SUT namespace, serves every instance of a run. Should it
    die, the trial fails and the next one gets a new agent.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._process: subprocess.Popen[bytes] | None = None
        self._host_agent: AgentClient | None = None
        self._watched: tuple[Agent, ClockReading, bool] | None = None
        self._metered = Metered({}, 1, 1)
        self._huge_bytes: Mapping[str, int] = {}

    @classmethod
    @contextmanager
    def on_host(cls, lab: Lab) -> Iterator[Monitor]:
        """A monitor for the length of the block."""
        monitor = cls(lab)
        try:
            yield monitor
        finally:
            monitor._metered.stop()
            monitor._end_host_agent()

    @staticmethod
    def read_clock(instance: Instance) -> ClockReading:
        """For `start`. Read it while the instance does nothing: one that is busy answers late."""
        return _read_clock(instance.agent)

    def start(
        self,
        instance: Instance,
        before: ClockReading,
        rate_hz: float,
        *,
        inside: bool = True,
        inside_hz: float | None = None,
        beside: Mapping[str, Accounting] = NOBODY,
        lasts_s: float = 0.0,
        for_sure: bool = False,
    ) -> None:
        """Begin to watch ``instance``, inside first. What an earlier trial left uncollected is thrown away.

        ``before``: its clock, as `read_clock` found it. Without ``inside`` only the host watches, and the instance's
        agent is free for what is measured. ``inside_hz``: how often that one looks, where it is another rate;
        ``beside``: other instances that are watched from outside, by the source's name; ``lasts_s``: for how long, as
        far as it is known: all is kept of so long, and of a quarter of an hour anyway, where there is room for it;
        where it lasts so long ``for_sure`` and there is none it is looked at less often.
        """
        if self._watched is not None:
            self._metered.stop()
            self._end_host_agent()
            self._watched = None
        if inside:
            sources = inside_sources(cpu=instance.counts_cpu_time)
            hz, keep_s = _looks(sources, inside_hz or rate_hz, lasts_s, _MOST_INSIDE, for_sure=for_sure)
            instance.agent.start_sampling(sources, hz, keep_s=keep_s)
        self._watched = (instance.agent, before, inside)
        with self._host_agent_in_use() as host_agent:
            sources = outside_sources(self._lab, instance, beside)
            roomy = max(1.0, _ROOMY_HZ / rate_hz)
            hz, keep_s = _looks(sources, rate_hz, lasts_s, _MOST_OUTSIDE, roomy, for_sure=for_sure)
            host_agent.start_sampling(sources, hz, keep_s=keep_s)
        accountings = {"instance": instance.accounting, **beside}
        self._huge_bytes = {name: each.huge_bytes for name, each in accountings.items()}
        self._metered = Metered(accountings, hz, keep_s, self._lab.generator.cpus)
        self._metered.start()

    def mark(self) -> None:
        """Look from outside at once: what was used between two marks is known, not interpolated."""
        with self._host_agent_in_use() as host_agent:
            host_agent.sample_now()
        self._metered.now()

    def collect(self, *, may_be_silent: bool = False) -> Watched:
        """End watching and fetch what was seen; inside times are moved to the host's clock.

        AgentError when the instance's agent is gone; with ``may_be_silent`` what only that one could tell is missing.
        """
        if self._watched is None:
            raise RuntimeError("collect without start")
        agent, before, was_inside = self._watched
        metered = self._metered.stop()
        with self._host_agent_in_use() as host_agent:
            outside = host_agent.collect()
        inside, after = Samples([], {}, 0), None
        try:
            inside = agent.collect() if was_inside else inside
            after = _read_clock(agent)
        except AgentError:
            if not may_be_silent:
                raise
        self._watched = None
        return Watched(
            outside=[*_rows(outside, outside.times_ns, self._huge_bytes), *metered],
            inside=_rows(inside, _on_our_clock(inside.times_ns, before, after)) if was_inside and after else None,
            offset_before=before.offset,
            offset_after=after.offset if after else None,
            duration_ns=(after.at_ns if after else time.monotonic_ns()) - before.at_ns,
            late_ticks=outside.late_ticks + inside.late_ticks + self._metered.late_ticks,
            dropped_ticks=outside.dropped + inside.dropped + self._metered.dropped,
            unreadable={**outside.unreadable, **inside.unreadable},
        )

    @contextmanager
    def _host_agent_in_use(self) -> Iterator[AgentClient]:
        """The host's agent, started when needed, given up when its stream breaks."""
        if self._host_agent is None:
            group = Cgroup(f"{self._lab.cgroup}/monitor", hierarchies())
            self._process = self._lab.host.spawn(
                host_agent_command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                confinement=Confinement(group.procs, self._lab.sut.netns, self._lab.generator.cpus),
            )
            stream = PipeStream(self._process, "the monitor's agent on the host")
            try:
                self._host_agent = AgentClient(stream)
            except AgentError:
                stream.close()
                self._end_host_agent()
                raise
        try:
            yield self._host_agent
        except StreamError:
            self._end_host_agent()
            raise

    def _end_host_agent(self) -> None:
        if self._host_agent is not None:
            self._host_agent.close()
            self._host_agent = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
            end_session(self._process)
            self._process = None


def host_agent_command() -> list[str]:
    """The host's agent, with as many open files as may be: it keeps one for each thread of each instance."""
    return ["sh", "-c", 'ulimit -n "$(ulimit -Hn)"; exec "$0" serve', str(binary("virtoll-agent"))]


def own_groups(instance: Instance) -> dict[str, str]:
    """The control groups of an instance and its parts, by source; without the instance where a meter tells what it
    uses, none of one that is elsewhere.
    """
    if is_elsewhere(instance):
        return {}
    accounting = instance.accounting
    return {"instance" if accounting.meter is None else "helpers": accounting.cgroup, **accounting.parts}


def outside_sources(lab: Lab, instance: Instance, beside: Mapping[str, Accounting] = NOBODY) -> list[Source]:
    """All that is watched from outside: the instance and its parts, generator, origin, host, the monitor itself; and
    who is ``beside`` it, by control group.

    Where there is a meter, the group is the helpers' alone, and the instance's own rows are the meter's.

    The instance's network is what passes the SUT namespace's links, to generators and origin: the same place for
    every platform and network mode, host's too. Of one that is elsewhere nothing is seen, and so nothing is told.
    """
    sources: list[Source] = []
    if not is_elsewhere(instance):
        sources = [
            network_source("instance", (*lab.generator_devices, "org0")),
            *(Source(f"instance.{name}", "integer", str(path)) for name, path in instance.accounting.counters.items()),
        ]
    groups = {
        **own_groups(instance),
        **{name: each.cgroup for name, each in beside.items() if each.meter is None},
        **({"generator": f"{lab.cgroup}/generator"} if lab.generators else {}),
        "origin": f"{lab.cgroup}/{ORIGIN}",
    }
    if group_exists(f"{lab.cgroup}/{LOAD}"):  # only some loads have programs of their own
        groups[LOAD] = f"{lab.cgroup}/{LOAD}"
    machine = hierarchies()
    booked = [source for name, cgroup in groups.items() for source in cgroup_sources(name, cgroup, machine)]
    return [*booked, *sources, *host_sources()]


def _looks(
    sources: Sequence[Source],
    rate_hz: float,
    lasts_s: float,
    most_values: int,
    roomy: float = 1.0,
    *,
    for_sure: bool = False,
) -> tuple[float, float]:
    """How often is looked, and for how long samples are kept (s): as often as asked, for `_KEEP_S`, or as long as a
    longer trial may last; where it lasts so long ``for_sure`` and a ring has no room at that rate, as often as it has.
    """
    ticks = most_values // (1 + sum(MOST_COUNTERS[source.kind] for source in sources))
    if for_sure and lasts_s:
        rate_hz = min(rate_hz, ticks / (roomy * lasts_s))
    return rate_hz, min(roomy * max(_KEEP_S, lasts_s), ticks / rate_hz)


def _read_clock(agent: Agent) -> ClockReading:
    offset = agent.clock()
    return ClockReading(time.monotonic_ns(), offset)


def _on_our_clock(agent_times_ns: list[int], before: ClockReading, after: ClockReading) -> list[int]:
    """Subtract the offset, taken as changing linearly between its two readings."""
    begin_ns = before.at_ns + before.offset.offset_ns
    drift_ns = after.offset.offset_ns - before.offset.offset_ns
    length_ns = max(after.at_ns + after.offset.offset_ns - begin_ns, 1)
    return [t_ns - before.offset.offset_ns - drift_ns * (t_ns - begin_ns) // length_ns for t_ns in agent_times_ns]


def _rows(samples: Samples, times_ns: list[int], huge_bytes: Mapping[str, int] = _NONE) -> list[Row]:
    """``huge_bytes``: what comes, by source, to the memory that its control group tells."""
    rows: list[Row] = []
    for name, values in samples.counters.items():
        source, _, counter = name.partition(".")
        more = huge_bytes.get(source, 0) if counter in _HELD else 0
        rows += [(t, source, counter, v + more) for t, v in zip(times_ns, values, strict=True) if v is not None]
    return rows
