"""A programme of probes: as a study file writes it, as a plan orders it, as an experiment performs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from virtoll.agent import ClockOffset, StreamTimeoutError
from virtoll.catalogue import catalogue
from virtoll.errors import AgentError, StudyError
from virtoll.lab.others import Look
from virtoll.monitor import Monitor
from virtoll.probes.base import Place, ProbeError, ProbeResult, Timed, probes
from virtoll.probes.bulk import BulkSettings
from virtoll.probes.connect import ConnectSettings
from virtoll.probes.disk import DiskSettings
from virtoll.probes.native import AS_LONG_AS_ASKED, NativeProbe, arguments, parse, proved
from virtoll.record.model import Arm, Check, NeighbourRecord, PlannedTrial, Quantity, Window
from virtoll.run import execute
from virtoll.run.single import ProbeRequest, _study_text
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.study.plan import make_plan
from virtoll.trial import audit, disturbance, experiment, limits, proofs, subjects
from virtoll.trial.deployer import Deployer
from virtoll.trial.experiment import LabExperiment, _aside
from virtoll.trial.notes import Notes, to_the_end
from virtoll.trial.subjects import ProbedInstance
from virtoll.trial.treatment import Probed, make_probe

STUDY = """\
name = "small"
blocks = 2
seed = 5
[limits]
memory = "64 MiB"
[[probes]]
name = "clock"
windows = 2
time = ["10 ms", "20 ms"]
[[arms]]
platform = "native"
[[arms]]
platform = "lxc"
"""


def read(text: str = STUDY) -> Study:
    return read_study(text, "my.toml", catalogue())


def problems(text: str) -> list[str]:
    with pytest.raises(StudyError) as caught:
        read(text)
    return [str(problem) for problem in caught.value.problems]


LINPACK = STUDY.replace('name = "clock"\nwindows = 2\ntime = ["10 ms", "20 ms"]', 'name = "linpack"\n{}')


def test_a_list_is_a_case_for_each_of_its_values() -> None:
    study = read(LINPACK.format("order = [100, 200]\nthreads = [1, 2]\nwindows = 5"))
    assert [case.condition for case in study.programme] == [
        {"probe": "linpack", "linpack.order": order, "linpack.threads": threads}
        for order in (100, 200)
        for threads in (1, 2)
    ]
    assert all(case.settings["windows"] == 5 for case in study.programme)
    assert (
        study.case({"linpack.threads": 2, "probe": "linpack", "linpack.order": 100, "limits.vcpus": 1}).settings[
            "threads"
        ]
        == 2
    )


def test_of_one_probe_every_case_names_what_any_table_sets() -> None:
    text = LINPACK.format("order = 100") + '[[probes]]\nname = "linpack"\nthreads = 2\n'
    assert [case.condition for case in read(text).programme] == [
        {"probe": "linpack", "linpack.order": 100, "linpack.threads": 0},
        {"probe": "linpack", "linpack.order": 1000, "linpack.threads": 2},
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (STUDY.replace('"clock"', '"clok"'), "my.toml:7: no probe is called 'clok'; did you mean 'clock'?"),
        (LINPACK.format("oder = 100"), "my.toml:8: unknown key 'oder'; did you mean 'order'?"),
        (LINPACK.format("order = [100, -1]"), "my.toml:8: order: "),
        (LINPACK.format("order = []"), "my.toml:8: order has no value"),
        (STUDY, "my.toml:7: this case of clock is there already"),  # two times, nothing to tell them apart
        (STUDY + '[service]\nname = "squid"\n', "my.toml:14: a study of [[probes]] has no [service]"),
        (STUDY.replace("[[probes]]", "[probes]"), "my.toml:1: probes is no table"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, told: str) -> None:
    assert any(problem.startswith(told) for problem in problems(text)), problems(text)


GOOD = STUDY.replace('["10 ms", "20 ms"]', '"10 ms"') + '[[probes]]\nname = "linpack"\norder = [100, 200, 300]\n'


def planned(study: Study) -> list[PlannedTrial]:
    arms = [entry.arm for entry in study.arms]
    return make_plan(study, arms, {"native": 1.0, "lxc": 1.0}).trials


def test_a_deployment_holds_every_case_once_in_an_order_of_its_own() -> None:
    trials = planned(read(GOOD))
    deployments: dict[str, list[PlannedTrial]] = {}
    for trial in trials:
        deployments.setdefault(trial.deployment, []).append(trial)
    assert len(deployments) == 2 * 3  # blocks; native twice, and lxc
    cases = {(trial.condition["probe"], trial.condition.get("linpack.order")) for trial in trials}
    for members in deployments.values():
        assert [trial.position for trial in members] == list(range(members[0].position, members[0].position + 4))
        assert len({(trial.arm.label, trial.block) for trial in members}) == 1
        assert {(trial.condition["probe"], trial.condition.get("linpack.order")) for trial in members} == cases
    orders = {tuple(trial.condition.get("linpack.order") for trial in members) for members in deployments.values()}
    assert len(orders) > 1


# -- the experiment, on doubles of what is around it ------------------------------------------------------

Run = Callable[[Place], ProbeResult]


class Doubles:
    """A deployer and a monitor that write down what is asked of them; probes that do as they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.lab = None
        self.outcomes: dict[int, BaseException] = {}  # by the position of the trial
        self.at = 0
        self.lives = True
        self.watched_inside: list[bool] = []
        self.offsets: tuple[ClockOffset, ClockOffset | None] = (ClockOffset(0, 0), ClockOffset(0, 0))
        monkeypatch.setattr(proofs, "_END_S", 0.0)
        monkeypatch.setattr(experiment, "shaped", lambda *_: nullcontext())
        monkeypatch.setattr(experiment, "hogs", lambda *_: nullcontext())
        monkeypatch.setattr(experiment, "losses", lambda _lab: {})
        monkeypatch.setattr(disturbance, "_look", lambda *_: Look(0, None, 1))
        monkeypatch.setattr(experiment, "instance_cpus", lambda *_: frozenset({0}))
        monkeypatch.setattr(ProbedInstance, "_result", lambda _subject: self.measured())
        monkeypatch.setattr(limits, "of_limits", self.of_limits)
        for name in ("of_watching", "of_clock", "of_cpu_limit", "of_life"):
            monkeypatch.setattr(proofs, name, lambda *_: None)

    def measured(self) -> ProbeResult:
        self.log.append(f"probe {self.at}")
        if self.at in self.outcomes:
            raise self.outcomes[self.at]
        return ProbeResult(
            "double 1", [Window(start_ns=2_000, duration_ns=10, work=1, values={"read_ns": 5.0, "gflops": 2.0})]
        )

    def first(self, stack: Any, trial: PlannedTrial, *_: Any) -> Any:
        self.log.append(f"deploy {trial.deployment}")
        stack.callback(lambda: self.log.append(f"end {trial.deployment}"))
        return SimpleNamespace(
            limits=trial.arm.label,
            image=SimpleNamespace(digest=""),
            is_running=self.is_running,
            platform="double",
            accounting=SimpleNamespace(cgroup="g"),
            kernel_counts=dict,
        )

    @contextmanager
    def deployed(self, name: str, *_: Any, **__: Any) -> Iterator[Any]:
        self.log.append("another")
        yield SimpleNamespace(limits=None, image=SimpleNamespace(digest=""))
        self.log.append("another ended")

    def is_running(self) -> bool:
        return self.lives

    def of_limits(self, *_: Any) -> frozenset[str]:
        self.log.append("limits")
        return limits.ALL

    def client(self, _name: str, *, of: Any = None) -> None:
        return None

    def read_clock(self, _instance: Any) -> None: ...

    def start(self, *_: Any, inside: bool, **__: Any) -> None:
        self.watched_inside.append(inside)

    def mark(self) -> None: ...

    def collect(self, *, may_be_silent: bool = False) -> Any:
        if may_be_silent:
            self.log.append("collected from one that may be silent")
        return SimpleNamespace(outside=[], inside=None, offset_before=self.offsets[0], offset_after=self.offsets[1])


