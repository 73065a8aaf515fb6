"""A run made small enough to be kept in a repository: `virtoll keep RUNDIR DIR`.

It is a run directory like any: plan and environment byte for byte, the records in gzip, each table of a trial with the
rows that the analysis reads, packed tighter. What it lacks is told in its kept.json, and beside whatever is made of it.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from virtoll import __version__
from virtoll.analysis import server, usage
from virtoll.analysis.load import TABLES, Run, codes, read_run
from virtoll.analysis.metrics import intensity_of
from virtoll.errors import StoreError
from virtoll.files import durable
from virtoll.files.confined import expect_plain, inside, read_bounded
from virtoll.record.model import KEPT, LEVELS, PROBE, Kept, TrialRecord
from virtoll.record.store import HOSTS, MOST_BYTES, MOST_PACKED_BYTES, PACKED_LOG, RunDirectory
from virtoll.record.tables import packed_tight

_ENVIRONMENT = "environment.json"
_DOCUMENTS = ("study.json", _ENVIRONMENT, "plan.json")
_OTHERS = ("looks.jsonl", KEPT)  # where there are some, and extension-N.json, and each host's environment
_SAMPLED = ("outside", "inside")
_LEFT_OUT = (
    "what the monitor sampled and the report computes nothing of (outside.parquet, inside.parquet)",
    "what virtoll, services and programs said (log.txt and other texts)",
    "trials that were begun and never sealed",
    "report/",
)
_Named = frozenset[tuple[str, str]]


def keep(directory: Path, target: Path) -> Kept:
    """Write the run in ``directory`` small to ``target``; what was left out.

    It gets its name when it is whole. StoreError where there is no run or something is there already.
    """
    run = read_run(directory)
    if os.path.lexists(target):
        raise StoreError("already exists", where=str(target), remedy="name a directory that is not there yet")
    begun = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(begun, ignore_errors=True)
        durable.make_directories(begun)
        kept = _write(run, begun)
        durable.rename_tree(begun, target)
    except OSError as error:
        remedy = "make room or give write permission; the run itself is untouched"
        raise StoreError(f"{error.strerror or error}", where=str(error.filename or target), remedy=remedy) from error
    finally:
        shutil.rmtree(begun, ignore_errors=True)
    return kept


def _write(run: Run, target: Path) -> Kept:
    for names in _documents(run):
        path = target.joinpath(*names)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(read_bounded(inside(run.directory, *names), MOST_BYTES))
    (target / PACKED_LOG).write_bytes(_packed_log(run))
    trials = target / "trials"
    trials.mkdir()
    for record in run.records:
        for name, table in _tables(run, record):
            directory = trials / record.trial.id
            directory.mkdir(exist_ok=True)  # none is empty: a repository would not hold it
            (directory / f"{name}.parquet").write_bytes(packed_tight(table))
    kept = Kept(virtoll=__version__, left_out=list(_LEFT_OUT))
    (target / KEPT).write_text(json.dumps(kept.model_dump(), indent=1) + "\n", encoding="utf-8")
    return kept


def _packed_log(run: Run) -> bytes:
    """The lines of the records that were read, in gzip. StoreError where one has come since: the run is still under
    way; and where they are more than is read of a copy.
    """
    packed, lines, size_bytes = io.BytesIO(), 0, 0
    with gzip.GzipFile("", "wb", fileobj=packed, mtime=0) as file:
        for line in RunDirectory(run.directory).lines():
            lines, size_bytes = lines + 1, size_bytes + file.write(line + b"\n")
            if size_bytes > MOST_PACKED_BYTES:
                what = f"is too long to be kept small: its records are more than {MOST_PACKED_BYTES / 1e6:,.0f} MB"
                raise StoreError(what, where=str(run.directory), remedy="keep the run itself, or its report")
    if lines != len(run.records):
        what = "a trial was sealed while it was read: the run is still under way"
        raise StoreError(what, where=str(run.directory), remedy="keep it when it has ended")
    return packed.getvalue()


def _documents(run: Run) -> Iterator[tuple[str, ...]]:
    """Their names, below the run's directory."""
    yield from ((name,) for name in _DOCUMENTS)
    extensions = sorted(path.name for path in run.directory.glob("extension-*.json"))
    hosts = sorted({trial.host for trial in run.plan.trials if trial.host})
    others = [*((name,) for name in (*_OTHERS, *extensions)), *((HOSTS, host, _ENVIRONMENT) for host in hosts)]
    yield from (names for names in others if expect_plain(inside(run.directory, *names)))


def _tables(run: Run, record: TrialRecord) -> Iterator[tuple[str, pa.Table]]:
    """What a trial has, of samples those series that the analysis reads."""
    read = _read(run, record)
    for name in TABLES:
        table = run.table(record.trial.id, name)
        if table is not None and name in _SAMPLED:
            table = _of(table, read[name])
        if table is not None and (table.num_rows or name not in _SAMPLED):
            yield name, table


def _read(run: Run, record: TrialRecord) -> dict[str, _Named]:
    """The series of a trial's samples, by source and counter, that a metric is made of."""
    condition, nothing = record.trial.condition, frozenset[tuple[str, str]]()
    if PROBE in condition:
        return {"outside": nothing, "inside": nothing}
    if intensity_of(condition) or LEVELS in run.given(condition):
        return {"outside": usage.OUTSIDE | server.OUTSIDE, "inside": usage.INSIDE | server.INSIDE}
    measured = record.measured
    in_turns = measured is not None and measured.knee is None and len(usage.of_one_level(measured)) > 1
    return {"outside": usage.OUTSIDE, "inside": nothing if in_turns else usage.INSIDE}


def _of(table: pa.Table, series: _Named) -> pa.Table:
    """The rows of these series, one series after the other: so they pack best."""
    source, sources = codes(table["source"])
    counter, counters = codes(table["counter"])
    parts = [
        table.filter(pa.array((source == sources.index(one)) & (counter == counters.index(other))))
        for one, other in sorted(series)
        if one in sources and other in counters
    ]
    return pa.concat_tables(parts) if parts else table.slice(0, 0)
