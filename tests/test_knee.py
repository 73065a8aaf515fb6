"""The knee, from the study file to the sentence that answers; on fakes with a known capacity."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from statistics import geometric_mean
from typing import cast

import pytest

from quiet import Quiet
from virtoll.analysis import counterparts
from virtoll.analysis.knees import note_bounds
from virtoll.analysis.load import read_run
from virtoll.analysis.measuring import measure_all
from virtoll.analysis.metrics import KNEE
from virtoll.analysis.objectives import held, objective_of
from virtoll.analysis.ratios import _failed
from virtoll.catalogue import catalogue
from virtoll.errors import Problem, StudyError, TrialError
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.hosts.local import LocalHost
from virtoll.loads.http import HttpLoad
from virtoll.loads.viewers import ViewersLoad
from virtoll.record.model import GENERATOR_HEADROOM, PlannedTrial
from virtoll.record.objective import missed, parse
from virtoll.record.store import RunDirectory
from virtoll.report.answer import answer
from virtoll.report.build import build_report
from virtoll.report.drawing import WIDE
from virtoll.report.findings import find
from virtoll.report.reservations import reservations
from virtoll.report.running import RunningTable
from virtoll.report.sections.cpu import Cpu
from virtoll.report.sections.knee import KneeSection, _rows
from virtoll.report.sections.memory import Memory
from virtoll.run import groups
from virtoll.run.execute import execute
from virtoll.run.readiness import Readiness
from virtoll.run.stage import Stage
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import Knee, Study, settings_of
from virtoll.study.plan import make_plan
from virtoll.study.search import expected_windows, levels
from virtoll.trial.notes import Course, Notes
from virtoll.trial.treatment import Driven, of_block, treatments

TEXT = """\
name = "carries"
question = "How many requests/s does docker carry?"
blocks = 6
seed = 1
[service]
name = "nginx"
[load]
name = "http"
loop = "open"
connections = 500
[knee]
objective = ["latency_p99 < 20 ms", "failed < 0.1 %"]
least = 100
most = 100000
window = "1 s"
[quick.knee]
precision = "20 %"
windows = 3
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
"""
# Of the fakes' one queue: at 1 ms alone, one in a hundred takes longer than 20 ms from this share of its capacity on.
SHARE = 1 - 1 * math.log(100) / 20


def study(text: str = TEXT, *, quick: bool = False) -> Study:
    return read_study(text, "carries.toml", catalogue(), quick=quick)


def knee_of(read: Study) -> Knee:
    found: Knee = settings_of(Knee, "knee", read.base)
    return found


def run(path: Path, experiment: FakeExperiment, text: str = TEXT) -> RunDirectory:
    read = study(text)
    plan = make_plan(read, [entry.arm for entry in read.arms], {"native": 1.0, "docker": 2.0})
    directory = RunDirectory.create(path, document.as_json(read), plan, fake_environment())
    experiment.knee = knee_of(read)
    assert execute(directory, experiment, Quiet())
    return directory


# -- the study file ---------------------------------------------------------------------------------------


def test_a_few_lines_ask_for_it() -> None:
    knee = knee_of(study())
    assert knee.objective == ("latency_p99 < 20 ms", "failed < 0.1 %")
    assert (knee.least, knee.most, knee.precision_share, knee.window_ns, knee.windows) == (100, 100_000, 0.05, 10**9, 5)
    quick = knee_of(study(quick=True))
    assert (quick.precision_share, quick.windows, quick.least) == (0.2, 3, 100)


def test_a_run_that_goes_on_searches_for_the_same() -> None:
    kept = json.loads(json.dumps(document.as_json(study())))
    assert document.of(kept, Path("study.json"), catalogue()) == study()


def test_without_it_nothing_is_searched() -> None:
    assert knee_of(study(re.sub(r"\[knee\].*?(?=\[\[arms)", "", TEXT, count=1, flags=re.DOTALL))).objective == ()


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that lacks nothing."""
    monkeypatch.setattr(Readiness, "problems", lambda *_: [])
    monkeypatch.setattr(HttpLoad, "check", lambda *_: [])
    monkeypatch.setattr(ViewersLoad, "check", lambda *_: [])


def refused(text: str) -> list[Problem]:
    """All that `virtoll check` tells."""
    try:
        Stage(study(text), LocalHost()).offered("carries.toml", tries=False)
    except StudyError as error:
        return list(error.problems)
    return []


CLOSED = TEXT.replace('loop = "open"\n', "").replace("connections = 500\n", "").replace("100000", "4000")
VIEWERS = CLOSED.replace('name = "http"', 'name = "viewers"').replace(
    '["latency_p99 < 20 ms", "failed < 0.1 %"]',
    '["latency_p99 < 2 s", "stalled < 0.1 %", "stalls_per_hour < 1", "goodput_mbit_per_s > 0.8 Mbit/s"]',
)


SERVERS = """\
[servers.lean.service]
name = "nginx"
[servers.lean.load]
name = "http"
[servers.broad.service]
name = "apache"
[servers.broad.load]
name = "http"
[load]
"""
OF_SERVERS = CLOSED.replace('[service]\nname = "nginx"\n[load]\nname = "http"\n', SERVERS)


