"""A study of viewers: what may be asked for, and what a run of it tells; on a fake lab, with the viewers themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from quiet import Quiet
from viewers_server import MediaServer
from virtoll.analysis.load import read_run
from virtoll.analysis.measuring import measure
from virtoll.analysis.metrics import metrics_of
from virtoll.catalogue import catalogue
from virtoll.errors import Problem, StudyError
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.hosts.local import LocalHost
from virtoll.lab.client import Client
from virtoll.loads.base import Measurement
from virtoll.loads.viewers import ViewersLoad, ViewersSettings
from virtoll.record.model import Arm, Plan, PlannedTrial
from virtoll.record.store import RunDirectory
from virtoll.report.build import build_report
from virtoll.run import refusals
from virtoll.run.execute import execute
from virtoll.run.readiness import Readiness
from virtoll.run.stage import Stage
from virtoll.study.file import read_study
from virtoll.study.model import Rotation, Study, settings_of
from virtoll.study.plan import deployment_seconds, deployments
from virtoll.trial import proofs
from virtoll.trial.notes import Course, Notes
from virtoll.trial.subjects import tables_of
from virtoll.trial.treatment import treatments
from windows import longer

SECOND = 10**9
STUDY = """\
name = "small"
question = "How many viewers does docker carry?"
blocks = 2
[service]
name = "SERVICE"
[load]
name = "viewers"
delivery = "hls"
bitrate = "2 Mbit/s"
qualities = 3
clip = "30 s"
segment = "2 s"
join = "10 ms"
arrival = "poisson"
stay = "1 min"
time_limit = "2 s"
[factors]
"load.viewers" = [1, 10]
[[arms]]
platform = "native"
"""


def read(service: str) -> Study:
    return read_study(STUDY.replace("SERVICE", service), "small.toml", catalogue())


def refused(service: str, monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """All that `virtoll check` tells, on a machine that lacks nothing."""
    monkeypatch.setattr(Readiness, "problems", lambda *_: [])
    try:
        Stage(read(service), LocalHost()).offered("small.toml", tries=False)
    except StudyError as error:
        return list(error.problems)
    return []


def test_a_turn_lasts_as_long_as_its_viewers_take_to_join_and_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 16 rounds has a window of 250 ms, before which viewers join for 5 s and settle for 50 s."""
    monkeypatch.setattr(Readiness, "problems", lambda *_: [])
    monkeypatch.setattr("virtoll.run.groups.meminfo_bytes", lambda *_: 2**40)
    monkeypatch.setattr("virtoll.hosts.open_files.most_open_files", lambda: (2**20, True))  # whatever is allowed here
    monkeypatch.setattr("virtoll.hosts.open_files._hard", lambda: 2**20)
    turns = STUDY.replace('"SERVICE"', '"nginx"\nconnections = 50000').replace(
        "blocks = 2", 'blocks = 2\ndesign = "rotation"'
    )
    turns = turns.replace('time_limit = "2 s"', 'settle = "50 s"').replace("[1, 10]", "[1, 500]")
    knee = '[knee]\nobjective = ["stalled < 1 %"]\nleast = 100\nmost = 40000\nwindow = "100 ms"\n'
    searched = turns.replace('[factors]\n"load.viewers" = [1, 500]\n', knee).replace("50 s", "100 ms")
    for text, told in ((turns, ["1,608", "1,768"]), (searched, ["1,"])):
        study = read_study(text, "small.toml", catalogue())
        with pytest.raises(StudyError) as caught:
            Stage(study, LocalHost()).offered("small.toml", tries=False)
        for problem, seconds in zip(caught.value.problems, told, strict=True):
            assert problem.what.startswith(f"a turn would last {seconds}")


@pytest.mark.parametrize("service", ["nginx", "apache"])
def test_web_servers_hold_what_viewers_watch(monkeypatch: pytest.MonkeyPatch, service: str) -> None:
    assert refused(service, monkeypatch) == []
    base = read(service).base
    assert (base["load.bitrate_bit_per_s"], base["load.join_ns"], base["load.stay_ns"]) == (2e6, 10**7, 60 * SECOND)


def test_a_service_that_holds_no_clip_or_speaks_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = refused("burn", monkeypatch)
    assert problem.what == "load 'viewers' asks for a clip of 30 s in segments of 2 s, which burn does not hold"
    (problem,) = refused("redis", monkeypatch)
    assert problem.what == "load 'viewers' cannot drive redis, which offers redis"


def test_tls_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = refused('nginx"\ntls = true\n#"', monkeypatch)
    assert (problem.what, problem.remedy) == ("load 'viewers' does not speak TLS", "write tls = false")


