"""The contract on native and on all that are containers; and what goes wrong with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

import contract
import datagrams
import leaks
from contract import Place
from test_platforms_vms import parent
from virtoll.errors import AgentError, PlatformError
from virtoll.hosts.base import Confinement
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.ledger import clean
from virtoll.hosts.local import LocalHost
from virtoll.images import contents, rootfs
from virtoll.lab.base import Lab
from virtoll.lab.wiring import free_tag
from virtoll.platforms import dockerd
from virtoll.platforms.base import Instance, Platform
from virtoll.platforms.bubblewrap import Bubblewrap
from virtoll.platforms.docker import Docker, DockerSettings
from virtoll.platforms.gvisor import Gvisor, GvisorSettings
from virtoll.platforms.lxc import Lxc, LxcSettings, base_cgroups
from virtoll.platforms.native import Native
from virtoll.platforms.nspawn import Nspawn
from virtoll.platforms.oci import Oci, OciSettings
from virtoll.platforms.openvz_profile import OpenvzProfile
from virtoll.platforms.podman import Podman, PodmanSettings

pytestmark = pytest.mark.machine

PLATFORMS: dict[str, Platform] = {
    "native": Native(),
    "docker": Docker(),
    "docker-unconfined": Docker(DockerSettings(seccomp="unconfined")),
    "lxc": Lxc(),
    "lxc-lxcfs": Lxc(LxcSettings(lxcfs=True)),
    "bubblewrap": Bubblewrap(),
    "nspawn": Nspawn(),
    "openvz-profile": OpenvzProfile(),
    "oci-runc": Oci(),
    "oci-crun-users": Oci(OciSettings(runtime="crun", user_namespace=True)),
    "gvisor": Gvisor(),
    "gvisor-systrap": Gvisor(GvisorSettings(system_calls="systrap", runsc="built")),
    "podman": Podman(),
    "podman-runc-users": Podman(PodmanSettings(runtime="runc", seccomp="unconfined", user_namespace=True)),
}

# Nothing keeps root inside from the system calls of keyrings: no filter, or one that lets them pass (Podman's).
SHARE_KEYS = [
    PLATFORMS[name]
    for name in (
        *("docker-unconfined", "lxc", "lxc-lxcfs", "openvz-profile"),
        *("bubblewrap", "oci-runc", "podman"),
    )
]

# What takes the agent's error output, by platform.
LOGS = {
    "native": "agent.log",
    "lxc": "lxc.log",
    "bubblewrap": "bwrap.log",
    "nspawn": "nspawn.log",
    "openvz-profile": "lxc.log",
    "oci": "oci.log",
    "gvisor": "runsc.log",
    "podman": "podman.log",
}


@contextmanager
def _place(lab: Lab, platform: Platform) -> Iterator[Place]:
    contract.skip_unless_ready(platform)
    image = contract.image()
    with platform.session(lab, image):
        yield Place(lab, image, platform)


@pytest.fixture(scope="module", params=PLATFORMS)
def place(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Place]:
    with _place(lab, PLATFORMS[request.param]) as place:
        yield place


@pytest.fixture(scope="module")
def docker(lab: Lab) -> Iterator[Place]:
    with _place(lab, PLATFORMS["docker"]) as place:
        yield place


def test_it_answers_keeps_root_inside_bounds_what_he_prints_and_leaves_nothing(place: Place) -> None:
    before = leaks.snapshot()
    with place.deployed() as instance:
        contract.answers(instance)
        contract.files_of_any_size_pass(instance)
        believes(place.platform, instance)
        root_stays_inside(place.platform, instance)
        what_root_prints_is_bounded(place.platform, instance)
        contract.is_as_the_image_and_writes(place.image, instance)
        instance.agent.spawn(["sleep", "1000"])
    contract.nothing_left(place.lab, before)


def root_stays_inside(platform: Platform, instance: Instance) -> None:
    if platform.name != "native":
        own_kernel, shares_keys = platform.name == "gvisor", platform in SHARE_KEYS
        contract.keeps_root_from_the_host(instance, own_kernel=own_kernel, shares_keys=shares_keys)
    else:
        reached = contract.reach_of_root(instance)
        assert any(what.startswith("device") for what in reached), "native says that it keeps nobody from the host"


def what_root_prints_is_bounded(platform: Platform, instance: Instance) -> None:
    """The error output of the agent is what root inside may write to; Docker throws it away."""
    log = LOGS.get(instance.platform)
    flood = "d=/proc/$1/fd/2; head -c 1000000 /dev/zero | tr '\\0' '\\n' >$d; echo last >$d; echo ended"
    own = "1" if instance.platform != "native" else instance.agent.run(["sh", "-c", "echo $PPID"]).stdout.decode()
    done = instance.agent.run(["sh", "-c", flood, "sh", own.strip()])
    if platform == PLATFORMS["podman-runc-users"]:  # runc leaves it to the host's root, and nobody inside may open it
        assert b"Permission denied" in done.stderr
        return
    assert done.stdout == b"ended\n"
    if log:
        contract.log_is_bounded(instance.accounting.directory / log, b"last\n")
    else:
        assert [*instance.accounting.directory.glob("*log*")] == []


def believes(platform: Platform, instance: Instance) -> None:
    """What an instance of a container sees of the machine's memory; lxcfs is there to change that."""
    believed = instance.agent.facts()["memory_bytes"]
    if platform.settings == LxcSettings(lxcfs=True):
        assert believed == contract.LIMITS.memory_bytes
    else:
        assert believed > contract.LIMITS.memory_bytes


