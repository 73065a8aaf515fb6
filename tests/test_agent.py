"""The real agent over pipes: what it starts it also ends, what it proves is so, what it samples agrees with a cost."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import keyrings
from virtoll.agent import (
    AgentClient,
    FdStream,
    Got,
    PipeStream,
    SocketStream,
    Source,
    StreamError,
    StreamTimeoutError,
    streams,
)
from virtoll.agent import client as client_module
from virtoll.agent.streams import LONGEST_LINE_BYTES
from virtoll.binaries import binary
from virtoll.errors import AgentError
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import owned
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.local import LocalHost

PATIENCE_S = 600.0  # no process takes so long to begin or to end, whatever else the machine does (`stops`)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """An agent on pipes. It is given the time to end what it started, which a SIGKILL would leave behind."""
    agent = [str(binary("virtoll-agent")), "serve"]
    with subprocess.Popen(agent, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=PATIENCE_S)
        finally:
            process.kill()


@pytest.fixture
def client(process: subprocess.Popen[bytes]) -> Iterator[AgentClient]:
    """A client of that agent."""
    client = AgentClient(PipeStream(process))
    yield client
    client.close()


def test_keys_of_whoever_starts_it_are_not_inherited() -> None:
    """By whoever is root inside, where nothing filters system calls (request_key(2) is number 249 of x86-64's)."""
    keyrings.join_new_session()
    script = 'my ($name, $kind, $none) = ($ARGV[0], "user", 0); exit(syscall(249, $kind, $name, $none, 0) > 0 ? 7 : 0)'
    name = f"virtoll-agent-{os.urandom(8).hex()}"
    asked = ["perl", "-e", script, name]
    agent = [str(binary("virtoll-agent")), "serve"]
    with (
        keyrings.added(name, keyrings.SESSION),
        subprocess.Popen(agent, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        contextlib.closing(AgentClient(PipeStream(process))) as client,
    ):
        assert subprocess.run(asked, check=False).returncode == 7, "who started it has the key"
        assert client.run(asked).returncode == 0


def eventually(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def detached_sleeper(client: AgentClient, path: Path) -> int:
    """The pid of a process that has left its session and its parent, as daemons do."""
    script = f"setsid sh -c 'echo $$ >{path}; exec sleep 6000' & sleep 6000"
    client.spawn(["sh", "-c", script])
    assert eventually(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def test_facts_agree_with_ours(client: AgentClient) -> None:
    facts = client.facts()
    assert facts["cpus"] == len(os.sched_getaffinity(0))
    assert facts["kernel"] == os.uname().release
    assert facts["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_run_passes_bytes_through(client: AgentClient) -> None:
    data = bytes(range(256)) * 2000  # more than the pipes hold
    result = client.run(["sh", "-c", "cat; echo no >&2; exit 7"], stdin=data)
    assert (result.returncode, result.stdout, result.stderr) == (7, data, b"no\n")


def test_run_does_not_wait_for_what_it_left_behind(client: AgentClient) -> None:
    """It would be an error of the time that it has (`patience`), long before that ends."""
    assert client.run(["sh", "-c", "sleep 6000 & echo started"]).stdout == b"started\n"


def test_spawned_output_and_user(client: AgentClient, tmp_path: Path) -> None:
    log = tmp_path / "deep" / "log.txt"
    pid = client.spawn(["sh", "-c", "id -un; echo $HOME; echo oh >&2"], user="nobody", log=str(log))
    assert eventually(lambda: not client.alive(pid))
    assert log.read_text().splitlines() == ["nobody", "/nonexistent", "oh"]


def test_a_setting_is_all_that_a_command_has(client: AgentClient, tmp_path: Path) -> None:
    done = client.run(["/usr/bin/env"], env={"A": "b=c", "HOME": "/h"})
    assert sorted(done.stdout.decode().split()) == ["A=b=c", "HOME=/h"]
    home = client.run(["/usr/bin/env"], env={}, user="nobody")
    assert home.stdout == b"HOME=/nonexistent\n", "as container runtimes add it"
    assert client.run(["pwd"], cwd=str(tmp_path)).stdout.decode().strip() == str(tmp_path)
    (tmp_path / "here").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "here").chmod(0o755)
    assert client.run(["./here"], cwd=str(tmp_path)).stdout == b"found\n"
    assert client.run(["here"], env={"PATH": str(tmp_path)}).stdout == b"found\n"


@pytest.mark.machine
@pytest.mark.skipif(os.geteuid() != 0, reason="another user is root's to choose")
def test_another_users_program_may_open_its_output_by_name(client: AgentClient, tmp_path: Path) -> None:
    """As images of web servers do, whose logs are links to /dev/stdout."""
    tmp_path.chmod(0o755)
    log = tmp_path / "log"
    pid = client.spawn(["sh", "-c", "echo by name >/dev/stdout; echo again >>/dev/stderr"], user="nobody", log=str(log))
    assert eventually(lambda: not client.alive(pid))
    assert (client.returncode(pid), log.read_text()) == (0, "by name\nagain\n")
    (tmp_path / "secret").touch(mode=0o600)
    other = tmp_path / "other"
    os.link(tmp_path / "secret", other)
    client.spawn(["true"], user="nobody", log=str(other))
    assert other.stat().st_uid == 0, "a file with another name is given to nobody"


@pytest.mark.parametrize(
    ("user", "told"),
    [
        ("", "0 0"),
        ("nobody", "65534 65534 65534"),
        ("65534", "65534 65534 65534"),
        ("4711", "4711 0 0"),
        ("4711:4712", "4711 4712 4712"),
        ("nobody:root", "65534 0 0"),
    ],
)
def test_users_as_oci_names_them(client: AgentClient, user: str, told: str) -> None:
    ids = client.run(["sh", "-c", "echo $(id -u) $(id -g) $(id -G)"], user=user).stdout.decode().split()
    assert ids[: len(told.split())] == told.split()
    assert len(ids) == len(told.split()) or not user


@pytest.mark.parametrize(
    ("setting", "argv", "told"),
    [
        ({}, ["no-such-program"], r"no program \"no-such-program\" in PATH /"),
        ({"env": {}}, ["no-such-program"], r"in PATH \(not set\)"),
        ({}, ["/no/such/program"], "no program /no/such/program"),
        ({}, ["{}/script"], "script is there, but not what starts it"),
        ({"cwd": "{}"}, ["./script"], "script is there, but not what starts it"),
        ({}, ["{}/plain"], "Permission denied"),
        ({"cwd": "{}/nowhere"}, ["true"], r"cannot enter the working directory: No such file"),
        ({"cwd": "{}/plain"}, ["true"], "the working directory is none"),
        ({"user": "no-such-user"}, ["true"], 'no user "no-such-user"'),
        ({"user": "0:no-such-group"}, ["true"], 'no group "no-such-group"'),
    ],
)
def test_what_a_command_lacks_is_named(
    client: AgentClient, tmp_path: Path, setting: Any, argv: list[str], told: str
) -> None:
    (tmp_path / "script").write_text("#!/no/such/interpreter\n")
    (tmp_path / "script").chmod(0o755)
    (tmp_path / "plain").touch(0o644)
    filled: Any = {name: value.format(tmp_path) if isinstance(value, str) else value for name, value in setting.items()}
    for ask in (client.run, client.spawn):
        with pytest.raises(AgentError, match=told):
            ask([word.format(tmp_path) for word in argv], **filled)


def test_how_a_command_ended(client: AgentClient) -> None:
    for script, code in (("exit 3", 3), ("kill -TERM $$", -15)):
        pid = client.spawn(["sh", "-c", script])
        assert eventually(lambda: client.returncode(pid) is not None)  # noqa: B023
        assert client.returncode(pid) == code
    runs = client.spawn(["sleep", "6000"])
    assert client.returncode(runs) is None


def test_what_runs_is_described(client: AgentClient, tmp_path: Path) -> None:
    argv = ["sleep", "6000", "", "\u00fc"]
    pid = client.spawn(
        ["sh", "-c", 'exec "$@" 2>/dev/null', "sh", "sleep", "6000"], env={"A": "b=c"}, cwd=str(tmp_path)
    )
    assert eventually(lambda: client.describe(pid).argv == ("sleep", "6000"))
    found = client.describe(pid)
    assert found.exe == str(Path("/bin/sleep").resolve()) or str(found.exe).endswith("/coreutils")
    assert found.cwd == str(tmp_path)
    assert (found.uid, found.gid, set(found.groups)) == (os.getuid(), os.getgid(), set(os.getgroups()))
    assert found.environment is not None
    assert found.environment["A"] == "b=c"
    client.kill(pid)
    with pytest.raises(AgentError, match="no such process, or it has ended"):
        client.describe(pid)
    odd = client.spawn(["sh", "-c", "sleep 6000; :", *argv[2:]])
    assert client.describe(odd).argv[-2:] == ("", "\u00fc")


@pytest.mark.machine
def test_another_users_process_is_described_without_the_power_to_trace() -> None:
    """Root in a container has no CAP_SYS_PTRACE; of a program that changed its user itself it sees the rest."""
    agent = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-all", str(binary("virtoll-agent")), "serve"]
    with subprocess.Popen(agent, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        client = AgentClient(PipeStream(process))
        try:
            pid = client.spawn(["sleep", "6000"], env={"A": "b"}, user="nobody")
            found = client.describe(pid)
            assert (found.uid, found.argv) == (65534, ("sleep", "6000"))
            assert found.environment == {"A": "b", "HOME": "/nonexistent"}
            assert str(found.exe).startswith("/")
            changes = "use POSIX; POSIX::setgid(65534); POSIX::setuid(65534); sleep 6000"
            changed = client.spawn(["perl", "-e", changes])
            assert eventually(lambda: client.describe(changed).uid == 65534)
            assert client.describe(changed).exe is None
            own = client.describe(process.pid)
            assert own.uid == 0, "it has its own ids again"
            assert own.environment is not None
        finally:
            client.close()
        assert process.wait(timeout=PATIENCE_S) == 0


def test_who_listens(client: AgentClient) -> None:
    cases = [
        (socket.AF_INET, "127.0.0.1", True),
        (socket.AF_INET, "0.0.0.0", True),
        *([(socket.AF_INET6, "::", True), (socket.AF_INET6, "::1", False)] if socket.has_ipv6 else []),
    ]
    for family, address, takes in cases:
        for kind, protocol in ((socket.SOCK_STREAM, "tcp"), (socket.SOCK_DGRAM, "udp")):
            with socket.socket(family, kind) as server:
                try:
                    server.bind((address, 0))
                except OSError:
                    continue  # this machine has no IPv6
                port = server.getsockname()[1]
                if kind == socket.SOCK_STREAM:
                    server.listen()
                assert client.listening(port, protocol) is takes, (address, protocol)  # type: ignore[arg-type]
            assert not client.listening(port, protocol)  # type: ignore[arg-type]


def test_the_end_of_a_file(client: AgentClient, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"first\nlast\n")
    assert client.tail(str(tmp_path / "log"), 5) == b"last\n"
    assert client.tail(str(tmp_path / "log"), 500_000) == b"first\nlast\n"
    with pytest.raises(AgentError, match="not a regular file"):
        client.tail("/dev/zero", 5)


@pytest.mark.machine
def test_space_is_had_up_to_the_limit_and_given_back(client: AgentClient, host: LocalHost, tmp_path: Path) -> None:
    """On a file system that promises space, and on one that cannot (it is written there)."""
    for kind, options, number in (("tmpfs", "size=1m", 28), ("ramfs", "", None)):
        room = tmp_path / kind
        room.mkdir()
        host.run(["mount", "-t", kind, *(["-o", options] if options else []), "none", str(room)])
        try:
            got = client.reserve(str(room), 4 * 1024**2)
            assert got.errno == number
            assert got.amount <= 1024**2 if number else got.amount == 0 or got.amount >= 4 * 1024**2
            assert list(room.iterdir()) == []
            if number:
                client.fill(str(room / "text"), 900_000)
                with pytest.raises(AgentError, match="No space left"):
                    client.fill(str(room / "more"), 900_000)
                assert [path.name for path in room.iterdir()] == ["text"]
        finally:
            host.run(["umount", str(room)])


@pytest.mark.machine
def test_processes_are_had_up_to_the_limit_and_end(host: LocalHost, ledger: Ledger) -> None:
    with owned(ledger, "virtoll/test-agent-pids", pids=16) as cgroup:
        process = host.spawn(
            [str(binary("virtoll-agent")), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            confinement=Confinement(cgroup.procs),
        )
        client = AgentClient(PipeStream(process))
        assert client.processes(15) == Got(15, None)
        assert client.processes(16) == Got(15, errno.EAGAIN)
        assert cgroup.pids() == [process.pid]
        client.close()
        assert process.wait(timeout=PATIENCE_S) == 0


def test_kill_ends_the_session(client: AgentClient, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    pid = client.spawn(["sh", "-c", f"set -m; sleep 6000 & echo $! >{path}; wait"])
    assert eventually(lambda: path.exists() and path.read_text().endswith("\n"))
    client.kill(pid)
    assert not client.alive(pid)
    assert eventually(lambda: is_gone(int(path.read_text())))


def test_files_of_any_size(client: AgentClient, tmp_path: Path) -> None:
    for length in (0, 1, 32 * 1024, 32 * 1024 + 1, 200_000):
        path = tmp_path / "new" / f"file-{length}"
        data = os.urandom(length)
        client.put(str(path), data, 0o640)
        assert path.read_bytes() == data
        assert path.stat().st_mode & 0o777 == 0o640
        assert client.get(str(path)) == data
    client.put(str(path), b"short")
    assert path.read_bytes() == b"short"
    assert client.get("/proc/version") == Path("/proc/version").read_bytes()


def test_a_large_file_is_refused(client: AgentClient, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (1024**2 + 1))
    with pytest.raises(AgentError, match="larger than 1048576 bytes"):
        client.get(str(tmp_path / "large"))


def test_the_clock_is_ours(client: AgentClient) -> None:
    clock = client.clock()
    assert abs(clock.offset_ns) <= clock.round_trip_ns  # one kernel, one CLOCK_MONOTONIC


@pytest.mark.parametrize("end", ["close", "sigterm"])
def test_the_end_of_the_agent_ends_what_it_started(
    process: subprocess.Popen[bytes], client: AgentClient, tmp_path: Path, end: str
) -> None:
    pid = detached_sleeper(client, tmp_path / "pid")
    if end == "close":
        client.close()
    else:
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_S) == 0
    assert eventually(lambda: is_gone(pid))


def test_the_end_of_the_stream_is_noticed_while_a_command_runs(
    process: subprocess.Popen[bytes], client: AgentClient
) -> None:
    client._send("run", {"argv": ["sleep", "6000"], "stdin": "", "timeout_ms": 6_000_000})
    client.close()
    assert process.wait(timeout=PATIENCE_S) == 0


def test_a_dead_agent_is_named(process: subprocess.Popen[bytes], client: AgentClient) -> None:
    process.kill()
    with pytest.raises(AgentError, match=r"(?s)agent behind process \d+: facts: the stream.*-> see the instance's log"):
        client.facts()


def test_no_agent_at_all() -> None:
    argv = ["sh", "-c", "echo Kernel panic - not syncing; exec sleep 6000"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        select.select([process.stdout], [], [])  # it has spoken: its time has not begun yet
        with pytest.raises(AgentError, match=r"hello: no agent answered within 0.5 s\n  heard: Kernel panic"):
            AgentClient(PipeStream(process), timeout_s=0.5)
        process.kill()


def test_a_tty_with_noise_and_echo(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    os.write(theirs, b"[    0.0] Linux version\n")
    agent = [str(binary("virtoll-agent")), "serve", "--device", os.ttyname(theirs)]
    client_fd = os.dup(ours)
    os.write(client_fd, b"typed before raw mode, so it is echoed\n")
    with subprocess.Popen(agent) as process:
        client = AgentClient(FdStream(client_fd, client_fd, "tty"))
        data = bytes(range(256)) * 500
        client.put(str(tmp_path / "file"), data)
        assert client.get(str(tmp_path / "file")) == data
        client.close()
        os.close(ours)  # the terminal hangs up
        os.close(theirs)
        assert process.wait(timeout=PATIENCE_S) == 0


def test_a_stream_ends_with_its_holder() -> None:
    """Though somebody else has the other end open, as UML's helpers do; what was said before is heard."""
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["sleep", "6000"]) as holder:
        fd = os.dup(ours.fileno())
        stream = FdStream(fd, fd, "guest", holder=holder.pid)
        with pytest.raises(StreamTimeoutError):
            stream.receive_line(0.01)
        theirs.sendall(b"last words\n")
        holder.kill()
        assert stream.receive_line(PATIENCE_S) == b"last words"
        with pytest.raises(StreamError, match="the stream has ended"):
            stream.receive_line(PATIENCE_S)
        stream.close()
        holder.wait()
        fd = os.dup(ours.fileno())
        late = FdStream(fd, fd, "guest", holder=holder.pid)
        with pytest.raises(StreamError, match="the stream has ended"):
            late.receive_line(PATIENCE_S)
        late.close()


def test_a_guest_that_takes_nothing_while_it_boots_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """QEMU reads nothing for a guest that has not opened its port: the line fills with hellos, and that is no end."""
    monkeypatch.setattr(client_module, "_HELLO_INTERVAL_S", 0.001)
    monkeypatch.setattr(streams, "_SEND_PATIENCE_S", 0.001)
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        full = select.poll()
        full.register(ours, select.POLLOUT)
        fd = os.dup(ours.fileno())
        greeting = pool.submit(AgentClient, FdStream(fd, fd, "guest"), timeout_s=PATIENCE_S)
        while full.poll(0):
            time.sleep(0.001)
        time.sleep(0.2)
        assert not greeting.done()
        end = theirs.fileno()
        with subprocess.Popen([str(binary("virtoll-agent")), "serve"], stdin=end, stdout=end) as agent:
            client = greeting.result()
            assert client.run(["true"]).returncode == 0
            client.close()
            theirs.close()
            ours.shutdown(socket.SHUT_RDWR)
            assert agent.wait(timeout=PATIENCE_S) == 0


def test_a_line_without_end_is_told_and_takes_no_more_memory() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = os.dup(ours.fileno())
        stream = FdStream(fd, fd, "guest")
        flood = threading.Thread(target=_flood, args=(theirs, LONGEST_LINE_BYTES + 2**20))
        flood.start()
        with pytest.raises(StreamError, match="a line goes on after"):
            stream.receive_line(PATIENCE_S)
        assert len(stream._pending) == 0
        theirs.shutdown(socket.SHUT_RDWR)
        flood.join()
        stream.close()


def _flood(end: socket.socket, length_bytes: int) -> None:
    with contextlib.suppress(OSError):
        end.sendall(b"x" * length_bytes)


@pytest.mark.parametrize("excess", [1, 30_000, 60_000, 500_000])
def test_output_of_more_than_a_mebibyte_is_an_error_and_never_cut_off(client: AgentClient, excess: int) -> None:
    """Whether the command still writes or has ended with the rest in the pipe."""
    whole = client.run(["head", "-c", str(2**20), "/dev/zero"])
    assert len(whole.stdout) == 2**20
    with pytest.raises(AgentError, match="more than 1048576 bytes of output"):
        client.run(["head", "-c", str(2**20 + excess), "/dev/zero"])


def test_what_is_no_regular_file_is_not_waited_for(client: AgentClient, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(AgentError, match="not a regular file"):
        client.get(str(tmp_path / "fifo"))
    with pytest.raises(AgentError, match="cannot write"):
        client.put(str(tmp_path / "fifo"), b"x")
    with pytest.raises(AgentError, match="not a regular file"):
        client.get("/dev/zero")


def test_numbers_without_sense_are_refused_or_borne(client: AgentClient, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for op, arguments in (
        ("burn", {"threads": 1, "duration_ms": 2**64 - 1}),
        ("sample_start", {"sources": [], "interval_ns": 2**64 - 1, "keep_ticks": 1}),
        ("sample_start", {"sources": [], "interval_ns": 10**8, "keep_ticks": 2**64 - 1}),
        ("get", {"path": "/etc/hostname", "offset": 2**64 - 1}),
        ("put", {"path": str(tmp_path / "file"), "mode": 0o600, "offset": 2**64 - 1, "data": ""}),
        ("alive", {"pid": -1}),
        ("kill", {"pid": -1, "grace_ms": 0}),
    ):
        with pytest.raises(AgentError):
            client._ask(op, arguments)
    answer = client._ask(
        "run", {"argv": ["true"], "stdin": "", "timeout_ms": 2**64 - 1, "env": None, "cwd": "", "user": ""}
    )
    assert answer.integer("returncode") == 0


def test_no_room_for_threads_is_told() -> None:
    """The kernel counts the processes of a user of its own; too little address space would be the end of memory too."""
    program = os.open(binary("virtoll-agent"), os.O_RDONLY)
    argv = ["sh", "-c", 'ulimit -p 50; exec "$0" serve', f"/proc/self/fd/{program}"]
    user = 20_000 + os.getpid() % 30_000
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=user, extra_groups=(), pass_fds=(program,)
    ) as process:
        os.close(program)
        client = AgentClient(PipeStream(process))
        with pytest.raises(AgentError, match="cannot start 10000 threads"):
            client.burn(10_000, 600_000)
        assert client.facts()["pid1"]
        client.close()


def test_a_killed_command_that_had_ended_takes_its_session_and_nobody_else(client: AgentClient, tmp_path: Path) -> None:
    """Its number is free once it is reaped: whoever has it then is not ours to kill."""
    path = tmp_path / "pid"
    leader = client.spawn(["sh", "-c", f"sleep 6000 & echo $! >{path}"])
    assert eventually(lambda: not client.alive(leader))
    assert not is_gone(int(path.read_text()))
    client.kill(leader)
    assert eventually(lambda: is_gone(int(path.read_text())))


def test_a_killed_command_has_its_grace(client: AgentClient, tmp_path: Path) -> None:
    """One that heeds SIGTERM ends in its own way; one that does not is killed when its time is over."""
    ready, ended = tmp_path / "ready", tmp_path / "ended"
    heeds = client.spawn(["sh", "-c", f"trap 'echo so >{ended}; exit 7' TERM; >{ready}; while :; do sleep 0.01; done"])
    assert eventually(ready.exists)
    client.kill(heeds, 3600)
    assert (client.returncode(heeds), ended.read_text()) == (7, "so\n")
    ready.unlink()
    deaf = client.spawn(["sh", "-c", f"trap '' TERM; >{ready}; while :; do sleep 0.01; done"])
    assert eventually(ready.exists)
    client.kill(deaf, 0.001)
    assert client.returncode(deaf) == -9


def test_requests_in_parts(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """No line is longer than the channel bears, whatever is asked, and the answers are the same."""
    stream = _Measured(process)
    client = AgentClient(stream, longest_request_bytes=1000)
    data = os.urandom(100_000)
    client.put(str(tmp_path / "file"), data)
    assert (tmp_path / "file").read_bytes() == data
    assert client.run(["printf", "%s", 'x"\\' * 2000]).stdout == b'x"\\' * 2000
    with pytest.raises(AgentError, match="cannot start"):
        client.run(["/no/such/program", "x" * 5000])
    assert client.facts()["pid1"]
    assert stream.longest_bytes <= 1000
    client.close()


class _Measured(PipeStream):
    longest_bytes = 0

    def send(self, data: bytes) -> None:
        self.longest_bytes = max(self.longest_bytes, len(data))
        super().send(data)


def test_a_socket_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="cannot connect: No such file"):
        SocketStream(tmp_path / "socket", timeout_s=0.05)


def test_the_sampler_keeps_the_rate_and_the_newest(client: AgentClient) -> None:
    """Of ten samples more than ten are due. An agent that stood still for most of the time has not come to so many: it
    gets more of it.
    """
    sources = [Source("host", "stat", "/proc/stat"), Source("host", "meminfo", "/proc/meminfo")]
    for time_s in (2.0, 10.0, 60.0, 300.0):
        before_ns = time.monotonic_ns()
        client.start_sampling(sources, 50, keep_s=0.2)
        time.sleep(time_s)
        asked_ns = time.monotonic_ns()
        client.sample_now()  # beside the ticks
        samples = client.collect()
        assert len(samples.times_ns) == 10 or (len(samples.times_ns) < 10 and samples.dropped == 0)
        # No tick is before its time, and those that a busy machine left out are counted.
        due = samples.dropped + samples.late_ticks + len(samples.times_ns) - 2
        assert samples.times_ns[-1] >= before_ns + due * 20_000_000
        assert samples.times_ns[-1] >= asked_ns, "the newest is there"
        assert set(samples.counters["host.memory.total_bytes"]) == {client.facts()["memory_bytes"]}
        steps = [after - before for before, after in zip(samples.times_ns, samples.times_ns[1:], strict=False)]
        if samples.dropped > 0 and samples.dropped + samples.late_ticks >= 30 and min(steps[:-1]) <= 30_000_000:
            return  # two ticks at least were as far apart as they should be, or less
    pytest.fail(f"{samples.dropped} dropped, {samples.late_ticks} late, ticks {steps} ns apart")


def test_many_samples_come_in_pages(client: AgentClient) -> None:
    sources = [Source(f"s{number}", "stat", "/proc/stat") for number in range(60)]
    client.start_sampling(sources, 200, keep_s=30)
    time.sleep(0.5)
    samples = client.collect()
    assert len(samples.counters) == 360
    assert {len(values) for values in samples.counters.values()} == {len(samples.times_ns)}
    assert samples.times_ns == sorted(samples.times_ns)
    assert client.collect() == samples


def test_a_source_that_vanishes_is_missing_not_zero(client: AgentClient) -> None:
    with subprocess.Popen(["sleep", "6000"]) as victim:
        client.start_sampling([Source("victim", "pidstat", f"/proc/{victim.pid}/stat")], 50)
        client.sample_now()
        victim.kill()
    client.sample_now()
    values = client.collect().counters["victim.cpu.usage_ns"]
    assert values[0] is not None
    assert values[-1] is None


@pytest.mark.machine
def test_allocation_above_the_limit_is_killed_and_the_agent_lives(host: LocalHost, ledger: Ledger) -> None:
    limit_bytes = 32 * 1024**2
    with owned(ledger, "virtoll/test-agent", memory_bytes=limit_bytes) as cgroup:
        process = host.spawn(
            [str(binary("virtoll-agent")), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            confinement=Confinement(cgroup.procs),
        )
        client = AgentClient(PipeStream(process))
        assert client.allocate(limit_bytes // 2) == {"touched_bytes": limit_bytes // 2, "ended": "complete"}
        outcome = client.allocate(2 * limit_bytes)
        assert outcome["ended"] == "killed"
        assert limit_bytes // 2 < outcome["touched_bytes"] < limit_bytes
        assert client.facts()["pid1"]
        client.close()
        assert process.wait(timeout=PATIENCE_S) == 0


def test_allocation_can_be_refused() -> None:
    argv = ["sh", "-c", 'ulimit -v 100000; exec "$@"', "sh", str(binary("virtoll-agent")), "serve"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        client = AgentClient(PipeStream(process))
        outcome = client.allocate(200 * 1024**2)
        assert outcome["ended"] == "refused"
        assert 0 < outcome["touched_bytes"] < 100_000 * 1024
        client.close()
