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
from contextlib import suppress
from functools import cache
from pathlib import Path

MARK = "VIRTOLL_TEST_SESSION"  # set by conftest.py
_SETTINGS = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/forwarding",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/default/rp_filter",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/tcp_tw_reuse",
    "net/ipv6/conf/all/disable_ipv6",
    "net/ipv6/conf/default/disable_ipv6",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/bridge/bridge-nf-call-arptables",
    "kernel/threads-max",
    "kernel/pid_max",
    "vm/overcommit_memory",
)
_TRACKING = "net/netfilter"  # the settings of connection tracking, all of them but what the kernel counts there
_COUNTED = "nf_conntrack_count"
_DIRECTORIES = (
    *("/var/lib/virtoll", "/var/lib/lxc", "/var/lib/docker", "/var/lib/containerd"),
    *("/var/lib/containers", "/var/lib/containers/cache"),  # Podman's and skopeo's
    *("/run/virtoll", "/run/docker", "/run/docker.sock", "/run/containerd", "/run/lxc", "/run/lxc/lock"),
    *("/run/docker-containerd", "/run/docker.pid", "/run/runc", "/run/xtables.lock"),
    *("/opt", "/run/systemd/nspawn", "/run/systemd/machines", "/var/lib/machines"),
)
_SHARED_DIRECTORIES = {"/tmp": "virtoll-", "/var/tmp": "virtoll-", "/dev/shm": "", "/run": "virtoll"}
_LOCKS = ("/tmp/virtoll-tests.lock", "/tmp/virtoll-machine.lock")  # of tests: made once, and never removed
_OURS = frozenset({"processes", "rules"})  # kinds whose things bear no tag and are ours: by a mark; labs have none
_KEPT = ("firewall", "settings", "rules")  # kinds of which nothing may be missing afterwards
_LAB = re.compile(r"(?:\bvt-|/virtoll/|\blab-)([0-9a-f]{4})\b")  # the tag in what a lab names

SOON_S = 300.0  # what was killed is gone, and the kernel's late work done: where nothing can end (`stops`), minutes

_LABS_NETWORK = re.compile(r"=198\.1[89]\.")  # 198.18.0.0/15, in an entry of connection tracking
TUPLE = re.compile(r"\b(?:src|dst|sport|dport)=\S+")  # who speaks with whom, in an entry of connection tracking

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
        "routes": frozenset(_routes()),
        "rules": frozenset(_rules()),
        "tracked connections": frozenset(_tracked()),
        "shared memory": frozenset(_system_v()),
        "shared directories": frozenset(_in_shared_directories()),
    }


def differences(before: Snapshot, after: Snapshot, tag: str = "") -> list[str]:
    """One line for each thing that has come; for firewall, settings and rules also what has gone.

    What a lab does that was there before is none of ours. With a ``tag`` ours is what that lab does, and what no lab
    may: other tests come and go meanwhile, and the check at the end of all tests is about everything. A setting that
    was not there came with a module of the kernel, which nobody unloads.
    """
    there = {name.split("-")[1] for name in before["network namespaces"] if name.startswith("vt-")}
    known = {_setting(thing) for thing in before["settings"]}
    lines = [
        f"left behind: {kind}: {thing}"
        for kind in after
        for thing in sorted(after[kind] - before[kind])
        if not (kind == "settings" and _setting(thing) not in known)
        if (kind in _OURS or tag in _tags(thing) if tag else not (_tags(thing) and _tags(thing) <= there))
    ]
    for kind in _KEPT if not tag else _OURS.intersection(_KEPT):
        lines += [f"gone: {kind}: {thing}" for thing in sorted(before[kind] - after[kind])]
    return lines


def assert_nothing_left(before: Snapshot, tag: str = "", within_s: float = SOON_S) -> None:
    """Fail with the list of what is new since ``before``; the kernel gets some time to finish what it does late."""
    deadline = time.monotonic() + within_s
    while left := differences(before, snapshot(), tag):
        assert time.monotonic() < deadline, "\n".join(left)
        time.sleep(0.1)


def _tags(thing: str) -> set[str]:
    """Of the labs that it is named after."""
    return set(_LAB.findall(thing))


def _names(directory: str) -> list[str]:
    try:
        return [entry.name for entry in Path(directory).iterdir()]
    except OSError:  # there is none, or no more
        return []


