"""Servers of a study that are loaded side by side: file, plan, what is refused, and what is told of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from quiet import Quiet
from virtoll.analysis.conditions import level_label
from virtoll.analysis.ratios import toll_table
from virtoll.analysis.side_by_side import side_by_side as judge
from virtoll.catalogue import catalogue
from virtoll.errors import StudyError
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.hosts.local import LocalHost
from virtoll.offers import Target
from virtoll.platforms.base import platforms
from virtoll.record.model import BESIDE, SERVER
from virtoll.record.store import RunDirectory
from virtoll.report.answer import answer
from virtoll.report.build import build_report
from virtoll.report.contents import contents
from virtoll.report.findings import Findings, find
from virtoll.report.sections.side_by_side import SideBySide
from virtoll.run import side_by_side
from virtoll.run import stage as stages
from virtoll.run.execute import execute
from virtoll.run.readiness import Readiness
from virtoll.run.refusals import problems_of
from virtoll.run.stage import Stage
from virtoll.run.target import load_for
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.study.plan import conditions, deployment_seconds, deployments, make_plan, others
from virtoll.trial.treatment import Driven, of_block, treatment_of, treatments

pytestmark = pytest.mark.usefixtures("undrawn")

TEXT = """\
name = "together"
title = "Two web servers"
question = "What do they take from each other?"
blocks = 3

[load]
connections = 7

[servers.lean.service]
name = "nginx"
[servers.lean.load]
name = "http"

[servers.broad.service]
name = "burn"
[servers.broad.load]
name = "http"

[factors]
"neighbour.servers" = ["none", "others"]

[[arms]]
platform = "docker"
network = "routed"
[[arms]]
platform = "native"
"""
PLATFORMS = ("native", "docker", "lxc", "kvm")
NOTHING = "no ratio: in 1 pair it is of a window in which nothing was served"


def study_of(text: str = TEXT) -> Study:
    return read_study(text, "together.toml", catalogue())


def test_what_servers_side_by_side_are_asked_for_is_drawn_for_each() -> None:
    """By one schedule each request met one of the other server's, in each block and on each platform alike."""

    def seeds(block: int) -> list[int]:
        of_one = next(each for each in treatments(study_of()) if each.beside)
        drawn = of_block(of_one, block)
        loads = [drawn.work, *drawn.beside.values()]
        return [each.load.settings.seed for each in loads if isinstance(each, Driven)]

    assert seeds(1) == seeds(1)
    assert len({*seeds(1), *seeds(2)}) == 4
    assert max(seeds(2)) < 2**63


def planned(study: Study, *, overhead_s: float = 1.0) -> float:
    (first, *_) = deployments(study, [study.arms[0].arm])
    return deployment_seconds(study, first, overhead_s)


def problems(study: Study) -> list[str]:
    told = side_by_side.problems_side_by_side(study, treatments(study), "together.toml")
    assert all(problem.where == "together.toml: [neighbour] servers" for problem in told)
    return [problem.what for problem in told]


# -- the file and the plan ---------------------------------------------------------------------------------


def test_each_server_is_measured_alone_and_beside_the_others_on_one_deployment() -> None:
    study = study_of()
    assert [(each[SERVER], each[BESIDE]) for each in conditions(study)] == [
        ("lean", "none"),
        ("lean", "others"),
        ("broad", "none"),
        ("broad", "others"),
    ]
    plan = make_plan(study, [entry.arm for entry in study.arms], dict.fromkeys(PLATFORMS, 1.0))
    shared: dict[str, list[tuple[str, str]]] = {}
    for trial in plan.trials:
        shared.setdefault(trial.deployment, []).append((trial.condition[SERVER], trial.condition[BESIDE]))
    assert len(shared) == 3 * 3 * 2, "blocks, arms with the second native one, servers"
    for members in shared.values():
        assert len({server for server, _ in members}) == 1
        assert sorted(beside for _, beside in members) == ["none", "others"]
    first = [members[0][1] for members in shared.values()]
    assert set(first) == {"none", "others"}, "the order is drawn for each"


