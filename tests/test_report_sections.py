"""The report's sections: found as the other parts are, and in the words of the run's own unit of work."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synthetic import AGAIN, DOCKER, KVM, LXC, NATIVE, UML, Recipe, write_run
from virtoll.analysis.estimates import Estimate, Summary
from virtoll.analysis.load import read_run
from virtoll.analysis.metrics import load_metrics
from virtoll.analysis.ratios import Row, judge_family
from virtoll.probes.base import probes
from virtoll.record.model import BESIDE, Arm, Events, Quantity, TrialRecord
from virtoll.record.rules import Decide, Precision
from virtoll.registry import forget, implementations
from virtoll.report import drawing, ending, history, history_page, questions
from virtoll.report.answer import answer
from virtoll.report.asked import anew
from virtoll.report.build import as_json, build_report, report_of
from virtoll.report.contents import _table_of, contents, tables
from virtoll.report.drawing import WIDE, Figure, log_extent, log_ticks
from virtoll.report.findings import Findings, find
from virtoll.report.page import _summary
from virtoll.report.pooled import Pooled
from virtoll.report.sections import course, probe_tolls
from virtoll.report.sections.absolute import Absolute
from virtoll.report.sections.base import Section, applying
from virtoll.report.sections.cpu import Cpu
from virtoll.report.sections.deployment import Deployment
from virtoll.report.sections.latency import Latency
from virtoll.report.sections.memory import Memory
from virtoll.report.sections.tolls import Tolls, unsure
from virtoll.report.tables import Table

pytestmark = pytest.mark.usefixtures("undrawn")

PACKAGE = "virtoll.report.sections"
SOURCE = Path(__file__).parent.parent / "src" / "virtoll"


# -- the seam ----------------------------------------------------------------------------------------------

THEIRS = """
from virtoll.report.sections.absolute import Absolute
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table

class Price(Section):
    name = "price"
    summary = "What does it cost in money?"
    rank = 205

    def applies(self, findings):
        return findings.is_load

    def answer(self, findings):
        return ["A third party's sentence."]

    def text(self, findings):
        return ["By the **hour**, of <b>each</b>."]

    def tables(self, findings):
        return [Table("price", "Price", ("Arm", "per hour"), ((Cell("all"), Cell("0.07")),)).placed(folded=True)]

    def method(self, findings):
        return ["**A price** is what is asked."]

