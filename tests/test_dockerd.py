"""How a private dockerd is ended, and where none can be had."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from virtoll.errors import PlatformError
from virtoll.hosts.base import Completed
from virtoll.hosts.local import LocalHost, end_session
from virtoll.hosts.programs import find
from virtoll.images import contents, rootfs
from virtoll.images.base import Image
from virtoll.platforms import docker, dockerd
from virtoll.platforms.docker import Docker, DockerSettings
from virtoll.platforms.dockerd import Daemon

DOCKERD, CONTAINERD = 11, 12
# Told to end, it does not: as one that has ended all else, and looks for its containerd's end once a second.
SLOW = ["sh", "-c", "trap '' TERM; echo; while :; do sleep 1; done"]


@pytest.fixture
def slow() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLOW, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is told by nothing that comes before
        try:
            yield process
        finally:
            end_session(process)


def built(directory: Path, name: str, **manifest: Any) -> Image:
    """What is kept beside an image of this digest."""
    image = Image("own", name * 64, directory)
    image.rootfs.mkdir(parents=True, exist_ok=True)
    contents.note(directory, "rootfs")
    rootfs.write_manifest(directory, manifest)
    return image


class Group:
    """The processes in its control group, look by look, and whatever the last one found from then on."""

    def __init__(self, *looks: list[int]) -> None:
        self.looks = list(looks)

    def pids(self) -> list[int]:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


def daemon(monkeypatch: pytest.MonkeyPatch, directory: Path, process: subprocess.Popen[bytes], group: Group) -> Daemon:
    names = {DOCKERD: "dockerd", CONTAINERD: "containerd"}
    monkeypatch.setattr(dockerd, "_command", lambda pid: names[pid])
    made = Daemon(cast(Any, SimpleNamespace(directory=directory, cgroup="virtoll/ab12")), directory, 0)
    made._process, made._cgroup = process, cast(Any, group)
    return made


def test_dockerd_is_not_waited_for_once_its_containerd_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slow: subprocess.Popen[bytes]
) -> None:
    """And not killed before."""
    both = [DOCKERD, CONTAINERD]
    group = Group(both, both, both, [DOCKERD])
    one = daemon(monkeypatch, tmp_path, slow, group)
    alive = []
    sleep = lambda _s: alive.append(slow.poll() is None)  # noqa: E731
    monkeypatch.setattr(dockerd, "time", SimpleNamespace(monotonic=lambda: 0, sleep=sleep))
    one.stop()
    assert alive == [True, True]
    assert not one.is_alive()
    assert slow.returncode == -9


def test_of_a_run_of_two_images_neither_is_removed_for_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An older run may have left one of them, and newer ones since; what is imported anew takes a deployment's time."""
    one = Daemon(cast(Any, SimpleNamespace(directory=tmp_path, cgroup="virtoll/ab12", host=None)), tmp_path, 0)
    old, new = (built(tmp_path / name, name) for name in "ab")
    tags = [f"virtoll:{image.built[:12]}" for image in (old, new)]
    there = {tag: {"Id": tag, "RepoTags": [tag], "Created": at} for at, tag in enumerate((tags[0], *"xyz"))}
    asked: list[str] = []

    def call(method: str, path: str, *_body: object, **_query: object) -> Any:
        asked.append(f"{method} {path}")
        if method == "DELETE":
            there.pop(path.removeprefix("/images/"))
        return list(there.values()) if method == "GET" else ""

    monkeypatch.setattr(one, "engine", SimpleNamespace(call=call))
    monkeypatch.setattr("virtoll.images.forms.tar_stream", lambda *_: nullcontext())
    assert [one.import_image(image) for image in (old, new, old, new)] == tags * 2
    assert asked == ["GET /images/json", "GET /images/json", "DELETE /images/x", "POST /images/create"]
    assert set(there) == {tags[0], "y", "z"}


