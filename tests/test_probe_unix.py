"""UnixBench's tests, the timer and the clock with the real agent on this machine; sizes that are refused; the index."""

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
from virtoll.analysis import unixbench
from virtoll.binaries import binary
from virtoll.errors import AgentError
from virtoll.probes import native
from virtoll.probes.base import Place, Probe, ProbeError, probes
from virtoll.probes.clock import Clock
from virtoll.probes.timer import Timer, TimerSettings
from virtoll.probes.unix import (
    Arithmetic,
    Context,
    Copied,
    Dhrystone,
    Execl,
    FileCopy,
    FileSettings,
    Pipe,
    Shell,
    ShellSettings,
    Spawn,
    Syscall,
    UnixTest,
    Whetstone,
)
from virtoll.study.limits import Limits

BRIEF: dict[str, Any] = {"windows": 2, "time_ns": 2_000_000}
KINDS: list[type[UnixTest]] = [Arithmetic, Context, Dhrystone, Execl, Pipe, Spawn, Syscall, Whetstone]
SMALL = Limits(pids=64, memory_bytes=64 * 1024**2, disk_bytes=32 * 1024**2)


def all_probes(directory: Path) -> list[Probe]:
    """Every probe with a little work; of some, two copies."""
    where = {**BRIEF, "directory": str(directory)}
    files: list[Probe] = [
        FileCopy(FileSettings(**where, operation="copy", buffer_bytes=256, copies=2)),
        FileCopy(FileSettings(**where, operation="read", buffer_bytes=1024)),
        FileCopy(FileSettings(**where, operation="write", buffer_bytes=4096)),
    ]
    shells: list[Probe] = [Shell(ShellSettings(**where)), Shell(ShellSettings(**where, scripts=8))]
    timed: list[Probe] = [Timer(TimerSettings(**BRIEF, interval_ns=100_000)), Clock(Clock.Settings(**BRIEF))]
    tests = [kind(Copied(**BRIEF, copies=1 + number % 2)) for number, kind in enumerate(KINDS)]
    return [*tests, *files, *shells, *timed]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(native, "AGENT", str(binary("virtoll-agent")))
    with network_place(tmp_path, monkeypatch) as place:
        yield place


