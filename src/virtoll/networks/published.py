"""The runtime's own bridge and port mapping, as `docker run -p` makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.wires import one_by_one, shown, too_many
from virtoll.offers import Port


class PublishedNetwork(NetworkMode):
    """The runtime does the wiring, in the SUT's namespace: the Docker (NAT) of the papers."""

    name = "published"
    summary = "as `docker run -p` does it: the runtime's own bridge, published ports and proxy"
    kinds: ClassVar[tuple[Kind, ...]] = ("published",)

    def problems_with(self, ports: Sequence[Port]) -> list[Problem]:
        """Each port costs something of its own."""
        return too_many(self.name, ports)

    @contextmanager
    def attach(self, lab: Lab, kind: Kind, ports: tuple[Port, ...]) -> Iterator[Attachment]:
        """Nothing to make but a further instance's address: the runtime publishes ``ports`` on the SUT's."""
        with shown(lab) as address:
            yield Attachment(self.name, kind, lab.sut.netns, address, one_by_one(self.name, ports))
