"""CPU hogs: as many as asked, where they belong, weighing what they should, and gone afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, cast

import pytest

from virtoll.errors import TrialError
from virtoll.hosts import ledger
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import Cgroup, Hierarchies, hierarchies
from virtoll.hosts.local import LocalHost, end_session
from virtoll.hosts.processes import in_session
from virtoll.lab import background
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


@dataclass(frozen=True)
class GroupDouble(Cgroup):
    """A control group of plain files, in which those are that a host has started last for it."""

    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def pids(self) -> list[int]:
        return [one.pid for process in self.started for one in in_session(process.pid)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("first", [False, True])
def test_a_hog_weighs_as_its_instance_does_where_that_goes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: Literal[1, 2], first: bool
) -> None:
    """With budget "vcpus" an instance weighs as much as a group can, and two hogs together took a fiftieth of a CPU."""
    file, ordinary, most = ("cpu.weight", 100, 10_000) if version == 2 else ("cpu.shares", 1024, 262_144)
    layout = Hierarchies(version, {"cpu": tmp_path})
    groups: list[GroupDouble] = []

    @contextmanager
    def owned(_ledger: object, name: str, *, cpus: frozenset[int]) -> Iterator[GroupDouble]:
        assert cpus == {3}
        groups.append(GroupDouble(name, layout))
        groups[-1].directory("cpu").mkdir(parents=True)
        yield groups[-1]

    def spawn(argv: list[str], *, stdin: int, confinement: Confinement) -> subprocess.Popen[bytes]:
        del confinement
        groups[-1].started.append(LocalHost().spawn(argv, stdin=stdin))
        return groups[-1].started[-1]

    monkeypatch.setattr(background, "owned", owned)
    monkeypatch.setattr(background, "hierarchies", lambda: layout)
    (tmp_path / "instance").mkdir()
    (tmp_path / "instance" / file).write_text(f"{most if first else ordinary}\n")
    lab = SimpleNamespace(ledger=None, cgroup="lab", host=SimpleNamespace(spawn=spawn))
    with hogs(cast("Lab", lab), 2, frozenset({3}), "instance") as there:
        assert there == groups[0]
        assert [len(group.pids()) for group in groups] == ([2, 2] if first else [3])
        assert len({group.name for group in groups}) == len(groups)
        weights = [int((group.directory("cpu") / file).read_text()) for group in groups]
    assert weights == ([most, most] if first else [2 * ordinary])
    assert [group.pids() for group in groups] == [[]] * len(groups)


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
