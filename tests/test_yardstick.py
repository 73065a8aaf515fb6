"""The yardstick of an instance's CPUs, on this machine: it reads them, and nothing of it is left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import contract
from virtoll.hosts.cgroup import Cgroup, group_exists, hierarchies
from virtoll.lab.base import CpuPlan, Lab
from virtoll.monitor import Yardstick, yardstick

pytestmark = pytest.mark.machine


def plan(lab: Lab) -> CpuPlan:
    return CpuPlan(lab.sut.cpus, lab.generator.cpus, lab.origin.cpus)


def group_of(lab: Lab) -> str:
    """As a run's: right below `TOP`."""
    return f"{lab.cgroup}-yardstick"


@pytest.fixture
def of_lab(lab: Lab) -> Iterator[Yardstick]:
    with Yardstick.on_host(lab.host, lab.ledger, group_of(lab), plan(lab)) as made:
        yield made


def until_read(of_lab: Yardstick, lab: Lab, from_ns: int) -> float:
    """It is read for longer and longer, however busy the machine is."""
    for tries in range(12):
        time.sleep(0.02 * 2**tries)
        if (found := of_lab.end(from_ns, time.monotonic_ns())) is not None:
            return found
        of_lab.begin(lab.sut.cpus)
    raise AssertionError("nothing was read in a minute")


def test_it_reads_where_it_is_told_and_beside_no_instance_waits(lab: Lab, of_lab: Yardstick) -> None:
    from_ns = time.monotonic_ns()
    of_lab.begin(lab.sut.cpus)
    group = Cgroup(group_of(lab), hierarchies())
    (pid,) = group.pids()
    own = os.sched_getaffinity(pid)
    assert own == lab.generator.cpus, "who is asked is beside the instance"
    threads = {int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()} - {pid}
    assert all(os.sched_getaffinity(each) <= lab.sut.cpus | lab.generator.cpus for each in threads)
    assert until_read(of_lab, lab, from_ns) > 0


def test_it_goes_before_whoever_computes_there(lab: Lab, of_lab: Yardstick) -> None:
    of_lab.begin(lab.sut.cpus)
    assert contract.goes_first(group_of(lab))
    assert group_of(lab).count("/") == lab.cgroup.count("/"), "beside the labs, whose weights it is held against"


def test_an_answer_that_nobody_waited_for_is_nobody_elses(lab: Lab, of_lab: Yardstick) -> None:
    of_lab.begin(lab.sut.cpus)
    of_lab._is_asked = True  # as after Ctrl-C in the middle
    from_ns = time.monotonic_ns()
    of_lab.begin(lab.sut.cpus)
    assert until_read(of_lab, lab, from_ns) > 0


def test_a_window_before_it_was_begun_was_not_read(lab: Lab, of_lab: Yardstick) -> None:
    now_ns = time.monotonic_ns()
    of_lab.begin(lab.sut.cpus)
    assert until_read(of_lab, lab, now_ns) > 0
    of_lab.begin(lab.sut.cpus)
    assert of_lab.end(now_ns - 10**9, now_ns) is None
    assert of_lab.end(0, time.monotonic_ns()) is None, "it was told to end"


def test_it_says_what_of_ours_moves_it(lab: Lab, of_lab: Yardstick, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yardstick, "_TRIES", 3)
    tries = of_lab.tried(lab.sut.cpus)
    assert tries is not None
    assert len(tries) == 3


def test_nothing_of_it_is_left(lab: Lab, of_lab: Yardstick) -> None:
    of_lab.begin(lab.sut.cpus)
    (pid,) = Cgroup(group_of(lab), hierarchies()).pids()
    of_lab.close()
    assert not group_exists(group_of(lab))
    assert not Path(f"/proc/{pid}").exists()
    of_lab.begin(lab.sut.cpus)  # it begins again where it is asked for again
    assert group_exists(group_of(lab))


@pytest.mark.parametrize(
    "script",
    [
        "exit 3",
        "read line; echo nonsense; read line; echo 1 2 3; echo x; read line; echo y; echo z",
        "read line; exit 0",
    ],
    ids=["it cannot start", "it says something else", "it ends"],
)
@pytest.mark.parametrize(
    "ask",
    [lambda each: each.tried({0}), lambda each: each.end(0, 10**9)],
    ids=["tried", "read"],
)
def test_one_that_cannot_be_had_knows_nothing_and_fails_nobody(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, ask: Callable[[Yardstick], object]
) -> None:
    program = tmp_path / "agent"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(yardstick, "binary", lambda _name: program)
    monkeypatch.setattr(yardstick, "_TRIES", 2)
    with Yardstick.on_host(lab.host, lab.ledger, group_of(lab), plan(lab)) as made:
        made.begin({0})
        assert ask(made) is None
        assert ask(made) is None
    assert not group_exists(group_of(lab))
