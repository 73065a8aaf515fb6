"""The ledger: every side effect on a machine is written down before it is made, and struck out when undone.

One file a run, one JSON line an entry. A line is written before the thing exists, and is on the disk by then where the
thing outlives a power cut (a directory, a container of Proxmox's, all on other machines): a killed process loses no
written data, and a machine that lost power has lost its namespaces and processes too. `virtoll clean`
reads the ledgers of runs that no longer live and removes what is not struck out: first all that holds processes, so
that nobody is left who could make what has just been removed, then the rest, newest first. A ledger is locked (flock)
by whoever works with it: the living run, or `clean`. The kernel unlocks it when its owner dies.
What is tuned stays when its command has ended (`Ledger.leave`); its ledgers lie in a directory that no run cleans.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from virtoll.errors import HostError
from virtoll.hosts import private
from virtoll.hosts.base import Host
from virtoll.hosts.interrupts import held_off, install, is_being_tidied_up_after
from virtoll.hosts.ledger_lines import append, strike, sync_names, told
from virtoll.hosts.processes import Process, is_alive, process
from virtoll.hosts.resources import RESOURCES

# A child that the owner had forked but that had not become its command yet when the owner was killed holds the lock
# for that instant longer: long on a busy machine.
_LOCK_GRACE_S = 30.0
LEFT = "left as it is: "
_NOT_UNDERSTOOD = "not understood: clean with the virtoll that wrote it, or delete the ledger when nothing is left"
_REMEDY_ELSEWHERE = "`virtoll clean` when that machine can be reached again; if it is gone for good, delete this ledger"
_REMEDY = "end what holds it (fuser, lsns), then run `virtoll clean`"


class Ledger:
    """The ledger of a run, from `open` until `close` or `leave`."""

    def __init__(self, host: Host, path: Path) -> None:
        self.host = host
        self.path = path
        self._file: int | None = None
        self._entry = 0
        self._directories: set[str] = set()  # that stand in it
        self._left: dict[tuple[str, str], int] = {}  # the entries of what could not be removed by its owner

    def open(self) -> Self:
        """Make it this process's. What an earlier owner of the same file left is removed first.

        To be called where an interrupt already leads to `close`: the file is there before this has returned.
        """
        private.make(self.path.parent)
        install()
        deadline = time.monotonic() + _LOCK_GRACE_S
        while self._file is None:
            with held_off():
                self._file = _locked_at_once(self.path, create=True, deadline=deadline)
        _sweep(self.host, self._file, self.path)
        with told(self.path):
            os.ftruncate(self._file, 0)
        owner = process(os.getpid())
        assert owner is not None
        self._append({"owner": owner.pid, "started": owner.started})
        sync_names(self.path)
        return self

    def _append(self, line: dict[str, Any], *, for_good: bool = False) -> None:
        assert self._file is not None, "only an open ledger is written to"
        append(self._file, self.path, line, for_good=for_good)

    @contextmanager
    def owning(self, kind: str, name: str) -> Iterator[str]:
        """Own resource ``name`` of ``kind`` (a key of RESOURCES) for the length of the block.

        The caller makes it inside the block; it is removed on the way out, whatever happened. HostError where there
        is such a thing already: it is somebody else's, and must never be removed. What an earlier owner in this run
        could not remove is tried once more before. ElsewhereError where it cannot be removed, and is elsewhere.
        """
        entry = self._announce(kind, name)
        try:
            yield name
        finally:
            with held_off():
                self._remove(entry, kind, name)

    def keep(self, kind: str, name: str) -> None:
        """Own a resource until the ledger is closed, or until `clean` where we `leave` it; HostError as of `owning`."""
        self._announce(kind, name)

    def _announce(self, kind: str, name: str) -> int:
        if (left := self._left.get((kind, name))) is not None:
            self._remove(left, kind, name)
        if RESOURCES[kind].is_there(self.host, name):
            raise HostError("exists already", where=f"{kind} {name}", remedy=_REMEDY)
        self._entry += 1
        line = {"entry": self._entry, "kind": kind, "name": name}
        self._append(line, for_good=RESOURCES[kind].outlives_power and not self._goes_with_another(kind, name))
        if kind == "directory":
            self._directories.add(name)
        return self._entry

    def _goes_with_another(self, kind: str, name: str) -> bool:
        """Whether a directory goes with one above it that is on the disk's ledger already, or is in memory alone: while
        instances are deployed, and timed, nothing waits for the disk.
        """
        above = {str(path) for path in Path(name).parents}
        return kind == "directory" and bool(above & {*self._directories, "/run"})

    def _remove(self, entry: int, kind: str, name: str) -> None:
        """Remove it and strike it out; after an interrupt, what resists now is tried again when the ledger is closed.

        (The interrupt may have cut short the tidying of what was made after it, and is in its way.)
        """
        try:
            RESOURCES[kind].remove(self.host, name)
        except HostError as error:
            self._left[kind, name] = entry
            if is_being_tidied_up_after():
                return
            if RESOURCES[kind].elsewhere:
                what = f"could not be removed: {kind} {name}: {error}"
                raise _resisting(what, str(self.path), is_here=False) from error
            raise
        assert self._file is not None
        strike(self._file, self.path, entry)
        self._directories.discard(name)
        self._left.pop((kind, name), None)

    def close(self) -> None:
        """Remove what still stands (an interrupt can cut a block's own tidying short), and give the ledger up.

        The file is deleted unless something could not be removed; then it stays for `virtoll clean`.
        """
        if self._file is None:  # never opened, or given up
            return
        try:
            with held_off():
                _sweep(self.host, self._file, self.path)
                with told(self.path):
                    self.path.unlink(missing_ok=True)
                self.leave()
        except Exception:
            self.leave()
            raise

    def leave(self) -> None:
        """Give the ledger up, and leave to `clean` what stands in it."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


@contextmanager
def opened(host: Host, directory: Path, run_id: str) -> Iterator[Ledger]:
    """A ledger for one run, closed at the end. HostError when a living run uses it."""
    ledger = Ledger(host, directory / f"{run_id}.jsonl")
    try:
        yield ledger.open()
        ledger.close()
    except BaseException:
        ledger.close()  # once more where the first was interrupted; no other interrupt is heard by then
        raise


@dataclass(frozen=True)
class Entry:
    """A thing that was announced and not struck out. ``kind`` is "" where the line is none that we can read."""

    number: int
    kind: str
    name: str


def standing(text: str) -> list[Entry]:
    """What of a ledger's text is not struck out, newest first. What follows the last line end was never made."""
    entries: dict[int, Entry] = {}
    for number, line_text in enumerate(text.split("\n")[:-1], start=1):
        match _parsed(line_text):
            case {"entry": int(entry), "gone": True}:
                entries.pop(entry, None)
            case {"entry": int(entry), "kind": str(kind), "name": str(name)}:
                entries[entry] = Entry(entry, kind, name)
            case {"owner": int()}:
                pass
            case _:
                entries[-number] = Entry(-number, "", line_text)
    return [entries[key] for key in sorted(entries, reverse=True)]


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def clean(host: Host, directory: Path, name: str = "*") -> list[str]:
    """Remove what dead runs left (those of ``name``), newest first; return one line for each thing removed, and one
    that begins with `LEFT` for each that is to stay as it is.

    Raises HostError at the end if something could not be removed; its ledger is then kept. ElsewhereError where all of
    that is on other machines.
    """
    removed: list[str] = []
    failures: list[str] = []
    is_here = False
    for path in sorted(directory.glob(f"{name}.jsonl")) if directory.is_dir() else []:
        try:
            file = _locked(path)
        except (_InUseError, FileNotFoundError):
            continue
        except HostError as error:
            failures.append(str(error))
            is_here = True
            continue
        try:
            removed += _sweep(host, file, path)
            with told(path):
                path.unlink(missing_ok=True)
        except HostError as error:
            failures.append(error.problem.what)
            is_here |= not isinstance(error, ElsewhereError)
        finally:
            os.close(file)
    if failures:
        what = "\n".join([*failures, *(line if line.startswith(LEFT) else f"removed: {line}" for line in removed)])
        raise _resisting(what, host.where, is_here=is_here)
    return removed


@contextmanager
def scratch(host: Host, name: str) -> Iterator[Path]:
    """An empty directory for the length of the block, in a ledger of its own."""
    unique = f"{name}-{secrets.token_hex(4)}"
    directory = state_directory() / unique
    with opened(host, state_directory() / "ledger", unique) as ledger, ledger.owning("directory", str(directory)):
        directory.mkdir(mode=0o700)
        yield directory


def state_directory() -> Path:
    """Where ledgers and instances' directories live (VIRTOLL_STATE, or /var/lib/virtoll), without links: what is
    mounted there is found again by the kernel's name for it.

    HostError where somebody else can write to it, or a link leads nowhere.
    """
    return private.without_links(Path(os.environ.get("VIRTOLL_STATE") or private.STATE))


def cache_directory() -> Path:
    """Where images, kernels and verdicts are kept by content (VIRTOLL_CACHE, or /var/cache/virtoll), without links.

    HostError where somebody else can write to it, or a link leads nowhere.
    """
    return private.without_links(Path(os.environ.get("VIRTOLL_CACHE") or private.CACHE))


class _InUseError(HostError):
    """A living process holds the ledger."""


class ElsewhereError(HostError):
    """What could not be removed is on other machines: it is in nobody's way here."""


def _locked(path: Path) -> int:
    """An open, locked descriptor of the file that is at ``path`` now (not of one deleted while we waited).

    FileNotFoundError where there is none to be had; _InUseError when a living virtoll holds it.
    """
    deadline = time.monotonic() + _LOCK_GRACE_S
    while (file := _locked_at_once(path, create=False, deadline=deadline)) is None:
        pass
    return file


def _locked_at_once(path: Path, *, create: bool, deadline: float) -> int | None:
    """One try of `_locked`; None, some milliseconds later, where another may do before ``deadline`` (monotonic s)."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(file, path):
            return file
    except BlockingIOError:
        try:
            _expect_soon_free(_owner(file), path, deadline)
        except HostError:
            os.close(file)
            raise
        time.sleep(0.01)
    os.close(file)
    return None


def _is_at(file: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False


def _expect_soon_free(owner: Process | None, path: Path, deadline: float) -> None:
    """HostError unless only an instant's child of a dead process can be what holds the ledger, or a `clean` that looks
    into one that has just been made.
    """
    is_late = time.monotonic() > deadline
    if is_alive(owner) if owner is not None else is_late:
        raise _InUseError(
            "this run is under way already, or being cleaned up",
            where=str(path),
            remedy="wait for the other virtoll to end (fuser names its process)",
        ) from None
    if owner is not None and is_late:
        raise HostError(
            f"process {owner.pid}, whose ledger this is, is dead, but a child of it still holds the ledger",
            where=str(path),
            remedy="end that child (fuser names it), then run `virtoll clean`",
        ) from None


def _owner(file: int) -> Process | None:
    """The process whose ledger this is; None where it does not say (yet)."""
    first = os.pread(file, 1000, 0).decode("utf-8", errors="replace")
    match _parsed(first.partition("\n")[0]):
        case {"owner": int(pid), "started": int(started)}:
            return Process(pid, started, session=0, is_dead=False)
    return None


def _sweep(host: Host, file: int, path: Path) -> list[str]:
    """Remove all that stands in a ledger we hold. HostError names what resists, after the rest has gone."""
    removed: list[str] = []
    failures: list[str] = []
    is_here = False
    data = os.pread(file, os.fstat(file).st_size, 0)
    with told(path):
        os.ftruncate(file, data.rfind(b"\n") + 1)  # a killed writer's torn last line: nothing must be glued to it
    for entry in workers_first(standing(data.decode("utf-8", errors="replace"))):
        thing = f"{entry.kind} {entry.name}"
        if entry.kind not in RESOURCES:
            failures.append(f"{thing.strip()}: {_NOT_UNDERSTOOD}")
            is_here = True
            continue
        try:
            why = RESOURCES[entry.kind].why_left(host, entry.name)
            RESOURCES[entry.kind].remove(host, entry.name)
        except Exception as error:  # whatever resists: the rest must go
            failures.append(f"{thing}: {error}")
            is_here |= not RESOURCES[entry.kind].elsewhere
        else:
            strike(file, path, entry.number)
            removed.append(f"{LEFT}{thing}, for {why}" if why else thing)
    if failures:
        what = "could not be removed:\n" + "\n".join(failures)
        raise _resisting(what, str(path), is_here=is_here)
    return removed


def _resisting(what: str, where: str, *, is_here: bool) -> HostError:
    if is_here:
        return HostError(what, where=where, remedy=_REMEDY)
    return ElsewhereError(what, where=where, remedy=_REMEDY_ELSEWHERE)


def workers_first(entries: list[Entry]) -> list[Entry]:
    """All who may still be making things before what they make; else as it was."""
    return sorted(entries, key=lambda entry: entry.kind not in RESOURCES or not RESOURCES[entry.kind].holds_work)
