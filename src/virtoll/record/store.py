"""The run directory: write once, append only, fsync when a trial is sealed, resume.

The layout is in `virtoll.record.model`. Everything that fails here is a StoreError and stops the study at once: data
that cannot be kept must not be measured. A run directory may come from elsewhere: nothing outside of it is read or
written on its word (`virtoll.files.confined`).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from virtoll.errors import StoreError
from virtoll.files import durable, umask
from virtoll.files.confined import inside, read_bounded, whole_lines
from virtoll.plain import typed
from virtoll.record.document import Document, damaged, expect_schema, look_of, validated
from virtoll.record.model import KEPT, Environment, Extension, Kept, Plan, PlannedTrial, TrialRecord
from virtoll.record.rules import Look, Precision

INTERRUPTED = "interrupted: "  # such a trial is kept as failed, and run again under a new id on resume
_AGAIN = "r"  # what that id has at its end, where the planned one has a number

MOST_BYTES = 512 * 1024**2  # of one JSON file of a run: a hundred times what a long run's trials take
MOST_LOG_BYTES = 1024**3  # of trials.jsonl, which is read line by line: three times what 10,000 hosts took
MOST_PACKED_BYTES = MOST_BYTES  # of a copy's, unpacked: a small file may hold any number of lines
MOST_LINE_BYTES = 64 * 1024**2  # of it: thousands of times what a trial takes

_LOOKS = "looks.jsonl"
PACKED_LOG, HOSTS = "trials.jsonl.gz", "hosts"


_GOES_ON = "free space or mend the directory; then `virtoll run RUNDIR` goes on where it stopped"
_NOT_BEGUN = "free space, or name another --out that can be written to; nothing was measured"


@contextmanager
def _as_store_error(path: Path, remedy: str = _GOES_ON) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise StoreError(
            "another virtoll is writing to this run",
            where=str(path),
            remedy="wait for it to end, or interrupt it with Ctrl-C",
        ) from None
    except OSError as error:
        raise StoreError(
            f"{error.strerror or error}",
            where=str(path),
            remedy=remedy,
        ) from error


class RunDirectory:
    """An open run directory. While it is open for writing nobody else can write to it (flock)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sitting: int | None = None  # what is sealed is of it

    # -- writing ------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: Path,
        study: Mapping[str, Any],
        plan: Plan,
        environment: Environment,
        hosts: Mapping[str, Environment] = MappingProxyType({}),
    ) -> RunDirectory:
        """A new run directory; StoreError when something is there already. ``hosts``: those of a fleet, by name.

        Who may look into it is left to the caller's umask. It gets its name when it is whole. What a killed virtoll had
        begun beside it (``.NAME.partial``) is replaced.
        """
        if os.path.lexists(path):
            remedy = f"resume it with `virtoll run {typed(path)}`, or name another --out"
            raise StoreError("already exists", where=str(path), remedy=remedy)
        begun = path.with_name(f".{path.name}.partial")
        with _as_store_error(path, _NOT_BEGUN):
            shutil.rmtree(begun, ignore_errors=True)
            durable.make_directories(begun, 0o777 & ~umask.CALLERS)
            try:
                (begun / "trials").mkdir()
                durable.write_once(begun / "study.json", json.dumps(study, indent=1).encode())
                durable.write_once(begun / "environment.json", environment.model_dump_json(indent=1).encode())
                for name, there in hosts.items():
                    durable.make_directories(inside(begun, HOSTS, name))
                    durable.write_once(
                        begun / HOSTS / name / "environment.json", there.model_dump_json(indent=1).encode()
                    )
                durable.write_once(begun / "trials.jsonl", b"")
                if plan.rule is not None:
                    durable.write_once(begun / _LOOKS, b"")
                durable.write_once(begun / "plan.json", plan.model_dump_json(indent=1).encode())
                begun.rename(path)
                durable.sync(path.parent)
            except BaseException:
                shutil.rmtree(begun, ignore_errors=True)  # nothing was measured
                raise
        return cls(path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the write lock; StoreError when another virtoll holds it, or nothing may be added to this run."""
        self.expect_no_copy()
        log = inside(self.path, "trials.jsonl")
        with _as_store_error(self.path):
            # Never made anew: an empty one would hide that what was sealed is lost.
            file = os.open(log, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            with _as_store_error(self.path):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._mend_torn_line(file, "trials.jsonl")
                self._mend_torn_looks()
            yield
        finally:
            os.close(file)

    def expect_no_copy(self) -> None:
        """StoreError where `virtoll keep` made this directory."""
        if self.kept is not None:
            raise StoreError(
                "this is a copy of a run, kept small: nothing is measured into it",
                where=str(self.path),
                remedy="go on with the run that it was made of, or begin a new one",
            )

    def begin_sitting(self, records: Sequence[TrialRecord] | None = None) -> None:
        """From here on what is sealed was measured in one sitting, which is none of those before.

        ``records``: those of this run, where they have been read already.
        """
        known = self._each() if records is None else records
        self._sitting = 1 + max((record.sitting or 0 for record in known), default=0)

    def trial_directory(self, trial: PlannedTrial) -> Path:
        """A new directory for a trial's raw data, there for good; without a sealed record it marks a killed run."""
        path = inside(self.path, "trials", trial.id)
        with _as_store_error(path):
            path.mkdir()
            durable.sync(path.parent)
        return path

    def seal(self, *records: TrialRecord) -> list[TrialRecord]:
        """Append the records, all or none of them, and fsync them and their trials' files: from here on they survive
        anything. They are told as they were sealed: with the number of the sitting that was begun.

        Where that fails, none of the trials is sealed. ValueError as of `line_of`.
        """
        if self._sitting is not None:
            records = tuple(record.model_copy(update={"sitting": self._sitting}) for record in records)
        lines = b"".join(map(line_of, records))
        directories = [inside(self.path, "trials", record.trial.id) for record in records]
        log = inside(self.path, "trials.jsonl")
        with _as_store_error(self.path):
            for directory in directories:
                if directory.is_dir():
                    durable.sync_tree(directory)
                    durable.sync(directory.parent)
            durable.append(log, lines)
        return [*records]

    def write_parquet(self, trial: PlannedTrial, name: str, packed: memoryview) -> None:
        """Write one of the trial's parquet files (`virtoll.record.tables`): whole, or not at all."""
        self.write_raw(trial, f"{name}.parquet", packed)

    def write_raw(self, trial: PlannedTrial, name: str, data: bytes | memoryview) -> None:
        """Write one of the trial's files: whole, or not at all."""
        path = inside(self.path, "trials", trial.id, name)
        with _as_store_error(path):
            durable.write_once(path, data)

    def write_together(self, trial: PlannedTrial, files: Mapping[str, bytes]) -> None:
        """Write several of the trial's files at once: each whole, or not at all."""
        for name in files:
            inside(self.path, "trials", trial.id, name)
        path = inside(self.path, "trials", trial.id)
        with _as_store_error(path):
            durable.write_together(path, files)

    def write_log(self, trial: PlannedTrial, text: str) -> None:
        """Add to the trial's log.txt."""
        path = inside(self.path, "trials", trial.id, "log.txt")
        with _as_store_error(path), path.open("a", encoding="utf-8") as log:
            log.write(text)

    def keep_look(self, look: Look) -> None:
        """Append what a look found, for good. StoreError where that fails: then it was not taken."""
        with _as_store_error(self.path):
            durable.append(inside(self.path, _LOOKS), look.model_dump_json().encode() + b"\n")

    def extend(self, extension: Extension) -> None:
        """Keep more blocks for this run, whole or not at all."""
        path = inside(self.path, f"extension-{len(self._extensions()) + 1}.json")
        with _as_store_error(path):
            durable.write_once(path, extension.model_dump_json(indent=1).encode())

    def _mend_torn_line(self, file: int, name: str) -> None:
        """Cut off a last line that a killed writer left incomplete (it was never sealed)."""
        whole_bytes = self._whole_bytes(name)
        if whole_bytes < os.fstat(file).st_size:
            os.ftruncate(file, whole_bytes)
            os.fsync(file)

    def _mend_torn_looks(self) -> None:
        if self.plan.rule is None:
            return
        with _as_store_error(self.path / _LOOKS):
            file = os.open(inside(self.path, _LOOKS), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                self._mend_torn_line(file, _LOOKS)
            finally:
                os.close(file)

    # -- reading ------------------------------------------------------------------------------------------

    @property
    def study(self) -> dict[str, Any]:
        """The study as run."""
        data = self._bytes("study.json")
        expect_schema(data, str(self.path / "study.json"))
        try:
            study = json.loads(data)
            if not isinstance(study, dict):
                raise TypeError(f"{type(study).__name__} where a table is")
            json.dumps(study, ensure_ascii=False).encode()  # half a surrogate pair is no text
        except (ValueError, TypeError, RecursionError) as error:  # the last of brackets without end
            raise damaged(str(self.path / "study.json"), str(error)) from error
        return study

    @property
    def plan(self) -> Plan:
        """The randomised plan, and the blocks that were added to it."""
        plan = self._read(Plan, "plan.json")
        for extension in self._extensions():
            plan = extended(plan, extension)
        return plan

    def looks(self, plan: Plan | None = None) -> list[Look]:
        """What the looks of the plan's rule found, in their order; none without a rule. A torn line is no look.

        ``plan``: that of this run, where it has been read already.
        """
        if (plan or self.plan).rule is None:
            return []
        lines = enumerate(self._lines(_LOOKS), 1)
        return [look_of(line, f"{self.path / _LOOKS}:{number}") for number, line in lines]

    def last_block(self, plan: Plan | None = None) -> int:
        """The last that will be run, as far as is known: of the plan, or the one that its rule has fixed."""
        plan = plan or self.plan
        looks = self.looks(plan)
        if looks and (looks[-1].ends or isinstance(plan.rule, Precision)):
            return looks[-1].blocks
        return plan.blocks

    def _extensions(self) -> list[Extension]:
        found: list[Extension] = []
        while os.path.lexists(self.path / (name := f"extension-{len(found) + 1}.json")):
            found.append(self._read(Extension, name))
        return found

    @property
    def environment(self) -> Environment:
        """The machine and versions."""
        return self._read(Environment, "environment.json")

    def environment_of(self, host: str) -> Environment:
        """Those of one of the hosts that the plan names."""
        return self._read(Environment, HOSTS, host, "environment.json")

    @property
    def kept(self) -> Kept | None:
        """What this directory lacks, where `virtoll keep` made it; else None."""
        return self._read(Kept, KEPT) if os.path.lexists(self.path / KEPT) else None

    def lines(self) -> Iterator[bytes]:
        """Of trials.jsonl, which a copy that was kept small has packed, each whole line as it was written."""
        if self.kept is None:
            yield from self._lines("trials.jsonl")
            return
        with self._reading(PACKED_LOG) as path:
            try:
                yield from whole_lines(path, MOST_PACKED_BYTES, MOST_LINE_BYTES, is_packed=True)
            except ValueError as error:
                raise damaged(str(path), str(error)) from error

    def records(self) -> list[TrialRecord]:
        """All sealed trials, in the order they were sealed. An incomplete last line is not a sealed trial."""
        return list(self._each())

    def _each(self) -> Iterator[TrialRecord]:
        """One after another: all of them take much memory."""
        seen: set[str] = set()
        log = str(self.path / ("trials.jsonl" if self.kept is None else PACKED_LOG))
        for number, line in enumerate(self.lines(), 1):
            where = f"{log}:{number}"
            record = validated(TrialRecord, line, where)
            if record.trial.id in seen:
                raise StoreError(
                    f"trial {record.trial.id} is sealed twice",
                    where=where,
                    remedy="two programs wrote to this run; keep the line that belongs to trials/ and delete the other",
                )
            seen.add(record.trial.id)
            yield record

    def has_torn_line(self) -> bool:
        """Whether the last line of trials.jsonl is incomplete: its writer was killed, or is writing. Not of a copy."""
        if self.kept is not None:
            return False
        with self._reading("trials.jsonl") as path:
            size_bytes = path.stat().st_size  # first: its writer may be at work
        return self._whole_bytes("trials.jsonl") < size_bytes

    def unsealed(self) -> list[PlannedTrial]:
        """Trials that were begun and never sealed: their writer was killed."""
        sealed, interrupted = _sealed(self._each())
        trials = inside(self.path, "trials")
        with _as_store_error(trials):
            begun = {entry.name for entry in trials.iterdir()} - sealed
        return [trial for trial in _with_repeats(self.plan, interrupted) if trial.id in begun] if begun else []

    def pending(self, records: Sequence[TrialRecord] | None = None, plan: Plan | None = None) -> list[PlannedTrial]:
        """What is left to run, in plan order; an interrupted trial comes again under a new id.

        ``records``, ``plan``: those of this run, where they have been read already.
        """
        sealed, interrupted = _sealed(self._each() if records is None else records)
        plan = plan or self.plan
        last, trials = self.last_block(plan), _with_repeats(plan, interrupted)
        return [trial for trial in trials if trial.id not in sealed and trial.block <= last]

    def _read(self, model: type[Document], *names: str) -> Document:
        return validated(model, self._bytes(*names), str(self.path.joinpath(*names)))

    def _bytes(self, *names: str) -> bytes:
        with self._reading(*names) as path:
            return read_bounded(path, MOST_BYTES)

    def _lines(self, name: str) -> Iterator[bytes]:
        with self._reading(name) as path:
            yield from whole_lines(path, MOST_LOG_BYTES, MOST_LINE_BYTES)

    def _whole_bytes(self, name: str) -> int:
        """How long a file of lines is without what follows its last whole one."""
        return sum(len(line) + 1 for line in self._lines(name))

    @contextmanager
    def _reading(self, *names: str) -> Iterator[Path]:
        path = inside(self.path, *names)
        try:
            yield path
        except FileNotFoundError:
            what, remedy = f"{'/'.join(names)} is missing", "is this a run directory? a run writes it first of all"
            raise StoreError(what, where=str(path), remedy=remedy) from None
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", where=str(path)) from error


def line_of(record: TrialRecord) -> bytes:
    """What a sealed record is in trials.jsonl. ValueError for one that could not be read again: JSON has no NaN, and no
    half surrogates; and of one that is longer than a line that is read.
    """
    line = record.model_dump_json().encode()
    TrialRecord.model_validate_json(line)
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(f"a record of {len(line):,} B, and one is at most {MOST_LINE_BYTES:,}")
    return line + b"\n"


def extended(plan: Plan, extension: Extension) -> Plan:
    """A plan, and the blocks that are added to it."""
    return plan.model_copy(
        update={
            "blocks": extension.blocks,
            "trials": [*plan.trials, *extension.trials],
            "estimate_s": plan.estimate_s + extension.estimate_s,
            "extended": plan.extended if extension.by_time else (*plan.extended, plan.blocks),
            "is_filled": plan.is_filled or extension.by_time,
        }
    )


def _sealed(records: Iterable[TrialRecord]) -> tuple[set[str], dict[str, PlannedTrial]]:
    """The ids of these, and those that were interrupted, by theirs."""
    sealed, interrupted = set(), {}
    for record in records:
        sealed.add(record.trial.id)
        if is_interrupted(record):
            interrupted[record.trial.id] = record.trial
    return sealed, interrupted


def is_interrupted(record: TrialRecord) -> bool:
    """Whether a trial was interrupted, and comes again under another id."""
    return record.status == "failed" and record.reason.startswith(INTERRUPTED)


def planned_id(trial_id: str) -> str:
    """The id of a planned trial, or of that which one repeats; a level of a ramp (``.3``) stays that level."""
    own, dot, level = trial_id.partition(".")
    return f"{own.rstrip(_AGAIN)}{dot}{level}"


def attempt(trial_id: str) -> int:
    """How often the planned trial had been interrupted before this one."""
    own = trial_id.partition(".")[0]
    return len(own) - len(own.rstrip(_AGAIN))


def _with_repeats(plan: Plan, interrupted: Mapping[str, PlannedTrial]) -> list[PlannedTrial]:
    """The planned trials, and after each interrupted one its repeat."""
    trials = []
    for planned in plan.trials:
        trial = planned
        trials.append(trial)
        while trial.id in interrupted:
            trial = trial.model_copy(update={"id": f"{trial.id}{_AGAIN}"})
            trials.append(trial)
    return trials


def is_run_directory(path: Path) -> bool:
    """Whether there is a run in ``path``."""
    return (path / "plan.json").is_file()
