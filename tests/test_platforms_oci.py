"""What OCI runtimes, gVisor and Podman are told, on both versions of control groups, without starting any."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from virtoll.errors import Problem
from virtoll.hosts.base import Completed
from virtoll.hosts.cgroup import Cgroup, Hierarchies
from virtoll.hosts.local import LocalHost
from virtoll.images import shifted
from virtoll.networks.base import Attachment, Kind
from virtoll.networks.host import HostNetwork
from virtoll.platforms import (
    bubblewrap,
    bundle,
    docker,
    dockerd,
    gvisor,
    mounts,
    nspawn,
    podman,
    requirements,
    uml_jail,
    users,
    veth,
)
from virtoll.platforms.base import Platform
from virtoll.platforms.bubblewrap import Bubblewrap
from virtoll.platforms.docker import Docker
from virtoll.platforms.groups import Groups
from virtoll.platforms.gvisor import Gvisor, GvisorSettings
from virtoll.platforms.oci import Oci, OciSettings
from virtoll.platforms.podman import Podman, PodmanSettings
from virtoll.platforms.uml_jail import Jail
from virtoll.study.limits import Limits

LIMITS = Limits(vcpus=2, memory_bytes=256 * 1024**2, pids=64)
ROOT = Path("/lab/i/root")
# moby, oci/defaults.go: MaskedPaths, less /sys/firmware; at 20.10, and what came until 28.
DOCKERS = {
    *("/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"),
    *("/proc/timer_stats", "/proc/sched_debug", "/proc/scsi"),
    *("/proc/interrupts", "/sys/devices/virtual/powercap"),
}


def groups(version: int) -> Groups:
    layouts = {
        1: Hierarchies(1, {name: Path("/sys/fs/cgroup", name) for name in ("cpu", "cpuset", "memory", "pids")}),
        2: Hierarchies(2, dict.fromkeys(("cpu", "cpuset", "memory", "pids"), Path("/sys/fs/cgroup"))),
    }
    whole, payload, helpers = (
        Cgroup(name, layouts[version])
        for name in ("virtoll/ab12/i", "virtoll/ab12/i/payload", "virtoll/ab12/i/helpers")
    )
    return Groups(whole, payload, helpers, frozenset({1, 3}))


@pytest.mark.parametrize(("version", "own_cgroups"), [(1, False), (2, True)])
def test_the_bundle_holds_the_limits_below_the_payloads_group(version: int, own_cgroups: bool) -> None:
    told = bundle.configuration(ROOT, groups(version), LIMITS, None)["linux"]
    assert told["cgroupsPath"] == "/virtoll/ab12/i/payload/container"
    assert told["resources"]["cpu"] == {"cpus": "1,3"}
    assert told["resources"]["memory"] == {"limit": LIMITS.memory_bytes}
    assert told["resources"]["pids"] == {"limit": LIMITS.pids}
    assert ({"type": "cgroup"} in told["namespaces"]) == own_cgroups
    assert {"type": "network"} in told["namespaces"]


def test_in_the_hosts_network_the_bundle_names_the_labs_namespace() -> None:
    told = bundle.configuration(ROOT, groups(2), LIMITS, Path("/run/netns/vt-sut"))
    assert {"type": "network", "path": "/run/netns/vt-sut"} in told["linux"]["namespaces"]


def test_the_bundle_gives_root_nothing_that_reaches_the_host() -> None:
    told: dict[str, Any] = bundle.configuration(ROOT, groups(1), LIMITS, None)
    held = {name for names in told["process"]["capabilities"].values() for name in names}
    assert not held & {"CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"}
    assert "ambient" not in told["process"]["capabilities"]
    assert told["linux"]["resources"]["devices"][0] == {"allow": False, "access": "rwm"}
    written = [rule for rule in told["linux"]["resources"]["devices"][1:] if rule["access"] != "m"]
    assert all(rule["type"] == "c" for rule in written), "block devices may be made, and not opened"
    for mount in told["mounts"]:
        if mount["destination"].startswith("/sys"):
            assert "ro" in mount["options"]


def test_users_of_its_own_are_a_namespace_and_a_place_that_they_may_enter() -> None:
    """Root inside may not go where root alone may: below virtoll's state there is no way for it."""
    told = bundle.configuration(users.ROOT, groups(1), LIMITS, None, user_namespace=True)
    assert {"type": "user"} in told["linux"]["namespaces"]
    mapping = [{"containerID": 0, "hostID": shifted.FIRST, "size": shifted.COUNT}]
    assert told["linux"]["uidMappings"] == told["linux"]["gidMappings"] == mapping
    plain = bundle.configuration(ROOT, groups(1), LIMITS, None)["linux"]
    assert {"type": "user"} not in plain["namespaces"]
    assert not {"uidMappings", "gidMappings"} & plain.keys()
    attachment = Attachment("routed", "veth", "vt-sut", "198.18.3.10", ())
    for asked in (True, False):
        words = Podman(PodmanSettings(user_namespace=asked))._run(groups(2), LIMITS, attachment)
        assert (f"--uidmap=0:{shifted.FIRST}:{shifted.COUNT}" in words) is asked
        assert (f"--gidmap=0:{shifted.FIRST}:{shifted.COUNT}" in words) is asked


