"""Functions in processes beside this one."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from virtoll.errors import HostError, StoreError
from virtoll.files.confined import inside
from virtoll.helpers import helpers


def test_other_processes_answer() -> None:
    with helpers(1) as other:
        pids = {other.submit(os.getpid).result() for _ in range(3)}
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_each_answer_is_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with helpers(2) as others:
        asked = [others.submit(math.sqrt, float(n)) for n in range(20)]
        assert [each.result() for each in asked] == [math.sqrt(n) for n in range(20)]


def test_what_is_raised_is_raised_here(tmp_path: Path) -> None:
    with helpers(1) as other:
        refused = other.submit(inside, tmp_path, "..")
        with pytest.raises(StoreError, match="is not a name of a file") as caught:
            refused.result()
        assert caught.value.problem.where == str(tmp_path)
        assert other.submit(inside, tmp_path, "here").result() == tmp_path / "here"  # it lives on


def test_a_process_that_dies_is_told() -> None:
    with pytest.raises(HostError, match="ended before its time"), helpers(1) as other:
        other.submit(os._exit, 3).result()
