"""Network stacks in user space: what they are told, what they make, and what is said where they do not come up."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import standin
from test_platforms_vms import parent
from virtoll.errors import HostError, PlatformError
from virtoll.hosts.base import Completed, Confinement
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import Lab
from virtoll.networks import stacks
from virtoll.networks.base import Attachment, network_modes
from virtoll.networks.pasta import PastaNetwork
from virtoll.networks.slirp4netns import Slirp4netnsNetwork
from virtoll.networks.stacks import StackNetwork
from virtoll.networks.wires import TOWARDS_GENERATOR, Link
from virtoll.offers import Port
from virtoll.platforms import container_network
from virtoll.platforms.container_network import Network
from virtoll.record.model import Arm
from virtoll.run.stage import Stage

STACKS: list[type[StackNetwork]] = [PastaNetwork, Slirp4netnsNetwork]
PORTS = (Port(80), Port(443), Port(10_000, "udp", 10_002))


def ready(mode: type[StackNetwork]) -> StackNetwork:
    if problems := mode().check(LocalHost(), "stack"):
        pytest.skip(str(problems[0]))
    return mode()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that programs are looked for in before others."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(stacks, "_versions", {})
    return tmp_path


def double(programs: Path, script: str) -> None:
    """In pasta's place."""
    (programs / "pasta").write_text(f"#!/bin/sh\n{script}\n")
    (programs / "pasta").chmod(0o755)


@contextmanager
def beside(lab: Lab, mode: StackNetwork, ports: tuple[Port, ...] = PORTS) -> Iterator[tuple[Attachment, Network]]:
    with mode.attach(lab, "stack", ports) as attachment, standin.beside_a_stack(lab, attachment) as network:
        yield attachment, network


def namespaces(lab: Lab) -> set[str]:
    """The lab's own: others come and go with other tests."""
    return {path.name for path in Path("/run/netns").glob(f"vt-{lab.run_tag}-*")}


def test_pasta_is_told_the_ports_and_no_others() -> None:
    def told(*ports: Port) -> str:
        return " ".join(PastaNetwork().command("vt-i", Link(), "198.18.1.1", ports))

    each = "--tcp-ports 198.18.1.1/80-80 --tcp-ports 198.18.1.1/443-443 --udp-ports 198.18.1.1/10000-10002"
    assert f" {each} --tcp-ns none --udp-ns none --no-map-gw " in told(*PORTS)
    assert " --tcp-ports none --udp-ports none " in told()
    assert told().endswith("--netns /run/netns/vt-i")


def test_slirp4netns_is_asked_for_each_port() -> None:
    asked = [json.loads(request) for request in Slirp4netnsNetwork().requests("198.18.1.1", PORTS)]
    assert asked[0] == {
        "execute": "add_hostfwd",
        "arguments": {
            "proto": "tcp",
            "host_addr": "198.18.1.1",
            "host_port": 80,
            "guest_addr": "10.0.2.100",
            "guest_port": 80,
        },
    }
    there = [(one["arguments"]["proto"], one["arguments"]["guest_port"]) for one in asked]
    assert there == [("tcp", 80), ("tcp", 443), ("udp", 10_000), ("udp", 10_001), ("udp", 10_002)]


