"""Network devices of a machine's own, and those that they stand upon: a VLAN's one, a bond's ports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from virtoll.hosts.base import Host

CLASS = Path("/sys/class/net")


def every(host: Host) -> dict[str, dict[str, Any]]:
    """All of the network namespace that we are in, by name, with their counters, as iproute2 tells them. (/sys may be
    another's.)
    """
    return {
        each["ifname"]: each for each in json.loads(host.run(["ip", "-j", "-s", "-s", "link", "show"]).text or "[]")
    }


def told_of(device: Mapping[str, Any], root: Path = CLASS) -> Path | None:
    """What /sys tells of a device; None where that is another namespace's, which may have one of the same name."""
    path = root / str(device["ifname"])
    own = word(path / "ifindex"), word(path / "address")
    return path if own == (str(device["ifindex"]), device.get("address")) else None


def and_below(device: Mapping[str, Any], root: Path = CLASS) -> list[Path]:
    """What /sys tells of a device and of all below it that its frames take, each once; [] as of `told_of`. Of a
    bridge's ports those that lead to a wire: the others are its guests', who lose what they like.
    """
    path = told_of(device, root)
    found = set() if path is None else {path.resolve()}
    while more := {lower for each in found for lower in _lower(each)} - found:
        found |= more
    return sorted(found)


def _lower(device: Path) -> Iterator[Path]:
    for lower in (each.resolve() for each in device.glob("lower_*")):
        leads_out = (lower / "device").exists() or any(lower.glob("lower_*"))
        if leads_out or not (device / "bridge").exists():
            yield lower


def word(path: Path) -> str | None:
    """What a file of /sys says; None where it says nothing."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None


def driver(device: Path) -> str | None:
    """The name of what drives it; None of a virtual one."""
    path = device / "device/driver"
    return path.resolve().name if path.exists() else None


def speed_mbit_per_s(device: Path) -> int | None:
    """None where it is not told (-1, or an error: a virtual machine's device, or one without a link)."""
    speed = word(device / "speed") or ""
    return int(speed) if speed.isdecimal() and int(speed) > 0 else None
