"""The report's time and memory against a run's trials, 100 to 20,000, and against its samples, 1e4 to 1e8.

The runs are synthetic (tests/synthetic.py). Trials of one arm under one condition share their raw files by hard links,
which spares the bench minutes of writing, and the report nothing: it reads each trial's anew. A report is built in a
process of its own, its files warm in the page cache; peak memory is that process's.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.growing.curves import Growth, Panel, Reading
from bench.growing.effort import Effort, say
from bench.report import _build, _recipe
from synthetic import FACTORS, Recipe, write_histogram, write_run, write_samples

_TRIALS, _QUICK_TRIALS = (100, 500, 2000, 6000, 20_000), (100, 300)
_SAMPLES, _QUICK_SAMPLES = tuple(10**power for power in range(4, 9)), (10**4, 10**5)
_LONG_TRIALS, _LONG_SAMPLES = 5000, 5 * 10**7  # from here on one round
_SAMPLES_OF_TRIAL = 100  # where trials grow
_TRIALS_OF_SAMPLES = 100  # where samples grow
_OUTSIDE: dict[tuple[str, str], float] = {
    ("instance", "cpu.usage_ns"): 0.95e9,
    ("instance", "cpu.user_ns"): 0.4e9,
    ("instance", "cpu.system_ns"): 0.55e9,
    ("instance", "memory.usage_bytes"): -9e7,
    ("instance", "memory.resident_bytes"): -6e7,
    ("generator", "cpu.usage_ns"): 0.4e9,
    ("host", "cpu.usage_ns"): 1.5e9,
    ("origin", "cpu.usage_ns"): 0.2e9,
}
_INSIDE: dict[tuple[str, str], float] = {("inside", "cpu.usage_ns"): 0.9e9, ("inside", "memory.available_bytes"): -3e8}


@dataclass(frozen=True)
class _Cost:
    """Of one report."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def measure(effort: Effort) -> list[Growth]:
    """Both growths."""
    trials = effort.sizes(_TRIALS, _QUICK_TRIALS)
    samples = effort.sizes(_SAMPLES, _QUICK_SAMPLES)
    by_trials = {size: _costs(effort, size, size * _SAMPLES_OF_TRIAL, size > _LONG_TRIALS) for size in trials}
    by_samples = {size: _costs(effort, _TRIALS_OF_SAMPLES, size, size > _LONG_SAMPLES) for size in samples}
    several = f"{_SAMPLES_OF_TRIAL} samples in each trial"
    fixed = f"samples in the Parquet files of {_TRIALS_OF_SAMPLES} trials"
    return [
        _growth("report-trials", f"The report against trials ({several})", "trials", by_trials),
        _growth("report-samples", "The report against samples", fixed, by_samples),
    ]


def _growth(name: str, title: str, x: str, costs: dict[int, list[_Cost]]) -> Growth:
    def readings(quantity: str) -> list[Reading]:
        return [Reading(size, getattr(cost, quantity)) for size, of_size in costs.items() for cost in of_size]

    time = {"wall time": readings("wall_s"), "CPU": readings("cpu_s")}
    memory = {"peak resident": readings("peak_mib")}
    return Growth(name, title, x, [Panel("time, s", time, most=1), Panel("memory, MiB", memory, most=1)])


def _costs(effort: Effort, trials: int, samples: int, is_long: bool) -> list[_Cost]:
    with tempfile.TemporaryDirectory(prefix="virtoll-bench-") as scratch:
        run = Path(scratch, "run")
        write(run, trials, samples // trials)
        costs = []
        for _ in range(1 if is_long else effort.rounds):
            wall_s, cpu_s, peak_bytes = _build(run)
            costs.append(_Cost(wall_s, cpu_s, peak_bytes / 1024**2))
            say(f"report: {trials:,} trials, {samples:,} samples: {wall_s:.1f} s, {peak_bytes / 1024**2:.0f} MiB")
    return costs


# -- the run ------------------------------------------------------------------------------------------------------


def write(run: Path, trials: int, samples_of_trial: int) -> None:
    """A run of so many trials, with so many samples in the files of each."""
    write_run(run, _of(trials))
    shared = run / "shared"
    lines = []
    for record in _at_one_time(run / "trials.jsonl"):
        trial, window = record["trial"], record["measured"]["windows"][0]
        kind = shared / f"{trial['arm']['label']} {sorted(trial['condition'].items())}".replace("/", "_")
        if not kind.exists():
            kind.mkdir(parents=True)
            _write_bulk(kind, window, samples_of_trial)
        directory = run / "trials" / trial["id"]
        directory.mkdir(parents=True)
        for file in kind.iterdir():
            os.link(file, directory / file.name)
        lines.append(json.dumps(record) + "\n")
    (run / "trials.jsonl").write_text("".join(lines), encoding="utf-8")


def _of(trials: int) -> Recipe:
    """As the full study's; few trials have few conditions, so that every cell has several blocks."""
    recipe = _recipe(trials)
    if trials > 1000:
        return Recipe(**{**vars(recipe), "bulk": False})
    factors = {path: levels[:2] for path, levels in FACTORS.items() if path != "service.cache"}
    blocks = max(2, math.ceil(trials / (len(recipe.arms) * math.prod(map(len, factors.values())))))
    return Recipe(**{**vars(recipe), "factors": factors, "blocks": blocks, "bulk": False})


def _at_one_time(sealed: Path) -> Iterator[dict[str, Any]]:
    """The records, moved so that their windows begin together: then one file of samples serves many."""
    for line in sealed.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        window = record["measured"]["windows"][0]
        later_ns = window["start_ns"] - 10**12
        for timed in (window, *record["phases"]):
            timed["start_ns"] -= later_ns
        yield record


def _write_bulk(directory: Path, window: dict[str, Any], samples: int) -> None:
    """Latencies and samples; the samples go on for as long as the longest window of the same kind may last."""
    rng = np.random.default_rng(1)
    work, length_ns = window["work"], window["duration_ns"]
    write_histogram(directory / "latency.parquet", length_ns / work * rng.lognormal(0, 0.35, 20_000))
    span_ns = (window["start_ns"], window["start_ns"] + round(length_ns * 1.4))
    ticks = max(4, samples // (len(_OUTSIDE) + len(_INSIDE)))
    for side, counters in (("outside", _OUTSIDE), ("inside", _INSIDE)):
        write_samples(directory / f"{side}.parquet", counters, span_ns, ticks, rng)
