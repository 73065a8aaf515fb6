"""Arms of a rotation that the memory does not hold at once: in groups, native in each, each paired with its own."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from on_fakes import on_fakes
from quiet import Quiet
from virtoll import cli
from virtoll.analysis.components import components_of
from virtoll.analysis.counterparts import log_ratio
from virtoll.analysis.matrix import build_matrix
from virtoll.analysis.ratios import log_ratios, toll_table
from virtoll.analysis.rounds import in_turn
from virtoll.catalogue import catalogue
from virtoll.errors import Problem, StoreError, StudyError
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.hosts.cgroup import Hierarchies
from virtoll.hosts.local import LocalHost
from virtoll.platforms.base import Platform
from virtoll.record.model import Plan, PlannedTrial
from virtoll.record.store import RunDirectory
from virtoll.report import method
from virtoll.report.findings import Findings, find
from virtoll.report.numbers import MISSING
from virtoll.report.running import RunningTable
from virtoll.report.sections.tolls import Tolls
from virtoll.report.sections.unix_index import unix_index
from virtoll.report.tables import trials_csv
from virtoll.run import groups
from virtoll.run.execute import execute
from virtoll.run.groups import Room, divided
from virtoll.run.rule import extension
from virtoll.run.stage import Stage
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.study.plan import make_plan
from virtoll.trial.labs import InTurn

TEXT = """
name = "groups"
question = "What do they cost here?"
design = "rotation"
blocks = 4
seed = 5
[rotation]
rounds = 4
[service]
name = "nginx"
[load]
name = "http"
[limits]
memory = "1 GiB"
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
[[arms]]
platform = "lxc"
"""
GIB = 1024**3
OVERHEAD_S = {"native": 1.0, "docker": 2.0, "lxc": 2.0}
NATIVE, AGAIN, DOCKER, LXC = "native+host", "native+host (again)", "docker+routed", "lxc+routed"


class SmallHost(LocalHost):
    """This machine, with so much memory free."""

    def __init__(self, free_bytes: int) -> None:
        super().__init__()
        self.free_bytes = free_bytes

    def read(self, path: Path) -> bytes:
        if path == Path("/proc/meminfo"):
            return f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {self.free_bytes // 1024} kB\n".encode()
        return super().read(path)


def study(text: str = TEXT) -> Study:
    return read_study(text, "groups.toml", catalogue())


def planned(free_bytes: int = 3 * GIB, text: str = TEXT) -> Plan:
    """Of 3 GiB native, one arm more, and the one that the limits are proved on take a GiB each."""
    arms = [entry.arm for entry in study(text).arms]
    groups = Stage(study(text), SmallHost(free_bytes)).groups(arms)
    return make_plan(study(text), arms, OVERHEAD_S, groups=groups)


def test_what_a_containers_limit_leaves_is_all_the_memory_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arms stood side by side that it does not hold, and some were killed while they were measured."""
    for name, text in {"max": f"{3 * GIB}", "current": f"{GIB}", "stat": f"file {GIB}\nshmem 0"}.items():
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    monkeypatch.setattr(groups, "hierarchies", lambda: Hierarchies(2, {"memory": tmp_path}))
    assert groups.free_bytes(SmallHost(64 * GIB)) == 3 * GIB
    assert groups.free_bytes(SmallHost(2 * GIB)) == 2 * GIB
    (tmp_path / "memory.max").unlink()  # the machine's own top
    assert groups.free_bytes(SmallHost(64 * GIB)) == 64 * GIB


def run(path: Path, experiment: FakeExperiment, plan: Plan | None = None) -> RunDirectory:
    directory = RunDirectory.create(path, document.as_json(study()), plan or planned(), fake_environment())
    execute(directory, experiment, Quiet())
    return directory


@pytest.fixture(autouse=True)
def all_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtoll.run.readiness.Readiness.problems", lambda *_: [])


# -- which --------------------------------------------------------------------------------------------------


