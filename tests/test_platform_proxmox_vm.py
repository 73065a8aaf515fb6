"""The driver of Proxmox VE's virtual machines against a stand-in for its programs (`proxmox_double`): no host at hand.

Here the stand-in's virtual machine is an agent behind a socket: no QEMU runs, and no link is made.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

import contract
import proxmox_double
import xen_double
from patience import PATIENT
from virtoll.errors import CommandError, HostError, PlatformError, Problem
from virtoll.hosts import ledger, proxmox
from virtoll.hosts.cgroup import Hierarchies
from virtoll.hosts.local import LocalHost
from virtoll.images import disk, kernel
from virtoll.images.kernel import Kernel
from virtoll.networks.base import network_modes
from virtoll.platforms import booted, proxmox_host, proxmox_vm, under_kvm, vhost, vm
from virtoll.platforms.base import Instance
from virtoll.platforms.proxmox_host import UNTRIED
from virtoll.platforms.proxmox_vm import ProxmoxVm, ProxmoxVmSettings, Wanted, arguments, create_options
from virtoll.platforms.qemu_command import KERNEL_ARGUMENTS
from virtoll.platforms.vm import Machine
from virtoll.run import doctor
from virtoll.run.doctor import MachineOffer, PlatformOffer
from virtoll.study.limits import Budget, Limits
from virtoll.study.values import specs_of

_MIB = 1024**2
LIMITS = Limits(vcpus=1, memory_bytes=256 * _MIB + 5, disk_bytes=512 * _MIB)
_V2 = Hierarchies(2, dict.fromkeys(("cpu", "cpuset", "memory", "pids"), Path("/c")))
WANTED = Wanted(
    number=912_345_678,
    limits=replace(LIMITS, vcpus=2),
    settings=ProxmoxVmSettings(storage="s"),
    kernel=Kernel(Path("/k/vmlinuz"), Path("/k/initramfs.cpio"), "6.1.0", "0" * 64),
    disk=Path("/c/disk.ext4"),
    cpus=frozenset({3, 1}),
    mac="02:76:74:00:03:10",
    console=Path("/proc/1/fd/9"),
)


@dataclass
class Place:
    """Where the stand-in keeps its virtual machines, and what the driver did beside it."""

    state: Path
    directory: Path
    pinned: list[tuple[list[int], frozenset[int]]]

    def calls(self, program: str = "qm") -> list[list[str]]:
        """What a program was called with, so far."""
        return [call[1:] for call in proxmox_double.calls(self.state) if call[0] == program]

    def machines(self) -> list[str]:
        """Those there are."""
        return [path.stem for path in (self.state / "pve/qemu-server").iterdir()]

    @contextmanager
    def deployed(self, limits: Limits = LIMITS, **settings: Any) -> Iterator[Instance]:
        """An instance, by the driver."""
        platform = ProxmoxVm(ProxmoxVmSettings(**settings))
        with xen_double.deployed(self.directory, platform, limits) as instance:
            yield instance

    def nothing_is_left(self) -> None:
        """Neither of Proxmox's nor in a ledger."""
        assert self.machines() == []
        assert [*(self.state / "volumes").iterdir()] == []
        assert [*(self.state / "run").iterdir()] == []
        assert not (self.directory / "ledger").exists() or [*(self.directory / "ledger").iterdir()] == []


