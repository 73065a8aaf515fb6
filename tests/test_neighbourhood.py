"""A neighbour beside the victim: let loose at its time, ended for certain, and what it did is in the notes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from virtoll.agent import StreamTimeoutError
from virtoll.aggressors.result import AggressorResult
from virtoll.errors import AgentError, HostError
from virtoll.hosts.cgroup import Hierarchies
from virtoll.record.model import Arm, NeighbourRecord, PlannedTrial
from virtoll.study.limits import Limits
from virtoll.study.model import Neighbour
from virtoll.trial import neighbourhood, watchdog
from virtoll.trial.deployer import Deployer
from virtoll.trial.neighbourhood import beside, may_have_harmed
from virtoll.trial.notes import Notes
from virtoll.trial.watchdog import State, danger, watching

GIB = 1024**3
PATIENCE_S = 600.0
WELL = State(available_bytes=4 * GIB, total_bytes=8 * GIB, tasks=300, most_tasks=32768, disk_free_bytes=10 * GIB)
TRIAL = PlannedTrial(
    id="b01-t0001", block=1, position=1, arm=Arm(label="a", platform="native", network="host"), condition={}
)


class Doubles:
    """A deployer of instances that only note what is asked of them, and an aggressor that does as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.log: list[str] = []
        self.lab = SimpleNamespace(directory=tmp_path)
        self.result = AggressorResult(
            "cpu", "time", counts={"cpu_ns": 5}, series=[(1_050, {"cpu_ns": 2})], start_ns=1_000, end_ns=1_100
        )
        self.refusal: Exception | None = None
        self.loose = threading.Event()
        monkeypatch.setattr(neighbourhood, "make_aggressor", lambda _name: self)
        monkeypatch.setattr(neighbourhood, "end_instance", lambda _instance: self.log.append("killed from outside"))

    name = "cpu"
    counts: tuple[str, ...] = ("cpu_ns", "refused")

    @contextmanager
    def deployed(self, name: str, *_: Any, slot: int) -> Iterator[Any]:
        self.log.append(f"deploy {name} in slot {slot}")
        agent = SimpleNamespace(clock=lambda: SimpleNamespace(offset_ns=400))
        try:
            yield SimpleNamespace(agent=agent)
        finally:
            self.log.append("end")

    def client(self, _name: str) -> None:
        return None

    def start(self, _place: Any, duration_ns: int) -> Any:
        if self.refusal is not None:
            raise self.refusal
        self.log.append(f"loose for {duration_ns}")
        self.loose.set()
        return SimpleNamespace(stop=lambda: self.result)


def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path, lambda _name: None)


def lived(doubles: Doubles, plan: Neighbour, told: Notes, *, wait: bool = True) -> None:
    with beside(cast(Deployer, doubles), TRIAL, Limits(), plan, told) as begin:
        begin(wait=wait)
        if wait:
            assert doubles.loose.wait(PATIENCE_S)


PLAN = Neighbour("cpu", start_ns=1_000_000, duration_ns=10**8)


def test_nobody_is_deployed_where_the_study_names_no_aggressor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    doubles, told = Doubles(monkeypatch, tmp_path), notes(tmp_path)
    lived(doubles, Neighbour(), told, wait=False)
    assert doubles.log == []
    assert told.neighbour is None


def test_what_it_did_is_noted_by_the_hosts_clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    doubles, told = Doubles(monkeypatch, tmp_path), notes(tmp_path)
    lived(doubles, PLAN, told)
    assert doubles.log == [f"deploy b01-t0001-neighbour in slot {neighbourhood.SLOT}", "loose for 100000000", "end"]
    assert told.neighbour == NeighbourRecord(
        aggressor="cpu", settings={}, start_ns=600, end_ns=700, ended="time", counts={"cpu_ns": 5}
    )
    assert told.tables["neighbour"].to_pylist() == [
        {"t_ns": 650, "source": "neighbour", "counter": "cpu_ns", "value": 2}
    ]
    assert told.outcome is None


