"""Several services beside each other in one study: their file, their treatments, and what is told of them."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from quiet import Quiet
from virtoll.analysis.conditions import Condition, level_label
from virtoll.analysis.measuring import work_asked
from virtoll.analysis.metrics import Metric
from virtoll.catalogue import catalogue
from virtoll.errors import StudyError
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Wanted, together
from virtoll.platforms.base import platforms
from virtoll.record.model import Audit, PlannedTrial
from virtoll.record.store import RunDirectory
from virtoll.report.answer import answer
from virtoll.report.build import build_report
from virtoll.report.contents import contents
from virtoll.report.findings import find
from virtoll.report.sections.base import speaking
from virtoll.run.execute import execute
from virtoll.run.explaining import explained
from virtoll.run.refusals import problems_of
from virtoll.run.rule import Asked, with_room
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.study.plan import conditions, make_plan
from virtoll.trial.notes import Course, Notes
from virtoll.trial.treatment import Driven, treatments

pytestmark = pytest.mark.usefixtures("undrawn")

TEXT = """\
name = "both"
title = "Two web servers"
question = "Which costs more?"
blocks = 3

[service]
tls = false

[load]
connections = 7

[servers.lean.service]
name = "nginx"
[servers.lean.load]
name = "http"

[servers.broad.service]
name = "apache"
[servers.broad.load]
name = "http"
connections = 9

[factors]
"load.object" = ["1 kB", "10 kB"]

[[arms]]
platform = "native"
[[arms]]
platform = "docker"
"""


def study_of(text: str = TEXT) -> Study:
    return read_study(text, "both.toml", catalogue())


def test_each_server_has_its_service_and_load_over_what_is_said_of_all() -> None:
    study = study_of()
    assert study.service == study.load == ""
    assert [(name, each.service, each.load) for name, each in study.servers.items()] == [
        ("lean", "nginx", "http"),
        ("broad", "apache", "http"),
    ]
    assert [each["server"] for each in conditions(study)] == ["lean", "lean", "broad", "broad"]
    works = [each.work for each in treatments(study)]
    told: list[Any] = []
    for work in works:
        assert isinstance(work, Driven)
        told.append((work.service.name, work.load.settings.connections, work.load.settings.object_bytes))
    assert told == [("nginx", 7, 1000), ("nginx", 7, 10_000), ("apache", 9, 1000), ("apache", 9, 10_000)]


def test_a_study_of_servers_comes_back_from_its_run_directory() -> None:
    study = study_of()
    written = json.loads(json.dumps(document.as_json(study)))
    assert document.of(written, Path("study.json"), catalogue()) == study


def test_a_server_is_left_out_by_its_name() -> None:
    study = study_of(TEXT + '\n[[exclude]]\nserver = "broad"\n"load.object" = "10 kB"\n')
    assert [tuple(each.values()) for each in conditions(study)] == [("lean", 1000), ("lean", 10_000), ("broad", 1000)]


WRONG = [
    ('name = "apache"', 'name = "apach"', "no service is called 'apach'; did you mean 'apache'?", 18),
    ("connections = 9", "conections = 9", "unknown key 'conections'; did you mean 'connections'?", 21),
    ("tls = false", 'tls = "no"', "tls: ", 7),
    ("tls = false", 'name = "nginx"', "[service] names one, and the study has [servers]", 7),
    ('name = "apache"', 'name = "squid"', "service 'squid' needs an origin, and a study of [servers] has none", 18),
    (
        "[servers.broad.load]\nname = ",
        "[servers.broad.laod]\nname = ",
        "[servers.broad] needs a service and a load",
        None,
    ),
    ('"load.object"', '"load.objct"', "'load.objct' is no value of this study", 24),
]


@pytest.mark.parametrize(("right", "wrong", "told", "line"), WRONG)
def test_what_is_wrong_is_told_with_its_line(right: str, wrong: str, told: str, line: int | None) -> None:
    with pytest.raises(StudyError) as raised:
        study_of(TEXT.replace(right, wrong))
    found = [(problem.what, problem.where) for problem in raised.value.problems]
    assert any(what.startswith(told) for what, _ in found), found
    where = next(where for what, where in found if what.startswith(told))
    assert line is None or where == f"both.toml:{line}"


@pytest.mark.parametrize(("missing", "minutes"), [({"openvz", "xen-pv", "kvm"}, 20), ({"openvz", "xen-pv"}, 22)])
def test_the_quick_study_of_streaming_takes_about_twenty_minutes(missing: set[str], minutes: int) -> None:
    """By the estimate, where there is KVM and where not; and it leaves none of what is asked of it out."""
    text = (files("virtoll.studies") / "streaming.toml").read_text(encoding="utf-8")
    quick = read_study(text, "streaming.toml", catalogue(), quick=True)
    arms = [entry.arm for entry in quick.arms if entry.arm.platform not in missing]
    assert {"native", "docker", "lxc", "uml", "qemu-tcg"} <= {arm.platform for arm in arms}
    searched = {"nginx-rtmp-knee", "http-knee"}
    assert set(quick.servers) == {"nginx-rtmp", "red5", "gst-rtsp", "vlc", "http", "hls", *searched}
    plan = make_plan(quick, arms, {name: each.expected_overhead_s for name, each in platforms().items()})
    asked = {trial.arm.platform for trial in plan.trials if trial.condition["server"] in searched}
    assert asked == {"native", "docker", "lxc"}
    assert plan.blocks == 2
    assert plan.estimate_s < minutes * 60


OPEN = 'name = "http"\nloop = "open"\nrate = "50 /s"\n'


@pytest.mark.parametrize(
    ("quick", "told", "line"),
    [
        ("[quick.servers.broad.load]\nconnections = 0", "connections: must be at least 1", 2),
        ("[quick.servers.broad.load]\nconections = 2", "unknown key 'conections'", 2),
        ("[quick.servers.broad.service]\nworkers = 0", "workers: must be at least 1", 2),
        ("[quick.servers.third]\nload = 1", "[servers.third] needs a service and a load", 1),
    ],
)
def test_what_is_wrong_in_the_quick_of_a_server_is_told_with_its_line(quick: str, told: str, line: int) -> None:
    with pytest.raises(StudyError) as raised:
        read_study(f"{TEXT}{quick}\n", "both.toml", catalogue(), quick=True)
    (problem,) = raised.value.problems
    assert problem.what.startswith(told)
    assert problem.where == f"both.toml:{len(TEXT.splitlines()) + line}"


def test_in_open_loop_each_servers_connections_are_to_be_said() -> None:
    """With the default of one, requests would queue in the generator, and the wait be told as the server's latency."""
    unsaid = TEXT.replace("connections = 7\n", "")
    lean = '[servers.lean.load]\nname = "http"\n'
    with pytest.raises(StudyError) as raised:
        study_of(unsaid.replace(lean, f"[servers.lean.load]\n{OPEN}"))
    (problem,) = raised.value.problems
    assert problem.what.startswith("load.connections must be given in open loop")
    assert problem.where == "both.toml:15"
    for said in (TEXT, unsaid.replace("[factors]", '[factors]\n"load.connections" = [3, 4]')):
        assert study_of(said.replace(lean, f"[servers.lean.load]\n{OPEN}")).servers["lean"].base["load.loop"] == "open"