@pytest.mark.parametrize(
    "platform", [Oci(OciSettings(user_namespace=True)), Podman(PodmanSettings(user_namespace=True))]
)
def test_users_of_its_own_have_no_part_in_the_hosts_network(platform: Platform) -> None:
    """Linux mounts sysfs for a network namespace for whoever owns it, which root inside does not (fs/sysfs/mount.c)."""
    assert platform.attached_as == ("veth", "stack")
    problem = platform.kind_in(HostNetwork)
    assert isinstance(problem, Problem)
    assert f"{platform.name} with these settings" in str(problem)
    assert Oci().attached_as == Podman().attached_as == ("veth", "stack", "shared")


@pytest.mark.parametrize(
    ("most", "told"), [(None, "the kernel has no user namespaces"), (b"0\n", "is 0: there can be no user namespace")]
)
def test_where_there_can_be_no_user_namespace_it_is_told(
    most: bytes | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "max_user_namespaces"
    if most is not None:
        path.write_bytes(most)
    monkeypatch.setattr(users, "_MOST", path)
    for platform in (Oci(OciSettings(user_namespace=True)), Podman(PodmanSettings(user_namespace=True))):
        assert [problem.what for problem in platform.check(LocalHost()) if told in problem.what]
    assert not [problem for problem in Oci().check(LocalHost()) if told in problem.what]


def test_on_a_kernel_built_without_user_namespaces_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a one has /proc/sys/user/max_user_namespaces all the same (kernel/ucount.c), and was found good."""
    monkeypatch.setattr(users, "_OWN", tmp_path / "user")
    told = [problem.what for problem in users.problems(LocalHost(), True)]
    assert told == ["the kernel has no user namespaces"]
    assert users.problems(LocalHost(), False) == []


@pytest.mark.parametrize(
    ("uid_map", "has_them"),
    [
        ("         0          0 4294967295\n", True),
        ("         0     100000      65536\n", False),  # LXC's and Docker's, without privileges
        (f"0 1000 1\n1 100000 {shifted.FIRST}\n", False),
        (f"0 1000 1\n{shifted.FIRST} 100000 {shifted.COUNT}\n", True),
    ],
)
def test_in_a_user_namespace_that_has_too_few_users_it_is_told(
    uid_map: str, has_them: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy's files could not be given away: it ended in a traceback (chown: Invalid argument)."""
    own, all_ = tmp_path / "own", tmp_path / "all"
    own.write_text(uid_map)
    all_.write_text("0 0 4294967295\n")
    for maps in ((own, all_), (all_, own)):
        monkeypatch.setattr(users, "_MAPS", maps)
        told = [problem.what for problem in users.problems(LocalHost(), True)]
        assert [what.startswith("virtoll is in a user namespace itself") for what in told] == [True] * (not has_them)


@pytest.mark.machine
def test_the_root_is_shown_below_what_is_covered_and_there_alone(tmp_path: Path) -> None:
    """In a namespace of the command's own; whatever is mounted goes with it."""
    own = tmp_path / "lab-ab12/own/root"
    own.mkdir(parents=True)
    (own / "inside").touch()
    script = "find /run/instance; stat -c %a /run"  # mount(8) keeps files of its own in /run
    told = LocalHost().run(bundle.apart(own, ["sh", "-c", script], covered=("/run",), shown=users.ROOT)).text
    assert told.split() == ["/run/instance", "/run/instance/inside", "755"]


def test_a_bundle_is_written_whole(tmp_path: Path) -> None:
    told = bundle.configuration(ROOT, groups(2), LIMITS, None)
    bundle.write(LocalHost(), tmp_path / "bundle", told)
    assert json.loads((tmp_path / "bundle/config.json").read_text()) == told


@pytest.mark.parametrize(
    ("runtime", "version", "hidden"), [("crun", 1, "cgroup2"), ("crun", 2, ""), ("runc", 1, ""), ("runc", 2, "")]
)
def test_crun_alone_is_kept_from_a_second_version_of_cgroups(runtime: str, version: int, hidden: str) -> None:
    assert bundle.hidden_from(runtime, version) == hidden


def entered(platform: str, root: Path, argv: list[str]) -> list[str]:
    """``argv`` in the mount namespace that the platform makes outside of its instance."""
    scripts = {"bubblewrap": bubblewrap._ENTER, "nspawn": nspawn._ENTER}
    if platform in scripts:
        return ["unshare", "--mount", "sh", "-e", "-c", scripts[platform], "sh", str(root), *mounts.kept(root), *argv]
    return bundle.apart(root, argv)


@pytest.mark.machine
@pytest.mark.parametrize("platform", ["oci", "bubblewrap", "nspawn"])
def test_what_waits_outside_holds_no_other_instances_mounts_whatever_the_directory_is_called(
    tmp_path: Path, platform: str
) -> None:
    """Overlays, disks (openvz-profile's) and what is mounted in them, of this lab and of others: their copies would
    keep a disk in use after its instance. /proc/self/mounts writes a space as \\040. All mounts are in a namespace
    that ends with the command.
    """
    labs = tmp_path / "a b"
    own, other, foreign = labs / "lab-ab12/own/root", labs / "lab-ab12/other/root", tmp_path / "c d/root"
    for path in (own, other, foreign):
        path.mkdir(parents=True)
    script = """
    mount -t tmpfs virtoll-own "$1"; mkdir "$1/proc"; mount -t tmpfs below-own "$1/proc"
    mount -t tmpfs disk-of-other "$2"; mkdir "$2/proc"; mount -t tmpfs below-other "$2/proc"
    mount -t tmpfs virtoll-foreign "$3"; shift 3; exec "$@"
    """
    words = ["unshare", "--mount", "sh", "-e", "-c", script, "sh", str(own), str(other), str(foreign)]
    told = LocalHost().run([*words, *entered(platform, own, ["cat", "/proc/self/mounts"])]).text
    sources = [line.split()[0] for line in told.splitlines()]
    assert {"virtoll-own", "below-own"} <= {*sources}
    assert not {"disk-of-other", "below-other", "virtoll-foreign"} & {*sources}


def test_a_guest_kernels_jail_and_dockers_place_forget_other_instances_too() -> None:
    jail = Jail(Path("/state/lab-ab12/i/jail"), Path("/state/lab-ab12/i/disk"), 1)
    argv = jail.entered({}, 1, ["kernel"])
    assert argv[argv.index("sh", 3) + 1 :][:2] == ["/state/lab-ab12/i/jail", "/state"]
    for script in (uml_jail._ENTER, dockerd._COVER):
        assert script.count("forget_others") == 2


def test_podman_puts_the_container_below_the_payload_and_keeps_conmon_out() -> None:
    attachment = Attachment("routed", "veth", "vt-sut", "198.18.3.10", ())
    told = Podman()._run(groups(2), LIMITS, attachment)
    assert "--cgroup-parent=/virtoll/ab12/i/payload" in told
    assert "--cgroups=no-conmon" in told
    assert "--cpuset-cpus=1,3" in told
    assert f"--memory={LIMITS.memory_bytes}b" in told
    assert f"--pids-limit={LIMITS.pids}" in told
    assert "--network=none" in told
    assert "--security-opt=seccomp=unconfined" not in told
    unconfined = Podman(PodmanSettings(seccomp="unconfined"))._run(groups(2), LIMITS, attachment)
    assert "--security-opt=seccomp=unconfined" in unconfined


def test_podman_runs_an_image_of_ours_where_selinux_is_in_force() -> None:
    """podman-run(1), --rootfs: the root is not relabelled, and who is confined (container_t) may not read it.

    On no other platform is anybody confined so: dockerd does it where it is told to alone (--selinux-enabled).
    """
    attachment = Attachment("routed", "veth", "vt-sut", "198.18.3.10", ())
    assert "--security-opt=label=disable" in Podman()._run(groups(2), LIMITS, attachment)


def test_in_the_labs_network_podman_shows_the_images_name_servers() -> None:
    """podman-run(1): else it makes one of the host's; with --network=none it makes none, and takes no --dns."""
    none = {"--network=none"}
    wanted: dict[Kind, set[str]] = {"shared": {"--network=host", "--dns=none"}, "veth": none, "stack": none}
    for kind, options in wanted.items():
        told = Podman()._run(groups(2), LIMITS, Attachment("host", kind, "vt-sut", "198.18.1.1", ()))
        assert {word for word in told if word.startswith(("--network", "--dns"))} == options


def test_what_this_machine_has_podman_do_otherwise_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """containers.conf(5), containers-mounts.conf(5), oci-hooks(5), containers-storage.conf(5), the filter in /etc."""
    variables = podman._settings(LocalHost(), tmp_path)
    assert variables.keys() == {"CONTAINERS_CONF", "CONTAINERS_REGISTRIES_CONF", "CONTAINERS_STORAGE_CONF"}
    for name, path in variables.items():
        assert path == "/dev/null" or tmp_path in Path(path).parents, name
    storage = tomllib.loads(Path(variables["CONTAINERS_STORAGE_CONF"]).read_text())["storage"]
    assert storage.keys() == {"driver", "runroot", "graphroot"}, "without one of these it does not start"
    told = Podman()._podman(tmp_path)
    assert "--default-mounts-file=/dev/null" in told
    (hooks,) = (Path(word.removeprefix("--hooks-dir=")) for word in told if word.startswith("--hooks-dir="))
    assert hooks.is_dir()
    assert list(hooks.iterdir()) == []
    attachment = Attachment("routed", "veth", "vt-sut", "198.18.3.10", ())
    for own in (tmp_path / "missing.json", Path(variables["CONTAINERS_STORAGE_CONF"])):
        monkeypatch.setattr(podman, "_FILTER", own)
        named = [word for word in Podman()._run(groups(2), LIMITS, attachment) if "seccomp" in word]
        assert named == ([f"--security-opt=seccomp={own}"] if own.exists() else [])


def test_a_broken_file_of_the_users_does_not_hide_podmans_version() -> None:
    class Asked(LocalHost):
        def run(self, argv: Sequence[str], **options: Any) -> Completed:
            told = b"podman version 4.3.1" if options["env"]["CONTAINERS_CONF"] == "/dev/null" else b""
            return Completed(tuple(argv), 0, told, b"")

    assert requirements.too_old(Asked(), "podman", (4, 0), env=podman._DEFAULTS) == []


@pytest.mark.parametrize("there", [True, False])
def test_what_docker_leaves_to_apparmor_is_hidden_where_the_kernel_has_it(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The debug messages of the host's kernel; nobody else's list of what is hidden is made shorter by it."""
    monkeypatch.setattr(docker, "in_proc", lambda *names: [f"/proc/{name}" for name in names if there])
    attachment = Attachment("routed", "veth", "vt-sut", "198.18.3.10", ())
    told = Docker()._specification("image", groups(2), LIMITS, attachment)["HostConfig"]
    assert set(told.get("MaskedPaths", ())) == ({"/sys/firmware", *DOCKERS, "/proc/dynamic_debug"} if there else set())
    assert "--security-opt=mask=/proc/dynamic_debug" in Podman()._run(groups(2), LIMITS, attachment)
    assert "/proc/dynamic_debug" in bundle.configuration(ROOT, groups(2), LIMITS, None)["linux"]["maskedPaths"]


def test_podman_keeps_all_in_the_instances_own_directory_or_memory() -> None:
    told = Podman(PodmanSettings(runtime="runc"))._podman(Path("/lab/i"))
    for word in ("--root=", "--network-config-dir="):
        assert any(each.startswith(f"{word}/lab/i/podman/") for each in told), word
    for word in ("--runroot=", "--tmpdir="):
        (path,) = (each.removeprefix(word) for each in told if each.startswith(word))
        assert any(path.startswith(f"{covered}/") for covered in podman.COVERED), "the host's own is not touched"
    assert "--runtime=runc" in told


@pytest.mark.parametrize(
    ("platform", "packages"),
    [
        (Oci(), {"runc"}),
        (Oci(OciSettings(runtime="crun")), {"crun"}),
        (Podman(), {"podman", "conmon", "crun"}),
        (Gvisor(), {"runsc"}),
    ],
)
def test_what_is_not_installed_is_told_with_its_package(
    platform: Platform, packages: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "find", lambda command: command if command == "mkfs.ext4" else None)
    remedies = {problem.remedy for problem in platform.check(LocalHost())}
    assert {f"apt-get install {package}" for package in packages} <= remedies


def test_gvisor_is_commanded_where_nobody_else_is() -> None:
    """runsc of 2022 listens at \\0runsc-sandbox.NAME (unix(7)) in the network that it is started in."""
    assert Gvisor()._run(LocalHost(), Path("/lab/b01-t0001"), "vt-ab12-b01-t0001")[:3] == ["unshare", "--net", "runsc"]
    assert Gvisor()._run(LocalHost(), Path("/lab/b01-t0001"), "vt-ab12-b01-t0001")[-1] == "vt-ab12-b01-t0001"


class Asked(LocalHost):
    """Another machine, which counts what it is asked."""

    where = "asked"

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def run(self, argv: Sequence[str], **options: Any) -> Completed:
        self.asked.append(argv[0])
        return Completed(tuple(argv), 0, f"{argv[0]} version 1\nof today\n".encode(), b"")


@pytest.mark.parametrize("platform", [Oci(), Podman(), Gvisor()])
def test_what_a_deployment_tells_of_versions_takes_no_time_of_it(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked for when a run begins; a deployment is timed, and podman --version alone takes some 25 ms."""
    monkeypatch.setattr(bundle, "_versions", {})
    host = Asked()
    told = platform.versions(host)
    asked = len(host.asked)
    assert told == {name: f"{name} version 1" for name in host.asked}
    assert platform.versions(host) == told
    assert len(host.asked) == asked > 0


def test_a_program_that_was_replaced_is_asked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet's worker lives for weeks, and the runtimes that it measures are upgraded meanwhile."""
    monkeypatch.setattr(bundle, "_versions", {})
    monkeypatch.setenv("PATH", str(tmp_path))
    host = Asked()
    for text in ("one", "another"):
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").chmod(0o755)
        (tmp_path / "new").rename(tmp_path / "runtime")
        for _ in range(2):
            bundle.version(host, "runtime")
    assert len(host.asked) == 2


@pytest.mark.parametrize(
    ("platform", "told", "is_too_old"),
    [
        (Podman(), "podman version 3.4.4", True),
        (Podman(), "podman version 4.3.1", False),
        (Podman(), "podman version 10.0.0-dev", False),
        (Podman(), "nonsense", True),
        (Bubblewrap(), "bubblewrap 0.6.1", True),
        (Bubblewrap(), "bubblewrap 0.7.0", False),
    ],
)
def test_a_program_that_lacks_an_option_which_it_is_given_is_told(
    platform: Platform, told: str, is_too_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Old(LocalHost):
        def run(self, argv: Sequence[str], **options: Any) -> Completed:
            return Completed(tuple(argv), 0, told.encode(), b"")

    monkeypatch.setattr(requirements, "find", lambda command: command)
    assert [told in problem.what for problem in platform.check(Old()) if "or later" in problem.what] == (
        [True] if is_too_old else []
    )


def test_gvisor_gets_what_the_sentry_has_and_the_limit_of_processes_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _which: (1024, 524288))
    open_files = {"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 524288}
    assert bundle.configuration(ROOT, groups(2), LIMITS, None)["process"]["rlimits"] == [open_files]
    told = gvisor.configuration(ROOT, groups(2), LIMITS, Path("/run/netns/vt-i"))
    processes = {"type": "RLIMIT_NPROC", "soft": LIMITS.pids, "hard": LIMITS.pids}
    assert told["process"]["rlimits"] == [open_files, processes]
    assert "CAP_SYS_RESOURCE" not in told["process"]["capabilities"]["effective"], "who has it is not held to it"
    assert {"type": "network", "path": "/run/netns/vt-i"} in told["linux"]["namespaces"]
    assert not {"cgroup", "mqueue"} & {mount["type"] for mount in told["mounts"]}
    assert not {"cgroupsPath", "resources"} & told["linux"].keys()


@pytest.mark.parametrize(
    ("told", "offered"),
    [
        ("kvm\nptrace\n", ["kvm", "ptrace"]),
        ("- systrap: the default\n- kvm\n", ["kvm", "systrap"]),
        ("", []),
        ("unknown topic\n", []),
    ],
)
def test_what_platforms_a_runsc_has(told: str, offered: list[str]) -> None:
    assert gvisor.platforms_offered(told) == offered


def test_a_platform_that_this_runsc_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked(LocalHost):
        def run(self, argv: Sequence[str], **options: Any) -> Completed:
            return Completed(tuple(argv), 0, b"kvm\nptrace\n", b"")

    monkeypatch.setattr(requirements, "find", lambda command: command)
    told = [problem.what for problem in Gvisor(GvisorSettings(system_calls="systrap")).check(Asked())]
    assert "this runsc has no platform systrap, but kvm, ptrace" in told
    assert not any("ptrace" in problem.what for problem in Gvisor().check(Asked()))


@pytest.mark.machine
@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ("exit 0", ""),
        ("echo first >&2; echo cannot create a vCPU >&2; exit 128", "it ended with code 128: cannot create a vCPU"),
        ("setsid sleep 3609 & sleep 3609", "it had not ended after 5 s"),
    ],
)
def test_whether_the_sentry_runs_under_this_kvm_is_tried(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: str, told: str
) -> None:
    """By a stand-in of runsc; whatever it has started ends with the trial, in a session of its own too."""
    monkeypatch.setenv("VIRTOLL_STATE", str(tmp_path / "state"))
    stub = tmp_path / "runsc"
    stub.write_text(f"#!/bin/sh\n{runs}\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTOLL_TRIED", str(tmp_path))
    problem = gvisor.trial_problem(host, "runsc", limit_s=5 if "5 s" in told else 600)
    assert (problem.what if problem else "").endswith(told)
    assert list((tmp_path / "state").glob("runsc-*")) == []
    assert problem is None or 'system_calls = "ptrace"' in problem.remedy
    mark = f"VIRTOLL_TRIED={tmp_path}".encode()
    assert [pid for pid in processes() if pid != os.getpid() and mark in environment(pid)] == []


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has just ended
        return []


def test_a_sentry_that_is_built_has_a_version_of_its_own() -> None:
    """A run may have one that is installed, too: of one name, the last told would be the run's."""
    (told,) = Gvisor(GvisorSettings(runsc="built")).versions(LocalHost()).items()
    version = next(line for line in gvisor.program().modules.splitlines() if "gvisor.dev/gvisor" in line).split()[1]
    assert told == ("runsc (built)", f"built of gvisor.dev/gvisor {version} by Go 1.26.8")


def test_what_only_a_trial_shows_of_a_sentry_under_kvm(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Problem("it hangs", "here", "-")
    monkeypatch.setattr(gvisor, "trial_problem", lambda _host, _runsc: tried)
    assert Gvisor().try_out(LocalHost()) == []
    assert Gvisor().untried(LocalHost()) == ""
    under_kvm = Gvisor(GvisorSettings(system_calls="kvm"))
    assert under_kvm.try_out(LocalHost()) == [tried]
    assert under_kvm.untried(LocalHost()) == "whether the Sentry runs under this KVM"


def test_a_sentry_under_kvm_needs_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gvisor, "device_problem", lambda _host: Problem("there is no /dev/kvm", "here", "modprobe it"))
    told = Gvisor(GvisorSettings(system_calls="kvm")).check(LocalHost())
    assert Problem("there is no /dev/kvm", "here", 'modprobe it; or set system_calls = "ptrace"') in told
    assert not any("kvm" in problem.what for problem in Gvisor().check(LocalHost()))


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("<BROADCAST,MULTICAST,NOARP,UP,LOWER_UP>", "neigh replace 198.18.3.1 lladdr 02:76:74:00:03:10 dev eth0"),
        ("<BROADCAST,MULTICAST,UP,LOWER_UP>", ""),
    ],
)
def test_a_network_stack_that_takes_a_link_over_is_told_its_neighbour_where_there_is_no_arp(
    tmp_path: Path, flags: str, told: str
) -> None:
    """A stand-in of `ip` that shows a link, and writes down what else it is asked for."""
    stub = f'#!/bin/sh\n[ "$1" = link ] && echo "2: eth0@if3: {flags} mtu 1500" || echo "$@" >>{tmp_path}/asked\n'
    (tmp_path / "ip").write_text(stub)
    (tmp_path / "ip").chmod(0o755)
    words = ["sh", "-e", "-c", veth._TELL_NEIGHBOUR, "sh", "198.18.3.1", "02:76:74:00:03:10"]
    LocalHost().run(words, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    asked = tmp_path / "asked"
    assert (asked.read_text() if asked.exists() else "").removesuffix(" nud permanent\n") == told
