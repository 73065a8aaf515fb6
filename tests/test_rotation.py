"""Rotation: arms that stand beside each other, measured in turn, from the study file to the ratio; on fakes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quiet import Quiet
from virtoll.agent import ClockOffset
from virtoll.analysis.ratios import log_ratios, toll_table
from virtoll.catalogue import catalogue
from virtoll.errors import HostError, PlatformError, StudyError
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.hosts.ledger import ElsewhereError
from virtoll.hosts.local import LocalHost
from virtoll.loads.base import added
from virtoll.monitor import Watched
from virtoll.record.model import Arm, Events, Measured, PlannedTrial, Window
from virtoll.record.store import RunDirectory
from virtoll.report.findings import Findings, find
from virtoll.run.execute import execute
from virtoll.run.stage import Stage
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.study.plan import make_plan
from virtoll.trial import proofs
from virtoll.trial.labs import InTurn
from virtoll.trial.notes import Course, Notes
from virtoll.trial.treatment import treatments

TEXT = """
name = "turns"
question = "What does docker cost here?"
design = "rotation"
blocks = 3
[rotation]
rounds = 4
[service]
name = "nginx"
[load]
name = "http"
[factors]
"load.connections" = [1, 10]
"limits.vcpus" = [1, 2]
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
"""
SECOND = 10**9


def study(text: str = TEXT) -> Study:
    return read_study(text, "turns.toml", catalogue())


def planned(text: str = TEXT) -> list[PlannedTrial]:
    arms = [entry.arm for entry in study(text).arms]
    return make_plan(study(text), arms, {"native": 1.0, "docker": 2.0}).trials


def run(path: Path, experiment: FakeExperiment, text: str = TEXT, told: Quiet | None = None) -> RunDirectory:
    arms = [entry.arm for entry in study(text).arms]
    plan = make_plan(study(text), arms, {"native": 1.0, "docker": 2.0})
    directory = RunDirectory.create(path, document.as_json(study(text)), plan, fake_environment())
    execute(directory, experiment, told or Quiet())
    return directory


# -- planned ----------------------------------------------------------------------------------------------


def test_each_turn_holds_every_arm_once_under_one_condition() -> None:
    trials = planned()
    turns: dict[str, list[PlannedTrial]] = {}
    for trial in trials:
        turns.setdefault(trial.turn, []).append(trial)
    assert len(turns) == 3 * 4
    for together in turns.values():
        assert sorted(trial.arm.label for trial in together) == ["docker+routed", "native+host", "native+host (again)"]
        assert len({str(trial.condition) for trial in together}) == 1
        positions = [trial.position for trial in together]
        assert positions == list(range(positions[0], positions[0] + 3)), "in a row: resuming begins where it ended"
    assert len({tuple(trial.arm.label for trial in together) for together in turns.values()}) > 1, "each in its order"


def test_each_treatment_is_deployed_anew_in_each_block() -> None:
    trials = planned()
    assert len({trial.deployment for trial in trials}) == len(trials) == 3 * 4 * 3


def test_the_plan_is_one_for_a_seed_and_says_how_long() -> None:
    arms = [entry.arm for entry in study().arms]
    plans = [make_plan(study(f"seed = {seed}\n{TEXT}"), arms, {"native": 1.0, "docker": 2.0}) for seed in (7, 7, 8)]
    assert plans[0] == plans[1]
    assert plans[0].trials != plans[2].trials
    a_turn_s = 3 * (1.0 + 4 * (0.25 + 0.1 + 0.06))  # warm-up, and rounds of window, lead-in and what lies between
    assert plans[0].estimate_s == pytest.approx(3 * 4 * ((1 + 1 + 2) + a_turn_s))


def test_of_blocks_nothing_changes() -> None:
    text = TEXT.replace('design = "rotation"\n', "").replace("[rotation]\nrounds = 4\n", "")
    trials = planned(text)
    assert {trial.turn for trial in trials} == {""}
    assert len({trial.deployment for trial in trials}) == len(trials)
    assert {treatment.rotation for treatment in treatments(study(text))} == {None}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TEXT.replace('"rotation"', '"circles"'), "design = 'circles' is none of blocks, rotation"),
        (TEXT.replace('design = "rotation"', 'design = "blocks"'), "[rotation] is for a study in rotation"),
        (TEXT.replace("rounds = 4", "rounds = 1"), "turns.toml:7: rounds: must be at least 2"),
    ],
)
def test_a_design_that_is_none_is_refused(text: str, told: str) -> None:
    with pytest.raises(StudyError) as caught:
        study(text)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("[background]\nhogs = 1", "the hogs of one arm would compute while others are measured"),
        ('[neighbour]\naggressor = "cpu"', "the aggressor beside one arm would be at work while others are measured"),
        ("[slices]\ncount = 2", "the slices of one arm would run while others are measured"),
        (
            '[limits]\nmemory = "900 GiB"',
            "native+host, and one more to prove the limits, may take 1800 GiB, and 64 GiB are",
        ),
        ("", "a turn would last 1,050 s, and 800 s can be watched"),
    ],
)
def test_what_cannot_wait_for_its_turn_is_refused(more: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtoll.run.readiness.Readiness.problems", lambda *_: [])
    monkeypatch.setattr("virtoll.run.groups.meminfo_bytes", lambda *_: 64 * 1024**3)
    text = f"{TEXT}\n{more}\n" if more else TEXT.replace("rounds = 4", "rounds = 1000")
    with pytest.raises(StudyError) as caught:
        Stage(study(text), LocalHost()).offered("turns.toml", tries=False)
    assert told in str(caught.value)


def test_a_host_is_not_filled_while_others_stand_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each arm's instances were as many as fit beside those of all the others, and of groups of arms beside some."""
    monkeypatch.setattr("virtoll.run.readiness.Readiness.problems", lambda *_: [])
    text = (
        'name = "dens"\ndesign = "rotation"\nblocks = 2\n[[probes]]\nname = "density"\n[[arms]]\nplatform = "native"\n'
    )
    with pytest.raises(StudyError, match="the host that density fills with instances of one arm would hold those"):
        Stage(study(text), LocalHost()).offered("turns.toml", tries=False)
    Stage(study(text.replace("rotation", "blocks")), LocalHost()).offered("turns.toml", tries=False)


