"""How each kind of thing that virtoll makes on a machine is removed. Removing what is not there is no error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from virtoll.hosts.base import Host
from virtoll.hosts.cgroup import remove_above, remove_tree


def _remove_netns(host: Host, name: str) -> None:
    if Path("/run/netns", name).exists():
        host.run(["ip", "netns", "delete", name])


def _remove_mount(host: Host, path: str) -> None:
    host.run(["sh", "-c", 'while mountpoint -q "$1"; do umount -l "$1" || exit 1; done', "sh", path])


def _remove_directory(host: Host, path: str) -> None:
    # --one-file-system: a mount that is still inside is never descended into.
    host.run(["rm", "-rf", "--one-file-system", "--", path], timeout_s=600)


def _remove_loop(host: Host, device: str) -> None:
    host.run(["sh", "-c", 'losetup "$1" >/dev/null 2>&1 || exit 0; losetup -d "$1"', "sh", device])


RESOURCES: dict[str, Callable[[Host, str], None]] = {
    "netns": _remove_netns,  # a named network namespace; links, addresses and nftables rules inside go with it
    "mount": _remove_mount,  # a mount point
    "directory": _remove_directory,  # a directory tree
    "cgroup": remove_tree,  # a cgroup tree in every controller, with all processes in it
    "cgroup-above": remove_above,  # a cgroup made only to hold others: removed once it is empty
    "loop": _remove_loop,  # a loop device
}