class Late(Section):
    name = "late"
    summary = "It has no place"

    def applies(self, findings):
        return True
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with a section that is whole, and one that lacks its rank."""
    site = tmp_path / "site"
    info = site / "virtoll_price-1.2.dist-info"
    info.mkdir(parents=True)
    (site / "virtoll_price.py").write_text(THEIRS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: virtoll-price\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[{PACKAGE}]\nprice = virtoll_price:Price\nlate = virtoll_price:Late\n")
    monkeypatch.syspath_prepend(site)
    forget()
    yield
    forget()
    sys.modules.pop("virtoll_price", None)


def test_a_third_partys_section_is_on_the_page_and_a_broken_one_is_told(tmp_path: Path, third_party: None) -> None:
    run = write_run(tmp_path / "run", Recipe(blocks=2, factors={}))
    names = [section.name for section in applying(find(run))]
    assert names.index("absolute") + 1 == names.index("price") == names.index("latency") - 1
    assert answer(find(run))[-1] == "A third party's sentence."
    page = build_report(run).read_text("utf-8")
    assert '<section id="price">' in page
    assert '<a href="#price">What does it cost in money?</a>' in page
    assert "By the <b>hour</b>, of &lt;b&gt;each&lt;/b&gt;." in page, "its marks are markup, and nothing else is"
    assert "<summary>Price</summary>" in page
    assert "<li><b>A price</b> is what is asked.</li>" in page
    assert (run / "report" / "tables" / "price.csv").is_file()
    assert "virtoll_price:Late lacks rank" in page


def test_every_section_is_one_file_with_a_place_of_its_own() -> None:
    found = implementations(PACKAGE, Section)
    files = {path.stem for path in (SOURCE / "report" / "sections").glob("*.py")} - {"__init__", "base"}
    assert {cls.__module__.rpartition(".")[2] for cls in found.values()} == files
    assert len(found) == len(files)
    assert len({cls.rank for cls in found.values()}) == len(found)
    assert all(re.fullmatch("[a-z-]+", name) and cls.summary for name, cls in found.items())


def test_the_page_only_iterates() -> None:
    """It knows no section, and no kind of study."""
    for name in ("page.html", "page.py", "build.py", "contents.py", "answer.py"):
        text = (SOURCE / "report" / name).read_text("utf-8")
        assert set(re.findall(r"report\.sections\.(\w+)", text)) <= {"base"}, name
        assert "is_isolation" not in text, name
        assert "is_load" not in text, name


def test_the_questions_beside_a_study_ask_of_what_its_probes_have() -> None:
    asked = questions.questions("testbed")
    assert len({question.name for question in asked}) == len(asked)
    for question in asked:
        settings = probes()[question.probe].Settings.__dataclass_fields__
        assert {question.setting, *question.is_set, *question.is_unset} <= set(settings)


# -- a load that counts no requests ------------------------------------------------------------------------

ARMS = (NATIVE, AGAIN, LXC, DOCKER, UML)
QUANTITIES = {
    "latency_mean_ms": Quantity("Latency of a transaction, mean", "ms", "less"),
    "latency_stddev_ms": Quantity("Latency of a transaction, standard deviation", "ms", None),
}


def pgbench_like(directory: Path, *, loop: str = "closed") -> Path:
    """A run of a load that tells rate, failures and a mean latency, and no histogram."""
    run = write_run(directory, Recipe(arms=ARMS, factors={"load.users": [1, 8]}, blocks=4))
    records = [TrialRecord.model_validate_json(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    (run / "trials.jsonl").write_text("".join(_told(record, loop).model_dump_json() + "\n" for record in records))
    for path in run.glob("trials/*/latency.parquet"):
        path.unlink()
    return run


def redis_like(directory: Path) -> Path:
    """A run of commands one by one, and pipelined: events and latencies are of rounds then, of 16 commands each."""
    run = write_run(directory, Recipe(arms=ARMS, factors={"load.pipeline": [1, 16]}, blocks=4))
    records = [TrialRecord.model_validate_json(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    (run / "trials.jsonl").write_text("".join(_pipelined(record).model_dump_json() + "\n" for record in records))
    return run


def _pipelined(record: TrialRecord) -> TrialRecord:
    measured = record.measured
    assert measured is not None
    pipeline = record.trial.condition["load.pipeline"]
    request = "round" if pipeline > 1 else ""
    window, events = measured.window, {request or "command": measured.window.events["request"]}
    window = window.model_copy(update={"events": events, "work": window.work * pipeline})
    update = {"name": "redis", "unit": "command", "request": request, "windows": [window]}
    return record.model_copy(update={"measured": measured.model_copy(update=update)})


def _told(record: TrialRecord, loop: str) -> TrialRecord:
    measured = record.measured
    assert measured is not None
    window = measured.window
    completed = round(window.work)
    mean_ms = window.duration_ns / 1e6 / window.work
    events = Events(intended=completed, offered=completed, completed=completed, failures={}, censored=0)
    values = {"latency_mean_ms": mean_ms, "latency_stddev_ms": mean_ms / 2}
    window = window.model_copy(update={"events": {"transaction": events}, "values": values})
    update = {"name": "pgbench", "instrument": "pgbench (PostgreSQL) 15.14", "unit": "transaction", "loop": loop}
    changed = measured.model_copy(update={**update, "quantities": QUANTITIES, "windows": [window]})
    return record.model_copy(update={"measured": changed})


@pytest.fixture(scope="module")
def transactions(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    return find(pgbench_like(tmp_path_factory.mktemp("pgbench") / "run"))


@pytest.fixture(scope="module")
def page(transactions: Findings) -> str:
    return build_report(transactions.run.directory).read_text("utf-8")


def table(findings: Findings, name: str) -> Table:
    return next(table for part in contents(findings) for table in part.tables if table.name == name)


def test_the_page_speaks_of_the_loads_own_unit_of_work(page: str) -> None:
    words = html.unescape(re.sub(r"<[^>]+>", " ", page[page.index("<main>") :]))
    for said in (
        "How long do transactions wait?",
        "What does a transaction cost in CPU?",
        "CPU-seconds per 1,000 transactions",
        "CPU per 1,000 transactions",
        "Throughput [transaction/s]",
        "at least five transactions beyond it",
        "However many transactions it serves",
    ):
        assert said in words, said
    assert not re.search(r"\brequests?\b", words.partition("Does the paper hold here?")[0])
    ours = words[words.rindex("One deployment is one observation") :].partition("What was left out")[0]
    assert "request" not in ours.replace("load.requests", "")


def test_only_differences_are_said_to_be_called_at_a_family_wise_rate(transactions: Findings) -> None:
    """*No difference* is each comparison's own 5 %: of twenty arms just beyond the margin, one is told so."""
    notes = " ".join(
        note for section in applying(transactions) for t in section.tables(transactions) for note in t.notes
    )
    said = re.findall(r"([^.]*) family-wise error rate of 5 % [^.]*", notes)
    assert len(said) >= 2
    assert all(sentence.strip().startswith("Differences are called at") for sentence in said)
    assert notes.count("(Holm); no difference, at 5 % each.") == len(said)


