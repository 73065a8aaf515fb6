"""A second address on the host's own port and MAC, as `docker network create -d ipvlan` and LXC's ipvlan give it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.lab.base import INSTANCE_GATEWAY, Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.wires import Link, linked, quick_neighbours, tried
from virtoll.offers import Port


class IpvlanNetwork(NetworkMode):
    """A port of the host's is told apart by IP addresses, in mode l2 (Linux, Documentation/networking/ipvlan.rst).

    The port is one end of a cable, as in mode macvlan, beside which it shows what telling apart by address costs. Where
    a switch takes one MAC address from each port, as in most clouds, there is no macvlan.
    """

    name = "ipvlan"
    summary = "an address of its own on the MAC of the host's port, told apart by IP (Docker, LXC)"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth",)

    def check(self, host: Host, kind: Kind) -> list[Problem]:
        """Tries it."""
        del kind
        return tried(host, self.name, commands(Link()), modules="veth ipvlan")

    def attach(self, lab: Lab, kind: Kind, ports: tuple[Port, ...]) -> AbstractContextManager[Attachment]:
        """The cable, the route, and the instance's device on the port."""
        return linked(lab, self.name, kind, ports, commands(Link(lab.slot)), point_to_point=True)


def commands(link: Link) -> list[str]:
    """`ip` commands: the link's own name on the host's side is the port, whose MAC address the instance shares."""
    cable = f"up{link.slot}"
    return [
        f"link add {cable} type veth peer name {link.host_side} address {link.instance_mac}",
        f"link add {link.instance_side} link {link.host_side} type ipvlan mode l2",
        f"link set {link.host_side} group {link.group} up",
        f"link set {cable} group {link.group} up",
        quick_neighbours(cable),
        f"addr add {INSTANCE_GATEWAY}/32 dev {cable}",
        f"route add {link.address}/32 dev {cable} src {INSTANCE_GATEWAY}",
    ]