def test_in_every_mode_it_is_reached_and_root_finds_no_monitor(place: Place) -> None:
    """liblxc's monitor and gVisor's Sentry take commands on abstract sockets, which are whoever's that shares their
    network.
    """
    for mode in contract.modes(place.platform):
        with place.deployed(mode) as instance:
            contract.is_reached(place.lab, instance)
            sockets = instance.agent.run(["cat", "/proc/net/unix"]).stdout.decode().splitlines()
            assert [line for line in sockets if line.endswith("/command")] == [], mode
            sentry = f"runsc-sandbox.vt-{place.lab.run_tag}"
            assert sentry not in Path("/proc/net/unix").read_text(), "not any user of the machine's"


def test_limits_hold(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of it is left where virtoll was started: conmon notes there that memory ran out."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with place.deployed() as instance:
        contract.is_accounted_for(instance)
        contract.cpu_limit_holds(instance)
        if place.platform.name != "gvisor":
            contract.memory_limit_holds(instance)
        contract.disk_limit_holds(instance)
        contract.pids_limit_holds(instance)
        if place.platform.name == "gvisor":
            contract.memory_limit_ends_it(instance)
    assert list((tmp_path / "here").iterdir()) == []


def test_limits_hold_with_the_budget_of_vcpus(place: Place) -> None:
    with place.deployed(budget="vcpus") as instance:
        contract.cpu_limit_holds(instance)
        assert instance.agent.facts()["cpus"] == 1
        # What helps it shares CPUs with the generator, which goes first, and would wait for it.
        assert contract.goes_first(instance.accounting.cgroup)


def test_instances_live_side_by_side(place: Place) -> None:
    """In the platform's own mode, and where its runtime wires the instance itself."""
    itself = {"published", "usernet"} & set(contract.modes(place.platform))
    for mode in (place.platform.default_network, *itself):
        contract.live_side_by_side(place, mode)


def test_nobody_of_an_instance_holds_copies_of_anothers_mounts(place: Place) -> None:
    """Whoever has a mount namespace of its own: monitors that wait outside, too. openvz-profile's is a whole disk."""
    other = PLATFORMS["openvz-profile"]
    contract.skip_unless_ready(other)
    ours = Path("/proc/self/ns/mnt").readlink()
    with contract.deployed(place.lab, place.image, other) as first, place.deployed(slot=1) as second:
        assert str(first.accounting.directory) in Path("/proc/self/mounts").read_text()
        groups = [second.accounting.cgroup, *second.accounting.shared]
        for pid in (pid for name in groups for pid in Cgroup(name, hierarchies()).pids()):
            with suppress(OSError):  # it has just ended
                if Path(f"/proc/{pid}/ns/mnt").readlink() != ours:
                    mounts = Path(f"/proc/{pid}/mounts").read_text().split()
                    held = [point for point in mounts if point.startswith(f"{first.accounting.directory}/")]
                    assert held == [], Path(f"/proc/{pid}/cmdline").read_bytes()


def test_an_instance_that_dies_is_noticed_and_the_next_starts_from_the_image(place: Place) -> None:
    with place.deployed() as instance:
        contract.is_as_the_image_and_writes(place.image, instance)
        assert instance.is_running()
        for pid in Cgroup(instance.accounting.parts["payload"], hierarchies()).pids():
            with suppress(ProcessLookupError):  # it ended with another of them
                os.kill(pid, signal.SIGKILL)
        _until(lambda: not instance.is_running())
    with place.deployed() as instance:
        contract.answers(instance)
        contract.is_as_the_image_and_writes(place.image, instance)


def test_helpers_are_accounted_for(docker: Place) -> None:
    with docker.deployed("published") as instance:
        helpers = Cgroup(instance.accounting.parts["helpers"], hierarchies()).pids()
        names = {_name(pid) for pid in helpers} - {""}
        assert names == {"containerd-shim", "docker-proxy"}


def test_a_user_of_the_same_port_reaches_the_next_instance(docker: Place) -> None:
    """What the kernel remembers of a user's datagrams leads to the instance before: it is forgotten with it."""
    for mode in ("published", "nat", "published", "routed"):
        with docker.deployed(mode) as instance:
            datagrams.remembered(docker.lab)
            contract.datagrams_are_answered(docker.lab, instance, source=4000)
            tracked = _in_sut(docker.lab, "conntrack", "-L", "-p", "udp")
            assert (tracked == "") == (mode == "routed")
        assert _in_sut(docker.lab, "conntrack", "-L") == ""


def test_docker_rules_are_there_only_while_ports_are_published(docker: Place) -> None:
    def rules() -> str:
        return _in_sut(docker.lab, "nft", "list", "ruleset")

    assert rules() == ""
    with docker.deployed("published"):
        assert "masquerade" in rules().lower()
    assert rules() == ""
    with docker.deployed("routed"):
        assert rules() == ""


def test_a_killed_dockerd_is_replaced(docker: Place) -> None:
    with dockerd.running(docker.lab) as daemon:
        with docker.deployed() as instance:
            parents = {pid: parent(pid) for pid in daemon.pids() if _name(pid) == "dockerd"}
            # What it has forked bears its name until it becomes another program.
            (pid,) = [pid for pid, above in parents.items() if above is not None and above not in parents]
            os.kill(pid, signal.SIGKILL)
            _until(lambda: not instance.is_running())
            with pytest.raises(AgentError):
                instance.agent.facts()
        with docker.deployed() as instance:
            contract.answers(instance)
        assert daemon.engine.call("GET", "/containers/json", all=1) == []


def test_an_instance_that_does_not_come_up_says_why(place: Place) -> None:
    """An image that holds no agent, nor anything else."""
    broken = replace(place.image, digest="0" * 64, directory=place.lab.directory / "broken")
    for name in ("proc", "sys", "dev/shm", "etc"):  # Podman makes an /etc for itself, which is not a namespace's root's
        (broken.rootfs / name).mkdir(parents=True, exist_ok=True)
    contents.note(broken.directory, "rootfs")
    rootfs.write_manifest(broken.directory, {})
    before = leaks.snapshot()
    with pytest.raises(PlatformError) as raised, contract.deployed(place.lab, broken, place.platform):
        pass
    assert "no such file" in str(raised.value).lower()
    contract.nothing_left(place.lab, before)


def _in_sut(lab: Lab, *argv: str) -> str:
    return lab.host.run(argv, confinement=Confinement(netns=lab.sut.netns)).text


def _name(pid: int) -> str:
    """None ("") of one that has just ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    return ""


def _until(condition: Callable[[], bool], within_s: float = contract.HANGING_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


_HOLD = """
import sys, time
from pathlib import Path
import contract, test_platforms_containers as t
from patience import wait_for_boots
from virtoll.hosts.ledger import opened
from virtoll.hosts.local import LocalHost
from virtoll.lab.cpus import cpu_plan
from virtoll.lab.wiring import wired

wait_for_boots()
host, platform = LocalHost(), t.PLATFORMS[sys.argv[2]]
with opened(host, Path(sys.argv[1]), "killed") as ledger, wired(host, ledger, sys.argv[3], cpu_plan(host, 1)) as lab:
    image = contract.image()
    with platform.session(lab, image), contract.deployed(lab, image, platform) as instance:
        print("up", flush=True)
        time.sleep(600)
"""


@pytest.mark.parametrize("name", PLATFORMS)
def test_clean_removes_what_a_killed_virtoll_left(name: str, tmp_path: Path, host: LocalHost) -> None:
    contract.skip_unless_ready(PLATFORMS[name])
    contract.image()
    tag = free_tag()
    before = leaks.snapshot()
    command = [sys.executable, "-c", _HOLD, str(tmp_path), name, tag]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"up\n"
        victim.kill()
    assert any(tag in line for line in leaks.differences(before, leaks.snapshot()))
    removed = clean(host, tmp_path)
    assert any(tag in line for line in removed)
    deadline = time.monotonic() + leaks.SOON_S
    while left := [line for line in leaks.differences(before, leaks.snapshot()) if tag in line or "processes:" in line]:
        assert time.monotonic() < deadline, "\n".join(left)
        time.sleep(0.1)


def test_lxc_is_refused_where_its_containers_would_be_out_of_sight() -> None:
    assert base_cgroups("4:memory:/\n3:cpu,cpuacct:/\n1:name=systemd:/user.slice\n0::/init.scope\n") == []
    assert base_cgroups("4:memory:/ci/7\n0::/box\n") == ["memory:/ci/7", "unified:/box"]


@pytest.mark.parametrize(
    ("platform", "variable", "place"),
    [
        (Docker(), "VIRTOLL_STATE", "/run"),
        (Docker(), "VIRTOLL_CACHE", "/run"),
        (Docker(), "VIRTOLL_STATE", "/etc"),
        (Podman(), "VIRTOLL_STATE", "/run"),
        (Podman(), "VIRTOLL_STATE", "/dev/shm"),
        (Nspawn(), "VIRTOLL_STATE", "/run"),
        (Oci(OciSettings(user_namespace=True)), "VIRTOLL_STATE", "/run"),
    ],
)
def test_what_a_platform_covers_is_no_place_for_what_it_is_to_find(
    platform: Platform, variable: str, place: str, host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They said "dockerd did not start", or nothing but that the agent was not there."""
    monkeypatch.setenv(variable, f"{place}/virtoll-{os.getpid()}")
    (told,) = [problem for problem in platform.check(host) if problem.where == variable]
    assert f"lies below {place}, which {platform.name} covers" in told.what
    assert f"let {variable} name" in told.remedy
    monkeypatch.setenv(variable, f"{place}-/virtoll")
    assert not [problem for problem in platform.check(host) if problem.where == variable]
    monkeypatch.setenv(variable, f"/srv/virtoll-{os.getpid()}")
    assert not [problem for problem in platform.check(host) if problem.where == variable]