def without_a_lab(patch: pytest.MonkeyPatch, state: Path, directory: Path) -> list[tuple[list[int], frozenset[int]]]:
    """Let the driver run on the stand-in: no links, no kernel's threads, no disk of a real image's; who was pinned."""
    pinned: list[tuple[list[int], frozenset[int]]] = []
    files = {name: directory / name for name in ("vmlinuz", "initramfs", "disk.ext4")}
    for path in files.values():
        path.write_bytes(b"x")
    known = kernel.Kernel(files["vmlinuz"], files["initramfs"], "6.1.0", "0" * 64)
    for name in ("guest_kernel", "kept_kernel"):
        patch.setattr(kernel, name, lambda *_: known)
    for name, script in (("ip", f'echo "[\\"ip\\", \\"$*\\"]" >>{state}/calls; cat >/dev/null'), ("sync", "true")):
        (state / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (state / "bin" / name).chmod(0o755)
    patch.setenv("PATH", f"{state / 'bin'}:{os.environ['PATH']}")
    patch.setattr(proxmox, "CLUSTER", state / "pve")
    patch.setattr(proxmox, "RUNNING", state / "run")
    patch.setattr(proxmox_host, "hierarchies", lambda: _V2)
    patch.setattr(proxmox_host, "processes", lambda _where, group: pids_of(state, group))
    for kept in ("_kinds", "_versions"):
        patch.setattr(proxmox_host, kept, {})
    patch.setattr(disk, "ext4", lambda *_: files["disk.ext4"])
    patch.setattr(under_kvm, "exits", lambda _pid: {"kvm.exits": Path("/exits-of-its-qemu")})
    patch.setattr(vhost, "take_in", lambda _pid, group: {70: f"vhost-of-{group.name}"})
    patch.setattr(proxmox_vm, "pin", lambda threads, cpus: pinned.append((threads, cpus)))
    return pinned


def pids_of(state: Path, group: str) -> list[int]:
    """Who would be in a control group of Proxmox's."""
    (number,) = re.findall(r"^qemu\.slice/(\d+)\.scope$", group)
    return [json.loads((state / f"run/{number}.json").read_text())["pid"]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    state = tmp_path / "p"
    proxmox_double.install(state, namespaces=False)
    yield Place(state, tmp_path, without_a_lab(monkeypatch, state, tmp_path))
    for path in (state / "run").glob("*.json"):  # of a test that failed
        os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)


def test_a_machine_is_made_limited_wired_let_go_reached_and_destroyed(place: Place) -> None:
    with place.deployed() as instance:
        (number,) = place.machines()
        assert 900_000_000 <= int(number) <= 999_999_999
        assert instance.is_running()
        done = instance.agent.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
        assert instance.accounting.cgroup == f"qemu.slice/{number}.scope"
        assert (instance.accounting.parts, instance.accounting.is_disk_elsewhere) == ({}, True)
        assert instance.accounting.counters == {"kvm.exits": Path("/exits-of-its-qemu")}
        assert {
            name: instance.facts[name] for name in ("accelerator", "proxmox", "machine_type", "disk_cache", "disk_io")
        } == {
            "accelerator": "kvm",
            "proxmox": "8.4.1",
            "machine_type": "pc+pve1",
            "disk_cache": "none",
            "disk_io": "native",
        }
        assert instance.facts["vhost_threads"] == [f"vhost-of-qemu.slice/{number}.scope"]
        assert instance.facts["untried"] == UNTRIED
        assert instance.facts["argv"][-2:] == ["-machine", "hpet=off,type=pc+pve1"]
        lines = (place.state / f"pve/qemu-server/{number}.conf").read_text().splitlines()
        known = dict(line.split(": ", 1) for line in lines[1:])
        assert lines[0] == "#virtoll, run abcd: instance"
        assert {name: known[name] for name in ("memory", "balloon", "cores", "cpulimit", "affinity", "cpu")} == {
            "memory": "256",
            "balloon": "0",
            "cores": "1",
            "cpulimit": "1",
            "affinity": "1",
            "cpu": "host",
        }
        assert not [line for line in lines if re.match(r"net\d", line)], "no device of Proxmox's own"
        assert re.fullmatch(r"virtoll-[0-9a-f]{16}", known["tags"])
        assert place.pinned == [([70], frozenset({1}))]
    assert b"a kernel's message" in (place.directory / "instance/console.log").read_bytes()
    place.nothing_is_left()
    verbs = [call[0] for call in place.calls()]
    assert verbs == ["create", "start", "resume", "status", "stop", "destroy"]


def test_the_tap_is_the_labs_before_the_guest_is_let_go(place: Place) -> None:
    with place.deployed():
        (number,) = place.machines()
        told = [
            call
            for call in proxmox_double.calls(place.state)
            if call[0] == "ip" or call[1:2] in (["start"], ["resume"])
        ]
        assert told[1] == ["ip", f"link set vt{number} netns vt-abcd-s name vt0"]
        assert told[2][0] == "ip"
        assert "-batch" in told[2][1]
        assert [call[1] for call in (told[0], told[3])] == ["start", "resume"]


@pytest.mark.parametrize(
    ("budget", "told", "pinned"),
    [
        ("inclusive", {"affinity": "1", "cpulimit": "1"}, [([70], {1})]),
        ("vcpus", {"affinity": "0,1"}, [([71], {1}), ([70], {0})]),
    ],
)
def test_helpers_are_within_the_quota_or_on_the_generators_cpus(
    place: Place, monkeypatch: pytest.MonkeyPatch, budget: Budget, told: dict[str, str], pinned: Any
) -> None:
    monkeypatch.setattr(proxmox_vm, "vcpu_threads", lambda _pid: [71])
    with place.deployed(replace(LIMITS, budget=budget)):
        (number,) = place.machines()
        known = proxmox.parse_configuration((place.state / f"pve/qemu-server/{number}.conf").read_text())
        assert {name: known[name] for name in ("affinity", "cpulimit") if name in known} == told
    assert place.pinned == pinned


def test_a_qemu_whose_vcpus_cannot_be_told_is_refused(place: Place) -> None:
    told = "0 threads of vCPUs by their names, and not 1"
    with pytest.raises(PlatformError, match=told), place.deployed(replace(LIMITS, budget="vcpus")):
        pass
    place.nothing_is_left()


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("create", "unable to create VM 105 - no space left on volume group"),
        ("start", "start failed: QEMU exited with code 1"),
        ("resume", "VM 105 not running"),
    ],
)
def test_what_fails_is_told_in_proxmoxs_words_and_nothing_is_left(place: Place, verb: str, said: str) -> None:
    proxmox_double.tell(place.state, fails={verb: (255, said)})
    with pytest.raises(PlatformError) as raised, place.deployed():
        pass
    assert said in raised.value.problem.what
    assert raised.value.problem.remedy
    place.nothing_is_left()


