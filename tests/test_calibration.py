"""Calibration: equal arms and known costs, on fakes whose truth is known; what is kept, and what reports promise."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from on_fakes import on_fakes, write_study
from quiet import Quiet
from test_whole_turns import killed_between_seals
from virtoll import cli
from virtoll.analysis.calibration import calibration, parts, smallest_cost
from virtoll.analysis.matrix import Matrix, build_matrix
from virtoll.analysis.measuring import measure_all
from virtoll.analysis.power import power, proportion, smallest_effect
from virtoll.catalogue import catalogue
from virtoll.errors import HostError, Problem, StudyError
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.hosts.cgroup import Hierarchies
from virtoll.lab import shaping, throttle
from virtoll.record.calibration import EXTRA, LINK, QUOTA, Calibration, Known, machine_of
from virtoll.record.model import ELSEWHERE, Environment, Phase, PlannedTrial
from virtoll.record.store import RunDirectory
from virtoll.report.answer import answer
from virtoll.report.build import write_report
from virtoll.report.contents import method, tables
from virtoll.report.findings import Findings, find
from virtoll.report.promises import share
from virtoll.run import calibrations, environment
from virtoll.run.calibrating import calibrate, calibration_study
from virtoll.run.execute import execute
from virtoll.run.measuring import _keep_calibration
from virtoll.run.request import Request
from virtoll.run.rule import extension
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.study.plan import conditions, deployments, make_plan
from virtoll.trial.treatment import treatment_of

pytestmark = pytest.mark.usefixtures("undrawn")

MACHINE = {"kernel": "6.1.0", "cpus": 2, "cpu_model": "a fast one", "memory_bytes": 8 * 2**30}
OTHERWISE = "those kept here are of other machines, or of this one with another kernel, other CPUs, or tuned otherwise"
REQUEST_S = 0.0073
QUIET_SPREAD = 0.004
OF_NONE = {"count": 0, "of": 0, "low": 0.0, "high": 1.0}
DIVIDED_BY_NOTHING = {
    **{"created_at": "", "virtoll": "", "machine": {}, "run": "", "design": "rotation", "blocks": 0, "trial_s": 0.0},
    **{"part_blocks": 4, "alarms": OF_NONE, "noise": [], "known": [], "not_judged": [], "odd": []},
}


def tolls(study: Study) -> dict[str, float]:
    """What each arm really costs, were the machine as its calibration takes it to be."""
    made = {"native": 1.0}
    for entry in study.arms:
        if QUOTA in entry.values:
            made[entry.arm.label] = 100 / entry.values[QUOTA]
        elif LINK in entry.values:
            made[entry.arm.label] = 1 / (entry.share or math.nan)
        elif EXTRA in entry.values:
            made[entry.arm.label] = 1 + entry.values[EXTRA] / 1e9 / REQUEST_S
    return made


def run(
    path: Path, *, quick: bool = False, spread: float = QUIET_SPREAD, biased: Mapping[str, float] | None = None
) -> Findings:
    """A calibration of a made-up machine, whose drift all arms share."""
    study = replace(calibration_study(quick=quick), seed=5)
    arms = [entry.arm for entry in study.arms]
    plan = make_plan(study, arms, {"native": 1.0})
    directory = RunDirectory.create(path, document.as_json(study), plan, fake_environment(machine=MACHINE))
    execute(directory, made_up(study, spread=spread, biased=biased), Quiet())
    return find(path)


def made_up(
    study: Study,
    drift: Callable[[float], float] = lambda now_s: 1 + 0.1 * math.sin(now_s / 600),
    *,
    spread: float = QUIET_SPREAD,
    biased: Mapping[str, float] | None = None,
) -> FakeExperiment:
    return FakeExperiment(
        {**tolls(study), **(biased or {})},
        seed=11,
        spread=spread,
        native_latency_ns=round(REQUEST_S * 1e9),
        window_ns=8 * 10**9,
        drift=drift,
    )


def test_a_calibration_is_not_extended() -> None:
    """Its alarms and its known costs are told by plain intervals, which hold for a number of blocks alone."""
    made = document.as_json(replace(calibration_study(quick=True), seed=5))
    study = document.of(made, Path("study.json"), catalogue())
    plan = make_plan(study, [entry.arm for entry in study.arms], {"native": 1.0})
    assert extension(plan, study, plan.blocks) is None
    with pytest.raises(StudyError, match="a calibration is not extended") as refused:
        extension(plan, study, plan.blocks + 2)
    assert "begin a new one" in str(refused.value)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """A calibration with nothing wrong."""
    return run(tmp_path_factory.mktemp("right") / "run")


def found(findings: Findings) -> Calibration:
    assert findings.calibration is not None
    return findings.calibration


# -- the study --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("quick", "most_s", "costs"), [(True, 600, 1), (False, 3600, 4)])
def test_it_is_of_native_alone_and_fits_its_time(quick: bool, most_s: float, costs: int) -> None:
    study = calibration_study(quick=quick)
    arms = [entry.arm for entry in study.arms]
    assert {arm.platform for arm in arms} == {"native"}
    assert len({arm.label for arm in arms}) == len(arms)
    assert [arm.role for arm in arms[:3]] == ["baseline", "floor", "treatment"]
    for path in (QUOTA, EXTRA, LINK):
        assert sum(path in entry.values for entry in study.arms) == costs
    assert make_plan(study, arms, {"native": 1.5}).estimate_s <= most_s


def test_each_arm_is_deployed_where_it_tells_something() -> None:
    study = calibration_study(quick=True)
    computing, linked = conditions(study)
    deployed = deployments(study, [entry.arm for entry in study.arms])
    by_condition = [[each.arm.label for each in deployed if each.condition == where] for where in (computing, linked)]
    assert by_condition == [
        [
            "native+host",
            "native+host (again)",
            "native+host (copy 1)",
            "native+host (copy 2)",
            "native+host (quota 95 %)",
            "native+host (384 us more)",
        ],
        ["native+host", "native+host (again)", "native+host (link 38 Mbit/s)"],
    ]


def test_the_treatment_of_an_arm_has_what_is_known_of_it() -> None:
    study = calibration_study(quick=True)
    computing, linked = conditions(study)
    quota = treatment_of(study, computing, "native+host (quota 95 %)")
    burnt = treatment_of(study, computing, "native+host (384 us more)")
    link = treatment_of(study, linked, "native+host (link 38 Mbit/s)")
    native, of_link = treatment_of(study, computing, "native+host"), treatment_of(study, linked, "native+host")
    assert [each.throttle.quota_percent for each in (quota, burnt, native)] == [95, 100, 100]
    assert [each.work.service.settings.extra_ns for each in (quota, burnt, native)] == [0, 384211, 0]  # type: ignore[union-attr]
    assert (link.link.rate_bit_per_s, of_link.link.rate_bit_per_s) == (38_000_000, 40_000_000)


def test_a_slower_link_costs_what_its_rate_is_less_by() -> None:
    """Its bucket is empty when a window begins: the lead-in, which goes on into it, has asked for several times it."""
    study = calibration_study(quick=False)
    _, linked = conditions(study)
    made = {entry.share: entry.values[LINK] for entry in study.arms if LINK in entry.values}
    assert made == {1 - cost: round((1 - cost) * linked[LINK]) for cost in (0.01, 0.02, 0.05, 0.1)}
    assert study.base["load.loop"] == "closed"
    lead_in_s = study.base["rotation.lead_in_ns"] / 1e9
    assert all(rate / 8 * lead_in_s > 5 * shaping.burst_bytes(rate) for rate in made.values())


def test_what_is_known_of_an_arm_comes_back_with_its_run() -> None:
    study = calibration_study(quick=True)
    written = json.loads(json.dumps(document.as_json(study)))
    assert document.of(written, Path("study.json"), catalogue()).arms == study.arms


@pytest.mark.parametrize("line", ["throttle.quota_percent = 95", "values = {}", "only = {}"])
def test_no_study_file_makes_an_arm_dearer(line: str) -> None:
    text = f'name = "unfair"\n[service]\nname = "nginx"\n[load]\nname = "http"\n[[arms]]\nplatform = "native"\n{line}\n'
    with pytest.raises(StudyError, match="unknown key"):
        read_study(text, "unfair.toml", catalogue())


@pytest.mark.parametrize(
    ("version", "written"),
    [(1, {"cpu.cfs_quota_us": "4750", "cpu.cfs_period_us": "5000"}), (2, {"cpu.max": "4750 5000"})],
)
def test_a_quota_is_of_short_periods(
    version: Any, written: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "hierarchies", lambda: Hierarchies(version, {"cpu": tmp_path}))
    (tmp_path / "i").mkdir()
    throttle.throttle(throttle.Throttle(), "i", 1)
    assert not list((tmp_path / "i").iterdir()), "nothing is asked for"
    throttle.throttle(throttle.Throttle(95.0), "i", 1)
    assert {path.name: path.read_text() for path in (tmp_path / "i").iterdir()} == written
    with pytest.raises(HostError, match=r"a CPU quota of 90 % cannot be set"):
        throttle.throttle(throttle.Throttle(90.0), "gone", 1)


# -- what is found ----------------------------------------------------------------------------------------


def test_known_costs_are_recovered(right: Findings) -> None:
    known = found(right).known
    assert {(one.way, one.title.partition(" ")[0]) for one in known} == {
        ("CPU quota", "Throughput"),
        ("burnt CPU time", "Throughput"),
        ("burnt CPU time", "CPU"),
        ("link rate", "Throughput"),
    }
    assert len(known) == 16
    for one in known:
        assert one.low <= one.found <= one.high
        assert one.found == pytest.approx(one.true, abs=0.006), one.arm
        assert one.is_found, one.arm
    assert sum(one.is_covered for one in known) >= 14
    ten = next(one for one in known if "quota 90" in one.arm)
    assert (ten.parts, ten.parts_found) == (4, 4)
    assert ten.true == pytest.approx(0.1)


def test_a_known_cost_is_held_against_both_natives_and_equal_arms_against_each_other(right: Findings) -> None:
    """As every arm of a study is, and one with one."""
    matrix = right.matrix
    labels = [arm.label for arm in matrix.arms]
    condition = next(c for c, each in enumerate(matrix.conditions) if each.get(LINK) is None)
    logs = np.log(matrix.values("rate_per_s")[:, :, condition])
    native, again, first, second = (
        labels.index(f"native+host{which}") for which in ("", " (again)", " (copy 1)", " (copy 2)")
    )
    ten = next(one for one in found(right).known if "quota 90" in one.arm)
    mine = logs[:, labels.index(ten.arm)] - (logs[:, native] + logs[:, again]) / 2
    assert 1 - ten.found == pytest.approx(math.exp(mine.mean()), rel=1e-9)
    pairs = [logs[:, again] - logs[:, native], logs[:, second] - logs[:, first]]
    pairs.append(logs[:, labels.index("native+host (copy 4)")] - logs[:, labels.index("native+host (copy 3)")])
    spread = math.sqrt(float(np.mean([pair.var(ddof=1) for pair in pairs])))
    assert found(right).noise[0].sd == pytest.approx(spread, rel=1e-9)


def test_equal_arms_are_equal_on_a_machine_with_nothing_wrong(right: Findings) -> None:
    calibrated = found(right)
    assert calibrated.alarms.of == 4 * 4, "three pairs computing and one on the link, in four parts"
    assert calibrated.is_trusted
    assert not calibrated.odd
    rate = calibrated.noise[0]
    assert rate.metric == "rate_per_s"
    assert rate.sd == pytest.approx(QUIET_SPREAD * math.sqrt(2), rel=0.35)
    assert rate.freedom == 3 * 17
    assert 0 < rate.floor < rate.sd


def test_longer_runs_find_smaller_costs(right: Findings) -> None:
    for noise in found(right).noise:
        costs = [cost for cost in noise.smallest.values() if cost is not None]
        assert costs == sorted(costs, reverse=True)
        assert list(noise.smallest) == ["5", "10", "30"]


def test_what_never_scatters_promises_nothing() -> None:
    assert smallest_cost("less", 0.0, 10) is None
    assert smallest_cost("less", 0.01, 1) is None
    alone, of_two = (0.01 * (smallest_effect(10, 0.9) or 0) * factor for factor in (1, math.sqrt(0.75)))
    assert smallest_cost("less", 0.01, 10, 1) == pytest.approx(math.expm1(alone))
    assert smallest_cost("less", 0.01, 10) == pytest.approx(math.expm1(of_two)), "native is deployed twice"
    assert (smallest_cost("more", 0.01, 10) or 1) < (smallest_cost("less", 0.01, 10) or 0)


def test_a_biased_copy_raises_alarms_and_is_named(tmp_path: Path) -> None:
    findings = run(tmp_path / "run", biased={"native+host (copy 2)": 1.04})
    calibrated = found(findings)
    assert not calibrated.is_trusted
    assert calibrated.alarms.low > 0.05
    assert {odd.arm for odd in calibrated.odd} == {"native+host (copy 2)"}
    throughput = next(odd for odd in calibrated.odd if odd.title == "Throughput")
    assert throughput.low < 1 / 1.04 - 1 < throughput.high
    said = " ".join(answer(findings))
    assert "False alarms: equal arms are called different more often than chance explains" in said
    told = said.partition("native+host (copy 2) is odd: throughput is ")[2].partition(" of its equals")[0]
    assert told.endswith("less than that"), said
    assert "not to be believed" in said


def test_a_biased_link_is_told_of_native_again(tmp_path: Path) -> None:
    findings = run(tmp_path / "run", quick=True, biased={"native+host (again)": 1.1})
    assert {odd.arm for odd in found(findings).odd} >= {"native+host (again)"}


def test_a_cost_that_is_not_what_it_should_be_is_not_covered(tmp_path: Path) -> None:
    findings = run(tmp_path / "run", quick=True, biased={"native+host (quota 95 %)": 1.0})
    (quota,) = [one for one in found(findings).known if one.way == "CPU quota"]
    assert (quota.is_found, quota.is_covered) == (False, False)
    assert "not native+host (quota 95 %) (throughput)" in " ".join(answer(findings))


def test_what_was_not_the_limit_makes_no_cost(right: Findings) -> None:
    matrix = build_matrix(right.run, measure_all(right.run))
    rates = matrix.values("rate_per_s")
    rates *= 0.5  # as where another program has half of the CPU, and of the link
    calibrated = calibration(right.run, matrix)
    assert calibrated is not None
    assert {one.metric for one in calibrated.known} == {"cpu_s_per_1000"}
    assert any("native got 50 % of its CPU, which was not its limit" in why for why in calibrated.not_judged)


def test_what_is_not_known_to_have_been_the_limit_makes_no_cost(right: Findings) -> None:
    matrix = build_matrix(right.run, measure_all(right.run))
    matrix.values("cpu_s_per_1000")[:] = math.nan  # as where nothing samples the instance
    calibrated = calibration(right.run, matrix)
    assert calibrated is not None
    assert {one.way for one in calibrated.known} == {"link rate"}
    (why,) = calibrated.not_judged
    assert why.endswith(" is not judged: native's CPU time is not known.")


def again(findings: Findings, change: Callable[[Matrix, int], None]) -> Calibration:
    """The calibration of a run some of whose values are others: ``change`` has the matrix, and where it computes."""
    matrix = build_matrix(findings.run, measure_all(findings.run))
    change(matrix, next(c for c, each in enumerate(matrix.conditions) if each.get(LINK) is None))
    calibrated = calibration(findings.run, matrix)
    assert calibrated is not None
    return calibrated


def at(matrix: Matrix, label: str) -> int:
    return [arm.label for arm in matrix.arms].index(f"native+host{label}")


def burnt(calibrated: Calibration, metric: str) -> list[Known]:
    return [one for one in calibrated.known if one.way == "burnt CPU time" and one.metric == metric]


def test_what_others_take_of_the_cpu_makes_a_burnt_cost_no_smaller(right: Findings) -> None:
    """It was beside the time of a request, others' share of it too: a right 9.9 % was held against 9.0."""

    def others(matrix: Matrix, computing: int) -> None:
        matrix.values("rate_per_s")[:, :, computing] *= 0.9

    known = again(right, others)
    for rate, cpu in zip(burnt(known, "rate_per_s"), burnt(known, "cpu_s_per_1000"), strict=True):
        assert rate.true == pytest.approx(1 - 1 / (1 + cpu.true))


