"""The ledger: every side effect on a machine is written down before it is made, and struck out when undone.

One file a run, one JSON line an entry. A line is written (not fsynced: a killed process loses no written data,
and a machine that lost power has lost its namespaces and processes too) before the thing exists; `virtoll clean`
reads the ledgers of runs that no longer live and removes, newest first, what is not struck out. A ledger is locked
(flock) by whoever works with it: the living run, or `clean`. The kernel unlocks it when its owner dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from virtoll.errors import HostError
from virtoll.hosts import private
from virtoll.hosts.base import Host
from virtoll.hosts.interrupts import held_off
from virtoll.hosts.resources import RESOURCES

# A child that the owner had forked but that had not become its command yet when the owner was killed holds the lock
# for that instant longer.
_LOCK_GRACE_S = 0.5


class Ledger:
    """The open ledger of a living run. What an earlier owner of the same file left is removed first."""

    def __init__(self, host: Host, path: Path) -> None:
        self.host = host
        self.path = path
        private.make(path.parent)
        self._file = _locked(path, create=True)
        self._entry = 0
        try:
            _sweep(host, self._file, path)
        except BaseException:
            os.close(self._file)
            raise
        os.ftruncate(self._file, 0)

    @contextmanager
    def owning(self, kind: str, name: str) -> Iterator[str]:
        """Own resource ``name`` of ``kind`` (a key of RESOURCES) for the length of the block.

        The caller makes it inside the block; it is removed on the way out, whatever happened.
        """
        remove = RESOURCES[kind]
        self._entry += 1
        entry = self._entry
        try:
            _append(self._file, self.path, {"entry": entry, "kind": kind, "name": name})
            yield name
        finally:
            with held_off():
                remove(self.host, name)
                _strike(self._file, self.path, entry)

    def close(self) -> None:
        """Remove what still stands (an interrupt can cut a block's own tidying short), and give the ledger up.

        The file is deleted unless something could not be removed; then it stays for `virtoll clean`.
        """
        try:
            with held_off():
                _sweep(self.host, self._file, self.path)
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._file)


@contextmanager
def opened(host: Host, directory: Path, run_id: str) -> Iterator[Ledger]:
    """A ledger for one run, closed at the end. HostError when a living run uses it."""
    ledger = Ledger(host, directory / f"{run_id}.jsonl")
    try:
        yield ledger
    finally:
        ledger.close()


def standing(text: str) -> list[tuple[int, str, str]]:
    """The (entry, kind, name) of a ledger's text that are not struck out, newest first."""
    entries: dict[int, tuple[int, str, str]] = {}
    for line_text in text.splitlines():
        try:
            line = json.loads(line_text)
        except json.JSONDecodeError:
            continue  # the torn last line of a killed writer: what it announced was never made
        if line.get("gone"):
            entries.pop(line["entry"], None)
        else:
            entries[line["entry"]] = (line["entry"], line["kind"], line["name"])
    return [entries[key] for key in sorted(entries, reverse=True)]


def clean(host: Host, directory: Path) -> list[str]:
    """Remove what dead runs left, newest first; return one line for each thing removed.

    Raises HostError at the end if something could not be removed; its ledger is then kept.
    """
    removed: list[str] = []
    failures: list[str] = []
    for path in sorted(directory.glob("*.jsonl")) if directory.is_dir() else []:
        try:
            file = _locked(path, create=False)
        except (_InUseError, FileNotFoundError):
            continue
        try:
            removed += _sweep(host, file, path)
            path.unlink(missing_ok=True)
        except HostError as error:
            failures.append(error.problem.what)
        finally:
            os.close(file)
    if failures:
        raise HostError(
            "\n".join([*failures, *(f"removed: {line}" for line in removed)]),
            where=host.where,
            remedy="end what holds them (fuser, lsns), then run `virtoll clean` again",
        )
    return removed


def state_directory() -> Path:
    """Where ledgers and instances' directories live (VIRTOLL_STATE, or /var/lib/virtoll).

    HostError where somebody else can write to it.
    """
    return private.trusted(Path(os.environ.get("VIRTOLL_STATE", "/var/lib/virtoll")))


def cache_directory() -> Path:
    """Where images, kernels and verdicts are kept by content (VIRTOLL_CACHE, or /var/cache/virtoll).

    HostError where somebody else can write to it.
    """
    return private.trusted(Path(os.environ.get("VIRTOLL_CACHE", "/var/cache/virtoll")))


class _InUseError(HostError):
    """A living process holds the ledger."""


def _locked(path: Path, *, create: bool) -> int:
    """An open, locked descriptor of the file that is at ``path`` now (not of one deleted while we waited)."""
    deadline = time.monotonic() + _LOCK_GRACE_S
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
                return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(file)
                raise _InUseError(
                    "this run is under way already, or being cleaned up",
                    where=str(path),
                    remedy="wait for the other virtoll to end (fuser names its process)",
                ) from None
            time.sleep(0.01)
        os.close(file)


def _sweep(host: Host, file: int, path: Path) -> list[str]:
    """Remove all that stands in a ledger we hold. HostError names what resists, after the rest has gone."""
    removed: list[str] = []
    failures: list[str] = []
    text = os.pread(file, os.fstat(file).st_size, 0).decode("utf-8", errors="replace")
    for entry, kind, name in standing(text):
        try:
            RESOURCES[kind](host, name)
        except KeyError:
            failures.append(f"{kind} {name}: a newer virtoll made this; clean with that version")
        except (HostError, OSError) as error:
            failures.append(f"{kind} {name}: {error}")
        else:
            _strike(file, path, entry)
            removed.append(f"{kind} {name}")
    if failures:
        raise HostError(
            "could not be removed:\n" + "\n".join(failures),
            where=str(path),
            remedy="end what holds them (fuser, lsns), then run `virtoll clean`",
        )
    return removed


def _append(file: int, path: Path, line: dict[str, Any]) -> None:
    """Write a whole line, or nothing. HostError when the disk is full."""
    data = (json.dumps(line) + "\n").encode()
    size_bytes = os.fstat(file).st_size
    try:
        written = os.write(file, data)
        if written < len(data):
            os.ftruncate(file, size_bytes)  # no half line for the next one to be glued to
            raise OSError("no space left on device")
    except OSError as error:
        raise HostError(
            f"cannot write the ledger: {error}", where=str(path), remedy="make room; nothing was made without it"
        ) from error


def _strike(file: int, path: Path, entry: int) -> None:
    """Note that a thing has gone. If that cannot be written, `clean` will look for it once more and find nothing."""
    try:
        _append(file, path, {"entry": entry, "gone": True})
    except HostError:
        return
