"""Studies in which some servers alone are searched for their knee, and others stand at levels: file to report."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from quiet import Quiet
from virtoll.analysis.counterparts import matching
from virtoll.analysis.load import read_run
from virtoll.analysis.measuring import measure_all
from virtoll.analysis.metrics import KNEE, SERVER_CPUS
from virtoll.analysis.server import level_path
from virtoll.analysis.sizing import Asked as Users
from virtoll.catalogue import catalogue
from virtoll.errors import StudyError
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.record.model import PlannedTrial
from virtoll.record.store import RunDirectory
from virtoll.report import advice as advising
from virtoll.report.answer import answer
from virtoll.report.asked import Asked, asked_differently
from virtoll.report.both import Both as Compared
from virtoll.report.build import build_report
from virtoll.report.contents import contents
from virtoll.report.findings import find
from virtoll.report.page import _settings
from virtoll.report.reservations import reservations
from virtoll.report.running import RunningTable
from virtoll.report.sizing import _planned, sizings
from virtoll.run.execute import execute
from virtoll.run.progress import LiveProgress
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.interleaved import _alone
from virtoll.study.model import Knee, Study, settings_of
from virtoll.study.plan import conditions, deployment_seconds, deployments, make_plan
from virtoll.trial.notes import Course, Notes
from virtoll.trial.treatment import treatments

pytestmark = pytest.mark.usefixtures("undrawn")

TEXT = """\
name = "both"
title = "A server, and how much it carries"
question = "What does each platform cost, and how much does it carry?"
blocks = 3

[load]
loop = "open"
connections = 500
time_limit = "2 s"

[servers.level.service]
name = "nginx"
[servers.level.load]
name = "http"

[servers.most.service]
name = "nginx"
[servers.most.load]
name = "http"
[servers.most.knee]
objective = ["latency_p99 < 20 ms", "failed < 0.1 %"]
least = 100
most = 100000
window = "1 s"

[factors]
"load.rate" = ["50 /s", "500 /s"]

[[arms]]
platform = "native"
[[arms]]
platform = "docker"

