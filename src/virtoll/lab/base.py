"""What a wired lab is to the rest: names, addresses, CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from virtoll.errors import HostError
from virtoll.hosts.base import Host
from virtoll.hosts.ledger import Ledger

if TYPE_CHECKING:
    from virtoll.lab.client import Client

# RFC 2544 section C.2.2 / RFC 6890: 198.18.0.0/15 is set aside for benchmarking and never routed.
GENERATOR_ADDRESS = "198.18.1.2"
SUT_GENERATOR_SIDE_ADDRESS = "198.18.1.1"
ORIGIN_ADDRESS = "198.18.2.2"
SUT_ORIGIN_SIDE_ADDRESS = "198.18.2.1"
INSTANCE_NETWORK = "198.18.3.0/24"
INSTANCE_GATEWAY = "198.18.3.1"
MOST_GENERATORS = 64
SLOTS = 253  # instances that can live at the same time: the addresses that 198.18.3.0/24 has besides the gateway's


def instance_address(slot: int) -> str:
    """Where a mode gives the instance an address of its own: 198.18.3.10 in slot 0, then upwards and round."""
    return f"198.18.3.{2 + (8 + slot) % SLOTS}"


def further_link(number: int) -> tuple[str, str]:
    """The addresses of the SUT and of generator ``number`` (from 2) on the link between them: 198.18.18.1 and .2, then
    upwards.
    """
    return f"198.18.{16 + number}.1", f"198.18.{16 + number}.2"


def endpoint_address(slot: int) -> str:
    """Where the SUT answers for an instance whose own address the generator does not see.

    Beyond slot 0 it is one of 198.19.1.0/24, which the generator has no link to: it sends them through the SUT by its
    default route, so that nobody need ask for a further neighbour.
    """
    return SUT_GENERATOR_SIDE_ADDRESS if slot == 0 else f"198.19.1.{slot}"


class NoRoomError(HostError):
    """A lab has an address for so many instances at a time and no more, however many the host would carry."""


@dataclass(frozen=True)
class CpuPlan:
    """Which CPUs of the host do what. Generator and origin never share a CPU with the instance."""

    instance: frozenset[int]
    generator: frozenset[int]
    origin: frozenset[int]


@dataclass(frozen=True)
class Site:
    """A place of the lab: where on a host something stands, the address it has there, and the CPUs it computes on."""

    host: Host
    netns: str  # "": nothing stands here, for the generator is on another machine; the CPUs are those beside the SUT's
    address: str
    cpus: frozenset[int]


@dataclass(frozen=True)
class Uplink:
    """The way to a generator on another machine: the network devices of the two that are on one link, which stay as
    they are, and the MAC addresses of what a lab has upon them.
    """

    nic: str  # of the SUT's machine
    mac: str
    far_nic: str  # of the generator's
    far_mac: str
    # Bytes, of what a lab has upon them. An instance's own link has no more than Ethernet's 1500, and native, which has
    # none, would alone be asked in larger frames.
    mtu: int = 1500


class FarGenerator(Protocol):
    """The load generator, where it stands on another machine (`virtoll.post`)."""

    def client(self, directory: Path, books: Mapping[str, Path]) -> Client:
        """Where a load runs there; ``directory``: here, for logs; ``books``: see `Client.books`, here too."""
        ...

    def losses(self) -> dict[str, int]:
        """Counters of its devices since they are there: "eth0 rx_dropped"."""
        ...


@dataclass(frozen=True)
class Lab:
    """Three sites in a row: generator - SUT - origin. All platform wiring lives in the SUT's namespace.

    Inside the SUT namespace: ``gen0`` (198.18.1.1/24) towards the generator, ``org0`` (198.18.2.1/24) towards the
    origin, IPv4 forwarding on, no firewall rules. The other two have one device ``eth0`` each and a default route
    through the SUT. Where several generators load one server, ``further`` are sites like the first, behind ``gen2``
    (198.18.18.1/24) and so on.
    """

    ledger: Ledger
    run_tag: str  # four hex digits, unique among living runs; part of every kernel-visible name
    generator: Site
    sut: Site  # where instances are deployed
    origin: Site
    cgroup: str  # name of this run's cgroup tree, relative to each controller's root: "virtoll/<run_tag>"
    directory: Path  # scratch space of this run (in the ledger)
    further: tuple[Site, ...] = ()  # generators beside the first
    slot: int = 0  # tells instances apart that live at the same time: their addresses, devices and names
    far: FarGenerator | None = None  # the generator, where another machine has it; `gen0` leads there
    nic: str = ""  # the machine's own network device that `gen0` is upon then

    @property
    def host(self) -> Host:
        """The machine of the SUT."""
        return self.sut.host

    @property
    def generators(self) -> tuple[Site, ...]:
        """All that are on this machine, on the same CPUs; the first has no number in its names."""
        return tuple(site for site in (self.generator, *self.further) if site.netns)

    @property
    def generator_devices(self) -> tuple[str, ...]:
        """The SUT's devices towards them, in their order."""
        return ("gen0", *(f"gen{number}" for number, _ in enumerate(self.further, 2)))

    def at(self, site: Site) -> Lab:
        """The lab as an instance sees it that is deployed at another of its sites: that one is its SUT."""
        return replace(self, sut=site)

    def __post_init__(self) -> None:
        if not 0 <= self.slot < SLOTS:
            raise NoRoomError(
                f"no room for instance number {self.slot}: a lab has addresses for {SLOTS} at a time",
                where=f"the lab of run {self.run_tag}",
                remedy=f"deploy at most {SLOTS} instances at a time",
            )
