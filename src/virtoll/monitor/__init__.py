"""Who watches: what an instance uses, seen from outside and from inside."""

from virtoll.monitor.meters import Row
from virtoll.monitor.monitor import NOBODY, Monitor, Watched, host_agent_command, outside_sources, own_groups
from virtoll.monitor.sources import cgroup_sources, host_sources, inside_sources, network_source
from virtoll.monitor.yardstick import Tries, Yardstick

__all__ = [
    "NOBODY",
    "Monitor",
    "Row",
    "Tries",
    "Watched",
    "Yardstick",
    "cgroup_sources",
    "host_agent_command",
    "host_sources",
    "inside_sources",
    "network_source",
    "outside_sources",
    "own_groups",
]