def of_a_program(loop: str) -> str:
    """The study of a program of one's own."""
    load = f"""[load]
name = "command"
run = ["ask", "{{address}}:{{port}}", "{{rate}}", "{{users}}"]
work = {{ read = 'did (\\d+)', unit = "visit" }}
loop = "{loop}"
[knee]"""
    return TEXT.partition("[load]")[0] + load + TEXT.partition("[knee]")[2]


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize("text", [TEXT, CLOSED, VIEWERS], ids=["rate", "users", "viewers"])
def test_any_load_with_an_intensity_is_searched(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtoll.hosts.open_files.most_open_files", lambda: (2**20, True))  # whatever is allowed here
    assert refused(text) == []


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('objective = ["latency_p99 < 20 ms", "failed < 0.1 %"]\n', "", "a search for the knee needs an objective"),
        ("latency_p99 <", "latency <", "there is no 'latency' here; there are latency_p50, latency_p90, latency_p99, "),
        ("latency_p99 <", "stalled_percent <", "there is no 'stalled_percent' here"),
        ("< 20 ms", "< 20", "lacks its unit: write 20 ms, or 20 s"),
        ("< 20 ms", "< 20 MB", "latency_p99_ms is a time: write 20 ms, or 20 s"),
        ("< 20 ms", "> 20 ms", "less of latency_p99 is better: write latency_p99 < 20 ms"),
        ("< 20 ms", "of 20 ms", "is no objective: write it so"),
        ("failed < 0.1 %", "failed < 0.001", "failed_percent is in %: write 0.001 %"),
        ("most = 100000", "most = 10", "there is no intensity from 100 to 10 requests/s"),
        ("least = 100", "least = 20", "asks for 20, of which 'latency_p99 < 20 ms' says nothing"),
        ("least = 100", "least = 99", "asks for 99, of which 'latency_p99 < 20 ms' says nothing"),
        ("least = 100", 'least = "100 /s"', "least: '100 /s' is not a number"),
        ('window = "1 s"', "windows = 4", "most of 4 windows are to agree, and half may not"),
        ('window = "1 s"', "precision = 5", "precision: 5 lacks its unit: write it as a string, for example"),
        ('window = "1 s"', 'precision = "0 %"', "precision: must be at least 0.1 %"),
        ('window = "1 s"', 'wndow = "1 s"', "unknown key 'wndow'; did you mean 'window'?"),
        ("[knee]", '[neighbour]\naggressor = "cpu"\n[knee]', "a neighbour is not at work in all of a search"),
    ],
)
def test_what_is_no_search_is_refused(old: str, new: str, told: str) -> None:
    assert old in TEXT
    problems = refused(TEXT.replace(old, new))
    assert any(told in problem.what for problem in problems), problems
    assert all(problem.where.startswith("carries.toml") for problem in problems), problems


ON_DEMAND = (
    CLOSED.replace('"nginx"', '"gst-rtsp"').replace('"http"', '"rtsp-viewers"').replace("most = 4000", "most = 51")
)
ON_DEMAND = ON_DEMAND.replace("least = 100", "least = 20").replace("latency_p99", "latency_p90")
APACHE = CLOSED.replace('name = "nginx"', 'name = "apache"')
PROXY = CLOSED.replace('name = "nginx"', 'name = "squid"\n[origin]\nname = "nginx"')


