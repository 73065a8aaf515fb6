"""One server under several generators: how a load is divided, begun together, added up, and judged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from test_experiment import WELL, LoadDouble, Rate, Stage, watched
from virtoll.catalogue import catalogue
from virtoll.errors import HostError, TrialError
from virtoll.hosts.base import Confinement
from virtoll.lab.client import Client
from virtoll.lab.wiring import dealt
from virtoll.loads.base import Bulk, Load, Measurement, Session, added, shares
from virtoll.loads.http import HttpLoad, HttpSettings
from virtoll.loads.redis import RedisLoad, RedisSettings
from virtoll.loads.several import SeveralSessions, parts_of, several, together
from virtoll.loads.viewers import ViewersLoad
from virtoll.offers import Http
from virtoll.record.model import GENERATOR_HEADROOM, Check, Drain, Events, Measured, Window
from virtoll.run.elsewhere import problems_elsewhere
from virtoll.run.generators import of_generators
from virtoll.study.file import read_study
from virtoll.study.model import Knee
from virtoll.trial import proofs, searching
from virtoll.trial.notes import Notes
from virtoll.trial.searching import KneeSearch
from virtoll.trial.several import TOGETHER
from virtoll.trial.treatment import Driven, Treatment, treatments

START_NS, SECOND_NS = 5 * 10**9, 10**9
OPEN = HttpSettings(loop="open", connections=70, rate_per_s=700.0)
OWN, SHARED = (frozenset({2}), frozenset({3})), (frozenset({1}), frozenset({1}))


def measurement(
    *,
    completed: int = 100,
    late: int = 0,
    offered: int = 100,
    cpu_ns: int | None = 10**8,
    begun_ns: int | None = START_NS + 50_000,
    start_ns: int = START_NS,
    duration_ns: int = SECOND_NS,
    drain: Drain | None = None,
    histogram: list[tuple[int, int, int]] | None = None,
) -> Measurement:
    failed = offered - completed
    events = Events(
        intended=100,
        offered=offered,
        completed=completed,
        failures={"timeout": failed} if failed else {},
        censored=100 - completed,
        queued=1,
        late=late,
        latest_ns=late and 10**8,
        drain=drain,
    )
    window = Window(
        start_ns=start_ns,
        duration_ns=duration_ns,
        work=completed,
        served=completed,
        until_ns=start_ns + duration_ns + completed,
        counts={"completed": completed, "body_bytes": 1000 * completed},
        events={"request": events},
        cpu_ns=cpu_ns,
        begun_ns=begun_ns,
    )
    return Measurement("double 1", window, Bulk(histogram or [(0, 10**6, completed)], [(0, 10**6, offered)]))


@dataclass
class SessionDouble(Session):
    """Tells what it is made to tell, at the time and intensity that it is asked for."""

    tells: Callable[[], Measurement] = measurement
    lead: int = 0
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def lead_ns(self) -> int:
        return self.lead

    def warm_up(self, duration_ns: int | None = None) -> None:
        self.asked.append(("warm-up", duration_ns))

    def rest(self) -> None:
        self.asked.append(("rest",))

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        self.asked.append(("measure", intensity, duration_ns, start_ns))
        return self.tells()


def session_of(
    *sessions: Session, load: Load | None = None, cpus: tuple[frozenset[int], ...] = OWN, end_all: Any = lambda: None
) -> SeveralSessions:
    return SeveralSessions(load or HttpLoad(OPEN), sessions, cpus, end_all, clock=lambda: 0)


# -- divided -----------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 64))
def test_whole_things_are_shared_exactly_and_no_part_has_two_more_than_another(whole: int, parts: int) -> None:
    each = shares(whole, parts)
    assert (sum(each), len(each)) == (whole, parts)
    assert max(each) - min(each) <= 1
    assert each == sorted(each, reverse=True), "what is over goes to the first"


def test_a_load_is_divided_into_connections_rates_and_seeds_of_their_own() -> None:
    load = HttpLoad(HttpSettings(loop="open", connections=7, rate_per_s=300.0, seed=5))
    parts = [part.settings for part in load.divided(3)]
    assert [part.connections for part in parts] == [3, 2, 2]
    assert [part.rate_per_s for part in parts] == [100.0] * 3
    assert parts[0].seed == 5, "the first draws as it does alone"
    assert len({seed.seed + window for seed in parts for window in range(1000)}) == 3000, "none has another's"
    assert not any(part.log_requests for part in parts)


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (HttpLoad(HttpSettings(connections=2)), "2 connection(s) cannot be shared by 3 generators"),
        (HttpLoad(HttpSettings(connections=9, requests=10)), "a number of requests"),
        (HttpLoad(HttpSettings(loop="open", connections=9, arrival="constant")), "bursts"),
        (ViewersLoad(), "load 'viewers' is of one generator"),
    ],
)
def test_what_would_be_another_load_is_not_divided(load: Load, why: str) -> None:
    assert why in load.undivided(3)
    with pytest.raises(ValueError, match=r".+"):
        load.divided(3)


def test_an_intensity_is_shared_as_the_load_counts_it() -> None:
    assert parts_of(HttpLoad(HttpSettings(connections=9)), 7, 3) == [3, 2, 2]
    assert parts_of(HttpLoad(OPEN), 90.0, 3) == [30.0] * 3
    assert parts_of(RedisLoad(RedisSettings(connections=9)), None, 3) == [None] * 3


def test_each_generator_has_cpus_of_its_own_where_there_are_enough() -> None:
    assert dealt(frozenset({1, 2, 5}), 2) == [frozenset({1, 2}), frozenset({5})]
    assert dealt(frozenset({4}), 1) == [frozenset({4})]
    assert dealt(frozenset({4, 6}), 3) == [frozenset({4, 6})] * 3, "else all share all"


# -- begun together ----------------------------------------------------------------------------------------


def test_all_are_told_one_time_that_leaves_them_time_to_begin() -> None:
    one, other = SessionDouble(), SessionDouble(lead=7)
    session = session_of(one, other)
    session.measure(intensity=90.0, duration_ns=SECOND_NS)
    session.measure(intensity=90.0)
    first, second = one.asked
    assert first == ("measure", 45.0, SECOND_NS, 2 * 10**9 + 7), "the first window awaits their processes, and a lead"
    assert second == ("measure", 45.0, None, 250 * 10**6 + 7)
    assert other.asked == one.asked


def test_a_time_that_others_have_set_holds() -> None:
    one, other = SessionDouble(), SessionDouble()
    session_of(one, other).measure(start_ns=99)
    assert one.asked == other.asked == [("measure", None, None, 99)]


def test_they_warm_up_and_rest_together() -> None:
    doubles = [SessionDouble(), SessionDouble()]
    session = session_of(*doubles)
    session.warm_up(3)
    session.lead_in(4)
    session.rest()
    assert [each.asked for each in doubles] == [[("warm-up", 3), ("warm-up", 4), ("rest",)]] * 2
    session.measure()
    assert doubles[0].asked[-1][3] == 250 * 10**6, "they are there"


def test_who_warmed_up_for_no_time_is_not_there_yet() -> None:
    """Its process was to start within 250 ms of the first window: on a busy machine it began too late in each trial."""
    one, other = SessionDouble(), SessionDouble()
    session = session_of(one, other, load=HttpLoad(replace(OPEN, warm_up_ns=0)))
    session.warm_up()
    session.measure()
    assert one.asked == other.asked == [("warm-up", None), ("measure", None, None, 2 * 10**9)]


def test_all_do_their_part_at_one_time() -> None:
    met = threading.Barrier(3, timeout=600)

    def meet() -> Measurement:
        met.wait()
        return measurement()

    sessions = [SessionDouble(meet) for _ in range(3)]
    session = session_of(*sessions, cpus=(frozenset({1}),) * 3)
    assert session.measure().window.work == 300


# -- one that fails ----------------------------------------------------------------------------------------


def test_the_one_that_dies_is_named_and_ends_the_others() -> None:
    ended = threading.Event()

    def dies() -> Measurement:
        raise TrialError("it was ended by signal 9", where="the load generator on here", remedy="look")

    def goes_on() -> Measurement:
        assert ended.wait(600)
        raise TrialError("it was ended by us")

    doubles = SessionDouble(goes_on), SessionDouble(dies), SessionDouble(goes_on)
    session = session_of(*doubles, cpus=(frozenset({1}),) * 3, end_all=ended.set)
    with pytest.raises(TrialError) as raised:
        session.measure()
    assert raised.value.problem.what == "generator 2 of 3: it was ended by signal 9"
    assert raised.value.problem.where == "the load generator on here"


def test_an_error_of_ours_is_told_as_it_is_and_one_that_cannot_be_ended_has_its_time() -> None:
    tried = threading.Event()

    def cannot() -> None:
        tried.set()
        raise HostError("it does not die")

    def wrong() -> Measurement:
        raise KeyError("of ours")

    def slow() -> Measurement:
        assert tried.wait(30)
        return measurement()

    with pytest.raises(KeyError, match="of ours"):
        session_of(SessionDouble(wrong), SessionDouble(slow), end_all=cannot).measure()


def test_sessions_are_opened_where_the_generators_stand_and_closed_again(tmp_path: Path) -> None:
    log: list[Any] = []

    class Opened:
        settings = OPEN
        name = "double"

        def __init__(self, number: int = 0) -> None:
            self.number = number

        def divided(self, parts: int) -> list[Any]:
            return [Opened(number) for number in range(1, parts + 1)]

        def session(self, client: Client, offer: Http) -> Any:
            log.append((self.number, client.confinement.netns, offer.port))
            return SessionScope(log, self.number)

    class SessionScope:
        def __init__(self, log: list[Any], number: int) -> None:
            self.log, self.number = log, number

        def __enter__(self) -> Session:
            return SessionDouble()

        def __exit__(self, *_: object) -> None:
            self.log.append(-self.number)

    places = [Confinement(netns=f"gen{n}", cpus=frozenset({n})) for n in (1, 2)]
    clients = [Client(cast(Any, None), place, tmp_path, 1) for place in places]
    with several(cast(Any, Opened()), clients, Http("198.18.1.1", 80), lambda: None) as session:
        assert isinstance(session, SeveralSessions)
        assert session.cpus == [frozenset({1}), frozenset({2})]
    assert log == [(1, "gen1", 80), (2, "gen2", 80), -2, -1]


# -- added up ----------------------------------------------------------------------------------------------


HISTOGRAMS = st.lists(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10**9)), max_size=20).map(
        lambda rows: [(10 * at, 10 * at + 10, count) for at, count in dict(rows).items()]
    ),
    min_size=1,
    max_size=8,
)


@given(HISTOGRAMS)
def test_histograms_are_merged_without_loss(histograms: list[list[tuple[int, int, int]]]) -> None:
    merged = added(histograms)
    for lower in range(0, 510, 10):
        in_all = sum(count for each in histograms for at, _, count in each if at == lower)
        assert sum(count for at, _, count in merged if at == lower) == in_all
    assert merged == sorted(merged)
    assert len({lower for lower, _, _ in merged}) == len(merged), "each bucket once"


def test_buckets_of_another_layout_are_never_added() -> None:
    with pytest.raises(ValueError, match="buckets of different histograms"):
        added([[(0, 10, 3)], [(0, 12, 3)]])
    parts = [measurement(), measurement(histogram=[(5, 2 * 10**6, 100)])]
    with pytest.raises(TrialError, match="different histograms"):
        together(HttpLoad(OPEN), parts, OWN, None)


def test_what_was_done_is_added_over_one_window() -> None:
    drains = Drain(under_way=3, completed=2, end_ns=7), Drain(under_way=1, completed=1, end_ns=9)
    parts = [
        measurement(completed=90, drain=drains[0], begun_ns=START_NS + 10),
        measurement(completed=100, late=2, drain=drains[1], begun_ns=START_NS + 30),
    ]
    whole = together(HttpLoad(OPEN), parts, OWN, 190.0)
    window, events = whole.window, whole.window.events["request"]
    assert (window.start_ns, window.duration_ns, window.rate_per_s, window.at) == (START_NS, SECOND_NS, 190.0, 190.0)
    assert (window.served, window.until_ns) == (190, START_NS + SECOND_NS + 100)
    assert window.counts == {"completed": 190, "body_bytes": 190_000}
    assert (events.intended, events.offered, events.completed, events.censored) == (200, 200, 190, 10)
    assert (events.failures, events.late, events.latest_ns, events.queued) == ({"timeout": 10}, 2, 10**8, 2)
    assert events.drain == Drain(under_way=4, completed=3, end_ns=9)
    assert (window.cpu_ns, window.begun_ns) == (2 * 10**8, START_NS + 30)
    assert [(part.generator, part.cpus) for part in window.parts] == [(1, [2]), (2, [3])]
    assert [part.window for part in window.parts] == [part.window for part in parts], "what each told is kept"
    assert whole.bulk == Bulk([(0, 10**6, 190)], [(0, 10**6, 200)])
    assert Window.model_validate_json(window.model_dump_json()) == window


def test_what_one_does_not_tell_is_not_known_of_all() -> None:
    untold = measurement(cpu_ns=None, begun_ns=None)
    window = together(HttpLoad(OPEN), [measurement(), untold], OWN, None).window
    assert (window.cpu_ns, window.begun_ns) == (None, None)
    assert window.events["request"].drain is None
    silent = Measurement("double 1", measurement().window)
    assert together(HttpLoad(OPEN), [measurement(), silent], OWN, None).bulk == Bulk()


@pytest.mark.parametrize("other", [{"start_ns": START_NS + 1}, {"duration_ns": SECOND_NS - 1}])
def test_windows_that_are_not_the_same_are_no_window_of_all(other: dict[str, int]) -> None:
    with pytest.raises(TrialError, match=r"windows are not the same: generator 1: .*; generator 2: "):
        together(HttpLoad(OPEN), [measurement(), measurement(**other)], OWN, None)  # type: ignore[arg-type]


# -- judged ------------------------------------------------------------------------------------------------


def checked(
    *parts: Measurement, cpus: tuple[frozenset[int], ...] = OWN, loop: str = "open", busy: float | str = "not known"
) -> dict[str, Check]:
    whole = together(HttpLoad(OPEN), parts, cpus, None)
    told = {"name": "http", "instrument": "double 1", "unit": "request", "loop": loop, "windows": [whole.window]}
    notes = Notes(Path("/nonexistent"), lambda _phase: None)
    proofs.of_generator(notes, Measured.model_validate(told), 2, busy)
    return {check.name: check for check in notes.checks}


def test_generators_that_did_their_part_pass_and_tell_the_skew() -> None:
    checks = checked(measurement(), measurement(begun_ns=START_NS + 350_000))
    assert all(check.passed for check in checks.values()), checks
    assert checks[TOGETHER].detail.startswith("the last 300 us after the first, and 350 us after the agreed time")
    assert checks[GENERATOR_HEADROOM].detail == "used generator 1 10% of 1 CPU; generator 2 10% of 1 CPU"


def test_one_saturated_generator_voids_the_trial_and_is_named() -> None:
    check = checked(measurement(), measurement(cpu_ns=9 * 10**8))[GENERATOR_HEADROOM]
    assert check.passed is False, "of both together it would be half of two CPUs"
    assert check.detail.endswith("; without headroom: generator 2")


def test_generators_that_share_cpus_have_the_headroom_that_is_left_of_them() -> None:
    half = measurement(cpu_ns=5 * 10**8)
    assert checked(half, half)[GENERATOR_HEADROOM].passed is True
    check = checked(half, half, cpus=SHARED)[GENERATOR_HEADROOM]
    assert check.passed is False
    assert check.detail.endswith("generator 2 100% of 1 CPU; without headroom: generator 1, generator 2")


def test_in_closed_loop_an_instance_that_used_all_it_had_set_the_pace() -> None:
    most = measurement(cpu_ns=9 * 10**8)
    assert checked(measurement(), most, loop="closed", busy=0.99)[GENERATOR_HEADROOM].passed is True
    assert checked(measurement(), most, loop="closed", busy=0.5)[GENERATOR_HEADROOM].passed is False
    assert checked(measurement(), most, loop="open", busy=0.99)[GENERATOR_HEADROOM].passed is False


def test_one_that_began_late_voids_the_trial_and_is_named() -> None:
    check = checked(measurement(), measurement(begun_ns=START_NS + 2_100_000))[TOGETHER]
    assert check.passed is False
    assert check.detail.endswith("; too late: generator 2")
    long = [measurement(duration_ns=10 * SECOND_NS), measurement(duration_ns=10 * SECOND_NS, begun_ns=START_NS + 10**7)]
    assert checked(*long)[TOGETHER].passed is True, "a thousandth of the window"


def test_who_slept_through_its_lead_in_began_late() -> None:
    """By when it was to begin to ask: the window's own begin is the same for all."""
    early = {"asked_ns": START_NS - 5 * 10**6}
    parts = [measurement(begun_ns=START_NS - 5 * 10**6), measurement(begun_ns=START_NS)]
    led = [replace(each, window=each.window.model_copy(update=early)) for each in parts]
    check = checked(*led)[TOGETHER]
    assert check.passed is False
    assert check.detail.startswith("the last 5 ms after the first, and 5 ms after the agreed time")