def test_an_image_that_was_built_again_is_imported_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the same request, with Debian's packages of another day: of Docker's arm alone the old ones were measured."""
    one = Daemon(cast(Any, SimpleNamespace(directory=tmp_path, cgroup="virtoll/ab12", host=None)), tmp_path, 0)
    there = built(tmp_path / "image", "a")
    held = [{"Id": "1", "RepoTags": [f"virtoll:{name[:12]}" for name in (there.digest, there.built)], "Created": 1}]
    again = built(tmp_path / "image", "a", versions={"nginx": "1.22.1-9+deb12u12"})
    asked: list[str] = []

    def call(method: str, path: str, *_: object, **__: object) -> Any:
        asked.append(f"{method} {path}")
        return held if method == "GET" else ""

    monkeypatch.setattr(one, "engine", SimpleNamespace(call=call))
    monkeypatch.setattr("virtoll.images.forms.tar_stream", lambda *_: nullcontext())
    one.import_image(there)
    assert asked == ["GET /images/json"]
    one.import_image(again)
    assert asked[1:] == ["GET /images/json", "POST /images/create"]


def environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: dockerd.Setting = dockerd.AS_IT_COMES
) -> dict[str, str]:
    """What a daemon is started with beside the caller's."""
    monkeypatch.setattr(dockerd, "owned", lambda *_, **__: nullcontext(SimpleNamespace(procs=())))
    environments: list[dict[str, str]] = []

    def spawn(_argv: Sequence[str], *, env: dict[str, str], **_options: object) -> None:
        environments.append(env)
        raise PlatformError("no more is looked at", where="docker")

    site = SimpleNamespace(cpus=frozenset({0}), netns="vt-ab12-sut")
    lab = SimpleNamespace(
        directory=tmp_path,
        cgroup="virtoll/ab12",
        ledger=None,
        sut=site,
        generator=site,
        host=SimpleNamespace(spawn=spawn),
    )
    with pytest.raises(PlatformError, match="no more"):
        Daemon(cast(Any, lab), tmp_path, 0, setting).ensure()
    (told,) = environments
    return told


def test_dockerd_is_started_where_its_check_has_found_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One in a directory of the user's PATH (/opt/docker/bin) was found by `virtoll doctor`, and by no deployment."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/dockerd").write_text("#!/bin/sh\n")
    (tmp_path / "own/dockerd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'own'}:{os.environ['PATH']}")
    told = environment(monkeypatch, tmp_path)
    assert shutil.which("dockerd", path=told["PATH"]) == find("dockerd") == str(tmp_path / "own/dockerd")
    assert told["PATH"].startswith(f"{tmp_path}/docker/bin:"), "its own iptables before any other"


