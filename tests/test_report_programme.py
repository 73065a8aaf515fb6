"""The report of a programme of probes: a whole study on fakes, and the page, tables and figures of a made-up run."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from altair.utils.schemapi import debug_mode

from quiet import Quiet
from synthetic import AGAIN, DOCKER, LXC, NATIVE, TCG, UML
from synthetic_programme import PROBES, MadeUp, Recipe, figure, write_programme
from virtoll.analysis.load import read_run
from virtoll.analysis.metrics import Metric
from virtoll.catalogue import catalogue
from virtoll.fakes import FAKE_FIGURE, FakeExperiment, fake_environment
from virtoll.record.model import Arm, Plan
from virtoll.record.store import RunDirectory
from virtoll.report.answer import answer
from virtoll.report.build import build_report, report_of
from virtoll.report.contents import figures, tables
from virtoll.report.drawing import NARROW, WIDE
from virtoll.report.findings import Findings, find
from virtoll.report.palette import pairs, styles
from virtoll.report.probe_views import _question
from virtoll.report.running import RunningTable
from virtoll.report.sections.beliefs import believes, sentences
from virtoll.report.sections.probe_tolls import heat_map
from virtoll.report.sections.unix_index import unix_index
from virtoll.report.tables import Table
from virtoll.run.execute import execute
from virtoll.run.progress import LiveProgress, PlainProgress
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.plan import make_plan

pytestmark = pytest.mark.usefixtures("helped")

GOLDEN = Path(__file__).parent / "golden" / "report"
STUDY = """
name = "small"
title = "A small programme"
question = "What does each platform cost?"
blocks = 4

[limits]
vcpus = 1
memory = "512 MiB"

[[probes]]
name = "linpack"
order = [500, 1000, 2000]

[[probes]]
name = "clock"

[[probes]]
name = "unix-syscall"

[[probes]]
name = "unix-pipe"

[[arms]]
platform = "native"

[[arms]]
platform = "docker"

[[arms]]
platform = "uml"
"""


def run_on_fakes(directory: Path, tolls: Mapping[str, float]) -> Path:
    study = read_study(STUDY, "small.toml", catalogue())
    arms = [entry.arm for entry in study.arms]
    plan = make_plan(study, arms, {arm.platform: 1.0 for arm in arms})
    store = RunDirectory.create(directory, document.as_json(study), plan, fake_environment())
    assert execute(store, FakeExperiment(tolls, spread=0.002), Quiet())
    return directory


@pytest.fixture(scope="module")
def on_fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tolls = {"native": 1.0, "docker": 1.0, "uml": 1.0, "docker/unix-pipe": 1.25, "uml/clock": 40.0, "uml/linpack": 2.0}
    return run_on_fakes(tmp_path_factory.mktemp("fakes") / "run", tolls)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory, helped: None) -> tuple[Findings, Path]:
    """A made-up run's findings and its page."""
    return report_of(write_programme(tmp_path_factory.mktemp("programme") / "run", Recipe()))


@pytest.fixture(scope="module")
def findings(reported: tuple[Findings, Path]) -> Findings:
    return reported[0]


@pytest.fixture(scope="module")
def page(reported: tuple[Findings, Path]) -> str:
    return reported[1].read_text("utf-8")


# -- a whole study on fakes --------------------------------------------------------------------------------


def test_the_answer_says_the_tolls_that_were_put_in(on_fakes: Path) -> None:
    first, *arms = answer(find(on_fakes))
    assert first == "Against native, by what stands for each of 4 probes:"
    docker, uml = (next(line for line in arms if line.startswith(name)) for name in ("docker+routed", "uml+routed"))
    assert re.search(r"costs in pipe throughput \((19|20)(\.\d)? % less \[", docker)
    assert "no difference shown (within 3 %) in LINPACK, reading the clock and system calls" in docker
    assert re.search(r"costs in reading the clock \((40|39) × native’s \[\d+, \d+\]\) and LINPACK \((49|50)", uml)
    assert "no difference shown (within 3 %) in system calls and pipe throughput" in uml


def test_the_figures_that_were_put_in_are_the_figures_in_the_tables(on_fakes: Path) -> None:
    matrix = find(on_fakes).matrix
    (clock,) = matrix.conditions_of("clock.read_ns")
    native = matrix.absolute("clock.read_ns", matrix.arms[0], clock)
    assert native is not None
    assert native.value == pytest.approx(FAKE_FIGURE, rel=0.01)
    assert native.n == 4


