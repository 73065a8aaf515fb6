"""The memory probes with the real agent on this machine; sizes that are refused, before and by the agent."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from network_place import network_place, own_checks
from virtoll.binaries import binary
from virtoll.probes import native
from virtoll.probes.base import Place, Probe, ProbeError
from virtoll.probes.first_touch import FirstTouch, FirstTouchSettings
from virtoll.probes.memory import Memory, MemorySettings, size_problems
from virtoll.probes.memory_latency import MemoryLatency, MemoryLatencySettings
from virtoll.probes.stream import Stream, StreamSettings
from virtoll.study.limits import Limits

BRIEF: dict[str, Any] = {"windows": 2, "time_ns": 2_000_000}
MIB = 1024**2
KINDS_OF_SWEEP: list[dict[str, Any]] = [
    {"unit": "float", "threads": 1},
    {"unit": "integer", "threads": 2},
    {"unit": "vector"},
]
KERNELS: list[dict[str, Any]] = [
    {"kernel": "triad"},
    {"kernel": "add", "threads": 3},
    {"kernel": "scale", "threads": 2},
    {"kernel": "copy", "threads": 1},
]
SMALL = Limits(memory_bytes=100 * MIB)
PROBES: list[Probe] = [
    *(
        Memory(MemorySettings(**BRIEF, **kind, block_bytes=64 * 1024, operation=operation))
        for operation in ("read", "write")
        for kind in KINDS_OF_SWEEP
    ),
    Memory(MemorySettings(**BRIEF, block_bytes=64 * 1024, unit="vector", isa="sse2")),
    *(
        Stream(StreamSettings(**BRIEF, **kind, array_bytes=MIB, stores=stores))
        for kind in KERNELS
        for stores in ("plain", "non-temporal")
    ),
    MemoryLatency(MemoryLatencySettings(**BRIEF, block_bytes=64 * 1024)),
    FirstTouch(FirstTouchSettings(**BRIEF, block_bytes=MIB)),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(native, "AGENT", str(binary("virtoll-agent")))
    with network_place(tmp_path, monkeypatch) as place:
        yield place


def test_every_probe_measures_what_it_says_and_passes_its_own_checks(place: Place) -> None:
    for probe in PROBES:
        result = probe.run(place)
        assert len(result.windows) == 2, probe.settings
        for window in result.windows:
            assert set(window.values) == set(probe.quantities)
            assert window.values[probe.headline] > 0
            assert window.duration_ns > 0
            assert window.work > 0
        assert len(own_checks(result)) >= 2, probe.settings
        assert all(check.passed for check in own_checks(result)), (probe.settings, result.checks)
        assert result.facts["huge_page_bytes"] == 0


def test_what_ran_is_told(place: Place) -> None:
    result = Memory(MemorySettings(**BRIEF, block_bytes=4096, unit="vector", isa="sse2", threads=1)).run(place)
    assert result.facts["instructions"] == "sse2"
    result = Stream(StreamSettings(**BRIEF, array_bytes=MIB)).run(place)
    assert result.facts["last_level_cache_bytes"] is None or any("last-level cache" in note for note in result.notes)


@pytest.mark.parametrize(
    "probe",
    [
        Stream(StreamSettings(**BRIEF, array_bytes=4 * MIB, pages="huge")),
        FirstTouch(FirstTouchSettings(**BRIEF, block_bytes=4 * MIB, pages="huge")),
    ],
    ids=lambda probe: probe.name,
)
def test_huge_pages_are_there_or_the_run_says_so(probe: Probe, place: Place) -> None:
    """Where a kernel has none, or none to give, no figure passes for one with huge pages."""
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        with pytest.raises(ProbeError) as caught:
            probe.run(place)
        assert caught.value.kind == "huge-pages"
        return
    result = probe.run(place)
    (check,) = (check for check in result.checks if check.name == "page size")
    assert check.passed == (result.facts["huge_page_bytes"] == result.facts["mapped_bytes"])


def test_the_agent_refuses_what_does_not_fit_and_names_the_largest(place: Place) -> None:
    """Whoever runs a probe by hand has no [limits] before it."""
    for probe in (
        Memory(MemorySettings(**BRIEF, block_bytes=2**50, threads=2)),
        Stream(StreamSettings(**BRIEF, array_bytes=2**50)),
        MemoryLatency(MemoryLatencySettings(**BRIEF, block_bytes=2**50)),
        FirstTouch(FirstTouchSettings(**BRIEF, block_bytes=2**50)),
    ):
        with pytest.raises(ProbeError, match=r"the largest --\w+-bytes that fits is \d+") as caught:
            probe.run(place)
        assert caught.value.kind == "memory"


@pytest.mark.parametrize(
    ("probe", "largest_bytes"),
    [
        (Memory(MemorySettings(block_bytes=64 * MIB, threads=2)), 40 * MIB),
        (Stream(StreamSettings(array_bytes=64 * MIB)), 80 * MIB // 3 // 4096 * 4096),
        (MemoryLatency(MemoryLatencySettings(block_bytes=128 * MIB)), 80 * MIB),
        (FirstTouch(FirstTouchSettings(block_bytes=128 * MIB, pages="huge")), 80 * MIB),
    ],
    ids=lambda value: value.name if isinstance(value, Probe) else "",
)
def test_a_size_beyond_the_limits_is_refused_with_the_largest_that_fits(probe: Probe, largest_bytes: int) -> None:
    (problem,) = probe.check(SMALL)
    assert problem.remedy == f"choose at most {largest_bytes} B"
    assert probe.check(Limits(memory_bytes=1024 * MIB)) == []


@pytest.mark.parametrize(
    "probe",
    [
        Memory(MemorySettings(block_bytes=1500)),
        Stream(StreamSettings(array_bytes=5000)),
        Stream(StreamSettings(array_bytes=4096, threads=2)),
        MemoryLatency(MemoryLatencySettings(block_bytes=200)),
        FirstTouch(FirstTouchSettings(block_bytes=4096, pages="huge")),
    ],
    ids=lambda probe: f"{probe.name} {probe.settings}"[:60],
)
def test_a_size_that_cannot_be_is_refused_by_both_sides(probe: Probe) -> None:
    (problem,) = probe.check(Limits())
    assert problem.remedy.startswith("choose ")
    agent = str(binary("virtoll-agent"))
    done = subprocess.run([agent, *native.arguments(probe.name, probe.settings)], capture_output=True, check=False)
    assert done.returncode == 2, done
    assert b"_bytes" in done.stderr.replace(b"-", b"_")


def test_every_default_fits_the_default_limits() -> None:
    for kind in (Memory, Stream, MemoryLatency, FirstTouch):
        assert kind().check(Limits()) == []


@given(size=st.integers(1, 2**40), count=st.integers(1, 1000), memory=st.integers(2**20, 2**40))
def test_the_largest_that_is_named_fits(size: int, count: int, memory: int) -> None:
    limits = Limits(memory_bytes=memory)
    for problem in size_problems("memory", ("block", size), count, 1024, limits):
        words = problem.remedy.split()
        if words[:3] == ["choose", "at", "most"]:
            assert size_problems("memory", ("block", int(words[3])), count, 1024, limits) == []
            assert size_problems("memory", ("block", int(words[3]) + 1024), count, 1024, limits) != []


def test_the_probe_prints_for_a_person_too() -> None:
    argv = [str(binary("virtoll-agent")), "probe", "stream", "--array-bytes", "65536", "--time-ns", "1000000"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "MB/s" in said
    assert "FAILED" not in said
    assert json.loads(subprocess.run([*argv, "--json"], capture_output=True, check=True).stdout)["probe"] == "stream"