def of_pgbench(users: int) -> str:
    """A study of so many clients, without a search."""
    load = f'[service]\nname = "postgres"\n[load]\nname = "pgbench"\nusers = {users}\n'
    return f'{TEXT.partition("[service]")[0]}{load}[[arms]]\nplatform = "native"\n'


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CLOSED.replace("most = 4000", "most = 4081"), "4,081 are to be connected at once, and by its settings nginx"),
        (CLOSED.replace("most = 4000", "most = 4080"), ""),
        (CLOSED.replace('name = "nginx"', 'name = "nginx"\nconnections = 8192').replace("4000", "8000"), ""),
        (CLOSED.replace("most = 4000\n", ""), ""),  # the search ends at what it lets in, and says so
        (VIEWERS.replace("most = 4000", "most = 4081"), "by its settings nginx lets 4,080 in"),
        (TEXT, ""),  # whatever the rate, it is over 500 connections
        (TEXT.replace("connections = 500", "connections = 5000"), "5,000 may be connected at once"),
        (ON_DEMAND, "51 are to be connected at once, and by its settings gst-rtsp lets 50 in"),
        (ON_DEMAND.replace('name = "gst-rtsp"', 'name = "gst-rtsp"\nlive = true'), ""),
        (ON_DEMAND.replace('name = "rtsp-viewers"', 'name = "rtsp-viewers"\ntransport = "tcp"'), ""),
        (APACHE.replace("least = 100\nmost = 4000", "least = 100\nmost = 129"), "by its settings apache lets 128 in"),
        (APACHE.replace("most = 4000", "most = 128"), ""),
        (PROXY.replace("most = 4000", "most = 1985"), "by its settings squid lets 1,984 in"),
        (PROXY.replace("most = 4000", "most = 1984"), ""),
        (of_pgbench(101), "101 are to be connected at once, and by its settings postgres lets 100 in"),
        (of_pgbench(100), ""),
    ],
)
def test_a_services_own_settings_are_no_platforms_knee(text: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 4,096 connections nginx closes what it accepts: the same knee on every platform, told as settled."""
    monkeypatch.setattr("virtoll.loads.rtsp_viewers.RtspViewersLoad.check", lambda *_: [])
    monkeypatch.setattr("virtoll.hosts.open_files.most_open_files", lambda: (2**20, True))
    problems = refused(text)
    assert [told in problem.what for problem in problems] == [True] * bool(told), problems


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize(("label", "least"), [("p50", 2), ("p90", 10), ("p99", 100), ("p999", 1000)])
def test_the_least_that_a_percentile_says_something_of_is_enough(label: str, least: int) -> None:
    """As written in its refusal, whichever way 1 - q is rounded."""
    text = TEXT.replace("latency_p99", f"latency_{label}")
    assert refused(text.replace("least = 100", f"least = {least}")) == []
    (problem,) = refused(text.replace("least = 100", f"least = {least - 1}"))
    assert problem.remedy.startswith(f"write least = {least}, ")


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        (TEXT, '"load.rate" = ["100/s", "200/s"]'),
        (CLOSED, '"load.connections" = [10, 100]'),
        (VIEWERS, '"load.viewers" = [2, 9]'),
        (CLOSED.replace('name = "http"', 'name = "ab"'), '"load.connections" = [10, 100]'),
        (OF_SERVERS, '"load.connections" = [10, 100]'),
        (of_a_program("closed"), '"load.users" = [1, 9]'),
    ],
    ids=["rate", "connections", "viewers", "ab", "servers", "users"],
)
def test_a_factor_that_the_search_sets_itself_is_refused(text: str, factor: str) -> None:
    """Each of its levels would be one and the same search."""
    with pytest.raises(StudyError) as caught:
        study(f"{text}[factors]\n{factor}\n")
    (problem,) = caught.value.problems
    assert (
        problem.what == f"{factor.split(chr(34))[1]} would change nothing: the search for the knee asks for it itself"
    )


@pytest.mark.parametrize(
    ("text", "loop"),
    [(TEXT, ""), (CLOSED, '"load.loop" = ["open"]\n')],
    ids=["open", "all levels open"],
)
def test_how_many_may_be_open_is_none_that_the_search_sets(text: str, loop: str) -> None:
    read = study(f'{text}[factors]\n{loop}"load.connections" = [100, 500]\n')
    assert read.factors["load.connections"] == (100, 500)


def test_how_many_users_a_program_has_at_a_rate_is_none_that_the_search_sets() -> None:
    text = of_a_program("open") + '[factors]\n"load.users" = [1, 9]\n'
    assert study(text).factors == {"load.users": (1, 9)}


def test_each_block_has_a_schedule_of_its_own_and_all_its_arms_the_same() -> None:
    """Ten blocks of one schedule told its p99 as 23.0 +- 0.2 ms, where another's was 26."""
    (treatment,) = treatments(study(TEXT))
    (same,) = treatments(study(TEXT))
    seeds = [cast(Driven, of_block(treatment, block).work).load.settings.seed for block in (1, 2, 3)]
    assert len({*seeds, 1}) == 4
    assert cast(Driven, of_block(same, 1).work).load.settings.seed == seeds[0]
    assert max(seeds) + 100 * 2**32 < 2**63
    (program,) = treatments(study(of_a_program("open")))
    assert of_block(program, 2) == program, "its seed is a command"


def test_a_loop_that_is_no_list_is_told_once() -> None:
    with pytest.raises(StudyError, match=r"load\.loop needs a list of levels"):
        study(f'{CLOSED}[factors]\n"load.connections" = [1, 2]\n"load.loop" = 5\n')


@pytest.mark.usefixtures("ready")
def test_users_are_counted() -> None:
    (problem,) = refused(CLOSED.replace("least = 100", "least = 0.5"))
    assert problem.what == "0.5 to 4000 users are no whole numbers"


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize(("loop", "place"), [("closed", "{users}"), ("open", "{rate}")])
def test_a_program_that_is_not_told_its_intensity_is_not_searched(loop: str, place: str) -> None:
    """All windows would be alike: its knee would be told as beyond the most that was asked for."""
    load = f'name = "command"\nloop = "{loop}"\nrun = ["ask", "WORD"]\nwork = {{ read = "(\\\\d+) done" }}\n'
    text = TEXT.replace('name = "http"\nloop = "open"\nconnections = 500\n', load)
    told = f"`run` of its load has no place for the intensity: {place}"
    assert told in [each.what for each in refused(text)]
    assert told not in [each.what for each in refused(text.replace("WORD", f"-n={place}"))]


@pytest.mark.usefixtures("ready")
def test_knees_are_of_one_unit() -> None:
    """Users of a closed loop would else stand among requests per second, as such."""
    told = "knees would be counted in different things: requests/s, users"
    assert told in [each.what for each in refused(TEXT + '[factors]\n"load.loop" = ["open", "closed"]\n')]
    servers = SERVERS.replace('name = "http"', 'name = "http"\nloop = "closed"').replace("closed", "open", 1)
    text = TEXT.replace('[service]\nname = "nginx"\n[load]\nname = "http"\nloop = "open"\n', servers)
    assert told in [each.what for each in refused(text)]


def test_a_programme_of_probes_has_no_knee() -> None:
    text = re.sub(r"\[service\].*?(?=\[knee)", '[[probes]]\nname = "clock"\n', TEXT, flags=re.DOTALL)
    with pytest.raises(StudyError, match="only a load has a knee"):
        study(text)


def test_the_plan_knows_how_long_searches_take() -> None:
    read = study()
    arms = [entry.arm for entry in read.arms]
    longer = study(TEXT.replace('window = "1 s"', 'window = "2 s"'))
    plans = [make_plan(each, arms, {"native": 1.0, "docker": 2.0}) for each in (read, longer)]
    windows = expected_windows(levels(100, 100_000, 0.05, whole=False), 5)
    assert plans[1].estimate_s - plans[0].estimate_s == pytest.approx(len(plans[0].trials) * windows)
    assert plans[0].estimate_s > len(plans[0].trials) * windows


# -- from the plan to the report --------------------------------------------------------------------------


def test_the_knee_of_each_arm_and_their_ratio_are_found(tmp_path: Path) -> None:
    directory = run(tmp_path / "run", FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.01))
    for trial in measure_all(read_run(directory.path)):
        assert trial.record.status == "valid", trial.record.reason
        times = 1.25 if trial.record.trial.arm.platform == "docker" else 1.0
        assert trial.values[KNEE] == pytest.approx(10_000 * SHARE / times, rel=0.12)
        assert "its windows are of many intensities" in trial.missing["latency_p99_ms"]
    (toll,) = find(directory.path).answering()
    assert toll.ratio is not None
    assert toll.ratio.value == pytest.approx(1 / 1.25, rel=0.03)
    (told, *_) = answer(find(directory.path))
    under = "under latency_p99 < 20 ms and failed < 0.1 %, against native: "
    assert re.match(rf"native\+host carries 7,\d\d\d ± \d+ requests/s {under}", told), told
    assert re.search(r"docker\+routed carries (19|20|21)(\.\d)? % less \[", told), told