def test_what_qemu_says_where_it_does_not_start_is_told(place: Place) -> None:
    (place.directory / "vmlinuz").unlink()
    with pytest.raises(PlatformError, match=r"could not open .*vmlinuz"), place.deployed():
        pass
    place.nothing_is_left()


def test_a_guest_that_ends_is_told_with_its_last_words(place: Place) -> None:
    proxmox_double.tell(place.state, guest="panics")
    with pytest.raises(PlatformError, match=r"(?s)the guest ended; .*Kernel panic") as raised, place.deployed():
        pass
    assert "exit code" not in raised.value.problem.what, "its parent alone is told that"
    place.nothing_is_left()


def test_one_that_dies_is_noticed(place: Place) -> None:
    with place.deployed() as instance:
        (path,) = (place.state / "run").glob("*.json")
        pid = json.loads(path.read_text())["pid"]
        with instance.stopped():
            while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.001)  # a thread at a time
        os.kill(pid, signal.SIGKILL)
        contract.has_ended(instance)
    place.nothing_is_left()


def test_one_that_was_killed_while_qm_made_it_is_destroyed_with_its_disk(place: Place) -> None:
    proxmox_double.tell(place.state, fails={"killed": [0, ""]})
    with pytest.raises(PlatformError, match="qm create ended with -9"), place.deployed():
        pass
    assert [call[0] for call in place.calls()] == ["create", "unlock", "status", "destroy"]
    place.nothing_is_left()


