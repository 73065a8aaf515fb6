"""Reads a run directory (virtoll.record.model says what is in it). Reads only; a run may still be going on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from virtoll.errors import StoreError
from virtoll.files.confined import expect_plain, inside
from virtoll.plain import typed
from virtoll.record.model import BESIDE, CONFIGURATION, PROBE, SERVER, Environment, Plan, PlannedTrial, TrialRecord
from virtoll.record.rules import Decide, Look
from virtoll.record.store import RunDirectory, is_interrupted, planned_id
from virtoll.record.told import generator_options

Integers = npt.NDArray[np.int64]
MOST_ROWS = 50_000_000  # of one file; a trial logs a million requests at most, and an hour of samples is fewer rows
_HISTOGRAM = {"lower_ns": pa.int64(), "upper_ns": pa.int64(), "count": pa.int64()}
_WINDOW = {"window": pa.int64()}  # beside the others, where a trial has several
_REQUESTS = {"intended_ns": pa.int64(), "latency_ns": pa.int64(), "status": pa.int16()}
_LATE = {"late_ns": pa.int64()}  # beside the others, of an open loop
_SAMPLES = {"t_ns": pa.int64(), "source": pa.string(), "counter": pa.string(), "value": pa.int64()}
# The columns of each table that a trial may have, by its name, and those that it perhaps has.
TABLES: dict[str, tuple[dict[str, pa.DataType], dict[str, pa.DataType]]] = {
    **dict.fromkeys(("latency", "lateness"), (_HISTOGRAM, _WINDOW)),
    "requests": (_REQUESTS, _LATE),
    **dict.fromkeys(("outside", "inside", "neighbour", "series"), (_SAMPLES, {})),
}
_TEXTS = (pa.string(), pa.large_string())
AGGRESSOR = "neighbour.aggressor"  # the factor that names a victim's neighbour


@dataclass(frozen=True)
class Histogram:
    """Latencies of completed requests: ``count`` of them in [lower_ns, upper_ns), ascending.

    ``censored`` requests have no latency, and count as slower than any that has one.
    """

    lower_ns: Integers
    upper_ns: Integers
    count: Integers
    censored: int = 0

    @cached_property
    def completed(self) -> int:
        """How many requests have a latency."""
        return int(self.count.sum())

    @cached_property
    def _up_to(self) -> Integers:
        """How many requests are in each bucket or in one below."""
        return np.cumsum(self.count)

    @property
    def total(self) -> int:
        """How many requests it speaks for."""
        return self.completed + self.censored

    def quantile_ns(self, q: float) -> float | None:
        """The bound of the bucket that holds quantile ``q`` (never too low, too high by a bucket at most).

        None where it falls among the censored, or there is no request at all.
        """
        rank = self._rank(q)
        if rank > self.completed:
            return None
        return float(self.upper_ns[int(np.searchsorted(self._up_to, rank))])

    def is_censored(self, q: float) -> bool:
        """Whether quantile ``q`` falls among the censored."""
        return self.completed < self._rank(q) <= self.total

    def _rank(self, q: float) -> int:
        return max(1, int(np.ceil(round(q * self.total, 6))))


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
    looks: tuple[Look, ...] = ()  # what the looks of the plan's rule found
    # Of a ramp's levels, which are told as trials (`virtoll.analysis.ramps`): whose raw data they share, and the
    # numbers of the windows that are theirs.
    parts: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    is_kept: bool = False  # a copy that was kept small, and is not gone on with
    pending: int = 0  # planned trials that are not there yet

    @cached_property
    def made(self) -> frozenset[str]:
        """The planned trials that were made, however they ended, by their ids: one that was interrupted when its repeat
        is there.
        """
        return frozenset(planned_id(record.trial.id) for record in self.records if not is_interrupted(record))

    @cached_property
    def base(self) -> dict[str, Any]:
        """The study's values by dotted path; a trial's condition overrides them."""
        base = self.study.get("base")
        return base if isinstance(base, dict) else {}

    def given(self, condition: Mapping[str, Any]) -> dict[str, Any]:
        """All values by dotted path under one condition, as `Study.values` has them."""
        servers = self.study.get("servers")
        server = servers.get(condition.get(SERVER)) if isinstance(servers, dict) else None
        configured = self.configurations.get(str(condition.get(CONFIGURATION)), {}).get("values", {})
        return {**self.base, **(server["base"] if server else {}), **configured, **condition}

    @property
    def configurations(self) -> dict[str, dict[str, Any]]:
        """The two that the study sets against each other: of each its `arms` and `values`; empty of any other study."""
        found = self.study.get("configurations")
        return found if isinstance(found, dict) else {}

    @cached_property
    def objective(self) -> list[str]:
        """What each window was to keep, where the knee was searched for: "latency_p99 < 20 ms"; else empty. Of several
        servers that each have an objective of their own, the first's.
        """
        own = self._objectives
        objective = self.base.get("knee.objective") or (own[0] if own and all(own) else None)
        return [str(each) for each in objective] if isinstance(objective, list) else []

    def is_search(self, condition: Mapping[str, Any]) -> bool:
        """Whether the knee was searched for under a condition: under all where there is an `objective`, of some servers
        alone where these have theirs."""
        return bool(self.given(condition).get("knee.objective"))

    @cached_property
    def has_search(self) -> bool:
        """Whether it was under any."""
        return any(self._objectives)

    @cached_property
    def _objectives(self) -> list[Any]:
        """Of each server that is planned, or of the one service, what its windows were to keep; None: its knee was not
        searched for.
        """
        loaded = (trial.condition for trial in self.plan.trials if PROBE not in trial.condition)
        servers = dict.fromkeys(condition.get(SERVER) for condition in loaded)
        return [self.given({SERVER: server}).get("knee.objective") for server in servers]

    @property
    def programme(self) -> list[dict[str, Any]]:
        """The cases of a programme of probes, in the study's order; empty where a service alone was studied."""
        cases = self.study.get("programme")
        return list(cases) if isinstance(cases, list) else []

    @cached_property
    def neighbours(self) -> tuple[str, ...]:
        """The aggressors beside which a victim was studied, as the study names them; empty in any other study."""
        planned = {str(trial.condition[AGGRESSOR]) for trial in self.plan.trials if AGGRESSOR in trial.condition}
        factors = self.study.get("factors")
        named = factors.get(AGGRESSOR, ()) if isinstance(factors, dict) else ()
        return tuple(dict.fromkeys([*(name for name in named if name in planned), *sorted(planned)]))

    @cached_property
    def is_beside_others(self) -> bool:
        """Whether servers were measured beside each other, all of them loaded at the same time."""
        return any(trial.condition.get(BESIDE) == "others" for trial in self.plan.trials)

    @property
    def far(self) -> str:
        """The options by which a command goes on, or begins anew, where others measured; "" where this machine did."""
        return _far(self.plan, self.environment)

    @property
    def far_hosts(self) -> str:
        """The same of what asks for no load: hosts alone measure it, wherever the load of this run came from."""
        return self.far if self.plan.hosts else ""

    def file(self, trial_id: str, name: str) -> Path:
        """Where a file of a trial's raw data is (or would be). StoreError where that is not below the run."""
        own, _ = self.parts.get(trial_id, (trial_id, ()))
        return inside(self.directory, "trials", own, name)

    def table(self, trial_id: str, name: str) -> pa.Table | None:
        """All rows of one of ``TABLES``; None when there is none. StoreError where it is damaged."""
        return _table(self.file(trial_id, f"{name}.parquet"), *TABLES[name])

    def histogram(self, trial_id: str, name: str = "latency", censored: int = 0) -> Histogram | None:
        """The histogram ``name`` ("latency" or "lateness") of a trial; None when none was recorded."""
        table = self.table(trial_id, name)
        if table is None:
            return None
        if trial_id in self.parts and "window" in table.column_names:
            table = table.filter(pa.array(np.isin(table["window"].to_numpy(), self.parts[trial_id][1])))
        elif trial_id in self.parts and name != "latency":
            return None  # of all levels together
        return _histogram(table, censored)

    def window_histograms(self, trial_id: str, censored: Sequence[int]) -> list[Histogram] | None:
        """The latencies of each of a trial's windows, of which so many requests are ``censored``; None when they were
        not recorded apart.
        """
        table = self.table(trial_id, "latency")
        if table is None or "window" not in table.column_names:
            return None
        window = table["window"].to_numpy()
        return [
            _histogram(table.filter(pa.array(window == number)), failed) for number, failed in enumerate(censored, 1)
        ]

    def requests(self, trial_id: str) -> tuple[Integers, Integers, npt.NDArray[np.int16], Integers] | None:
        """(intended_ns, latency_ns, status, late_ns) of an open loop's requests; None when they were not recorded.

        They may not be all: the record's ``load.log`` says how far they are whole.
        """
        table = _table(self.file(trial_id, "requests.parquet"), {**_REQUESTS, **_LATE})
        if table is None:
            return None
        intended, latency, status, late = (table[name].to_numpy() for name in (*_REQUESTS, *_LATE))
        return intended, latency, status, late

    def samples(
        self, trial_id: str, side: str, wanted: frozenset[tuple[str, str]] | None = None
    ) -> dict[tuple[str, str], Series]:
        """Series by (source, counter) from ``side`` "outside" or "inside"; ``wanted`` names the only ones needed."""
        table = self.table(trial_id, side)
        return {} if table is None else _series(table, wanted)