def test_a_burnt_cost_is_beside_native_where_the_two_were_compared(right: Findings) -> None:
    """A machine half as fast after the first half, in which the arm was lost: native's mean was of both halves."""
    arm = burnt(found(right), "cpu_s_per_1000")[-1]

    def slower(matrix: Matrix, computing: int) -> None:
        cpu, half = matrix.values("cpu_s_per_1000"), len(matrix.blocks) // 2
        cpu[half:, :, computing] *= 2
        cpu[half:, at(matrix, arm.arm.removeprefix("native+host")), computing] = math.nan

    changed = burnt(again(right, slower), "cpu_s_per_1000")[-1]
    assert changed.arm == arm.arm
    assert changed.true == pytest.approx(arm.true, rel=0.02)
    assert changed.found == pytest.approx(changed.true, rel=0.05)


def test_each_part_is_held_against_what_was_true_in_it(right: Findings) -> None:
    """A machine half as fast in its second half: the mean of both halves' truths is true of neither."""

    def slower(matrix: Matrix, computing: int) -> None:
        cpu, half = matrix.values("cpu_s_per_1000"), len(matrix.blocks) // 2
        entries = right.run.study["arms"]
        extra = {each["arm"]["label"]: (each.get("values") or {}).get(EXTRA, 0) / 1e6 for each in entries}
        for at, arm in enumerate(matrix.arms):
            cpu[half:, at, computing] = 2 * cpu[half:, at, computing] - extra[arm.label]

    for before, after in zip(
        *(burnt(one, "cpu_s_per_1000") for one in (found(right), again(right, slower))), strict=True
    ):
        assert after.is_covered
        assert after.parts_covered >= before.parts_covered - 1


