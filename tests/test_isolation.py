"""Whole isolation studies on fakes: the analysis and the report say what was put in."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from altair.utils.schemapi import debug_mode

from isolating import HARMS, run_of
from virtoll.analysis.isolation import Exposure, Isolation, Settled, is_polite, loss_floor, loss_table
from virtoll.analysis.load import AGGRESSOR, read_run
from virtoll.analysis.matrix import Matrix
from virtoll.catalogue import catalogue
from virtoll.fakes import FakeHarm
from virtoll.report import contents, method
from virtoll.report.answer import answer
from virtoll.report.build import build_report
from virtoll.report.drawing import NARROW, WIDE
from virtoll.report.findings import Findings, find
from virtoll.report.isolation import lines, settled_words, whole, with_interval
from virtoll.report.sections import isolation as section
from virtoll.report.sections import limits as limits_section
from virtoll.report.sections.isolation import Protection, losses
from virtoll.report.sections.neighbours import doings
from virtoll.study.file import read_study

pytestmark = pytest.mark.usefixtures("helped")


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("isolation") / "run")


@pytest.fixture(scope="module")
def findings(run_directory: Path) -> Findings:
    return find(run_directory)


@pytest.fixture(scope="module")
def told(findings: Findings) -> Isolation:
    return findings.isolation


def exposure(told: Isolation, platform: str, neighbour: str) -> Exposure:
    (arm,) = (arm for arm in told.arms if arm.platform == platform)
    (condition,) = (condition for condition in told.conditions if told.name(condition) == neighbour)
    return told.exposure(arm, condition)


def ratio(of: Exposure, metric: str) -> float:
    estimate = of.tolls[metric].ratio
    assert estimate is not None
    return estimate.value


# -- the analysis ----------------------------------------------------------------------------------------


def test_losses_are_those_put_in_whatever_the_platform_costs(told: Isolation) -> None:
    for platform in ("native", "docker", "lxc", "uml"):  # uml takes four times native's time: that cancels
        found = exposure(told, platform, "cpu")
        assert ratio(found, "goodput_kept") == pytest.approx(0.8, abs=0.01)
        assert found.tolls["p99_rise"].ratio is None, "it lies among the fifth that was not answered"
        assert found.kind == "costs"
        assert ratio(exposure(told, platform, "timer"), "p99_rise") == pytest.approx(1.3, rel=0.1)
    worst = exposure(told, "qemu-tcg", "cpu")
    assert ratio(worst, "goodput_kept") == pytest.approx(0.4, abs=0.02)
    assert worst.tolls["p99_rise"].ratio is None


def test_native_is_an_arm_and_its_second_the_noise_floor(told: Isolation) -> None:
    assert told.arms[0].label == "native+host"
    assert not any("again" in arm.label for arm in told.arms)
    assert told.floors["p99_rise"] == pytest.approx(0.0, abs=0.15)


def test_a_noise_floor_that_is_more_than_nothing_is_not_told_as_0(told: Isolation) -> None:
    """It was 0.0 %, as of natives that are alike."""
    (metric, *_) = told.shown
    small = replace(told, floors={**told.floors, metric.name: 0.0003})
    assert losses(small, metric, "requests").notes[0].endswith("those of native again): 0.03 %.")


def test_what_does_not_answer_or_dies_is_an_outcome_and_no_ratio(told: Isolation) -> None:
    silent, dead = exposure(told, "native", "fork"), exposure(told, "uml", "memory")
    assert (silent.kind, silent.outcomes) == ("did not answer", {"did not answer": 3})
    assert (dead.kind, dead.harm) == ("victim died", "victim died")
    assert all(toll.ratio is None for one in (silent, dead) for toll in one.tolls.values())


def test_an_aggressor_that_cannot_start_is_a_reason_and_no_zero(told: Isolation) -> None:
    found = exposure(told, "docker", "net-receive")
    assert found.kind == "could not start"
    assert "not published" in found.refused
    assert all(toll.ratio is None for toll in found.tolls.values())
    assert lines(found) == ["could not start"]
    cells = [told.matrix.cell(block, found.arm, found.condition) for block in told.matrix.blocks]
    assert all(cell is not None and "could not start" in cell.missing["goodput_kept"] for cell in cells)


def test_a_harmless_neighbour_is_told_from_one_that_harms(told: Isolation) -> None:
    assert exposure(told, "native", "net-send").kind == "same"
    assert exposure(told, "native", "disk").kind == "costs"


def test_recovery_and_overshoot_are_those_put_in(told: Isolation) -> None:
    slow = exposure(told, "qemu-tcg", "cpu")
    assert told.settled("recovery", slow.arm, slow.condition).seconds == pytest.approx((0.6,) * 3)
    never = exposure(told, "native", "memory")
    assert settled_words(told.settled("recovery", never.arm, never.condition)) == "more than 1.5 s"
    disk = exposure(told, "native", "disk")
    peak = told.peak("overshoot", disk.arm, disk.condition)
    assert peak is not None
    assert peak.value == pytest.approx(2.0, rel=0.02)
    assert told.settled("settling", disk.arm, disk.condition).seconds == pytest.approx((0.3,) * 3)


@pytest.mark.parametrize(
    ("seen", "bounds", "told"),
    [
        ((), (), ""),
        ((0.3,), (), "0.3 s"),
        ((0.8, 0.1, 0.3), (), "0.3 s (0.1 to 0.8)"),
        ((), (1.5, 1.5), "more than 1.5 s"),
        ((), (1.0, 1.5, 2.0), "more than 1.5 s (more than 1.0 to more than 2.0)"),
        ((0.3, 2.9), (1.5,), "more than 1.5 s (0.3 to at least 2.9; seen in 2 of 3)"),
        ((0.1, 0.3), (1.5,), "0.3 s (0.1 to more than 1.5; seen in 2 of 3)"),
        ((0.1,), (1.5, 1.5), "more than 1.5 s (0.1 to more than 1.5; seen in 1 of 3)"),
        ((0.1, 0.3, 2.0), (0.2,), "more than 0.2 s (0.1 to at least 2.0; seen in 3 of 4)"),
    ],
)
def test_a_median_that_a_bound_could_move_is_told_as_more(
    seen: tuple[float, ...], bounds: tuple[float, ...], told: str
) -> None:
    assert settled_words(Settled(seen, bounds)) == told


def test_a_probes_victim_that_lost_too_much_is_counted_and_in_no_figure(tmp_path: Path) -> None:
    """Of three blocks it lost answers in one: that one was invalid, and the others said protected."""
    directory = run_of(tmp_path / "r", "isolation-rtt", {}, quick=True)
    whole_run = read_run(directory)
    lossy = next(
        record
        for record in whole_run.records
        if record.trial.arm.platform == "lxc" and record.trial.condition[AGGRESSOR] == "fork"
    )
    records = [
        record.model_copy(update={"outcome": "did not answer"}) if record == lossy else record
        for record in whole_run.records
    ]
    (directory / "trials.jsonl").write_text("".join(f"{record.model_dump_json()}\n" for record in records))
    told = find(directory).isolation
    found = exposure(told, "lxc", "fork")
    assert (found.outcomes, found.kind) == ({"did not answer": 1, "answered": 2}, "did not answer")
    matrix, median = told.matrix, "round-trip.round_trip_p50_us"
    assert matrix.absolute(median, found.arm, found.condition) is None
    assert matrix.censored(median, found.arm, found.condition) == (1, 3)
    assert matrix.absolute("round-trip.lost_percent", found.arm, found.condition) is not None
    assert exposure(told, "lxc", "cpu").kind != "did not answer"


def test_the_polite_neighbour_is_compared_with_before_it_began(tmp_path: Path) -> None:
    harms = {"polite": FakeHarm(rise=1.5), "cpu": FakeHarm(rise=3.0)}
    told = find(run_of(tmp_path / "r", harms=harms, quick=True)).isolation
    assert ratio(exposure(told, "lxc", "polite"), "p99_rise") == pytest.approx(1.5, rel=0.1)
    assert ratio(exposure(told, "lxc", "cpu"), "p99_rise") == pytest.approx(2.0, rel=0.1)  # beyond sharing
    assert told.floors["goodput_kept"] == pytest.approx(0.0, abs=1e-9)
    assert told.floors["p99_rise"] == pytest.approx(0.0, abs=0.15)


def test_what_has_nothing_to_be_compared_with_is_not_told_to_have_too_few_answers(tmp_path: Path) -> None:
    """Nor that it cannot be told yet: beside the polite neighbour the victim of docker dies, whatever is run."""
    harms = {"docker/polite": FakeHarm(kept=0.0, outcome="victim died"), "docker/fork": FakeHarm(kept=0.0, rise=4.0)}
    findings = find(run_of(tmp_path / "r", harms=harms, quick=True))
    (docker,) = (said for said in answer(findings) if said.startswith("docker"))
    assert "not compared beside cpu, memory, disk and net-receive (beside the polite neighbour: victim died)" in docker
    assert "cannot tell yet" not in docker
    tables = {table.name: table for table in contents.tables(findings)}
    for name in ("losses-goodput-kept", "losses-p99-rise"):
        details = {row[0].text: row[2].detail for row in tables[name].rows}
        assert details["disk"] == "not compared, beside the polite neighbour: victim died"
        assert "compare" not in details["fork"]
    found = exposure(findings.isolation, "docker", "disk")
    assert whole(findings.isolation, found).endswith(
        "beside the polite neighbour: victim died; recovery 0.0 s; 3 blocks"
    )


def test_what_sharing_costs_is_told_of_each_condition(tmp_path: Path) -> None:
    """It was told of the first, and of no condition by name."""
    harms = {"polite": FakeHarm(kept=0.9)}
    findings = find(run_of(tmp_path / "r", harms=harms, quick=True, factors={"load.connections": (4, 8)}))
    (docker,) = (said for said in answer(findings) if said.startswith("docker"))
    sharing = docker.partition("Sharing with a polite neighbour already costs ")[2]
    assert re.findall(r"goodput −[^;]* \((\d) connections\)", sharing) == ["4", "8"]


def test_some_that_did_not_answer_are_counted_beside_the_others(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", quick=True)
    log = run / "trials.jsonl"
    records = log.read_text().splitlines()
    at = next(n for n, line in enumerate(records) if '"docker"' in line and '"disk"' in line)
    records[at] = records[at].replace('"outcome":"answered"', '"outcome":"did not answer"')
    log.write_text("\n".join(records) + "\n")
    found = exposure(find(run).isolation, "docker", "disk")
    assert found.outcomes == {"answered": 2, "did not answer": 1}
    for toll in found.tolls.values():  # what it still answered is in no ratio
        assert toll.ratio is not None
        assert toll.ratio.n == 2
    assert "did not answer in 1 of 3" in whole(find(run).isolation, found)


def test_a_harmed_host_is_told_though_the_neighbour_had_not_begun(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", quick=True)
    log = run / "trials.jsonl"
    records = log.read_text().splitlines()
    for at, line in enumerate(records):
        if '"docker"' in line and '"net-receive"' in line:  # which could not start
            records[at] = line.replace('"outcome":null', '"outcome":"host harmed"')
    log.write_text("\n".join(records) + "\n")
    found = exposure(find(run).isolation, "docker", "net-receive")
    assert found.outcomes == {"host harmed": 3}
    assert found.kind == "host harmed"


def test_a_neighbour_that_did_not_always_start_is_told_beside_what_it_did(tmp_path: Path) -> None:
    """It read: the host harmed in 1 of 3 and the could not start in 2 of 3."""
    run = run_of(tmp_path / "r", quick=True)
    log = run / "trials.jsonl"
    records = log.read_text().splitlines()
    at = next(n for n, line in enumerate(records) if '"docker"' in line and '"net-receive"' in line)
    records[at] = records[at].replace('"outcome":null', '"outcome":"host harmed"')
    log.write_text("\n".join(records) + "\n")
    (docker,) = (said for said in answer(find(run)) if said.startswith("docker"))
    words = "beside net-receive the host was harmed in 1 of 3 and the neighbour could not start in 2 of 3"
    assert words in docker


@pytest.mark.parametrize("stopped_by", ["host", "itself"])
@pytest.mark.parametrize(
    ("study", "metric"), [("isolation", "goodput_kept"), ("isolation-rtt", "round-trip.round_trip_p50_us")]
)
def test_nothing_is_told_of_a_stretch_whose_end_is_not_known(
    tmp_path: Path, study: str, metric: str, stopped_by: str
) -> None:
    run = run_of(tmp_path / "r", study, quick=True)
    log = run / "trials.jsonl"
    records = log.read_text().splitlines()
    for at, line in enumerate(records):
        if '"lxc"' in line and '"aggressor":"disk"' in line:
            record = json.loads(line)
            record["neighbour"] |= {"end_ns": None, "ended": "killed", "stopped_by": stopped_by, "reason": "no answer"}
            records[at] = json.dumps(record)
    log.write_text("\n".join(records) + "\n")
    told = find(run).isolation
    found = exposure(told, "lxc", "disk")
    assert found.outcomes == {"answered": 3}
    assert all(toll.ratio is None for toll in found.tolls.values())
    cells = [told.matrix.cell(block, found.arm, found.condition) for block in told.matrix.blocks]
    assert all(cell is not None and "not known when" in cell.missing[metric] for cell in cells)


TIMES_OUT = {"cpu": FakeHarm(kept=0.96), "disk": FakeHarm()}  # within the margin of goodput


def with_one_of(run: Path, other: Path, aggressor: str) -> None:
    """One block of native's beside this aggressor is replaced by that of the other run."""
    lines_of = (other / "trials.jsonl").read_text().splitlines()
    trial = next(
        record["trial"]["id"]
        for record in map(json.loads, lines_of)
        if record["trial"]["arm"]["label"] == "native+host"
        and record["trial"]["condition"]["neighbour.aggressor"] == aggressor
    )
    shutil.copy(other / "trials" / trial / "requests.parquet", run / "trials" / trial / "requests.parquet")


