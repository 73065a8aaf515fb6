"""What a study may set of QEMU's guests: their machine, the way to their disk, who carries their packets."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import contract
from test_cgroup import group_of_living
from test_platforms_vms import KERNEL, TAP, USER, monitor_pid
from virtoll.catalogue import catalogue, features
from virtoll.errors import CommandError, PlatformError, Problem, StudyError
from virtoll.features import of_arm
from virtoll.hosts.base import Completed
from virtoll.hosts.cgroup import Cgroup
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import Lab
from virtoll.networks.base import network_modes
from virtoll.platforms import qemu, qemu_settings, under_kvm, vhost
from virtoll.platforms.booted import Booted
from virtoll.platforms.kvm import Kvm
from virtoll.platforms.qemu_command import KERNEL_ARGUMENTS, Guest, MachineType, command_line
from virtoll.platforms.qemu_settings import QemuSettings
from virtoll.platforms.qemu_tcg import QemuTcg
from virtoll.study.file import read_study
from virtoll.study.limits import Limits

# The beginning of what QEMU 7.2 prints.
MACHINES = """Supported machines are:
microvm              microvm (i386)
pc                   Standard PC (i440FX + PIIX, 1996) (alias of pc-i440fx-7.2)
pc-i440fx-7.2        Standard PC (i440FX + PIIX, 1996) (default)
q35                  Standard PC (Q35 + ICH9, 2009) (alias of pc-q35-7.2)
none                 empty machine
"""


class Told(LocalHost):
    """A machine whose QEMU answers so."""

    def __init__(self, out: str = MACHINES, err: str = "", code: int = 0) -> None:
        self.out, self.err, self.code = out, err, code
        self.asked: list[Sequence[str]] = []

    def run(self, argv: Sequence[str], **given: Any) -> Completed:
        self.asked.append(argv)
        if self.code == 124:
            raise CommandError("no end", where="here")
        assert given["check"] is False
        return Completed(tuple(argv), self.code, self.out.encode(), self.err.encode())


def problems(host: LocalHost, **settings: Any) -> list[Problem]:
    return list(qemu_settings.problems(host, QemuSettings(**settings), "kvm"))


# -- the machine --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "told"),
    [("pc", "pc"), ("q35", "q35"), ("microvm", "microvm,acpi=on,pcie=on,rtc=on")],
)
def test_the_machine_is_all_that_differs(machine: MachineType, told: str) -> None:
    """Devices and console are the same: a microvm has PCI Express and a serial line, and resets by ACPI."""
    usual = command_line(Guest("tcg", KERNEL, 1, 2**29, "disk.qcow2", TAP, 5, 7))
    other = command_line(Guest("tcg", KERNEL, 1, 2**29, "disk.qcow2", TAP, 5, 7, machine=machine))
    assert other[other.index("-machine") + 1] == told
    assert [(a, b) for a, b in zip(usual, other, strict=True) if a != b] == ([] if machine == "pc" else [("pc", told)])
    assert "-no-reboot" in other, "a guest that resets itself ends"


def test_a_machine_that_this_qemu_lacks_is_told_beforehand() -> None:
    assert problems(Told(), machine="q35") == problems(Told(), machine="microvm") == []
    (problem,) = problems(Told(MACHINES.replace("microvm ", "virt ")), machine="microvm")
    assert problem.what == "this QEMU has no machine microvm"
    assert 'machine = "pc"' in problem.remedy
    usual = Told("")
    assert problems(usual, machine="pc") == []
    assert usual.asked == [], "nothing is asked for what every QEMU has"
    assert problems(Told(code=124), machine="q35") == [], "where it does not answer, the first trial says why"


def test_a_microvm_is_not_said_to_do_what_a_pc_does() -> None:
    pc, microvm = features()["kvm"], features()["kvm:microvm"]
    assert {word for word in pc if pc[word] != microvm[word]} == {"other-systems", "live-migration", "resize"}
    assert of_arm(features(), "kvm", {"machine": "microvm"}) == ("kvm:microvm", microvm)
    assert of_arm(features(), "kvm", {"machine": "q35"}) == ("kvm", pc)


def test_an_emulated_microvm_is_refused_before_it_stands_still() -> None:
    (problem,) = QemuTcg(QemuSettings(machine="microvm")).check(LocalHost())
    assert "does not boot" in problem.what
    assert 'machine = "q35"' in problem.remedy


class _Paced(LocalHost):
    """A machine whose clock's facts are these, one look after another; the last stay."""

    def __init__(self, *facts: dict[str, Any]) -> None:
        super().__init__()
        self.where = secrets.token_hex(4)
        self.asked: list[Sequence[str]] = []
        self._facts = facts

    def run(self, argv: Sequence[str], **_given: Any) -> Completed:
        self.asked.append(argv[1:3])
        facts = self._facts[min(len(self.asked), len(self._facts)) - 1]
        return Completed(tuple(argv), 0, json.dumps({"facts": facts}).encode(), b"")


