"""Reads a run directory (virtoll.record says what is in it). Reads only; a run may still be going on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from virtoll.errors import StoreError
from virtoll.record import SCHEMA, Environment, Plan, TrialRecord

Integers = npt.NDArray[np.int64]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Histogram:
    """Latencies of completed requests: ``count`` of them in (lower_ns, upper_ns], ascending."""

    lower_ns: Integers
    upper_ns: Integers
    count: Integers

    @property
    def total(self) -> int:
        """How many requests it holds."""
        return int(self.count.sum())

    def quantile_ns(self, q: float) -> float:
        """The bound of the bucket that holds quantile ``q`` (never too low, too high by a bucket at most)."""
        rank = max(1, int(np.ceil(q * self.total)))
        return float(self.upper_ns[int(np.searchsorted(np.cumsum(self.count), rank))])


@dataclass(frozen=True)
class Series:
    """One counter over time: ``t_ns`` (host's CLOCK_MONOTONIC, ascending) and ``value``, as read."""

    t_ns: Integers
    value: Integers


@dataclass(frozen=True)
class Run:
    """A run directory, typed. Bulk data of a trial is read on demand."""

    directory: Path
    study: dict[str, Any]
    plan: Plan
    environment: Environment
    records: tuple[TrialRecord, ...]
    notes: tuple[str, ...]  # what a reader must know about the directory's own state

    @property
    def is_complete(self) -> bool:
        """Whether every planned trial has been sealed."""
        return len(self.records) == len(self.plan.trials)

    @property
    def base(self) -> dict[str, Any]:
        """The study's values by dotted path; a trial's condition overrides them."""
        base = self.study.get("base")
        return base if isinstance(base, dict) else {}

    def file(self, trial_id: str, name: str) -> Path:
        """Where a file of a trial's raw data is (or would be)."""
        return self.directory / "trials" / trial_id / name

    def histogram(self, trial_id: str) -> Histogram | None:
        """The latency histogram of a trial; None when none was recorded."""
        table = _table(self.file(trial_id, "latency.parquet"))
        if table is None:
            return None
        lower, upper, count = (table[name].to_numpy() for name in ("lower_ns", "upper_ns", "count"))
        order = np.argsort(upper, kind="stable")
        return Histogram(lower[order], upper[order], count[order])

    def samples(
        self, trial_id: str, side: str, wanted: frozenset[tuple[str, str]] | None = None
    ) -> dict[tuple[str, str], Series]:
        """Series by (source, counter) from ``side`` "outside" or "inside"; ``wanted`` names the only ones needed."""
        table = _table(self.file(trial_id, f"{side}.parquet"))
        return {} if table is None else _series(table, wanted)


def read_run(directory: Path) -> Run:
    """Read a run directory. StoreError names the damaged file and what to do about it."""
    if not directory.is_dir():
        raise StoreError("no such run directory", where=str(directory), remedy="give the path `virtoll run` printed")
    study = _parse(directory / "study.json", json.loads)
    plan = _parse(directory / "plan.json", Plan.model_validate_json)
    environment = _parse(directory / "environment.json", Environment.model_validate_json)
    for name, version in (("plan.json", plan.schema_version), ("environment.json", environment.schema_version)):
        if version != SCHEMA:
            raise StoreError(
                f"schema {version}, and this virtoll reads schema {SCHEMA}",
                where=str(directory / name),
                remedy="use the virtoll version named in environment.json",
            )
    records, notes = _records(directory / "trials.jsonl")
    missing = len(plan.trials) - len(records)
    if missing > 0:
        notes.append(
            f"The run is not complete: {missing} of {len(plan.trials)} planned trials are not there yet. "
            f"`virtoll run {directory}` resumes it."
        )
    return Run(directory, study, plan, environment, tuple(records), tuple(notes))


def _parse(path: Path, parse: Callable[[bytes], _T]) -> _T:
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        raise StoreError(
            f"{path.name} is missing", where=str(path), remedy="is this a run directory? a run writes it first of all"
        ) from None
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (ValidationError, ValueError) as error:
        raise StoreError(
            f"is damaged: {_first_line(error)}", where=str(path), remedy="restore it from a copy, or run the study anew"
        ) from error


def _records(path: Path) -> tuple[list[TrialRecord], list[str]]:
    """The sealed trials. A torn last line is a run that was killed (or is writing): noted, not an error."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", where=str(path)) from error
    records: list[TrialRecord] = []
    seen: set[str] = set()
    lines = text.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        record = _record(path, number, line)
        if record.trial.id in seen:
            raise StoreError(
                f"trial {record.trial.id} is sealed twice",
                where=f"{path}:{number}",
                remedy="two programs wrote to this run; keep the line that belongs to trials/ and delete the other",
            )
        seen.add(record.trial.id)
        records.append(record)
    torn = ["The last line of trials.jsonl is not finished; that trial is not counted."] if lines[-1] else []
    return records, torn


def _record(path: Path, number: int, line: bytes) -> TrialRecord:
    try:
        return TrialRecord.model_validate_json(line)
    except ValidationError as error:
        raise StoreError(
            f"the line is not a trial record: {_first_line(error)}",
            where=f"{path}:{number}",
            remedy="restore the file from a copy, or delete this line to leave its trial out",
        ) from error


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc']) or 'document'}: {first['msg']}"
    return str(error).splitlines()[0]


def _table(path: Path) -> pa.Table | None:
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            return file.read(use_threads=False)
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError) as error:
        raise StoreError(
            f"is damaged: {str(error).splitlines()[0]}",
            where=str(path),
            remedy="restore it from a copy, or delete the file: its trial is then shown without these data",
        ) from error


def _series(table: pa.Table, wanted: frozenset[tuple[str, str]] | None) -> dict[tuple[str, str], Series]:
    source, source_names = _codes(table["source"])
    counter, counter_names = _codes(table["counter"])
    t_ns, value = table["t_ns"].to_numpy(), table["value"].to_numpy()
    key = source * len(counter_names) + counter
    order = np.lexsort((t_ns, key))
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    found: dict[tuple[str, str], Series] = {}
    for start, end in zip(starts, np.append(starts[1:], len(order)), strict=True):
        first = int(key[order[start]])
        name = (source_names[first // len(counter_names)], counter_names[first % len(counter_names)])
        if wanted is None or name in wanted:
            rows = order[start:end]
            found[name] = Series(t_ns[rows], value[rows])
    return found


def _codes(column: pa.ChunkedArray) -> tuple[Integers, list[str]]:
    """A string column as integer codes and the names they stand for."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    return array.indices.to_numpy(zero_copy_only=False).astype(np.int64), array.dictionary.to_pylist()
