"""What attaching an instance through virtoll adds to the `ip` commands of a careful hand: `python -m bench.attach`.

One round attaches and detaches a veth pair once by each network mode, and makes and deletes the same thing by hand,
one `ip` or `nft` command for each step, in the same namespace of the same lab. Order within a round is random;
differences are taken within a round. Most of either is the kernel's own wait, on deletion, until nobody can use the
thing any more. Also printed: wiring and unwiring a whole lab, done once a run.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from virtoll.hosts.base import Host
from virtoll.hosts.ledger import Ledger, opened
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import CpuPlan, Lab
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import wired
from virtoll.networks.base import network_modes
from virtoll.offers import Port

_TARGET_MS = 15.0
_LINK = ("ip link add vt0 type veth peer name vt1", "ip link set vt0 up")
_ROUTED = (*_LINK, "ip addr add 198.18.3.1/32 dev vt0", "ip route add 198.18.3.10/32 dev vt0")
_BY_HAND = {
    "bridge": (
        "ip link add br0 type bridge",
        "ip addr add 198.18.3.1/24 dev br0",
        "ip link set br0 up",
        *_LINK,
        "ip link set vt0 master br0",
        "ip link delete vt0",
        "ip link delete br0",
    ),
    "routed": (*_ROUTED, "ip link delete vt0"),
    "nat": (
        *_ROUTED,
        "nft add table ip hand",
        "nft add chain ip hand pre { type nat hook prerouting priority dstnat; }",
        "nft add chain ip hand post { type nat hook postrouting priority srcnat; }",
        "nft add rule ip hand pre ip daddr 198.18.1.1 tcp dport 80 dnat to 198.18.3.10",
        "nft add rule ip hand post oifname org0 ip saddr 198.18.3.10 masquerade",
        "nft delete table ip hand",
        "ip link delete vt0",
    ),
}


def _by_virtoll(lab: Lab, mode: str) -> None:
    with network_modes()[mode]().attach(lab, "veth", (Port(80),)):
        pass


def _by_hand(lab: Lab, mode: str) -> None:
    for step in _BY_HAND[mode]:
        tool, *words = step.split()
        there = ["ip", "-n", lab.sut.netns] if tool == "ip" else ["nsenter", f"--net=/run/netns/{lab.sut.netns}", tool]
        subprocess.run([*there, *words], check=True)


def _milliseconds(action: Callable[[], None]) -> float:
    start_ns = time.monotonic_ns()
    action()
    return (time.monotonic_ns() - start_ns) / 1e6


def measure(rounds: int, seed: int) -> tuple[list[float], dict[str, list[tuple[float, float]]]]:
    """Milliseconds to wire and unwire; per mode and round, through virtoll and by hand (the first round warms up)."""
    host, order = LocalHost(), random.Random(seed)
    whole: list[float] = []
    taken: dict[str, list[tuple[float, float]]] = {mode: [] for mode in _BY_HAND}
    tag = f"{os.getpid() & 0xFFFF:04x}"
    with tempfile.TemporaryDirectory() as directory, opened(host, Path(directory), "bench") as ledger:
        plan = cpu_plan(host, 1)
        for _ in range(5):
            whole.append(_milliseconds(partial(_wire, host, ledger, tag, plan)))
        with wired(host, ledger, tag, plan) as lab:
            for number in range(rounds + 1):
                for mode in order.sample(list(_BY_HAND), len(_BY_HAND)):
                    ways = order.sample((_by_virtoll, _by_hand), 2)
                    took_ms = {way: _milliseconds(partial(way, lab, mode)) for way in ways}
                    if number:
                        taken[mode].append((took_ms[_by_virtoll], took_ms[_by_hand]))
    return whole, taken


def _wire(host: Host, ledger: Ledger, tag: str, plan: CpuPlan) -> None:
    with wired(host, ledger, tag, plan):
        pass


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.attach", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    whole, taken = measure(options.rounds, options.seed)
    print(f"a lab wired and unwired: median {statistics.median(whole):.0f} ms")
    print(f"attach and detach a veth pair, target: at most {_TARGET_MS:g} ms more than by hand")
    print(f"{'mode':10}{'difference ms':>14}  {'middle half':18}{'virtoll ms':>11}{'by hand ms':>11}")
    missed = False
    for mode, pairs in taken.items():
        low, median, high = statistics.quantiles([ours - hand for ours, hand in pairs], n=4, method="inclusive")
        ours, hand = (statistics.median(way) for way in zip(*pairs, strict=True))
        missed |= median > _TARGET_MS
        verdict = "reached" if median <= _TARGET_MS else "MISSED"
        print(f"{mode:10}{median:+14.1f}  {f'{low:+.1f} to {high:+.1f}':18}{ours:11.0f}{hand:11.0f}  {verdict}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
