"""A container with a user namespace of its own: root inside is nobody to the host, and owns what is in there alone.

It is the kernel's half of what rootless engines do; the engine itself stays root's here. Root inside may not go where
the host keeps its files from all but root, so the container's root is shown to it in a place that anybody may enter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.images.base import Image
from virtoll.images.shifted import COUNT, FIRST, prepared, shifted
from virtoll.networks.base import Kind
from virtoll.platforms.base import Platform
from virtoll.study.limits import Limits

ROOT = Path("/run/instance")  # in the runtime's own mount namespace, where /run is in memory

_MOST = Path("/proc/sys/user/max_user_namespaces")  # there, too, on a kernel that was built without (kernel/ucount.c)
_OWN = Path("/proc/self/ns/user")
_MAPS = (Path("/proc/self/uid_map"), Path("/proc/self/gid_map"))


class OwnUsers(Platform):
    """A platform with the setting ``user_namespace``."""

    @property
    def attached_as(self) -> tuple[Kind, ...]:
        """Root inside may mount sysfs for a network that is its own, and for no other."""
        return tuple(kind for kind in self.kinds if not (self.settings.user_namespace and kind == "shared"))

    def prepare(
        self,
        host: Host,
        image: Image,
        limits: Limits,  # noqa: ARG002
        progress: Callable[[str], None],
    ) -> None:
        """The image with owners shifted for a user namespace, held against its list; else nothing: its directory is the
        form it takes.
        """
        if self.settings.user_namespace:
            prepared(host, image, progress)


def problems(host: Host, is_asked: bool) -> list[Problem]:
    """Why there can be no user namespace on this host, if one is asked for."""
    if not is_asked:
        return []
    if not (_MOST.exists() and _OWN.exists()):
        return [Problem("the kernel has no user namespaces", host.where, "leave user_namespace out")]
    if host.read(_MOST).strip() == b"0":
        remedy = "sysctl -w user.max_user_namespaces=10000"
        return [Problem(f"{_MOST} is 0: there can be no user namespace", host.where, remedy)]
    if not all(_holds(host.read(path).decode()) for path in _MAPS):
        what = f"virtoll is in a user namespace itself, which has no users {FIRST} to {FIRST + COUNT - 1} to give away"
        return [Problem(what, host.where, "run virtoll outside of it, or leave user_namespace out")]
    return []


def _holds(map_: str) -> bool:
    """Whether one line of a /proc/PID/uid_map has all the users that root inside is to have; user_namespaces(7)."""
    lines = (tuple(map(int, line.split())) for line in map_.splitlines())
    return any(first <= FIRST and first + count >= FIRST + COUNT for first, _, count in lines)


def owned(host: Host, image: Image, is_asked: bool) -> Image:
    """The image as its users own it."""
    return shifted(host, image, lambda _line: None) if is_asked else image