def test_two_natives_that_are_left_alone_are_compared_once(right: Findings) -> None:
    """With copies that were lost both were tested, and native itself was the odd one."""

    def lost(matrix: Matrix, computing: int) -> None:
        rates = matrix.values("rate_per_s")[:, :, computing]
        for copy in range(1, 5):
            rates[:, at(matrix, f" (copy {copy})")] = math.nan
        rates[:, at(matrix, "")] *= 0.95

    (odd,) = [odd for odd in again(right, lost).odd if odd.title == "Throughput"]
    assert odd.arm == "native+host (again)"


def test_an_equal_arm_that_was_mostly_lost_hides_no_odd_one(right: Findings) -> None:
    def lost(matrix: Matrix, computing: int) -> None:
        rates = matrix.values("rate_per_s")[:, :, computing]
        rates[1:, at(matrix, " (copy 3)")] = math.nan
        rates[:, at(matrix, " (copy 2)")] *= 0.95

    (odd,) = [odd for odd in again(right, lost).odd if odd.title == "Throughput"]
    assert odd.arm == "native+host (copy 2)"


def test_where_a_pair_differs_by_the_same_in_each_block_there_is_no_test(right: Findings) -> None:
    """Two buckets of a histogram, side by side: it was told as no alarm."""

    def alike(matrix: Matrix, computing: int) -> None:
        p50_ms = matrix.values("latency_p50_ms")[:4, :, computing]
        p50_ms[:, at(matrix, "")], p50_ms[:, at(matrix, " (again)")] = 2.0, 4.0

    told = {one.metric: one.alarms for one in again(right, alike).noise[::-1]}
    before = {one.metric: one.alarms for one in found(right).noise[::-1]}
    assert told["latency_p50_ms"].of == before["latency_p50_ms"].of - 1
    assert told["rate_per_s"] == before["rate_per_s"]


