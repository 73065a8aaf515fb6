"""Native is deployed twice in each block, and an arm is compared with both: what that is worth, and its hazards."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from made_up_studies import BLOCKS, MACHINES, ROTATION, Machine, components_seen, judged, observations, studies
from quiet import Quiet
from synthetic import AGAIN, DOCKER, NATIVE
from synthetic_programme import Recipe, write_programme
from test_whole_turns import killed_between_seals
from virtoll.analysis.components import Components, cell_of, components_of
from virtoll.analysis.counterparts import barred, log_ratio
from virtoll.analysis.estimates import Estimate, Floats, over_conditions, t_quantile
from virtoll.analysis.load import read_run
from virtoll.analysis.matrix import Matrix, build_matrix
from virtoll.analysis.measuring import measure_all
from virtoll.analysis.metrics import KNEE, TrialMetrics
from virtoll.analysis.ratios import Toll, log_ratios, toll_table
from virtoll.catalogue import catalogue
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.record.model import Arm, TrialRecord
from virtoll.record.store import RunDirectory
from virtoll.report import method
from virtoll.report.answer import answer
from virtoll.report.findings import Findings, find
from virtoll.report.numbers import interval
from virtoll.report.running import RunningTable
from virtoll.report.sections.unix_index import unix_index
from virtoll.run.execute import execute
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import Knee, settings_of
from virtoll.study.plan import make_plan

pytestmark = pytest.mark.usefixtures("undrawn")

TEXT = """
name = "both"
question = "What does it cost here?"
design = "rotation"
blocks = 6
seed = 5
[rotation]
rounds = 4
[service]
name = "nginx"
[load]
name = "http"
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
"""
OF_A_WINDOW = "latency_p99_window_ms"
Change = Callable[[TrialMetrics], object]


def run(path: Path, experiment: FakeExperiment, text: str = TEXT, lost: Mapping[str, int] | None = None) -> Findings:
    """A run; of these arms, by label, so many trials are not valid, the first ones."""
    study = read_study(text, "both.toml", catalogue())
    plan = make_plan(study, [entry.arm for entry in study.arms], {"native": 1.0, "docker": 1.0})
    for label, count in (lost or {}).items():
        mine = [trial.id for trial in plan.trials if trial.arm.label == label][:count]
        experiment.fail = {**experiment.fail, **dict.fromkeys(mine, "limits in force")}
    directory = RunDirectory.create(path, document.as_json(study), plan, fake_environment())
    execute(directory, experiment, Quiet())
    return find(path)


@pytest.fixture
def found(tmp_path: Path) -> Findings:
    """Deployments that scatter by a fifth."""
    experiment = FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.2, native_latency_ns=1000)
    return run(tmp_path / "run", experiment)


def by_block(matrix: Matrix, arm: Arm, name: str = "rate_per_s") -> Floats:
    return matrix.values(name)[:, matrix.arms.index(arm), 0]


def ratios(matrix: Matrix, arm: Arm = DOCKER, name: str = "rate_per_s") -> Floats:
    return np.exp(log_ratios(matrix, name)[:, matrix.arms.index(arm), 0])


def changed(matrix: Matrix, arm: Arm, change: Change, block: int = 0) -> Matrix:
    """The matrix with one trial's figures changed."""
    (cell,) = (each for (b, _), each in matrix.across(arm, matrix.conditions[0]).items() if b == block)
    change(cell)
    return dataclasses.replace(matrix, _arrays={})


def total(matrix: Matrix, arm: Arm = DOCKER, name: str = "rate_per_s") -> Toll:
    toll = toll_table(matrix, name).total(arm)
    assert toll is not None
    return toll


# -- what it is --------------------------------------------------------------------------------------------------


def test_an_arm_is_compared_with_the_mean_of_both_and_native_again_with_native(found: Findings) -> None:
    matrix = found.matrix
    native, again, docker = (by_block(matrix, arm) for arm in (NATIVE, AGAIN, DOCKER))
    assert ratios(matrix) == pytest.approx(docker / np.sqrt(native * again), rel=1e-12)
    assert ratios(matrix, AGAIN) == pytest.approx(again / native, rel=1e-12)
    assert ratios(matrix, NATIVE) == pytest.approx(np.ones(6))
    shown = matrix.absolute("rate_per_s", NATIVE, matrix.conditions[0])
    assert shown is not None
    assert shown.value == pytest.approx(native.mean()), "the values shown are the first's"


