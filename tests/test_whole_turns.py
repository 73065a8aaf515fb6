"""A turn of a rotation that is cut short comes again whole: none of it is compared with what another day measured."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quiet import Quiet
from test_rotation import planned, ratios, run
from virtoll.analysis.components import Components, components_of
from virtoll.analysis.counterparts import log_ratio
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import TrialMetrics
from virtoll.analysis.ratios import Toll, toll_table
from virtoll.errors import PlatformError, StoreError
from virtoll.fakes import FakeClock, FakeExperiment
from virtoll.files import durable
from virtoll.hosts.interrupts import install
from virtoll.record.model import Phase, PlannedTrial, TrialRecord
from virtoll.record.store import INTERRUPTED, RunDirectory
from virtoll.report.findings import Findings, find
from virtoll.run.execute import execute
from virtoll.trial.notes import Course, Notes

TEXT = """
name = "turns"
question = "What does docker cost here?"
design = "rotation"
blocks = 3
seed = SEED
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
EQUAL = {"native": 1.0, "docker": 1.0}


@dataclass
class CutShort(FakeExperiment):
    """Ctrl-C where a trial draws its conclusions, which all do when all have had their rounds."""

    stops: str = ""

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        for steps, _ in enumerate(super().perform(trial, notes), 1):
            notes.waits = notes.waits or steps == self.rounds + 1
            yield
            if steps == self.rounds + 1 and trial.id == self.stops:
                raise KeyboardInterrupt


def a_day_later(directory: RunDirectory) -> list[float]:
    """Docker's ratios when the run was gone on with on a machine that had become slower by a third."""
    again = FakeExperiment(EQUAL, drift=lambda _now_s: 1.3)
    again.clock.now_s = 90_000
    assert execute(directory, again, Quiet())
    return ratios(find(directory.path), "docker+routed")


def stopped(path: Path, text: str) -> RunDirectory:
    """A run in which Docker's trial of the second block met a Ctrl-C as it drew its conclusions."""
    (docker,) = (trial for trial in planned(text) if trial.block == 2 and trial.arm.platform == "docker")
    with pytest.raises(KeyboardInterrupt):
        run(path, CutShort(EQUAL, stops=docker.id), text)
    return RunDirectory(path)


@pytest.mark.parametrize("seed", range(8))  # who concludes first is drawn
def test_a_turn_that_is_cut_short_as_its_arms_conclude_comes_again_whole(tmp_path: Path, seed: int) -> None:
    """Natives that had concluded were sealed as valid: equal arms were told as 0.77, valid trials all of them."""
    directory = stopped(tmp_path / "run", TEXT.replace("SEED", str(seed)))
    cut = [record for record in directory.records() if record.trial.block == 2]
    assert {record.status for record in cut} == {"failed"}
    assert {trial.block for trial in directory.pending()} == {2, 3}
    assert a_day_later(directory) == pytest.approx([1.0, 1.0, 1.0])


def test_what_failed_by_itself_before_its_turn_was_cut_short_does_not_come_again(tmp_path: Path) -> None:
    text = TEXT.replace("SEED", "1")
    mine = [trial for trial in planned(text) if trial.block == 2]
    docker, *natives = sorted(mine, key=lambda trial: trial.arm.platform)
    experiment = CutShort(EQUAL, fail={docker.id: RuntimeError("it broke")}, stops=natives[0].id)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", experiment, text)
    directory = RunDirectory(tmp_path / "run")
    pending = [trial for trial in directory.pending() if trial.block == 2]
    assert [trial.arm.platform for trial in pending] == ["native"] * len(natives)


def of_second_block(directory: RunDirectory) -> list[TrialRecord]:
    return [record for record in directory.records() if record.trial.block == 2]


@pytest.mark.parametrize("call", ["write_parquet", "seal"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_a_turn_is_kept_takes_effect_when_all_of_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: signal.Signals
) -> None:
    """Who was being kept came again alone, and was compared with what had been sealed beside it another day."""
    real, calls = getattr(RunDirectory, call), set[str]()

    def interrupted(self: RunDirectory, *what: Any) -> Any:
        second = [trial for trial in (getattr(each, "trial", each) for each in what) if is_of(trial, 2)]
        if second and not calls:
            calls.add(second[0].id)
            os.kill(os.getpid(), number)
        return real(self, *what)

    install()
    monkeypatch.setattr(RunDirectory, call, interrupted)
    told = Quiet()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", FakeExperiment(EQUAL), TEXT.replace("SEED", "1"), told)
    monkeypatch.setattr(RunDirectory, call, real)
    directory = RunDirectory(tmp_path / "run")
    assert [record.status for record in of_second_block(directory)] == ["valid"] * 3
    assert {trial.block for trial in directory.pending()} == {3}
    assert [record.trial.id for record in told.sealed] == [record.trial.id for record in directory.records()]
    assert a_day_later(directory) == pytest.approx([1.0, 1.0, 1.0])


def is_of(what: object, block: int) -> bool:
    return isinstance(what, PlannedTrial) and what.block == block


@pytest.mark.parametrize("fits", range(3))  # whose files do, before those that do not
def test_a_turn_whose_files_cannot_all_be_kept_comes_again_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: int
) -> None:
    """A smaller one that still fitted was sealed as valid, and the one that did not came again alone."""
    real, kept = RunDirectory.write_parquet, set[str]()

    def write_parquet(self: RunDirectory, trial: PlannedTrial, *what: Any) -> None:
        if trial.block == 2 and trial.id not in kept:
            kept.add(trial.id)
            if len(kept) == fits + 1:
                raise StoreError("No space left on device")
        real(self, trial, *what)

    monkeypatch.setattr(RunDirectory, "write_parquet", write_parquet)
    with pytest.raises(StoreError, match="No space left"):
        run(tmp_path / "run", FakeExperiment(EQUAL), TEXT.replace("SEED", "1"))
    monkeypatch.setattr(RunDirectory, "write_parquet", real)
    directory = RunDirectory(tmp_path / "run")
    found = of_second_block(directory)
    assert [record.status for record in found] == ["failed"] * 3
    assert {record.reason for record in found} == {f"{INTERRUPTED}No space left on device"}
    assert {trial.block for trial in directory.pending()} == {2, 3}
    assert a_day_later(directory) == pytest.approx([1.0, 1.0, 1.0])