@pytest.fixture(autouse=True)
def unaudited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double's instance has nothing that could be read."""
    monkeypatch.setattr(audit, "first", lambda *_: None)


def perform(doubles: Doubles, study: Study, pending: Sequence[PlannedTrial], tmp_path: Path) -> Iterator[Notes]:
    deployer, monitor = cast(Deployer, doubles), cast(Monitor, doubles)
    lab = LabExperiment(study, deployer, monitor, pending)
    for trial in pending:
        doubles.at = trial.position
        notes = Notes(tmp_path, lambda _name: None)
        try:
            to_the_end(lab.perform(trial, notes))
        except (ProbeError, AgentError) as error:
            doubles.log.append(type(error).__name__)
        yield notes
    lab.end()


@contextmanager
def one_arm() -> Iterator[tuple[Study, list[PlannedTrial]]]:
    study = read(GOOD)
    yield study, [trial for trial in planned(study) if trial.arm.role == "baseline"]


def test_an_instance_is_made_once_and_ended_with_its_last_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    doubles = Doubles(monkeypatch)
    with one_arm() as (study, trials):
        notes = list(perform(doubles, study, trials, tmp_path))
    first, second = dict.fromkeys(trial.deployment for trial in trials)
    told = [f"probe {trial.position}" for trial in trials]
    assert doubles.log == [
        *[f"deploy {first}", "another", "limits", "another ended", *told[:4], f"end {first}"],
        *[f"deploy {second}", *told[4:], f"end {second}"],  # an arm's limits are proved once
    ]
    assert all(note.measured is not None for note in notes)
    assert doubles.watched_inside == [False] * len(trials), "the probe itself uses the channel to the inside"