def read_run(directory: Path, *, blocks: int | None = None) -> Run:
    """Read a run directory, of its trials only those of so many first ``blocks`` where that is given. StoreError names
    the damaged file and what to do about it.
    """
    if not directory.is_dir():
        raise StoreError("no such run directory", where=str(directory), remedy="give the path `virtoll run` printed")
    store = RunDirectory(directory)
    study, plan, environment, records = store.study, store.plan, store.environment, store.records()
    if blocks is not None:
        records = [record for record in records if record.trial.block <= blocks]
    pending, looks = len(store.pending(records, plan)), tuple(store.looks(plan))
    plan = _as_far_as(plan, store.last_block(plan))
    notes, is_kept = [], store.kept is not None
    if store.has_torn_line():
        notes.append("The last line of trials.jsonl is not finished; that trial is not counted.")
    if pending:
        most = "" if not isinstance(plan.rule, Decide) else " (no more: its rule may end it before)"
        notes.append(
            f"The run is not complete: {pending} of {len(plan.trials)} planned trials are not there yet{most}."
            + ("" if is_kept else f" `virtoll run {typed(directory)}{_far(plan, environment)}` resumes it.")
        )
    if is_kept:
        notes.append(
            "This is a copy, kept small: it lacks what no figure is made of (kept.json), and is not gone on with. What "
            "is said of more blocks in this run holds of the one that it was made of."
        )
    return Run(
        directory, study, plan, environment, tuple(records), tuple(notes), looks, is_kept=is_kept, pending=pending
    )