def _links() -> list[str]:
    return [line.split(":")[1].strip() for line in _output("ip", "-oneline", "link")]


def _mounts() -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        yield f"{before.split()[4]} ({after.split()[0]})"


def _cgroups() -> Iterator[str]:
    mounts = [line.partition(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    is_ours = cache(_is_ours)  # each hierarchy has the same processes
    for top in [before.split()[4] for before, _, after in mounts if after.startswith("cgroup")]:
        foreign: set[str] = set()
        for directory, names, _ in os.walk(top, topdown=False):
            if directory == top:
                continue
            if any(f"{directory}/{name}" in foreign for name in names) or not all(map(is_ours, _pids(directory))):
                foreign.add(directory)
            elif not _holds_labs(Path(directory), Path(top)):
                yield directory


def _holds_labs(group: Path, top: Path) -> bool:
    """virtoll's own top group, which all labs share: it is nobody's as long as a lab is in it."""
    try:
        return group == top / "virtoll" and any(entry.is_dir() for entry in group.iterdir())
    except OSError:  # it has just gone
        return True


def _pids(group: str) -> list[str]:
    try:
        return Path(group, "cgroup.procs").read_text().split()
    except OSError:
        return []


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
            # A zombie has none, and waits only for its parent; Python's own tracker ends with its process.
            if words and "multiprocessing.resource_tracker" not in words:
                yield f"{entry.name} {words.strip()}"


def _firewall() -> Iterator[str]:
    for command in (("nft", "list", "ruleset"), ("iptables-legacy-save",)):
        for line in _output(*command):
            if not line.startswith("#"):
                yield re.sub(r"counter packets \d+ bytes \d+|\[\d+:\d+\]", "", line)


def _settings() -> Iterator[str]:
    tracking = sorted(f"{_TRACKING}/{name}" for name in _names(f"/proc/sys/{_TRACKING}"))
    for name in (*_SETTINGS, *tracking):
        path = Path("/proc/sys", name)
        if path.is_file() and path.name != _COUNTED:
            yield f"{name} = {path.read_text().strip()}"


def _setting(told: str) -> str:
    return told.partition(" = ")[0]


def _rules() -> Iterator[str]:
    """By what the machine's own namespace chooses a table of routes."""
    for family in ("inet", "inet6"):
        for line in _output("ip", "-family", family, "rule"):
            yield f"{family} {line}"


def _tracked() -> Iterator[str]:
    """Connections from or to a lab's addresses that the machine's own namespace tracks: no lab's packet is to be there.

    Other entries come and go with what others do.
    """
    lines: list[str] = []
    with suppress(OSError):  # a kernel that tracks nothing, or does not tell us
        lines = Path("/proc/net/nf_conntrack").read_text().splitlines()
    for line in lines:
        if _LABS_NETWORK.search(line):
            yield f"{line.split()[2]} {' '.join(TUPLE.findall(line))}"  # less what changes: timeout, state, counters


def _routes() -> Iterator[str]:
    """What the machine's own namespace has of routes, addresses and permanent neighbours."""
    yield from _output("ip", "route", "show", "table", "all")
    yield from _output("ip", "-oneline", "-family", "inet", "address")
    yield from _output("ip", "neighbour", "show", "nud", "permanent")


def _system_v() -> Iterator[str]:
    """Shared memory, semaphores and message queues: their identifiers and owners."""
    for kind in ("shm", "sem", "msg"):
        path = Path("/proc/sysvipc", kind)
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            yield f"{kind} {' '.join(line.split()[:3])}"


def _in_shared_directories() -> Iterator[str]:
    for directory, prefix in _SHARED_DIRECTORIES.items():
        for name in _names(directory):
            path = f"{directory}/{name}"
            if name.startswith(prefix) and path not in _LOCKS:
                yield path


def _docker() -> Iterator[str]:
    if not Path("/var/run/docker.sock").exists():
        return
    for kind, *command in (("container", "ps", "-aq"), ("image", "images", "-q"), ("network", "network", "ls", "-q")):
        for identity in _output("docker", *command):
            yield f"{kind} {identity}"


def _output(*argv: str) -> list[str]:
    """A command's lines; none where the machine lacks it. No clock decides it: where nothing can end on the machine
    (`stops`), a command that has said all has not ended for minutes.
    """
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    except FileNotFoundError:
        return []
    return [line.strip() for line in done.stdout.splitlines()]