def test_the_others_are_those_that_are_measured_under_the_same_levels() -> None:
    study = study_of(TEXT.replace("[factors]", '[factors]\n"load.object" = ["1 kB", "10 kB"]'))
    alone = {SERVER: "lean", "load.object_bytes": 10_000, BESIDE: "none"}
    beside = {**alone, BESIDE: "others"}
    assert others(study, alone) == {}
    assert others(study, beside) == {"broad": {**beside, SERVER: "broad"}}
    treatment = treatment_of(study, beside)
    (work,) = treatment.beside.values()
    assert isinstance(work, Driven)
    assert (work.service.name, work.load.settings.object_bytes) == ("burn", 10_000)
    excluded = replace(study, exclude=({SERVER: ["broad"], "load.object_bytes": [10_000]},))
    assert others(excluded, beside) == {}
    assert others(excluded, {**beside, "load.object_bytes": 1000}) != {}


def test_the_estimate_holds_each_of_the_others() -> None:
    study = study_of()
    alone = replace(study, factors={**study.factors, BESIDE: ("none",)})
    assert planned(study, overhead_s=10.0) - planned(study, overhead_s=0.0) == pytest.approx(20.0)
    assert planned(alone, overhead_s=10.0) - planned(alone, overhead_s=0.0) == pytest.approx(10.0)
    assert planned(study, overhead_s=0.0) > 2 * planned(alone, overhead_s=0.0), "two windows, and a common start"


def test_it_comes_back_from_its_run_directory() -> None:
    study = study_of()
    written = json.loads(json.dumps(document.as_json(study)))
    assert document.of(written, Path("study.json"), catalogue()) == study


def test_what_no_run_directory_of_before_holds_is_alone() -> None:
    study = study_of(TEXT.replace('"neighbour.servers" = ["none", "others"]', '"load.object" = ["1 kB"]'))
    old = replace(study, base={path: value for path, value in study.base.items() if path != BESIDE})
    assert all(treatment.beside == {} for treatment in treatments(old))


def test_its_levels_are_told_in_words() -> None:
    assert [level_label(BESIDE, level) for level in ("none", "others")] == ["alone", "beside the others"]
    assert level_label(SERVER, "others") == "others", "which may be a server's name"


# -- what is refused ---------------------------------------------------------------------------------------


def lengths(study: Study) -> Study:
    broad = study.servers["broad"]
    longer = replace(broad, base={**broad.base, "load.time_limit_ns": 3 * 10**9})
    return replace(study, servers={**study.servers, "broad": longer})


def test_nothing_is_wrong_with_servers_that_can_stand_side_by_side() -> None:
    text = TEXT.replace('name = "burn"', 'name = "unbound"')  # other ports; what it is asked is another matter here
    assert problems(study_of(text)) == []
    assert problems(study_of(TEXT.replace('["none", "others"]', '["none"]'))) == [], "alone their ports are no matter"


def test_two_servers_with_one_port_share_no_network_stack() -> None:
    (told,) = problems(study_of())
    assert told == "burn and nginx have the same port (8080/tcp), and on native+host they share one network stack"


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("blocks = 3", 'blocks = 3\ndesign = "rotation"', "the servers beside one arm would be at work while others"),
        (
            "[factors]",
            '[knee]\nobjective = ["failed < 1 %"]\n[factors]',
            "the others are under one load, and not in all",
        ),
        ("[factors]", '[neighbour]\naggressor = "cpu"\n[factors]', "beside the others no aggressor is let loose"),
        ('name = "http"', 'name = "ab"', "load 'ab' begins when it is started, and all are to begin at one time"),
    ],
)
def test_what_cannot_be_combined_is_refused(right: str, wrong: str, told: str) -> None:
    study = study_of(TEXT.replace(right, wrong))
    assert any(what.startswith(told) for what in problems(study)), problems(study)
    whole = problems_of(study, treatments(study), "together.toml", LocalHost())
    assert any(problem.what.startswith(told) for problem in whole)