def test_what_has_a_test_in_no_part_is_left_out_and_the_others_are_told(right: Findings) -> None:
    """Two buckets of a histogram, side by side in all blocks: there was no report."""

    def alike(matrix: Matrix, computing: int) -> None:
        p50_ms = matrix.values("latency_p50_ms")
        linked = 1 - computing
        p50_ms[:, at(matrix, ""), linked], p50_ms[:, at(matrix, " (again)"), linked] = 2.0, 4.0

    told, before = again(right, alike), found(right)
    where = {(one.metric, one.condition) for one in before.noise}
    (left_out,) = where - {(one.metric, one.condition) for one in told.noise}
    assert left_out[0] == "latency_p50_ms"
    assert told.alarms == before.alarms


def test_where_no_throughput_can_be_tested_there_is_no_calibration(right: Findings) -> None:
    matrix = build_matrix(right.run, measure_all(right.run))
    rates = matrix.values("rate_per_s")
    for label, other in (("", " (again)"), (" (copy 1)", " (copy 2)"), (" (copy 3)", " (copy 4)")):
        rates[:, at(matrix, other)] = 0.5 * rates[:, at(matrix, label)]
    assert calibration(right.run, matrix) is None


@pytest.mark.parametrize("label", ["", " (copy 2)", " (384 us more)"])
def test_an_arm_of_a_turn_that_came_again_a_day_later_is_compared_with_no_other_of_it(
    label: str, tmp_path: Path
) -> None:
    """On a machine a third slower by then: from two valid trials, equal arms differed by 0.3 in that block."""
    directory, torn = run(tmp_path / "run", quick=True).run.directory, f"native+host{label}"

    killed_between_seals(RunDirectory(directory), lambda trial: is_before(trial, torn))
    slower = made_up(calibration_study(quick=True), drift=lambda _now_s: 1.3)
    slower.clock.now_s = 90_000
    assert execute(RunDirectory(directory), slower, Quiet())
    found_run = find(directory).run
    lost = [one for one in found_run.records if is_torn(one.trial, torn)]
    assert [one.status for one in lost] == ["failed", "valid"]
    without = replace(found_run, records=tuple(one for one in found_run.records if one not in lost))
    told, wanted = (calibration(one, build_matrix(one, measure_all(one))) for one in (found_run, without))
    assert told is not None
    assert wanted is not None
    assert told.noise == wanted.noise
    assert (told.alarms, told.odd, told.known) == (wanted.alarms, wanted.odd, wanted.known)
    assert told.noise[0].sd < 2 * QUIET_SPREAD * math.sqrt(2)


