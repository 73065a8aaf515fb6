"""From a made-up run of a programme with known truth to its metrics, its tolls, and ours against theirs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from synthetic import AGAIN, DOCKER, NATIVE, UML
from synthetic_programme import PROBES, TOLLS, MadeUp, Recipe, write_programme
from virtoll.analysis.cdf import shares_at
from virtoll.analysis.conditions import level_value, setting_name
from virtoll.analysis.crosscheck import cross_checks
from virtoll.analysis.load import read_run
from virtoll.analysis.matrix import Matrix, build_matrix
from virtoll.analysis.measuring import measure, measure_all
from virtoll.analysis.ratios import toll_table
from virtoll.report.answer import answer
from virtoll.report.contents import tables
from virtoll.report.findings import find

SMALL = {name: PROBES[name] for name in ("linpack", "disk", "clock")}
FEW = (NATIVE, AGAIN, DOCKER, UML)


def matrix_of(directory: Path, recipe: Recipe) -> Matrix:
    run = read_run(write_programme(directory, recipe))
    return build_matrix(run, measure_all(run))


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return matrix_of(tmp_path_factory.mktemp("programme") / "r", Recipe())


def small(**changes: object) -> Recipe:
    return replace(Recipe(probes=SMALL, arms=FEW, instruments={}), **changes)  # type: ignore[arg-type]


def test_the_metrics_are_the_quantities_of_the_probes_in_the_studys_order(matrix: Matrix) -> None:
    groups = list(dict.fromkeys(metric.group for metric in matrix.metrics.values()))
    assert groups == list(PROBES)
    gflops = matrix.metrics["linpack.gflops"]
    assert (gflops.title, gflops.unit, gflops.better, gflops.headline) == ("LINPACK", "GFLOP/s", "more", True)
    assert not matrix.metrics["linpack.residual"].headline


def test_a_trials_value_is_the_mean_of_its_windows_and_their_spread_is_kept_apart(matrix: Matrix) -> None:
    trial = next(trial for trial in matrix.trials if "linpack.gflops" in trial.values)
    assert trial.record.measured is not None
    windows = trial.record.measured.values("gflops")
    assert len(windows) == 3
    mean = sum(windows) / 3
    assert trial.values["linpack.gflops"] == pytest.approx(mean)
    deviation = (sum((window - mean) ** 2 for window in windows) / 2) ** 0.5
    assert trial.spread["linpack.gflops"] == pytest.approx(deviation / mean)
    spread = matrix.spread_within("linpack.gflops", NATIVE)
    assert spread is not None
    assert 0 < spread < 0.02
    assert matrix.spread_within("linpack.gflops", NATIVE.model_copy(update={"label": "nobody"})) is None


def test_a_metric_has_the_conditions_of_its_own_probe_named_by_what_varies_among_them(matrix: Matrix) -> None:
    orders = matrix.conditions_of("linpack.gflops")
    assert [matrix.label(condition, "linpack.gflops") for condition in orders] == [
        "order 500",
        "order 1,000",
        "order 2,000",
        "order 4,000",
    ]
    disk = [matrix.label(c, "disk.throughput_mb_per_s") for c in matrix.conditions_of("disk.throughput_mb_per_s")]
    assert disk[:2] == ["write, direct no", "write, direct yes"]
    assert disk[-1] == "random write, direct yes"
    (clock,) = matrix.conditions_of("clock.read_ns")
    assert (matrix.label(clock, "clock.read_ns"), clock.label()) == ("", "clock")


def test_settings_and_their_levels_in_words() -> None:
    assert (setting_name("memory.block_bytes"), level_value("memory.block_bytes", 65536)) == ("block", "64 KiB")
    assert (setting_name("linpack.order"), level_value("linpack.order", 45000)) == ("order", "45,000")


def test_tolls_find_the_truth_probe_by_probe(matrix: Matrix) -> None:
    for metric in (metric for metric in matrix.metrics.values() if metric.headline):
        for arm in matrix.arms[1:]:
            toll = toll_table(matrix, metric.name).total(arm)
            assert toll is not None
            assert toll.worse is not None
            assert toll.worse.value == pytest.approx(TOLLS.get(arm.platform, {}).get(metric.group, 1.0), rel=0.03)
            assert toll.conditions == len(matrix.conditions_of(metric.name))
            assert toll.ratio is not None
            assert toll.ratio.n == 4, "n is blocks, not windows and not cases"


def test_the_family_of_comparisons_is_that_of_the_metric(matrix: Matrix) -> None:
    table = toll_table(matrix, "linpack.gflops")
    treatments = sum(arm.role == "treatment" for arm in matrix.arms)
    assert table.family == 4 * treatments
    assert {toll.condition for toll in table.cells} == set(matrix.conditions_of("linpack.gflops"))


def test_outside_instruments_are_in_no_toll(tmp_path: Path) -> None:
    alone = matrix_of(tmp_path / "alone", small(noise=0.0, drift=0.0))
    beside = matrix_of(tmp_path / "beside", small(noise=0.0, drift=0.0, instruments={"disk": ("fio", 7.0)}))
    assert len(beside.trials) > len(alone.trials)
    assert beside.conditions == alone.conditions
    name = "disk.throughput_mb_per_s"
    for arm in FEW:
        for condition in alone.conditions_of(name):
            here, there = (matrix.absolute(name, arm, condition) for matrix in (alone, beside))
            assert here is not None
            assert there is not None
            assert (here.value, here.n) == pytest.approx((there.value, there.n))


def test_ours_against_theirs_is_paired_on_native(tmp_path: Path) -> None:
    matrix = matrix_of(tmp_path / "r", small(blocks=6, instruments={"disk": ("fio", 1.0), "clock": ("other", 2.0)}))
    checks = cross_checks(matrix)
    assert {(check.instrument, check.metric.group) for check in checks} == {("fio", "disk"), ("other", "clock")}
    (clock,) = (check for check in checks if check.instrument == "other")
    assert clock.ratio is not None
    assert clock.ratio.value == pytest.approx(2.0, rel=0.02)
    assert (clock.ratio.n, clock.outcome, clock.version) == (6, "disagrees", "other 3.1")
    disk = [check for check in checks if check.metric.name == "disk.throughput_mb_per_s"]
    assert len(disk) == 12
    assert all(check.outcome in ("agrees", "cannot tell") for check in disk)
    assert sum(check.outcome == "agrees" for check in disk) > 8


def test_one_block_cannot_tell_whether_instruments_agree(tmp_path: Path) -> None:
    recipe = small(instruments={"clock": ("other", 1.0)}, blocks=1)
    (check,) = cross_checks(matrix_of(tmp_path / "r", recipe))
    assert check.outcome == "cannot tell"
    assert "one block" in check.why


def test_zeros_have_no_ratio_and_that_is_said(tmp_path: Path) -> None:
    (check,) = cross_checks(matrix_of(tmp_path / "r", small(instruments={"clock": ("other", 0.0)})))
    assert (check.outcome, check.ratio) == ("not measured", None)
    assert "0 in every deployment" in check.why


def test_a_zero_in_some_deployments_does_not_leave_the_others_to_decide(tmp_path: Path) -> None:
    run = write_programme(tmp_path / "r", small(instruments={"clock": ("other", 1.0)}, blocks=4))
    records = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    theirs = next(record for record in records if "instrument" in record["trial"]["condition"])
    for window in theirs["measured"]["windows"]:
        window["values"] = dict.fromkeys(window["values"], 0.0)
    (run / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found = read_run(run)
    (check,) = cross_checks(build_matrix(found, measure_all(found)))
    assert (check.outcome, check.ratio) == ("cannot tell", None)
    assert check.why == "one of them is 0 in 1 of 4 deployments, and a 0 has no ratio"


def test_an_instrument_that_failed_is_not_measured_and_says_why(tmp_path: Path) -> None:
    recipe = small(instruments={"clock": ("other", 1.0)})
    plan = read_run(write_programme(tmp_path / "plan", recipe)).plan
    spoilt = {trial.id: "other: not found" for trial in plan.trials if "instrument" in trial.condition}
    (check,) = cross_checks(matrix_of(tmp_path / "r", replace(recipe, spoilt=spoilt)))
    assert (check.outcome, check.theirs, check.ratio) == ("not measured", None, None)
    assert "other: not found" in check.why


def test_blocks_of_zero_are_not_left_out_in_silence(tmp_path: Path) -> None:
    """A native instance so quiet that it used nothing in two of four blocks: no ratio, and the report says why."""
    quiet = {"idle": MadeUp({}, {"cpu_percent": ("CPU of an idle instance", "%", "less", 0.1)})}
    directory = write_programme(tmp_path / "r", small(probes={**quiet, "clock": PROBES["clock"]}))
    lines = []
    for line in (directory / "trials.jsonl").read_text().splitlines():
        record = json.loads(line)
        measured = record["measured"]
        if (
            record["trial"]["arm"]["role"] == "baseline"
            and record["trial"]["block"] <= 2
            and "cpu_percent" in measured["quantities"]
        ):
            for window in measured["windows"]:
                window["values"]["cpu_percent"] = 0.0
        lines.append(json.dumps(record) + "\n")
    (directory / "trials.jsonl").write_text("".join(lines))
    findings = find(directory)
    table = findings.tolls("idle.cpu_percent")
    for toll in (table.total(DOCKER), table.cells[-1]):
        assert toll is not None
        assert (toll.ratio, toll.zeros, toll.verdict.kind) == (None, 2, "unjudged")
        assert toll.verdict.words == "no ratio: 2 pairs hold a 0 or less"
        assert toll.floor is None, "native's own pairs have no ratio either"
    assert table.family == 0, "what has no ratio is no comparison"
    written = "".join(table.markdown() for table in tables(findings))
    assert written.count("no ratio: 2 pairs hold a 0 or less") >= 2
    assert "not judged in 1, of which a value is 0" in " ".join(answer(findings))


def test_a_case_that_failed_on_one_arm_is_missing_there_with_its_reason(tmp_path: Path) -> None:
    recipe = small()
    plan = read_run(write_programme(tmp_path / "plan", recipe)).plan
    spoilt = {
        trial.id: "order 4000 does not fit"
        for trial in plan.trials
        if trial.condition.get("linpack.order") == 4000 and trial.arm == DOCKER
    }
    matrix = matrix_of(tmp_path / "r", replace(recipe, spoilt=spoilt))
    largest = matrix.conditions_of("linpack.gflops")[-1]
    assert matrix.absolute("linpack.gflops", DOCKER, largest) is None
    assert "does not fit" in matrix.why_missing("linpack.gflops", DOCKER, largest)
    toll = toll_table(matrix, "linpack.gflops").total(DOCKER)
    assert toll is not None
    assert toll.conditions == 3


def test_a_case_that_failed_everywhere_stays_among_the_headlines_conditions(tmp_path: Path) -> None:
    recipe = small()
    plan = read_run(write_programme(tmp_path / "plan", recipe)).plan
    spoilt = {trial.id: "no" for trial in plan.trials if trial.condition.get("linpack.order") == 4000}
    matrix = matrix_of(tmp_path / "r", replace(recipe, spoilt=spoilt))
    assert len(matrix.conditions_of("linpack.gflops")) == 4
    assert len(matrix.conditions_of("linpack.residual")) == 3


def test_a_quantity_that_only_some_cases_report_is_planned_in_those(tmp_path: Path) -> None:
    directory = write_programme(tmp_path / "r", small())
    lines = (directory / "trials.jsonl").read_text().splitlines(keepends=True)
    without = [
        line.replace('"residual":', '"rest":') if '"linpack.order":500,' in line.replace("}", ",") else line
        for line in lines
    ]
    (directory / "trials.jsonl").write_text("".join(without))
    run = read_run(directory)
    matrix = build_matrix(run, measure_all(run))
    assert len(matrix.conditions_of("linpack.residual")) == 3
    assert len(matrix.conditions_of("linpack.rest")) == 1
    assert matrix.why_missing("linpack.residual", NATIVE, matrix.conditions_of("linpack.rest")[0]) == (
        "the probe did not report it"
    )


def test_a_distribution_of_requests_does_not_reach_all_of_which_half_were_lost(tmp_path: Path) -> None:
    """The probe's histogram has 4,000 answers; that of who loses nothing has all."""
    run = read_run(write_programme(tmp_path / "r", Recipe(probes={"round-trip": PROBES["round-trip"]}, arms=FEW)))
    record = run.records[0]
    assert record.measured is not None
    values = {**record.measured.windows[0].values, "lost_percent": 50.0}
    window = record.measured.windows[0].model_copy(update={"work": 8000.0, "values": values})
    lossy = record.measured.model_copy(update={"windows": [window]})
    for measured, most in ((lossy, 0.5), (record.measured, 1.0)):
        told = measure(run, record.model_copy(update={"measured": measured})).histogram
        assert told is not None
        assert shares_at(told, told.upper_ns[-1:].astype(float))[0] == pytest.approx(most)


