"""How virtoll's own cost grows: `python -m bench.growth [--only NAME] [--quick]`.

Four growths, each with the exponent b of cost ~ x^b: least squares on logarithms over the upper half of x, with its
95 % interval. A trial's overhead against the arms of its study (real deployments, not fakes); the monitor's CPU and
bytes against the instances it watches; the report's time and memory against trials and samples; the generator's CPU and
rate against connections, with wrk beside it. Reached: an exponent is at most its target plus 0.1 (26 % a decade). Where
it is above that and its interval reaches down to the target, this run cannot tell. Nothing is extrapolated.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench._figures import keep
from bench.growing import curves
from bench.growing.effort import Effort, say

GROWTHS = ("arms", "monitor", "report", "generator")  # modules of bench.growing


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("--only", action="append", choices=GROWTHS, help="this growth; may be given again")
    parser.add_argument("--quick", action="store_true", help="few small sizes: shows that the bench works, no more")
    parser.add_argument("--rounds", type=int, default=3, help="of every size but the longest")
    parser.add_argument("--seed", type=int, default=1, help="of the order of sizes within a round")
    parser.add_argument("--plots", type=Path, metavar="DIRECTORY", help="where to put growth-*.svg")
    parser.add_argument("--json", type=Path, help="where to write all readings")
    given = parser.parse_args(argv)
    if given.rounds < 1:
        parser.error("--rounds: at least 1")
    given.only = [name for name in GROWTHS if name in (given.only or GROWTHS)]
    return given


def measured(names: Sequence[str], effort: Effort) -> list[curves.Growth]:
    """The growths of these modules; a module is loaded when its turn comes, for not all need the same."""
    found = []
    for name in names:
        began_s = time.monotonic()
        found += importlib.import_module(f"bench.growing.{name}").measure(effort)
        say(f"{name}: {time.monotonic() - began_s:.0f} s")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, draw where asked, and say by the exit code whether all targets were reached."""
    given = options(argv)
    effort = Effort(given.quick, given.rounds, given.seed)
    growths = measured(given.only, effort)
    for growth in growths:
        print("\n".join(curves.lines(growth)), flush=True)
        if given.plots is not None:
            (given.plots / f"growth-{growth.name}.svg").write_text(curves.drawn(growth), encoding="utf-8")
    keep(
        given.json, {"seed": given.seed, "rounds": given.rounds, "growths": [curves.as_json(each) for each in growths]}
    )
    return 0 if all(map(curves.reached, growths)) else 1


if __name__ == "__main__":
    sys.exit(main())
