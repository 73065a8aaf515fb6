"""A user's files made fit to be a root filesystem: with what every platform expects of one, the same on all of them.

All platforms must show a service the same files. So what they lay over the root themselves (/dev, /proc, /sys) is made
afresh; what not all of them keep (attributes other than capabilities and the user's own; sockets) goes; and what they
would treat differently is refused: a device outside of /dev reaches the host's hardware on native Linux, nothing in a
container, and the guest's in a virtual machine (character device 0:0 is a hole in an overlay).
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts.mountinfo import MOUNTINFO, mount_points
from virtoll.images import inside
from virtoll.images.bounds import Bounds
from virtoll.images.cached import remove
from virtoll.images.config import ImageConfig

FILES = {"etc/hostname": "instance\n", "etc/hosts": "127.0.0.1 localhost instance\n", "etc/resolv.conf": ""}
RESERVED = "virtoll"  # the directory of virtoll's own files, in the root of every image
# Where SELinux is in force it is this machine's, on every file, and may not be removed (EACCES). No image has it: it is
# neither in a digest nor in a tar.
LABEL = "security.selinux"

_MADE = ("dev", "proc", "sys")  # whatever the image holds there, no platform shows it
_NODES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
_CHUNK_BYTES = 1024**2


def make_fit(rootfs: Path, config: ImageConfig, where: str) -> list[str]:
    """Change an unpacked image in place; what of it was left out, one sentence each.

    Directories that every platform needs are made (/dev, /proc, /sys, /dev/shm, /run, /tmp, /var/tmp, /etc), and those
    that the configuration names: the working directory and the volumes, which are plain directories here. A directory
    that is there keeps its mode and owner. ``where`` names the image in errors.
    """
    if os.path.lexists(rootfs / RESERVED):
        raise HostError(
            f"the image holds /{RESERVED}, which is where virtoll's own files go",
            where=where,
            remedy="rename it in the image",
        )
    rootfs.chmod(0o755)
    os.chown(rootfs, 0, 0)
    for name in _MADE:
        remove(rootfs / name)
        (rootfs / name).mkdir()
        (rootfs / name).chmod(0o755 if name == "dev" else 0o555)
    left_out = _without_the_unfit(rootfs, where)
    _make_devices(rootfs / "dev")
    etc = inside.directory(rootfs, "/etc")
    for path, text in FILES.items():  # nothing of this machine's, nor of the builder's, names goes into an image
        place = etc / Path(path).name
        remove(place)
        place.write_text(text, encoding="utf-8")
        place.chmod(0o644)
    inside.directory(rootfs, "/run")
    for path in ("/tmp", "/var/tmp"):
        inside.directory(rootfs, path, 0o1777)
    for path in (config.working_dir, *config.volumes):
        inside.directory(rootfs, path)
    return left_out


def digest(root: Path, where: str) -> str:
    """sha256 over all that a directory holds as an image: names, modes, owners, links, attributes, and every byte.

    Times are not in it, nor what `make_fit` would replace. HostError when there is too much of it.
    """
    whole, bounds = hashlib.sha256(), Bounds(where)
    root = Path(os.path.realpath(root))  # a study may name a link to it, below which there is nothing
    for path, state in _walk(root):
        shown = str(path.relative_to(root))
        bounds.count(shown, state.st_size if stat.S_ISREG(state.st_mode) else 0)
        if stat.S_ISSOCK(state.st_mode):
            continue
        target = os.readlink(path) if stat.S_ISLNK(state.st_mode) else ""  # noqa: PTH115
        kept = [(name, os.getxattr(path, name, follow_symlinks=False)) for name in _attributes(path) if _is_kept(name)]
        content = _content(path) if stat.S_ISREG(state.st_mode) else ""
        line = (shown, state.st_mode, state.st_uid, state.st_gid, state.st_rdev, target, sorted(kept), content)
        whole.update(repr(line).encode())
    return whole.hexdigest()


def _walk(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything below ``root``, in the order of names, but for other file systems' and what is made anyway."""
    device = root.lstat().st_dev
    todo = [root]
    while todo:
        path = todo.pop()
        state = path.lstat()
        if path != root:
            yield path, state
        if stat.S_ISDIR(state.st_mode) and state.st_dev != device:
            _expect_mounted(path)
        elif stat.S_ISDIR(state.st_mode):
            names = sorted(os.listdir(path), reverse=True)  # noqa: PTH208 (a list of names is all that is needed)
            todo += [path / name for name in names if path != root or name not in _MADE]


def _expect_mounted(path: Path) -> None:
    """HostError where a directory of another device is no mount point: it is a subvolume of btrfs, which is part of
    the tree, and unseen by all that keeps to one device (cp, find, tar).
    """
    if os.path.realpath(path) not in mount_points(Path(MOUNTINFO).read_bytes()):
        raise HostError(
            "it is a subvolume of its own, of which nothing would come into the image",
            where=str(path),
            remedy="copy the whole into a plain directory, and name that: cp --archive",
        )


def _without_the_unfit(rootfs: Path, where: str) -> list[str]:
    left_out = []
    for path, state in _walk(rootfs):
        shown = f"/{path.relative_to(rootfs)}"
        if stat.S_ISSOCK(state.st_mode):
            path.unlink()
            left_out.append(f"the socket {shown}: nobody listens")
            continue
        if stat.S_ISBLK(state.st_mode) or (
            stat.S_ISCHR(state.st_mode) and (os.major(state.st_rdev), os.minor(state.st_rdev)) not in _NODES.values()
        ):
            raise HostError(
                f"the image holds a device, {shown[:200]}, which is another one on each platform",
                where=where,
                remedy="remove it from the image: devices are in /dev, which every platform makes itself",
            )
        for name in _attributes(path):
            if name != LABEL and not _is_kept(name):
                os.removexattr(path, name, follow_symlinks=False)
                left_out.append(f"the attribute {name} of {shown}: not every platform keeps it")
    return left_out


def _attributes(path: Path) -> list[str]:
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError:  # this file system has none
        return []


def _is_kept(attribute: str) -> bool:
    """Capabilities, and what a program keeps for itself; not what an overlay reads as instructions."""
    return attribute == "security.capability" or (
        attribute.startswith("user.") and not attribute.startswith("user.overlay.")
    )


def _make_devices(dev: Path) -> None:
    """What a chroot needs, which is all that native Linux has; the other platforms mount their own over it."""
    for name, (major, minor) in _NODES.items():
        os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        (dev / name).chmod(0o666)
    for name, target in _LINKS.items():
        (dev / name).symlink_to(target)
    (dev / "pts").mkdir()
    (dev / "pts").chmod(0o755)
    (dev / "shm").mkdir()
    (dev / "shm").chmod(0o1777)


def _content(path: Path) -> str:
    found = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()
