"""What it costs to touch memory for the first time: page faults, a cost of their own in every other figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.probes.base import Timed
from virtoll.probes.memory import HUGE_PAGE_BYTES, MIB, PAGE_BYTES, Pages, size_problems
from virtoll.probes.native import NativeProbe
from virtoll.record.model import Quantity
from virtoll.study.limits import Limits
from virtoll.units import within


@dataclass(frozen=True)
class FirstTouchSettings(Timed):
    """A block is mapped, touched page by page and unmapped, over and over; never touched before, by definition."""

    block_bytes: int = within(64 * MIB, least=PAGE_BYTES)
    pages: Pages = "small"


class FirstTouch(NativeProbe):
    """The page fault on fresh anonymous memory, for each 4 KiB; and unmapping it again."""

    name: ClassVar[str] = "first-touch"
    summary: ClassVar[str] = "programs that allocate much: what the first touch of a fresh page costs"
    quantities: ClassVar[dict[str, Quantity]] = {
        "fault_ns": Quantity("First touch of a page", "ns/4 KiB", "less"),
        "unmap_ns": Quantity("Unmapping a page", "ns/4 KiB", "less"),
    }
    headline: ClassVar[str] = "fault_ns"
    Settings: ClassVar[type[FirstTouchSettings]] = FirstTouchSettings
    settings: FirstTouchSettings

    def check(self, limits: Limits) -> list[Problem]:
        """The block must fit the memory and consist of whole pages."""
        page_bytes = HUGE_PAGE_BYTES if self.settings.pages == "huge" else PAGE_BYTES
        return size_problems(self.name, ("block", self.settings.block_bytes), 1, page_bytes, limits)
