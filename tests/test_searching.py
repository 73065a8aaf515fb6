"""A trial that searches for a knee: what each window counts for, and what the trial proves of itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from test_experiment import WELL, LoadDouble, ServiceDouble, Stage, watched
from undisturbed import undisturbed
from virtoll.errors import TrialError
from virtoll.fakes import FakeLoad
from virtoll.lab.others import Look
from virtoll.loads.base import Bulk, Intensity, Load, Measurement, Session
from virtoll.loads.dnsperf import Dnsperf, DnsperfSettings
from virtoll.loads.http import HttpLoad, HttpSettings
from virtoll.loads.participants import ParticipantsLoad, ParticipantsSettings
from virtoll.loads.pgbench import Pgbench, PgbenchSettings
from virtoll.loads.redis import RedisLoad, RedisSettings
from virtoll.loads.viewers import ViewersLoad, ViewersSettings
from virtoll.record.model import (
    ABSENT,
    ALL_THERE,
    BROWSER,
    BUFFERS_HELD,
    DROPPED,
    FALLEN_MS,
    GENERATOR_HEADROOM,
    JOINED,
    STANDING,
    STARTING_MS,
    STAY,
    STAYED,
    THERE_MS,
    VIEW,
    WAKES,
    WAKES_LATE,
    Check,
    Events,
    Measured,
    Quantity,
    Window,
)
from virtoll.study.model import Knee
from virtoll.trial import proofs, searching
from virtoll.trial.notes import Notes
from virtoll.trial.proofs import IDLE
from virtoll.trial.searching import KneeSearch
from virtoll.trial.treatment import Driven, Treatment

KNEE = Knee(objective=("latency_p99 < 20 ms",), least=1, most=1000, precision_share=0.2, window_ns=10**9, windows=3)
FAST, SLOW = [(0, 10**6, 100)], [(0, 10**6, 98), (25 * 10**6, 30 * 10**6, 2)]
OVERWHELMED = [(0, 10**6, 50), (10**9, 2 * 10**9, 50)]


def measured_at(
    intensity: float,
    histogram: list[tuple[int, int, int]],
    *,
    cpu_ns: int | None = 10**8,
    late: int = 0,
    sent: int = 100,
) -> Measurement:
    """A window of a hundred requests that were due, of which ``sent`` were sent."""
    latest_ns = 15 * 10**6 if late else 0
    events = Events(intended=100, offered=sent, completed=100, failures={}, censored=0, late=late, latest_ns=latest_ns)
    window = Window(start_ns=0, duration_ns=10**9, work=100, events={"request": events}, cpu_ns=cpu_ns, at=intensity)
    return Measurement("double 1", window, Bulk(histogram))


@dataclass
class Scripted(Session):
    """A service that meets the objective up to 50, and whatever a window is made to be beyond that."""

    beyond: Callable[[float], Measurement] = lambda at: measured_at(at, SLOW)
    within: Callable[[float], Measurement] = lambda at: measured_at(at, FAST)
    asked: list[tuple[float, int]] = field(default_factory=list)
    stayed: list[bool] = field(default_factory=list)  # before each window, whoever was there in the last

    def warm_up(self, duration_ns: int | None = None) -> None: ...

    def rest(self) -> None:
        self.stayed.append(False)

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        assert intensity is not None
        assert duration_ns is not None
        self.asked.append((intensity, duration_ns))
        self.stayed += [True] * (len(self.asked) - len(self.stayed))
        return self.within(intensity) if intensity <= 50 else self.beyond(intensity)


def searched(session: Session, settings: Knee = KNEE, trial: str = "b01-t0001") -> Measured:
    search = KneeSearch(settings, FakeLoad(), 1, trial)
    while search.asked is not None:
        search.measure(session)
    return search.measured()


# -- what a window counts for -----------------------------------------------------------------------------


def test_who_met_an_overload_is_not_there_in_the_next_window() -> None:
    session = Scripted()
    knee = searched(session).knee
    assert knee is not None
    assert {step.told for step in knee.steps} == {"met", "not met"}
    assert session.stayed == [True, *(step.told == "met" for step in knee.steps)][: len(session.stayed)]


def test_windows_are_asked_for_at_their_intensity_and_length_and_recorded_in_their_order() -> None:
    session = Scripted()
    measured = searched(session)
    knee = measured.knee
    assert knee is not None
    assert {length_ns for _, length_ns in session.asked} == {KNEE.window_ns}
    assert [window.at for window in measured.windows] == [intensity for intensity, _ in session.asked]
    assert (knee.ended, knee.unit) == ("settled", "requests/s")
    assert [(each.metric, each.bound, each.unit) for each in knee.objective] == [("latency_p99_ms", 20, "ms")]
    assert knee.lower is not None
    assert knee.upper is not None
    assert knee.lower <= 50 < knee.upper <= knee.lower * 1.2 * (1 + 1e-9)
    for step, window in zip(knee.steps, measured.windows, strict=True):
        assert window.at is not None
        met = window.at <= 50
        assert (step.told, step.missed) == (("met", []) if met else ("not met", ["latency_p99 < 20 ms"]))
        assert step.values == {"latency_p99_ms": 1.0 if met else 30.0}


@pytest.mark.parametrize(
    ("beyond", "limit"),
    [
        (lambda at: measured_at(at, SLOW, cpu_ns=85 * 10**7), "it used 85% of its 1 CPU"),
        (lambda at: measured_at(at, SLOW, late=7), "it sent 7 of 100 requests more than 10 ms late"),
        (lambda at: measured_at(at, FAST, sent=90), "it sent 90 of 100 requests"),
    ],
    ids=["busy", "late", "less was sent than was due"],
)
def test_where_the_generator_gives_out_the_service_is_not_blamed(
    beyond: Callable[[float], Measurement], limit: str
) -> None:
    knee = searched(Scripted(beyond)).knee
    assert knee is not None
    assert (knee.ended, knee.upper) == ("beyond generator", None)
    assert {step.limit for step in knee.steps if step.told == "generator"} == {limit}


@pytest.mark.parametrize(
    ("load", "cpu_ns", "limit"),
    [
        (Pgbench(PgbenchSettings(loop="open")), 10**9, "it used 100% of its 1 CPU"),
        (Pgbench(PgbenchSettings(loop="open")), 7 * 10**8, ""),
        (Dnsperf(DnsperfSettings(loop="open")), 10**9, "it used 100% of its 1 CPU, and whether it could use more"),
        (Dnsperf(DnsperfSettings(loop="open")), 7 * 10**8, ""),
        (HttpLoad(HttpSettings(loop="open", connections=1)), 10**9, "it used 100% of its 1 CPU"),
        (HttpLoad(HttpSettings(loop="open", connections=32)), 10**9, ""),
    ],
)
def test_a_generator_has_no_more_than_its_threads_can_use(load: Load, cpu_ns: int, limit: str) -> None:
    """Of two CPUs: a program of one thread that uses one of them is at its end."""
    window = measured_at(60, SLOW, cpu_ns=cpu_ns).window
    told = searching.in_the_way(window, load, 2, [], {})
    assert (bool(told), told.startswith(limit)) == (bool(limit), True)


def test_as_many_threads_as_users_have_work() -> None:
    """One viewer is read by one thread, which was at its end as 25 % of 4 CPU; and of two threads for three users one
    was at its end as 75 % of 2.
    """
    closed = HttpLoad(HttpSettings(loop="closed", connections=9))
    assert [closed.usable_cpus(4, users) for users in (None, 2.0, 3.0, 8.0)] == [3, 2, 3, 4]
    assert [closed.usable_cpus(cpus, 3.0) for cpus in (1, 2)] == [1, 1.5]
    opened = HttpLoad(HttpSettings(loop="open", connections=16 * 9))
    assert [opened.usable_cpus(cpus) for cpus in (4, 16)] == [4, 9]
    viewers = ViewersLoad(ViewersSettings(viewers=9))
    assert [viewers.usable_cpus(4, users) for users in (None, 1.0, 2.0, 8.0)] == [3, 1, 2, 4]
    assert ViewersLoad(ViewersSettings()).usable_cpus(4) == 1
    alone = ParticipantsLoad(ParticipantsSettings(participants=1))
    assert [alone.usable_cpus(4, participants) for participants in (None, 2.0, 7.0)] == [1, 2, 3.5]
    assert ParticipantsLoad(ParticipantsSettings(levels=(1, 3))).usable_cpus(4) == 3
    assert ParticipantsLoad(ParticipantsSettings(participants=1, browsers=1)).usable_cpus(4) == 4
    assert [Dnsperf(DnsperfSettings()).usable_cpus(cpus) for cpus in (1, 2)] == [1, None]


@pytest.mark.parametrize(("most_here", "ended"), [(40, "beyond generator"), (70, "settled"), (2000, "settled")])
def test_what_a_generator_cannot_be_asked_for_is_beyond_it(
    monkeypatch: pytest.MonkeyPatch, most_here: int, ended: str
) -> None:
    monkeypatch.setattr(FakeLoad, "most_here", lambda _load, cpus: most_here * cpus)
    measured = searched(session := Scripted())
    assert measured.knee is not None
    assert (measured.knee.ended, measured.knee.lower == 40) == (ended, most_here == 40)
    assert max(at for at, _ in session.asked) <= most_here
    told = ["the generator cannot be asked for more than 40 requests/s here"]
    assert measured.notes == (told if most_here == 40 else [])


def test_as_many_users_are_looked_for_as_there_are_ports_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond them the generator itself is in the way, and each trial would fail."""
    monkeypatch.setattr("virtoll.hosts.open_files.most_open_files", lambda: (10**6, True))
    assert HttpLoad(HttpSettings()).most_here(2) == 65535 - 1023
    assert HttpLoad(HttpSettings(loop="open")).most_here(2) == math.inf
    monkeypatch.setattr("virtoll.hosts.open_files.most_open_files", lambda: (1000, True))
    assert HttpLoad(HttpSettings()).most_here(2) == 1000 - 64 - 2 * 4