@pytest.mark.parametrize("mode", STACKS)
def test_a_program_that_is_missing_is_told(mode: type[StackNetwork], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find", lambda program: None)
    (problem,) = mode().check(LocalHost(), "stack")
    assert problem.what == f"{mode.program} is not installed"
    assert problem.remedy == f"apt-get install {'passt' if mode is PastaNetwork else 'slirp4netns'}"


def test_one_that_does_not_know_its_version_is_known_by_its_digest(programs: Path) -> None:
    double(programs, "echo pasta unknown version; echo Copyright")
    told = PastaNetwork().versions(LocalHost())["pasta"]
    assert told.startswith("pasta unknown version, sha256 ")
    assert len(told.split()[-1]) == 64
    double(programs, "echo pasta 2025_01_21")
    os.utime(programs / "pasta", (1, 1))
    assert PastaNetwork().versions(LocalHost()) == {"pasta": "pasta 2025_01_21"}


def test_a_run_is_told_which_program_carries_the_packets(programs: Path) -> None:
    double(programs, "echo pasta of tests")
    stage = SimpleNamespace(host=LocalHost())
    modes = ("host", "pasta", "pasta")
    arms = [Arm(label=f"native+{mode}", platform="native", network=mode) for mode in modes]
    assert Stage.runtimes(stage, arms) == {"pasta": "pasta of tests"}  # type: ignore[arg-type]


def test_open_ports_are_those_of_the_address_that_somebody_listens_at() -> None:
    head = "  sl  local_address rem_address   st\n"
    tables = {
        "tcp": "0: 010112C6:0050 00000000:0000 0A x\n1: 010112C6:01BB 020112C6:9000 01 x\n2: 0100007F:0051 0:0 0A x\n",
        "udp": "0: 010112C6:2710 00000000:0000 07 x\n",
    }

    class Tables(LocalHost):
        def read(self, path: Path) -> bytes:
            if "/7/" not in str(path):
                raise HostError("no such process")
            return (head + tables[path.name]).encode()

    assert container_network._open_ports(Tables(), 7, "198.18.1.1") == {("tcp", 80), ("udp", 10_000)}
    assert container_network._open_ports(Tables(), 8, "198.18.1.1") == set()


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (b'{"return": {"id": 1}}', ""),
        (b'{"error": {"desc": "slirp_add_hostfwd failed"}}', "slirp_add_hostfwd failed"),
        (b"", "refuses"),
        (b"7", "refuses"),
    ],
)
def test_a_request_that_is_refused_is_told(answer: bytes, refusal: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert not container_network._told(path, "{}"), "nobody is there yet"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        assert not container_network._told(path, "{}")
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                assert connection.recv(100) == b"{}"
                assert connection.recv(100) == b"", "the end of the request"
                connection.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            if refusal:
                with pytest.raises(PlatformError, match=refusal):
                    container_network._told(path, "{}")
            else:
                assert container_network._told(path, "{}")
        finally:
            serving.join()


def test_a_mode_that_cannot_be_set_up_says_why_in_the_programs_words() -> None:
    class Forbidden(LocalHost):
        def run(self, argv, **_):  # type: ignore[no-untyped-def]
            return Completed(tuple(argv), 1, b"", b"Couldn't open network namespace /run/netns/tried\n")

    ready(PastaNetwork)
    (problem,) = PastaNetwork().check(Forbidden(), "stack")
    assert "'pasta' cannot be set up: Couldn't open network namespace" in problem.what
    assert "modprobe tun" in problem.remedy


@pytest.mark.machine
def test_it_is_tried_and_what_it_says_is_told(programs: Path) -> None:
    double(programs, "echo no tap for you >&2; exit 1")
    (problem,) = PastaNetwork().check(LocalHost(), "stack")
    assert "no tap for you" in problem.what


@pytest.mark.machine
@pytest.mark.parametrize("mode", STACKS)
def test_the_link_is_as_podman_has_it_and_the_program_is_booked_to_the_instance(
    lab: Lab, mode: type[StackNetwork]
) -> None:
    before = namespaces(lab)
    with beside(lab, ready(mode)) as (attachment, network):
        assert attachment.stack is not None
        inside = Confinement(netns=attachment.stack.netns)
        (link,) = json.loads(lab.host.run(["ip", "-json", "address", "show", "eth0"], confinement=inside).stdout)
        assert (link["mtu"], link["address"]) == (65_520, attachment.mac)
        assert [(one["local"], one["prefixlen"]) for one in link["addr_info"]] == [("10.0.2.100", 24)], "and no IPv6"
        facts = network.facts["network"]
        assert (facts["version"], facts["uid"]) == (mode().versions(lab.host)[mode.program], "0")
        assert int(facts["capabilities"], 16) < 1 << 22, "it has given up most"
        pids = Cgroup(f"{lab.cgroup}/standin/helpers", hierarchies()).pids()
        # pasta has a child of its own name for a moment (seen).
        (pid,) = (one for one in pids if parent(one) not in (None, *pids))
        assert mode.program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert network.lives()
        os.kill(pid, signal.SIGKILL)
        _until(lambda: not network.lives())
    assert namespaces(lab) == before


@pytest.mark.machine
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exec sleep 1000", "is not ready within 0.3 s: it has made no link"),
        ("echo it is too hot >&2; exit 3", "has ended (exit code 3): it has made no link\nit is too hot"),
    ],
)
def test_one_that_does_not_come_up_says_why(
    lab: Lab, programs: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    if "0.3 s" in said:  # only then; what ends is waited for as long as it takes
        monkeypatch.setattr(container_network, "START_LIMIT_S", 0.3)
    double(programs, f'[ "$1" = --version ] && exec echo pasta of tests\n{script}')
    before = namespaces(lab)
    with pytest.raises(PlatformError) as raised, beside(lab, PastaNetwork()):
        pass
    assert f"network mode pasta: pasta {said}" in str(raised.value)
    assert namespaces(lab) == before


@pytest.mark.machine
@pytest.mark.parametrize("name", ["pasta", "slirp4netns"])
def test_a_port_that_is_taken_is_told(lab: Lab, name: str) -> None:
    mode = network_modes()[name]
    assert issubclass(mode, StackNetwork)
    taken = standin.serving(lab, lab.sut.netns, lab.sut.address, 80)
    with taken, pytest.raises(PlatformError) as raised, beside(lab, ready(mode), (Port(80),)):
        pass
    assert ("refuses" if name == "slirp4netns" else "has ended") in str(raised.value)


@pytest.mark.machine
def test_what_is_mounted_below_a_shared_mount_outlives_slirp4netns(tmp_path: Path) -> None:
    """After somebody's `ip netns add` every lab's namespaces went with the first slirp4netns; with systemd more than
    those. Here in a mount namespace of the test's own, whose peer the program's is.
    """
    place, address = tmp_path / "shared", "198.18.1.1"
    place.mkdir()
    apart = ["unshare", "--net", "--pid", "--fork", "--kill-child", "sh", "-e", "-c", stacks._TRY, "sh"]
    command = Slirp4netnsNetwork().command(stacks._TRIED, Link(), address, ())
    argv = [*apart, TOWARDS_GENERATOR, address, stacks._TRIED, *command]
    script = (
        'mount -t tmpfs none "$1"; mount --make-shared "$1"; mkdir "$1/below"; mount -t tmpfs none "$1/below"; '
        'place=$1; shift; "$@"; mountpoint "$place/below"'
    )
    outer = ["unshare", "--mount", "--propagation=private", "sh", "-e", "-c", script, "sh", str(place)]
    done = subprocess.run([*outer, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"{place}/below is a mountpoint\n")


def _until(condition, within_s: float = 600.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