[quick]
blocks = 2
[quick.servers.most.knee]
windows = 3
"""


def study_of(text: str = TEXT, *, quick: bool = False) -> Study:
    return read_study(text, "both.toml", catalogue(), quick=quick)


@dataclass
class Both(FakeExperiment):
    """The knee of a server whose knee is searched for."""

    study: Any = None

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        knee = settings_of(Knee, "knee", self.study.values(trial.condition))
        self.knee = knee if knee.objective else None
        yield from super().perform(trial, notes)


def run(path: Path, experiment: Both, text: str = TEXT) -> RunDirectory:
    read = study_of(text)
    plan = make_plan(read, [entry.arm for entry in read.arms], {"native": 1.0, "docker": 2.0})
    directory = RunDirectory.create(path, document.as_json(read), plan, fake_environment())
    experiment.study = read
    assert execute(directory, experiment, Quiet())
    return directory


# -- the study file ---------------------------------------------------------------------------------------


def test_who_is_searched_for_its_knee_is_measured_once_and_at_no_level() -> None:
    study = study_of()
    assert conditions(study) == [
        {"server": "level", "load.rate_per_s": 50.0},
        {"server": "level", "load.rate_per_s": 500.0},
        {"server": "most"},
    ]
    knees = [treatment.knee for treatment in treatments(study)]
    assert knees[:2] == [None, None]
    assert knees[2] is not None
    assert (knees[2].least, knees[2].most, knees[2].windows) == (100, 100_000, 5)
    (quick,) = [each.knee for each in treatments(study_of(quick=True)) if each.knee is not None]
    assert (quick.least, quick.windows) == (100, 3)


def test_it_comes_back_from_its_run_directory() -> None:
    study = study_of()
    written = json.loads(json.dumps(document.as_json(study)))
    assert document.of(written, Path("study.json"), catalogue()) == study


def test_a_rule_of_levels_leaves_it_and_one_of_its_name_leaves_it_out() -> None:
    """A rule that names a level is of those that are measured at levels."""
    levels = '\n[[exclude]]\n"load.rate" = ["50 /s", "500 /s"]\nplatform = "docker"\n'
    own = '\n[[exclude]]\nserver = "most"\nplatform = "docker"\n'
    assert conditions(study_of(TEXT + levels), "docker") == [{"server": "most"}]
    assert all(each["server"] == "level" for each in conditions(study_of(TEXT + own), "docker"))
    assert {"server": "most"} in conditions(study_of(TEXT + own), "native")


def test_the_plan_knows_how_long_the_search_takes() -> None:
    study = study_of()
    told = {str(each.condition): deployment_seconds(study, each, 1.0) for each in deployments(study, _arms(study))}
    assert min(told.items(), key=lambda item: -item[1])[0] == str({"server": "most"})
    at_a_level = told[str({"server": "level", "load.rate_per_s": 50.0})]
    assert at_a_level == pytest.approx(4.0), "its warm-up of 1 s, its window of 2 s, and 1 s of the platform"


def _arms(study: Study) -> list[Any]:
    return [entry.arm for entry in study.arms[:1]]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[servers.most.knee]\n", "[servers.most.knees]\n", "unknown key 'knees'"),
        ('objective = ["latency_p99 < 20 ms", "failed < 0.1 %"]\n', "", "a search for the knee needs an objective"),
        ("least = 100\n", 'least = "many"\n', "least: 'many' is not a number"),
        ('window = "1 s"', 'windw = "1 s"', "unknown key 'windw'; did you mean 'window'?"),
        ('name = "http"\n[servers.most.knee]\n', 'name = "http"\n[servers.most]\nknee = 3\n[servers.x]\n', "no table"),
        (
            '"load.rate" = ["50 /s", "500 /s"]',
            '"knee.windows" = [3, 5]',
            "has servers of which it searches for no knee",
        ),
        (
            '"load.rate" = ["50 /s", "500 /s"]',
            '"load.time_limit" = ["1 s", "2 s"]',
            "the windows of a search are as [knee] says",
        ),
    ],
)
def test_what_is_wrong_is_told(old: str, new: str, told: str) -> None:
    assert old in TEXT
    with pytest.raises(StudyError) as caught:
        study_of(TEXT.replace(old, new, 1))
    assert told in "; ".join(problem.what for problem in caught.value.problems)


def test_a_factor_of_the_search_is_one_where_all_are_searched() -> None:
    other = (
        '[servers.level.knee]\nobjective = ["latency_p99 < 20 ms"]\nleast = 100\nmost = 1000\n\n[servers.most.service]'
    )
    text = TEXT.replace("[servers.most.service]", other, 1).replace(
        '"load.rate" = ["50 /s", "500 /s"]', '"knee.windows" = [3, 5]'
    )
    assert [treatment.knee.windows for treatment in treatments(study_of(text)) if treatment.knee] == [3, 5, 3, 5]
    with pytest.raises(StudyError, match="asks for it itself"):
        study_of(text.replace('"knee.windows" = [3, 5]', '"load.rate" = ["50 /s", "500 /s"]'))


# -- from the run to the report ---------------------------------------------------------------------------


def test_each_is_told_in_what_it_is_measured_by(tmp_path: Path) -> None:
    directory = run(tmp_path / "run", Both({"native": 1.0, "docker": 1.25}))
    read = read_run(directory.path)
    assert level_path(read) == "load.rate_per_s"
    for trial in measure_all(read):
        is_search = trial.record.trial.condition == {"server": "most"}
        assert (KNEE in trial.values) == is_search
        assert (SERVER_CPUS in trial.values) == (not is_search)
    findings = find(directory.path)
    assert not findings.is_search
    assert {name: each.is_search for name, each in findings.servers.items()} == {"level": False, "most": True}
    matrix = findings.matrix
    assert [dict(each.levels) for each in matrix.conditions_of(KNEE)] == [{"server": "most"}]
    assert all(each.get("server") == "level" for each in matrix.conditions_of(SERVER_CPUS))
    assert all(each.get("server") == "level" for each in matrix.conditions_of("rate_per_s"))
    assert len(matrix.conditions_of("cpu_s_per_1000")) == 3
    told = answer(findings)
    (carries,) = [line for line in told if "carries" in line]
    assert re.match(r"most: native\+host carries 7,\d\d\d ± \d+ requests/s under latency_p99 < 20 ms", carries)
    assert re.search(r"docker\+routed carries (19|20|21)(\.\d)? % less", carries)
    assert any(line.startswith("level: ") for line in told)


def test_the_report_has_a_knee_of_one_and_curves_of_the_other(tmp_path: Path) -> None:
    directory = run(tmp_path / "run", Both({"native": 1.0, "docker": 1.25}))
    page = build_report(directory.path)
    parts = {part.name: part for part in contents(find(directory.path))}
    assert "knee-most" in parts
    assert "knee-level" not in parts
    assert {"tolls-level", "tolls-most"} <= parts.keys()
    assert not any("most" in row[0].text for table in parts["levels"].tables for row in table.rows)
    drawn = [figure.name for figure in parts["levels"].figures]
    assert "levels-cpu" in drawn, drawn
    text = page.read_text()
    assert "nan" not in re.sub(r"<script.*?</script>|data:[^\"]*|<svg.*?</svg>", "", text, flags=re.DOTALL).split()
    rows = list(csv.DictReader((directory.path / "report" / "tables" / "trials.csv").open()))
    assert {row["server"] for row in rows if row["knee"]} == {"most"}


def test_a_knee_that_is_a_bound_bars_no_ratio_of_the_others(tmp_path: Path) -> None:
    """What was used at knees goes with the knees (`metrics.barring`), and what was used at levels does not."""
    directory = run(
        tmp_path / "run", Both({"native": 1.0, "docker": 1.25}), TEXT.replace("most = 100000", "most = 1000")
    )
    findings = find(directory.path)
    (docker,) = findings.treatments
    barred, total = (each.tolls("cpu_s_per_1000").total(docker) for each in (findings.servers["most"], findings))
    assert barred is not None
    assert barred.ratio is None
    assert total is not None
    assert total.ratio is not None
    assert total.conditions == 2
    assert len(findings.over(KNEE)) == 1


def test_two_runs_are_compared_by_their_knees_too(tmp_path: Path) -> None:
    runs = [
        find(run(tmp_path / str(n), Both({"native": 1.0, "docker": toll})).path) for n, toll in ((1, 1.25), (2, 1.6))
    ]
    both = Compared(*runs)
    metrics = {metric.name: metric for metric in both.metrics(())}
    assert KNEE in metrics
    (row,) = both.rows(metrics[KNEE], by_condition=False)
    assert row.conditions == 1
    assert row.before.summary is not None
    assert row.after.summary is not None


def test_the_table_of_a_run_mixes_no_knees_with_rates(tmp_path: Path) -> None:
    directory = run(tmp_path / "run", Both({"native": 1.0, "docker": 1.25}))
    records = read_run(directory.path).records
    rates = [record for record in records if record.trial.condition["server"] == "level"]
    for ordered in (records, records[::-1]):
        told = {row.arm.label: (row.value, row.against_native) for row in RunningTable(ordered).rows()}
        alone = {row.arm.label: (row.value, row.against_native) for row in RunningTable(rates).rows()}
        assert told == alone
        assert alone["docker+routed"][0] is not None
    knees = [record for record in records if record not in rates]
    assert all(row.value is not None for row in RunningTable(knees).rows())


def test_claims_take_no_knee_for_a_level(tmp_path: Path) -> None:
    """What was used at each arm's own knee is no mean with what was at the same level."""
    matrix = find(run(tmp_path / "run", Both({"native": 1.0, "docker": 1.25})).path).matrix
    assert [each.get("server") for each in matching(matrix, "cpu_s_per_1000", {}, {})] == ["level", "level"]
    assert [each.get("server") for each in matching(matrix, KNEE, {}, {})] == ["level", "level", "most"]


