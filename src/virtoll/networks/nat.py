"""The routed mode behind address translation of the lab's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.lab.base import Lab, endpoint_address
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.routed import RoutedNetwork, commands
from virtoll.networks.wires import Link, shown, tried


class NatNetwork(NetworkMode):
    """Users reach the service at the SUT's address; the origin sees the SUT's too. Every packet is tracked."""

    name = "nat"
    summary = "one public address for many: forwarded ports and masquerading (nftables) on a routed link"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth", "tap")

    def check(self, host: Host, kind: Kind) -> list[Problem]:
        """Tries it."""
        return tried(host, self.name, commands(kind, Link()), rules((80,), Link()))

    @contextmanager
    def attach(self, lab: Lab, kind: Kind, ports: tuple[int, ...]) -> Iterator[Attachment]:
        """The routed mode's link, and a table that translates. Connection tracking ends with the table."""
        link = Link(lab.slot)
        with RoutedNetwork().attach(lab, kind, ports) as attachment, shown(lab) as address:
            try:
                _nft(lab, rules(ports, link))
                yield replace(attachment, mode=self.name, endpoint_address=address)
            finally:
                # Declaring the table first makes its deletion no error where it was never made.
                _nft(lab, f"table ip {_table(link)}\ndelete table ip {_table(link)}\n")


def _table(link: Link) -> str:
    """Each slot has a table of its own, which ends with its instance."""
    return f"virtoll{link.slot or ''}"


def rules(ports: tuple[int, ...], link: Link) -> str:
    """The nftables rules: in by destination, out by masquerade."""
    wanted = ", ".join(str(port) for port in ports)
    forward = f"ip daddr {endpoint_address(link.slot)} tcp dport {{ {wanted} }} dnat to {link.address}" if ports else ""
    return f"""table ip {_table(link)} {{
    chain prerouting {{
        type nat hook prerouting priority dstnat
        {forward}
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat
        oifname "org0" ip saddr {link.address} masquerade
    }}
}}
"""


def _nft(lab: Lab, text: str) -> None:
    lab.host.run(["nsenter", f"--net=/run/netns/{lab.sut_netns}", "--", "nft", "-f", "-"], stdin=text.encode())
