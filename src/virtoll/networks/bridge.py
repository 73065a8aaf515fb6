"""A bridge in the SUT's namespace, the instance on one of its ports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.lab.base import INSTANCE_ADDRESS, INSTANCE_GATEWAY, Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.wires import (
    GROUP,
    HOST_SIDE,
    INSTANCE_MAC,
    configure,
    device_for,
    link_commands,
    quick_neighbours,
    remove_links,
    tried,
)

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

    @contextmanager
    def attach(self, lab: Lab, kind: Kind, ports: tuple[int, ...]) -> Iterator[Attachment]:
        """The bridge, and the instance's link on it."""
        try:
            configure(lab, _commands(kind))
            yield Attachment(
                self.name,
                kind,
                lab.sut_netns,
                INSTANCE_ADDRESS,
                ports,
                device=device_for(kind),
                mac=INSTANCE_MAC,
                address=INSTANCE_ADDRESS,
                prefix_length=24,
                gateway=INSTANCE_GATEWAY,
            )
        finally:
            remove_links(lab)


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