def test_every_window_is_kept_and_can_be_judged_again(tmp_path: Path) -> None:
    """What the record says of each window follows from the window's own raw data."""
    directory = run(tmp_path / "run", FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.01))
    loaded = read_run(directory.path)
    objectives = [parse(text, {}) for text in loaded.objective]
    for record in loaded.records:
        measured = record.measured
        assert measured is not None
        assert measured.knee is not None
        assert len(measured.windows) == len(measured.knee.steps)
        events = [window.events["request"] for window in measured.windows]
        latencies = loaded.window_histograms(record.trial.id, [each.censored for each in events])
        assert latencies is not None
        for step, window, histogram in zip(measured.knee.steps, measured.windows, latencies, strict=True):
            p99_ns = histogram.quantile_ns(0.99)
            assert step.values["latency_p99_ms"] == (None if p99_ns is None else p99_ns / 1e6)
            share = 100 * window.events["request"].censored / histogram.total
            assert step.values["failed_percent"] == pytest.approx(share)
            assert step.told == ("not met" if missed(objectives, step.values) else "met")
        deciding = [step.told for step in measured.knee.steps if step.part == "confirm"]
        assert deciding.count("met") >= 3
        assert deciding.count("not met") >= 3


@pytest.mark.parametrize(
    ("experiment", "reason", "answered"),
    [
        (
            FakeExperiment({"native": 1.0, "docker": 1.25}, generator_per_s=5000),
            r"beyond what the generator can offer here: at least 4,\d\d\d requests/s",
            "docker+routed (beyond what the generator can offer here: at least 4,",
        ),
        (
            FakeExperiment({"native": 1.0, "docker": 1.25}, capacity_per_s=1e7),
            "beyond the most that was asked for: at least 100,000 requests/s",
            "docker+routed (beyond the most that was asked for: at least 100,000 requests/s)",
        ),
        (
            FakeExperiment({"native": 1.0, "docker": 1.25}, capacity_per_s=50),
            "below 100 requests/s, the least that was asked for",
            "docker+routed (below 100 requests/s, the least that was asked for)",
        ),
    ],
    ids=["generator", "most", "least"],
)
def test_a_knee_beyond_a_bound_is_told_as_one_and_has_no_ratio(
    tmp_path: Path, experiment: FakeExperiment, reason: str, answered: str
) -> None:
    directory = run(tmp_path / "run", experiment)
    for trial in measure_all(read_run(directory.path)):
        assert trial.record.status == "valid", "a bound is a result"
        assert KNEE not in trial.values
        assert re.fullmatch(reason, trial.missing[KNEE]), trial.missing[KNEE]
    findings = find(directory.path)
    (toll,) = findings.answering()
    assert toll.ratio is None
    assert toll.verdict.words == "no ratio: in 6 pairs it is a bound, and no value"
    assert answered in answer(findings)[0]
    assert "cannot be compared" not in answer(findings)[0]


