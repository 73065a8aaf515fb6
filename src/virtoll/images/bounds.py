"""How much a stranger's image may be, and the tar archives it comes in, read without trust.

An archive of a few kilobytes can unpack to terabytes, to millions of files, or to headers that fill the memory. All of
that is counted before anything is unpacked.
"""

from __future__ import annotations

import contextlib
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from virtoll.errors import HostError

MOST_BYTES = 32 * 1024**3  # unpacked, all layers together
MOST_FILES = 1_000_000
MOST_DEPTH = 100  # directories in a path; the kernel's 4,096 bytes would allow 2,000
MOST_HEADER_BYTES = 1024**2  # of one file's name and attributes; as Go's archive/tar, and so umoci and Docker, have it
MOST_METADATA_BYTES = 4 * 1024**2  # of a manifest or a configuration, as Docker has it

_BROKEN = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, UnicodeError, OverflowError)


class Bounds:
    """Counts what an image unpacks to; HostError when it is more than any should be."""

    def __init__(self, where: str) -> None:
        self.bytes = 0
        self.files = 0
        self._where = where

    def count(self, path: str, size_bytes: int) -> None:
        """One more file, directory or link."""
        self.bytes += max(0, size_bytes)
        self.files += 1
        if self.bytes > MOST_BYTES:
            self._refuse(f"unpacks to more than {MOST_BYTES / 1e9:.0f} GB")
        if self.files > MOST_FILES:
            self._refuse(f"holds more than {MOST_FILES:,} files")
        if path.count("/") > MOST_DEPTH:
            self._refuse(f"holds a path of more than {MOST_DEPTH} directories: {path[:80]}...")

    def _refuse(self, what: str) -> None:
        raise HostError(f"the image {what}", where=self._where, remedy="make it smaller, or name another one")


class _Header(tarfile.TarInfo):
    """A tar member whose names and attributes are no longer than they should be: tarfile reads them whole."""

    _LONG = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, *tarfile.GNU_TYPES[:2])

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """See `tarfile.TarInfo.frombuf`."""
        found = super().frombuf(buf, encoding, errors)
        if found.type in cls._LONG and found.size > MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {found.size} bytes")
        return found


@contextlib.contextmanager
def tar_members(source: Path, where: str) -> Iterator[tuple[tarfile.TarFile, Iterator[tarfile.TarInfo]]]:
    """A tar archive and its members in the order in which they lie, none of them kept in memory.

    What is compressed by gzip, bzip2 or xz is read as it comes, and so is the rest: only forwards. HostError for what
    is no tar archive, or a damaged one.
    """
    with reading(where), tarfile.open(name=source, mode="r:*", tarinfo=_Header) as archive:
        yield archive, _forwards(archive)


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn what tarfile and the decompressors say of damage into a HostError."""
    try:
        yield
    except _BROKEN as error:
        raise _damaged(where, error) from error
    except OSError as error:
        if error.errno is None:  # gzip's own: no errno, as it is no system call's
            raise _damaged(where, error) from error
        raise


def _damaged(where: str, error: Exception) -> HostError:
    return HostError(
        f"the archive is damaged or cut off: {error}",
        where=where,
        remedy="save or copy it again, and compare its sizes",
    )


def _forwards(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # it remembers every one, and there may be many
        yield member
