"""A run that was cut short in a block and gone on with later: what one sitting measured is compared with no other's."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import isolating
import test_side_by_side as servers
from quiet import Quiet
from synthetic import AGAIN, DOCKER, NATIVE
from synthetic_programme import Recipe, write_programme
from test_again import LARGER, TEXT, Bench
from virtoll.analysis.counterparts import log_ratio
from virtoll.analysis.crosscheck import cross_checks
from virtoll.analysis.load import AGGRESSOR, read_run
from virtoll.analysis.matrix import build_matrix
from virtoll.analysis.measuring import measure_all
from virtoll.analysis.ratios import log_ratios, toll_table
from virtoll.analysis.side_by_side import side_by_side
from virtoll.analysis.sittings import in_one_sitting
from virtoll.catalogue import catalogue
from virtoll.fakes import FakeExperiment, FakeHarm, fake_environment
from virtoll.record.model import BESIDE, Measured, PlannedTrial, TrialRecord
from virtoll.record.store import RunDirectory
from virtoll.report.changes import confirmed
from virtoll.report.findings import Findings, find
from virtoll.report.reservations import reservations
from virtoll.report.running import RunningTable
from virtoll.report.tables import trials_csv
from virtoll.run.execute import execute
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.plan import make_plan

pytestmark = pytest.mark.usefixtures("undrawn")

BLOCKS = """
name = "sittings"
question = "What does docker cost here?"
blocks = 3
seed = 5
[service]
name = "nginx"
[load]
name = "http"
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
"""
EQUAL = {"native": 1.0, "docker": 1.0}
SLOWER = 1.3
Is = Callable[[PlannedTrial], bool]


def begun(path: Path) -> RunDirectory:
    """A run of native, native again and docker, which are equal."""
    study = read_study(BLOCKS, "sittings.toml", catalogue())
    plan = make_plan(study, [entry.arm for entry in study.arms], {"native": 1.0, "docker": 1.0})
    return RunDirectory.create(path, document.as_json(study), plan, fake_environment())


def cut_short(path: Path, position: int) -> RunDirectory:
    """It met a Ctrl-C in its trial of this number, and was gone on with a day later on a machine a third slower."""
    directory = begun(path)
    (trial,) = (trial for trial in directory.plan.trials if trial.position == position)
    with pytest.raises(KeyboardInterrupt):
        execute(directory, FakeExperiment(EQUAL, fail={trial.id: KeyboardInterrupt()}), Quiet())
    later = FakeExperiment(EQUAL, drift=lambda _now_s: SLOWER)
    later.clock.now_s = 90_000
    assert execute(RunDirectory(path), later, Quiet())
    return directory


def told(findings: Findings) -> list[str]:
    return [sentence for sentence in reservations(findings) if "sitting" in sentence]


def rewritten(directory: Path, change: Callable[[TrialRecord], TrialRecord]) -> Path:
    """The run with other records."""
    lines = [change(record).model_dump_json() for record in RunDirectory(directory).records()]
    (directory / "trials.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return directory


def gone_on_with(directory: Path, is_later: Is) -> Path:
    """A run as if these trials of it were measured in another sitting, on a machine a third slower."""

    def change(record: TrialRecord) -> TrialRecord:
        if not is_later(record.trial) or record.measured is None:
            return record.model_copy(update={"sitting": 1})
        return record.model_copy(update={"sitting": 2, "measured": slower(record.measured)})

    return rewritten(directory, change)


def slower(measured: Measured) -> Measured:
    windows = [
        window.model_copy(
            update={
                "work": window.work / SLOWER,
                "values": {key: value / SLOWER for key, value in window.values.items()},
            }
        )
        for window in measured.windows
    ]
    return measured.model_copy(update={"windows": windows})


def cuts(directory: Path, block: int = 2) -> list[int]:
    """After which of a block's trials it may have been cut short, by their positions."""
    return [trial.position for trial in RunDirectory(directory).plan.trials if trial.block == block][:-1]


def after(position: int, block: int = 2) -> Is:
    return lambda trial: trial.block > block or (trial.block == block and trial.position > position)


# -- what is recorded ---------------------------------------------------------------------------------------------


def test_each_time_that_a_run_is_gone_on_with_is_another_sitting(tmp_path: Path) -> None:
    directory = cut_short(tmp_path / "run", 5)
    assert [record.sitting for record in directory.records()] == [1] * 5 + [2] * 5


def test_of_a_trial_whose_writer_was_killed_no_sitting_is_told(tmp_path: Path) -> None:
    directory = begun(tmp_path / "run")
    asked = iter([False, True])
    assert execute(directory, FakeExperiment(EQUAL), Quiet(), ends=lambda: next(asked))
    directory.trial_directory(directory.pending()[0])
    assert execute(RunDirectory(directory.path), FakeExperiment(EQUAL), Quiet())
    assert [record.sitting for record in directory.records()] == [1] * 3 + [None] + [2] * 6