def test_a_guest_of_the_translators_is_told_the_pace_of_its_clock() -> None:
    """To 0.1 MHz, measured once; nothing where the host has no such counter, nor where KVM tells the guest itself."""
    here, elsewhere = _Paced({"tsc_khz": 2_445_402}), _Paced({})
    for _ in range(2):
        assert QemuTcg().kernel_arguments(here) == (*KERNEL_ARGUMENTS, "tsc_early_khz=2445400")
        assert QemuTcg().kernel_arguments(elsewhere) == Kvm().kernel_arguments(here) == KERNEL_ARGUMENTS
    assert here.asked == elsewhere.asked == [["probe", "clock"]] * 2
    for khz, told in ((2_447_000, "2445400"), (2_449_000, "")):
        apart = _Paced({"tsc_khz": 2_445_402}, {"tsc_khz": khz})
        assert QemuTcg().kernel_arguments(apart)[len(KERNEL_ARGUMENTS) :] == (
            (f"tsc_early_khz={told}",) if told else ()
        )


def test_kvm_is_tried_with_the_machine_that_is_asked_for(tmp_path: Path) -> None:
    """And one machine's verdict is not another's."""
    q35 = Kvm(QemuSettings(machine="q35"))
    argv = q35.trial(KERNEL, tmp_path)
    assert argv[argv.index("-machine") + 1] == "q35"
    kept = [under_kvm._verdict_path(LocalHost(), (), KERNEL, platform.tried_as()) for platform in (Kvm(), q35)]
    assert kept[0] != kept[1]


# -- the disk -----------------------------------------------------------------------------------------------------


@pytest.fixture(name="recent")
def _recent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel that has io_uring and binds its work; the path is that of its switch, which is not there."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release="6.12.0-1-amd64", nodename="here"))
    monkeypatch.setattr(qemu_settings, "_RINGS_ARE_OFF", tmp_path / "io_uring_disabled")
    return tmp_path / "io_uring_disabled"


@pytest.mark.usefixtures("recent")
@pytest.mark.parametrize("cache", ["writeback", "none"])
def test_io_uring_goes_with_any_cache(cache: Any) -> None:
    argv = command_line(Guest("kvm", KERNEL, 1, 2**28, "disk.qcow2", disk_cache=cache, disk_io="io_uring"))
    (drive,) = (word for word in argv if word.startswith("id=disk"))
    assert drive.endswith(f",cache={cache},aio=io_uring")
    assert problems(Told(), disk_io="io_uring", disk_cache=cache) == []


@pytest.mark.parametrize(
    ("disabled", "remedy"), [("1", "kernel.io_uring_disabled=0"), ("0", "liburing"), (None, "liburing")]
)
def test_where_io_uring_cannot_be_had_qemus_words_and_a_remedy_are_told(
    recent: Path, disabled: str | None, remedy: str
) -> None:
    if disabled is not None:
        recent.write_text(f"{disabled}\n")
    host = Told(
        err="qemu-system-x86_64: -blockdev driver=file: failed to init linux io_uring ring: Operation x\n", code=1
    )
    (problem,) = problems(host, disk_io="io_uring")
    assert problem.what.endswith("failed to init linux io_uring ring: Operation x")
    assert remedy in problem.remedy
    (asked,) = host.asked
    assert [asked[asked.index(option) + 1] for option in ("-machine", "-monitor")] == ["none", "stdio"]
    assert problems(Told(code=124), disk_io="io_uring") == []


