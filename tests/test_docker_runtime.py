"""Docker's containers by other runtimes than its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import contract
import leaks
from virtoll.catalogue import catalogue
from virtoll.errors import PlatformError, Problem, StudyError
from virtoll.hosts.base import Completed
from virtoll.hosts.cgroup import Cgroup, Hierarchies, hierarchies
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import Lab
from virtoll.networks.base import Attachment, network_modes
from virtoll.platforms import bundle, docker, docker_runtime, dockerd, gvisor, mounts
from virtoll.platforms.docker import Docker, DockerSettings
from virtoll.platforms.dockerd import AS_IT_COMES, Daemon, Setting
from virtoll.platforms.groups import Groups
from virtoll.platforms.gvisor import Gvisor
from virtoll.run.readiness import Readiness
from virtoll.study.file import read_study
from virtoll.study.limits import Limits

LAB = SimpleNamespace(cgroup="virtoll/ab12", host=LocalHost())
LIMITS = Limits(pids=64)
PUBLISHED = cast(
    Attachment, SimpleNamespace(kind="published", mode="published", ports=(), endpoint_address="198.18.1.1")
)
ROUTED = cast(Attachment, SimpleNamespace(kind="veth", mode="routed", ports=()))


def made(runtime: str) -> Docker:
    return Docker(DockerSettings(runtime=runtime))


def specification(runtime: str) -> dict[str, Any]:
    groups = cast(Groups, SimpleNamespace(payload=SimpleNamespace(name="virtoll/ab12/i/payload"), cpus={0}))
    told: dict[str, Any] = made(runtime)._specification("image", groups, LIMITS, PUBLISHED)["HostConfig"]
    return told


def daemon(directory: Path, setting: Setting) -> Daemon:
    one = Daemon(cast(Lab, SimpleNamespace(directory=directory, **vars(LAB))), directory, 0, setting)
    one._tools.mkdir(parents=True)
    return one


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every runtime is."""
    monkeypatch.setattr(docker_runtime, "find", lambda name: f"/opt/the bin/{name}")


# -- what the daemon and the container are told --------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
def test_what_docker_comes_with_is_as_it_was(tmp_path: Path) -> None:
    assert docker_runtime.USUAL == DockerSettings().runtime == AS_IT_COMES.runtime
    assert not any("runtime" in word for word in daemon(tmp_path, AS_IT_COMES)._argv(tmp_path / "config"))
    told = specification("runc")
    assert "Runtime" not in told
    assert (told["PidsLimit"], [one["Name"] for one in told["Ulimits"]]) == (64, ["nofile"])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("runtime", ["crun", "youki"])
def test_another_runtime_is_told_to_the_daemon_and_asked_for(tmp_path: Path, runtime: str) -> None:
    one = daemon(tmp_path, Setting(runtime=runtime))
    assert f"--add-runtime={runtime}=/opt/the bin/{runtime}" in one._argv(tmp_path / "config")
    assert specification(runtime)["Runtime"] == runtime
    assert specification(runtime)["PidsLimit"] == 64


@pytest.mark.usefixtures("installed")
def test_each_setting_has_a_daemon_of_its_own(tmp_path: Path) -> None:
    runtimes = ("runc", "crun", "runsc", "noproxy", "crun-noproxy", "noproxy-crun")
    settings = [Setting(proxy, runtime) for proxy in (True, False) for runtime in runtimes]
    daemons = [daemon(tmp_path, setting) for setting in settings]
    assert len({one.directory for one in daemons}) == len({one.cgroup for one in daemons}) == len(settings)
    assert daemons[0].directory == tmp_path / "docker"


def test_an_arm_asks_for_the_daemon_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Setting] = []

    @contextmanager
    def running(_lab: Lab, setting: Setting) -> Iterator[Any]:
        asked.append(setting)
        yield SimpleNamespace(import_image=lambda _image: "tag")

    monkeypatch.setattr(docker, "running", running)
    for settings in (DockerSettings(), DockerSettings(userland_proxy=False, runtime="crun")):
        with Docker(settings).session(cast(Any, None), cast(Any, None)):
            pass
    assert asked == [AS_IT_COMES, Setting(userland_proxy=False, runtime="crun")]