def is_before(trial: PlannedTrial, label: str) -> bool:
    """Whether it was sealed before a kill amid the turn of the third block, which this arm's was not."""
    return trial.block < 3 or (trial.block == 3 and trial.condition.get(LINK) is None and trial.arm.label != label)


def is_torn(trial: PlannedTrial, label: str) -> bool:
    return trial.block == 3 and trial.condition.get(LINK) is None and trial.arm.label == label


def test_its_report_tells_it_first(right: Findings) -> None:
    page = write_report(right).read_text()
    assert page.index("How far can virtoll be trusted") < page.index("Did the machine hold still?")
    by_name = {table.name: table for table in tables(right)}
    assert len(by_name["calibration-known"].rows) == 16
    assert by_name["calibration-noise"].heads[-1] == "Found in 30 min"
    assert answer(right)[0].endswith("5 % is chance).")


def test_a_calibration_that_was_gone_on_with_the_next_day_took_no_longer(tmp_path: Path) -> None:
    """Its blocks are of two turns, at 0 and 600 s, of 280 s each; in the third there is a pause between them."""
    findings, took = run(tmp_path / "run", quick=True), []
    for pause_s in (0, 14 * 3600):
        records = []
        for record in findings.run.records:
            block, is_second = record.trial.block, record.trial.condition[LINK] is not None
            at_s = 900 * block + 600 * is_second + pause_s * ((block, is_second) >= (3, True))
            phases = [
                Phase(name=name, start_ns=(at_s + after_s) * 10**9, duration_ns=lasts_s * 10**9)
                for name, after_s, lasts_s in (("deploy", 0, 10), ("window", 10, 270))
            ]
            began = datetime.fromtimestamp(at_s, tz=UTC).isoformat()
            records.append(record.model_copy(update={"phases": phases, "started_at": began}))
        calibrated = calibration(replace(findings.run, records=tuple(records)), findings.matrix)
        assert calibrated is not None
        took.append(calibrated.trial_s)
    assert took[0] == pytest.approx(900 / 9, rel=0.05)
    assert took[1] == pytest.approx(took[0])


def test_two_blocks_are_enough_and_one_is_none(tmp_path: Path) -> None:
    study = calibration_study(quick=True)
    plan = make_plan(study, [entry.arm for entry in study.arms], {"native": 1.0})
    directory = RunDirectory.create(tmp_path / "run", document.as_json(study), plan, fake_environment(machine=MACHINE))
    of_one = [trial for trial in plan.trials if trial.block == 1]

    def stop(trial: PlannedTrial) -> None:
        if trial.block > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(directory, FakeExperiment(tolls(study), before=stop), Quiet())
    findings = find(tmp_path / "run")
    assert len(findings.matrix.cells) == len(of_one)
    assert findings.calibration is None
    write_report(findings)


