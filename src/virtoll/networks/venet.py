"""OpenVZ's venet on a mainline kernel: a route to the instance over a device that knows no neighbours."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.lab.base import Lab
from virtoll.networks import routed
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.wires import Link, linked, tried
from virtoll.offers import Port


class VenetNetwork(NetworkMode):
    """The routed mode without ARP: venet is a point-to-point device whose packets have no link-layer address.

    On a veth, that is one address for both ends (what comes is then for whoever it comes to) and no ARP on either.
    """

    name = "venet"
    summary = "a link and a route without ARP (OpenVZ): beside routed, what neighbours cost"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth",)

    def check(self, host: Host, kind: Kind) -> list[Problem]:
        """Tries it."""
        return tried(host, self.name, commands(kind, Link()))

    def attach(self, lab: Lab, kind: Kind, ports: tuple[Port, ...]) -> AbstractContextManager[Attachment]:
        """The link and the route."""
        return linked(lab, self.name, kind, ports, commands(kind, Link(lab.slot)), point_to_point=True)


def commands(kind: Kind, link: Link) -> list[str]:
    """`ip` commands: those of the routed mode, and no neighbours. The flag stays with a device that is moved."""
    return [
        *routed.commands(kind, link),
        f"link set {link.host_side} address {link.instance_mac} arp off",
        f"link set {link.instance_side} arp off",
    ]
