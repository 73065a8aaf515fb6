"""What is proved of a service beside a neighbour: our side and the limits; what became of the victim is a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from virtoll.agent import ClockOffset, StreamError
from virtoll.errors import AgentError, Problem, TrialError
from virtoll.lab.base import CpuPlan
from virtoll.loads.base import HttpObject, LoadResult
from virtoll.monitor import Monitor, Watched
from virtoll.monitor.monitor import Row
from virtoll.record.model import Arm, LoadWindow, NeighbourRecord, PlannedTrial
from virtoll.study.limits import Limits
from virtoll.trial import experiment, proofs
from virtoll.trial.experiment import ServiceExperiment, _Scene
from virtoll.trial.notes import Notes

CPUS = CpuPlan(instance=frozenset({0}), generator=frozenset({1}), origin=frozenset({2}))
WELL = {"instance": 0.5, "generator": 0.2, "origin": 0.2}
PROVED = {
    "offered load met intended",
    "the generator had headroom",
    "the generator kept its schedule",
    "the origin had headroom",
    "no sample was dropped",
    "the clock held",
    "the CPU limit held",
}
SECOND_NS = 10**9


def used(cpus: dict[str, float]) -> list[Row]:
    """One second in which each source used so many CPUs."""
    return [(t, name, "cpu.usage_ns", round(t * share)) for name, share in cpus.items() for t in (0, SECOND_NS)]


def watched(cpus: dict[str, float], *, drift_ns: int = 0, silent: bool = False) -> Watched:
    inside: list[Row] | None = None if silent else [(0, "inside", "cpu.usage_ns", 1)]
    after = None if silent else ClockOffset(drift_ns, 0)
    return Watched(used(cpus), inside, ClockOffset(0, 0), after, SECOND_NS, 0, 0, {})


class MonitorDouble:
    """Saw what it is told, or an error."""

    def __init__(self, seen: Watched | Exception) -> None:
        self.seen = seen

    def start(self, *_: Any) -> None:
        return None

    def collect(self, *, may_be_silent: bool = False) -> Watched:
        if isinstance(self.seen, Exception):
            raise self.seen
        if self.seen.offset_after is None and not may_be_silent:
            raise StreamError("the stream has ended", where="the instance")
        return self.seen


class ServiceDouble:
    """Answers as it is told."""

    name = "double"

    def __init__(self, wrong: Exception | str) -> None:
        self.wrong = wrong

    def verify(self, *_: Any) -> list[Problem]:
        if isinstance(self.wrong, Exception):
            raise self.wrong
        return [Problem(self.wrong)] if self.wrong else []


LOAD = LoadResult(
    loop="open",
    intended=100,
    offered=100,
    completed=0,
    failures={"timeout": 100},
    window=LoadWindow(start_ns=0, end_ns=SECOND_NS, completed=0, body_bytes=0, cpu_user_ns=10**7, cpu_system_ns=10**7),
    drain=None,
    histogram=None,
    lateness=[(0, 1000, 100)],
)


def concluded(
    tmp_path: Path,
    seen: Watched | Exception,
    *,
    wrong: Exception | str = "",
    lives: bool | Callable[[], bool] = True,
    before: Any = None,
    has_origin: bool = True,
) -> Notes:
    notes = Notes(tmp_path, lambda _name: None, outcome=before)
    scene = _Scene(
        instance=cast(
            Any, SimpleNamespace(limits=Limits(vcpus=1), is_running=lives if callable(lives) else lambda: lives)
        ),
        service=cast(Any, ServiceDouble(wrong)),
        load=cast(Any, None),
        endpoint=cast(Any, None),
        target=HttpObject("/1", 1),
        client=cast(Any, SimpleNamespace(cpus=1)),
        notes=notes,
        has_origin=has_origin,
    )
    seen_at_last = scene.watched(cast(Monitor, MonitorDouble(seen)), may_be_silent=True)
    scene.conclude(LOAD, seen_at_last, CPUS)
    return notes


def broken(notes: Notes) -> set[str]:
    return {check.name for check in notes.checks if check.passed is False}


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (watched(WELL), set()),
        (watched(WELL | {"instance": 1.2}), {"the CPU limit held"}),
        (watched(WELL | {"origin": 0.9}), {"the origin had headroom"}),
        (watched(WELL, drift_ns=SECOND_NS // 100), {"the clock held"}),
        (watched({}), {"no sample was dropped"}),
    ],
)
def test_our_side_and_the_limits_are_proved_beside_a_neighbour_too(
    tmp_path: Path, seen: Watched, told: set[str]
) -> None:
    notes = concluded(tmp_path, seen)
    assert broken(notes) == told
    assert notes.outcome == "answered"
    assert {check.name for check in notes.checks} == PROVED
    assert "inside" in notes.tables


def test_an_origin_that_could_not_be_read_is_no_proof_and_none_needs_none(tmp_path: Path) -> None:
    unread = watched({name: share for name, share in WELL.items() if name != "origin"})
    (check,) = (check for check in concluded(tmp_path, unread).checks if check.name == "the origin had headroom")
    assert (check.passed, check.detail) == (None, "origin: the host's accounting could not be read")
    without = concluded(tmp_path, unread, has_origin=False)
    assert {check.name for check in without.checks} == PROVED - {"the origin had headroom"}


@pytest.mark.parametrize("wrong", ["another digest", TrialError("no answer")])
def test_a_victim_that_does_not_answer_is_a_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: Exception | str
) -> None:
    monkeypatch.setattr(proofs, "_END_S", 0.0)
    notes = concluded(tmp_path, watched(WELL), wrong=wrong)
    assert (notes.outcome, broken(notes)) == ("did not answer", set())


def test_a_victim_that_died_is_a_result_and_what_was_seen_from_outside_is_kept(tmp_path: Path) -> None:
    notes = concluded(tmp_path, watched(WELL, silent=True), lives=False)
    assert (notes.outcome, broken(notes)) == ("victim died", set())
    assert {check.name for check in notes.checks if check.passed is None} == {"the clock held"}
    assert "outside" in notes.tables
    assert "inside" not in notes.tables
    harmed = concluded(tmp_path, watched(WELL, silent=True), lives=False, before="host harmed")
    assert harmed.outcome == "host harmed"


def test_a_victim_may_end_a_moment_after_its_stream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(proofs, "_END_S", 60.0)
    looks = iter([True, True])
    told = concluded(tmp_path, watched(WELL, silent=True), wrong=TrialError("none"), lives=lambda: next(looks, False))
    assert told.outcome == "victim died"


def test_a_monitor_that_broke_is_a_failure_and_no_silence_of_the_victims(tmp_path: Path) -> None:
    with pytest.raises(StreamError):
        concluded(tmp_path, StreamError("the stream has ended", where="the monitor's agent on the host"))


# -- when it is watched -----------------------------------------------------------------------------------


def performed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seen: Watched, *, began: bool) -> list[str]:
    """What a trial beside a neighbour does, in its order."""
    log: list[str] = []

    @contextmanager
    def beside(*told: Any) -> Iterator[Callable[[], None]]:
        yield lambda: log.append("begun")
        log.append("the neighbour's teardown")
        told[4].neighbour = NeighbourRecord(
            aggressor="cpu", settings={}, ended="time" if began else "refused", start_ns=1 if began else None, end_ns=2
        )

    class Watching(MonitorDouble):
        def collect(self, *, may_be_silent: bool = False) -> Watched:
            log.append("collected")
            return super().collect(may_be_silent=may_be_silent)

    service = SimpleNamespace(name="double", port=1, objects=lambda *_: None, start=lambda *_: None)
    service.verify = ServiceDouble("").verify
    monkeypatch.setattr(experiment, "beside", beside)
    monkeypatch.setattr(experiment, "shaped", lambda *_: nullcontext())
    monkeypatch.setattr(experiment, "hogs", lambda *_: nullcontext())
    monkeypatch.setattr(experiment, "losses", lambda _lab: {})
    monkeypatch.setattr(experiment, "replace", lambda lab, **_: lab)
    monkeypatch.setattr(experiment, "instance_cpus", lambda *_: frozenset({0}))
    monkeypatch.setattr(experiment, "make_service", lambda *_: service)
    load = SimpleNamespace(warm_up=lambda *_: None, drive=lambda *_: LOAD)
    monkeypatch.setattr(experiment, "make_load", lambda *_: load)
    monkeypatch.setattr(proofs, "of_limits", lambda *_: True)
    there = cast(Any, SimpleNamespace(limits=Limits(vcpus=1), is_running=lambda: True, platform="double", agent=None))
    there.agent = SimpleNamespace(run=lambda _argv: SimpleNamespace(stdout=b""))
    deployer = SimpleNamespace(
        lab=SimpleNamespace(cpus=CPUS), first=lambda *_: there, client=lambda _: SimpleNamespace(cpus=1)
    )
    values = {"load.object_bytes": 1, "background.hogs": 0, "monitor.rate_per_s": 10, "neighbour.aggressor": "cpu"}
    study = SimpleNamespace(values=lambda _condition: values)
    told = ServiceExperiment(cast(Any, study), cast(Any, deployer), None, cast(Any, Watching(seen)))
    arm = Arm(label="a", platform="double", network="host")
    trial = PlannedTrial(id="b01-t0001", block=1, position=1, arm=arm, condition={})
    told.perform(trial, Notes(tmp_path, lambda _name: None))
    return log


def test_watching_ends_with_the_window_and_not_with_the_neighbour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for began in (True, False):
        log = performed(monkeypatch, tmp_path, watched(WELL), began=began)
        assert log == ["begun", "collected", "the neighbour's teardown"]


def test_an_instance_that_falls_silent_beside_no_neighbour_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(proofs, "_END_S", 0.0)
    with pytest.raises(AgentError, match="no neighbour was at work"):
        performed(monkeypatch, tmp_path, watched(WELL, silent=True), began=False)
    performed(monkeypatch, tmp_path, watched(WELL, silent=True), began=True)