@pytest.mark.parametrize(
    ("runtime", "version", "hidden"), [("crun", 1, "cgroup2"), ("crun", 2, ""), ("runc", 1, ""), ("runsc", 1, "")]
)
def test_cruns_daemon_does_not_see_a_mixture_of_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, version: Any, hidden: str
) -> None:
    monkeypatch.setattr(dockerd, "hierarchies", lambda: Hierarchies(version, {}))
    one = daemon(tmp_path, Setting(runtime=runtime))
    assert one._hidden() == hidden
    assert 'hide "$3"; shift 3\n' in one._script()


def test_a_kind_of_file_system_is_hidden_and_others_stay(tmp_path: Path) -> None:
    """The shell's own words, with a umount that tells what it is to do."""
    listed = tmp_path / "mounts"
    listed.write_text("t /sys/fs/cgroup tmpfs rw 0 0\nc /sys/fs/cgroup/uni\\040fied cgroup2 rw 0 0\nx / ext4 rw 0 0\n")
    script = mounts.HIDE.replace("/proc/self/mounts", str(listed)) + 'umount() { echo "$@"; }; hide "$1"'
    for kind, told in (("cgroup2", "--lazy /sys/fs/cgroup/uni fied\n"), ("", "")):
        done = subprocess.run(["sh", "-e", "-c", script, "sh", kind], stdout=subprocess.PIPE, check=True, text=True)
        assert done.stdout == told


# -- what is missing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runtime", "what", "remedy"),
    [
        ("crun", "crun is not installed", "apt-get install crun"),
        ("runsc", "runsc is not installed", "apt-get install runsc"),
        ("youki", "youki is not installed", "put youki into the PATH"),
        (
            "/opt/crun",
            "runtime = '/opt/crun' is no name of a program that Docker takes",
            "name one that is in the PATH",
        ),
        ("Crun", "runtime = 'Crun' is no name of a program that Docker takes", "in small letters"),
        ("--x", "runtime = '--x' is no name of a program that Docker takes", "name one that is in the PATH"),
        ("", "runtime = '' is no name of a program that Docker takes", "name one that is in the PATH"),
    ],
)
def test_a_runtime_that_cannot_be_had_is_told_beforehand(
    monkeypatch: pytest.MonkeyPatch, runtime: str, what: str, remedy: str
) -> None:
    monkeypatch.setattr(docker_runtime, "find", lambda _name: None)
    told = [problem for problem in made(runtime).check(LocalHost()) if problem.what == what]
    assert [remedy in problem.remedy for problem in told] == [True]


def test_docker_without_runc_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Problem("runc is not installed", "localhost", "apt-get install runc")
    monkeypatch.setattr(docker, "containers_need", lambda *_: [missing])
    monkeypatch.setattr(docker_runtime, "find", lambda _name: None)
    assert [problem.what for problem in Docker().check(LocalHost())].count(missing.what) == 1


def test_its_version_is_noted_beside_dockers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "runtime_version", lambda _host, name: f"{name} 9")

    class There(LocalHost):
        def run(self, argv: Sequence[str], **_: Any) -> Completed:
            return Completed(tuple(argv), 0, f"{argv[0]} 1\nmore".encode(), b"")

    own = {name: f"{name} 1" for name in ("dockerd", "containerd", "runc")}
    assert Docker().versions(There()) == own
    assert made("crun").versions(There()) == {**own, "crun": "crun 9"}


def test_a_filter_that_a_sentry_does_not_have_cannot_be_switched_off() -> None:
    for runtime, refused in (("runsc", 1), ("crun", 0)):
        found = Docker(DockerSettings(seccomp="unconfined", runtime=runtime)).check(LocalHost())
        assert len([one for one in found if "changes nothing" in one.what and "leave it out" in one.remedy]) == refused


# -- gVisor's ------------------------------------------------------------------------------------------------------


def test_a_sentry_counts_its_processes_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _which: (1024, 524288))
    open_files = {"Name": "nofile", "Soft": 1024, "Hard": 524288}
    told = specification("runsc")
    assert told["Runtime"] == "runsc"
    assert told["Ulimits"] == [open_files, {"Name": "nproc", "Soft": 64, "Hard": 64}]
    assert "PidsLimit" not in told, "outside one of them is several"
    plain = specification("crun")
    assert (plain["Ulimits"], plain["PidsLimit"]) == ([open_files], 64)


