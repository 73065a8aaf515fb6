"""A storm of wakeups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from virtoll.aggressors import base
from virtoll.aggressors.base import Aggressor, Caps
from virtoll.errors import Problem
from virtoll.study.limits import Limits
from virtoll.units import within


@dataclass(frozen=True)
class TimerCaps(Caps):
    """``threads`` that each sleep for ``interval`` and do nothing else."""

    threads: int = within(32, least=1, most=1024)
    interval_ns: int = within(50_000, least=1_000, most=999_999_999)


class Timer(Aggressor):
    """Timers, their interrupts, and the switches to and from threads that at once sleep again."""

    name: ClassVar[str] = "timer"
    summary: ClassVar[str] = "a neighbour with a thousand timers: wakeups, which limits on CPU time hardly see"
    counts: ClassVar[tuple[str, ...]] = ("wakeups", "refused")
    Settings: ClassVar[type[TimerCaps]] = TimerCaps
    settings: TimerCaps

    def check(self, limits: Limits) -> list[Problem]:
        """Its threads are within the limit of processes."""
        return base.too_many_threads(self.name, self.settings.threads, limits)
