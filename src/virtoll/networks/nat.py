"""The routed mode behind address translation of the lab's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.lab.base import INSTANCE_ADDRESS, SUT_GENERATOR_SIDE_ADDRESS, Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.routed import RoutedNetwork, commands
from virtoll.networks.wires import tried

_TABLE = "virtoll"


class NatNetwork(NetworkMode):
    """Users reach the service at the SUT's address; the origin sees the SUT's too. Every packet is tracked."""

    name = "nat"
    summary = "routed, behind port forwarding and masquerading by nftables"
    kinds: ClassVar[tuple[Kind, ...]] = ("veth", "tap")

    def check(self, host: Host, kind: Kind) -> list[Problem]:
        """Tries it."""
        return tried(host, self.name, commands(kind), rules((80,)))

    @contextmanager
    def attach(self, lab: Lab, kind: Kind, ports: tuple[int, ...]) -> Iterator[Attachment]:
        """The routed mode's link, and a table that translates. Connection tracking ends with the table."""
        with RoutedNetwork().attach(lab, kind, ports) as attachment:
            try:
                _nft(lab, rules(ports))
                yield replace(attachment, mode=self.name, endpoint_address=SUT_GENERATOR_SIDE_ADDRESS)
            finally:
                # Declaring the table first makes its deletion no error where it was never made.
                _nft(lab, f"table ip {_TABLE}\ndelete table ip {_TABLE}\n")


def rules(ports: tuple[int, ...]) -> str:
    """The nftables rules: in by destination, out by masquerade."""
    wanted = ", ".join(str(port) for port in ports)
    return f"""table ip {_TABLE} {{
    chain prerouting {{
        type nat hook prerouting priority dstnat
        ip daddr {SUT_GENERATOR_SIDE_ADDRESS} tcp dport {{ {wanted} }} dnat to {INSTANCE_ADDRESS}
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat
        oifname "org0" ip saddr {INSTANCE_ADDRESS} masquerade
    }}
}}
"""


def _nft(lab: Lab, text: str) -> None:
    lab.host.run(["nsenter", f"--net=/run/netns/{lab.sut_netns}", "--", "nft", "-f", "-"], stdin=text.encode())