def test_the_report_says_what_ratios_are_to(found: Findings, tmp_path: Path) -> None:
    assert "ratios are to the mean of both (of their logarithms)" in method.paired(found)
    assert "native's is that of the first" in method.paired(found)
    alone = run(tmp_path / "alone", FakeExperiment({"native": 1.0, "docker": 1.25}), "noise_floor = false\n" + TEXT)
    assert "both" not in method.paired(alone)
    assert ratios(alone.matrix) == pytest.approx(by_block(alone.matrix, DOCKER) / by_block(alone.matrix, NATIVE))


# -- what is missing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lost", "other"), [(NATIVE, AGAIN), (AGAIN, NATIVE)])
def test_a_native_that_is_lost_leaves_the_other_alone(tmp_path: Path, lost: Arm, other: Arm) -> None:
    experiment = FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.2)
    matrix = run(tmp_path / "run", experiment, lost={lost.label: 2}).matrix
    docker = by_block(matrix, DOCKER)
    assert ratios(matrix)[:2] == pytest.approx(docker[:2] / by_block(matrix, other)[:2], rel=1e-12)
    both = np.sqrt(by_block(matrix, NATIVE) * by_block(matrix, AGAIN))
    assert ratios(matrix)[2:] == pytest.approx(docker[2:] / both[2:], rel=1e-12)
    toll = total(matrix)
    assert toll.ratio is not None
    assert toll.ratio.n == 6, "no block of the arm is lost"
    assert total(matrix, AGAIN).ratio is not None
    assert np.isnan(ratios(matrix, AGAIN)[:2]).all(), "native again has nothing to be compared with there"


def test_both_lost_lose_the_block(tmp_path: Path) -> None:
    experiment = FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.2)
    matrix = run(tmp_path / "run", experiment, lost={NATIVE.label: 1, AGAIN.label: 1}).matrix
    assert np.isnan(ratios(matrix)).tolist() == [True, *[False] * 5]


def test_natives_that_are_lost_for_being_slow_bias_no_more_than_one_did() -> None:
    """Of each native the slow half is lost, whatever the other does: a bias of 0.8 of its spread, as with one."""
    rng = np.random.default_rng(3)
    natives, arm = rng.normal(0, 1, (2, 100_000)), rng.normal(0, 1, 100_000)
    values = np.exp(np.stack([*np.where(natives < 0, np.nan, natives), arm], -1))[:, None, None, :]
    one, both = (observations(values, natives=natives)[:, 0, 1] for natives in (1, 2))
    bias = -math.sqrt(2 / math.pi)
    assert np.nanmean(one) == pytest.approx(bias, abs=0.02)
    assert np.nanmean(both) == pytest.approx(bias, abs=0.02)
    assert np.isfinite(both).mean() == pytest.approx(0.75, abs=0.01)


# -- what has no ratio -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", [NATIVE, AGAIN, DOCKER])
def test_a_0_of_either_native_is_not_passed_over_for_the_other(found: Findings, arm: Arm) -> None:
    matrix = changed(found.matrix, arm, lambda cell: cell.values.update(rate_per_s=0.0))
    assert np.isnan(ratios(matrix)).tolist() == [True, *[False] * 5]
    toll = total(matrix)
    assert (toll.ratio, toll.zeros) == (None, 1)
    assert toll.verdict.words == "no ratio: 1 pair holds a 0 or less"
    assert total(matrix, AGAIN).zeros == (arm != DOCKER)


def fail_percentile(cell: TrialMetrics) -> None:
    """As `virtoll.analysis.measuring` notes what lies among the failed requests."""
    del cell.values["latency_p99_ms"]
    cell.censored.add("latency_p99_ms")


@pytest.mark.parametrize("arm", [NATIVE, AGAIN, DOCKER])
def test_a_percentile_among_what_failed_in_either_native_bars_the_pair(found: Findings, arm: Arm) -> None:
    matrix = changed(found.matrix, arm, fail_percentile)
    assert np.isnan(ratios(matrix, name="latency_p99_ms")).tolist() == [True, *[False] * 5]
    toll = total(matrix, name="latency_p99_ms")
    assert (toll.ratio, toll.zeros) == (None, 1)
    assert total(matrix, AGAIN, "latency_p99_ms").zeros == (arm != DOCKER)


def test_what_failed_bars_the_pair_where_the_other_native_is_lost(tmp_path: Path) -> None:
    experiment = FakeExperiment({"native": 1.0, "docker": 1.25}, native_latency_ns=1000)
    lost = run(tmp_path / "run", experiment, lost={NATIVE.label: 1}).matrix
    toll = total(changed(lost, AGAIN, fail_percentile), name="latency_p99_ms")
    assert (toll.ratio, toll.zeros) == (None, 1)


