"""The well-behaved neighbour: what sharing alone costs, without misbehaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from virtoll.aggressors import base
from virtoll.aggressors.base import Aggressor, Caps
from virtoll.errors import Problem
from virtoll.study.limits import Limits
from virtoll.units import within


@dataclass(frozen=True)
class PoliteCaps(Caps):
    """``share_percent`` of one undisturbed CPU in each period of 10 ms; ``held`` is memory that it reads in each."""

    share_percent: int = within(10, least=1, most=100)
    held_bytes: int = within(8 * 1024**2, least=0)


class Polite(Aggressor):
    """A small, steady share of one CPU and a little memory: the control."""

    name: ClassVar[str] = "polite"
    summary: ClassVar[str] = "the control: a neighbour that behaves well, to compare the others with"
    counts: ClassVar[tuple[str, ...]] = ("periods", "missed", "used_ns")
    Settings: ClassVar[type[PoliteCaps]] = PoliteCaps
    settings: PoliteCaps

    def check(self, limits: Limits) -> list[Problem]:
        """Its memory is well within the limit."""
        return base.too_much_memory(self.name, self.settings.held_bytes, limits)
