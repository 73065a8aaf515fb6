"""From a made-up run directory with known truth to metrics, tolls, distributions and judged claims."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from synthetic import (
    AGAIN,
    ARMS,
    DOCKER,
    KVM,
    LXC,
    NATIVE,
    PUBLISHED,
    QUICK,
    TCG,
    TRUTH,
    UML,
    Recipe,
    measured_elsewhere,
    write_histogram,
    write_run,
    write_samples,
)
from virtoll.analysis import claims, measuring, papers
from virtoll.analysis.cdf import curve, shares_at
from virtoll.analysis.conditions import Condition, each_condition, level_label
from virtoll.analysis.load import Histogram, Series, read_run
from virtoll.analysis.matrix import Matrix, build_matrix
from virtoll.analysis.measuring import measure_all
from virtoll.analysis.metrics import METRICS, Wanted
from virtoll.analysis.ratios import toll_table
from virtoll.analysis.usage import _of_served, growth
from virtoll.errors import StoreError
from virtoll.record.model import SCHEMA, PlannedTrial, Window
from virtoll.report.asked import unusable
from virtoll.report.findings import find


def matrix_of(directory: Path, recipe: Recipe) -> Matrix:
    run = read_run(write_run(directory, recipe))
    return build_matrix(run, measure_all(run))


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    spoilt = {"b01-t003": "failed", "b02-t040": "invalid"}
    return matrix_of(tmp_path_factory.mktemp("run") / "r", Recipe(blocks=6, spoilt=spoilt))


# -- reading ---------------------------------------------------------------------------------------------


def test_no_such_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such run directory"):
        read_run(tmp_path / "nowhere")


def test_running_run_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "r", Recipe(blocks=2, sealed=9)))
    assert len(run.records) == 9
    assert any("resumes it" in note for note in run.notes)


@pytest.mark.parametrize(
    ("notes", "options"),
    [
        ({}, "--cluster tls://HOST:8786 --tls DIRECTORY"),
        ({"performer": "ab12", "clock": {}}, "--host ssh://root@HOST"),
    ],
)
def test_a_run_that_others_measure_is_resumed_by_the_option_that_names_them(
    tmp_path: Path, notes: dict[str, Any], options: str
) -> None:
    directory = write_run(tmp_path / "r", Recipe(blocks=2, sealed=9, bulk=False))
    measured_elsewhere(directory, notes)
    (note,) = [note for note in read_run(directory).notes if "resumes it" in note]
    assert f"`virtoll run {directory} {options}` resumes it" in note
    (directory / "trials.jsonl").write_text("")
    why = unusable(find(directory))
    assert why is not None
    assert why[1] == f"`virtoll run {directory} {options}` goes on with it"


def test_torn_last_line_is_noted_and_left_out(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "r", Recipe(blocks=2, bulk=False))
    path = directory / "trials.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    run = read_run(directory)
    assert len(run.records) == len(run.plan.trials) - 1
    assert any("not finished" in note for note in run.notes)


def test_damaged_line_names_file_line_and_remedy(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "r", Recipe(blocks=2, bulk=False))
    lines = (directory / "trials.jsonl").read_text().splitlines(keepends=True)
    (directory / "trials.jsonl").write_text("".join([*lines[:2], lines[2].replace('"trial"', '"trail"'), *lines[3:]]))
    with pytest.raises(StoreError, match=r"trials\.jsonl:3.*\n.*restore"):
        read_run(directory)


def test_trial_sealed_twice_is_refused(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "r", Recipe(blocks=2, bulk=False))
    text = (directory / "trials.jsonl").read_text()
    (directory / "trials.jsonl").write_text(text + text.splitlines(keepends=True)[0])
    with pytest.raises(StoreError, match="sealed twice"):
        read_run(directory)


def test_damaged_parquet_names_the_file(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "r", Recipe(blocks=2))
    broken = next(directory.glob("trials/*/latency.parquet"))
    broken.write_bytes(b"PAR1 no more")
    with pytest.raises(StoreError, match=r"latency\.parquet.*damaged"):
        measure_all(read_run(directory))


@pytest.mark.parametrize("name", ["study.json", "plan.json", "environment.json"])
def test_missing_or_damaged_heads(tmp_path: Path, name: str) -> None:
    directory = write_run(tmp_path / "r", Recipe(blocks=2, bulk=False))
    (directory / name).write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        read_run(directory)
    (directory / name).unlink()
    with pytest.raises(StoreError, match="missing"):
        read_run(directory)


def test_other_schema_is_refused(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "r", Recipe(blocks=2, bulk=False))
    plan = (directory / "plan.json").read_text().replace(f'"schema_version": {SCHEMA}', '"schema_version": 99', 1)
    (directory / "plan.json").write_text(plan)
    with pytest.raises(StoreError, match="schema 99"):
        read_run(directory)


@pytest.mark.parametrize("older", range(1, SCHEMA))
def test_a_run_of_an_older_schema_is_refused_as_that_and_not_as_damaged(tmp_path: Path, older: int) -> None:
    """Also where its fields are others than today's."""
    directory = write_run(tmp_path / "r", Recipe(blocks=2, bulk=False))
    for name, field in (("plan.json", "seed"), ("environment.json", "virtoll"), ("trials.jsonl", "windows")):
        whole = (directory / name).read_text()
        old = whole.replace(f'"{field}"', f'"{field}_once"')
        for space in ("", " "):
            old = old.replace(f'"schema_version":{space}{SCHEMA}', f'"schema_version":{space}{older}')
        (directory / name).write_text(old)
        with pytest.raises(StoreError, match=f"schema {older}, and this virtoll reads schema 3") as refused:
            read_run(directory)
        assert "damaged" not in str(refused.value)
        (directory / name).write_text(whole)