def test_a_table_counts_the_comparisons_that_were_made(tmp_path: Path) -> None:
    """An arm that failed throughout is none, and Holm's correction did not count it: the note of the tolls did."""
    recipe = Recipe(arms=ARMS, factors={"load.users": [1]}, blocks=3, bulk=False)
    plan = read_run(write_run(tmp_path / "plan", recipe)).plan
    spoilt = {trial.id: "failed" for trial in plan.trials if trial.arm == UML}
    findings = find(write_run(tmp_path / "run", replace(recipe, spoilt=spoilt)))
    tested = findings.tolls("rate_per_s").family
    tolls, by_condition = Tolls().tables(findings)
    assert tested == sum(arm.role == "treatment" for arm in ARMS) - 1
    assert f"over the {tested} comparisons of a column" in tolls.notes[0]
    assert f"over the {tested} comparisons of this table" in by_condition.notes[0]


def test_what_is_of_rounds_is_not_told_as_of_commands(tmp_path: Path) -> None:
    """Latencies and percentiles are; throughput and CPU are not."""
    findings = find(redis_like(tmp_path / "run"))
    page = build_report(findings.run.directory).read_text("utf-8")
    words = html.unescape(re.sub(r"<[^>]+>", " ", page[page.index("<main>") :]))
    for said in (
        "How long do rounds wait?",
        "Share of rounds answered within a time.",
        "at least five rounds beyond it",
        "Latency is of a round: commands sent at once and waited for together. Throughput and CPU are of commands.",
        "What does a command cost in CPU?",
        "CPU per 1,000 commands",
        "Throughput [command/s]",
        "Latency of a round, 99th percentile [ms]",
        "However many commands it serves",
    ):
        assert said in words, said
    assert "Latency, 99th" not in words
    assert not re.search(r"\brequests?\b", words.partition("Does the paper hold here?")[0])
    assert {record.measured.events is None for record in findings.run.records if record.measured} == {False}


def test_a_loads_own_quantities_are_in_the_table_of_tolls_and_among_the_values(transactions: Findings) -> None:
    tolls = table(transactions, "tolls")
    assert tolls.heads[:4] == ("Arm", "Throughput", "Latency of a transaction, mean", "CPU per 1,000 transactions")
    (uml,) = (row for row in tolls.rows if row[0].text == UML.label)
    assert uml[2].kind == "costs", "a mean latency is judged"
    toll = transactions.tolls("pgbench.latency_mean_ms").total(UML)
    assert toll is not None
    assert toll.worse is not None
    assert toll.worse.value == pytest.approx(1 / 0.16, rel=0.05)
    assert toll.conditions == 2, "of every condition of the load"
    means = table(transactions, "pgbench-latency-mean-ms")
    assert len(means.rows) == 2
    assert means.place.under == "pgbench"
    assert means.caption.startswith("Latency of a transaction, mean [ms], closed loop: ")


