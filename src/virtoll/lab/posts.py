"""The generator's side of a lab whose SUT is on another machine: a namespace upon one of this machine's own devices.

It is wired as the generator of a lab on one machine is, and has all of the CPUs that virtoll may use here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts import namespaces, private
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.cgroup import TOP, Cgroup, owned
from virtoll.hosts.ledger import Ledger
from virtoll.lab import losses
from virtoll.lab.base import GENERATOR_ADDRESS, SUT_GENERATOR_SIDE_ADDRESS, Lab, Site, Uplink
from virtoll.lab.client import Client
from virtoll.lab.wiring import EVERYWHERE, GENERATOR_ONLY, directory_of, free_tag, generator_side, told, upon

# Nobody listens at port 9 (discard) of the SUT: its kernel refuses, and a refusal has come all the way.
_REACH = f"""
import socket
s = socket.socket()
s.settimeout(2)
print(s.connect_ex(("{SUT_GENERATOR_SIDE_ADDRESS}", 9)))
"""
_REFUSED = ("0", "111")  # ECONNREFUSED
_REACH_S = 10.0  # a switch's port may take seconds to forward


@dataclass(frozen=True)
class Stand:
    """Where generators start. ``group``: theirs, in the ``whole``; ``nic``: the machine's own device that its eth0 is
    upon.
    """

    host: Host
    ledger: Ledger
    tag: str
    netns: str
    whole: Cgroup
    group: Cgroup
    directory: Path
    cpus: frozenset[int]
    nic: str

    @property
    def lab(self) -> Lab:
        """As a lab of which this is all that is here: a load's own programs are deployed in it."""
        site = Site(self.host, self.netns, GENERATOR_ADDRESS, self.cpus)
        return Lab(self.ledger, self.tag, site, site, site, self.whole.name, self.directory)

    def client(self, name: str) -> Client:
        """A client with a directory of its own."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        confinement = Confinement(self.group.procs, self.netns, self.cpus)
        return Client(self.host, confinement, directory, cpus=len(self.cpus))

    def losses(self) -> dict[str, int]:
        """Counters of its devices."""
        return {**losses.of_namespace(self.host, self.netns, upon="eth0"), **losses.of_nic(self.host, self.nic)}

    def expect_reached(self, python: str) -> None:
        """HostError where nothing comes from the SUT: the two devices are not on one link."""
        deadline = time.monotonic() + _REACH_S
        confinement = Confinement(netns=self.netns)
        while self.host.run([python, "-I", "-S", "-c", _REACH], confinement=confinement).text not in _REFUSED:
            if time.monotonic() > deadline:
                raise HostError(
                    f"nothing comes back over {self.nic}: it is on another link, or VLAN, than the other machine's",
                    where=f"the generator's {self.nic}",
                    remedy="name the devices at both ends of the cable, or in one broadcast domain (--nic HERE,THERE); "
                    "what is between must let a second MAC address through (port security, a hypervisor's filter)",
                )


@contextmanager
def stood(host: Host, ledger: Ledger, uplink: Uplink, cpus: frozenset[int]) -> Iterator[Stand]:
    """The generator's side, wired for the length of the block. HostError says what could not be made."""
    tag = free_tag()
    netns, group, directory = f"vt-{tag}-gen", f"{TOP}/{tag}", directory_of(tag)
    with ExitStack() as stack:
        stack.enter_context(ledger.owning("directory", str(directory)))
        private.make(directory.parent)
        directory.mkdir(mode=0o700)
        stack.enter_context(ledger.owning("netns-above", namespaces.NETNS))
        stack.enter_context(ledger.owning("netns", netns))
        whole = stack.enter_context(owned(ledger, group))
        commands = stack.enter_context(owned(ledger, f"{group}/commands"))
        ours = host.within(commands.found_by)
        ours.run(["sh", "-e", "-c", _script(netns, uplink, cpus)])
        generator = stack.enter_context(owned(ledger, f"{group}/generator", cpus=cpus))
        generator.go_first()
        yield Stand(ours, ledger, tag, netns, whole, generator, directory, cpus, uplink.far_nic)


def _script(netns: str, uplink: Uplink, cpus: frozenset[int]) -> str:
    return "\n".join(
        [
            namespaces.first(netns),
            f"nsenter --net=/run/netns/{netns} {told((*EVERYWHERE, *GENERATOR_ONLY))}",
            upon(uplink.far_nic, "eth0", uplink.far_mac, uplink.mtu, netns),
            *generator_side(netns, uplink.mac, cpus),
        ]
    )
