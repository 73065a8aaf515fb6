"""A root filesystem as a disk: one ext4 file in the image's cache entry, and a copy-on-write file a deployment.

The filesystem has no journal: a guest's disk lives as long as its deployment and is never recovered, while a
journal's commits would be work inside the guest that containers on the host's filesystem do not do themselves.
Nothing is left for the guest to initialise in the background (lazy_itable_init=0), and the UUID and the directory
hash seed come from the image's digest, so that every guest of an image starts from the same bytes. UML makes its own
copy-on-write file (ubd0=COW,BASE); QEMU's is made here.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from virtoll.hosts.base import Host
from virtoll.images.base import Image
from virtoll.images.cached import cached

DISK_LIMIT = "enforced: limits.disk are free on the guest's disk (ext4, no journal)"

_MIB = 1024**2
_BLOCK_BYTES = 4096
_INODE_BYTES = 256
_FAST_LINK_BYTES = 60  # a link that leads to a shorter path lies in its inode
_SMALL_BYTES = 512 * _MIB  # below it ext4 has an inode for every 4 KiB of disk, else for every 16 (mke2fs.conf)
# What ext4 keeps for itself (16 MiB, or 2 %), superblocks, group descriptors, bitmaps: a share of what it holds and
# some blocks, and so much at the most.
_SLACK_SHARE, _SLACK_LEAST_BYTES, _SLACK_BYTES = 40, _MIB // 4, 20 * _MIB


@dataclass(frozen=True)
class Content:
    """What files take on an ext4: blocks of 4 KiB, and inodes."""

    bytes: int
    inodes: int


def content(root: Path) -> Content:
    """That of a tree, wherever it lies now; a file of several names counts once.

    What `du` tells is true of ext4 alone: a file system that compresses (btrfs, ZFS) has fewer blocks for a file, and
    one that keeps small things among its own data (XFS, too) none for a directory.
    """
    taken: dict[tuple[int, int], int] = {}
    for directory, names, files in os.walk(root):
        for path in (directory, *(os.path.join(directory, name) for name in (*names, *files))):  # noqa: PTH118
            state = os.lstat(path)
            if (key := (state.st_dev, state.st_ino)) not in taken:
                taken[key] = _taken_bytes(path, state)
    return Content(sum(taken.values()), len(taken))


def _taken_bytes(path: str, state: os.stat_result) -> int:
    told = state.st_blocks * 512
    if stat.S_ISLNK(state.st_mode):
        return 0 if state.st_size < _FAST_LINK_BYTES else _BLOCK_BYTES
    if stat.S_ISDIR(state.st_mode):
        return max(told, _BLOCK_BYTES)
    if not stat.S_ISREG(state.st_mode):
        return 0
    length = state.st_size if told >= state.st_size else _data_bytes(path, state.st_size)
    return max(told, -(-length // _BLOCK_BYTES) * _BLOCK_BYTES)


def _data_bytes(path: str, size_bytes: int) -> int:
    """A file's bytes without its holes, which mkfs leaves holes; all of them where its file system tells of none."""
    data_bytes = end = 0
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while True:
            start = os.lseek(file, end, os.SEEK_DATA)
            end = os.lseek(file, start, os.SEEK_HOLE)
            data_bytes += end - start
    except OSError as error:
        return data_bytes if error.errno == errno.ENXIO else size_bytes
    finally:
        os.close(file)


def size_bytes(used_bytes: int, inodes: int, free_bytes: int) -> int:
    """Size of a filesystem that holds ``used_bytes`` in ``inodes`` files and leaves ``free_bytes``; whole MiB."""
    content = used_bytes + free_bytes
    content += min(content // _SLACK_SHARE + _SLACK_LEAST_BYTES, _SLACK_BYTES)
    total = content + content // 63  # an inode is a 64th of the disk that it is for
    if total < _SMALL_BYTES:
        total = content + content // 15
    total = max(total, content + _inodes_needed(inodes, free_bytes) * _INODE_BYTES)
    return -(-total // _MIB) * _MIB


def _inodes_needed(inodes: int, free_bytes: int) -> int:
    """Those of ``inodes`` files, and of what may be written besides."""
    return inodes + free_bytes // 16_384


def _inode_options(total: int, inodes: int, free_bytes: int) -> list[str]:
    """What mkfs.ext4 is told of inodes: nothing where those that it makes by itself are enough."""
    needed = _inodes_needed(inodes, free_bytes)
    return ["-N", str(needed)] if needed > total // (4096 if total < _SMALL_BYTES else 16_384) else []


def ext4(host: Host, image: Image, free_bytes: int, progress: Callable[[str], None]) -> Path:
    """The image as an ext4 filesystem with ``free_bytes`` left to write (a sparse file); made once, then read only."""
    identity = str(uuid.UUID(image.digest[:32]))
    options = ["-q", "-F", "-m", "0", "-b", "4096", "-O", "^has_journal", "-L", "root", "-U", identity]
    options += ["-E", f"lazy_itable_init=0,nodiscard,root_owner=0:0,hash_seed={identity}"]
    slack = (_SLACK_SHARE, _SLACK_LEAST_BYTES, _SLACK_BYTES)
    recipe = hashlib.sha256(repr((options, free_bytes, slack, _SMALL_BYTES)).encode()).hexdigest()[:12]

    def make(partial: Path) -> None:
        progress(f"writing {image.name} to a disk image")
        holds = content(image.rootfs)
        size = size_bytes(holds.bytes, holds.inodes, free_bytes)
        command = ["mkfs.ext4", *options, *_inode_options(size, holds.inodes, free_bytes)]
        command += ["-d", str(image.rootfs), str(partial), f"{size // 1024}k"]
        host.run(command, timeout_s=900, env={"E2FSPROGS_FAKE_TIME": "1"})

    return cached(image.directory / f"disk-{recipe}.ext4", make)


def qcow2_overlay(host: Host, base: Path, overlay: Path) -> None:
    """A copy-on-write file over ``base`` for one deployment of QEMU. Nothing of ``base`` is opened, nor locked."""
    size_bytes = base.stat().st_size
    argv = ["qemu-img", "create", "-q", "-u", "-f", "qcow2", "-b", str(base.resolve()), "-F", "raw", str(overlay)]
    host.run([*argv, str(size_bytes)])
