"""The native generator's TLS against wrk and h2load, on the same nginx: `python -m bench.tls [--json FILE]`.

The lab of `bench.generator`, with nginx (OpenSSL) on CPU 1, the client on CPU 0, a veth link between them, TLS 1.3, an
ECDSA P-256 certificate, and neither tickets nor a session cache at the server: every handshake is a full one.
Handshakes: 20 connections, a new one for each request of 1,000 bytes (h2load: all connections at once, a request each,
for it knows no other way). Bulk: 4 connections kept alive, 1 MiB a request. Small: 20 kept alive, 1,000 bytes.

One round runs every instrument once in each cell, in random order; ratios are taken within a round. Judged is what one
second of the client's CPU does, user and system, from start to end: the server is the same for all, and its one CPU
the bound of most rates. wrk and h2load verify no certificate; ours verifies it each time, by its CA.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench._figures import keep, paired
from bench.generator import Place, serving, weighed
from virtoll.binaries import binary
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import SUT_GENERATOR_SIDE_ADDRESS
from virtoll.offers import HttpObject

_SMALL, _LARGE = HttpObject(1000), HttpObject(1 << 20)  # the first is served by `bench.generator` anyway
_PORT = 8443
_NAME = "server.test"
_SERVER = """server {{ listen {1}:{2} ssl backlog=4096; ssl_certificate {0}/tls.pem; ssl_certificate_key {0}/tls.key;
  ssl_protocols TLSv1.3; ssl_session_tickets off; ssl_session_cache off; }}"""


@dataclass(frozen=True)
class Cell:
    """One condition."""

    name: str
    connections: int
    keep_alive: bool
    target: HttpObject


@dataclass(frozen=True)
class Reading:
    """One run of one instrument."""

    requests_per_s: float
    requests_per_cpu_s: float


CELLS = [
    Cell("handshakes", 20, keep_alive=False, target=_SMALL),
    Cell("bulk", 4, keep_alive=True, target=_LARGE),
    Cell("small", 20, keep_alive=True, target=_SMALL),
]
OTHERS = ("wrk", "h2load")
MEASURES = {"requests_per_cpu_s": 1.0, "requests_per_s": None}  # at least; None: told only


def prepare(host: LocalHost, directory: Path) -> str:
    """A certificate and a large object, and the server that has them."""
    host.put(directory / _LARGE.path.removeprefix("/"), bytes(_LARGE.length_bytes))
    subprocess.run(
        ["openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-subj", f"/CN={_NAME}", "-addext", f"subjectAltName=DNS:{_NAME}", "-addext", "basicConstraints=CA:FALSE",
         "-keyout", str(directory / "tls.key"), "-out", str(directory / "tls.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    return _SERVER.format(directory, SUT_GENERATOR_SIDE_ADDRESS, _PORT)


def specification(cell: Cell, directory: Path, seconds: int) -> dict[str, Any]:
    """What the native generator reads (rust/load/src/spec.rs)."""
    return {
        "target": {
            "address": f"{SUT_GENERATOR_SIDE_ADDRESS}:{_PORT}",
            "url": f"https://{_NAME}:{_PORT}{cell.target.path}",
            "tls": {"server_name": _NAME, "ca": str(directory / "tls.pem")},
        },
        "keep_alive": cell.keep_alive,
        "threads": 1,
        "loop": {"closed": {"connections": cell.connections, "requests": None, "time_limit_ns": seconds * 10**9}},
        "timeout_ns": 30 * 10**9,
        "expect": {"status": 200, "length_bytes": cell.target.length_bytes},
    }


def command(instrument: str, cell: Cell, seconds: int) -> list[str]:
    """How an outside instrument is asked for the same."""
    url = f"https://{SUT_GENERATOR_SIDE_ADDRESS}:{_PORT}{cell.target.path}"
    if instrument == "wrk":
        closing = [] if cell.keep_alive else ["-H", "Connection: close"]
        return ["wrk", "-t", "1", "-c", str(cell.connections), "-d", f"{seconds}s", *closing, url]
    if cell.keep_alive:
        return ["h2load", "--h1", "-t", "1", "-m", "1", "-c", str(cell.connections), "-D", str(seconds), url]
    count = str(1000 * seconds)
    return ["h2load", "--h1", "-t", "1", "-m", "1", "-c", count, "-n", count, url]


def run(instrument: str, cell: Cell, place: Place, seconds: int) -> Reading | None:
    """Run one instrument in one cell, and weigh its process. None when it failed."""
    client = place.client
    if instrument == "virtoll-load":
        argv = [str(binary("virtoll-load")), "http"]
        stdin = json.dumps(specification(cell, client.directory, seconds)).encode()
    else:
        argv, stdin = command(instrument, cell, seconds), b""
    text, cpu_s = weighed(client, ["timeout", "-k", "2", str(seconds + 20), *argv], stdin, {"HOME": "/nowhere"})
    if text is None:
        return None
    if instrument == "virtoll-load":
        completed, rate = _told(json.loads(text), cell)
    elif instrument == "wrk":
        completed = int(_found(r"(\d+) requests in", text))
        rate = float(_found(r"Requests/sec:\s+([\d.]+)", text))
    else:
        completed = int(_found(r"(\d+) succeeded", text))
        rate = float(_found(r"finished in [\d.]+m?s, ([\d.]+) req/s", text))
    return Reading(rate, completed / cpu_s)


def _told(report: dict[str, Any], cell: Cell) -> tuple[int, float]:
    """Requests and their rate; all of them whole, and each with a handshake of its own where that is the condition."""
    handshakes = cell.connections if cell.keep_alive else report["completed"]
    if report["failures"] or report["handshakes"] != handshakes:
        raise SystemExit(f"bench.tls: {cell.name}: {report['handshakes']} handshakes, failures {report['failures']}")
    window = report["window"]
    return report["completed"], window["completed"] * 1e9 / (window["end_ns"] - window["start_ns"])


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"bench.tls: no {pattern!r} in {text!r}")
    return match[1]


def measure(rounds: int, seconds: int, seed: int) -> dict[tuple[str, str], list[Reading | None]]:
    """All readings, by cell and instrument; index is the round."""
    readings: dict[tuple[str, str], list[Reading | None]] = {}
    order = random.Random(seed)
    with serving("bench-tls", prepare) as place:
        for number in range(1, rounds + 1):
            for cell in order.sample(CELLS, len(CELLS)):
                for name in order.sample(("virtoll-load", *OTHERS), 1 + len(OTHERS)):
                    readings.setdefault((cell.name, name), []).append(run(name, cell, place, seconds))
            print(f"round {number} of {rounds}", file=sys.stderr)
    return readings


def summary(readings: dict[tuple[str, str], list[Reading | None]]) -> list[dict[str, Any]]:
    """One row for each cell, other instrument and measure."""
    rows = []
    for cell in CELLS:
        for other in OTHERS:
            rounds = list(zip(readings[cell.name, "virtoll-load"], readings[cell.name, other], strict=True))
            for name, least in MEASURES.items():
                pairs = [(getattr(ours, name), getattr(theirs, name)) for ours, theirs in rounds if ours and theirs]
                if len(pairs) < 2:
                    raise SystemExit(f"bench.tls: {cell.name}: fewer than two rounds in which both ended")
                row = paired(pairs)
                reached = None if least is None else row["median"] >= least
                rows.append({"cell": cell.name, "measure": name, "other": other, **row, "reached": reached})
    return rows


def main() -> int:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.tls", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=1, help="length of one run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    rows = summary(measure(options.rounds, options.seconds, options.seed))
    print(
        f"{'cell':12}{'measure':20}{'target':14}{'median':>6}  {'middle half':13}{'rounds':>6}"
        f"{'ours':>10}{'theirs':>10}"
    )
    for row in rows:
        spread = f"{row['quartiles'][0]:.2f} to {row['quartiles'][1]:.2f}"
        target = f"{'of' if row['reached'] is None else '>= 1 x'} {row['other']}"
        verdict = {None: "", True: "reached", False: "MISSED"}[row["reached"]]
        print(
            f"{row['cell']:12}{row['measure']:20}{target:14}{row['median']:6.2f}  {spread:13}{row['rounds']:6}"
            f"{row['ours']:10.4g}{row['theirs']:10.4g}  {verdict}"
        )
    keep(options.json, {"rounds": options.rounds, "seconds": options.seconds, "seed": options.seed, "rows": rows})
    return 0 if all(row["reached"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
