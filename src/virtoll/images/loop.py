"""A root filesystem on a disk of its own: the image's disk (`virtoll.images.disk`), copied and mounted on the host.

As OpenVZ's ploop has it: the container's files pass through one file system, on a loop device, and through no overlay.
The copy is made for each deployment; holes stay holes. It is on the host's disk before it is mounted: what the kernel
writes back later, tens of seconds after, it would write while somebody is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from virtoll.hosts.base import Host
from virtoll.hosts.ledger import Ledger

DISK_LIMIT = "enforced: limits.disk are free on the container's own disk (ext4, no journal, loop device)"

_COPY = 'cp --sparse=always --reflink=auto "$1" "$2"; sync --data "$2"'
_COPY_TIMEOUT_S = 300


def copied(host: Host, base: Path, copy: Path) -> None:
    """A disk of an instance's own, at ``copy``."""
    host.run(["sh", "-e", "-c", _COPY, "sh", str(base), str(copy)], timeout_s=_COPY_TIMEOUT_S)


@contextmanager
def mounted_copy(host: Host, ledger: Ledger, base: Path, directory: Path) -> Iterator[Path]:
    """The disk ``base``, copied into ``directory`` and mounted there for the block's length.

    The loop device detaches itself when the mount ends. The caller owns ``directory`` and removes it.
    """
    root = directory / "root"
    root.mkdir(parents=True)
    with ledger.owning("mount", str(root)):
        copied(host, base, directory / "disk.ext4")
        host.run(["mount", "-t", "ext4", "-o", "loop", str(directory / "disk.ext4"), str(root)])
        yield root