def test_of_few_users_the_method_says_how_large_a_step_is(tmp_path: Path) -> None:
    """Native could carry 3.95 and docker 3.05: both knees are 3, and that is no equality within 3 %."""
    made = run(tmp_path / "run", FakeExperiment({"native": 1.0, "docker": 1.25})).path
    assert len(KneeSection().method(find(made))) == 1
    records = [json.loads(line) for line in (made / "trials.jsonl").read_text("utf-8").splitlines()]
    for record in records:
        record["measured"]["knee"]["upper"] = record["measured"]["knee"]["lower"] * 4 / 3
    (made / "trials.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    _, told = KneeSection().method(find(made))
    assert told.startswith("**Of few requests/s a step is one more**, here up to 33 % more")


def test_one_arm_beyond_the_generator_leaves_the_others_their_knees(tmp_path: Path) -> None:
    """Native is beyond it, docker is not: docker has a knee, and the ratio is missing in each block."""
    directory = run(tmp_path / "run", FakeExperiment({"native": 1.0, "docker": 4.0}, generator_per_s=5000))
    findings = find(directory.path)
    native, docker = findings.matrix.baseline, findings.treatments[0]
    (condition,) = findings.matrix.conditions
    assert native is not None
    assert findings.matrix.absolute(KNEE, native, condition) is None
    estimate = findings.matrix.absolute(KNEE, docker, condition)
    assert estimate is not None
    assert estimate.value == pytest.approx(2500 * SHARE, rel=0.05)
    assert findings.answering()[0].ratio is None
    checks = {check.name: check for record in findings.run.records for check in record.checks}
    assert checks[GENERATOR_HEADROOM].passed is not False


def test_what_was_used_at_some_knees_alone_is_told_so(tmp_path: Path) -> None:
    """Those that ended at the most are the fastest: a mean over the others is of the slower ones."""
    at_the_edge = FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.1, capacity_per_s=100_000 / SHARE)
    trials = measure_all(read_run(run(tmp_path / "run", at_the_edge).path))
    for trial in trials:
        if KNEE in trial.values:
            trial.put("cpu_s_per_1000", 1.0)  # fakes use none
            trial.notes["cpu_s_per_1000"] = "at its own knee"
    note_bounds(trials)
    told: dict[str, list[str]] = {}
    for trial in trials:
        told.setdefault(trial.record.trial.arm.label, []).extend(trial.notes.values())
    assert told.pop("docker+routed") == ["at its own knee"] * 6
    assert told, "native, twice"
    for notes in told.values():
        assert 0 < len(notes) < 6
        assert set(notes) == {f"at its own knee, in {len(notes)} of 6 deployments: those whose knee is no bound"}


def test_what_was_used_at_a_knee_is_judged_where_knees_are(tmp_path: Path) -> None:
    """CPU per request was judged by the slower ones alone, beside a knee that was *not judged*."""
    at_the_edge = FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.1, capacity_per_s=100_000 / SHARE)
    matrix = find(run(tmp_path / "run", at_the_edge).path).matrix
    (condition,) = matrix.conditions
    native = matrix.baseline
    assert native is not None
    for trial in matrix.trials:
        if KNEE in trial.values:
            trial.put("cpu_s_per_1000", 0.5 + 0.001 * trial.record.trial.block)  # fakes use none
    barred = _failed(matrix, KNEE)
    assert barred.any()
    assert (_failed(matrix, "cpu_s_per_1000") == barred).all()
    for metric in ("deploy_s", "latency_p99_ms", "rate_per_s"):
        assert not _failed(matrix, metric).any(), "it is told of each deployment, or of none"
    assert 0 < matrix.barred("cpu_s_per_1000", native, condition)[0] < 6
    assert "it is at a knee that is a bound" in counterparts.barred(matrix, "cpu_s_per_1000", [(native, condition)])
    assert counterparts.barred(matrix, "deploy_s", [(native, condition)]) == ""
    cheap = held(matrix, objective_of("cpu_s_per_1000 < 100", matrix.metrics), native)
    assert (cheap.told, cheap.why.endswith("trials its knee is a bound")) == ("cannot tell", True)
    dear = held(matrix, objective_of("cpu_s_per_1000 < 0.1", matrix.metrics), native)
    assert (dear.told, dear.why) == (cheap.told, cheap.why), "those that are left out are the faster ones"
    (docker,) = [arm for arm in matrix.arms if arm.platform == "docker"]
    assert held(matrix, objective_of("cpu_s_per_1000 < 100", matrix.metrics), docker).told == "met"
    assert held(matrix, objective_of("cpu_s_per_1000 < 0.1", matrix.metrics), docker).told == "missed"


@pytest.mark.parametrize("slower", [1.25, 1.0], ids=["native alone", "both"])
def test_what_was_used_at_some_knees_alone_is_not_drawn(tmp_path: Path, slower: float) -> None:
    """Of six deployments of native those whose knee is no bound, the slower ones, were drawn as all of it."""
    at_the_edge = FakeExperiment({"native": 1.0, "docker": slower}, spread=0.1, capacity_per_s=100_000 / SHARE)
    findings = find(run(tmp_path / "run", at_the_edge).path)
    used = {"cpu_s_per_1000": 0.5, "memory_peak_mib": 20.0, "rss_peak_mib": 10.0, "helpers_percent": 5.0}
    bounds: Counter[str] = Counter()
    for trial in findings.matrix.trials:
        if KNEE in trial.values:
            trial.values |= used  # fakes use none
        elif trial.record.trial.arm.role != "floor":
            bounds[trial.record.trial.arm.label] += 1
    assert len(bounds) == (1 if slower > 1 else 2)
    assert all(0 < count < 6 for count in bounds.values())
    told = " and ".join(
        f"{arm.label} (in {bounds[arm.label]} of 6 trials it is at a knee that is a bound)"
        for arm in findings.arms
        if bounds[arm.label]
    )
    for section in (Cpu(), Memory()):
        if slower == 1:
            assert (section.figures(findings), section.text(findings)) == ([], [f"Left out: {told}."])
            continue
        (figure,) = section.figures(findings)
        _, *rows = figure.draw(WIDE).to_dict()["data"]["values"].splitlines()
        assert {row.partition(",")[0] for row in rows} == {"docker+routed"}
        assert figure.caption.endswith(f"Left out: {told}.")
        assert "native+host 5 %" not in figure.caption, "nor told as the share of helpers"


