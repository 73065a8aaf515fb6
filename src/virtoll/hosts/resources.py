"""The kinds of things that virtoll makes on a machine: how to see that one is there, and how it is removed.

Removing what is not there is no error. What has been removed is gone: its processes are dead, not only told to die.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from virtoll.errors import CommandError, HostError
from virtoll.hosts import proxmox, ssh, vzctl
from virtoll.hosts.base import Host
from virtoll.hosts.cgroup import group_exists, remove_above, remove_tree
from virtoll.hosts.changes import end_keeper, undo_setting, why_setting_is_left
from virtoll.hosts.mountinfo import MOUNTINFO, mount_points
from virtoll.hosts.namespaces import unmount_if_empty
from virtoll.hosts.xen import destroy_domain, domain_exists

_NETNS_GRACE_S = 10.0
_DISK_S = 600.0  # a slow disk may have gigabytes to write before it can be unmounted, or to free


def _remove_netns(host: Host, name: str) -> None:
    """End who still works in the namespace (only virtoll's processes do), then take its name away."""
    path = Path("/run/netns", name)
    if not path.exists():
        return
    try:
        _end_netns(host, name, path)
    except (CommandError, FileNotFoundError):  # an `ip netns add` that is killed takes its name away by itself
        if path.exists():
            raise


def _end_netns(host: Host, name: str, path: Path) -> None:
    deadline = time.monotonic() + _NETNS_GRACE_S
    # A name that was made by a process's number, which had become another's, may be of the machine's own.
    is_ours = os.path.samestat(path.stat(), Path("/proc/self/ns/net").stat())
    while pids := [] if is_ours else _processes_in(path):
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

    Asks the kernel's table whether it is mounted: a look at the directory fails where a FUSE server was killed. It may
    go by itself meanwhile: a killed run's own `umount` is still under way.
    """
    while path in _mount_points(host):
        if host.run(["umount", "--recursive", "--", path], timeout_s=_DISK_S, check=False).returncode == 0:
            continue
        try:
            host.run(["umount", "--recursive", "--lazy", "--", path], timeout_s=_DISK_S)
        except CommandError:
            if path in _mount_points(host):
                raise


def _mount_points(host: Host) -> set[str]:
    return mount_points(host.read(Path(MOUNTINFO)))


def _remove_directory(host: Host, path: str) -> None:
    # --one-file-system: a mount that is still inside is never descended into.
    host.run(["rm", "-rf", "--one-file-system", "--", path], timeout_s=_DISK_S)


def _remove_if_empty(host: Host, path: str) -> None:
    """Others may have come to use it, and it may be gone."""
    host.run(["rmdir", "--ignore-fail-on-non-empty", "--", path], check=False)


@dataclass(frozen=True)
class Resource:
    """One kind. ``holds_work``: processes are in it, that may be making other things: all such go before the rest.
    ``elsewhere``: on another machine, which may be out of reach; what is left there harms no measurement here.
    ``outlives_power``: still there when this machine has lost its power.
    ``why_left``: why `remove` is to leave it as it is, which is no error; "" where it is not to.
    """

    is_there: Callable[[Host, str], bool]
    remove: Callable[[Host, str], None]
    holds_work: bool = False
    elsewhere: bool = False
    outlives_power: bool = False
    why_left: Callable[[Host, str], str] = lambda _host, _name: ""


RESOURCES: dict[str, Resource] = {
    # a named network namespace; links, addresses and nftables rules inside go with it
    "netns": Resource(lambda _host, name: Path("/run/netns", name).exists(), _remove_netns),
    # the directory of their names as a mount (virtoll.hosts.namespaces): several may have made sure that it is one
    "netns-above": Resource(lambda _host, _path: False, unmount_if_empty),
    # a mount point
    "mount": Resource(lambda host, path: path in _mount_points(host), _remove_mount),
    # a directory tree
    "directory": Resource(lambda _host, path: os.path.lexists(path), _remove_directory, outlives_power=True),
    # a directory that others may use, too, made by a program that leaves it: removed once it is empty
    "directory-above": Resource(lambda _host, _path: False, _remove_if_empty),
    # a container of OpenVZ's, by its id, with its disk and all processes in it
    "openvz": Resource(vzctl.is_there, vzctl.remove, holds_work=True, outlives_power=True),
    # a container of Proxmox's, by its number and its tag, with its disk and all processes in it
    "proxmox-ct": Resource(proxmox.is_there, proxmox.remove_container, holds_work=True, outlives_power=True),
    # a virtual machine of Proxmox's, likewise
    "proxmox-vm": Resource(proxmox.is_there, proxmox.remove_machine, holds_work=True, outlives_power=True),
    # a ploop that is mounted, by its DiskDescriptor.xml: the device and the file system
    "ploop": Resource(lambda _host, _path: False, vzctl.unmount_disk),
    # a directory tree on a machine that is reached by ssh, with all processes that have their root in it
    "ssh-directory": Resource(ssh.directory_is_there, ssh.remove_directory, elsewhere=True, outlives_power=True),
    # a cgroup tree in every controller, with all processes in it
    "cgroup": Resource(lambda _host, name: group_exists(name), remove_tree, holds_work=True),
    # a cgroup made only to hold others: removed once it is empty, and several may have made sure that it is there
    "cgroup-above": Resource(lambda _host, _name: False, remove_above, holds_work=True),
    # a domain of Xen's, by its name, with its devices and its QEMU's log
    "xen-domain": Resource(domain_exists, destroy_domain, holds_work=True),
    # a process that goes on when its command has ended (`virtoll.hosts.changes.Keeper`)
    "process": Resource(lambda _host, _name: False, end_keeper, holds_work=True),
    # a file of the kernel's that was there before, and is put back (`virtoll.hosts.changes.Setting`)
    "setting": Resource(lambda _host, _name: False, undo_setting, why_left=why_setting_is_left),
}
