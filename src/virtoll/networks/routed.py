"""A point-to-point link, and a host route to the instance."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.lab.base import INSTANCE_GATEWAY, Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.wires import Link, linked, quick_neighbours, tried, tryable
from virtoll.offers import Port


class RoutedNetwork(NetworkMode):
    """Neither bridge nor translation, as OpenVZ's venet and the papers' Docker (Routed)."""

    name = "routed"
    summary = "the least wiring that all platforms have: a link and a route (Calico); compare these first"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth", "tap", "vif")

    def check(self, host: Host, kind: Kind) -> list[Problem]:
        """Tries it."""
        return tried(host, self.name, commands(tryable(kind), Link()))

    def attach(self, lab: Lab, kind: Kind, ports: tuple[Port, ...]) -> AbstractContextManager[Attachment]:
        """The link and the route."""
        return linked(lab, self.name, kind, ports, commands(kind, Link(lab.slot)), point_to_point=True)


def commands(kind: Kind, link: Link) -> list[str]:
    """`ip` commands for the link, the gateway's address on its near end, and a route to the instance through it.

    Every slot's link has the same gateway: it is the SUT, whichever link an instance sees it through.
    """
    return [
        *link.commands(kind),
        quick_neighbours(link.host_side),
        f"addr add {INSTANCE_GATEWAY}/32 dev {link.host_side}",
        f"route add {link.address}/32 dev {link.host_side} src {INSTANCE_GATEWAY}",
    ]
