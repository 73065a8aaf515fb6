"""Platform ssh by OpenSSH's own server: deployed, lost, cleaned up after, and measured in a study."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import contract
import undrawn
from sshd_place import DESTINATION, HERE, THERE, Machine, machine
from virtoll.agent import StreamError
from virtoll.hosts import ssh
from virtoll.hosts.local import LocalHost, end_session
from virtoll.hosts.mountinfo import MOUNTINFO
from virtoll.images.base import AGENT
from virtoll.lab.base import Lab
from virtoll.platforms.ssh import SshMachine, SshSettings
from virtoll.record.model import NOT_LIMITED

pytestmark = pytest.mark.machine
STUDY = """\
name = "abroad"
blocks = 2
noise_floor = false
[service]
name = "nginx"
[load]
name = "http"
loop = "open"
rate = "50/s"
connections = 50
time_limit = "1 s"
warm_up = "0 s"
[[arms]]
platform = "native"
[[arms]]
platform = "ssh"
destination = "root@192.0.2.7"
directory = "@THERE@"
"""


@pytest.fixture(name="place", scope="module")
def _place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("sshd") / "m") as made:
        yield made


@pytest.fixture(name="there")
def _there(tmp_path: Path) -> Path:
    """Where something may be made on the machine."""
    (tmp_path / "d").mkdir()
    return tmp_path / "d/virtoll"


@pytest.fixture(name="platform")
def _platform(place: Machine, there: Path, monkeypatch: pytest.MonkeyPatch) -> SshMachine:
    monkeypatch.setenv("PATH", place.path)
    place.known()
    return SshMachine(SshSettings(destination=DESTINATION, directory=str(there)))


def rooted(there: Path) -> list[int]:
    """Processes whose root is below it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "root").startswith(f"{there}/"):  # noqa: PTH115
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def shared_connections(control: Path | None) -> list[int]:
    """The clients that hold a connection for others."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = os.fsdecode((entry / "cmdline").read_bytes()).split("\0")  # of any bytes
        except OSError:
            continue
        if entry.name.isdigit() and str(control) in words and "-N" in words:
            found.append(int(entry.name))
    return found


def test_an_instance_is_deployed_and_nothing_is_left(lab: Lab, platform: SshMachine, there: Path) -> None:
    image = contract.image()
    assert platform.try_out(LocalHost()) == []
    with platform.session(lab, image):
        for _ in range(2):
            with contract.deployed(lab, image, platform) as instance:
                agent = instance.agent
                assert agent.facts()["pid1"] == "agent", "in a process namespace of its own"
                assert agent.run(["test", "-e", "/var/tmp/mine"]).returncode == 1, "each is fresh"
                agent.put("/var/tmp/mine", b"")
                assert b" overlay " in agent.get("/proc/self/mountinfo")
                assert agent.run(["sh", "-c", "echo >/dev/null; test -c /dev/zero"]).returncode == 0
                assert (instance.attachment.endpoint_address, instance.attachment.generator_address) == (THERE, HERE)
                assert str(there) not in Path(MOUNTINFO).read_text(), "its mounts are seen by nobody else"
                assert rooted(there)
            assert rooted(there) == []
        assert there.exists()
    assert not there.exists()


def test_what_runs_there_ends_with_the_connection(lab: Lab, platform: SshMachine, there: Path) -> None:
    image = contract.image()
    with platform.session(lab, image):
        with contract.deployed(lab, image, platform) as instance:
            instance.agent.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & exit 0"])
            assert len(rooted(there)) == 2
            (shared,) = shared_connections(platform._shared(lab).control)
            os.kill(shared, signal.SIGKILL)
            while rooted(there) or instance.is_running():
                time.sleep(0.01)
            with pytest.raises(StreamError, match="the connection was lost"):
                instance.agent.facts()
        with contract.deployed(lab, image, platform) as instance:
            assert instance.is_running()
    assert not there.exists()


def test_who_works_in_a_directory_ends_when_it_is_removed(lab: Lab, platform: SshMachine, there: Path) -> None:
    """What a killed virtoll may leave, if its connection hangs on."""
    run = there / "run-1"
    agent = run / f"root{AGENT}"
    agent.parent.mkdir(parents=True)
    agent.write_bytes((contract.image().rootfs / AGENT.removeprefix("/")).read_bytes())
    agent.chmod(0o755)
    argv = ["unshare", "-m", "-p", "-f", "chroot", str(run / "root"), AGENT, "serve"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True)
    try:
        while not rooted(there):
            time.sleep(0.01)
        ssh.remove_directory(LocalHost(), ssh.named(DESTINATION, str(run)))
        assert rooted(there) == []
        assert not run.exists()
        process.wait()
    finally:
        end_session(process)
        assert process.stdin is not None
        process.stdin.close()
    assert platform.check(LocalHost()) == []


def test_a_host_key_must_be_known(place: Machine, platform: SshMachine) -> None:
    place.forgotten()
    (problem,) = platform.try_out(LocalHost())
    assert "its host key is not known here" in problem.what
    place.known("user")
    (problem,) = platform.try_out(LocalHost())
    assert "its host key has changed" in problem.what
    assert (place.directory / "known_hosts").read_text().startswith(THERE), "nothing was accepted"


def test_a_key_that_is_not_taken_is_told(place: Machine, platform: SshMachine) -> None:
    other = SshMachine(SshSettings(destination=f"nobody@{THERE}", directory=platform.settings.directory))
    (problem,) = other.try_out(LocalHost())
    assert "it accepts none of our keys" in problem.what
    assert place.directory.exists()


def test_nobody_listens_there(platform: SshMachine) -> None:
    other = SshMachine(SshSettings(destination=f"ssh://root@{THERE}:9", directory=platform.settings.directory))
    (problem,) = other.try_out(LocalHost())
    assert "it cannot be reached" in problem.what


@dataclass(frozen=True)
class Virtoll:
    """The command where the machine is reached: its network is the host's then. A socket's path is short."""

    place: Machine
    there: Path
    directory: Path

    @contextmanager
    def running(self, *words: str, text: str = STUDY) -> Iterator[subprocess.Popen[str]]:
        """`virtoll run`; ended with the block."""
        (self.directory / "abroad.toml").write_text(text.replace("@THERE@", str(self.there)))
        environment = {**os.environ, "PATH": self.place.path, "VIRTOLL_STATE": str(self.directory / "state")}
        argv = self.place.within([*undrawn.ARGV, "run", "abroad.toml", "--out", "out", *words])
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, cwd=self.directory, env=environment, text=True, stdout=pipe, stderr=pipe)
        try:
            yield process
        finally:
            process.kill()

    def records(self) -> list[dict[str, Any]]:
        """All that are sealed, of the arm on the machine."""
        lines = (self.directory / "out/trials.jsonl").read_text().splitlines()
        return [each for each in map(json.loads, lines) if each["trial"]["arm"]["platform"] == "ssh"]

    def assert_nothing_left(self) -> None:
        """Here and there."""
        assert not self.there.exists()
        assert [*(self.directory / "state/ledger").glob("*")] == []


@pytest.fixture(name="virtoll")
def _virtoll(place: Machine, there: Path, tmp_path_factory: pytest.TempPathFactory) -> Virtoll:
    place.known()
    return Virtoll(place, there, tmp_path_factory.mktemp("s"))


def test_a_connection_that_is_lost_in_a_window_fails_that_trial_alone(virtoll: Virtoll) -> None:
    lost = ""
    with virtoll.running("--json", text=STUDY.replace('"1 s"', '"5 s"')) as process:
        assert process.stdout is not None
        arms: dict[str, str] = {}
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "started":
                arms[event["trial"]["id"]] = event["trial"]["arm"]["platform"]
            if event["event"] == "phase" and event["phase"] == "window" and arms[event["trial"]] == "ssh" and not lost:
                lost = event["trial"]
                (control,) = (virtoll.directory / "state").glob("lab-*/ssh-*")
                (shared,) = shared_connections(control)
                os.kill(shared, signal.SIGKILL)
        assert process.wait() == 1
    first, second = virtoll.records()
    assert (first["trial"]["id"], first["status"]) == (lost, "failed")
    assert "the connection was lost" in first["reason"]
    assert second["status"] != "failed", second["reason"]
    virtoll.assert_nothing_left()


def test_native_against_a_machine_of_ones_own(virtoll: Virtoll) -> None:
    """From file to report."""
    with virtoll.running() as process:
        stdout, stderr = process.communicate(timeout=1500)
    assert process.returncode in (0, 1), stdout + stderr
    mine, directory = virtoll.records(), virtoll.directory
    assert len(mine) == 2
    for record in mine:
        assert record["status"] != "failed", record["reason"]
        checks = {check["name"]: check for check in record["checks"]}
        assert checks["answered correctly before"]["passed"]
        assert checks["answered correctly after"]["passed"]
        assert checks["the memory limit bites"]["passed"] is None
        assert NOT_LIMITED in checks["the memory limit bites"]["detail"]
        assert record["facts"]["address"] == THERE
        assert record["facts"]["machine"]["cpus"] == os.cpu_count()
        assert record["clock"]["round_trip_after_ns"] > 0
        sources = pq.read_table(directory / "out/trials" / record["trial"]["id"] / "outside.parquet")["source"]
        assert {"generator", "host"} <= {*sources.to_pylist()} <= {"generator", "host", "monitor", "origin"}
    page = (directory / "out/report/index.html").read_text("utf-8")
    assert NOT_LIMITED in page
    assert f"{DESTINATION}: commands, the image and the load go to this machine" in " ".join(stdout.split())
    virtoll.assert_nothing_left()