def test_percentiles_that_a_load_does_not_tell_are_told_as_missing_with_their_reason(
    transactions: Findings, page: str
) -> None:
    names = {table.name for part in contents(transactions) for table in part.tables}
    assert not any(name.startswith("latency-p") for name in names), "no empty table"
    why = "no latency histogram was recorded, and pgbench (PostgreSQL) 15.14 tells no percentile"
    assert transactions.reason("latency_p99_ms") == why
    assert f"Not told: latency 99th percentile ({why})." in table(transactions, "tolls").notes
    latency = next(part for part in contents(transactions) if part.name == "latency")
    assert latency.figures == []
    (sentence,) = latency.text
    assert sentence.startswith("Not told: latency median, latency 90th percentile, latency 99th percentile, ")
    assert sentence.endswith(f"({why}).")
    assert sentence in html.unescape(page).replace("\u00a0", " ")


def test_an_open_loop_without_percentiles_is_answered_in_the_mean(tmp_path: Path) -> None:
    findings = find(pgbench_like(tmp_path / "run", loop="open"))
    assert findings.headline.name == "pgbench.latency_mean_ms"
    (sentence,) = answer(findings)
    assert sentence.startswith("Latency of a transaction, mean (open loop), against native: ")
    assert "uml+routed costs" in sentence
    build_report(findings.run.directory)


# -- an arm that lost a condition --------------------------------------------------------------------------


def lost_a_condition(directory: Path, arm: Arm) -> Findings:
    """Of an arm nothing valid is known under one of two conditions."""
    recipe = Recipe(arms=ARMS, factors={"load.users": [1, 8]}, blocks=4, bulk=False)
    plan = read_run(write_run(directory / "plan", recipe)).plan
    spoilt = {trial.id: "failed" for trial in plan.trials if trial.arm == arm and trial.condition["load.users"] == 8}
    return find(write_run(directory / "run", replace(recipe, spoilt=spoilt)))


@pytest.mark.parametrize("arm", [UML, LXC])
def test_the_answer_says_of_how_many_conditions_a_toll_is(tmp_path: Path, arm: Arm) -> None:
    """Else it is told as the study's, though it is another mean than the other arms'."""
    findings = lost_a_condition(tmp_path, arm)
    (sentence,) = answer(findings)
    assert sentence.count("over 1 of 2 conditions") == 1
    assert re.search(rf"{re.escape(arm.label)}[^;]* \(([^)]*; )?over 1 of 2 conditions\)", sentence), sentence
    figure = Tolls().figures(findings)[0]
    assert f"over all conditions ({arm.label} over 1 of 2 conditions), the bar" in figure.caption


def test_what_cannot_be_told_says_of_how_many_conditions_it_is() -> None:
    metric = load_metrics("request")["rate_per_s"]
    rows = [Row(arm, None, Summary(-0.1, 0.1, 4), None, 1) for arm in (LXC, DOCKER, UML, KVM)]
    tolls = judge_family(metric, rows, 0.03, "")
    assert unsure(tolls[:1], 2).endswith("more in this one; over 1 of 2 conditions)")
    assert "lxc+routed (over 1 of 2 conditions), docker+routed (over 1 of 2 conditions)" in unsure(tolls, 2)
    assert "over" not in unsure(tolls, 1)


def test_means_over_conditions_are_of_those_that_all_arms_have(tmp_path: Path) -> None:
    """Docker takes more memory than native under either; drawn over those that each has, it took less."""
    findings = lost_a_condition(tmp_path, DOCKER)
    for (_, _, label, condition), cell in findings.matrix.cells.items():
        more = 1.05 if label == DOCKER.label else 1.0
        values = {"memory_peak_mib": 20.0, "rss_peak_mib": 10.0, "deploy_s": 3.0, "helpers_percent": 30.0}
        values["cpu_s_per_1000"] = 1.0
        cell.values |= {name: value * more * condition.get("load.users") for name, value in values.items()}
    (memory,), (deployment,) = Memory().figures(findings), Deployment().figures(findings)
    for figure, values in ((memory, {"outside": 20.0, "inside": 10.0}), (deployment, {"outside": 3.0})):
        assert ", over 1 of 2 conditions, those known of every arm (users 1)" in figure.caption
        drawn = {(row["arm"], row["seen"]): float(row["value"]) for row in rows_of(figure)}
        for seen, value in values.items():
            assert drawn[NATIVE.label, seen] == pytest.approx(value)
            assert drawn[DOCKER.label, seen] == pytest.approx(1.05 * value)
    (cpu,) = Cpu().figures(findings)
    (shares,) = re.findall(r"Share of helpers where it can be told, over 1 of 2 [^:]*: ([^.]*)\.", cpu.caption)
    assert {"native+host 30 %", "docker+routed 32 %"} < {*shares.split(", ")}