def test_a_common_start_leaves_time_for_the_longest_lead_in_at_the_intensity_asked_for() -> None:
    class Leading(SessionDouble):
        def lead_ns_at(self, intensity: float | None) -> int:
            return round(1000 * (intensity or 0))

    one, other = Leading(), Leading()
    session_of(one, other, load=HttpLoad(replace(OPEN, loop="closed"))).measure(intensity=101)
    assert one.asked[-1][1:2] == (51,)
    start_ns = one.asked[-1][3]
    assert start_ns == other.asked[-1][3]
    session_of(one, other, load=HttpLoad(replace(OPEN, loop="closed"))).measure(intensity=1001)
    assert one.asked[-1][3] - start_ns == 1000 * (501 - 51)


def test_what_is_not_told_is_no_proof() -> None:
    untold = checked(measurement(), measurement(cpu_ns=None, begun_ns=None))
    assert untold[TOGETHER].passed is None
    assert untold[GENERATOR_HEADROOM].passed is None


def test_a_late_or_lazy_generator_is_not_lost_among_many() -> None:
    many = [measurement() for _ in range(399)]
    cpus = tuple(frozenset({n}) for n in range(400))
    late = checked(*many, measurement(late=100), cpus=cpus)["the generator kept its schedule"]
    assert late.passed is False
    assert late.detail.endswith("; too many by generator 400")
    lazy = checked(*many, measurement(offered=50, completed=50), cpus=cpus)["offered load met intended"]
    assert lazy.passed is False
    assert lazy.detail.endswith("; too few by generator 400")


