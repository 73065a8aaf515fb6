"""The network probes against sockperf and iperf3: `python -m bench.network [--json FILE]`.

The lab of a study, with the peer and the tools' servers in the place of the instance: they on CPU 1, the clients on
CPU 0, a veth link between them. One round runs ours and theirs once in each cell, in random order; ratios are taken
within a round, so what the machine does meanwhile hits both. Messages are alike: 14 bytes (sockperf's least) there and
back, datagrams of 64 and 1,470 bytes into the instance, each handed to the kernel whole; what arrives is counted.
sockperf drops the first 0.45 s of its second; of ours the second of two windows of the same length counts. Datagrams,
which differ by more than the noise, are sent in every second round. Printed: the median ratio and the middle half.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench._figures import keep, paired
from virtoll.binaries import binary
from virtoll.hosts.base import Confinement
from virtoll.hosts.ledger import opened, state_directory
from virtoll.hosts.local import LocalHost, end_session
from virtoll.instruments import iperf3, sockperf
from virtoll.lab.base import SUT_GENERATOR_SIDE_ADDRESS, CpuPlan
from virtoll.lab.client import Client
from virtoll.lab.wiring import wired
from virtoll.loads import outside
from virtoll.probes.bulk import BulkSettings
from virtoll.probes.native import arguments, parse
from virtoll.probes.round_trip import RoundTripSettings

_CPUS = CpuPlan(instance=frozenset({1}), generator=frozenset({0}), origin=frozenset({0}))
_ADDRESS = SUT_GENERATOR_SIDE_ADDRESS
_PORTS = {"peer": 5210, "iperf3": 5211, "sockperf-tcp": 5212, "sockperf-udp": 5213}
_SECONDS = 1  # the least that the tools take
_TIME_NS = 550_000_000  # what sockperf's statistics are of in it
_WINDOWS = 2  # the first is for warming up, as sockperf does
_BULK_EVERY = 2  # rounds


@dataclass(frozen=True)
class Cell:
    """One condition."""

    probe: Literal["round-trip", "bulk"]
    protocol: Literal["tcp", "udp"]
    size_bytes: int

    @property
    def other(self) -> str:
        return "sockperf" if self.probe == "round-trip" else "iperf3"

    def __str__(self) -> str:
        return f"{self.probe} {self.protocol} {self.size_bytes} B"


@dataclass(frozen=True)
class Target:
    """What is to be reached: the median over the rounds of ``measure``, ours over theirs."""

    measure: str
    bound: float
    at_least: bool

    def reached(self, ratio: float) -> bool:
        """Whether a median ratio is good enough."""
        return ratio >= self.bound if self.at_least else ratio <= self.bound


CELLS = [
    Cell("round-trip", "tcp", 14),
    Cell("round-trip", "udp", 14),
    Cell("bulk", "udp", 64),
    Cell("bulk", "udp", 1470),
]
TARGETS = {
    "round-trip": (
        Target("round_trip_p50_us", 1.03, at_least=False),
        Target("round_trip_p99_us", 1.0, at_least=False),
    ),
    "bulk": (Target("packets_per_s", 1.0, at_least=True),),
}
Values = Mapping[str, float]


@contextmanager
def served() -> Iterator[Client]:
    """All servers in a lab of their own, and the place of a client."""
    host = LocalHost()
    tag = f"{os.getpid() & 0xFFFF:04x}"
    servers = [
        [str(binary("virtoll-agent")), "peer", "--port", str(_PORTS["peer"])],
        iperf3.server(_PORTS["iperf3"]),
        sockperf.server(_PORTS["sockperf-tcp"], "tcp"),
        sockperf.server(_PORTS["sockperf-udp"], "udp"),
    ]
    with (
        opened(host, state_directory() / "ledgers", "bench-network") as ledger,
        wired(host, ledger, tag, _CPUS) as lab,
        ExitStack() as stack,
    ):
        there = Confinement(netns=lab.sut.netns, cpus=lab.sut.cpus)
        for argv in servers:
            stack.callback(end_session, host.spawn(argv, stdout=subprocess.DEVNULL, confinement=there))
        _wait(host, there)
        yield Client(host, Confinement(netns=lab.generator.netns, cpus=lab.generator.cpus), lab.directory, 1)


def _wait(host: LocalHost, there: Confinement) -> None:
    """Until every server listens: five sockets, for the peer has one for each protocol."""
    deadline = time.monotonic() + 10
    while len(host.run(["ss", "-Hlntu"], confinement=there).text.splitlines()) < len(_PORTS) + 1:
        if time.monotonic() > deadline:
            raise SystemExit("bench.network: not every server came to listen; run them by hand to see why")
        time.sleep(0.05)


def _ours(cell: Cell, client: Client) -> Values:
    settings = (RoundTripSettings if cell.probe == "round-trip" else BulkSettings)(
        windows=_WINDOWS, time_ns=_TIME_NS, protocol=cell.protocol, size_bytes=cell.size_bytes
    )
    argv = [str(binary("virtoll-agent")), *arguments(cell.probe, settings), "--peer", f"{_ADDRESS}:{_PORTS['peer']}"]
    done = client.host.run(argv, check=False, confinement=client.confinement)
    return parse(cell.probe, done.returncode, done.stdout, done.stderr).windows[-1].values


def _theirs(cell: Cell, client: Client) -> Values:
    if cell.probe == "round-trip":
        port = _PORTS[f"sockperf-{cell.protocol}"]
        argv = sockperf.command(_ADDRESS, port, cell.protocol, cell.size_bytes, _SECONDS)
        return sockperf.parse(outside.run(client, argv, _SECONDS)).values
    argv = iperf3.command(
        _ADDRESS,
        _PORTS["iperf3"],
        protocol=cell.protocol,
        direction="in",
        size_bytes=cell.size_bytes,
        seconds=_SECONDS,
    )
    return iperf3.parse(outside.run(client, argv, _SECONDS), cell.size_bytes).values


def measure(rounds: int, seed: int) -> dict[Cell, list[tuple[Values, Values]]]:
    """(ours, theirs) of each round, by cell."""
    readings: dict[Cell, list[tuple[Values, Values]]] = {cell: [] for cell in CELLS}
    order = random.Random(seed)
    with served() as client:
        for number in range(1, rounds + 1):
            cells = [cell for cell in CELLS if cell.probe == "round-trip" or number % _BULK_EVERY == 0]
            for cell in order.sample(cells, len(cells)):
                both = {measured: measured(cell, client) for measured in order.sample((_ours, _theirs), 2)}
                readings[cell].append((both[_ours], both[_theirs]))
            print(f"round {number} of {rounds}", file=sys.stderr)
    return readings


def summary(readings: Mapping[Cell, list[tuple[Values, Values]]]) -> list[dict[str, Any]]:
    """One row for each cell and target."""
    return [_row(cell, pairs, target) for cell, pairs in readings.items() for target in TARGETS[cell.probe]]


def _row(cell: Cell, pairs: list[tuple[Values, Values]], target: Target) -> dict[str, Any]:
    figures = [(ours[target.measure], theirs[target.measure]) for ours, theirs in pairs]
    row = paired(figures)
    return {
        "cell": str(cell),
        "measure": target.measure,
        "target": f"{'>=' if target.at_least else '<='} {target.bound:g} x {cell.other}",
        **row,
        "reached": target.reached(row["median"]),
    }


def main() -> int:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.network", description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help=f"at least {2 * _BULK_EVERY}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    if options.rounds < 2 * _BULK_EVERY:
        parser.error(f"--rounds must be at least {2 * _BULK_EVERY}")
    rows = summary(measure(options.rounds, options.seed))
    print(
        f"{'cell':22}{'measure':20}{'target':20}{'median':>6}  {'middle half':13}{'rounds':>6}"
        f"{'ours':>10}{'theirs':>10}"
    )
    for row in rows:
        spread = f"{row['quartiles'][0]:.2f} to {row['quartiles'][1]:.2f}"
        print(
            f"{row['cell']:22}{row['measure']:20}{row['target']:20}{row['median']:6.2f}  {spread:13}{row['rounds']:6}"
            f"{row['ours']:10.4g}{row['theirs']:10.4g}  {'reached' if row['reached'] else 'MISSED'}"
        )
    keep(options.json, {"rounds": options.rounds, "seed": options.seed, "rows": rows})
    return 0 if all(row["reached"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
