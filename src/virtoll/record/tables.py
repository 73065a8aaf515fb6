"""The tables of a trial, and the parquet files that they become. Whoever reads or plans needs neither of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

# Columns of which a file holds few different values. The others are written as steps from row to row.
_FEW = ("window", "status", "t_ns", "source", "counter")


def packed(table: pa.Table) -> memoryview:
    """The bytes of a parquet file: what a report reads of every trial, so in what is read fastest and is no larger.

    No column has rows without a value, and says so: a reader then need not decode which rows have one. ValueError
    where one has.
    """
    whole = pa.schema([field.with_nullable(False) for field in table.schema])
    few = [name for name in table.column_names if name in _FEW]
    steps = {name: "DELTA_BINARY_PACKED" for name in table.column_names if name not in _FEW}
    into = pa.BufferOutputStream()
    pq.write_table(table.cast(whole), into, compression="snappy", use_dictionary=few, column_encoding=steps)
    return memoryview(into.getvalue())


def packed_tight(table: pa.Table) -> memoryview:
    """The same rows in fewer bytes, for what is to be kept; it takes longer to write."""
    numbers = [name for name in table.column_names if pa.types.is_integer(table.schema.field(name).type)]
    repeated = [name for name in table.column_names if name not in numbers]
    if repeated:  # samples: those of one look have the same time
        repeated += [name for name in numbers if name == "t_ns"]
        numbers.remove("t_ns")
    into = pa.BufferOutputStream()
    pq.write_table(
        table,
        into,
        compression="zstd",
        compression_level=19,
        use_dictionary=repeated,
        column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        write_statistics=False,
        store_schema=False,
    )
    return memoryview(into.getvalue())


def histogram_table(histogram: list[tuple[int, int, int]]) -> pa.Table:
    """latency.parquet: (lower_ns, upper_ns, count) rows."""
    columns = zip(*histogram, strict=True) if histogram else ((), (), ())
    names = ("lower_ns", "upper_ns", "count")
    return pa.table({name: pa.array(column, pa.int64()) for name, column in zip(names, columns, strict=True)})


def histograms_table(windows: Sequence[list[tuple[int, int, int]]]) -> pa.Table:
    """latency.parquet of several windows: the same rows of each, with its number, from 1."""
    rows = np.array([row for histogram in windows for row in histogram], np.int64).reshape(-1, 3)
    number = np.repeat(np.arange(1, len(windows) + 1), [len(histogram) for histogram in windows])
    return pa.table({"window": number, "lower_ns": rows[:, 0], "upper_ns": rows[:, 1], "count": rows[:, 2]})


def requests_table(
    intended_ns: NDArray[np.int64],
    latency_ns: NDArray[np.int64],
    status: NDArray[np.int16],
    late_ns: NDArray[np.int64] | None = None,
) -> pa.Table:
    """requests.parquet: one row a logged request, whatever the load asks for; ``late_ns`` of an open loop."""
    columns = {"intended_ns": intended_ns, "latency_ns": latency_ns, "status": status}
    return pa.table(columns if late_ns is None else {**columns, "late_ns": late_ns})


def samples_table(rows: list[tuple[int, str, str, int]]) -> pa.Table:
    """outside.parquet and inside.parquet: (t_ns, source, counter, value) rows."""
    times, sources, counters, values = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table(
        {
            "t_ns": pa.array(times, pa.int64()),
            "source": pa.array(sources, pa.string()).dictionary_encode(),
            "counter": pa.array(counters, pa.string()).dictionary_encode(),
            "value": pa.array(values, pa.int64()),
        }
    )