def test_each_group_is_filled_before_the_next_is_begun_and_none_more_than_must_be() -> None:
    assert divided({"a": 1, "b": 1, "c": 1}, 3) == (("a", "b", "c"),)
    assert divided({"a": 1, "b": 1, "c": 1}, 2) == (("a", "b"), ("c",))
    assert divided({"a": 1, "b": 2, "c": 1}, 2) == (("b",), ("a", "c"))
    sizes = dict(zip("abcdef", (4, 4, 3, 3, 3, 3), strict=True))
    assert len(divided(sizes, 10)) == 2, "largest first alone would take three"
    assert divided({"a": 1, "b": 9, "c": 1}, 2) == (("b",), ("a", "c")), "what no group holds is by itself"
    assert divided({}, 2) == ()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(9, 20))
def test_no_division_has_fewer_groups(sizes: list[int], room: int) -> None:
    found = divided({str(at): size for at, size in enumerate(sizes)}, room)
    assert sorted(label for group in found for label in group) == sorted(str(at) for at in range(len(sizes)))
    assert all(sum(sizes[int(label)] for label in group) <= room for group in found)
    for places in product(range(len(found) - 1), repeat=len(sizes)):
        full = [sum(size for size, at in zip(sizes, places, strict=True) if at == place) for place in set(places)]
        assert max(full) > room


def test_many_arms_are_divided_at_once() -> None:
    assert len(divided({str(at): 10 + at % 3 for at in range(24)}, 35)) == 8


def test_arms_that_all_fit_are_in_no_group() -> None:
    plan = planned(5 * GIB)
    assert plan.groups == ()
    assert {trial.group for trial in plan.trials} == {0}
    assert len(plan.trials) == 4 * 4


def test_what_a_platform_takes_besides_counts() -> None:
    """Native, native again, docker, lxc and an emulated guest, and the one that the limits are proved on: 6 GiB."""
    text = TEXT + '[[arms]]\nplatform = "qemu-tcg"\n'
    arms = [entry.arm for entry in study(text).arms]
    assert len(Stage(study(text), SmallHost(6 * GIB)).groups(arms)) == 2
    assert Stage(study(text), SmallHost(7 * GIB)).groups(arms) == ()


def test_an_arm_on_a_machine_of_its_own_takes_no_memory_here() -> None:
    text = TEXT + '[[arms]]\nplatform = "ssh"\ndestination = "root@192.0.2.7"\n'
    arms = [entry.arm for entry in study(text).arms]
    assert Stage(study(text), SmallHost(5 * GIB)).groups(arms) == ()


# -- refused ------------------------------------------------------------------------------------------------


def test_what_does_not_fit_beside_native_is_skipped_or_refused_in_bytes() -> None:
    """A guest's own 256 MiB are too much."""
    text = TEXT + '[[arms]]\nplatform = "qemu-tcg"\noptional = true\n'
    stage = Stage(study(text), SmallHost(3 * GIB))
    arms, skipped = stage.offered("groups.toml", tries=False)
    assert [arm.label for arm in arms] == [NATIVE, AGAIN, DOCKER, LXC]
    assert len(stage.groups(arms)) == 3
    (one,) = skipped
    assert one.arm.platform == "qemu-tcg"
    assert f"{NATIVE} and {one.arm.label} side by side, and one more to prove the limits, may take 3" in one.reason
    assert "and 3 GiB are free" in one.reason
    with pytest.raises(StudyError) as caught:
        Stage(study(text.replace("optional = true\n", "")), SmallHost(3 * GIB)).offered("groups.toml", tries=False)
    (problem,) = caught.value.problems
    assert problem.where == f"groups.toml:22: {one.arm.label}"
    assert 'give less in [limits] memory, free some, or measure one arm after another: design = "blocks"' in str(
        problem
    )


def test_where_not_even_native_fits_every_arm_says_so() -> None:
    with pytest.raises(StudyError) as caught:
        Stage(study(), SmallHost(GIB)).offered("groups.toml", tries=False)
    assert len(caught.value.problems) == 4
    assert caught.value.problems[0].what == (
        f"{NATIVE}, and one more to prove the limits, may take 2 GiB, and 1 GiB are free"
    )