def test_requests_that_time_out_are_no_protection(tmp_path: Path) -> None:
    findings = find(run_of(tmp_path / "r", harms=TIMES_OUT, quick=True))
    found = exposure(findings.isolation, "native", "cpu")
    assert ratio(found, "goodput_kept") == pytest.approx(0.96, abs=0.001)
    assert found.tolls["goodput_kept"].verdict.kind == "same"
    assert found.unanswered == {"p99_rise": 3}
    assert section._cell(findings.isolation, found)["step"] == "inf", "it is worse than any value"
    assert found.kind == "unsure"
    assert lines(found) == ["goodput −4 %", "p99 unanswered"]
    assert "p99 unanswered" in whole(findings.isolation, found)
    (native,) = (said for said in answer(findings) if said.startswith("native"))
    assert re.search(r"protected from .*disk", native)
    assert not re.search(r"protected from [^(]*cpu", native)
    assert "cannot tell yet: cpu (p99 unanswered)" in native
    losses = next(table for table in contents.tables(findings) if table.name == "losses-p99-rise")
    cell = next(row[1] for row in losses.rows if row[0].text == "cpu")
    assert (cell.text, cell.kind) == ("unanswered in 3 of 3", "costs")


def test_blocks_in_which_requests_timed_out_do_not_leave_the_others_to_decide(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", harms={}, quick=True)
    assert exposure(find(run).isolation, "native", "cpu").kind == "same"
    with_one_of(run, run_of(tmp_path / "other", harms=TIMES_OUT, quick=True), "cpu")
    found = exposure(find(run).isolation, "native", "cpu")
    assert (found.kind, found.unanswered) == ("unsure", {"p99_rise": 1})
    assert found.tolls["p99_rise"].ratio is None
    assert lines(found)[1] == "p99 unanswered in 1 of 3"


def test_blocks_in_which_requests_timed_out_beside_the_polite_one_do_not_either(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", harms={}, quick=True)
    with_one_of(run, run_of(tmp_path / "other", harms={"polite": FakeHarm(kept=0.96)}, quick=True), "polite")
    found = exposure(find(run).isolation, "native", "cpu")
    assert (found.tolls["p99_rise"].ratio, found.kind) == (None, "unsure")
    assert found.tolls["p99_rise"].verdict.words == "no ratio: in 1 pair it lies among what failed"
    assert exposure(find(run).isolation, "lxc", "cpu").kind == "same"


def with_outcome(run: Path, outcome: str, aggressor: str, blocks: Sequence[int]) -> None:
    """What became of native's victim beside this aggressor in some blocks is another."""
    records = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    for record in records:
        trial = record["trial"]
        is_there = trial["block"] in blocks and trial["condition"][AGGRESSOR] == aggressor
        if is_there and trial["arm"]["label"] == "native+host":
            record["outcome"] = outcome
    (run / "trials.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


@pytest.mark.parametrize(
    ("study", "outcome"),
    [("isolation", "victim died"), ("isolation", "did not answer"), ("isolation-rtt", "did not answer")],
)
def test_blocks_in_which_it_did_not_answer_beside_the_polite_one_do_not_either(
    tmp_path: Path, study: str, outcome: str
) -> None:
    """Of six blocks it died in three: the others were told as *protected*."""
    run = run_of(tmp_path / "r", study, harms={}, quick=True, blocks=6)
    assert exposure(find(run).isolation, "native", "cpu").kind == "same"
    with_outcome(run, outcome, "polite", (1, 3, 5))
    findings = find(run)
    found = exposure(findings.isolation, "native", "cpu")
    assert (found.kind, found.unmatched) == ("unsure", 3)
    assert all(toll.ratio is None for toll in found.tolls.values())
    (native,) = (said for said in answer(findings) if said.startswith("native"))
    assert "protected from" not in native
    assert re.search(rf"not compared beside [^;]*cpu[^;]* \(beside the polite neighbour: {outcome} in 3 of 6\)", native)
    why = f"not compared, beside the polite neighbour: {outcome} in 3 of 6"
    assert why in whole(findings.isolation, found)
    tables = [table for table in contents.tables(findings) if table.name.startswith("losses-")]
    details = [row[1].detail for table in tables for row in table.rows if row[0].text == "cpu"]
    assert details == [why] * 2
    assert exposure(findings.isolation, "lxc", "cpu").kind == "same"


def test_what_is_not_compared_says_why_beside_what_became_of_the_victim(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", harms={}, quick=True)
    with_outcome(run, "victim died", "polite", (1,))
    with_outcome(run, "did not answer", "cpu", (2,))
    losses = next(table for table in contents.tables(find(run)) if table.name == "losses-goodput-kept")
    cell = next(row[1] for row in losses.rows if row[0].text == "cpu")
    assert cell.text == "did not answer in 1 of 3"
    assert cell.detail == "not compared, beside the polite neighbour: victim died in 1 of 3"


def test_where_it_answered_in_no_block_that_the_polite_one_lacks_the_others_are_compared(tmp_path: Path) -> None:
    """That block is lost by what became of the victim beside the aggressor, which is told."""
    run = run_of(tmp_path / "r", harms={}, quick=True, blocks=6)
    for aggressor in ("polite", "cpu"):
        with_outcome(run, "victim died", aggressor, (2,))
    told = find(run).isolation
    found, other = (exposure(told, "native", aggressor) for aggressor in ("cpu", "disk"))
    assert (found.unmatched, found.outcomes) == (0, {"answered": 5, "victim died": 1})
    toll = found.tolls["goodput_kept"]
    assert toll.ratio is not None
    assert toll.ratio.n == 5
    assert "not compared" not in whole(told, found)
    assert other.unmatched == 1


def floor_without(matrix: Matrix, aggressor: str) -> float | None:
    """The noise floor of p99, had the aggressor not been studied."""
    others = tuple(each for each in matrix.conditions if each.get(AGGRESSOR) != aggressor)
    return loss_floor(replace(matrix, conditions=others, _arrays={}, _planned={}), "p99_rise")


def test_the_noise_floor_leaves_out_the_aggressor_beside_which_a_native_timed_out(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", harms={}, quick=True)
    before = find(run)
    with_one_of(run, run_of(tmp_path / "other", harms=TIMES_OUT, quick=True), "cpu")
    told = find(run).isolation
    assert told.floors["p99_rise"] == floor_without(before.matrix, "cpu") != before.isolation.floors["p99_rise"]
    assert told.floors["goodput_kept"] is not None


def test_the_noise_floor_leaves_out_the_aggressor_beside_which_a_native_has_a_0(tmp_path: Path) -> None:
    matrix = find(run_of(tmp_path / "r", harms={}, quick=True)).matrix
    before = floor_without(matrix, "disk")
    assert matrix.floor is not None
    (disk,) = (c for c, condition in enumerate(matrix.conditions) if condition.get(AGGRESSOR) == "disk")
    matrix.values("p99_rise")[1, matrix.arms.index(matrix.floor), disk] = 0.0
    assert loss_floor(matrix, "p99_rise") == before


def test_the_noise_floor_leaves_out_the_aggressor_beside_which_a_native_did_not_answer(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", harms={}, quick=True)
    before = find(run)
    with_outcome(run, "did not answer", "cpu", (2,))
    floors = find(run).isolation.floors
    assert floors["p99_rise"] == floor_without(before.matrix, "cpu") != before.isolation.floors["p99_rise"]


def test_the_noise_floor_is_unknown_where_a_native_died_beside_the_polite_one(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", harms={}, quick=True)
    with_outcome(run, "victim died", "polite", (2,))
    assert set(find(run).isolation.floors.values()) == {None}


def test_the_noise_floor_is_unknown_where_a_native_timed_out_beside_the_polite_one(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", harms={}, quick=True)
    with_one_of(run, run_of(tmp_path / "other", harms={"polite": FakeHarm(kept=0.96)}, quick=True), "polite")
    found = find(run)
    assert found.isolation.floors["p99_rise"] is None
    table = next(table for table in contents.tables(found) if table.name == "losses-p99-rise")
    assert "The noise floor is unknown: " in table.notes[0]
    assert "no second native arm" not in table.notes[0]


def test_a_percentile_is_unanswered_though_the_report_is_given_in_another(tmp_path: Path) -> None:
    """Where most lost it, all are told in p90; what was lost in p99 is no protection all the same."""
    harms = {name: FakeHarm(kept=0.96) for name in ("polite", *HARMS)}
    told = find(run_of(tmp_path / "r", harms=harms, quick=True)).isolation
    assert [metric.name for metric in told.shown] == ["goodput_kept", "p90_rise"]
    assert exposure(told, "native", "cpu").kind == "unsure"


def said_of_native(run: Path) -> tuple[Exposure, str]:
    findings = find(run)
    (native,) = (sentence for sentence in answer(findings) if sentence.startswith("native"))
    return exposure(findings.isolation, "native", "cpu"), native


def test_a_gain_is_told_as_one_and_not_as_protection(tmp_path: Path) -> None:
    """Where the polite neighbour does more harm than the aggressors."""
    found, said = said_of_native(run_of(tmp_path / "r", harms={"polite": FakeHarm(rise=2.0)}, quick=True))
    assert (found.kind, found.tolls["p99_rise"].verdict.kind) == ("gains", "gains")
    assert re.search(r"beside cpu it gains p99 × 0\.(?:49|5)\d* \[[\d.]+, [\d.]+\]", said), said
    assert "protected from" not in said


def test_a_gain_beside_a_cost_is_told_with_it(tmp_path: Path) -> None:
    harms = {name: FakeHarm(kept=0.85) for name in HARMS}
    harms |= {"polite": FakeHarm(kept=0.85, rise=2.0), "cpu": FakeHarm(kept=0.6)}
    found, said = said_of_native(run_of(tmp_path / "r", harms=harms, quick=True))
    assert found.kind == "costs"
    assert re.search(r"cpu costs goodput −29[^;]*, but gains median × 0\.(?:49|5)", said), said


def test_blocks_that_are_planned_still_count_among_those_it_would_take(tmp_path: Path) -> None:
    """Of a run that was interrupted nobody is sent to a new one for blocks that this one has ahead of it."""
    path = run_of(tmp_path / "r", harms={}, name="isolation-rtt", quick=True, spread=0.2, blocks=100, until=3)
    exposures = find(path).isolation.exposures.values()
    words = [toll.verdict.words for one in exposures for toll in one.tolls.values() if toll.verdict.kind == "unsure"]
    assert any(word.startswith("cannot tell yet: needs about ") for word in words)
    assert not [word for word in words if "in a new run, or" in word and int(word.split()[5]) <= 100]


@pytest.mark.parametrize("aggressor", ["disk", "polite"])
def test_blocks_in_which_the_victim_died_count_among_those_it_would_take(tmp_path: Path, aggressor: str) -> None:
    """Of six it died in three: as many of those that come are taken to be lost."""
    run = run_of(tmp_path / "r", harms={}, quick=True, spread=0.2, blocks=6)
    with_outcome(run, "victim died", aggressor, (1, 3, 5))
    toll = exposure(find(run).isolation, "native", aggressor).tolls["p99_rise"]
    assert toll.ratio is not None
    assert toll.ratio.n == 3
    told = toll.verdict
    assert told.anew is not None
    assert told.needed is not None
    more = 2 * told.needed - 6
    assert told.words == f"cannot tell yet: needs about {2 * told.anew} blocks in a new run, or {more} more in this one"


# -- the report ------------------------------------------------------------------------------------------


def test_the_answer_says_what_was_put_in(findings: Findings) -> None:
    said = answer(findings)
    native, docker, uml = (next(s for s in said if s.startswith(name)) for name in ("native", "docker", "uml"))
    assert re.search(r"native\+host: protected from .*net-send", native)
    assert "beside fork it did not answer (recovery: 0.4 s)" in native
    assert re.search(r"cpu costs goodput −(19|20)\.\d %", native)
    assert "net-receive could not start: the flood has no way in" in docker
    assert "beside memory the victim died" in uml


def test_the_answer_says_how_the_run_came_to_its_end(tmp_path: Path) -> None:
    path = run_of(tmp_path / "r", harms={}, name="isolation-rtt", quick=True, blocks=4, until=3)
    found = find(path)
    assert answer(found)[-1].startswith("The run has not come to its planned end: if what it showed had a say")
    plan = found.run.plan.model_copy(update={"extended": (2,)})
    extended = replace(found, run=replace(found.run, plan=plan))
    assert answer(extended)[-1].startswith("Extended without a plan from 2 to 4 blocks: ")


def test_tables_hold_the_intervals(findings: Findings) -> None:
    tables = {table.name: table for table in contents.tables(findings)}
    losses = {row[0].text: row for row in tables["losses-p99-rise"].rows}
    assert re.fullmatch(r"× [23]\.\d+ \[2\.\d+, 3\.\d+\]", losses["disk"][1].text)
    assert losses["cpu"][1].text == "unanswered in 3 of 3"
    assert losses["fork"][1].text == "did not answer"
    assert losses["net-receive"][2].plain == "could not start (the flood has no way in: the port is not published)"
    assert next(row for row in tables["recovery"].rows if row[0].text == "memory")[1].text == "more than 1.5 s"
    assert "20,000 wakeups" in tables["neighbours"].rows[1][1].text


def test_a_neighbour_that_takes_no_goodput_is_not_told_as_if_none_were_kept(findings: Findings) -> None:
    losses = next(table for table in contents.tables(findings) if table.name == "losses-goodput-kept")
    assert losses.caption.startswith("Change of goodput, ")
    rows = {row[0].text: row for row in losses.rows}
    assert rows["timer"][1].text == "±0 % [0, 0]"
    assert rows["cpu"][1].text.startswith(("\u221219.", "\u221220."))
    assert lines(exposure(findings.isolation, "native", "timer"))[0] == "goodput ±0 %"


def test_a_loss_is_not_told_with_an_interval_that_holds_none(told: Isolation) -> None:
    toll = exposure(told, "native", "cpu").tolls["goodput_kept"]
    assert toll.ratio is not None
    near = replace(toll.ratio, value=0.94, low=0.886, high=0.9964)
    assert with_interval(near, toll.metric) == "−6.0 % [−11.4, −0.4]"


def test_limits_are_told_by_what_they_do(findings: Findings) -> None:
    (limits,) = (table for table in contents.tables(findings) if table.name == "limits")
    assert limits.heads == ("Arm", "CPU limit", "Disk limit", "Limit of processes", "Memory limit")
    assert [cell.text for cell in limits.rows[0]] == ["native+host", "throttled", "refused", "refused", "killed"]


def test_a_limit_of_as_many_cpus_as_there_are_is_not_shown() -> None:
    detail = "3 busy threads got 1.98 CPU, and the host has no more"
    all_of_them, shown, untried = (True, detail), (True, "2 busy threads got 0.98 CPU"), (None, "?")
    for others in ((), (shown,), (untried,), (shown, untried)):
        cell = limits_section._limit([*others, all_of_them])
        assert (cell.text, cell.kind) == ("not shown", "missing")
    assert limits_section._limit([(True, detail), (False, "it got 3")]).text == "does not bite"


@pytest.mark.parametrize("name", ["isolation", "isolation-rtt"])
def test_the_report_says_of_the_plan_that_there_is_how_victims_were_deployed(tmp_path: Path, name: str) -> None:
    """A run of an earlier virtoll has a victim for each neighbour."""
    found = find(run_of(tmp_path / "r", name, quick=True, blocks=2))
    told = method.one_observation(found)
    assert "Every block deploys each arm's victim once, in random order" in told
    alone = [trial.model_copy(update={"deployment": trial.id}) for trial in found.run.plan.trials]
    earlier = replace(found, run=replace(found.run, plan=found.run.plan.model_copy(update={"trials": alone})))
    told = method.one_observation(earlier)
    assert "one after the other" not in told
    alone_for = "trial" if name == "isolation" else "condition"  # which a programme's cases share
    assert f"in random order (seed 7), each on an instance made for that {alone_for} alone" in told


def test_the_report_says_that_what_else_varies_has_victims_of_its_own(findings: Findings) -> None:
    study = findings.run.study
    varied = replace(findings.run, study={**study, "factors": {**study["factors"], "limits.vcpus": [1, 2]}})
    told = method.one_observation(replace(findings, run=varied))
    assert "deploys each arm's victim once under each condition (limits.vcpus), in random order" in told


def test_the_method_says_which_percentiles_hold_what_was_not_answered(findings: Findings) -> None:
    """docs/ISOLATION.md: those of a stretch are of all its requests, those of the course's of the answered ones."""
    (told,) = (item for item in Protection().method(findings) if item.startswith("**Goodput counts"))
    assert "Percentiles are of all of these, a request without an answer slower than any" in told
    assert "Those of the course's tenths of a second are of the answered ones" in told


def test_what_a_neighbour_did_is_told_of_each_condition_by_itself(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", harms={}, quick=True, factors={"limits.vcpus": (1, 2)})
    records = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    for record in records:
        record["neighbour"]["counts"] = {"wakeups": 1000 * record["trial"]["condition"]["limits.vcpus"]}
    (run / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    table = doings(find(run).isolation)
    assert table is not None
    said = {(row[0].text.rpartition(" ")[2], cell.text) for row in table.rows for cell in row[1:]}
    assert said == {("1", "1,000 wakeups"), ("2", "2,000 wakeups")}


def test_the_page_shows_intervals_where_a_pointer_rests(run_directory: Path) -> None:
    page = build_report(run_directory).read_text("utf-8")
    assert re.search(r"<title>qemu-tcg\+routed beside cpu: goodput −(59|60|61)[^%]* % \[−[^]]+\]", page)
    assert "null" not in re.sub(r"data:[^\"]*", "", page)
    names = {path.stem for path in (run_directory / "report" / "figures").iterdir()}
    assert names == {"isolation", "course-latency", "course-goodput"}
    rows = list(csv.DictReader((run_directory / "report" / "tables" / "trials.csv").open()))
    assert {row["outcome"] for row in rows} == {"", "answered", "did not answer", "victim died"}
    refused = [row for row in rows if row["outcome"] == ""]
    assert refused
    assert all(row["goodput_kept"] == "" for row in refused)  # missing, never 0
    assert 'id="limits"' in page
    assert "native's of the same block" not in page  # each arm is compared with itself


def test_charts_are_valid_vega_lite(findings: Findings) -> None:
    with debug_mode(True):
        for figure in contents.figures(findings):
            for layout in (WIDE, NARROW):
                assert figure.draw(layout).to_dict(validate=True)["$schema"].startswith("https://vega.github.io/schema")


def test_a_probe_is_a_victim_too(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", "isolation-rtt", quick=True)
    findings = find(run)
    told = findings.isolation
    assert [metric.name for metric in told.shown] == ["round-trip.round_trip_p50_us", "round-trip.round_trip_p99_us"]
    assert ratio(exposure(told, "lxc", "cpu"), "round-trip.round_trip_p50_us") == pytest.approx(2.0, rel=0.1)
    assert exposure(told, "docker", "net-receive").kind == "could not start"
    assert exposure(told, "native", "fork").kind == "did not answer"
    assert not any(is_polite(one.condition) and one.tolls for one in told.exposures.values())
    assert "What a misbehaving neighbour takes from round-trip" in build_report(run).read_text("utf-8")


def test_each_of_several_probes_is_told_in_the_tables_of_its_own_losses_alone(tmp_path: Path) -> None:
    """The others' rows stood there with a reason that was none, or with what became of the other probe's victim."""
    harms = {"cpu": FakeHarm(rise=2.0), "memory": FakeHarm(kept=0.0, outcome="did not answer"), "fork": FakeHarm()}
    besides = '[[probes]]\nname = "linpack"\n'
    factors = {AGGRESSOR: ("polite", *harms)}
    run = run_of(tmp_path / "r", "isolation-rtt", harms, factors=factors, also=besides)
    told = find(run).isolation
    assert {metric.probe for metric in told.shown} == {"round-trip", "linpack"}
    for metric in told.shown:
        rows = losses(told, metric, "requests").rows
        own = [told.name(each) for each in told.conditions if each.probe == metric.probe and not is_polite(each)]
        assert [row[0].text for row in rows] == own
        assert len(rows) == len(harms), "also the neighbour beside which it answered nowhere"


def test_a_victim_that_is_measured_alone_as_well_is_no_comparison_of_the_table(tmp_path: Path) -> None:
    """Alone against beside the polite one: no row told it, Holm's correction counted it, and it was in the floor."""
    both = [run_of(tmp_path / "with", "isolation-rtt", factors={AGGRESSOR: ("", "polite", "cpu")}, blocks=4)]
    both.append(run_of(tmp_path / "without", "isolation-rtt", factors={AGGRESSOR: ("polite", "cpu")}, blocks=4))
    families, conditions = [], []
    for run in both:
        matrix = find(run).matrix
        table = loss_table(matrix, "round-trip.round_trip_p50_us", 0.1)
        families.append(table.family)
        conditions.append({toll.condition.get(AGGRESSOR) for toll in table.cells if toll.condition})
    assert families[0] == families[1]
    assert conditions == [{"cpu"}, {"cpu"}]


def test_the_table_says_over_how_many_comparisons_its_words_are_right(tmp_path: Path) -> None:
    """Those of which one block is left are tested by nobody, and were counted."""
    run = run_of(tmp_path / "r", quick=True, blocks=2)
    lines = [json.loads(line) for line in (run / "trials.jsonl").read_text("utf-8").splitlines()]
    for record in lines:
        if record["trial"]["block"] == 2 and record["trial"]["arm"]["platform"] == "lxc":
            record |= {"status": "invalid", "reason": "lost"}
    (run / "trials.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    found = find(run)
    for metric in found.isolation.shown:
        family = loss_table(found.matrix, metric.name, found.margin).family
        assert 0 < family < sum(not is_polite(each.condition) for each in found.isolation.exposures.values())
        note = losses(found.isolation, metric, "requests").notes[0]
        assert f"over {method.comparisons(family, 'this table')}" in note


def test_a_figure_of_zero_has_no_ratio_and_is_no_protection(tmp_path: Path) -> None:
    """The blocks without one would be those where the victim happened to fare better."""
    run = run_of(tmp_path / "r", "isolation-rtt", quick=True, harms={})
    metric = find(run).isolation.shown[0]
    records = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    native = [r for r in records if r["trial"]["arm"]["label"] == "native+host"]
    record = next(r for r in native if r["trial"]["condition"]["neighbour.aggressor"] == "cpu")
    for window in record["measured"]["windows"]:
        window["values"][metric.name.partition(".")[2]] = 0.0
    (run / "trials.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    findings = find(run)
    found = exposure(findings.isolation, "native", "cpu")
    toll = found.tolls[metric.name]
    assert (toll.ratio, toll.zeros, toll.verdict.kind, found.kind) == (None, 1, "unjudged", "unsure")
    (said,) = (sentence for sentence in answer(findings) if sentence.startswith("native"))
    assert re.search(r"cannot tell yet: [^;]*cpu \([^)]*no ratio: 1 pair holds a 0 or less", said), said
    losses = contents.tables(findings)
    assert any("not judged" in cell.text for table in losses for row in table.rows for cell in row)
    assert "not judged" in " ".join(lines(found))


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    run = run_of(tmp_path / "r", quick=True, harms={})
    (run / "trials.jsonl").write_text("")
    assert "no answer yet" in answer(find(run))[0]
    build_report(run)


@pytest.mark.parametrize("name", ["isolation", "isolation-rtt"])
@pytest.mark.parametrize("quick", [False, True])
def test_the_studies_have_their_control_and_room_for_their_neighbours(name: str, quick: bool) -> None:
    path = Path(__file__).parent.parent / "src" / "virtoll" / "studies" / f"{name}.toml"
    study = read_study(path.read_text(encoding="utf-8"), path.name, catalogue(), quick=quick)
    assert study.factors["neighbour.aggressor"][0] == "polite"
    assert set(study.factors["neighbour.aggressor"]) <= {"polite", "net-send", *HARMS}
    if study.load:
        ends_ns = study.base["neighbour.start_ns"] + study.base["neighbour.duration_ns"]
        assert study.base["load.time_limit_ns"] >= ends_ns + 10**9  # to see the recovery
        assert study.base["load.loop"] == "open"
    else:
        assert study.base["neighbour.duration_ns"] / 1e9 > sum(case.expected_s for case in study.programme)
