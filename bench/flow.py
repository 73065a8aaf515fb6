"""The flow generator against iperf3 -u: `python -m bench.flow [--json FILE]`.

The lab of a study, a veth link between the generator's side (CPU 0, the senders) and the receivers' (CPU 1). Rounds in
random order, ratios within a round, printed with their middle half:

- flood: datagrams of 64 and 1,470 bytes as fast as they go, each a datagram of its own (no UDP_SEGMENT, which iperf3
  does not use), into receive buffers of the system's default: what the sender sent and what the receiver counted;
- rate: 64 bytes at rising rates; where iperf3 holds its rate within 0.5 %, ours must;
- gaps: the standard deviation of the times between departures, seen by one observer for both: a packet socket in the
  receivers' namespace, stamped by the kernel. iperf3 as it comes (it sends what is due every millisecond), and with its
  finest pacing (--pacing-timer 1);
- trace: 10,000 datagrams at 36 Mbit/s, none of them without its time of arrival.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench._figures import keep
from virtoll.binaries import binary
from virtoll.hosts.base import Confinement
from virtoll.hosts.ledger import opened, state_directory
from virtoll.hosts.local import LocalHost, end_session
from virtoll.instruments import iperf3
from virtoll.lab.base import SUT_GENERATOR_SIDE_ADDRESS, CpuPlan, Lab
from virtoll.lab.wiring import wired
from virtoll.probes.native import report

_CPUS = CpuPlan(instance=frozenset({1}), generator=frozenset({0}), origin=frozenset({0}))
_ADDRESS = SUT_GENERATOR_SIDE_ADDRESS
_PEER, _IPERF3 = 5210, 5211
_RATE_SIZE_BYTES = 64
_RATES_PER_S = (20_000, 50_000, 100_000, 200_000, 400_000)
_HELD_PERCENT = 0.5
_FLOODS_BYTES = (64, 1470)
_FLOODS = 2  # a round, for they vary most
_GAPS = ((1024, 36_000_000), (128, 10_000_000))  # bytes, bit/s
_PACINGS: dict[str, list[str]] = {"iperf3": [], "iperf3, finest": ["--pacing-timer", "1"]}
_TRACES_BYTES = (128, 1024, 1470)
_TRACE, _TRACE_BIT_PER_S = 10_000, 36_000_000
_LEAST_ROUNDS = 3
_FIRST_S, _QUIET_S = 10.0, 0.4  # an observer waits for the first, and after each for the next
_MIDDLE = 0.8  # of what an observer saw: without beginning and end
# linux/if_packet.h, asm-generic/socket.h, linux/if_ether.h
_SO_TIMESTAMPNS, _SO_RCVBUFFORCE, _ETH_P_IP = 35, 33, 0x0800


@dataclass
class Row:
    """Readings of one target, ours and theirs in pairs; the median of their ratio is to be at least (most) 1."""

    cell: str
    measure: str
    other: str  # what it is compared with
    at_least: bool
    pairs: list[tuple[float, float]] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """As printed."""
        low, median, high = statistics.quantiles([ours / theirs for ours, theirs in self.pairs], n=4)
        return {
            "cell": self.cell,
            "measure": self.measure,
            "target": f"{'>=' if self.at_least else '<='} {self.other}",
            "median": median,
            "quartiles": [low, high],
            "ours": statistics.median(ours for ours, _ in self.pairs),
            "theirs": statistics.median(theirs for _, theirs in self.pairs),
            "reached": median >= 1 if self.at_least else median <= 1,
        }


class Bench:
    """Runs one sender at a time in a lab with both receivers."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._here = Confinement(netns=lab.generator.netns, cpus=lab.generator.cpus)
        self._there = Confinement(netns=lab.sut.netns, cpus=lab.sut.cpus)

    def ours(self, *words: str) -> dict[str, Any]:
        """The report of one flow."""
        argv = [str(binary("virtoll-agent")), "probe", "flow", "--json", "--peer", f"{_ADDRESS}:{_PEER}"]
        argv += ["--windows", "1", "--warm-up-ns", "100000000", "--wait", "spin", *words]
        done = self._lab.host.run(argv, check=False, confinement=self._here)
        return report("flow", done.returncode, done.stdout, done.stderr)

    def theirs(self, size_bytes: int, bit_per_s: int, *words: str) -> dict[str, float]:
        """What iperf3 sent and received a second; 0 bit/s: as fast as it goes."""
        argv = ["iperf3", "-c", _ADDRESS, "-p", str(_IPERF3), "-J", "-t", "1", "-u", "-l", str(size_bytes)]
        text = self._lab.host.run([*argv, "-b", str(bit_per_s), *words], confinement=self._here).text
        end = json.loads(text)["end"]
        sent, came = end["sum_sent"], end["sum_received"]
        return {
            "sent": sent["packets"] / sent["seconds"],
            "received": (came["packets"] - came["lost_packets"]) / came["seconds"],
        }

    @contextmanager
    def observed(self, port: int) -> Iterator[list[float]]:
        """The gaps, in us, between the UDP datagrams to a port that are sent in the block; there when it is over."""
        observer = self._lab.host.spawn(
            [sys.executable, "-m", "bench.flow", "--observe", str(port)],
            stdout=subprocess.PIPE,
            stderr=None,
            confinement=self._there,
        )
        gaps: list[float] = []
        try:
            assert observer.stdout is not None
            observer.stdout.readline()  # it is there
            yield gaps
            gaps += json.loads(observer.stdout.read())
        finally:
            end_session(observer)


