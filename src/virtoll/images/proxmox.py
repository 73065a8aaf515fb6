"""A root filesystem as Proxmox VE takes it for a container: a template (tar), which `pct create` unpacks on a volume.

The volume's file system is Proxmox's choice, by the kind of storage: ext4 that it makes itself (mkfs.ext4's defaults,
and mmp), or a subvolume with a quota (ZFS, btrfs). How much of it is kept for others than the container is known when
it is there: what is free beyond limits.disk is then given to a file of nobody's. Written from the public source of
pve-container (PVE::LXC: create_disks, mkfs; PVE::LXC::Create); not yet run on a live host.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.images import inside
from virtoll.images.base import Image
from virtoll.images.cached import cached, remove
from virtoll.images.forms import ATTRIBUTES

DISK_LIMIT = "enforced: limits.disk are free on the container's volume ({kind}, as Proxmox makes it)"

_MIB = 1024**2
_SMALL_BYTES = 512 * _MIB  # below it ext4 has an inode of 256 B for each 4 KiB, else for each 16 (mke2fs.conf)
_LEAST_JOURNAL_BYTES = 64 * _MIB  # of a file system below 2 GiB, and more than it gets (mke2fs(8), -J size)
_JOURNAL_SHARE = 32  # of a larger one: the most that it gets
_RESERVED_SHARE = 20  # of all blocks, for the host's root: 5 %
_GROUP_BYTES, _DESCRIPTORS_BYTES = 128 * _MIB, 4 * _MIB  # as much as they can come to take (mke2fs(8), resize)
_KEPT_BYTES = 20 * _MIB  # by ext4 for itself once it is mounted (16 MiB), and in superblocks
_SYNC_S = 300.0
_OURS, _UNUSED = "/virtoll", "unused"
_PLACES = ("./proc", "./sys", "./dev")  # where LXC mounts: an image need not have them


def template(host: Host, image: Image, scripts: Mapping[str, str], progress: Callable[[str], None]) -> Path:
    """The image as a tar, made once. ``scripts``: programs that are in it besides, by their place inside; what the
    image has there is left out.
    """
    recipe = hashlib.sha256(repr((sorted(scripts.items()), _PLACES)).encode()).hexdigest()[:12]

    def make(partial: Path) -> None:
        progress(f"packing {image.name} as a template")
        beside = partial.with_name(f"{partial.name}-scripts")
        remove(beside)
        try:
            _lay_out(beside, scripts)
            options = ["--sort=name", "--numeric-owner", *ATTRIBUTES, "--anchored"]
            left_out = [f"--exclude=.{place}" for place in (*scripts, f"{_OURS}/{_UNUSED}")]
            command = ["tar", "--create", f"--file={partial}", *options, *left_out, f"--directory={image.rootfs}", "."]
            host.run(command, timeout_s=900)
            owned = ["--numeric-owner", "--owner=0", "--group=0", "--no-recursion", f"--directory={beside}"]
            host.run(["tar", "--append", f"--file={partial}", *owned, *_PLACES, *(f".{place}" for place in scripts)])
        finally:
            remove(beside)

    return cached(image.directory / f"pct-{recipe}.tar", make)


def _lay_out(directory: Path, scripts: Mapping[str, str]) -> None:
    for place in _PLACES:
        (directory / place).mkdir(parents=True)
        (directory / place).chmod(0o755)
    for place, text in scripts.items():
        path = directory / place.removeprefix("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)


def size_mib(used_bytes: int, free_bytes: int, *, is_ext4: bool) -> int:
    """How large a volume is to be for ``used_bytes`` of files and at least ``free_bytes`` left to write: no less than
    an ext4 as Proxmox makes it needs, and somewhat more; of any other, a quota over what is written alone.
    """
    content = used_bytes + free_bytes + _KEPT_BYTES
    if not is_ext4:
        return -(-(content + content // _RESERVED_SHARE) // _MIB)
    total = content
    while (needed := content + _kept(total)) > total:
        total = -(-needed // _MIB) * _MIB
    return total // _MIB


def _kept(total: int) -> int:
    """What is nobody's: inodes, journal, the host's root's; two blocks of bits to a group, and the descriptors' copies
    in groups 0 and 1 and in those that are a power of 3, 5 or 7 (sparse_super).
    """
    count = -(-total // _GROUP_BYTES)
    held = {0, 1} | {base**power for base in (3, 5, 7) for power in range(1, 20)}
    copies = sum(1 for group in held if group < count)
    journal = max(_LEAST_JOURNAL_BYTES, total // _JOURNAL_SHARE)
    inodes = total // (16 if total < _SMALL_BYTES else 64)
    return inodes + journal + total // _RESERVED_SHARE + 2 * 4096 * count + _DESCRIPTORS_BYTES * copies


def leave_free(host: Host, root: Path, volume_bytes: int, free_bytes: int, *, is_hosts_root: bool) -> str:
    """Leave just ``free_bytes`` to whoever writes in ``root``, a container's disk of ``volume_bytes`` as the host sees
    it; the kind of its file system. HostError where less are free, or where it has no size of its own.
    ``is_hosts_root``: root inside may take what is kept for root.

    In ext4 blocks are set aside, and not written. Elsewhere only what is written is taken, and only what is random
    stays as large as it was (ZFS compresses). ZFS tells what is free as of its last transaction, which may be before
    the image was unpacked: by itself it makes one in 5 s.
    """
    if root.samefile("/"):  # `pct start` comes back at once where LXC's monitor daemon does not answer
        raise HostError(
            "the container has not yet changed to its own disk: what is there is the host's",
            where=str(root),
            remedy="systemctl restart lxc-monitord, by which pct waits for a container to run",
        )
    kind = host.run(["stat", "--file-system", "--format=%T", f"{root}/"]).text
    if kind == "zfs":
        host.run(["zpool", "sync"], timeout_s=_SYNC_S)  # zpool-sync(8): brings what quotas are told by up to date
    found = os.statvfs(root)
    if found.f_blocks * found.f_frsize > volume_bytes + volume_bytes // 100:
        raise HostError(
            f"the container's disk ({kind}) is larger than the volume that was asked for: nothing would limit it",
            where=str(root),
            remedy="another storage, whose containers have volumes or quotas of their own (pct(1), Storage)",
        )
    is_ext4 = kind == "ext2/ext3"  # coreutils' name for all of them
    # Of what is told as free to root, ext4 keeps a fiftieth, at most 4096 blocks; what is told as free to others is
    # without it (Linux, fs/ext4/super.c: s_resv_clusters, ext4_statfs).
    kept = min(found.f_blocks // 50, 4096) if is_ext4 else 0
    blocks = found.f_bfree - kept if is_hosts_root else found.f_bavail
    beyond = blocks * found.f_frsize - free_bytes
    if beyond < 0:
        raise HostError(
            f"{-beyond} B less are free on the container's volume ({kind}) than the {free_bytes} B of limits.disk",
            where=str(root),
            remedy="another storage; or this one keeps more for itself than virtoll.images.proxmox counts on",
        )
    # Nothing of the image's is at that place (`template`), and a link there would not be followed.
    with (inside.directory(root, _OURS) / _UNUSED).open("xb") as file:
        os.fchmod(file.fileno(), 0o600)
        if is_ext4 and beyond:
            os.posix_fallocate(file.fileno(), 0, beyond)
        for start in () if is_ext4 else range(0, beyond, _MIB):
            file.write(os.urandom(min(_MIB, beyond - start)))
        file.flush()
        os.fsync(file.fileno())
    return "ext4" if is_ext4 else kind
