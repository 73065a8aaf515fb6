"""How much a stranger's image may be, and the tar archives it comes in, read without trust.

An archive of a few kilobytes can unpack to terabytes, to millions of files, or to headers that fill the memory. All of
that is counted before anything is unpacked.
"""

from __future__ import annotations

import contextlib
import lzma
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from tarfile import HeaderError, ReadError
from typing import ClassVar, Literal, Self

from virtoll.errors import HostError

MOST_BYTES = 32 * 1024**3  # unpacked, all layers together
MOST_FILES = 1_000_000
MOST_DEPTH = 100  # directories in a path; the kernel's 4,096 bytes would allow 2,000
MOST_HEADER_BYTES = 1024**2  # of one file's name and attributes; as Go's archive/tar, and so umoci and Docker, have it
MOST_METADATA_BYTES = 4 * 1024**2  # of a manifest or a configuration, as Docker has it

# What tarfile and the decompressors raise over nonsense in what they read; numbers and links that mean nothing, too.
_BROKEN = (
    tarfile.TarError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    OverflowError,
    ValueError,
    LookupError,
    RecursionError,
)
_END = (tarfile.EOFHeaderError, tarfile.EmptyHeaderError)  # type: ignore[attr-defined]
# Headers that extend the next one (pax's, GNU's), each with those that may stand before it.
_EXTENDED = {
    tarfile.XGLTYPE: set[bytes](),
    tarfile.XHDTYPE: {tarfile.XGLTYPE},
    tarfile.GNUTYPE_LONGNAME: {tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK},
    tarfile.GNUTYPE_LONGLINK: {tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME},
}
_OF_ONE_FILE = ("path", "linkpath", "size", "GNU.sparse.")  # no pax header may say these of all that follow
NAMES = ("path", "GNU.sparse.name")  # in pax headers: what may name a file
_SIZES = ("GNU.sparse.size", "GNU.sparse.realsize")


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

    def count_member(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """A member that was just come to: with all that lies in the archive of it, or that it is said to have."""
        said = (int(member.pax_headers.get(name, 0)) for name in _SIZES)
        self.count(member.name, max(member.size, archive.offset - member.offset_data, *said))

    def count_tree(self, top: Path) -> None:
        """What lies below ``top``; a file of several names counts once."""
        seen = set()
        for directory, names, files in os.walk(top):
            for name in (*names, *files):
                path = Path(directory, name)
                status = path.lstat()
                is_first = (status.st_dev, status.st_ino) not in seen
                if status.st_nlink > 1:
                    seen.add((status.st_dev, status.st_ino))
                is_file = stat.S_ISREG(status.st_mode)
                self.count(str(path.relative_to(top)), status.st_size if is_file and is_first else 0)

    def _refuse(self, what: str) -> None:
        raise HostError(f"the image {what}", where=self._where, remedy="make it smaller, or name another one")


class _Header(tarfile.TarInfo):
    """A tar member that every reader has the same of, or an error.

    What is counted here another reader unpacks: Go's archive/tar. It takes no invalid header for the archive's end as
    tarfile does, and has a rule of its own for which of several extended headers holds; no tool writes such. How long
    they are is bounded, as tarfile reads them whole, and how many, as it calls a function within another for each.
    """

    extended: ClassVar[list[bytes]]  # the types of the headers that extend the one to come

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        """See `tarfile.TarInfo.fromtarfile`."""
        try:
            return super().fromtarfile(tarfile)
        except _END:
            raise
        except HeaderError as error:
            raise ReadError(str(error)) from error

    def _proc_member(self, tarfile: tarfile.TarFile) -> tarfile.TarInfo:
        """Every header comes here, and before more of it is read; see `tarfile.TarInfo._proc_member`.

        Not to `frombuf`: since gh-141707 (in Debian 12's 3.11.2 too) what follows an extended header passes it by.
        """
        self._refuse_what_readers_differ_on()
        return super()._proc_member(tarfile)  # type: ignore[misc,no-any-return]

    def _refuse_what_readers_differ_on(self) -> None:
        if self.type == tarfile.SOLARIS_XHDTYPE:
            raise ReadError("an extended header of Solaris's kind, which Go's reader does not know")
        if self.type not in _EXTENDED:
            self.extended.clear()
            return
        if self.size > MOST_HEADER_BYTES:
            raise ReadError(f"a header of {self.size} bytes")
        if not set(self.extended) <= _EXTENDED[self.type]:
            raise ReadError("extended headers that contradict each other")
        self.extended.append(self.type)


@contextlib.contextmanager
def tar_members(
    source: Path, where: str, *, mode: Literal["r:*", "r:gz"] = "r:*"
) -> Iterator[tuple[tarfile.TarFile, Iterator[tarfile.TarInfo]]]:
    """A tar archive and its members in the order in which they lie, none of them kept in memory.

    What is compressed by gzip, bzip2 or xz is read as it comes, and so is the rest: only forwards. ``mode``: of
    tarfile; "r:gz" where it must be packed by gzip. HostError for what is no tar archive, or a damaged one.
    """

    class Header(_Header):
        extended: ClassVar[list[bytes]] = []

    with reading(where), tarfile.open(name=source, mode=mode, tarinfo=Header) as archive:
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
        if member.size < 0:
            raise tarfile.ReadError(f"a file of {member.size} bytes")
        if any(name.startswith(_OF_ONE_FILE) for name in archive.pax_headers):
            raise tarfile.ReadError("a header that gives all files one name or size")
        if _has_data_to_some(member):
            raise tarfile.ReadError("a file to some readers that is a directory to others")
        yield member


def _has_data_to_some(member: tarfile.TarInfo) -> bool:
    """Whether what follows is a file's data to one reader, and to another the next header, after a directory.

    Before POSIX a slash at the end of a name told a directory. Where an extended header gives another name, tarfile
    goes by the first one (until gh-141707 was mended) or by none, Go by the last one.
    """
    if member.type == tarfile.AREGTYPE:
        names = (member.name, *(member.pax_headers.get(name, "") for name in NAMES))
        return any(name.endswith("/") for name in names)
    is_extended = member.offset_data - member.offset > tarfile.BLOCKSIZE
    return member.isdir() and member.size > 0 and is_extended