@pytest.mark.parametrize("design", ["blocks", "rotation"])
def test_the_estimate_knows_that_viewers_join_one_after_another(design: str) -> None:
    text = STUDY.replace("SERVICE", "nginx").replace("blocks = 2", f'blocks = 2\ndesign = "{design}"')
    alone, joined = (
        read_study(text.replace('"10 ms"', join), "small.toml", catalogue()) for join in ('"1 ns"', '"1 s"')
    )
    seconds = [deployment_seconds(study, deployments(study, [study.arms[0].arm])[-1], 0.0) for study in (alone, joined)]
    windows = 1 if design == "blocks" else settings_of(Rotation, "rotation", joined.base).rounds
    assert seconds[1] - seconds[0] == pytest.approx(10 * windows)


def test_the_estimate_knows_that_viewers_who_pause_join_and_settle_once() -> None:
    """And with each turn pause, and go on for its lead-in."""
    text = STUDY.replace("SERVICE", "nginx-ll-hls")
    text = text.replace('name = "viewers"', 'name = "ll-hls-viewers"\npause = PAUSE')
    text = text.replace('delivery = "hls"\n', "").replace("qualities = 3\n", "")
    text = text.replace("blocks = 2", 'blocks = 2\ndesign = "rotation"')

    def seconds(pause: str, join: str, lead_in: str) -> float:
        asked = text.replace("PAUSE", pause).replace('"10 ms"', f'"{join}"')
        study = read_study(f'{asked}\n[rotation]\nlead_in = "{lead_in}"\n', "small.toml", catalogue())
        return deployment_seconds(study, deployments(study, [study.arms[0].arm])[-1], 0.0)

    rounds = Rotation().rounds
    assert seconds("true", "1 s", "1 s") - seconds("true", "1 ns", "1 s") == pytest.approx(10)
    assert seconds("true", "1 s", "2 s") - seconds("true", "1 s", "1 s") == pytest.approx(rounds)
    assert seconds("false", "1 s", "2 s") - seconds("false", "1 ns", "1 s") == pytest.approx(10 * rounds)


@pytest.mark.parametrize(
    ("lead_in", "settings", "remedies"),
    [
        ("599 ms", "pause = true", ['lead_in = "600 ms", or [load] pause = false']),
        ("600 ms", "pause = true", []),
        ("1 ms", "pause = false", []),
        ("499 ms", 'part = "50 ms"', ['lead_in = "500 ms", or [load] pause = false']),
        ("500 ms", 'part = "50 ms"', []),
        ("150 ms", 'part = "50 ms"\nstartup = "150 ms"', []),
    ],
)
def test_who_paused_has_three_parts_to_go_on_and_what_he_is_to_have_ahead(
    lead_in: str, settings: str, remedies: list[str]
) -> None:
    """Else a slow arm alone goes on within its windows, which takes more requests than to watch; or all do."""
    text = STUDY.replace("SERVICE", "nginx-ll-hls")
    text = text.replace('name = "viewers"', f'name = "ll-hls-viewers"\n{settings}')
    text = text.replace('delivery = "hls"\n', "").replace("qualities = 3\n", "")
    text = text.replace("blocks = 2", 'blocks = 2\ndesign = "rotation"')
    study = read_study(f'{text}\n[rotation]\nlead_in = "{lead_in}"\n', "small.toml", catalogue())
    assert [each.remedy for each in refusals._of_rotation(study, treatments(study), "small.toml")] == remedies


@pytest.mark.parametrize(
    ("service", "load", "is_refused"),
    [
        ('"nginx-rtmp"\nlive = true', '"rtmp-viewers"', True),
        ('"red5"\nlive = true', '"rtmp-viewers"', True),
        ('"gst-rtsp"\npublished = true', '"rtsp-viewers"', True),
        ('"nginx-rtmp"', '"rtmp-viewers"', False),
        ('"nginx-rtmp"\nlive = true', '"rtmp-viewers"\nstream = "cam"', False),
        ('"gst-rtsp"\nlive = true', '"rtsp-viewers"', False),
    ],
)
def test_what_is_published_all_the_time_cannot_wait_for_its_turn(service: str, load: str, is_refused: bool) -> None:
    """It went on while others were measured; towards a guest that is stopped it breaks off when its patience is over,
    and viewers of that arm alone would wait until it is published anew.
    """
    text = STUDY.replace('"SERVICE"', service).replace('"viewers"', load)
    text = text.replace('delivery = "hls"\n', "").replace("qualities = 3\n", "").replace('segment = "2 s"\n', "")
    text = text.replace("blocks = 2", 'blocks = 2\ndesign = "rotation"')
    study = read_study(text, "small.toml", catalogue())
    told = {each.what for each in refusals._of_rotation(study, treatments(study), "small.toml")}
    assert told == ({"what is published to one arm would go on while others are measured"} if is_refused else set())


