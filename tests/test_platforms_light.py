"""Bubblewrap, systemd-nspawn and the OpenVZ profile, as far as no machine is needed: what they are told, and when."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.errors import PlatformError
from virtoll.hosts import cgroup, programs
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.base import Completed
from virtoll.hosts.cgroup import Cgroup, Hierarchies, namesakes
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.local import LocalHost
from virtoll.images import loop
from virtoll.lab import requirements
from virtoll.networks import venet
from virtoll.networks.wires import Link
from virtoll.platforms import lxc, nspawn
from virtoll.platforms.base import Platform
from virtoll.platforms.bubblewrap import Bubblewrap, sandbox
from virtoll.platforms.groups import Groups
from virtoll.platforms.nspawn import Nspawn, container, read_only_cgroups
from virtoll.platforms.openvz_profile import OpenvzProfile, OpenvzProfileSettings, beancounters, cpu_weight
from virtoll.platforms.stdio import SERVE
from virtoll.study.limits import Budget, Limits

LIMITS = Limits(memory_bytes=256 * 1024**2, pids=64)
ROOT = Path("/lab/instance/root")


@pytest.mark.parametrize(
    ("platform", "program", "package"),
    [
        (Bubblewrap(), "bwrap", "bubblewrap"),
        (Nspawn(), "systemd-nspawn", "systemd-container"),
        (OpenvzProfile(), "lxc-start", "lxc"),
    ],
)
def test_the_debian_package_that_is_missing_is_named(
    platform: Platform, program: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None if name == program else f"/usr/bin/{name}")
    missing = {problem.what: problem.remedy for problem in platform.check(LocalHost())}
    assert missing[f"{program} is not installed"] == f"apt-get install {package}"


@pytest.mark.parametrize(
    ("loaded", "strips"),
    [
        ("docker-default (enforce)\nbwrap (enforce)\nunpriv_bwrap (enforce)\n", True),
        ("bwrap (enforce)\nbwrap//unpriv_bwrap (enforce)\n", True),
        ("bwrap (complain)\nunpriv_bwrap (complain)\n", False),
        ("bwrap (unconfined)\nunpriv_unshare (enforce)\n", False),
        (None, False),
    ],
)
def test_where_apparmor_takes_what_root_inside_needs_bubblewrap_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: str | None, strips: bool
) -> None:
    """Ubuntu's, since 25.04, for namespaces of users: it does not ask who starts bwrap."""
    monkeypatch.setattr(programs, "_PROFILES", tmp_path / "profiles")
    if loaded is not None:
        (tmp_path / "profiles").write_text(loaded)
    remedies = [one.remedy for one in Bubblewrap().check(LocalHost()) if "AppArmor" in one.what]
    assert [remedy.startswith("apparmor_parser -R /etc/apparmor.d/bwrap-") for remedy in remedies] == [True] * strips


