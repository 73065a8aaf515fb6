"""Reading and writing a file: the IOzone figures, record by record, cached or direct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll.errors import Problem
from virtoll.probes.base import Timed
from virtoll.probes.native import NativeProbe
from virtoll.record.model import Quantity
from virtoll.study.limits import Limits
from virtoll.units import format_bytes, within

LEAST_RECORD_BYTES = 512
MOST_RECORD_BYTES = 16 * 1024**2
_DIRECT_RECORD_BYTES = 4096  # a disk whose sectors are of 4096 B takes nothing smaller past the page cache
_OTHER_BUFFERS = 3  # of a record, besides one for each that is under way
_BUFFERS_SHARE = 0.5  # of the memory; the rest is for the page cache and whatever else runs


@dataclass(frozen=True)
class DiskSettings(Timed):
    """``sync``: *end* has a pass of writing end with fsync inside the measured time, as IOzone's ``-e`` does."""

    operation: Literal["write", "rewrite", "read", "reread", "random-read", "random-write"] = "write"
    record_bytes: int = within(64 * 1024, least=LEAST_RECORD_BYTES, most=MOST_RECORD_BYTES)
    file_bytes: int = within(64 * 1024**2, least=LEAST_RECORD_BYTES)
    engine: Literal["sync", "uring"] = "sync"
    depth: int = within(1, least=1, most=4096)
    direct: Literal["no", "yes"] = "no"
    sync: Literal["end", "none"] = "end"
    directory: str = "/var/tmp"


def size_problems(record_bytes: int, file_bytes: int, limits: Limits) -> list[Problem]:
    """What is wrong with these sizes; of a file that does not fit, the largest that does."""
    if record_bytes & (record_bytes - 1):
        return [Problem(f"{format_bytes(record_bytes)} is no power of two", "record", "choose e.g. 64 KiB")]
    problems = []
    if file_bytes % record_bytes:
        what = f"a file of {format_bytes(file_bytes)} is no whole number of records of {format_bytes(record_bytes)}"
        problems.append(Problem(what, "file", "choose a multiple of the record"))
    if file_bytes > limits.disk_bytes:
        largest = limits.disk_bytes // record_bytes * record_bytes
        what = f"a file of {format_bytes(file_bytes)} does not fit a disk of {format_bytes(limits.disk_bytes)}"
        fits = f"the largest that fits is {format_bytes(largest)}" if largest else "choose smaller records"
        remedy = f"{fits}; or raise disk in [limits]"
        problems.append(Problem(what, "file", remedy))
    return problems


class Disk(NativeProbe):
    """One operation over one file; the six of them make the IOzone figure."""

    name: ClassVar[str] = "disk"
    summary: ClassVar[str] = "file servers, backups: a file read and written, in order or at random, cached or direct"
    Settings: ClassVar[type[DiskSettings]] = DiskSettings
    quantities: ClassVar[dict[str, Quantity]] = {
        "throughput_mb_per_s": Quantity("Disk throughput", "MB/s", "more"),
        "operations_per_s": Quantity("Disk operations", "/s", "more"),
        "latency_us": Quantity("Disk latency, mean", "us", "less"),
        "latency_p50_us": Quantity("Disk latency, median", "us", "less"),
        "latency_p99_us": Quantity("Disk latency, 99th percentile", "us", "less"),
    }
    headline: ClassVar[str] = "throughput_mb_per_s"

    def check(self, limits: Limits) -> list[Problem]:
        """Sizes that do not fit one another, the disk or the memory."""
        own: DiskSettings = self.settings
        problems = size_problems(own.record_bytes, own.file_bytes, limits)
        if own.direct == "yes" and own.record_bytes < _DIRECT_RECORD_BYTES:
            what = f"direct needs records of at least {format_bytes(_DIRECT_RECORD_BYTES)}"
            problems.append(Problem(what, "record", 'choose larger ones, or direct = "no"'))
        if own.depth > 1 and own.engine == "sync":
            what = f"engine sync has one record under way at a time, depth is {own.depth}"
            problems.append(Problem(what, "depth", 'choose engine = "uring", or depth = 1'))
        if own.depth > own.file_bytes // own.record_bytes:
            problems.append(Problem(f"a file of fewer than {own.depth} records", "depth", "choose a larger file"))
        most = int(limits.memory_bytes * _BUFFERS_SHARE) // own.record_bytes - _OTHER_BUFFERS
        if own.depth > most:
            what = f"{own.depth + _OTHER_BUFFERS} buffers of a record are more than half of the memory"
            remedy = f"the greatest depth that fits is {most}" if most > 0 else "choose smaller records"
            problems.append(Problem(what, "depth", remedy))
        return problems
