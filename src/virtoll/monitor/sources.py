"""Which files to sample: of a control group, of the host, of an instance from inside. Pure functions.

The names of sources and counters are fixed (docs/RUN_DIRECTORY.md); a source's name ends at its first dot.
"""

from __future__ import annotations

from collections.abc import Mapping

from virtoll.agent import Kind, Source
from virtoll.hosts.cgroup import Hierarchies

_PRESSURES = ("cpu", "memory", "io")

# How many counters a source may have (rust/agent/src/parse.rs); a keyed file holds CPU time, or memory.
MOST_COUNTERS: Mapping[Kind, int] = {
    "integer": 1,
    "keyed": 3,
    "psi": 2,
    "stat": 6,
    "meminfo": 4,
    "netdev": 4,
    "pidstat": 4,
    "diskstats": 2,
    "blkio": 2,
    "io_stat": 2,
    "threads": 2,
}

# Controller, what its counters' names begin with after the source's, kind, file.
_VERSION_1: tuple[tuple[str, str, Kind, str], ...] = (
    ("cpuacct", ".cpu.usage_ns", "integer", "cpuacct.usage"),
    ("cpuacct", ".cpu.user_ns", "integer", "cpuacct.usage_user"),
    ("cpuacct", ".cpu.system_ns", "integer", "cpuacct.usage_sys"),
    ("cpuacct", "", "threads", ""),
    ("memory", ".memory.usage_bytes", "integer", "memory.usage_in_bytes"),
    ("memory", "", "keyed", "memory.stat"),
    ("blkio", "", "blkio", "blkio.throttle.io_service_bytes_recursive"),
    ("pids", ".pids.current", "integer", "pids.current"),
)
_VERSION_2: tuple[tuple[str, str, Kind, str], ...] = (
    ("cpu", "", "keyed", "cpu.stat"),
    ("cpu", "", "threads", ""),
    ("memory", ".memory.usage_bytes", "integer", "memory.current"),
    ("memory", "", "keyed", "memory.stat"),
    ("io", "", "io_stat", "io.stat"),
    ("pids", ".pids.current", "integer", "pids.current"),
    *((resource, f".psi.{resource}", "psi", f"{resource}.pressure") for resource in _PRESSURES),
)


def cgroup_sources(name: str, cgroup: str, hierarchies: Hierarchies) -> list[Source]:
    """What group ``cgroup`` (relative to each hierarchy's root) and all below it use, under the name ``name``.

    Controllers that the machine lacks are left out; so is the pressure on version 1, which does not know it.
    """
    files = _VERSION_1 if hierarchies.version == 1 else _VERSION_2
    return [
        Source(name + suffix, kind, str(hierarchies.directory(controller, cgroup) / file))
        for controller, suffix, kind, file in files
        if controller in hierarchies.mounts
    ]


def network_source(name: str, interfaces: tuple[str, ...]) -> Source:
    """What came in and went out through ``interfaces`` of the namespace in which the agent runs."""
    return Source(name, "netdev", "/proc/net/dev", interfaces)


def host_sources() -> list[Source]:
    """The whole machine, as its own /proc shows it; and what it costs to watch (the agent's own process)."""
    return [*_system_sources("host"), Source("monitor", "pidstat", "/proc/self/stat")]


def inside_sources(*, cpu: bool = True) -> list[Source]:
    """What /proc shows inside an instance: a guest's own values; in a container without lxcfs, mostly the host's.

    Without ``cpu`` its CPU time is left out, where the kernel there does not count it.
    """
    shown = [source for source in _system_sources("inside") if cpu or source.kind != "stat"]
    return [*shown, network_source("inside", ())]


def _system_sources(name: str) -> list[Source]:
    return [
        Source(name, "stat", "/proc/stat"),
        Source(name, "meminfo", "/proc/meminfo"),
        Source(name, "diskstats", "/proc/diskstats"),
        *(Source(f"{name}.psi.{resource}", "psi", f"/proc/pressure/{resource}") for resource in _PRESSURES),
    ]
