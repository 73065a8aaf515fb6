"""A network stack in user space, inside the virtual machine monitor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.wires import Link, one_by_one, shown, too_many
from virtoll.offers import Port


class UserNetwork(NetworkMode):
    """QEMU's slirp: no privileges and no devices; each connection ends in the monitor and begins anew."""

    name = "usernet"
    summary = "a desktop's virtual machine: QEMU's own network stack in user space (slirp)"
    kinds: ClassVar[tuple[Kind, ...]] = ("user",)

    def problems_with(self, ports: Sequence[Port]) -> list[Problem]:
        """Each port costs something of its own."""
        return too_many(self.name, ports)

    @contextmanager
    def attach(self, lab: Lab, kind: Kind, ports: tuple[Port, ...]) -> Iterator[Attachment]:
        """Nothing to make but a further instance's address: the monitor forwards ``ports`` from the SUT's.

        Inside are slirp's own default addresses, the same in every instance: each has a network of its own.
        """
        with shown(lab) as address:
            yield Attachment(
                self.name,
                kind,
                lab.sut.netns,
                address,
                one_by_one(self.name, ports),
                mac=Link(lab.slot).instance_mac,
                address="10.0.2.15",
                prefix_length=24,
                gateway="10.0.2.2",
            )
