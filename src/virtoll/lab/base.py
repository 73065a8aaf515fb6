"""What a wired lab is to the rest: names, addresses, CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from virtoll.hosts.base import Host
from virtoll.hosts.ledger import Ledger

# RFC 2544 section C.2.2 / RFC 6890: 198.18.0.0/15 is set aside for benchmarking and never routed.
GENERATOR_ADDRESS = "198.18.1.2"
SUT_GENERATOR_SIDE_ADDRESS = "198.18.1.1"
ORIGIN_ADDRESS = "198.18.2.2"
SUT_ORIGIN_SIDE_ADDRESS = "198.18.2.1"
INSTANCE_ADDRESS = "198.18.3.10"  # where a mode gives the instance an address of its own
INSTANCE_GATEWAY = "198.18.3.1"


@dataclass(frozen=True)
class CpuPlan:
    """Which CPUs of the host do what. Generator and origin never share a CPU with the instance."""

    instance: frozenset[int]
    generator: frozenset[int]
    origin: frozenset[int]


@dataclass(frozen=True)
class Lab:
    """Three namespaces in a row: generator - SUT - origin. All platform wiring lives in the SUT's.

    Inside the SUT namespace: ``gen0`` (198.18.1.1/24) towards the generator, ``org0`` (198.18.2.1/24) towards the
    origin, IPv4 forwarding on, no firewall rules. The other two have one device ``eth0`` each and a default route
    through the SUT.
    """

    host: Host
    ledger: Ledger
    run_tag: str  # four hex digits, unique among living runs; part of every kernel-visible name
    generator_netns: str
    sut_netns: str
    origin_netns: str
    cpus: CpuPlan
    cgroup: str  # name of this run's cgroup tree, relative to each controller's root: "virtoll/<run_tag>"
    directory: Path  # scratch space of this run (in the ledger)
    slot: int = 0  # tells instances apart that live at the same time: their addresses, devices and names