def test_a_lab_that_apparmor_stands_in_the_way_of_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that we were no root, who are."""

    class Denied(LocalHost):
        def run(self, argv: Sequence[str], **_: Any) -> Completed:
            return Completed(tuple(argv), 2, b"", b"RTNETLINK answers: Operation not permitted")

    monkeypatch.setattr(programs, "_PROFILES", tmp_path / "profiles")
    (tmp_path / "profiles").write_text("unshare (enforce)\nunpriv_unshare (enforce)\n")
    remedies = [one.remedy for one in requirements.check(Denied()) if "network namespace" in one.what]
    assert remedies == ["apparmor_parser -R /etc/apparmor.d/unshare-userns-restrict"]


def test_nspawn_tells_that_it_needs_systemds_hierarchy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nspawn, "containers_need", lambda *_: [])
    monkeypatch.setattr(nspawn, "_SYSTEMDS", (tmp_path / "systemd", tmp_path / "unified"))
    versions: list[Literal[1, 2]] = [1, 2]
    for version in versions:
        monkeypatch.setattr(nspawn, "hierarchies", lambda version=version: Hierarchies(version, {}))
        problems = Nspawn().check(LocalHost())
        assert [f"name=systemd cgroup {tmp_path}/systemd" in one.remedy for one in problems] == [True] * (version == 1)
    (tmp_path / "unified").mkdir()
    monkeypatch.setattr(nspawn, "hierarchies", lambda: Hierarchies(1, {}))
    assert Nspawn().check(LocalHost()) == []


def test_root_in_bubblewrap_has_a_few_rights_and_the_agent_for_its_init() -> None:
    argv = sandbox(ROOT, LIMITS)
    assert argv[argv.index("--bind") :][:3] == ["--bind", str(ROOT), "/"]
    added = [name for flag, name in pairwise(argv) if flag == "--cap-add"]
    assert argv.index("--cap-drop") < argv.index("--cap-add")
    assert "CAP_NET_BIND_SERVICE" in added
    assert not {"CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_PTRACE", "CAP_NET_ADMIN"} & {*added}
    assert argv[argv.index("--as-pid-1") + 1 :] == [*SERVE]
    covered = [place for flag, place in zip(argv, argv[2:], strict=False) if flag == "--ro-bind"]
    assert "/proc/sys" in covered
    assert argv[argv.index("/dev/shm") - 3 : argv.index("/dev/shm")] == ["--size", str(256 * 1024**2), "--tmpfs"]


@pytest.mark.parametrize("users", [False, True])
def test_of_lxcs_locks_nothing_is_left_that_was_not_there(
    users: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of instances side by side, whichever ends last."""
    locks = tmp_path / "lxc/lock"
    monkeypatch.setattr(lxc, "_LOCKS", locks)
    if users:
        (locks / "var/lib/lxc").mkdir(parents=True)
    with ledgers.opened(LocalHost(), tmp_path / "ledger", "run") as ledger:
        lab = cast(Any, SimpleNamespace(ledger=ledger))
        first, second = lxc._locks(lab, "vt-ab12-1"), lxc._locks(lab, "vt-ab12-2")
        with first:
            second.__enter__()
        assert (locks / "vt-ab12-2").is_dir()
        second.__exit__(None, None, None)
    assert [path.name for path in locks.iterdir()] == ["var"] if users else not locks.parent.exists()


def test_nobody_comes_to_lxcs_locks_while_the_last_one_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """He would find a directory without instances of virtoll's, and take it for somebody else's: it stayed for ever."""
    monkeypatch.setattr(lxc, "_LOCKS", tmp_path / "lxc/lock")
    looked: list[str] = []

    @contextmanager
    def owning(kind: str, name: str) -> Iterator[None]:
        expect_alone(f"{kind} is noted")
        yield
        expect_alone(f"{kind} is removed")
        shutil.rmtree(name, ignore_errors=True)

    def expect_alone(when: str) -> None:
        looked.append(when)
        other = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)

    lab = cast(Any, SimpleNamespace(ledger=SimpleNamespace(owning=owning)))
    with lxc._locks(lab, "vt-ab12-1"):
        assert len(looked) == 3
    assert len(looked) == 6


def test_nspawn_covers_what_reaches_the_host_where_the_kernel_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on Debian's kernel: root inside could have written to /proc/sysrq-trigger, which stops the machine."""
    monkeypatch.setattr(nspawn, "in_proc", lambda *names: [f"/proc/{name}" for name in names])
    argv = container(ROOT, "vt-ab12-i", LIMITS, own_network=True)
    assert "--bind-ro=/dev/null:/proc/sysrq-trigger" in argv
    assert "--tmpfs=/proc/dynamic_debug:ro,size=4k" in argv


