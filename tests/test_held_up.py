"""Where somebody else is in the way at a bad moment: locks that are held, names that stand for something else."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from virtoll.errors import PlatformError
from virtoll.hosts import resources
from virtoll.platforms import logs, lxc
from virtoll.run import boot, by_ssh


def test_a_lock_on_run_that_any_user_may_hold_ends_with_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LXC arms hung for ever."""
    monkeypatch.setattr(lxc, "_LOCKS", tmp_path / "lxc/lock")
    monkeypatch.setattr(lxc, "_LOCK_S", 0.01)
    somebody = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(somebody, fcntl.LOCK_EX)
    with pytest.raises(PlatformError, match=f"somebody holds the lock on {tmp_path}"), lxc._looked_at_alone():
        pass
    os.close(somebody)
    with lxc._looked_at_alone():
        pass


def test_a_name_of_the_machines_own_network_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made by the number of a process that had ended, and had become another's."""
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("it would have ended everything on this machine"))
    ran: list[list[str]] = []
    host = cast(Any, SimpleNamespace(run=lambda argv, **_: ran.append(argv)))
    resources._end_netns(host, "vt-made-up", Path("/proc/self/ns/net"))
    assert ran == [["ip", "netns", "delete", "vt-made-up"]]


def test_a_log_that_cannot_be_opened_is_told_at_once(tmp_path: Path) -> None:
    """Its thread died alone, and a guest stood still at 64 KiB of its console."""
    (tmp_path / "log").mkdir()
    with pytest.raises(IsADirectoryError), logs.bounded(tmp_path / "log"):
        pass
    assert not [each.name for each in threading.enumerate() if each.name.endswith(str(tmp_path / "log"))]


def test_a_ledger_that_was_cleaned_away_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A performer's directory stood in a file that nobody could find any more."""
    ledger, locked = tmp_path / "ledger/performer.jsonl", fcntl.flock

    def cleaned(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", locked)
        ledger.unlink()
        locked(file, how)

    monkeypatch.setattr(fcntl, "flock", cleaned)
    file = boot._announced(ledger, tmp_path / "performer")
    assert str(tmp_path / "performer") in ledger.read_text()
    assert os.path.samestat(os.fstat(file), ledger.stat())
    os.close(file)


def test_a_host_that_reads_no_more_is_left_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The beat waited for room in the pipe with the lock that the end waited for."""
    monkeypatch.setattr(by_ssh, "_LAST_WORDS_S", 0.01)
    ended: list[object] = []
    monkeypatch.setattr(by_ssh, "end_session", ended.append)
    session: Any = object.__new__(by_ssh.Line)
    session._over, session._sending = threading.Event(), threading.Lock()
    session._draining = threading.Thread(target=lambda: None)
    nothing = SimpleNamespace(close=lambda: None, end=lambda: None)
    session._stdin = SimpleNamespace(close=lambda: pytest.fail("somebody is writing to it"))
    session._stdout = session._said = nothing
    session._process = SimpleNamespace(wait=lambda _s: pytest.fail("it would be waited for"))
    with session._sending:
        session.end()
    assert ended == [session._process]
