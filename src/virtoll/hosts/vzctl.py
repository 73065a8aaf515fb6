"""What vzctl(8) and ploop(8) have made on an OpenVZ host: whether it is there, and how it goes.

Written from their documents and public source; not yet run on a live host. A container of ours has a random UUID for
its id, so that it is nobody else's.
"""

from __future__ import annotations

from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.openvz import parse_status, slice_of

CONFIGURATION = Path("/etc/vz/vz.conf")
NETNS = Path("/run/netns")  # where vzctl leaves a link to each running container's, by its id

_NOT_MOUNTED = 40  # ploop(8), EXIT STATUS: SYSEXIT_DEV_NOT_MOUNTED
_STOP_S = 180.0  # vzctl itself waits for 120
_DESTROY_S = 600.0


def control_group(host: Host, container: str) -> str:
    """The group of a container's, relative to each controller's root; vzctl makes and removes it."""
    return f"{slice_of(host.read(CONFIGURATION).decode(errors='replace'))}/{container}"


def is_there(host: Host, container: str) -> bool:
    """Whether vzctl knows it, running or not."""
    return "exist" in _states(host, container)


def remove(host: Host, container: str) -> None:
    """Stop it without asking anybody inside, and destroy it with its disk; no error where there is none.

    One that was killed while it started, or that ended by itself, is mounted and does not run: vzctl stops no such
    container, and destroys none that is mounted.
    """
    states = _states(host, container)
    if "running" in states:
        host.run(["vzctl", "stop", container, "--fast"], timeout_s=_STOP_S)
        states = _states(host, container)  # it may have ended before it was stopped
    if "mounted" in states:
        host.run(["vzctl", "umount", container], timeout_s=_STOP_S)
    # What a vzctl that was killed half-way has left.
    Cgroup(control_group(host, container), hierarchies()).remove()
    link = NETNS / container
    if link.is_symlink():
        link.unlink()
    if "exist" in states:
        host.run(["vzctl", "destroy", container], timeout_s=_DESTROY_S)


def _states(host: Host, container: str) -> frozenset[str]:
    return parse_status(host.run(["vzctl", "status", container], check=False).text)


def unmount_disk(host: Host, descriptor: str) -> None:
    """Take a ploop's file system and device away, by its DiskDescriptor.xml; no error where it is not mounted."""
    if not Path(descriptor).exists():
        return
    done = host.run(["ploop", "umount", descriptor], check=False)
    if done.returncode not in (0, _NOT_MOUNTED):
        raise HostError(
            f"ploop umount ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()[:500]}",
            where=descriptor,
            remedy="see who uses it (ploop list; fuser -m), then run `virtoll clean`",
        )