def test_nspawn_asks_nobody_and_has_a_network_of_its_own_or_the_labs() -> None:
    argv = container(ROOT, "vt-ab12-i", LIMITS, own_network=True)
    assert {"--register=no", "--keep-unit", "--private-network", "--console=pipe"} <= {*argv}
    assert "--private-network" not in container(ROOT, "vt-ab12-i", LIMITS, own_network=False)
    (dropped,) = [one for one in argv if one.startswith("--drop-capability=")]
    assert {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_MKNOD"} <= {*dropped.partition("=")[2].split(",")}


def test_nspawn_gives_services_the_images_directories_in_run(tmp_path: Path) -> None:
    for name in ("postgresql", "a:b", "c\\d", "host"):
        (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run/file").touch()
    (tmp_path / "run/link").symlink_to("/etc")
    kept = nspawn._directories(tmp_path / "run")
    assert kept == ["a:b", "c\\d", "postgresql"]
    argv = container(ROOT, "n", LIMITS, own_network=True, kept=kept)
    assert [one.partition("=")[2] for one in argv if one.startswith("--bind=")] == [
        "/run/image/a\\:b:/run/a\\:b",
        "/run/image/c\\\\d:/run/c\\\\d",
        "/run/image/postgresql:/run/postgresql",
    ]
    (tmp_path / "elsewhere").symlink_to(tmp_path / "run")
    assert nspawn._directories(tmp_path / "elsewhere") == []
    assert nspawn._directories(tmp_path / "missing") == []


@given(st.text(min_size=1))
def test_a_name_of_the_images_stays_one_word_for_nspawn(name: str) -> None:
    """It splits at colons that no backslash is before, and takes those away (extract_many_words)."""
    words, word, rest = [], "", iter(nspawn._escaped(name))
    for character in rest:
        if character == ":":
            words.append(word)
            word = ""
        else:
            word += next(rest) if character == "\\" else character
    assert [*words, word] == [name]


@pytest.mark.parametrize("version", [1, 2])
def test_no_cgroup_is_roots_to_write_in_nspawn(version: Literal[1, 2]) -> None:
    payload = Cgroup("virtoll/ab12/i/payload", Hierarchies(version, {"cpu": Path("/sys/fs/cgroup")}))
    options = read_only_cgroups(payload)
    if version == 2:
        assert options == ["--bind-ro=/sys/fs/cgroup/virtoll/ab12/i/payload:/sys/fs/cgroup"]
    else:
        assert [one.partition(":")[0] for one in options] == [
            "--tmpfs=/sys/fs/cgroup",
            "--tmpfs=/sys/fs/cgroup/systemd",
        ]
        assert ":ro" in options[1]
    assert nspawn._environment(version)["SYSTEMD_NSPAWN_UNIFIED_HIERARCHY"] == str(version - 1)


def test_namesakes_are_made_where_no_limit_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, systemd, unified = (tmp_path / name for name in ("cpu", "systemd", "unified"))
    for root in (cpu, systemd, unified):
        root.mkdir()
    monkeypatch.setattr(cgroup, "_all_roots", lambda: (cpu, systemd, unified))
    group = Cgroup("virtoll/ab12/i", Hierarchies(1, {"cpu": cpu}))
    assert namesakes(group) == (systemd / group.name / "cgroup.procs", unified / group.name / "cgroup.procs")
    assert (systemd / group.name).is_dir()
    assert not (cpu / "virtoll").exists()
    assert namesakes(replace(group, hierarchies=Hierarchies(2, dict.fromkeys(("cpu", "memory"), cpu)))) != ()
    monkeypatch.setattr(cgroup, "_all_roots", lambda: (cpu,))
    assert namesakes(group) == ()


def test_an_instance_that_has_ended_at_once_is_no_crash(tmp_path: Path) -> None:
    """Between its agent's first answer and its wiring: by memory, say, which its own start was charged."""
    payload = Cgroup("virtoll/ab12/i/payload", Hierarchies(2, {"cpu": tmp_path}))
    groups = Groups(payload, payload, payload, frozenset({0}))
    (tmp_path / payload.name).mkdir(parents=True)
    procs = tmp_path / payload.name / "cgroup.procs"
    procs.write_text("17\n23\n")
    assert groups.pid_inside() == 17
    procs.write_text("")
    with pytest.raises(PlatformError, match="has ended"):
        groups.pid_inside()


def test_openvzs_units_are_the_kernels() -> None:
    default = OpenvzProfileSettings().cpuunits
    assert cpu_weight(1, default) == ("cpu.shares", "1024")  # the kernel's own default, on both versions
    assert cpu_weight(2, default) == ("cpu.weight", "100")
    for cpuunits in (10, 100_000):  # as far as a study file may go
        assert 2 <= int(cpu_weight(1, cpuunits)[1]) <= 262_144
        assert 1 <= int(cpu_weight(2, cpuunits)[1]) <= 10_000
    assert beancounters(LIMITS) == {"physpages": 65_536, "swappages": 0, "numproc": 64}


@pytest.mark.parametrize("version", [1, 2])
def test_openvzs_units_leave_an_instance_first_where_it_shares_the_generators_cpus(
    tmp_path: Path, version: Literal[1, 2]
) -> None:
    whole = Cgroup("virtoll/ab12/i", Hierarchies(version, {"cpu": tmp_path}))
    groups = Groups(whole, whole, whole, frozenset({0}))
    file, ours = cpu_weight(version, OpenvzProfileSettings().cpuunits)
    (tmp_path / whole.name).mkdir(parents=True)
    for budget, weight in (("vcpus", "first"), ("inclusive", ours)):
        (tmp_path / whole.name / file).write_text("first")
        told = OpenvzProfile().limit_further(groups, replace(LIMITS, budget=cast(Budget, budget)))
        assert (tmp_path / whole.name / file).read_text() == weight
        assert told["beancounters"] == beancounters(LIMITS)


def test_another_weight_than_the_first_ones_is_refused_where_an_instance_must_be_first() -> None:
    heavy, vcpus = OpenvzProfile(OpenvzProfileSettings(cpuunits=2000)), replace(LIMITS, budget="vcpus")
    (problem,) = heavy.lacks(LocalHost(), vcpus)
    assert problem.where == "cpuunits"
    assert 'budget = "inclusive"' in problem.remedy
    assert heavy.lacks(LocalHost(), LIMITS) == OpenvzProfile().lacks(LocalHost(), vcpus) == []


def test_a_copied_disk_is_on_the_hosts_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins of the three programs write down who was called, on what: nothing of it is left to be written back."""
    for name in ("cp", "sync", "mount"):
        (tmp_path / name).write_text(f'#!/bin/sh\nfor last; do :; done; echo {name} "$last" >>{tmp_path}/called\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    host, directory = LocalHost(), tmp_path / "instance"
    with (
        closing(Ledger(host, tmp_path / "ledger/run.jsonl").open()) as ledger,
        loop.mounted_copy(host, ledger, tmp_path / "base.ext4", directory) as root,
    ):
        pass
    disk = directory / "disk.ext4"
    assert (tmp_path / "called").read_text().splitlines() == [f"cp {disk}", f"sync {disk}", f"mount {root}"]


def test_both_ends_of_a_venet_have_one_address_and_ask_for_none() -> None:
    link = Link(3)
    commands = venet.commands("veth", link)
    assert commands[-2:] == [
        f"link set {link.host_side} address {link.instance_mac} arp off",
        f"link set {link.instance_side} arp off",
    ]
    assert any(command.startswith(f"route add {link.address}/32") for command in commands)


def test_nspawn_gives_its_payload_the_limits_that_we_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda what: (100, -1))
    argv = container(ROOT, "n", LIMITS, own_network=True)
    told = {one for one in argv if one.startswith("--rlimit=")}
    assert {"--rlimit=NOFILE=100:infinity", "--rlimit=NPROC=100:infinity"} <= told
    assert not any("OFILE" in one and "NOFILE" not in one for one in told)
