"""Gunther's law of `virtoll plan` on this machine: `python -m bench.law [--tries N] [--blocks N] [--from RUNDIR]`.

A web server under 1 to 32 connections on native and containers, in rotation; so many of its blocks are a try. In each
the law is fitted, of each arm, to all levels but the highest and held against what was measured there, by the product's
own functions. Printed: of the laws that fit, and are not too uncertain to say anything, in how many what was measured
there lies in the interval that was foretold (target: 9 of 10); how often the plan tells a law; and why it does not.
`--into` keeps the run, and `--from` reads one that was kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench._figures import keep
from virtoll.analysis.carrying import CONNECTIONS, delivered, levels_asked, rests_of
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.power import proportion
from virtoll.analysis.scaling import Law, fit
from virtoll.report.findings import find
from virtoll.run.conduct import run_made
from virtoll.run.request import Request, read
from virtoll.study.model import Study

TARGET = 0.9
LEVELS = (1, 2, 4, 8, 16, 32)
PLATFORMS = ("native", "docker", "lxc")


@dataclasses.dataclass(frozen=True)
class Try:
    """Of one arm. ``is_inside``: None where there is no law that could foretell."""

    arm: str
    is_inside: bool | None
    told: Law | str


def main(argv: Sequence[str] | None = None) -> int:
    """Print the counts; 1 where fewer than 9 of 10 lie within."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=3, help="of a try")
    parser.add_argument("--from", dest="kept", type=Path, metavar="RUNDIR")
    parser.add_argument("--into", type=Path, metavar="RUNDIR")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        run = arguments.kept or arguments.into or Path(directory) / "run"
        if arguments.kept is None:
            request = Request(
                "web", quick=True, platforms=PLATFORMS, blocks=arguments.tries * arguments.blocks, out=run
            )
            study, file = read(request)
            if code := run_made(request, levelled(study), file):
                return code
        tried = tries(find(run).matrix, arguments.blocks)
    told = [each for each in tried if each.is_inside is not None]
    inside = sum(bool(each.is_inside) for each in told)
    for arm in dict.fromkeys(each.arm for each in tried):
        print(f"{arm:24}{_row([each for each in tried if each.arm == arm])}")
    keep(arguments.json, {"inside": inside, "foretold": len(told), "tries": len(tried)})
    reached = bool(told) and inside >= TARGET * len(told)
    word = "target reached" if reached else "TARGET MISSED"
    print(f"inside: {inside} of {len(told)} {_interval(inside, len(told))}; {word} (9 of 10)")
    return 0 if reached else 1


def levelled(study: Study) -> Study:
    """The web study at several numbers of connections, all kept alive, in plain."""
    factors = {CONNECTIONS: LEVELS, "load.object": ("1 kB",), "load.keep_alive": (True,), "service.tls": (False,)}
    return dataclasses.replace(study, name="law", factors=factors, exclude=(), claims=())


def tries(matrix: Matrix, blocks: int) -> list[Try]:
    """So many blocks after another, of each arm."""
    (rest,) = rests_of(matrix, CONNECTIONS)
    found = []
    for arm in (arm for arm in matrix.arms if arm.role != "floor"):
        levels = levels_asked(matrix, CONNECTIONS, rest, arm)
        numbers, values = np.array([level for level, _ in levels], float), delivered(matrix, arm, levels)
        for at in range(0, len(values) - blocks + 1, blocks):
            told = fit(numbers, values[at : at + blocks])
            found.append(Try(arm.label, _is_inside(told), told))
    return found


def _is_inside(told: Law | str) -> bool | None:
    """A law that does not hold is one whose interval does not hold what was measured."""
    if isinstance(told, Law):
        return told.foretold[1] <= told.measured[0] <= told.foretold[2]
    return False if told.startswith("it does not hold") else None


def _row(tried: Sequence[Try]) -> str:
    inside = [each.is_inside for each in tried if each.is_inside is not None]
    laws = sum(isinstance(each.told, Law) for each in tried)
    why = Counter(each.told.partition(":")[0] for each in tried if isinstance(each.told, str))
    reasons = "; ".join(f"{count} x {reason}" for reason, count in why.items())
    return (
        f"inside in {sum(inside)} of {len(inside)}; told in {laws} of {len(tried)}{f' ({reasons})' if reasons else ''}"
    )


def _interval(count: int, of: int) -> str:
    if not of:
        return ""
    share = proportion(count, of)
    assert share.low is not None
    assert share.high is not None
    return f"[{100 * share.low:.0f}, {100 * share.high:.0f}] %"


if __name__ == "__main__":
    sys.exit(main())