def test_where_no_condition_is_of_all_arms_no_means_over_any_are_drawn(tmp_path: Path) -> None:
    findings = lost_a_condition(tmp_path, DOCKER)
    for (_, _, label, condition), cell in findings.matrix.cells.items():
        if label == LXC.label and condition.get("load.users") == 1:
            del cell.values["deploy_s"]
    assert Deployment().figures(findings) == []
    assert Deployment().text(findings) == [
        "Not drawn: under no condition is it known of every arm. The tables of values have each by itself."
    ]
    assert Deployment().text(lost_a_condition(tmp_path / "other", DOCKER)) == []


def test_a_deployment_that_conditions_share_is_one_of_each_arm(tmp_path: Path) -> None:
    """How long it took is known of its first trial, and which that is was drawn."""
    factors: dict[str, list[Any]] = {BESIDE: ["none", "others"], "load.users": [1, 8]}
    recipe = Recipe(arms=(NATIVE, DOCKER, LXC), factors=factors, blocks=3, bulk=False)
    findings = find(write_run(tmp_path / "run", recipe))
    first = {NATIVE.label: ("none", "none", "others"), DOCKER.label: ("none",) * 3, LXC.label: ("others",) * 3}
    for (block, _, label, condition), cell in findings.matrix.cells.items():
        cell.values["deploy_s"] = 2.0 + block
        if condition.get(BESIDE) != first[label][block - 1]:
            del cell.values["deploy_s"]
    pooled = Pooled.of(findings, "deploy_s")
    for arm in (NATIVE, DOCKER, LXC):
        estimate = pooled.mean("deploy_s", arm)
        assert estimate is not None
        assert estimate.value == pytest.approx(4.0)
        assert estimate.n == 3
    assert (pooled.over, pooled.text) == ("", [])


def test_a_lost_trial_moves_no_mean_over_conditions(tmp_path: Path) -> None:
    """Its block has the other condition alone, and is no block of a cheaper arm."""
    recipe = Recipe(arms=(NATIVE, DOCKER), factors={"load.users": [1, 8]}, blocks=3, bulk=False)
    plan = read_run(write_run(tmp_path / "plan", recipe)).plan
    lost = next(trial.id for trial in plan.trials if trial.arm == DOCKER and trial.condition["load.users"] == 8)
    findings = find(write_run(tmp_path / "run", replace(recipe, spoilt={lost: "failed"})))
    for (_, _, _, condition), cell in findings.matrix.cells.items():
        cell.values["deploy_s"] = float(condition.get("load.users"))
    pooled = Pooled.of(findings, "deploy_s")
    for arm in (NATIVE, DOCKER):
        estimate = pooled.mean("deploy_s", arm)
        assert estimate is not None
        assert estimate.value == pytest.approx(4.5)
    assert pooled.over == ""


# -- built anew ---------------------------------------------------------------------------------------------


def test_a_report_holds_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    """Of a run that had fewer valid trials, or by another virtoll; what somebody else laid there stays."""
    run = write_run(tmp_path / "run", Recipe(arms=(NATIVE, DOCKER), blocks=2, bulk=False))
    report = build_report(run).parent
    (report / "figures" / "latency.svg").write_text("<svg/>")
    (report / "figures" / "notes.txt").write_text("mine")
    (report / "tables" / "gone.csv").write_text("1")
    before = {path.name for path in (report / "tables").iterdir()}
    (run / "trials.jsonl").write_text("")
    findings, page = report_of(run)
    after = {path.name for path in (report / "tables").iterdir()}
    assert after < before - {"gone.csv"}
    written = {f"{table.name}.{suffix}" for table in tables(findings) for suffix in ("md", "csv", "tex")}
    assert after == {*written, "trials.csv"}
    assert {path.name for path in (report / "figures").iterdir()} == {"notes.txt"}
    told = as_json(findings, page)
    assert {Path(path).name for path in told["tables"]} == after
    assert told["figures"] == []


