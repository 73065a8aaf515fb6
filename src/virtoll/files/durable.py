"""Writes that survive a power loss: what can be seen under its name is whole.

A file's bytes are durable once the file was synced, its name once the directory that holds it was (fsync(2)). So
whatever is written here is synced before it gets its name, and the directory of the name after that. Everything raises
OSError as the calls do, and a short write is gone on with.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Mapping
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)


def write_once(path: Path, data: bytes | memoryview) -> None:
    """A new file: there with all its bytes, or not at all. FileExistsError when something is there."""
    if os.path.lexists(path):
        raise FileExistsError(f"{path} is there already")
    replace(path, data)


def replace(path: Path, data: bytes | memoryview, mode: int = 0o644) -> None:
    """A file with these bytes in the place of what was there: either the old one is seen, or the new one, whole.

    One process at a time may write a path. What a killed one left beside it (``.NAME.partial``) is written over.
    """
    partial = _partial(path)
    try:
        _write_partial(partial, data, mode)
        partial.rename(path)
    except BaseException:
        _forget(partial)
        raise
    sync(path.parent)


def write_together(directory: Path, files: Mapping[str, bytes]) -> None:
    """New files: each is there with all its bytes, or not at all, and their names are synced at once. FileExistsError
    when one of them is there.
    """
    paths = [directory / name for name in files]
    if there := [path for path in paths if os.path.lexists(path)]:
        raise FileExistsError(f"{there[0]} is there already")
    partials = [_partial(path) for path in paths]
    try:
        for partial, data in zip(partials, files.values(), strict=True):
            _write_partial(partial, data, 0o644)
        for partial, path in zip(partials, paths, strict=True):
            partial.rename(path)
    except BaseException:
        for partial in partials:
            _forget(partial)
        raise
    sync(directory)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _write_partial(partial: Path, data: bytes | memoryview, mode: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _forget(partial: Path) -> None:
    with contextlib.suppress(OSError):
        partial.unlink()


def append(path: Path, data: bytes) -> None:
    """Add bytes to the end of a file that is there, all of them and for good, or none: then it is cut off again."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size_bytes = os.fstat(descriptor).st_size
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size_bytes)
            raise
    finally:
        os.close(descriptor)


def make_directories(path: Path, mode: int = 0o777) -> None:
    """A new directory, and those above it where they are missing. FileExistsError when something is there."""
    if not path.parent.is_dir():
        with contextlib.suppress(FileExistsError):
            make_directories(path.parent, mode)
    path.mkdir(mode)
    try:
        sync(path.parent)
    except BaseException:
        path.rmdir()
        raise


def rename_tree(source: Path, target: Path) -> None:
    """Give a file, or a directory with all that is below it, its name once all of it is on the disk.

    A tree's files are many, so the file system is synced as a whole (syncfs(2)): other programs' writes to it, too.
    """
    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _sync_file_system(descriptor)
    finally:
        os.close(descriptor)
    source.rename(target)
    sync(target.parent)


def sync_tree(directory: Path) -> None:
    """Sync every file and directory from here down, one after the other: for few files. Links are not followed."""
    for entry in sorted(directory.iterdir()):
        mode = entry.lstat().st_mode
        if stat.S_ISDIR(mode):
            sync_tree(entry)
        elif stat.S_ISREG(mode):
            sync(entry)
    sync(directory)


def sync(path: Path) -> None:
    """Sync one file, or the names in one directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sync_file_system(descriptor: int) -> None:
    if _libc.syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