ROTATION = TEXT.replace("blocks = 6", 'blocks = 6\ndesign = "rotation"')


def test_in_rotation_what_slows_the_machine_for_minutes_slows_all_searches(tmp_path: Path) -> None:
    """A machine that is up to 1.4 times slower for half a minute: each search is at the mercy of when it is made, and
    searches that go on side by side are at its mercy together. About half is left (docs/METHODOLOGY.md); of three
    seeds, so that it is no luck.
    """
    narrower = []
    for seed in (1, 2, 3):
        widths = []
        for name, text in (("blocks", TEXT), ("rotation", ROTATION)):
            drawn = text.replace("seed = 1", f"seed = {seed}").replace("[knee]", '[knee]\nprecision = "2 %"')
            experiment = FakeExperiment(
                {"native": 1.0, "docker": 1.25}, drift=lambda now_s: math.exp(0.17 * math.sin(now_s / 60))
            )
            (toll,) = find(run(tmp_path / f"{name}-{seed}", experiment, drawn).path).answering()
            assert toll.ratio is not None
            assert toll.ratio.low is not None
            assert toll.ratio.high is not None
            assert toll.ratio.low <= 1 / 1.25 <= toll.ratio.high
            widths.append(math.log(toll.ratio.high / toll.ratio.low))
        narrower.append(widths[1] / widths[0])
    assert geometric_mean(narrower) < 0.75, narrower


def test_none_concludes_while_another_is_searched(tmp_path: Path) -> None:
    """Verifying and proving are work: they would be beside another's windows."""
    log: list[str] = []

    class Unequal(FakeExperiment):
        def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
            course = super().perform(trial, notes)
            for _ in course:
                log.append("waits" if notes.waits else "window")
                yield
            log.append("concluded")

    one_block = ROTATION.replace("blocks = 6", "blocks = 2")
    run(tmp_path / "run", Unequal({"native": 1.0, "docker": 3.0}, seed=4), one_block)
    first = log[: log.index("concluded")]
    assert first.count("waits") == 3, "native, native again, docker"
    assert first[-1] == "waits", "the last of all windows came before anybody's conclusions"


@pytest.mark.usefixtures("ready")
def test_searches_in_turn_are_watched_as_long_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "meminfo_bytes", lambda *_: 2**40)
    assert refused(ROTATION) == []
    (problem,) = refused(ROTATION.replace('window = "1 s"', 'window = "20 s"'))
    assert re.fullmatch(r"a turn would last [\d,]+ s, and 800 s can be watched", problem.what)
    assert problem.where == "carries.toml: [knee] window"


def test_a_search_that_came_to_no_end_tells_nothing(tmp_path: Path) -> None:
    """Its windows are kept; the rate of the first, at the least intensity, is no result."""

    class Cut(FakeExperiment):
        def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
            yield from super().perform(trial, notes)
            assert notes.measured is not None
            notes.measured = notes.measured.model_copy(update={"knee": None, "loop": "closed"})
            raise TrialError("the generator fell over")

    directory = run(tmp_path / "run", Cut({"native": 1.0, "docker": 1.25}), TEXT.replace("blocks = 6", "blocks = 2"))
    for trial in measure_all(read_run(directory.path)):
        assert trial.record.status == "failed"
        assert trial.values == {}
        assert "the generator fell over" in trial.missing[KNEE]
        assert "the generator fell over" in trial.missing["rate_per_s"]


def test_each_of_several_servers_has_its_knee(tmp_path: Path) -> None:
    text = TEXT.replace('[service]\nname = "nginx"\n[load]\nname = "http"\n', SERVERS)
    text = text.replace("blocks = 6", "blocks = 3")
    findings = find(run(tmp_path / "run", FakeExperiment({"native": 1.0, "docker": 1.25}), text).path)
    told = [line for line in answer(findings) if "carries" in line]
    assert [line.partition(":")[0] for line in told] == ["lean", "broad"]
    assert all("less [" in line for line in told), told


def test_who_watches_a_run_sees_knees_and_their_ratio(tmp_path: Path) -> None:
    directory = run(tmp_path / "run", FakeExperiment({"native": 1.0, "docker": 1.25}))
    native, _, docker = RunningTable(directory.records()).rows()
    assert native.value == pytest.approx(10_000 * SHARE, rel=0.05)
    assert docker.against_native is not None
    assert docker.against_native.value == pytest.approx(1 / 1.25, rel=0.05)


def test_who_watches_a_run_sees_no_mean_where_a_search_ended_at_a_bound(tmp_path: Path) -> None:
    """Some of docker's searches are below the least: those of the others alone would be of the better ones."""
    experiment = FakeExperiment({"native": 1.0, "docker": 10_000 * SHARE / 100}, spread=0.1)
    directory = run(tmp_path / "run", experiment)
    ends = {
        record.measured.knee.ended
        for record in directory.records()
        if record.trial.arm.platform == "docker" and record.measured is not None and record.measured.knee is not None
    }
    assert ends == {"settled", "below least"}
    native, _, docker = RunningTable(directory.records()).rows()
    assert native.value is not None
    assert (docker.value, docker.against_native) == (None, None)


