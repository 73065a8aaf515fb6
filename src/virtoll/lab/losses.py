"""What the lab itself lost: a trial in which the wiring dropped packets measures the wiring."""

from __future__ import annotations

import re

from virtoll.hosts.base import Confinement
from virtoll.lab.base import Lab

_SCRIPT = "cat /proc/net/dev; [ ! -e /proc/net/stat/nf_conntrack ] || cat /proc/net/stat/nf_conntrack"
# Columns of /proc/net/dev after the name: 8 of what was received, then 8 of what was sent.
_DEVICE_COLUMNS = {"rx_errors": 2, "rx_dropped": 3, "tx_errors": 10, "tx_dropped": 11}
_OUR_DEVICES = re.compile(r"eth0|gen\d+|org0")
_TRACKING_COLUMNS = ("insert_failed", "drop", "early_drop")


def losses(lab: Lab) -> dict[str, int]:
    """Counters since the wiring, by place ("origin eth0 rx_dropped", "sut conntrack drop"); before and after a trial.

    Drops of a shaped line are asked for, and happen in its queue, which is not counted here; nor is the instance's
    own link, whose overflow is the instance's doing.
    """
    found: dict[str, int] = {}
    further = [(f"generator {number}", site) for number, site in enumerate(lab.further, 2)]
    for place, site in (("generator", lab.generator), *further, ("sut", lab.sut), ("origin", lab.origin)):
        text = lab.host.run(["sh", "-c", _SCRIPT], confinement=Confinement(netns=site.netns)).text
        found.update({f"{place} {name}": count for name, count in parse(text).items()})
    return found


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
