"""Viewers of low-latency HLS, for real, against a server on loopback that misbehaves on demand; and a run of them, from
its study to its report, on a fake lab.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from live_server import LiveServer, Manner
from quiet import Quiet
from rtmp_server import wait_for
from virtoll.analysis.load import read_run
from virtoll.analysis.measuring import measure
from virtoll.analysis.metrics import metrics_of
from virtoll.catalogue import catalogue
from virtoll.errors import Problem, StudyError, TrialError
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.loads.base import Measurement
from virtoll.loads.ll_hls_viewers import LlHlsViewersLoad, LlHlsViewersSettings
from virtoll.loads.viewing import ViewingSession
from virtoll.offers import Http, LiveClip
from virtoll.record.model import Arm, Measured, Plan, PlannedTrial, Window
from virtoll.record.store import RunDirectory
from virtoll.report.build import build_report
from virtoll.report.findings import find
from virtoll.run.execute import execute
from virtoll.run.readiness import Readiness
from virtoll.run.stage import Stage
from virtoll.services import live
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.trial import proofs
from virtoll.trial.notes import Course, Notes
from virtoll.trial.subjects import tables_of
from windows import failures, longer, total, until

SECOND = 10**9
HOUR = 3600 * SECOND
AGES = {"media_age_ms", "live_latency_ms"}  # the percentiles beside them take more parts than a busy machine serves
WRONG: list[tuple[Manner, str]] = [
    ("missing", "status"),
    ("junk", "parse"),
    ("hang-up", "reset"),
    ("reset", "reset"),
    ("cut", "length"),
    ("long", "length"),
    ("wrong", "content"),
    ("no-playlist", "parse"),
]


def load_of(**settings: Any) -> LlHlsViewersLoad:
    """8 kB/s, in parts of 50 ms; who fails does not come again, and patience is for slow machines."""
    defaults: dict[str, Any] = {
        "viewers": 3,
        "bitrate_bit_per_s": 64_000.0,
        "clip_ns": 4 * SECOND,
        "segment_ns": SECOND,
        "part_ns": SECOND // 20,
        "startup_ns": SECOND // 10,
        "resume_ns": SECOND // 10,
        "settle_ns": 0,
        "time_limit_ns": SECOND // 2,
        "patience_ns": 600 * SECOND,
        "rest_ns": HOUR,
        "clock_within_ns": HOUR,
    }
    return LlHlsViewersLoad(LlHlsViewersSettings(**{**defaults, **settings}))


CLIP = load_of().settings.live


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with LiveServer(CLIP) as running:
        yield running


def drive(client: Client, offer: Http, **settings: Any) -> Measurement:
    with load_of(**settings).session(client, offer) as session:
        return session.measure()


def test_viewers_who_get_what_they_ask_for_watch_live(client: Client, server: LiveServer) -> None:
    load = load_of(viewers=10, time_limit_ns=4 * SECOND)
    with load.session(client, server.offer) as session:
        measured = until(session, lambda windows: windows[-1].counts["hinted"] > 0 and is_aged(windows[-1]))
    window, asked = measured[-1].window, measured[0].window.events["start-up"]
    assert (asked.offered, asked.completed, asked.failures) == (10, 10, {})
    assert all(found == {} for found in failures([one.window for one in measured]))
    assert 0 < window.work <= 10 * 4.0
    assert window.counts["hinted"] > 0
    assert window.counts["wakes"] > 0
    assert window.counts["body_bytes"] >= 400 * window.counts["hinted"] > 0
    assert {each for each in server.asked if each.startswith(CLIP.path)} > {CLIP.path}
    assert set(load.measured(measured[-1:]).quantities) >= set(load.quantities) - {
        "live_latency_p99_ms",
        "media_age_p99_ms",
    }


def is_aged(window: Window) -> bool:
    """Whether somebody watched in it, and something came: a busy machine's may be without."""
    return set(window.values) >= AGES


def test_ages_are_by_the_servers_clock_which_is_hours_off(client: Client, server: LiveServer) -> None:
    """Whatever the machine is busy with, it is no hour; and what is played is older than what comes."""
    with load_of(viewers=10, time_limit_ns=4 * SECOND).session(client, server.offer) as session:
        window = until(session, lambda windows: is_aged(windows[-1]))[-1].window
    assert set(window.values) > AGES
    assert all(0 <= window.values[key] < HOUR / 1e6 for key in AGES)
    assert window.values["live_latency_ms"] > 0
    assert window.counts["clock_trip_us"] > 0


