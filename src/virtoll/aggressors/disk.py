"""Storms on the disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll.aggressors.base import Aggressor, Caps
from virtoll.errors import Problem
from virtoll.study.limits import Limits
from virtoll.units import format_bytes, within

_SHARE = 0.75  # of the disk; the rest is for the log, and for whatever the image writes


@dataclass(frozen=True)
class DiskCaps(Caps):
    """``most``: of what lies on the disk; it is written over and over in place. *both*: half of it each."""

    kind: Literal["both", "fsync", "sequential"] = "both"
    most_bytes: int = within(64 * 1024**2, least=2 * 1024**2)
    directory: str = "/var/tmp"


class Disk(Aggressor):
    """Blocks of 4 KiB that must each reach the disk, and blocks of 1 MiB without end."""

    name: ClassVar[str] = "disk"
    summary: ClassVar[str] = "a neighbour's backup or database: fsyncs and writes without end on the shared disk"
    counts: ClassVar[tuple[str, ...]] = ("written_bytes", "syncs", "refused")
    Settings: ClassVar[type[DiskCaps]] = DiskCaps
    settings: DiskCaps

    def check(self, limits: Limits) -> list[Problem]:
        """Its files fit the disk: what is to be seen is the wait for it, not its end."""
        need, room = self.settings.most_bytes, int(_SHARE * limits.disk_bytes)
        if need <= room:
            return []
        what = f"files of {format_bytes(need)} leave too little of a disk of {format_bytes(limits.disk_bytes)}"
        return [Problem(what, f"aggressor {self.name}", f"choose at most {format_bytes(room)}")]