@pytest.mark.parametrize("arm", [NATIVE, AGAIN])
def test_a_native_that_did_not_answer_beside_other_servers_bars_every_arm(found: Findings, arm: Arm) -> None:
    """A trial that is not valid, and yet a result: the other native would be the better one."""
    matrix = found.matrix
    (cell,) = (each for (b, _), each in matrix.across(arm, matrix.conditions[0]).items() if b == 0)
    cell.record = cell.record.model_copy(update={"status": "invalid", "outcome": "did not answer"})
    silent = build_matrix(found.run, list(matrix.trials))
    for other in (DOCKER, AGAIN):
        toll = total(silent, other)
        assert (toll.ratio, toll.zeros) == (None, 1)


LIMITS = 'loop = "open"\nconnections = 500\n[knee]\nobjective = ["latency_p99 < 20 ms"]\nleast = 100\nmost = 100000\n'
KNEES = TEXT.replace('design = "rotation"\n', "").replace("[rotation]\nrounds = 4\n", "")
KNEES = KNEES.replace('name = "http"\n', f'name = "http"\n{LIMITS}')


def test_a_search_of_native_again_that_ended_at_a_bound_is_named(tmp_path: Path) -> None:
    """One that ended beyond the most that was asked for has no value, and leaves docker no ratio."""
    study = read_study(KNEES, "both.toml", catalogue())
    experiment = FakeExperiment({"native": 1.0, "docker": 1.25, AGAIN.label: 0.01}, capacity_per_s=5000)
    experiment.knee = settings_of(Knee, "knee", study.base)
    findings = run(tmp_path / "run", experiment, KNEES)
    assert findings.matrix.absolute(KNEE, NATIVE, findings.matrix.conditions[0]) is not None
    (toll,) = findings.answering()
    assert toll.verdict.words == "no ratio: in 6 pairs it is a bound, and no value"
    assert f"no ratio: {DOCKER.label} ({AGAIN.label}: " in answer(findings)[0]
    rows = {row.arm.label: row.against_native for row in RunningTable(findings.run.records).rows()}
    assert rows[DOCKER.label] is None


# -- window by window --------------------------------------------------------------------------------------------


def test_rounds_are_compared_with_each_native_and_then_averaged(found: Findings) -> None:
    """The median over rounds of the ratio to each native: 2 and 8, which is 4; by trials it is another."""
    matrix = found.matrix
    for native, times in ((NATIVE, 2.0), (AGAIN, 8.0)):
        both = matrix.pair(0, DOCKER, matrix.conditions[0], native)
        assert both is not None
        both[1].by_window[OF_A_WINDOW] = [each / times for each in both[0].by_window[OF_A_WINDOW]]
    assert ratios(matrix, name=OF_A_WINDOW)[0] == pytest.approx(4.0)


def test_a_native_that_was_not_in_turn_is_compared_by_trials(found: Findings) -> None:
    """The other's rounds are rounds still."""
    matrix = found.matrix
    (again,) = (each for (b, _), each in matrix.across(AGAIN, matrix.conditions[0]).items() if b == 0)
    trial = again.record.trial.model_copy(update={"turn": "another"})
    again.record = again.record.model_copy(update={"trial": trial})
    mine = matrix.pair(0, DOCKER, matrix.conditions[0], NATIVE)
    assert mine is not None
    mine[0].by_window[OF_A_WINDOW] = [2 * each for each in mine[1].by_window[OF_A_WINDOW]]
    by_trials = mine[0].values[OF_A_WINDOW] / again.values[OF_A_WINDOW]
    assert ratios(matrix, name=OF_A_WINDOW)[0] == pytest.approx(math.sqrt(2 * by_trials))


# -- where the scatter comes from --------------------------------------------------------------------------------


def test_components_describe_the_estimator_in_force() -> None:
    """Against both natives a block's observation has 3/4 of the variance, its windows' share alike."""
    machine = Machine(noise=0.04, drift=(), deployment=0.02)
    design = dataclasses.replace(ROTATION, blocks=10)
    told: dict[int, list[Components]] = {1: [], 2: []}
    for study in studies(machine, design, np.ones(3), 300, np.random.default_rng(2)):
        for natives, mine in told.items():
            one = components_seen(study, 2, natives)
            assert isinstance(one, Components)
            mine.append(one)
    means = {
        natives: [float(np.mean([getattr(one, part) for one in mine])) for part in ("window", "of_windows", "between")]
        for natives, mine in told.items()
    }
    for alone, both in zip(means[1], means[2], strict=True):
        assert both == pytest.approx(0.75 * alone, rel=0.06)
    window = machine.noise**2 / design.window_s
    assert means[2] == pytest.approx(
        [1.5 * window, 1.5 * window / design.rounds, 1.5 * machine.deployment**2], rel=0.06
    )


