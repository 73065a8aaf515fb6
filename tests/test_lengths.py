"""How long a rotation's windows are: by the service's own pace, chosen once, and long enough to tell it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from quiet import Quiet
from virtoll.analysis.ratios import log_ratios
from virtoll.analysis.rounds import in_turn
from virtoll.catalogue import catalogue
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.loads.base import Load, Measurement, Session, loads
from virtoll.loads.http import HttpLoad, HttpSession, HttpSettings
from virtoll.loads.native import pace_of
from virtoll.loads.redis import RedisLoad, RedisSession, RedisSettings
from virtoll.loads.several import SeveralSessions
from virtoll.offers import Http, Redis
from virtoll.record.model import ROTATION, Measured, PlannedTrial, Window
from virtoll.record.store import RunDirectory
from virtoll.report.findings import Findings, find
from virtoll.report.method import one_observation
from virtoll.report.reservations import _short, reservations
from virtoll.run.execute import execute
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import Rotation, Study
from virtoll.study.plan import make_plan, watched_seconds
from virtoll.trial.lengths import Length, length
from virtoll.trial.notes import Notes
from virtoll.trial.searching import SearchedService
from virtoll.trial.subjects import DrivenService
from virtoll.trial.treatment import slower, treatments

MS, SECOND = 10**6, 10**9
SHORT = Rotation(rounds=2, window_ns=100 * MS, lead_in_ns=50 * MS)


# -- the rule ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("under_way", "pace_per_s", "window_ms"),
    [
        (20, 10_000, 100),  # what the study says is enough
        (20, 500, 120),
        (20, 200, 300),
        (20, 1, 2_000),  # no longer than this
        (320, 6_000, 160),  # rounds of sixteen commands
        (1, 20, 150),
        (None, 400, 100),
        (20, None, 100),
        (20, 0, 100),
    ],
)
def test_windows_hold_what_is_under_way_three_times(
    under_way: int | None, pace_per_s: float | None, window_ms: int
) -> None:
    assert length(SHORT, under_way, pace_per_s).window_ns == window_ms * MS


def test_no_window_is_more_than_twenty_times_the_studys_nor_than_two_seconds_but_for_the_studys_own() -> None:
    for window_ns, longest_ns in ((10 * MS, 200 * MS), (400 * MS, 2 * SECOND), (3 * SECOND, 3 * SECOND)):
        rotation = Rotation(window_ns=window_ns)
        assert length(rotation, 20, 1e-3).window_ns == rotation.longest_ns == longest_ns


def test_what_was_chosen_is_told_with_what_it_follows_from() -> None:
    told = {"window_ns": 300 * MS, "every_rounds": 1, "first_round": 1, "pace_per_s": 200.0, "under_way": 20}
    assert length(SHORT, 20, 200.0).told() == told
    unknown = {"window_ns": 100 * MS, "every_rounds": 1, "first_round": 1, "pace_per_s": None, "under_way": None}
    assert length(SHORT, 20, None).told() == unknown


@pytest.mark.parametrize(
    ("rounds", "pace_per_s", "every"),
    [
        (16, 10_000, 1),
        (16, 400, 1),  # 150 ms after 75: less than two turns of 150
        (16, 300, 2),  # 200 ms after 100
        (16, 200, 3),
        (16, 20, 4),  # in four rounds at the least
        (7, 20, 1),
        (3, 20, 1),
    ],
)
def test_who_takes_as_long_as_several_turns_has_one_in_fewer_rounds(rounds: int, pace_per_s: float, every: int) -> None:
    assert length(replace(SHORT, rounds=rounds), 20, pace_per_s).every == every


def test_a_pace_is_of_all_that_was_served_and_of_all_of_its_time() -> None:
    """A brief warm-up's rate would tell more than the service does."""
    brief = Window(start_ns=100, asked_ns=0, duration_ns=200, work=60, served=100.0, until_ns=500)
    assert pace_of(brief) == 100e9 / 500
    hung = brief.model_copy(update={"until_ns": 10**6, "counts": {"completed": 60}})
    assert pace_of(hung) == 60e9 / 200, "one that hung is not the pace"
    assert pace_of(hung, work_each=16) == 16 * 60e9 / 200
    for untold in ({"served": None}, {"served": 0.0}, {"until_ns": None}, {"until_ns": 0}):
        assert pace_of(brief.model_copy(update=untold)) is None


# -- what loads tell ----------------------------------------------------------------------------------------


