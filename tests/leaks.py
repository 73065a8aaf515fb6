"""What a machine looks like, so that a test can say: nothing was left behind.

Processes are known by a mark in the environment that every child of this test session inherits; a cgroup that holds
somebody else's processes is somebody else's.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "VIRTOLL_TEST_SESSION"  # set by conftest.py
_SETTINGS = ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables", "net/ipv4/conf/all/rp_filter")
_DIRECTORIES = ("/var/lib/virtoll", "/var/lib/lxc", "/var/lib/docker", "/run/docker", "/run/virtoll")
_LAB = re.compile(r"(?:\bvt-|/virtoll/|\blab-)([0-9a-f]{4})\b")  # the tag in what a lab names

Snapshot = dict[str, frozenset[str]]


def snapshot() -> Snapshot:
    """All that virtoll could leave on a machine, by kind."""
    return {
        "network namespaces": frozenset(_names("/run/netns")),
        "links": frozenset(_links()),
        "mounts": frozenset(_mounts()),
        "cgroups": frozenset(_cgroups()),
        "processes": frozenset(_processes()),
        "loop devices": frozenset(_output("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE")),
        "firewall": frozenset(_firewall()),
        "settings": frozenset(_settings()),
        "directories": frozenset(f"{top}/{name}" for top in _DIRECTORIES for name in _names(top)),
        "docker": frozenset(_docker()),
    }


def differences(before: Snapshot, after: Snapshot, tag: str = "") -> list[str]:
    """One line for each thing that has come; for firewall and settings also what has gone.

    What a lab does that was there before is none of ours; with a ``tag``, so is what any other lab does.
    """
    there = {name.split("-")[1] for name in before["network namespaces"] if name.startswith("vt-")}
    lines = [
        f"left behind: {kind}: {thing}"
        for kind in after
        for thing in sorted(after[kind] - before[kind])
        if not (labs := set(_LAB.findall(thing))) or (labs <= {tag} if tag else not labs <= there)
    ]
    for kind in ("firewall", "settings"):
        lines += [f"gone: {kind}: {thing}" for thing in sorted(before[kind] - after[kind])]
    return lines


def assert_nothing_left(before: Snapshot, tag: str = "", within_s: float = 30.0) -> None:
    """Fail with the list of what is new since ``before``; the kernel gets some time to finish what it does late."""
    deadline = time.monotonic() + within_s
    while left := differences(before, snapshot(), tag):
        assert time.monotonic() < deadline, "\n".join(left)
        time.sleep(0.1)


def _names(directory: str) -> list[str]:
    path = Path(directory)
    return [entry.name for entry in path.iterdir()] if path.is_dir() else []


def _links() -> list[str]:
    return [line.split(":")[1].strip() for line in _output("ip", "-oneline", "link")]


def _mounts() -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        yield f"{before.split()[4]} ({after.split()[0]})"


def _cgroups() -> Iterator[str]:
    mounts = [line.partition(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    tops = [before.split()[4] for before, _, after in mounts if after.startswith("cgroup")]
    for top in tops:
        for directory, _, _ in os.walk(top):
            if directory != top and not _is_foreign(Path(directory)):
                yield directory


def _is_foreign(group: Path) -> bool:
    for directory, _, _ in os.walk(group):
        try:
            pids = (Path(directory) / "cgroup.procs").read_text().split()
        except OSError:
            continue
        if any(not _is_ours(pid) for pid in pids):
            return True
    return False


def _is_ours(pid: str) -> bool:
    """Whether a child of this session bears its mark; a worker's children bear one that begins with the session's."""
    mark = f"{MARK}={os.environ.get(MARK, '')}".encode()
    try:
        words = Path("/proc", pid, "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.startswith(mark) for word in words)


def _processes() -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _is_ours(entry.name):
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if words:  # a zombie has none, and waits only for its parent
                yield f"{entry.name} {words.strip()}"


def _firewall() -> Iterator[str]:
    for command in (("nft", "list", "ruleset"), ("iptables-legacy-save",)):
        for line in _output(*command):
            if not line.startswith("#"):
                yield re.sub(r"counter packets \d+ bytes \d+|\[\d+:\d+\]", "", line)


def _settings() -> Iterator[str]:
    for name in _SETTINGS:
        path = Path("/proc/sys", name)
        if path.exists():
            yield f"{name} = {path.read_text().strip()}"


def _docker() -> Iterator[str]:
    if not Path("/var/run/docker.sock").exists():
        return
    for kind, *command in (("container", "ps", "-aq"), ("image", "images", "-q"), ("network", "network", "ls", "-q")):
        for identity in _output("docker", *command):
            yield f"{kind} {identity}"


def _output(*argv: str) -> list[str]:
    """A command's lines; none where the machine lacks it."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        return []
    return [line.strip() for line in done.stdout.splitlines()]