def test_windows_are_of_all_deployments_in_the_ratio(found: Findings) -> None:
    """In rounds with both natives, with one of them, and with none."""
    cells = found.matrix.across(DOCKER, found.matrix.conditions[0])[0, 0]
    natives = [found.matrix.across(arm, found.matrix.conditions[0])[0, 0] for arm in (NATIVE, AGAIN)]
    assert list(cell_of(cells, natives, "rate_per_s")) == ["arm and 2 of 2"]
    assert list(cell_of(cells, natives[:1], "rate_per_s")) == ["arm and 1 of 1"]
    trial = natives[1].record.trial.model_copy(update={"turn": "another"})
    natives[1].record = natives[1].record.model_copy(update={"trial": trial})
    apart = cell_of(cells, natives, "rate_per_s")
    assert list(apart) == ["arm and 1 of 2", "native 1 of 2"]
    alone = cell_of(natives[1], natives[1:], "rate_per_s")
    (mine,) = cell_of(natives[1], [cells], "rate_per_s").keys() - {"native 1 of 1"}
    assert mine == "arm"
    assert np.allclose(next(iter(alone.values())), 0), "against itself no window moves it"


def test_a_run_tells_components_of_both_natives_where_one_is_lost_too(tmp_path: Path) -> None:
    experiment = FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.02, drift=_noisy)
    matrix = run(tmp_path / "run", experiment, lost={AGAIN.label: 2}).matrix
    told = components_of(matrix, "rate_per_s", DOCKER)
    assert isinstance(told, Components)
    assert (told.blocks, told.is_paired) == (6, True)
    assert told.freedom == 6 * 3


def _noisy(now_s: float) -> float:
    return math.exp(float(np.random.default_rng(round(now_s * 1000)).normal(0, 0.1)))


# -- elsewhere ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def programme(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    recipe = Recipe(arms=(NATIVE, AGAIN, DOCKER), noise=0.1)
    loaded = read_run(write_programme(tmp_path_factory.mktemp("both") / "run", recipe))
    return build_matrix(loaded, measure_all(loaded))


def test_a_claims_ratio_is_that_of_the_tables(programme: Matrix) -> None:
    for name in programme.metrics:
        logs = log_ratios(programme, name)[:, programme.arms.index(DOCKER), :]
        for c, condition in enumerate(programme.conditions):
            mine = log_ratio(programme, name, (DOCKER, condition), (NATIVE, condition))
            assert mine == pytest.approx(logs[:, c], rel=1e-12, nan_ok=True)
            turned = log_ratio(programme, name, (NATIVE, condition), (DOCKER, condition))
            assert turned == pytest.approx(-logs[:, c], rel=1e-12, nan_ok=True)


def test_a_claim_is_barred_by_either_native(programme: Matrix) -> None:
    """A 0 of native again leaves no ratio; a statement of native's own values is of the first alone."""
    name = next(iter(programme.metrics))
    (condition, *_) = programme.conditions_of(name)
    cells = [(DOCKER, condition), (NATIVE, condition)]
    assert barred(programme, name, cells) == ""
    (cell, *_) = programme.across(AGAIN, condition).values()
    kept, cell.values[name] = cell.values[name], 0.0
    fresh = dataclasses.replace(programme, _arrays={})
    assert barred(fresh, name, cells) == f"{AGAIN.label}: some block holds a 0 or less"
    assert barred(fresh, name, [(NATIVE, condition)]) == ""
    cell.values[name] = kept


def test_native_under_two_conditions_is_a_mean_over_both(programme: Matrix) -> None:
    name = next(name for name in programme.metrics if len(programme.conditions_of(name)) > 1)
    one, other, *_ = programme.conditions_of(name)
    values = np.log(programme.values(name))
    places = [programme.conditions.index(each) for each in (one, other)]
    natives = [programme.arms.index(arm) for arm in (NATIVE, AGAIN)]
    wanted = values[:, natives, places[0]].mean(axis=1) - values[:, natives, places[1]].mean(axis=1)
    assert log_ratio(programme, name, (NATIVE, one), (NATIVE, other)) == pytest.approx(wanted, rel=1e-9)


