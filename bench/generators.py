"""Several generators at one server, begun together and added up: `python -m bench.generators [--json FILE]`.

2 to 16 generators, each in a namespace and over a link of its own, have windows of an open loop together (20 requests/s
each, to a port where nobody listens: what is looked at is when they begin). The skew is how long after the first the
last of them began; its target is 2 ms, for the median window. On a machine with fewer CPUs than generators they share
them, and awake one after the other. And the histograms of 1,000 generators, made up, are added: at most 1 s.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from bench._figures import keep
from virtoll.hosts.ledger import opened
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import SUT_GENERATOR_SIDE_ADDRESS
from virtoll.lab.client import Client
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import confinements_of_several, free_tag, wired
from virtoll.loads.base import Histogram, added
from virtoll.loads.http import HttpLoad, HttpSettings
from virtoll.loads.several import several
from virtoll.offers import Http
from virtoll.trial.several import skew_ns

_COUNTS = (2, 4, 8, 16)
_TARGET_MS, _MERGE_TARGET_S = 2.0, 1.0
_WINDOW_NS = 100 * 10**6
_BUCKETS = 800  # of a generator's histogram: a tenth of a millisecond to two seconds


def skews_ms(generators: int, windows: int) -> list[float]:
    """Of each window."""
    host = LocalHost()
    with tempfile.TemporaryDirectory() as there, opened(host, Path(there), "bench") as ledger:
        directory = Path(there)
        with wired(host, ledger, free_tag(), cpu_plan(host, 1), generators) as lab:
            settings = HttpSettings(loop="open", rate_per_s=20.0 * generators, connections=4 * generators)
            clients = []
            for number, place in enumerate(confinements_of_several(lab, generators)):
                (directory / f"{number}").mkdir()
                clients.append(Client(host, place, directory / f"{number}", len(place.cpus or ())))
            offer = Http(SUT_GENERATOR_SIDE_ADDRESS, 9)
            with several(HttpLoad(settings), clients, offer, lambda: None) as session:
                told = [session.measure(duration_ns=_WINDOW_NS).window for _ in range(windows)]
    return [skew_ns(window) / 1e6 for window in told]


def made_up(generators: int) -> list[Histogram]:
    """Their histograms: the same buckets, 0.8 % wide, with counts of their own."""
    noise, edges = random.Random(1), [100_000]
    while len(edges) <= _BUCKETS:
        edges.append(edges[-1] + edges[-1] // 80)
    return [[(lower, upper, noise.randint(1, 1000)) for lower, upper in pairwise(edges)] for _ in range(generators)]


def merge_s(histograms: list[Histogram]) -> float:
    """CPU time; AssertionError where a count is lost."""
    before = time.process_time()
    whole = added(histograms)
    took = time.process_time() - before
    assert sum(count for *_, count in whole) == sum(count for each in histograms for *_, count in each)
    return took


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.generators", description=__doc__)
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{os.cpu_count()} CPU; load average {os.getloadavg()[0]:.1f}")
    skews = {count: skews_ms(count, options.windows) for count in _COUNTS}
    for count, each in skews.items():
        median = statistics.median(each)
        verdict = "reached" if median <= _TARGET_MS else "MISSED"
        told = f"skew of {count:2} generators: median {median:6.3f} ms, worst of {len(each)} {max(each):6.3f} ms"
        print(f"{told}   target <= {_TARGET_MS:g} ms: {verdict}")
    merges = [merge_s(made_up(1000)) for _ in range(5)]
    is_merged = statistics.median(merges) <= _MERGE_TARGET_S
    verdict = "reached" if is_merged else "MISSED"
    told = f"1,000 histograms of {_BUCKETS} buckets added: {statistics.median(merges):.2f} s of CPU time"
    print(f"{told}   target <= {_MERGE_TARGET_S:g} s: {verdict}")
    keep(options.json, {"skews_ms": {str(count): each for count, each in skews.items()}, "merge_s": merges})
    return 0 if is_merged and all(statistics.median(each) <= _TARGET_MS for each in skews.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
