"""Three hosts, each in a network namespace of its own, at a scheduler in a fourth: by TLS, over links of their own."""

from __future__ import annotations

import secrets
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from authority import Authority
from fleet_commands import Commands
from virtoll.hosts import namespaces
from virtoll.hosts.local import LocalHost
from virtoll.record.store import RunDirectory
from yard import SMALL

pytestmark = pytest.mark.machine

NODES = ("node1", "node2", "node3")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def named(name: str) -> None:
    """As labs do it. The first `ip netns add` since the machine booted mounts /run/netns over itself, and the
    namespaces of whoever is at work meanwhile, all other tests' labs, could not be removed any more.
    """
    subprocess.run(["sh", "-e", "-c", namespaces.first(name)], check=True)


def switched(stack: ExitStack, tag: str) -> dict[str, str]:
    """A namespace for the scheduler, with a bridge, and one for each node, linked to it: by name. 10.77.0.1 is the
    scheduler's address, 10.77.0.2 that of the first node.
    """
    names = {name: f"vt{tag}{number}" for number, name in enumerate(("scheduler", *NODES))}
    # Last: a lab that ends while these are there leaves the mount to them.
    stack.callback(namespaces.unmount_if_empty, LocalHost(), namespaces.NETNS)
    for name in names.values():
        named(name)
        stack.callback(ip, "netns", "del", name)
        ip("-n", name, "link", "set", "lo", "up")
    hub = names["scheduler"]
    ip("-n", hub, "link", "add", "hub", "type", "bridge")
    ip("-n", hub, "address", "add", "10.77.0.1/24", "dev", "hub")
    ip("-n", hub, "link", "set", "hub", "up")
    for number, node in enumerate(NODES, 2):
        there = names[node]
        ip("-n", hub, "link", "add", node, "type", "veth", "peer", "name", "up0", "netns", there)
        ip("-n", hub, "link", "set", node, "master", "hub", "up")
        ip("-n", there, "address", "add", f"10.77.0.{number}/24", "dev", "up0")
        ip("-n", there, "link", "set", "up0", "up")
    return {**names, "run": hub}


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with ExitStack() as stack:
        authority = Authority.made(tmp_path / "ca")
        tls = {name: authority.host(name, f"IP:10.77.0.{at}") for at, name in enumerate(("scheduler", *NODES), 1)}
        inside = switched(stack, secrets.token_hex(3))
        tls["run"] = authority.host("run", "DNS:whoever.gives.orders")
        made = Commands(tmp_path, tls, listens="tls://10.77.0.1:8786", inside=inside)
        stack.callback(made.end)
        (tmp_path / "small.toml").write_text(SMALL)
        made.start_scheduler()
        for name in NODES:
            made.start_worker(name)
        yield made


def test_three_hosts_measure_one_study_and_one_that_dies_comes_again(commands: Commands) -> None:
    directory = RunDirectory(commands.directory / "run")
    commands.hold("node2").touch()
    commands.start_run(str(commands.directory / "small.toml"), "--out", str(directory.path))
    lost = commands.held("node2")
    commands.kill("node2")
    code, said = commands.ended("run")
    assert code == 1, said
    failed = {record.trial.id: record.reason for record in directory.records() if record.status == "failed"}
    assert failed == {lost: "interrupted: node2: its worker was lost"}

    commands.hold("node2").unlink()
    commands.start_worker("node2")
    commands.start_run(str(directory.path))
    code, said = commands.ended("run")
    assert code == 0, said
    assert "docker+routed costs" in said
    valid = Counter(record.trial.host for record in directory.records() if record.status == "valid")
    assert valid == {"node1": 9, "node2": 9, "node3": 9}
