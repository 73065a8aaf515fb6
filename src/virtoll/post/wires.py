"""How much of a wire was used between the generator and what it loads: of one that is full the measured rate is the
wire's, whatever stands behind it.

A wire is a device's that is no virtual one. Of a VLAN or a bond it is that of the devices below: what others send over
it counts, and each port of a bond is one by itself, as a connection goes through one of them. What a veth, a tap or a
bridge tells as its speed is nobody's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from virtoll.hosts import devices
from virtoll.hosts.base import Host
from virtoll.post.orders import Carried
from virtoll.record.model import Window

# What a frame has around it that no device counts (IEEE 802.3): preamble, check sequence, and the gap to the next.
_AROUND_BYTES = 8 + 4 + 12
USED_SHARE = 0.9  # of a wire's speed, in either direction: what may be used of it
_MOST_SHARE = 1.05  # what carries more than it tells has no wire: an emulated device (e1000, vmxnet3)
_COARSE = frozenset(
    {"be2net", "bnx2", "bnx2x", "bnxt_en", "tg3"}
)  # drivers that bring counters up to date once a second
_COUNTERS = {"received": ("rx_bytes", "rx_packets"), "sent": ("tx_bytes", "tx_packets")}

Look = Mapping[Path, Mapping[str, int]]  # bytes on each wire so far, by direction


@dataclass(frozen=True)
class Wires:
    """Those that a device's frames take, by what /sys tells of them; (): it is not known which."""

    paths: tuple[Path, ...]

    @classmethod
    def of(cls, host: Host, name: str, root: Path = devices.CLASS) -> Wires:
        """Those of the device of that name, and of all below it."""
        found = devices.every(host).get(name)
        told = [] if found is None else devices.and_below(found, root)
        return cls(tuple(each for each in told if (each / "device").exists()))

    def look(self) -> Look:
        """What they have carried so far; without those that do not tell."""
        found = {each: {way: _bytes(each, *names) for way, names in _COUNTERS.items()} for each in self.paths}
        told = {each: {way: count for way, count in one.items() if count is not None} for each, one in found.items()}
        return {each: counts for each, counts in told.items() if len(counts) == len(_COUNTERS)}


def carried(before: Look, after: Look) -> list[Carried]:
    """What each wire carried between two looks, and its speed, which is that at the end."""
    return [
        Carried(
            device=device.name,
            speed_mbit_per_s=devices.speed_mbit_per_s(device),
            is_coarse=devices.driver(device) in _COARSE,
            **{f"{way}_bytes": max(0, count - before[device][way]) for way, count in counts.items()},
        )
        for device, counts in after.items()
        if device in before
    ]


@dataclass(frozen=True)
class Stretch:
    """A window, and what the wires of both machines carried from before its users began to ask until after the last
    had its answer, and for how long that was looked at.
    """

    window: Window
    here: Sequence[Carried]
    there: Sequence[Carried]
    looked_ns: int

    @property
    def asked_ns(self) -> int:
        """How long its users asked."""
        return self.window.end_ns - self.window.asked_from_ns

    @property
    def served_ns(self) -> int:
        """How long anything was carried for them: until the last answer; of a program, all of its run; of users who
        join and settle before a window, who do not tell since when they ask, as long as was looked.
        """
        window = self.window
        answered_ns = max(window.end_ns, window.until_ns or 0) - window.asked_from_ns
        is_told = window.asked_ns is not None or window.cpu_span_ns is not None
        return max(answered_ns, window.cpu_span_ns or 0, 0 if is_told else self.looked_ns)

    @property
    def ends(self) -> dict[str, Sequence[Carried]]:
        """Those of each machine."""
        return {"here": self.here, "there": self.there}


@dataclass(frozen=True)
class _Use:
    """The share of a wire's speed in one direction, at one intensity: ``least``, if it was used until the last answer
    (`Stretch.served_ns`); ``most``, if it was as long as users asked alone.
    """

    least: float
    most: float
    where: str


def headroom(stretches: Sequence[Stretch]) -> tuple[bool | None, str]:
    """Whether each wire had some left, in both directions and at each intensity, and in words; None: not known."""
    if why := next((why for each in stretches for why in _coarse(each)), ""):
        return None, why
    levels = dict.fromkeys(each.window.at for each in stretches)
    uses = [use for at in levels for use in _uses([each for each in stretches if each.window.at == at])]
    fullest = max(uses, key=lambda use: use.least, default=None)
    if fullest is not None and fullest.least > _MOST_SHARE:
        return None, f"{fullest.least:.0%} of {fullest.where}: that is no wire's speed"
    if fullest is not None and fullest.least > USED_SHARE:
        return False, f"{fullest.least:.0%} of {fullest.where} ({USED_SHARE:.0%} may be)"
    if why := next((why for each in stretches for why in _unknown(each)), ""):
        return None, why
    most = max(uses, key=lambda use: use.most)
    if most.most > USED_SHARE:
        told = f"between {most.least:.0%} and {most.most:.0%} of {most.where}"
        return None, f"{told}: some of it may be of before or after the windows"
    return True, f"{most.most:.0%} of {most.where} ({USED_SHARE:.0%} may be)"


def _uses(stretches: Sequence[Stretch]) -> Iterator[_Use]:
    """Of windows of one intensity, which are too short for some drivers' counters to be told of one by one."""
    asked_s = sum(each.asked_ns for each in stretches) / 1e9
    served_s = sum(each.served_ns for each in stretches) / 1e9
    speeds, sums = dict[tuple[str, str], int](), dict[tuple[str, str, str], int]()
    for end, each in [(end, each) for stretch in stretches for end, found in stretch.ends.items() for each in found]:
        if each.speed_mbit_per_s is None or each.is_coarse or asked_s <= 0:
            continue
        wire = end, each.device
        speeds[wire] = min(speeds.get(wire, each.speed_mbit_per_s), each.speed_mbit_per_s)
        for way, count in (("received", each.received_bytes), ("sent", each.sent_bytes)):
            sums[*wire, way] = sums.get((*wire, way), 0) + count
    for (end, device, way), count in sums.items():
        speed = speeds[end, device]
        share_s = count * 8 / (speed * 1e6)  # how long the wire was taken
        yield _Use(share_s / served_s, share_s / asked_s, f"{speed:,} Mbit/s {way} over {device} {end}")


def _coarse(stretch: Stretch) -> Iterator[str]:
    """Some drivers bring their counters up to date once a second: a short window's are then told of another."""
    for end, found in stretch.ends.items():
        if found and not any(each.received_bytes + each.sent_bytes for each in found):
            yield f"the counters of {found[0].device} {end} do not keep up with the windows"


def _unknown(stretch: Stretch) -> Iterator[str]:
    """Why nothing, or not all, can be said of a window."""
    if stretch.asked_ns <= 0:
        yield "the windows have no length: all requests were sent at once"
    for end, found in stretch.ends.items():
        if all(each.speed_mbit_per_s is None for each in found):
            yield f"no device {end} tells a wire's speed"
        if coarse := next((each for each in found if each.is_coarse), None):
            yield f"the counters of {coarse.device} {end} are brought up to date once a second"
        for each in found:
            if each.speed_mbit_per_s is None and each.received_bytes + each.sent_bytes > 0:
                yield f"the speed of {each.device} {end} is not told"


def _bytes(device: Path, counted: str, frames: str) -> int | None:
    """What it has carried on the wire; None where a counter is not told."""
    words = [devices.word(device / "statistics" / name) or "" for name in (counted, frames)]
    return int(words[0]) + _AROUND_BYTES * int(words[1]) if all(word.isdecimal() for word in words) else None
