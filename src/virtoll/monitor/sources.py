"""Which files to sample: of a control group, of the host, of an instance from inside. Pure functions.

The names of sources and counters are fixed (docs/RUN_DIRECTORY.md); a source's name ends at its first dot.
"""

from __future__ import annotations

from virtoll.agent import Source
from virtoll.hosts.cgroup import Hierarchies

_PRESSURES = ("cpu", "memory", "io")


def cgroup_sources(name: str, cgroup: str, hierarchies: Hierarchies) -> list[Source]:
    """What group ``cgroup`` (relative to each hierarchy's root) and all below it use, under the name ``name``.

    Controllers that the machine lacks are left out; so is the pressure on version 1, which does not know it.
    """
    if hierarchies.version == 1:
        return _version_1(name, cgroup, hierarchies)
    return _version_2(name, cgroup, hierarchies)


def host_sources() -> list[Source]:
    """The whole machine, as its own /proc shows it; and what it costs to watch (the agent's own process)."""
    return [*_system_sources("host"), Source("monitor", "pidstat", "/proc/self/stat")]


def inside_sources() -> list[Source]:
    """What /proc shows inside an instance: a guest's own values; in a container without lxcfs, mostly the host's."""
    return _system_sources("inside")


def _system_sources(name: str) -> list[Source]:
    return [
        Source(name, "stat", "/proc/stat"),
        Source(name, "meminfo", "/proc/meminfo"),
        Source(name, "netdev", "/proc/net/dev"),
        Source(name, "diskstats", "/proc/diskstats"),
        *(Source(f"{name}.psi.{resource}", "psi", f"/proc/pressure/{resource}") for resource in _PRESSURES),
    ]


def _version_1(name: str, cgroup: str, hierarchies: Hierarchies) -> list[Source]:
    files: list[tuple[str, Source]] = [
        ("cpuacct", Source(f"{name}.cpu.usage_ns", "integer", "cpuacct.usage")),
        ("cpuacct", Source(f"{name}.cpu.user_ns", "integer", "cpuacct.usage_user")),
        ("cpuacct", Source(f"{name}.cpu.system_ns", "integer", "cpuacct.usage_sys")),
        ("memory", Source(f"{name}.memory.usage_bytes", "integer", "memory.usage_in_bytes")),
        ("memory", Source(name, "keyed", "memory.stat")),
        ("blkio", Source(name, "blkio", "blkio.throttle.io_service_bytes_recursive")),
        ("pids", Source(f"{name}.pids.current", "integer", "pids.current")),
    ]
    return _below(cgroup, hierarchies, files)


def _version_2(name: str, cgroup: str, hierarchies: Hierarchies) -> list[Source]:
    files: list[tuple[str, Source]] = [
        ("cpu", Source(name, "keyed", "cpu.stat")),
        ("memory", Source(f"{name}.memory.usage_bytes", "integer", "memory.current")),
        ("memory", Source(name, "keyed", "memory.stat")),
        ("io", Source(name, "io_stat", "io.stat")),
        ("pids", Source(f"{name}.pids.current", "integer", "pids.current")),
        *((resource, Source(f"{name}.psi.{resource}", "psi", f"{resource}.pressure")) for resource in _PRESSURES),
    ]
    return _below(cgroup, hierarchies, files)


def _below(cgroup: str, hierarchies: Hierarchies, files: list[tuple[str, Source]]) -> list[Source]:
    return [
        Source(source.name, source.kind, str(hierarchies.directory(controller, cgroup) / source.path))
        for controller, source in files
        if controller in hierarchies.mounts
    ]
