"""How a ledger's lines come to its file (`virtoll.hosts.ledger`): whole, and on the disk where they must be."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from virtoll.errors import GOES_ON, DiskError, HostError


@contextmanager
def told(path: Path) -> Iterator[None]:
    """What goes wrong with the file itself, as a DiskError."""
    try:
        yield
    except OSError as error:
        remedy = "mend the disk, then run `virtoll clean`; nothing that it names is left"
        raise DiskError(f"cannot write the ledger: {error.strerror}", where=str(path), remedy=remedy) from error


def append(file: int, path: Path, line: dict[str, Any], *, for_good: bool = False) -> None:
    """Write a whole line, or nothing; ``for_good``: it is on the disk. DiskError when that is full."""
    data = (json.dumps(line) + "\n").encode()
    size_bytes = os.fstat(file).st_size
    try:
        if os.write(file, data) < len(data):
            raise OSError("no space left on device")
        if for_good:
            os.fsync(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.ftruncate(file, size_bytes)  # no half line for the next one to be glued to
        remedy = f"make room; nothing was made without it, and {GOES_ON}"
        raise DiskError(f"cannot write the ledger: {error}", where=str(path), remedy=remedy) from error


def strike(file: int, path: Path, entry: int) -> None:
    """Note that a thing has gone. If that cannot be written, `clean` will look for it once more and find nothing."""
    with contextlib.suppress(HostError):
        append(file, path, {"entry": entry, "gone": True})


def sync_names(path: Path) -> None:
    """The ledger's name is on the disk, and those of the directories that may have been made for it: its own, and the
    state's.
    """
    with told(path):
        for directory in list(path.parents)[:3]:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _sync(descriptor)
            finally:
                os.close(descriptor)


def _sync(directory: int) -> None:
    """As far as its file system can: a read-only one has nothing to write, and says so (fsync(2), EINVAL, EROFS)."""
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS):
            raise