# -- performed --------------------------------------------------------------------------------------------


class Watching(FakeExperiment):
    """Writes down whose window was when; what is given fails in its second round."""

    dies: str = ""
    error: BaseException = PlatformError("it died while it waited", where="docker")

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        self.order: list[str] = getattr(self, "order", [])
        self.undone: list[str] = getattr(self, "undone", [])
        try:
            for number, _ in enumerate(super().perform(trial, notes)):
                yield
                if number < self.rounds:
                    self.order.append(trial.id)
                    if trial.id == self.dies and number == 1:
                        raise self.error
        finally:
            self.undone.append(trial.id)


def test_every_round_holds_each_arm_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    experiment = Watching({"native": 1.0, "docker": 1.25})
    directory = run(tmp_path / "r", experiment)
    assert {record.status for record in directory.records()} == {"valid"}
    orders = set()
    for turn in range(12):
        windows = experiment.order[12 * turn : 12 * turn + 12]
        rounds = [tuple(windows[at : at + 3]) for at in range(0, 12, 3)]
        assert all(sorted(each) == sorted(rounds[0]) for each in rounds)
        orders |= {tuple(sorted(each).index(one) for one in each) for each in rounds}
    assert len(orders) == 6, "all orders of three come"
    for record in directory.records():
        assert record.measured is not None
        starts = [window.start_ns for window in record.measured.windows]
        assert len(starts) == 4
        assert starts == sorted(starts)


def test_one_that_dies_while_it_waits_leaves_the_others_to_go_on(tmp_path: Path) -> None:
    experiment = Watching({"native": 1.0, "docker": 1.25})
    experiment.dies = planned("seed = 3\n" + TEXT)[4].id
    directory = run(tmp_path / "r", experiment, "seed = 3\n" + TEXT)
    by_status = Counter(record.status for record in directory.records())
    assert by_status == {"valid": 35, "failed": 1}
    (failed,) = (record for record in directory.records() if record.status == "failed")
    assert failed.trial.id == experiment.dies
    assert "it died while it waited" in failed.reason
    assert sorted(experiment.undone) == sorted(trial.id for trial in directory.plan.trials)


def test_ctrl_c_in_one_window_undoes_and_seals_all_of_the_turn(tmp_path: Path) -> None:
    experiment = Watching({"native": 1.0, "docker": 1.25})
    trials = planned("seed = 3\n" + TEXT)
    experiment.dies, experiment.error = trials[4].id, KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "r", experiment, "seed = 3\n" + TEXT)
    directory = RunDirectory(tmp_path / "r")
    records = {record.trial.id: record for record in directory.records()}
    turn = [trial.id for trial in trials if trial.turn == trials[4].turn]
    assert [records[name].status for name in turn] == ["failed"] * 3
    assert records[trials[4].id].reason == "interrupted: by the user"
    assert set(experiment.undone) >= set(turn)
    assert {trial.turn for trial in directory.pending()} >= {trials[4].turn}
    assert execute(directory, FakeExperiment({"native": 1.0, "docker": 1.25}), Quiet()), "and goes on, in turn again"
    assert directory.pending() == []