def test_blocks_that_lie_in_different_parts_of_the_run_tell_of_no_alarm(right: Findings) -> None:
    """The fourth and the fifth of sixteen are alone valid: no part holds two of them."""
    records = tuple(
        each if each.trial.block in (4, 5) else each.model_copy(update={"status": "invalid"})
        for each in right.run.records
    )
    run = replace(right.run, records=records)
    assert calibration(run, build_matrix(run, measure_all(run))) is None
    cpu_lost = [
        replace(each, values={name: v for name, v in each.values.items() if name != "cpu_s_per_1000"})
        if each.record.trial.block not in (4, 5)
        else each
        for each in measure_all(right.run)
    ]
    told = calibration(right.run, build_matrix(right.run, cpu_lost))
    assert told is not None
    assert all(each.metric != "cpu_s_per_1000" for each in told.noise)
    assert told.alarms == found(right).alarms


def test_other_runs_are_no_calibration(right: Findings) -> None:
    study = {**right.run.study, "arms": [{**entry, "values": {}} for entry in right.run.study["arms"]]}
    assert calibration(replace(right.run, study=study), right.matrix) is None


@pytest.mark.parametrize(("blocks", "lengths"), [(2, [2]), (7, [7]), (8, [4, 4]), (18, [4, 4, 4, 6])])
def test_parts_hold_every_block_once(blocks: int, lengths: list[int]) -> None:
    assert [len(part) for part in parts(blocks)] == lengths
    assert [block for part in parts(blocks) for block in part] == list(range(blocks))


# -- formulas ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "sd"), [(4, 1.9), (6, 2.9), (8, 3.6), (10, 4.2), (15, 5.4), (20, 6.4), (30, 8.0)])
def test_the_largest_spread_at_which_five_per_cent_are_found(n: int, sd: float) -> None:
    effect = smallest_effect(n, 0.9)
    assert effect is not None
    assert math.log(1.05) / effect * 100 == pytest.approx(sd, abs=0.06)  # by simulation: 20,000 studies each
    assert power(effect, n) == pytest.approx(0.9, abs=1e-4)


def test_without_an_effect_power_is_the_level() -> None:
    assert power(0.0, 10) == pytest.approx(0.05, abs=1e-6)
    assert smallest_effect(1, 0.9) is None


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [(10, 200, 0.0242, 0.0900), (0, 10, 0.0, 1 - 0.025**0.1), (10, 10, 0.025**0.1, 1.0), (1, 2, 0.0126, 0.9874)],
)
def test_the_exact_interval_of_a_rate(count: int, of: int, low: float, high: float) -> None:
    told = proportion(count, of)
    assert told.low == pytest.approx(low, abs=1e-4)
    assert told.high == pytest.approx(high, abs=1e-4)


def test_a_rate_of_nothing_is_none() -> None:
    with pytest.raises(ValueError, match="0 of 0 is no rate"):
        proportion(0, 0)


# -- kept, and promised -----------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIRTOLL_STATE", str(tmp_path / "state"))
    (tmp_path / "state").mkdir(mode=0o700)
    return tmp_path / "state"


def test_the_last_calibration_of_the_machine_is_kept(state: Path, right: Findings) -> None:
    assert calibrations.last(MACHINE) == (None, "there was none")
    path = calibrations.keep(found(right))
    assert path.parent == state / "calibrations"
    assert calibrations.last(MACHINE)[0] == found(right)
    later = found(right).model_copy(update={"created_at": "2026-02-01T00:00:00+00:00"})
    assert calibrations.keep(later) == path
    assert calibrations.last(MACHINE)[0] == later


def test_an_older_calibration_leaves_the_later_one(
    state: Path, right: Findings, capsys: pytest.CaptureFixture[str]
) -> None:
    later = found(right).model_copy(update={"created_at": "2026-02-01T00:00:00.000+00:00"})
    path = calibrations.keep(later)
    assert calibrations.keep(found(right)) == path
    assert calibrations.last(MACHINE)[0] == later
    _keep_calibration(found(right), quiet=False)
    told = f"not kept: {path} holds a later one, of 2026-02-01T00:00:00.000+00:00\n"
    assert capsys.readouterr().out == told
    _keep_calibration(found(right), quiet=True)
    said = capsys.readouterr()
    assert said.err == told
    assert json.loads(said.out) == {
        "event": "calibrated",
        "path": None,
        "calibration": found(right).model_dump(mode="json"),
    }
    assert calibrations.last(MACHINE)[0] == later


