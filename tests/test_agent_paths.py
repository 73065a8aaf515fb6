"""What an agent opens for a request, where whoever holds the instance's files has put something else there.

On native, and for load programs, the agent is root in a chroot that has the host's /proc: its magic links lead out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from virtoll.agent import AgentClient, PipeStream, Source
from virtoll.binaries import binary
from virtoll.errors import AgentError

_SPARSE_BYTES = 400 * 2**20
_LEADS_OUT = "a link of proc, which is not followed"
_OPERATIONS: dict[str, Callable[[AgentClient, str], object]] = {
    "put": lambda client, path: client.put(path, b"x"),
    "fill": lambda client, path: client.fill(path, 100),
    "get": lambda client, path: client.get(path),
    "tail": lambda client, path: client.tail(path, 5),
    "sync": lambda client, path: client.sync(path),
    "reserve": lambda client, path: client.reserve(path, 100),
    "spawn": lambda client, path: client.spawn(["true"], log=path),
    "run": lambda client, path: client.run(["true"], cwd=path),
}


def _client(*argv: str) -> Iterator[AgentClient]:
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        client = AgentClient(PipeStream(process))
        try:
            yield client
        finally:
            client.close()
            try:
                process.wait(timeout=600)
            finally:
                process.kill()


@pytest.fixture
def client() -> Iterator[AgentClient]:
    yield from _client(str(binary("virtoll-agent")), "serve")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root filesystem with an agent, and nothing else."""
    (tmp_path / "root/etc").mkdir(parents=True)
    shutil.copy(binary("virtoll-agent"), tmp_path / "root/agent")
    return tmp_path / "root"


@pytest.fixture
def inside(root: Path) -> Iterator[AgentClient]:
    """An agent in it."""
    yield from _client("chroot", str(root), "/agent", "serve")


@pytest.mark.parametrize("op", _OPERATIONS)
@pytest.mark.parametrize("kind", ["file", "absent", "deep", "link", "link above"])
def test_no_link_of_proc_leads_out(op: str, kind: str, client: AgentClient, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"kept")
    out = f"/proc/{os.getpid()}/root{outside}"
    (tmp_path / "link").symlink_to(f"{out}/file")
    (tmp_path / "above").symlink_to(out)
    path = {
        "file": f"{out}/file",
        "absent": f"{out}/absent",
        "deep": f"{out}/a/b/c",
        "link": f"{tmp_path}/link",
        "link above": f"{tmp_path}/above/file",
    }[kind]
    with pytest.raises(AgentError, match=_LEADS_OUT):
        _OPERATIONS[op](client, path)
    assert [(one.name, one.read_bytes()) for one in outside.iterdir()] == [("file", b"kept")]


def test_no_counter_is_read_by_a_link_of_proc(client: AgentClient, tmp_path: Path) -> None:
    (tmp_path / "count").write_text("7\n")
    out = f"/proc/{os.getpid()}/root{tmp_path}/count"
    client.start_sampling([Source("in", "integer", f"{tmp_path}/count"), Source("out", "integer", out)], 10)
    samples = client.collect()
    assert set(samples.counters) == {"in"}
    assert _LEADS_OUT in samples.unreadable["out"]


def test_an_images_own_links_are_followed_and_what_is_missing_is_made(client: AgentClient, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    (tmp_path / "there/new").symlink_to("made")
    client.put(f"{tmp_path}/link/a/b/file", b"x" * 70_000, mode=0o640)
    assert (tmp_path / "there/a/b/file").read_bytes() == b"x" * 70_000
    assert (tmp_path / "there/a/b/file").stat().st_mode & 0o7777 == 0o640
    client.put(f"{tmp_path}/link/new", b"short", mode=0o100644)
    assert (tmp_path / "there/made").read_bytes() == b"short"
    assert client.run(["pwd"], cwd=f"{tmp_path}/link").stdout.decode().strip() == f"{tmp_path}/there"
    assert client.reserve(f"{tmp_path}/link/disk", 4096).amount >= 4096
    assert list((tmp_path / "there/disk").iterdir()) == []


@pytest.mark.parametrize("op", ["put", "fill", "get", "tail", "spawn"])
def test_a_pipe_or_a_device_is_neither_written_to_nor_waited_for(op: str, client: AgentClient, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(AgentError, match=r"not a regular file|No such device or address"):
        _OPERATIONS[op](client, str(tmp_path / "fifo"))
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path in (str(tmp_path / "fifo"), "/dev/full"):
            with pytest.raises(AgentError, match="not a regular file"):
                _OPERATIONS[op](client, path)
    finally:
        os.close(reader)
    assert Path("/dev/full").is_char_device()


def test_a_file_that_cannot_be_made_whole_is_not_there(tmp_path: Path) -> None:
    script = f"trap '' XFSZ; ulimit -f 1; exec {binary('virtoll-agent')} serve"
    for client in _client("sh", "-c", script):
        with pytest.raises(AgentError, match="File too large"):
            client.fill(str(tmp_path / "file"), 100_000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.machine
@pytest.mark.parametrize("name", ["passwd", "group"])
def test_whatever_stands_for_the_users_is_not_waited_for(name: str, root: Path, inside: AgentClient) -> None:
    place = root / "etc" / name
    assert inside.run(["/agent", "--version"], user="1000:1000").returncode == 0
    os.mkfifo(place)
    with pytest.raises(AgentError, match="cannot read: not a regular file") as raised:
        inside.run(["/agent", "--version"], user="1000:1000")
    assert f"/etc/{name}" in raised.value.problem.where
    place.unlink()
    os.mknod(place, 0o666 | 0o020000, os.makedev(1, 5))  # zero
    with pytest.raises(AgentError, match="cannot read: not a regular file"):
        inside.run(["/agent", "--version"], user="1000:1000")
    place.unlink()
    place.touch()
    os.truncate(place, _SPARSE_BYTES)
    with pytest.raises(AgentError, match="longer than 4194304 bytes"):
        inside.run(["/agent", "--version"], user="1000:1000")
    place.write_text("app:x:1000:1000::/:/agent\n" if name == "passwd" else "app:x:1000:\n")
    assert inside.run(["/agent", "--version"], user="1000:1000").returncode == 0
