"""The native generator against wrk and siege, on the same nginx: `python -m bench.generator [--json FILE]`.

The lab of a study, with nginx in the place of the instance: nginx on CPU 1, the client on CPU 0, a veth link between
them. One round runs every instrument once in each cell (1 and 100 connections, keep-alive and a connection per
request; and over loopback, beside nginx, 20, 100 and 400 that are kept alive, without siege), in random order; ratios
are taken within a round, so what the machine does meanwhile hits both. CPU is the client process's own, user and
system, from start to end. Printed: the median ratio and the middle half of them, and in how many rounds both ended:
siege hangs now and then and is killed; such a run is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench._figures import keep, paired
from virtoll.binaries import binary
from virtoll.hosts.base import Confinement
from virtoll.hosts.ledger import opened, state_directory
from virtoll.hosts.local import LocalHost, end_session
from virtoll.lab.base import SUT_GENERATOR_SIDE_ADDRESS, CpuPlan
from virtoll.lab.client import Client, wait_until_ready
from virtoll.lab.wiring import wired
from virtoll.loads import http, native, outside, siege, wrk
from virtoll.loads.base import Measurement
from virtoll.loads.outside import ToolSettings
from virtoll.offers import Http, HttpObject

_OBJECT = HttpObject(1000)
_CPUS = CpuPlan(instance=frozenset({1}), generator=frozenset({0}), origin=frozenset({0}))
_NGINX = """user root; worker_processes 1; daemon off; pid {0}/pid; error_log {0}/error.log; worker_rlimit_nofile 65536;
events {{ worker_connections 16384; }}
http {{ access_log off; sendfile on; open_file_cache max=100; keepalive_requests 1000000000; root {0};
  client_body_temp_path {0}/a; proxy_temp_path {0}/a; fastcgi_temp_path {0}/a; uwsgi_temp_path {0}/a;
  scgi_temp_path {0}/a; server {{ listen {1}:{2} backlog=4096; }} {3} }}
"""


@dataclass(frozen=True)
class Cell:
    """One condition."""

    connections: int
    keep_alive: bool
    loopback: bool = False

    @property
    def instruments(self) -> tuple[str, ...]:
        """Who is run in it."""
        return INSTRUMENTS[:2] if self.loopback else INSTRUMENTS

    def __str__(self) -> str:
        how = "loopback" if self.loopback else "keep-alive" if self.keep_alive else "close"
        return f"{self.connections} conn., {how}"


@dataclass(frozen=True)
class Reading:
    """One run of one instrument."""

    requests_per_s: float
    cpu_us_per_request: float


@dataclass(frozen=True)
class Target:
    """What is to be reached: the median of ``measure`` of ours over theirs, at least or at most ``bound``.

    From ``connections`` on: with one, whoever is fast enough waits for the server, and nobody can be three times as
    fast as another.
    """

    other: str
    measure: str
    bound: float
    at_least: bool
    connections: int = 1

    def reached(self, ratio: float) -> bool:
        """Whether a median ratio is good enough."""
        return ratio >= self.bound if self.at_least else ratio <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g} x {self.other}"


CELLS = [
    *(Cell(connections, keep_alive) for keep_alive in (True, False) for connections in (1, 100)),
    *(Cell(connections, keep_alive=True, loopback=True) for connections in (20, 100, 400)),
]
TARGETS = [
    Target("wrk", "requests_per_s", 1.0, at_least=True),
    Target("wrk", "cpu_us_per_request", 0.9, at_least=False),
    Target("siege", "requests_per_s", 3.0, at_least=True, connections=100),
]
INSTRUMENTS = ("virtoll-load", "wrk", "siege")


@dataclass(frozen=True)
class Place:
    """nginx in a lab of its own, a client over a link, and one ``beside`` it, over loopback."""

    client: Client
    beside: Client
    offer: Http
    server: int  # nginx's process


@contextmanager
def served(directory_name: str = "bench-generator") -> Iterator[tuple[Client, Http]]:
    """nginx in a lab of its own, and the place of a client."""
    with serving(directory_name) as place:
        yield place.client, place.offer


@contextmanager
def serving(directory_name: str, prepare: Callable[[LocalHost, Path], str] | None = None) -> Iterator[Place]:
    """The same, and both places of clients. ``prepare`` puts files beside nginx's, and gives it another server."""
    host = LocalHost()
    tag = f"{os.getpid() & 0xFFFF:04x}"
    with opened(host, state_directory() / "ledgers", directory_name) as ledger, wired(host, ledger, tag, _CPUS) as lab:
        offer = Http(SUT_GENERATOR_SIDE_ADDRESS, 8080)
        served_file = lab.directory / _OBJECT.path.removeprefix("/")
        served_file.parent.mkdir()
        host.put(served_file, os.urandom(_OBJECT.length_bytes))
        configuration = lab.directory / "nginx.conf"
        more = "" if prepare is None else prepare(host, lab.directory)
        host.put(configuration, _NGINX.format(lab.directory, offer.address, offer.port, more).encode())
        nginx = host.spawn(
            ["nginx", "-p", str(lab.directory), "-c", str(configuration)],
            confinement=Confinement(netns=lab.sut.netns, cpus=lab.sut.cpus),
        )
        try:
            client = Client(host, Confinement(netns=lab.generator.netns, cpus=lab.generator.cpus), lab.directory, 1)
            wait_until_ready(client, offer, _OBJECT.path, deadline_s=10)
            if client.get(offer, _OBJECT.path).length_bytes != _OBJECT.length_bytes:
                raise SystemExit("bench.generator: nginx does not serve the object")
            inside = replace(client.confinement, netns=lab.sut.netns)
            yield Place(client, replace(client, confinement=inside), offer, nginx.pid)
        finally:
            end_session(nginx)


