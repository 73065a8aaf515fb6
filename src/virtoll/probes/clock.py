"""The instance's clock: what reading it costs, and how much of its time was stolen meanwhile."""

from __future__ import annotations

from typing import ClassVar

from virtoll.probes.native import NativeProbe
from virtoll.record.model import Quantity


class Clock(NativeProbe):
    """A paravirtual or emulated clock source makes each time stamp of a service dearer."""

    name: ClassVar[str] = "clock"
    summary: ClassVar[str] = "tracing, databases: what reading the clock costs, and how much time is stolen"
    quantities: ClassVar[dict[str, Quantity]] = {
        "read_ns": Quantity("Reading the clock", "ns", "less"),
        "steal_percent": Quantity("Stolen time", "%", None),
    }
    headline: ClassVar[str] = "read_ns"
