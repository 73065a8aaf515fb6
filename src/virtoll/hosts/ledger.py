"""The ledger: every side effect on a machine is written down before it is made, and struck out when undone.

One file a run, one JSON line an entry. A line is written (not fsynced: a killed process loses no written data,
and a machine that lost power has lost its namespaces and processes too) before the thing exists; `virtoll clean`
reads the ledgers of runs that no longer live and removes, newest first, what is not struck out.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.hosts.resources import RESOURCES


class Ledger:
    """The open ledger of a living run. The file stays locked (flock) for as long as its owner lives."""

    def __init__(self, host: Host, path: Path) -> None:
        self.host = host
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._next = 1

    @contextmanager
    def owning(self, kind: str, name: str) -> Iterator[str]:
        """Own resource ``name`` of ``kind`` (a key of RESOURCES) for the length of the block.

        The caller makes it inside the block; it is removed on the way out, whatever happened.
        """
        entry = self._next
        self._next += 1
        self._write({"entry": entry, "kind": kind, "name": name})
        try:
            yield name
        finally:
            RESOURCES[kind](self.host, name)
            self._write({"entry": entry, "gone": True})

    def close(self) -> None:
        """Give the ledger up. An empty one (all struck out) is deleted."""
        if not standing(self.path):
            self.path.unlink(missing_ok=True)
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def standing(path: Path) -> list[tuple[str, str]]:
    """The (kind, name) entries of a ledger that are not struck out, newest first."""
    entries: dict[int, tuple[str, str]] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue  # the torn last line of a killed writer: what it announced was never made
        if line.get("gone"):
            entries.pop(line["entry"], None)
        else:
            entries[line["entry"]] = (line["kind"], line["name"])
    return [entries[key] for key in sorted(entries, reverse=True)]


def is_alive(path: Path) -> bool:
    """Whether the run that owns this ledger still lives."""
    with path.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def clean(host: Host, directory: Path) -> list[str]:
    """Remove what dead runs left, newest first; return one line for each thing removed.

    Raises HostError at the end if something could not be removed; its ledger is then kept.
    """
    removed: list[str] = []
    failures: list[str] = []
    for path in sorted(directory.glob("*.jsonl")) if directory.is_dir() else []:
        if is_alive(path):
            continue
        failed_before = len(failures)
        for kind, name in standing(path):
            try:
                RESOURCES[kind](host, name)
                removed.append(f"{kind} {name}")
            except (HostError, OSError) as error:
                failures.append(f"{kind} {name}: {error}")
        if len(failures) == failed_before:
            path.unlink()
    if failures:
        raise HostError(
            "could not be removed:\n" + "\n".join(failures),
            where=host.where,
            remedy="end what holds them (fuser, lsns), then run `virtoll clean` again",
        )
    return removed


@contextmanager
def opened(host: Host, directory: Path, run_id: str) -> Iterator[Ledger]:
    """A ledger for one run, closed at the end."""
    ledger = Ledger(host, directory / f"{run_id}.jsonl")
    with ExitStack() as stack:
        stack.callback(ledger.close)
        yield ledger


def state_directory() -> Path:
    """Where ledgers and instances' directories live (VIRTOLL_STATE, or /var/lib/virtoll)."""
    return Path(os.environ.get("VIRTOLL_STATE", "/var/lib/virtoll"))


def cache_directory() -> Path:
    """Where images, kernels and verdicts are kept by content (VIRTOLL_CACHE, or /var/cache/virtoll)."""
    return Path(os.environ.get("VIRTOLL_CACHE", "/var/cache/virtoll"))
