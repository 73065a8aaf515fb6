"""A flood of datagrams out of the neighbour."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from virtoll.aggressors.base import Aggressor, Caps, Place
from virtoll.networks.base import MOST_DATAGRAM_BYTES
from virtoll.units import within

_DISCARD_PORT = 9  # RFC 863: nobody listens there, and the answers to that are rationed by the kernel


@dataclass(frozen=True)
class FloodCaps(Caps):
    """Payloads of ``size``; ``rate`` of payload, where 0 is as fast as can be."""

    size_bytes: int = within(1470, least=1, most=MOST_DATAGRAM_BYTES)
    rate_bit_per_s: int = within(0, least=0)


class NetSend(Aggressor):
    """UDP to the generator's side, past the link that all instances share."""

    name: ClassVar[str] = "net-send"
    summary: ClassVar[str] = "an infected neighbour: floods the network from inside; do packets cost the others?"
    counts: ClassVar[tuple[str, ...]] = ("packets", "sent_bytes", "refused")
    Settings: ClassVar[type[FloodCaps]] = FloodCaps
    settings: FloodCaps

    def caps(self, place: Place) -> dict[str, Any]:
        """With where to send."""
        return {"peer": f"{place.target_address}:{_DISCARD_PORT}", **asdict(self.settings)}
