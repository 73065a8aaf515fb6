"""The seam of a network mode: how an instance is attached to the lab's SUT namespace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.lab.base import GENERATOR_ADDRESS, Lab
from virtoll.offers import Port
from virtoll.registry import Part, implementations

MOST_DATAGRAM_BYTES = 65_507  # payload of UDP over IPv4 (RFC 768: 65,535 less 8 and 20 of headers)

Kind = Literal["shared", "veth", "tap", "vif", "published", "user", "stack", "remote"]


@dataclass(frozen=True)
class Stack:
    """A network stack in user space: a program beside the container, which makes the container's link."""

    netns: str  # the name that the container's network namespace is to have, by which ``command`` finds it
    command: tuple[str, ...]  # stays in the foreground
    version: str
    requests: tuple[str, ...] = ()  # JSON, each on a connection of its own to SOCKET in its working directory

    SOCKET: ClassVar[str] = "network.sock"


@dataclass(frozen=True)
class Attachment:
    """A prepared place on the network. What the platform must do with it follows from ``kind``.

    - ``shared``: start the instance in namespace ``netns``; nothing else.
    - ``veth``: move link ``device`` (waiting in ``netns``, with ``mac`` as the mode made it) into the instance as
      ``eth0``, give it ``address``/``prefix_length``, and a default route through ``gateway`` (on-link when outside the
      prefix).
    - ``tap``: give tap ``device`` (in ``netns``, where the VMM must be started) to the virtual machine as its only
      NIC with ``mac``; the guest configures ``address``/``prefix_length``/``gateway``.
    - ``vif``: bring the link that the hypervisor makes (Xen's vifN.0, the tap of Proxmox's QEMU) into ``netns`` as
      ``device`` and run ``wiring`` (`ip` commands) there; it ends with the instance. Inside, as with a tap.
    - ``published``: the runtime's own bridge and port mapping, ``endpoint_address:port`` to the instance's port.
    - ``user``: the VMM's user-mode stack, started in ``netns``, forwarding ``endpoint_address:port``.
    - ``stack``: when the container's first process is there, give its network namespace the name ``stack.netns``, start
      ``stack.command`` in ``netns`` (booked to the instance), tell it ``stack.requests``, and wait until eth0 is inside
      and each of ``ports`` is open at ``endpoint_address``; it ends with the instance.
    - ``remote``: outside of the lab, on a machine that only the platform knows: it says where its service is reached
      (`at`), and the generator goes there over its host's own network. There is no ``netns``.
    """

    mode: str
    kind: Kind
    netns: str
    endpoint_address: str  # where the generator reaches the service
    ports: tuple[Port, ...]  # what is published, forwarded or translated to the instance, and no other
    device: str = ""
    mac: str = ""
    address: str = ""
    prefix_length: int = 0
    gateway: str = ""
    on_link_gateway: bool = False
    wiring: tuple[str, ...] = ()
    stack: Stack | None = None
    generator_address: str = GENERATOR_ADDRESS  # where the instance sees the generator

    def at(self, address: str, generator_address: str) -> Attachment:
        """A *remote* one, at an address of its own."""
        return replace(self, endpoint_address=address, address=address, generator_address=generator_address)

    def reaches(self, port: Port) -> bool:
        """Whether what is sent to ``port`` of ``endpoint_address`` comes to the instance.

        All does where that address is its own; what is published, forwarded or translated must have been asked for.
        """
        own = self.kind == "shared" or self.address == self.endpoint_address
        return own or any(port in asked for asked in self.ports)


class NetworkMode(Part):
    """One network mode. ``kinds`` lists the kinds of attachment it can make, best first."""

    kinds: ClassVar[tuple[Kind, ...]] = ()

    def check(self, host: Host, kind: Kind) -> list[Problem]:
        """What this host lacks for an attachment of ``kind``; empty when ready. Leaves no trace on the host."""
        del host, kind
        return []

    def versions(self, host: Host) -> dict[str, str]:  # noqa: ARG002
        """The programs that carry packets in it, and their versions: a run is not gone on with when one has changed."""
        return {}

    def problems_with(self, ports: Sequence[Port]) -> list[Problem]:  # noqa: ARG002
        """What keeps these ports of a service from being reached in it; empty when nothing does."""
        return []

    @abstractmethod
    def attach(self, lab: Lab, kind: Kind, ports: tuple[Port, ...]) -> AbstractContextManager[Attachment]:
        """Prepare an attachment of ``kind`` in the SUT namespace; undo it at the end of the block."""


def network_modes() -> dict[str, type[NetworkMode]]:
    """All network modes by name."""
    return implementations("virtoll.networks", NetworkMode)


def common_kind(platform_name: str, platform_kinds: tuple[Kind, ...], mode: type[NetworkMode]) -> Kind | Problem:
    """The kind of attachment for a platform in a mode, or why the pair is impossible."""
    for kind in mode.kinds:
        if kind in platform_kinds:
            return kind
    fit = [f'"{name}"' for name, each in network_modes().items() if set(each.kinds) & set(platform_kinds)]
    return Problem(
        f"{platform_name} cannot be attached in mode {mode.name!r}: it takes {', '.join(platform_kinds)}, "
        f"and the mode offers {', '.join(mode.kinds)}",
        remedy=f"write network = {' or '.join(fit)}" if fit else "leave it out: there is no mode for it",
    )