def test_the_report_of_a_study_on_fakes_is_whole(on_fakes: Path) -> None:
    page = build_report(on_fakes).read_text("utf-8")
    assert "UnixBench-style index, 1 copy, of 2 of 12 tests" in page
    assert "A small programme" in page


def unix_programme(directory: Path, shells: Mapping[str, Any], files: Mapping[str, Any]) -> list[Table]:
    """The index of system calls, of shell scripts and of a small file with these levels."""
    probes = {
        "unix-syscall": MadeUp({}, {"loops_per_s": ("System calls", "/s", "more", 1e6)}),
        "unix-shell": MadeUp({"scripts": [1], **shells}, {"loops_per_min": ("Shell scripts", "/min", "more", 1e3)}),
        "unix-file": MadeUp(
            {"operation": ["copy"], "buffer_bytes": [1024], **files},
            {"kib_per_s": ("Small file", "KiB/s", "more", 1e6)},
        ),
    }
    recipe = Recipe(arms=(NATIVE, AGAIN, DOCKER), probes=probes, instruments={})
    return unix_index(find(write_programme(directory, recipe)))


def test_each_of_several_directories_has_an_index_of_its_own(tmp_path: Path) -> None:
    """One of them stood in the index, another one in each deployment."""
    first, second, syscalls = unix_programme(tmp_path / "run", {"directory": ["/var/tmp", "/dev/shm"]}, {})[::-1]
    both = {table.caption.partition(", of ")[0]: table for table in (first, second)}
    assert set(both) == {f"UnixBench-style index, 1 copy, directory {where}" for where in ("/var/tmp", "/dev/shm")}
    for table in both.values():
        assert [row[0].text for row in table.rows] == ["Shell Scripts (1 concurrent)", "Index"]
    assert "1 copy, of 2 of 12 tests" in syscalls.caption
    probe = MadeUp({"scripts": [1], "directory": []}, {"loops_per_min": ("Shell scripts", "/min", "more", 1e3)})
    for where in ("/var/tmp", "/dev/shm"):
        truth = figure("unix-shell", "loops_per_min", {"scripts": 1, "directory": where}, {"unix-shell": probe})
        told = both[f"UnixBench-style index, 1 copy, directory {where}"].rows[0][1].text
        assert float(told.split(" ")[0].replace(",", "")) == pytest.approx(10 * truth / 42.4, rel=0.1)


def test_a_directory_that_is_the_only_one_parts_no_index(tmp_path: Path) -> None:
    (table,) = unix_programme(tmp_path / "run", {"directory": ["/dev/shm"]}, {"work": [100]})
    assert "1 copy, of 3 of 12 tests" in table.caption