def test_windows_of_one_length_and_another_server_are_needed() -> None:
    assert "their windows are of different lengths: 10 s, 3 s" in problems(lengths(study_of()))
    one = replace(study_of(), servers={}, service="nginx", load="http", factors={BESIDE: ("others",)})
    lean = study_of().servers["lean"].base
    one = replace(one, base={**one.base, **lean})
    assert problems(one) == ["no other server is there to run beside the one that is measured"]


THREE = """\
[servers.third.service]
name = "unbound"
[servers.third.load]
name = "http"

[factors]"""


def test_a_server_that_one_platform_leaves_out_runs_beside_nobody_or_is_refused() -> None:
    """lxc has two beside lean, docker would have one: their ratios would be of different company."""
    text = TEXT.replace("[factors]", THREE).replace('name = "burn"', 'name = "unbound"')
    on_docker = '\n[[exclude]]\nserver = "third"\nplatform = "docker"\n'
    found = [what for what in problems(study_of(text + on_docker)) if "excluded" in what]
    assert found == [
        f"third is excluded on docker, and runs beside {other} on the other platforms: what these are beside would not "
        "be the same"
        for other in ("lean", "broad")
    ]
    beside_nobody = f'\n[[exclude]]\nserver = "third"\n"{BESIDE}" = "others"\n'
    study = study_of(text + on_docker + beside_nobody)
    assert not [what for what in problems(study) if "excluded" in what]
    assert others(study, {SERVER: "lean", BESIDE: "others"}).keys() == {"broad"}
    not_at_all = on_docker.replace('server = "third"', f'"{BESIDE}" = "others"')
    assert not [what for what in problems(study_of(text + not_at_all)) if "excluded" in what], "docker has none beside"


class SmallHost(LocalHost):
    """A machine with 600 MiB of memory free."""

    def read(self, path: Path) -> bytes:
        return b"MemAvailable: 614400 kB\n" if path == Path("/proc/meminfo") else super().read(path)


