"""One server measures, reached by OpenSSH's own: cut off, killed, cleaned, and gone on with to the report."""

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
from faults.sealed import outcome
from sshd_place import DESTINATION, THERE, Machine, machine
from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.services.nginx import Nginx

pytestmark = pytest.mark.machine
HOST = f"ssh://{DESTINATION}:22"
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
time_limit = "3 s"
warm_up = "0 s"
[[arms]]
platform = "native"
"""


@dataclass(frozen=True)
class Abroad:
    """The command here, without root's state, and what is on the machine."""

    place: Machine
    directory: Path

    def started(self, *words: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PATH": self.place.path, "VIRTOLL_STATE": "/nonexistent"}
        argv = [*undrawn.ARGV, *words, "--host", HOST]
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, cwd=self.directory, env=environment, text=True, stdout=pipe, stderr=pipe)

    def virtoll(self, *words: str) -> tuple[int, str]:
        with self.started(*words) as process:
            out, err = process.communicate()
        return process.returncode, " ".join(f"{out} {err}".split())

    def killed_in_a_trial(self, whom: str, *words: str) -> tuple[int, str]:
        """The process whose command line holds ``whom``, when a trial has been begun there; "": Ctrl-C here."""
        with self.started(*words) as process:
            while not self.there("fleet-*/b0*") and process.poll() is None:
                time.sleep(0.01)
            if whom:
                (pid,) = self._of(whom)
                os.kill(pid, signal.SIGKILL)
            else:
                process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        return process.returncode, " ".join(f"{out} {err}".split())

    def _of(self, whom: str) -> list[int]:
        """Those whose command lines name this test's own directory as well; what such a one has forked has its line
        too, until it becomes another program."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                line = os.fsdecode((entry / "cmdline").read_bytes()).replace("\0", " ")  # of any bytes, as a name
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            if entry.name.isdigit() and whom in line and str(self.place.directory) in line:
                found[int(entry.name)] = parent
        return [pid for pid, parent in found.items() if parent not in found]

    def there(self, pattern: str = "*") -> list[str]:
        """What is in the machine's state directory."""
        return sorted(path.name for path in (self.place.directory / "state").glob(pattern))

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "out/trials.jsonl").read_text().splitlines()]

    def assert_nothing_left(self) -> None:
        assert self.there() in ([], ["ledger", "lock"])
        assert self.there("ledger/*") == []


@pytest.fixture(name="abroad", scope="module")
def _abroad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Abroad]:
    # The machine has this one's cache, and no mirror: where nothing else has asked for its image yet, it is made here.
    try:
        rootfs.build(LocalHost(), "abroad", Nginx().image.packages, lambda line: print(line, file=sys.stderr))
    except HostError as error:
        pytest.skip(str(error))  # there is no mirror
    with machine(tmp_path_factory.mktemp("sshd") / "m") as place:
        there = Abroad(place, tmp_path_factory.mktemp("here"))
        (there.directory / "abroad.toml").write_text(STUDY)
        yield there


def test_a_host_key_must_be_known(abroad: Abroad) -> None:
    abroad.place.forgotten()
    try:
        code, said = abroad.virtoll("clean")
    finally:
        abroad.place.known()
    assert code == 3
    assert "its host key is not known here" in said
    assert abroad.there() == []


def test_a_study_that_is_cut_off_and_killed_goes_on_to_its_report(abroad: Abroad) -> None:
    code, said = abroad.killed_in_a_trial("ssh_config -T", "run", "abroad.toml", "--out", "out")
    assert code == 1, said
    (first,) = abroad.records()
    assert (first["status"], first["trial"]["host"]) == ("failed", f"{THERE}-22")
    assert "the connection was lost" in first["reason"]
    while abroad.there("ledger/*"):  # it undoes all by itself
        time.sleep(0.05)
    abroad.assert_nothing_left()

    code, said = abroad.killed_in_a_trial("-B -m virtoll.run.performing", "run", "out")
    assert code == 1, said
    assert [record["status"] for record in abroad.records()] == ["failed", "failed"]
    assert abroad.there("performer-*"), "a killed one undoes nothing"
    code, said = abroad.virtoll("clean")
    assert code == 0, said
    assert "removed directory" in said
    abroad.assert_nothing_left()

    code, said = abroad.killed_in_a_trial("", "run", "out")
    assert code == 130, said
    assert abroad.records()[-1]["reason"] == "interrupted: by the user"
    abroad.assert_nothing_left()  # it has waited for that

    code, said = abroad.virtoll("run", "out")
    told = outcome(abroad.directory / "out", ())  # a busy machine may have kept the generator from its schedule
    assert (told.problems, told.trials) == ([], 5), said
    assert code == (1 if told.busy else 0), said
    clock = json.loads((abroad.directory / "out/environment.json").read_text())["notes"]["clock"]
    assert abs(clock["ahead_s"]) <= clock["within_s"], "both have this machine's clock"
    assert (abroad.directory / "out/report/index.html").is_file()
    abroad.assert_nothing_left()


def test_what_a_host_offers(abroad: Abroad) -> None:
    code, said = abroad.virtoll("doctor", "--json")
    assert code in (0, 3), said
    assert '"name": "native"' in said
    abroad.assert_nothing_left()
