"""Paths and files of a directory that somebody else may have filled: nothing leads out of it, nothing is endless.

This holds against what a directory *holds* (a downloaded run, a damaged one). It does not hold against somebody who
changes the directory while it is read: nobody may write to it but its owner.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from virtoll.errors import StoreError


def inside(root: Path, *names: str) -> Path:
    """``root``/names, below which no symbolic link leads elsewhere. StoreError says which name does.

    Each name is one word of a path. What is not there is not an error.
    """
    path = root
    for name in names:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise StoreError(
                f"{name!r} is not a name of a file in a run directory",
                where=str(root),
                remedy="the run was damaged, or made to reach out of its directory: do not use it",
            )
        path = path / name
        if path.is_symlink():
            raise StoreError(
                "is a symbolic link: it may lead out of the run directory, and is not followed",
                where=str(path),
                remedy="put what it leads to in its place, if you trust it",
            )
    return path


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """The bytes of a plain file. StoreError where it is no plain file or holds more; OSError as open(2) gives it."""
    with _plain(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise _too_much(path, most_bytes)
    return data


def whole_lines(path: Path, most_bytes: int, most_line_bytes: int) -> Iterator[bytes]:
    """The lines of a plain file without their ends, one after another, however many; a last one that has no end is left
    out. Else as `read_bounded`.
    """
    read_bytes = 0
    with _plain(path) as file:
        while (line := file.readline(most_line_bytes + 1)).endswith(b"\n"):
            read_bytes += len(line)
            if read_bytes > most_bytes:
                raise _too_much(path, most_bytes)
            yield line[:-1]
    if len(line) > most_line_bytes:
        raise _too_much(path, most_line_bytes, "in a line ")


@contextmanager
def _plain(path: Path) -> Iterator[BinaryIO]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StoreError("is not a plain file", where=str(path), remedy="restore it from a copy")
        yield file


def _too_much(path: Path, most_bytes: int, where: str = "") -> StoreError:
    what = f"holds {where}more than {most_bytes / 1e6:.0f} MB, which no run does"
    return StoreError(what, where=str(path), remedy="do not use it")


def unpacked(data: bytes, most_bytes: int) -> bytes:
    """What gzip has packed (RFC 1952). ValueError where it is damaged, ends too early or holds more."""
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        found = stream.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"no gzip: {error}") from error
    if len(found) > most_bytes:
        raise ValueError(f"it holds more than {most_bytes / 1e6:.0f} MB, which no run does")
    if not stream.eof or stream.unused_data:
        raise ValueError("it is cut off" if not stream.eof else "something follows its end")
    return found


def write_inside(directory: Path, name: str, data: bytes) -> Path:
    """Write ``directory``/name anew; its path. StoreError where the name leads elsewhere, OSError as open(2) gives it.

    What is there is removed and not written to: it may be another name of a file elsewhere.
    """
    path = inside(directory, name)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return path


def expect_plain(path: Path) -> bool:
    """Whether there is a file; StoreError where it is something else, that would never end (a pipe) or leads away."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(mode):
        raise StoreError("is not a plain file", where=str(path), remedy="restore it from a copy")
    return True