def observe(port: int) -> None:
    """Stamp what comes to a UDP port until nothing more does; print the gaps between them, in us."""
    times_ns: list[int] = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP)) as packets:
        packets.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
        packets.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        packets.settimeout(_FIRST_S)
        print("ready", flush=True)
        with suppress(TimeoutError):
            while True:
                head, said, _, _ = packets.recvmsg(24, 64)  # IPv4's header, and UDP's ports
                if head[9] == socket.IPPROTO_UDP and int.from_bytes(head[22:24], "big") == port:
                    seconds, ns = struct.unpack("qq", said[0][2])
                    times_ns.append(seconds * 10**9 + ns)
                    packets.settimeout(_QUIET_S)
    print(json.dumps([(later - sooner) / 1000 for sooner, later in itertools.pairwise(times_ns)]))


@contextmanager
def served() -> Iterator[Bench]:
    """A lab with both receivers."""
    host = LocalHost()
    servers = [[str(binary("virtoll-agent")), "peer", "--port", str(_PEER)], iperf3.server(_IPERF3)]
    with (
        opened(host, state_directory() / "ledgers", "bench-flow") as ledger,
        wired(host, ledger, f"{os.getpid() & 0xFFFF:04x}", _CPUS) as lab,
        ExitStack() as stack,
    ):
        there = Confinement(netns=lab.sut.netns, cpus=lab.sut.cpus)
        for argv in servers:
            stack.callback(end_session, host.spawn(argv, confinement=there))
        deadline = time.monotonic() + 10
        while len(host.run(["ss", "-Hlnt"], confinement=there).text.splitlines()) < len(servers):
            if time.monotonic() > deadline:
                raise SystemExit("bench.flow: not every server came to listen; run them by hand to see why")
            time.sleep(0.05)
        yield Bench(lab)


