"""The routed mode behind address translation of the lab's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Confinement, Host
from virtoll.lab import tables
from virtoll.lab.base import Lab, endpoint_address
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.routed import RoutedNetwork, commands
from virtoll.networks.wires import Link, shown, tried, tryable
from virtoll.offers import PROTOCOLS, Port, Protocol


class NatNetwork(NetworkMode):
    """Users reach the service at the SUT's address; the origin sees the SUT's too. Every packet is tracked."""

    name = "nat"
    summary = "one public address for many: forwarded ports and masquerading (nftables) on a routed link"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth", "tap", "vif")

    def check(self, host: Host, kind: Kind) -> list[Problem]:
        """Tries it."""
        return tried(host, self.name, commands(tryable(kind), Link()), rules((Port(80), Port(80, "udp", 81)), Link()))

    @contextmanager
    def attach(self, lab: Lab, kind: Kind, ports: tuple[Port, ...]) -> Iterator[Attachment]:
        """The routed mode's link, and a table that translates. Connection tracking ends with the last such table."""
        link = Link(lab.slot)
        with RoutedNetwork().attach(lab, kind, ports) as attachment, shown(lab) as address:
            try:
                lab.host.run(
                    ["nft", "-f", "-"], stdin=rules(ports, link).encode(), confinement=Confinement(netns=lab.sut.netns)
                )
                yield replace(attachment, mode=self.name, endpoint_address=address)
            finally:
                tables.delete(lab, _table(link))


def _table(link: Link) -> str:
    """Each slot has a table of its own, which ends with its instance."""
    return f"virtoll{link.slot or ''}"


def rules(ports: tuple[Port, ...], link: Link) -> str:
    """The nftables rules: in by destination, out by masquerade."""
    return f"""table ip {_table(link)} {{
    chain prerouting {{
        type nat hook prerouting priority dstnat
{"".join(_forward(protocol, ports, link) for protocol in PROTOCOLS)}    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat
        oifname "org0" ip saddr {link.address} masquerade
    }}
}}
"""


def _forward(protocol: Protocol, ports: tuple[Port, ...], link: Link) -> str:
    """The rule that brings one protocol's ports to the instance, by the same numbers; "" where it has none."""
    wanted = ", ".join(
        f"{port.number}-{port.last}" if port.last else f"{port.number}" for port in ports if port.protocol == protocol
    )
    if not wanted:
        return ""
    return f"        ip daddr {endpoint_address(link.slot)} {protocol} dport {{ {wanted} }} dnat to {link.address}\n"
