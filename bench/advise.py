"""Bench of `virtoll advise`: a run of 2,000 trials, with all that real ones leave, in at most 3 s.

Makes the synthetic run of bench.report in a temporary directory and runs the command on it, with an objective in
latency, and with one in CPU time, for which all samples are read. Run it as
.venv/bin/python -m bench.advise [--trials N] [--repeat N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bench._thorough import make_thorough
from bench.report import AS_INSTALLED, _recipe
from synthetic import write_run

TARGET_S = 3.0
OBJECTIVES = {"latency": "p99 < 200 ms", "CPU time": "cpu_s_per_1000 < 5"}


def main() -> int:
    """Make the run, advise on it several times, print; exit 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="virtoll-bench-") as scratch:
        run = Path(scratch, "run")
        write_run(run, _recipe(arguments.trials))
        make_thorough(run)
        medians = [_told(name, text, run, arguments.repeat) for name, text in OBJECTIVES.items()]
    return int(max(medians) > TARGET_S)


def _told(name: str, objective: str, run: Path, repeat: int) -> float:
    """Print wall and CPU seconds of an objective; the median of the former."""
    wall, cpu = zip(*(_advise(run, objective) for _ in range(repeat)), strict=True)
    print(f"objective in {name:<9} wall {_spread(wall)} s, CPU {_spread(cpu)} s       target <= {TARGET_S:.0f} s")
    return float(statistics.median(wall))


def _advise(run: Path, objective: str) -> tuple[float, float]:
    """Wall and CPU seconds of the command, its helpers' too."""
    argv = [sys.executable, "-m", "virtoll", "advise", str(run), "--objective", objective]
    started = time.monotonic()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, env=AS_INSTALLED)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):  # 1: nothing fits
        raise SystemExit(f"virtoll advise failed with exit code {process.returncode}")
    return time.monotonic() - started, usage.ru_utime + usage.ru_stime


def _spread(values: tuple[float, ...]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    raise SystemExit(main())