def test_arms_that_are_compared_with_each_other_must_all_fit() -> None:
    known = dataclasses.replace(study().arms[-1], values={"service.quota_percent": 95.0})
    calibrated = dataclasses.replace(study(), arms=(*study().arms[:-1], known))
    with pytest.raises(StudyError) as caught:
        Stage(calibrated, SmallHost(3 * GIB)).offered("calibration.toml", tries=False)
    (problem,) = caught.value.problems
    assert problem.what.startswith("4 arms side by side, and one more to prove the limits, may take 5 GiB")


def test_a_turn_is_as_long_as_its_largest_group() -> None:
    text = TEXT.replace("rounds = 4", "rounds = 700")  # 245 s an arm
    with pytest.raises(StudyError, match="a turn would last 980 s"):
        Stage(study(text), SmallHost(5 * GIB)).offered("groups.toml", tries=False)
    assert Stage(study(text), SmallHost(3 * GIB)).offered("groups.toml", tries=False)


def test_a_turn_is_that_of_the_arms_that_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulated guest makes two groups of the five arms; without it, the other four stand side by side."""
    text = TEXT.replace("rounds = 4", "rounds = 700") + '[[arms]]\nplatform = "qemu-tcg"\noptional = true\n'
    assert max(map(len, Stage(study(text), SmallHost(5 * GIB)).groups([e.arm for e in study(text).arms]))) == 2

    def problems(_: object, platform: Platform, *__: object) -> list[Problem]:
        return [Problem("qemu is not installed")] if platform.name == "qemu-tcg" else []

    monkeypatch.setattr("virtoll.run.readiness.Readiness.problems", problems)
    with pytest.raises(StudyError, match="a turn would last 980 s"):
        Stage(study(text), SmallHost(5 * GIB)).offered("groups.toml", tries=False)


# -- planned ------------------------------------------------------------------------------------------------


def test_a_host_for_two_of_four_arms_has_three_groups_with_native_in_each() -> None:
    plan = planned()
    assert plan.groups == ((AGAIN,), (DOCKER,), (LXC,))
    orders = set()
    for block in range(1, 5):
        trials = [trial for trial in plan.trials if trial.block == block]
        by_group = {group: [t for t in trials if t.group == group] for group in dict.fromkeys(t.group for t in trials)}
        orders.add(tuple(by_group))
        for number, mine in by_group.items():
            assert sorted(trial.arm.label for trial in mine) == sorted([NATIVE, *plan.groups[number - 1]])
            assert len({trial.turn for trial in mine}) == 1
            positions = [trial.position for trial in mine]
            assert positions == list(range(positions[0], positions[0] + 2)), "one group after another"
        assert len({trial.turn for trial in trials}) == 3
    assert len(orders) > 1, "in an order of its own in each block"
    assert len({trial.deployment for trial in plan.trials}) == len(plan.trials) == 4 * 6, "native anew in each"
    a_trial_s = 1.0 + 4 * (0.25 + 0.1 + 0.06)  # warm-up; rounds of window, lead-in and what lies between
    assert plan.estimate_s == pytest.approx(4 * (6 * a_trial_s + 4 * 1.0 + 2 * 2.0))


def test_conditions_are_measured_group_by_group() -> None:
    plan = planned(text=TEXT.replace("[limits]", '[factors]\n"load.connections" = [1, 10]\n[limits]'))
    for block in range(1, 5):
        groups = [trial.group for trial in plan.trials if trial.block == block]
        assert len(groups) == 3 * 2 * 2
        assert sum(one != other for one, other in pairwise(groups)) == 2, "labs are made once each"


PROGRAMME = """
name = "groups"
question = "What do they cost here?"
design = "rotation"
blocks = 2
seed = 5
[limits]
memory = "1 GiB"
[[probes]]
name = "unix-pipe"
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
[[arms]]
platform = "lxc"
"""


def probing() -> tuple[Study, Plan]:
    """A probe on all arms in three groups, and an outside instrument in its place on native."""
    told = study(PROGRAMME)
    (case,) = told.programme
    tool = dataclasses.replace(case, condition={**case.condition, "instrument": "sysbench"}, instrument="sysbench")
    told = dataclasses.replace(told, programme=(case, tool))
    arms = [entry.arm for entry in told.arms]
    return told, make_plan(told, arms, OVERHEAD_S, groups=[(AGAIN,), (DOCKER,), (LXC,)])


def test_what_native_alone_is_asked_it_is_asked_in_one_group() -> None:
    _, plan = probing()
    by_tool = [trial for trial in plan.trials if "instrument" in trial.condition]
    assert {(trial.block, trial.group, trial.arm.label) for trial in by_tool} == {(1, 1, NATIVE), (2, 1, NATIVE)}
    assert len(plan.trials) == 2 * (6 + 1)
    ours = {trial.deployment for trial in plan.trials if trial.group == 1 and trial.arm.label == NATIVE}
    assert {trial.deployment for trial in by_tool} == ours, "beside our probe, on one instance"


def test_more_blocks_have_the_same_groups_whatever_is_free_by_then() -> None:
    plan = planned()
    more = extension(plan, study(), 6)
    assert more is not None
    assert {trial.block for trial in more.trials} == {5, 6}
    whole = plan.model_copy(update={"trials": [*plan.trials, *more.trials]})
    assert whole.groups == plan.groups
    assert len(more.trials) == 2 * 6


# -- performed ----------------------------------------------------------------------------------------------


def test_labs_are_made_for_a_group_when_those_of_the_one_before_are_gone(tmp_path: Path) -> None:
    standing: set[str] = set()
    most: list[set[str]] = []

    @contextmanager
    def lab(trials: Sequence[PlannedTrial]) -> Iterator[FakeExperiment]:
        assert len({(trial.block, trial.group) for trial in trials}) == 1
        standing.add(trials[0].arm.label)
        most.append(set(standing))
        yield FakeExperiment({"native": 1.0, "docker": 1.25, "lxc": 2.0})
        standing.remove(trials[0].arm.label)

    plan = planned()
    directory = RunDirectory.create(tmp_path / "r", document.as_json(study()), plan, fake_environment())
    with ExitStack() as labs:
        execute(directory, InTurn(lab, plan.trials, labs), Quiet())
    assert {record.status for record in directory.records()} == {"valid"}
    assert len(most) == 4 * 3 * 2
    assert max(map(len, most)) == 2, "never more than the memory holds"
    assert not standing


def test_a_run_that_was_killed_goes_on_with_its_plans_groups(tmp_path: Path) -> None:
    plan = planned()
    tolls = {"native": 1.0, "docker": 1.25, "lxc": 2.0}
    stopped = FakeExperiment(tolls, fail={plan.trials[9].id: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "r", stopped, plan)
    directory = RunDirectory(tmp_path / "r")
    asked: list[tuple[int, int]] = []
    execute(directory, FakeExperiment(tolls, before=lambda t: asked.append((t.block, t.group))), Quiet())
    assert directory.plan.groups == plan.groups
    assert asked[0] == (plan.trials[9].block, plan.trials[9].group)
    found = find(directory.path)
    assert ratios(found, DOCKER) == pytest.approx([0.8] * 4, rel=1e-6)


# -- analysed -----------------------------------------------------------------------------------------------


def ratios(found: Findings, arm: str) -> list[float]:
    logs = log_ratios(found.matrix, "rate_per_s")
    return [float(value) for value in np.exp(logs[:, labels(found).index(arm), 0])]


def labels(found: Findings) -> list[str]:
    return [arm.label for arm in found.matrix.arms]


def rates(found: Findings) -> dict[tuple[int, int, str], float]:
    """By hand, from the records: work over time of all windows, by block, group and arm."""
    told = {}
    for record in found.run.records:
        assert record.measured is not None
        windows = record.measured.windows
        rate = sum(window.work for window in windows) / sum(window.duration_ns for window in windows) * 1e9
        told[record.trial.block, record.trial.group, record.trial.arm.label] = rate
    return told


def group_of(arm: str) -> int:
    return {AGAIN: 1, DOCKER: 2, LXC: 3}[arm]


def test_ratios_are_what_a_hand_computes(tmp_path: Path) -> None:
    tolls = {"native": 1.0, "docker": 1.25, "lxc": 2.0}
    found = find(run(tmp_path / "r", FakeExperiment(tolls, spread=0.2)).path)
    by_hand = rates(found)
    for arm in (AGAIN, DOCKER, LXC):
        group = group_of(arm)
        wanted = [by_hand[block, group, arm] / by_hand[block, group, NATIVE] for block in range(1, 5)]
        assert ratios(found, arm) == pytest.approx(wanted, rel=1e-12)
        toll = found.tolls("rate_per_s").total(found.matrix.arms[labels(found).index(arm)])
        assert toll is not None
        assert toll.ratio is not None
        assert toll.ratio.value == pytest.approx(math.exp(np.mean(np.log(wanted))), rel=1e-12)
        assert toll.ratio.n == 4, "blocks, not groups"
    native = found.matrix.absolute("rate_per_s", found.matrix.arms[0], found.matrix.conditions[0])
    assert native is not None
    assert native.n == 4
    assert native.value == pytest.approx(np.mean([rate for (*_, arm), rate in by_hand.items() if arm == NATIVE]))


class Leaping(FakeExperiment):
    """Every arm of group g is 1 + g times slower, native too."""

    def _toll(self, trial: PlannedTrial, probe: str = "") -> float:
        return super()._toll(trial, probe) * (1 + trial.group)


def test_what_the_machine_does_between_groups_is_in_no_ratio(tmp_path: Path) -> None:
    found = find(run(tmp_path / "r", Leaping({"native": 1.0, "docker": 1.25, "lxc": 2.0})).path)
    by_hand = rates(found)
    mean = np.mean([by_hand[1, group, NATIVE] for group in (1, 2, 3)])
    assert by_hand[1, 3, LXC] / mean == pytest.approx(0.346, rel=0.01), "which native of any group would have told"
    assert ratios(found, AGAIN) == pytest.approx([1.0] * 4, rel=0.005)
    assert ratios(found, DOCKER) == pytest.approx([0.8] * 4, rel=0.005)
    assert ratios(found, LXC) == pytest.approx([0.5] * 4, rel=0.005)
    running = {row.arm.label: row.against_native for row in RunningTable(found.run.records).rows()}
    assert (row := running[LXC]) is not None
    assert row.value == pytest.approx(0.5, rel=0.005), "while it goes on, too"


def test_rounds_are_those_of_the_group_too(tmp_path: Path) -> None:
    """Components, and what is compared round by round, pair an arm with native of its own group."""
    found = find(run(tmp_path / "r", Leaping({"native": 1.0, "docker": 1.25, "lxc": 2.0}, native_latency_ns=1000)).path)
    lxc = found.matrix.arms[labels(found).index(LXC)]
    pair = found.matrix.pair(0, lxc, found.matrix.conditions[0], found.matrix.arms[0])
    assert pair is not None
    assert {each.record.trial.group for each in pair} == {3}
    assert in_turn(*pair)
    logs = log_ratios(found.matrix, "latency_p99_window_ms")
    assert np.exp(logs[:, labels(found).index(LXC), 0]) == pytest.approx(2.0, rel=0.005)
    alike = components_of(found.matrix, "rate_per_s", lxc)
    assert isinstance(alike, str) or alike.of_windows < 1e-6


def test_arms_of_two_groups_are_compared_through_native(tmp_path: Path) -> None:
    """Native's noise is in the interval twice: what they did in other rounds was not paired."""
    found = find(run(tmp_path / "r", Leaping({"native": 1.0, "docker": 1.25, "lxc": 2.0}, spread=0.1)).path)
    by_hand, condition = rates(found), found.matrix.conditions[0]
    arms = dict(zip(labels(found), found.matrix.arms, strict=True))

    def told(over: str, under: str) -> list[float]:
        logs = log_ratio(found.matrix, "rate_per_s", (arms[over], condition), (arms[under], condition))
        return [float(value) for value in np.exp(logs)]

    wanted = [
        (by_hand[block, 2, DOCKER] / by_hand[block, 2, NATIVE]) / (by_hand[block, 3, LXC] / by_hand[block, 3, NATIVE])
        for block in range(1, 5)
    ]
    assert told(DOCKER, LXC) == pytest.approx(wanted, rel=1e-12)
    assert told(DOCKER, NATIVE) == pytest.approx(ratios(found, DOCKER), rel=1e-12)
    assert told(NATIVE, LXC) == pytest.approx([1 / ratio for ratio in ratios(found, LXC)], rel=1e-12)


