"""Viewers over HTTP that one core carries, progressive and HLS: `python -m bench.viewers [--json FILE]`.

The lab of `bench.generator`: nginx on CPU 1, the viewers on CPU 0, a veth link between them; a clip of a minute at 0.9
Mbit/s, as one file that is read at the pace at which it plays, and as HLS in segments of four seconds. A round has, for
each way, a crowd and one viewer alone, in random order (what is weighed: `bench._viewing`). The server's own count is
what its processes have written, in /proc/PID/io. Judged are the medians over the rounds. Beside them stands what the
server used of its CPU: near 1 it is the server that sets the limit, and the figure what a whole core of the client
would carry at the cost of those that there were.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from bench._counting import ETHERNET, TCP, Moment, cpu_s, device, written_bytes
from bench._figures import keep
from bench._viewing import Framing, Reading, expect_several, median, reading, refuse_failures, watch
from bench.generator import Place, serving
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import SUT_GENERATOR_SIDE_ADDRESS
from virtoll.loads.viewers import ViewersLoad, ViewersSettings
from virtoll.services.clips import manifests, segments
from virtoll.services.objects import content

Delivery = Literal["progressive", "hls"]
TARGETS: dict[Delivery, float] = {"progressive": 5000, "hls": 5000}  # viewers per core
_FRAMING = Framing(ETHERNET + TCP)  # heads of answers are less than a thousandth: one for a file, or for a segment
# A server of its own, whose sockets hold little: else it would write a file long before viewers that are paced take it,
# and what it wrote within a window would say nothing.
_PORT = 8081
_SERVER = "server {{ listen {0}:{1} backlog=4096 sndbuf=64k; }}"
# At most two hundred in a second, for what comes first is a buffer full; and over ten seconds, so that some leave in
# their sockets what others take from theirs. Of sixty viewers the counts still differ by 1 %: of fewer, by more.
_JOIN_NS, _JOINS_NS = 5 * 10**6, 10**10


def load_of(delivery: Delivery, viewers: int, seconds: int) -> ViewersLoad:
    """So many viewers, and a window of so many seconds, which begins when what they read ahead has come."""
    settings = ViewersSettings(
        viewers=viewers,
        delivery=delivery,
        clip_ns=60 * 10**9,
        segment_ns=4 * 10**9,
        join_ns=max(_JOIN_NS, _JOINS_NS // viewers),
        settle_ns=5 * 10**9,
        time_limit_ns=seconds * 10**9,
    )
    return ViewersLoad(settings)


def prepare(host: LocalHost, directory: Path) -> str:
    """What is watched, beside nginx's files; and the server of it."""
    progressive, hls = load_of("progressive", 1, 1).settings, load_of("hls", 1, 1).settings
    for path, text in manifests(hls.clip):
        host.put(directory / path.removeprefix("/"), text.encode())
    for piece in segments(hls.clip, hls.clip.bit_rates[-1]):
        data = content(piece.end_bytes - piece.begin_bytes, piece.begin_bytes)
        host.put(directory / piece.path.removeprefix("/"), data)
    host.put(directory / progressive.file.path.removeprefix("/"), content(progressive.file.length_bytes))
    return _SERVER.format(SUT_GENERATOR_SIDE_ADDRESS, _PORT)


def counting(place: Place) -> Callable[[int], Moment]:
    """What nginx says, and the device of the viewers whose process it is given."""
    server = place.server
    return lambda pid: Moment(cpu_s(server), written_bytes(server), *device(pid, "eth0", "received"))


def measure_once(place: Place, delivery: Delivery, options: argparse.Namespace, order: random.Random) -> Reading:
    """A round of one way."""
    crowds = {}
    for viewers in order.sample((options.viewers, 1), 2):
        load = load_of(delivery, viewers, options.seconds)
        crowds[viewers] = watch(
            place.client, load.settings, load.asked(replace(place.offer, port=_PORT)), counting(place)
        )
        refuse_failures("viewers", delivery, crowds[viewers])
    return reading(crowds[options.viewers], crowds[1], options.viewers, _FRAMING)


def measure(options: argparse.Namespace) -> dict[Delivery, list[Reading]]:
    """All readings, by how it is delivered."""
    order = random.Random(options.seed)
    readings: dict[Delivery, list[Reading]] = {delivery: [] for delivery in TARGETS}
    with serving("bench-viewers", prepare) as place:
        for number in range(1, options.rounds + 1):
            for delivery in order.sample(list(TARGETS), len(TARGETS)):
                readings[delivery].append(measure_once(place, delivery, options, order))
            print(f"round {number} of {options.rounds}", file=sys.stderr)
    return readings


def summary(readings: dict[Delivery, list[Reading]]) -> list[dict[str, Any]]:
    """One row for each way: the medians, their spread, and whether they are good enough."""
    rows = []
    for delivery, told in readings.items():
        middle, per_cpu = median(told), [reading.viewers_per_cpu for reading in told]
        is_reached = middle.viewers_per_cpu >= TARGETS[delivery] and middle.is_good
        row = {"delivery": delivery, **asdict(middle), "rounds": len(told), "per_cpu": [min(per_cpu), max(per_cpu)]}
        rows.append({**row, "told": str(middle), "reached": is_reached})
    return rows


def main() -> int:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.viewers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=20, help="length of a window")
    parser.add_argument("--viewers", type=int, default=2000, help="at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    expect_several(parser, options.viewers)
    rows = summary(measure(options))
    for row in rows:
        print(
            f"{row['delivery']:11} {row['viewers_per_cpu']:6.0f} viewers a core "
            f"({row['per_cpu'][0]:.0f} to {row['per_cpu'][1]:.0f} in {row['rounds']} rounds of {options.viewers}; "
            f"target >= {TARGETS[row['delivery']]:.0f}), {row['told']}  {'reached' if row['reached'] else 'MISSED'}"
        )
    keep(options.json, {"rounds": options.rounds, "viewers": options.viewers, "rows": rows})
    return 0 if all(row["reached"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