def test_a_quick_variant_changes_of_a_server_what_it_names() -> None:
    quick = "[quick.servers.broad.load]\nconnections = 2\n[[arms]]"
    study = read_study(TEXT.replace("[[arms]]", quick, 1), "both.toml", catalogue(), quick=True)
    assert [each.base["load.connections"] for each in study.servers.values()] == [7, 2]
    assert [(each.service, each.load) for each in study.servers.values()] == [("nginx", "http"), ("apache", "http")]


def test_one_server_is_no_study_of_servers() -> None:
    one = TEXT.replace("servers.broad", "servers.lean").split("[servers.lean.service]")
    with pytest.raises(StudyError, match="sets several beside each other"):
        study_of(one[0] + "[servers.lean.service]" + one[1] + one[2][one[2].index("[factors]") :])


def test_what_is_asked_for_differently_cannot_be_compared() -> None:
    text = TEXT.replace('[servers.broad.service]\nname = "apache"', '[servers.broad.service]\nname = "redis"')
    text = text.replace('name = "http"\nconnections = 9', 'name = "redis"').replace("[service]\ntls = false\n", "")
    text = text.replace("[load]\nconnections = 7\n", "").replace('"load.object" = ["1 kB", "10 kB"]', "")
    study = study_of(text)
    problems = problems_of(study, treatments(study), "both.toml", LocalHost())
    told = "they are asked for different things, of which no rates can be compared: request, command"
    assert told in [problem.what for problem in problems]


def test_probes_explain_one_service_alone() -> None:
    with pytest.raises(StudyError, match="would explain none of them alone"):
        explained(study_of())


def test_one_image_holds_what_all_need_but_not_two_of_the_users_own() -> None:
    nginx, apache, own = Wanted(packages=("nginx",)), Wanted(packages=("apache2", "nginx")), Wanted(source="oci:a.tar")
    assert together([nginx, apache]) == Wanted(packages=("apache2", "nginx"))
    assert together([nginx, nginx]) == nginx
    assert together([own, own]) == own
    assert together([own, nginx]) is None
    assert together([]) == Wanted()


