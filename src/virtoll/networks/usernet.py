"""A network stack in user space, inside the virtual machine monitor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.wires import forwarded, too_many
from virtoll.offers import Port


class UserNetwork(NetworkMode):
    """QEMU's slirp: no privileges and no devices; each connection ends in the monitor and begins anew."""

    name = "usernet"
    summary = "a desktop's virtual machine: QEMU's own network stack in user space (slirp)"
    kinds: ClassVar[tuple[Kind, ...]] = ("user",)

    def problems_with(self, ports: Sequence[Port]) -> list[Problem]:
        """Each port costs something of its own."""
        return too_many(self.name, ports)

    def attach(self, lab: Lab, kind: Kind, ports: tuple[Port, ...]) -> AbstractContextManager[Attachment]:
        """The monitor forwards ``ports`` from the SUT's address."""
        return forwarded(lab, self.name, kind, ports, "10.0.2.15")