# -- metrics of a trial ----------------------------------------------------------------------------------


def test_every_metric_is_a_value_or_has_a_reason(matrix: Matrix) -> None:
    for trial in matrix.trials:
        assert trial.values.keys() | trial.missing.keys() == set(METRICS)
        assert not trial.values.keys() & trial.missing.keys()


def test_rates_cpu_and_memory_are_what_was_put_in(matrix: Matrix) -> None:
    cell = matrix.cells[1, 0, UML.label, matrix.conditions[0]]
    rate = cell.values["rate_per_s"]
    assert cell.values["cpu_s_per_1000"] == pytest.approx(0.95 / rate * 1000, rel=0.01)
    assert cell.values["helpers_percent"] == pytest.approx(0.2 / 0.95 * 100, rel=0.01)
    assert cell.values["memory_peak_mib"] == pytest.approx(420, rel=0.05)
    assert "helpers_percent" in matrix.cells[1, 0, LXC.label, matrix.conditions[0]].missing


def test_many_trials_are_measured_as_each_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are shared with another process."""
    run = read_run(write_run(tmp_path / "run", Recipe(blocks=2, spoilt={"b01-t003": "failed"})))
    monkeypatch.setattr(measuring, "_MANY", 0)
    monkeypatch.setattr(measuring, "_SHARE", 7)
    for of_all in ("_leave_out_too_few", "_leave_out_the_generators_own"):
        monkeypatch.setattr(measuring, of_all, lambda trials: None)
    for together, record in zip(measure_all(run), run.records, strict=True):
        alone = measuring.measure(run, record)
        assert together.record is record
        assert (together.values, together.missing, together.notes) == (alone.values, alone.missing, alone.notes)
        assert (together.histogram is None) == (alone.histogram is None) == (record.status == "failed")
        if together.histogram is not None and alone.histogram is not None:
            assert together.histogram.total == alone.histogram.total
            np.testing.assert_array_equal(together.histogram.upper_ns, alone.histogram.upper_ns)


@pytest.mark.parametrize("at", [0, -1])
def test_damage_is_told_whichever_process_finds_it(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = read_run(write_run(tmp_path / "run", Recipe(blocks=2)))
    monkeypatch.setattr(measuring, "_MANY", 0)
    damaged = run.file(run.records[at].trial.id, "outside.parquet")
    damaged.write_bytes(b"PAR1 no more")
    with pytest.raises(StoreError, match="is damaged") as caught:
        measure_all(run)
    assert caught.value.problem.where == str(damaged)


def test_what_is_not_asked_for_is_left_out_and_all_else_is_the_same(matrix: Matrix) -> None:
    run, memory = matrix.run, {"memory_peak_mib", "memory_mean_mib", "rss_peak_mib"}
    for part, whole in zip(measure_all(run, Wanted(memory=False)), matrix.trials, strict=True):
        left = {name: value for name, value in whole.values.items() if name not in memory}
        assert part.values == left
        if whole.record.status == "valid":
            assert len(whole.values) - len(left) == len(memory)
            assert not memory & part.missing.keys()


def test_trials_of_equal_levels_share_their_condition_and_no_others_do() -> None:
    levels: list[dict[str, Any]] = [{"a": 1}, {"a": True}, {"a": 1.0}, {"a": "1"}, {"a": [1]}, {"b": 1}, {"a": 1}]
    trials = [PlannedTrial(id=f"t{n}", block=1, position=n, arm=NATIVE, condition=c) for n, c in enumerate(levels)]
    found = list(each_condition(trials))
    assert [repr(condition) for condition in found] == [repr(Condition.of(trial)) for trial in trials]
    assert found[0] is found[-1]
    assert len({id(condition) for condition in found}) == len(levels) - 1


def test_time_is_estimated_and_says_so_when_the_limit_came_first(matrix: Matrix) -> None:
    slow = matrix.cells[1, 0, TCG.label, matrix.conditions[0]]
    assert slow.record.measured is not None
    events = slow.record.measured.events
    assert events is not None
    assert events.completed < 10_000
    assert slow.values["total_time_s"] == pytest.approx(10_000 / slow.values["rate_per_s"])
    assert "time limit" in slow.notes["total_time_s"]
    fast = matrix.cells[1, 0, NATIVE.label, matrix.conditions[0]]
    assert fast.values["total_time_s"] == pytest.approx(fast.record.measured.window.duration_ns / 1e9)  # type: ignore[union-attr]
    assert "total_time_s" not in fast.notes


def test_failed_trial_gives_reasons_and_no_values(matrix: Matrix) -> None:
    failed = next(trial for trial in matrix.trials if trial.record.status == "failed")
    assert failed.missing["rate_per_s"] == "the guest never answered within 60 s"


def test_spoilt_trials_are_in_no_mean(matrix: Matrix) -> None:
    spoilt = [t.record.trial for t in matrix.trials if t.record.status != "valid"]
    assert len(spoilt) == 2
    for plan in spoilt:
        assert (plan.block, 0, plan.arm.label, Condition.of(plan)) not in matrix.cells
        estimate = matrix.absolute("rate_per_s", plan.arm, Condition.of(plan))
        assert estimate is not None
        assert estimate.n == 5


def test_cpu_time_is_interpolated_to_the_window() -> None:
    t = np.array([0, 10, 20, 30], dtype=np.int64) * 10**9
    series = Series(t, np.array([5, 15, 35, 45], dtype=np.int64) * 10**9)
    assert growth(series, (10**9, 29 * 10**9)) == pytest.approx((44 - 6) * 1e9)
    told = growth(series, (5 * 10**9, 25 * 10**9))
    assert told == "no sample lies nearer to an end of the window than 5000 ms", "five of twenty seconds: no guesses"
    assert "cover only" in str(growth(series, (0, 100 * 10**9)))
    assert growth(None, (0, 1)) == "not sampled"


def test_quantiles_of_a_histogram() -> None:
    histogram = Histogram(np.array([0, 10, 20]), np.array([10, 20, 30]), np.array([50, 49, 1]))
    assert histogram.quantile_ns(0.5) == 10
    assert histogram.quantile_ns(0.99) == 20
    assert histogram.quantile_ns(1.0) == 30


@given(npst.arrays(np.float64, st.integers(20, 300), elements=st.floats(2e3, 1e9)))
def test_quantile_is_within_a_bucket_of_the_exact_one(latencies: np.ndarray) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        write_histogram(Path(scratch, "h.parquet"), latencies)
        table = pq.read_table(Path(scratch, "h.parquet"))
    histogram = Histogram(*(table[name].to_numpy() for name in ("lower_ns", "upper_ns", "count")))
    for q in (0.5, 0.9, 0.99):
        exact = np.sort(latencies)[math.ceil(q * latencies.size) - 1]
        assert exact * 0.999 - 1 <= histogram.quantile_ns(q) <= exact * 1.003 + 2


def test_samples_written_as_plain_strings_are_read_too(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "r", Recipe(blocks=2, sealed=1, bulk=False))
    run = read_run(directory)
    path = run.file(run.records[0].trial.id, "outside.parquet")
    path.parent.mkdir(parents=True)
    columns = {"t_ns": [2, 1], "source": ["a", "a"], "counter": ["c", "c"], "value": [20, 10]}
    pq.write_table(pa.table(columns), path)
    series = run.samples(run.records[0].trial.id, "outside")["a", "c"]
    assert series.t_ns.tolist() == [1, 2]
    assert series.value.tolist() == [10, 20]


def test_samples_can_be_picked(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "r", Recipe(blocks=2, sealed=1, bulk=False))
    run = read_run(directory)
    path = run.file(run.records[0].trial.id, "outside.parquet")
    path.parent.mkdir(parents=True)
    write_samples(path, {("a", "x"): 1e9, ("b", "x"): -5}, (0, 10**9), 5, np.random.default_rng(1))
    wanted = run.samples("b01-t001", "outside", frozenset({("b", "x"), ("a", "none")}))
    assert wanted.keys() == {("b", "x")}
    same = run.samples("b01-t001", "outside")["b", "x"]
    assert np.array_equal(wanted["b", "x"].t_ns, same.t_ns)
    assert np.array_equal(wanted["b", "x"].value, same.value)
    assert run.samples("b01-t001", "inside") == {}


# -- tolls -----------------------------------------------------------------------------------------------


def test_tolls_find_the_truth(matrix: Matrix) -> None:
    table = toll_table(matrix, "rate_per_s")
    for arm in ARMS[1:]:
        toll = table.total(arm)
        assert toll is not None
        assert toll.ratio is not None
        assert toll.ratio.value == pytest.approx(TRUTH[arm.label], rel=0.03)
    kinds = {toll.arm.label: toll.verdict.kind for toll in table.overall}
    assert kinds[PUBLISHED.label] == kinds[UML.label] == kinds[TCG.label] == "costs"
    assert kinds[AGAIN.label] == "floor"
    assert kinds[LXC.label] in ("same", "unsure")


def test_time_and_rate_agree_on_what_is_a_cost(matrix: Matrix) -> None:
    for metric in ("rate_per_s", "total_time_s", "cpu_s_per_1000"):
        toll = toll_table(matrix, metric).total(UML)
        assert toll is not None
        assert toll.verdict.words.startswith("costs")


def test_margin_is_the_studys_whatever_the_noise_floor(matrix: Matrix) -> None:
    tolls = toll_table(matrix, "rate_per_s", declared_margin=0.001).cells
    assert {toll.margin for toll in tolls} == {0.001}
    assert all(toll.floor is not None and toll.floor > 0.001 for toll in tolls)


def test_two_blocks_are_handled_honestly(tmp_path: Path) -> None:
    two = toll_table(matrix_of(tmp_path / "two", Recipe(blocks=2)), "rate_per_s")
    toll = two.total(DOCKER)
    assert toll is not None
    assert toll.ratio is not None
    assert toll.ratio.n == 2
    one = toll_table(matrix_of(tmp_path / "one", Recipe(blocks=2, sealed=28)), "rate_per_s")  # the first block
    assert all(toll.ratio is None or toll.ratio.low is None for toll in one.overall)
    assert all(toll.verdict.kind in ("unsure", "floor", "missing") for toll in one.overall)


def test_without_native_there_are_no_tolls(tmp_path: Path) -> None:
    assert toll_table(matrix_of(tmp_path / "r", Recipe(arms=(LXC, UML), blocks=2)), "rate_per_s").overall == ()


def test_labels_of_levels() -> None:
    assert level_label("load.object_bytes", 1_000_000) == "1 MB"
    assert level_label("load.connections", 1) == "1 connection"
    assert level_label("load.connections", 100) == "100 connections"
    assert level_label("background.hogs", 0) == "no CPU hogs"
    assert level_label("service.cache", "on") == "cache on"
    times = [level_label("load.time_limit_ns", seconds * 10**9) for seconds in (30, 110, 120, 150)]
    assert times == ["time limit 30 s", "time limit 110 s", "time limit 2 min", "time limit 150 s"]


# -- distributions ---------------------------------------------------------------------------------------


def test_distribution_runs_from_nothing_to_all(matrix: Matrix) -> None:
    one = curve(matrix, DOCKER, matrix.conditions[0])
    assert one is not None
    assert one.share[0] == pytest.approx(0, abs=1e-3)
    assert one.share[-1] == pytest.approx(1)
    assert np.all(np.diff(one.share) >= 0)
    assert np.all((one.low <= one.share + 1e-12) & (one.share <= one.high + 1e-12))


def test_share_is_linear_within_a_bucket() -> None:
    histogram = Histogram(np.array([0, 100]), np.array([100, 200]), np.array([1, 3]))
    assert shares_at(histogram, np.array([-1.0, 50, 100, 150, 300])) == pytest.approx([0, 0.125, 0.25, 0.625, 1])


# -- the paper -------------------------------------------------------------------------------------------


def paper() -> papers.Paper:
    return papers.read_paper("proxy")


def test_published_tables_are_whole() -> None:
    tables = {table.id: table for table in paper().tables}
    assert {name: len(table.rows) for name, table in tables.items()} == {"Table II": 5, "Table III": 5, "Table IV": 4}
    assert tables["Table II"].rows["1 MB"]["kvm"] == papers.Published(value=370.74, half=11.81)
    assert tables["Table III"].rows["100 kB"]["docker_routed"] == papers.Published(value=8.53, half=0.03)
    assert tables["Table IV"].rows["100 kB"]["docker_nat"] == papers.Published(value=13.60, half=3.17)


def test_kvm_is_not_measured_and_emulation_never_stands_in(matrix: Matrix) -> None:
    judged = claims.judge_paper(paper(), matrix)
    for table in judged.tables:
        for (_, column), claim in table.cells.items():
            if column == "kvm":
                assert claim.outcome == "not measured here"
                assert claim.measured_value is None
    for statement in judged.statements:
        if "kvm" in (statement.statement.over, statement.statement.under):
            assert statement.outcome == "not measured here"


def test_paper_reproduced_agrees_with_itself(tmp_path: Path) -> None:
    """A run whose truth is the paper's Table II: its values and the statements about them agree."""
    table = next(table for table in paper().tables if table.id == "Table II")
    row = table.rows["1 kB"]
    truth = {NATIVE.label: 1.0, AGAIN.label: 1.0, DOCKER.label: row["native"].value / row["docker_routed"].value}
    truth |= {
        PUBLISHED.label: row["native"].value / row["docker_nat"].value,
        KVM.label: row["native"].value / row["kvm"].value,
    }
    arms = (NATIVE, AGAIN, DOCKER, PUBLISHED, KVM)
    factors: dict[str, list[Any]] = {"load.object_bytes": [1000], "load.connections": [1], "service.cache": ["off"]}
    recipe = Recipe(arms=arms, factors=factors, truth=truth, blocks=10, noise=0.004, skip_kvm=False)
    judged = claims.judge_paper(paper(), matrix_of(tmp_path / "r", recipe))
    cells = judged.tables[0].cells
    assert [cells["1 kB", column].outcome for column in ("docker_routed", "docker_nat", "kvm")] == ["agrees"] * 3
    assert cells["1 MB", "kvm"].outcome == "not measured here"
    outcomes = {s.statement.quote: s.outcome for s in judged.statements}
    assert outcomes["Docker outperforms KVM."] == "agrees"
    assert outcomes["Docker performs close to native Linux."] == "agrees"
    assert (
        outcomes["There is little performance difference between the two types of Docker configurations."] == "agrees"
    )
    two_times = "A Docker container can be two times faster than a KVM-based virtual machine."
    assert outcomes[two_times] == "disagrees"  # at 1 kB, the only condition here, it is 1.24 times
    growth = "The performance difference between them increases as the file size increases."
    assert outcomes[growth] == "not measured here"  # one size shows no trend