STUDY = """\
name = "small"
[[probes]]
name = "clock"
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
network = "{network}"
runtime = "{runtime}"
"""


def labels(network: str, runtime: str) -> list[str]:
    study = read_study(STUDY.format(network=network, runtime=runtime), "s.toml", catalogue())
    return [entry.arm.label for entry in study.arms]


@pytest.mark.parametrize("network", ["host", "routed", "bridge", "nat"])
def test_a_sentry_in_a_network_that_is_wired_later_is_refused_when_the_study_is_read(network: str) -> None:
    with pytest.raises(StudyError) as raised:
        labels(network, "runsc")
    assert f"docker with these settings cannot be attached in mode {network!r}: it takes published" in str(raised.value)
    assert 'write network = "published"' in str(raised.value)
    assert labels(network, "crun")[-1] == f"docker+{network} (runtime crun)"


def test_a_pair_that_no_study_names_is_not_ready() -> None:
    (problem,) = Readiness(LocalHost())._of_mode(made("runsc"), "routed")
    assert problem.remedy == 'write network = "published"'
    assert "docker with these settings cannot be attached" in problem.what


def test_the_runtime_is_in_the_label() -> None:
    assert labels("published", "runsc")[-1] == "docker+published (runtime runsc)"
    assert made("runsc").kind_in(network_modes()["published"]) == "published"