def probed(path: Path) -> Findings:
    """A test of UnixBench's index, in rotation."""
    probing = (
        TEXT.partition("[service]")[0] + '[[probes]]\nname = "unix-pipe"\n[[arms]]' + TEXT.partition("[[arms]]")[2]
    )
    return run(path, FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.2), probing)


def test_the_unix_index_is_held_against_both(tmp_path: Path) -> None:
    findings = probed(tmp_path / "run")
    (table,) = unix_index(findings)
    row = dict(zip(table.heads, table.rows[0], strict=True))
    toll = total(findings.matrix, DOCKER, "unix-pipe.loops_per_s")
    assert toll.ratio is not None
    assert row[DOCKER.label].detail == f"× {interval(toll.ratio)}"


@pytest.mark.parametrize("arm", [NATIVE, AGAIN, DOCKER])
def test_a_0_of_either_native_leaves_the_unix_index_without_a_ratio(tmp_path: Path, arm: Arm) -> None:
    findings = probed(tmp_path / "run")
    changed(findings.matrix, arm, lambda cell: cell.values.update({"unix-pipe.loops_per_s": 0.0}))
    (table,) = unix_index(findings)
    for row in table.rows:
        told = dict(zip(table.heads, row, strict=True))[DOCKER.label]
        assert told.detail == "no ratio: 1 pair holds a 0 or less"
    values = by_block(dataclasses.replace(findings.matrix, _arrays={}), DOCKER, "unix-pipe.loops_per_s")
    assert (values == 0).sum() == (arm == DOCKER)
    index = 10 * values.mean() / 12440
    assert float(told.text.split(" ")[0].replace(",", "")) == pytest.approx(index, rel=0.01), "of all deployments"


def test_the_unix_index_of_an_arm_whose_turn_came_again_is_beside_no_native_of_before(tmp_path: Path) -> None:
    directory = probed(tmp_path / "run").run.directory
    killed_between_seals(
        RunDirectory(directory), lambda trial: trial.block < 3 or (trial.block == 3 and trial.arm.platform == "native")
    )
    again = FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.2)
    again.clock.now_s = 90_000
    assert execute(RunDirectory(directory), again, Quiet())
    findings = find(directory)
    (table,) = unix_index(findings)
    toll = total(findings.matrix, DOCKER, "unix-pipe.loops_per_s")
    assert toll.ratio is not None
    assert toll.ratio.n == 5
    assert dict(zip(table.heads, table.rows[0], strict=True))[DOCKER.label].detail == f"× {interval(toll.ratio)}"


def both_tables(found: Findings, records: Sequence[TrialRecord]) -> list[dict[str, Estimate | None]]:
    """The ratios of the table of a running run and of the report's, by arm, of these records in the place of a run's
    own.
    """
    run = dataclasses.replace(found.run, records=tuple(records))
    final = toll_table(build_matrix(run, measure_all(run)), "rate_per_s").overall
    running = RunningTable(records).rows()
    return [
        {row.arm.label: row.against_native for row in running if row.arm.role != "baseline"},
        {toll.arm.label: toll.ratio for toll in final},
    ]


@pytest.mark.parametrize("arm", [NATIVE, AGAIN, DOCKER])
def test_a_valid_trial_that_served_nothing_in_its_windows_bars_both_tables(found: Findings, arm: Arm) -> None:
    """It was slower than they are long: the other native, or the other blocks, would be the better ones."""
    records = [slowed(each) if is_first_of(each, arm) else each for each in found.run.records]
    for ratios_of in both_tables(found, records):
        assert ratios_of[DOCKER.label] is None
        assert (ratios_of[AGAIN.label] is None) == (arm != DOCKER)


@pytest.mark.parametrize("arm", [NATIVE, AGAIN])
@pytest.mark.parametrize("change", ["failed", "asked_at_once"])
def test_a_native_of_which_no_pace_is_known_leaves_the_other_alone_in_both_tables(
    found: Findings, arm: Arm, change: str
) -> None:
    """One that failed, and one whose windows have no length, for all was asked at once: that is no result."""
    changes = {"failed": failed, "asked_at_once": asked_at_once}
    records = [changes[change](each) if is_first_of(each, arm) else each for each in found.run.records]
    for ratios_of in both_tables(found, records):
        docker, again = ratios_of[DOCKER.label], ratios_of[AGAIN.label]
        assert docker is not None
        assert again is not None
        assert (docker.n, again.n) == (6, 5)


