"""A bridge in the SUT's namespace, the instance on one of its ports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.lab.base import INSTANCE_GATEWAY, Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.wires import Link, configure, linked, quick_neighbours, tried, tryable
from virtoll.offers import Port

_BRIDGE = "br0"
_BRIDGE_MAC = "02:76:74:00:03:00"
_NO_GROUP = 0


class BridgeNetwork(NetworkMode):
    """The usual way of containers and virtual machines: a learning bridge, routed to the rest of the lab.

    Instances that live at the same time share it, as they share docker0, virbr0 or lxcbr0: it comes with the first of
    them and goes with the last. So they see each other's broadcasts, and what a neighbour floods.
    """

    name = "bridge"
    summary = "instances side by side in one LAN: a port on a Linux bridge (libvirt, LXC, Proxmox)"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth", "tap", "vif")

    def check(self, host: Host, kind: Kind) -> list[Problem]:
        """Tries it."""
        return tried(host, self.name, [*_bridge_commands(Link()), *_port_commands(tryable(kind), Link())])

    @contextmanager
    def attach(self, lab: Lab, kind: Kind, ports: tuple[Port, ...]) -> Iterator[Attachment]:
        """The bridge where it is not there yet, and the instance's link on it."""
        link = Link(lab.slot)
        new = [] if _BRIDGE in _masters(lab) else _bridge_commands(link)
        commands = [*new, *_port_commands(kind, link)]
        with linked(lab, self.name, kind, ports, commands, point_to_point=False) as attachment:
            try:
                yield attachment
            finally:
                _leave(lab, link)


def _bridge_commands(link: Link) -> list[str]:
    """`ip` commands for a bridge without spanning tree (which would block the port for 30 s), in the link's group."""
    return [
        f"link add {_BRIDGE} address {_BRIDGE_MAC} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
        f"addr add {INSTANCE_GATEWAY}/24 dev {_BRIDGE}",
        f"link set {_BRIDGE} group {link.group} up",
        quick_neighbours(_BRIDGE),
    ]


def _port_commands(kind: Kind, link: Link) -> list[str]:
    return [*link.commands(kind), f"link set {link.host_side} master {_BRIDGE}"]


def _leave(lab: Lab, link: Link) -> None:
    """Let the bridge go with our link if nobody else is on it, and stay otherwise."""
    masters = _masters(lab)
    if _BRIDGE not in masters:
        return  # whoever shared it has outlived our link, which its instance took along, and took it
    others = {device for device, master in masters.items() if master == _BRIDGE} - {link.host_side}
    configure(lab, [f"link set {_BRIDGE} group {_NO_GROUP if others else link.group}"])


def _masters(lab: Lab) -> dict[str, str]:
    """The SUT namespace's links, and what each is a port of."""
    links = json.loads(lab.host.run(["ip", "-n", lab.sut.netns, "-json", "link", "show"]).stdout)
    return {link["ifname"]: link.get("master", "") for link in links}
