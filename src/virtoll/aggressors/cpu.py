"""Computing for ever on every CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from virtoll.aggressors import base
from virtoll.aggressors.base import Aggressor, Caps
from virtoll.errors import Problem
from virtoll.study.limits import Limits
from virtoll.units import within


@dataclass(frozen=True)
class CpuCaps(Caps):
    """``threads``: 0 is one for each CPU that the neighbour may use."""

    threads: int = within(0, least=0, most=1024)


class Cpu(Aggressor):
    """A hog: it takes all the CPU time that it can get."""

    name: ClassVar[str] = "cpu"
    summary: ClassVar[str] = "a busy neighbour: computes on every CPU; does the CPU limit hold?"
    counts: ClassVar[tuple[str, ...]] = ("cpu_ns", "refused")
    Settings: ClassVar[type[CpuCaps]] = CpuCaps
    settings: CpuCaps

    def check(self, limits: Limits) -> list[Problem]:
        """Its threads are within the limit of processes."""
        return base.too_many_threads(self.name, self.settings.threads or limits.vcpus, limits)
