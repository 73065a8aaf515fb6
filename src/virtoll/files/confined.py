"""Paths and files of a directory that somebody else may have filled: nothing leads out of it, nothing is endless.

This holds against what a directory *holds* (a downloaded run, a damaged one). It does not hold against somebody who
changes the directory while it is read: nobody may write to it but its owner.
"""

from __future__ import annotations

import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from virtoll.errors import StoreError

_PACKED_BYTES = 65_536  # that are unpacked at a time


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


def whole_lines(path: Path, most_bytes: int, most_line_bytes: int, *, is_packed: bool = False) -> Iterator[bytes]:
    """The lines of a plain file without their ends, one after another, however many; a last one that has no end is left
    out. Else as `read_bounded`. ``is_packed``: of what gzip has packed in it (RFC 1952); ValueError where that is
    damaged, ends too early, or is not all.
    """
    read_bytes = 0
    with _plain(path) as file:
        lines = io.BufferedReader(_Unpacked(file)) if is_packed else file
        while (line := lines.readline(most_line_bytes + 1)).endswith(b"\n"):
            read_bytes += len(line)
            if read_bytes > most_bytes:
                raise _too_much(path, most_bytes)
            yield line[:-1]
    if len(line) > most_line_bytes:
        raise _too_much(path, most_line_bytes, "in a line ")


class _Unpacked(io.RawIOBase):
    """What gzip has packed, as much at a time as is asked for: a few bytes may hold any number of them."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed, self._stream = packed, zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, into: Any, /) -> int:
        """The next bytes; 0 at the end."""
        room = memoryview(into).cast("B")
        while not self._stream.eof:
            packed = self._stream.unconsumed_tail or self._packed.read(_PACKED_BYTES)
            try:
                found = self._stream.decompress(packed, len(room))
            except zlib.error as error:
                raise ValueError(f"no gzip: {error}") from error
            room[: len(found)] = found
            if found:
                return len(found)
            if not packed:
                raise ValueError("it is cut off")
        if self._stream.unused_data or self._packed.read(1):
            raise ValueError("something follows its end")
        return 0


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