def test_a_probe_that_cannot_measure_leaves_the_instance_to_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    doubles = Doubles(monkeypatch)
    with one_arm() as (study, trials):
        doubles.outcomes = {trials[1].position: ProbeError("no O_DIRECT here", kind="direct-io")}
        notes = list(perform(doubles, study, trials[:4], tmp_path))
    assert sum(line.startswith("deploy") for line in doubles.log) == 1
    assert doubles.log[-1].startswith("end")
    assert [note.measured is None for note in notes] == [False, True, False, False]


def test_an_instance_that_died_is_ended_and_the_next_trial_gets_a_new_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    doubles = Doubles(monkeypatch)
    with one_arm() as (study, trials):
        doubles.outcomes = {trials[1].position: AgentError("the stream ended")}
        list(perform(doubles, study, trials[:4], tmp_path))
    name, told = trials[0].deployment, [f"probe {trial.position}" for trial in trials]
    assert doubles.log == [
        *[f"deploy {name}", "another", "limits", "another ended", *told[:2], f"end {name}", "AgentError"],
        *[f"deploy {name}", *told[2:4], f"end {name}"],
    ]


def test_while_a_limit_does_not_bite_every_trial_of_the_arm_tries_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    doubles = Doubles(monkeypatch)
    with one_arm() as (study, trials):
        monkeypatch.setattr(limits, "of_limits", lambda *_: set())
        list(perform(doubles, study, trials[:3], tmp_path))
    assert doubles.log.count("another") == 3


def test_a_failure_of_the_last_trial_ends_the_instance_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    doubles = Doubles(monkeypatch)
    with one_arm() as (study, trials):
        doubles.outcomes = {trials[3].position: ProbeError("the disk is full", kind="space")}
        list(perform(doubles, study, trials[:4], tmp_path))
    assert doubles.log[-2:] == [f"end {trials[0].deployment}", "ProbeError"]


def test_a_report_without_the_probes_quantities_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    doubles = Doubles(monkeypatch)
    monkeypatch.setattr(
        ProbedInstance,
        "_result",
        lambda _subject: ProbeResult("double 1", [Window(start_ns=0, duration_ns=10, work=1, values={"other": 1.0})]),
    )
    with one_arm() as (study, trials):
        (notes,) = perform(doubles, study, trials[:1], tmp_path)
    assert notes.measured is None
    assert "ProbeError" in doubles.log


def parse_error() -> ProbeError:
    """That of a probe that was killed, as an OOM killer kills it."""
    with pytest.raises(ProbeError) as caught:
        parse("clock", -9, b"", b"")
    return caught.value


# -- a probe as a victim ----------------------------------------------------------------------------------


