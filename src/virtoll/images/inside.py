"""Paths of a root filesystem, which mean what they mean to a process inside: no link leads out of it.

A stranger's tree may hold /etc as a link to /etc: to write its hosts file by the path would write the host's. Nobody
else changes the tree meanwhile: it lies in the cache, which is root's alone.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from virtoll.errors import HostError

_MOST_LINKS = 40  # as the kernel has it


def resolved(rootfs: Path, path: str) -> Path:
    """Where ``path`` (absolute, inside) lies on the host, as if chrooted; its last parts need not exist."""
    todo = path.split("/")[::-1]
    at: list[str] = []
    links = 0
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            del at[-1:]
            continue
        here = rootfs.joinpath(*at, name)
        if not here.is_symlink():
            at.append(name)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise _unfit(rootfs, path, "its links lead in a circle")
        target = os.readlink(here)  # noqa: PTH115 (as it is: Path would tidy it)
        if target.startswith("/"):
            at = []
        todo += target.split("/")[::-1]
    return rootfs.joinpath(*at)


def program(rootfs: Path, name: str, path: str, cwd: str = "/") -> Path | None:
    """Where execvp(3) would find a program, by the given PATH and working directory; None where it would not."""
    places = [name] if "/" in name else [f"{one or '.'}/{name}" for one in path.split(":")]
    for place in places:
        found = resolved(rootfs, place if place.startswith("/") else f"{cwd}/{place}")
        if found.is_file() and found.stat().st_mode & 0o111:
            return found
    return None


def directory(rootfs: Path, path: str, mode: int = 0o755) -> Path:
    """The directory ``path``, made if it is missing (``mode``, root's, as are those above it that are missing)."""
    place = resolved(rootfs, path)
    missing = [one for one in (place, *place.parents) if not one.exists()]
    for one in reversed(missing):
        try:
            one.mkdir()
        except NotADirectoryError:
            break
        one.chmod(0o755)
        os.chown(one, 0, 0)
    if not place.is_dir():
        raise _unfit(rootfs, path, "it is no directory")
    if missing:
        place.chmod(mode)
    return place


def read(rootfs: Path, path: str, most_bytes: int) -> bytes:
    """The bytes of a file, b"" where there is none; HostError where it holds more than ``most_bytes``."""
    place = resolved(rootfs, path)
    if not place.exists() or not stat.S_ISREG(place.lstat().st_mode):
        return b""
    with place.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise _unfit(rootfs, path, f"it is larger than {most_bytes} B")
    return data


def _unfit(rootfs: Path, path: str, why: str) -> HostError:
    return HostError(
        f"the image's {path[:200]} cannot be used: {why}", where=str(rootfs), remedy="build the image again"
    )
