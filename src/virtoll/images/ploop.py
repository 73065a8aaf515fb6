"""A root filesystem on a ploop, OpenVZ's disk in a file: one in the image's cache entry, and a copy for each container.

Made as its users get it: ploop(8)'s own default format (expanded) and ext4 with its journal, by `ploop init`. A ploop's
file must have no holes and share no blocks (ploop(8)): it is copied whole, and is on the host's disk before it is used.
Written from the documents; not yet run on a live host.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import opened, state_directory
from virtoll.images import disk, inside
from virtoll.images.base import Image
from virtoll.images.cached import cached, remove

DISK_LIMIT = (
    "enforced: limits.disk are free on the container's ploop (ext4 with a journal; a twentieth is root's alone)"
)
DESCRIPTOR = "DiskDescriptor.xml"

_MIB = 1024**2
# What ploop has mkfs.ext4 make (its lib/fsutils.c): -Jsize=128, and in each group that holds a copy of the descriptors
# as many free blocks as they can come to take (-Eresize; mke2fs(8), ext4(5): 1024 of 4 KiB).
_JOURNAL_BYTES = 128 * _MIB
_GROUP_BYTES, _DESCRIPTORS_BYTES = 128 * _MIB, 4 * _MIB
_PARTITION_BYTES = 2 * _MIB  # its table, and its alignment
_LEAST_BYTES = 512 * _MIB  # mke2fs.conf: smaller ones get four times as many inodes
_COPY = 'cp --archive --sparse=never --reflink=never "$1" "$2"; sync "$2"/*'


def size_kib(used_bytes: int, inodes: int, free_bytes: int) -> int:
    """What `ploop init -s` is told, for ``used_bytes`` in ``inodes`` files, and ``free_bytes`` left to write.

    HostError where that is less than a ploop whose size we can tell.
    """
    content = disk.size_bytes(used_bytes, inodes, free_bytes) + _JOURNAL_BYTES + _PARTITION_BYTES
    total = content
    while (needed := content + _of_groups(-(-total // _GROUP_BYTES))) > total:
        total = needed
    if total < _LEAST_BYTES:
        raise HostError(
            f"a ploop has at least {_LEAST_BYTES // _MIB} MiB, and image and limit come to {total // _MIB}",
            where="limits.disk",
            remedy=f"ask for {(_LEAST_BYTES - total + free_bytes) // _MIB + 1} MiB",
        )
    return total // 1024


def _of_groups(count: int) -> int:
    """What ext4's groups keep for themselves: two blocks of bits each, and the descriptors' copies: in groups 0 and 1,
    and in those that are a power of 3, 5 or 7 (sparse_super).
    """
    held = {0, 1} | {base**power for base in (3, 5, 7) for power in range(1, 20)}
    return 2 * 4096 * count + _DESCRIPTORS_BYTES * sum(1 for group in held if group < count)


def base(
    host: Host, image: Image, free_bytes: int, scripts: Mapping[str, str], progress: Callable[[str], None]
) -> Path:
    """The image's ploop with ``free_bytes`` left to write: a directory; made once, then read only.

    ``scripts``: programs put into it besides, by their place inside; what the image has there is replaced.
    """
    made_of = (sorted(scripts.items()), free_bytes, _JOURNAL_BYTES, _DESCRIPTORS_BYTES, _PARTITION_BYTES)
    recipe = hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]

    def make(partial: Path) -> None:
        progress(f"writing {image.name} to a ploop")
        used, inodes = (
            int(host.run(["du", "--summarize", flag, f"{image.rootfs}/."], timeout_s=300).text.split()[0])
            for flag in ("--block-size=1", "--inodes")
        )
        partial.mkdir(mode=0o700)
        size = f"{size_kib(used, inodes, free_bytes)}K"
        host.run(["ploop", "init", "-s", size, "-t", "ext4", str(partial / "root.hds")], timeout_s=900)
        _fill(host, image, partial / DESCRIPTOR, scripts)

    return cached(image.directory / f"ploop-{recipe}", make)


def copied(host: Host, base: Path, into: Path) -> None:
    """A container's own copy of a ploop: the directory ``into``, which must not be there yet."""
    host.run(["sh", "-e", "-c", _COPY, "sh", str(base), str(into)], timeout_s=900)


def _fill(host: Host, image: Image, descriptor: Path, scripts: Mapping[str, str]) -> None:
    """Mount it for as long as it takes to write the image's files."""
    unique = f"ploop-{secrets.token_hex(4)}"
    mounted = state_directory() / unique
    with (
        opened(host, state_directory() / "ledger", unique) as ledger,
        ledger.owning("directory", str(mounted)),
        ledger.owning("ploop", str(descriptor)),
    ):
        mounted.mkdir(mode=0o700)
        host.run(["ploop", "mount", "-m", str(mounted), str(descriptor)], timeout_s=120)
        host.run(["cp", "--archive", f"{image.rootfs}/.", str(mounted)], timeout_s=900)
        for place, text in scripts.items():
            _put_program(mounted, place, text)


def _put_program(root: Path, place: str, text: str) -> None:
    """Write a program to its place as those inside see it: no link of the image's leads out of ``root``."""
    directory, _, name = place.rpartition("/")
    path = inside.directory(root, directory or "/") / name
    remove(path)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o755)
