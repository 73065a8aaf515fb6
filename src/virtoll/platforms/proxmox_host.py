"""What both of Proxmox VE's platforms ask of its host, and how its programs are run."""

from __future__ import annotations

import os
from dataclasses import field
from typing import Any, ClassVar

from virtoll.errors import HostError, PlatformError, Problem
from virtoll.hosts import proxmox
from virtoll.hosts.base import Host
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.programs import Stamp, find, stamp
from virtoll.hosts.proxmox import Storage
from virtoll.platforms.base import Platform
from virtoll.platforms.requirements import bare
from virtoll.study.limits import Limits

UNTRIED = "its driver is not yet run on a live host: check by hand what it says there"
MOST_SAID = 2000  # characters of a program's own words in an error
START_S = 180.0
MAKE_S = 900.0  # a disk is filled meanwhile

_kinds: dict[tuple[str, str], str] = {}  # by host and name
_versions: dict[tuple[str, Stamp | None], str] = {}  # by host
_NEEDED_CONTROLLERS = {"cpu", "cpuset", "memory", "pids"}


def storage_field() -> Any:
    """A setting: the store that disks are made on; *local-lvm* is the one that Proxmox's installer makes on LVM."""
    return word_field("local-lvm", "be the name of a store, as `pvesm status` lists it")


def word_field(default: str, told: str) -> Any:
    """A setting that stands in a list of Proxmox's options: a word without commas. ``told``: what it must be."""
    return field(default=default, metadata={"form": r"[A-Za-z0-9][A-Za-z0-9_.-]*", "told": told})


class OnProxmox(Platform):
    """What both are, beside a container or a virtual machine. Their settings have ``storage``."""

    content: ClassVar[str]  # what that store must be for: "rootdir" or "images"
    caveat: ClassVar[str] = UNTRIED

    def lacks(self, host: Host, limits: Limits, instances: int = 1) -> list[Problem]:
        """Room for their disks."""
        return no_room(host, self.settings.storage, self.content, limits, instances)

    def untried(self, host: Host) -> str:  # noqa: ARG002 - whatever the host
        """See `Platform.untried`."""
        return UNTRIED

    def versions(self, host: Host) -> dict[str, str]:
        """Proxmox's, and those of what runs its guests."""
        return {"pve-manager": version(host), **super().versions(host)}


def problems(host: Host, program: str, storage: str, content: str, least: tuple[int, int]) -> list[Problem]:
    """Why this is no Proxmox VE host of version ``least`` or later on which root can make guests with their disks on
    ``storage``, which must be for ``content`` ("rootdir" or "images"); empty where it is one.
    """
    missing = [name for name in (program, "pvesm", "pveversion") if find(name) is None]
    if missing:
        what = f"this is no Proxmox VE host: there is no {missing[0]}"
        return [Problem(what, host.where, "run virtoll on the host itself; lxc and kvm have the same without Proxmox")]
    if os.geteuid() != 0:
        return [Problem("not root", host.where, "run virtoll with sudo")]
    try:
        members = proxmox.members(host)
        version, told = proxmox.parse_version(host.run(["pveversion"], check=False).text)
        layout = hierarchies()
    except HostError as error:
        return [error.problem]
    if version < least:
        what = f"Proxmox VE {least[0]}.{least[1]} or later is needed, and this is {told}"
        return [Problem(what, host.where, "upgrade it, or leave the platform out")]
    if layout.version != 2 or not layout.mounts.keys() >= _NEEDED_CONTROLLERS:
        what = "this host has not all of cpu, cpuset, memory and pids on control groups of version 2"
        return [
            Problem(what, host.where, "boot without systemd.unified_cgroup_hierarchy=0: version 2 is Proxmox's own")
        ]
    found = []
    if not proxmox.has_quorum(members):
        what = "the cluster has no quorum: nothing can be made, for /etc/pve is read-only"
        found.append(Problem(what, host.where, "bring its other nodes back; `pvecm status` shows who is missing"))
    problem = _storage_problem(host, storage, content)
    return [*found, problem] if problem else found


def stored(host: Host, storage: str, content: str) -> Storage | None:
    """A store as `pvesm status` lists it; None where there is none of that name for that content."""
    argv = ["pvesm", "status", "--storage", storage, "--content", content]
    return proxmox.parse_storages(host.run(bare(argv), check=False).text).get(storage)


def no_room(host: Host, storage: str, content: str, limits: Limits, instances: int) -> list[Problem]:
    """Why so many instances' disks do not fit on a store, by limits.disk alone: the image comes besides."""
    found, needed = stored(host, storage, content), instances * limits.disk_bytes
    if found is None or found.available_bytes >= needed:
        return []
    what = f"storage {storage} has {found.available_bytes} B left, and {instances} of limits.disk are {needed} B"
    return [Problem(what, host.where, "free some of it, name another storage, or give less in [limits] disk")]


def run(host: Host, where: str, argv: list[str], timeout_s: float = START_S) -> list[str]:
    """Run one of Proxmox's programs; PlatformError with its own words where it fails. Returns the command."""
    done = host.run(bare(argv), check=False, timeout_s=timeout_s)
    if done.returncode != 0:
        said = "\n".join(part.decode(errors="replace").strip() for part in (done.stdout, done.stderr)).strip()
        raise PlatformError(
            f"{argv[0]} {argv[1]} ended with {done.returncode}:\n{said[-MOST_SAID:]}",
            where=where,
            remedy=f"run it by hand: {' '.join(argv)}; Proxmox keeps what its tasks said in /var/log/pve/tasks",
        )
    return argv


def processes(where: str, group: str) -> list[int]:
    """Those of a guest, in the control group in which its cost is looked for; PlatformError where there is none."""
    found = Cgroup(group, hierarchies()).pids()
    if not found:
        raise PlatformError(
            f"Proxmox has started it, and nobody is in control group {group}",
            where=where,
            remedy="it has ended at once; or this Proxmox puts guests elsewhere than virtoll knows: tell its authors",
        )
    return found


def kind_of_storage(host: Host, storage: str, content: str) -> str:
    """Of a store ("lvmthin", "zfspool"), which it keeps; "" where there is none. Asked once: each question to Proxmox
    takes as long as a container to start, and deployments are timed.
    """
    if (key := (host.where, storage)) not in _kinds:
        found = stored(host, storage, content)
        if found is None:
            return ""
        _kinds[key] = found.kind
    return _kinds[key]


def version(host: Host) -> str:
    """Proxmox VE's; asked once of an installation, likewise."""
    key = (host.where, stamp("pveversion"))
    if key not in _versions:
        _versions[key] = proxmox.parse_version(host.run(["pveversion"], check=False).text)[1]
    return _versions[key]


def _storage_problem(host: Host, storage: str, content: str) -> Problem | None:
    found = stored(host, storage, content)
    if found is not None and found.is_active:
        return None
    if found is not None:
        what, remedy = f"storage {storage} is not active", f"pvesm status --storage {storage} says more"
    else:
        what = f"there is no storage {storage} that may hold {content}"
        remedy = f"name another (pvesm status --content {content}), or allow it: pvesm set {storage} --content"
    return Problem(what, host.where, remedy)
