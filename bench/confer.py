"""Participants of a conference that one core carries, beside Pion's: `python -m bench.confer [--json FILE]`.

A real Janus with one room, deployed natively (of an image, as in studies) on CPU 1; on CPU 0, over a veth link, those
who send a webcam of 0.5 Mbit/s, a process of ours that is not weighed; and the client that is: participants who watch
all that is sent, in one process. Ours decrypt, verify, order and repair each packet, and follow which pictures are
whole; a packet whose authentication fails (SRTP) is counted by nobody. Pion's client (``bench/pion``) verifies too,
repairs by its own interceptors, and looks at nothing but numbers. Both are in the same room of the same Janus, by
turns, in an order drawn anew each round; CPU time is a client's own, within its window, when all are there.

Packets per core: those that came for a second of the client's CPU time, where each watches eight; receivers per core
likewise, where each watches one. Janus gives out
long before a core of ours does: what it used of its own CPU stands beside, and near 1 it is the limit. Memory: the most
that the process of many had, less that of one, a stream. A hundred participants join within a second, and all are to be
connected, with what they watch, within ten. Judged are medians over the rounds in which, of both clients, all came in,
saw all, and lost next to nothing; most rounds must be such, and two at the least.
LiveKit publishes of its own load tester (Pion's too) 679 Mbit/s from 16 cores: 42 Mbit/s a core.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import _pion
from bench._counting import at, peak_bytes
from bench._figures import keep
from virtoll import footage
from virtoll.errors import HostError
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.ledger import opened, state_directory
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.lab.base import CpuPlan
from virtoll.lab.client import Client
from virtoll.lab.wiring import free_tag, generator_confinement, wired
from virtoll.loads.conversation import Conversation, conversing
from virtoll.loads.participants import ParticipantsLoad, ParticipantsSettings, order, specification
from virtoll.networks.base import network_modes
from virtoll.offers import JanusRoom
from virtoll.platforms.native import Native
from virtoll.services.janus import Janus, JanusSettings
from virtoll.study.limits import Limits

_CPUS = CpuPlan(instance=frozenset({1}), generator=frozenset({0}), origin=frozenset({0}))
_LIMITS = Limits(memory_bytes=4 * 1024**3, pids=8192)
_ALONE, _TOGETHER = 1, 8  # publishers
_EVERY_NS, _SETTLE_NS, _PATIENCE_NS = 20 * 10**6, 5 * 10**9, 30 * 10**9
_AHEAD_NS = 5 * 10**9  # until the first joins: the client is started, and reads what it is to do
_SPARE_S = 60.0
HUNDRED, _HUNDRED_EVERY_NS = 100, 10 * 10**6
MOST_LOST = 0.01  # of packets: who lacks more does less work, and other work (repair)
LEAST_WHOLE = 2  # rounds
FULL = 0.9  # a server that uses so much of its one CPU is the limit
PACKETS_PER_CPU_S, RECEIVERS_PER_CPU, OVER_PION = 80_000.0, 1000.0, 2.0  # at least
BYTES_PER_STREAM, HUNDRED_S = 300_000.0, 10.0  # at most
LIVEKIT_MBIT_PER_CPU = 679 / 16


def say(line: str) -> None:
    print(line, file=sys.stderr)


def load_of(publishers: int, seconds: int, every_ns: int = _EVERY_NS) -> ParticipantsLoad:
    """So many who send, and a window of so many seconds."""
    settings = ParticipantsSettings(
        desktops=0,
        webcams=publishers,
        webcam_bitrate_bit_per_s=500_000,
        join_ns=every_ns,
        patience_ns=_PATIENCE_NS,
        settle_ns=_SETTLE_NS,
        time_limit_ns=seconds * 10**9,
    )
    return ParticipantsLoad(settings)


@dataclass(frozen=True)
class Cell:
    """One condition: so many send, and so many others watch all of them."""

    publishers: int
    receivers: int

    @property
    def streams(self) -> int:
        """That are watched."""
        return self.publishers * self.receivers

    def __str__(self) -> str:
        return f"{self.receivers} who watch {self.publishers}"


@dataclass(frozen=True)
class Run:
    """What a client did in its window."""

    joined: int
    joined_s: float  # from the first who was to join to the last who had, at the most
    streams: int
    packets: int
    bytes: int
    lost: int
    cpu_s: float
    seconds: float
    memory_bytes: int = 0  # of ours
    server_cpus: float = 0.0
    failures: int = 0  # joins that failed; those who failed come again
    waited: bool = False  # whether of some stream nothing had come yet, within the window

    @property
    def packets_per_cpu_s(self) -> float:
        """That came for a second of its CPU time."""
        return self.packets / self.cpu_s

    def is_whole(self, cell: Cell) -> bool:
        """All came in, saw all, and lost next to nothing."""
        is_all = (self.joined, self.streams) == (cell.receivers, cell.streams) and not self.waited
        return is_all and self.packets > 0 and self.lost <= MOST_LOST * (self.packets + self.lost)


def of_ours(report: dict[str, Any], every_ns: int, memory_bytes: int, server_cpus: float) -> Run:
    """What virtoll-confer reports (rust/confer/src/tally.rs)."""
    window, joins, received = report["window"], report["joins"], list(report["received"].values())
    total = {name: sum(each[name] for each in received) for name in ("streams", "packets", "bytes", "lost")}
    last_ns = max((upper_ns for _, upper_ns, _ in joins["time"]), default=0)
    return Run(
        joined=window["joined_at_end"],
        joined_s=(every_ns * (window["participants"] - 1) + last_ns) / 1e9,
        cpu_s=(window["cpu_user_ns"] + window["cpu_system_ns"]) / 1e9,
        seconds=(window["end_ns"] - window["start_ns"]) / 1e9,
        failures=sum(joins["failures"].values()),
        waited=any(each["waiting_ns"] for each in received),
        **total,
        memory_bytes=memory_bytes,
        server_cpus=server_cpus,
    )


def of_pion(report: dict[str, Any], seconds: float, server_cpus: float) -> Run:
    """What its client reports (bench/pion/main.go)."""
    names = ("joined", "streams", "packets", "bytes", "lost")
    return Run(
        joined_s=report["joined_ns"] / 1e9,
        cpu_s=report["cpu_ns"] / 1e9,
        seconds=seconds,
        failures=len(report["failures"]),
        **{name: report[name] for name in names},
        server_cpus=server_cpus,
    )


@dataclass(frozen=True)
class Place:
    """Janus in a lab, and where its participants stand."""

    client: Client
    offer: JanusRoom
    server: Cgroup
    pion: Path | None  # its client's file, where it could be built

    def server_cpu_s(self) -> float:
        """What Janus has used so far."""
        used_ns = self.server.cpu_ns()
        if used_ns is None:
            raise SystemExit("bench.confer: the kernel does not tell what Janus uses (no controller of CPU time)")
        return used_ns / 1e9

    def server_cpus(self, start_ns: int, end_ns: int) -> float:
        """What Janus uses over a window that is to come."""
        before_s = at(start_ns, self.server_cpu_s)
        after_s = at(end_ns, self.server_cpu_s)
        return (after_s - before_s) * 1e9 / (end_ns - start_ns)


@contextmanager
def serving() -> Iterator[Place]:
    """A Janus with one room."""
    host, service = LocalHost(), Janus(JanusSettings(publishers=_TOGETHER, participants=2000))
    image = rootfs.build(host, service.name, service.packages, say)
    for each in load_of(1, 1).footage:
        footage.made(host, each, say)
    pion = _pion_client(host)
    with (
        opened(host, state_directory() / "ledgers", "bench-confer") as ledger,
        wired(host, ledger, free_tag(), _CPUS) as lab,
        network_modes()["host"]().attach(lab, "shared", service.ports) as attachment,
    ):
        directory = lab.directory / "janus"
        directory.mkdir()
        client = Client(host, generator_confinement(lab), lab.directory, 1)
        with Native().deploy(lab, image, _LIMITS, attachment, directory) as instance:
            offer = service.start(instance, None)
            service.await_ready(instance, offer, client)
            yield Place(client, offer, Cgroup(instance.accounting.cgroup, hierarchies()), pion)


def _pion_client(host: LocalHost) -> Path | None:
    try:
        return _pion.built(host, say)
    except HostError as error:
        say(f"Pion's client is left out: {error}")
        return None


@contextmanager
def publishing(place: Place, publishers: int) -> Iterator[None]:
    """So many send, until the end of the block."""
    load = load_of(publishers, 1)
    spec = specification(load, place.offer, place.client)
    spec["roles"] = [{**spec["roles"][0], "watches": False}]
    with conversing(place.client, ("virtoll-confer",), "the publishers", spec) as conversation:
        report = conversation.ask(json.dumps(order(load.settings, publishers, None)).encode(), _SPARE_S)
        if (there := report["window"]["joined_at_end"]) != publishers:
            raise SystemExit(f"bench.confer: {there} of {publishers} publishers are there: {report['joins']}")
        yield


def ours(place: Place, receivers: int, seconds: int, every_ns: int = _EVERY_NS) -> Run:
    """So many of ours watch."""
    load = load_of(1, seconds, every_ns)
    spec = specification(load, place.offer, place.client)
    spec["roles"] = spec["roles"][-1:]
    start_ns = time.monotonic_ns() + _AHEAD_NS + every_ns * receivers + _SETTLE_NS
    with conversing(place.client, ("virtoll-confer",), "the participants", spec) as conversation:
        conversation.write(json.dumps(order(load.settings, receivers, start_ns)).encode() + b"\n")
        cpus = place.server_cpus(start_ns, start_ns + seconds * 10**9)
        memory_bytes = _memory_bytes(conversation)
        return of_ours(conversation.read(_SPARE_S), every_ns, memory_bytes, cpus)


def _memory_bytes(conversation: Conversation) -> int:
    """The most that our client has had, which waits for what is next. TrialError, with its words, if it has ended."""
    try:
        return peak_bytes(conversation.pid)
    except (FileNotFoundError, ProcessLookupError):
        conversation.read(_SPARE_S)
        raise


def theirs(place: Place, receivers: int, seconds: int) -> Run:
    """So many of Pion's."""
    lead_ns = _AHEAD_NS + _EVERY_NS * receivers + _SETTLE_NS
    asked = {"address": f"{place.offer.address}:{place.offer.port}", "room": place.offer.room, "lead_ns": lead_ns}
    asked |= {"participants": receivers, "every_ns": _EVERY_NS, "duration_ns": seconds * 10**9}
    program = str(place.pion)  # where it lies, in the place of the name of one that is virtoll's own
    with conversing(place.client, (program,), "Pion's participants", asked) as conversation:
        start_ns = time.monotonic_ns() + lead_ns
        cpus = place.server_cpus(start_ns, start_ns + seconds * 10**9)
        return of_pion(conversation.read(_SPARE_S), seconds, cpus)