def _far(plan: Plan, environment: Environment) -> str:
    """Of a run: the hosts of a fleet measured it, or one by ssh; or its generator was another machine."""
    if not plan.hosts:
        return generator_options(environment)
    is_by_ssh = "performer" in environment.notes
    return " --host ssh://root@HOST" if is_by_ssh else " --cluster tls://HOST:8786 --tls DIRECTORY"


def _as_far_as(plan: Plan, block: int) -> Plan:
    """The plan, where its rule has fixed a last block: what would have come after it is not missing."""
    if block >= plan.blocks:
        return plan
    trials = [trial for trial in plan.trials if trial.block <= block]
    share = len(trials) / max(1, len(plan.trials))
    return plan.model_copy(update={"blocks": block, "trials": trials, "estimate_s": plan.estimate_s * share})


def parted(run: Run) -> tuple[Run, Run | None]:
    """A study's run, and as a run of its own the programme that explains its service, where there is one.

    Neither knows of the other's trials.
    """
    if not (run.study.get("service") and run.programme):
        return run, None
    service = _part({**run.study, "programme": []}, run, probed=False)
    programme = _part({**run.study, "service": "", "origin": "", "load": "", "claims": []}, run, probed=True)
    return service, replace(programme, notes=())


def by_server(run: Run) -> dict[str, Run]:
    """Of a study that sets several servers beside each other, each server's trials as a run of its own, by its name; of
    one that is excluded there is none.
    """
    servers = run.study.get("servers")
    planned = {trial.condition.get(SERVER) for trial in run.plan.trials}
    names = [name for name in servers if name in planned] if isinstance(servers, dict) else []
    return {
        name: _of({**run.study, "servers": {}, "base": run.given({SERVER: name})}, run, partial(_is_under, name))
        for name in names
    }


def _is_under(server: str, condition: Mapping[str, Any]) -> bool:
    return bool(condition.get(SERVER) == server)