TWO = TEXT.replace("[limits]", '[factors]\n"load.connections" = [1, 10]\n[limits]')


def with_native_lost(path: Path, group: int, connections: int | None = None) -> Findings:
    """A run under two conditions; native of a group failed in every block, under one of them or both."""
    plan = planned(text=TWO)
    lost = {
        trial.id: "limits in force"
        for trial in plan.trials
        if (trial.arm.label, trial.group) == (NATIVE, group)
        and trial.condition["load.connections"] in (connections, connections or trial.condition["load.connections"])
    }
    directory = RunDirectory.create(path, document.as_json(study(TWO)), plan, fake_environment())
    execute(directory, Leaping({"native": 1.0, "docker": 1.25, "lxc": 2.0}, fail=lost), Quiet())
    return find(directory.path)


def test_a_native_without_windows_of_its_own_leaves_the_others_their_rounds(tmp_path: Path) -> None:
    """One of native's trials in a block has no histogram; rounds of the other groups and blocks are rounds still."""
    directory = run(tmp_path / "r", FakeExperiment({"native": 1.0, "docker": 1.25, "lxc": 2.0}, native_latency_ns=1000))
    name = "latency_p99_window_ms"
    found = find(directory.path)
    for b in range(4):
        lxc, native = found.matrix.arms[labels(found).index(LXC)], found.matrix.arms[0]
        pair = found.matrix.pair(b, lxc, found.matrix.conditions[0], native)
        assert pair is not None
        pair[0].by_window[name] = [
            3 * each for each in pair[1].by_window[name]
        ]  # of the rounds alone; by trials it is 2
    first = found.matrix.across(found.matrix.arms[0], found.matrix.conditions[0])[0, 1]
    del first.by_window[name], first.values[name]
    told = np.exp(log_ratios(dataclasses.replace(found.matrix, _arrays={}), name)[:, labels(found).index(LXC), 0])
    assert told == pytest.approx([3.0] * 4)