class Ratios:
    """All readings, by target."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], Row] = {}

    def add(self, row: Row, ours: float, theirs: float) -> None:
        """One pair."""
        self._rows.setdefault((row.cell, row.measure, row.other), row).pairs.append((ours, theirs))

    def rows(self) -> list[Row]:
        """Each target that has been measured."""
        return list(self._rows.values())


def floods(bench: Bench, ratios: Ratios, order: random.Random) -> None:
    """As fast as it goes, once each."""
    for size_bytes in order.sample(_FLOODS_BYTES, len(_FLOODS_BYTES)):

        def ours(size_bytes: int = size_bytes) -> dict[str, float]:
            words = ["--size-bytes", str(size_bytes), "--receive-buffer-bytes", str(_default_buffer_bytes())]
            values = bench.ours(*words, "--time-ns", "1000000000")["windows"][0]["values"]
            return {"sent": values["offered_packets_per_s"], "received": values["packets_per_s"]}

        def theirs(size_bytes: int = size_bytes) -> dict[str, float]:
            return bench.theirs(size_bytes, 0)

        both = {one: one() for one in order.sample((ours, theirs), 2)}
        for measure in ("sent", "received"):
            row = Row(f"flood {size_bytes} B", f"{measure} /s", "iperf3", at_least=True)
            ratios.add(row, both[ours][measure], both[theirs][measure])


def _default_buffer_bytes() -> int:
    """What a socket that asks for nothing has; what is asked for is doubled (socket(7))."""
    return int(Path("/proc/sys/net/core/rmem_default").read_text()) // 2


def gaps(bench: Bench, ratios: Ratios, order: random.Random) -> None:
    """The spread of the times between departures, once each."""
    for size_bytes, bit_per_s in order.sample(_GAPS, len(_GAPS)):
        spreads: dict[str, float] = {}
        for who in order.sample(("ours", *_PACINGS), 1 + len(_PACINGS)):
            with bench.observed(_PEER if who == "ours" else _IPERF3) as seen:
                if who == "ours":
                    rate = ["--rate-bit-per-s", str(bit_per_s), "--time-ns", "1000000000"]
                    bench.ours("--size-bytes", str(size_bytes), *rate)
                else:
                    bench.theirs(size_bytes, bit_per_s, *_PACINGS[who])
            spreads[who] = _spread(seen)
        for who in _PACINGS:
            row = Row(f"gaps {size_bytes} B, {bit_per_s // 10**6} Mbit/s", "sd us", who, at_least=False)
            ratios.add(row, spreads["ours"], spreads[who])


def _spread(seen: Sequence[float]) -> float:
    cut = round(len(seen) * (1 - _MIDDLE) / 2)
    return statistics.stdev(seen[cut : len(seen) - cut])


def rates(bench: Bench, order: random.Random, rounds: int) -> list[dict[str, Any]]:
    """How far each is from its rate in percent: the median over the rounds."""
    errors: dict[int, dict[str, list[float]]] = {rate: {"ours": [], "theirs": []} for rate in _RATES_PER_S}
    for _ in range(rounds):
        for rate in order.sample(_RATES_PER_S, len(_RATES_PER_S)):
            for who in order.sample(("ours", "theirs"), 2):
                if who == "ours":
                    words = ["--packets-per-s", str(rate), "--size-bytes", str(_RATE_SIZE_BYTES)]
                    told = bench.ours(*words, "--time-ns", "1000000000")
                    sent = told["windows"][0]["values"]["offered_packets_per_s"]
                else:
                    sent = bench.theirs(_RATE_SIZE_BYTES, rate * _RATE_SIZE_BYTES * 8)["sent"]
                errors[rate][who].append(abs(sent / rate - 1) * 100)
    rows = []
    for rate, of in errors.items():
        ours, theirs = statistics.median(of["ours"]), statistics.median(of["theirs"])
        reached = ours <= _HELD_PERCENT or theirs > _HELD_PERCENT
        rows.append({"cell": f"rate {rate} /s", "ours_percent": ours, "theirs_percent": theirs, "reached": reached})
    return rows


def traces(bench: Bench) -> list[dict[str, Any]]:
    """Whether every datagram of a trace has its time."""
    rows = []
    for size_bytes in _TRACES_BYTES:
        words = ["--size-bytes", str(size_bytes), "--rate-bit-per-s", str(_TRACE_BIT_PER_S)]
        told = bench.ours(*words, "--work", str(_TRACE), "--trace", str(_TRACE))
        (check,) = [check for check in told["checks"] if check["name"] == "every arrival has its time"]
        kept = len(next(series["rows"] for series in told["series"] if series["counter"] == "arrival"))
        reached = check["passed"] and kept == _TRACE and told["facts"]["stamps"] == "kernel"
        rows.append({"cell": f"trace {size_bytes} B", "kept": kept, "of": _TRACE, "reached": reached})
    return rows


def main() -> int:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.flow", description=__doc__)
    parser.add_argument("--rounds", type=int, default=_LEAST_ROUNDS, help=f"at least {_LEAST_ROUNDS}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--observe", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.observe:
        observe(options.observe)
        return 0
    if options.rounds < _LEAST_ROUNDS:
        parser.error(f"--rounds must be at least {_LEAST_ROUNDS}")
    order, ratios = random.Random(options.seed), Ratios()
    with served() as bench:
        traced = traces(bench)
        for number in range(1, options.rounds + 1):
            for _ in range(_FLOODS):
                floods(bench, ratios, order)
            gaps(bench, ratios, order)
            print(f"round {number} of {options.rounds}", file=sys.stderr)
        held = rates(bench, order, 1)
    rows = [row.summary() for row in ratios.rows()]
    _print(rows, held, traced)
    keep(options.json, {"rows": rows, "rates": held, "traces": traced})
    return 0 if all(row["reached"] for row in (*rows, *held, *traced)) else 1


def _print(rows: list[dict[str, Any]], held: list[dict[str, Any]], traced: list[dict[str, Any]]) -> None:
    verdict = {True: "reached", False: "MISSED"}
    print(f"{'cell':24}{'measure':14}{'target':22}{'median':>6}  {'middle half':14}{'ours':>10}{'theirs':>10}")
    for row in sorted(rows, key=lambda row: (row["cell"], row["target"])):
        spread = f"{row['quartiles'][0]:.2f} to {row['quartiles'][1]:.2f}"
        print(
            f"{row['cell']:24}{row['measure']:14}{row['target']:22}{row['median']:6.2f}  {spread:14}"
            f"{row['ours']:10.4g}{row['theirs']:10.4g}  {verdict[row['reached']]}"
        )
    for row in held:
        print(
            f"{row['cell']:24}ours {row['ours_percent']:.2f} % off, iperf3 {row['theirs_percent']:.2f} %; "
            f"within {_HELD_PERCENT} % where iperf3 is  {verdict[row['reached']]}"
        )
    for row in traced:
        print(f"{row['cell']:24}{row['kept']} of {row['of']} with the kernel's time  {verdict[row['reached']]}")


if __name__ == "__main__":
    sys.exit(main())
