"""Network devices of a machine's own, upon which a lab stands that reaches to another machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Host
from virtoll.hosts.changes import Setting, chosen
from virtoll.hosts.ledger import Ledger
from virtoll.networks.macvlan import MacvlanNetwork
from virtoll.post.orders import Nic

_CLASS = Path("/sys/class/net")
_IFF_UP = 1  # linux/if.h
_OPTION = "--nic HERE,THERE"


def nic(name: str, root: Path = _CLASS) -> Nic:
    """The device as a run records it. HostError where there is none, or it cannot be read."""
    device = root / name
    try:
        mtu_bytes = int(_word(device / "mtu") or "")
    except ValueError:
        raise HostError(f"there is no network device {name}", where=_OPTION, remedy="`ip link` names them") from None
    driver = device / "device/driver"
    speed = _word(device / "speed")  # -1, or an error, where it has none: a virtual device's
    return Nic(
        name=name,
        driver=driver.resolve().name if driver.exists() else None,
        speed_mbit_per_s=int(speed) if speed and speed.isdecimal() else None,
        mtu_bytes=mtu_bytes,
    )


def problems_of(host: Host, name: str, whose: str, root: Path = _CLASS) -> list[Problem]:
    """What keeps a lab from standing upon a device; ``whose``: the machine, in words."""
    device, where = root / name, f"{whose} {name}"
    if not (device / "mtu").exists():
        known = ", ".join(sorted(path.name for path in root.iterdir() if path.name != "lo")) or "none"
        return [Problem(f"there is no such network device; there are: {known}", where, f"name one of them: {_OPTION}")]
    if (_word(device / "type") or "") != "1":  # ARPHRD_ETHER of linux/if_arp.h
        return [Problem("it is no Ethernet device, and a macvlan stands upon no other", where, f"name one: {_OPTION}")]
    if not int(_word(device / "flags") or "0", 16) & _IFF_UP:
        return [Problem("it is down", where, f"ip link set {name} up")]
    if _word(device / "carrier") == "0":
        return [Problem("it has no link: its cable is out, or the other end is down", where, "see both ends")]
    return MacvlanNetwork().check(host, "veth")


@contextmanager
def steered(ledger: Ledger, name: str, cpus: frozenset[int], root: Path = _CLASS) -> Iterator[None]:
    """Have what comes over a device worked on by these CPUs, for the length of the block, as the lab's own links do:
    each side pays for what it receives. Nothing is changed where the kernel cannot (built without RPS).
    """
    with ExitStack() as stack:
        for queue in sorted((root / name / "queues").glob("rx-*/rps_cpus")):
            if (before := chosen(queue)) is None or (after := mask_like(before, cpus)) == before:
                continue
            setting = Setting(queue, before, after)
            stack.enter_context(ledger.owning("setting", setting.name))
            setting.apply()
        yield


def mask_like(mask: str, cpus: frozenset[int]) -> str:
    """These CPUs as a bitmap with as many digits as another one of the kernel's: "00000000,00000000" or "0"."""
    words = mask.split(",")
    bits, found = sum(1 << cpu for cpu in cpus), []
    for width in reversed([len(word) for word in words]):
        found.append(f"{bits & ((1 << 4 * width) - 1):0{width}x}")
        bits >>= 4 * width
    return ",".join(reversed(found))


def _word(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None