def test_native_under_another_condition_is_that_of_the_same_group(tmp_path: Path) -> None:
    """Native lost a trial in another group: a mean over the groups that are left is of another machine."""
    found = with_native_lost(tmp_path / "r", 3, connections=10)
    arms = dict(zip(labels(found), found.matrix.arms, strict=True))
    one, ten = found.matrix.conditions

    def told(over: str, under: str) -> list[float]:
        return [
            float(value)
            for value in np.exp(log_ratio(found.matrix, "rate_per_s", (arms[over], one), (arms[under], ten)))
        ]

    rates_of = {
        (t.record.trial.group, t.record.trial.arm.label, t.record.trial.condition["load.connections"]): t.values[
            "rate_per_s"
        ]
        for t in found.matrix.trials
        if t.record.status == "valid" and t.record.trial.block == 1
    }
    change = rates_of[1, NATIVE, 1] / rates_of[1, NATIVE, 10]
    assert told(NATIVE, NATIVE) == pytest.approx([change] * 4, rel=0.01)
    assert told(DOCKER, NATIVE) == pytest.approx([0.8 * change] * 4, rel=0.01)
    assert told(NATIVE, DOCKER) == pytest.approx([change / 0.8] * 4, rel=0.01)


def test_an_arm_without_native_of_its_group_says_so(tmp_path: Path) -> None:
    found = with_native_lost(tmp_path / "r", 2)
    (table,) = (table for table in Tolls().tables(found) if table.name == "tolls-by-condition")
    cell = dict(zip(table.heads, table.rows[0], strict=True))[DOCKER]
    assert cell.text == MISSING
    assert cell.detail.startswith(f"{NATIVE}: invalid: limits in force")


