"""How late a timer wakes its sleeper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from virtoll.probes.base import Timed
from virtoll.probes.native import NativeProbe
from virtoll.record.model import Quantity
from virtoll.units import within


@dataclass(frozen=True)
class TimerSettings(Timed):
    """A wake every ``interval_ns``."""

    interval_ns: int = within(1_000_000, least=10_000, most=1_000_000_000)


class Timer(NativeProbe):
    """Absolute sleeps as an ordinary process makes them (SCHED_OTHER), in the manner of cyclictest."""

    Settings = TimerSettings
    name: ClassVar[str] = "timer"
    summary: ClassVar[str] = "audio, control, packet pacing: how late a sleeping process is woken"
    quantities: ClassVar[dict[str, Quantity]] = {
        "lateness_p50_us": Quantity("Timer lateness, median", "us", "less"),
        "lateness_p99_us": Quantity("Timer lateness, 99th percentile", "us", "less"),
        "lateness_max_us": Quantity("Timer lateness, longest", "us", None),
    }
    headline: ClassVar[str] = "lateness_p50_us"