@dataclass(frozen=True)
class Round:
    """A round in one cell."""

    many: Run
    one: Run
    pion: Run | None

    def is_whole(self, cell: Cell) -> bool:
        """Of all of them."""
        alone = Cell(cell.publishers, 1)
        return self.many.is_whole(cell) and self.one.is_whole(alone) and (not self.pion or self.pion.is_whole(cell))

    @property
    def bytes_per_stream(self) -> float:
        """Of memory."""
        return (self.many.memory_bytes - self.one.memory_bytes) / (self.many.streams - self.one.streams)


def measure_once(place: Place, cell: Cell, seconds: int, draw: random.Random) -> Round:
    """A round in one cell."""
    whose: dict[str, Run] = {}
    names = ["many", "one", *(["pion"] if place.pion else [])]
    for name in draw.sample(names, len(names)):
        if name == "pion":
            whose[name] = theirs(place, cell.receivers, seconds)
        else:
            whose[name] = ours(place, cell.receivers if name == "many" else 1, seconds)
    return Round(whose["many"], whose["one"], whose.get("pion"))


def measure(cells: Sequence[Cell], options: argparse.Namespace) -> tuple[dict[Cell, list[Round]], list[Run]]:
    """All rounds, by cell; and the joins of a hundred, once a round."""
    draw = random.Random(options.seed)
    rounds: dict[Cell, list[Round]] = {cell: [] for cell in cells}
    hundreds = []
    with serving() as place:
        for number in range(1, options.rounds + 1):
            for cell in draw.sample(list(cells), len(cells)):
                with publishing(place, cell.publishers):
                    rounds[cell].append(measure_once(place, cell, options.seconds, draw))
                    if cell.publishers == _ALONE:
                        hundreds.append(ours(place, options.hundred, 1, _HUNDRED_EVERY_NS))
            say(f"round {number} of {options.rounds}")
    return rounds, hundreds