@dataclass
class ManyDouble(LoadDouble):
    """A load that two generators drive together; ``number``: which part it is (0: all)."""

    number: int = 0

    def undivided(self, parts: int) -> str:
        assert parts == 2
        return ""

    def divided(self, parts: int) -> list[Load]:
        assert parts == 2
        return [ManyDouble(self.stage, Rate(50), number=number) for number in (1, 2)]

    def measure(self, **asked: Any) -> Measurement:
        assert (asked["intensity"], asked["duration_ns"], self.number > 0) == (None, None, True)
        assert asked["start_ns"] is not None
        one = measurement(begun_ns=None)
        cpu_ns = (2 * 10**8, 9 * 10**8)[self.number - 1]
        begun_ns = 10_000 * self.number
        window = one.window.model_copy(update={"start_ns": 0, "begun_ns": begun_ns, "cpu_ns": cpu_ns})
        return Measurement(one.instrument, window, one.bulk)


@dataclass
class ManyStage(Stage):
    """Of which the second of two generators is saturated."""

    @property
    def lab(self) -> Any:
        return SimpleNamespace(**vars(super().lab), cgroup="virtoll-double")

    def client(self, *_names: str, of: Any) -> Client:
        return Client(cast(Any, None), Confinement(), Path("/nonexistent"), cpus=2)

    def places(self, client: Client, generators: int) -> list[Client]:
        places = [Confinement(netns=f"gen{n}", cpus=frozenset({n})) for n in range(1, generators + 1)]
        return [replace(client, confinement=place, cpus=1) for place in places]

    def treatment(self, *_: Any) -> Treatment:
        treatment = super().treatment()
        assert isinstance(treatment.work, Driven)
        return replace(treatment, work=replace(treatment.work, load=ManyDouble(self)), generators=2)


