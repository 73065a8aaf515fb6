"""The latency of memory: a load that must wait for the one before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.probes.base import Timed
from virtoll.probes.memory import MIB, Pages, size_problems
from virtoll.probes.native import NativeProbe
from virtoll.record.model import Quantity
from virtoll.study.limits import Limits
from virtoll.units import within

_LINE_BYTES = 64


@dataclass(frozen=True)
class MemoryLatencySettings(Timed):
    """Pointers through every cache line of a block, in an order that follows from ``seed``."""

    block_bytes: int = within(64 * MIB, least=2 * _LINE_BYTES)
    pages: Pages = "small"
    seed: int = within(1, least=0)


class MemoryLatency(NativeProbe):
    """What a load costs that neither prefetching nor overlap can hide; with small pages, the page walk too."""

    name: ClassVar[str] = "memory-latency"
    summary: ClassVar[str] = "databases, graphs, page-table cost: latency of a load by pointer chasing"
    quantities: ClassVar[dict[str, Quantity]] = {"load_ns": Quantity("Memory latency", "ns", "less")}
    headline: ClassVar[str] = "load_ns"
    Settings: ClassVar[type[MemoryLatencySettings]] = MemoryLatencySettings
    settings: MemoryLatencySettings

    def check(self, limits: Limits) -> list[Problem]:
        """The block must fit the memory and consist of whole lines."""
        return size_problems(self.name, ("block", self.settings.block_bytes), 1, _LINE_BYTES, limits)
