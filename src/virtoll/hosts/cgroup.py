"""Control groups of both generations, by effect the same: make, limit, join, account, kill, remove."""

from __future__ import annotations

from virtoll.hosts.base import Host


def remove_tree(host: Host, name: str) -> None:
    """Kill every process in cgroup ``name`` (relative, below every controller) and remove the tree."""
    raise NotImplementedError