class Told:
    """In the place of a session's drive: 90 requests of a second, the last answered half a second later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cls: type[Any]) -> None:
        self.driven: list[Any] = []

        def drive(_session: Any, settings: Any, *_: Any) -> Measurement:
            self.driven.append(settings)
            served = 90.0 * settings.__dict__.get("pipeline", 1)
            window = Window(start_ns=0, duration_ns=SECOND, work=served, served=served, until_ns=3 * SECOND // 2)
            return Measurement("double 1", window)

        monkeypatch.setattr(cls, "_drive", drive)


def test_the_native_generators_warm_up_tells_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, HttpSession)
    session = HttpSession(HttpLoad(HttpSettings(connections=20)), cast(Any, None), Http("127.0.0.1", 1))
    assert [session.warm_up(), session.warm_up(7)] == [pytest.approx(60)] * 2
    assert [each.time_limit_ns for each in told.driven] == [10**9, 7]
    none = HttpSession(HttpLoad(HttpSettings(warm_up_ns=0)), cast(Any, None), Http("127.0.0.1", 1))
    assert none.warm_up() is None
    assert len(told.driven) == 2


def test_a_pace_is_in_units_of_work_and_an_open_loops_is_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    Told(monkeypatch, RedisSession)
    closed = RedisSettings(connections=20, pipeline=16)
    assert RedisLoad(closed).under_way == 320
    assert RedisSession(RedisLoad(closed), cast(Any, None), Redis("127.0.0.1", 1)).warm_up() == pytest.approx(60 * 16)
    scheduled = replace(closed, loop="open", rate_per_s=50.0)
    assert RedisLoad(scheduled).under_way == 16, "its connections are those that it may ever need"
    for warm_up_ns in (0, SECOND):
        load = RedisLoad(replace(scheduled, warm_up_ns=warm_up_ns))
        assert RedisSession(load, cast(Any, None), Redis("127.0.0.1", 1)).warm_up() == 50.0 * 16


def test_programs_viewers_and_participants_keep_the_studys_windows() -> None:
    follow = {name for name, load in loads().items() if load.under_way is not Load.under_way}
    assert follow == {"http", "redis"}
    assert all(each.follows_pace for each in treatments(study()))
    assert not any(each.follows_pace for each in treatments(study('[load]\nname = "wrk"')))


@dataclass
class Paced(Session):
    """Tells these paces, one after the other, and writes down what it is asked for."""

    paces_per_s: list[float | None]
    asked: list[tuple[str, int | None]] = field(default_factory=list)

    def warm_up(self, duration_ns: int | None = None) -> float | None:
        self.asked.append(("warm-up", duration_ns))
        return self.paces_per_s.pop(0) if self.paces_per_s else None

    def lead_in(self, duration_ns: int) -> None:
        self.asked.append(("lead-in", duration_ns))

    def measure(self, *, duration_ns: int | None = None, **_: Any) -> Measurement:
        self.asked.append(("window", duration_ns))
        return Measurement("double 1", Window(start_ns=0, duration_ns=duration_ns or 7, work=1.0))


def test_several_generators_have_the_pace_of_all_of_them() -> None:
    def of(*paces: float | None) -> SeveralSessions:
        sessions = [Paced([pace, pace]) for pace in paces]
        load = HttpLoad(HttpSettings(connections=4))
        return SeveralSessions(load, sessions, [frozenset()] * len(paces), lambda: None, clock=lambda: 0)

    both = of(100.0, 50.0)
    assert both.warm_up() == 150.0
    assert of(100.0, None).warm_up() is None


# -- what a trial does with it -------------------------------------------------------------------------------


def turns(session: Paced, load: Load, kind: Any = DrivenService, **more: Any) -> dict[str, Any]:
    """The facts of a trial of two rounds."""
    nothing: Any = SimpleNamespace(measured=lambda _windows: None, under_way=load.under_way, loop="closed")
    there = (nothing, nothing, session, Http("127.0.0.1", 1), nothing, nothing, False, nothing)
    subject = kind(*there, SHORT, **more)
    notes = Notes(Path("/nowhere"), lambda _name: None)
    subject.warm_up(notes)
    for _ in range(2):
        subject.lead_in()
        if kind is DrivenService:
            subject.measure(notes)
    return notes.facts


def test_all_windows_of_a_trial_are_as_long_and_chosen_before_the_first() -> None:
    session = Paced([400.0, 9_000.0, 3.0])
    facts = turns(session, HttpLoad(HttpSettings(connections=20)))
    turn: list[tuple[str, int | None]] = [("lead-in", SHORT.lead_in_ns), ("window", 150 * MS)]
    assert session.asked == [("warm-up", None), *turn, *turn]
    assert facts[ROTATION]["window_ns"] == 150 * MS
    assert facts[ROTATION]["pace_per_s"] == 400.0


def test_where_no_warm_up_tells_a_stretch_as_long_as_a_lead_in_does() -> None:
    session = Paced([None, 400.0])
    facts = turns(session, HttpLoad(HttpSettings(connections=20)))
    assert session.asked[:4] == [
        ("warm-up", None),
        ("warm-up", SHORT.lead_in_ns),
        ("lead-in", SHORT.lead_in_ns),
        ("window", 150 * MS),
    ]
    assert facts[ROTATION]["pace_per_s"] == 400.0


def test_a_pace_that_nobody_tells_is_not_guessed() -> None:
    session = Paced([])
    facts = turns(session, HttpLoad(HttpSettings(connections=20)))
    assert session.asked[-1] == ("window", SHORT.window_ns)
    assert facts[ROTATION]["pace_per_s"] is None


def test_a_load_that_is_no_matter_of_pace_is_neither_led_in_twice_nor_told_of() -> None:
    session = Paced([None, 400.0])
    assert turns(session, cast(Any, SimpleNamespace(under_way=None))) == {}
    turn: list[tuple[str, int | None]] = [("lead-in", SHORT.lead_in_ns), ("window", SHORT.window_ns)]
    assert session.asked == [("warm-up", None), *turn, *turn]


def test_a_search_keeps_the_studys_lead_in_and_is_told_nothing_of_a_pace() -> None:
    """Each of its windows is at another intensity."""
    session = Paced([1.0])
    load = HttpLoad(HttpSettings(connections=20))
    assert turns(session, load, SearchedService, search=cast(Any, None)) == {}
    assert session.asked == [("warm-up", None), *[("lead-in", SHORT.lead_in_ns)] * 2]


def test_without_a_rotation_a_window_is_as_long_as_its_load_says() -> None:
    session = Paced([400.0])
    nothing: Any = SimpleNamespace(measured=lambda _windows: None, under_way=20, loop="closed")
    there = (nothing, nothing, session, Http("127.0.0.1", 1), nothing, nothing, False, nothing)
    subject, notes = DrivenService(*cast(Any, there)), Notes(Path("/nowhere"), lambda _name: None)
    subject.warm_up(notes)
    subject.lead_in()
    subject.measure(notes)
    assert session.asked == [("warm-up", None), ("window", None)]
    assert notes.facts == {}


# -- before and after ----------------------------------------------------------------------------------------

TEXT = """
name = "paced"
question = "What does docker cost here?"
design = "rotation"
blocks = 3
[rotation]
rounds = 4
window = "100 ms"
lead_in = "50 ms"
[service]
name = "nginx"
{load}
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
"""


def study(load: str = '[load]\nname = "http"\nconnections = 20', text: str = TEXT) -> Study:
    return read_study(text.format(load=load), "paced.toml", catalogue())


def test_short_windows_are_right_in_a_study_of_http_and_of_redis() -> None:
    redis = TEXT.replace("nginx", "redis")
    for each in (study(), study('[load]\nname = "redis"', redis)):
        (treatment,) = treatments(each)
        assert treatment.rotation == Rotation(rounds=4, window_ns=100 * MS, lead_in_ns=50 * MS)


def test_an_estimate_of_paced_arms_says_what_it_does_not_know() -> None:
    assert slower(study()) == " (slow arms take longer)"
    assert slower(study('[load]\nname = "wrk"')) == ""
    assert (
        slower(
            study(
                text=TEXT.replace('design = "rotation"', "")
                .replace("[rotation]", "#")
                .replace("rounds = 4", "")
                .replace('window = "100 ms"', "")
                .replace('lead_in = "50 ms"', "")
            )
        )
        == ""
    )


def test_what_the_slowest_arms_do_is_watched_to_its_end() -> None:
    """Three arms of which each may have windows and lead-ins of two seconds, four rounds of them."""
    assert watched_seconds(study(), {}) >= 3 * 4 * (2 + 2)
    viewers = study('[load]\nname = "viewers"', TEXT.replace("nginx", "vlc"))
    assert watched_seconds(viewers, {}) < 300


class Unequal(FakeExperiment):
    """Docker's windows are four times as long as native's."""

    def _served(self, trial: PlannedTrial, noise: float) -> tuple[int, Window]:
        self.window_ns = (4 if trial.arm.platform == "docker" else 1) * SECOND // 4
        return super()._served(trial, noise)

    def _loaded(self, notes: Notes, served: list[tuple[int, Window]]) -> None:
        self.window_ns = served[0][1].duration_ns
        notes.facts[ROTATION] = Length(self.window_ns, 400.0, 20).told()
        super()._loaded(notes, served)
        assert notes.measured is not None
        native = {"instrument": "virtoll-load 1", "settings": {"connections": 200}, "loop": "closed"}
        notes.measured = notes.measured.model_copy(update=native)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    arms = [entry.arm for entry in study().arms]
    plan = make_plan(study(), arms, {"native": 1.0, "docker": 2.0})
    path = tmp_path_factory.mktemp("runs") / "r"
    directory = RunDirectory.create(path, document.as_json(study()), plan, fake_environment())
    execute(directory, Unequal({"native": 1.0, "docker": 1.25}, spread=0.01, native_latency_ns=MS // 4), Quiet())
    return find(path)


def test_windows_of_different_lengths_are_compared_by_what_was_done_in_their_time(found: Findings) -> None:
    """Rates, CPU time of a request, and the tail of a window, round by round."""
    matrix = found.matrix
    docker = [arm.platform for arm in matrix.arms].index("docker")
    for metric, ratio in (("rate_per_s", 0.8), ("cpu_s_per_1000", 1.25), ("latency_p99_window_ms", 1.25)):
        logs = log_ratios(matrix, metric)[:, docker, :]
        assert np.isfinite(logs).all(), metric
        assert np.exp(logs) == pytest.approx(ratio, rel=0.06), metric
    cells = {(cell.record.trial.block, cell.record.trial.arm.label): cell for cell in matrix.cells.values()}
    assert all(in_turn(cells[block, "docker+routed"], cells[block, "native+host"]) for block in (1, 2, 3))


def test_a_report_says_whose_windows_were_longer_and_whose_began_too_early(found: Findings) -> None:
    """Half of two hundred users, of what a window holds."""
    whose = "docker+routed 1 s, native+host 250 ms and native+host (again) 250 ms"
    assert f"in an order drawn anew (longer where an arm was slow in its warm-up: {whose})" in one_observation(found)
    (told,) = (each for each in reservations(found) if "answered once" in each)
    named = re.findall(r"(\S+(?: \(again\))?) by up to (\d+%)", told)
    assert [label for label, _ in named] == ["docker+routed", "native+host", "native+host (again)"], "no lead-in"
    measured = [each.record.measured for each in found.matrix.trials if each.record.trial.arm.role == "floor"]
    work = min(window.work for each in measured if each is not None for window in each.windows)
    assert named[2][1] == f"{100 / work:.0%}"


def searched(leads_of_a_generation: float) -> Findings:
    """A valid search of an arm: windows of one to sixteen users, each after so many times as long as it takes to answer
    all of them once; its study says a hundred connections."""
    windows, start_ns = [], 0
    for users in (1, 2, 4, 8, 16):
        rate_per_s, asked_ns = 100.0 * users, start_ns
        start_ns += round(leads_of_a_generation * users / rate_per_s * 1e9)
        window = Window(start_ns=start_ns, asked_ns=asked_ns, duration_ns=20 * MS, work=rate_per_s / 50)
        windows.append(window.model_copy(update={"at": float(users)}))
        start_ns += SECOND
    measured = Measured(
        name="http",
        instrument="virtoll-load 1",
        unit="request",
        loop="closed",
        settings={"connections": 100},
        windows=windows,
    )
    trial = SimpleNamespace(arm=SimpleNamespace(label="docker+routed"))
    record = SimpleNamespace(status="valid", measured=measured, trial=trial)
    return cast(Findings, SimpleNamespace(matrix=SimpleNamespace(trials=[SimpleNamespace(record=record)])))


@pytest.mark.parametrize(("generations", "warned"), [(1.5, False), (0.5, True)])
def test_a_searchs_windows_are_judged_by_their_own_users(generations: float, warned: bool) -> None:
    """And not by the study's connections, which no window of it had."""
    assert bool(_short(searched(generations))) is warned
