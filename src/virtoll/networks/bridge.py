"""A bridge in the SUT's namespace, the instance on one of its ports."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.lab.base import INSTANCE_GATEWAY, Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.wires import GROUP, HOST_SIDE, link_commands, linked, quick_neighbours, tried

_BRIDGE = "br0"
_BRIDGE_MAC = "02:76:74:00:03:00"


class BridgeNetwork(NetworkMode):
    """The usual way of containers and virtual machines: a learning bridge, routed to the rest of the lab."""

    name = "bridge"
    summary = "a Linux bridge, the instance on one of its ports"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth", "tap")

    def check(self, host: Host, kind: Kind) -> list[Problem]:
        """Tries it."""
        return tried(host, self.name, _commands(kind))

    def attach(self, lab: Lab, kind: Kind, ports: tuple[int, ...]) -> AbstractContextManager[Attachment]:
        """The bridge, and the instance's link on it."""
        return linked(lab, self.name, kind, ports, _commands(kind), point_to_point=False)


def _commands(kind: Kind) -> list[str]:
    """`ip` commands for a bridge without spanning tree (which would block the port for 30 s) and the link on it."""
    return [
        f"link add {_BRIDGE} address {_BRIDGE_MAC} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
        f"addr add {INSTANCE_GATEWAY}/24 dev {_BRIDGE}",
        f"link set {_BRIDGE} group {GROUP} up",
        quick_neighbours(_BRIDGE),
        *link_commands(kind),
        f"link set {HOST_SIDE} master {_BRIDGE}",
    ]