# -- analysed ---------------------------------------------------------------------------------------------


def drifting(now_s: float) -> float:
    """A machine that is up to three times slower for seconds at a time."""
    return 1 + abs(math.sin(now_s / 15)) * 2


def ratios(found: Findings, arm: str) -> list[float]:
    logs = log_ratios(found.matrix, "rate_per_s")
    index = [each.label for each in found.matrix.arms].index(arm)
    return [float(value) for value in np.exp(logs[:, index, :]).ravel()]


def test_drift_that_both_meet_in_a_round_is_in_no_ratio(tmp_path: Path) -> None:
    tolls = {"native": 1.0, "docker": 1.25}
    found = find(run(tmp_path / "r", FakeExperiment(tolls, drift=drifting, rounds=12)).path)
    assert ratios(found, "docker+routed") == pytest.approx([0.8] * 12, rel=0.06)
    means = [cell.values["rate_per_s"] for cell in found.matrix.cells.values()]
    assert max(means) / min(means) > 1.5, "the rates themselves are far apart"
    toll = toll_table(found.matrix, "rate_per_s").total(next(a for a in found.matrix.arms if a.platform == "docker"))
    assert toll is not None
    assert toll.ratio is not None
    assert toll.ratio.low is not None
    assert toll.ratio.high is not None
    assert toll.ratio.low < 0.8 < toll.ratio.high


def test_an_arms_own_stalls_count_in_full(tmp_path: Path) -> None:
    """In every fourth of its windows docker does nothing: that is a quarter less, and no burst to be trimmed."""

    class Stalling(FakeExperiment):
        def _served(self, trial: PlannedTrial, noise: float) -> tuple[int, Window]:
            latency_ns, window = super()._served(trial, noise)
            self.count = getattr(self, "count", 0) + (trial.arm.platform == "docker")
            stalls = trial.arm.platform == "docker" and self.count % 4 == 0
            return latency_ns, window.model_copy(update={"work": 0.0}) if stalls else window

    found = find(run(tmp_path / "r", Stalling({"native": 1.0, "docker": 1.0})).path)
    assert ratios(found, "docker+routed") == pytest.approx([0.75] * 12, rel=0.01)


def test_no_number_of_requests_ends_a_window_so_none_is_what_its_time_is_of(tmp_path: Path) -> None:
    text = TEXT.replace('name = "http"', 'name = "http"\nrequests = 2000')
    found = find(run(tmp_path / "r", FakeExperiment({"native": 1.0, "docker": 2.0}), text).path)
    times = {cell.record.trial.arm.platform: cell.values["total_time_s"] for cell in found.matrix.cells.values()}
    assert times["docker"] == pytest.approx(2 * times["native"], rel=0.01)


def window(start_ns: int, work: float, **more: Any) -> Window:
    events = Events(
        intended=int(work) + 1, offered=int(work) + 1, completed=int(work), failures={"reset": 1}, censored=1
    )
    return Window(start_ns=start_ns, duration_ns=SECOND, work=work, cpu_ns=10**8, events={"request": events}, **more)


def test_windows_of_one_level_are_one_and_of_several_the_first() -> None:
    def measured(*windows: Window) -> Measured:
        return Measured(name="http", instrument="fake", unit="request", loop="closed", windows=list(windows))

    both = measured(window(0, 100), window(5 * SECOND, 50))
    assert (both.window.work, both.window.duration_ns, both.window.rate_per_s) == (150, 2 * SECOND, 75)
    assert both.window.cpus == 0.1
    assert both.events is not None
    assert (both.events.completed, both.events.failures, both.events.censored) == (150, {"reset": 2}, 2)
    levels = measured(window(0, 100, at=1.0), window(5 * SECOND, 50, at=2.0))
    assert levels.window == levels.windows[0]


def test_histograms_are_added_by_bucket() -> None:
    assert added([[(0, 10, 3), (10, 20, 1)], [(10, 20, 4)]]) == [(0, 10, 3), (10, 20, 5)]


# -- proved -----------------------------------------------------------------------------------------------


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path, lambda _name: None)


