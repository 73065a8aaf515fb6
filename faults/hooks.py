"""Where a fault strikes in a study on fakes: at the k-th line of virtoll's own code, or at the k-th operation on files.

Both are put into a forked child for the rest of its short life; the parent never has them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow.parquet as pq

import virtoll

_SOURCE = str(Path(virtoll.__file__).parent)
_WATCHED = ("record/store.py", "files/durable.py", "run/execute.py", "hosts/ledger.py", "hosts/ledger_lines.py",
            "hosts/resources.py", "hosts/interrupts.py", "hosts/local.py", "hosts/lock.py",
            "agent/client.py")  # fmt: skip
_OPERATIONS = ("mkdir", "rmdir", "rename", "replace", "link", "unlink", "truncate", "ftruncate", "write", "pwrite",
               "fsync", "fdatasync")  # fmt: skip

Act = Callable[[str], None]  # told where it strikes


class Lines:
    """Calls ``act`` just before the ``at``-th line of the watched modules; counts on, and stops looking then."""

    def __init__(self, at: int | None = None, act: Act = lambda _where: None) -> None:
        self.count = 0
        self._at, self._act = at, act
        self._files = frozenset(f"{_SOURCE}/{name}" for name in _WATCHED)

    def install(self) -> None:
        """From now on, in this thread."""
        sys.settrace(self._call)

    def _call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self._at:
                sys.settrace(None)
                self._act(f"{frame.f_code.co_filename.removeprefix(_SOURCE + '/')}:{frame.f_lineno}")
        return self._line


class Operations:
    """Calls ``act`` before the ``at``-th operation on a file below ``top`` (at once after `arm`, from there on)."""

    def __init__(self, top: Path, at: int | None = None, act: Act = lambda _where: None) -> None:
        self.count = 0
        self._top, self._at, self._act = str(top), at, act

    def arm(self, after: int, act: Act) -> None:
        """Strike at the ``after``-th operation from now."""
        self._at, self._act = self.count + after, act

    def install(self) -> None:
        """From now on, in this process."""
        for name in _OPERATIONS:
            setattr(os, name, self._wrapped(name, getattr(os, name)))
        vars(io)["open"] = self._wrapped_open(io.open)
        vars(pq)["write_table"] = self._wrapped("write_table", pq.write_table, argument=1)

    def _wrapped(self, name: str, function: Callable[..., Any], argument: int = 0) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            self._passing(name, arguments[argument])
            return function(*arguments, **named)

        return wrapped

    def _wrapped_open(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            if set(mode) & set("wax+"):
                self._passing("open", file)
            return function(file, mode, *arguments, **named)

        return wrapped

    def _passing(self, name: str, target: Any) -> None:
        path = _path(target)
        if path.startswith(f"{self._top}/"):
            self.count += 1
            if self.count == self._at:
                self._act(f"{name} {path.removeprefix(self._top + '/')}")


def _path(target: Any) -> str:
    if isinstance(target, int):
        with contextlib.suppress(OSError):
            return str(Path(f"/proc/self/fd/{target}").readlink())
        return ""
    return os.fsdecode(target) if isinstance(target, (str, bytes, os.PathLike)) else ""


class SyncLog:
    """Writes down what is on the disk for certain: what was fsynced, by inode, with its size or its names."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._write = os.write  # the real one

    def install(self) -> None:
        """From now on, in this process."""
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, function: Callable[[int], None]) -> Callable[[int], None]:
        def wrapped(file: Any) -> None:
            descriptor = file if isinstance(file, int) else file.fileno()
            place = Path(f"/proc/self/fd/{descriptor}").readlink()
            names = sorted(entry.name for entry in place.iterdir()) if place.is_dir() else None
            status = os.fstat(descriptor)
            function(descriptor)
            entry = {"inode": status.st_ino, "size": status.st_size, "names": names}
            self._write(self._file, (json.dumps(entry) + "\n").encode())

        return wrapped