def test_where_io_uring_is_switched_off_no_qemu_is_asked(recent: Path) -> None:
    """Some open the file and try the ring only when the guest first reads."""
    recent.write_text("2\n")
    host = Told()
    (problem,) = problems(host, disk_io="io_uring")
    assert problem.what == "this kernel lets nobody use io_uring"
    assert "sysctl kernel.io_uring_disabled=0" in problem.remedy
    assert host.asked == []


@pytest.mark.usefixtures("recent")
@pytest.mark.parametrize(
    ("release", "told"),
    [
        ("5.10.0-32-amd64", "in nobody's account"),
        ("5.12.0", "run on any CPU: the instance's limit does not bind it"),
        ("6.1.0-56-amd64", "run on any CPU"),
        ("6.11.11", "run on any CPU"),
        ("6.12.0", ""),
        ("7.0.1", ""),
        ("of my own", ""),
    ],
)
def test_io_uring_whose_work_is_not_booked_or_not_limited_is_refused(release: str, told: str) -> None:
    problem = qemu_settings._ring_problem(Told(), release)
    assert (problem is None) == (not told)
    assert problem is None or told in problem.what
    assert problem is None or problem.remedy.startswith("Linux 6.12 or later")


def test_what_is_asked_for_is_looked_at_once_the_rest_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Problem("mkfs.ext4 is missing", "here")
    host = Told("pc                   Standard PC\n")
    q35 = QemuTcg(QemuSettings(machine="q35"))
    monkeypatch.setattr(Booted, "check", lambda *_: [missing])
    assert q35.check(host) == [missing]
    assert host.asked == []
    monkeypatch.setattr(Booted, "check", lambda *_: [])
    assert [problem.what for problem in q35.check(host)] == ["this QEMU has no machine q35"]


# -- the packets --------------------------------------------------------------------------------------------------


def test_vhost_is_asked_for_so_that_qemu_does_not_do_without() -> None:
    argv = command_line(Guest("kvm", KERNEL, 1, 2**28, "disk.qcow2", TAP, 5, 7, vhost=True))
    assert "tap,id=net,ifname=vt0,script=no,downscript=no,vhost=on,vhostforce=on" in argv
    assert not any(
        "vhost" in word for word in command_line(Guest("kvm", KERNEL, 1, 2**28, "d", USER, 5, 7, vhost=True))
    )


@pytest.mark.parametrize(("missing", "remedy"), [(True, "modprobe vhost_net"), (False, "run as root")])
def test_a_machine_without_vhost_is_told_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool, remedy: str
) -> None:
    device = tmp_path / "vhost-net"
    if not missing:
        device.mkdir()  # which nobody can open for writing
    monkeypatch.setattr(vhost, "_DEVICE", device)
    monkeypatch.setattr(vhost, "_MODULE", tmp_path)
    (problem,) = problems(Told(), vhost=True)
    assert str(device) in problem.what
    assert remedy in problem.remedy
    assert "leave vhost out" in problem.remedy