def test_who_watches_is_told_what_was_sealed(tmp_path: Path) -> None:
    directory, watching = begun(tmp_path / "run"), Quiet()
    execute(directory, FakeExperiment(EQUAL), watching)
    assert watching.sealed == directory.records()


# -- what is compared ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [4, 5, 6])  # in the second block
def test_a_block_that_two_sittings_share_compares_nothing_of_the_one_with_the_other(
    position: int, tmp_path: Path
) -> None:
    """Docker, equal to native, was told as 0.77 of it there, from valid trials."""
    directory = cut_short(tmp_path / "run", position)
    findings = find(directory.path)
    logs = log_ratios(findings.matrix, "rate_per_s")[:, 1:, 0]
    assert logs[np.isfinite(logs)] == pytest.approx(0.0, abs=1e-6)
    assert np.isfinite(logs[[0, 2]]).all()
    assert np.isfinite(logs[1]).all() == (position == 4), "the first of its block came again with all others"
    native, other = ((arm, findings.matrix.conditions[0]) for arm in (NATIVE, DOCKER))
    claimed = log_ratio(findings.matrix, "rate_per_s", other, native)
    assert claimed == pytest.approx(logs[:, 1], nan_ok=True, abs=1e-9)
    rows = {row.arm.label: row.against_native for row in RunningTable(directory.records()).rows()}
    for label in (AGAIN.label, DOCKER.label):
        ratio = rows[label]
        assert ratio is not None
        assert ratio.value == pytest.approx(1.0)
    assert len(told(findings)) == (position != 4)


def test_the_report_says_where_a_block_was_cut_short(tmp_path: Path) -> None:
    (sentence,) = told(find(cut_short(tmp_path / "run", 5).path))
    assert sentence.startswith("block 2 was cut short, and gone on with in another sitting: ")


def test_the_values_of_each_trial_tell_their_sitting_where_there_are_several(tmp_path: Path) -> None:
    rows = list(csv.DictReader(trials_csv(find(cut_short(tmp_path / "run", 5).path)).splitlines()))
    assert [row["sitting"] for row in rows] == ["1"] * 5 + ["2"] * 5
    execute(begun(tmp_path / "whole"), FakeExperiment(EQUAL), Quiet())
    assert "sitting" not in trials_csv(find(tmp_path / "whole")).splitlines()[0]


def test_blocks_that_are_whole_in_another_sitting_are_as_any(tmp_path: Path) -> None:
    directory = begun(tmp_path / "run")
    asked = iter([False, True])
    assert execute(directory, FakeExperiment(EQUAL), Quiet(), ends=lambda: next(asked))
    assert execute(RunDirectory(directory.path), FakeExperiment(EQUAL, drift=lambda _now_s: SLOWER), Quiet())
    findings = find(directory.path)
    assert log_ratios(findings.matrix, "rate_per_s") == pytest.approx(0.0, abs=1e-6)
    assert not told(findings)


def test_records_of_before_that_tell_no_sitting_are_taken_as_they_were(tmp_path: Path) -> None:
    directory = cut_short(tmp_path / "run", 5).path
    findings = find(rewritten(directory, lambda record: record.model_copy(update={"sitting": None})))
    logs = log_ratios(findings.matrix, "rate_per_s")[:, 1:, 0]
    assert np.isfinite(logs).all()
    assert not told(findings)


def test_a_0_of_one_sitting_bars_no_ratio_of_the_other(tmp_path: Path) -> None:
    """Nor does a native that did not answer beside other servers: neither is in any ratio of this arm's."""
    directory = begun(tmp_path / "run")
    execute(directory, FakeExperiment(EQUAL), Quiet())

    def is_native(trial: PlannedTrial) -> bool:
        return trial.block == 2 and trial.arm.label == NATIVE.label

    found = read_run(gone_on_with(directory.path, lambda trial: not is_native(trial)))
    for outcome in (None, "did not answer"):
        trials = measure_all(found)
        (native,) = (each for each in trials if is_native(each.record.trial))
        native.values["rate_per_s"] = 0.0
        if outcome:
            native.record = native.record.model_copy(update={"status": "invalid", "outcome": outcome})
        tolls = {toll.arm.label: toll for toll in toll_table(build_matrix(found, trials), "rate_per_s").overall}
        assert tolls[DOCKER.label].zeros == 0
        assert tolls[DOCKER.label].ratio is not None


def test_a_victim_is_compared_with_its_own_sitting_beside_the_polite_neighbour(tmp_path: Path) -> None:
    """A neighbour that does nothing was told to cost a third, where the run was cut short between the two."""
    directory = isolating.run_of(tmp_path / "run", "isolation-rtt", {}, quick=True, spread=0.0)
    whole = (directory / "trials.jsonl").read_bytes()
    for position in cuts(directory)[::3]:
        (directory / "trials.jsonl").write_bytes(whole)
        found = find(gone_on_with(directory, after(position))).isolation
        tolls = [toll for each in found.exposures.values() for toll in each.tolls.values() if toll.ratio is not None]
        assert [toll.ratio.value for toll in tolls if toll.ratio] == pytest.approx([1.0] * len(tolls))
        assert {toll.ratio.n for toll in tolls if toll.ratio} <= {2, 3}
        assert all(floor == pytest.approx(0.0) for floor in found.floors.values() if floor is not None)


