"""How much goes to or from the instance: Netperf's TCP_STREAM and UDP_STREAM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll.errors import Problem
from virtoll.offers import Port
from virtoll.probes import peers
from virtoll.probes.base import Place, Probe, ProbeResult
from virtoll.record.model import Quantity
from virtoll.study.limits import Limits
from virtoll.units import within

_LEAST_DATAGRAM_BYTES = 16  # a datagram says which it is; rust/probe/src/network/datagrams.rs


@dataclass(frozen=True)
class BulkSettings(peers.Networked):
    """``direction``: into the instance or out of it. ``size``: of one send; none: 128 KiB over TCP, 1,470 B over UDP.
    ``segmentation``: the kernel cuts the datagrams (UDP_SEGMENT)."""

    protocol: Literal["tcp", "udp"] = "tcp"
    direction: Literal["in", "out"] = "in"
    size_bytes: int | None = within(None, least=1, most=peers.MOST_MESSAGE_BYTES)
    segmentation: Literal["no", "yes"] = "no"

    @property
    def window_ns(self) -> int | None:
        """None of datagrams: those that are lost take no time where the others arrive, so a flood may be over soon."""
        return None if self.protocol == "udp" else super().window_ns


class Bulk(Probe):
    """As fast as it goes, one way, counted where it arrives."""

    name: ClassVar[str] = "bulk"
    summary: ClassVar[str] = "big transfers, small packets: TCP throughput, UDP packets a second and loss, in or out"
    quantities: ClassVar[dict[str, Quantity]] = {
        "throughput_mbit_per_s": Quantity("Network throughput", "Mbit/s", "more"),
        "packets_per_s": Quantity("Packets", "/s", "more"),
        "lost_percent": Quantity("Datagrams lost", "%", None),
    }
    headline: ClassVar[str] = "throughput_mbit_per_s"
    ports: ClassVar[tuple[Port, ...]] = peers.PORTS
    runs_anywhere: ClassVar[bool] = True
    counts_losses: ClassVar[bool] = True
    Settings: ClassVar[type[BulkSettings]] = BulkSettings
    settings: BulkSettings

    def check(self, limits: Limits) -> list[Problem]:  # noqa: ARG002
        """A datagram has its least and largest size, and a stream has none to cut."""
        settings = self.settings
        problems = []
        if settings.size_bytes is not None:
            problems += peers.too_large(settings.protocol, settings.size_bytes)
            if settings.protocol == "udp" and settings.size_bytes < _LEAST_DATAGRAM_BYTES:
                what = f"a datagram of {settings.size_bytes} B has no room for its number"
                problems.append(Problem(what, "size", f"choose {_LEAST_DATAGRAM_BYTES} B or more"))
        if settings.protocol == "tcp" and settings.segmentation == "yes":
            problems.append(Problem("a stream has no datagrams to cut", "segmentation", "leave it out, or choose udp"))
        return problems

    def run(self, place: Place) -> ProbeResult:
        """See `peers.measure`."""
        return peers.measure(place, self.name, self.settings, self.settings.protocol)