def test_trend_is_judged_between_the_extreme_sizes(tmp_path: Path) -> None:
    arms = (NATIVE, AGAIN, DOCKER, KVM)
    truth = {arm.label: 1.0 for arm in arms}
    factors: dict[str, list[Any]] = {**QUICK, "service.cache": ["off"], "load.connections": [1]}
    judged = claims.judge_paper(paper(), matrix_of(tmp_path / "r", Recipe(arms=arms, truth=truth, factors=factors)))
    growth = next(s for s in judged.statements if s.statement.holds == "trend")
    assert [where for where, _ in growth.measured] == ["100 kB over 1 kB"]
    assert growth.measured[0][1].value == pytest.approx(1, abs=0.05)


def test_a_trend_by_size_is_by_size_whatever_else_varies(tmp_path: Path) -> None:
    """It was judged from one vCPU to two, whose settings come first by their names."""
    arms = (NATIVE, AGAIN, DOCKER, KVM)
    factors: dict[str, list[Any]] = {**QUICK, "service.cache": ["off"], "load.connections": [1], "limits.vcpus": [1, 2]}
    recipe = Recipe(arms=arms, truth={arm.label: 1.0 for arm in arms}, factors=factors, bulk=False)
    found = matrix_of(tmp_path / "r", recipe)
    for (_, _, label, condition), cell in found.cells.items():
        if label == KVM.label:
            cell.values["total_time_s"] *= 2 if condition.get("load.object_bytes") == 100_000 else 1
    growth = next(s for s in claims.judge_paper(paper(), found).statements if s.statement.holds == "trend")
    ((where, ratio),) = growth.measured
    assert where == "100 kB over 1 kB"
    assert ratio.value == pytest.approx(2, abs=0.1)
    assert growth.outcome == "agrees"


