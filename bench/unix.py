"""The agent's pipe, syscall and context tests against UnixBench's loops in C: `python -m bench.unix [--json FILE]`.

bench/unix/*.c are the loops as UnixBench defines them, compiled here by gcc -O2. Both sides run on one and the same CPU
(two processes that may be on two CPUs measure where the scheduler puts them). One round runs each side once in each
test, in random order; ratios are taken within a round, so what the machine does meanwhile hits both. Printed: the
median ratio and the middle half of them.
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
from pathlib import Path
from typing import Any

from bench._figures import keep
from virtoll.binaries import binary

SOURCES = Path(__file__).parent / "unix"
TESTS = ("pipe", "syscall", "context")
TARGET = 1.0
WHO = ("ours", "theirs")

Readings = dict[str, dict[str, list[float]]]


def compiled(directory: Path) -> dict[str, Path]:
    """UnixBench's loops as programs."""
    programs = {name: directory / name for name in TESTS}
    for name, program in programs.items():
        subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-o", program, SOURCES / f"{name}.c"], check=True)
    return programs


def ours_per_s(agent: Path, name: str, milliseconds: int) -> float:
    """One window of the agent's test."""
    argv = [agent, "probe", f"unix-{name}", "--windows", "1", "--time-ns", str(milliseconds * 10**6), "--json"]
    report = json.loads(_output(argv))
    if not all(check["passed"] for check in report["checks"]):
        raise SystemExit(f"bench.unix: {name} failed its own check: {report['checks']}")
    return float(report["windows"][0]["values"]["loops_per_s"])


def theirs_per_s(program: Path, milliseconds: int) -> float:
    """One run of the loop in C: its count over its own time."""
    count, time_ns = _output([program, str(milliseconds * 1000)]).split()
    return int(count) / int(time_ns) * 1e9


def _output(argv: list[Any]) -> str:
    return subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout


def measure(agent: Path, rounds: int, milliseconds: int, seed: int) -> Readings:
    """All rates, by test and side; index is the round."""
    readings: Readings = {name: {who: [] for who in WHO} for name in TESTS}
    order = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        programs = compiled(Path(directory))
        for _ in range(rounds):
            for name in order.sample(TESTS, len(TESTS)):
                for who in order.sample(WHO, len(WHO)):
                    ours = who == "ours"
                    rate = ours_per_s(agent, name, milliseconds) if ours else theirs_per_s(programs[name], milliseconds)
                    readings[name][who].append(rate)
    return readings


def summary(readings: Readings) -> list[dict[str, Any]]:
    """One row for each test."""
    rows = []
    for name, sides in readings.items():
        ratios = [ours / theirs for ours, theirs in zip(sides["ours"], sides["theirs"], strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        row = {"test": name, "rounds": len(ratios), "median": median, "quartiles": [low, high]}
        row |= {who: statistics.median(sides[who]) for who in WHO}
        rows.append(row | {"reached": median >= TARGET})
    return rows


def main() -> int:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.unix", description=__doc__)
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--milliseconds", type=int, default=150, help="length of one run, below a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="where both sides run")
    parser.add_argument("--agent", type=Path, help="another build of virtoll-agent")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.cpu})
    agent = options.agent or binary("virtoll-agent")
    rows = summary(measure(agent, options.rounds, options.milliseconds, options.seed))
    print(f"{'test':10}{'target':20}{'median':>6}  {'middle half':15}{'rounds':>6}{'ours/s':>11}{'theirs/s':>11}")
    for row in rows:
        spread = f"{row['quartiles'][0]:.3f} to {row['quartiles'][1]:.3f}"
        print(
            f"{row['test']:10}{f'>= {TARGET:g} x UnixBench':20}{row['median']:6.3f}  {spread:15}{row['rounds']:6}"
            f"{row['ours']:11.4g}{row['theirs']:11.4g}  {'reached' if row['reached'] else 'MISSED'}"
        )
    keep(options.json, {"milliseconds": options.milliseconds, "rows": rows})
    return 0 if all(row["reached"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
