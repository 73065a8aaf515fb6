"""virtoll as its user meets it, when things go wrong: exit codes, what is recorded, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import held
import leaks
import undrawn
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.local import LocalHost
from virtoll.hosts.lock import exclusive

pytestmark = pytest.mark.machine

STUDY = """\
name = "small"
blocks = 2
noise_floor = false
[service]
name = "squid"
[origin]
name = "nginx"
[load]
name = "http"
connections = 4
time_limit = "{window}"
warm_up = "{warm_up}"
[limits]
memory = "{memory}"
[[arms]]
platform = "native"
"""


class Virtoll:
    """The command in a directory of its own, with its own state; the image cache is the machine's."""

    draws = False

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, "VIRTOLL_STATE": str(directory / "state")}
        self.before = leaks.snapshot()

    def tags(self) -> list[str]:
        """Of the runs that live here, or were killed: what all their names in the kernel hold."""
        return [path.stem.rpartition("-")[2] for path in (self.directory / "state" / "ledger").glob("*.jsonl")]

    def assert_nothing_left(self, tags: list[str]) -> None:
        """Of these runs; the check at the end of all tests is about everything."""
        assert tags
        for tag in tags:
            leaks.assert_nothing_left(self.before, tag)

    def study(self, *, window: str = "300 ms", warm_up: str = "0 s", memory: str = "512 MiB", extra: str = "") -> Path:
        path = self.directory / "small.toml"
        path.write_text(STUDY.format(window=window, warm_up=warm_up, memory=memory) + extra)
        return path

    def kill(self, victim: str) -> None:
        """All processes of this name."""
        pids = processes(victim, self.directory / "state")
        assert pids
        for pid in pids:
            with suppress(ProcessLookupError):  # it ended with another of them
                os.kill(pid, signal.SIGKILL)

    def start(self, *arguments: str | Path, hold: int = 0) -> subprocess.Popen[str]:
        """``hold``: it stops itself where the window of this number begins (`held`)."""
        command = [sys.executable, "-m", "virtoll"] if self.draws else held.ARGV if hold else undrawn.ARGV
        argv, environment = [*command, *map(str, arguments)], {**self.environment, held.WHERE: str(hold)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(argv, cwd=self.directory, env=environment, text=True, **pipes)  # type: ignore[call-overload,no-any-return]

    def held_in_a_window(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """A run that has begun its first window, and stands still there until it is told to go on (SIGCONT)."""
        process = self.start(*arguments, hold=1)
        wait_for_phase(process, "window")
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return process

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        try:
            stdout, stderr = process.communicate(timeout=1500)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def records(self, out: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]


@pytest.fixture
def virtoll(tmp_path: Path) -> Virtoll:
    return Virtoll(tmp_path)


def wait_for_phase(process: subprocess.Popen[str], phase: str, *, count: int = 1) -> None:
    """Read --json progress until ``phase`` has come ``count`` times."""
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        count -= event["event"] == "phase" and event["phase"] == phase
        if count == 0:
            return
    raise AssertionError(f"ended before {phase!r}: {process.stderr.read() if process.stderr else ''}")


def processes(name: str, state: Path) -> list[int]:
    """Processes called ``name`` of the run whose state is there: ours, never another's of the same name."""
    entries = [
        json.loads(line) for file in (state / "ledger").glob("*.jsonl") for line in file.read_text().splitlines()
    ]
    groups = {entry["name"] for entry in entries if entry.get("kind") == "cgroup"}
    found = []
    for entry in Path("/proc").iterdir():
        try:
            inside = any(line.split(":", 2)[2].strip("/").startswith(tuple(groups))
                         for line in (entry / "cgroup").read_text().splitlines())  # fmt: skip
            if inside and (entry / "comm").read_bytes().strip() == name.encode():
                found.append(int(entry.name))
        except (OSError, IndexError):
            continue
    return found


def test_a_small_study_from_file_to_report(virtoll: Virtoll) -> None:
    virtoll.draws = True
    out = virtoll.directory / "out"
    done = virtoll.run("run", virtoll.study(), "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    records = virtoll.records(out)
    assert [record["status"] for record in records] == ["valid", "valid"]
    passed = {check["name"] for check in records[0]["checks"] if check["passed"]}
    assert {"answered correctly before", "the CPU limit held", "the memory limit bites", "the clock held"} <= passed
    page = Path(done.stdout.rsplit("report: ", 1)[1].strip())
    assert (virtoll.directory / page).is_file()


def test_ctrl_c_in_the_window_undoes_everything_and_can_be_resumed(virtoll: Virtoll) -> None:
    out = virtoll.directory / "out"
    process = virtoll.held_in_a_window("run", virtoll.study(), "--out", out, "--json")
    tags = virtoll.tags()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    _, stderr = process.communicate(timeout=1500)
    assert process.returncode == 130, stderr
    virtoll.assert_nothing_left(tags)
    assert [record["reason"] for record in virtoll.records(out)] == ["interrupted: by the user"]
    done = virtoll.run("run", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record["status"] for record in virtoll.records(out)] == ["failed", "valid", "valid"]


@pytest.mark.parametrize("phase", ["deploy", "window", "teardown"])
def test_kill_9_leaves_what_clean_removes_and_the_run_goes_on(virtoll: Virtoll, phase: str) -> None:
    out = virtoll.directory / "out"
    study = virtoll.study(window="1 s")
    process = virtoll.start("run", study, "--out", out, "--json", hold=2)  # it has not ended, however late this comes
    wait_for_phase(process, phase)
    process.kill()
    process.communicate()
    tags = virtoll.tags()
    done = virtoll.run("clean")
    assert done.returncode == 0, done.stderr
    assert "removed netns vt-" in done.stdout
    virtoll.assert_nothing_left(tags)
    done = virtoll.run("run", out)
    assert done.returncode == 0, done.stdout + done.stderr
    statuses = [record["status"] for record in virtoll.records(out)]
    assert statuses.count("valid") == 2
    assert virtoll.run("clean").stdout.strip() == "nothing was left"


def test_a_run_is_not_gone_on_with_beside_what_its_killed_self_left(virtoll: Virtoll) -> None:
    """Killed with three hogs at work: the next virtoll ends them before it measures, and says so."""
    out = virtoll.directory / "out"
    study = virtoll.study(window="600 s", extra="[background]\nhogs = 3\n")
    process = virtoll.start("run", study, "--out", out, "--json")
    wait_for_phase(process, "window")
    (tag,) = virtoll.tags()
    process.kill()
    process.communicate()
    left = Cgroup(f"virtoll/{tag}/background", hierarchies())
    assert len(left.pids()) == 4  # the hogs, and the shell that waits for them
    process = virtoll.start("run", out, "--json")
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert first["event"] == "preparing", first
    assert f"cgroup virtoll/{tag}/background" in json.dumps(first)
    wait_for_phase(process, "window")
    assert left.pids() == []
    assert tag not in virtoll.tags()
    process.kill()
    process.communicate()
    assert virtoll.run("clean").returncode == 0


@pytest.mark.parametrize("verb", ["run", "probe", "doctor"])
def test_nothing_is_tried_or_measured_beside_what_cannot_be_removed(virtoll: Virtoll, verb: str) -> None:
    ledger = virtoll.directory / "state" / "ledger" / "dead.jsonl"
    ledger.parent.mkdir(parents=True)
    ledger.write_text('{"entry": 1, "kind": "teapot", "name": "brown betty"}\n')
    out = virtoll.directory / "out"
    arguments: dict[str, list[str | Path]] = {
        "run": [virtoll.study(), "--out", out],
        "probe": ["clock"],
        "doctor": [],
    }
    done = virtoll.run(verb, *arguments[verb])
    assert done.returncode == 3, done.stdout + done.stderr
    assert "teapot brown betty: not understood" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("verb", ["run", "probe", "doctor", "report"])
def test_nothing_is_tried_measured_or_drawn_beside_another_virtoll(virtoll: Virtoll, verb: str) -> None:
    place = virtoll.directory
    arguments: dict[str, list[str | Path]] = {"run": [virtoll.study()], "probe": ["clock"], "report": [place]}
    with exclusive(place / "state"):
        done = virtoll.run(verb, *arguments.get(verb, []))
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"another virtoll is at work here (process {os.getpid()})" in done.stderr


@pytest.mark.parametrize(("victim", "told"), [("squid", "answer"), ("virtoll-load", "load generator")])
def test_a_killed_process_fails_its_trial_and_the_next_one_runs(virtoll: Virtoll, victim: str, told: str) -> None:
    out = virtoll.directory / "out"
    process = virtoll.held_in_a_window("run", virtoll.study(warm_up="100 ms"), "--out", out, "--json")
    virtoll.kill(victim)
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=1500)
    first, second = virtoll.records(out)
    assert first["status"] in ("failed", "invalid")
    assert told in first["reason"]
    assert second["status"] == "valid"
    assert process.returncode == 1


def test_an_instance_without_memory_for_its_service_is_a_recorded_failure(virtoll: Virtoll) -> None:
    out = virtoll.directory / "out"
    done = virtoll.run("run", virtoll.study(memory="4 MiB"), "--out", out)
    assert done.returncode == 1, done.stdout + done.stderr
    # Failed where Squid does not start, invalid where it starts and dies under load: the kernel decides.
    assert {record["status"] for record in virtoll.records(out)} <= {"failed", "invalid"}
    assert all(record["reason"] for record in virtoll.records(out))


def test_a_full_disk_stops_at_once_and_the_run_goes_on_when_there_is_room(virtoll: Virtoll) -> None:
    place = virtoll.directory / "small-disk"
    place.mkdir()
    host = LocalHost()
    with ledgers.opened(host, virtoll.directory / "test-ledger", "test") as ledger, ledger.owning("mount", str(place)):
        # Room for what a run begins with (16 KiB), and for no two trials, however little they log on a busy machine.
        host.run(["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(place)])
        done = virtoll.run("run", virtoll.study(), "--out", place / "out")
        assert done.returncode == 4, done.stdout + done.stderr
        assert "No space left" in done.stderr
        assert "virtoll run RUNDIR" in done.stderr
        host.run(["mount", "-o", "remount,size=64m", str(place)])
        done = virtoll.run("run", place / "out")
        assert done.returncode == 0, done.stdout + done.stderr
        assert [record["status"] for record in virtoll.records(place / "out")].count("valid") == 2


def test_a_second_virtoll_is_refused(virtoll: Virtoll) -> None:
    process = virtoll.start("run", virtoll.study(window="600 s"), "--out", virtoll.directory / "a", "--json")
    wait_for_phase(process, "window")
    tags = virtoll.tags()
    second = virtoll.run("run", virtoll.study(), "--out", virtoll.directory / "b")
    assert second.returncode == 3
    assert f"process {process.pid}" in second.stderr
    assert not (virtoll.directory / "b").exists()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=1500)
    assert process.returncode == 130
    assert [record["reason"] for record in virtoll.records(virtoll.directory / "a")] == ["interrupted: by the user"]
    virtoll.assert_nothing_left(tags)


@pytest.mark.parametrize("probe", ["round-trip", "connect", "unix-pipe", "disk-sync", "boot"])
def test_a_probe_by_hand_is_valid(virtoll: Virtoll, probe: str) -> None:
    """With a server of its own inside, or without: the whole of a trial on native."""
    # So much of it, whatever time that takes: a machine that was slow when its pace was asked makes windows too short.
    brief = [] if probe == "boot" else ["--work", "50"]
    done = virtoll.run("probe", probe, *brief, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [check for check in json.loads(done.stdout)["checks"] if check["passed"] is False] == []


def test_a_wrong_study_is_refused_before_anything_is_made(virtoll: Virtoll) -> None:
    study = virtoll.study(extra='[[arms]]\nplatform = "lcx"\n[[arms]]\nplatform = "native"\nnetwork = "usernet"\n')
    done = virtoll.run("run", study, "--out", virtoll.directory / "out")
    assert done.returncode == 2
    assert "small.toml:18: no platform is called 'lcx'; did you mean 'lxc'?" in done.stderr
    assert "small.toml:21: native cannot be attached in mode 'usernet'" in done.stderr
    assert not (virtoll.directory / "out").exists()
    assert not (virtoll.directory / "state").exists()


def test_not_root_is_told(virtoll: Virtoll) -> None:
    argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-m", "virtoll", "doctor"]
    readable = {**virtoll.environment, "PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    done = subprocess.run(argv, capture_output=True, text=True, env=readable, timeout=600, cwd="/")
    assert done.returncode == 3
    assert "only root may" in done.stderr
    assert "run it with sudo" in done.stderr


def test_a_dry_run_changes_nothing(virtoll: Virtoll) -> None:
    done = virtoll.run("run", virtoll.study(), "--dry-run", "--seed", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("native+host") == 2
    assert "nothing was changed" in done.stdout
    assert not (virtoll.directory / "state").exists()


PROGRAMME = """\
name = "small"
blocks = 2
noise_floor = false
[limits]
memory = "256 MiB"
[[probes]]
name = "timer"
interval = ["1 ms", "2 ms", "3 ms"]
windows = 2
time = "1 s"
[[arms]]
platform = "native"
"""


def test_an_instance_killed_in_a_probe_fails_that_trial_alone(virtoll: Virtoll) -> None:
    out, study = virtoll.directory / "out", virtoll.directory / "programme.toml"
    study.write_text(PROGRAMME)
    process = virtoll.held_in_a_window("run", study, "--out", out, "--json")
    tags = virtoll.tags()
    virtoll.kill("agent")
    process.send_signal(signal.SIGCONT)
    _, stderr = process.communicate(timeout=1500)
    assert process.returncode == 1, stderr
    records = virtoll.records(out)
    assert [record["status"] for record in records] == ["failed", "valid", "valid", "valid", "valid", "valid"]
    assert records[0]["measured"] is None
    deployments = [[phase["name"] for phase in record["phases"]].count("deploy") for record in records]
    assert deployments == [1, 1, 0, 1, 0, 0], "the one after the dead gets a new instance, and the others share theirs"
    virtoll.assert_nothing_left(tags)
