"""A fleet's commands as processes: who is killed or interrupted at which moment, and that nothing is left at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from authority import Authority
from virtoll.hosts.lock import exclusive
from virtoll.record.store import RunDirectory
from yard import PATIENCE_S, SMALL

# As a shell without job control has it: deaf to Ctrl-C.
_IN_BACKGROUND = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
HOST = Path(__file__).with_name("fleet_host.py")


@dataclass
class Commands:
    """`virtoll scheduler`, `virtoll worker` and `virtoll run --cluster`, each a process."""

    directory: Path
    tls: Path
    address: str = "tls://127.0.0.1:0"
    running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def start(self, name: str, *words: str) -> subprocess.Popen[str]:
        state = self.directory / f"state-{name}"
        environment = {**os.environ, "VIRTOLL_STATE": str(state), "FLEET_HOLD": str(self.hold(name))}
        self.running[name] = subprocess.Popen(
            [*_IN_BACKGROUND, sys.executable, str(HOST), *words, "--tls", str(self.tls)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self.running[name]

    def hold(self, name: str) -> Path:
        """Makes the next trial of a host stand still."""
        return self.directory / f"hold-{name}"

    def start_scheduler(self) -> None:
        scheduler = self.start("scheduler", "scheduler", "tls://127.0.0.1:0")
        self.address = self.told(scheduler, "listens at ").partition(";")[0]

    def start_worker(self, name: str) -> None:
        worker = self.start(name, "worker", self.address, "--name", name)
        self.told(worker, "waits for studies")

    def start_run(self, *words: str) -> subprocess.Popen[str]:
        return self.start("run", "run", *words, "--cluster", self.address)

    @staticmethod
    def told(process: subprocess.Popen[str], what: str) -> str:
        """The rest of the line that holds it."""
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if what in line:
                return line.partition(what)[2].strip()
        raise AssertionError("".join(said))

    def held(self, name: str) -> str:
        """The id of the trial that a host stands still in."""
        return self.appeared(self.hold(name).with_suffix(".held")).read_text()

    @staticmethod
    def appeared(path: Path) -> Path:
        deadline = time.monotonic() + PATIENCE_S
        while not path.exists() or (path.suffix == ".held" and not path.read_text()):
            assert time.monotonic() < deadline, path
            time.sleep(0.01)
        return path

    def ended(self, name: str) -> tuple[int, str]:
        """How a process ended by itself, and what it said."""
        process = self.running.pop(name)
        said, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, said

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> tuple[int, str]:
        self.running[name].send_signal(number)
        return self.ended(name)

    def end(self) -> None:
        for name in list(self.running):
            self.kill(name)


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    made = Commands(tmp_path, Authority.made(tmp_path / "ca").host("host"))
    (tmp_path / "small.toml").write_text(SMALL)
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


@pytest.mark.timeout(1200)  # eight commands, one after another, each as slow to start as the machine is busy
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
    assert (code, "Traceback" in said) == (130, False)


def expect_names_apart(commands: Commands) -> None:
    """Two of one name are not two hosts."""
    commands.start("again", "worker", commands.address, "--name", "node2")
    code, said = commands.ended("again")
    assert code == 3, said
    assert "name taken, node2" in said
