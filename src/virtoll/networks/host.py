"""The instance shares the SUT's own network stack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from virtoll.hosts.base import Confinement
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.offers import Port


class HostNetwork(NetworkMode):
    """No wiring at all: the instance's sockets are the SUT's. The shortest path, and no isolation."""

    name = "host"
    summary = "no network virtualization at all: the host's own stack (docker --network host)"
    kinds: ClassVar[tuple[Kind, ...]] = ("shared",)

    @contextmanager
    def attach(self, lab: Lab, kind: Kind, ports: tuple[Port, ...]) -> Iterator[Attachment]:
        """Nothing to make. The sockets that an instance leaves in TIME_WAIT end with it, as they do elsewhere.

        Several instances share the one address: whoever deploys them sees to it that no port is of two
        (`virtoll.run.side_by_side`). A service that finds its own taken says so.
        """
        try:
            yield Attachment(self.name, kind, lab.sut.netns, lab.sut.address, ports)
        finally:
            # A kernel without CONFIG_INET_DIAG_DESTROY refuses, and then they last a minute.
            lab.host.run(["ss", "-K", "state", "time-wait"], confinement=Confinement(netns=lab.sut.netns), check=False)