def test_progress_tells_the_headline_and_the_running_table_has_no_rate(
    on_fakes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = read_run(on_fakes)
    with PlainProgress() as told:
        told.planned(run.plan, [])
        for record in run.records:
            told.trial_sealed(record)
    assert re.search(r"native\+host .* linpack, order 500 +linpack\.gflops [\d.]+ GFLOP/s", capsys.readouterr().out)
    rows = RunningTable(run.records).rows()
    assert rows[0].arm.role == "baseline"
    assert {(row.valid, row.spoilt, row.value) for row in rows} == {(24, 0, None)}
    live = LiveProgress()
    live.planned(Plan(seed=1, blocks=4, trials=run.plan.trials, estimate_s=1.0), run.records)
    assert [column.header for column in live._table().columns] == ["arm", "trials", "spoilt"]


# -- the page ----------------------------------------------------------------------------------------------


def text_of(page: str) -> str:
    body = re.sub(r"<svg.*?</svg>", "", page[page.index("<main>") :], flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", body).replace("\u00a0", " "))


def test_the_page_answers_first_and_is_one_offline_file(page: str, findings: Findings) -> None:
    body = text_of(page)
    for sentence in answer(findings):
        assert sentence in body
    assert "kvm+routed was not measured." in body
    assert "<script" not in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert not re.search(r"url\((?!#|data:)", page)


def test_the_page_follows_light_and_dark(page: str, findings: Findings) -> None:
    drawn = page[page.index("<main>") :]
    for light, _ in pairs(styles(findings.matrix.arms), heat=True):
        assert f'"{light}"' not in drawn


def test_the_method_is_that_of_probes(page: str) -> None:
    body = text_of(page)
    method = body[body.index(" Method One") : body.index(" The machine ")]
    for word in ("request", "loop", "throughput", "per cent of requests"):
        assert word not in method
    for words in ("mean over its windows", "first touch of memory", "Outside instruments are set apart"):
        assert words in method


def test_what_an_instance_believes_is_told(findings: Findings, page: str) -> None:
    wrong, right = sentences(findings)
    assert wrong == (
        "native+host, lxc+routed and docker+routed believe in 4 CPUs and 16 GiB where 1 CPU and 512 MiB were given."
    )
    assert right.startswith("lxc+routed (lxcfs), uml+routed and qemu-tcg+routed believe what they were given")
    assert wrong in text_of(page)


def test_a_factor_of_the_limits_is_what_was_given(tmp_path: Path) -> None:
    clock = {"clock": PROBES["clock"]}
    recipe = Recipe(probes=clock, arms=(NATIVE, UML), instruments={}, factors={"limits.vcpus": [1, 2]}, blocks=2)
    findings = find(write_programme(tmp_path / "r", recipe))
    given = next(row for row in believes(findings).rows if row[0].text == "given to each")
    assert "1 or 2" in [cell.text for cell in given]
    told = sentences(findings)
    assert any("uml+routed believes in 1 CPU and 512 MiB where 2 CPUs and 512 MiB were given" in line for line in told)


def test_files_for_papers(findings: Findings, page: str) -> None:
    report = findings.run.directory / "report"
    names = {path.stem for path in (report / "figures").iterdir()}
    assert names == {
        "tolls", "linpack", "memory", "stream", "disk", "round-trip", "round-trip-distribution", "unix", "others",
        "cross-check",
    }  # fmt: skip
    assert all(f'id="{name}"' in page for name in names)
    tables = {path.stem for path in (report / "tables").iterdir()}
    assert {"tolls", "linpack-gflops", "disk-latency-us", "cross-check", "trials"} <= tables
    rows = list(csv.DictReader((report / "tables" / "trials.csv").open()))
    assert len(rows) == len(findings.run.records)
    theirs = [row for row in rows if row["instrument"]]
    assert {row["role"] for row in theirs} == {"baseline"}
    assert all(row["linpack.gflops"] == "" for row in rows if row["probe"] != "linpack")


def test_charts_are_valid_vega_lite(findings: Findings) -> None:
    with debug_mode(True):
        for figure in figures(findings):
            for layout in (WIDE, NARROW):
                assert figure.draw(layout).to_dict(validate=True)["$schema"].startswith("https://vega.github.io/schema")


def test_tables_match_golden_files(findings: Findings) -> None:
    """What the made-up run's tables looked like when somebody last looked. Delete a file to have it written anew."""
    made = {table.name: table for table in tables(findings)}
    texts = {f"programme-{name}.md": made[name].markdown() for name in ("tolls", "linpack-gflops", "cross-check")}
    texts["programme-answer.md"] = "\n\n".join(answer(findings)) + "\n"
    missing = []
    for name, text in texts.items():
        golden = GOLDEN / name
        if not golden.is_file():
            golden.write_text(text, encoding="utf-8")
            missing.append(name)
        assert text == golden.read_text("utf-8")
    assert not missing, "these were missing and have been written: look at them, then run again"


# -- runs that are odd -------------------------------------------------------------------------------------


def few(**changes: Any) -> Recipe:
    probes = {name: PROBES[name] for name in ("linpack", "clock")}
    return replace(Recipe(probes=probes, arms=(NATIVE, AGAIN, LXC, UML), instruments={}, blocks=2), **changes)


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    directory = write_programme(tmp_path / "r", few(sealed=0))
    assert "no answer yet" in answer(find(directory))[0]
    assert "planned trials are not there yet" in build_report(directory).read_text("utf-8")


def test_one_block_and_no_native(tmp_path: Path) -> None:
    one = write_programme(tmp_path / "one", few(blocks=1))
    assert "cannot tell yet in 2" in answer(find(one))[1]
    build_report(one)
    bare = write_programme(tmp_path / "bare", few(arms=(LXC, UML)))
    assert "no native arm" in answer(find(bare))[0]
    build_report(bare)


def test_a_programme_of_native_alone_is_told_to_have_nothing_to_compare(tmp_path: Path) -> None:
    (told,) = answer(find(write_programme(tmp_path / "r", few(arms=(NATIVE, AGAIN)))))
    assert told.startswith("There is no answer: the run has no arm but native")


def test_everything_failed(tmp_path: Path) -> None:
    plan = read_run(write_programme(tmp_path / "plan", few())).plan
    directory = write_programme(tmp_path / "r", few(spoilt={trial.id: "the guest died" for trial in plan.trials}))
    assert "no answer yet" in answer(find(directory))[0]
    assert "the guest died" in build_report(directory).read_text("utf-8")


def test_a_probe_that_failed_everywhere_is_named(tmp_path: Path) -> None:
    plan = read_run(write_programme(tmp_path / "plan", few())).plan
    spoilt = {trial.id: "refused" for trial in plan.trials if trial.condition["probe"] == "clock"}
    directory = write_programme(tmp_path / "r", few(spoilt=spoilt))
    assert answer(find(directory))[-1].startswith("Nothing valid was measured by clock")
    build_report(directory)


def test_an_arm_on_which_a_probe_failed(tmp_path: Path) -> None:
    plan = read_run(write_programme(tmp_path / "plan", few())).plan
    spoilt = {t.id: "too small" for t in plan.trials if t.condition["probe"] == "clock" and t.arm == UML}
    directory = write_programme(tmp_path / "r", few(spoilt=spoilt))
    assert any(line.startswith("uml+routed") and "not measured in 1" in line for line in answer(find(directory)))
    assert "failed: too small" in text_of(build_report(directory).read_text("utf-8"))


@pytest.mark.parametrize("arms", [[UML], [LXC, UML]], ids=len)
def test_an_arm_of_which_every_probe_has_a_0_is_not_judged_but_was_measured(tmp_path: Path, arms: list[Arm]) -> None:
    """Of a programme of one probe the answer said that the arm was not measured; of all such arms, that no valid trial
    could be compared with native.
    """
    findings = find(write_programme(tmp_path / "r", few(probes={"clock": PROBES["clock"]})))
    for (block, _, label, _), cell in findings.matrix.cells.items():
        if block == 1 and label in {arm.label for arm in arms}:
            cell.values["clock.read_ns"] = 0.0
    told = answer(findings)
    assert {f"{arm.label}: not judged in 1, of which a value is 0." for arm in arms} <= {*told}
    assert not any("no answer" in line for line in told)
    assert [line for line in told if "not measured" in line] == ["kvm+routed was not measured."]


def test_what_was_lost_is_not_told_as_a_0(tmp_path: Path) -> None:
    """Of an arm that lost requests in a block, and had a 0 of another probe, each reason is told of how many."""
    lost = MadeUp({}, {"rtt_us": ("Round trip", "us", "less", 30.0), "lost_percent": ("Lost", "%", None, 0.0)})
    directory = write_programme(tmp_path / "r", few(probes={"ping": lost, "clock": PROBES["clock"]}))
    records = [json.loads(line) for line in (directory / "trials.jsonl").read_text().splitlines()]
    of_lxc = [each for each in records if each["trial"]["arm"]["label"] == LXC.label and each["trial"]["block"] == 1]
    for record in of_lxc:
        for window in record["measured"]["windows"] if record["measured"]["name"] == "ping" else []:
            window["values"] = {"lost_percent": 3.0}
    (directory / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    findings = find(directory)
    (told,) = (line for line in answer(findings) if line.startswith("lxc"))
    assert "not judged in 1 (it is not known of what was lost)" in told
    assert "a value is 0" not in told
    findings = find(directory)
    for (block, _, label, _), cell in findings.matrix.cells.items():
        if block == 2 and label == LXC.label:
            cell.values["clock.read_ns"] = 0.0
    (told,) = (line for line in answer(findings) if line.startswith("lxc"))
    assert "not judged in 2 (in 1 it is not known of what was lost, in 1 a value is 0)" in told


@pytest.mark.parametrize(("arm", "told"), [(UML, r"LINPACK \("), (TCG, r"LINPACK \([^;]*; ")])
def test_a_probe_of_which_a_case_failed_is_told_as_of_the_others(tmp_path: Path, arm: Arm, told: str) -> None:
    """It is no mean over the probe's cases: the answer says of how many, as the table does."""
    probes = {"linpack": replace(PROBES["linpack"], levels={"order": [500, 1000]}), "clock": PROBES["clock"]}
    recipe = few(probes=probes, arms=(NATIVE, AGAIN, LXC, arm))
    plan = read_run(write_programme(tmp_path / "plan", recipe)).plan
    spoilt = {t.id: "too small" for t in plan.trials if t.condition.get("linpack.order") == 1000 and t.arm == arm}
    findings = find(write_programme(tmp_path / "r", replace(recipe, spoilt=spoilt)))
    (line,) = (line for line in answer(findings) if line.startswith(arm.label))
    assert re.search(rf"{told}over 1 of 2 cases\)", line), line
    assert not any("of 2 cases" in said for said in answer(findings) if said != line)
    figure = heat_map(findings)
    assert figure is not None
    assert f"a probe's cases (LINPACK of {arm.label} over 1 of 2 cases)." in figure.caption


@pytest.mark.parametrize("far", [0, 6])
def test_a_caption_speaks_of_the_panels_that_are_drawn(tmp_path: Path, far: int) -> None:
    """Of seven cases six are drawn: the scale was said to leave out ratios, which were of the seventh."""
    names = [f"kind{number}" for number in range(7)]
    probe = MadeUp({"operation": names, "size_bytes": [1, 2, 4]}, {"mb_per_s": ("Rate", "MB/s", "more", 100.0)})
    findings = find(write_programme(tmp_path / "r", few(probes={"sized": probe}, arms=(NATIVE, AGAIN, LXC))))
    for (_, _, label, condition), cell in findings.matrix.cells.items():
        if label == LXC.label and condition.get("sized.operation") == names[far]:
            cell.values["sized.mb_per_s"] /= 30
    (figure,) = (each for each in figures(findings) if each.name == "sized")
    assert "The first 6 of 7 cases are drawn" in figure.caption
    assert ("The ratios' scale is that of the arms near native" in figure.caption) is (far < 6)


def test_a_figure_of_quantities_that_go_either_way_says_of_which_less_is_better(tmp_path: Path) -> None:
    """A flow's throughput and its variation share a unit, and so a figure: more was said to be better of both."""
    flow = {
        "throughput_mbit_per_s": ("Throughput of a flow", "Mbit/s", "more", 20.0),
        "throughput_sd_mbit_per_s": ("Variation of the throughput", "Mbit/s", "less", 0.5),
        "offered_mbit_per_s": ("Offered load", "Mbit/s", None, 20.0),
    }
    probes = {"flow": MadeUp({"size_bytes": [128, 1024]}, flow), "clock": PROBES["clock"]}
    made = figures(find(write_programme(tmp_path / "r", few(probes=probes))))
    (of_flow,) = (each.caption for each in made if each.name == "flow")
    assert "More is better, but for variation of the throughput." in of_flow
    assert any("Less is better." in each.caption for each in made if each.name == "clock")


def test_a_quantity_without_better_is_shown_and_never_judged(tmp_path: Path) -> None:
    share = MadeUp({}, {"percent": ("Share", "%", None, 3.0)})
    directory = write_programme(tmp_path / "r", few(probes={"clock": PROBES["clock"], "share": share}))
    findings = find(directory)
    assert [metric.name for metric in findings.judged] == ["clock.read_ns"]
    table = next(table for table in tables(findings) if table.name == "share-percent")
    assert {cell.kind for cell in table.rows[0]} == {""}
    build_report(directory)


def test_a_title_from_a_probe_cannot_become_markup(tmp_path: Path) -> None:
    evil = {"clock": MadeUp({}, {"read_ns": ("<b>evil</b>", "ns", "less", 20.0)})}
    directory = write_programme(tmp_path / "r", few(probes=evil, arms=(NATIVE, DOCKER)))
    assert "<b>evil" not in build_report(directory).read_text("utf-8")


def test_quantities_are_called_by_the_words_they_begin_with_and_by_no_others() -> None:
    """The page of the study `density` had a section called "each instance": words that both titles have later on."""
    beginning = [
        Metric("a", "Sync of one record, mean", "s", "less"),
        Metric("b", "Sync of one record, most", "s", "less"),
    ]
    assert _question(beginning) == "Sync of one record"
    later = [
        Metric("a", "Host's memory for each instance", "MiB", None),
        Metric("b", "Memory (PSS) of each instance", "MiB", "less"),
    ]
    assert _question(later) == "Host's memory for each instance"
