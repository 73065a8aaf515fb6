"""What a study over many hosts costs the engine: `python -m bench.fleet [--only workers|hosts] [--quick]`.

By 1 to 16 workers, real processes with TLS on loopback: a trial's time over the local way, whose target is 50 ms with
one worker, and the CPU time of coordinator and scheduler. By 10 to 10,000 hosts that are made up: what the coordinator,
its store and its report take, and how that grows; an exponent is at most its target plus 0.1. Trials are fakes. Dask's
scheduler is in the first alone; no second machine is in either.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bench._figures import keep
from bench.growing import curves, hosts, workers
from bench.growing.effort import Effort

TARGET_MS = 50.0  # a trial, with one worker, over the local way
_PARTS = ("workers", "hosts")


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument("--only", choices=_PARTS, help="one half of it")
    parser.add_argument("--quick", action="store_true", help="few small sizes: shows that the bench works, no more")
    parser.add_argument("--rounds", type=int, default=3, help="of every size but the largest")
    parser.add_argument("--most", type=int, help="no size beyond this: a machine may have no room, or no time")
    parser.add_argument("--plots", type=Path, metavar="DIRECTORY", help="where to put fleet-*.svg")
    parser.add_argument("--json", type=Path, help="where to write all readings")
    given = parser.parse_args(argv)
    if given.rounds < 1:
        parser.error("--rounds: at least 1")
    return given


def engine(pairs: Sequence[workers.Pair]) -> tuple[str, bool]:
    """The engine's overhead with one worker in words, and whether it reaches its target."""
    over_ms = next(pair.over_ms() for pair in pairs if pair.workers == 1)
    is_reached = statistics.median(over_ms) <= TARGET_MS
    told = f"engine, one worker: {workers.spread(over_ms)} ms a trial over the local way"
    return f"{told}   target <= {TARGET_MS:g} ms: {'reached' if is_reached else 'MISSED'}", is_reached


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, draw where asked, and say by the exit code whether all targets were reached."""
    given = options(argv)
    effort = Effort(given.quick, given.rounds, most=given.most)
    growths: list[curves.Growth] = []
    is_reached = True
    if given.only != "hosts":
        pairs = workers.measured(effort)
        told, is_reached = engine(pairs)
        print(told, flush=True)
        growths.append(workers.growth(pairs))
    if given.only != "workers":
        growths += hosts.measure(effort)
    for growth in growths:
        print("\n".join(curves.lines(growth)), flush=True)
        if given.plots is not None:
            (given.plots / f"fleet-{growth.name}.svg").write_text(curves.drawn(growth), encoding="utf-8")
    keep(given.json, {"rounds": given.rounds, "growths": [curves.as_json(each) for each in growths]})
    return 0 if is_reached and all(map(curves.reached, growths)) else 1


if __name__ == "__main__":
    sys.exit(main())
