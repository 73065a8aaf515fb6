"""Watching a victim 100 times a second must not disturb it by more than chance does: `python -m bench.watch`.

nginx in a lab of its own under open-loop load, its links, its cgroups and the host sampled at 100 Hz as in a trial
(`watched`), or not (`alone`, twice: `again` is the noise floor). One round is one run of each, in random order; ratios
to `alone` are taken within the round, on the log scale. Reached: the median ratio is no further above 1 than chance
takes `again` (the half-width of its 95 % interval, or its distance from 1), or than 1 %.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.generator import _OBJECT, served
from virtoll.agent import AgentClient, PipeStream
from virtoll.analysis.estimates import summarise
from virtoll.hosts.cgroup import hierarchies
from virtoll.hosts.local import end_session
from virtoll.lab.client import Client
from virtoll.loads.http import HttpLoad, HttpSettings
from virtoll.monitor import cgroup_sources, host_agent_command, host_sources
from virtoll.offers import Http

RATE_HZ = 100
WAYS = ("alone", "again", "watched")


@contextmanager
def watching(client: Client) -> Iterator[None]:
    """The host's agent, sampling what a trial samples from outside, at 100 Hz."""
    pipe = subprocess.PIPE
    process = client.host.spawn(host_agent_command(), stdin=pipe, stdout=pipe, confinement=client.confinement)
    try:
        agent = AgentClient(PipeStream(process))
        agent.start_sampling([*cgroup_sources("instance", "virtoll", hierarchies()), *host_sources()], RATE_HZ)
        yield
        if not agent.collect().times_ns:
            raise SystemExit("bench.watch: nothing was sampled: not a measurement")
        agent.close()
        process.wait(timeout=30)
    finally:
        end_session(process)


def median_us(client: Client, offer: Http, seconds: float) -> tuple[float, float]:
    """Median and 99th percentile of latency under 500 requests a second."""
    settings = HttpSettings(
        object_bytes=_OBJECT.length_bytes, loop="open", connections=100, rate_per_s=500.0, warm_up_ns=0
    )
    with HttpLoad(settings).session(client, offer) as session:
        measurement = session.measure(duration_ns=round(seconds * 1e9))
    asked, histogram = measurement.window.events["request"], measurement.bulk.histogram
    if histogram is None or asked.completed < 0.99 * asked.intended:
        raise SystemExit(f"bench.watch: {asked.completed} of {asked.intended} requests were answered")
    return _quantile_us(histogram, 0.5), _quantile_us(histogram, 0.99)


def _quantile_us(histogram: list[tuple[int, int, int]], q: float) -> float:
    left = q * sum(count for _, _, count in histogram)
    for _, upper, count in histogram:
        left -= count
        if left <= 0:
            return upper / 1e3
    return histogram[-1][1] / 1e3


def measure(rounds: int, seconds: float, seed: int) -> dict[str, list[tuple[float, float]]]:
    """Medians and percentiles by way; index is the round."""
    order = random.Random(seed)
    readings: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with served("bench-watch") as (client, offer):
        for number in range(1, rounds + 1):
            for way in order.sample(WAYS, len(WAYS)):
                if way == "watched":
                    with watching(client):
                        readings[way].append(median_us(client, offer, seconds))
                else:
                    readings[way].append(median_us(client, offer, seconds))
            print(f"round {number} of {rounds}", file=sys.stderr)
    return readings


@dataclass(frozen=True)
class Verdict:
    """Watched over alone in one quantity, and how much chance may make of it."""

    quantity: str
    low: float
    median: float
    high: float
    allowed: float

    @property
    def reached(self) -> bool:
        """Watching makes it no worse than chance does."""
        return self.median <= self.allowed

    def __str__(self) -> str:
        spread = f"{self.low:.3f} to {self.high:.3f}"
        verdict = "reached" if self.reached else "MISSED"
        return f"{self.quantity:32}{self.median:8.3f}  {spread:16}{self.allowed:12.3f}  {verdict}"


def row(readings: dict[str, list[tuple[float, float]]], place: int, name: str) -> Verdict:
    """The verdict on one quantity."""
    logs = {
        way: [
            math.log(mine[place] / alone[place]) for mine, alone in zip(readings[way], readings["alone"], strict=True)
        ]
        for way in ("again", "watched")
    }
    floor = summarise(logs["again"])
    low, median, high = statistics.quantiles(logs["watched"], n=4)
    allowed = max(floor.half_width(), abs(floor.mean), math.log(1.01))
    return Verdict(name, math.exp(low), math.exp(median), math.exp(high), math.exp(allowed))


def main() -> int:
    """Measure, print, and say by the exit code whether the target was reached."""
    parser = argparse.ArgumentParser(prog="python -m bench.watch", description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one run")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    readings = measure(options.rounds, options.seconds, options.seed)
    rows = [row(readings, 0, "latency, median"), row(readings, 1, "latency, 99th percentile")]
    print(f"{'watched at 100 Hz over alone':32}{'median':>8}  {'middle half':16}{'noise floor':>12}")
    for entry in rows:
        print(entry)
    return 0 if all(entry.reached for entry in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
