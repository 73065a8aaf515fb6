"""Unbound, a DNS server that answers for a zone of its own from memory."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.offers import Content, Dns, Offer, Port
from virtoll.platforms.base import Instance
from virtoll.services import daemon
from virtoll.services.base import Service, Visitor
from virtoll.units import within

ZONE = "virtoll.test"
_ADDRESS = "192.0.2.1"  # TEST-NET-1: what every name stands for
_QUERY_ID = 0x7674
_READY_S = 60.0
_OF_A_THREAD, _SPARE = 32, 16  # open files of its own, and some to spare (daemon/unbound.c: checkrlimits)


@dataclass(frozen=True)
class UnboundSettings:
    """Settings of Unbound. ``names``: host0 to host(N-1) below the zone. ``tcp_users``: connections at once; its own
    default is ten for each thread, and it cuts idle ones short when half of them are taken.
    """

    names: int = within(1000, least=1, most=100_000)
    tcp_users: int = within(1000, least=1, most=100_000)
    threads: int = within(1, least=1)


class Unbound(Service):
    """unbound with a local zone; it asks nobody else."""

    name: ClassVar[str] = "unbound"
    summary: ClassVar[str] = "Unbound: when you answer DNS, the smallest datagrams there are"
    packages: ClassVar[tuple[str, ...]] = ("unbound",)
    port: ClassVar[int] = 53
    lets_in: ClassVar[str] = "tcp_users"
    offered: ClassVar[tuple[type[Offer], ...]] = (Dns,)
    Settings: ClassVar[type[UnboundSettings]] = UnboundSettings
    settings: UnboundSettings

    @property
    def ports(self) -> tuple[Port, ...]:
        """Both transports."""
        return (Port(self.port, "udp"), Port(self.port, "tcp"))

    @property
    def open_files(self) -> int:
        """See `Service.open_files`. With as many it starts; for ports to ask others from, of which it asks nobody, it
        would have thousands more.
        """
        return self.settings.threads * (self.settings.tcp_users + _OF_A_THREAD) + _SPARE

    def start(self, instance: Instance, behind: Offer | None) -> Dns:  # noqa: ARG002 - it stands alone
        """Start it with its zone."""
        path = f"{daemon.DIRECTORY}/unbound.conf"
        instance.agent.put(path, configuration(self.settings, self.port).encode())
        argv = [*daemon.ALL_FILES, "unbound", "-d", "-p", "-c", path]
        daemon.start(instance, self.name, argv, self.port, protocol="udp")
        return Dns(instance.attachment.endpoint_address, self.port, ZONE)

    def await_ready(self, instance: Instance, offer: Offer, visitor: Visitor) -> None:
        """Wait for a first answer of any kind; a datagram may be lost, so it is asked for again."""

        def missing() -> str:
            visitor.exchange(offer, query(f"host0.{ZONE}"), 512)
            return ""

        daemon.await_ready(instance, self.name, _READY_S, missing)

    def verify(self, offer: Offer, visitor: Visitor, content: Content | None) -> list[Problem]:  # noqa: ARG002
        """A name of the zone has its address."""
        said = visitor.exchange(offer, query(f"host0.{ZONE}"), 512)
        where = f"unbound, {offer.address}"
        if len(said) < 12 or struct.unpack("!H", said[:2])[0] != _QUERY_ID:
            return [Problem(f"{len(said)} bytes came that are no answer to the question", where)]
        flags, _, answers = struct.unpack("!HHH", said[2:8])
        if flags & 0x800F != 0x8000 or answers != 1 or not said.endswith(bytes(map(int, _ADDRESS.split(".")))):
            return [Problem(f"host0.{ZONE}: code {flags & 15}, {answers} answers; expected {_ADDRESS}", where)]
        return []


def query(name: str) -> bytes:
    """A question for an address (RFC 1035, 4.1), recursion desired."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", _QUERY_ID, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)


def configuration(settings: UnboundSettings, port: int) -> str:
    """unbound.conf."""
    names = "\n".join(f'    local-data: "host{n}.{ZONE}. A {_ADDRESS}"' for n in range(settings.names))
    return f"""\
server:
    interface: 0.0.0.0
    port: {port}
    do-ip6: no
    do-daemonize: no
    username: ""
    chroot: ""
    directory: "/"
    pidfile: ""
    use-syslog: no
    logfile: ""
    num-threads: {settings.threads}
    incoming-num-tcp: {settings.tcp_users}
    access-control: 0.0.0.0/0 allow
    module-config: "iterator"
    local-zone: "{ZONE}." static
{names}
"""
