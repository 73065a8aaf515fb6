"""An image that holds the agent and nothing else, on every platform: nothing else is needed inside."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import contract
from contract import PORT, Place
from virtoll import binaries
from virtoll.errors import AgentError, TrialError
from virtoll.hosts.base import Confinement
from virtoll.images import contents, rootfs
from virtoll.images.base import AGENT, Image
from virtoll.lab.base import Lab
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.docker import Docker
from virtoll.platforms.lxc import Lxc
from virtoll.platforms.native import Native
from virtoll.platforms.qemu_tcg import QemuTcg
from virtoll.platforms.uml import Uml
from virtoll.services import daemon, objects
from virtoll.trial import limits
from virtoll.trial.notes import Notes

pytestmark = pytest.mark.machine

PLATFORMS: dict[str, type[Platform]] = {platform.name: platform for platform in (Native, Docker, Lxc, Uml, QemuTcg)}
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 30).close()"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The agent alone: not even an empty directory besides."""
    digest = hashlib.sha256(f"empty {binaries.digest('virtoll-agent')}".encode()).hexdigest()
    image = Image("empty", digest, tmp_path_factory.mktemp("empty"))
    agent = Path(f"{image.rootfs}{AGENT}")
    agent.parent.mkdir(parents=True)
    agent.write_bytes(binaries.binary("virtoll-agent").read_bytes())
    agent.chmod(0o755)
    for directory in (image.directory, image.rootfs, agent.parent):
        directory.chmod(0o755)
    contents.note(image.directory, "rootfs")
    rootfs.write_manifest(image.directory, {})
    return image


@pytest.fixture(scope="module", params=PLATFORMS)
def instance(request: pytest.FixtureRequest, lab: Lab, image: Image) -> Iterator[tuple[Place, Instance]]:
    platform = PLATFORMS[request.param]()
    contract.skip_unless_ready(platform)
    platform.prepare(lab.host, image, contract.LIMITS, lambda _line: None)
    place = Place(lab, image, platform)
    with platform.session(lab, image), place.deployed() as instance:
        yield place, instance


def test_a_server_is_waited_for_and_reached(instance: tuple[Place, Instance]) -> None:
    place, there = instance
    assert not there.agent.listening(PORT)
    pid = daemon.start(there, "peer", [AGENT, "peer", "--port", str(PORT)], PORT)
    assert there.agent.listening(PORT, "udp")
    argv = [sys.executable, "-c", _CONNECT, there.attachment.endpoint_address, str(PORT)]
    place.lab.host.run(argv, confinement=Confinement(netns=place.lab.generator.netns))
    there.agent.kill(pid)
    assert not there.agent.listening(PORT)


def test_a_server_that_ends_is_told_with_its_log(instance: tuple[Place, Instance]) -> None:
    _, there = instance
    with pytest.raises(TrialError, match=r"(?s)ended at once with code 2; its log ends with:\n.*usage"):
        daemon.start(there, "usage", [AGENT, "no-such-verb"], PORT)
    with pytest.raises(AgentError, match=r"no program .*nginx"):
        there.agent.run(["nginx"])


def test_content_is_made_and_told(instance: tuple[Place, Instance]) -> None:
    _, there = instance
    for length_bytes in (40, 100_000):
        there.agent.fill(f"/srv/made/{length_bytes}", length_bytes)
    there.agent.sync("/")
    assert there.agent.get("/srv/made/100000") == objects.content(100_000)
    assert there.agent.tail("/srv/made/40", 8) == b"10000000"


def test_a_process_is_what_was_asked_for(instance: tuple[Place, Instance]) -> None:
    _, there = instance
    argv = [AGENT, "peer", "--port", str(PORT)]
    there.agent.put("/srv/here/file", b"")
    pid = there.agent.spawn(argv, env={"A": "b"}, cwd="/srv/here", user="1000:1001")
    found = there.agent.describe(pid)
    assert (found.argv, found.exe, found.cwd) == (tuple(argv), AGENT, "/srv/here")
    assert (found.uid, found.gid, found.groups) == (1000, 1001, (1001,))
    assert found.environment == {"A": "b", "HOME": "/"}
    there.agent.kill(pid)
    assert there.agent.returncode(pid) == -9


def test_what_programs_expect_is_there(instance: tuple[Place, Instance]) -> None:
    """Shared memory that everybody may write to, the usual devices, and the platform's own name."""
    place, there = instance
    mounted = [line.split() for line in there.agent.get("/proc/mounts").decode().splitlines()]
    assert [words[2] for words in mounted if words[1] == "/dev/shm"] == ["tmpfs"]
    for name in ("null", "zero", "urandom"):
        with pytest.raises(AgentError, match="not a regular file"):
            there.agent.get(f"/dev/{name}")
    if place.platform.name != "native":
        assert there.agent.facts()["hostname"] == "instance"


def test_the_limits_are_proved(instance: tuple[Place, Instance], tmp_path: Path) -> None:
    """Comes last: the memory's limit may take something with it."""
    notes = Notes(tmp_path, lambda _phase: None)
    proved = limits.of_limits(notes, instance[1])
    cpu, *others = notes.checks  # in the order in which they are tried
    assert all(check.passed for check in others), [(check.name, check.detail) for check in others]
    assert cpu.passed is (True if cpu.name in proved else None), f"{cpu.detail}; a machine at work proves none"
    assert len(notes.checks) == 4
    for check in notes.checks:
        print(instance[1].platform, check.name, check.detail)
    assert instance[1].agent.facts()["kernel"]
