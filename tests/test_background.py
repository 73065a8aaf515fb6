"""CPU hogs: as many as asked, where they belong, weighing what they should, and gone afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from virtoll.errors import TrialError
from virtoll.hosts import ledger
from virtoll.hosts.cgroup import hierarchies
from virtoll.hosts.local import LocalHost, end_session
from virtoll.hosts.processes import in_session
from virtoll.lab.background import SCRIPT, hogs
from virtoll.lab.base import Lab, Site


def states(session: int) -> str:
    """How the shell and its hogs are, as the kernel tells: R computes, S waits."""
    return "".join(sorted(process_state(one.pid) for one in in_session(session)))


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_hogs_begin_together_when_all_are_there() -> None:
    argv = ["sh", "-c", SCRIPT, "sh", "3"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdin is not None
            while states(process.pid) != "SSSS":
                pass  # until it is so; the last of them waits, too
            process.stdin.close()
            while states(process.pid) != "RRRS":
                pass
        finally:
            end_session(process)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    host = LocalHost()
    tag = f"t{os.getpid()}"
    last = max(os.sched_getaffinity(0))
    sut, other = Site(host, "s", "", frozenset({last})), Site(host, "o", "", frozenset({0}))
    with ledger.opened(host, tmp_path / "ledgers", tag) as book:
        yield Lab(book, tag, other, sut, other, f"virtoll/{tag}", tmp_path)


def weight(name: str) -> int:
    file = "cpu.weight" if hierarchies().version == 2 else "cpu.shares"
    return int((hierarchies().directory("cpu", name) / file).read_text())


@pytest.mark.machine
def test_hogs_run_on_the_instance_cpus_and_weigh_one_process_each(lab: Lab) -> None:
    with hogs(lab, 3, lab.sut.cpus) as group:
        assert group is not None
        pids = group.pids()
        assert len(pids) == 4  # and the shell that started them
        assert all(os.sched_getaffinity(pid) == set(lab.sut.cpus) for pid in pids)
        assert weight(group.name) == 3 * (100 if hierarchies().version == 2 else 1024)
    assert not any(path.exists() for path in hierarchies().directories(lab.cgroup))


@pytest.mark.machine
def test_no_hogs_leave_no_trace(lab: Lab) -> None:
    with hogs(lab, 0, lab.sut.cpus) as group:
        assert group is None
        assert not any(path.exists() for path in hierarchies().directories(lab.cgroup))


@pytest.mark.machine
def test_a_hog_that_dies_fails_the_trial(lab: Lab) -> None:
    def kill_one() -> None:
        with hogs(lab, 2, lab.sut.cpus) as group:
            assert group is not None
            os.kill(group.pids()[-1], 9)
            while len(group.pids()) > 2:
                pass

    with pytest.raises(TrialError, match="1 of 2 CPU hogs run"):
        kill_one()


@pytest.mark.machine
def test_an_error_in_the_trial_is_not_hidden_by_dead_hogs(lab: Lab) -> None:
    def fail() -> None:
        with hogs(lab, 2, lab.sut.cpus) as group:
            assert group is not None
            group.kill()
            raise RuntimeError("the real cause")

    with pytest.raises(RuntimeError, match="the real cause"):
        fail()
