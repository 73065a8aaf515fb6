"""The writable layer of a container: an ext4 file system of its own size, in a sparse file, mounted by a loop device.

What an instance may write is then limited by the space there is, as on a guest's disk (`virtoll.images.disk`), and the
file system is made as that one is. The loop device detaches itself when the last mount of the file system ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import Ledger, cache_directory, state_directory
from virtoll.images import disk
from virtoll.images.base import Image

DISK_LIMIT = "enforced: limits.disk are free on the writable layer's own disk (ext4, no journal, loop device)"

# Nothing of a sparse file needs to be zeroed: not now (lazy_itable_init), not in the background (noinit_itable).
MAKE = """
truncate -s "$2" "$1"
mkfs.ext4 -q -F -m 0 -b 4096 -O ^has_journal -E lazy_itable_init=1,nodiscard "$1"
"""
MOUNT = 'mount -t ext4 -o loop,noinit_itable "$1" "$3"\n'
# The overlay keeps the layer mounted for itself; its own mount point has done its work.
_OVERLAY = """
mkdir "$3/upper" "$3/work"
chmod --reference="$4" "$3/upper"
[ -O "$4" ] || chown --reference="$4" "$3/upper"
mount -t overlay -o "lowerdir=$4,upperdir=$3/upper,workdir=$3/work" "$5" "$6"
umount "$3"
"""

# What parts options, and layers below, in them (mount(8); Linux, Documentation/filesystems/overlayfs.rst).
_SPECIAL = {"VIRTOLL_CACHE": (cache_directory, ':,\\"'), "VIRTOLL_STATE": (state_directory, ',\\"')}


def problems(host: Host) -> list[Problem]:
    """Why a file cannot be mounted here, or an overlay where virtoll keeps what it is made of."""
    found = []
    if not Path("/dev/loop-control").exists():
        found = [Problem("no loop devices: the disk limit cannot be enforced", host.where, "modprobe loop")]
    for variable, (directory, special) in _SPECIAL.items():
        with suppress(HostError):  # told elsewhere
            if any(character in special for character in str(directory())):
                what = f"{directory()} has a character that an overlay's options cannot hold ({' '.join(special)})"
                found.append(Problem(what, variable, f"let {variable} name another directory"))
    return found


def script(*parts: str, arguments: tuple[str, ...]) -> list[str]:
    """The command that runs these parts; their first arguments are those of `arguments`, whatever follows is theirs."""
    return ["sh", "-e", "-c", "".join(parts), "sh", *arguments]


def arguments(directory: Path, free_bytes: int, mount_point: Path) -> tuple[str, ...]:
    """$1, $2, $3 of MAKE and MOUNT: the file (in ``directory``), its size, and where it is mounted."""
    return str(directory / "layer.ext4"), str(disk.size_bytes(0, 0, free_bytes)), str(mount_point)


@contextmanager
def overlay(host: Host, ledger: Ledger, image: Image, directory: Path, free_bytes: int) -> Iterator[Path]:
    """A root filesystem over the image with ``free_bytes`` to write, mounted in ``directory`` for the block's length.

    What is written goes to ``directory``/layer.ext4; mounts made inside the root go with the root. The caller owns
    ``directory`` and removes it.
    """
    root, layer = (directory / name for name in ("root", "layer"))
    for path in (root, layer):
        path.mkdir(parents=True)
    names = (str(image.rootfs), f"virtoll-{directory.name}", str(root))
    with ledger.owning("mount", str(root)):
        with ledger.owning("mount", str(layer)):
            host.run(script(MAKE, MOUNT, _OVERLAY, arguments=(*arguments(directory, free_bytes, layer), *names)))
        yield root
