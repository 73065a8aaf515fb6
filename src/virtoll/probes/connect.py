"""How fast connections to the instance are made: Netperf's TCP_CRR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from virtoll.offers import Port
from virtoll.probes import peers
from virtoll.probes.base import Place, Probe, ProbeResult
from virtoll.record.model import Quantity
from virtoll.units import within


@dataclass(frozen=True)
class ConnectSettings(peers.Networked):
    """Message and answer of each connection are ``size`` each."""

    size_bytes: int = within(1, least=1, most=peers.MOST_MESSAGE_BYTES)


class Connect(Probe):
    """Connect, one message and its answer, close; one connection at a time."""

    name: ClassVar[str] = "connect"
    summary: ClassVar[str] = "short connections (HTTP without keep-alive): TCP connections a second"
    quantities: ClassVar[dict[str, Quantity]] = {
        "connections_per_s": Quantity("Connections", "/s", "more"),
        "connection_p50_us": Quantity("Connection with an answer, median", "us", "less"),
        "connection_p99_us": Quantity("Connection with an answer, 99th percentile", "us", "less"),
    }
    headline: ClassVar[str] = "connections_per_s"
    ports: ClassVar[tuple[Port, ...]] = (Port(peers.PORT),)
    runs_anywhere: ClassVar[bool] = True
    Settings: ClassVar[type[ConnectSettings]] = ConnectSettings
    settings: ConnectSettings

    def run(self, place: Place) -> ProbeResult:
        """See `peers.measure`."""
        return peers.measure(place, self.name, self.settings, "tcp")