_HOLD = f"""{PATIENT}
import sys, time
from pathlib import Path
import pytest
import test_platform_proxmox_vm as t

state, directory = Path(sys.argv[1]), Path(sys.argv[2])
with pytest.MonkeyPatch.context() as patch:
    pinned = t.without_a_lab(patch, state, directory)
    with t.Place(state, directory, pinned).deployed():
        print("up", flush=True)
        time.sleep(600)
"""


def test_clean_removes_what_a_killed_virtoll_left(place: Place) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", _HOLD, str(place.state), str(place.directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"up\n"
        victim.kill()
    (number,) = place.machines()
    assert (place.state / f"run/{number}.virtoll").exists()
    (removed,) = ledger.clean(LocalHost(), place.directory / "ledger")
    assert removed.startswith(f"proxmox-vm {number}/virtoll-")
    place.nothing_is_left()


GUEST = proxmox.Guest(912_345_678, "virtoll-0123456789abcdef")


@pytest.mark.parametrize(
    "text", ["tags: theirs\nname: x\n", "name: x\n", "name: x\n[snap]\ntags: virtoll-0123456789abcdef\n"]
)
def test_a_number_that_became_somebody_elses_is_left_alone(place: Place, text: str) -> None:
    path = place.state / f"pve/qemu-server/{GUEST.number}.conf"
    path.write_text(text)
    container = place.state / f"pve/lxc/{GUEST.number}.conf"
    container.write_text(f"tags: {GUEST.tag}\n")  # which is none of this kind
    proxmox.remove_machine(LocalHost(), GUEST.name)
    assert path.read_text() == text
    assert container.exists()
    assert not (place.state / "calls").exists()
    with (
        ledger.opened(LocalHost(), place.directory / "ledger", "t") as kept,
        pytest.raises(HostError, match="exists already"),
        kept.owning("proxmox-vm", GUEST.name),
    ):
        pass


def test_a_disk_that_qm_could_not_remove_is_told(place: Place) -> None:
    """That is a warning of qm's alone, which ends with 0: the machine counted as gone, and its disk stayed unseen."""
    disk_name = f"vm-{GUEST.number}-disk-0"
    path = place.state / f"pve/qemu-server/{GUEST.number}.conf"
    path.write_text(f"tags: {GUEST.tag}\nvirtio0: local-lvm:{disk_name},size=1M\n")
    (place.state / "volumes" / disk_name).mkdir()
    proxmox_double.tell(place.state, fails={"free": (0, "lvremove: Logical volume in use.")})
    with pytest.raises(CommandError, match=r"has left a disk: .*Logical volume in use\.") as raised:
        proxmox.remove_machine(LocalHost(), GUEST.name)
    assert raised.value.problem.remedy == f"pvesm free local-lvm:{disk_name}"


# -- what it is told ------------------------------------------------------------------------------------------------


def test_options_are_in_proxmoxs_units() -> None:
    told = create_options(WANTED)
    options = dict(zip(told[::2], told[1::2], strict=True))
    assert shlex.split(options.pop("--args")) == arguments(WANTED)
    assert options == {
        "--name": "instance",
        "--ostype": "l26",
        "--kvm": "1",
        "--cpu": "host",
        "--sockets": "1",
        "--cores": "2",
        "--numa": "0",
        "--affinity": "1,3",
        "--cpulimit": "2",
        "--memory": "256",
        "--balloon": "0",
        "--virtio0": "s:0,import-from=/c/disk.ext4,cache=none,aio=native",
        "--vga": "none",
        "--tablet": "0",
        "--agent": "0",
        "--reboot": "0",
        "--onboot": "0",
    }
    outside = create_options(replace(WANTED, limits=replace(LIMITS, budget="vcpus")))
    assert "--cpulimit" not in outside


@pytest.mark.parametrize(
    ("cache", "aio"),
    [
        ("none", "native"),
        ("directsync", "native"),
        ("writeback", "threads"),
        ("writethrough", "threads"),
        ("unsafe", "threads"),
    ],
)
def test_no_ring_of_the_kernels_reads_its_disk(cache: Any, aio: str) -> None:
    """Its threads keep to no CPU's of QEMU's, before Linux 6.12."""
    told = create_options(replace(WANTED, settings=ProxmoxVmSettings(cache=cache)))
    assert told[told.index("--virtio0") + 1].endswith(f",cache={cache},aio={aio}")


