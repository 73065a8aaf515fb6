"""What the native generator (`virtoll.loads.native`) writes of single requests, read for the record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# One request of the log, packed little-endian; rust/load/src/log.rs is the definition.
_RECORD = np.dtype([("intended_ns", "<i8"), ("latency_ns", "<i8"), ("status", "<i2"), ("late_ns", "<i8")])


@dataclass(frozen=True)
class RequestLog:
    """The columns of requests.parquet, a row a logged request, by intended start since the window's start.

    Status is HTTP's, and 0 where the protocol has none; negative where none tells what went wrong: -1 connect,
    -2 timeout, -3 reset, -4 status (Redis), -5 length, -6 parse, -7 unfinished, -8 TLS, -9 content. The latency of a
    failed request runs to the moment it failed.
    ``late_ns``: how long it waited for the generator itself, -1 where it was never sent; closed loop: 0, for nothing is
    ever due there.
    """

    intended_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    status: NDArray[np.int16]
    late_ns: NDArray[np.int64]


def read_request_log(path: Path) -> RequestLog:
    """Read what the generator wrote (rust/load/src/log.rs)."""
    records = np.fromfile(path, dtype=_RECORD)
    return RequestLog(
        records["intended_ns"].astype(np.int64),
        records["latency_ns"].astype(np.int64),
        records["status"].astype(np.int16),
        records["late_ns"].astype(np.int64),
    )
