"""`virtoll run STUDY --explain`: a short programme of probes beside a service, whose report it does not disturb."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from on_fakes import STUDY, on_fakes
from virtoll.catalogue import catalogue, features
from virtoll.cli import main
from virtoll.errors import StudyError
from virtoll.fakes import FakeExperiment
from virtoll.hosts.local import LocalHost
from virtoll.probes.base import ProbeError, probes
from virtoll.record.model import Plan, PlannedTrial
from virtoll.record.store import RunDirectory
from virtoll.report.answer import answer
from virtoll.report.build import as_json, report_of
from virtoll.report.contents import tables
from virtoll.report.findings import Findings, find
from virtoll.report.tables import Cell, Table
from virtoll.run.explaining import explained
from virtoll.run.progress import LiveProgress
from virtoll.run.refusals import problems_of
from virtoll.run.stage import Stage
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.study.plan import explaining_condition, make_plan
from virtoll.trial.treatment import Driven, Probed, treatment_of, treatments

pytestmark = pytest.mark.usefixtures("undrawn")

PROBES = ["round-trip", "unix-syscall", "disk-sync", "memory-latency"]
PROGRAMME = """
name = "programme"
[[probes]]
name = "clock"
[[arms]]
platform = "native"
"""
FACTORS = """
[factors]
"load.connections" = [1, 20]
"limits.vcpus" = [1, 2]
"""
NEIGHBOUR = """
[neighbour]
aggressor = "cpu-hog"
"""


def read(text: str = STUDY) -> Study:
    return read_study(text, "small.toml", catalogue())


def planned(study: Study, **more: Any) -> Plan:
    return make_plan(study, [entry.arm for entry in study.arms], {"native": 1.0, "docker": 1.0}, **more)


def is_probes(trial: PlannedTrial) -> bool:
    return "probe" in trial.condition


# -- what is asked for ------------------------------------------------------------------------------------


def test_the_short_programme_is_short_and_needs_nothing_in_the_services_image() -> None:
    programme = explained(read()).programme
    assert [case.probe for case in programme] == PROBES
    assert all(case.expected_s < 1 for case in programme)
    assert not [case.probe for case in programme if probes()[case.probe].packages or probes()[case.probe].slices]
    assert programme[2].settings["call"] == "fsync"


@pytest.mark.parametrize(
    ("text", "told"), [(PROGRAMME, "is a programme of probes already"), (STUDY + NEIGHBOUR, "what neighbours do")]
)
def test_what_has_no_toll_to_explain_is_refused(text: str, told: str) -> None:
    with pytest.raises(StudyError, match=told) as refused:
        explained(read(text))
    assert refused.value.problems[0].where == "--explain"
    assert "leave it out" in refused.value.problems[0].remedy


def test_what_does_not_fit_the_instance_is_told_before_anything_is_made() -> None:
    study = explained(read(STUDY + '[limits]\nmemory = "8 MiB"\n'))
    told = [str(problem) for problem in problems_of(study, treatments(study), "small.toml", LocalHost())]
    assert len(told) == 1
    assert "--explain: probe memory-latency" in told[0]
    assert "16777216 B do not fit" in told[0]


def test_a_condition_that_names_a_probe_is_its_trial_and_any_other_the_services() -> None:
    study = explained(read(STUDY + FACTORS))
    by_work: dict[type, set[str]] = {}
    for trial in planned(study).trials:
        treatment = treatment_of(study, trial.condition)
        by_work.setdefault(type(treatment.work), set()).add(str(trial.condition.get("probe", "")))
    assert by_work == {Driven: {""}, Probed: set(PROBES)}
    assert all(isinstance(treatment.work, Driven) for treatment in treatments(study))


def test_what_is_made_durable_lies_where_no_platform_has_memory() -> None:
    """What is mounted at /tmp (gVisor's own, systemd's on a machine of the user's) may be memory, where a sync costs
    nothing.
    """
    (case,) = (case for case in explained(read(STUDY)).programme if case.probe == "disk-sync")
    assert case.settings["directory"] == "/var/tmp"


def test_the_probes_are_under_the_first_condition_but_for_what_is_the_services_own() -> None:
    study = explained(read(STUDY + FACTORS))
    assert explaining_condition(study) == {"limits.vcpus": 1}
    first_is_left_out = STUDY + FACTORS + '[[exclude]]\n"limits.vcpus" = 1\n'
    assert explaining_condition(explained(read(first_is_left_out))) == {"limits.vcpus": 2}


def test_no_platform_is_probed_under_what_is_excluded_for_it() -> None:
    spared = FACTORS + '[[exclude]]\nplatform = "docker"\n"limits.vcpus" = 1\n'
    study = explained(read(STUDY + spared))
    assert explaining_condition(study) == {"limits.vcpus": 2}
    assert {t.condition["limits.vcpus"] for t in planned(study).trials if t.arm.platform == "docker"} == {2}
    nothing_in_common = spared + '[[exclude]]\n"limits.vcpus" = 2\n"load.connections" = 20\n'
    nothing_in_common += '[[exclude]]\nplatform = "docker"\n"load.connections" = 1\n'
    with pytest.raises(StudyError, match=r"nothing of docker\+routed is left to measure"):
        planned(explained(read(STUDY + nothing_in_common)))


# -- the plan ---------------------------------------------------------------------------------------------


def test_every_block_deploys_each_arm_once_more_for_the_probes_somewhere_in_its_order() -> None:
    plan = planned(dataclasses.replace(explained(read(STUDY + FACTORS)), blocks=6, seed=7))
    places = set()
    for block in range(1, 7):
        trials = [trial for trial in plan.trials if trial.block == block]
        deployments: dict[str, list[PlannedTrial]] = {}
        for trial in trials:
            deployments.setdefault(trial.deployment, []).append(trial)
        assert [t.id for members in deployments.values() for t in members] == [t.id for t in trials], "in a row"
        probing = [members for members in deployments.values() if is_probes(members[0])]
        driving = [members for members in deployments.values() if not is_probes(members[0])]
        assert sorted(members[0].arm.label for members in probing) == [
            "docker+routed", "native+host", "native+host (again)",
        ]  # fmt: skip
        assert all(sorted(t.condition["probe"] for t in members) == sorted(PROBES) for members in probing)
        assert [len(members) for members in driving] == [1] * 3 * 4
        places |= {index for index, members in enumerate(deployments.values()) if is_probes(members[0])}
    assert len(places) > 6, "their places are drawn with the others"


def test_a_budget_pays_for_the_probes_too() -> None:
    alone, both = planned(read()), planned(explained(read()))
    assert both.estimate_s == pytest.approx(alone.estimate_s + 2 * 3 * (1.0 + sum(c.expected_s for c in programme())))
    with pytest.raises(StudyError, match="fewer than two blocks"):
        planned(explained(read()), budget_s=alone.estimate_s)


def programme() -> Sequence[Any]:
    return explained(read()).programme


def test_an_explained_study_survives_its_run_directory(tmp_path: Path) -> None:
    study = explained(read(STUDY + FACTORS))
    written = json.loads(json.dumps(document.as_json(study)))
    again = document.of(written, tmp_path / "study.json", catalogue())
    assert again.is_explained
    assert again.programme == study.programme
    assert planned(dataclasses.replace(again, seed=1)) == planned(dataclasses.replace(study, seed=1))


# -- whole studies on fakes -------------------------------------------------------------------------------

TOLLS = {
    "native": 1.0,
    "docker": 1.25,
    "docker/round-trip": 1.5,
    "docker/unix-syscall": 1.3,
    "docker/disk-sync": 0.5,
    "docker/memory-latency": 1.0,
}


@dataclass
class Studied:
    """Runs `virtoll run` above a fake lab."""

    monkeypatch: pytest.MonkeyPatch
    directory: Path
    tolls: Mapping[str, float] = field(default_factory=lambda: TOLLS)
    fail: dict[str, BaseException | str] = field(default_factory=dict)
    fails: Mapping[tuple[str, str], BaseException] = field(default_factory=dict)  # by platform and probe

    def __call__(self, *argv: str, text: str = STUDY) -> int:
        on_fakes(self.monkeypatch, {})
        self.monkeypatch.setattr(Stage, "lab", lambda _stage, _images, pending: self.lab(pending))
        path = self.directory / "small.toml"
        path.write_text(text)
        with pytest.raises(SystemExit) as ended:
            main(["run", *(argv if argv[0].startswith("/") else (str(path), *argv))])
        return int(ended.value.code or 0)

    @contextmanager
    def lab(self, pending: Sequence[PlannedTrial]) -> Iterator[FakeExperiment]:
        broken = {
            trial.id: error
            for trial in pending
            if (error := self.fails.get((trial.arm.platform, str(trial.condition.get("probe"))))) is not None
        }
        yield FakeExperiment(self.tolls, spread=0.002, fail={**self.fail, **broken})


@pytest.fixture
def studied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Studied:
    return Studied(monkeypatch, tmp_path)


def run_of(studied: Studied, *argv: str, text: str = STUDY) -> Path:
    run = studied.directory / "run"
    studied("--explain", "--seed", "5", "--blocks", "4", "--out", str(run), *argv, text=text)
    return run


def table_of(findings: Findings, name: str = "explanation") -> Table:
    return next(table for table in tables(findings) if table.name == name)


def row_of(table: Table, arm: str = "docker+routed") -> tuple[Cell, ...]:
    return next(row for row in table.rows if row[0].text == arm)


def test_the_tolls_that_were_put_in_stand_side_by_side(studied: Studied) -> None:
    run = run_of(studied)
    findings = find(run)
    table = table_of(findings)
    assert table.heads == (
        "Arm", "This service: throughput", "Round trip, median", "System calls", "Sync of one record, mean",
        "Memory latency",
    )  # fmt: skip
    _, own, *cells = row_of(table)
    assert [float(cell.text.split()[0]) for cell in (own, *cells)] == pytest.approx([1.25, 1.5, 1.3, 0.5, 1], rel=0.02)
    assert [cell.kind for cell in (own, *cells)] == ["costs", "costs", "costs", "gains", "same"]
    assert {cell.kind for cell in row_of(table, "native+host (again)")[1:]} == {"floor"}
    (sentence,) = [note for note in table.notes if note.startswith("docker+routed: ")]
    assert "the service costs 2" in sentence
    assert "; moving with it: round trip median and system calls; the other way: sync of one record mean." in sentence
    assert any("an association, and no proof" in note for note in table.notes)
    page = (run / "report" / "index.html").read_text()
    assert "What explains it?" in page
    assert "virtoll run" in page
    assert "small.toml --explain --blocks 4" in page
    told = row_of(table_of(findings, "explanation-values"), "native+host")
    assert [float(cell.text.replace(",", "").split()[0]) for cell in told[1:]] == pytest.approx([100] * 4, rel=0.02)


@pytest.mark.parametrize(
    ("tolls", "told"),
    [
        ({"docker": 1.25, "docker/round-trip": 0.5, "docker/disk-sync": 2.0}, "; the other way: round trip median."),
        ({"docker": 1.25, **{f"docker/{p}": 1.0 for p in PROBES}}, "none of these is seen to move with it."),
        ({"docker": 1.0, "docker/disk-sync": 2.0}, "shows no difference (within 3 %); costing all the same: sync of"),
        ({"docker": 0.5, "docker/disk-sync": 2.0}, "the service gains "),
        ({"docker": 0.5, "docker/disk-sync": 2.0}, "latency; the other way: sync of one record mean."),
    ],
)
def test_a_sentence_says_what_the_verdicts_say(studied: Studied, tolls: dict[str, float], told: str) -> None:
    studied.tolls = {"native": 1.0, **tolls}
    notes = table_of(find(run_of(studied))).notes
    assert told in next(note for note in notes if note.startswith("docker+routed: "))


def test_a_probe_that_cannot_be_measured_on_an_arm_is_missing_there_and_says_why(studied: Studied) -> None:
    studied.fails = {("docker", "disk-sync"): ProbeError("no space left", kind="space", where="here")}
    findings = find(run_of(studied))
    table = table_of(findings)
    cell = row_of(table)[4]
    assert (cell.text, cell.kind) == ("—", "missing")
    assert "failed: here: no space left" in cell.detail
    assert row_of(table, "native+host (again)")[4].kind == "floor"
    assert "not measured: sync of one record mean" in next(n for n in table.notes if n.startswith("docker+routed: "))
    left_out = table_of(findings, "explanation-left-out")
    assert [(row[1].text, row[2].text, row[3].text) for row in left_out.rows] == [
        ("docker+routed", "disk-sync", "failed")
    ] * 4
    assert findings.excluded == [], "the service's own trials are all there"


def test_a_probe_that_cannot_be_measured_anywhere_keeps_its_column(studied: Studied) -> None:
    error = ProbeError("no such thing", kind="system", where="here")
    studied.fails = {(platform, "round-trip"): error for platform in ("native", "docker")}
    table = table_of(find(run_of(studied)))
    at = table.heads.index("round-trip")
    assert "failed: here: no such thing" in row_of(table)[at].detail
    assert [row[at].kind for row in table.rows] == ["missing"] * 2


def test_without_native_a_probe_has_no_toll_and_says_so(studied: Studied) -> None:
    studied.fails = {("native", "round-trip"): ProbeError("no such thing", kind="system", where="here")}
    cell = row_of(table_of(find(run_of(studied))))[2]
    assert (cell.kind, cell.detail.startswith("native+host: failed: here: no such thing")) == ("missing", True)


def stripped(run: Path) -> Path:
    """The same run as if nobody had asked for an explanation."""
    alone = run.with_name("alone") / run.name
    shutil.copytree(run, alone, ignore=shutil.ignore_patterns("report"))
    study = json.loads((run / "study.json").read_text())
    assert study["programme"]
    told = {**study, "programme": [], "command": study["command"].removesuffix(" --explain")}
    (alone / "study.json").write_text(json.dumps(told))
    plan = RunDirectory(run).plan
    plan = plan.model_copy(update={"trials": [trial for trial in plan.trials if not is_probes(trial)]})
    (alone / "plan.json").write_text(plan.model_dump_json())
    records = [record for record in RunDirectory(run).records() if not is_probes(record.trial)]
    (alone / "trials.jsonl").write_text("".join(f"{record.model_dump_json()}\n" for record in records))
    return alone


def drawn_alike(text: str) -> str:
    """Without the numbers that the drawing counts through a process."""
    return re.sub(r"\bclip\d+", "clip", text)


def without_explanation(page: str) -> str:
    page = re.sub(r'<section id="explanation">.*?</section>\n*', "", page, flags=re.DOTALL)
    page = re.sub(r'<a href="#explanation">.*?</a>\n?', "", page)
    page = re.sub(r"<li><b>The probes that explain.*?</li>\n", "", page)
    return re.sub(r"\n\s*\n+", "\n", drawn_alike(page).replace("small.toml --explain --blocks", "small.toml --blocks"))


@pytest.mark.drawn
@pytest.mark.usefixtures("helped")
@pytest.mark.parametrize("spoilt", [False, True], ids=["whole", "with trials that do not count"])
def test_all_else_in_the_report_is_as_without(studied: Studied, spoilt: bool) -> None:
    if spoilt:
        studied.fails = {("docker", "disk-sync"): ProbeError("no space left", kind="space", where="here")}
        trials = planned(dataclasses.replace(explained(read(STUDY + FACTORS)), blocks=4, seed=5)).trials
        driven = next(t for t in trials if not is_probes(t) and t.arm.platform == "docker")
        studied.fail[driven.id] = "limits in force"
        probed = next(t for t in trials if is_probes(t) and t.condition["probe"] == "round-trip")
        studied.fail[probed.id] = "limits in force"
    run = run_of(studied, text=STUDY + FACTORS)
    alone = stripped(run)
    report_of(alone, features())
    with_it, without = find(run), find(alone)
    assert answer(with_it) == answer(without)
    assert len(with_it.excluded) == len(without.excluded) == spoilt
    mine, theirs = run / "report", alone / "report"
    added = {path.relative_to(mine) for path in mine.rglob("*")} - {
        path.relative_to(theirs) for path in theirs.rglob("*")
    }
    assert {path.name.partition(".")[0] for path in added} == {
        "explanation", "explanation-values", "explanation-trials", *["explanation-left-out"] * spoilt,
    }  # fmt: skip
    for path in theirs.rglob("*"):
        if path.suffix in (".md", ".csv", ".tex", ".svg"):
            assert drawn_alike((mine / path.relative_to(theirs)).read_text()) == drawn_alike(path.read_text()), (
                path.name
            )
    pages = [(report / "index.html").read_text() for report in (mine, theirs)]
    assert "What explains it?" in pages[0]
    assert without_explanation(pages[0]) == without_explanation(pages[1])


def test_the_report_for_programs_counts_every_trial(studied: Studied) -> None:
    studied.fails = {("docker", "disk-sync"): ProbeError("no space left", kind="space", where="here")}
    run = run_of(studied)
    told = as_json(find(run), run / "report" / "index.html")
    assert told["trials"] == {"valid": 4 * 3 * 5 - 4, "invalid": 0, "failed": 4}
    assert str(run / "report" / "tables" / "explanation-trials.csv") in told["tables"]


def test_a_failed_probe_is_told_by_the_exit_code(studied: Studied) -> None:
    studied.fails = {("docker", "disk-sync"): ProbeError("no space left", kind="space", where="here")}
    assert studied("--explain", "--out", str(studied.directory / "run")) == 1


def test_an_interrupted_probe_is_measured_when_the_run_goes_on(
    studied: Studied, capsys: pytest.CaptureFixture[str]
) -> None:
    run = studied.directory / "run"
    studied.fails = {("docker", "memory-latency"): KeyboardInterrupt()}
    assert studied("--explain", "--out", str(run)) == 130
    assert studied(str(run), "--explain") == 2
    assert "--explain: a run's plan is fixed" in capsys.readouterr().err
    studied.fails = {}
    assert studied(str(run)) == 0
    findings = find(run)
    assert findings.run.notes == ()
    assert findings.explanation is not None
    assert len(findings.matrix.cells) == 2 * 3
    assert len(findings.explanation.matrix.cells) == 2 * 3 * 4


def test_a_dry_run_shows_the_probes_among_the_others(studied: Studied, capsys: pytest.CaptureFixture[str]) -> None:
    assert studied("--explain", "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"{2 * 3 * 5} trials in 2 blocks" in said
    assert said.count("round trip") == 2 * 3
    assert studied("--explain", "--dry-run", "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    conditions = [event["trial"]["condition"] for event in events if event["event"] == "trial"]
    assert sum("probe" in condition for condition in conditions) == 2 * 3 * 4


def test_what_cannot_be_explained_ends_with_2(studied: Studied, capsys: pytest.CaptureFixture[str]) -> None:
    assert studied("--explain", "--dry-run", text=PROGRAMME) == 2
    assert "programme is a programme of probes already" in capsys.readouterr().err
    assert studied("--explain", "--cross-check", "--dry-run") == 2
    assert "--cross-check" in capsys.readouterr().err


def test_the_running_table_is_the_services(studied: Studied) -> None:
    run = RunDirectory(run_of(studied))
    told = LiveProgress()
    told.planned(run.plan, run.records())
    rows = {row.arm.label: row for row in told._rows}
    assert rows["docker+routed"].valid == 4
    assert rows["docker+routed"].value == pytest.approx(800, rel=0.01)
    assert told.tally.done == 4 * 3 * 5, "the bar counts them all"


def test_a_disk_whose_flush_goes_nowhere_is_told_beneath_its_sync(studied: Studied) -> None:
    run = run_of(studied)
    told = [
        record.model_copy(update={"facts": {"disk_flush": "not passed on"}})
        if record.trial.arm.platform == "docker"
        else record
        for record in RunDirectory(run).records()
    ]
    (run / "trials.jsonl").write_text("".join(f"{record.model_dump_json()}\n" for record in told))
    assert "docker+routed: a flush of its disk is not passed on." in table_of(find(run)).notes