def test_an_aggressor_that_cannot_start_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    doubles, told = Doubles(monkeypatch, tmp_path), notes(tmp_path)
    doubles.refusal = AgentError("no such program")
    with beside(cast(Deployer, doubles), TRIAL, Limits(), Neighbour("cpu", 0, 10**8), told) as begin:
        begin(wait=True)
    assert told.neighbour is not None
    assert (told.neighbour.ended, told.neighbour.start_ns) == ("refused", None)
    assert "no such program" in told.neighbour.reason


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), HostError("cannot start virtoll-agent: No space left")]
)
def test_what_fails_on_our_side_is_raised_and_no_refusal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: Exception
) -> None:
    """A flood that this host could not start (no process, or no memory, was to be had) was told of the arm: "could not
    start", in a valid trial.
    """
    doubles, told = Doubles(monkeypatch, tmp_path), notes(tmp_path)
    doubles.refusal = failure
    with (
        pytest.raises(type(failure), match="No space left"),
        beside(cast(Deployer, doubles), TRIAL, Limits(), Neighbour("cpu", 0, 10**8), told) as begin,
    ):
        begin(wait=True)
    assert told.neighbour is not None
    assert "No space left" in told.neighbour.reason
    assert doubles.log[-1] == "end"


def test_a_window_that_ends_early_lets_nobody_loose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    doubles, told = Doubles(monkeypatch, tmp_path), notes(tmp_path)
    lived(doubles, Neighbour("cpu", start_ns=3600 * 10**9), told, wait=False)
    assert told.neighbour is not None
    assert told.neighbour.reason == "the window was over before its time had come"


def test_one_that_does_not_answer_is_killed_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    doubles, told = Doubles(monkeypatch, tmp_path), notes(tmp_path)
    doubles.result = AggressorResult("cpu", "killed", "no answer", stopped_by="host")
    lived(doubles, PLAN, told)
    assert doubles.log[-2:] == ["killed from outside", "end"]
    assert told.neighbour is not None
    assert told.neighbour.start_ns is not None  # by our clock: its own report is lost
    assert (told.neighbour.ended, told.neighbour.end_ns) == ("killed", None)
    assert may_have_harmed(told)


def test_one_that_was_refused_by_its_own_report_never_began(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    doubles, told = Doubles(monkeypatch, tmp_path), notes(tmp_path)
    doubles.result = replace(doubles.result, ended="refused", reason="the port is taken", counts={"cpu_ns": 0})
    lived(doubles, PLAN, told)
    assert told.neighbour is not None
    assert (told.neighbour.ended, told.neighbour.start_ns, told.neighbour.end_ns) == ("refused", None, None)
    assert not may_have_harmed(told)


def test_one_that_could_not_begin_again_had_begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    doubles, told = Doubles(monkeypatch, tmp_path), notes(tmp_path)
    doubles.result = replace(doubles.result, ended="refused", reason="mmap: no memory", restarts=1)
    lived(doubles, PLAN, told)
    assert told.neighbour is not None
    assert (told.neighbour.ended, told.neighbour.start_ns, told.neighbour.end_ns) == ("refused", 600, 700)
    assert may_have_harmed(told)


RECEIVED = AggressorResult(
    "net-receive", "time", counts={"packets": 7}, series=[(1_050, {"packets": 3})], start_ns=1_000, end_ns=1_100
)
SENT = AggressorResult("net-send", "told", counts={"packets": 9}, start_ns=590, end_ns=710, stopped_by="host")


def flooded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, received: AggressorResult, flood: AggressorResult
) -> tuple[NeighbourRecord, Notes]:
    """What is noted of a neighbour who received so much of a flood."""
    doubles, told = Doubles(monkeypatch, tmp_path), notes(tmp_path)
    doubles.counts = ("packets",)
    doubles.result = replace(received, flood=flood)
    lived(doubles, PLAN, told)
    assert told.neighbour is not None
    return told.neighbour, told