def test_every_probe_measures_what_it_says_and_passes_its_own_check(place: Place, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for probe in all_probes(work):
        result = probe.run(place)
        assert len(result.windows) == 2, probe.name
        for window in result.windows:
            assert set(probe.quantities) - {"steal_percent"} <= set(window.values) <= set(probe.quantities)
            assert window.values[probe.headline] > 0
            assert window.duration_ns > 0
        # Whether copies overlap in so short windows is the machine's affair; that it is asked is ours.
        overlaps = [check for check in result.checks if check.name == "all copies ran at once"]
        assert len(overlaps) == (getattr(probe.settings, "copies", 1) > 1), probe.name
        checks = [check for check in own_checks(result) if check not in overlaps]
        assert checks, probe.name
        assert all(check.passed for check in checks), result.checks
    assert not list(work.iterdir())


def test_a_run_is_not_given_up_before_it_can_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 minutes it was, after an hour, in each arm anew."""
    limits_s = []

    def noted(_: Any, __: list[str], *, timeout_s: float) -> Any:
        limits_s.append(timeout_s)
        raise AgentError("noted")

    monkeypatch.setattr(type(place.instance.agent), "run", noted)
    with pytest.raises(AgentError, match="noted"):
        Timer(TimerSettings(windows=4, time_ns=1200 * 10**9)).run(place)
    assert limits_s == [pytest.approx(3600 + 5400, rel=0.01)]


def test_lateness_has_a_histogram_of_every_wake(place: Place) -> None:
    result = Timer(TimerSettings(**BRIEF, interval_ns=100_000)).run(place)
    assert result.histogram is not None
    assert sum(count for _, _, count in result.histogram) == sum(window.work for window in result.windows)
    assert result.facts["policy"] == "SCHED_OTHER"


def test_a_directory_that_is_missing_is_a_failure_of_its_kind(place: Place) -> None:
    for probe in (FileCopy(FileSettings(directory="/nowhere")), Shell(ShellSettings(directory="/nowhere"))):
        with pytest.raises(ProbeError, match="No such file") as raised:
            probe.run(place)
        assert raised.value.kind == "system"


@pytest.mark.parametrize("name", [name for name in probes() if name.startswith("unix-")])
def test_an_exact_amount_of_work_is_done(name: str, tmp_path: Path) -> None:
    argv = [str(binary("virtoll-agent")), "probe", name, "--work", "3000", "--windows", "1", "--json"]
    if name in ("unix-shell", "unix-whetstone"):
        argv[argv.index("3000")] = "3"
    if name in ("unix-shell", "unix-file"):
        argv += ["--directory", str(tmp_path)]
    report = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)
    (window,) = report["windows"]
    (per_unit,) = [value * window["duration_ns"] / 1e9 / window["work"] for value in window["values"].values()]
    amounts = {"unix-shell": 60, "unix-whetstone": 10}
    assert per_unit == pytest.approx(amounts.get(name, 1))  # of a file too: a buffer is 1 KiB
    enlarged = [note for note in report["notes"] if "enlarged" in note]
    assert bool(enlarged) == (window["work"] != int(argv[4]))


def test_more_copies_than_processes_are_refused_with_the_most_that_fit() -> None:
    assert not Context(Copied(copies=24)).check(SMALL)
    (problem,) = Context(Copied(copies=25)).check(SMALL)
    assert "at most 24 copies" in problem.remedy
    assert not Shell(ShellSettings(scripts=8)).check(SMALL)
    (problem,) = Shell(ShellSettings(scripts=12)).check(SMALL)
    assert "pids" in problem.remedy


def test_files_that_do_not_fit_are_refused_with_the_largest_buffer() -> None:
    assert not FileCopy(FileSettings(buffer_bytes=4096)).check(SMALL)
    disk, memory = FileCopy(FileSettings(buffer_bytes=64 * 1024)).check(SMALL)
    assert "[limits] disk" in disk.what
    assert "[limits] memory" in memory.what
    assert disk.remedy == "choose a buffer of at most 8388 B"
    assert not FileCopy(FileSettings(buffer_bytes=8388)).check(SMALL)


def test_where_no_buffer_is_small_enough_fewer_copies_are_the_advice() -> None:
    """One of 2 B at most was, which is refused as well."""
    (memory,) = FileCopy(FileSettings(copies=400, buffer_bytes=512)).check(Limits(memory_bytes=8 * 1024**2))
    assert memory.remedy == "run fewer copies, or raise [limits] memory"


def test_george_has_an_index_of_ten() -> None:
    george = {name: test.baseline for name, test in unixbench.TESTS.items()}
    found = unixbench.index(george)
    assert found.total == pytest.approx(10)
    assert set(found.by_test.values()) == {10.0}
    assert not found.missing


@given(st.dictionaries(st.sampled_from(list(unixbench.TESTS)), st.floats(1e-3, 1e9), min_size=1), st.floats(0.1, 10))
def test_the_index_grows_with_the_machine_and_lies_among_its_parts(values: dict[str, float], factor: float) -> None:
    found = unixbench.index(values)
    parts = found.by_test.values()
    assert min(parts) * (1 - 1e-9) <= found.total <= max(parts) * (1 + 1e-9)
    assert set(found.missing) == set(unixbench.TESTS) - set(values)
    faster = unixbench.index({name: value * factor for name, value in values.items()})
    assert faster.total == pytest.approx(found.total * factor)


def test_an_index_of_nothing_or_of_no_rate_is_refused() -> None:
    for values in ({}, {"dhrystone": 0.0}, {"pipe": float("nan")}, {"arithmetic": 1.0}):
        with pytest.raises(ValueError, match=r"index|no rate"):
            unixbench.index(values)


def test_every_part_of_the_index_is_a_probes_quantity_with_settings_it_knows() -> None:
    for name, test in unixbench.TESTS.items():
        probe, _, key = test.metric.partition(".")
        settings = probes()[probe].Settings(**test.settings)
        assert key in probes()[probe].quantities
        assert unixbench.test_of(test.metric, vars(settings)) == name
    assert unixbench.test_of("unix-file.kib_per_s", {"operation": "read", "buffer_bytes": 1024}) is None
    assert unixbench.test_of("unix-arithmetic.loops_per_s", {}) is None