# -- as it was asked for, and where ------------------------------------------------------------------------

LOOKS = Decide(margin=0.05, looks=tuple(range(4, 21)))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """A run of four blocks, at which it may have come to its end, by a rule too."""
    recipe = Recipe(arms=(NATIVE, DOCKER), factors={}, blocks=4, bulk=False)
    return find(write_run(tmp_path_factory.mktemp("plain") / "run", recipe))


def planned(findings: Findings, rule: Decide | Precision | None = None, hosts: str = "", **others: Any) -> Findings:
    """The same, with a rule, or measured by hosts of one letter each; ``others``: of its run."""
    trials = [
        trial.model_copy(update={"host": hosts[trial.block % len(hosts)]}) if hosts else trial
        for trial in findings.run.plan.trials
    ]
    plan = findings.run.plan.model_copy(update={"rule": rule, "trials": trials})
    return replace(findings, run=replace(findings.run, plan=plan, **others))


def test_the_same_study_is_begun_by_the_rule_and_the_hosts_that_it_had(plain: Findings) -> None:
    """A rule looks by the most blocks that there may be, whatever it ended at; `--blocks` is of each host."""
    assert anew(plain) == "run proxy --blocks 4 --seed 1"
    assert anew(planned(plain, LOOKS)) == "run proxy --blocks 20 --seed 1"
    precise = Precision(half_width=0.02, pilot=2, most=30)
    assert anew(planned(plain, precise)) == "run proxy --blocks 30 --seed 1"
    by_fleet = "run proxy --blocks 2 --seed 1 --cluster tls://HOST:8786 --tls DIRECTORY"
    assert anew(planned(plain, hosts="ab")) == by_fleet
    environment = plain.run.environment.model_copy(update={"notes": {"performer": "5d1f"}})
    by_ssh = planned(plain, hosts="a", environment=environment)
    assert anew(by_ssh) == "run proxy --blocks 4 --seed 1 --host ssh://root@HOST"


def test_a_run_of_hosts_that_was_cut_short_is_told_as_one(plain: Findings) -> None:
    cut = planned(plain, hosts="ab", pending=3)
    (told,) = ending.told(cut)
    assert told.startswith("The run has not come to its planned end: ")
    assert told.endswith(f"“virtoll run {cut.run.directory} --cluster tls://HOST:8786 --tls DIRECTORY” goes on.")
    assert "the run has not come to its end" in ending.promise(cut)
    assert ending.told(planned(plain, hosts="ab")) == []


@pytest.mark.parametrize("rule", [None, LOOKS, Precision(half_width=0.02, pilot=8, most=30)], ids=str)
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_copy_does_not_say_that_it_goes_on(plain: Findings, rule: Decide | Precision | None, is_kept: bool) -> None:
    (told,) = ending.told(planned(plain, rule, pending=3, is_kept=is_kept))
    assert ("goes on" in told) is not is_kept
    assert told == told.strip()
    assert "  " not in told


def test_the_head_of_a_fleets_page_tells_no_one_hosts_machine_as_that_of_all(plain: Findings) -> None:
    """What they have alike as it is; else how many there are."""
    own = {
        "a": {"machine": {"cpu_model": "old", "cpus": 4}, "kernel": "6.1"},
        "b": {"machine": {"cpu_model": "new", "cpus": 16}, "kernel": "6.1"},
    }
    shared = {"machine": {"memory_bytes": 2**34}, "files": {"kernel": "5d1f"}}
    heads = []
    for comparable in ({**shared, "hosts": own}, {**shared, "machine": {**own["a"], "cpus": 4, "cpu_model": "old"}}):
        environment = plain.run.environment.model_copy(update={"comparable": comparable})
        heads.append(dict(_summary(planned(plain, environment=environment))))
    assert [head["Machine"] for head in heads] == ["2 kinds, 4 to 16 CPUs", "old, 4 CPUs"]
    assert [head["Kernel"] for head in heads] == ["6.1", "6.1"]


# -- what there is no room for -----------------------------------------------------------------------------