def row(cell: Cell, rounds: Sequence[Round]) -> dict[str, Any]:
    """What all rounds in one cell come to, in words too."""
    whole = [each for each in rounds if each.is_whole(cell)]
    told = f"{cell}: {len(whole)} of {len(rounds)} rounds whole"
    server_cpus = statistics.median(each.many.server_cpus for each in rounds)
    limit = ", the limit" if server_cpus >= FULL else ""
    told += f", Janus used {server_cpus:.2f} CPU{limit}"
    if not whole:
        return {"cell": str(cell), "told": f"{told}: nothing to tell", "reached": False}
    many = [each.many for each in whole]
    found: dict[str, Any] = {
        "packets_per_cpu_s": statistics.median(run.packets_per_cpu_s for run in many),
        "us_per_packet": statistics.median(1e6 / run.packets_per_cpu_s for run in many),
        "receivers_per_cpu": statistics.median(run.streams * run.seconds / run.cpu_s for run in many),
        "mbit_per_cpu_s": statistics.median(run.bytes * 8e-6 / run.cpu_s for run in many),
        "packets_per_s": statistics.median(run.packets / run.seconds for run in many),
        "bytes_per_stream": statistics.median(each.bytes_per_stream for each in whole),
        "lost": sum(run.lost for run in many),
        "server_cpus": server_cpus,
    }
    ratios = [each.many.packets_per_cpu_s / each.pion.packets_per_cpu_s for each in whole if each.pion]
    found["over_pion"] = statistics.median(ratios) if ratios else None
    words = _words(cell, found, ratios)
    is_most = len(whole) >= LEAST_WHOLE and 2 * len(whole) > len(rounds)
    return {"cell": str(cell), **found, "told": f"{told}: {words}", "reached": is_most and is_reached(cell, found)}


