"""Who watches: what an instance uses, seen from outside and from inside."""

from virtoll.monitor.monitor import Monitor, Row, Watched, outside_sources
from virtoll.monitor.sources import cgroup_sources, host_sources, inside_sources

__all__ = [
    "Monitor",
    "Row",
    "Watched",
    "cgroup_sources",
    "host_sources",
    "inside_sources",
    "outside_sources",
]