def test_a_trial_is_of_all_its_generators(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stage = ManyStage(watched(WELL), aggressor="", counts=False)
    (notes,) = stage.perform(monkeypatch, tmp_path)
    assert [client.confinement.netns for client in stage.clients] == ["gen1", "gen2"]
    assert stage.log.count("session") == stage.log.count("session ended") == stage.log.count("warm-up") == 2
    assert notes.facts["generators"] == [{"cpus": [n], "rate_per_s": 50} for n in (1, 2)]
    assert notes.measured is not None
    assert notes.measured.window.work == 200
    assert notes.tables["latency"].num_rows == 1, "one histogram of both"
    failed = {check.name: check.detail for check in notes.checks if check.passed is False}
    assert failed.keys() == {GENERATOR_HEADROOM}
    assert failed[GENERATOR_HEADROOM].endswith("; without headroom: generator 2")


# -- searched ----------------------------------------------------------------------------------------------


KNEE = Knee(objective=("latency_p99 < 20 ms",), least=2, most=1000, precision_share=0.2, window_ns=SECOND_NS, windows=3)


@dataclass
class Part(Session):
    """A generator's part of a service that meets the objective as long as all ask for no more than ``knee`` together;
    with ``generators`` of them.
    """

    knee: float
    cpu_ns: Callable[[float], int] = lambda _at: 10**8
    begun_ns: int = 10_000
    generators: int = 2

    def warm_up(self, duration_ns: int | None = None) -> None: ...

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        assert intensity is not None
        assert start_ns is not None
        whole = self.generators * intensity
        slow = [(0, 10**6, 90), (25 * 10**6, 30 * 10**6, 10)]
        histogram = slow if whole > self.knee else [(0, 10**6, 100)]
        cpu_ns, begun_ns = self.cpu_ns(intensity), start_ns + self.begun_ns
        return measurement(histogram=histogram, start_ns=start_ns, cpu_ns=cpu_ns, begun_ns=begun_ns)


def searched(*sessions: Session) -> Any:
    load = HttpLoad(OPEN)
    search = KneeSearch(KNEE, load, 2, "b01-t0001")
    session = session_of(*sessions, load=load)
    while search.asked is not None:
        search.measure(session)
    knee = search.measured().knee
    assert knee is not None
    return knee


def test_a_knee_is_searched_for_over_all_generators() -> None:
    knee = searched(Part(400), Part(400))
    assert knee.ended == "settled"
    assert knee.lower <= 400 < knee.upper, "of what all ask for together"


def test_each_generator_has_connections_of_its_own_to_search_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a process in a namespace of its own. A search by two ended where the ports, or files, of one did."""
    monkeypatch.setattr("virtoll.hosts.open_files.most_open_files", lambda: (1000, True))
    load = HttpLoad(HttpSettings(connections=2))
    assert load.most_here(2) == 928
    search = KneeSearch(replace(KNEE, most=5000), load, 2, "b01-t0001", 2)
    session = session_of(Part(9000), Part(9000), load=load)
    while search.asked is not None:
        search.measure(session)
    measured = search.measured()
    assert measured.knee is not None
    assert (measured.knee.ended, measured.knee.lower) == ("beyond generator", 1856)
    assert measured.notes == ["the generator cannot be asked for more than 1,856 users here"]


def test_one_generator_that_is_in_the_way_counts_against_no_service() -> None:
    saturated = searched(Part(400), Part(400, cpu_ns=lambda at: 9 * 10**8 if at > 150 else 10**8))
    assert saturated.ended == "beyond generator"
    assert {step.limit for step in saturated.steps if step.limit} == {"generator 2 used 90% of its 1 CPU"}
    late = searched(Part(400), Part(400, begun_ns=10**7))
    assert late.ended == "beyond generator"
    assert all(step.limit.startswith("generator 2 began too late") for step in late.steps if step.told == "generator")


def test_a_search_tells_how_far_apart_they_began() -> None:
    def told(*begun_ns: int | None) -> list[tuple[bool | None, str]]:
        notes = Notes(Path("/nonexistent"), lambda _phase: None)
        parts = [measurement(begun_ns=None if ns is None else START_NS + ns) for ns in begun_ns]
        searching.of_beginning(notes, [together(HttpLoad(OPEN), parts, OWN, None).window])
        return [(check.passed, check.detail) for check in notes.checks]

    assert told(10_000, 60_000) == [(True, "the last at most 50 us after the first; too late in 0 windows")]
    assert told(0, 10**7) == [(True, "the last at most 10 ms after the first; too late in 1 windows")]
    assert told(0, None) == [(None, "not all of them tell when each began")]
    notes = Notes(Path("/nonexistent"), lambda _phase: None)
    searching.of_beginning(notes, [measurement().window])
    assert notes.checks == [], "there is one"


def test_what_one_sent_too_little_of_does_not_count() -> None:
    parts = [measurement() for _ in range(399)] + [measurement(offered=50, completed=50)]
    whole = together(HttpLoad(OPEN), parts, tuple(frozenset({n}) for n in range(400)), 40_000.0)
    told = searching.lacking(whole.window, HttpLoad(OPEN))
    assert told == "it sent 39950 of 40000 requests (too few by generator 400)"


# -- asked for ---------------------------------------------------------------------------------------------


TEXT = """\
name = "many"
title = "One server, several generators"
question = "How many does it serve?"
blocks = 3

[service]
name = "nginx"

[load]
name = "http"
connections = 8

[generators]
count = 3

[[arms]]
platform = "docker"
network = "routed"
[[arms]]
platform = "native"
"""


def test_how_many_there_are_may_vary_within_a_study() -> None:
    text = TEXT.replace("[generators]\ncount = 3", '[factors]\n"generators.count" = [1, 4]')
    told = treatments(read_study(text, "many.toml", catalogue()))
    assert [treatment.generators for treatment in told] == [1, 4]
    kept = [treatment.work.load.settings.log_requests for treatment in told if isinstance(treatment.work, Driven)]
    assert kept == [True, False]


def problems(text: str) -> list[str]:
    (treatment,) = treatments(read_study(text, "many.toml", catalogue()))
    return [problem.what for problem in of_generators(treatment, "many.toml")]


def test_a_study_says_how_many_generators_there_are() -> None:
    (treatment,) = treatments(read_study(TEXT, "many.toml", catalogue()))
    assert treatment.generators == 3
    assert isinstance(treatment.work, Driven)
    assert treatment.work.load.settings.log_requests is False
    assert problems(TEXT) == []
    alone = read_study(TEXT.replace("count = 3", ""), "many.toml", catalogue())
    (treatment,) = treatments(alone)
    assert treatment.generators == 1
    assert isinstance(treatment.work, Driven)
    assert treatment.work.load.settings.log_requests is True


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("connections = 8", "connections = 2", "2 connection(s) cannot be shared by 3 generators"),
        ("connections = 8", "connections = 8\nrequests = 100", "a number of requests"),
        ("[generators]", '[neighbour]\naggressor = "cpu"\n[generators]', "request by request"),
        ("blocks = 3", 'blocks = 3\ndesign = "rotation"', "after its lead-in"),
        (
            "[generators]",
            '[knee]\nobjective = ["latency_p99 < 20 ms"]\nleast = 2\n[generators]',
            "2 users cannot be shared by 3 generators",
        ),
    ],
)
def test_what_several_generators_cannot_do_is_refused_with_a_remedy(old: str, new: str, why: str) -> None:
    (told,) = problems(TEXT.replace(old, new))
    assert why in told
    assert problems(TEXT.replace(old, new).replace("count = 3", "count = 1")) == [], "one generator can"


def test_they_have_no_links_to_a_machine_elsewhere() -> None:
    study = read_study(TEXT, "many.toml", catalogue())
    arm = study.arms[0].arm.model_copy(update={"platform": "ssh", "settings": {"destination": "here"}})
    told = problems_elsewhere(study, treatments(study), arm)
    assert "several generators have links in the lab alone" in [problem.what for problem in told]
