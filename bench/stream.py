"""STREAM's triad against C with OpenMP, at the same page size and kind of store: `python -m bench.stream`.

bench/stream.c is built twice, with -O3 and with -O3 -march=native. One round runs the agent and both builds once in
each cell (small and huge pages, plain stores; huge pages, non-temporal stores; one thread and one for each CPU), in
random order. What counts of a run is its best window, as in STREAM itself: another program on the machine can only
make it slower. The agent is compared with the build that is better in the cell (by its median), within a round.
Printed: the median ratio and the middle half.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench._figures import keep
from virtoll.binaries import binary

SOURCE = Path(__file__).with_name("stream.c")
BUILDS = {"gcc -O3": ["-O3"], "gcc -O3 -march=native": ["-O3", "-march=native"]}
OURS = "virtoll-agent"
TARGET = 1.0
PASSES = 4


@dataclass(frozen=True)
class Cell:
    """One condition."""

    pages: str
    stores: str
    threads: int

    def __str__(self) -> str:
        return f"{self.stores}, {self.pages} pages, {self.threads} thr."


def cells() -> list[Cell]:
    """Every condition on this machine."""
    kinds = [("small", "plain"), ("huge", "plain"), ("huge", "non-temporal")]
    threads = sorted({1, len(os.sched_getaffinity(0))})
    return [Cell(pages, stores, count) for pages, stores in kinds for count in threads]


def build(directory: Path) -> dict[str, Path]:
    """The C programs by their compiler's options."""
    programs = {}
    for number, (name, options) in enumerate(BUILDS.items()):
        programs[name] = directory / f"stream-{number}"
        argv = ["gcc", *options, "-fopenmp", str(SOURCE), "-o", str(programs[name])]
        subprocess.run(argv, check=True)
    return programs


def best_of_ours(agent: Path, cell: Cell, array_bytes: int, windows: int) -> float:
    """MB/s of the agent's best window; its own checks must have passed."""
    settings = {
        "array-bytes": array_bytes,
        "threads": cell.threads,
        "pages": cell.pages,
        "stores": cell.stores,
        "work": PASSES,
        "windows": windows,
    }
    words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    done = subprocess.run([str(agent), "probe", "stream", *words, "--json"], stdout=subprocess.PIPE, check=False)
    report = json.loads(done.stdout)
    if done.returncode != 0 or not all(check["passed"] for check in report["checks"]):
        raise SystemExit(f"bench.stream: {cell}: {done.stdout.decode()}")
    return float(max(window["values"]["bandwidth_mb_per_s"] for window in report["windows"]))


def best_of_theirs(program: Path, cell: Cell, array_bytes: int, windows: int) -> float:
    """MB/s of a C build's best window."""
    argv = [program, array_bytes, cell.threads, cell.pages, cell.stores, PASSES, windows]
    done = subprocess.run([str(word) for word in argv], check=True, stdout=subprocess.PIPE, text=True)
    return max(float(line) for line in done.stdout.split())


def measure(agent: Path, array_bytes: int, rounds: int, windows: int, seed: int) -> dict[Cell, dict[str, list[float]]]:
    """Best windows, by cell and program; index is the round."""
    order = random.Random(seed)
    conditions = cells()
    readings: dict[Cell, dict[str, list[float]]] = {cell: {name: [] for name in (OURS, *BUILDS)} for cell in conditions}
    with tempfile.TemporaryDirectory() as directory:
        programs = build(Path(directory))
        for number in range(1, rounds + 1):
            for cell in order.sample(conditions, len(conditions)):
                for name in order.sample([OURS, *BUILDS], 1 + len(BUILDS)):
                    if name == OURS:
                        reading = best_of_ours(agent, cell, array_bytes, windows)
                    else:
                        reading = best_of_theirs(programs[name], cell, array_bytes, windows)
                    readings[cell][name].append(reading)
            print(f"round {number} of {rounds}", file=sys.stderr)
    return readings


def row(cell: Cell, readings: dict[str, list[float]]) -> dict[str, Any]:
    """A cell's ratio to the better of the C builds."""
    other = max(BUILDS, key=lambda name: statistics.median(readings[name]))
    ratios = [ours / theirs for ours, theirs in zip(readings[OURS], readings[other], strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {
        "cell": str(cell),
        "better_build": other,
        "rounds": len(ratios),
        "median": median,
        "quartiles": [low, high],
        "reached": median >= TARGET,
        "ours_mb_per_s": statistics.median(readings[OURS]),
        "theirs_mb_per_s": statistics.median(readings[other]),
    }


def main() -> int:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.stream", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--windows", type=int, default=5, help=f"windows of a run, {PASSES} passes each")
    parser.add_argument("--array-bytes", type=int, default=128 * 1024**2, help="each of three arrays")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agent", type=Path, help="another virtoll-agent than the package's")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    agent = options.agent or binary("virtoll-agent")
    readings = measure(agent, options.array_bytes, options.rounds, options.windows, options.seed)
    rows = [row(cell, by_program) for cell, by_program in readings.items()]
    print(f"triad, 3 x {options.array_bytes} bytes; target: >= {TARGET:g} x the better C build")
    print(f"{'cell':32}{'better build':24}{'median':>6}  {'middle half':14}{'ours MB/s':>10}{'theirs':>10}")
    for each in rows:
        spread = f"{each['quartiles'][0]:.3f} to {each['quartiles'][1]:.3f}"
        print(
            f"{each['cell']:32}{each['better_build']:24}{each['median']:6.3f}  {spread:14}{each['ours_mb_per_s']:10.0f}"
            f"{each['theirs_mb_per_s']:10.0f}  {'reached' if each['reached'] else 'MISSED'}"
        )
    keep(
        options.json, {"rounds": options.rounds, "array_bytes": options.array_bytes, "seed": options.seed, "rows": rows}
    )
    return 0 if all(each["reached"] for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
