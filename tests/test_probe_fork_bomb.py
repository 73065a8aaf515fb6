"""Fork bombs: what is told of them, who falls silent beside one, and nothing is left (each limit: test_slices.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import contract
import leaks
import sliced
from virtoll.aggressors.result import AggressorResult
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.ledger import clean
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import Lab
from virtoll.lab.wiring import free_tag
from virtoll.platforms.base import Instance, platforms
from virtoll.probes import fork_bomb
from virtoll.probes.base import Place, ProbeError, Slice
from virtoll.probes.fork_bomb import ForkBomb, ForkBombSettings, jain
from virtoll.study.limits import Limits

SHORT = ForkBombSettings(time_ns=2 * 10**9)
S = 10**9


def bombed(name: str, inside: list[tuple[int, int]], outside: list[tuple[int, int]] | None = None) -> fork_bomb._Bombed:
    result = AggressorResult("fork", "time", processes_peak=max((count for _, count in inside), default=None))
    return fork_bomb._Bombed(name, result, inside, outside or [])


def growing_to(level: int, after_ns: int = S // 2) -> list[tuple[int, int]]:
    return [(t_ns, level if t_ns >= after_ns else 1) for t_ns in range(0, 4 * S, S // 10)]


def test_fairness_is_jains() -> None:
    assert jain([5, 5]) == 1.0
    assert jain([10, 0]) == 0.5
    assert jain([3, 1]) == pytest.approx(0.8)
    assert jain([0, 0]) == 1.0


@pytest.mark.parametrize(
    ("most_processes", "pids", "told"),
    [
        (None, 8192, "a bomb of 4096 processes at most does not come to a limit of 8192"),
        (None, 4096, "write less than 4096 in [limits] pids"),
        (100, 512, "leave most_processes out, or write more than the limit"),
        (None, 4095, ""),
        (513, 512, ""),
    ],
)
def test_a_bomb_that_does_not_come_to_the_limit_is_refused(most_processes: int | None, pids: int, told: str) -> None:
    """Its cap held both bombs at 4096 alike, and a fairness of 1 was told as that of limits that nobody had met."""
    problems = ForkBomb(ForkBombSettings(most_processes=most_processes)).check(Limits(pids=pids))
    assert told in "".join(f"{problem.what}; {problem.remedy}" for problem in problems)
    assert bool(problems) == bool(told)


@pytest.mark.parametrize(("each", "is_seen"), [(1, True), (0, False), (8, False)])
def test_the_host_counts_only_where_a_task_of_its_own_is_a_process(each: int, is_seen: bool) -> None:
    """Of gVisor's it would count the Sentry's threads and stubs: 482 for 63."""
    accounting = SimpleNamespace(parts={"payload": "virtoll/none/i/payload"})
    counting = fork_bomb._Outside(cast("Any", SimpleNamespace(accounting=accounting, hosts_tasks_each=each)))
    assert (counting._file is not None) == is_seen


def test_the_supervisor_is_none_of_the_bombs_processes(tmp_path: Path) -> None:
    """A guest's bomb counts itself alone: containers were told of one process more."""
    counting = fork_bomb._Outside(
        cast("Any", SimpleNamespace(accounting=SimpleNamespace(parts={}), hosts_tasks_each=1))
    )
    counting._file = tmp_path / "pids.current"
    counting._file.write_text("7\n")
    with counting:
        (tmp_path / "after").write_text("72\n")  # a supervisor, and a bomb of 64
        (tmp_path / "after").rename(counting._file)
        while (0, 64) not in {(0, count) for _, count in counting.seen}:
            time.sleep(0.01)
    assert {count for _, count in counting.seen} <= {0, 64}


def test_the_equilibrium_is_that_of_the_second_half() -> None:
    told = [bombed("slice1", growing_to(100)), bombed("slice2", growing_to(300, after_ns=S))]
    values, notes = fork_bomb._values(told, {"host": 0.1, "near 1": 0.3}, 0, 4 * S)
    assert notes == []
    assert values == {
        "processes_slice1": 100,
        "processes_slice2": 300,
        "fairness": pytest.approx(0.8),
        "settled_s": pytest.approx(0.9),
        "answered_s": 0.3,
    }


