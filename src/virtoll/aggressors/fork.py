"""A fork bomb."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from virtoll.aggressors.base import Aggressor, Caps, Place
from virtoll.study.limits import Limits
from virtoll.units import within

_TIMES = 4  # the cap, in limits: past the limit, and no further where nothing holds it
MOST_PROCESSES = 4096  # an eighth of the process numbers that a small machine has


@dataclass(frozen=True)
class ForkCaps(Caps):
    """``most_processes``: no more at a time, even where no limit is in force.

    *none*: four times the neighbour's limit, and 4096 at most.
    """

    most_processes: int | None = within(None, least=2, most=MOST_PROCESSES)


class Fork(Aggressor):
    """Every process makes further ones as fast as it can."""

    name: ClassVar[str] = "fork"
    summary: ClassVar[str] = "a runaway script: a fork bomb; does the limit of processes hold?"
    counts: ClassVar[tuple[str, ...]] = ("forks", "refused", "held_back", "died")
    Settings: ClassVar[type[ForkCaps]] = ForkCaps
    settings: ForkCaps

    def caps(self, place: Place) -> dict[str, Any]:
        """See `ForkCaps`."""
        return {"most_processes": self.most_processes(place.neighbour.limits)}

    def most_processes(self, limits: Limits) -> int:
        """The cap in force where an instance has these limits."""
        return self.settings.most_processes or min(_TIMES * limits.pids, MOST_PROCESSES)
