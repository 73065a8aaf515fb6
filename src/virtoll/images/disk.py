"""A root filesystem as a disk: one ext4 file in the image's cache entry, and a copy-on-write file a deployment.

The filesystem has no journal: a guest's disk lives as long as its deployment and is never recovered, while a
journal's commits would be work inside the guest that containers on the host's filesystem do not do themselves.
Nothing is left for the guest to initialise in the background (lazy_itable_init=0), and the UUID and the directory
hash seed come from the image's digest, so that every guest of an image starts from the same bytes. UML makes its own
copy-on-write file (ubd0=COW,BASE); QEMU's is made here.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from pathlib import Path

from virtoll.hosts.base import Host
from virtoll.images.base import Image
from virtoll.images.cached import cached

DISK_LIMIT = "enforced: limits.disk are free on the guest's disk (ext4, no journal)"

_MIB = 1024**2
_INODE_BYTES = 256
_SLACK_BYTES = 20 * _MIB  # what ext4 keeps for itself (16 MiB, or 2 %), superblocks, group descriptors, bitmaps


def size_bytes(used_bytes: int, inodes: int, free_bytes: int) -> int:
    """Size of a filesystem that holds ``used_bytes`` in ``inodes`` files and leaves ``free_bytes``; whole MiB.

    ext4 makes an inode of 256 B for every 16 KiB of disk (mke2fs.conf), 1/64 of it, or one for every file.
    """
    content = used_bytes + free_bytes + _SLACK_BYTES
    total = content + max(content // 63, inodes * _INODE_BYTES)
    return -(-total // _MIB) * _MIB


def ext4(host: Host, image: Image, free_bytes: int, progress: Callable[[str], None]) -> Path:
    """The image as an ext4 filesystem with ``free_bytes`` left to write (a sparse file); made once, then read only."""
    identity = str(uuid.UUID(image.digest[:32]))
    options = ["-q", "-F", "-m", "0", "-b", "4096", "-O", "^has_journal", "-L", "root", "-U", identity]
    options += ["-E", f"lazy_itable_init=0,nodiscard,root_owner=0:0,hash_seed={identity}"]
    recipe = hashlib.sha256(repr((options, free_bytes, _SLACK_BYTES)).encode()).hexdigest()[:12]

    def make(partial: Path) -> None:
        progress(f"writing {image.name} to a disk image")
        size = size_bytes(used_bytes(host, image), _summed(host, image, "--inodes"), free_bytes)
        command = ["mkfs.ext4", *options, "-d", str(image.rootfs), str(partial), f"{size // 1024}k"]
        host.run(command, timeout_s=900, env={"E2FSPROGS_FAKE_TIME": "1"})

    return cached(image.directory / f"disk-{recipe}.ext4", make)


def used_bytes(host: Host, image: Image) -> int:
    """What an image's files take."""
    return _summed(host, image, "--block-size=1")


def _summed(host: Host, image: Image, unit: str) -> int:
    return int(host.run(["du", "--summarize", unit, f"{image.rootfs}/."], timeout_s=300).text.split()[0])


def qcow2_overlay(host: Host, base: Path, overlay: Path) -> None:
    """A copy-on-write file over ``base`` for one deployment of QEMU. Nothing of ``base`` is opened, nor locked."""
    size_bytes = base.stat().st_size
    argv = ["qemu-img", "create", "-q", "-u", "-f", "qcow2", "-b", str(base.resolve()), "-F", "raw", str(overlay)]
    host.run([*argv, str(size_bytes)])
