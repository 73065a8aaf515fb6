"""A point-to-point link, and a host route to the instance."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.lab.base import INSTANCE_ADDRESS, INSTANCE_GATEWAY, Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.wires import HOST_SIDE, link_commands, linked, quick_neighbours, tried


class RoutedNetwork(NetworkMode):
    """Neither bridge nor translation, as OpenVZ's venet and the papers' Docker (Routed)."""

    name = "routed"
    summary = "a point-to-point link and a host route (OpenVZ's venet, Calico)"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth", "tap")

    def check(self, host: Host, kind: Kind) -> list[Problem]:
        """Tries it."""
        return tried(host, self.name, commands(kind))

    def attach(self, lab: Lab, kind: Kind, ports: tuple[int, ...]) -> AbstractContextManager[Attachment]:
        """The link and the route."""
        return linked(lab, self.name, kind, ports, commands(kind), point_to_point=True)


def commands(kind: Kind) -> list[str]:
    """`ip` commands for the link, the gateway's address on its near end, and a route to the instance through it."""
    return [
        *link_commands(kind),
        quick_neighbours(HOST_SIDE),
        f"addr add {INSTANCE_GATEWAY}/32 dev {HOST_SIDE}",
        f"route add {INSTANCE_ADDRESS}/32 dev {HOST_SIDE} src {INSTANCE_GATEWAY}",
    ]
