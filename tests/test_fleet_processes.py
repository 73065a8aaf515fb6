"""A fleet's commands as processes: who is killed or interrupted at which moment, and that nothing is left at work."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from authority import Authority
from fleet_commands import Commands
from virtoll.hosts.lock import exclusive
from virtoll.record.store import RunDirectory
from yard import SMALL


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    tls = Authority.made(tmp_path / "ca").host("host")
    made = Commands(tmp_path, dict.fromkeys(("scheduler", "node1", "node2", "run", "again"), tls))
    (tmp_path / "small.toml").write_text(SMALL)
    planted = made.everybodys / "dask-scratch-space"  # where Dask would import from
    planted.mkdir()
    try:
        made.start_scheduler()
        for name in ("node1", "node2"):
            made.start_worker(name)
        yield made
    finally:
        made.end()


def begin(commands: Commands, *words: str) -> str:
    """A run, or more of it, whose second host stands still in a trial: its id."""
    held = commands.hold("node2").with_suffix(".held")
    for path in (held, held.with_suffix(".undone")):
        path.unlink(missing_ok=True)
    commands.hold("node2").touch()
    commands.start_run(*words)
    commands.appeared(held)
    return held.read_text()


def failed(directory: RunDirectory) -> dict[str, str]:
    """Why each trial that failed did."""
    return {record.trial.id: record.reason for record in directory.records() if record.status == "failed"}


def test_whoever_is_killed_or_interrupted_nothing_sealed_is_lost_and_nobody_is_left_at_work(commands: Commands) -> None:
    """One run, which goes on each time where it stopped: processes take long to start."""
    directory = RunDirectory(commands.directory / "run")
    undone = commands.hold("node2").with_suffix(".undone")

    # A worker is killed: its trial alone is lost.
    lost = begin(commands, str(commands.directory / "small.toml"), "--out", str(directory.path))
    commands.kill("node2")
    code, said = commands.ended("run")
    assert code == 1, said
    assert "9 trials left; node2: its worker was lost" in said
    assert failed(directory) == {lost: "interrupted: node2: its worker was lost"}
    assert Counter(r.trial.host for r in directory.records() if r.status == "valid") == {"node1": 9}
    commands.start_worker("node2")

    # The one who gives orders is interrupted: the hosts undo what they are at, and wait for the next.
    lost = begin(commands, str(directory.path))
    code, said = commands.kill("run", signal.SIGTERM)
    assert code == 130, said
    commands.appeared(undone)
    assert failed(directory)[lost] == "interrupted: by the user"

    # He is killed: the same, and what was begun is known all the same.
    lost = begin(commands, str(directory.path))
    commands.kill("run")
    commands.appeared(undone)
    assert [trial.id for trial in directory.unsealed()] == [lost]

    # A worker is interrupted: it undoes its trial, gives the machine up, and ends.
    lost = begin(commands, str(directory.path))
    code, said = commands.kill("node2", signal.SIGTERM)
    assert code == 130, said
    assert "everything it made is undone" in said
    assert undone.exists()
    with exclusive(commands.directory / "state-node2"):
        pass
    assert commands.ended("run")[0] == 1
    assert failed(directory)[lost].startswith("interrupted: node2: ")
    commands.start_worker("node2")

    # The scheduler is killed: all end, in words, with what they were at undone; and another one will do.
    begin(commands, str(directory.path))
    commands.kill("scheduler")
    code, said = commands.ended("run")
    assert code == 1, said
    assert "is gone" in said
    for name in ("node1", "node2"):
        code, said = commands.ended(name)
        assert code == 3, said
        assert "the scheduler is gone" in said
    assert undone.exists()
    commands.hold("node2").unlink()
    commands.start_scheduler()
    commands.start_worker("node2")
    commands.start_run(str(directory.path))
    code, said = commands.ended("run")
    assert code == 0, said
    assert Counter(record.status for record in directory.records()) == {"valid": 18, "failed": 5}

    expect_names_apart(commands)
    code, said = commands.kill("scheduler", signal.SIGTERM)
    assert (code, "Traceback" in said) == (130, False), said
    assert list((commands.everybodys / "dask-scratch-space").iterdir()) == []


def expect_names_apart(commands: Commands) -> None:
    """Two of one name are not two hosts."""
    commands.start("again", "worker", commands.address, "--name", "node2")
    code, said = commands.ended("again")
    assert code == 3, said
    assert "name taken, node2" in said