def test_published_ratio_has_the_papers_uncertainty() -> None:
    estimate = claims.ratio_of_printed(
        papers.Published(value=9.24, half=0.27), papers.Published(value=6.98, half=0.02), 10
    )
    assert estimate.value == pytest.approx(1.3238, abs=1e-4)
    assert estimate.low == pytest.approx(1.3238 * math.exp(-math.hypot(0.27 / 9.24, 0.02 / 6.98)), abs=1e-3)


def test_what_differs_from_the_paper_is_said(matrix: Matrix) -> None:
    judged = claims.judge_paper(paper(), matrix)
    assert judged.tables[0].differs == ("background.hogs: 12 in the paper, 0 here",)


def test_time_for_n_requests_without_a_number_of_requests(tmp_path: Path) -> None:
    """A load that only a time ends has no N of its own: the papers' N is used, and the value says so."""
    directory = write_run(tmp_path / "r", Recipe(blocks=2, sealed=3, bulk=False))
    study = (directory / "study.json").read_text().replace('"load.requests": 10000', '"load.requests": 0')
    (directory / "study.json").write_text(study)
    for trial in measure_all(read_run(directory)):
        assert trial.values["total_time_s"] == pytest.approx(10_000 / trial.values["rate_per_s"])
        assert trial.notes["total_time_s"] == "estimated as 10,000 / rate: the load was ended by time alone"


def test_what_was_asked_for_is_paid_for_whole_and_nothing_else() -> None:
    """Idle until 10 ms after the look, busy for 50 ms and 4 ms of drain, idle until the next look."""
    looks = np.array([0, 67, 167, 200], dtype=np.int64) * 10**6
    series = Series(looks, np.array([3, 57, 57, 57], dtype=np.int64) * 10**6)
    window = Window(start_ns=10**7, duration_ns=50 * 10**6, work=500, served=540, until_ns=64 * 10**6)
    assert _of_served([window], series) == pytest.approx(0.054e9)
    assert "none after it" in str(_of_served([window.model_copy(update={"until_ns": 201 * 10**6})], series))
    assert "before the window" in str(_of_served([window.model_copy(update={"start_ns": -1})], series))
    assert _of_served([window], None) == "not sampled"