def test_the_report_names_what_served_nothing(found: Findings) -> None:
    """Also of the CPU time that it took for nothing, and in the table of values."""
    records = [slowed(each) if is_first_of(each, AGAIN) else each for each in found.run.records]
    run = dataclasses.replace(found.run, records=tuple(records))
    matrix = build_matrix(run, measure_all(run))
    for name in ("rate_per_s", "total_time_s", "cpu_s_per_1000"):
        words = "no ratio: in 1 pair it is of a window in which nothing was served"
        assert total(matrix, name=name).verdict.words == words
    told = answer(dataclasses.replace(found, run=run, matrix=matrix))[0]
    assert f"not judged: {DOCKER.label} (no ratio: in 1 pair it is of a window in which nothing was served)" in told


def is_first_of(record: TrialRecord, arm: Arm) -> bool:
    return (record.trial.block, record.trial.arm.label) == (1, arm.label)


def slowed(record: TrialRecord) -> TrialRecord:
    assert record.measured is not None
    windows = [window.model_copy(update={"work": 0}) for window in record.measured.windows]
    return record.model_copy(update={"measured": record.measured.model_copy(update={"windows": windows})})


def asked_at_once(record: TrialRecord) -> TrialRecord:
    assert record.measured is not None
    windows = [window.model_copy(update={"work": 0, "duration_ns": 0}) for window in record.measured.windows]
    return record.model_copy(update={"measured": record.measured.model_copy(update={"windows": windows})})


def failed(record: TrialRecord) -> TrialRecord:
    return record.model_copy(update={"status": "failed", "reason": "it was killed"})


# -- what it is worth --------------------------------------------------------------------------------------------


def shares(logs: Floats) -> tuple[float, float]:
    """Of t intervals over the blocks of [study, block, arm] of equal arms: how many hold 0, and the mean half-width."""
    n = logs.shape[1]
    half = t_quantile(0.975, n - 1) * logs.std(axis=1, ddof=1) / math.sqrt(n)
    return float((np.abs(logs.mean(axis=1)) <= half).mean()), float(half.mean())


@pytest.mark.parametrize("blocks", [5, 8])
@pytest.mark.parametrize("machine", ["quiet", "drift", "bursts", "deployments differ", "bimodal deployments"])
def test_intervals_are_as_true_and_narrower_as_foretold(machine: str, blocks: int) -> None:
    """Equal arms: 94 to 96 % hold the truth, and half-widths are sqrt(1.5 / 2) of those against the first alone."""
    design = dataclasses.replace(ROTATION, blocks=blocks)
    values = studies(MACHINES[machine], design, np.ones(8), 1500, np.random.default_rng(7))
    (covered, both), (_, alone) = (shares(observations(values, natives=natives)[..., 1:]) for natives in (2, 1))
    assert 0.94 <= covered <= 0.96
    assert both / alone == pytest.approx(math.sqrt(0.75), rel=0.02)


def test_deployments_alone_are_narrower_by_as_much_in_blocks() -> None:
    values = studies(MACHINES["bursts"], BLOCKS, np.ones(8), 1500, np.random.default_rng(8))
    (covered, both), (_, alone) = (shares(observations(values, natives=natives)[..., 1:]) for natives in (2, 1))
    assert 0.94 <= covered <= 0.96
    assert both / alone == pytest.approx(math.sqrt(0.75), rel=0.02)


def test_equal_arms_raise_no_more_alarms() -> None:
    """Arms share both natives: tables of five equal arms in which any is called different, at most 5 %, and chance."""
    truth, count = np.ones(7), 800
    logs = observations(studies(MACHINES["bursts"], ROTATION, truth, count, np.random.default_rng(9)))
    tables = [judged(study, truth) for study in logs]
    alarms = np.mean([any(toll.verdict.kind in ("costs", "gains") for toll in table[1:]) for table in tables])
    assert alarms <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / count)


def test_natives_that_are_lost_now_and_then_leave_intervals_true() -> None:
    """Blocks with one native scatter more than those with both: 15 % of the trials are lost."""
    values = studies(MACHINES["missing trials"], BLOCKS, np.ones(4), 3000, np.random.default_rng(10))
    covered = [
        abs(summary.mean) <= summary.half_width()
        for study in observations(values)
        for arm in (1, 2)
        if (summary := over_conditions(study[:, arm : arm + 1])) is not None and summary.n > 1
    ]
    assert 0.94 <= np.mean(covered) <= 0.96
