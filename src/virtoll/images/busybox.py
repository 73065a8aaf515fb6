"""The static busybox of a guest's initramfs: the machine's own, or one that is fetched beside it.

Debian's busybox, which most machines have, needs libraries, and its busybox-static would take that one's place. Where
the machine's is no static one the package is fetched and unpacked, not installed, as the guests' kernel is; and kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import cache_directory
from virtoll.hosts.programs import find
from virtoll.images import debs
from virtoll.images.cached import cached, remove

_PACKAGE = "busybox-static"
_LINKER = b"/ld-linux"  # in each program that needs libraries
_PROGRAMS = ("bin/busybox", "usr/bin/busybox")  # in the package of Debian 12, and of 13


def fetch(host: Host, progress: Callable[[str], None]) -> None:
    """Have a static one, from the package sources where the machine has none. HostError where it is not to be had."""
    if static() is not None:
        return
    if found := problem(host):
        raise HostError(found.what, where=found.where, remedy=found.remedy)
    cached(_fetched().parent, lambda place: _make(host, place, progress))


def static() -> Path | None:
    """The machine's where it is static, or what was fetched before."""
    own = find("busybox")
    if own is not None and _LINKER not in Path(own).read_bytes():
        return Path(own)
    return _fetched() if os.access(_fetched(), os.R_OK) else None


def problem(host: Host) -> Problem | None:
    """Why there is none and `fetch` could not bring one, if so. Fetches and writes nothing."""
    if static() is not None or _is_offered(host):
        return None
    own = find("busybox")
    if own is None:
        return Problem("busybox is missing", host.where, f"apt-get install {_PACKAGE}")
    what = f"{own} is not static, a guest has no libraries yet"
    return Problem(what, host.where, f"apt-get install {_PACKAGE}, which takes the place of the package busybox")


def _fetched() -> Path:
    return cache_directory() / "kernels" / _PACKAGE / "busybox"


def _is_offered(host: Host) -> bool:
    """Whether the package sources hold it: an installed one that they lack cannot be fetched."""
    if find("apt-get") is None:
        return False
    return host.run(["apt-get", "download", "--print-uris", _PACKAGE], check=False).returncode == 0


def _make(host: Host, place: Path, progress: Callable[[str], None]) -> None:
    progress(f"fetching {_PACKAGE} for the guests' initramfs")
    tree = debs.unpack(host, place, _PACKAGE)
    (program,) = (tree / name for name in _PROGRAMS if (tree / name).is_file())
    program.rename(place / "busybox")
    remove(tree)