def test_arms_of_one_group_are_compared_with_each_other(tmp_path: Path) -> None:
    """Where native of their group failed, they still met in the same rounds."""
    plan = planned(4 * GIB)
    assert plan.groups == ((DOCKER, AGAIN), (LXC,))
    found = lost_natives(tmp_path / "r", plan, {(1, NATIVE): 1})
    arms = dict(zip(labels(found), found.matrix.arms, strict=True))
    condition = found.matrix.conditions[0]
    logs = log_ratio(found.matrix, "rate_per_s", (arms[DOCKER], condition), (arms[AGAIN], condition))
    assert np.exp(logs) == pytest.approx([0.8] * 4, rel=0.005)
    assert sum(math.isnan(ratio) for ratio in ratios(found, AGAIN)) == 1, "native again is told against native alone"
    assert ratios(found, DOCKER) == pytest.approx([0.8] * 4, rel=0.005), "native again stood beside it"
    assert not any(math.isnan(ratio) for ratio in ratios(found, LXC))


def test_no_native_of_another_group_stands_in(tmp_path: Path) -> None:
    """LXC's native is lost in two blocks, both of DOCKER's in one: the other group's natives are of another time."""
    found = lost_natives(tmp_path / "r", planned(4 * GIB), {(1, NATIVE): 1, (1, AGAIN): 1, (2, NATIVE): 2})
    assert [math.isnan(ratio) for ratio in ratios(found, DOCKER)] == [True, False, False, False]
    assert [math.isnan(ratio) for ratio in ratios(found, LXC)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("label", "group", "barred"), [(AGAIN, 1, {AGAIN, DOCKER}), (NATIVE, 1, {AGAIN, DOCKER}), (NATIVE, 2, {LXC})]
)
def test_a_native_that_did_not_answer_beside_other_servers_bars_its_own_group(
    label: str, group: int, barred: set[str], tmp_path: Path
) -> None:
    """What the machine did in the other group's turn says nothing of this one."""
    tolls = {"native": 1.0, "docker": 1.25, "lxc": 2.0}
    found = find(run(tmp_path / "r", FakeExperiment(tolls), planned(4 * GIB)).path)
    (cell,) = (t for t in found.matrix.trials if place_of(t.record.trial) == (1, group, label))
    cell.record = cell.record.model_copy(update={"status": "invalid", "outcome": "did not answer"})
    matrix = build_matrix(found.run, list(found.matrix.trials))
    table = toll_table(matrix, "rate_per_s")
    assert {toll.arm.label for toll in table.overall if toll.zeros} == barred
    assert all((toll.ratio is None) == bool(toll.zeros) for toll in table.overall)
    first = zip(matrix.arms, log_ratios(matrix, "rate_per_s")[0, :, 0], strict=True)
    assert {arm.label for arm, log in first if np.isnan(log)} - {NATIVE} == barred


