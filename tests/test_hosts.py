"""Machines, the ledger, the lock: right even when killed."""

from __future__ import annotations

import errno
import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from virtoll.errors import CommandError, HostError
from virtoll.hosts import exchange, programs
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.base import Completed
from virtoll.hosts.interrupts import held_off, install
from virtoll.hosts.local import LocalHost, end_session
from virtoll.hosts.lock import beside_nobody, exclusive
from virtoll.hosts.mountinfo import mount_lines, mount_point
from virtoll.hosts.processes import in_session
from virtoll.hosts.resources import RESOURCES
from virtoll.platforms.requirements import bare


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 600
    while _is_running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_run_gives_bytes_and_text(host: LocalHost) -> None:
    done = host.run(["sh", "-c", "cat; echo oops >&2"], stdin=b"in\xff\n")
    assert (done.stdout, done.stderr, done.returncode) == (b"in\xff\n", b"oops\n", 0)


def test_a_failing_command_tells_its_own_words(host: LocalHost) -> None:
    with pytest.raises(CommandError, match=r"exit 3 from: sh -c .*\nthe reason"):
        host.run(["sh", "-c", "echo the reason >&2; exit 3"])
    assert host.run(["false"], check=False).returncode == 1


def test_a_missing_program_is_named(host: LocalHost) -> None:
    with pytest.raises(CommandError, match="cannot start no-such-program"):
        host.run(["no-such-program"], check=False)