def test_a_turn_whose_records_do_not_all_fit_comes_again_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, log = TEXT.replace("SEED", "1"), tmp_path / "run/trials.jsonl"
    whole = run(tmp_path / "whole", FakeExperiment(EQUAL), text).path / "trials.jsonl"
    room, real = round(whole.stat().st_size / 2), durable.append  # for one turn of three, and half of the second

    def append(path: Path, data: bytes) -> None:
        if path == log and log.stat().st_size + len(data) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, data)

    monkeypatch.setattr(durable, "append", append)
    with pytest.raises(StoreError, match="No space left"):
        run(tmp_path / "run", FakeExperiment(EQUAL), text)
    monkeypatch.setattr(durable, "append", real)
    directory = RunDirectory(tmp_path / "run")
    assert of_second_block(directory) == []
    assert a_day_later(directory) == pytest.approx([1.0, 1.0, 1.0])
    assert {record.status for record in of_second_block(directory)} == {"valid", "failed"}


def test_what_failed_by_itself_in_a_turn_that_cannot_be_kept_says_why_and_does_not_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXT.replace("SEED", "1")
    (docker,) = (trial for trial in planned(text) if trial.block == 2 and is_docker(trial))

    def write_parquet(_directory: RunDirectory, trial: PlannedTrial, *_: Any) -> None:
        if trial.block == 2:
            raise StoreError("No space left on device")

    monkeypatch.setattr(RunDirectory, "write_parquet", write_parquet)
    with pytest.raises(StoreError):
        run(tmp_path / "run", FakeExperiment(EQUAL, fail={docker.id: PlatformError("it broke")}), text)
    directory = RunDirectory(tmp_path / "run")
    (record,) = (record for record in of_second_block(directory) if is_docker(record.trial))
    assert record.reason == "it broke"
    pending = [trial for trial in directory.pending() if trial.block == 2]
    assert [trial.arm.platform for trial in pending] == ["native"] * 2


