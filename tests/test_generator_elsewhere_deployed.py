"""The load generator on another machine: one with a real sshd, in a network namespace, whose link is a veth."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import undrawn
from sshd_place import DESTINATION, Machine, machine
from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.post.sessions import CLOCK, OWN
from virtoll.record.model import ALL_THERE, ELSEWHERE, GENERATOR_HEADROOM, ORIGIN_HEADROOM
from virtoll.services.nginx import Nginx
from virtoll.services.squid import Squid
from virtoll.trial.proofs import IDLE

pytestmark = pytest.mark.machine
GENERATOR = ("--generator", f"ssh://{DESTINATION}:22", "--nic", "here0,there0")
# Of these a busy machine may fall short: both ends of the link are on it, and others besides.
_BUSY = (
    *(CLOCK, OWN, GENERATOR_HEADROOM, ORIGIN_HEADROOM, ALL_THERE, IDLE),
    *("the generator kept its schedule", "offered load met intended", "the clock held"),
)
PROXY = """\
name = "apart"
blocks = 2
noise_floor = false
[service]
name = "squid"
[origin]
name = "nginx"
[load]
name = "http"
loop = "open"
rate = "50/s"
connections = 50
time_limit = "2 s"
warm_up = "200 ms"
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
optional = true
"""
# A lab of its own for each arm, and all of them upon one device.
IN_TURN = """\
name = "turns"
design = "rotation"
blocks = 2
noise_floor = false
[rotation]
rounds = 2
window = "1 s"
[service]
name = "nginx"
[load]
name = "http"
connections = 2
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
optional = true
"""


@dataclass(frozen=True)
class Apart:
    """The command here, where the link is, and what is on either machine."""

    place: Machine
    directory: Path

    def started(self, *words: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PATH": self.place.path, "VIRTOLL_STATE": str(self.directory / "state")}
        argv = self.place.within([*undrawn.ARGV, *words])
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, cwd=self.directory, env=environment, text=True, stdout=pipe, stderr=pipe)

    def virtoll(self, *words: str) -> tuple[int, str]:
        with self.started(*words) as process:
            out, err = process.communicate()
        return process.returncode, " ".join(f"{out} {err}".split())

    def cut_short_in_a_window(self, *words: str, there: bool) -> tuple[int, str]:
        """While it measures what drives the load there is killed, or here somebody presses Ctrl-C."""
        with self.started(*words) as process:
            while not (pids := self._measuring()) and process.poll() is None:
                time.sleep(0.01)
            for pid in pids if there else []:
                os.kill(pid, signal.SIGKILL)
            if not there:
                process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        return process.returncode, " ".join(f"{out} {err}".split())

    def _measuring(self) -> list[int]:
        """The performer there, once a generator of its own runs."""
        found, parents = [], set()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                line = os.fsdecode((entry / "cmdline").read_bytes()).replace("\0", " ")
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            if "virtoll-load http" in line and str(self.place.directory) in line:
                parents.add(parent)
            if "-m virtoll.run.performing" in line and str(self.place.directory) in line:
                found.append(int(entry.name))
        return [pid for pid in found if pid in parents]

    def records(self, out: str = "out") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / out / "trials.jsonl").read_text().splitlines()]

    def environment(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "out/environment.json").read_text())
        return found

    def left(self) -> list[str]:
        """What either machine's state directory still has."""
        states = (self.directory / "state", self.place.directory / "state")
        return [str(path) for state in states for path in state.glob("**/*") if path.name not in ("ledger", "lock")]

    def links(self) -> str:
        """The devices where the link ends here."""
        return subprocess.run(self.place.within(["ip", "-o", "link"]), capture_output=True, text=True).stdout


