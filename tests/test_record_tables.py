"""A trial's parquet files: what is written comes back, no row lacks a value, and files as they were before are read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthetic import Recipe, write_run
from virtoll.analysis.load import Run, read_run
from virtoll.record.tables import histograms_table, packed, samples_table

_INT64 = st.integers(-(2**63), 2**63 - 1)
_NAMES = st.sampled_from(["instance", "host", "cpu.usage_ns", "näme", ""])


@given(st.lists(st.tuples(_INT64, _NAMES, _NAMES, _INT64)))
def test_samples_come_back_as_they_were_read(rows: list[tuple[int, str, str, int]]) -> None:
    back = pq.read_table(pa.BufferReader(pa.py_buffer(packed(samples_table(rows)))))
    assert [tuple(row.values()) for row in back.to_pylist()] == rows
    assert not any(field.nullable for field in back.schema)


@given(st.lists(st.lists(st.tuples(_INT64, _INT64, _INT64))))
def test_latencies_come_back_window_by_window(windows: list[list[tuple[int, int, int]]]) -> None:
    back = pq.read_table(pa.BufferReader(pa.py_buffer(packed(histograms_table(windows)))))
    assert [tuple(row.values()) for row in back.to_pylist()] == [
        (number, *row) for number, rows in enumerate(windows, 1) for row in rows
    ]


def test_a_row_without_a_value_is_not_written() -> None:
    with pytest.raises(ValueError, match="value"):
        packed(pa.table({"value": pa.array([1, None], pa.int64())}))


def test_a_file_of_optional_columns_and_zstandard_is_read_as_well(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", Recipe(blocks=2)))
    trial = run.records[0].trial.id
    before = _read(run, trial)
    for name in ("latency", "outside"):
        path = run.file(trial, f"{name}.parquet")
        table = pq.read_table(path)
        pq.write_table(table.cast(_optional(table.schema)), path, compression="zstd")
        assert all(field.nullable for field in pq.read_schema(path))
    assert _read(run, trial) == before


def _optional(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _read(run: Run, trial: str) -> tuple[list[list[int]], dict[tuple[str, str], list[list[int]]]]:
    """A trial's latencies and samples."""
    latencies = run.histogram(trial)
    assert latencies is not None
    series = run.samples(trial, "outside")
    return (
        [column.tolist() for column in (latencies.lower_ns, latencies.upper_ns, latencies.count)],
        {name: [each.t_ns.tolist(), each.value.tolist()] for name, each in series.items()},
    )