def test_dockerd_without_a_userland_proxy_starts_where_nobody_has_loaded_br_netfilter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Docker CE 28: "cannot restrict inter-container communication or run without the userland proxy: stat
    /proc/sys/net/bridge/bridge-nf-call-iptables: no such file or directory: set environment variable
    DOCKER_IGNORE_BR_NETFILTER_ERROR=1 to ignore".
    """
    told = environment(monkeypatch, tmp_path, dockerd.Setting(userland_proxy=False))
    assert told.get("DOCKER_IGNORE_BR_NETFILTER_ERROR") == "1"


@pytest.mark.machine
def test_dockerd_loads_no_module_itself_nor_has_the_kernel_load_one_by_its_name() -> None:
    """Docker 28 asks for a network device called br_netfilter, and the kernel loads what is called so for whoever may
    load modules (net/core/dev_ioctl.c: dev_load). What it may be asked for as a device's kind it still loads.
    """
    lab = SimpleNamespace(directory=Path("/run/virtoll/none/of"), cgroup="virtoll/ab12")
    one = Daemon(cast(Any, lab), Path("/var/cache/virtoll/docker/0"), 0)
    told = LocalHost().run(one._covered(["cat", "/proc/self/status"])).text
    held = {line[:6]: int(line.split()[1], 16) for line in told.splitlines() if line.startswith("Cap")}
    module, net_admin = 16, 12  # capabilities(7)
    assert not [name for name, bits in held.items() if bits >> module & 1]
    assert held["CapEff"] >> net_admin & 1


@pytest.mark.parametrize(
    ("data_root", "covered"), [("/var/cache/virtoll/docker/0", True), ("/opt/cache/docker/0", False)]
)
def test_containerd_makes_nothing_in_opt_and_finds_its_containers_where_they_lie(
    tmp_path: Path, data_root: str, covered: bool
) -> None:
    """Seen on a Debian where nobody's containerd had made /opt/containerd: virtoll's left it."""
    one = Daemon(cast(Any, SimpleNamespace(directory=tmp_path, cgroup="virtoll/ab12")), Path(data_root), 0)
    assert ("workdir=/run/opt/work opt /opt" in one._script()) == (covered and Path("/opt").is_dir())
    assert one._script().endswith('exec "$@"\n')


@pytest.mark.machine
@pytest.mark.parametrize(
    ("data_root", "covered"), [("/var/cache/virtoll/docker/0", True), ("/tmp/cache/docker/0", False)]
)
def test_the_stacks_of_a_containerd_that_hangs_are_not_left_on_the_machine(data_root: str, covered: bool) -> None:
    """It writes them into /tmp, for dockerd, which then kills it. (Seen after an instance had been stopped.)"""
    lab = SimpleNamespace(directory=Path("/run/virtoll/none/of"), cgroup="virtoll/ab12")
    one = Daemon(cast(Any, lab), Path(data_root), 0)
    stacks = Path("/tmp", f"containerd.{os.getpid()}.stacks.log")
    try:
        LocalHost().run(one._covered(["sh", "-c", f"echo stacks >{stacks}"]))
        assert stacks.exists() == (not covered)
    finally:
        stacks.unlink(missing_ok=True)


def test_a_container_that_ends_as_its_helpers_are_looked_for_is_told() -> None:
    with pytest.raises(PlatformError, match="the container has ended at once"):
        docker._helpers(2**22 + 1, cast(Any, SimpleNamespace(named=lambda _name: [])))  # above any (PID_MAX_LIMIT)


@pytest.mark.parametrize("seen", [[DOCKERD], [DOCKERD, CONTAINERD]])
def test_a_dockerd_that_does_not_end_is_killed_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slow: subprocess.Popen[bytes], seen: list[int]
) -> None:
    """Also one that has no containerd: nothing tells that it only waits."""
    now = iter(range(1000))
    monkeypatch.setattr(dockerd, "time", SimpleNamespace(monotonic=lambda: next(now), sleep=lambda _s: None))
    one = daemon(monkeypatch, tmp_path, slow, Group(seen))
    one.stop()
    assert next(now) > dockerd._STOP_S
    assert slow.returncode == -9


@pytest.mark.parametrize(("kind", "fits"), [("ext2/ext3", True), ("btrfs", True), ("zfs", False), ("overlayfs", False)])
def test_a_file_system_that_dockerd_refuses_is_told_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, fits: bool
) -> None:
    """A pool of Proxmox's or Ubuntu's, or the disk of the container that virtoll runs in: dockerd would not start."""
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path / "not/yet/there"))
    asked = []

    class There(LocalHost):
        def run(self, argv: Sequence[str], **_: Any) -> Completed:
            asked.append(argv[-1])
            return Completed(tuple(argv), 0, f"{kind}\n".encode(), b"")

    told = [problem for problem in Docker().check(There()) if "overlay2" in problem.what]
    assert [kind in problem.what and "VIRTOLL_CACHE" in problem.remedy for problem in told] == [True] * (not fits)
    assert str(tmp_path) in asked


@pytest.mark.parametrize(("more", "is_told"), [(0, False), (1, True)])
def test_a_state_whose_path_is_too_long_for_dockerds_socket_is_told_beforehand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: int, is_told: bool
) -> None:
    """No dockerd could listen there, and what each deployment was told to ask, `virtoll doctor`, said "ready"."""
    rest = 107 - len(f"{tmp_path}//lab-ab12/docker-noproxy/sock")
    assert rest > 0
    monkeypatch.setenv("VIRTOLL_STATE", str(tmp_path / ("s" * (rest + more))))
    arm = Docker(DockerSettings(userland_proxy=False))
    told = [problem for problem in arm.check(LocalHost()) if "socket" in problem.what]
    assert [problem.where for problem in told] == ["VIRTOLL_STATE"] * is_told
