"""STREAM: sustained bandwidth of four kernels over long arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll.errors import Problem
from virtoll.probes.base import Timed
from virtoll.probes.memory import MIB, PAGE_BYTES, Isa, Pages, size_problems
from virtoll.probes.native import NativeProbe
from virtoll.record.model import Quantity
from virtoll.study.limits import Limits
from virtoll.units import within

_ARRAYS = 3


@dataclass(frozen=True)
class StreamSettings(Timed):
    """Three arrays of ``array_bytes``, shared by ``threads`` (none: one for each CPU it sees).

    McCalpin's rule asks for arrays of at least four times the last-level cache; the default fits 512 MiB of memory.
    """

    array_bytes: int = within(96 * MIB, least=PAGE_BYTES)
    kernel: Literal["triad", "add", "scale", "copy"] = "triad"
    stores: Literal["plain", "non-temporal"] = "plain"
    isa: Isa = "auto"
    threads: int | None = within(None, least=1, most=1024)
    pages: Pages = "small"


class Stream(NativeProbe):
    """copy, scale, add (sum) or triad, as McCalpin defines and counts them."""

    name: ClassVar[str] = "stream"
    summary: ClassVar[str] = "analytics, video: sustained memory bandwidth by STREAM's copy, scale, add, triad"
    quantities: ClassVar[dict[str, Quantity]] = {"bandwidth_mb_per_s": Quantity("STREAM", "MB/s", "more")}
    headline: ClassVar[str] = "bandwidth_mb_per_s"
    Settings: ClassVar[type[StreamSettings]] = StreamSettings
    settings: StreamSettings

    def check(self, limits: Limits) -> list[Problem]:
        """The arrays must fit the memory and consist of whole pages, one for each thread at least."""
        settings = self.settings
        threads = settings.threads or limits.vcpus
        if settings.array_bytes < threads * PAGE_BYTES:
            what = f"{settings.array_bytes} B are less than a page for each of {threads} threads"
            return [Problem(what, f"probe {self.name}, array", f"choose at least {threads * PAGE_BYTES} B")]
        return size_problems(self.name, ("array", settings.array_bytes), _ARRAYS, PAGE_BYTES, limits)
