"""An image whose files belong to the users of a user namespace: root's to the root in there, and so on.

A copy of the tree with every owner shifted by one number, as Docker's userns-remap and rootless Podman keep layers. A
mount with mapped owners would spare it: an overlay takes one for its lower directory since Linux 5.19, and mount(8)
makes one since util-linux 2.39, which Debian 12 has not.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.images import contents
from virtoll.images.base import Image
from virtoll.images.cached import cached

# The last of those that are kept free for containers (systemd, docs/UIDS-GIDS.md: 524288 to 0x6FFFFFFF).
FIRST = 0x6FFF0000  # who is root inside, to the host
COUNT = 65_536

# A file's capabilities count for a namespace's programs if its root gave them: version 3 says who that is, in place of
# version 2 (Linux, include/uapi/linux/capability.h: struct vfs_ns_cap_data).
_CAPABILITY = "security.capability"
_VERSION_3, _FLAGS = 0x03000000, 0x00FFFFFF
_WORDS_2 = struct.Struct("<5I")


def shifted(host: Host, image: Image, progress: Callable[[str], None]) -> Image:
    """The image with its owners shifted by `FIRST`; made once. HostError where an owner has no place among `COUNT`, or
    the copy cannot be written.
    """

    def make(partial: Path) -> None:
        progress(f"copying {image.name} for a user namespace")
        partial.mkdir(mode=0o700)
        copy = partial / "rootfs"
        host.run(["cp", "--archive", str(image.rootfs), str(copy)], timeout_s=900)
        for path in _paths(image.rootfs):
            _shift(path, copy / path.relative_to(image.rootfs))
        contents.note(partial, "rootfs")

    try:
        return replace(image, directory=cached(image.directory / f"users-{FIRST}", make))
    except OSError as error:
        raise HostError(
            f"the image's copy for a user namespace cannot be written: {error.strerror}",
            where=str(error.filename or image.directory),
            remedy="it takes as much room as the image; VIRTOLL_CACHE names another place",
        ) from error


def prepared(host: Host, image: Image, progress: Callable[[str], None]) -> None:
    """Have the copy ready for `shifted`. HostError where one that was made before is not as it was."""
    contents.verify(shifted(host, image, progress).directory, "rootfs")


def _paths(root: Path) -> Iterator[Path]:
    yield root
    for directory, directories, files in os.walk(root):
        yield from (Path(directory, name) for name in (*directories, *files))


def _shift(path: Path, copy: Path) -> None:
    """Give ``copy`` the owner that ``path`` has, shifted. A name of a file that has several comes to the same."""
    state = path.lstat()
    for owner in (state.st_uid, state.st_gid):
        if owner >= COUNT:
            raise HostError(
                f"it belongs to {owner}, and a user namespace here has users 0 to {COUNT - 1}",
                where=str(path),
                remedy="give it to another user in the image, or leave user_namespace out",
            )
    os.chown(copy, FIRST + state.st_uid, FIRST + state.st_gid, follow_symlinks=False)
    if stat.S_ISLNK(state.st_mode):
        return
    copy.chmod(stat.S_IMODE(state.st_mode))  # a change of owner took the bits that give a user's or group's rights
    if _CAPABILITY in os.listxattr(path):
        os.setxattr(copy, _CAPABILITY, in_namespace(os.getxattr(path, _CAPABILITY)))


def in_namespace(value: bytes) -> bytes:
    """A file's capabilities (version 2, as the host's root gives them), as the namespace's root gives them. What
    another namespace's root gave (version 3) counts for nobody in any arm, and stays so.
    """
    head, *words = _WORDS_2.unpack_from(value)
    if head & ~_FLAGS == _VERSION_3:
        return value
    return struct.pack("<6I", _VERSION_3 | (head & _FLAGS), *words, FIRST)