def test_an_audit_is_of_one_server() -> None:
    assert Audit.levels({"server": "lean", "load.users": 3, "limits.vcpus": 1}) == {"server": "lean", "limits.vcpus": 1}


def test_a_server_is_told_by_its_name() -> None:
    condition = Condition.of_levels({"load.connections": 3, "server": "nginx-rtmp"})
    assert condition.label() == "nginx-rtmp, 3 connections"
    assert level_label("server", "nginx-rtmp") == "nginx-rtmp"


def measured(directory: Path, text: str = TEXT) -> Path:
    """A run of the study on fakes: apache costs docker 25 %, and nginx nothing."""
    study = study_of(text.replace('["1 kB", "10 kB"]', '["1 kB"]'))
    plan = make_plan(study, [entry.arm for entry in study.arms], dict.fromkeys(("native", "docker"), 1.0))
    run = RunDirectory.create(directory, document.as_json(study), plan, fake_environment())
    execute(run, Costly({"native": 1.0, "docker": 1.0}, spread=0.001), Quiet())
    return run.path


class Costly(FakeExperiment):
    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        self.tolls = {"native": 1.0, "docker": 1.25 if trial.condition["server"] == "broad" else 1.0}
        return super().perform(trial, notes)


@pytest.mark.drawn
def test_the_answer_is_of_each_server_by_itself(tmp_path: Path) -> None:
    findings = find(measured(tmp_path / "run"))
    told = answer(findings)
    assert "docker+routed" in next(sentence for sentence in told if sentence.startswith("lean: Throughput"))
    costly = next(sentence for sentence in told if sentence.startswith("broad: Throughput"))
    assert "docker+routed costs 19.9 % [19.6, 20.3]" in costly
    parts = contents(findings)
    assert len({part.name for part in parts}) == len(parts)
    names = [table.name for part in parts for table in part.tables]
    assert len(set(names)) == len(names)
    assert {"tolls-lean", "tolls-broad"} <= set(names)
    of_each = {(said.section.name, said.server) for said in speaking(findings)}
    for section in ("memory", "cpu"):  # a mean over servers would be nobody's
        assert {(section, "lean"), (section, "broad")} <= of_each
    drawn = [figure for part in parts for figure in part.figures]
    assert len({figure.name for figure in drawn}) == len(drawn)
    assert {"tolls-lean", "tolls-broad"} <= {figure.name for figure in drawn}
    page = build_report(findings.run.directory).read_text()
    assert "broad: What does each platform cost?" in page


def test_what_a_server_was_asked_for_is_its_own(tmp_path: Path) -> None:
    """As many requests as its load says: else the time for them would be told as an estimate for 10,000."""
    text = TEXT.replace("connections = 9", "connections = 9\nrequests = 500")
    findings = find(measured(tmp_path / "run", text))
    asked = {record.trial.condition["server"]: work_asked(findings.run, record) for record in findings.run.records}
    assert asked == {"lean": 0, "broad": 500}
    assert {name: each.run.base["load.requests"] for name, each in findings.servers.items()} == asked
    page = build_report(findings.run.directory).read_text()
    assert "broad: load.connections" in page
    assert "broad: service" in page


def test_of_a_server_that_is_excluded_nothing_is_told(tmp_path: Path) -> None:
    text = TEXT + '\n[[exclude]]\nserver = "broad"\n'
    (told,) = answer(find(measured(tmp_path / "run", text)))
    assert told.startswith("lean: Throughput"), "and nothing of broad's having no native arm"


def test_a_loads_own_quantity_is_of_the_servers_that_it_drives(tmp_path: Path) -> None:
    matrix = find(measured(tmp_path / "run")).matrix
    own = Metric("other.stalls", "Stalls", "1", "less", group="other")
    servers = {"lean": {"load": "http", "base": {}}, "broad": {"load": "other", "base": {}}}
    study = {**matrix.run.study, "servers": servers}
    seen = replace(matrix, run=replace(matrix.run, study=study), metrics={**matrix.metrics, "other.stalls": own})
    assert {condition.get("server") for condition in seen.conditions_of("other.stalls")} == {"broad"}
    assert {condition.get("server") for condition in seen.conditions_of("rate_per_s")} == {"lean", "broad"}


@pytest.mark.parametrize("asked", [Asked(decide=0.05), Asked(precision=0.02)])
def test_no_rule_ends_a_run_of_several_servers(asked: Asked) -> None:
    with pytest.raises(StudyError, match="no one toll of theirs could end its run"):
        with_room(study_of(), asked)