def test_its_levels_are_those_that_some_are_measured_at(tmp_path: Path) -> None:
    findings = find(run(tmp_path / "run", Both({"native": 1.0, "docker": 1.25})).path)
    assert findings.matrix.levels("load.rate_per_s") == [50.0, 500.0]
    assert "not known" not in dict(_settings(findings))["load.rate_per_s"]
    assert not [sentence for sentence in reservations(findings) if "was not steady" in sentence]
    metric = findings.matrix.metrics["cpu_s_per_1000"]
    assert metric.censoring.startswith("is at a knee that is a bound or is ")


def test_a_server_that_was_searched_is_asked_another_thing(tmp_path: Path) -> None:
    """Before it had a knee of its own it was measured like the others."""
    plain = re.sub(r"\[servers\.most\.knee\]\n(.+\n){4}", "", TEXT)
    before, after = (
        find(run(tmp_path / name, Both({"native": 1.0, "docker": 1.25}), text).path)
        for name, text in (("before", plain), ("after", TEXT))
    )
    assert any("servers" in told for told in asked_differently(Asked.of(before), Asked.of(after)))


def test_where_all_have_a_knee_of_their_own_the_run_is_a_search(tmp_path: Path) -> None:
    other = '[servers.level.knee]\nobjective = ["latency_p99 < 20 ms"]\nleast = 100\nmost = 100000\n\n'
    text = TEXT.replace("[servers.most.service]", f"{other}[servers.most.service]", 1)
    text = text.replace('[factors]\n"load.rate" = ["50 /s", "500 /s"]\n', "")
    findings = find(run(tmp_path / "run", Both({"native": 1.0, "docker": 1.25}), text).path)
    assert findings.is_search
    assert findings.headline.name == KNEE
    assert len(findings.compared) == 2
    assert not findings.matrix.searched