def test_percentiles_are_told_where_enough_parts_came() -> None:
    row = [1_000_000, 2_000_000, 9]
    live = {"hinted": 3, "unkept": 2, "reloads": 4, "ages": [row], "latencies": [row], "clock": None}
    assert load_of().told({"live": live}) == ({}, {"hinted": 3, "unkept": 2, "reloads": 4})
    live["latencies"] = [row, [5_000_000, 6_000_000, 1]]
    assert load_of().told({"live": live})[0] == {"live_latency_ms": 2.0}
    live["ages"] = [[0, 1_000_000, 494], [5_000_000, 6_000_000, 6]]
    live["clock"] = {"trip_ns": 56_789, "apart_ns": 0, "is_sure": True}
    values, counts = load_of().told({"live": live})
    assert values == {"live_latency_ms": 2.0, "media_age_p99_ms": 6.0}
    assert (counts["clock_trip_us"], counts["clock_apart_us"]) == (56, 0)


def test_too_few_parts_for_a_percentile_are_no_fault_of_the_clock() -> None:
    """Ages were told, and so the server's clock was known."""
    values = {"stalled_percent": 0.0, "media_age_ms": 7.0}
    window = Window(start_ns=0, duration_ns=SECOND, work=1.0, values=values)
    record = load_of().measured([Measurement("virtoll-load", window)])
    assert set(record.quantities) == set(values)
    assert record.notes == []


def test_in_how_many_windows_ages_were_not_known_is_told() -> None:
    aged, unaged, unwatched = (
        Measurement("virtoll-load", Window(start_ns=0, duration_ns=SECOND, work=1.0, values=values))
        for values in ({"stalled_percent": 0.0, "media_age_ms": 7.0}, {"stalled_percent": 0.0}, {})
    )
    (note,) = load_of().measured([aged, unaged, aged]).notes
    assert note.startswith("in 1 of 3 windows it is not known how old the media were")
    (note,) = load_of().measured([unaged, unaged]).notes
    assert note.startswith("how old the media were is not known")
    assert len(load_of().measured([aged, unwatched]).notes) == 1, "that nobody watched says why"


@pytest.mark.parametrize(
    ("told", "late", "too_late"),
    [("live_latency_ms", 2, True), ("live_latency_ms", 1, False), ("media_age_ms", 2, True), ("", 2, False)],
)
def test_who_looks_late_at_what_comes_tells_its_own_lateness_as_age(told: str, late: int, too_late: bool) -> None:
    """Though what was ahead of the play head kept all from stalling. By RTMP and RTSP the age alone is told."""
    counts = {"wakes": 100, "wakes_late": late, "stalls": 0}
    values = {told: 900.0} if told else {}
    window = Window(start_ns=0, duration_ns=SECOND, work=1.0, values=values, counts=counts)
    assert bool(proofs.read_too_late(window)) is too_late


@pytest.mark.parametrize(("late", "held"), [(1, True), (3, False)])
def test_also_in_rotation_where_all_windows_are_one(late: int, held: bool, tmp_path: Path) -> None:
    """Which tells counts of them together, and no quantities."""
    counts = {"wakes": 100, "stalls": 0}
    windows = [
        Window(start_ns=at, duration_ns=SECOND, work=1.0, values={"live_latency_ms": 900.0}, counts=told)
        for at, told in ((0, counts | {"wakes_late": late}), (2 * SECOND, counts | {"wakes_late": 0}))
    ]
    measured = Measured(name="ll-hls-viewers", instrument="", unit="viewer-second", loop="open", windows=windows)
    notes = Notes(tmp_path, lambda _: None)
    proofs.of_generator(notes, measured, 1)
    check = {check.name: check for check in notes.checks}["the generator read in time"]
    assert check.passed is held
    assert check.detail.startswith(f"{late} of 200 times")