def test_as_many_viewers_are_looked_for_as_connections_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtoll.hosts.open_files.most_open_files", lambda: (1000, True))
    assert ViewersLoad(ViewersSettings()).most_here(2) == 1000 - 64 - 2 * 4


def waiting(at: float) -> Measurement:
    """A window in which most of the requests had to wait for a free connection."""
    slow = measured_at(at, SLOW)
    events = slow.window.events["request"].model_copy(update={"queued": 60})
    return replace(slow, window=slow.window.model_copy(update={"events": {"request": events}}))


@pytest.mark.parametrize(("connections", "ended"), [(1, "beyond generator"), (2, "settled")])
def test_connections_that_were_too_few_are_no_limit_of_the_service(connections: int, ended: str) -> None:
    """At 51 to 60 a second, 20 ms each keep more than one connection busy, and fewer than two."""
    load = HttpLoad(HttpSettings(loop="open", connections=connections))
    search = KneeSearch(replace(KNEE, most=60), load, 1, "b01-t0001")
    session = Scripted(waiting)
    while search.asked is not None:
        search.measure(session)
    knee = search.measured().knee
    assert knee is not None
    assert knee.ended == ended
    few = "60 of 100 requests waited for one of its 1 connections"
    assert {step.limit for step in knee.steps if step.told != "met"} == ({few} if connections == 1 else {""})


