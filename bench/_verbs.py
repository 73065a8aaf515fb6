"""What a verb takes in a process of its own, and by turns against another version of virtoll.

A target is of the clock on a machine that does nothing else. Where others are at work, the clock says how much of the
machine was left; so beside it stands the CPU time of the verb's own process, which waits for nothing but its helper's
last share: a quiet machine's clock shows about that. On a machine whose speed drifts even CPU time is of the minute,
and two versions are compared by turns (``--against``), round by round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench._figures import paired

ROUNDS = 7
AS_INSTALLED = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # else each process may compile virtoll anew
_BUSY = 1.25  # the clock over the CPU time of the process, or of its helper: more was waiting for others
_OWN, _HELPERS = slice(11, 13), slice(13, 15)  # of /proc/PID/stat after the name, in ticks: user and system (proc(5))


@dataclass(frozen=True)
class Cost:
    """Of one call."""

    wall_s: float
    own_s: float  # CPU time of the process
    helpers_s: float  # and of those that it waited for
    peak_mib: float  # resident, of the largest of them

    @property
    def cpu_s(self) -> float:
        """Of all of its processes."""
        return self.own_s + self.helpers_s

    @property
    def alone_s(self) -> float:
        """What the clock would show at least on a machine that does nothing else: one of them waits for the other."""
        return max(self.own_s, self.helpers_s)


def cost(words: Sequence[str], ends: Collection[int] = (0,), source: Path | None = None) -> Cost:
    """Run a verb; ``source``: the ``src`` of another version. SystemExit where it does not end as it may."""
    environment = AS_INSTALLED if source is None else {**AS_INSTALLED, "PYTHONPATH": str(source)}
    begun_s = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "virtoll", *words], stdout=subprocess.DEVNULL, env=environment)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    wall_s = time.monotonic() - begun_s
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in ends:
        raise SystemExit(f"virtoll {words[0]} failed with exit code {process.returncode}")
    own_s, helpers_s = (sum(map(int, fields[which])) / os.sysconf("SC_CLK_TCK") for which in (_OWN, _HELPERS))
    return Cost(wall_s, own_s, helpers_s, usage.ru_maxrss / 1024)


def reached(name: str, costs: Sequence[Cost], target_s: float) -> bool:
    """Print what some calls took, and whether the target was reached."""
    wall_s, alone_s = (statistics.median(each) for each in ([c.wall_s for c in costs], [c.alone_s for c in costs]))
    verdict = "reached" if wall_s <= target_s else "MISSED"
    if wall_s > max(target_s, _BUSY * alone_s):
        verdict = f"CANNOT TELL (others were at work: load average {os.getloadavg()[0]:.1f})"
    print(
        f"{name}: {_spread([c.wall_s for c in costs])} s of the clock; CPU {_spread([c.own_s for c in costs])} s, its "
        f"helper's {_spread([c.helpers_s for c in costs])} s; {max(c.peak_mib for c in costs):.0f} MiB at most; "
        f"target {target_s:.0f} s: {verdict}"
    )
    return verdict == "reached"


def by_turns(name: str, words: Sequence[str], other: Path, rounds: int, ends: Collection[int] = (0,)) -> None:
    """Print the ratio of a verb's CPU time to that of another version (its ``src``), in so many pairs."""
    cost(words, ends), cost(words, ends, other)  # each has compiled what it imports
    pairs = []
    for number in range(rounds):
        order = (None, other) if number % 2 else (other, None)
        taken = {source: cost(words, ends, source).cpu_s for source in order}
        pairs.append((taken[None], taken[other]))
    ratio = paired(pairs)
    low, high = ratio["quartiles"]
    print(
        f"{name}: {ratio['median']:.2f} ({low:.2f} to {high:.2f}) of the CPU time that {other} takes, by turns "
        f"({ratio['ours']:.2f} and {ratio['theirs']:.2f} s; {rounds} pairs; load average {os.getloadavg()[0]:.1f})"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How often, and against what."""
    parser.add_argument("--repeat", type=int, default=3, help="how often each verb is timed")
    parser.add_argument("--against", type=Path, metavar="SRC", help="the src of another version, to compare with")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs of --against")


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"