@pytest.mark.parametrize(("starting_ms", "held"), [(20, True), (21, False)])
def test_who_paused_must_watch_again_when_the_window_begins(starting_ms: int, held: bool, tmp_path: Path) -> None:
    """Else a slow arm alone is measured with what it takes to go on."""
    counts = [{"starting_ms": told, "there_ms": 500} for told in (starting_ms, 0)]
    windows = [
        Window(start_ns=at * SECOND, duration_ns=SECOND // 2, work=1.0, counts=told) for at, told in enumerate(counts)
    ]
    measured = Measured(name="ll-hls-viewers", instrument="", unit="viewer-second", loop="open", windows=windows)
    notes = Notes(tmp_path, lambda _: None)
    proofs.of_generator(notes, measured, 1)
    check = {check.name: check for check in notes.checks}["who had paused watched again when the window began"]
    assert check.passed is held
    assert check.detail.startswith(f"for {starting_ms} of 1,000 ms")


def test_where_the_server_tells_no_time_there_are_no_ages(client: Client, server: LiveServer) -> None:
    server.tells_time = False
    load = load_of(time_limit_ns=2 * SECOND)
    with load.session(client, server.offer) as session:
        measured = until(session, lambda windows: windows[-1].work > 0)
    for one in measured:
        assert one.window.events["start-up"].failures == {}
        assert not AGES & set(one.window.values)
        assert "clock_trip_us" not in one.window.counts
    assert "clock was not told" in load.measured(measured[-1:]).notes[-1]


def test_a_server_that_holds_nothing_back_is_polled(client: Client, server: LiveServer) -> None:
    server.holds = False
    with load_of().session(client, server.offer) as session:
        window = session.measure().window
        wait_for(lambda: server.asked.count(CLIP.path) > 3)
    assert window.events["start-up"].failures == window.events["view"].failures == {}
    assert window.counts["hinted"] == 0
    assert not [each for each in server.asked if "_HLS_msn" in each]
    assert server.asked.count(CLIP.path) > 3


def test_a_hint_that_is_not_kept_is_counted_and_breaks_nothing_off(client: Client, server: LiveServer) -> None:
    server.keeps_hints = False

    def is_told(windows: Sequence[Window]) -> bool:
        return total(windows, "unkept") > 0 and total(windows, "segments") > 0

    with load_of(viewers=1, time_limit_ns=2 * SECOND).session(client, server.offer) as session:
        windows = [one.window for one in until(session, is_told)]
    assert all(found == {} for found in failures(windows))
    assert is_told(windows)
    assert total(windows, "hinted") == 0


def in_turns(load: LlHlsViewersLoad, client: Client, server: LiveServer, rounds: int) -> tuple[list[Window], list[int]]:
    """Windows as a rotation has them; and how much was asked of the server while others had their turns."""
    windows, meanwhile = [], []
    with load.session(client, server.offer) as session:
        for _ in range(rounds):
            session.lead_in(SECOND // 5)
            windows.append(session.measure(duration_ns=SECOND // 2).window)
            session.rest()
            asked = len(server.asked)
            time.sleep(0.3)
            meanwhile.append(len(server.asked) - asked)
    return windows, meanwhile


def test_in_rotation_viewers_stay_and_ask_for_nothing_while_others_are_measured(
    client: Client, server: LiveServer
) -> None:
    load = load_of(settle_ns=SECOND // 5)
    windows, meanwhile = in_turns(load, client, server, 3)
    assert meanwhile == [0, 0, 0]
    assert all(window.counts["there_ms"] == 1500 >= window.counts["starting_ms"] >= 0 for window in windows)
    assert [window.events["start-up"].completed for window in windows] == [3, 0, 0]
    assert [window.events["view"].offered for window in windows] == [3, 3, 3]
    assert all(window.events["view"].failures == {} for window in windows)
    assert [window.counts["connects"] for window in windows] == [3, 0, 0]
    assert all(window.until_ns is not None and window.until_ns >= window.end_ns for window in windows)
    record = load.measured([Measurement("virtoll-load", window) for window in windows])
    assert record.events is not None
    assert (record.events.offered, record.events.completed) == (3, 3)
    assert load.lead_in_ns(7) == 7
    assert load.lead_in_ns(7, 3) == SECOND // 5, "in a search each window has viewers of its own"


def test_in_rotation_each_window_has_viewers_of_its_own_where_they_do_not_pause(
    client: Client, server: LiveServer
) -> None:
    load = load_of(pause=False)
    windows, _ = in_turns(load, client, server, 2)
    assert [window.counts["connects"] for window in windows] == [3, 3]
    assert all(window.until_ns is not None and window.until_ns >= window.end_ns for window in windows)
    assert load.lead_in_ns(7) == load.settings.settle_ns == 0


def test_of_a_search_in_rotation_no_crowd_pauses(client: Client, server: LiveServer) -> None:
    with load_of().session(client, server.offer) as session:
        session.lead_in(SECOND // 5)
        session.measure(intensity=3)
        assert isinstance(session, ViewingSession)
        (crowd,) = session._standing
        assert not crowd.pauses
        session.rest()
        session.lead_in(SECOND // 5)
        assert session.measure().window.events["start-up"].completed == 3, "another crowd"


def test_a_live_playlist_of_the_users_own_is_watched_whatever_it_holds(client: Client, server: LiveServer) -> None:
    offer = Http(server.offer.address, server.offer.port)
    with load_of(path=CLIP.path, clock="/clock", viewers=10).session(client, offer) as session:
        known = until(session, lambda windows: "media_age_ms" in windows[-1].values)
    with load_of(path=CLIP.path, clock="", viewers=10).session(client, offer) as session:
        unknown = until(session, lambda windows: windows[-1].work > 0)
    assert all(found == {} for found in failures([one.window for one in known + unknown]))
    assert "media_age_ms" in known[-1].window.values
    assert not AGES & {key for one in unknown for key in one.window.values}


@pytest.mark.parametrize(("manner", "kind"), WRONG)
def test_what_is_wrong_is_told_by_kind(client: Client, server: LiveServer, manner: Manner, kind: str) -> None:
    server.manner = manner
    asked = drive(client, server.offer).window.events["start-up"]
    assert (asked.offered, asked.completed, asked.failures) == (3, 0, {kind: 3})


def test_who_waits_too_long_for_play_to_begin_fails(client: Client, server: LiveServer) -> None:
    server.manner = "silent"
    asked = drive(client, server.offer, patience_ns=SECOND // 5).window.events["start-up"]
    assert asked.failures == {"timeout": 3}


def test_a_stream_that_ends_without_a_word_is_a_stall_and_then_a_failure(client: Client, server: LiveServer) -> None:
    server.ends_after_s = 0.0

    def measure(length_ns: int) -> Measurement:
        """A server that stands still has as much patience: a sixth of the window."""
        return drive(client, server.offer, patience_ns=length_ns // 6, time_limit_ns=length_ns)

    def is_told(window: Window) -> bool:
        return (window.events["start-up"].failures, window.events["view"].censored) == ({}, 3)

    window = longer(measure, is_told, 6).window
    assert window.events["start-up"].failures == {}
    assert window.events["view"].failures == {"timeout": 3}
    assert window.counts["stalls"] == 3
    assert window.work == pytest.approx(3 * 0.15), "what was there behind the edge"


def test_what_cannot_work_is_said_beforehand(client: Client) -> None:
    assert load_of().check(LocalHost()) == []
    for settings, words in (
        ({"paced": False}, "cannot be read faster"),
        ({"part_ns": 300_000_000}, "cannot be cut so"),
        ({"clip_ns": 4 * SECOND + 1}, "cannot be cut so"),
        ({"segment_ns": 3 * SECOND}, "cannot be cut so"),
        ({"part_ns": 20_000_000, "segment_ns": 4 * SECOND}, "more than 100 parts in a segment"),
        ({"part_ns": SECOND, "buffer_ns": 2 * SECOND}, "never gets to the live edge"),
        ({"clip_ns": 501 * SECOND}, "more than 100 parts in a segment, or 10,000 in all"),
    ):
        (problem,) = load_of(**settings).check(LocalHost())
        assert words in problem.what
    assert load_of(path="/live", part_ns=300_000_000).check(LocalHost()) == []
    with pytest.raises(TrialError, match="viewers speak plain HTTP"):
        load_of().session(client, Http("127.0.0.1", 1, certificate="ab"))


def test_settings_say_what_the_service_must_hold() -> None:
    assert load_of().content == LiveClip(4 * SECOND, SECOND, SECOND // 20, 64_000)
    assert CLIP.path == "/live/4000-1000-50-64000/index.m3u8"
    assert load_of(path="/live").content is None


STUDY = """\
name = "small"
question = "What does docker cost a server of low-latency HLS?"
blocks = 2
[service]
name = "SERVICE"
[load]
name = "ll-hls-viewers"
bitrate = "2 Mbit/s"
clip = "30 s"
segment = "1 s"
part = "100 ms"
[factors]
"load.viewers" = [2]
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
"""


def read(service: str, text: str = STUDY) -> Study:
    return read_study(text.replace("SERVICE", service), "small.toml", catalogue())


def refused(service: str, monkeypatch: pytest.MonkeyPatch, text: str = STUDY) -> list[Problem]:
    """All that `virtoll check` tells, on a machine that lacks nothing."""
    monkeypatch.setattr(Readiness, "problems", lambda *_: [])
    try:
        Stage(read(service, text), LocalHost()).offered("small.toml", tries=False)
    except StudyError as error:
        return list(error.problems)
    return []


def test_a_playlist_lists_three_target_durations_of_whatever_may_be_asked_for() -> None:
    """RFC 8216bis, 6.2.2. A target duration is of whole seconds, however short a segment is."""
    with pytest.raises(StudyError, match="segment"):
        read("nginx-ll-hls", STUDY.replace('segment = "1 s"', 'segment = "400 ms"').replace("100 ms", "50 ms"))
    with pytest.raises(StudyError, match="part"):  # a proof waits for one, and no longer than 30 s for an answer
        read("nginx-ll-hls", STUDY.replace('segment = "1 s"', 'segment = "30 s"').replace("100 ms", "30 s"))
    for segment_ns in (SECOND, SECOND + 10**6, 2 * SECOND):
        clip = LiveClip(6 * segment_ns, segment_ns, segment_ns, 64_000)
        text = live.playlist(clip, live.Edge(1000, 0))
        found = re.search("TARGETDURATION:([0-9]+)", text)
        assert found is not None
        assert sum(map(float, re.findall("#EXTINF:([0-9.]+)", text))) >= 3 * int(found[1])


def test_a_study_pairs_these_viewers_with_what_holds_live_media_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused("nginx-ll-hls", monkeypatch) == []
    (problem,) = refused("nginx", monkeypatch)
    assert problem.what == (
        "load 'll-hls-viewers' asks for live media in segments of 1 s in parts of 0.1 s, round after 30 s, which nginx "
        "does not hold"
    )
    (problem,) = refused("redis", monkeypatch)
    assert problem.what == "load 'll-hls-viewers' cannot drive redis, which offers redis"
    text = re.sub(r"(part|segment) = .*\n", "", STUDY.replace("ll-hls-viewers", "viewers"))
    (problem,) = refused("nginx-ll-hls", monkeypatch, text)
    assert "which nginx-ll-hls does not hold" in problem.what


@dataclass
class Watching(FakeExperiment):
    """A fake lab, in which real viewers watch a server on loopback, as the study has it."""

    client: Client | None = None
    server: LiveServer | None = None

    def measure(self, load: LlHlsViewersLoad, length_ns: int) -> Measurement:
        assert self.client is not None
        assert self.server is not None
        with load.session(self.client, self.server.offer) as session:
            return session.measure(duration_ns=length_ns)

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        study = read("nginx-ll-hls")
        load = load_of(viewers=int(trial.condition["load.viewers"]))
        assert set(study.base) >= {"load.part_ns", "load.segment_ns"}
        yield
        with notes.phase("window"):
            measurements = [longer(partial(self.measure, load), is_aged, 4)]
        notes.measured = load.measured(measurements)
        notes.tables |= tables_of(measurements, load.loop)
        yield
        proofs.of_requests(notes, notes.measured)  # and not of the generator: others may keep this machine busy


@pytest.mark.usefixtures("undrawn")
def test_a_run_tells_live_latency_from_its_study_to_its_report(
    tmp_path: Path, client: Client, server: LiveServer
) -> None:
    study = read("nginx-ll-hls")
    arms = [
        Arm(label="native+host", platform="native", network="host", role="baseline"),
        Arm(label="docker+routed", platform="docker", network="routed"),
    ]
    trials = [
        PlannedTrial(
            id=f"b{1 + at // 2:02}-t{1 + at:04}",
            block=1 + at // 2,
            position=at + 1,
            arm=arms[at % 2],
            condition={"load.viewers": 3},
        )
        for at in range(4)
    ]
    told = {"name": study.name, "question": study.question, "base": study.base, "factors": {"load.viewers": [3]}}
    plan = Plan(seed=1, blocks=2, trials=trials, estimate_s=4.0)
    directory = RunDirectory.create(tmp_path / "run", told, plan, fake_environment())
    assert execute(directory, Watching({}, client=client, server=server), Quiet())
    run = read_run(directory.path)
    for record in run.records:
        checks = {check.name: check for check in record.checks}
        assert checks["start-ups were answered"].passed, checks
        values = measure(run, record).values
        assert values["ll-hls-viewers.live_latency_ms"] > 0
        assert values["ll-hls-viewers.media_age_ms"] > 0
    assert find(directory.path).headline.name == "ll-hls-viewers.media_age_ms"
    titles = {metric.title for metric in metrics_of(run).values()}
    assert "Live latency: age of what is played, median" in titles
    words = re.sub(r"<[^>]+>", "", build_report(directory.path).read_text("utf-8"))
    for title in ("Live latency: age of what is played, median", "Age of live media when they come", "viewer-second"):
        assert title in words