def test_one_of_another_machine_promises_nothing(state: Path, right: Findings) -> None:
    path = calibrations.keep(found(right))
    other = {**MACHINE, "kernel": "6.2.0"}
    assert calibrations.last(other) == (None, OTHERWISE)
    tuned = machine_of({"machine": MACHINE, "tuned": {"governor": "performance"}}, {})
    assert calibrations.last(tuned) == (None, OTHERWISE), "it is quieter then, and was told to be another machine"
    assert machine_of({"machine": MACHINE, "tuned": {}}, {}) == MACHINE
    assert calibrations.last({**MACHINE, "memory_bytes": 7 * 2**30})[0] is not None, "what the kernel keeps for itself"
    path.write_text(found(right).model_copy(update={"machine": other}).model_dump_json())
    assert "is of another machine" in calibrations.last(MACHINE)[1]


def with_notes(findings: Findings, notes: dict[str, Any]) -> Findings:
    """As if its run had taken these along."""
    changed = replace(findings.run, environment=findings.run.environment.model_copy(update={"notes": notes}))
    return Findings(changed, findings.matrix, findings.margin, ())


def test_one_on_other_cpus_promises_nothing(state: Path, right: Findings) -> None:
    """`taskset -c 0-1 virtoll calibrate` was told of `taskset -c 12-13 virtoll run`, on cores of another kind."""
    first, last = ({"measured_by": {"code": "ad", "cpus": cpus}} for cpus in ([0, 1], [12, 13]))
    calibrations.keep(found(right))  # as before, when it was not told which
    here, there = (machine_of({"machine": MACHINE}, notes) for notes in (first, last))
    assert calibrations.last(here) == (None, OTHERWISE)
    kept = found(with_notes(right, first))
    calibrations.keep(kept)
    assert calibrations.last(here)[0] == kept
    assert calibrations.last(there) == (None, OTHERWISE)
    assert f"({OTHERWISE})" in promised(right, last | calibrations.noted(there))


def test_a_run_takes_along_what_is_promised_of_the_cpus_that_it_has(
    state: Path, right: Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    images: Any = SimpleNamespace(by_role={})

    def begun(cpus: set[int]) -> Environment:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: cpus)
        return environment.describe(images, {}, [], {}, {}, generators=(), tools={}, media={})

    first = begun({0, 1})
    calibrated = replace(right.run, environment=first)
    calibrations.keep(found(Findings(calibrated, right.matrix, right.margin, ())))
    assert begun({0, 1}).notes["calibration"]["machine"]["cpu_numbers"] == [0, 1]
    assert begun({2, 3}).notes["calibration"] is None
    assert begun({2, 3}).comparable == first.comparable, "runs on others of the machine's CPUs are compared"


@pytest.mark.parametrize("text", ["", "{}", "[1]", "{", '{"schema_version": 2}'])
def test_one_that_is_damaged_is_none(text: str, state: Path, right: Findings) -> None:
    path = calibrations.keep(found(right))
    path.write_text(text)
    kept, why = calibrations.last(MACHINE)
    assert kept is None
    assert "cannot be read" in why


def promised(findings: Findings, notes: dict[str, Any], *, design: str = "rotation") -> str:
    """What the method of a run says that took these notes along."""
    told = findings.run.environment.model_copy(update={"notes": notes})
    study = {**findings.run.study, "arms": [{**entry, "values": {}} for entry in findings.run.study["arms"]]}
    plan = findings.run.plan
    if design == "blocks":
        trials = [trial.model_copy(update={"turn": ""}) for trial in plan.trials]
        plan = plan.model_copy(update={"trials": trials})
    changed = replace(findings.run, environment=told, study=study, plan=plan)
    return method(Findings(changed, findings.matrix, findings.margin, ()))[-1]


def test_a_calibration_says_nothing_of_a_generator_elsewhere(right: Findings) -> None:
    """It is of a lab whose generator shares the machine with what it loads."""
    environment = right.run.environment
    comparable = {**environment.comparable, ELSEWHERE: {"cpus": 8}}
    there = replace(right.run, environment=environment.model_copy(update={"comparable": comparable}))
    far = Findings(there, right.matrix, right.margin, ())
    said = promised(far, {"calibration": found(right).model_dump(), "not_calibrated": ""})
    assert said.startswith("**A calibration is of a lab on one machine**")


def test_a_report_says_what_the_calibration_promises(right: Findings) -> None:
    said = promised(right, {"calibration": found(right).model_dump(), "not_calibrated": ""})
    assert said.startswith("**The machine was calibrated** on 2026-01-01 (virtoll fake, 18 blocks in rotation): ")
    assert "of 16 comparisons of equal arms" in said
    assert "of 16 known costs 16 were found" in said
    assert "18 blocks find a cost of 0." in said
    assert "not to be believed" not in said