def test_a_plan_goes_by_the_knees_or_by_the_levels(tmp_path: Path) -> None:
    findings = find(run(tmp_path / "run", Both({"native": 1.0, "docker": 1.25})).path)
    assert [name for name, _ in _planned(findings, [])] == ["most"]
    assert [name for name, _ in _planned(findings, ["latency_p99 < 20 ms"])] == ["level"]
    assert [plan.server for plan in sizings(findings, Users(1000, 0.3, 2, 2**33), [], None)] == ["most"]


def test_a_fixed_level_stays_one_where_two_configurations_are_compared() -> None:
    """Else a rule of levels would take the knee away."""
    rule = '\n[[exclude]]\n"load.rate" = "50 /s"\nplatform = "docker"\n'
    study = study_of(TEXT.replace('["50 /s", "500 /s"]', '["50 /s"]') + rule)
    assert _alone(study).factors["load.rate_per_s"] == (50.0,)
    assert conditions(_alone(study), "docker") == [{"server": "most"}]


def test_advice_by_an_objective_of_levels_goes_by_those_who_are_at_levels(tmp_path: Path) -> None:
    """A search tells of no latency: what it does not know made nobody fit."""
    runs = [find(run(tmp_path / "run", Both({"native": 1.0, "docker": 1.25})).path)]
    problems: list[Any] = []
    parts = [part for each in runs for part in advising._parts(each, "run", problems)]
    found = advising._objectives(["latency_p99 < 1 s"], parts, problems)
    assert {name: len(told) for name, told in found.items()} == {"run, level": 1, "run, most": 0}
    found = advising._objectives(["knee > 1000 requests/s"], parts, problems)
    assert {name: len(told) for name, told in found.items()} == {"run, level": 0, "run, most": 1}
    assert problems == []


def test_how_a_run_is_headed_goes_by_those_who_are_at_levels(tmp_path: Path) -> None:
    findings = find(run(tmp_path / "run", Both({"native": 1.0, "docker": 1.25})).path)
    assert findings.loops == ("closed",), "the fake's searches are in open loop"
    assert findings.headline.name == "rate_per_s"


def test_the_table_of_a_run_is_headed_by_what_is_in_it(tmp_path: Path) -> None:
    directory = run(tmp_path / "run", Both({"native": 1.0, "docker": 1.25}))
    read = read_run(directory.path)
    knees_first = sorted(read.records, key=lambda record: record.trial.condition["server"] == "level")
    users = knees_first[0].measured
    assert users is not None
    assert users.knee is not None
    of_users = users.model_copy(update={"knee": users.knee.model_copy(update={"unit": "users"})})
    progress = LiveProgress(Console(file=io.StringIO(), width=200))
    told = []
    for measured in (of_users, knees_first[-1].measured, of_users):
        assert measured is not None
        progress._head(measured)
        told.append(progress._unit)
    assert told == ["users", "requests/s", "requests/s"]