def test_figures_with_room_for_few_have_both_extremes_of_each_setting_and_say_what_they_lack(tmp_path: Path) -> None:
    factors: dict[str, list[Any]] = {"load.object_bytes": [1000, 10_000, 1_000_000, 10_000_000]}
    factors |= {"load.connections": [1, 100], "service.cache": ["off", "on"]}
    findings = find(write_run(tmp_path / "run", Recipe(arms=(NATIVE, DOCKER), factors=factors, blocks=2)))
    shown = findings.shown_conditions(4)
    assert [condition.get("load.object_bytes") for condition in shown] == [1000, 1000, 1_000_000, 1_000_000]
    assert len({(c.get("load.connections"), c.get("service.cache")) for c in shown}) == 2
    (cpu,), (latency,) = Cpu().figures(findings), Latency().figures(findings)
    told = " of 16 conditions, all of the smallest or the 1 MB (or largest) objects."
    for figure, count in ((cpu, 4), (latency, 8)):
        assert f" Drawn: {count}{told}" in figure.caption
        assert len({row["panel"] for row in rows_of(figure)}) == count


def test_a_figure_of_all_conditions_says_nothing_of_those_it_lacks(tmp_path: Path) -> None:
    findings = find(write_run(tmp_path / "run", Recipe(arms=(NATIVE, DOCKER), blocks=2)))
    for section in (Cpu(), Latency()):
        (figure,) = section.figures(findings)
        assert "Drawn" not in figure.caption


def rows_of(figure: Figure) -> list[dict[str, str]]:
    """What a figure draws."""
    chart = figure.draw(WIDE).to_dict()
    return list(csv.DictReader(io.StringIO(chart["data"]["values"])))


# -- a headline that may be 0 ------------------------------------------------------------------------------


def lossy(directory: Path, factors: Mapping[str, list[Any]]) -> Path:
    """A run of an open loop whose load tells by what it lost, in per cent; native lost nothing."""
    run = write_run(directory, Recipe(arms=(NATIVE, DOCKER), factors=factors, blocks=3, bulk=False))
    lines = (run / "trials.jsonl").read_text().splitlines()
    records = [_lost(TrialRecord.model_validate_json(line), number) for number, line in enumerate(lines)]
    (run / "trials.jsonl").write_text("".join(record.model_dump_json() + "\n" for record in records))
    return run


def _lost(record: TrialRecord, number: int) -> TrialRecord:
    measured = record.measured
    assert measured is not None
    lost = 0.0 if record.trial.arm == NATIVE else 0.5 + number / 10
    window = measured.window.model_copy(update={"values": {"lost_percent": lost}, "events": {}})
    quantities = {"lost_percent": Quantity("Lost", "%", "less")}
    update = {"name": "command", "loop": "open", "windows": [window], "quantities": quantities}
    return record.model_copy(update={"measured": measured.model_copy(update=update)})


def test_a_run_from_before_shared_memory_was_told_has_no_resident_memory(tmp_path: Path) -> None:
    """It was told by its anonymous part alone: of some guests nearly nothing."""
    directory = write_run(tmp_path / "run", Recipe((NATIVE, AGAIN, UML), blocks=2))
    (now,) = Memory().figures(find(directory))
    assert "rings: peak of its resident memory" in now.caption
    for path in directory.glob("trials/*/outside.parquet"):
        table = pq.read_table(path)
        counters = [name.replace("resident", "rss") for name in table["counter"].to_pylist()]
        place = table.schema.get_field_index("counter")
        pq.write_table(table.set_column(place, "counter", pa.array(counters)), path)
    findings = find(directory)
    (before,) = Memory().figures(findings)
    assert "of its resident memory this run tells nothing" in before.caption
    pooled = Pooled.of(findings, "memory_peak_mib", "rss_peak_mib")
    assert pooled.mean("rss_peak_mib", UML) is None
    assert pooled.mean("memory_peak_mib", UML) is not None


