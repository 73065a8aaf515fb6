"""sysbench's memory test in the place of the memory probe: a block for each thread, read or written word by word.

It moves 64-bit integers in a loop of one access, so it stands for the integer unit alone, with small pages; and calls
itself anew for every block, so for blocks of a megabyte or more. Its loop of stores reaches about half of what a core
can store to its caches: writing is compared only in blocks that the memory slows down more than the loop does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from virtoll.errors import TrialError
from virtoll.instruments.base import Instrument, ran_inside
from virtoll.loads import outside
from virtoll.probes.base import Place, ProbeResult
from virtoll.probes.memory import MIB, MemorySettings
from virtoll.record.model import Window

_LEAST_BYTES = {"read": MIB, "write": 64 * MIB}
_TOTAL = "1000T"  # more than any window moves: the time ends it


@dataclass(frozen=True)
class Reading:
    """One run."""

    blocks: int
    mib_per_s: float
    duration_ns: int


class Sysbench(Instrument):
    """`sysbench memory`, local scope, sequential."""

    name: ClassVar[str] = "sysbench"
    summary: ClassVar[str] = "a second opinion on memory (integers, small pages): by sysbench"
    packages: ClassVar[tuple[str, ...]] = ("sysbench",)
    when_it_gives_up: ClassVar[str] = "choose a smaller block, or leave it out of the cross-check"

    def stands_for(self, probe: str, settings: Any) -> bool:
        """For integers in small pages and in blocks that are large enough; its blocks are powers of two."""
        if probe != "memory" or (settings.unit, settings.pages) != ("integer", "small"):
            return False
        size: int = settings.block_bytes
        return size >= _LEAST_BYTES[settings.operation] and size & (size - 1) == 0

    def run(self, place: Place, probe: str, settings: MemorySettings) -> ProbeResult:
        """One run for each window; sysbench counts in whole seconds."""
        agent = place.instance.agent
        seconds = outside.whole_seconds(settings.time_ns)
        threads = settings.threads or place.instance.limits.vcpus
        version = agent.run(["sysbench", "--version"]).stdout.decode(errors="replace")
        windows = []
        for _ in range(settings.windows):
            said, end_ns = ran_inside(self, place, probe, command(settings, threads, seconds), seconds)
            windows.append(window(parse(said), end_ns))
        return ProbeResult(
            instrument=named(version),
            windows=windows,
            facts={"threads": threads},
            notes=["pages as the system gives them by default: huge ones where transparent_hugepage is at always"],
        )


def command(settings: MemorySettings, threads: int, seconds: int) -> list[str]:
    """The command line of one window."""
    return [
        "sysbench",
        "memory",
        f"--threads={threads}",
        f"--time={seconds}",
        f"--memory-block-size={settings.block_bytes}",
        f"--memory-total-size={_TOTAL}",
        "--memory-scope=local",
        f"--memory-oper={settings.operation}",
        "--memory-access-mode=seq",
        "run",
    ]


def window(reading: Reading, end_ns: int) -> Window:
    """The window of a run that ended then; MiB/s become MB/s."""
    values = {"bandwidth_mb_per_s": reading.mib_per_s * MIB / 1e6}
    return Window(
        start_ns=end_ns - reading.duration_ns, duration_ns=reading.duration_ns, work=reading.blocks, values=values
    )


def named(text: str) -> str:
    """The name and version in ``sysbench --version``."""
    version = re.match(r"sysbench ([\d.]+)", text)
    if version is None:
        raise _unreadable(text)
    return f"sysbench {version[1]}"


def parse(text: str) -> Reading:
    """Read its report: blocks, MiB/s, and how long it took."""
    blocks = re.search(r"^Total operations: (\d+) ", text, re.MULTILINE)
    rate = re.search(r"^[\d.]+ MiB transferred \(([\d.]+) MiB/sec\)$", text, re.MULTILINE)
    total = re.search(r"^ +total time: +([\d.]+)s$", text, re.MULTILINE)
    if blocks is None or rate is None or total is None:
        raise _unreadable(text)
    with outside.reading("sysbench", text):
        outside.expect_finite({"rate": float(rate[1])})
        return Reading(int(blocks[1]), float(rate[1]), outside.span_ns(float(total[1])))


def _unreadable(text: str) -> TrialError:
    return TrialError(f"the report of sysbench could not be read:\n{text[:2000]}", where="instruments/sysbench")
