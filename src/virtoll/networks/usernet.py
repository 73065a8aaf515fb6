"""A network stack in user space, inside the virtual machine monitor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from virtoll.lab.base import SUT_GENERATOR_SIDE_ADDRESS, Lab
from virtoll.networks.base import Attachment, Kind, NetworkMode
from virtoll.networks.wires import INSTANCE_MAC


class UserNetwork(NetworkMode):
    """QEMU's slirp: no privileges and no devices; each connection ends in the monitor and begins anew."""

    name = "usernet"
    summary = "the monitor's own stack in user space (QEMU slirp, hostfwd)"
    kinds: ClassVar[tuple[Kind, ...]] = ("user",)

    @contextmanager
    def attach(self, lab: Lab, kind: Kind, ports: tuple[int, ...]) -> Iterator[Attachment]:
        """Nothing to make: the monitor forwards ``ports``. Inside are slirp's own default addresses."""
        yield Attachment(
            self.name,
            kind,
            lab.sut_netns,
            SUT_GENERATOR_SIDE_ADDRESS,
            ports,
            mac=INSTANCE_MAC,
            address="10.0.2.15",
            prefix_length=24,
            gateway="10.0.2.2",
        )
