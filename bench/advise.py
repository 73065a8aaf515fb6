"""Bench of `virtoll advise`: a run of 2,000 trials, with all that real ones leave, in at most 3 s.

Makes the synthetic run of bench.report in a temporary directory and runs the command on it, with an objective in
latency, and with one in CPU time, for which all samples are read. Run it as
.venv/bin/python -m bench.advise [--trials N] [--repeat N] [--against SRC]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bench._thorough import make_thorough
from bench._verbs import add_arguments, by_turns, cost, reached
from bench.report import _recipe
from synthetic import write_run

TARGET_S = 3.0
ENDS = (0, 1)  # 1: nothing fits
OBJECTIVES = {"latency": "p99 < 200 ms", "CPU time": "cpu_s_per_1000 < 5"}


def main() -> int:
    """Make the run, advise on it several times, print; exit 1 when the target is not reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    add_arguments(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="virtoll-bench-") as scratch:
        run = Path(scratch, "run")
        write_run(run, _recipe(arguments.trials))
        make_thorough(run)
        are_fast = [_is_fast(name, text, run, arguments) for name, text in OBJECTIVES.items()]
    return int(not all(are_fast))


def _is_fast(name: str, objective: str, run: Path, arguments: argparse.Namespace) -> bool:
    words = ["advise", str(run), "--objective", objective]
    if arguments.against is not None:
        by_turns(f"objective in {name}", words, arguments.against, arguments.rounds, ENDS)
    return reached(f"objective in {name}", [cost(words, ENDS) for _ in range(arguments.repeat)], TARGET_S)


if __name__ == "__main__":
    raise SystemExit(main())