def test_a_sentry_in_such_a_network_is_refused_by_the_driver_too(tmp_path: Path) -> None:
    attached = made("runsc").deploy(cast(Lab, LAB), cast(Any, None), LIMITS, ROUTED, tmp_path)
    with pytest.raises(PlatformError, match="choose a network mode that offers published"), attached:
        pass


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a daemon calls runsc by, on a machine of two hierarchies; its unshare tells what it is to start."""
    programs = tmp_path / "bin it"
    programs.mkdir()
    for name, does in (("runsc", "exit 1"), ("unshare", 'printf "%s\\n" "$@"')):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    for top in ("cpu", "memory"):
        (tmp_path / top / "virtoll/ab12/i/payload").mkdir(parents=True)
    tops = (tmp_path / "cpu", tmp_path / "memory")
    return docker_runtime.program(LocalHost(), "runsc", programs.parent, tops)


def called(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(script), *arguments], capture_output=True, text=True, check=False)


def configured(directory: Path, group: str) -> Path:
    """A bundle as containerd writes it."""
    directory.mkdir()
    config = {"process": {"args": ['"cgroupsPath":"/no/thing"']}, "linux": {"cgroupsPath": group, "x": 1}}
    (directory / "config.json").write_text(json.dumps(config, separators=(",", ":")))
    return directory


def test_a_sentry_starts_in_the_instances_group_and_makes_none(script: Path, tmp_path: Path) -> None:
    told = configured(tmp_path / "b", "/virtoll/ab12/i/payload/0f1e")
    words = ["--root", "/r", "create", "--bundle", str(told), "--pid-file", "/p", "0f1e"]
    done = called(script, *words)
    assert done.returncode == 0, done.stderr
    joined = [tmp_path / top / "virtoll/ab12/i/payload/cgroup.procs" for top in ("cpu", "memory")]
    assert len({path.read_text() for path in joined}) == 1
    assert joined[0].read_text().strip().isdigit()
    asked = done.stdout.splitlines()
    assert asked[asked.index("--ignore-cgroups") - 1] == str(tmp_path / "bin it/runsc")
    assert asked[asked.index("--ignore-cgroups") + 1 :] == words
    assert asked[:3] == ["--mount", "--propagation=private", "sh"]
    assert 'mount -t tmpfs tmpfs /proc/sys/net; exec "$@"' in asked


@pytest.mark.parametrize("verb", ["start", "state", "kill", "delete"])
def test_what_only_asks_a_sentry_joins_no_group(script: Path, tmp_path: Path, verb: str) -> None:
    done = called(script, "--root", "/r", verb, "0f1e")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "cpu/virtoll/ab12/i/payload/cgroup.procs").exists()


def test_a_sentry_without_a_group_of_its_own_is_not_started(script: Path, tmp_path: Path) -> None:
    told = configured(tmp_path / "b", "")
    done = called(script, "create", "--bundle", str(told), "0f1e")
    assert done.returncode != 0
    assert "no cgroupsPath" in done.stderr
    assert done.stdout == ""


def test_how_a_sentry_is_told_of_system_calls_is_told_where_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said = '  -pidfd int\n    \tx (default 1)\n  -platform string\n    \tsystrap (default), kvm. (default "systrap")\n'

    class There(LocalHost):
        def __init__(self, told: str) -> None:
            self.told = told

        def run(self, argv: Sequence[str], **_: Any) -> Completed:
            assert list(argv) == ["runsc", "flags"]
            return Completed(tuple(argv), 0, b"", self.told.encode())

    for told, known in ((said, {"accelerator": "systrap"}), ("", {})):
        monkeypatch.setattr(gvisor, "_flags", {})
        assert made("runsc")._system_calls(There(told)) == known
    assert made("crun")._system_calls(There(said)) == {}


@pytest.mark.parametrize(
    ("told", "flags"),
    [
        ("  -overlay\n    \tx\n  -overlay2 value\n    \twrap mounts (default root:self)\n", ["--overlay2=none"]),
        ("  -overlay\n    \twrap mounts; see -overlay2\n", []),
    ],
    ids=["2023", "before"],
)
def test_what_a_sentry_writes_is_on_the_disk(monkeypatch: pytest.MonkeyPatch, told: str, flags: list[str]) -> None:
    class There(LocalHost):
        def run(self, argv: Sequence[str], **_: Any) -> Completed:
            return Completed(tuple(argv), 0, told.encode(), b"")

    monkeypatch.setattr(gvisor, "_flags", {})
    assert gvisor.on_its_disk(There()) == flags
    argv = Gvisor()._run(There(), Path("/there"), "it")
    assert [word for word in argv[: argv.index("run")] if "overlay" in word] == flags


def test_a_daemon_calls_a_sentry_with_what_keeps_its_files_on_the_disk(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_runtime, "on_its_disk", lambda _host: ["--overlay2=none"])
    other = docker_runtime.program(LocalHost(), "runsc", script.parent, ())
    assert "--overlay2=none" in called(other, "state", "0f1e").stdout.split()


# -- on this machine -----------------------------------------------------------------------------------------------


@pytest.mark.machine
@pytest.mark.parametrize("runtime", ["crun", "runsc"])
def test_another_runtime_keeps_the_contract(lab: Lab, runtime: str) -> None:
    platform = made(runtime)
    contract.skip_unless_ready(platform)
    image = contract.image()
    before = leaks.snapshot()
    is_sentry = runtime == "runsc"
    with platform.session(lab, image):
        with contract.deployed(lab, image, platform, "published") as instance:
            contract.answers(instance)
            contract.is_reached(lab, instance)
            contract.keeps_root_from_the_host(instance, own_kernel=is_sentry)
            contract.is_as_the_image_and_writes(image, instance)
            contract.is_accounted_for(instance)
            contract.cpu_limit_holds(instance)
            if not is_sentry:
                contract.memory_limit_holds(instance)
            contract.disk_limit_holds(instance)
            contract.pids_limit_holds(instance)
            assert ("helpers" in instance.accounting.parts) == (not is_sentry), (
                "of a kernel in user space no share is told"
            )
            helpers = Cgroup(f"{instance.accounting.cgroup}/helpers", hierarchies()).pids()
            names = {Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() for pid in helpers}
            assert names == {"containerd-shim", "docker-proxy"}
            assert instance.facts["oci_runtime"] == runtime
            assert (instance.agent.facts()["kernel"] != os.uname().release) == is_sentry
            if is_sentry:
                contract.memory_limit_ends_it(instance)
        with contract.deployed(lab, image, platform, "published") as instance:
            contract.answers(instance)
            contract.is_as_the_image_and_writes(image, instance)
    contract.nothing_left(lab, before)


def test_a_path_is_written_as_fstab_has_it() -> None:
    assert mounts.listed(Path("/var/lib/my state/lxcfs")) == r"/var/lib/my\040state/lxcfs"
