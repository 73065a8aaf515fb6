"""An image of the user's is the same root filesystem on every platform of this machine.

The example of the repository: no shell, no libraries, a user and a directory of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import contract
import ocimake
from contract import Place
from ocimake import Entry, docker_files, layer, write_archive
from virtoll.agent import Agent
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.images import oci, unpack
from virtoll.images.base import Image
from virtoll.images.config import process
from virtoll.images.source import Source
from virtoll.lab.base import Lab
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.bubblewrap import Bubblewrap
from virtoll.platforms.docker import Docker
from virtoll.platforms.gvisor import Gvisor
from virtoll.platforms.kvm import Kvm
from virtoll.platforms.lxc import Lxc
from virtoll.platforms.native import Native
from virtoll.platforms.nspawn import Nspawn
from virtoll.platforms.oci import Oci
from virtoll.platforms.openvz_profile import OpenvzProfile
from virtoll.platforms.podman import Podman
from virtoll.platforms.qemu_tcg import QemuTcg
from virtoll.platforms.uml import Uml
from virtoll.services import objects

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(
        not all(shutil.which(program) for program in unpack.PACKAGES), reason="apt-get install skopeo umoci"
    ),
]
_CONTAINERS = (Docker(), Podman(), Oci(), Lxc(), Bubblewrap(), Nspawn(), OpenvzProfile())
_OWN_KERNEL = (Gvisor(), Uml(), QemuTcg(), Kvm())
PLATFORMS: dict[str, Platform] = {platform.name: platform for platform in (Native(), *_CONTAINERS, *_OWN_KERNEL)}
_ADDED = {"nspawn": "/run/host", "podman": "/run/.containerenv"}  # a place of their own
_CAPABILITY = struct.pack(
    "<5I", 0x02000001, 1 << 10, 0, 0, 0
)  # capabilities(7), version 2: net_bind_service, effective
BUSYBOX = "/usr/bin/busybox"
_LISTED = "/etc/passwd /etc/group /etc/shop.toml /srv /usr /opt /run /tmp"


@pytest.fixture(scope="module")
def image(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Image:
    if not ocimake.SHOP_SERVER.exists():
        pytest.skip("run setup/native: it builds build/shop")
    made = ocimake.shop()
    made.layers.append(
        layer(
            Entry("opt/able", b"x", mode=0o755, attributes={"security.capability": _CAPABILITY.decode("latin-1")}),
            Entry("opt/suid", b"x", mode=0o4711, uid=1500),
            Entry("usr/bin/busybox", ocimake.static_busybox(), mode=0o755),  # to look around with
            Entry("opt/twin", kind="link", target="opt/suid"),
            Entry("opt/soft", kind="symlink", target="/opt/suid"),
        )
    )
    archive = write_archive(tmp_path_factory.mktemp("image") / "shop.tar", docker_files({"shop:1": made}, legacy=False))
    with pytest.MonkeyPatch.context() as patch:  # the machine's own cache need not keep it
        patch.setenv("VIRTOLL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return oci.build(lab.host, "shop", Source("oci", archive), print)


@pytest.fixture(scope="module", params=PLATFORMS)
def instance(request: pytest.FixtureRequest, lab: Lab, image: Image) -> Iterator[Instance]:
    platform = PLATFORMS[request.param]
    contract.skip_unless_ready(platform)
    platform.prepare(lab.host, image, contract.LIMITS, lambda _line: None)
    with platform.session(lab, image), Place(lab, image, platform).deployed() as instance:
        yield instance


def said(agent: Agent, *argv: str) -> str:
    done = agent.run([BUSYBOX, *argv])
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def wait_for(agent: Agent, pid: int) -> None:
    said(agent, "sh", "-c", f"while [ -e /proc/{pid} ]; do {BUSYBOX} usleep 10000; done")


def test_the_files_are_the_images(instance: Instance, image: Image) -> None:
    script = f"{BUSYBOX} find {_LISTED} -exec {BUSYBOX} stat -c '%a %u %g %N' {{}} +"
    inside = sorted(line.replace("'", "") for line in said(instance.agent, "sh", "-c", script).splitlines())
    if added := _ADDED.get(instance.platform):
        inside = [line for line in inside if not re.search(rf" {re.escape(added)}(/|$)", line)]
    expected = []
    for name in _LISTED.split():
        for path in [image.rootfs / name[1:], *(image.rootfs / name[1:]).rglob("*")]:
            state = path.lstat()
            leads = f" -> {path.readlink()}" if path.is_symlink() else ""
            shown = f"/{path.relative_to(image.rootfs)}{leads}"
            expected.append(f"{stat.S_IMODE(state.st_mode):o} {state.st_uid} {state.st_gid} {shown}")
    assert inside == sorted(expected)
    twins = said(instance.agent, "stat", "-c", "%i", "/opt/suid", "/opt/twin").split()
    assert twins[0] == twins[1], "hard links are two names of one file"


def test_the_example_serves_as_its_user_in_its_directory(instance: Instance, image: Image) -> None:
    agent = instance.agent
    asked = process(oci.config_of(image), image.rootfs)
    assert (asked.uid, asked.gid, asked.groups) == (1500, 1500, (1600,))
    variables = [f"{name}={value}" for name, value in asked.env]
    script = f'cd {asked.working_dir} && exec {BUSYBOX} env -i "$@"'
    pid = agent.spawn([BUSYBOX, "sh", "-c", script, "sh", *variables, *asked.argv], user="shop", log="/dev/shm/log")
    url = "http://127.0.0.1:8080"
    while not agent.listening(8080):
        assert agent.alive(pid), agent.get("/dev/shm/log")
        time.sleep(0.01)
    assert said(agent, "wget", "-qO-", f"{url}/health") == "ok welcome to the corner shop\n"
    assert said(agent, "wget", "-qO-", f"{url}/o/1000") == objects.content(1000).decode()
    status = said(agent, "grep", "-E", "^(Uid|Gid):", f"/proc/{pid}/status").split()
    assert status == ["Uid:", *["1500"] * 4, "Gid:", *["1500"] * 4]
    seen = f"{BUSYBOX} readlink /proc/{pid}/cwd; {BUSYBOX} cat /proc/{pid}/environ"  # root in a container may not look
    wait_for(agent, agent.spawn([BUSYBOX, "sh", "-c", seen], user="shop", log="/dev/shm/seen"))
    told = said(agent, "cat", "/dev/shm/seen")
    if instance.platform == "gvisor":  # in 2022 its /proc tells of no process where it works
        told = "/srv/shop\n" + told.removeprefix("/srv/shop\n")
    assert told == "/srv/shop\n" + "".join(f"{one}\0" for one in variables)
    assert "listening on port 8080" in said(agent, "cat", "/dev/shm/log")
    agent.kill(pid)


def test_a_volume_is_a_directory_that_can_be_written_to(instance: Instance) -> None:
    assert said(instance.agent, "cat", "/srv/shop/data/stock.txt") == "apples 12\nbread 3\n"
    write = [BUSYBOX, "sh", "-c", "echo pears 1 >>/srv/shop/data/stock.txt"]
    wait_for(instance.agent, instance.agent.spawn(write, user="shop"))
    assert said(instance.agent, "cat", "/srv/shop/data/stock.txt").endswith("pears 1\n")


def test_programs_keep_their_capabilities(instance: Instance) -> None:
    """Seen from the host where the kernel is the host's; a guest's disk is made of the same files."""
    if instance.platform in {platform.name for platform in _OWN_KERNEL}:
        pytest.skip("its own kernel holds the files")
    group = Cgroup(instance.accounting.cgroup, hierarchies())
    roots = [Path(f"/proc/{pid}/root/opt/able") for pid in group.pids()]
    seen = [os.getxattr(path, "security.capability") for path in roots if path.exists()]
    assert seen
    assert set(seen) == {_CAPABILITY}