def test_a_flood_that_arrives_is_a_neighbour_at_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stopped = replace(RECEIVED, ended="told", stopped_by="agent")  # it was at work until then
    for received in (RECEIVED, stopped, replace(stopped, ended="killed", end_ns=None)):
        one, told = flooded(monkeypatch, tmp_path, received, SENT)
        assert (one.ended, one.start_ns, one.reason, one.flood) == (received.ended, 600, "", {"packets": 9})
        assert one.end_ns == (710 if received is RECEIVED else None)
        assert may_have_harmed(told)
        assert not told.checks


@pytest.mark.parametrize(
    ("flood", "reason"),
    [
        (replace(SENT, ended="refused", reason="Network is unreachable", counts={"packets": 0}), "Network is unreach"),
        (replace(SENT, ended="refused", reason="it ended before it said anything", counts={}), "before it said"),
        (SENT, "9 packets were sent"),
        (replace(SENT, ended="killed", reason="it was gone", end_ns=None, stopped_by="itself"), "it was gone"),
    ],
)
def test_a_flood_of_which_nothing_arrives_is_no_neighbour_at_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flood: AggressorResult, reason: str
) -> None:
    """Else whoever is beside it would be told as protected from it."""
    for ended in ("time", "killed"):
        received = replace(RECEIVED, ended=ended, counts={"packets": 0})
        one, told = flooded(monkeypatch, tmp_path, received, flood)
        assert (one.ended, one.start_ns, one.end_ns) == ("refused", None, None)
        assert "nothing of its flood arrived" in one.reason
        assert reason in one.reason
        assert not may_have_harmed(told)


def test_a_flood_that_was_refused_is_none_whatever_the_neighbour_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    silent = AggressorResult("net-receive", "killed", "no answer", stopped_by="host")
    refused = AggressorResult("net-send", "refused", "Operation not permitted")
    one, told = flooded(monkeypatch, tmp_path, silent, refused)
    assert (one.ended, one.start_ns, may_have_harmed(told)) == ("refused", None, False)
    assert "Operation not permitted" in one.reason
    one, told = flooded(monkeypatch, tmp_path, silent, SENT)
    assert (one.ended, one.stopped_by, one.end_is_unknown) == ("killed", "host", True)
    assert may_have_harmed(told)


def test_a_neighbour_is_at_work_as_long_as_its_flood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that was killed, or failed, told by its report or its last line; if by neither, nobody knows."""
    gone = AggressorResult("net-send", "killed", "no report", counts={"packets": 9}, series=[(640, {}), (650, {})])
    failed = replace(SENT, ended="refused", reason="it failed", end_ns=650, stopped_by="itself")
    for flood in (gone, failed):
        for received in (RECEIVED, replace(RECEIVED, ended="killed", end_ns=None, stopped_by="agent")):
            one, _ = flooded(monkeypatch, tmp_path, received, flood)
            assert (one.ended, one.stopped_by, one.start_ns, one.end_ns) == ("killed", "itself", 600, 650)
            assert flood.reason in one.reason
    unknown = AggressorResult("net-send", "killed", "its log: no JSON")
    one, _ = flooded(monkeypatch, tmp_path, replace(RECEIVED, stopped_by="agent"), unknown)
    assert (one.start_ns, one.end_is_unknown) == (600, True)


@pytest.mark.parametrize(("flood_end_ns", "end_ns"), [(760, 760), (690, 700), (None, 700)])
def test_a_neighbour_whose_flood_goes_on_has_not_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flood_end_ns: int | None, end_ns: int
) -> None:
    """It begins before its flood, both for as long: what the flood's last moments took was told as taken after it."""
    for flood in (replace(SENT, ended="time", stopped_by="itself"), SENT):
        one, _ = flooded(monkeypatch, tmp_path, RECEIVED, replace(flood, end_ns=flood_end_ns))
        assert (one.ended, one.start_ns, one.end_ns, one.reason) == ("time", 600, end_ns, "")


