"""Making a record durable: what fsync or fdatasync after each write takes, as a database's log pays it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll.errors import Problem
from virtoll.probes.base import Timed
from virtoll.probes.disk import LEAST_RECORD_BYTES, MOST_RECORD_BYTES, size_problems
from virtoll.probes.native import NativeProbe
from virtoll.record.model import Quantity
from virtoll.study.limits import Limits
from virtoll.units import within


@dataclass(frozen=True)
class DiskSyncSettings(Timed):
    """``operation``: a file is made longer, or records of one that is there are overwritten round and round.

    Before Linux 6.5, ext4 without a journal (the guests' disk) passes a sync after overwriting on to no disk.
    """

    call: Literal["fdatasync", "fsync"] = "fdatasync"
    operation: Literal["append", "overwrite"] = "append"
    record_bytes: int = within(4096, least=LEAST_RECORD_BYTES, most=MOST_RECORD_BYTES)
    file_bytes: int = within(4 * 1024**2, least=LEAST_RECORD_BYTES)
    directory: str = "/var/tmp"


class DiskSync(NativeProbe):
    """One record, one sync, and again."""

    name: ClassVar[str] = "disk-sync"
    summary: ClassVar[str] = "databases that commit: one record made durable by fsync or fdatasync"
    Settings: ClassVar[type[DiskSyncSettings]] = DiskSyncSettings
    quantities: ClassVar[dict[str, Quantity]] = {
        "sync_us": Quantity("Sync of one record, mean", "us", "less"),
        "sync_p50_us": Quantity("Sync of one record, median", "us", "less"),
        "sync_p99_us": Quantity("Sync of one record, 99th percentile", "us", "less"),
        "syncs_per_s": Quantity("Records made durable", "/s", "more"),
    }
    headline: ClassVar[str] = "sync_us"

    def check(self, limits: Limits) -> list[Problem]:
        """Sizes that do not fit one another or the disk."""
        return size_problems(self.settings.record_bytes, self.settings.file_bytes, limits)