def is_reached(cell: Cell, found: dict[str, Any]) -> bool:
    """All targets of a cell; that over Pion is not, where it was not measured."""
    name, bound = _rate_of(cell)
    over_pion = found["over_pion"]
    return (
        found[name] >= bound
        and found["bytes_per_stream"] <= BYTES_PER_STREAM
        and over_pion is not None
        and over_pion >= OVER_PION
    )


def _rate_of(cell: Cell) -> tuple[str, float]:
    """What is to be reached by whom: who watches one has a connection for each stream, and a packet costs more."""
    if cell.publishers == _ALONE:
        return "receivers_per_cpu", RECEIVERS_PER_CPU
    return "packets_per_cpu_s", PACKETS_PER_CPU_S


def _words(cell: Cell, found: dict[str, Any], ratios: Sequence[float]) -> str:
    name, bound = _rate_of(cell)
    rates = {
        "packets_per_cpu_s": f"{found['packets_per_cpu_s']:.0f} packets/s a core",
        "receivers_per_cpu": f"{found['receivers_per_cpu']:.0f} streams of 0.5 Mbit/s a core",
    }
    rates[name] += f" (target >= {bound:.0f})"
    pion = "Pion's client was not measured"
    if ratios:
        pion = f"{found['over_pion']:.2f} x Pion's client ({min(ratios):.2f} to {max(ratios):.2f}; "
        pion += f"target >= {OVER_PION:g})"
    return (
        f"{found['packets_per_s']:.0f} packets/s, {found['us_per_packet']:.2f} us of CPU each: "
        f"{', '.join(rates.values())}, {found['mbit_per_cpu_s']:.0f} Mbit/s a core (LiveKit's load tester: "
        f"{LIVEKIT_MBIT_PER_CPU:.0f}), {pion}; {found['bytes_per_stream'] / 1000:.0f} kB a stream (target <= "
        f"{BYTES_PER_STREAM / 1000:.0f}), {found['lost']} packets lost"
    )


def joining(runs: Sequence[Run], wanted: int) -> dict[str, Any]:
    """Of a hundred, or as many as were asked for: how long it took, of the slowest round; and whether all came."""
    slowest_s, fewest = max(run.joined_s for run in runs), min(run.joined for run in runs)
    failures = sum(run.failures for run in runs)  # these are timed from when they came again
    told = f"{fewest} of {wanted} participants were in after {slowest_s:.1f} s (target: {HUNDRED} in less than "
    told += f"{HUNDRED_S:g} s; the slowest of {len(runs)} rounds{f'; {failures} joins failed' if failures else ''})"
    is_reached = fewest == wanted >= HUNDRED and slowest_s < HUNDRED_S and not failures
    return {"joined": fewest, "joined_s": slowest_s, "told": told, "reached": is_reached}


def main() -> int:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.confer", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=10, help="length of a window")
    parser.add_argument("--streams", type=int, default=240, help="that are watched at once")
    parser.add_argument("--hundred", type=int, default=HUNDRED, help="participants whose joining is timed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    if options.streams < 2 * _TOGETHER:
        parser.error(f"--streams: at least {2 * _TOGETHER}, of two who watch {_TOGETHER}")
    cells = [Cell(publishers, options.streams // publishers) for publishers in (_ALONE, _TOGETHER)]
    rounds, hundreds = measure(cells, options)
    rows = [*(row(cell, told) for cell, told in rounds.items()), joining(hundreds, options.hundred)]
    for each in rows:
        print(f"{each['told']}  {'reached' if each['reached'] else 'MISSED'}")
    keep(options.json, {"rounds": options.rounds, "rows": rows})
    return 0 if all(each["reached"] for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