def test_an_agent_that_falls_silent_at_the_start_makes_the_trial_invalid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody knows whether the aggressor began: neither harm nor protection can be told."""
    doubles, told = Doubles(monkeypatch, tmp_path), notes(tmp_path)
    doubles.refusal = StreamTimeoutError("spawn: no answer within 30 s")
    with beside(cast(Deployer, doubles), TRIAL, Limits(), Neighbour("cpu", 0, 10**8), told) as begin:
        begin(wait=True)
    assert told.neighbour is not None
    assert (told.neighbour.ended, told.neighbour.stopped_by) == ("killed", "host")
    (check,) = told.checks
    assert (check.name, check.passed) == ("the neighbour began", False)
    assert "no answer within 30 s" in check.detail
    assert doubles.log[-2:] == ["killed from outside", "end"]


def test_a_host_that_was_in_danger_before_was_not_harmed_by_the_neighbour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else each neighbour of a machine whose disk is nearly full would be told to harm its host, the polite one too."""
    doubles, told, saved = Doubles(monkeypatch, tmp_path), notes(tmp_path), threading.Event()
    monkeypatch.setattr(neighbourhood, "end_instance", lambda _instance: saved.set())
    full = replace(WELL, disk_free_bytes=400 * 1024**2)
    monkeypatch.setattr(neighbourhood, "watching", lambda directory, save: watching(directory, save, lambda _: full))

    def disturbed() -> None:
        plan = Neighbour("cpu", start_ns=3600 * 10**9)
        with beside(cast(Deployer, doubles), TRIAL, Limits(), plan, told) as begin:
            begin()
            assert saved.wait(PATIENCE_S)

    with pytest.raises(HostError, match="disk has only 400 MiB left; that was so before the neighbour was to begin"):
        disturbed()
    assert told.outcome is None
    assert not may_have_harmed(told)


