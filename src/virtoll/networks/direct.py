"""No wiring of the lab's: a machine of the user's own, over the network that there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.offers import Port


class DirectNetwork(NetworkMode):
    """The generator goes to the machine's address from its host's own network namespace, and nothing is made for it.

    So what lies between them is measured with it, and its kernel's settings stay as they are: ports of closed
    connections are not used again at once, as they are in the lab's namespaces.
    """

    name: ClassVar[str] = "direct"
    summary: ClassVar[str] = "a machine of your own, over the network that leads there: what lies between is measured"
    kinds: ClassVar[tuple[Kind, ...]] = ("remote",)

    @contextmanager
    def attach(self, lab: Lab, kind: Kind, ports: tuple[Port, ...]) -> Iterator[Attachment]:  # noqa: ARG002
        """Nothing to make: the platform knows the address (`Attachment.at`)."""
        yield Attachment(self.name, kind, netns="", endpoint_address="", ports=ports)