def test_a_search_by_users_is_not_told_as_a_service_that_is_not_steady(tmp_path: Path) -> None:
    """Its rate rises from window to window, for so do its users."""
    findings = find(run(tmp_path / "run", FakeExperiment({"native": 1.0, "docker": 1.25})).path)
    findings.loops = ("closed",)
    assert not [told for told in reservations(findings) if "was not steady" in told]


def test_between_which_bounds_the_knees_lie_has_no_end_where_a_search_found_none(tmp_path: Path) -> None:
    """Not those of the searches alone that did not end at a bound."""
    between = {}
    for name, costs, generator_per_s in (("least", 10_000 * SHARE / 100, math.inf), ("generator", 1.25, 6160.0)):
        experiment = FakeExperiment({"native": 1.0, "docker": costs}, spread=0.1, generator_per_s=generator_per_s)
        findings = find(run(tmp_path / name, experiment).path)
        ends = Counter(
            record.measured.knee.ended
            for record in findings.run.records
            if record.trial.arm.platform == "docker" and record.measured and record.measured.knee
        )
        assert len(ends) == 2, ends
        (table,) = KneeSection().tables(findings)
        between[name] = next(row[2].text for row in table.rows if row[0].text == "docker+routed")
    assert re.fullmatch(r"0 – 1\d\d(\.\d)?", between["least"]), between
    assert re.fullmatch(r"\d,\d\d\d or more", between["generator"]), between


def test_the_windows_of_a_search_are_the_median_of_an_even_number_of_searches_too(tmp_path: Path) -> None:
    """It was the larger of the two in the middle."""
    experiment = FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.1)
    findings = find(run(tmp_path / "run", experiment, TEXT.replace("blocks = 6", "blocks = 2")).path)
    windows: dict[str, list[int]] = {}
    for record in findings.run.records:
        assert record.measured is not None
        windows.setdefault(record.trial.arm.label, []).append(len(record.measured.windows))
    assert any(len(set(each)) > 1 for each in windows.values()), windows
    (table,) = KneeSection().tables(findings)
    assert {row[0].text: float(row[4].text) for row in table.rows} == {
        label: sum(each) / 2 for label, each in windows.items()
    }


def test_the_bound_that_stands_under_a_condition_is_that_conditions(tmp_path: Path) -> None:
    """Of 1 CPU all searches ended beyond the generator, of 2 below the least: either was told both, in 2 of 4."""
    text = TEXT.replace("blocks = 6", "blocks = 2") + '[factors]\n"limits.vcpus" = [1, 2]\n'
    made = run(tmp_path / "run", FakeExperiment({"native": 1.0, "docker": 1.25}, generator_per_s=1000), text).path
    records = [json.loads(line) for line in (made / "trials.jsonl").read_text("utf-8").splitlines()]
    for record in records:
        if record["trial"]["condition"]["limits.vcpus"] == 2:
            record["measured"]["knee"] |= {"ended": "below least", "lower": None, "upper": 100.0}
    (made / "trials.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    (table,) = KneeSection().tables(find(made))
    told = {row[0].text: (row[1].text, row[1].detail) for row in table.rows if row[0].text.startswith("docker")}
    of_one, of_two = told["docker+routed, vcpus 1"], told["docker+routed, vcpus 2"]
    assert of_one[0] == of_two[0] == "a bound in 2 of 2"
    assert re.fullmatch(r"beyond what the generator can offer here: at least [\d.]+ requests/s", of_one[1]), of_one
    assert of_two[1] == "below 100 requests/s, the least that was asked for"


def test_what_a_window_could_not_tell_is_not_drawn_as_worse_than_any(tmp_path: Path) -> None:
    """It missed another part of the objective."""

    class Untold(FakeExperiment):
        def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
            yield from super().perform(trial, notes)
            assert notes.measured is not None
            knee = notes.measured.knee
            assert knee is not None
            steps = [step.model_copy(update={"values": {}}) if step.missed else step for step in knee.steps]
            notes.measured = notes.measured.model_copy(update={"knee": knee.model_copy(update={"steps": steps})})

    directory = run(tmp_path / "run", Untold({"native": 1.0, "docker": 1.25}), TEXT.replace("blocks = 6", "blocks = 2"))
    findings = find(directory.path)
    (condition,) = findings.shown_conditions(4)
    rows = [row for arm in findings.arms for row in _rows(findings, arm, condition, "latency_p99_ms")]
    assert {row["what"] for row in rows} == {"met", "knee"}
    assert None not in {row["value"] for row in rows}


def test_of_what_more_is_better_a_window_in_vain_is_drawn_below_all_others(tmp_path: Path) -> None:
    """It was drawn at the upper edge, above the bound, as the best; and the axis was called "goodput_mbit_per"."""
    text = TEXT.replace("blocks = 6", "blocks = 2")
    made = run(tmp_path / "run", FakeExperiment({"native": 1.0, "docker": 1.25}), text).path
    bound = {"text": "goodput > 0.8", "metric": "goodput_mbit_per_s", "better": "more", "bound": 0.8, "unit": "Mbit/s"}
    records = [json.loads(line) for line in (made / "trials.jsonl").read_text("utf-8").splitlines()]
    for record in records:
        knee = record["measured"]["knee"]
        knee["objective"] = [bound]
        for step in knee["steps"]:
            step["values"] = {bound["metric"]: None if step["missed"] else 0.9}
            step["missed"] = [bound["text"]] if step["missed"] else []
    (made / "trials.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    (figure,) = KneeSection().figures(find(made))
    assert "at the lower edge lies what is worse than any value" in figure.caption
    drawn = json.dumps(figure.draw(WIDE).to_dict())
    assert '"title": "goodput [Mbit/s]"' in drawn
    (rows,) = re.findall(r'"(arm,panel,x,value,what[^"]*)"', drawn)
    each = [row.split(",") for row in rows.split("\\n")[1:] if row]
    assert {value for *_, value, what in each if what == "missed"} == {"0.0"}
    assert {value for *_, value, what in each if what == "met"} == {"0.9"}


@pytest.mark.usefixtures("undrawn")
def test_the_page_has_knees_windows_and_the_rule(tmp_path: Path) -> None:
    text = TEXT.replace("blocks = 6", "blocks = 2")
    page = build_report(run(tmp_path / "run", FakeExperiment({"native": 1.0, "docker": 1.25}), text).path)
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page.read_text("utf-8")))
    assert "How much does each platform carry before latency_p99 &lt; 20 ms is missed?" in words
    assert "failed &lt; 0.1 % is missed" not in words, "it ended no search"
    assert "RFC 9971" in words
    assert (page.parent / "tables" / "knees.csv").is_file()


