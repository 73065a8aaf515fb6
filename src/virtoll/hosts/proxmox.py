"""What Proxmox VE says of its guests, and how one of virtoll's is removed: files below /etc/pve, pct(1) and qm(1).

Written from pct(1), pct.conf(5), qm(1), qm.conf(5), pvesm(1), pmxcfs(8) and the public source of pve-container,
qemu-server, pve-storage and pve-cluster; not yet run on a live host. So what is read is read tolerantly, and bounded.

A guest has a number (VMID), which is one for the whole cluster, and Proxmox hands out the lowest that is free: what is
one's today may be another's tomorrow. A guest of virtoll's has a number drawn at random from a hundred million high
ones, and a tag that no other has. While it is half made, or half destroyed, Proxmox keeps nothing of it but a lock:
then the number alone must tell whose it is, and being drawn it does. What has that number and another's tag is left
alone.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from virtoll.errors import CommandError, HostError
from virtoll.hosts.base import Host
from virtoll.hosts.mountinfo import MOUNTINFO, mount_points

CLUSTER = Path("/etc/pve")  # pmxcfs(8): the file system of the cluster's configuration
CONTAINERS = Path("/var/lib/lxc")  # where Proxmox mounts a container's disk: NUMBER/rootfs
PROC = Path("/proc")
RUNNING = Path("/var/run/qemu-server")  # where Proxmox keeps what it reaches its virtual machines by
MOST_BYTES = 1024**2  # of one file or answer: pmxcfs takes no larger file

Kind = Literal["ct", "vm"]
PROGRAM: dict[Kind, str] = {"ct": "pct", "vm": "qm"}
_DIRECTORY: dict[Kind, str] = {"ct": "lxc", "vm": "qemu-server"}  # below nodes/NAME (pmxcfs(8))
_DISK: dict[Kind, str] = {"ct": "rootfs", "vm": "virtio0"}  # the key of the one disk that a guest of ours has
_LEAST, _COUNT = 900_000_000, 100_000_000  # a number has nine digits at most (pct(1))
_NAME = re.compile(r"(9\d{8})/(virtoll-[0-9a-f]{16})")  # of the ledger's
_HALF = frozenset({"lock"})  # the keys of what is just being made, or destroyed
_UNLOCKED = ("create", "destroyed", "mounted")  # the locks that a pct or qm leaves which was killed
# PVE::Tools, lock_file: after 10 s, within which what was being made may have become whole; and what is started
# meanwhile is not destroyed.
_BUSY = re.compile("can't lock file|is running|no lock found")
_KEPT = re.compile("Could not remove disk '([^']*)'.*")  # PVE::QemuServer, destroy_vm
_BUSY_S, _POLL_S = 300.0, 1.0  # a disk may be filled meanwhile
_STOP_S = 180.0  # qm itself waits for 60, and then kills
_DESTROY_S = 600.0


@dataclass(frozen=True)
class Guest:
    """A container or virtual machine of ours: its number, and the tag that it is known by."""

    number: int
    tag: str

    @property
    def name(self) -> str:
        """What the ledger calls it."""
        return f"{self.number}/{self.tag}"


@dataclass(frozen=True)
class Storage:
    """One store as `pvesm status` lists it."""

    kind: str
    is_active: bool
    available_bytes: int


def drawn() -> Guest:
    """A guest that nobody else has: as good as a UUID, within what a number may be."""
    return Guest(_LEAST + secrets.randbelow(_COUNT), f"virtoll-{secrets.token_hex(8)}")


def parse_name(name: str) -> Guest:
    """A guest by its name in the ledger. HostError where it is none."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise HostError(f"{name[:60]!r} names no guest of virtoll's", where="Proxmox VE")
    return Guest(int(found[1]), found[2])


def parse_configuration(text: str) -> dict[str, str]:
    """What holds now of a guest's file, by key: not its snapshots, nor what waits for its next start. Of a key that is
    there several times the last. Comments are its description.
    """
    found = {}
    for line in text[:MOST_BYTES].splitlines():
        if line.startswith("["):
            break
        if pair := re.fullmatch(r"([a-z][\w.-]{0,63})(?:: ?|\s*=\s*)(.*?)\s*", line):
            found[pair[1]] = pair[2]
    return found


def is_ours(configuration: Mapping[str, str], tag: str) -> bool:
    """Whether it bears our tag; or nothing but a lock, where the number alone tells."""
    return tag in re.split(r"[;, ]+", configuration.get("tags", "")) or configuration.keys() <= _HALF


def parse_status(text: str) -> dict[str, str]:
    """The lines ``name: value`` of `pct status` and `qm status`; those that are indented belong to what is above."""
    pairs = (line.partition(":") for line in text[:MOST_BYTES].splitlines())
    return {name: value.strip() for name, colon, value in pairs if colon and re.fullmatch(r"[\w-]{1,40}", name)}


def parse_storages(text: str) -> dict[str, Storage]:
    """The table of `pvesm status`, by name; sizes are told in KiB. Its head and lines of other forms are skipped."""
    found = {}
    for line in text[:MOST_BYTES].splitlines():
        words = line.split()
        if len(words) == 7 and all(re.fullmatch(r"\d{1,15}", word) for word in words[3:6]):
            found[words[0]] = Storage(words[1], words[2] == "active", int(words[5]) * 1024)
    return found


