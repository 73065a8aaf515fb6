"""What other work takes of the lab's CPUs: counted, told, and no service's fault."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from virtoll.hosts.cgroup import Cgroup, Hierarchies
from virtoll.hosts.tuning import groups_awake
from virtoll.lab import others
from virtoll.lab.base import Lab
from virtoll.lab.others import Look, between, group_user_s, look, over_all, user_s_of

STAT = """\
cpu  5000 200 3000 90000 0 0 0 0 0 0
cpu0 1000 50 1000 30000 0 0 0 0 0 0
cpu1 3000 100 1000 30000 0 0 0 0 0 0
cpu10 1000 50 1000 30000 0 0 0 0 0 0
intr 1 2 3
"""
S = 10**9


@pytest.fixture
def stat(tmp_path: Path) -> Path:
    path = tmp_path / "stat"
    path.write_text(STAT)
    return path


def test_of_the_machine_the_instances_cpus_count(stat: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    assert user_s_of(stat, {1}) == 3100 / ticks
    assert user_s_of(stat, {0, 10}) == 2100 / ticks
    assert user_s_of(stat, {0, 10}, nice=False) == 2000 / ticks
    assert user_s_of(stat, {0, 2}) is None, "one of which nothing is told may have had anything"
    assert user_s_of(stat.with_name("none"), {0}) is None
    stat.write_text("cpu0 what\n")
    assert user_s_of(stat, {0}) is None


@pytest.mark.parametrize(
    ("version", "file", "text", "s"),
    [
        (1, "cpuacct/g/cpuacct.stat", "user 150\nsystem 20\n", 150 / os.sysconf("SC_CLK_TCK")),
        (2, "cpu/g/cpu.stat", "usage_usec 9\nuser_usec 1500000\nsystem_usec 7\n", 1.5),
        (1, "cpuacct/g/cpuacct.stat", "", None),
        (2, "cpu/g/cpu.stat", "usage_usec 9\n", None),
        (2, "cpu/h/cpu.stat", "user_usec 1\n", None),
    ],
)
def test_of_a_group_under_either_version(tmp_path: Path, version: Any, file: str, text: str, s: float | None) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    layout = Hierarchies(version, {name: tmp_path / name for name in ("cpu", "cpuacct")})
    assert group_user_s(Cgroup("g", layout)) == s


def test_where_there_is_no_such_controller_it_is_not_known(tmp_path: Path) -> None:
    assert group_user_s(Cgroup("g", Hierarchies(1, {"cpu": tmp_path}))) is None


@pytest.mark.parametrize("awake", [False, True])
def test_what_is_none_of_ours_is_others(stat: Path, monkeypatch: pytest.MonkeyPatch, awake: bool) -> None:
    """The loops of `virtoll tune awake` are nice, and what is so beside them is not told apart."""
    lab = cast("Lab", SimpleNamespace(cgroup="virtoll/abcd"))
    of_groups: dict[str, float | None] = {
        "virtoll/abcd": 9.0,
        "virtoll/abcd/generator": 4.0,
        "virtoll/abcd/monitor": 2.0,
    }
    monkeypatch.setattr(others, "STAT", stat)
    monkeypatch.setattr(others, "groups_awake", lambda _layout: ["virtoll-awake-12ab"] if awake else [])
    monkeypatch.setattr(others, "group_exists", lambda name: name in of_groups)
    monkeypatch.setattr(others, "group_user_s", lambda group: of_groups[group.name])
    monkeypatch.setattr(os, "times", lambda: SimpleNamespace(user=2.0))
    found = look(lab, {0, 1}, ["virtoll/abcd/instance", "virtoll/abcd"])
    ticks = 4000 if awake else 4150
    assert (found.user_s, found.cpus) == (ticks / os.sysconf("SC_CLK_TCK") - 3.0 - 2.0, 2)
    assert look(lab, {0}, ["machine.slice/vm"]).user_s is None, "it is the lab's, and not in its group"
    assert look(lab, {0}, ["virtoll/abcde"]).user_s is None
    for name, known in list(of_groups.items()):
        of_groups[name] = None
        assert look(lab, {0}).user_s is None, "what they had is not known"
        of_groups[name] = known


def test_loops_that_keep_cpus_awake_are_found_in_any_hierarchy(tmp_path: Path) -> None:
    layout = Hierarchies(1, {name: tmp_path / name for name in ("cpu", "cpuacct")})
    assert groups_awake(layout) == []
    for at in ("cpu/virtoll-awake-1", "cpuacct/virtoll-awake-1", "cpuacct/virtoll-awake-2", "cpu/else"):
        (tmp_path / at / "loops").mkdir(parents=True)
    assert groups_awake(layout) == ["virtoll-awake-1", "virtoll-awake-2"]


def test_more_than_chance_is_told() -> None:
    """Ticks tell whom a CPU was with a hundred times a second: in a short stretch by chance."""
    told = between(Look(0, 100.0, 2), Look(15 * S, 105.0, 2))
    assert told is not None
    assert told.cpus == pytest.approx(1 / 3)
    assert told.bound == pytest.approx(0.1 + 1.5 * (2 / (os.sysconf("SC_CLK_TCK") * 15)) ** 0.5)
    assert told.words == "other work took 0.33 of the instance's CPUs meanwhile"
    brief = between(Look(0, 100.0, 2), Look(S // 2, 100.15, 2))
    assert brief is not None
    assert brief.cpus == pytest.approx(0.3)
    assert brief.words == "", "half a second tells little"
    less = between(Look(0, 100.0, 2), Look(S, 99.9, 2))
    assert less is not None
    assert less.cpus == 0
    assert between(Look(0, None, 2), Look(S, 1.0, 2)) is None
    assert between(Look(0, 1.0, 2), Look(S, None, 2)) is None
    assert between(Look(S, 1.0, 2), Look(S, 1.0, 2)) is None


def test_stretches_are_told_together() -> None:
    one, other = (Look(0, 0.0, 2), Look(S, 0.0, 2)), (Look(5 * S, 7.0, 2), Look(6 * S, 7.5, 2))
    told = over_all([one, other])
    assert told is not None
    assert told.cpus == 0.25
    assert told.bound < between(*one).bound  # type: ignore[union-attr]
    assert over_all([one, (Look(0, None, 2), Look(S, 1.0, 2))]) is None
    assert over_all([]) is None


@pytest.mark.machine
def test_a_process_of_somebody_elses_is_seen_and_ours_is_not() -> None:
    """On the real machine: by the CPU time that each has had, whatever the clock says."""
    cpus = os.sched_getaffinity(0)
    before = user_s_of(Path("/proc/stat"), cpus)
    assert before is not None
    code = "import time\nwhile time.process_time() < 2: sum(range(100_000))"
    subprocess.run([sys.executable, "-c", code], check=True)
    after = user_s_of(Path("/proc/stat"), cpus)
    assert after is not None
    assert after - before > 1
    us = os.times().user
    deadline = time.process_time() + 1
    while time.process_time() < deadline:
        sum(range(100_000))
    assert os.times().user - us > 0.5, "which is taken off"
