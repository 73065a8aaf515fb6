"""How each kind of thing that virtoll makes on a machine is removed. Removing what is not there is no error."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.hosts.cgroup import remove_above, remove_tree

_NETNS_GRACE_S = 10.0


def _remove_netns(host: Host, name: str) -> None:
    """End who still works in the namespace (only virtoll's processes do), then take its name away."""
    path = Path("/run/netns", name)
    if not path.exists():
        return
    deadline = time.monotonic() + _NETNS_GRACE_S
    while pids := _processes_in(path):
        if time.monotonic() > deadline:
            raise HostError(f"processes {pids} do not die", where=f"namespace {name}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    host.run(["ip", "netns", "delete", name])


def _processes_in(netns: Path) -> list[int]:
    wanted = netns.stat()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # a process that has just ended, or is a zombie
                if os.path.samestat((entry / "ns/net").stat(), wanted):
                    found.append(int(entry.name))
    return found


def _remove_mount(host: Host, path: str) -> None:
    """Unmount, with what is mounted below; lazily where something still uses it.

    Asks the kernel's table whether it is mounted: a look at the directory fails where a FUSE server was killed.
    """
    while path in _mount_points(host):
        if host.run(["umount", "--recursive", "--", path], check=False).returncode != 0:
            host.run(["umount", "--recursive", "--lazy", "--", path])


def _mount_points(host: Host) -> set[str]:
    lines = host.read(Path("/proc/self/mountinfo")).decode().splitlines()
    return {line.split()[4].replace("\\040", " ") for line in lines}  # proc(5): a space is written as \040


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