def by_configuration(run: Run) -> tuple[Run, Run]:
    """Of a study that sets two configurations against each other, the trials of either as a run of its own, whose
    conditions and arms are called the same in both. StoreError of any other.
    """
    if set(run.configurations) != {"A", "B"}:
        raise StoreError(
            "it is one run, of one configuration",
            where=str(run.directory),
            remedy="name two run directories; one alone is told where `virtoll compare A B --again` made it",
        )
    return _configured(run, "A"), _configured(run, "B")


def _configured(run: Run, name: str) -> Run:
    """B's arms are called as those of A that they stand against."""
    mine = run.configurations[name]
    called = dict(zip(mine["arms"], run.configurations["A"]["arms"], strict=True))
    arms = {trial.arm.label: trial.arm for trial in run.plan.trials}
    own = {
        label: arm.model_copy(update={"label": called.get(label, label)})
        for label, arm in arms.items()
        if label in called or arm.role != "treatment"
    }

    def part(trial: PlannedTrial) -> PlannedTrial | None:
        if trial.arm.label not in own or trial.condition.get(CONFIGURATION, name) != name:
            return None
        condition = {path: level for path, level in trial.condition.items() if path != CONFIGURATION}
        return trial.model_copy(update={"arm": own[trial.arm.label], "condition": condition})

    trials = [each for trial in run.plan.trials if (each := part(trial)) is not None]
    kept = ((record, part(record.trial)) for record in run.records)
    records = [record.model_copy(update={"trial": trial}) for record, trial in kept if trial is not None]
    study = {**run.study, "base": {**run.base, **mine["values"]}, "configurations": {}}
    plan = run.plan.model_copy(update={"trials": trials})
    return replace(run, study=study, plan=plan, records=tuple(records))


def _part(study: dict[str, Any], run: Run, *, probed: bool) -> Run:
    return _of(study, run, lambda condition: (PROBE in condition) is probed)


def _of(study: dict[str, Any], run: Run, is_part: Callable[[Mapping[str, Any]], bool]) -> Run:
    """The trials under the conditions that are part of it."""
    trials = [trial for trial in run.plan.trials if is_part(trial.condition)]
    records = tuple(record for record in run.records if is_part(record.trial.condition))
    return replace(run, study=study, plan=run.plan.model_copy(update={"trials": trials}), records=records)


def _histogram(table: pa.Table, censored: int) -> Histogram:
    """Of all rows; several windows' buckets are those of one instrument."""
    lower, upper, count = (table[name].to_numpy() for name in _HISTOGRAM)
    if (upper[1:] > upper[:-1]).all():  # each bucket once, as of one window
        return Histogram(lower, upper, count, censored)
    bounds, first, bucket = np.unique(upper, return_index=True, return_inverse=True)
    added = np.zeros(len(bounds), dtype=np.int64)
    np.add.at(added, bucket, count)
    return Histogram(lower[first], bounds, added, censored)


def _table(
    path: Path, columns: Mapping[str, pa.DataType], perhaps: Mapping[str, pa.DataType] | None = None
) -> pa.Table | None:
    """The named columns of a parquet file, and those that it ``perhaps`` has, all rows with a value in each; None when
    there is no such file.
    """
    if not expect_plain(path):
        return None
    try:
        # Opened here: given a path, pyarrow first looks for a file system that it may be of, which takes longer.
        with pa.OSFile(str(path)) as source, _opened(source, columns, perhaps or {}) as (file, wanted):
            table = file.read(columns=wanted, use_threads=False)
        _expect_filled(table)
    except _UNREADABLE as error:
        raise StoreError(
            f"is damaged: {_in_a_line(error)}",
            where=str(path),
            remedy="restore it from a copy, or delete the file: its trial is then shown without these data",
        ) from error
    return table


_UNREADABLE = (pa.ArrowException, OSError, ValueError)


def _in_a_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def why_unreadable(name: str, data: bytes, *, is_open: bool) -> str:
    """Why these bytes could not be read as one of ``TABLES``, of an open loop's trial or another; "" where they can be.

    They may be anybody's: all rows are looked at, and few at a time.
    """
    columns, perhaps = TABLES[name]
    if is_open and name == "requests":
        columns = {**columns, **perhaps}
    try:
        with pa.BufferReader(data) as source, _opened(source, columns, perhaps) as (file, wanted):
            for batch in file.iter_batches(columns=wanted, use_threads=False):
                _expect_filled(pa.Table.from_batches([batch]))
    except _UNREADABLE as error:
        return _in_a_line(error)
    return ""


