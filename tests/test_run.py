"""The run loop on fakes: what is sealed, what is resumed, and that nothing is lost or measured twice."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from quiet import Quiet
from virtoll.analysis.load import read_run
from virtoll.errors import DiskError, PlatformError, StoreError, UnheardError
from virtoll.fakes import FakeClock, FakeExperiment, fake_environment
from virtoll.hosts.ledger_lines import append
from virtoll.hosts.local import LocalHost
from virtoll.record.model import Arm, Measured, Phase, Plan, PlannedTrial, Quantity, TrialRecord, Window
from virtoll.record.store import INTERRUPTED, RunDirectory
from virtoll.run.execute import _trial_s, execute, exit_code
from virtoll.trial.notes import Course, Notes

TOLLS = {"native": 1.0, "docker": 1.1}
IDS = ["b01-t0001", "b01-t0002", "b02-t0003", "b02-t0004"]


def new_run(path: Path) -> RunDirectory:
    native = Arm(label="native+host", platform="native", network="host", role="baseline")
    docker = Arm(label="docker+routed", platform="docker", network="routed")
    trials = [
        PlannedTrial(id=name, block=1 + index // 2, position=index + 1, arm=(native, docker)[index % 2], condition={})
        for index, name in enumerate(IDS)
    ]
    plan = Plan(seed=1, blocks=2, trials=trials, estimate_s=4.0)
    return RunDirectory.create(path, {"name": "demo"}, plan, fake_environment())


def test_all_trials_are_sealed_in_order(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    assert execute(run, FakeExperiment(TOLLS), Quiet())
    records = run.records()
    assert [r.trial.id for r in records] == IDS
    assert {r.status for r in records} == {"valid"}
    assert run.pending() == []
    assert exit_code(records, finished=True) == 0
    latency = pq.read_table(run.path / "trials" / IDS[1] / "latency.parquet")
    assert latency.column_names == ["lower_ns", "upper_ns", "count"]
    assert latency["lower_ns"].to_pylist() == [1_100_000]


def test_a_failed_trial_is_kept_with_its_reason_and_the_next_one_runs(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    boom = PlatformError("the guest never booted", where="docker", remedy="look at its console")
    execute(run, FakeExperiment(TOLLS, fail={IDS[1]: boom, IDS[2]: "limits in force"}), Quiet())
    records = run.records()
    assert [r.status for r in records] == ["valid", "failed", "invalid", "valid"]
    assert "the guest never booted" in records[1].reason
    assert records[2].reason.startswith("limits in force")
    assert records[2].measured is not None, "an invalid trial keeps its data"
    assert run.pending() == [], "a measurement is never retried"
    assert exit_code(records, finished=True) == 1


def test_a_bug_in_a_trial_is_recorded_and_does_not_end_the_study(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    execute(run, FakeExperiment(TOLLS, fail={IDS[0]: ZeroDivisionError("oops")}), Quiet())
    record = run.records()[0]
    assert (record.status, len(run.records())) == ("failed", 4)
    assert "ZeroDivisionError: oops" in record.reason
    assert "Traceback" in (run.path / "trials" / IDS[0] / "log.txt").read_text()


def test_ctrl_c_seals_the_trial_and_resuming_repeats_only_that_one(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    with pytest.raises(KeyboardInterrupt):
        execute(run, FakeExperiment(TOLLS, fail={IDS[1]: KeyboardInterrupt()}), Quiet())
    assert [r.reason for r in run.records()] == ["", f"{INTERRUPTED}by the user"]
    again = FakeExperiment(TOLLS)
    assert execute(RunDirectory(run.path), again, Quiet())
    assert again.performed == [IDS[1] + "r", IDS[2], IDS[3]]
    records = run.records()
    assert [r.trial.id for r in records] == [IDS[0], IDS[1], IDS[1] + "r", IDS[2], IDS[3]]
    assert exit_code(records, finished=True) == 0


def test_a_run_is_complete_when_what_was_interrupted_has_been_repeated(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    with pytest.raises(KeyboardInterrupt):
        execute(run, FakeExperiment(TOLLS, fail={IDS[3]: KeyboardInterrupt()}), Quiet())
    assert len(run.records()) == len(IDS)
    assert "1 of 4 planned trials are not there yet" in read_run(run.path).notes[0]
    assert execute(run, FakeExperiment(TOLLS), Quiet())
    assert read_run(run.path).notes == ()


def test_kill_9_in_a_trial_is_recorded_on_resume(tmp_path: Path) -> None:
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_run import IDS, TOLLS, Quiet, new_run
from virtoll.fakes import FakeExperiment
from virtoll.run.execute import execute
run = new_run(Path({str(tmp_path / "r")!r}))
kill = lambda trial: os.kill(os.getpid(), 9) if trial.id == IDS[1] else None
execute(run, FakeExperiment(TOLLS, before=kill), Quiet())
"""
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ}, timeout=600)
    assert done.returncode == -signal.SIGKILL
    run = RunDirectory(tmp_path / "r")
    assert [t.id for t in run.unsealed()] == [IDS[1]]
    assert execute(run, FakeExperiment(TOLLS), Quiet())
    by_id = {r.trial.id: r for r in run.records()}
    assert by_id[IDS[1]].status == "failed"
    assert "killed in the middle" in by_id[IDS[1]].reason
    assert {name for name, r in by_id.items() if r.status == "valid"} == {IDS[0], IDS[1] + "r", IDS[2], IDS[3]}


