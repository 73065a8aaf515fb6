"""A memory bomb."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from virtoll.aggressors.base import Aggressor, Caps, Place
from virtoll.units import within

_TIMES = 2  # the cap, in limits: past the limit, and no further where nothing holds it


@dataclass(frozen=True)
class MemoryCaps(Caps):
    """``most``: no more is held, even where no limit is in force; *none*: twice the neighbour's memory."""

    most_bytes: int | None = within(None, least=1024**2, most=64 * 1024**3)


class Memory(Aggressor):
    """Takes memory without end, all of it written; killed for it, it begins again."""

    name: ClassVar[str] = "memory"
    summary: ClassVar[str] = "a neighbour that leaks: takes memory without end; who is killed, who is reclaimed?"
    counts: ClassVar[tuple[str, ...]] = ("touched_bytes", "held_bytes", "refused")
    Settings: ClassVar[type[MemoryCaps]] = MemoryCaps
    settings: MemoryCaps

    def caps(self, place: Place) -> dict[str, Any]:
        """See `MemoryCaps`."""
        most_bytes = self.settings.most_bytes
        return {"most_bytes": most_bytes or _TIMES * place.neighbour.limits.memory_bytes}