def test_the_guest_waits_and_has_the_kernel_and_the_ports_that_every_guest_has() -> None:
    told = arguments(WANTED)
    assert told[0] == "-S"
    pairs = list(zip(told[1::2], told[2::2], strict=True))
    assert ("-append", " ".join(KERNEL_ARGUMENTS)) in pairs
    assert ("-kernel", "/k/vmlinuz") in pairs
    (netdev,) = [value for name, value in pairs if name == "-netdev"]
    assert "ifname=vt912345678,script=no,downscript=no,vhost=on" in netdev
    assert len(WANTED.link) < 16, "the kernel's bound (IFNAMSIZ)"
    devices = [value for name, value in pairs if name == "-device"]
    assert [value.partition(",")[0] for value in devices] == ["virtio-serial-pci", "virtserialport", "virtio-net-pci"]
    assert devices[1].endswith("name=virtoll.agent")
    assert f"mac={WANTED.mac}" in devices[2]
    assert len(str(proxmox.agent_socket(999_999_999))) <= 107


def test_a_qemu_that_is_elsewhere_or_untold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cost would be looked for in vain."""
    monkeypatch.setattr(proxmox, "RUNNING", tmp_path)
    monkeypatch.setattr(proxmox_host, "processes", lambda _where, _group: [8])
    group = cast(Any, xen_double.GroupDouble("qemu.slice/105.scope"))
    with pytest.raises(PlatformError, match="nothing tells which process QEMU is"):
        proxmox_vm.monitor(105, group)
    for text, is_there in (("7\n", False), ("8\n", True), ("x", False)):
        (tmp_path / "105.pid").write_text(text)
        if is_there:
            assert proxmox_vm.monitor(105, group) == 8
        else:
            with pytest.raises(PlatformError, match=r"QEMU is process 7, and in control group .* \[8\]|nothing tells"):
                proxmox_vm.monitor(105, group)
    assert proxmox_vm.command_line(2**22 + 1) == []


def test_threads_of_vcpus_are_known_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in ((7, "kvm"), (8, "CPU 0/KVM"), (9, "CPU 1/KVM"), (10, "vhost-7"), (11, "CPU 0/TCG")):
        (tmp_path / f"7/task/{number}").mkdir(parents=True)
        (tmp_path / f"7/task/{number}/comm").write_text(f"{name}\n")
    (tmp_path / "7/task/12").mkdir()  # which has just ended
    monkeypatch.setattr(proxmox, "PROC", tmp_path)
    assert sorted(proxmox_vm.vcpu_threads(7)) == [8, 9]


def test_a_process_that_has_ended_is_told_from_one_that_runs(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process, proxmox_vm.watched(process.pid) as seen:
        assert seen.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            seen.wait(0.001)
        seen.send_signal(signal.SIGKILL)
        assert seen.wait(600) == seen.poll() == 0
        assert seen.returncode is None
        process.wait()
        seen.send_signal(signal.SIGKILL)  # nobody is hit
        with ExitStack() as logs:
            machine = Machine("QEMU", seen, cast(Any, None), frozenset(), tmp_path, logs)
            with (
                pytest.raises(PlatformError, match=r"^.*the guest ended; neither the guest nor QEMU"),
                vm.explained(machine),
            ):
                raise HostError("x")
    with pytest.raises(PlatformError, match="QEMU has ended at once"), proxmox_vm.watched(process.pid):
        pass


def test_a_socket_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxmox_vm, "_CONNECT_S", 0.05)
    with pytest.raises(PlatformError, match="offers no way to the agent: No such file"):
        proxmox_vm.connected(tmp_path / "none")
    with pytest.raises(PlatformError, match="offers no way to the agent: AF_UNIX path too long"):
        proxmox_vm.connected(tmp_path / ("x" * 120))


@pytest.mark.parametrize(
    ("name", "value"), [("storage", "a,format=qcow2"), ("storage", "-h"), ("cpu", "host,+svm"), ("cpu", "")]
)
def test_no_setting_brings_in_further_options(name: str, value: str) -> None:
    """They stand in lists of Proxmox's own, whose separator is a comma."""
    spec = specs_of("arm", ProxmoxVmSettings)[name]
    assert spec.parse("local-zfs" if name == "storage" else "x86-64-v2-AES")
    with pytest.raises(ValueError, match="must be the name of a"):
        spec.parse(value)