def test_factors_of_the_deployment_cross_the_cases(tmp_path: Path) -> None:
    matrix = matrix_of(tmp_path / "r", small(factors={"limits.vcpus": [1, 2]}))
    names = [matrix.label(c, "linpack.gflops") for c in matrix.conditions_of("linpack.gflops")]
    assert names[:3] == ["vcpus 1, order 500", "vcpus 2, order 500", "vcpus 1, order 1,000"]
    assert [matrix.label(c, "clock.read_ns") for c in matrix.conditions_of("clock.read_ns")] == ["vcpus 1", "vcpus 2"]


def test_cross_checks_go_by_the_rule_in_force(tmp_path: Path) -> None:
    recipe = Recipe(probes={"linpack": PROBES["linpack"]}, blocks=6, instruments={"linpack": ("other", 1.0)})
    run = read_run(write_programme(tmp_path / "r", recipe))
    plain = cross_checks(build_matrix(run, measure_all(run)))[0]
    run = replace(run, plan=run.plan.model_copy(update={"extended": (4,)}))
    ruled = cross_checks(build_matrix(run, measure_all(run)))[0]
    assert plain.ratio is not None
    assert ruled.ratio is not None
    assert ruled.ratio.high != plain.ratio.high
    assert "always-valid" in ruled.ratio.method


def test_cross_checks_of_several_hosts_are_means_over_hosts_as_all_values_are(tmp_path: Path) -> None:
    recipe = Recipe(probes={"linpack": PROBES["linpack"]}, blocks=10, instruments={"linpack": ("other", 1.0)})
    run = read_run(write_programme(tmp_path / "r", recipe))
    trials = [trial.model_copy(update={"host": f"node{(trial.block - 1) // 2}"}) for trial in run.plan.trials]
    run = replace(run, plan=run.plan.model_copy(update={"trials": trials}))
    matrix = build_matrix(run, measure_all(run))
    check = cross_checks(matrix)[0]
    assert check.ours == matrix.absolute(check.metric.name, NATIVE, check.condition)
    assert check.theirs is not None
    assert check.theirs.n == 5