def place_of(trial: PlannedTrial) -> tuple[int, int, str]:
    return trial.block, trial.group, trial.arm.label


def lost_natives(path: Path, plan: Plan, lost: dict[tuple[int, str], int]) -> Findings:
    """A run of which natives, by group and label, are lost in so many blocks, the first ones."""
    ids = {
        trial.id: "limits in force"
        for (group, label), blocks in lost.items()
        for trial in [t for t in plan.trials if (t.group, t.arm.label) == (group, label)][:blocks]
    }
    return find(run(path, Leaping({"native": 1.0, "docker": 1.25, "lxc": 2.0}, fail=ids), plan).path)


def test_an_arm_is_compared_with_both_natives_of_its_group_and_with_one_elsewhere(tmp_path: Path) -> None:
    plan = planned(4 * GIB)
    directory = run(tmp_path / "r", FakeExperiment({"native": 1.0, "docker": 1.25, "lxc": 2.0}, spread=0.2), plan)
    found = find(directory.path)
    by_hand = rates(found)
    for block in range(1, 5):
        of_both = math.sqrt(by_hand[block, 1, NATIVE] * by_hand[block, 1, AGAIN])
        assert ratios(found, DOCKER)[block - 1] == pytest.approx(by_hand[block, 1, DOCKER] / of_both, rel=1e-12)
        alone = by_hand[block, 2, LXC] / by_hand[block, 2, NATIVE]
        assert ratios(found, LXC)[block - 1] == pytest.approx(alone, rel=1e-12)
        again = by_hand[block, 1, AGAIN] / by_hand[block, 1, NATIVE]
        assert ratios(found, AGAIN)[block - 1] == pytest.approx(again, rel=1e-12), "against the first"
    running = {row.arm.label: row.against_native for row in RunningTable(found.run.records).rows()}
    for label in (AGAIN, DOCKER, LXC):
        row, toll = running[label], found.tolls("rate_per_s").total(found.matrix.arms[labels(found).index(label)])
        assert row is not None
        assert toll is not None
        assert toll.ratio is not None
        assert row.value == pytest.approx(toll.ratio.value), "while it goes on, too"


