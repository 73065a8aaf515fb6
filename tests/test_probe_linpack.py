"""The LINPACK probe with the real agent on this machine, and sizes that are refused."""

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
from virtoll.probes import linpack, native
from virtoll.probes.base import Place, ProbeError, probes
from virtoll.probes.linpack import Linpack, LinpackSettings
from virtoll.study.limits import Limits

MIB = 1024**2
BRIEF: dict[str, Any] = {"windows": 2, "time_ns": 2_000_000}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(native, "AGENT", str(binary("virtoll-agent")))
    with network_place(tmp_path, monkeypatch) as place:
        yield place


def test_it_is_listed() -> None:
    assert probes()["linpack"] is Linpack


@pytest.mark.parametrize("order", [1, 10, 333])
def test_a_solution_is_timed_and_its_residual_is_small(place: Place, order: int) -> None:
    result = Linpack(LinpackSettings(**BRIEF, order=order, threads=2)).run(place)
    assert len(result.windows) == 2
    for window in result.windows:
        assert set(window.values) == set(Linpack.quantities)
        count = 2 / 3 * order**3 + 3 / 2 * order**2  # HPL's
        assert window.values["gflops"] * 1e9 * window.values["solve_s"] == pytest.approx(count)
        assert window.values["solve_s"] == pytest.approx(window.duration_ns / 1e9 / window.work)
    assert [(check.name, check.passed) for check in own_checks(result)] == [("residual", True)]
    assert result.facts["threads"] == 2
    assert result.facts["mapped_bytes"] <= linpack.needed_bytes(order, 2)


def test_the_instruction_set_can_be_fixed(place: Place) -> None:
    result = Linpack(LinpackSettings(**BRIEF, order=64, isa="sse2")).run(place)
    assert result.facts["isa"] == "sse2"


def test_fixed_work_is_done_to_the_unit() -> None:
    argv = [str(binary("virtoll-agent")), "probe", "linpack", "--order", "300", "--work", "20", "--windows", "1"]
    report = json.loads(subprocess.run([*argv, "--json"], check=True, stdout=subprocess.PIPE).stdout)
    assert [window["work"] for window in report["windows"]] == [20]
    assert report["notes"] == []


def test_a_matrix_that_memory_cannot_hold_is_a_typed_failure() -> None:
    words = native.arguments("linpack", LinpackSettings(**BRIEF, order=20_000))  # 3.2 GB
    argv = ["prlimit", f"--as={1024 * MIB}", str(binary("virtoll-agent")), *words]
    done = subprocess.run(argv, capture_output=True, check=False)
    with pytest.raises(ProbeError, match="largest order that fits is") as raised:
        native.parse("linpack", done.returncode, done.stdout, done.stderr)
    assert raised.value.kind == "memory"


def test_an_order_that_does_not_fit_is_refused_with_the_largest_that_does() -> None:
    limits = Limits(memory_bytes=512 * MIB)
    assert Linpack(LinpackSettings(order=5000)).check(limits) == []
    [problem] = Linpack(LinpackSettings(order=20_000)).check(limits)
    largest = int(problem.remedy.rsplit(" ", 1)[1])
    assert Linpack(LinpackSettings(order=largest)).check(limits) == []
    assert Linpack(LinpackSettings(order=largest + 1)).check(limits)


def test_where_nothing_fits_more_memory_is_the_remedy() -> None:
    [problem] = Linpack(LinpackSettings(order=1)).check(Limits(memory_bytes=8 * MIB))
    assert problem.remedy == "raise [limits] memory"


def test_more_threads_than_processes_are_refused() -> None:
    [problem] = Linpack(LinpackSettings(threads=100)).check(Limits(pids=64))
    assert "leaves 48" in problem.what


@given(order=st.integers(1, linpack.MOST_ORDER - 1), threads=st.integers(1, 1024))
def test_a_larger_order_never_needs_less(order: int, threads: int) -> None:
    assert 8 * order**2 < linpack.needed_bytes(order, threads) < linpack.needed_bytes(order + 1, threads)