def test_a_torn_last_line_is_cut_off_and_its_trial_is_not_counted(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    execute(run, FakeExperiment(TOLLS), Quiet())
    log = run.path / "trials.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    assert len(run.records()) == 3
    with run.writing():
        assert execute(run, FakeExperiment(TOLLS), Quiet())
    assert [r.trial.id for r in run.records()] == [*IDS, IDS[3] + "r"]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    with run.writing(), pytest.raises(StoreError, match="another virtoll is writing"), run.writing():
        pass


def test_an_existing_directory_is_never_overwritten(tmp_path: Path) -> None:
    new_run(tmp_path / "r")
    with pytest.raises(StoreError, match="already exists"):
        new_run(tmp_path / "r")


def test_a_store_error_stops_at_once_and_the_run_can_go_on_later(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    full = StoreError("No space left on device", where="trials", remedy="free space")
    with pytest.raises(StoreError):
        execute(run, FakeExperiment(TOLLS, fail={IDS[1]: full}), Quiet())
    assert len(run.records()) == 2
    assert execute(run, FakeExperiment(TOLLS), Quiet())
    assert [r.status for r in run.records()] == ["valid", "failed", "valid", "valid", "valid"]


def _announce_on_a_full_disk() -> None:
    file = os.open("/dev/full", os.O_WRONLY)
    try:
        append(file, Path("state/ledger/run.jsonl"), {"entry": 1})
    finally:
        os.close(file)


def _make_on_a_full_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "state/lab/b01-t0002")  # as mkdir(2) says it


@pytest.mark.parametrize(
    "does",
    [_announce_on_a_full_disk, _make_on_a_full_disk, lambda: LocalHost().put(Path("/dev/full"), b"a = 1")],
    ids=["ledger", "directory", "file"],
)
def test_a_full_disk_of_the_state_stops_at_once_and_the_run_can_go_on_later(tmp_path: Path, does: Any) -> None:
    """The run directory was on another: every trial that was left failed within milliseconds, for good."""
    run = new_run(tmp_path / "r")
    full = FakeExperiment(TOLLS, before=lambda trial: does() if trial.id == IDS[1] else None)
    with pytest.raises(DiskError, match=r"No space left(.|\n)*make room(.|\n)*`virtoll run RUNDIR`") as raised:
        execute(run, full, Quiet())
    assert raised.value.exit_code == 3
    assert full.performed == IDS[:2]
    assert run.records()[1].reason.startswith(INTERRUPTED)
    assert execute(run, FakeExperiment(TOLLS), Quiet())
    assert [r.status for r in run.records()] == ["valid", "failed", "valid", "valid", "valid"]
    assert run.pending() == []


def test_what_else_cannot_be_written_fails_the_trial_alone(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    broken = FakeExperiment(TOLLS, before=lambda trial: LocalHost().put(run.path, b"") if trial.id == IDS[1] else None)
    assert execute(run, broken, Quiet())
    assert [r.status for r in run.records()] == ["valid", "failed", "valid", "valid"]
    assert "Is a directory" in run.records()[1].reason


def test_no_block_is_begun_that_would_end_after_the_deadline(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    clock = FakeClock()
    experiment = FakeExperiment(TOLLS, clock=clock)  # two seconds a block
    assert not execute(run, experiment, Quiet(), deadline_s=clock() + 3.9, clock=clock)
    assert experiment.performed == IDS[:2]
    assert execute(run, experiment, Quiet(), deadline_s=clock() + 2.0, clock=clock), "a block begun is finished"
    assert exit_code(run.records(), finished=False) == 1


def test_no_block_is_begun_by_a_run_that_goes_on_that_would_end_after_the_deadline(tmp_path: Path) -> None:
    """The first of a session was begun however little time there was: by the pace of the record, not by none."""
    run = new_run(tmp_path / "r")
    clock = FakeClock()
    experiment = FakeExperiment(TOLLS, clock=clock)
    assert not execute(run, experiment, Quiet(), deadline_s=clock() + 3.9, clock=clock)
    log = run.path / "trials.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    for record in records:  # a fake's phases take no time
        record["phases"] = [{"name": "window", "start_ns": 5, "duration_ns": 10**9}]
    log.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert not execute(run, experiment, Quiet(), deadline_s=clock() + 1.9, clock=clock)
    assert experiment.performed == IDS[:2]
    assert execute(run, experiment, Quiet(), deadline_s=clock() + 2.0, clock=clock)


def test_the_time_between_a_turn_that_was_interrupted_and_its_repeat_is_nobodys(tmp_path: Path) -> None:
    """It was taken for the turn's: twenty hours from one day to the next, and no block was ever begun."""
    run = new_run(tmp_path / "r")
    with pytest.raises(KeyboardInterrupt):
        execute(run, FakeExperiment(TOLLS, fail={IDS[1]: KeyboardInterrupt()}), Quiet())
    assert execute(run, FakeExperiment(TOLLS), Quiet())
    hour_ns = 3600 * 10**9
    records = [
        record.model_copy(
            update={
                "trial": record.trial.model_copy(update={"turn": f"turn {record.trial.block}"}),
                "phases": [Phase(name="window", start_ns=(20 if number > 1 else 0) * hour_ns, duration_ns=10**9)],
            }
        )
        for number, record in enumerate(run.records())
    ]
    assert [record.trial.id for record in records][:3] == [IDS[0], IDS[1], IDS[1] + "r"]
    pace_s = _trial_s(records)
    assert pace_s is not None
    assert pace_s < 2


def test_the_pace_is_that_of_trials_where_a_run_goes_on_in_the_middle_of_a_block(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    with pytest.raises(KeyboardInterrupt):
        execute(run, FakeExperiment(TOLLS, fail={IDS[1]: KeyboardInterrupt()}), Quiet())
    clock = FakeClock()
    experiment = FakeExperiment(TOLLS, clock=clock)  # a second of the first block is left, and the next takes two
    assert not execute(run, experiment, Quiet(), deadline_s=clock() + 2.9, clock=clock)
    assert experiment.performed == [IDS[1] + "r"]


def test_damage_is_told_with_its_place(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    execute(run, FakeExperiment(TOLLS), Quiet())
    log = run.path / "trials.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("\n".join([lines[0].replace('"valid"', '"fine"'), *lines[1:]]) + "\n")
    with pytest.raises(StoreError, match=r"trials.jsonl:1.*\n?.*status"):
        run.records()


def _tidying_fails_after_ctrl_c(error: Exception) -> None:
    try:
        raise KeyboardInterrupt
    finally:
        raise error


@pytest.mark.parametrize("error", [PlatformError("it cannot be ended"), ValueError("a bug while undoing")])
def test_a_ctrl_c_is_not_lost_when_the_tidying_fails(tmp_path: Path, error: Exception) -> None:
    run = new_run(tmp_path / "r")
    fails = FakeExperiment(TOLLS, before=lambda t: _tidying_fails_after_ctrl_c(error) if t.id == IDS[1] else None)
    with pytest.raises(KeyboardInterrupt):
        execute(run, fails, Quiet())
    record = run.records()[-1]
    assert (record.trial.id, record.status) == (IDS[1], "failed")
    assert record.reason.startswith(INTERRUPTED)
    assert str(error) in record.reason
    assert [trial.id for trial in run.pending()] == [IDS[1] + "r", *IDS[2:]]


@pytest.mark.parametrize(
    ("notes", "what"),
    [
        ({"windows": [float("nan")]}, "measured.windows.1.values.q"),
        ({"facts": {"said": "half \ud800 a pair"}}, "surrogates"),
    ],
)
def test_what_a_guest_says_cannot_make_a_run_unreadable(tmp_path: Path, notes: dict[str, Any], what: str) -> None:
    run = new_run(tmp_path / "r")

    class Strange(FakeExperiment):
        def perform(self, trial: PlannedTrial, kept: Notes) -> Course:
            yield from super().perform(trial, kept)
            if trial.id == IDS[1]:
                values = [1.0, *notes.get("windows", [])]
                quantity = Quantity(title="t", unit="u", better="less")
                kept.measured = Measured(
                    name="p", instrument="i", headline="q", settings={}, quantities={"q": quantity},
                    facts=notes.get("facts", {}), notes=[],
                    windows=[Window(start_ns=0, duration_ns=1, work=1, values={"q": value}) for value in values],
                )  # fmt: skip

    assert execute(run, Strange(TOLLS), Quiet())
    records = run.records()
    assert [record.status for record in records] == ["valid", "failed", "valid", "valid"]
    assert "cannot be written down" in records[1].reason
    assert what in records[1].reason


class Deaf(Quiet):
    """Its reader goes away at the first ``what``."""

    def __init__(self, what: str, error: Exception) -> None:
        super().__init__()
        self.what, self.error = what, error

    def _tell(self, what: str) -> None:
        if what == self.what:
            raise self.error

    def trial_started(self, trial: PlannedTrial) -> None:
        self._tell("started")

    def phase(self, trial: PlannedTrial, name: str) -> None:
        self._tell("phase")

    def trial_sealed(self, record: TrialRecord) -> None:
        super().trial_sealed(record)
        self._tell("sealed")


@pytest.mark.parametrize(("what", "done"), [("started", 0), ("phase", 1), ("sealed", 1)])
def test_a_reader_that_goes_away_spoils_no_trial_and_the_run_can_go_on(tmp_path: Path, what: str, done: int) -> None:
    run = new_run(tmp_path / "r")
    with pytest.raises(UnheardError, match=r"Broken pipe(.|\n)*goes on") as raised:
        execute(run, FakeExperiment(TOLLS), Deaf(what, BrokenPipeError(errno.EPIPE, "Broken pipe")))
    assert raised.value.exit_code == 130
    assert [record.status for record in run.records()] == ["valid"] * done
    assert execute(run, FakeExperiment(TOLLS), Quiet())
    assert [(r.trial.id, r.status) for r in run.records()] == [(name, "valid") for name in IDS]


def test_a_reporters_own_fault_is_told_as_it_is_and_after_the_trial(tmp_path: Path) -> None:
    run = new_run(tmp_path / "r")
    with pytest.raises(ZeroDivisionError):
        execute(run, FakeExperiment(TOLLS), Deaf("phase", ZeroDivisionError("a bug")))
    assert [record.status for record in run.records()] == ["valid"]