@pytest.mark.parametrize("absent", [0, 9])
@pytest.mark.parametrize(
    ("late_joins", "late_wakes", "told", "limit"),
    [
        (0, 0, "not met", ""),
        (90, 0, "not met", ""),  # who joined late empties nobody's buffer, whoever else is not there
        (0, 90, "generator", "90 of 100 times it read more than 10 ms late"),  # and was as late to ask for more
    ],
)
def test_whose_fault_it_is_that_buffers_fall(
    late_joins: int, late_wakes: int, told: str, limit: str, absent: int
) -> None:
    wakes = {WAKES: 100, WAKES_LATE: late_wakes}
    also = (ALL_THERE,) if absent else ()

    def beyond(at: float) -> Measurement:
        joined = measured_at(at, FAST, late=late_joins).window.events["request"]
        some = counting(at, {STANDING: 100, FALLEN_MS: 10_000, ABSENT: math.ceil(at * absent / 100), **wakes})
        return replace(some, window=some.window.model_copy(update={"events": {"request": joined}}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeLoad, "loop", "open")
        knee = searched(Scripted(beyond, lambda at: counting(at, wakes))).knee
    assert knee is not None
    assert {(step.told, *step.missed, step.limit) for step in knee.steps if step.told != "met"} == {
        (told, *also, BUFFERS_HELD, limit)
    }


@pytest.mark.parametrize(
    ("most_served", "here", "ended", "why"),
    [
        (40, 10_000, "beyond most", "the service's own settings let no more than 40 viewers in"),
        (40, 30, "beyond generator", "the generator cannot be asked for more than 30 viewers here"),
        (40, 40, "beyond most", "the service's own settings let no more than 40 viewers in"),
        (None, 10_000, "settled", ""),
        (1000, 10_000, "settled", ""),
    ],
)
def test_a_search_ends_at_what_a_services_settings_let_in(
    monkeypatch: pytest.MonkeyPatch, most_served: int | None, here: float, ended: str, why: str
) -> None:
    """Who is turned away beyond that is turned away on every platform: it is a bound, and no knee."""
    monkeypatch.setattr(FakeLoad, "most_here", lambda *_: here)
    monkeypatch.setattr(FakeLoad, "intensity", Intensity("viewers", whole=True))
    search = KneeSearch(KNEE, FakeLoad(), 1, "b01-t0001", most_served=most_served)
    session = Scripted()
    while search.asked is not None:
        search.measure(session)
    measured = search.measured()
    assert measured.knee is not None
    assert measured.knee.ended == ended
    assert measured.notes == ([why] if why else [])
    assert ended == "settled" or measured.knee.lower == min(most_served or here, here)


@pytest.mark.parametrize(("users", "ended"), [(1, "beyond generator"), (2, "settled")])
def test_users_of_a_program_that_were_too_few_are_no_limit_of_the_service(users: int, ended: str) -> None:
    """At 51 to 60 a second, as above. pgbench tells its latency from when a transaction was due, and has one user where
    the study says nothing: what waited for that one was told as the service's, and the knee as settled.
    """

    def told(at: float, mean_ms: float) -> Measurement:
        fast = measured_at(at, FAST)
        events = fast.window.events["request"].model_copy(update={"late": None, "latest_ns": None})
        update = {"values": {"latency_mean_ms": mean_ms}, "events": {"transaction": events}}
        return replace(fast, window=fast.window.model_copy(update=update))

    load = Pgbench(PgbenchSettings(loop="open", users=users))
    settings = replace(KNEE, objective=("latency_mean < 20 ms",), most=60)
    search = KneeSearch(settings, load, 1, "b01-t0001")
    session = Scripted(lambda at: told(at, 90), lambda at: told(at, 2))
    while search.asked is not None:
        search.measure(session)
    knee = search.measured().knee
    assert knee is not None
    assert knee.ended == ended
    limits = {step.limit for step in knee.steps if step.told != "met"}
    assert all(each.startswith("its users (1) are fewer than ") for each in limits) if users == 1 else limits == {""}
    closed = Pgbench(PgbenchSettings(users=1))
    assert searching.in_the_way(told(60, 90).window, closed, 2, knee.objective, {"latency_mean_ms": 90}) == ""


def test_a_late_generator_that_cannot_explain_a_miss_is_no_excuse() -> None:
    """Half of the requests took two seconds, and none was sent more than 15 ms late."""
    knee = searched(Scripted(lambda at: measured_at(at, OVERWHELMED, late=7))).knee
    assert knee is not None
    assert knee.ended == "settled"
    assert not any(step.limit for step in knee.steps)


def test_a_window_that_meets_the_objective_in_spite_of_a_busy_generator_counts() -> None:
    """What is in its way makes latencies longer, never shorter."""
    knee = searched(Scripted(within=lambda at: measured_at(at, FAST, cpu_ns=99 * 10**7, late=9))).knee
    assert knee is not None
    assert knee.ended == "settled"


@pytest.mark.parametrize(("stalled", "ended"), [(0.1, "beyond generator"), (0.0, "settled")])
def test_a_viewer_that_stalls_and_is_read_too_late_blames_the_generator(stalled: float, ended: str) -> None:
    def stalling(at: float) -> Measurement:
        slow = measured_at(at, SLOW)
        counts, values = {WAKES: 100, WAKES_LATE: 5, "stalls": 0}, {"stalled_percent": stalled}
        return replace(slow, window=slow.window.model_copy(update={"counts": counts, "values": values}))

    knee = searched(Scripted(stalling)).knee
    assert knee is not None
    assert knee.ended == ended
    assert knee.steps[-1].limit == ("5 of 100 times it read more than 10 ms late" if stalled else "")


def test_datagrams_that_the_generators_kernel_threw_away_blame_the_generator() -> None:
    def dropping(at: float) -> Measurement:
        slow = measured_at(at, SLOW)
        return replace(slow, window=slow.window.model_copy(update={"counts": {DROPPED: 3}}))

    knee = searched(Scripted(dropping)).knee
    assert knee is not None
    assert (knee.ended, knee.upper) == ("beyond generator", None)
    assert knee.steps[-1].limit == "its own kernel threw away 3 datagrams"


@pytest.mark.parametrize(
    ("cpu_ns", "lost", "limit"),
    [
        (10**9, "", "it used 100% of its 1 CPU"),
        (10**8, *["the wiring lost 3 sut gen0 rx_dropped"] * 2),
        (10**8, "", ""),
    ],
)
def test_users_whom_our_own_side_kept_out_were_not_kept_out_by_the_service(cpu_ns: int, lost: str, limit: str) -> None:
    """A generator without a CPU left, or a lab that lost what they sent, has users wait for a first answer, too: such a
    level counted against the service, and the search told it as settled.
    """

    def keeping_out(at: float) -> Measurement:
        fast = measured_at(at, FAST, cpu_ns=cpu_ns)
        counts = {STARTING_MS: 500, THERE_MS: 1000}
        return replace(fast, window=fast.window.model_copy(update={"counts": counts}))

    search = KneeSearch(KNEE, HttpLoad(HttpSettings(loop="closed")), 1, "b01-t0001")
    session = Scripted(keeping_out)
    while search.asked is not None:
        search.measure(session, lambda *_: lost)
    knee = search.measured().knee
    assert knee is not None
    assert knee.ended == ("beyond generator" if limit else "settled")
    kept_out = {(step.told, tuple(step.missed), step.limit) for step in knee.steps if step.told != "met"}
    assert kept_out == {("generator" if limit else "not met", (ALL_THERE,), limit)}


def test_a_window_of_which_nothing_can_be_told_fails_the_trial() -> None:
    def untold(at: float) -> Measurement:
        return Measurement("double 1", Window(start_ns=0, duration_ns=10**9, work=5, at=at))

    with pytest.raises(TrialError, match="does not tell what became of what it asked for") as caught:
        searched(Scripted(within=untold))
    assert caught.value.problem.where == "[knee] objective, 1 requests/s"


@pytest.mark.parametrize(("kind", "is_ours"), [("crashed", True), ("no picture", False)])
def test_browsers_of_ours_that_failed_tell_a_bound_and_what_they_were_served_fails_the_trial(
    kind: str, is_ours: bool
) -> None:
    """The trial failed, and longer windows were to help against a Chromium that had crashed."""
    quantities = {"browser_frozen_percent": Quantity("Streams that stand still", "%", "less")}

    def of(at: float, kind: str) -> Measurement:
        some, failures = measured_at(at, FAST), {kind: 1} if kind else {}
        told = Events(intended=1, offered=1, completed=1 - len(failures), failures=failures, censored=len(failures))
        values = {} if kind else {"browser_frozen_percent": 0.0}
        events = {**some.window.events, BROWSER: told}
        return replace(some, window=some.window.model_copy(update={"values": values, "events": events}))

    session = Scripted(lambda at: of(at, kind), lambda at: of(at, ""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeLoad, "quantities", quantities)
        asked = replace(KNEE, objective=("browser_frozen < 1 %",))
        if not is_ours:
            with pytest.raises(TrialError, match="browser_frozen_percent was not told"):
                searched(session, asked)
            return
        knee = searched(session, asked).knee
    assert knee is not None
    assert knee.ended == "beyond generator"
    assert knee.lower is not None
    assert knee.lower <= 50
    assert {step.limit for step in knee.steps} == {"", "its browsers told nothing: 1 crashed"}


def with_views(measurement: Measurement, failures: dict[str, int]) -> Measurement:
    """As many viewers as are asked for at the most had begun to play, and a hundred came anew."""
    broken = sum(failures.values())
    views = Events(intended=1100, offered=1100, completed=1100 - broken, failures=failures, censored=broken)
    events = {**measurement.window.events, VIEW: views}
    return replace(measurement, window=measurement.window.model_copy(update={"events": events}))


@pytest.mark.parametrize(
    ("failures", "went_on"),
    [({"reset": 6, "timestamps": 6}, False), ({"content": 11}, True), ({"timeout": 500}, True)],
)
def test_a_server_that_drops_its_viewers_has_not_served_them(failures: dict[str, int], went_on: bool) -> None:
    """Who takes their places begins well, and they never stalled. Who gives up in a stall is what is measured."""
    knee = searched(Scripted(lambda at: with_views(measured_at(at, FAST), failures))).knee
    assert knee is not None
    assert knee.ended == ("beyond most" if went_on else "settled")
    missed = {tuple(step.missed) for step in knee.steps}
    assert missed == ({()} if went_on else {(), ("views went on",)})


@pytest.mark.parametrize(("lost", "ended"), [(10, "beyond most"), (11, "settled")])
def test_a_server_that_cuts_participants_off_has_not_served_them(lost: int, ended: str) -> None:
    """Who comes in again joins well, and has streams again."""

    def cutting(at: float) -> Measurement:
        some = measured_at(at, FAST)
        stays = Events(
            intended=1000,
            offered=1000,
            completed=1000 - lost,
            failures={"connection lost": lost},
            censored=lost,
        )
        return replace(some, window=some.window.model_copy(update={"events": {**some.window.events, STAY: stays}}))

    knee = searched(Scripted(cutting)).knee
    assert knee is not None
    assert knee.ended == ended
    assert {tuple(step.missed) for step in knee.steps} == ({(), (STAYED,)} if ended == "settled" else {()})


def counting(at: float, counts: dict[str, int]) -> Measurement:
    some = measured_at(at, FAST)
    return replace(some, window=some.window.model_copy(update={"counts": {**some.window.counts, **counts}}))


@pytest.mark.parametrize(
    ("counts", "owed"),
    [
        ({ABSENT: 1}, ""),
        ({ABSENT: 4}, ALL_THERE),
        ({STANDING: 100, FALLEN_MS: 8900}, ""),  # of each two frames, and 0.9 % of what was played
        ({STANDING: 100, FALLEN_MS: 9001}, BUFFERS_HELD),
        ({STANDING: 0, FALLEN_MS: 0}, ""),
    ],
)
def test_viewers_who_do_not_stall_yet_are_not_served_for_long(counts: dict[str, int], owed: str) -> None:
    """Who gathered and never began cannot stall; nor does who lives on what it read ahead, until that is gone."""
    window = counting(100.0, counts).window.model_copy(update={"at": 100.0, "duration_ns": 10**9})
    assert proofs.some_never_began(window) is (owed == ALL_THERE)
    assert not proofs.some_never_began(window.model_copy(update={"at": None})), "all joins are told"
    assert proofs.buffers_fell(window) is (owed == BUFFERS_HELD)

    def beyond(at: float) -> Measurement:
        return counting(at, {key: math.ceil(count * at / 100) for key, count in counts.items()})

    knee = searched(Scripted(beyond)).knee
    assert knee is not None
    assert (knee.ended == "settled") is bool(owed)
    assert {tuple(step.missed) for step in knee.steps} == ({(), (owed,)} if owed else {()})


@pytest.mark.parametrize(
    ("percent", "bound", "ended"), [(98, "", "beyond most"), (95, "", "settled"), (95, "90", "beyond most")]
)
def test_participants_who_are_not_in_are_not_served(percent: float, bound: str, ended: str) -> None:
    """Nobody who is kept out loses or freezes anything: an objective of that was met. One of who is in tells it."""
    quantities = {
        "loss_percent": Quantity("Loss", "%", "less"),
        "present_percent": Quantity("Participants who are in", "%", "more"),
    }

    def of(at: float, percent: float) -> Measurement:
        some, values = measured_at(at, FAST), {"loss_percent": 0.0, "present_percent": 95.0}  # slow joins are told so
        told = {"values": values, "counts": {JOINED: math.ceil(percent / 100 * at)}}
        return replace(some, window=some.window.model_copy(update=told))

    objective = ("loss < 1 %", *([f"present > {bound} %"] if bound else []))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeLoad, "quantities", quantities)
        session = Scripted(lambda at: of(at, percent), lambda at: of(at, 100.0))
        knee = searched(session, replace(KNEE, objective=objective)).knee
    assert knee is not None
    assert knee.ended == ended
    assert {tuple(step.missed) for step in knee.steps} == ({(), (ALL_THERE,)} if ended == "settled" else {()})


def test_views_that_broke_off_before_a_late_generator_blame_the_generator() -> None:
    knee = searched(Scripted(lambda at: with_views(measured_at(at, FAST, late=7), {"reset": 500}))).knee
    assert knee is not None
    assert (knee.ended, knee.upper) == ("beyond generator", None)
    assert knee.steps[-1].missed == ["views went on"]
    assert knee.steps[-1].limit == "it sent 7 of 100 requests more than 10 ms late"


def test_a_window_that_misses_one_objective_is_decided_whatever_cannot_be_told_of_it() -> None:
    """An overloaded server does not even say what time it is, by which the ages of its media go."""
    objective = ("failed < 1 %", "response_time < 2 s")
    quantities = {"response_time": Quantity("Response time", "s", "less")}

    def overloaded(at: float) -> Measurement:
        some = measured_at(at, FAST)
        refused = Events(intended=100, offered=100, completed=90, failures={"reset": 10}, censored=10, late=0)
        return replace(some, window=some.window.model_copy(update={"events": {"request": refused}}))

    def well(at: float) -> Measurement:
        some = measured_at(at, FAST)
        return replace(some, window=some.window.model_copy(update={"values": {"response_time": 1.0}}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeLoad, "quantities", quantities)
        knee = searched(Scripted(overloaded, well), replace(KNEE, objective=objective)).knee
        with pytest.raises(TrialError, match="response_time was not told"):
            searched(Scripted(lambda at: measured_at(at, FAST), well), replace(KNEE, objective=objective))
    assert knee is not None
    assert knee.ended == "settled"
    for step in knee.steps:
        assert step.told == "met" or (step.missed, step.values) == (["failed < 1 %"], {"failed_percent": 10.0})


def test_steps_are_drawn_from_the_trials_name() -> None:
    paths = [[window.at for window in searched(Scripted(), trial=name).windows] for name in ("a", "a", "b")]
    assert paths[0] == paths[1]
    assert paths[0] != paths[2]


@pytest.mark.parametrize(
    ("load", "unit", "whole"),
    [
        (HttpLoad(HttpSettings(loop="open")), "requests/s", False),
        (HttpLoad(HttpSettings(loop="closed")), "users", True),
        (RedisLoad(RedisSettings(loop="open")), "commands/s", False),
        (RedisLoad(RedisSettings(loop="open", pipeline=16)), "rounds/s", False),
        (ViewersLoad(ViewersSettings()), "viewers", True),
        (ViewersLoad(ViewersSettings(paced=False)), "viewers", True),
    ],
)
def test_each_load_has_an_intensity(load: Any, unit: str, whole: bool) -> None:
    assert (load.intensity.unit, load.intensity.whole) == (unit, whole)


# -- in the experiment ------------------------------------------------------------------------------------


@dataclass
class SearchedLoad(LoadDouble):
    """Carries 50 a second."""

    beyond: Callable[[float], Measurement] = lambda at: measured_at(at, SLOW)
    works: bool = True

    def measure(self, **told: Any) -> Measurement:
        self.stage.said("load")
        made = measured_at(told["intensity"], FAST) if told["intensity"] <= 50 else self.beyond(told["intensity"])
        if self.works:
            return made
        refused = Events(intended=9, offered=9, completed=0, failures={"reset": 9}, censored=9, late=0)
        window = made.window.model_copy(update={"work": 0, "events": {"request": refused}})
        return Measurement("double 1", window, Bulk([]))

    def rest(self) -> None:
        self.stage.said("rest")


@dataclass
class SearchStage(Stage):
    """All who take part in a trial that searches."""

    beyond: Callable[[float], Measurement] = lambda at: measured_at(at, SLOW)
    works: bool = True

    def treatment(self, *_: Any) -> Treatment:
        load = SearchedLoad(self, beyond=self.beyond, works=self.works)
        return replace(super().treatment(), work=Driven(ServiceDouble(self), None, load), knee=KNEE)


def proved(monkeypatch: pytest.MonkeyPatch, directory: Path, **told: Any) -> tuple[Notes, dict[str, Check]]:
    undisturbed(monkeypatch)
    stage = SearchStage(watched(told.pop("used", WELL)), aggressor="", **told)
    (notes,) = stage.perform(monkeypatch, directory)
    windows = [what for what in stage.log if what == "load"]
    assert notes.measured is not None
    assert len(windows) == len(notes.measured.windows)
    assert [phase.name for phase in notes.phases].count("window") == len(windows)
    return notes, {check.name: check for check in notes.checks}


def test_a_search_is_one_trial_of_many_windows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notes, checks = proved(monkeypatch, tmp_path)
    assert notes.measured is not None
    assert notes.measured.knee is not None
    assert notes.measured.knee.ended == "settled"
    assert all(check.passed is not False for check in checks.values()), checks
    assert {"answered correctly after", "requests were answered", GENERATOR_HEADROOM} <= checks.keys()
    assert set(notes.tables["latency"]["window"].to_pylist()) == set(range(1, len(notes.measured.windows) + 1))


def test_a_knee_beyond_the_generator_is_a_bound_of_a_valid_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, checks = proved(monkeypatch, tmp_path, beyond=lambda at: measured_at(at, SLOW, cpu_ns=9 * 10**8))
    assert checks[GENERATOR_HEADROOM].passed is None
    assert "the knee is beyond what it can offer here, and not below 4" in checks[GENERATOR_HEADROOM].detail


def test_a_generator_that_tells_no_cpu_time_proves_no_headroom(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notes, checks = proved(monkeypatch, tmp_path, beyond=lambda at: measured_at(at, SLOW, cpu_ns=None))
    assert notes.measured is not None
    assert notes.measured.knee is not None
    assert notes.measured.knee.ended == "settled"
    check = checks[GENERATOR_HEADROOM]
    assert (check.passed, "double 1 does not report its CPU time" in check.detail) == (None, True)


def test_a_service_that_answers_nothing_has_no_knee(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notes, checks = proved(monkeypatch, tmp_path, works=False)
    assert notes.measured is not None
    assert notes.measured.knee is not None
    assert notes.measured.knee.ended == "below least"
    assert checks["requests were answered"].passed is False


def test_an_origin_that_was_the_limit_breaks_a_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, checks = proved(monkeypatch, tmp_path, used=WELL | {"origin": 0.95})
    assert checks["the origin had headroom"].passed is False


def test_what_our_wiring_loses_in_a_window_is_no_fault_of_the_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each window loses a packet: those that met the objective did so all the same."""
    dropped = itertools.count(1)
    undisturbed(monkeypatch, lambda: {"sut gen0 rx_dropped": next(dropped)})
    stage = SearchStage(watched(WELL), aggressor="")
    (notes,) = stage.perform(monkeypatch, tmp_path)
    assert notes.measured is not None
    knee = notes.measured.knee
    assert knee is not None
    assert knee.ended == "beyond generator"
    assert knee.lower is not None
    assert {step.limit for step in knee.steps if step.missed} == {"the wiring lost 1 sut gen0 rx_dropped"}
    assert "the wiring lost nothing" not in {check.name for check in notes.checks}, "an overload may overflow it"


def test_what_other_work_took_in_a_window_is_no_fault_of_the_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As with what the wiring lost; and of the whole trial it is noted."""
    undisturbed(monkeypatch)
    now_ns = itertools.count(0, 10**9)

    def look() -> Look:  # half of the time of one CPU
        at_ns = next(now_ns)
        return Look(at_ns, at_ns / 2e9, 1)

    stage = SearchStage(watched(WELL), aggressor="", look=look)
    (notes,) = stage.perform(monkeypatch, tmp_path)
    assert notes.measured is not None
    knee = notes.measured.knee
    assert knee is not None
    assert knee.ended == "beyond generator"
    told = {step.limit for step in knee.steps if step.missed}
    assert told == {"other work took 0.50 of the instance's CPUs meanwhile"}
    assert not {step.limit for step in knee.steps if not step.missed} - {""}
    assert notes.facts["others"]["cpus"] == 0.5
    assert 0.1 < notes.facts["others"]["bound"] < 0.25


@pytest.mark.parametrize("rounds", [0, 2])
def test_who_stayed_for_the_next_window_goes_where_it_is_not_the_searchs_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rounds: int
) -> None:
    """Others are measured in rotation, and then come the proofs."""
    undisturbed(monkeypatch)
    stage = SearchStage(watched(WELL), aggressor="", rounds=rounds)
    stage.perform(monkeypatch, tmp_path)
    log = [what for what in stage.log if what in ("load", "rest", "verify")]
    assert log.count("load") > 2
    assert ("load load" in " ".join(log)) is not bool(rounds)
    assert log[-2:] == ["rest", "verify"]


def test_in_rotation_others_are_measured_between_its_windows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As many rounds as the search has windows, whatever the rotation's own number is."""
    undisturbed(monkeypatch)
    stage = SearchStage(watched(WELL), aggressor="", rounds=2)
    (notes,) = stage.perform(monkeypatch, tmp_path)
    assert notes.measured is not None
    windows = len(notes.measured.windows)
    assert windows > 2
    assert stage.log.count("others") == windows + 1, "before each window, and before the conclusions"
    assert stage.log.count("warm-up") == windows + 1, "a lead-in before each"
    assert notes.waits
    assert IDLE in {check.name for check in notes.checks}


def test_one_that_has_found_its_knee_is_watched_until_the_others_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It may have had its last window, of an overload, long before: that it was idle since is proved as well."""
    turns: list[int] = []
    undisturbed(monkeypatch)
    monkeypatch.setattr(proofs, "of_idleness", lambda _notes, _watched, windows, at: turns.extend((len(windows), *at)))
    stage = SearchStage(watched(WELL), aggressor="", rounds=2)
    stage.perform(monkeypatch, tmp_path)
    last = max(at for at, what in enumerate(stage.log) if what == "others")
    assert stage.log.index("collected") > last
    windows, *began_ns = turns
    assert len(began_ns) == windows + 1, "the last: when the others' windows were over"
    assert began_ns == sorted(began_ns)
