"""A flood of datagrams into the neighbour."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from virtoll.aggressors.base import Aggressor, AggressorError, Caps, Place, arguments
from virtoll.networks.base import MOST_DATAGRAM_BYTES
from virtoll.offers import Port
from virtoll.units import within


@dataclass(frozen=True)
class ReceiveCaps(Caps):
    """Payloads of ``size`` to ``port``; ``rate`` of payload, where 0 is as fast as the generator's side can."""

    port: int = within(5209, least=1, most=65535)
    size_bytes: int = within(1470, least=1, most=MOST_DATAGRAM_BYTES)
    rate_bit_per_s: int = within(300 * 10**6, least=0)


class NetReceive(Aggressor):
    """A neighbour that others flood: the generator's side sends, it takes what comes."""

    name: ClassVar[str] = "net-receive"
    summary: ClassVar[str] = "a neighbour under attack: flooded from outside; does the host's network suffer?"
    counts: ClassVar[tuple[str, ...]] = ("packets", "received_bytes")
    Settings: ClassVar[type[ReceiveCaps]] = ReceiveCaps
    settings: ReceiveCaps

    def caps(self, place: Place) -> dict[str, Any]:
        """AggressorError where the flood does not reach the neighbour, whose ports nobody asks for."""
        attachment, port = place.neighbour.attachment, Port(self.settings.port, "udp")
        if not attachment.reaches(port):
            raise AggressorError(
                f"network mode {attachment.mode!r} does not bring {port} to this instance",
                where=f"aggressor {self.name}",
                remedy="attach the instance with an address of its own: host, bridge or routed",
            )
        return {"port": self.settings.port, "size_bytes": self.settings.size_bytes}

    def flood(self, place: Place, duration_ns: int) -> list[str]:
        """What sends."""
        flood = asdict(self.settings)
        target = f"{place.neighbour.attachment.endpoint_address}:{flood.pop('port')}"
        return arguments("net-send", duration_ns, {"peer": target, **flood})