def test_the_administrators_programs_are_found_from_a_users_path(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes by `su` keeps a PATH without sbin: what is found must start too, and find what it starts itself."""
    for name in ("vt-outer", "vt-inner"):
        (tmp_path / name).write_text("#!/bin/sh\n" + ("vt-inner" if name == "vt-outer" else "echo reached") + "\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(programs, "_FURTHER", (str(tmp_path),))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert programs.find("vt-outer") == str(tmp_path / "vt-outer")
    assert host.run(["vt-outer"]).text == "reached"
    assert host.run(bare(["vt-outer"])).text == "reached"
    assert host.run(["vt-outer"], env={"LC_ALL": "C"}).text == "reached"


def test_the_path_of_programs_is_the_users_first_and_never_where_one_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_FURTHER", ("/usr/sbin", "/sbin"))
    monkeypatch.setenv("PATH", "/opt/mine::/sbin")  # an empty entry is the working directory
    assert programs.search_path() == "/opt/mine:/sbin:/usr/sbin"


def _no_time_passes_before(monkeypatch: pytest.MonkeyPatch, words: bytes, ends: int = 0) -> None:
    """Until a command's ``words`` have been read, and the ends of so many of its streams; then its time is over."""
    heard: list[bytes] = []

    def read(descriptor: int, length: int) -> bytes:
        heard.append(os.read(descriptor, length))
        return heard[-1]

    def monotonic() -> float:
        return 1e9 if words in b"".join(heard) and heard.count(b"") >= ends else 0.0

    monkeypatch.setattr(exchange, "os", SimpleNamespace(read=read, write=os.write))
    monkeypatch.setattr(exchange, "time", SimpleNamespace(monotonic=monotonic))


def test_time_out_ends_the_whole_session(host: LocalHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The leader has ended, a child of it holds the pipe: it goes too."""
    file = tmp_path / "pid"
    _no_time_passes_before(monkeypatch, b"partial")
    with pytest.raises(CommandError, match=r"no end within 0\.5 s"):
        host.run(["sh", "-c", f"sleep 1000 & echo $! >{file}; echo partial"], timeout_s=0.5)
    assert _wait_until_gone(int(file.read_text()))


def test_end_session_reaps(host: LocalHost) -> None:
    process = host.spawn(["sh", "-c", "sleep 1000 & sleep 1000"])
    end_session(process)
    assert process.returncode == -signal.SIGKILL
    end_session(process)


def test_nobody_of_an_ended_session_is_left(host: LocalHost) -> None:
    """Nor who has a process group of its own; and what they were in the middle of (here: a write) is over."""
    script = "set -m; for i in 1 2 3; do dd if=/dev/zero of=/dev/null bs=64M & done; echo started; wait"
    with host.spawn(["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        assert len(in_session(process.pid)) > 1
        end_session(process)
        assert in_session(process.pid) == []


@pytest.mark.parametrize("start", ["run", "spawn"])
def test_an_interrupt_between_fork_and_assignment_ends_what_was_started(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    install()
    started: list[int] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self.pid)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(host, start)(["sleep", "1000"])
    (pid,) = started
    assert not Path(f"/proc/{pid}").exists()


def test_what_was_there_before_is_never_removed(host: LocalHost, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "work").mkdir(parents=True)
    with ledgers.opened(host, tmp_path / "ledger", "run") as ledger:
        with pytest.raises(HostError, match="exists already"), ledger.owning("directory", str(theirs)):
            pass
        assert ledgers.standing(ledger.path.read_text()) == []
    assert (theirs / "work").is_dir()


def test_a_directory_that_others_have_come_to_use_stays_and_an_empty_one_goes(host: LocalHost, tmp_path: Path) -> None:
    """liblxc makes /run/lxc/lock for its locks, and leaves it."""
    above = tmp_path / "lxc"
    for other in (above / "others", None):
        with ledgers.opened(host, tmp_path / "ledger", "run") as ledger:
            with ledger.owning("directory-above", str(above)), ledger.owning("directory", str(above / "ours")):
                (above / "ours").mkdir(parents=True)
                if other:
                    other.touch()
            assert above.exists() == (other is not None)
            assert ledgers.standing(ledger.path.read_text()) == []
        if other:
            other.unlink()


@pytest.mark.machine
def test_nor_are_a_mount_or_a_namespace_that_were_there(host: LocalHost, tmp_path: Path) -> None:
    place, name = tmp_path / "place", f"vt-{secrets.token_hex(2)}-there"
    with (
        ledgers.opened(host, tmp_path / "ledger", "one") as one,
        ledgers.opened(host, tmp_path / "ledger", "two") as two,
        one.owning("mount", str(place)),
        one.owning("netns", name),
    ):
        place.mkdir()
        host.run(["mount", "-t", "tmpfs", "virtoll-test", str(place)])
        Path("/run/netns").mkdir(exist_ok=True)
        Path("/run/netns", name).touch()
        host.run(["unshare", f"--net=/run/netns/{name}", "true"])
        for kind, thing in (("mount", str(place)), ("netns", name)):
            with pytest.raises(HostError, match="exists already"), two.owning(kind, thing):
                pass
        assert place.is_mount()
        assert Path("/run/netns", name).exists()


def test_a_ledger_with_lines_that_are_none_is_kept_and_the_rest_of_it_removed(host: LocalHost, tmp_path: Path) -> None:
    thing, path = tmp_path / "thing", tmp_path / "run.jsonl"
    thing.mkdir()
    good = json.dumps({"entry": 1, "kind": "directory", "name": str(thing)})
    path.write_text(f'{good}\n5\n{{"entry": "x"}}\nno json\n{{"torn": ')
    with pytest.raises(HostError, match="no json: not understood"):
        ledgers.clean(host, tmp_path)
    assert not thing.exists()
    assert path.exists()
    with pytest.raises(HostError, match="not understood"), ledgers.opened(host, tmp_path, "run"):
        pass


def test_all_who_work_are_ended_before_anything_else_is_removed() -> None:
    entries = [ledgers.Entry(n, kind, "") for n, kind in ((4, "mount"), (3, "cgroup"), (2, "netns"), (1, "cgroup"))]
    kinds = [entry.kind for entry in ledgers.workers_first(entries)]
    assert kinds == ["cgroup", "cgroup", "mount", "netns"]


def test_a_child_of_the_dead_that_still_holds_the_ledger_is_waited_for(host: LocalHost, tmp_path: Path) -> None:
    """As one does that was forked just before a kill -9, and has not become its command yet."""
    thing, release = tmp_path / "thing", tmp_path / "release"
    os.mkfifo(release)
    code = (
        "import os; from pathlib import Path; from virtoll.hosts import ledger; "
        "from virtoll.hosts.local import LocalHost\n"
        f"led = ledger.Ledger(LocalHost(), Path({str(tmp_path)!r}, 'run.jsonl')).open()\n"
        f"with led.owning('directory', {str(thing)!r}):\n"
        f"    os.mkdir({str(thing)!r})\n"
        "    if os.fork(): os.kill(os.getpid(), 9)\n"
        f"    open({str(release)!r}).read(); os._exit(0)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        process.wait()
        with ThreadPoolExecutor() as pool:
            cleaning = pool.submit(ledgers.clean, host, tmp_path)
            with pytest.raises(TimeoutError):
                cleaning.result(0.7)  # it waits, for longer than it used to
            release.open("w").close()
            assert cleaning.result(600) == [f"directory {thing}"]


def test_a_running_command_dies_with_a_killed_virtoll(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    run = f"H().run(['sh', '-c', 'echo $$ >{file}; exec sleep 1000'], timeout_s=1000)"
    code = f"from virtoll.hosts.local import LocalHost as H; {run}"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        while not (file.exists() and file.read_text().endswith("\n")):
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    assert _wait_until_gone(int(file.read_text()))


def test_owned_things_go_in_reverse_order_and_the_empty_ledger_too(host: LocalHost, tmp_path: Path) -> None:
    thing = tmp_path / "thing"
    with ledgers.opened(host, tmp_path / "ledger", "run") as ledger:
        with ledger.owning("directory", str(thing)), ledger.owning("directory", str(thing / "inner")):
            (thing / "inner").mkdir(parents=True)
            names = [entry.name for entry in ledgers.standing(ledger.path.read_text())]
            assert names == [str(thing / "inner"), str(thing)]
        assert not thing.exists()
        assert ledgers.standing(ledger.path.read_text()) == []
    assert list((tmp_path / "ledger").iterdir()) == []


def test_a_torn_last_line_was_never_made() -> None:
    text = json.dumps({"entry": 1, "kind": "directory", "name": "/x"}) + '\n{"entry": 2, "kind": "mount", "name": "/"}'
    assert ledgers.standing(text) == [ledgers.Entry(1, "directory", "/x")]


class _Synced:
    """Stands before the calls that write: what of which file is on the disk by now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: dict[str, str] = {}
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        self.texts[str(path)] = path.read_text() if path.is_file() else " ".join(each.name for each in path.iterdir())


@pytest.mark.parametrize("kind", ["directory", "ssh-directory", "openvz", "proxmox-ct", "proxmox-vm", "mount", "netns"])
def test_what_outlives_a_power_cut_is_on_the_ledgers_disk_before_it_is_made(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    outlives = kind not in ("mount", "netns")
    known = replace(RESOURCES[kind], is_there=lambda *_: False, remove=lambda *_: None)
    monkeypatch.setitem(RESOURCES, kind, known)
    synced = _Synced(monkeypatch)
    with ledgers.opened(host, tmp_path / "state/ledger", "run") as ledger, ledger.owning(kind, "a thing"):
        assert "run.jsonl" in synced.texts[str(ledger.path.parent)]
        assert "ledger" in synced.texts[str(tmp_path / "state")]
        assert "state" in synced.texts[str(tmp_path)]
        entries = ledgers.standing(synced.texts.get(str(ledger.path), ""))
        assert entries == ([ledgers.Entry(1, kind, "a thing")] if outlives else [])


def test_nothing_waits_for_the_disk_while_instances_are_deployed(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk's flush was in each arm's time to deploy. What is below a directory of ours goes with that."""
    known = replace(RESOURCES["directory"], is_there=lambda *_: False, remove=lambda *_: None)
    monkeypatch.setitem(RESOURCES, "directory", known)
    lab, instance = tmp_path / "lab", tmp_path / "lab/b01-t01"
    with ledgers.opened(host, tmp_path / "state/ledger", "run") as ledger:
        with ledger.owning("directory", str(lab)):
            synced = _Synced(monkeypatch)
            with ledger.owning("directory", str(instance)), ledger.owning("directory", "/run/lxc/lock/vt-x"):
                assert synced.texts == {}
        with ledger.owning("directory", str(instance)):
            assert synced.texts, "nothing stands above it any more"


def test_a_directory_that_cannot_be_synced_is_one_that_cannot_be_written_to(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """squashfs, autofs: no run could begin where one of them lies above the state."""

    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", sync)
    with ledgers.opened(host, tmp_path / "ledger", "run") as ledger:
        assert ledger.path.exists()


def test_what_the_ledgers_disk_does_not_take_is_not_made(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    thing = tmp_path / "thing"
    with ledgers.opened(host, tmp_path / "ledger", "run") as ledger:
        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(HostError, match="cannot write the ledger"), ledger.owning("directory", str(thing)):
            thing.mkdir()
        assert not thing.exists()
        assert ledgers.standing(ledger.path.read_text()) == []


@pytest.mark.machine
def test_a_full_disk_is_told_before_anything_is_made(host: LocalHost, tmp_path: Path) -> None:
    disk, thing = tmp_path / "disk", tmp_path / "thing"
    disk.mkdir()
    with ledgers.opened(host, tmp_path / "ledger", "outer") as outer, outer.owning("mount", str(disk)):
        host.run(["mount", "-t", "tmpfs", "-o", "size=16k", "virtoll-test", str(disk)])
        with ledgers.opened(host, disk, "run") as ledger:
            (disk / "filler").write_bytes(b"")
            host.run(["sh", "-c", 'cat /dev/zero >"$1"', "sh", str(disk / "filler")], check=False)
            beyond_a_page = f"{thing}/{'x' * 5000}"
            with pytest.raises(HostError, match="cannot write the ledger"), ledger.owning("directory", beyond_a_page):
                thing.mkdir()
            assert not thing.exists()
            assert ledgers.standing(ledger.path.read_text()) == []


def test_a_ledger_that_cannot_be_deleted_is_told(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(os, "unlink", broken)
    told = "cannot write the ledger: Input/output error"
    with pytest.raises(HostError, match=told), ledgers.opened(host, tmp_path, "run"):
        pass
    with pytest.raises(HostError, match=told):
        ledgers.clean(host, tmp_path)
    monkeypatch.undo()
    assert ledgers.clean(host, tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_clean_leaves_the_living_alone_and_removes_what_the_dead_left(host: LocalHost, tmp_path: Path) -> None:
    thing, directory = tmp_path / "thing", tmp_path / "ledger"
    code = (
        "import os, sys; from pathlib import Path; from virtoll.hosts import ledger; "
        "from virtoll.hosts.local import LocalHost\n"
        f"led = ledger.Ledger(LocalHost(), Path({str(directory)!r}, 'run.jsonl')).open()\n"
        f"with led.owning('directory', {str(thing)!r}):\n"
        f"    os.mkdir({str(thing)!r}); print('made', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        assert ledgers.clean(host, directory) == []
        with pytest.raises(HostError, match="under way already"):
            ledgers.Ledger(host, directory / "run.jsonl").open()
        process.kill()
        process.wait()
    assert thing.exists()
    assert ledgers.clean(host, directory) == [f"directory {thing}"]
    assert not thing.exists()
    assert list(directory.iterdir()) == []


def test_a_ledger_that_clean_holds_for_a_look_before_its_owner_is_told_is_waited_for(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made, and not locked yet; the run that had made it said that it was under way already."""
    path = tmp_path / "run.jsonl"
    path.touch()
    other = _other_holder(path, code="")
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(ledgers.Ledger(host, path).open)
        with pytest.raises(TimeoutError):
            opening.result(0.3)
        other.communicate(timeout=600)
        opening.result(600).close()
    path.touch()
    monkeypatch.setattr(ledgers, "_LOCK_GRACE_S", 0.05)
    other = _other_holder(path, code="")
    try:
        with pytest.raises(HostError, match="under way already, or being cleaned up"):
            ledgers.Ledger(host, path).open()
    finally:
        other.communicate(timeout=600)


def test_a_reopened_ledger_removes_what_its_dead_owner_left(host: LocalHost, tmp_path: Path) -> None:
    thing, path = tmp_path / "thing", tmp_path / "run.jsonl"
    thing.mkdir()
    path.write_text(json.dumps({"entry": 1, "kind": "directory", "name": str(thing)}) + "\n")
    with ledgers.opened(host, tmp_path, "run"):
        assert not thing.exists()


def test_clean_keeps_the_ledger_of_what_resists(host: LocalHost, tmp_path: Path) -> None:
    entry = {"entry": 1, "kind": "teapot", "name": "brown betty"}
    (tmp_path / "run.jsonl").write_text(json.dumps(entry) + "\n")
    with pytest.raises(HostError, match="teapot brown betty"):
        ledgers.clean(host, tmp_path)
    assert (tmp_path / "run.jsonl").exists()


def test_ctrl_c_waits_until_things_are_tidy() -> None:
    install()
    steps = []

    def work() -> None:
        with held_off():
            with held_off():
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)
            steps.append("tidied")
        steps.append("went on")

    for _ in range(2):  # what came is forgotten once it has taken effect
        with pytest.raises(KeyboardInterrupt):
            work()
    assert steps == ["tidied", "tidied"]
    with held_off():
        pass


_LOST = """
import signal, time, weakref
from virtoll.hosts import interrupts

class Here: pass
interrupts.install()
one, came = Here(), []
gone = weakref.ref(one, lambda _: (came.append(0), signal.raise_signal(signal.SIGTERM), came.append(1)))
try:
    del one  # Python prints what is raised in the callback, and goes on
    time.sleep(60)
    print("went on", came)
except KeyboardInterrupt:
    print("interrupted", came, interrupts.heard())
"""


def test_an_interrupt_that_falls_into_a_callback_whose_errors_python_drops_comes_again() -> None:
    done = subprocess.run([sys.executable, "-c", _LOST], capture_output=True, text=True, timeout=300)
    assert done.stdout == "interrupted [0] 1\n"
    assert done.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_interrupt_does_not_cut_the_tidying_short(number: signal.Signals) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:  # begun by nohup: then it is meant to stay so
        signal.signal(number, signal.SIG_DFL)
    install()
    steps = []

    @contextmanager
    def tidying() -> Iterator[None]:
        try:
            yield
        finally:
            signal.raise_signal(signal.SIGINT)
            steps.append("in a generator")

    def work() -> None:
        try:
            with tidying():
                signal.raise_signal(number)
        finally:
            signal.raise_signal(number)
            with held_off():
                signal.raise_signal(number)
            steps.append("in a function")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["in a generator", "in a function"]
    with pytest.raises(KeyboardInterrupt):  # it is over, and the next one is heard
        signal.raise_signal(number)


def test_ctrl_c_in_the_block_removes_what_it_owned(host: LocalHost, tmp_path: Path) -> None:
    thing = tmp_path / "thing"

    def work() -> None:
        with ledgers.opened(host, tmp_path / "ledger", "run") as ledger, ledger.owning("directory", str(thing)):
            thing.mkdir()
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not thing.exists()


def test_a_second_virtoll_is_refused_by_the_pid_of_the_first(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(HostError, match=f"process {os.getpid()}"), exclusive(tmp_path):
        pass
    with exclusive(tmp_path):
        pass


@pytest.mark.machine
def test_mounts_go_with_what_is_mounted_in_them(host: LocalHost, tmp_path: Path) -> None:
    place = tmp_path / "a place"
    with ledgers.opened(host, tmp_path / "ledger", "run") as ledger, ledger.owning("mount", str(place)):
        place.mkdir()
        host.run(["mount", "-t", "tmpfs", "virtoll-test", str(place)])
        (place / "inner").mkdir()
        host.run(["mount", "-t", "tmpfs", "virtoll-test", str(place / "inner")])
    mounts = map(mount_point, mount_lines(Path("/proc/self/mountinfo").read_bytes()))
    assert [mount for mount in mounts if mount.startswith(str(place))] == []


def _other_holder(lock: Path, *, code: str) -> subprocess.Popen[bytes]:
    """Another process that holds the lock (`code` has it as `lock`), until its stdin ends."""
    script = f"import fcntl, os, sys; lock = open({str(lock)!r}, 'r+'); fcntl.flock(lock, fcntl.LOCK_EX)\n{code}\n"
    script += "sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.read(1) == b"x"
    return other


def test_who_builds_a_report_is_named_to_a_run_that_begins(tmp_path: Path) -> None:
    with exclusive(tmp_path):
        pass
    with (
        beside_nobody(tmp_path),
        pytest.raises(HostError, match=rf"process {os.getpid()}\b(.|\n)*kill {os.getpid()}\b"),
        exclusive(tmp_path),
    ):
        pass
    with beside_nobody(tmp_path), pytest.raises(HostError, match=f"process {os.getpid()}"), beside_nobody(tmp_path):
        pass
    with exclusive(tmp_path):
        pass


@pytest.mark.parametrize("said", ["", "dead", "stranger", "of an older virtoll"])
def test_nobody_is_named_who_did_not_say_that_he_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr("virtoll.hosts.lock._GRACE_S", 0.05)
    with exclusive(tmp_path):
        pass
    dead = subprocess.Popen(["true"])
    dead.wait()
    text = {
        "": "",
        "dead": f"{dead.pid} 1\n",
        "stranger": f"{os.getpid()} 1\n",  # the number lives, and began later
        "of an older virtoll": f"{os.getpid()}\n",
    }[said]
    other = _other_holder(tmp_path / "lock", code=f"lock.truncate(0); lock.write({text!r}); lock.flush()")
    try:
        for take in (exclusive, beside_nobody):
            with pytest.raises(HostError, match="does not say which") as raised, take(tmp_path):
                pass
            assert "kill" not in str(raised.value).replace("a killed one", "")
            assert f"fuser -v {tmp_path / 'lock'}" in str(raised.value)
    finally:
        other.communicate(timeout=600)


def test_who_has_taken_the_lock_and_not_yet_said_so_is_waited_for(tmp_path: Path) -> None:
    with exclusive(tmp_path):
        pass
    other = _other_holder(tmp_path / "lock", code="")
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(lambda: exclusive(tmp_path).__enter__())
        with pytest.raises(TimeoutError):
            taking.result(0.3)
        other.communicate(timeout=600)
        taking.result(600)


def test_the_lock_forgets_who_held_it(tmp_path: Path) -> None:
    for take in (exclusive, beside_nobody):
        with take(tmp_path):
            assert (tmp_path / "lock").read_text().split()[0] == str(os.getpid())
        assert (tmp_path / "lock").read_text() == ""


def test_what_fails_in_its_own_way_keeps_nobody_else_from_being_removed(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strange(*_: object) -> None:
        b"\xff".decode()

    monkeypatch.setitem(RESOURCES, "mount", replace(RESOURCES["mount"], remove=strange))
    thing = tmp_path / "thing"
    thing.mkdir()
    lines = [{"entry": 1, "kind": "directory", "name": str(thing)}, {"entry": 2, "kind": "mount", "name": "/nowhere"}]
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(HostError, match=r"mount /nowhere: .*utf-8"):
        ledgers.clean(host, tmp_path)
    assert not thing.exists()


def _mountinfo(*points: bytes) -> bytes:
    return b"".join(b"36 35 98:0 / " + point + b" rw,noatime - ext3 /dev/root rw\n" for point in points)


def test_a_mount_point_of_any_bytes_hides_no_other() -> None:
    data = _mountinfo(b"/fuse/\xff", b"/a\\040b\\011c\\012d\\134e", "/nbsp\xa0x\u2028y".encode(), b"/last")
    assert [mount_point(line) for line in mount_lines(data)] == [
        "/fuse/\udcff",
        "/a b\tc\nd\\e",
        "/nbsp\xa0x\u2028y",
        "/last",
    ]
    assert mount_point("of no mount") == ""


_STRANGE_MOUNT = """
import os, sys
from pathlib import Path
from virtoll.hosts import ledger as ledgers
from virtoll.hosts import programs
from virtoll.hosts.base import Completed
from virtoll.hosts.local import LocalHost
from virtoll.hosts.resources import RESOURCES
top, host = Path(sys.argv[1]), LocalHost()
place = top / os.fsdecode(b"\\xff \\\\ \\xe2\\x80\\xa8")
with ledgers.opened(host, top / "ledger", "run") as ledger, ledger.owning("mount", str(place)):
    place.mkdir()
    host.run(["mount", "-t", "tmpfs", "virtoll-test", str(place)])
    assert RESOURCES["mount"].is_there(host, str(place))
assert not RESOURCES["mount"].is_there(host, str(place))
assert not place.is_mount()
"""


@pytest.mark.machine
def test_a_mount_that_goes_while_it_is_removed_is_gone(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed run's own `umount` may still be under way."""
    tables = [_mountinfo(b"/layer"), _mountinfo(), _mountinfo()]
    monkeypatch.setattr(host, "read", lambda _path: tables.pop(0))
    monkeypatch.setattr(host, "run", _not_mounted)
    RESOURCES["mount"].remove(host, "/layer")
    assert tables == []


def test_a_mount_that_resists_is_told(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "read", lambda _path: _mountinfo(b"/layer"))
    monkeypatch.setattr(host, "run", _not_mounted)
    with pytest.raises(HostError, match="not mounted"):
        RESOURCES["mount"].remove(host, "/layer")


@pytest.mark.parametrize("busy", [False, True])
def test_a_disk_that_has_much_to_write_first_is_unmounted(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """Gigabytes that a slow disk has not yet: minutes. ``busy``: it goes lazily."""
    mounted = ["/layer"]

    def run(argv: list[str], *, timeout_s: float = 60.0, check: bool = True) -> Completed:
        if timeout_s < 500:
            raise CommandError(f"no end within {timeout_s:g} s: {' '.join(argv)}")
        if busy and "--lazy" not in argv:
            return Completed(tuple(argv), 32, b"", b"target is busy")
        mounted.remove(argv[-1])
        return Completed(tuple(argv), 0, b"", b"")

    monkeypatch.setattr(host, "read", lambda _path: _mountinfo(*map(os.fsencode, mounted)))
    monkeypatch.setattr(host, "run", run)
    RESOURCES["mount"].remove(host, "/layer")
    assert mounted == []


def _not_mounted(argv: list[str], *, timeout_s: float = 60.0, check: bool = True) -> Completed:
    if check:
        raise CommandError("umount: /layer: not mounted")
    return Completed(tuple(argv), 32, b"", b"not mounted")


def test_a_mount_whose_name_is_no_text_is_found_and_removed(host: LocalHost, tmp_path: Path) -> None:
    """In a mount namespace of its own: nobody else on this machine shall meet it."""
    host.run(["unshare", "--mount", sys.executable, "-c", _STRANGE_MOUNT, str(tmp_path)])


class _Netns:
    """A machine on which `ip netns delete` fails; ``gone``: for the name has just gone."""

    where = "here"

    def __init__(self, path: Path, *, gone: bool) -> None:
        self.path, self.gone = path, gone

    def run(self, argv: list[str], **_: object) -> None:
        assert argv[:3] == ["ip", "netns", "delete"]
        if self.gone:
            self.path.unlink()
        raise CommandError("exit 1 from: ip netns delete")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may write to /run/netns")
@pytest.mark.parametrize("gone", [True, False])
def test_a_namespace_that_goes_by_itself_meanwhile_is_removed(gone: bool) -> None:
    name = f"test{secrets.token_hex(6)}"
    path = Path("/run/netns", name)
    path.parent.mkdir(exist_ok=True)
    path.touch()
    try:
        with nullcontext() if gone else pytest.raises(CommandError):
            RESOURCES["netns"].remove(_Netns(path, gone=gone), name)  # type: ignore[arg-type]
        assert path.exists() is not gone
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.parametrize("check", [True, False])
def test_a_command_that_says_too_much_is_an_error_and_not_kept(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch, stream: int, check: bool
) -> None:
    monkeypatch.setattr("virtoll.hosts.exchange.MOST_OUTPUT_BYTES", 100_000)
    script = f"head -c $0 /dev/zero >&{stream}"
    done = host.run(["sh", "-c", script, "100000"])
    assert max(done.stdout, done.stderr) == bytes(100_000)
    with pytest.raises(CommandError, match=f"on {['stdout', 'stderr'][stream - 1]} .exit 0. from: sh"):
        host.run(["sh", "-c", script, "100001"], check=check)
    with pytest.raises(CommandError, match="nothing of what it said was used"):
        host.run(["sh", "-c", script, "5000000"], check=check)  # it is read to its end


def test_much_goes_in_and_comes_out_at_once(host: LocalHost) -> None:
    data = os.urandom(3_000_000)
    assert host.run(["cat"], stdin=data).stdout == data
    assert host.run(["true"], stdin=data).returncode == 0, "who does not read it is no error"
    assert host.run(["head", "-c", "10"], stdin=data).stdout == data[:10]


def test_what_it_said_before_its_time_was_over_is_told(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    _no_time_passes_before(monkeypatch, b"words")
    with pytest.raises(CommandError, match=r"no end within 0.5 s: sh -c .*\nwords"):
        host.run(["sh", "-c", "echo words >&2; exec sleep 600"], timeout_s=0.5)
    _no_time_passes_before(monkeypatch, b"words", ends=2)
    with pytest.raises(CommandError, match=r"no end within 0.5 s: sh -c .*\nwords"):
        host.run(["sh", "-c", "echo words; exec sleep 600 >&- 2>&-"], timeout_s=0.5)
