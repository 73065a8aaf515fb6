"""Bench of `virtoll history`: 200 runs as a page in at most 10 s, false alarms of its changes, and what it finds.

Makes 200 synthetic runs (six blocks of five arms under four conditions each) in a temporary directory and times the
verb in a fresh process. *Alarms*: pages of five arms over 10, 20 and 50 runs that do not change, on which a change is
told (target: 5 % at most); *found*: a change of two standard deviations of a run's log ratio after half of the runs,
and how far off it is placed. Run it as .venv/bin/python -m bench.history [--runs N] [--pages N] [--against SRC]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bench._verbs import add_arguments, by_turns, cost, reached
from synthetic import AGAIN, DOCKER, LXC, NATIVE, UML, Recipe, write_run
from virtoll.analysis.change_points import change_points

TARGET_S, TARGET_ALARMS = 10.0, 0.05
ARMS, LENGTHS = 5, (10, 20, 50)


def make(folder: Path, count: int) -> None:
    """Runs of one study, a day apart, the last third in another environment."""
    for number in range(count):
        recipe = Recipe(arms=(NATIVE, AGAIN, LXC, DOCKER, UML), blocks=6, seed=number + 1, bulk=False)
        run = write_run(folder / f"run-{number:03}", recipe)
        environment = json.loads((run / "environment.json").read_text())
        environment["created_at"] = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)).isoformat()
        environment["comparable"]["kernel"] = "6.2" if number > count * 2 / 3 else "6.1"
        (run / "environment.json").write_text(json.dumps(environment))


def timed(runs: int, repeat: int, against: Path | None, rounds: int) -> bool:
    """Tell the history of so many runs, and print what it takes; whether that is the target."""
    with tempfile.TemporaryDirectory(prefix="virtoll-bench-") as scratch:
        make(Path(scratch), runs)
        words, name = ["history", scratch], f"history of {runs} runs"
        if against is not None:
            by_turns(name, words, against, rounds)
        return reached(name, [cost(words) for _ in range(repeat)], TARGET_S)


def alarms(pages: int, runs: int, rng: np.random.Generator) -> float:
    """Share of pages without a change on which one is told. The arms share their native, and so part of their noise."""
    told = 0
    for _ in range(pages):
        shared = rng.normal(0, 1, runs)
        told += any(change_points(list(shared + rng.normal(0, 1, runs)), ARMS) for _ in range(ARMS))
    return told / pages


def found(pages: int, runs: int, rng: np.random.Generator) -> tuple[float, float]:
    """How often a change of two standard deviations is found among five arms, and how many runs off it is, mean."""
    off = []
    for _ in range(pages):
        logs = rng.normal(0, 1, runs) + np.where(np.arange(runs) >= runs // 2, 2.0, 0.0)
        off += [min(abs(each.at - runs // 2) for each in told)] if (told := change_points(list(logs), ARMS)) else []
    return len(off) / pages, float(np.mean(off)) if off else float("nan")


def main() -> int:
    """Simulate, time, print; exit 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.history", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="that are timed; 0: none")
    parser.add_argument("--pages", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    add_arguments(parser)
    options = parser.parse_args()
    rng, worst = np.random.default_rng(options.seed), 0.0
    for runs in LENGTHS:
        share, (power, off) = alarms(options.pages, runs, rng), found(options.pages, runs, rng)
        worst = max(worst, share)
        print(f"{runs:3} runs: false alarms on {share:.1%} of pages; found {power:.0%}, {off:.1f} runs off")
    noise = 1.96 * (TARGET_ALARMS * (1 - TARGET_ALARMS) / options.pages) ** 0.5
    print(f"target: false alarms on {TARGET_ALARMS:.0%} of pages")
    is_fast = not options.runs or timed(options.runs, options.repeat, options.against, options.rounds)
    return int(worst > TARGET_ALARMS + noise or not is_fast)


if __name__ == "__main__":
    sys.exit(main())