def test_a_percentile_without_a_value_beside_the_polite_neighbour_of_another_sitting_bars_nothing(
    tmp_path: Path,
) -> None:
    directory = isolating.run_of(tmp_path / "run", harms={"docker/polite": FakeHarm(kept=0.5)}, quick=True)

    def is_polite(trial: PlannedTrial) -> bool:
        return trial.arm.label == DOCKER.label and trial.condition[AGGRESSOR] == "polite"

    for is_later, barred in ((lambda _: False, 3), (is_polite, 0)):
        found = find(gone_on_with(directory, is_later)).isolation
        (cpu,) = (each for each in found.conditions if each.get(AGGRESSOR) == "cpu")
        (docker,) = (arm for arm in found.arms if arm.label == DOCKER.label)
        toll = found.exposure(docker, cpu).tolls["p99_rise"]
        assert (toll.failed, toll.ratio) == (barred, None)


def test_a_server_beside_the_others_is_compared_with_its_own_sitting_alone(tmp_path: Path) -> None:
    directory = servers.run_of(tmp_path / "run", {}, spread=0.0).run.directory
    whole = (directory / "trials.jsonl").read_bytes()
    for position in cuts(directory):
        (directory / "trials.jsonl").write_bytes(whole)
        found = find(gone_on_with(directory, after(position))).side_by_side
        of_rate = [toll for (*_, name), toll in {**found.kept}.items() if name == "rate_per_s"]
        of_rate += [toll for (*_, name), toll in found.against.items() if name == "rate_per_s"]
        values = [toll.ratio.value for toll in of_rate if toll.ratio is not None]
        assert len(values) == len(of_rate)
        assert values == pytest.approx([1.0] * len(values))
        assert [found.floors[name, "rate_per_s"] for name in ("lean", "broad")] == pytest.approx([0.0, 0.0])


def test_a_0_beside_the_others_is_no_pair_with_what_another_sitting_measured_alone(tmp_path: Path) -> None:
    directory = servers.run_of(tmp_path / "run", {}, spread=0.0).run.directory

    def is_beside(trial: PlannedTrial) -> bool:
        return trial.block == 2 and trial.condition[BESIDE] == "others"

    findings = find(gone_on_with(directory, lambda trial: trial.block > 2 or is_beside(trial)))
    for each in findings.servers.values():
        for trial in each.matrix.trials:
            if is_beside(trial.record.trial):
                trial.values["rate_per_s"] = 0.0
    changed = {name: dataclasses.replace(each.matrix, _arrays={}) for name, each in findings.servers.items()}
    told_of = side_by_side(changed, findings.side_by_side.shown, 0.03)
    assert {toll.zeros for toll in told_of.kept.values() if toll.metric.name == "rate_per_s"} == {0}


def test_an_instrument_is_compared_with_the_probe_of_its_own_sitting(tmp_path: Path) -> None:
    recipe = Recipe(arms=(NATIVE, DOCKER), noise=0.0, drift=0.0, blocks=3, instruments={"clock": ("other", 2.0)})
    directory = write_programme(tmp_path / "run", recipe)

    def is_theirs(trial: PlannedTrial) -> bool:
        return trial.block == 2 and "instrument" in trial.condition

    found = read_run(gone_on_with(directory, lambda trial: trial.block > 2 or is_theirs(trial)))
    (check,) = cross_checks(build_matrix(found, measure_all(found)))
    assert check.ratio is not None
    assert (check.ratio.value, check.ratio.n) == pytest.approx((2.0, 2))


def test_all_trials_of_cells_are_to_be_of_one_sitting() -> None:
    """Of native in several groups the first of each was looked at alone, and the others' values were in the mean."""
    one, other = [{1}, {1, 2}, {1}, set[int]()], [{1}, {1}, {2}, {1}]
    assert in_one_sitting([one, other]).tolist() == [True, False, False, False]


def test_natives_own_change_is_of_one_sitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that holds two configurations: native of B was told as slower than that of A by what a day had done."""
    bench = Bench(tmp_path, monkeypatch)
    bench.run("a", TEXT), bench.run("b", LARGER)
    bench.again("--out", "again", "--seed", "1")
    directory = tmp_path / "again"
    whole = (directory / "trials.jsonl").read_bytes()
    for position in cuts(directory):
        (directory / "trials.jsonl").write_bytes(whole)
        changes = confirmed(gone_on_with(directory, after(position))).natives
        (rate,) = (native.ratio for native in changes if native.metric.name == "rate_per_s")
        assert rate.value == pytest.approx(1.0, abs=0.01)
