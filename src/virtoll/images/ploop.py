"""A root filesystem on a ploop, OpenVZ's disk in a file: one in the image's cache entry, and a copy for each container.

Made as its users get it: ploop(8)'s own default format (expanded) and ext4 with its journal, by `ploop init`. A ploop's
file must have no holes and share no blocks (ploop(8)): it is copied whole, and is on the host's disk before it is used.
Written from the documents; not yet run on a live host.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import opened, state_directory
from virtoll.images import disk, inside
from virtoll.images.base import Image
from virtoll.images.cached import cached, remove

DISK_LIMIT = "enforced: limits.disk are free on the container's ploop (ext4 with a journal; 5 % are for root alone)"
DESCRIPTOR = "DiskDescriptor.xml"

_MIB = 1024**2
# What ploop has mkfs.ext4 make (its lib/fsutils.c): -Jsize=128, which mke2fs gives to no file system of less than twice
# that; and in each group that holds a copy of the descriptors as many free blocks as they can come to take (-Eresize).
_JOURNAL_BYTES = 128 * _MIB
_LEAST_BYTES = 2 * _JOURNAL_BYTES
_GROUP_BYTES, _DESCRIPTORS_BYTES = 128 * _MIB, 4 * _MIB
_SMALL_BYTES = 512 * _MIB  # below it there is an inode of 256 B for each 4 KiB, else for each 16 (mke2fs.conf)
_PARTITION_BYTES = 2 * _MIB  # its table, and its alignment
_KEPT_BYTES = 20 * _MIB  # by ext4 for itself once it is mounted (16 MiB), and in superblocks
_COPY = 'cp --archive --sparse=never --reflink=never "$1" "$2"; sync "$2"/*'


def size_kib(used_bytes: int, free_bytes: int) -> int:
    """What `ploop init -s` is told, for ``used_bytes`` of files, and at least ``free_bytes`` left to write.

    HostError where that is less than a ploop can have.
    """
    content = used_bytes + free_bytes + _JOURNAL_BYTES + _KEPT_BYTES
    total = content
    while (needed := content + _of_groups(total)) > total:
        total = -(-needed // _MIB) * _MIB
    if total < _LEAST_BYTES:
        raise HostError(
            f"a ploop has at least {_LEAST_BYTES // _MIB} MiB, and image and limit come to {total // _MIB}",
            where="limits.disk",
            remedy=f"ask for {(_LEAST_BYTES - total + free_bytes) // _MIB + 1} MiB",
        )
    return (total + _PARTITION_BYTES) // 1024


def _of_groups(total: int) -> int:
    """What ext4's groups keep for themselves: inodes; two blocks of bits each; and the descriptors' copies, in groups 0
    and 1 and in those that are a power of 3, 5 or 7 (sparse_super).
    """
    count = -(-total // _GROUP_BYTES)
    held = {0, 1} | {base**power for base in (3, 5, 7) for power in range(1, 20)}
    copies = sum(1 for group in held if group < count)
    return total // (16 if total < _SMALL_BYTES else 64) + 2 * 4096 * count + _DESCRIPTORS_BYTES * copies


def base(
    host: Host, image: Image, free_bytes: int, scripts: Mapping[str, str], progress: Callable[[str], None]
) -> Path:
    """The image's ploop with ``free_bytes`` left to write: a directory; made once, then read only.

    ``scripts``: programs put into it besides, by their place inside; what the image has there is replaced.
    """
    made_of = (sorted(scripts.items()), free_bytes, _JOURNAL_BYTES, _KEPT_BYTES, _PARTITION_BYTES)
    recipe = hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]

    def make(partial: Path) -> None:
        progress(f"writing {image.name} to a ploop")
        partial.mkdir(mode=0o700)
        size = f"{size_kib(disk.content(image.rootfs).bytes, free_bytes)}K"
        host.run(["ploop", "init", "-s", size, "-t", "ext4", str(partial / "root.hds")], timeout_s=900)
        with _mounted(host, partial / DESCRIPTOR) as root:
            host.run(["cp", "--archive", f"{image.rootfs}/.", str(root)], timeout_s=900)
            for place, text in scripts.items():
                _put_program(root, place, text)
            _leave_free(root, free_bytes)

    return cached(image.directory / f"ploop-{recipe}", make)


def copied(host: Host, base: Path, into: Path) -> None:
    """A container's own copy of a ploop: the directory ``into``, which must not be there yet."""
    host.run(["sh", "-e", "-c", _COPY, "sh", str(base), str(into)], timeout_s=900)


@contextmanager
def _mounted(host: Host, descriptor: Path) -> Iterator[Path]:
    """Where its file system is mounted for the block's length."""
    unique = f"ploop-{secrets.token_hex(4)}"
    root = state_directory() / unique
    with (
        opened(host, state_directory() / "ledger", unique) as ledger,
        ledger.owning("directory", str(root)),
        ledger.owning("ploop", str(descriptor)),
    ):
        root.mkdir(mode=0o700)
        host.run(["ploop", "mount", "-m", str(root), str(descriptor)], timeout_s=120)
        yield root


def _leave_free(root: Path, free_bytes: int) -> None:
    """Give what is free beyond that to a file of nobody's: how much ext4 keeps for itself is known when it is there."""
    found = os.statvfs(root)
    # Told as free, and kept all the same: a fiftieth, at most 4096 blocks (Linux, fs/ext4/super.c: s_resv_clusters).
    kept = min(found.f_blocks // 50, 4096)
    beyond = (found.f_bfree - kept) * found.f_frsize - free_bytes
    if beyond < 0:
        raise HostError(
            f"{-beyond} B less are free on a new ploop than the {free_bytes} B that limits.disk asks for",
            where="ploop",
            remedy="this ploop keeps more for itself than virtoll.images.ploop counts on: please tell its authors",
        )
    with (root / "virtoll/unused").open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        if beyond:
            os.posix_fallocate(file.fileno(), 0, beyond)


def _put_program(root: Path, place: str, text: str) -> None:
    """Write a program to its place as those inside see it: no link of the image's leads out of ``root``."""
    directory, _, name = place.rpartition("/")
    path = inside.directory(root, directory or "/") / name
    remove(path)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o755)
