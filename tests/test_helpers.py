"""Functions in processes beside this one."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from virtoll.errors import HostError, StoreError
from virtoll.files.confined import inside
from virtoll.helpers import helpers


def test_other_processes_answer() -> None:
    with helpers(os.getpid, 1) as other:
        pids = {other.submit().result() for _ in range(3)}
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_each_answer_is_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with helpers(math.sqrt, 2) as roots:
        asked = [roots.submit(float(n)) for n in range(20)]
        assert [each.result() for each in asked] == [math.sqrt(n) for n in range(20)]


def test_what_is_raised_is_raised_here(tmp_path: Path) -> None:
    with helpers(inside, 1) as beside:
        refused = beside.submit(tmp_path, "..")
        with pytest.raises(StoreError, match="is not a name of a file") as caught:
            refused.result()
        assert caught.value.problem.where == str(tmp_path)
        assert beside.submit(tmp_path, "here").result() == tmp_path / "here"  # it lives on


def test_a_process_that_dies_is_told() -> None:
    with helpers(os._exit, 1) as other, pytest.raises(HostError, match="exit status 3"):
        other.submit(3).result()


def test_nobody_waits_for_what_is_not_asked_any_more() -> None:
    with helpers(time.sleep, 1) as other:
        begun, waiting = other.submit(10**6), other.submit(10**6)
    assert isinstance(begun.exception(), HostError)
    assert waiting.cancelled() or isinstance(waiting.exception(), HostError)


def test_the_working_directory_holds_no_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pickle.py").write_text("raise SystemExit('not mine')")
    monkeypatch.chdir(tmp_path)
    with helpers(math.sqrt, 1) as roots:
        assert roots.submit(4.0).result() == 2