def test_a_run_with_one_native_finds_larger_costs(right: Findings) -> None:
    """Against two a ratio has three quarters of the variance, of all arms but where they stand in groups."""
    some = tuple(arm for arm in right.matrix.arms if arm.role != "floor")
    alone = replace(right.matrix, arms=some, _arrays={})
    plan = right.run.plan
    grouped = [trial.model_copy(update={"group": 1 + (trial.arm.role == "floor")}) for trial in plan.trials]
    in_groups = replace(right.run, plan=plan.model_copy(update={"trials": grouped}))
    noise, notes = found(right).noise[0], {"calibration": found(right).model_dump()}
    for matrix, run_of, natives in ((right.matrix, right.run, 2), (alone, right.run, 1), (right.matrix, in_groups, 1)):
        family = sum(arm.role == "treatment" for arm in matrix.arms)
        cost = smallest_cost("more", noise.sd, 18, natives, family)
        assert cost is not None
        assert family > 1
        assert cost > (smallest_cost("more", noise.sd, 18, natives) or 0)
        said = promised(Findings(run_of, matrix, right.margin, ()), notes)
        assert f"18 blocks find a cost of {share(cost)} of one of {family} arms nine times in ten" in said


def test_a_run_that_was_extended_is_not_promised_what_one_of_fixed_length_finds(right: Findings) -> None:
    notes = {"calibration": found(right).model_dump()}
    longer = replace(right.run, plan=right.run.plan.model_copy(update={"extended": (10,)}))
    assert "nine times in ten" not in promised(Findings(longer, right.matrix, right.margin, ()), notes)


def test_in_another_design_it_promises_less(right: Findings) -> None:
    said = promised(right, {"calibration": found(right).model_dump()}, design="blocks")
    assert "That was in rotation, and says nothing of how small a cost a run in blocks finds." in said


def test_a_calibration_that_went_wrong_is_told_as_such(right: Findings) -> None:
    wrong = found(right).model_copy(update={"alarms": found(right).alarms.model_copy(update={"low": 0.2})})
    assert "small differences are not to be believed" in promised(right, {"calibration": wrong.model_dump()})


@pytest.mark.parametrize(
    ("notes", "told"),
    [
        ({}, "**No calibration of this machine**: "),
        (
            {"calibration": None, "not_calibrated": "there was none"},
            "**No calibration of this machine (there was none)",
        ),
        ({"calibration": {"alarms": 3}}, "cannot be read** from this run's environment.json"),
        ({"calibration": "yes"}, "cannot be read"),
        ({"calibration": DIVIDED_BY_NOTHING}, "cannot be read"),
    ],
)
def test_without_one_a_report_says_so(notes: dict[str, Any], told: str, right: Findings) -> None:
    assert told in promised(right, notes)
    assert "`virtoll calibrate --quick`" in promised(right, notes)


# -- the command ------------------------------------------------------------------------------------------


def exit_code(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    return int(ended.value.code or 0)


@pytest.fixture
def machine(state: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake one, with a lab that is a fake."""
    on_fakes(monkeypatch, {})
    notes = {**calibrations.noted(MACHINE)}

    def described(*_: object, **_named: object) -> Any:
        return fake_environment(machine=MACHINE).model_copy(update={"notes": notes | calibrations.noted(MACHINE)})

    monkeypatch.setattr(environment, "describe", described)
    monkeypatch.setattr(shaping, "check", lambda *_: [])
    return state


def test_from_the_command_to_the_next_report(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exit_code("calibrate", "--quick", "--blocks", "2", "--seed", "1", "--out", "run") == 0
    said = capsys.readouterr().out
    (kept,) = (machine / "calibrations").iterdir()
    assert f"kept for the reports of later runs: {kept}" in said
    assert "comparisons of equal arms" in said
    assert "\nvirtoll calibrate --quick --blocks 2 --seed 1\n" in (tmp_path / "run/report/index.html").read_text()
    assert Calibration.model_validate_json(kept.read_bytes()).blocks == 2
    assert exit_code("run", str(write_study(tmp_path)), "--out", "later") == 0
    assert "The machine was calibrated</b> on" in (tmp_path / "later/report/index.html").read_text()


def test_as_json_what_was_found_comes_last(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("calibrate", "--quick", "--blocks", "2", "--json", "--out", str(tmp_path / "run")) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[-1]["event"] == "calibrated"
    assert Path(events[-1]["path"]).parent == machine / "calibrations"
    assert Calibration.model_validate(events[-1]["calibration"]).blocks == 2


def test_without_a_token_bucket_the_link_is_left_out(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem("the kernel cannot shape the link: no tbf", "here")
    monkeypatch.setattr(shaping, "check", lambda *_: [problem])
    assert calibrate(Request(study="calibration", quick=True, blocks=2, out=tmp_path / "run")) == 0
    assert "no known cost by a link's rate: the kernel cannot shape the link: no tbf" in capsys.readouterr().err
    ways = {one.way for one in found(find(tmp_path / "run")).known}
    assert ways == {"CPU quota", "burnt CPU time"}
    assert machine.is_dir()


def test_bad_input_is_refused_before_anything(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("calibrate", "--blocks", "1") == 2
    assert "one block gives no interval" in capsys.readouterr().err
    assert exit_code("calibrate", "--blocks", "many") == 2
    assert exit_code("calibrate", "now") == 2
    assert not (machine / "calibrations").exists()


def test_the_time_is_told_beforehand(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("calibrate", "--quick", "--dry-run") == 0
    assert "63 trials in 7 blocks" in capsys.readouterr().out
    assert not (machine / "calibrations").exists()