def killed_between_seals(directory: RunDirectory, which: Callable[[PlannedTrial], bool]) -> None:
    """The records of the second block as a kill -9 between two seals leaves them."""
    kept = [line for line in (directory.path / "trials.jsonl").read_text("utf-8").splitlines() if line]
    records = list(directory.records())
    lines = [line for line, record in zip(kept, records, strict=True) if which(record.trial)]
    (directory.path / "trials.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.mark.parametrize("tells_sittings", [True, False])
def test_trials_of_one_turn_that_were_measured_at_different_times_are_not_compared(
    tells_sittings: bool, tmp_path: Path
) -> None:
    text = TEXT.replace("SEED", "1")
    run(tmp_path / "run", FakeExperiment(EQUAL), text)
    directory = RunDirectory(tmp_path / "run")
    killed_between_seals(directory, lambda trial: trial.block == 1 or (trial.block == 2 and not is_docker(trial)))
    told = a_day_later(RunDirectory(tmp_path / "run"))
    if not tells_sittings:
        rewritten(directory.path, {"sitting": None})
        told = ratios(find(directory.path), "docker+routed")
    assert told == pytest.approx([1.0, math.nan, 1.0], nan_ok=True)


def rewritten(directory: Path, update: Mapping[str, object]) -> None:
    """The run with other records; runs of before have none that tells its sitting."""
    lines = [record.model_copy(update=update).model_dump_json() for record in RunDirectory(directory).records()]
    (directory / "trials.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_nor_are_they_where_the_clock_began_anew_with_a_boot_between(tmp_path: Path) -> None:
    """The monotonic clock said the same of both; by the wall's one of them was measured a day later."""
    text = TEXT.replace("SEED", "1")
    run(tmp_path / "run", FakeExperiment(EQUAL), text)
    directory = RunDirectory(tmp_path / "run")
    killed_between_seals(directory, lambda trial: trial.block == 1 or (trial.block == 2 and not is_docker(trial)))
    rewritten(directory.path, {"started_at": "2026-01-01T00:00:00.000+00:00"})
    booted = FakeExperiment(EQUAL, drift=lambda _now_s: 1.3)
    assert execute(RunDirectory(directory.path), booted, Quiet())
    alike = [Phase(name="window", start_ns=10**9, duration_ns=10**9)]
    rewritten(directory.path, {"phases": alike, "sitting": None})
    told = ratios(find(directory.path), "docker+routed")
    assert told == pytest.approx([1.0, math.nan, 1.0], nan_ok=True)


def is_docker(trial: PlannedTrial) -> bool:
    return trial.arm.platform == "docker"


def torn(path: Path, experiment: FakeExperiment, late: Sequence[str], more: str = "") -> Findings:
    """A run whose second block came again for these arms, a day later and a third slower: virtoll was killed between
    the seals of its turn.
    """
    run(path, experiment, TEXT.replace("SEED", "1") + more)
    killed_between_seals(
        RunDirectory(path), lambda trial: trial.block == 1 or (trial.block == 2 and trial.arm.label not in late)
    )
    before = experiment.drift
    again = dataclasses.replace(experiment, drift=lambda now_s: 1.3 * before(now_s), clock=FakeClock(90_000))
    assert execute(RunDirectory(path), again, Quiet())
    return find(path)


def spoil(cell: TrialMetrics) -> None:
    cell.values.update(rate_per_s=0.0)


def fail(cell: TrialMetrics) -> None:
    """As `virtoll.analysis.measuring` notes what served nothing."""
    del cell.values["rate_per_s"]
    cell.censored.add("rate_per_s")


def tolls_of(matrix: Matrix) -> dict[str, Toll]:
    return {toll.arm.label: toll for toll in toll_table(matrix, "rate_per_s").overall}


NATIVE, AGAIN, DOCKER, PUBLISHED = "native+host", "native+host (again)", "docker+routed", "docker+published"


@pytest.mark.parametrize(
    ("late", "wanted"),
    [
        ([DOCKER], {(DOCKER, NATIVE): math.nan, (DOCKER, PUBLISHED): math.nan, (PUBLISHED, NATIVE): 1.0}),
        ([DOCKER, AGAIN], {(DOCKER, NATIVE): 1.0, (DOCKER, PUBLISHED): 1.0, (PUBLISHED, NATIVE): 1.0}),
        ([NATIVE], {(DOCKER, NATIVE): 1.0, (DOCKER, PUBLISHED): 1.0, (AGAIN, NATIVE): math.nan}),
    ],
)
def test_a_claims_ratio_is_of_one_time_or_through_native_beside_each(
    late: list[str], wanted: dict[tuple[str, str], float], tmp_path: Path
) -> None:
    """Of equal arms of a turn that came again for some of them values were a third apart, valid trials all of them."""
    more = '[[arms]]\nplatform = "docker"\nnetwork = "published"\n'
    matrix = torn(tmp_path / "run", FakeExperiment(EQUAL), late, more).matrix
    sides = {arm.label: (arm, matrix.conditions[0]) for arm in matrix.arms}
    for (over, under), ratio in wanted.items():
        told = np.exp(log_ratio(matrix, "rate_per_s", sides[over], sides[under]))
        assert told == pytest.approx([1.0, ratio, 1.0], nan_ok=True), (over, under)


@pytest.mark.parametrize("late", [NATIVE, AGAIN, DOCKER])
@pytest.mark.parametrize("change", [spoil, fail])
def test_what_is_compared_with_nothing_bars_no_ratio(
    late: str, change: Callable[[TrialMetrics], None], tmp_path: Path
) -> None:
    """A 0, or what failed, is left out for when it was measured, and not for what it is: the others are no better."""
    matrix = torn(tmp_path / "run", FakeExperiment(EQUAL, native_latency_ns=1000), [late]).matrix
    arms = {arm.label: arm for arm in matrix.arms}
    wanted = {one: toll.ratio for one, toll in tolls_of(matrix).items()}
    cell = matrix.cell(2, arms[late], matrix.conditions[0])
    assert cell is not None
    change(cell)
    told = tolls_of(dataclasses.replace(matrix, _arrays={}))
    assert {one: toll.ratio for one, toll in told.items()} == wanted
    assert {toll.zeros for toll in told.values()} == {0}


def test_a_native_of_another_time_is_no_part_of_what_windows_add(tmp_path: Path) -> None:
    """Its windows, which are in no ratio, passed for some that are not in the same rounds."""
    drifting = FakeExperiment(EQUAL, drift=lambda now_s: 1 + 0.1 * math.sin(now_s))
    matrix = torn(tmp_path / "run", drifting, [AGAIN]).matrix
    told = components_of(matrix, "rate_per_s", next(arm for arm in matrix.arms if arm.label == DOCKER))
    assert isinstance(told, Components)
    assert (told.blocks, told.is_paired) == (3, True)