def victims_notes(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    doubles: Doubles,
    error: Exception | None,
    *,
    began: bool = True,
    trials: int = 1,
    harmed: bool = False,
    **did: Any,
) -> Notes:
    """What is noted of one trial beside a neighbour that ``did`` so; ``error`` is what measuring it ends in."""

    @contextmanager
    def beside(*told: Any) -> Iterator[Callable[..., None]]:
        start_ns = 1_000 if began else None
        at_work = {"start_ns": start_ns, "end_ns": 9_000 if began else None, "ended": "time" if began else "refused"}
        try:
            yield lambda **_: None
        finally:
            told[4].neighbour = NeighbourRecord(aggressor="fork", settings={}, reason="no room", **(at_work | did))
            if harmed:
                told[4].outcome = "host harmed"

    monkeypatch.setattr(experiment, "beside", beside)
    study = read(GOOD + '[neighbour]\naggressor = "fork"\nduration = "10 s"\n')
    chosen = [trial for trial in planned(study) if trial.arm.role == "baseline"][:trials]
    doubles.outcomes = {} if error is None else {chosen[0].position: error}
    first, *_ = perform(doubles, study, chosen, tmp_path)
    return first


@pytest.mark.parametrize("kind", ["refused", "system", "direct-io", "huge-pages"])
def test_a_probes_own_failure_is_no_harm_of_the_victims(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    doubles = Doubles(monkeypatch)
    notes = victims_notes(monkeypatch, tmp_path, doubles, ProbeError("of another form", kind=kind))
    assert notes.outcome is None
    assert doubles.log[-1] == "ProbeError"  # the trial failed


@pytest.mark.parametrize("error", [ProbeError("no peer", kind="peer"), AgentError("no end"), parse_error()])
@pytest.mark.parametrize(("lives", "outcome"), [(True, "did not answer"), (False, "victim died")])
def test_what_became_of_a_victim_is_a_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, lives: bool, outcome: str
) -> None:
    doubles = Doubles(monkeypatch)
    doubles.lives = lives
    notes = victims_notes(monkeypatch, tmp_path, doubles, error)
    assert notes.outcome == outcome
    assert notes.facts["no figures"] == str(error)
    assert "collected from one that may be silent" in doubles.log
    assert not doubles.log[-1].endswith("Error")


def interrupted_then(error: Exception) -> Exception:
    """``error``, as a tidying raises it that a Ctrl-C has led to."""
    try:
        try:
            raise KeyboardInterrupt
        finally:
            raise error
    except Exception as told:
        return told


@pytest.mark.parametrize("error", [ProbeError("no peer", kind="peer"), AgentError("no end")])
def test_a_ctrl_c_that_a_tidying_hides_is_no_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    doubles = Doubles(monkeypatch)
    notes = victims_notes(monkeypatch, tmp_path, doubles, interrupted_then(error))
    assert notes.outcome is None
    assert doubles.log[-1] == type(error).__name__  # it goes on up, to where its context is looked at


@pytest.mark.parametrize(
    ("error", "silent"),
    [(StreamTimeoutError("no answer within 30 s"), False), (ProbeError("no peer", kind="peer"), True)],
)
def test_an_instance_whose_stream_broke_is_not_given_to_the_next_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, silent: bool
) -> None:
    doubles = Doubles(monkeypatch)
    doubles.offsets = (ClockOffset(0, 0), None if silent else ClockOffset(0, 0))
    notes = victims_notes(monkeypatch, tmp_path, doubles, error, trials=2)
    assert notes.outcome == "did not answer"
    assert [line.split()[0] for line in doubles.log if line.startswith(("deploy", "end"))][:3] == [
        "deploy",
        "end",
        "deploy",
    ]


def test_an_instance_may_end_a_moment_after_its_stream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    doubles, looks = Doubles(monkeypatch), iter([True, True])
    monkeypatch.setattr(proofs, "_END_S", 60.0)
    monkeypatch.setattr(doubles, "is_running", lambda: next(looks, False))
    notes = victims_notes(monkeypatch, tmp_path, doubles, AgentError("the stream ended"))
    assert notes.outcome == "victim died"


@pytest.mark.parametrize("lives", [True, False])
def test_beside_a_harmed_host_a_victim_is_ended_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, lives: bool
) -> None:
    """The host is told first, and the next trial gets an instance that nothing has happened to."""
    doubles = Doubles(monkeypatch)
    doubles.lives = lives
    notes = victims_notes(monkeypatch, tmp_path, doubles, AgentError("no end"), trials=2, harmed=True)
    assert notes.outcome == "host harmed"
    assert notes.facts["no figures"] == "no end"
    assert len([line for line in doubles.log if line.startswith("deploy")]) == 2


