"""What the lab itself lost: a trial in which the wiring dropped packets measures the wiring."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from virtoll.errors import HostError
from virtoll.hosts import devices
from virtoll.hosts.base import Confinement, Host
from virtoll.lab.base import Lab

_SCRIPT = "cat /proc/net/dev; [ ! -e /proc/net/stat/nf_conntrack ] || cat /proc/net/stat/nf_conntrack"
# Columns of /proc/net/dev after the name: 8 of what was received, then 8 of what was sent.
_DEVICE_COLUMNS = {"rx_errors": 2, "rx_dropped": 3, "tx_errors": 10, "tx_dropped": 11}
_OUR_DEVICES = re.compile(r"eth0|gen\d+|org0")
_TRACKING_COLUMNS = ("insert_failed", "drop", "early_drop")
# Of a machine's own network device: what a full ring, a bad cable, or the device on the way out lost. What its queueing
# discipline dropped is in none of them.
_NICS = {"rx": ("missed_errors", "crc_errors"), "tx": ("dropped", "errors")}
# What it received and dropped may be what nobody asked for (other protocols' frames), which is no loss, or what was
# steered to a CPU whose queue was full: as many as those of all CPUs lost meanwhile, at the most.
_DROPPED, _BACKLOG = "rx_dropped", "backlog"
_SOFTNET = Path("/proc/net/softnet_stat")  # a line for each CPU, hexadecimal; the second is what its queue dropped


def losses(lab: Lab) -> dict[str, int]:
    """Counters since the wiring, by place ("origin eth0 rx_dropped", "sut conntrack drop"); before and after a trial.

    Drops of a shaped line are asked for, and happen in its queue, which is not counted here; nor is the instance's
    own link, whose overflow is the instance's doing. Where the generator stands on another machine, both network
    devices of the link are counted, too.
    """
    found: dict[str, int] = {}
    generators = [
        (f"generator {number}" if number > 1 else "generator", s) for number, s in enumerate(lab.generators, 1)
    ]
    for place, site in (*generators, ("sut", lab.sut), ("origin", lab.origin)):
        counted = of_namespace(lab.host, site.netns, upon="gen0" if place == "sut" and lab.far is not None else "")
        found.update({f"{place} {name}": count for name, count in counted.items()})
    if lab.far is not None:
        found.update(of_nic(lab.host, lab.nic))
        found.update({f"generator {name}": count for name, count in lab.far.losses().items()})
    return found


def of_namespace(host: Host, netns: str, *, upon: str = "") -> dict[str, int]:
    """The counters of a namespace: "eth0 rx_dropped". ``upon``: its device that stands upon one of the machine's own.
    That has its broadcasts, too, of protocols that nobody here speaks (a switch's, a powerline's), and drops those;
    what was sent to it alone is lost before, and counted there.
    """
    found = parse(host.run(["sh", "-c", _SCRIPT], confinement=Confinement(netns=netns)).text)
    return {name: count for name, count in found.items() if name != f"{upon} rx_dropped"}


def of_nic(host: Host, nic: str, root: Path = devices.CLASS) -> dict[str, int]:
    """The same of one of the machine's own devices and of all below it, where a VLAN's or a bond's frames come in: "nic
    eno1 rx_missed_errors". It may be an eth0, as a lab's are. What was dropped on the way in is of all of them ("nic
    eno1.10 rx_dropped"), as the CPUs' queues are of the whole machine. HostError where there is no such device.
    """
    every = devices.every(host)
    if nic not in every:
        raise HostError(f"there is no network device {nic} any more", where=host.where)
    paths = devices.and_below(every[nic], root)
    names = {nic, *(path.name for path in paths)} - {path.name for path in paths if (path / "bonding").exists()}
    counts = {name: every.get(name, {}).get("stats64", {}) for name in sorted(names)}
    found = {
        f"nic {name} {way}_{key}": int(told[way][key])
        for name, told in counts.items()
        for way, keys in _NICS.items()
        for key in keys
        if key in told.get(way, {})
    }
    found.update({f"nic {name} queue_dropped": count for name in names for count in _queue(host, name)})
    found[f"nic {nic} {_DROPPED}"] = sum(int(told.get("rx", {}).get("dropped", 0)) for told in counts.values())
    queues = host.read(_SOFTNET).decode("ascii").splitlines()
    return {**found, f"nic {nic} {_BACKLOG}": sum(int(line.split()[1], 16) for line in queues)}


def _queue(host: Host, name: str) -> list[int]:
    """What the queueing discipline of a device dropped, if it has one. What those below a root dropped is in its own
    count. HostError where tc says it in no words that we know.
    """
    argv = ["tc", "-s", "-j", "qdisc", "show", "dev", name]
    try:
        told = json.loads(host.run(argv).text or "[]")
        return [int(each.get("drops", 0)) for each in told if each.get("root")]
    except ValueError as error:
        remedy = "iproute2 of 2020 or later tells each discipline in JSON"
        raise HostError(f"{' '.join(argv)}: it is no JSON: {error}", where=host.where, remedy=remedy) from error


def lost(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What was lost between two looks (`losses`), by place; {}: nothing."""
    grown = {place: count - before.get(place, 0) for place, count in after.items() if count > before.get(place, 0)}
    for place in [each for each in after if each.endswith(f" {_BACKLOG}")]:
        dropped = grown.pop(f"{place.removesuffix(_BACKLOG)}{_DROPPED}", 0)
        if (count := min(grown.pop(place, 0), dropped)) > 0:
            grown[place] = count
    return grown


def parse(text: str) -> dict[str, int]:
    """The counters in /proc/net/dev followed by /proc/net/stat/nf_conntrack (hexadecimal, one line a CPU)."""
    devices, _, tracking = text.partition("\nentries ")
    counts = {}
    for line in devices.splitlines():
        name, colon, numbers = line.strip().partition(":")
        if colon and _OUR_DEVICES.fullmatch(name):
            counts.update({f"{name} {key}": int(numbers.split()[at]) for key, at in _DEVICE_COLUMNS.items()})
    if tracking:
        header, *rows = tracking.splitlines()
        columns = ["entries", *header.split()]
        for key in _TRACKING_COLUMNS:
            counts[f"conntrack {key}"] = sum(int(row.split()[columns.index(key)], 16) for row in rows)
    return counts
