"""Functions in processes beside this one."""

from __future__ import annotations

import gc
import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from synthetic import DOCKER, NATIVE, Recipe, write_run
from virtoll.errors import HostError, StoreError
from virtoll.files.confined import inside
from virtoll.helpers import _begun, helpers, load, met_halfway
from virtoll.hosts.processes import is_alive, process
from virtoll.report import begin
from virtoll.report.build import build_report


def test_other_processes_answer() -> None:
    with helpers(1) as other:
        pids = {other.submit(os.getpid).result() for _ in range(3)}
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_each_answer_is_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    with helpers(2) as others:
        asked = [others.submit(math.sqrt, float(n)) for n in range(20)]
        assert [each.result() for each in asked] == [math.sqrt(n) for n in range(20)]


def test_shares_are_had_from_both_ends_in_their_order() -> None:
    with helpers(1) as other:
        shares = list(range(-40, 0))
        found = met_halfway(
            shares, lambda n: (n, os.getpid()), lambda n: other.submit(os.getpid), lambda n, pid: (n, pid)
        )
        assert [n for n, _ in found] == shares
        assert found[0][1] == os.getpid()
        assert found[-1][1] == other.submit(os.getpid).result()
        assert met_halfway([], abs, lambda n: other.submit(abs, n), lambda _, told: told) == []


_KILLED_HALFWAY = """
import os, signal
from virtoll.helpers import helpers, met_halfway
with helpers(1) as other:
    pid = other.submit(os.getpid).result()
    def here(share):
        if share[0] == 3:
            os.kill(pid, signal.SIGKILL)
        return len(share)
    big = [bytes([n % 250]) * 1_000_000 for n in range(400)]  # what is asked fills the pool's pipe
    met_halfway(big, here, lambda share: other.submit(len, share), lambda _, told: told)
"""


def test_one_that_is_killed_halfway_is_an_error_and_no_end_is_waited_for() -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED_HALFWAY], capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "ended before its time" in done.stderr


def test_one_cpu_has_one_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with helpers(2) as others:
        assert others.submit(math.sqrt, 4.0).result() == 2.0


def test_ctrl_c_is_left_to_the_process_that_is_helped() -> None:
    """From their first moment on: one that came while they load Python would be told by a traceback of each."""
    with helpers(1) as other:
        assert signal.SIGINT in other.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_block_within_another_has_its_processes() -> None:
    with helpers(1) as outer:
        with helpers(1) as inner:
            pid = inner.submit(os.getpid).result()
        assert outer.submit(os.getpid).result() == pid  # it lives on
    with helpers(1) as later:
        assert later.submit(os.getpid).result() != pid


def test_runs_of_many_trials_are_measured_with_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few all would be measured before another process had loaded what that takes."""
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(begin, "helpers", lambda most: nullcontext(_Asked(most, asked)))
    few, many = tmp_path / "few", tmp_path / "many"
    for run, length in ((few, 1_000_000), (many, 10_000_000)):
        run.mkdir()
        (run / "trials.jsonl").touch()
        os.truncate(run / "trials.jsonl", length)
    with begin.helped_to_measure(few, tmp_path / "absent"):
        assert asked == []
        assert not gc.isenabled()
    with begin.helped_to_measure(few, many):
        assert asked == [(1, load, "virtoll.analysis.measuring")]


@dataclass(frozen=True)
class _Asked:
    """Helpers that only note what they are asked."""

    most: int
    what: list[tuple[object, ...]]

    def submit(self, *what: object) -> None:
        self.what.append((self.most, *what))


def test_a_process_that_dies_is_told_where_it_is_asked() -> None:
    with helpers(1), pytest.raises(HostError, match="ended before its time"), helpers(1) as inner:
        inner.submit(os._exit, 3).result()


def test_what_is_raised_is_raised_here(tmp_path: Path) -> None:
    with helpers(1) as other:
        refused = other.submit(inside, tmp_path, "..")
        with pytest.raises(StoreError, match="is not a name of a file") as caught:
            refused.result()
        assert caught.value.problem.where == str(tmp_path)
        assert other.submit(inside, tmp_path, "here").result() == tmp_path / "here"  # it lives on


def test_a_process_that_dies_is_told() -> None:
    with pytest.raises(HostError, match="ended before its time") as caught, helpers(1) as other:
        other.submit(os._exit, 3).result()
    remedy = caught.value.problem.remedy  # after a run's last trial, nobody should measure again
    assert "`virtoll report RUNDIR`" in remedy
    assert "nothing was changed" not in remedy, "a part of a report may have been written"


def test_the_process_that_helps_to_measure_a_run_draws_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def counted(most: int) -> AbstractContextManager[ProcessPoolExecutor]:
        begun.append(most)
        return _begun(most)

    monkeypatch.setattr("virtoll.helpers._begun", counted)
    monkeypatch.setattr("virtoll.analysis.measuring._MANY", 0)
    page = build_report(write_run(tmp_path / "run", Recipe(arms=(NATIVE, DOCKER), blocks=2)))
    assert "<svg" in page.read_text("utf-8")
    assert len(begun) == 1


_HELPED = """
import os, sys
from virtoll.helpers import helpers

if __name__ == "__main__":
    with helpers(1) as other:
        print(other.submit(os.getpid).result(), flush=True)
        sys.stdin.read()
"""


def test_none_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "helped.py").write_text(_HELPED)
    command = [sys.executable, str(tmp_path / "helped.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as helped:
        assert helped.stdout is not None
        found = process(int(helped.stdout.readline()))
        assert found is not None
        helped.kill()
    deadline = time.monotonic() + 600  # against hanging
    while is_alive(found):
        assert time.monotonic() < deadline
        time.sleep(0.05)