def test_a_victim_that_did_not_answer_is_ended_and_one_that_did_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for told, outcome, times in ((AgentError("no end"), "did not answer", 2), (None, "answered", 1)):
        doubles = Doubles(monkeypatch)
        notes = victims_notes(monkeypatch, tmp_path, doubles, told, trials=2)
        assert notes.outcome == outcome
        assert len([line for line in doubles.log if line.startswith("deploy")]) == times


def deployed(doubles: Doubles) -> int:
    return len([line for line in doubles.log if line.startswith("deploy")])


@pytest.mark.parametrize(("began", "harmed", "times"), [(True, False, 2), (False, True, 2), (False, False, 1)])
def test_where_a_probe_itself_failed_nobody_knows_what_its_neighbour_did_to_the_victim(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, began: bool, harmed: bool, times: int
) -> None:
    """And such an instance is not left to the next neighbour."""
    doubles, failed = Doubles(monkeypatch), ProbeError("refused", kind="refused")
    victims_notes(monkeypatch, tmp_path, doubles, failed, began=began, harmed=harmed, trials=2)
    assert deployed(doubles) == times


def test_a_probes_victim_of_which_a_trial_is_invalid_is_not_left_to_the_next_neighbour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As docs/ISOLATION.md has it of any victim; without neighbours a probe's proofs are of its own work."""
    doubles = Doubles(monkeypatch)
    monkeypatch.setattr(proofs, "of_life", lambda notes, *_: notes.check("the instance lived to the end", False, ""))
    notes = victims_notes(monkeypatch, tmp_path, doubles, None, trials=2)
    assert notes.outcome == "answered"
    assert deployed(doubles) == 2


@pytest.mark.parametrize("began", [True, False])
def test_a_victim_that_gave_figures_must_live_to_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, began: bool
) -> None:
    of_life = proofs.of_life
    doubles = Doubles(monkeypatch)
    monkeypatch.setattr(proofs, "of_life", of_life)
    doubles.lives = False
    notes = victims_notes(monkeypatch, tmp_path, doubles, None, began=began)
    assert notes.measured is not None
    assert [check.name for check in notes.checks if check.passed is False] == ["the instance lived to the end"]


@pytest.mark.parametrize(
    ("began", "harmed", "outcome", "passed"),
    [
        (True, False, "did not answer", None),
        (True, True, "host harmed", None),
        (False, False, None, False),
    ],
)
def test_what_a_neighbour_has_its_victim_lose_is_an_outcome_and_no_broken_proof(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, began: bool, harmed: bool, outcome: str | None, passed: Any
) -> None:
    """Its trial was invalid, and in no figure: those in which it lost nothing told of protection."""
    doubles = Doubles(monkeypatch)
    checks = [
        Check(name=subjects.LOST, passed=False, detail="9 of 1000"),
        Check(name="else", passed=True, detail=""),
    ]
    result = replace(doubles.measured(), checks=checks)
    monkeypatch.setattr(ProbedInstance, "_result", lambda _subject: result)
    notes = victims_notes(monkeypatch, tmp_path, doubles, None, began=began, harmed=harmed, trials=2)
    assert notes.outcome == outcome
    first, second, *_ = notes.checks
    assert (first.passed, first.detail, second.passed) == (passed, "9 of 1000", True)
    assert notes.measured is not None
    assert deployed(doubles) == 2  # what was harmed is not left to the next neighbour


@pytest.mark.parametrize(("lost", "passed"), [(True, None), (False, False)])
def test_a_victim_that_lost_answers_may_outlast_its_neighbour(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, lost: bool, passed: bool | None
) -> None:
    """A datagram that is lost is waited for, a second each: such a trial was invalid all the same."""
    doubles = Doubles(monkeypatch)
    result = replace(doubles.measured(), checks=[Check(name=subjects.LOST, passed=not lost, detail="")])
    monkeypatch.setattr(ProbedInstance, "_result", lambda _subject: result)
    notes = victims_notes(monkeypatch, tmp_path, doubles, None, end_ns=2_005)
    (check,) = (check for check in notes.checks if check.name == "the neighbour was at work in every window")
    assert (check.passed, notes.outcome) == (passed, "did not answer" if lost else "answered")


