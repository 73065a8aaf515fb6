"""UnixBench's index: each test as ten times its ratio to a machine of 1995, and the geometric mean of twelve of them.

Source: UnixBench 5 (kdlucas/byte-unixbench), USAGE, "The BYTE Index", and its pgms/index.base: "George", a SPARCstation
20-61 with 128 MB RAM, a SPARC Storage Array and Solaris 2.3, whose ratings are 10.0. The index is shown only beside its
parts: a mean of twelve hides which of them is slow. It compares arms of one study; docs/PROBES.md says why it is not
comparable with what UnixBench prints on the same machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class IndexTest:
    """One of the twelve: whose quantity it is, with which settings, and what George reached in the quantity's unit."""

    title: str  # UnixBench's own
    metric: str  # PROBE.KEY
    baseline: float
    settings: Mapping[str, Any]  # by the probe's field names; what is not named is free

    def index(self, value: float) -> float:
        """Ten times ``value`` over George's. ValueError: it is no positive number."""
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{self.title}: {value} is no rate")
        return 10.0 * value / self.baseline


def _file(buffer_bytes: int) -> dict[str, Any]:
    return {"operation": "copy", "buffer_bytes": buffer_bytes}


TESTS: dict[str, IndexTest] = {
    "dhrystone": IndexTest("Dhrystone 2 using register variables", "unix-dhrystone.dhrystones_per_s", 116700.0, {}),
    "whetstone": IndexTest("Double-Precision Whetstone", "unix-whetstone.mwips", 55.0, {}),
    "execl": IndexTest("Execl Throughput", "unix-execl.execs_per_s", 43.0, {}),
    "copy1024": IndexTest("File Copy 1024 bufsize 2000 maxblocks", "unix-file.kib_per_s", 3960.0, _file(1024)),
    "copy256": IndexTest("File Copy 256 bufsize 500 maxblocks", "unix-file.kib_per_s", 1655.0, _file(256)),
    "copy4096": IndexTest("File Copy 4096 bufsize 8000 maxblocks", "unix-file.kib_per_s", 5800.0, _file(4096)),
    "pipe": IndexTest("Pipe Throughput", "unix-pipe.loops_per_s", 12440.0, {}),
    "context": IndexTest("Pipe-based Context Switching", "unix-context.loops_per_s", 4000.0, {}),
    "spawn": IndexTest("Process Creation", "unix-spawn.processes_per_s", 126.0, {}),
    "shell1": IndexTest("Shell Scripts (1 concurrent)", "unix-shell.loops_per_min", 42.4, {"scripts": 1}),
    "shell8": IndexTest("Shell Scripts (8 concurrent)", "unix-shell.loops_per_min", 6.0, {"scripts": 8}),
    "syscall": IndexTest("System Call Overhead", "unix-syscall.loops_per_s", 15000.0, {}),
}


@dataclass(frozen=True)
class Index:
    """``total`` is the geometric mean of ``by_test``; it is partial when tests are ``missing`` (they were not run)."""

    total: float
    by_test: Mapping[str, float]
    missing: tuple[str, ...]


def test_of(metric: str, settings: Mapping[str, Any]) -> str | None:
    """The test a metric is with these settings of its probe (by field name); None: it is not part of the index."""
    for name, test in TESTS.items():
        if test.metric == metric and all(settings.get(key) == value for key, value in test.settings.items()):
            return name
    return None


def index(values: Mapping[str, float]) -> Index:
    """The index of rates by test (one deployment's, all of the same number of copies).

    ValueError: a test is not one of the twelve, its rate is not positive, or there is none at all.
    """
    if unknown := sorted(set(values) - set(TESTS)):
        raise ValueError(f"no part of UnixBench's index: {', '.join(unknown)}; there are {', '.join(TESTS)}")
    if not values:
        raise ValueError("an index of no tests")
    by_test = {name: test.index(values[name]) for name, test in TESTS.items() if name in values}
    total = math.exp(math.fsum(math.log(part) for part in by_test.values()) / len(by_test))
    return Index(total, by_test, tuple(name for name in TESTS if name not in values))