@pytest.fixture(name="apart", scope="module")
def _apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    # The machine has this one's cache, and no mirror: where nothing else has asked for its image yet, it is made here.
    try:
        for service in (Nginx(), Squid()):
            rootfs.build(LocalHost(), "apart", service.image.packages, lambda line: print(line, file=sys.stderr))
    except HostError as error:
        pytest.skip(str(error))  # there is no mirror
    with machine(tmp_path_factory.mktemp("sshd") / "m") as place:
        there = Apart(place, tmp_path_factory.mktemp("here"))
        (there.directory / "apart.toml").write_text(PROXY)
        (there.directory / "turns.toml").write_text(IN_TURN)
        yield there


def test_a_study_is_driven_from_there_killed_and_goes_on_to_its_report(apart: Apart) -> None:
    before = apart.links()
    code, said = apart.virtoll("run", "apart.toml", "--out", "out", *GENERATOR[:2], "--nic", "here0,eno9")
    assert code == 3, said
    assert "there is no such network device; there are: there0" in said

    code, said = apart.cut_short_in_a_window("run", "apart.toml", "--out", "out", *GENERATOR, there=True)
    assert code == 1, said
    assert "the generator's machine was lost" in said
    assert "--nic here0,there0` goes on" in said
    (first,) = apart.records()
    assert (first["status"], first["reason"].partition(":")[0]) == ("failed", "interrupted")
    same = apart.environment()["comparable"][ELSEWHERE]
    assert (same["nic here"]["name"], same["nic"]["name"], same["nic"]["mtu"]) == ("here0", "there0", 1500)

    code, said = apart.virtoll("run", "out")
    assert code == 2, said
    assert "this run's generator is on another machine" in said

    code, said = apart.cut_short_in_a_window("run", "out", *GENERATOR, there=False)
    assert code == 130, said
    assert apart.records()[-1]["reason"] == "interrupted: by the user"
    assert apart.left() == [], "that of the killed one went first, and of this one at once"
    assert apart.links() == before

    code, said = apart.virtoll("run", "out", *GENERATOR)
    assert code in (0, 1), said
    records = apart.records()[2:]
    assert len(records) == 2 * _arms(apart.directory / "out"), said
    for record in records:
        assert_driven(record)
        (window,) = record["measured"]["windows"]
        (phase,) = [each for each in record["phases"] if each["name"] == "window"]
        assert phase["start_ns"] <= window["start_ns"] <= phase["start_ns"] + phase["duration_ns"]
        assert (apart.directory / f"out/trials/{record['trial']['id']}/requests.parquet").is_file()
    assert (apart.directory / "out/report/index.html").is_file()
    assert "generator elsewhere" in (apart.directory / "out/report/index.html").read_text()
    assert apart.left() == []
    assert apart.links() == before


def test_arms_in_turn_stand_upon_one_device(apart: Apart) -> None:
    before = apart.links()
    code, said = apart.virtoll("run", "turns.toml", "--out", "turns", *GENERATOR)
    assert code in (0, 1), said
    records = apart.records("turns")
    assert len(records) == 2 * _arms(apart.directory / "turns"), said
    for record in records:
        assert_driven(record)
        assert len(record["measured"]["windows"]) == 2
    assert apart.left() == []
    assert apart.links() == before


def assert_driven(record: dict[str, Any]) -> None:
    """From there, and all that is not this machine's business held."""
    broken = [check["name"] for check in record["checks"] if check["passed"] is False]
    assert record["status"] in ("valid", "invalid"), record["reason"]
    assert set(broken) <= set(_BUSY), record["reason"]
    windows = record["measured"]["windows"]
    for window in windows:
        assert window["events"]["request"]["completed"] > 0
        booked = window["booked"]
        # On a busy machine who looks may come late, and what was booked in less than half a window is told as missing.
        assert booked["cpu_ns"]["instance"] > 0 or 2 * (booked["to_ns"] - booked["from_ns"]) <= window["duration_ns"]
    assert len(record["facts"][ELSEWHERE]["clock"]) == len(windows)
    wiring = next(check for check in record["checks"] if check["name"] == "the wiring lost nothing")
    assert wiring["passed"], wiring["detail"]


def _arms(out: Path) -> int:
    plan = json.loads((out / "plan.json").read_text())
    return len({trial["arm"]["label"] for trial in plan["trials"]})
