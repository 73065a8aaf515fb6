"""What an instance used in a window that began amid its load: by the generator's looks, and nothing of its lead-in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from loads_server import BODY, MisbehavingServer
from virtoll.analysis.load import Run, Series
from virtoll.analysis.metrics import TrialMetrics
from virtoll.analysis.usage import note_usage
from virtoll.hosts.cgroup import Cgroup, Hierarchies
from virtoll.lab.base import Lab
from virtoll.lab.client import Client
from virtoll.loads.http import HttpLoad, HttpSettings
from virtoll.loads.several import together
from virtoll.platforms.base import Accounting, Instance
from virtoll.record.model import Arm, Booked, Measured, PlannedTrial, TrialRecord, Window
from virtoll.trial import deployer as deployers
from virtoll.trial.deployer import Deployer

MS = 10**6
S = 10**9
MIB = 2**20


@pytest.fixture
def server() -> Iterator[MisbehavingServer]:
    with MisbehavingServer() as server:
        yield server


def booked(start_ns: int, *, cpu_ms: float = 50, late_ms: float = 0, **more: int) -> Booked:
    """Of a window of 100 ms that begins at ``start_ns``; it looks ``late_ms`` late at its end."""
    return Booked(
        from_ns=start_ns,
        to_ns=start_ns + 100 * MS + round(late_ms * MS),
        cpu_ns={"instance": round(cpu_ms * MS), **more},
    )


def window(start_ns: int, seen: Booked | None, *, work: float = 100, lead_ms: int = 100) -> Window:
    """Which served 100 units more in its lead-in, and none after it."""
    end_ns = start_ns + 100 * MS
    return Window(
        start_ns=start_ns,
        duration_ns=100 * MS,
        work=work,
        asked_ns=start_ns - lead_ms * MS if lead_ms else None,
        served=work + 100,
        until_ns=end_ns,
        booked=seen,
    )


def noted(*windows: Window, memory: Mapping[tuple[str, str], Series] | None = None) -> TrialMetrics:
    """A trial whose instance, by the monitor's looks, used 300 ms from before each lead-in to the window's end."""
    looks = sorted({t_ns for each in windows for t_ns in (each.start_ns - 150 * MS, each.end_ns + MS)})
    values = np.cumsum([0, *[300 * MS if n % 2 == 0 else 0 for n in range(len(looks) - 1)]])
    series = {("instance", "cpu.usage_ns"): Series(np.array(looks, dtype=np.int64), values.astype(np.int64))}
    series |= memory or {}
    run = SimpleNamespace(samples=lambda *_: series, given=lambda _condition: {}, neighbours=None)
    measured = Measured(name="http", instrument="made up 1", unit="request", loop="closed", windows=list(windows))
    arm = Arm(label="lxc+routed", platform="lxc", network="routed")
    planned = PlannedTrial(id="b01-t0001", block=1, position=1, arm=arm, condition={})
    record = TrialRecord(trial=planned, status="valid", started_at="2026-11-27T08:00:00Z", measured=measured)
    trial = TrialMetrics(record)
    note_usage(trial, measured, cast(Run, run), memory=memory is not None, inside=False)
    return trial


def test_a_requests_cpu_time_holds_nothing_of_what_was_asked_for_before_the_window() -> None:
    trial = noted(*(window(n * S, booked(n * S)) for n in (1, 2, 3)))
    assert trial.values["cpu_s_per_1000"] == pytest.approx(0.5)
    used_s, worked = trial.parts["cpu_s_per_1000"]
    assert list(used_s) == pytest.approx([0.05] * 3)
    assert list(worked) == [100.0] * 3
    untold = noted(*(window(n * S, None) for n in (1, 2, 3)))
    assert untold.values["cpu_s_per_1000"] == pytest.approx(1.5), "with its lead-in, where nobody looked"


def test_of_a_window_that_began_with_nothing_under_way_all_is_known_by_the_monitor() -> None:
    trial = noted(window(S, booked(S), lead_ms=0))
    assert trial.values["cpu_s_per_1000"] == pytest.approx(1.5)


def test_what_is_booked_is_taken_for_the_windows_length() -> None:
    """Of a service that is under load until the look; one that idles before it has used nothing more."""
    until_ns = S + 115 * MS
    loaded = window(S, booked(S, cpu_ms=55, late_ms=10)).model_copy(update={"until_ns": until_ns})
    assert noted(loaded).values["cpu_s_per_1000"] == pytest.approx(0.5)
    idle = window(S, booked(S, cpu_ms=50, late_ms=10))
    assert noted(idle).values["cpu_s_per_1000"] == pytest.approx(0.5)
    begun = booked(S).model_copy(update={"from_ns": S + 5 * MS, "cpu_ns": {"instance": 95 * MS // 2}})
    assert noted(window(S, begun)).values["cpu_s_per_1000"] == pytest.approx(0.5)


def test_looks_that_are_late_by_a_tenth_of_all_windows_tell_nothing() -> None:
    """One that is late by more does no harm among many."""
    late = booked(S).model_copy(update={"from_ns": S + 12 * MS, "cpu_ns": {"instance": 44 * MS}})
    others = [window(n * S, booked(n * S)) for n in range(2, 10)]
    assert noted(window(S, late), *others).values["cpu_s_per_1000"] == pytest.approx(0.5)
    told = noted(window(S, late)).missing["cpu_s_per_1000"]
    assert told == "the generator looked at it 12 ms late in a window of 100 ms"
    early = booked(S).model_copy(update={"to_ns": S + 88 * MS})
    assert "12 ms late" in noted(window(S, early)).missing["cpu_s_per_1000"]
    nothing = Booked(from_ns=S, to_ns=S, cpu_ns={"instance": 0})
    at_once = window(S, nothing).model_copy(update={"duration_ns": 0, "until_ns": S})
    assert "half of a window was over" in noted(at_once).missing["cpu_s_per_1000"]
    over = booked(S).model_copy(update={"from_ns": S + 51 * MS})
    assert "half of a window was over" in noted(window(S, over), *others).missing["cpu_s_per_1000"]


def test_what_could_not_be_read_once_is_missing_and_not_told_by_another_measure() -> None:
    gone = Booked(from_ns=2 * S, to_ns=2 * S + 100 * MS, cpu_ns={})
    for other in (window(2 * S, gone), window(2 * S, None)):
        trial = noted(window(S, booked(S)), other)
        assert trial.missing["cpu_s_per_1000"] == "the generator could not read what was booked of it"


def test_helpers_are_a_share_of_the_same_looks() -> None:
    trial = noted(*(window(n * S, booked(n * S, helpers=5 * MS)) for n in (1, 2)))
    assert trial.values["helpers_percent"] == pytest.approx(10)
    assert "cannot be told" in noted(window(S, booked(S))).missing["helpers_percent"]
    gone = Booked(from_ns=S, to_ns=S + 100 * MS, cpu_ns={})
    assert noted(window(S, gone)).missing["helpers_percent"] == "the instance's CPU time is not known"


def test_an_arm_that_served_nothing_is_censored_as_before() -> None:
    nothing = window(S, booked(S), work=0).model_copy(update={"served": 0})
    trial = noted(nothing)
    assert trial.missing["cpu_s_per_1000"] == "no request was served in the window"


def held(**mib: list[int]) -> TrialMetrics:
    """A trial whose instance held so much, by the last word of the counter, at looks within the window."""
    looks = np.array([S + 10 * MS, S + 50 * MS, S + 90 * MS], dtype=np.int64)
    series = {
        ("instance", f"memory.{name}_bytes"): Series(looks, np.array(values, dtype=np.int64) * MIB)
        for name, values in mib.items()
    }
    return noted(window(S, booked(S)), memory=series)


def test_resident_memory_is_told_of_what_is_shared_too() -> None:
    trial = held(usage=[70, 90, 80], resident=[60, 65, 62])
    assert (trial.values["memory_peak_mib"], trial.values["rss_peak_mib"]) == (90, 65)


def test_a_run_that_looked_at_no_shared_memory_tells_no_resident_peak() -> None:
    """Such as were made before: most of a guest's memory was missing in it."""
    trial = held(usage=[70, 90, 80], rss=[1, 1, 1])
    assert "rss_peak_mib" not in trial.values
    assert "runs from before 2026-11-27 do not tell what is shared" in trial.missing["rss_peak_mib"]
    assert trial.values["memory_peak_mib"] == 90
    assert held().missing["rss_peak_mib"] == "no sample of it lies in the window"