def test_an_arm_whose_instances_the_memory_does_not_hold_at_once_is_skipped_or_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 256 MiB two fit, of a guest with its overhead one does: it may be measured alone."""
    monkeypatch.setattr(Readiness, "problems", lambda *_: [])
    text = TEXT.replace('name = "burn"', 'name = "unbound"').replace(
        "[factors]", '[limits]\nmemory = "256 MiB"\n[factors]'
    )
    text = text.replace('platform = "docker"\n', 'platform = "qemu-tcg"\n')
    monkeypatch.setattr(stages, "problems_of", lambda *_: [])
    optional = text.replace("[[arms]]\n", "[[arms]]\noptional = true\n", 1)
    arms, skipped = Stage(study_of(optional), SmallHost()).offered("together.toml", tries=False)
    assert [arm.platform for arm in arms] == ["native", "native"]
    assert [(each.arm.platform, each.reason.partition(" may take ")[0]) for each in skipped] == [
        ("qemu-tcg", "2 instances of qemu-tcg+routed")
    ]
    with pytest.raises(StudyError, match=r"2 instances of qemu-tcg.routed may take .*, and 600 MiB are free"):
        Stage(study_of(text), SmallHost()).offered("together.toml", tries=False)
    alone = text + f'[[exclude]]\nplatform = "qemu-tcg"\n"{BESIDE}" = "others"\n'
    arms, _ = Stage(study_of(alone), SmallHost()).offered("together.toml", tries=False)
    assert len(arms) == 3


def test_nobody_stands_beside_a_server_of_the_users_own() -> None:
    with pytest.raises(StudyError, match="nobody is deployed beside a server of your own"):
        load_for(study_of(), Target.parse("http://127.0.0.1:8080/"))


# -- on fakes: from the file to the report -------------------------------------------------------------------


def run_of(
    directory: Path, beside: Mapping[str, float], text: str = TEXT, blocks: int = 4, spread: float = 0.001
) -> Findings:
    study = replace(study_of(text), blocks=blocks, seed=3)
    plan = make_plan(study, [entry.arm for entry in study.arms], dict.fromkeys(PLATFORMS, 1.0))
    run = RunDirectory.create(directory, document.as_json(study), plan, fake_environment())
    execute(run, FakeExperiment({"native": 1.0, "docker": 1.1}, beside=beside, spread=spread), Quiet())
    return find(run.path)


def sentence(findings: Findings, server: str, arm: str) -> str:
    (told,) = (one for one in answer(findings) if one.startswith(f"{server} on {arm}, beside the others"))
    return told


def test_what_each_takes_is_told_of_each_server_and_platform(tmp_path: Path) -> None:
    """lean does twice as badly beside broad, on docker three times; broad does not feel lean."""
    findings = run_of(tmp_path / "run", {"lean": 2.0, "docker/lean": 3.0})
    native, docker = (sentence(findings, "lean", arm) for arm in ("native+host", "docker+routed"))
    assert "throughput costs 50.0 %" in native
    assert "against the same on native" not in native
    assert "throughput costs 66.7 %" in docker
    assert "against the same on native: throughput costs 33." in docker, "three times against twice"
    for arm in ("native+host", "docker+routed"):
        assert "no difference (within 3 %) in throughput" in sentence(findings, "broad", arm)
    told = findings.side_by_side
    assert told.floors["lean", "rate_per_s"] == pytest.approx(0, abs=0.01)
    vars(findings)["side_by_side"] = replace(told, floors={**told.floors, ("lean", "rate_per_s"): 0.0003})
    noted = SideBySide().tables(findings)[0].notes[0]
    assert "throughput 0.03 %" in noted, "and not 0.0 %, as of natives that are alike"
    kept = told.kept["lean", "docker+routed", "rate_per_s"].ratio
    assert kept is not None
    assert kept.value == pytest.approx(1 / 3, rel=0.01)
    assert kept.n == 4
    assert kept.low is not None
    assert kept.low < kept.value


def test_what_is_told_of_fewer_conditions_than_asked_says_so(tmp_path: Path) -> None:
    """Of lean on docker nothing is known at 20 connections; the others are told of both."""
    text = TEXT.replace("[factors]\n", '[factors]\n"load.connections" = [7, 20]\n')
    run = run_of(tmp_path / "run", {"lean": 2.0}, text).run.directory
    records = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    lost = {SERVER: "lean", "load.connections": 20}
    for record in records:
        trial = record["trial"]
        if trial["arm"]["label"] == "docker+routed" and lost.items() <= trial["condition"].items():
            record.update(status="failed", reason="it was lost", measured=None)
    (run / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    findings = find(run)
    docker = sentence(findings, "lean", "docker+routed")
    assert re.search(r"throughput costs 50\.\d % \[[^]]+\] \(over 1 of 2 conditions\)", docker), docker
    assert re.search(r"against the same on native: no difference .* in throughput \(over 1 of 2 conditions\)", docker)
    assert "conditions" not in sentence(findings, "lean", "native+host")
    assert "conditions" not in sentence(findings, "broad", "docker+routed")
    for table in SideBySide().tables(findings):
        said = {row[0].text for row in table.rows if any("over 1 of 2 conditions" in cell.detail for cell in row[1:])}
        assert said == ({"docker+routed"} if "-lean" in table.name else set()), table.name


def test_what_an_arm_keeps_is_held_against_both_natives(tmp_path: Path) -> None:
    """In each block against the mean of their logarithms; a 0, or no answer, of either leaves no ratio."""
    findings = run_of(tmp_path / "run", {"lean": 2.0, "docker/lean": 3.0}, spread=0.2)
    matrices = {name: each.matrix for name, each in findings.servers.items()}
    shown = findings.side_by_side.shown
    matrix = matrices["lean"]
    alone, beside = (
        next(at for at, each in enumerate(matrix.conditions) if each.get(BESIDE) == what) for what in ("none", "others")
    )
    logs = np.log(matrix.values("rate_per_s"))
    kept = {arm.label: logs[:, a, beside] - logs[:, a, alone] for a, arm in enumerate(matrix.arms)}
    native = (kept["native+host"] + kept["native+host (again)"]) / 2
    key = ("lean", "docker+routed", "rate_per_s")
    told = findings.side_by_side.against[key]
    assert told.ratio is not None
    assert math.log(told.ratio.value) == pytest.approx((kept["docker+routed"] - native).mean(), rel=1e-9)
    again = next(arm for arm in matrix.arms if arm.role == "floor")
    matrix.across(again, matrix.conditions[beside])[0, 0].values["rate_per_s"] = 0.0
    changed = {**matrices, "lean": replace(matrix, _arrays={})}
    barred = judge(changed, shown, 0.03).against[key]
    assert (barred.ratio, barred.zeros) == (None, 1)


def test_one_pair_is_lost_where_both_natives_did_not_answer(tmp_path: Path) -> None:
    told = silent_in_the_first_block(tmp_path / "run", "native/lean").side_by_side
    toll = told.against["lean", "docker+routed", "rate_per_s"]
    assert (toll.ratio, toll.verdict.words) == (None, NOTHING)


@pytest.mark.drawn
def test_the_report_has_its_section_with_tables_of_each_server(tmp_path: Path) -> None:
    findings = run_of(tmp_path / "run", {"lean": 2.0})
    names = [table.name for part in contents(findings) for table in part.tables]
    assert len(set(names)) == len(names)
    assert {f"side-by-side-{server}{end}" for server in ("lean", "broad") for end in ("", "-against-native")} < {*names}
    page = build_report(findings.run.directory).read_text()
    assert "What do the servers take from each other?" in page
    assert ", beside the others against alone: throughput costs 50." in page
    csv = (findings.run.directory / "report" / "tables" / "side-by-side-lean.csv").read_text()
    assert "costs 50." in csv


def test_the_words_are_right_over_all_servers_of_a_quantity(tmp_path: Path) -> None:
    """There are two tables of each, and "the table" was said of a family that is in all of them."""
    findings = run_of(tmp_path / "run", {"lean": 2.0}, spread=0.05)
    (said,) = (words for words in SideBySide().method(findings) if "Words follow a rule" in words)
    family = "the 4 comparisons of a column, of all servers together (2 of a column against native)"
    assert f"p < 0.05 after Holm's correction over {family}." in said
    kept = [toll for toll in findings.side_by_side.kept.values() if toll.metric.name == "rate_per_s"]
    assert len(kept) == 4, "two servers on two arms"


def silent_in_the_first_block(directory: Path, *servers: str) -> Findings:
    """A run of three blocks; in the first one these did not answer beside the others."""
    study = study_of()
    plan = make_plan(replace(study, seed=3), [entry.arm for entry in study.arms], dict.fromkeys(PLATFORMS, 1.0))
    run = RunDirectory.create(directory, document.as_json(study), plan, fake_environment())
    fake = FakeExperiment({"native": 1.0, "docker": 1.1}, spread=0.001)
    silent = dict.fromkeys(servers, math.inf)
    fake.before = lambda trial: setattr(fake, "beside", silent if trial.block == 1 else {})
    execute(run, fake, Quiet())
    return find(run.path)


@pytest.mark.parametrize("platform", ["docker", "native"])
def test_a_server_that_does_not_answer_beside_the_others_has_no_toll_there(tmp_path: Path, platform: str) -> None:
    """The table of tolls has a row of it, of two blocks in which it did; and the table of values a mean."""
    findings = silent_in_the_first_block(tmp_path / "run", f"{platform}/lean")
    table, (docker,) = toll_table(findings.matrix, "rate_per_s"), (a for a in findings.arms if a.platform == "docker")
    judged = {
        (each.condition.get(SERVER), each.condition.get(BESIDE)): each.ratio is not None
        for each in table.cells
        if each.condition is not None and each.arm == docker
    }
    assert judged == {
        ("lean", "none"): True,
        ("lean", "others"): False,
        ("broad", "none"): True,
        ("broad", "others"): True,
    }
    total = table.total(docker)
    assert total is not None
    assert (total.ratio, total.verdict.words) == (None, NOTHING)
    (arm,) = (each for each in findings.arms if each.platform == platform and each.role != "floor")
    (beside,) = (c for c in findings.matrix.conditions if (c.get(SERVER), c.get(BESIDE)) == ("lean", "others"))
    assert findings.matrix.absolute("rate_per_s", arm, beside) is None
    assert findings.matrix.censored("rate_per_s", arm, beside) == (1, 3)
    assert findings.matrix.censored("deploy_s", arm, beside) == (0, 2), "it was deployed as quickly as ever"
    assert build_report(findings.run.directory).exists()


def test_a_server_that_does_not_answer_beside_the_others_has_no_ratio(tmp_path: Path) -> None:
    """Nor have the blocks in which it did, which would be the better ones."""
    findings = silent_in_the_first_block(tmp_path / "run", "docker/lean")
    told = sentence(findings, "lean", "docker+routed")
    assert f"throughput and CPU per 1,000 requests not judged ({NOTHING})" in told
    assert findings.side_by_side.kept["lean", "docker+routed", "rate_per_s"].ratio is None
    assert "no difference" in sentence(findings, "lean", "native+host")
    failed = [record for record in findings.run.records if record.outcome == "did not answer"]
    assert [record.status for record in failed] == ["invalid"]


def test_what_is_not_valid_for_another_reason_leaves_a_hole_and_bars_no_ratio(tmp_path: Path) -> None:
    """Alone, in a block, lean served nothing on docker, for the generator was in the way: the other blocks tell."""
    run = run_of(tmp_path / "run", {"lean": 2.0}).run.directory
    records = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    at = ("docker+routed", 1, "lean", "none")
    (lost,) = (
        record
        for record in records
        for trial, levels in [(record["trial"], record["trial"]["condition"])]
        if (trial["arm"]["label"], trial["block"], levels[SERVER], levels[BESIDE]) == at
    )
    (window,) = lost["measured"]["windows"]
    window["work"] = 0
    window["events"]["request"]["offered"] = 7
    judged = {}
    for status in ("valid", "invalid"):
        lost.update(status=status, reason="the generator used too much CPU")
        (run / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        judged[status] = find(run).side_by_side.kept["lean", "docker+routed", "rate_per_s"]
    assert (judged["valid"].ratio, judged["valid"].verdict.words) == (None, NOTHING)
    assert judged["invalid"].ratio is not None
    assert judged["invalid"].ratio.n == 3


def test_blocks_that_are_planned_still_count_among_those_it_would_take(tmp_path: Path) -> None:
    """Of a run that was interrupted nobody is sent to a new one for blocks that this one has ahead of it."""
    study = replace(study_of(), blocks=300, seed=3)
    plan = make_plan(study, [entry.arm for entry in study.arms], dict.fromkeys(PLATFORMS, 1.0))
    run = RunDirectory.create(tmp_path / "run", document.as_json(study), plan, fake_environment())
    asked = iter([False] * 4)
    execute(run, FakeExperiment({"native": 1.0, "docker": 1.1}, spread=0.05), Quiet(), ends=lambda: next(asked, True))
    told = find(run.path).side_by_side
    unsure = [
        toll.verdict.words
        for tolls in (told.kept, told.against)
        for toll in tolls.values()
        if toll.verdict.kind == "unsure"
    ]
    assert unsure
    assert not [words for words in unsure if "in a new run" in words]
    assert all(words.startswith("cannot tell yet: needs about ") for words in unsure)


def test_the_reason_that_is_told_is_that_of_the_trials_that_are_missing(tmp_path: Path) -> None:
    """And not one of those alone, of which nothing is."""
    key = ("lean", "docker+routed", "rate_per_s")
    told = run_of(tmp_path / "silent", {"docker/lean": math.inf}).side_by_side
    assert told.missing[key] == "invalid: requests were answered: 0 of 1000 completed"
    assert ("broad", *key[1:]) not in told.missing
    excluded = TEXT + f'[[exclude]]\nplatform = "docker"\n"{BESIDE}" = "others"\n'
    findings = run_of(tmp_path / "excluded", {}, excluded)
    assert sentence(findings, "lean", "docker+routed").endswith("not known (excluded there).")
    altogether = TEXT + '[[exclude]]\nserver = "lean"\nplatform = "docker"\n'
    findings = run_of(tmp_path / "altogether", {}, altogether)
    assert sentence(findings, "lean", "docker+routed").endswith("not known (excluded there).")
    assert "not known" not in sentence(findings, "broad", "docker+routed")
    for table in SideBySide().tables(findings):
        assert any(row[0].text == "docker+routed" for row in table.rows)


def test_what_was_nothing_alone_and_arose_beside_the_others_is_told(tmp_path: Path) -> None:
    """No ratio holds it; and what was nothing in both is no news."""
    findings = run_of(tmp_path / "run", {})
    cells = findings.servers["lean"].matrix.cells
    docker = {key: cell for key, cell in cells.items() if key[2] == "docker+routed"}
    for (block, _, _, condition), cell in docker.items():
        cell.values["rate_per_s"] = 0.0
        cell.values["cpu_s_per_1000"] = float(condition.get(BESIDE) == "others" and block > 1)
    told = sentence(findings, "lean", "docker+routed")
    assert "throughput" not in told
    assert "CPU per 1,000 requests 0 alone, and not so beside the others in 3 of 4" in told
    assert findings.side_by_side.kept["lean", "docker+routed", "rate_per_s"].zeros == 4


def test_what_the_others_did_is_kept_and_enters_no_figure(tmp_path: Path) -> None:
    findings = run_of(tmp_path / "run", {})
    for record in findings.run.records:
        assert bool(record.beside) == (record.trial.condition[BESIDE] == "others")


def test_without_trials_alone_there_is_nothing_to_compare(tmp_path: Path) -> None:
    findings = run_of(tmp_path / "run", {}, TEXT.replace('["none", "others"]', '["others"]'))
    assert "What the servers take from each other is not known: none is measured alone as well." in answer(findings)
    assert build_report(findings.run.directory).exists()


def test_alone_no_section_speaks_of_others(tmp_path: Path) -> None:
    findings = run_of(tmp_path / "run", {}, TEXT.replace('["none", "others"]', '["none"]'))
    assert not findings.is_side_by_side
    assert "beside the others" not in build_report(findings.run.directory).read_text()


# -- the ready-made study ------------------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [False, True])
def test_the_ready_made_study_can_be_planned(quick: bool) -> None:
    text = (files("virtoll.studies") / "streaming-together.toml").read_text(encoding="utf-8")
    study = read_study(text, "streaming-together.toml", catalogue(), quick=quick)
    assert problems_side(study) == []
    overhead_s = {name: cls.expected_overhead_s for name, cls in platforms().items()}
    plan = make_plan(study, [entry.arm for entry in study.arms], overhead_s)
    assert len(plan.trials) == study.blocks * len(study.arms) * 3 * 2
    if quick:
        assert plan.estimate_s < 600


def problems_side(study: Study) -> list[str]:
    told = side_by_side.problems_side_by_side(study, treatments(study), "x")
    return [problem.what for problem in told]