def run(instrument: str, cell: Cell, client: Client, offer: Http, seconds: int) -> Reading | None:
    """Run one instrument in one cell, and weigh its process. None when it hung or failed."""
    common: dict[str, Any] = {
        "object_bytes": _OBJECT.length_bytes,
        "connections": cell.connections,
        "keep_alive": cell.keep_alive,
        "time_limit_ns": seconds * 10**9,
    }
    environment = {"HOME": str(client.directory)}
    stdin = b""
    if instrument == "virtoll-load":
        asked = http.HttpSettings(**common)
        spec = http.asked(asked, offer) | native.driven(asked, client, None, None)
        argv, stdin = [str(binary("virtoll-load")), "http"], json.dumps(spec).encode()
    elif instrument == "wrk":
        lua = client.directory / "wrk.lua"
        settings = ToolSettings(**common)
        lua.write_text(wrk.script(settings, offer))
        argv = wrk.command(settings, 1, offer, str(lua))
    else:
        settings = ToolSettings(**common)
        rc = client.directory / "siegerc"
        rc.write_text(siege.configuration(settings, offer))
        argv = siege.command(settings, offer, str(rc))
    text, cpu_s = weighed(client, ["timeout", "-k", "2", str(seconds + 10), *argv], stdin, environment)
    if text is None:
        return None
    window = _measurement(instrument, outside.Output(text, "", time.monotonic_ns())).window
    return Reading(
        requests_per_s=window.rate_per_s or 0.0,
        cpu_us_per_request=cpu_s / window.events["request"].completed * 1e6,
    )


def _measurement(instrument: str, output: outside.Output) -> Measurement:
    if instrument == "virtoll-load":
        return native.measurement_of(json.loads(output.stdout), None)
    return wrk.parse(output) if instrument == "wrk" else siege.parse(output)


def weighed(client: Client, argv: list[str], stdin: bytes, environment: dict[str, str]) -> tuple[str | None, float]:
    """stdout of a command (None: it failed), and the CPU seconds of it and its children."""
    process = client.host.spawn(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, confinement=client.confinement
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(stdin)
        process.stdin.close()
        text = process.stdout.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        end_session(process)
    if process.returncode != 0:
        print(f"exit {process.returncode} from {' '.join(argv)}: {text.strip()}", file=sys.stderr)
        return None, 0.0
    return text, usage.ru_utime + usage.ru_stime


def measure(cells: list[Cell], rounds: int, seconds: int, seed: int) -> dict[Cell, dict[str, list[Reading | None]]]:
    """All readings, by cell and instrument; index is the round."""
    readings: dict[Cell, dict[str, list[Reading | None]]] = {
        cell: {name: [] for name in cell.instruments} for cell in cells
    }
    order = random.Random(seed)
    with serving("bench-generator") as place:
        for number in range(1, rounds + 1):
            for cell in order.sample(cells, len(cells)):
                client = place.beside if cell.loopback else place.client
                for name in order.sample(cell.instruments, len(cell.instruments)):
                    readings[cell][name].append(run(name, cell, client, place.offer, seconds))
            print(f"round {number} of {rounds}", file=sys.stderr)
    return readings


def summary(readings: dict[Cell, dict[str, list[Reading | None]]]) -> list[dict[str, Any]]:
    """One row for each cell and target."""
    return [
        _row(cell, by_instrument, target)
        for cell, by_instrument in readings.items()
        for target in TARGETS
        if cell.connections >= target.connections and target.other in cell.instruments
    ]


def _row(cell: Cell, readings: dict[str, list[Reading | None]], target: Target) -> dict[str, Any]:
    rounds = zip(readings["virtoll-load"], readings[target.other], strict=True)
    pairs = [
        (getattr(ours, target.measure), getattr(theirs, target.measure)) for ours, theirs in rounds if ours and theirs
    ]
    if len(pairs) < 2:
        raise SystemExit(f"bench.generator: {cell}: fewer than two rounds in which both ended; use more --rounds")
    row = paired(pairs)
    return {
        "cell": str(cell),
        "measure": target.measure,
        "target": str(target),
        **row,
        "reached": target.reached(row["median"]),
    }


def main() -> int:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.generator", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=1, help="length of one run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--cells", default="", help="only the cells with this in their name, as 'loopback'")
    options = parser.parse_args()
    cells = [cell for cell in CELLS if options.cells in str(cell)]
    rows = summary(measure(cells, options.rounds, options.seconds, options.seed))
    print(
        f"{'cell':22}{'measure':20}{'target':16}{'median':>6}  {'middle half':13}{'rounds':>6}"
        f"{'ours':>10}{'theirs':>10}"
    )
    for row in rows:
        spread = f"{row['quartiles'][0]:.2f} to {row['quartiles'][1]:.2f}"
        print(
            f"{row['cell']:22}{row['measure']:20}{row['target']:16}{row['median']:6.2f}  {spread:13}{row['rounds']:6}"
            f"{row['ours']:10.4g}{row['theirs']:10.4g}  {'reached' if row['reached'] else 'MISSED'}"
        )
    keep(options.json, {"rounds": options.rounds, "seconds": options.seconds, "seed": options.seed, "rows": rows})
    return 0 if all(row["reached"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