def parse_version(text: str) -> tuple[tuple[int, int], str]:
    """What `pveversion` says: major and minor, and the version's whole text. HostError where it is no such answer."""
    found = re.match(r"pve-manager/((\d{1,4})\.(\d{1,4})[\w.~+-]{0,40})", text)
    if found is None:
        raise HostError(
            f"does not tell Proxmox VE's version, but {text[:60]!r}",
            where="pveversion",
            remedy="is this a Proxmox VE host? (apt-get install --reinstall pve-manager)",
        )
    return (int(found[2]), int(found[3])), found[1]


def has_quorum(members: str) -> bool:
    """Whether the cluster may be written to, by the file .members: a node that is in no cluster always may."""
    try:
        told = json.loads(members[:MOST_BYTES])
    except (ValueError, RecursionError):
        return True  # its own words when something is made
    cluster = told.get("cluster") if isinstance(told, dict) else None
    return not (isinstance(cluster, dict) and cluster.get("quorate") == 0)


def members(host: Host) -> str:
    """The file .members. HostError where the cluster's file system is not there: then no file tells of any guest."""
    try:
        return host.read(CLUSTER / ".members").decode(errors="replace")
    except HostError as error:
        raise HostError(
            f"Proxmox's cluster file system is not mounted at {CLUSTER}: {error.problem.what}",
            where=host.where,
            remedy="systemctl start pve-cluster",
        ) from error


def configuration_of(kind: Kind, number: int) -> Path:
    """Where this node keeps what a guest of its own is to be."""
    return CLUSTER / _DIRECTORY[kind] / f"{number}.conf"


def agent_socket(number: int) -> Path:
    """Where a virtual machine's agent is reached; beside Proxmox's own, for a socket's path is 107 bytes at most."""
    return RUNNING / f"{number}.virtoll"


def is_there(host: Host, name: str) -> bool:
    """Whether anybody in the cluster has a guest of that number, of either kind."""
    members(host)
    return bool(_files(parse_name(name).number))


def remove_container(host: Host, name: str) -> None:
    """Stop it without asking anybody inside, and destroy it with its disk; no error where there is none of ours."""
    _remove(host, "ct", parse_name(name))


def remove_machine(host: Host, name: str) -> None:
    """The same of a virtual machine. A QEMU that was killed has left the socket."""
    guest = parse_name(name)
    _remove(host, "vm", guest)
    agent_socket(guest.number).unlink(missing_ok=True)


def status(host: Host, kind: Kind, number: int) -> dict[str, str]:
    """What Proxmox says of a guest now; nothing where it knows none."""
    done = host.run([PROGRAM[kind], "status", str(number), "--verbose"], check=False)
    return parse_status(done.text) if done.returncode == 0 else {}


def _files(number: int) -> list[tuple[Kind, Path]]:
    return [
        (kind, path)
        for kind, directory in _DIRECTORY.items()
        for path in sorted(CLUSTER.glob(f"nodes/*/{directory}/{number}.conf"))
    ]


def _remove(host: Host, kind: Kind, guest: Guest) -> None:
    """A pct or qm does its work in a process beside it, which goes on where both it and virtoll were killed: it has the
    guest to itself then, and what it was at may come to be (a start). So it is begun anew, as long as that may take.
    """
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            _remove_at_once(host, kind, guest)
        except CommandError as error:
            if "does not exist" in str(error) and not is_there(host, guest.name):
                return  # its making has failed meanwhile, and taken all of it away
            if time.monotonic() > deadline or not _BUSY.search(str(error)):
                raise
            time.sleep(_POLL_S)
        else:
            return


def _remove_at_once(host: Host, kind: Kind, guest: Guest) -> None:
    """A guest of another kind, or with a tag that is not ours, is somebody else's: ours is gone, then."""
    members(host)
    files = [path for found, path in _files(guest.number) if found == kind]
    if not files:
        return
    try:
        configuration = parse_configuration(host.read(files[0]).decode(errors="replace"))
    except HostError:
        if files[0].exists():
            raise
        return  # it has just gone
    if not is_ours(configuration, guest.tag):
        return
    program, number = PROGRAM[kind], str(guest.number)
    if configuration.get("lock") in _UNLOCKED:
        host.run([program, "unlock", number])
    if status(host, kind, guest.number).get("status") != "stopped":
        done = host.run([program, "stop", number], timeout_s=_STOP_S, check=False)
        if done.returncode != 0 and status(host, kind, guest.number).get("status") == "running":  # it may have ended
            raise CommandError(
                f"{program} stop ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()[:500]}",
                where=f"{program} {number}",
                remedy=f"{program} stop {number} by hand, then run `virtoll clean`",
            )
    if kind == "ct":
        _unmount(host, guest.number)
    # Those that a killed pct or qm had made, and not yet written down, are in no configuration. They are looked for on
    # all of the host's storages, and where one of those is out of reach, nothing is destroyed (activate_storage_list).
    everywhere = [] if _DISK[kind] in configuration else ["--destroy-unreferenced-disks", "1"]
    # Not --purge, which writes the host's own backup and replication jobs anew: none of them names a guest of ours.
    done = host.run([program, "destroy", number, *everywhere], timeout_s=_DESTROY_S)
    if kept := _KEPT.search(done.text):  # qm warns, and destroys all else
        raise CommandError(
            f"{program} destroy has left a disk: {kept[0][:500]}",
            where=f"{program} {number}",
            remedy=f"pvesm free {kept[1]}",
        )


def _unmount(host: Host, number: int) -> None:
    """A pct that was killed while it filled the disk has left it mounted."""
    mount = str(CONTAINERS / str(number) / "rootfs")
    while mount in mount_points(host.read(Path(MOUNTINFO))):
        host.run(["umount", "--recursive", "--", mount], timeout_s=_DESTROY_S)