def test_a_bomb_that_began_late_is_waited_for_no_longer() -> None:
    """By up to a tenth of their time: who found no room beside the first bomb was told to answer so much later."""
    told = [bombed("slice1", growing_to(100)), replace(bombed("slice2", growing_to(100)), over_ns=4 * S + S // 4)]
    values, _ = fork_bomb._values(told, {"host": 0.1, "near 2": 0.5}, 0, 4 * S)
    assert values["answered_s"] == 0.25
    values, _ = fork_bomb._values(told, {"host": 0.1, "near 2": 0.2}, 0, 4 * S)
    assert values["answered_s"] == 0


def test_what_the_host_counts_goes_before_what_a_starved_bomb_does() -> None:
    (level,) = {bombed("slice1", growing_to(7), growing_to(60)).equilibrium(2 * S, 4 * S)}
    assert level == 60


def test_what_cannot_be_told_is_left_out_with_the_reason() -> None:
    rising = [(t_ns, t_ns // 10**7) for t_ns in range(0, 4 * S, S // 10)]
    values, notes = fork_bomb._values([bombed("slice1", rising)], {"near 1": None}, 0, 4 * S)
    assert values.keys() == {"processes_slice1", "fairness"}
    assert "no equilibrium" in notes[0]
    assert "near 1 gave no answer" in notes[1]
    values, notes = fork_bomb._values([bombed("slice1", [(0, 1)])], {"near 1": 0.1}, 0, 4 * S)
    assert values == {"answered_s": 0.1}
    assert "too little is known" in notes[0]


def test_a_bomb_that_counts_otherwise_than_the_host_is_not_believed() -> None:
    assert fork_bomb._host_agrees(bombed("slice1", growing_to(100), growing_to(101))).passed is True
    assert fork_bomb._host_agrees(bombed("slice1", growing_to(100), growing_to(50))).passed is False
    assert fork_bomb._host_agrees(bombed("slice1", growing_to(100))).passed is None


def test_a_bomb_that_never_went_off_is_a_reason_and_no_zero() -> None:
    never = AggressorResult("fork", "refused", reason="no room")
    with pytest.raises(ProbeError, match=r"slice2: the bomb did not go off: no room") as caught:
        fork_bomb._refuse_what_never_was([fork_bomb._Bombed("slice2", never, [], [])])
    assert caught.value.kind == "refused"


def test_a_bomb_that_had_begun_did_go_off_and_did_not_last() -> None:
    """It was killed, and could not begin again: that is *refused* too."""
    result = AggressorResult("fork", "refused", reason="no room", counts={"forks": 900}, processes_peak=100)
    began = fork_bomb._Bombed("slice2", result, growing_to(100), [])
    fork_bomb._refuse_what_never_was([began])
    check = fork_bomb._lasted(began, 2 * S, 4 * S)
    assert (check.name, check.passed) == ("the bomb in slice2 lasted its time", False)
    assert check.detail == "it ended before: no room"


@pytest.mark.parametrize(
    ("result", "passed"),
    [
        (AggressorResult("fork", "time"), True),
        (AggressorResult("fork", "told", stopped_by="agent"), True),
        (AggressorResult("fork", "killed", stopped_by="agent"), True),  # alive when it was ended: starved, as a rule
        (AggressorResult("fork", "killed", "it was gone, and had written no report"), False),
        (AggressorResult("fork", "killed", "no answer", stopped_by="host"), None),
    ],
)
def test_a_bomb_lasted_that_was_there_at_the_end(result: AggressorResult, passed: bool | None) -> None:
    assert fork_bomb._lasted(fork_bomb._Bombed("slice1", result, growing_to(9), []), 2 * S, 4 * S).passed is passed


def test_a_bomb_without_a_process_in_the_second_half_did_not_last_however_fair_that_is() -> None:
    dead = [(t_ns, 100 if t_ns < 2 * S else 0) for t_ns in range(0, 4 * S, S // 10)]
    told = [bombed(f"slice{at}", dead) for at in (1, 2)]
    values, _ = fork_bomb._values(told, {"near 1": 0.1}, 0, 4 * S)
    assert values["fairness"] == 1.0
    assert [fork_bomb._lasted(each, 2 * S + 1, 4 * S).passed for each in told] == [False] * 2
    assert fork_bomb._lasted(bombed("slice1", [(3 * S, 0)]), 2 * S, 4 * S).passed, "of one line nothing is known"


def stop_all(group: Cgroup) -> None:
    """Of a bomb some end and some begin between a look and the next: until a look finds none that was not stopped."""
    stopped: set[int] = set()
    while new := set(group.pids()) - stopped:
        for pid in new:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= new


@pytest.mark.machine
def test_a_slice_that_falls_silent_is_killed_and_told(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A frozen instance stands for one whose agent gets no CPU. It is given up when all others have answered."""
    monkeypatch.setattr(fork_bomb, "_PATIENCE_S", 600.0)
    with sliced.place(lab, "native", tmp_path) as place:
        frozen = place.slices[1].near
        group = Cgroup(frozen.accounting.cgroup, hierarchies())
        real_answered, real_runs = fork_bomb._answered_s, fork_bomb._runs
        have_answered = threading.Semaphore(0)

        def answered(place: Place, bombed: list[Slice]) -> dict[str, float | None]:
            stop_all(group)
            return real_answered(place, bombed)

        def runs(instance: Instance) -> None:
            if instance is not frozen:
                real_runs(instance)
                have_answered.release()
                return
            for _ in range(2 * len(place.slices) - 1):
                assert have_answered.acquire(timeout=600)
            with instance.agent.within(0.1):
                real_runs(instance)

        monkeypatch.setattr(fork_bomb, "_answered_s", answered)
        monkeypatch.setattr(fork_bomb, "_runs", runs)
        result = ForkBomb(SHORT).run(place)
        assert result.facts["answered_s"]["near 2"] is None
        assert result.facts["answered_s"]["near 1"] is not None
        assert "answered_s" not in result.windows[0].values
        assert group.pids() == []
        assert not place.slices[1].near.is_running()
        assert place.slices[0].near.is_running()


_HOLD = """
import sys
from pathlib import Path
import sliced
from virtoll.hosts import interrupts
from virtoll.hosts.ledger import opened
from virtoll.hosts.local import LocalHost
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import wired
from virtoll.probes.fork_bomb import ForkBomb, ForkBombSettings

interrupts.install()
host = LocalHost()
with opened(host, Path(sys.argv[1]), "run") as ledger, wired(host, ledger, sys.argv[2], cpu_plan(host, 1)) as lab:
    with sliced.place(lab, sys.argv[3], Path(sys.argv[1])) as place:
        print("deployed", flush=True)
        ForkBomb(ForkBombSettings(time_ns=60 * 10**9)).run(place)
"""


@pytest.mark.machine
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("platform", ["native", "lxc", "uml"])
def test_nothing_is_left_of_a_bomb_that_was_interrupted(
    host: LocalHost, tmp_path: Path, platform: str, number: signal.Signals
) -> None:
    contract.skip_unless_ready(platforms()[platform]())
    contract.image()
    tag, log = free_tag(), tmp_path / "stderr"
    before = leaks.snapshot()
    command = [sys.executable, "-c", _HOLD, str(tmp_path), tag, platform]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with (
        log.open("wb") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, env=environment) as victim,
    ):
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"deployed\n", log.read_text()
        time.sleep(1)
        victim.send_signal(number)
        victim.wait(600)
    if number == signal.SIGKILL:
        clean(host, tmp_path)
    deadline = time.monotonic() + 600
    while left := [line for line in leaks.differences(before, leaks.snapshot()) if tag in line or "processes:" in line]:
        assert time.monotonic() < deadline, "\n".join(left)
        time.sleep(0.1)