def test_the_generator_looks_right_after_both_ends(client: Client, server: MisbehavingServer, tmp_path: Path) -> None:
    book = tmp_path / "cpuacct.usage"
    book.write_text("1000\n")
    asked: dict[str, Any] = {"connections": 2, "time_limit_ns": S // 10, "warm_up_ns": S // 20, "log_requests": False}
    load = HttpLoad(HttpSettings(object_bytes=len(BODY), **asked))
    for path, told in ((book, {"instance": 0}), (tmp_path / "gone", {})):
        with load.session(replace(client, books={"instance": path}), server.offer) as session:
            session.warm_up()
            measured = session.measure(duration_ns=S // 10).window
        assert measured.asked_ns is not None
        assert measured.booked is not None
        assert measured.booked.cpu_ns == told
        assert measured.start_ns <= measured.booked.from_ns <= measured.booked.to_ns
        assert measured.end_ns <= measured.booked.to_ns
    books = {"instance": book}
    for told_where, settings in (({}, load.settings), (books, replace(load.settings, requests=20))):
        with HttpLoad(settings).session(replace(client, books=told_where), server.offer) as session:
            session.warm_up()
            assert session.measure().window.booked is None


@pytest.mark.parametrize(("version", "file"), [(1, "cpu/vt/1/i/cpuacct.usage"), (2, "vt/1/i/cpu.stat")])
def test_whoever_asks_of_an_instance_is_told_where_its_cpu_time_is_booked(
    version: Any, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = {1: {"cpu": tmp_path / "cpu", "cpuacct": tmp_path / "cpu"}, 2: {"cpu": tmp_path}}[version]
    machine = Hierarchies(version, mounts)
    monkeypatch.setattr(deployers, "hierarchies", lambda: machine)
    helpers = file.replace("/i/", "/i/helpers/")
    book = tmp_path / file
    book.parent.mkdir(parents=True)
    book.write_text({1: "7000\n", 2: "usage_usec 7\nuser_usec 4\n"}[version])
    assert Cgroup("vt/1/i", machine).cpu_ns() == 7000
    places = SimpleNamespace(
        directory=tmp_path, host=None, far=None, generator=SimpleNamespace(cpus=frozenset({1}), netns="g")
    )
    monkeypatch.setattr(deployers, "generator_confinement", lambda *_args, **_options: None)
    deployer = Deployer(cast(Lab, places), cast(Any, None), cast(Any, None))

    def books(accounting: Accounting) -> dict[str, Path]:
        instance = SimpleNamespace(accounting=accounting)
        return dict(deployer.client("t1", of=cast(Instance, instance)).books)

    assert books(Accounting("vt/1/i", tmp_path)) == {"instance": tmp_path / file}
    parts = {"payload": "vt/1/i/p", "helpers": "vt/1/i/helpers"}
    told = books(Accounting("vt/1/i", tmp_path, parts))
    assert told == {"instance": tmp_path / file, "helpers": tmp_path / helpers}
    assert books(Accounting("vt/1/i", tmp_path, parts, meter=cast(Any, object()))) == {}, "a meter's is in no group"
    assert deployer.client("t1").books == {}, "of nobody"
    monkeypatch.setattr(deployers, "hierarchies", lambda: Hierarchies(1, {"cpu": tmp_path}))
    assert books(Accounting("vt/1/i", tmp_path)) == {}, "the kernel does not tell"


def test_of_several_generators_the_first_looks(client: Client, server: MisbehavingServer) -> None:
    load = HttpLoad(HttpSettings(object_bytes=len(BODY), connections=2, log_requests=False))
    with load.session(client, server.offer) as session:
        measurement = session.measure(duration_ns=S // 20)
    seen = booked(measurement.window.start_ns)
    first = replace(measurement, window=measurement.window.model_copy(update={"booked": seen}))
    both = together(load, [first, measurement], [frozenset({0}), frozenset({1})], None)
    assert both.window.booked == seen