def test_a_machine_with_vhost_is_ready_and_its_module_is_not_loaded_to_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel loads it for whoever opens the device."""
    opened = []

    def opens(path: Path, flags: int, mode: int = 0o777) -> int:
        opened.append(path)
        return opening(path, flags, mode)

    device, module, opening = tmp_path / "vhost-net", tmp_path / "module", os.open
    monkeypatch.setattr(vhost, "_DEVICE", device)
    monkeypatch.setattr(vhost, "_MODULE", module)
    monkeypatch.setattr(os, "open", opens)
    (problem,) = problems(Told(), vhost=True)
    assert problem.what == f"there is no {device}"
    device.write_text("")
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert problems(Told(), vhost=True) == []
    monkeypatch.setattr(os, "access", lambda *_: False)
    (problem,) = problems(Told(), vhost=True)
    assert problem.what == f"{device} cannot be opened: Permission denied"
    assert opened == []
    module.mkdir()
    assert problems(Told(), vhost=True) == []
    assert opened == [device]


STUDY = """\
name = "small"
[[probes]]
name = "clock"
[[arms]]
platform = "native"
[[arms]]
platform = "kvm"
network = "{network}"
vhost = {vhost}
"""


def labels(network: str, vhost: str) -> list[str]:
    study = read_study(STUDY.format(network=network, vhost=vhost), "s.toml", catalogue())
    return [entry.arm.label for entry in study.arms]


def test_vhost_without_a_tap_is_refused_when_the_study_is_read() -> None:
    assert not isinstance(QemuTcg(QemuSettings(vhost=True)).kind_in(network_modes()["bridge"]), Problem)
    with pytest.raises(StudyError) as raised:
        labels("usernet", "true")
    assert "kvm with these settings cannot be attached in mode 'usernet'" in str(raised.value)
    assert "s.toml:8" in str(raised.value)
    remedy = str(raised.value).partition("write network = ")[2]
    assert '"routed"' in remedy
    assert '"bridge"' in remedy
    assert "usernet" not in remedy
    assert labels("routed", "true")[-1] == "kvm+routed (vhost)"
    assert labels("usernet", "false")[-1] == "kvm+usernet"


def test_vhost_without_a_tap_is_refused_by_the_driver_too(tmp_path: Path) -> None:
    wanted = QemuTcg(QemuSettings(vhost=True)).deploy(cast(Any, None), cast(Any, None), Limits(), USER, tmp_path)
    with pytest.raises(PlatformError, match="choose a network mode that offers tap"), wanted:
        pass


class Group:
    """Who was moved in."""

    def __init__(self) -> None:
        self.pids = list[int]()

    def add_living(self, pids: Iterable[int]) -> list[int]:
        self.pids += pids
        return self.pids


def fake_proc(directory: Path, *processes: tuple[int, str, int], tasks: Sequence[tuple[int, str]] = ()) -> Path:
    """Processes by number, name and parent; QEMU is 700, with these threads."""
    for pid, comm, parent in (*processes, (700, "qemu-system-x86", 1)):
        (directory / str(pid)).mkdir()
        (directory / str(pid) / "comm").write_text(f"{comm}\n")
        (directory / str(pid) / "stat").write_text(f"{pid} ({comm}) S {parent} 0 0 0\n")
    for task, comm in ((700, "qemu-system-x86"), (701, "CPU 0/KVM"), *tasks):
        (directory / "700/task" / str(task)).mkdir(parents=True)
        (directory / "700/task" / str(task) / "comm").write_text(f"{comm}\n")
    (directory / "self").mkdir()
    return directory


def taken(monkeypatch: pytest.MonkeyPatch, proc: Path, group: Group | Cgroup) -> dict[int, str]:
    monkeypatch.setattr(vhost, "_PROC", proc)
    return vhost.take_in(700, cast(Cgroup, group))


def test_the_kernels_thread_is_moved_to_the_guests_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of an older kernel. Another guest's is not ours, nor is who only calls himself so."""
    others = [(801, "vhost-7001", 2), (802, "vhost-70", 2), (803, "vhost-700", 1), (804, "kvm-pit/700", 2)]
    proc = fake_proc(tmp_path, (800, "vhost-700", 2), *others)
    group = Group()
    assert taken(monkeypatch, proc, group) == {800: "vhost-700"}
    assert group.pids == [800]


