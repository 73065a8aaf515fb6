"""Network devices of a machine's own, upon which a lab stands that reaches to another machine."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from virtoll.errors import HostError, Problem
from virtoll.hosts import devices
from virtoll.hosts.base import Host
from virtoll.hosts.changes import Setting, chosen
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.programs import find
from virtoll.networks.macvlan import MacvlanNetwork
from virtoll.post.orders import Nic

_OPTION = "--nic HERE,THERE"
# What a device does in place of the kernel, or the kernel for many packets at once: linux/ethtool.h has the commands
# that ask for one each, linux/sockios.h the request that brings them.
_SIOCETHTOOL = 0x8946
_OFFLOADS = {"rx": 0x14, "tx": 0x16, "sg": 0x18, "tso": 0x1E, "gso": 0x23, "gro": 0x2B}
_FLAGS, _LRO = 0x25, 1 << 15  # ETHTOOL_GFLAGS, ETH_FLAG_LRO
# What is received so cannot be forwarded: the kernel ends it below any device of a namespace that forwards, which a
# lab's is (dev_disable_lro of net/core/dev.c), and nothing begins it again.
LRO = "lro"


def nic(host: Host, name: str, root: Path = devices.CLASS) -> Nic:
    """The device as a run records it. HostError where there is none."""
    found = devices.every(host).get(name)
    if found is None:
        raise HostError(f"there is no network device {name}", where=_OPTION, remedy="`ip link` names them")
    told = devices.told_of(found, root)
    return Nic(
        name=name,
        driver=None if told is None else devices.driver(told),
        speed_mbit_per_s=None if told is None else devices.speed_mbit_per_s(told),
        mtu=int(found["mtu"]),
        identity=hashlib.sha256(str(found.get("address")).encode()).hexdigest()[:8],
        offloads=sorted([*_offloads(name), *([LRO] if _with_lro(found, root) else [])]),
    )


def with_lro(host: Host, name: str, root: Path = devices.CLASS) -> list[str]:
    """Of a device and all below it those whose large receive offload is on: the kernel ends it of all of them."""
    found = devices.every(host).get(name)
    return [] if found is None else _with_lro(found, root)


def problems_of(host: Host, name: str, whose: str) -> list[Problem]:
    """What keeps a lab from standing upon a device; ``whose``: the machine, in words."""
    every, where = devices.every(host), f"{whose} {name}"
    if (found := every.get(name)) is None:
        known = ", ".join(sorted(each for each in every if each != "lo")) or "none"
        return [Problem(f"there is no such network device; there are: {known}", where, f"name one of them: {_OPTION}")]
    flags = found.get("flags", [])
    if found.get("link_type") != "ether":
        return [Problem("it is no Ethernet device, and a macvlan stands upon no other", where, f"name one: {_OPTION}")]
    if master := found.get("master"):
        return [Problem(f"it is a port of {master}, which has all that comes", where, f"name that one: {_OPTION}")]
    if "UP" not in flags:
        return [Problem("it is down", where, f"ip link set {name} up")]
    if "LOWER_UP" not in flags:
        return [Problem("it has no link: its cable is out, or the other end is down", where, "see both ends")]
    counter = Problem("tc is not installed, which tells what its queue drops", where, "install iproute2's tc")
    missing = [counter] if find("tc") is None else []
    return [*missing, *(replace(problem, where=where) for problem in MacvlanNetwork().check(host, "veth"))]


@contextmanager
def steered(ledger: Ledger, name: str, cpus: frozenset[int], root: Path = devices.CLASS) -> Iterator[None]:
    """Have what comes over a device worked on by these CPUs, for the length of the block, as the lab's own links do:
    each side pays for what it receives. Of a VLAN, a bond or a team the devices below it are told, too: that is where a
    packet comes in, and it is steered there or not at all. Nothing is changed where the kernel cannot (built
    without RPS, or a /sys that nobody may write to).
    """
    found = devices.every(ledger.host).get(name)
    with ExitStack() as stack:
        for queue in [] if found is None else _queues(devices.and_below(found, root)):
            if not os.access(queue, os.W_OK) or (before := chosen(queue)) is None:
                continue
            if (after := mask_like(before, cpus)) == before:
                continue
            setting = Setting(queue, before, after)
            stack.enter_context(ledger.owning("setting", setting.name))
            setting.apply()
        yield


def _offloads(name: str) -> list[str]:
    """Those that are on, as ethtool(8) calls them; none, where the device does not tell."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        return [each for each, command in _OFFLOADS.items() if _ethtool(asker, name, command)]


def _with_lro(device: Mapping[str, Any], root: Path) -> list[str]:
    """A VLAN's own flags say nothing of what has received its frames."""
    names = sorted({str(device["ifname"]), *(path.name for path in devices.and_below(device, root))})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        return [name for name in names if _ethtool(asker, name, _FLAGS) & _LRO]


def _ethtool(asker: socket.socket, name: str, command: int) -> int:
    """The answer to one of its commands (struct ethtool_value in a struct ifreq); 0 where there is none."""
    value = ctypes.create_string_buffer(struct.pack("=II", command, 0), 8)
    try:
        fcntl.ioctl(asker, _SIOCETHTOOL, struct.pack("16sP16x", name.encode(), ctypes.addressof(value)))
    except OSError:
        return 0
    found: int = struct.unpack("=II", value.raw)[1]
    return found


def _queues(told: Iterable[Path]) -> list[Path]:
    """Where what comes over these devices is steered."""
    return sorted(queue for each in told for queue in (each / "queues").glob("rx-*/rps_cpus"))


def mask_like(mask: str, cpus: frozenset[int]) -> str:
    """These CPUs as a bitmap with as many digits as another one of the kernel's: "00000000,00000000" or "0"."""
    bits, found = sum(1 << cpu for cpu in cpus), []
    for width in reversed([len(word) for word in mask.split(",")]):
        found.append(f"{bits & ((1 << 4 * width) - 1):0{width}x}")
        bits >>= 4 * width
    return ",".join(reversed(found))
