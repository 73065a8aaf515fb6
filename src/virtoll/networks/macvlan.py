"""A second address on the host's own port, as `docker network create -d macvlan` and LXC's macvlan give it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.lab.base import INSTANCE_GATEWAY, Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.wires import Link, linked, quick_neighbours, tried
from virtoll.offers import Port


class MacvlanNetwork(NetworkMode):
    """A port of the host's is told apart by MAC addresses, in bridge mode (MACVLAN_MODE_BRIDGE of linux/if_link.h).

    The port is one end of a cable, whose other end the SUT routes to: a packet passes as many devices as in the routed
    mode, so beside that one it shows what macvlan itself costs. On a physical port a container saves a pair of veth as
    well, which no lab without one can show.
    """

    name = "macvlan"
    summary = "an address of its own on the host's port, told apart by MAC (Docker, LXC); no bridge"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth",)

    def check(self, host: Host, kind: Kind) -> list[Problem]:
        """Tries it."""
        del kind
        return tried(host, self.name, commands(Link()), modules="veth macvlan")

    def attach(self, lab: Lab, kind: Kind, ports: tuple[Port, ...]) -> AbstractContextManager[Attachment]:
        """The cable, the route, and the instance's device on the port."""
        return linked(lab, self.name, kind, ports, commands(Link(lab.slot)), point_to_point=True)


def commands(link: Link) -> list[str]:
    """`ip` commands: the link's own name on the host's side is the port, which has no address."""
    cable = f"up{link.slot}"
    return [
        f"link add {cable} type veth peer name {link.host_side}",
        f"link add {link.instance_side} link {link.host_side} address {link.instance_mac} type macvlan mode bridge",
        f"link set {link.host_side} group {link.group} up",
        f"link set {cable} group {link.group} up",
        quick_neighbours(cable),
        f"addr add {INSTANCE_GATEWAY}/32 dev {cable}",
        f"route add {link.address}/32 dev {cable} src {INSTANCE_GATEWAY}",
    ]
