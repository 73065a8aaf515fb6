"""Bench of `virtoll report`: 2,000 trials with all that real ones leave, in at most 6 s and 1 GiB of resident memory.

Makes a synthetic run in a temporary directory, builds its report in a fresh process, and prints wall time, CPU time
with that of its helpers, and peak resident memory of the largest process of each repetition. Run it as
.venv/bin/python -m bench.report [--trials N] [--repeat N]
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

from bench._thorough import SAMPLES, make_thorough
from bench._verbs import AS_INSTALLED
from synthetic import ARMS, FACTORS, LXC, TRUTH, Recipe, write_run

TARGET_S = 6.0
TARGET_BYTES = 1024**3
_LXCFS = LXC.model_copy(update={"label": "lxc+routed (lxcfs)", "settings": {"lxcfs": True}})


def main() -> int:
    """Make the run, build its report several times, print; exit 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="virtoll-bench-") as scratch:
        run = Path(scratch, "run")
        recipe = _recipe(arguments.trials)
        write_run(run, recipe)
        make_thorough(run)
        trials, size = arguments.trials, (run / "trials.jsonl").stat().st_size
        print(
            f"made {trials} trials, {trials * SAMPLES:,} samples, {size / 1e6:,.0f} MB of records and "
            f"{_bytes_of(run / 'trials') / 1e6:,.0f} MB of parquet"
        )
        seconds, cpu, peaks = zip(*(_build(run) for _ in range(arguments.repeat)), strict=True)
    print(f"wall time   {_spread(seconds)} s       target <= {TARGET_S:.0f} s")
    print(f"of it CPU   {_spread(cpu)} s       (wall time follows it where the machine is idle)")
    print(f"peak memory {_spread([peak / 1024**2 for peak in peaks])} MiB   target <= {TARGET_BYTES / 1024**2:.0f} MiB")
    return int(statistics.median(seconds) > TARGET_S or max(peaks) > TARGET_BYTES)


def _recipe(trials: int) -> Recipe:
    """As the full study: eight arms, all conditions; as many blocks as the number of trials takes."""
    arms = (*ARMS, _LXCFS)
    conditions = len(FACTORS["load.object_bytes"]) * len(FACTORS["load.connections"]) * len(FACTORS["service.cache"])
    blocks = max(2, -(-trials // (len(arms) * conditions)))
    truth = {**TRUTH, _LXCFS.label: 0.97}
    return Recipe(arms=arms, factors=FACTORS, truth=truth, blocks=blocks, sealed=trials)


def _bytes_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _build(run: Path) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds and peak resident bytes of building the report in a process of its own."""
    started = time.monotonic()
    command = [sys.executable, "-m", "virtoll", "report", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=AS_INSTALLED)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"building the report failed with exit code {process.returncode}")
    return time.monotonic() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def _spread(values: tuple[float, ...] | list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    raise SystemExit(main())