def test_a_victim_of_which_no_time_is_told_for_what_it_lost_did_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    doubles = Doubles(monkeypatch)
    lost = Quantity("Lost", "%", None)
    window = Window(start_ns=2_000, duration_ns=10, work=1, values={"lost_percent": 90.0})
    for probe in probes().values():
        monkeypatch.setattr(probe, "quantities", {**probe.quantities, "lost_percent": lost})
    monkeypatch.setattr(ProbedInstance, "_result", lambda _subject: ProbeResult("double 1", [window]))
    assert victims_notes(monkeypatch, tmp_path, doubles, None).outcome == "did not answer"


def test_a_victim_that_answers_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notes = victims_notes(monkeypatch, tmp_path, Doubles(monkeypatch), None)
    assert notes.outcome == "answered"
    assert notes.measured is not None


@pytest.mark.parametrize(
    ("did", "passed", "told"),
    [
        ({}, True, "began 1 us before"),  # the window: 2000 to 2010
        ({"start_ns": 2_000, "end_ns": 2_010}, True, ""),
        ({"start_ns": 2_001}, False, "it began 1 ns after the first did"),
        ({"end_ns": 2_009, "ended": "killed"}, False, "it ended (killed) 1 ns before the last did: no room"),
        ({"end_ns": None, "ended": "killed", "stopped_by": "agent"}, True, ""),  # it lived when it was stopped
        ({"end_ns": None, "ended": "killed", "stopped_by": "itself"}, None, "not known when it ended: no room"),
        ({"end_ns": None, "ended": "killed", "stopped_by": "host"}, None, "not known when it ended: no room"),
    ],
)
def test_the_aggressor_is_proved_to_have_been_at_work_in_every_window(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, did: dict[str, Any], passed: bool | None, told: str
) -> None:
    notes = victims_notes(monkeypatch, tmp_path, Doubles(monkeypatch), None, **did)
    (check,) = (check for check in notes.checks if check.name == "the neighbour was at work in every window")
    assert check.passed is passed
    assert told in check.detail


@pytest.mark.parametrize(
    ("before", "after", "inside", "passed"),
    [(1_000, 1_000, True, True), (1_001, 1_000, True, False), (0, -6_991, True, False), (1_001, 0, False, True)],
)
def test_windows_are_held_against_the_aggressor_by_the_clock_where_the_probe_ran(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, before: int, after: int, inside: bool, passed: bool
) -> None:
    """The window is 2000 to 2010 by that clock, the aggressor's time 1000 to 9000 by the host's."""
    doubles = Doubles(monkeypatch)
    doubles.offsets = (ClockOffset(before, 0), ClockOffset(after, 0))
    for probe in probes().values():
        monkeypatch.setattr(probe, "timed_inside", inside)
    notes = victims_notes(monkeypatch, tmp_path, doubles, None)
    assert [check.passed for check in notes.checks] == [passed]


def test_which_clock_a_probe_runs_by() -> None:
    inside = {name for name, probe in probes().items() if probe.timed_inside}
    assert {"clock", "linpack", "memory", "ping", "flow"} <= inside
    assert not {"round-trip", "connect", "bulk", "boot", "idle", "density", "transfer", "fork-bomb"} & inside


def test_a_harmed_host_is_the_result_and_no_broken_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notes = Notes(tmp_path, lambda _name: None, outcome="host harmed")
    notes.neighbour = NeighbourRecord(aggressor="fork", settings={}, start_ns=1, end_ns=2, ended="killed")
    proofs.of_neighbour(notes, [Window(start_ns=3, duration_ns=1, work=1)], [0])
    assert notes.checks == []


def test_beside_a_neighbour_that_never_began_nothing_is_its_harm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    doubles = Doubles(monkeypatch)
    notes = victims_notes(monkeypatch, tmp_path, doubles, AgentError("the stream ended"), began=False)
    assert notes.outcome is None
    assert doubles.log[-1] == "AgentError"
    assert victims_notes(monkeypatch, tmp_path, Doubles(monkeypatch), None, began=False).outcome is None