def test_the_watchdog_ends_it_and_the_outcome_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And when it began is known, though its agent went with it."""
    doubles, told = Doubles(monkeypatch, tmp_path), notes(tmp_path)
    doubles.result = AggressorResult("cpu", "killed", "the stream has ended", stopped_by="host")

    def look(_directory: Path) -> State:
        return _poor(available_bytes=1) if doubles.loose.is_set() else WELL

    monkeypatch.setattr(neighbourhood, "watching", lambda directory, save: watching(directory, save, look))
    killed = threading.Event()
    monkeypatch.setattr(neighbourhood, "end_instance", lambda _instance: killed.set())
    with beside(cast(Deployer, doubles), TRIAL, Limits(), PLAN, told) as begin:
        begin(wait=True)
        assert killed.wait(PATIENCE_S)
    assert told.outcome == "host harmed"
    assert told.neighbour is not None
    assert (told.neighbour.ended, told.neighbour.stopped_by) == ("killed", "host")
    assert "of memory left" in told.neighbour.reason
    assert told.neighbour.start_ns is not None
    assert told.neighbour.end_ns is not None
    assert may_have_harmed(told)


# -- the watchdog -----------------------------------------------------------------------------------------


def _poor(**values: int) -> State:
    return State(**{**vars(WELL), **values})


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (WELL, ""),
        (_poor(available_bytes=GIB // 4), "the host has only 256 MiB of memory left"),
        (_poor(total_bytes=64 * GIB, available_bytes=2 * GIB), ""),  # the rest is huge pages
        (_poor(tasks=30_000), "the host runs 30000 of 32768 tasks"),
        (_poor(disk_free_bytes=GIB // 4), "the host's disk has only 256 MiB left"),
    ],
)
def test_what_endangers_the_machine(state: State, told: str) -> None:
    assert danger(state) == told


def test_this_machine_can_be_looked_at(tmp_path: Path) -> None:
    state = watchdog.look(tmp_path)
    assert 0 < state.available_bytes < state.total_bytes
    assert 0 < state.tasks < state.most_tasks


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_that_is_nearly_full_is_in_danger_on_a_host_with_plenty_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: Literal[1, 2]
) -> None:
    """`docker run --memory 2g`: a neighbour that took the rest of that had the victim killed, and was told to have."""
    used, limit = {1: ("usage_in_bytes", "limit_in_bytes"), 2: ("current", "max")}[version]
    (tmp_path / f"memory.{used}").write_text(f"{2000 * 2**20}\n")
    (tmp_path / f"memory.{limit}").write_text(f"{2048 * 2**20}\n")
    cache, shared = ("total_cache", "total_shmem") if version == 1 else ("file", "shmem")
    (tmp_path / "memory.stat").write_text(f"{cache} {30 * 2**20}\n{shared} {10 * 2**20}\n")
    monkeypatch.setattr(watchdog, "hierarchies", lambda: Hierarchies(version, {"memory": tmp_path}))
    monkeypatch.setattr(watchdog, "meminfo_bytes", lambda *_: 64 * GIB)
    state = watchdog.look(tmp_path)
    assert (state.available_bytes, state.total_bytes) == (68 * 2**20, 2 * GIB)
    assert danger(state) == "the container that virtoll is in has only 68 MiB of memory left"
    (tmp_path / f"memory.{limit}").write_text("max\n" if version == 2 else "9223372036854771712\n")
    assert danger(watchdog.look(tmp_path)) == ""


def test_a_container_whose_processes_are_nearly_all_there_is_in_danger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`docker run --pids-limit 1000`: who found no process beside a fork bomb was told as its victim."""
    monkeypatch.setattr(watchdog, "hierarchies", lambda: Hierarchies(2, {"memory": tmp_path, "pids": tmp_path}))
    monkeypatch.setattr(watchdog, "meminfo_bytes", lambda *_: 64 * GIB)
    (tmp_path / "pids.current").write_text("950\n")
    for most, told in (("1000", "the container that virtoll is in runs 950 of 1000 tasks"), ("2000", ""), ("max", "")):
        (tmp_path / "pids.max").write_text(f"{most}\n")
        assert danger(watchdog.look(tmp_path)) == told


def test_an_error_while_watching_is_not_swallowed(tmp_path: Path) -> None:
    with pytest.raises(HostError), watching(tmp_path, lambda: None):
        raise HostError("elsewhere")


def test_a_machine_that_cannot_be_looked_at_loses_its_neighbour_and_the_trial(tmp_path: Path) -> None:
    saved = threading.Event()

    def look(_directory: Path) -> State:
        raise OSError(24, "Too many open files")

    with (
        pytest.raises(HostError, match=r"could not be looked at: OSError: .*Too many open files"),
        watching(tmp_path, saved.set, look) as watch,
    ):
        assert saved.wait(PATIENCE_S)
    assert not watch.reason  # what nobody saw is no harm


def test_a_neighbour_that_cannot_be_ended_at_once_is_ended_later_and_told(tmp_path: Path) -> None:
    tried: list[str] = []
    saved = threading.Event()

    def save() -> None:
        tried.append("once more")
        if len(tried) < 3:
            raise OSError(12, "Cannot allocate memory")
        saved.set()

    with (
        pytest.raises(HostError, match=r"could not be ended at once: .*Cannot allocate memory"),
        watching(tmp_path, save, lambda _: _poor(available_bytes=1)) as watch,
    ):
        assert saved.wait(PATIENCE_S)
    assert len(tried) == 3
    assert "of memory left" in watch.reason
    assert watch.saved_ns is not None


def test_the_blocks_own_error_is_not_hidden_by_the_watchdogs(tmp_path: Path) -> None:
    saved = threading.Event()

    def look(_directory: Path) -> State:
        raise OSError(24, "Too many open files")

    def fail() -> None:
        with watching(tmp_path, saved.set, look):
            assert saved.wait(PATIENCE_S)
            raise ValueError("the cause")

    with pytest.raises(ValueError, match="the cause"):
        fail()
