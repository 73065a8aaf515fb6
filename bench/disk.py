"""The probes of the disk against fio, natively and with the same settings: `python -m bench.disk [--json FILE]`.

One round runs both in each cell, in random order and in the same directory; ratios are taken within a round. A pass of
writing is a whole file on both sides, of a size that fio's clock of whole milliseconds can time; all else runs for the
same time. Printed: the median ratio and the middle half of them. Latencies are the medians of a run's operations: what
else the machine and its disk do meanwhile falls on few of them. The disk is at work for both, but not at the same
moment: what it does meanwhile is in the spread.

Where the page cache answers, what the tool itself spends on an operation weighs, and ours spends less: there only a
loss beyond the margin misses the target. Where the disk answers, the ratio has to be within the margin on both sides.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench._figures import keep
from virtoll.binaries import binary
from virtoll.instruments import fio
from virtoll.probes.disk import DiskSettings
from virtoll.probes.disk_sync import DiskSyncSettings
from virtoll.probes.native import arguments, parse

MARGIN = 0.02
_SHORTEST_NS = 1_000_000  # of a window: a pass takes longer, and is one window then
_MIB = 1024**2


@dataclass(frozen=True)
class Cell:
    """One condition."""

    title: str
    settings: DiskSettings | DiskSyncSettings
    measures: tuple[str, ...]
    is_the_disks: bool  # whether the disk answers, or the page cache

    @property
    def probe(self) -> str:
        return "disk" if isinstance(self.settings, DiskSettings) else "disk-sync"


def cells(directory: str, time_ns: int) -> list[Cell]:
    """The conditions, in this directory; each run takes about ``time_ns``."""
    common: dict[str, Any] = {"windows": 1, "time_ns": time_ns, "directory": directory}
    both = ("throughput_mb_per_s", "latency_p50_us")

    def write(record_bytes: int, file_bytes: int) -> Cell:
        one_pass = {"record_bytes": record_bytes, "file_bytes": file_bytes, **common, "time_ns": _SHORTEST_NS}
        settings = DiskSettings(operation="write", sync="none", **one_pass)
        return Cell(f"write {record_bytes // 1024} KiB, cached", settings, both, is_the_disks=False)

    def reread(record_bytes: int) -> Cell:
        settings = DiskSettings(operation="reread", record_bytes=record_bytes, file_bytes=4 * _MIB, **common)
        return Cell(f"reread {record_bytes // 1024} KiB, cached", settings, both, is_the_disks=False)

    direct = {"operation": "random-read", "record_bytes": 4096, "file_bytes": 16 * _MIB, "direct": "yes", **common}
    deep = DiskSettings(engine="uring", depth=16, **direct)
    sync = DiskSyncSettings(operation="overwrite", **common)
    return [
        write(4096, 128 * _MIB),
        write(65536, 256 * _MIB),
        reread(4096),
        reread(65536),
        Cell("random read 4 KiB, direct", DiskSettings(**direct), both, is_the_disks=True),
        Cell("same, io_uring, depth 16", deep, both, is_the_disks=True),
        Cell("fdatasync of 4 KiB", sync, ("sync_p50_us",), is_the_disks=True),
    ]


def ours(cell: Cell) -> dict[str, float]:
    """One window of the probe."""
    words = [str(binary("virtoll-agent")), *arguments(cell.probe, cell.settings)]
    done = subprocess.run(words, capture_output=True, check=False)
    result = parse(cell.probe, done.returncode, done.stdout, done.stderr)
    if failed := [check for check in result.checks if not check.passed]:
        raise SystemExit(f"bench.disk: {cell.title}: {failed}")
    return dict(result.windows[0].values)


def theirs(cell: Cell) -> dict[str, float]:
    """One run of fio."""
    if isinstance(cell.settings, DiskSettings):
        command, read = fio.disk_command(cell.settings), fio.disk_values
    else:
        command, read = fio.sync_command(cell.settings), fio.sync_values
    done = subprocess.run(command, capture_output=True, check=False)
    return read(fio.parse(done.returncode, done.stdout, done.stderr))


def measure(conditions: list[Cell], rounds: int, seed: int) -> dict[str, list[tuple[dict[str, float], ...]]]:
    """By cell: (ours, theirs) of each round."""
    readings: dict[str, list[tuple[dict[str, float], ...]]] = {cell.title: [] for cell in conditions}
    order = random.Random(seed)
    for number in range(1, rounds + 1):
        for cell in order.sample(conditions, len(conditions)):
            first, second = order.sample([ours, theirs], 2)
            seen = {first: first(cell)}
            seen[second] = second(cell)
            readings[cell.title].append((seen[ours], seen[theirs]))
        print(f"round {number} of {rounds}", file=sys.stderr)
    return readings


def row(cell: Cell, measure_name: str, pairs: list[tuple[dict[str, float], ...]]) -> dict[str, Any]:
    """Median ratio of ours over theirs, its middle half, and whether it is good enough."""
    low, median, high = statistics.quantiles([mine[measure_name] / other[measure_name] for mine, other in pairs], n=4)
    more_is_better = measure_name == "throughput_mb_per_s"
    loss = 1 - median if more_is_better else median - 1
    if cell.is_the_disks:
        target = f"{1 - MARGIN:.2f} to {1 + MARGIN:.2f}"
    else:
        target = f">= {1 - MARGIN:.2f}" if more_is_better else f"<= {1 + MARGIN:.2f}"
    return {
        "cell": cell.title,
        "measure": measure_name,
        "target": target,
        "median": median,
        "quartiles": [low, high],
        "reached": abs(loss) <= MARGIN if cell.is_the_disks else loss <= MARGIN,
        "ours": statistics.median(mine[measure_name] for mine, _ in pairs),
        "theirs": statistics.median(other[measure_name] for _, other in pairs),
    }


def main() -> int:
    """Measure, print, and write the figures where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.disk", description=__doc__)
    parser.add_argument("--rounds", type=int, default=13)
    parser.add_argument("--milliseconds", type=int, default=150, help="length of one run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    conditions = cells(options.directory, options.milliseconds * 10**6)
    readings = measure(conditions, options.rounds, options.seed)
    rows = [row(cell, name, readings[cell.title]) for cell in conditions for name in cell.measures]
    print(f"{'cell':26}{'measure':21}{'target':14}{'median':>6}  {'middle half':14}{'ours':>10}{'fio':>10}")
    for each in rows:
        spread = f"{each['quartiles'][0]:.2f} to {each['quartiles'][1]:.2f}"
        print(
            f"{each['cell']:26}{each['measure']:21}{each['target']:14}{each['median']:6.3f}  {spread:14}"
            f"{each['ours']:10.4g}{each['theirs']:10.4g}  {'reached' if each['reached'] else 'MISSED'}"
        )
    keep(options.json, {"rounds": options.rounds, "seed": options.seed, "rows": rows})
    return 0 if all(each["reached"] for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