def test_what_fails_on_our_side_is_no_harm_of_the_victims(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    doubles = Doubles(monkeypatch)

    def broken(**_: Any) -> Any:
        raise AgentError("the monitor's agent on the host: the stream has ended")

    monkeypatch.setattr(doubles, "collect", broken)
    notes = victims_notes(monkeypatch, tmp_path, doubles, None)
    assert notes.outcome is None
    assert doubles.log[-1] == "AgentError"


# -- a probe by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["0100", ".5", "5.", "infinity", "", "1\nwindows = 9", "[1, 2]", "2024-01-01"])
def test_what_is_no_number_of_a_study_file_is_a_word_and_not_its_syntax(value: str) -> None:
    request = ProbeRequest("linpack", {"order": value})
    with pytest.raises(StudyError, match=r"order: .* is not a whole number"):
        read(_study_text(request))


def test_numbers_and_words_are_what_they_are_in_a_study_file() -> None:
    request = ProbeRequest("linpack", {"order": "200", "isa": "avx2", "time": "2s"})
    settings = read(_study_text(request)).programme[0].settings
    assert (settings["order"], settings["isa"], settings["time_ns"]) == (200, "avx2", 2_000_000_000)


@pytest.mark.parametrize(
    ("asked", "labels"),
    [
        (ProbeRequest("linpack"), ["native+host"]),
        (ProbeRequest("linpack", network="host"), ["native+host"]),
        (ProbeRequest("linpack", platform="docker", network="host"), ["native+host", "docker+host"]),
    ],
)
def test_native_as_it_usually_is_may_be_asked_for_by_its_network(asked: ProbeRequest, labels: list[str]) -> None:
    study = read(_study_text(asked))
    assert [entry.arm.label for entry in study.arms] == labels


# -- the agent's report -----------------------------------------------------------------------------------


def test_settings_become_the_agents_arguments() -> None:
    settings = read(LINPACK.format("order = 100")).programme[0].settings
    probe = make_probe(read(LINPACK.format("order = 100")).programme[0])
    words = arguments("linpack", probe.settings)
    assert words[:2] == ["probe", "linpack"]
    assert words[-1] == "--json"
    assert words[words.index("--order") + 1] == "100"
    assert words[words.index("--time-ns") + 1] == str(settings["time_ns"])


def test_a_failure_that_the_probe_reports_keeps_its_kind() -> None:
    error = b'{"error":{"kind":"direct-io","what":"no O_DIRECT","where":"/tmp/x","remedy":"another file system"}}'
    with pytest.raises(ProbeError, match=r"probe disk: /tmp/x: no O_DIRECT") as caught:
        parse("disk", 1, error, b"")
    assert caught.value.kind == "direct-io"


def test_a_probe_that_was_killed_is_told_with_its_signal() -> None:
    with pytest.raises(ProbeError, match="ended by signal 9 without a report: it said nothing"):
        parse("linpack", -9, b"", b"")


MS = 10**6


def lasted(settings: Timed, *durations_ns: int, work: int = 4) -> list[tuple[bool | None, str]]:
    """What is said of windows that lasted so long: whether they were as long as asked for, and the detail."""
    windows = [Window(start_ns=0, duration_ns=duration_ns, work=work) for duration_ns in durations_ns]
    checks = proved(
        ProbeResult("double 1", windows, checks=[Check(name="own", passed=True, detail="")]), settings
    ).checks
    assert checks[0].name == "own"
    assert all(check.name == AS_LONG_AS_ASKED for check in checks[1:])
    return [(check.passed, check.detail) for check in checks[1:]]


def test_windows_that_were_over_in_no_time_are_no_measurement() -> None:
    [(passed, told)] = lasted(ConnectSettings(), 270_000, 39 * MS, 510 * MS)
    assert passed is False
    assert told == "270 us the shortest and 510 ms the longest, of 500 ms asked for"
    assert lasted(ConnectSettings(), 249 * MS, 500 * MS)[0][0] is False
    assert lasted(ConnectSettings(), 20_000, work=1)[0][0] is False  # one connection


def test_windows_of_about_the_time_or_longer_are() -> None:
    assert lasted(ConnectSettings(), 250 * MS, 5_000 * MS)[0][0] is True
    assert lasted(BulkSettings(), 400 * MS)[0][0] is True


def test_of_a_window_of_one_whole_pass_or_of_hardly_a_moment_nobody_says_that_it_was_short() -> None:
    assert lasted(DiskSettings(), 100 * MS, work=1)[0][0] is None
    assert lasted(DiskSettings(), 100 * MS, work=2)[0][0] is False
    assert lasted(ConnectSettings(time_ns=2 * MS), 1 * MS // 4)[0][0] is None


def test_neither_fixed_work_nor_a_flood_has_a_time_that_was_asked_for() -> None:
    assert lasted(ConnectSettings(work=4), 1) == []
    assert lasted(BulkSettings(protocol="udp"), 1) == []


def test_a_probe_that_runs_inside_proves_how_long_its_windows_were() -> None:
    said = (
        b'{"version":"1","facts":{},"checks":[],"notes":[],'
        b'"windows":[{"start_ns":0,"duration_ns":1000,"work":9,"values":{"read_ns":1.0}}]}'
    )
    agent = SimpleNamespace(run=lambda *_, **__: SimpleNamespace(returncode=0, stdout=said, stderr=b""))
    place = cast("Place", SimpleNamespace(instance=SimpleNamespace(agent=agent)))
    clock = probes()["clock"]
    assert issubclass(clock, NativeProbe)
    assert [(check.name, check.passed) for check in clock().run(place).checks] == [(AS_LONG_AS_ASKED, False)]


def test_what_waits_after_a_failed_probe_is_stopped_as_well(tmp_path: Path) -> None:
    """Two arms' probes in turn, one of which cannot measure: its guest is kept for the next case, and runs on."""
    running: dict[str, bool] = {}
    seen: list[dict[str, bool]] = []

    def guest(name: str) -> Any:
        @contextmanager
        def stopped() -> Iterator[None]:
            running[name] = False
            try:
                yield
            finally:
                running[name] = True

        return SimpleNamespace(stopped=stopped)

    class Double(LabExperiment):
        def perform(self, trial: Any, notes: Any) -> Any:
            place = SimpleNamespace(instance=guest(trial.arm.label))
            self._held = cast(Any, SimpleNamespace(stack=SimpleNamespace(close=lambda: None), place=place))
            return super().perform(trial, notes)

        def _deployed(self, *_: Any) -> Any:
            return SimpleNamespace(facts={}, believes={}, place=SimpleNamespace(instance=None))

        @contextmanager
        def _subject(self, *_: Any) -> Iterator[Any]:
            yield None

        def _measure(self, _place: Any, _subject: Any, treatment: Any, trial: Any, _notes: Any) -> Any:
            running[trial.arm.label] = True
            yield from _aside(guest(trial.arm.label), treatment)
            seen.append(dict(running))
            if len(seen) == 1:
                raise ProbeError("cannot measure", kind="system")
            yield from _aside(guest(trial.arm.label), treatment)

    treatment = SimpleNamespace(work=Probed(cast(Any, None), cast(Any, None)), rotation=object())
    arms = [Arm(label=label, platform="double", network="host") for label in "ab"]
    trials = [
        PlannedTrial(id=arm.label, block=1, position=1, arm=arm, condition={}, turn="t", deployment=arm.label)
        for arm in arms
    ]
    later = [one.model_copy(update={"id": f"{one.id}2"}) for one in trials]
    doubles = {
        one.arm.label: Double(cast(Any, None), cast(Any, None), cast(Any, None), [one, two])
        for one, two in zip(trials, later, strict=True)
    }
    each = SimpleNamespace(perform=lambda one, notes: doubles[one.arm.label].perform(one, notes))
    directory = SimpleNamespace(trial_directory=lambda _: tmp_path, seal=lambda *_: [], write_log=lambda *_: None)
    reporter = SimpleNamespace(phase=lambda *_: None, trial_sealed=lambda _: None)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(experiment, "treatment_of", lambda *_: treatment)
        patched.setattr(experiment, "of_block", lambda one, _block: one)
        patched.setattr(proofs, "of_slices", lambda *_: True)
        patched.setattr(limits, "prove_beside", lambda *_: None)
        patched.setattr(limits, "note_kernel_counts", lambda *_: None)
        execute.run_turn(cast(Any, directory), cast(Any, each), cast(Any, reporter), trials)
    assert [sum(one.values()) for one in seen] == [1, 1], "who measures runs, and nobody else"
