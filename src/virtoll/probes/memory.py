"""Memory bandwidth by block size, as the figure of RAMspeed; and what the memory probes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll.errors import Problem
from virtoll.probes.base import Timed
from virtoll.probes.native import NativeProbe
from virtoll.record.model import Quantity
from virtoll.study.limits import Limits
from virtoll.units import within

Isa = Literal["auto", "sse2", "avx2", "avx512"]  # of the vector instructions; auto: the widest that is shown inside
Pages = Literal["small", "huge"]  # of 4 KiB, or transparent ones of 2 MiB

MIB = 1024**2
PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 * MIB
_SHARE = 0.8  # of the instance's memory: the rest is for the system, the agent and page tables
_STEP_BYTES = 1024  # rust/probe/src/memory/sweeps.rs


def size_problems(probe: str, size: tuple[str, int], count: int, step_bytes: int, limits: Limits) -> list[Problem]:
    """What is wrong with ``count`` blocks or arrays of ``size`` (its key and bytes) in an instance of these limits."""
    key, size_bytes = size
    where = f"probe {probe}, {key}"
    if size_bytes % step_bytes:
        nearest = max(1, size_bytes // step_bytes) * step_bytes
        return [Problem(f"{size_bytes} B is no multiple of {step_bytes} B", where, f"choose for example {nearest} B")]
    room_bytes = int(limits.memory_bytes * _SHARE)
    if size_bytes * count <= room_bytes:
        return []
    largest = room_bytes // count // step_bytes * step_bytes
    what = f"{count} x {size_bytes} B do not fit: {room_bytes} B of [limits] memory may be used"
    remedy = f"choose at most {largest} B" if largest else "choose fewer threads, or raise [limits] memory"
    return [Problem(what, where, remedy)]


@dataclass(frozen=True)
class MemorySettings(Timed):
    """Each of ``threads`` (none: one for each CPU it sees) reads or writes a block of its own with one ``unit``."""

    block_bytes: int = within(64 * MIB, least=_STEP_BYTES)
    operation: Literal["read", "write"] = "read"
    unit: Literal["float", "integer", "vector"] = "float"
    isa: Isa = "auto"  # of unit "vector"
    threads: int | None = within(None, least=1, most=1024)
    pages: Pages = "small"


class Memory(NativeProbe):
    """The bandwidth of caches and memory, by the size of the block that is swept."""

    name: ClassVar[str] = "memory"
    summary: ClassVar[str] = "caches against memory: bandwidth by block size, reading or writing"
    quantities: ClassVar[dict[str, Quantity]] = {
        "bandwidth_mb_per_s": Quantity("Memory bandwidth", "MB/s", "more"),
    }
    headline: ClassVar[str] = "bandwidth_mb_per_s"
    Settings: ClassVar[type[MemorySettings]] = MemorySettings
    settings: MemorySettings

    def check(self, limits: Limits) -> list[Problem]:
        """All blocks must fit the memory; a block consists of whole rows of accesses."""
        threads = self.settings.threads or limits.vcpus
        size = ("block", self.settings.block_bytes)
        return size_problems(self.name, size, threads, _STEP_BYTES, limits)