@pytest.mark.drawn
@pytest.mark.parametrize("factors", [{}, {"load.users": [1, 8]}])
def test_a_headline_of_which_a_value_is_0_is_drawn_from_0(tmp_path: Path, factors: Mapping[str, list[Any]]) -> None:
    """A logarithmic axis has no place for native's 0, and the report was none: ZeroDivisionError."""
    findings = find(lossy(tmp_path / "run", factors))
    assert findings.headline.name == "command.lost_percent"
    (figure,) = Absolute().figures(findings)
    assert "from 0" in figure.caption
    assert "logarithmic" not in figure.caption
    said = json.dumps(figure.draw(WIDE).to_dict())
    assert '"log"' not in said
    assert re.search(r"native\+host,[^\\]*0\.0", said), "native is in the figure"
    page = build_report(findings.run.directory).read_text("utf-8")
    assert "not judged" in page


@pytest.mark.parametrize("value", [1.0, 1.7, 43.5, 6e-3, 1451.0, 2.2e6])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 3.0, 500.0])
def test_a_logarithmic_axis_has_two_numbers_at_the_least(value: float, share: float) -> None:
    """That of arms within some per cent of 1,451 requests/s had none."""
    ends = [{"value": each, "low": each * 0.99, "high": each * 1.01} for each in (value, value * (1 + share))]
    low, high = log_extent(ends)
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 8
    assert ticks == sorted(set(ticks))
    assert all(low <= tick <= high for tick in ticks)


# -- what is drawn and said -------------------------------------------------------------------------------


def at(day: int, value: float, levels: str) -> history.Point:
    run = SimpleNamespace(begun=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day))
    return history.Point(cast(Any, run), 1, Estimate(value, None, None, 0.95, "", 4, ""), (levels,))


def test_a_level_is_drawn_over_the_runs_that_were_asked_for_its_change() -> None:
    """Six runs over other levels came first: the line was cut as many too early, and was a mean of both."""
    points = [at(day, 0.5, "5, 10") for day in range(6)]
    points += [at(day, 0.9 if day < 12 else 0.8, "5") for day in range(6, 18)]
    change = SimpleNamespace(at=6)
    line = cast(Any, SimpleNamespace(points=tuple(points), changes=((points[12], change),)))
    rows = list(history_page._level_rows(line))
    assert [round(row["value"], 9) for row in rows] == [0.9, 0.8]
    assert [row["x"] for row in rows] == [history_page._ms(points[n].run.begun.timestamp()) for n in (6, 12)]
    assert [row["environment"] for row in history_page._point_rows(line)] == ["0"] * 6 + ["1"] * 12
    in_turn = [at(day, 1.0 if day < 10 else 2.0, f"{day % 2}") for day in range(20)]
    changes = tuple((in_turn[n], SimpleNamespace(at=5)) for n in (10, 11))
    both = cast(Any, SimpleNamespace(points=tuple(in_turn), changes=changes))
    assert [row["value"] for row in history_page._level_rows(both)] == pytest.approx([1, 2, 1, 2])


def test_a_logarithmic_axis_has_numbers() -> None:
    """Of milliseconds from 0.15 to 0.8, and from 1.2 to 8, there were none."""
    assert course._few([0.2, 0.5]) == [0.2, 0.5]
    assert course._few([0.01, 0.02, 0.05, 0.1]) == [0.01, 0.1]
    rows: list[dict[str, Any]] = [{"panel": "a", "x": x} for x in (0.0, 1.2, 8.0)]
    assert drawing._ticks(rows) == [2, 5]
    rows += [{"panel": "b", "x": x} for x in (0.009, 110)]
    assert drawing._ticks(rows) == [0.01, 0.1, 1, 2, 5, 10, 100]


def test_a_heading_over_the_tables_of_a_server_names_it_first() -> None:
    table = Table("shares", "Shares", (), ())
    for under, placed in (("", ""), ("views", "views-janus"), ("To native", "janus: To native")):
        assert _table_of("janus", table.placed(under), {"views-janus"}).place.under == placed


@pytest.mark.parametrize(
    ("worse", "words"), [(0.004, "0.004"), (0.0998, "0.1"), (0.5, "0.50"), (12.3, "12"), (250.0, "250")]
)
def test_a_gain_of_hundreds_is_not_told_as_nothing(worse: float, words: str) -> None:
    toll = cast(Any, SimpleNamespace(verdict=SimpleNamespace(kind="gains")))
    assert probe_tolls._cell("disk", "uml", toll, worse)["words"] == words