def test_a_programmes_figures_are_paired_within_groups_too(tmp_path: Path) -> None:
    told, plan = probing()
    directory = RunDirectory.create(tmp_path / "r", document.as_json(told), plan, fake_environment())
    tolls = {"native": 1.0, "docker": 1.25, "lxc": 2.0}
    execute(directory, Leaping(tolls, instruments={"sysbench": 1.5}), Quiet())
    found = find(directory.path)
    logs = log_ratios(found.matrix, "unix-pipe.loops_per_s")
    by_arm = dict(zip(labels(found), np.exp(logs[:, :, 0]).T, strict=True))
    assert by_arm[LXC] == pytest.approx([0.5] * 2)
    (check,) = found.cross_checks
    assert check.ratio is not None
    assert check.ratio.value == pytest.approx(1.5), "over our probe's in the same deployment, not over all groups'"
    assert check.ratio.n == 2
    (table,) = unix_index(found)
    row = dict(zip(table.heads, table.rows[0], strict=True))
    assert row[DOCKER].detail.startswith("× 0.80")
    assert row[LXC].detail.startswith("× 0.50")


def test_a_plan_with_an_arm_in_two_groups_of_a_block_is_refused(tmp_path: Path) -> None:
    directory = run(tmp_path / "r", FakeExperiment({"native": 1.0, "docker": 1.25, "lxc": 2.0}))
    lines = (directory.path / "trials.jsonl").read_text().splitlines()
    first = next(line for line in lines if json.loads(line)["trial"]["arm"]["label"] == DOCKER)
    again = json.loads(first)
    again["trial"] |= {"id": "b01-t9999", "group": 1}
    with (directory.path / "trials.jsonl").open("a") as file:
        file.write(json.dumps(again) + "\n")
    with pytest.raises(StoreError, match="hold the same treatment of the same block"):
        find(directory.path)


# -- told ---------------------------------------------------------------------------------------------------


def test_the_report_says_who_stood_with_whom(tmp_path: Path) -> None:
    found = find(run(tmp_path / "r", FakeExperiment({"native": 1.0, "docker": 1.25, "lxc": 2.0})).path)
    told = method.one_observation(found)
    assert "In every block all arms of a group are deployed beside each other" in told
    assert "The memory does not hold all arms at once: 3 groups in each block" in told
    assert f"{NATIVE} in each ({AGAIN}; {DOCKER}; {LXC})" in told
    assert "compared through native alone" in told
    assert "native's of the same block, group and condition" in method.paired(found)
    rows = list(csv.DictReader(io.StringIO(trials_csv(found))))
    assert {row["group"] for row in rows if row["arm"] == NATIVE} == {"1", "2", "3"}
    assert {row["group"] for row in rows if row["arm"] == LXC} == {"3"}


@pytest.mark.parametrize("as_json", [False, True])
def test_a_dry_run_says_which_groups(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_fakes(monkeypatch, {})
    monkeypatch.setattr(Room, "on", classmethod(lambda cls, *_: cls(3 * GIB, GIB)))
    (tmp_path / "groups.toml").write_text(TEXT)
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(tmp_path / "groups.toml"), "--dry-run", *["--json"] * as_json])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    if as_json:
        (planned_,) = (event for line in out.splitlines() if (event := json.loads(line))["event"] == "planned")
        assert planned_["groups"] == [[AGAIN], [DOCKER], [LXC]]
    else:
        assert f"3 groups in each block, {NATIVE} in each ({AGAIN}; {DOCKER}; {LXC})" in out


def test_check_says_which_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Room, "on", classmethod(lambda cls, *_: cls(3 * GIB, GIB)))
    (tmp_path / "groups.toml").write_text(TEXT)
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", str(tmp_path / "groups.toml")])
    assert ended.value.code == 0
    assert f"{NATIVE} in each ({AGAIN}; {DOCKER}; {LXC})" in capsys.readouterr().out