# -- what a host lacks ----------------------------------------------------------------------------------------------


@pytest.fixture
def ready(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A host on which all is there."""
    monkeypatch.setattr(kernel, "kernel_problem", lambda *_: None)
    monkeypatch.setattr(booted, "other_machine", lambda _host: [])
    monkeypatch.setattr(booted, "find", lambda _program: "/x")
    monkeypatch.setattr(under_kvm, "device_problem", lambda _host: None)
    monkeypatch.setattr(vhost, "problem", lambda _host: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return place


def _told(**settings: Any) -> str:
    return "\n".join(str(problem) for problem in ProxmoxVm(ProxmoxVmSettings(**settings)).check(LocalHost()))


def test_a_host_with_all_is_ready(ready: Place) -> None:
    del ready
    assert _told() == _told(storage="local-zfs") == _told(storage="btr") == ""
    versions = ProxmoxVm().versions(LocalHost())
    assert versions["pve-manager"] == "8.4.1"
    assert versions["kvm"] == "QEMU emulator version 9.2.0 (pve-qemu-kvm_9.2.0-5)"
    assert "6.1.0" in versions["kernel of proxmox-vm"]


def test_what_a_host_lacks_is_told(ready: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no storage local that may hold images" in _told(storage="local")
    proxmox_double.tell(ready.state, version="pve-manager/7.2-3/c743d6c1 (running kernel: 5.15)")
    assert "Proxmox VE 7.3 or later is needed, and this is 7.2-3" in _told()
    proxmox_double.tell(ready.state, version=proxmox_double.VERSION)
    monkeypatch.setattr(vhost, "problem", lambda _host: Problem("no vhost", "here", "mend it"))
    monkeypatch.setattr(under_kvm, "device_problem", lambda _host: Problem("there is no /dev/kvm", "here", "mend it"))
    assert "there is no /dev/kvm" in _told()
    assert "no vhost" in _told()
    monkeypatch.setattr(kernel, "kernel_problem", lambda *_: Problem("no kernel", "here", "mend it"))
    assert "no kernel" in _told()


def test_disks_that_do_not_fit_are_told(ready: Place) -> None:
    stores = {"local-lvm": {**proxmox_double.STORES["local-lvm"], "available": 1_000_000}}
    proxmox_double.tell(ready.state, stores=stores)
    assert ProxmoxVm().lacks(LocalHost(), LIMITS) == []
    assert "are 1073741824 B" in ProxmoxVm().lacks(LocalHost(), LIMITS, 2)[0].what


def test_a_machine_that_is_no_proxmox_host_is_told_so() -> None:
    (problem,) = ProxmoxVm().check(LocalHost())
    assert problem.what == "this is no Proxmox VE host: there is no qm"


def test_whoever_looks_is_told_that_it_has_not_run_on_a_live_host() -> None:
    assert "not yet run on a live host" in ProxmoxVm.summary
    assert ProxmoxVm().untried(LocalHost()) == UNTRIED
    shown = Console(file=io.StringIO(), width=120, record=True)
    offer = PlatformOffer(dict.fromkeys(network_modes(), "ready"), (), ProxmoxVm.caveat)
    doctor.show(MachineOffer({"proxmox-vm": offer}), shown)
    assert "proxmox-vm: its driver is not yet run on a live host" in shown.export_text()