@pytest.mark.parametrize(("design", "joins"), [("blocks", 60), ("rotation", 125)])
def test_the_estimate_follows_a_search_in_which_viewers_stay_unless_others_have_turns(design: str, joins: int) -> None:
    """Half of the knees lie below 20: windows of 10, 20, 20, 10, 20; the others above: 10, 20, 40, 40, 20, 40. Those of
    twice the knee are missed, three of either; half of the crowd stays then.
    """
    knee = '[knee]\nobjective = ["stalled < 1 %"]\nleast = 10\nmost = 40\nprecision = "100 %"\nwindows = 1\n'
    text = STUDY.replace("SERVICE", "nginx").replace("blocks = 2", f'blocks = 2\ndesign = "{design}"')
    text = text.replace('[factors]\n"load.viewers" = [1, 10]\n', knee)

    def seconds(join: str, patience: str) -> float:
        asked = text.replace('"10 ms"', f'"{join}"\npatience = "{patience}"')
        study = read_study(asked, "small.toml", catalogue())
        return deployment_seconds(study, deployments(study, [study.arms[0].arm])[-1], 0.0)

    alone = seconds("1 ns", "1 s")
    assert seconds("1 s", "1 s") - alone == pytest.approx(joins)
    assert seconds("1 ns", "11 s") - alone == pytest.approx(3 * 10)


@dataclass
class Watching(FakeExperiment):
    """A fake lab, in which real viewers watch a server on loopback."""

    client: Client | None = None
    server: MediaServer | None = None

    def measure(self, load: ViewersLoad, length_ns: int) -> Measurement:
        assert self.client is not None
        assert self.server is not None
        with load.session(self.client, self.server.offer) as session:
            return session.measure(duration_ns=length_ns)

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        settings = ViewersSettings(
            viewers=int(trial.condition["load.viewers"]),
            bitrate_bit_per_s=64_000.0,
            clip_ns=4 * SECOND,
            startup_ns=SECOND,
            settle_ns=0,
            patience_ns=600 * SECOND,
        )
        load = ViewersLoad(settings)
        yield
        with notes.phase("window"):  # on a busy machine nobody may watch in a short one
            measurements = [longer(partial(self.measure, load), lambda window: "stalled_percent" in window.values, 2)]
        notes.measured = load.measured(measurements)
        notes.tables |= tables_of(measurements, load.loop)
        yield
        proofs.of_requests(notes, notes.measured)
        proofs._of_offered(notes, notes.measured)  # and no more of the generator: others may keep this machine busy


@pytest.fixture
def server() -> Iterator[MediaServer]:
    with MediaServer() as running:
        yield running


def run_of(directory: Path, client: Client, server: MediaServer) -> RunDirectory:
    native = Arm(label="native+host", platform="native", network="host", role="baseline")
    docker = Arm(label="docker+routed", platform="docker", network="routed")
    trials = [
        PlannedTrial(
            id=f"b{1 + at // 2:02}-t{1 + at:04}",
            block=1 + at // 2,
            position=at + 1,
            arm=(native, docker)[at % 2],
            condition={"load.viewers": 2},
        )
        for at in range(4)
    ]
    study = {"name": "demo", "question": "?", "base": {"load.name": "viewers"}, "factors": {"load.viewers": [2]}}
    plan = Plan(seed=1, blocks=2, trials=trials, estimate_s=4.0)
    run = RunDirectory.create(directory, study, plan, fake_environment())
    assert execute(run, Watching({}, client=client, server=server), Quiet())
    return run


def test_a_run_tells_how_well_viewers_watched(tmp_path: Path, client: Client, server: MediaServer) -> None:
    directory = run_of(tmp_path / "run", client, server).path
    run = read_run(directory)
    for record in run.records:
        checks = {check.name: check for check in record.checks}
        assert checks["start-ups were answered"].passed, checks
        assert checks["offered load met intended"].passed, checks
        told = measure(run, record)
        assert 0 < told.values["viewers.watching_percent"] <= 100
        assert told.values["viewers.stalled_percent"] >= 0
        assert told.values["latency_max_ms"] > 0
        assert "the schedule sets the rate" in told.missing["rate_per_s"]
    titles = {metric.title for metric in metrics_of(run).values()}
    assert {"Latency of a start-up, median", "Goodput per viewer", "CPU per 1,000 viewer-seconds"} <= titles


@pytest.mark.usefixtures("undrawn")
def test_the_report_of_a_run_of_viewers_is_made(tmp_path: Path, client: Client, server: MediaServer) -> None:
    page = build_report(run_of(tmp_path / "run", client, server).path).read_text("utf-8")
    words = re.sub(r"<[^>]+>", "", page)
    assert "Stalled share of the viewing time" in words
    assert "viewer-second" in words