@pytest.mark.parametrize(
    ("between", "passed"),
    [(0.01, True), (0.2, False)],
)
def test_who_waits_is_idle(notes: Notes, between: float, passed: bool) -> None:
    """Windows of a second every three; ``between`` of a CPU is used in the two seconds that are others'."""
    usage, rows = 0.0, []
    for at in range(300):
        rows.append((at * 10**7 * 3, "instance", "cpu.usage_ns", round(usage)))
        usage += 3 * 10**7 * (1.0 if at % 100 < 34 else between)
    still = ClockOffset(0, 0)
    watched = Watched(rows, [], still, still, 9 * SECOND, 0, 0, {})
    turns_ns = [3 * n * SECOND - 10**8 for n in range(3)]
    proofs.of_idleness(notes, watched, [window(3 * n * SECOND, 1) for n in range(3)], turns_ns)
    (check,) = notes.checks
    assert check.passed is passed
    assert f"{between:.3f} CPU used between its windows" in check.detail


def test_who_still_answers_its_last_requests_has_its_turn(notes: Notes) -> None:
    """Windows of a second every three, and half a second more until the last answer."""
    rows = [
        (at * SECOND // 2, "instance", "cpu.usage_ns", (at // 6 * 3 + min(at % 6, 3)) * SECOND // 2) for at in range(18)
    ]
    still = ClockOffset(0, 0)
    watched = Watched(rows, [], still, still, 9 * SECOND, 0, 0, {})
    slow = [
        window(3 * n * SECOND, 1).model_copy(update={"until_ns": 3 * n * SECOND + 3 * SECOND // 2}) for n in range(3)
    ]
    proofs.of_idleness(notes, watched, slow, [3 * n * SECOND for n in range(3)])
    (check,) = notes.checks
    assert check.passed is True, check.detail


def test_arms_have_labels_that_tell_them_apart() -> None:
    labels = [entry.arm.label for entry in study().arms]
    assert labels == ["native+host", "native+host (again)", "docker+routed"]
    assert all(isinstance(entry.arm, Arm) for entry in study().arms)


def test_labs_are_made_anew_for_each_block_and_one_that_cannot_be_fails_its_trials_alone(tmp_path: Path) -> None:
    """A lab of the second block cannot be made: the trial that came first fails, and the next one tries again."""
    log: list[str] = []

    @contextmanager
    def lab(trials: Sequence[PlannedTrial]) -> Iterator[FakeExperiment]:
        (arm,) = {trial.arm.label for trial in trials}
        (block,) = {trial.block for trial in trials}
        log.append(f"{block} {arm}")
        if block == 2 and log.count(f"{block} {arm}") == 1 and arm == "docker+routed":
            raise HostError("no more namespaces")
        yield FakeExperiment({"native": 1.0, "docker": 1.25})
        log.append(f"{block} {arm} undone")

    arms = [entry.arm for entry in study().arms]
    plan = make_plan(study(), arms, {"native": 1.0, "docker": 2.0})
    directory = RunDirectory.create(tmp_path / "r", document.as_json(study()), plan, fake_environment())
    with ExitStack() as labs:
        execute(directory, InTurn(lab, plan.trials, labs), Quiet())
    failed = [record for record in directory.records() if record.status == "failed"]
    assert {record.trial.block for record in failed} == {2}
    assert {record.reason for record in failed} == {"no more namespaces"}
    assert 1 <= len(failed) <= 3, "who comes first tries; who comes after it finds them"
    by_block = [[line for line in log if line.startswith(f"{block} ") and "undone" not in line] for block in (1, 2, 3)]
    assert sorted(by_block[0]) == sorted(f"1 {arm.label}" for arm in arms)
    assert log.index("1 docker+routed undone") < min(log.index(line) for line in by_block[1]), "one block at a time"
    made = [line for line in log if "undone" not in line]
    assert len(made) - sum("undone" in line for line in log) == 1, "all that were made are undone"


# -- labs -------------------------------------------------------------------------------------------------


def in_two_blocks(error: Exception) -> Iterator[None]:
    """Two arms, of whose labs that of docker cannot be undone, each trial performed when it is asked for."""

    @contextmanager
    def lab(trials: Sequence[PlannedTrial]) -> Iterator[FakeExperiment]:
        yield FakeExperiment({"native": 1.0, "docker": 1.0})
        if trials[0].arm.platform == "docker":
            raise error

    pending = planned()
    with ExitStack() as labs:
        turns = InTurn(lab, pending, labs)
        for trial in pending:
            for _ in turns.perform(trial, Notes(Path("/none"), lambda _phase: None)):
                pass
            yield


def test_what_a_lab_leaves_on_another_machine_fails_no_other_arms_trial() -> None:
    left = ElsewhereError("could not be removed: ssh-directory", where="ledger", remedy="clean")
    assert len(list(in_two_blocks(left))) == len(planned())


def test_what_a_lab_leaves_here_is_in_the_next_ones_way() -> None:
    with pytest.raises(HostError, match="a namespace"):
        list(in_two_blocks(HostError("a namespace could not be removed")))
