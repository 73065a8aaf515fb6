"""Loads whose intensity varies: CPU, memory and packets of a server at each level, from samples to report, on fakes."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from quiet import Quiet
from virtoll.analysis.components import ONE_WINDOW
from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.load import read_run
from virtoll.analysis.measuring import measure
from virtoll.analysis.metrics import ALL, Wanted, intensity_of, load_metrics
from virtoll.analysis.ratios import Toll
from virtoll.analysis.server import by_each_further, is_by_participants, level_path
from virtoll.analysis.verdicts import Verdict
from virtoll.catalogue import catalogue
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.record.model import Arm, Events, Measured, PlannedTrial, Quantity, TrialRecord, Window
from virtoll.record.store import RunDirectory
from virtoll.record.tables import packed, samples_table
from virtoll.report.build import build_report
from virtoll.report.by_level import _largest
from virtoll.report.contents import method
from virtoll.report.findings import Findings, find
from virtoll.report.method import loop
from virtoll.report.sections.components import as_json
from virtoll.report.sections.levels import Levels
from virtoll.run.execute import execute
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.plan import make_plan
from virtoll.trial.notes import Course, Notes

pytestmark = pytest.mark.usefixtures("undrawn")

SECOND, MIB = 10**9, 2**20
SERVERS = """\
[servers.web.service]
name = "nginx"
[servers.web.load]
name = "viewers"
[servers.vlc.service]
name = "vlc"
[servers.vlc.load]
name = "rtsp-viewers"
[servers.red5.service]
name = "red5"
[servers.red5.load]
name = "rtmp-viewers"
"""
ALONE = '[service]\nname = "nginx"\n[load]\nname = "viewers"\n'
STUDY = """\
name = "crowds"
question = "What does a viewer cost?"
blocks = 3
claims = ["xen-openvz-streaming"]
WORK
[factors]
"load.viewers" = LEVELS
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
[[arms]]
platform = "xen-pv"
"""
# What one viewer takes of each server in a second, natively: CPU; and of memory, for good.
CPUS, MEMORY_MIB, PACKETS = {"web": 0.002, "vlc": 0.004, "red5": 0.01, "": 0.002}, 3, 80
TOLLS = {"native": 1.0, "docker": 1.2, "xen-pv": 1.5}


@dataclass
class Crowds(FakeExperiment):
    """Viewers of each of whom a server takes CPU (times the arm's toll), memory and packets; and 60 MiB for itself.
    Where it has less CPU than they take they stall.
    """

    of: Any = None
    most_cpus = math.inf

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        yield
        with notes.phase("window"):
            viewers = int(trial.condition.get("load.viewers", trial.condition.get("load.rate_per_s", 1)))
        at = (1000 + 100 * trial.position) * SECOND
        server = str(trial.condition.get("server", ""))
        scatter = (1 + 0.01 * trial.block) * (1 + 1e-4 * math.sin(trial.position))  # of blocks, and of deployments
        asked_cpus = CPUS[server] * viewers * TOLLS[trial.arm.platform] * scatter
        cpus = min(asked_cpus, self.most_cpus)
        load, stalled_percent = (
            self.of.servers[server].load if server else self.of.load,
            100 * (1.005 - cpus / asked_cpus),
        )
        notes.measured = _measured(load, viewers, at, stalled_percent)
        growing = {
            "cpu.usage_ns": cpus * 1e9,
            "net.rx_packets": viewers * PACKETS / 4,
            "net.tx_packets": viewers * PACKETS * 3 / 4,
            "net.rx_bytes": viewers * 1e3,
            "net.tx_bytes": viewers * 1e5,
        }
        steady = {"memory.usage_bytes": (60 + MEMORY_MIB * viewers) * MIB, "memory.resident_bytes": 30 * MIB}
        rows: list[tuple[int, str, str, int]] = []
        for tick in range(11):
            t_ns = at + tick * SECOND // 2
            rows += [(t_ns, "instance", name, round(per_s * tick / 2)) for name, per_s in growing.items()]
            rows += [(t_ns, "instance", name, value) for name, value in steady.items()]
        notes.tables["outside"] = samples_table(rows)
        yield
        notes.check("limits in force", True, "")


def _measured(load: str, viewers: int, at: int, stalled_percent: float) -> Measured:
    """Five seconds of a window."""
    events = Events(intended=viewers, offered=viewers, completed=viewers, failures={}, censored=0)
    window = Window(
        start_ns=at,
        duration_ns=5 * SECOND,
        work=viewers * 5.0,
        values={"stalled_percent": stalled_percent},
        counts={},
        events={"start-up": events},
        cpu_ns=SECOND // 10,
    )
    quantities = {"stalled_percent": Quantity("Stalled share of the viewing time", "%", "less")}
    return Measured(
        name=load,
        instrument="virtoll-load fake",
        unit="viewer-second",
        request="start-up",
        loop="open",
        windows=[window],
        quantities=quantities,
    )


class AtItsLimit(Crowds):
    """As many as have what four and a half take natively."""

    most_cpus = 4.5 * CPUS[""]


@dataclass
class Unpaced(Crowds):
    """Viewers who read as fast as they can."""

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        for step in super().perform(trial, notes):
            if notes.measured is not None:
                notes.measured = notes.measured.model_copy(update={"loop": "closed"})
            yield step


def run_of(
    directory: Path,
    work: str = SERVERS,
    levels: str = "[1, 2, 3, 4, 5]",
    along: str = "load.viewers",
    kind: Callable[..., Crowds] = Crowds,
) -> RunDirectory:
    text = STUDY.replace("WORK", work).replace("LEVELS", levels).replace("load.viewers", along)
    of = read_study(text, "crowds.toml", catalogue())
    plan = make_plan(of, [entry.arm for entry in of.arms], dict.fromkeys(TOLLS, 1.0))
    run = RunDirectory.create(directory, document.as_json(of), plan, fake_environment())
    assert execute(run, kind(TOLLS, of=of), Quiet())
    return run


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("servers") / "run").path


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("alone") / "run", ALONE).path


def arm(findings: Findings, platform: str) -> Arm:
    return next(each for each in findings.arms if each.platform == platform)


def tables_in(directory: Path) -> dict[str, list[list[str]]]:
    """The report's tables as CSV: rows of cells."""
    found = {path.stem: path.read_text("utf-8") for path in (directory / "report" / "tables").glob("*.csv")}
    return {name: list(csv.reader(text.splitlines())) for name, text in found.items()}


# -- a trial ----------------------------------------------------------------------------------------------


def test_packets_are_told_by_unit_of_work_and_by_the_second(alone: Path) -> None:
    run = read_run(alone)
    for record in run.records:
        told, viewers = measure(run, record), record.trial.condition["load.viewers"]
        assert told.values["packets_per_unit"] == pytest.approx(PACKETS), "both directions, of a viewer-second"
        assert told.values["packets_per_s"] == pytest.approx(PACKETS * viewers)
        assert told.values["from_server_mbit_per_s"] == pytest.approx(0.8 * viewers)


def test_packets_that_were_not_sampled_are_missing_and_no_zero(alone: Path) -> None:
    run = read_run(alone)
    record = run.records[0]
    path = run.file(record.trial.id, "outside.parquet")
    kept, whole = run.table(record.trial.id, "outside"), path.read_bytes()
    assert kept is not None
    rows = [(r["t_ns"], r["source"], r["counter"], r["value"]) for r in kept.to_pylist() if r["counter"][:3] != "net"]
    path.write_bytes(packed(samples_table(rows)))
    told = measure(run, record)
    path.write_bytes(whole)
    assert told.missing["packets_per_unit"] == told.missing["packets_per_s"] == "not sampled"
    assert told.values["cpu_s_per_1000"] > 0


def test_beside_other_servers_no_packets_are_told_for_theirs_pass_the_same_links(tmp_path: Path) -> None:
    run = read_run(run_of(tmp_path / "run", SERVERS + '[neighbour]\nservers = "others"\n', "[1, 2]").path)
    told = measure(run, run.records[0])
    why = "the links carry what is sent to and from those beside it, too"
    assert told.missing["packets_per_unit"] == told.missing["packets_per_s"] == why
    assert told.missing["to_server_mbit_per_s"] == told.missing["from_server_mbit_per_s"] == why
    assert told.values["server_cpus"] > 0


def test_who_asks_for_no_usage_is_told_none_of_the_server(alone: Path) -> None:
    run = read_run(alone)
    assert "server_cpus" not in measure(run, run.records[0], Wanted(usage=False)).values
    told = measure(run, run.records[0], Wanted(inside=False))
    assert "server_cpus" in told.values
    assert "server_cpus_inside" not in told.values | told.missing
    assert "not sampled" in measure(run, run.records[0], ALL).missing["server_cpus_inside"]


def test_what_an_intensity_is() -> None:
    """Connections of a closed loop are none: with any number of them a server is as busy as it can be."""
    assert intensity_of({"load.object_bytes": 1, "load.viewers": 3}) == "load.viewers"
    assert intensity_of({"load.rate_per_s": 10.0}) == "load.rate_per_s"
    assert intensity_of({"load.connections": 100}) == ""


# -- a run ------------------------------------------------------------------------------------------------


def test_the_server_is_told_at_each_number_of_viewers(alone: Path) -> None:
    findings = find(alone)
    assert level_path(findings.run) == "load.viewers"
    assert not is_by_participants(findings.run)
    assert Levels().applies(findings)
    assert findings.headline.name != "server_cpus", "what viewers feel is the answer, as without levels"
    added = by_each_further(findings.matrix, "server_cpus", arm(findings, "docker"), "load.viewers")
    assert added is not None
    assert added.value == pytest.approx(0.002 * 1.2, rel=0.03)
    toll = findings.tolls("server_cpus").total(arm(findings, "docker"))
    assert toll is not None
    assert toll.ratio is not None
    assert toll.ratio.value == pytest.approx(1.2, rel=3e-4)


def test_a_server_at_its_limit_takes_no_more_for_each_further_viewer(tmp_path: Path) -> None:
    """Of an arm that costs half more the slope was told through levels at which it had no more CPU to take: less."""
    findings = find(run_of(tmp_path / "run", ALONE, "[1, 2, 3, 9, 40]", kind=AtItsLimit).path)
    for platform in ("native", "docker"):  # docker's limit is at 3.75
        added = by_each_further(findings.matrix, "server_cpus", arm(findings, platform), "load.viewers")
        assert added is not None
        assert added.value == pytest.approx(CPUS[""] * TOLLS[platform], rel=0.03)
    xen = arm(findings, "xen-pv")  # at 3
    assert by_each_further(findings.matrix, "server_cpus", xen, "load.viewers") is None, "two levels are no line"
    (table,) = [table for table in Levels().tables(findings) if table.name == "levels-added"]
    assert "at which viewers stalled for no more than 1 % of the time" in table.notes[0]


def test_what_does_not_vary_has_no_curve(tmp_path: Path) -> None:
    findings = find(run_of(tmp_path / "run", ALONE, "[3]").path)
    assert level_path(findings.run) == ""
    assert not Levels().applies(findings)


def test_requests_a_second_of_an_open_loop_are_levels_too(tmp_path: Path) -> None:
    work = '[service]\nname = "nginx"\n[load]\nname = "http"\nloop = "open"\nconnections = 9\n'
    run = run_of(tmp_path / "run", work, '["10 /s", "20 /s", "40 /s"]', "load.rate")
    findings = find(run.path)
    assert level_path(findings.run) == "load.rate_per_s"
    (added,) = [table for table in Levels().tables(findings) if table.name == "levels-added"]
    assert added.caption == "What each further start-up a second takes"
    native = next(row for row in added.rows if row[0].text == "native+host")
    assert native[3].text == "80.00 ± 0"


def test_of_a_closed_loop_nothing_is_told_of_what_each_further_one_takes(tmp_path: Path) -> None:
    """Unpaced viewers read as fast as they can: any number of them has the server at its limit, and a slope is none."""
    run = run_of(tmp_path / "run", ALONE.replace('"viewers"', '"viewers"\npaced = false'), kind=Unpaced)
    names = [table.name for table in Levels().tables(find(run.path))]
    assert names == ["levels-differences"]


def test_the_report_shows_curves_and_what_each_further_viewer_takes(alone: Path) -> None:
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", build_report(alone).read_text("utf-8")))
    assert "How much CPU does the server take, and how much would a tool inside say?" in words
    assert "How many packets does a unit of work take?" in words
    assert "Stalled share of the viewing time" in words
    tables = tables_in(alone)
    heads, *rows = tables["levels-added"]
    assert heads == ["Arm", "CPU [CPUs]", "Memory [MiB]", "Packets [1/s]"]
    native = next(row for row in rows if row[0] == "native+host")
    assert native[1].startswith("0.0020")
    assert native[2:] == ["3.000 ± 0", "80.00 ± 0"]
    docker = next(row for row in tables["levels-differences"] if row[0] == "docker+routed")
    assert docker[1].startswith("× 1.20")


def test_the_largest_difference_is_that_of_the_level_farthest_from_native_either_way() -> None:
    """Of an arm that takes 0.70, 0.85 and 0.97 of native's CPU 0.97 was told, which is the smallest."""
    metric = load_metrics("segment")["cpu_s_per_1000"]
    arm = Arm(label="docker+routed", platform="docker", network="routed")

    def told(*ratios: float) -> str:
        each = [
            Toll(
                arm,
                Condition.of_levels({"load.viewers": 20 * (at + 1)}),
                metric,
                Estimate(ratio, ratio - 0.01, ratio + 0.01, 0.95, "ratio", 3, ""),
                *(math.nan, None, 0.03, 1, Verdict("costs", "costs")),
            )
            for at, ratio in enumerate(ratios)
        ]
        return _largest(each, ("load.viewers",)).text

    assert told(0.70, 0.85, 0.97).startswith("× 0.70")
    assert told(0.97, 1.10, 1.02).startswith("× 1.10")
    assert told(0.60, 1.50).startswith("× 0.60"), "1 / 0.60 is more than 1.50"


def test_of_several_servers_each_has_a_panel_and_rows_of_its_own(servers: Path) -> None:
    findings = find(servers)
    figures = {figure.name: figure for figure in Levels().figures(findings)}
    assert {"levels-cpu", "levels-memory", "levels-packets", "levels-stalled"} <= figures.keys()
    build_report(servers)
    tables = tables_in(servers)
    added = {(row[0], row[1]): row for row in tables["levels-added"]}
    assert added["Server", "Arm"][2:] == ["CPU [CPUs]", "Memory [MiB]", "Packets [1/s]"]
    assert added["red5", "native+host"][2].startswith("0.010")
    assert added["vlc", "native+host"][2].startswith("0.0040")
    differences = {(row[0], row[1]): row for row in tables["levels-differences"]}
    assert differences["red5", "xen-pv+routed"][2].startswith("× 1.50")


def test_of_several_servers_it_is_said_of_each_why_its_scatter_is_not_known(servers: Path) -> None:
    """It was said of what none of them tells: that nothing that can be compared with native was measured."""
    findings = find(servers)
    assert [said for said in method(findings) if "scatter" in said] == [
        f"**Where the scatter comes from is not known**: {ONE_WINDOW}."
    ]
    told = {(each["server"], each["quantity"]): each["missing"] for each in as_json(findings)}
    for name, each in findings.servers.items():
        assert told[name, each.headline.name] == told[name, "cpu_s_per_1000"] == ONE_WINDOW


def test_the_papers_figure_is_judged_where_its_platforms_are_and_else_not_measured_here(servers: Path) -> None:
    """Red5 on Xen against VLC on Xen; there is no OpenVZ, and a Darwin nowhere."""
    (paper,) = find(servers).papers
    told = {one.statement.reads: (one.outcome, one.why) for one in paper.statements}
    assert told["Red5 on Xen takes more CPU than VLC on Xen, with each of 1 to 5 viewers"] == (
        "agrees",
        "judged over 5 conditions",
    )
    others = {reads: each for reads, each in told.items() if "VLC on Xen, with" not in reads or "OpenVZ" in reads}
    assert len(others) == 5
    assert {outcome for outcome, _ in others.values()} == {"not measured here"}
    assert others["Red5 on Xen takes more CPU than Darwin on Xen, with each of 1 to 5 viewers"][1] == (
        "its conditions were not measured"
    )
    assert others["VLC takes less CPU on OpenVZ than on Xen, with each of 1 to 5 viewers"][1] == "no OpenVZ here"


# -- what latency is of -----------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0, None, "no single events"])
def test_latency_runs_from_intended_starts_where_each_trial_tells_how_late_it_was(
    alone: Path, late: int | str | None
) -> None:
    """Of one that told no single events, only averages, it was said to."""
    whole = find(alone)
    trials = [replace(trial, record=_telling(0, trial.record)) for trial in whole.matrix.trials]
    trials[1] = replace(trials[1], record=_telling(late, trials[1].record))
    told = loop(replace(whole, matrix=replace(whole.matrix, trials=tuple(trials))))
    assert ("latency runs from each intended start" in told) == (late == 0)
    assert ("as the program that sends them tells it" in told) == (late != 0)


def _telling(late: int | str | None, record: TrialRecord) -> TrialRecord:
    assert record.measured is not None
    (window,) = record.measured.windows
    events = {} if isinstance(late, str) else {"start-up": window.events["start-up"].model_copy(update={"late": late})}
    windows = [window.model_copy(update={"events": events})]
    return record.model_copy(update={"measured": record.measured.model_copy(update={"windows": windows})})