def test_qemus_own_thread_is_where_qemu_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Since Linux 6.4. Its name may hold a number that is not ours: that of the machine outside of a container."""
    group = Group()
    proc = fake_proc(tmp_path, tasks=[(702, "vhost-90700"), (703, "vhost-worker")])
    assert taken(monkeypatch, proc, group) == {702: "vhost-90700"}
    assert group.pids == []


def test_where_qemu_does_without_vhost_the_deployment_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="no thread of the kernel's carries the guest's packets"):
        taken(monkeypatch, fake_proc(tmp_path, (800, "vhost-701", 2)), Group())


def test_a_thread_that_has_just_ended_is_none_that_carries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    proc = fake_proc(tmp_path / "proc", (800, "vhost-700", 2), (801, "vhost-700", 2))
    assert taken(monkeypatch, proc, group_of_living(tmp_path, monkeypatch, "800")) == {800: "vhost-700"}
    group = group_of_living(tmp_path, monkeypatch)
    with pytest.raises(PlatformError, match="no thread of the kernel's carries"):
        taken(monkeypatch, proc, group)


@pytest.mark.parametrize("budget", ["inclusive", "vcpus"])
@pytest.mark.parametrize("wanted", [True, False])
def test_who_carries_packets_is_a_helper(monkeypatch: pytest.MonkeyPatch, budget: Any, wanted: bool) -> None:
    """Not looked for where nobody asked for it; beside the vCPUs where helpers are."""
    ours, theirs = socket.socketpair()
    answers: list[dict[str, Any]] = [{"QMP": {}}, {"return": {}}, {"return": {"enabled": True, "present": True}}]
    if budget == "vcpus":
        answers.append({"return": [{"thread-id": 701}]})
    answers += [{"return": {"qemu": {"major": 7, "minor": 2, "micro": 1}, "package": ""}}, {"return": {}}]
    theirs.sendall("".join(json.dumps(answer) + "\n" for answer in answers).encode())
    pinned: list[tuple[list[int], frozenset[int]]] = []
    monkeypatch.setattr(qemu, "pin", lambda threads, cpus: pinned.append((threads, cpus)))
    monkeypatch.setattr(vhost, "take_in", lambda pid, group: {800: f"vhost-{pid}"} if group == "group" else {})
    machine = cast(Any, SimpleNamespace(process=SimpleNamespace(pid=700), group="group", cpus=frozenset({1})))
    made = Kvm(QemuSettings(vhost=wanted))
    version, carriers = made._release(machine, ours, Limits(budget=budget), frozenset({0}))
    assert version.startswith("7.2.1")
    assert carriers == ({800: "vhost-700"} if wanted else {})
    beside = [([701], frozenset({1})), ([800] if wanted else [], frozenset({0}))]
    assert pinned == (beside if budget == "vcpus" else [])
    ours.close()
    theirs.close()


# -- on this machine ----------------------------------------------------------------------------------------------

DEPLOYED: dict[str, QemuSettings] = {
    "q35": QemuSettings(machine="q35"),
    "io_uring": QemuSettings(disk_io="io_uring"),  # not on every kernel
}


@pytest.mark.machine
@pytest.mark.parametrize("settings", DEPLOYED.values(), ids=DEPLOYED)
def test_a_guest_on_another_machine_keeps_the_contract_and_ends_when_it_resets(
    lab: Lab, settings: QemuSettings
) -> None:
    platform = QemuTcg(settings)
    contract.skip_unless_ready(platform)
    image = contract.image()
    platform.prepare(lab.host, image, Limits(), lambda _line: None)
    told = pytest.raises(PlatformError, match="the guest ended")
    with told, contract.deployed(lab, image, platform) as instance:
        contract.answers(instance)
        contract.is_reached(lab, instance)
        contract.is_as_the_image_and_writes(image, instance)
        contract.disk_limit_holds(instance)
        contract.cpu_limit_holds(instance)
        monitor = monitor_pid(instance)
        held = []
        for fd in Path(f"/proc/{monitor}/fd").iterdir():
            with suppress(FileNotFoundError):  # it has just been closed
                held.append(os.readlink(fd))  # noqa: PTH115
        assert ("anon_inode:[io_uring]" in held) == (settings.disk_io == "io_uring")
        command = Path(f"/proc/{monitor}/cmdline").read_bytes().split(b"\0")
        assert command[command.index(b"-machine") + 1].startswith(settings.machine.encode())
        assert instance.facts["machine_type"] == settings.machine
        instance.agent.run(["sh", "-c", "echo c >/proc/sysrq-trigger"])
