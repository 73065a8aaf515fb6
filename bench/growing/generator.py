"""The generator's rate and CPU per request against connections, 1 to 10,000, wrk beside it.

nginx in the lab of `bench.generator`, kept-alive connections over the link, closed loop. A round runs both at every
size, in an order drawn anew; opening the connections is part of each run, for both. What a request costs in the kernel
grows with the sockets for everybody: the target is that ours grows no faster than wrk's, by their ratio in each round.
"""

from __future__ import annotations

import resource

from bench.generator import Cell, run, serving
from bench.growing.curves import Growth, Panel, Reading
from bench.growing.effort import Effort, most_files, say

_CONNECTIONS, _QUICK = (1, 10, 100, 1000, 3000, 10_000), (1, 10, 100)
_SECONDS, _QUICK_SECONDS = 3, 1
_INSTRUMENTS = ("virtoll-load", "wrk")


def measure(effort: Effort) -> list[Growth]:
    """Rate and CPU, both instruments."""
    sizes = [size for size in effort.sizes(_CONNECTIONS, _QUICK) if size <= most_files()]
    told = [
        f"{size} not measured: a process may open {most_files()} files (ulimit -Hn)"
        for size in effort.sizes(_CONNECTIONS, _QUICK)
        if size > most_files()
    ]
    rates: dict[str, list[Reading]] = {name: [] for name in _INSTRUMENTS}
    cpu: dict[str, list[Reading]] = {name: [] for name in _INSTRUMENTS}
    ratios: list[Reading] = []
    seconds = _QUICK_SECONDS if effort.quick else _SECONDS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # nginx and wrk do not raise it themselves
    try:
        with serving("bench-growth") as place:
            for number, size in effort.shuffled(sizes):
                cost: dict[str, float] = {}
                for name in _INSTRUMENTS if number % 2 else reversed(_INSTRUMENTS):
                    found = run(name, Cell(size, keep_alive=True), place.client, place.offer, seconds)
                    if found is None:
                        told.append(f"round {number}: {name} failed with {size} connections")
                        continue
                    rates[name].append(Reading(size, found.requests_per_s))
                    cpu[name].append(Reading(size, found.cpu_us_per_request))
                    cost[name] = found.cpu_us_per_request
                if len(cost) == len(_INSTRUMENTS):
                    ratios.append(Reading(size, cost["virtoll-load"] / cost["wrk"]))
                say(f"generator: round {number}, {size} connections")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    panels = [
        Panel("CPU of a request, microseconds", cpu, told=told),
        Panel("CPU of a request, ours over wrk's", {"ratio": ratios}, most=0),
        Panel("requests per second (one nginx on one CPU)", rates),
    ]
    return [Growth("generator", "The generator against its connections", "connections, kept alive", panels)]