@contextmanager
def _opened(
    source: pa.NativeFile, columns: Mapping[str, pa.DataType], perhaps: Mapping[str, pa.DataType]
) -> Iterator[tuple[pq.ParquetFile, list[str]]]:
    """The file, and the columns that are to be read of it. What is a column is looked at before it is read, and texts
    are read as codes and names: a file of a thousand bytes may hold a long text a million times.
    """
    with pq.ParquetFile(source, pre_buffer=False) as file:
        if file.metadata.num_rows > MOST_ROWS:
            raise pa.ArrowInvalid(f"it has {file.metadata.num_rows:,} rows, and no trial has")
        fields = file.schema_arrow
        held = dict(zip(fields.names, fields.types, strict=True))
        wanted = {**columns, **{name: kind for name, kind in perhaps.items() if name in held}}
        if len(held) < len(fields):
            raise pa.ArrowInvalid("it has columns of the same name")
        for name, kind in wanted.items():
            _expect_kind(name, held.get(name), kind)
        plain = [name for name in wanted if held[name] in _TEXTS]
        if not plain:
            yield file, list(wanted)
            return
    with pq.ParquetFile(source, pre_buffer=False, read_dictionary=plain) as file:
        yield file, list(wanted)


def _expect_kind(name: str, held: pa.DataType | None, kind: pa.DataType) -> None:
    if held is None:
        raise pa.ArrowInvalid(f"it has no column {name}")
    value = held.value_type if pa.types.is_dictionary(held) else held
    if value != kind and not (kind in _TEXTS and value in _TEXTS):
        raise pa.ArrowInvalid(f"column {name} holds {value}, not {kind}")


def _expect_filled(table: pa.Table) -> None:
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            raise pa.ArrowInvalid(f"column {name} has rows without a value")
        if pa.types.is_dictionary(column.type):
            for chunk in column.chunks:
                _expect_names(name, chunk)


def _expect_names(name: str, chunk: pa.DictionaryArray) -> None:
    """That no code points beyond the names, and these are text: pyarrow's own full check, in half its time."""
    chunk.validate()
    chunk.dictionary.validate(full=True)
    codes = chunk.indices.to_numpy()
    if len(codes) and not 0 <= codes.min() <= codes.max() < len(chunk.dictionary):
        raise pa.ArrowInvalid(f"column {name} holds a code that stands for nothing")


def _series(table: pa.Table, wanted: frozenset[tuple[str, str]] | None) -> dict[tuple[str, str], Series]:
    source, source_names = codes(table["source"])
    counter, counter_names = codes(table["counter"])
    t_ns, value = table["t_ns"].to_numpy(), table["value"].to_numpy()
    found: dict[tuple[str, str], Series] = {}
    if wanted is not None:  # of a trial's counters few are: to sort them all takes longer than to read them
        for one, other in wanted:
            if one in source_names and other in counter_names:
                mine = (source == source_names.index(one)) & (counter == counter_names.index(other))
                rows = np.flatnonzero(mine)
                if len(rows):
                    found[one, other] = _in_time(t_ns[rows], value[rows])
        return found
    key = source * np.int64(len(counter_names)) + counter
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if len(order) else ():
        first = rows[0]
        found[source_names[source[first]], counter_names[counter[first]]] = _in_time(t_ns[rows], value[rows])
    return found


def _in_time(t_ns: Integers, value: Integers) -> Series:
    """A series as it was read; in the order of time, where it was not written so."""
    if (t_ns[1:] < t_ns[:-1]).any():
        order = np.argsort(t_ns, kind="stable")
        t_ns, value = t_ns[order], value[order]
    return Series(t_ns, value)


def codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], list[str]]:
    """A string column as integer codes and the names they stand for."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if column.num_chunks == 0:
        return np.array([], np.int32), []
    if column.num_chunks > 1:
        column = column.unify_dictionaries()
    each = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in column.chunks]
    whole = each[0] if len(each) == 1 else np.concatenate(each)
    return whole, column.chunk(0).dictionary.to_pylist()