@pytest.mark.parametrize(("capacity_per_s", "told"), [(10_000.0, True), (100_000 / SHARE, False)], ids=["all", "some"])
def test_the_figure_of_windows_speaks_of_knees_that_it_shows(tmp_path: Path, capacity_per_s: float, told: bool) -> None:
    """Of arms of which a search ended at a bound it has no line, and says so; of none it promised all."""
    experiment = FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.1, capacity_per_s=capacity_per_s)
    made = run(tmp_path / "run", experiment).path
    figure, *_ = KneeSection().figures(find(made))
    assert "Upright lines: the knees" in figure.caption
    assert ("Knees are left out: native+host (in " in figure.caption) is not told
    records = [json.loads(line) for line in (made / "trials.jsonl").read_text("utf-8").splitlines()]
    for record in records:
        record["measured"]["knee"] |= {"ended": "below least", "lower": None}
    (made / "trials.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    figure, *_ = KneeSection().figures(find(made))
    assert "at their intensities; dashed" in figure.caption
    assert "Upright" not in figure.caption


def test_the_figure_of_windows_says_of_how_many_conditions_they_are(tmp_path: Path) -> None:
    """It has room for four."""
    text = TEXT.replace("blocks = 6", "blocks = 2") + '[factors]\n"limits.vcpus" = [1, 2, 3, 4, 5]\n'
    findings = find(run(tmp_path / "run", FakeExperiment({"native": 1.0, "docker": 1.25}), text).path)
    (figure,) = KneeSection().figures(findings)
    assert figure.caption.endswith(" logarithmic. Drawn: 4 of 5 conditions.")


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wrk", CLOSED.replace('name = "http"', 'name = "wrk"')),
        ("pgbench", CLOSED.replace('"nginx"', '"postgres"').replace('name = "http"', 'name = "pgbench"')),
        ("command", of_a_program("open")),
    ],
)
def test_a_load_that_tells_no_percentiles_is_not_searched_by_one(name: str, text: str) -> None:
    """Of pgbench and of a program it was not refused, and the first window of each search failed its trial."""
    assert any(f"load {name!r} tells no percentile of what it asks for" in str(problem) for problem in refused(text))


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize(("label", "is_told"), [("p50", True), ("p99", True), ("p999", False), ("max", False)])
def test_ab_is_searched_by_whole_percents_alone(label: str, is_told: bool) -> None:
    """It was not refused, and the first window of each search failed its trial."""
    text = CLOSED.replace('name = "http"', 'name = "ab"').replace("latency_p99", f"latency_{label}")
    told = [] if is_told else [f"load 'ab' tells no {label}"]
    assert [each.what for each in refused(text) if "tells" in each.what] == told


@pytest.mark.usefixtures("ready")
def test_a_program_that_does_not_tell_what_failed_is_not_searched_by_it() -> None:
    """It was not refused, and the first window of each search failed its trial."""
    text = of_a_program("open").replace('"latency_p99 < 20 ms", ', "")
    told = [problem.what for problem in refused(text)]
    assert told == ["load 'command' does not tell how many failed of what it asks for"]
    assert refused(text.replace("work = ", "failed = { read = '(\\d+) failed' }\nwork = ")) == []


@pytest.mark.usefixtures("ready")
def test_a_program_is_searched_by_its_own_quantities_whatever_they_are_called() -> None:
    own = """latency_p99_ms = { read = 'p99 (.+) ms', better = "less" }"""
    own += """, failed_percent = { read = 'failed (.+)', unit = "%", better = "less" }"""
    assert refused(of_a_program("open").replace("[knee]", f"quantities = {{ {own} }}\n[knee]")) == []
