"""A cache thrash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from virtoll.aggressors import base
from virtoll.aggressors.base import Aggressor, Caps
from virtoll.errors import Problem
from virtoll.study.limits import Limits
from virtoll.units import within


@dataclass(frozen=True)
class CacheCaps(Caps):
    """Each thread writes over ``block`` of its own; 0 threads is one for each CPU that the neighbour may use."""

    threads: int = within(0, least=0, most=1024)
    block_bytes: int = within(64 * 1024**2, least=64 * 1024, most=4 * 1024**3)


class Cache(Aggressor):
    """Writes to one word of each cache line of more memory than the caches hold, over and over."""

    name: ClassVar[str] = "cache"
    summary: ClassVar[str] = "a noisy neighbour that no limit sees: sweeps the shared caches and the memory bus"
    counts: ClassVar[tuple[str, ...]] = ("lines", "sweeps", "refused")
    Settings: ClassVar[type[CacheCaps]] = CacheCaps
    settings: CacheCaps

    def check(self, limits: Limits) -> list[Problem]:
        """Its blocks fit the memory, for this is not the memory bomb; its threads the limit of processes."""
        settings = self.settings
        threads = settings.threads or limits.vcpus
        return [
            *base.too_much_memory(self.name, threads * settings.block_bytes, limits),
            *base.too_many_threads(self.name, threads, limits),
        ]
