"""A fleet's commands, each a process; labs are fakes (fleet_host.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from yard import PATIENCE_S

# As a shell without job control has it: deaf to Ctrl-C.
_IN_BACKGROUND = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
_PYTHON = (sys.executable, "-X", "faulthandler")
HOST = Path(__file__).with_name("fleet_host.py")


@dataclass
class Commands:
    """`virtoll scheduler`, `virtoll worker` and `virtoll run --cluster`, by name.

    ``tls``: each one's certificates; ``inside``: the network namespaces of those that have one of their own.
    """

    directory: Path
    tls: Mapping[str, Path]
    listens: str = "tls://127.0.0.1:0"
    inside: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.everybodys.mkdir()

    def start(self, name: str, *words: str) -> subprocess.Popen[str]:
        state = self.directory / f"state-{name}"
        environment = {
            **os.environ,
            "VIRTOLL_STATE": str(state),
            "FLEET_HOLD": str(self.hold(name)),
            "TMPDIR": str(self.everybodys),
        }
        where = ("nsenter", f"--net=/run/netns/{self.inside[name]}") if name in self.inside else ()
        self.running[name] = subprocess.Popen(
            [*where, *_IN_BACKGROUND, *_PYTHON, str(HOST), *words, "--tls", str(self.tls[name])],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self.running[name]

    @property
    def everybodys(self) -> Path:
        """As /tmp: others may have been there before."""
        return self.directory / "tmp"

    def hold(self, name: str) -> Path:
        """Makes the next trial of a host stand still."""
        return self.directory / f"hold-{name}"

    def start_scheduler(self) -> None:
        scheduler = self.start("scheduler", "scheduler", self.listens)
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
        try:
            said, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # Python tells then where each thread is
            raise AssertionError(f"{name} does not end: {process.communicate()[0]}") from None
        return process.returncode, said

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> tuple[int, str]:
        self.running[name].send_signal(number)
        return self.ended(name)

    def end(self) -> None:
        for name in list(self.running):
            self.kill(name)
