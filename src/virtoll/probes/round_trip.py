"""How long the instance takes to answer: Netperf's TCP_RR and UDP_RR."""

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


@dataclass(frozen=True)
class RoundTripSettings(peers.Networked):
    """Request and answer are ``size`` each. A datagram that is not back after ``lost_after`` counts as lost; more than
    ``most_lost_percent`` of them fail a check."""

    protocol: Literal["tcp", "udp"] = "tcp"
    size_bytes: int = within(1, least=1, most=peers.MOST_MESSAGE_BYTES)
    wait: Literal["block", "spin"] = "block"
    lost_after_ns: int = within(10**9, least=1_000_000)
    most_lost_percent: float = within(0.1, least=0, most=100)


class RoundTrip(Probe):
    """One message out, the same back, one under way at a time; timed by the generator's side."""

    name: ClassVar[str] = "round-trip"
    summary: ClassVar[str] = "chatty protocols (SQL, RPC, DNS): round trips and transactions a second, TCP or UDP"
    quantities: ClassVar[dict[str, Quantity]] = {
        "round_trip_p50_us": Quantity("Round trip, median", "us", "less"),
        "round_trip_p99_us": Quantity("Round trip, 99th percentile", "us", "less"),
        "round_trip_mean_us": Quantity("Round trip, mean", "us", "less"),
        "transactions_per_s": Quantity("Transactions", "/s", "more"),
        "lost_percent": Quantity("Datagrams lost", "%", None),
    }
    headline: ClassVar[str] = "round_trip_p50_us"
    ports: ClassVar[tuple[Port, ...]] = peers.PORTS
    runs_anywhere: ClassVar[bool] = True
    Settings: ClassVar[type[RoundTripSettings]] = RoundTripSettings
    settings: RoundTripSettings

    def check(self, limits: Limits) -> list[Problem]:  # noqa: ARG002
        """A datagram has its largest size."""
        return peers.too_large(self.settings.protocol, self.settings.size_bytes)

    def run(self, place: Place) -> ProbeResult:
        """See `peers.measure`."""
        return peers.measure(place, self.name, self.settings, self.settings.protocol)
