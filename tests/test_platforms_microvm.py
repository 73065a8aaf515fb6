"""Firecracker's and Cloud Hypervisor's drivers on doubles of their programs (`vmm_double`); what is told without them.

Neither has been run on a live host yet.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import cloud_hypervisor_double
import contract
import firecracker_double
import vmm_double
import xen_double
from virtoll.agent import AgentClient, StreamError
from virtoll.errors import PlatformError, Problem
from virtoll.hosts.local import LocalHost
from virtoll.images import disk
from virtoll.images.kernel import VIRTIO_HVC, VIRTIO_MMIO, Kernel, initramfs
from virtoll.networks.base import Attachment
from virtoll.platforms import cloud_hypervisor, firecracker, under_kvm, vm, vmm_api
from virtoll.platforms.base import Instance
from virtoll.platforms.booted import silent
from virtoll.platforms.cloud_hypervisor import CloudHypervisor
from virtoll.platforms.console import LONGEST_REQUEST_BYTES, Console
from virtoll.platforms.firecracker import Firecracker
from virtoll.platforms.kvm import Kvm
from virtoll.platforms.microvm import Guest, Microvm, MicrovmSettings
from virtoll.platforms.qemu_tcg import QemuTcg
from virtoll.study.limits import Budget, Limits
from vmm_schemas import RefusalError

LIMITS = Limits(vcpus=1, memory_bytes=256 * 1024**2 + 5)
GUEST = Guest(
    Kernel(Path("/k/vmlinux"), Path("/k/initramfs.cpio"), "6.1.0", "0" * 64), 2, 256, "vt0", "02:00:00:00:00:01"
)
MONITORS: tuple[type[Microvm], ...] = (Firecracker, CloudHypervisor)
both = pytest.mark.parametrize("cls", MONITORS)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    with vmm_double.without_a_lab(monkeypatch, tmp_path) as store:
        yield store


@contextmanager
def deployed(tmp_path: Path, cls: type[Microvm], limits: Limits = LIMITS) -> Iterator[Instance]:
    with xen_double.deployed(tmp_path, cls(), limits, "tap") as instance:
        yield instance


def asked(store: Path) -> list[str]:
    """What the monitor was asked, in order."""
    return [" ".join(words[:2]) for words in vmm_double.told(store) if words[0] in ("GET", "PUT")]


# -- deployed on the doubles --------------------------------------------------------------------------------------


@both
def test_a_guest_is_made_reached_and_ended(store: Path, tmp_path: Path, cls: type[Microvm]) -> None:
    with deployed(tmp_path, cls) as instance:
        assert instance.platform == cls.name
        assert instance.is_running()
        done = instance.agent.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
        assert instance.facts["accelerator"] == "kvm"
        assert instance.facts[cls.program.replace("-", "_")] in ("1.16.1", "53.0")
        assert instance.facts["argv"][0] == cls.program
        assert len(instance.facts["requests"]) > 1
        assert (instance.accounting.cgroup, instance.accounting.meter) == ("virtoll/abcd/instance", None)
        assert instance.hosts_tasks_each == 0
    assert not instance.is_running()


@both
def test_large_answers_and_requests_pass(store: Path, tmp_path: Path, cls: type[Microvm]) -> None:
    data = os.urandom(100_000)
    with deployed(tmp_path, cls) as instance:
        instance.agent.put(str(tmp_path / "there"), data)
        assert instance.agent.get(str(tmp_path / "there")) == data


@both
def test_its_group_is_made_first_with_the_guests_memory_and_the_monitors(
    store: Path, tmp_path: Path, cls: type[Microvm]
) -> None:
    with deployed(tmp_path, cls):
        pass
    group, started = (words for words in vmm_double.told(store) if words[0] in ("cgroup", cls.program))
    assert group[1] == "virtoll/abcd/instance"
    assert group[2]["memory_bytes"] == LIMITS.memory_bytes + Kvm.overhead_bytes, "no more than QEMU's"
    assert (group[2]["cpus"], group[2]["cpu_quota"]) == ([1], 1.0)
    assert started[0] == cls.program


@both
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_vcpus_run_apart_from_the_monitor_where_the_budget_is_theirs(
    store: Path, tmp_path: Path, cls: type[Microvm]
) -> None:
    with deployed(tmp_path, cls, replace(LIMITS, budget="vcpus")) as instance:
        (monitor,) = monitors(store)
        where = {}
        for task in Path(f"/proc/{monitor}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # that of a request which has just been answered
                where[(task / "comm").read_text().strip()] = os.sched_getaffinity(int(task.name))
        assert instance.is_running()
    assert where.pop(f"{cls.vcpu_threads}0") == {1}
    assert set(map(frozenset, where.values())) == {frozenset({0})}


@both
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
@pytest.mark.parametrize(("budget", "first"), [("inclusive", []), ("vcpus", ["virtoll/abcd/instance"])])
def test_a_monitor_whose_threads_stand_on_the_generators_cpus_goes_first_as_containers_helpers_do(
    store: Path, tmp_path: Path, cls: type[Microvm], budget: Budget, first: list[str]
) -> None:
    """A guest's disk and network waited for the generator with budget "vcpus", and no container's helpers did."""
    with deployed(tmp_path, cls, replace(LIMITS, budget=budget)):
        pass
    assert [words[1] for words in vmm_double.told(store) if words[0] == "first"] == first


@both
def test_what_the_guests_kernel_says_is_kept_and_what_the_agent_says_is_not(
    store: Path, tmp_path: Path, cls: type[Microvm]
) -> None:
    with deployed(tmp_path, cls) as instance:
        assert instance.agent.run(["true"]).returncode == 0
    log = (tmp_path / "instance/console.log").read_bytes()
    assert b"a kernel's message" in log
    assert b'"ok"' not in log
    assert b"Running Firecracker" not in log


def test_what_firecrackers_guest_says_while_nobody_reads_is_not_lost(store: Path, tmp_path: Path) -> None:
    """Its standard output does not block: what a full pipe does not take is gone, be it the agent's answer."""
    (store / "guest").write_text("floods")
    with deployed(tmp_path, Firecracker) as instance:
        assert instance.agent.run(["true"]).returncode == 0
    assert b"the last of it" in (tmp_path / "instance/console.log").read_bytes()


@both
def test_a_killed_monitor_is_noticed(store: Path, tmp_path: Path, cls: type[Microvm]) -> None:
    told = pytest.raises(PlatformError, match="the guest ended")
    with told, deployed(tmp_path, cls) as instance:
        (monitor,) = monitors(store)
        os.kill(monitor, signal.SIGKILL)
        with pytest.raises(StreamError):
            instance.agent.facts()
        instance.agent.facts()


def expect_none_left(store: Path) -> None:
    """A monitor is waited for; what a double made of itself, as its guest, dies with it, and nobody waits for that."""
    for _ in range(60_000):
        if not monitors(store):
            return
        time.sleep(0.01)
    raise AssertionError(monitors(store))


def monitors(store: Path) -> list[int]:
    """The processes of the doubles with this store."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(store).encode() in process.read_bytes().split(b"\0"):
                found.append(int(process.parent.name))
        except OSError:
            continue
    return found


@both
def test_a_panic_is_told_with_the_consoles_last_lines(store: Path, tmp_path: Path, cls: type[Microvm]) -> None:
    """Cloud Hypervisor would boot the guest anew, which nobody asked for."""
    with (
        pytest.raises(PlatformError, match=r"(?s)the guest ended.*sysrq triggered crash"),
        deployed(tmp_path, cls) as instance,
    ):
        instance.agent.run(["sh", "-c", "echo c >/proc/sysrq-trigger"])
    expect_none_left(store)


@both
def test_a_panic_while_nobody_listens_is_told_by_the_next_request(
    store: Path, tmp_path: Path, cls: type[Microvm]
) -> None:
    told = pytest.raises(PlatformError, match=r"(?s)the guest ended.*sysrq triggered crash")
    with told, deployed(tmp_path, cls) as instance:
        panic_unheard(instance.agent)
        instance.agent.facts()
    expect_none_left(store)


def panic_unheard(agent: Any) -> None:
    """Have a guest panic, and wait for the end of its console without reading from it."""
    how = {"argv": ["sh", "-c", "echo c >/proc/sysrq-trigger"], "stdin": "", "timeout_ms": 1000}
    agent._send("run", {**how, "env": None, "cwd": "", "user": ""})
    gone = select.poll()
    gone.register(agent._stream._read_fd, 0)  # the end of it alone
    assert gone.poll(600_000)


@both
def test_a_guest_that_panics_as_it_boots_is_told(store: Path, tmp_path: Path, cls: type[Microvm]) -> None:
    (store / "guest").write_text("panics")
    with pytest.raises(PlatformError, match=r"(?s)(guest ended|console cannot be used).*"), deployed(tmp_path, cls):
        pass
    assert b"Kernel panic" in (tmp_path / "instance/console.log").read_bytes()
    expect_none_left(store)


@both
def test_a_guest_that_never_answers_is_told_with_its_limit(
    store: Path, tmp_path: Path, cls: type[Microvm], monkeypatch: pytest.MonkeyPatch
) -> None:
    (store / "guest").write_text("is silent")
    monkeypatch.setattr(vm, "BOOT_LIMIT_S", 0.3)
    with pytest.raises(PlatformError, match=r"within 0\.3 s"), deployed(tmp_path, cls):
        pass


@both
def test_a_monitor_that_does_not_start_is_told_in_its_own_words(
    store: Path, tmp_path: Path, cls: type[Microvm]
) -> None:
    (store / "cannot-start").touch()
    with (
        pytest.raises(PlatformError, match=r"(?s)(exit code 1|guest ended).*(FailedToBind|Cannot open /dev/kvm)"),
        deployed(tmp_path, cls),
    ):
        pass


@both
def test_a_monitor_that_opens_no_api_is_told(
    store: Path, tmp_path: Path, cls: type[Microvm], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin" / cls.program).write_text("#!/bin/sh\nexec sleep 1000\n")
    monkeypatch.setattr(vmm_api, "READY_LIMIT_S", 0.1)
    with pytest.raises(PlatformError, match=r"no API within 0\.1 s \(still at it\)"), deployed(tmp_path, cls):
        pass


@both
def test_a_tap_that_somebody_holds_is_told(store: Path, tmp_path: Path, cls: type[Microvm]) -> None:
    (tmp_path / "other").mkdir()
    os.link(tmp_path / "disk.ext4", tmp_path / "other/disk.ext4")
    with deployed(tmp_path, cls):
        told = pytest.raises(PlatformError, match=r"refuses: \d+ .*(?i:tap device).*busy")
        with told, deployed(tmp_path / "other", cls):
            pass


@both
def test_threads_that_are_called_otherwise_are_told(store: Path, tmp_path: Path, cls: type[Microvm]) -> None:
    (store / "guest").write_text("other threads")
    told = pytest.raises(PlatformError, match=r"0 threads of .* and 1 vCPUs were asked for")
    with told, deployed(tmp_path, cls, replace(LIMITS, budget="vcpus")):
        pass
    (tmp_path / "instance/disk.ext4").unlink()
    (tmp_path / "instance").rename(tmp_path / "first")
    with deployed(tmp_path, cls):
        pass


@pytest.mark.parametrize(
    ("cls", "mode", "told"),
    [
        (Firecracker, "other vCPUs", "tells of vCPUs '7' though 1 was asked for"),
        (CloudHypervisor, "other memory", "tells of bytes of memory '269484032' though 268435456 was asked for"),
        (CloudHypervisor, "no console", "console '/etc/passwd'"),
    ],
)
def test_another_guest_than_asked_for_is_refused(
    store: Path, tmp_path: Path, cls: type[Microvm], mode: str, told: str
) -> None:
    (store / "guest").write_text(mode)
    with pytest.raises(PlatformError, match=re.escape(told)) as raised, deployed(tmp_path, cls):
        pass
    assert raised.value.problem.remedy


def test_an_attachment_of_another_kind_is_refused(tmp_path: Path) -> None:
    nobody = cast(Any, None)
    vif = Attachment("routed", "vif", "n", "a", ())
    for cls in MONITORS:
        with (
            pytest.raises(PlatformError, match="cannot take an attachment of kind"),
            cls().deploy(nobody, nobody, LIMITS, vif, tmp_path),
        ):
            pass


def test_a_console_writes_to_no_log_that_was_closed(tmp_path: Path) -> None:
    """Its number may be another file's by then: a record's."""
    (said, guest), (asked, ours) = os.pipe(), os.pipe()
    log = os.open(tmp_path / "console.log", os.O_WRONLY | os.O_CREAT)
    console = Console(said, ours, log, "agent", os.getpid())
    try:
        os.write(guest, b"a kernel's message\nanother")
        assert console.receive_line(60) == b"a kernel's message"
        console.drain()
        os.close(log)
        other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
        assert other == log
        os.write(guest, b" one\n")
        assert console.receive_line(60).endswith(b"one")
        os.close(other)
    finally:
        console.close()
        os.close(guest)
        os.close(asked)
    assert (tmp_path / "console.log").read_bytes() == b"a kernel's message\nanother"
    assert (tmp_path / "other").read_bytes() == b""


# -- what they are told -------------------------------------------------------------------------------------------


def test_firecracker_is_told_all_before_it_starts(store: Path, tmp_path: Path) -> None:
    with deployed(tmp_path, Firecracker):
        pass
    assert asked(store) == [
        "GET /version",
        "PUT /machine-config",
        "PUT /boot-source",
        "PUT /drives/disk",
        "PUT /network-interfaces/net",
        "GET /machine-config",
        "PUT /actions",
        "GET /",
    ]


def test_what_firecracker_is_told() -> None:
    told = firecracker.requests(GUEST)
    assert told["/machine-config"] == {"vcpu_count": 2, "mem_size_mib": 256}
    assert told["/network-interfaces/net"] == {
        "iface_id": "net",
        "host_dev_name": "vt0",
        "guest_mac": "02:00:00:00:00:01",
    }
    assert told["/boot-source"]["kernel_image_path"] == "/k/vmlinux"
    assert {"console=ttyS0", "reboot=k", "panic=-1"} <= set(told["/boot-source"]["boot_args"].split())
    assert told["/drives/disk"]["cache_type"] == "Writeback", "else the guest's flushes go nowhere"
    assert not told["/drives/disk"]["is_root_device"]
    assert not told["/drives/disk"]["is_read_only"]


def test_cloud_hypervisor_is_asked_in_this_order(store: Path, tmp_path: Path) -> None:
    with deployed(tmp_path, CloudHypervisor):
        pass
    wanted = ["GET /vmm.ping", "PUT /vm.create", "PUT /vm.boot", "GET /vm.info", "GET /vm.info"]
    assert asked(store) == [one.replace(" /", " /api/v1/") for one in wanted]


def test_what_cloud_hypervisor_is_told() -> None:
    told = cloud_hypervisor.configuration(GUEST)
    assert told["cpus"] == {"boot_vcpus": 2, "max_vcpus": 2}
    assert told["memory"] == {"size": 256 * 1024**2}
    assert told["disks"] == [{"path": "disk.ext4", "image_type": "Raw"}]
    assert told["net"] == [{"tap": "vt0", "mac": "02:00:00:00:00:01", "num_queues": 2}]
    assert (told["console"], told["serial"]["mode"]) == ({"mode": "Pty"}, "File")


def test_the_initramfs_says_where_disk_and_agent_are() -> None:
    assert b"/dev/vda /dev/ttyS0\n" in initramfs([], VIRTIO_MMIO)
    assert b"/dev/vda /dev/hvc0\n" in initramfs([], VIRTIO_HVC)


# -- the doubles are strict -----------------------------------------------------------------------------------------


@pytest.fixture
def told_firecracker(tmp_path: Path) -> firecracker_double.Firecracker:
    return firecracker_double.Firecracker(vmm_double.install(tmp_path))


@pytest.mark.parametrize(
    ("target", "body", "told"),
    [
        ("/machine-config", {"vcpu_count": 1}, "missing field `mem_size_mib`"),
        ("/machine-config", {"vcpu_count": 33, "mem_size_mib": 1}, "out of bounds"),
        ("/machine-config", {"vcpu_count": "1", "mem_size_mib": 1}, "invalid type"),
        ("/boot-source", {"kernel_image_path": "/no"}, "No such file"),
        ("/boot-source", {"kernel_image_path": "/no", "kernel": ""}, "unknown field `kernel`"),
        ("/drives/a", {"drive_id": "b", "is_root_device": True}, "does not match the id"),
        ("/drives/a", {"drive_id": "a", "is_root_device": True, "cache_type": "None"}, "unknown variant"),
        ("/network-interfaces/n", {"iface_id": "n", "host_dev_name": "vt9"}, "Open tap device failed"),
        ("/actions", {"action_type": "InstanceStart"}, "without kernel configuration"),
        ("/actions", None, "Empty PUT request"),
        ("/nonsense", {}, "Invalid request method and/or path"),
    ],
)
def test_the_double_refuses_what_firecracker_does(
    told_firecracker: firecracker_double.Firecracker, target: str, body: Any, told: str
) -> None:
    with pytest.raises(RefusalError, match=re.escape(told)):
        told_firecracker.answer("PUT", target, body)


def test_the_double_takes_nothing_after_the_start(told_firecracker: firecracker_double.Firecracker) -> None:
    told_firecracker.is_running = True
    for target, body in (("/machine-config", {"vcpu_count": 1, "mem_size_mib": 1}),
                         ("/actions", {"action_type": "InstanceStart"})):  # fmt: skip
        with pytest.raises(RefusalError, match="not supported after starting"):
            told_firecracker.answer("PUT", target, body)


def test_the_double_keeps_cloud_hypervisors_order(tmp_path: Path) -> None:
    double = cloud_hypervisor_double.CloudHypervisor(vmm_double.install(tmp_path))
    for method, target in (("PUT", "vm.boot"), ("GET", "vm.info")):
        with pytest.raises(RefusalError, match="VM is not created"):
            double.answer(method, f"/api/v1/{target}", None)
    double.answer("PUT", "/api/v1/vm.create", cloud_hypervisor.configuration(GUEST))
    with pytest.raises(RefusalError, match="already created"):
        double.answer("PUT", "/api/v1/vm.create", cloud_hypervisor.configuration(GUEST))
    with pytest.raises(RefusalError, match="/k/vmlinux: No such file"):
        double.answer("PUT", "/api/v1/vm.boot", None)


# -- whether a guest boots ------------------------------------------------------------------------------------------


def test_firecracker_is_tried_with_a_file_in_place_of_its_api(store: Path, tmp_path: Path) -> None:
    host = LocalHost()
    kernel = Firecracker().kernel(host, lambda _line: None)
    tried = partial(under_kvm.boot_problem, host, kernel, Firecracker().trial)
    assert tried(limit_s=contract.HANGING_S) is None
    (tmp_path / "initramfs").write_bytes(b"no archive")
    problem = tried(limit_s=contract.HANGING_S)
    assert problem is not None
    assert "firecracker ended with code 1" in problem.what
    assert "Invalid magic number" in problem.what


def test_cloud_hypervisor_is_tried_by_its_options(store: Path, tmp_path: Path) -> None:
    """It boots again and again, which a time limit ends."""
    argv = CloudHypervisor().trial(CloudHypervisor().kernel(LocalHost(), lambda _line: None), tmp_path)
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(4)]
        process.kill()
    assert said == [vmm_double.KERNEL_SAYS, vmm_double.BOOTED] * 2


@both
def test_a_verdict_is_kept_for_this_monitor(
    store: Path, cls: type[Microvm], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = LocalHost()
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path / "cache"))
    known = cls().kernel(host, lambda _line: None)
    monkeypatch.setattr(under_kvm, "known_kernel", lambda *_: known)
    monkeypatch.setattr(under_kvm, "boot_problem", lambda *_: None)
    assert "nobody has tried yet" in cls().untried(host)
    assert cls().try_out(host) == []
    monkeypatch.setattr(under_kvm, "boot_problem", lambda *_: pytest.fail("booted again"))
    assert cls().try_out(host) == []
    assert "nobody has tried yet" not in cls().untried(host)
    assert "not yet run on a live host" in cls().untried(host)
    (store / "version").write_text("v99.9.9")
    assert "nobody has tried yet" in cls().untried(host), "another version of it is another monitor"


@both
def test_a_guest_that_did_not_boot_is_tried_again(
    store: Path, cls: type[Microvm], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another program may have had the CPU's extensions for a moment; the verdict was for all the time to a reboot."""
    host, boots = LocalHost(), iter(range(2))
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path / "cache"))
    known = cls().kernel(host, lambda _line: None)
    monkeypatch.setattr(under_kvm, "known_kernel", lambda *_: known)
    monkeypatch.setattr(under_kvm, "boot_problem", lambda *_: Problem(f"no {next(boots)}", "here", "tcg"))
    assert cls().try_out(host) == cls().try_out(host)
    (problem,) = cls().try_out(host)
    assert problem.what.startswith("no 0 (tried at "), "once within an hour: it takes seconds"
    command, _, path = problem.remedy.partition("to have it tried again at once: ")[2].partition(" ")
    assert (problem.remedy.partition(";")[0], command) == ("tcg", "rm")
    os.utime(path, (time.time() - 3601,) * 2)
    assert "nobody has tried yet" in cls().untried(host)
    assert cls().try_out(host)[0].what.startswith("no 1 (tried at ")
    Path(path).unlink()
    monkeypatch.setattr(under_kvm, "boot_problem", lambda *_: None)
    assert cls().try_out(host) == []
    os.utime(path, (0, 0))
    assert "nobody has tried yet" not in cls().untried(host), "what has booted, does"


# -- the guest on such devices, without the monitors ----------------------------------------------------------------

MAC = "02:76:74:00:03:10"
# By QEMU: virtio-mmio told by ACPI, and one serial line; virtio on PCI, a virtio console and a serial line beside it.
MICROVM = (["-machine", "microvm,acpi=on,isa-serial=on,rtc=on,pit=on,pic=on"], "device", ["-serial", "chardev:agent"])
ON_PCI = (
    ["-machine", "pc"],
    "pci",
    ["-serial", "file:serial.log", "-device", "virtio-serial-pci", "-device", "virtconsole,chardev=agent"],
)


@pytest.mark.machine
@pytest.mark.parametrize(
    ("cls", "arguments", "machine"),
    [
        (Firecracker, firecracker.KERNEL_ARGUMENTS, MICROVM),
        (CloudHypervisor, cloud_hypervisor.KERNEL_ARGUMENTS, ON_PCI),
    ],
)
def test_the_guest_boots_on_devices_such_as_the_monitors_without_them(
    cls: type[Microvm], arguments: tuple[str, ...], machine: tuple[list[str], str, list[str]], tmp_path: Path
) -> None:
    """The unpacked kernel, the initramfs and the agent's way in, by emulation. Of the monitors it proves nothing."""
    contract.skip_unless_ready(QemuTcg())
    host = LocalHost()
    kernel = cls().kernel(host, silent)
    disk.qcow2_overlay(host, disk.ext4(host, contract.image(), Limits().disk_bytes, silent), tmp_path / "disk.qcow2")
    kind, bus, line = machine
    # The last two are for emulation: on a busy machine a kernel that measures its clocks may measure for ever.
    words = " ".join((*arguments, "no_timer_check", "tsc_early_khz=2000000"))
    argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", *kind]
    argv += ["-accel", "tcg,tb-size=128", "-cpu", "max", "-m", "256", "-chardev", "stdio,id=agent,signal=off", *line]
    argv += ["-kernel", str(kernel.vmlinuz), "-initrd", str(kernel.initramfs), "-append", words]
    # What is below may be another test's too, and locked by a UML guest (see platforms/qemu_command.py).
    drive = "id=disk,if=none,format=qcow2,file=disk.qcow2,backing.file.locking=off"
    argv += ["-drive", drive, "-device", f"virtio-blk-{bus},drive=disk"]
    argv += ["-netdev", "user,id=net,restrict=on", "-device", f"virtio-net-{bus},netdev=net,mac={MAC}"]
    with (
        (tmp_path / "console.log").open("wb") as log,
        subprocess.Popen(argv, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            ends = os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno())
            console = Console(*ends, log.fileno(), "agent", process.pid)
            agent = AgentClient(console, longest_request_bytes=LONGEST_REQUEST_BYTES)
            assert agent.get("/sys/class/net/eth0/address").strip() == MAC.encode()
            assert agent.facts()["kernel"] == kernel.version
            data = os.urandom(20_000)
            agent.put("/there", data)
            assert agent.get("/there") == data
            with pytest.raises(StreamError):
                agent.run(["sh", "-c", "echo c >/proc/sysrq-trigger"])
            console.close()
            assert process.wait(contract.HANGING_S) == 0, "a panic ends it"
        finally:
            process.kill()
    told = (tmp_path / "console.log").read_bytes()
    assert b"sysrq triggered crash" in told + b"".join(one.read_bytes() for one in tmp_path.glob("serial.log"))
    assert b'"ok"' not in told


# -- what this machine lacks ----------------------------------------------------------------------------------------


@pytest.fixture
def ready(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has all; the store."""
    monkeypatch.setattr("virtoll.images.kernel.kernel_problem", lambda *_: None)
    monkeypatch.setattr("virtoll.platforms.booted.find", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(under_kvm, "device_problem", lambda *_: None)
    monkeypatch.setattr(under_kvm, "known_kernel", lambda *_: None)
    return store


@both
def test_a_host_with_all_is_ready(ready: Path, cls: type[Microvm]) -> None:
    assert cls().check(LocalHost()) == []
    assert cls().versions(LocalHost())[cls.program].split()[0].casefold() == cls.program


@both
def test_a_program_that_is_not_there_is_told_with_where_it_is_had(
    cls: type[Microvm], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("virtoll.platforms.booted.find", lambda name: None if name == cls.program else name)
    monkeypatch.setattr("virtoll.platforms.requirements.find", lambda _name: None)
    (problem,) = cls().check(LocalHost())
    assert problem.what == f"{cls.program} is missing"
    assert "/releases" in problem.remedy


@pytest.mark.parametrize(("cls", "version"), [(Firecracker, "v1.7.0"), (CloudHypervisor, "v51.1")])
def test_one_that_is_too_old_is_told(ready: Path, cls: type[Microvm], version: str) -> None:
    (ready / "version").write_text(version)
    (problem,) = cls().check(LocalHost())
    assert f"{cls.program} {'.'.join(map(str, cls.least))} or later is needed" in problem.what
    assert "/releases" in problem.remedy


@both
def test_a_host_without_kvm_is_told(ready: Path, cls: type[Microvm], monkeypatch: pytest.MonkeyPatch) -> None:
    del ready
    monkeypatch.undo()
    monkeypatch.setattr("virtoll.images.kernel.kernel_problem", lambda *_: None)
    monkeypatch.setattr("virtoll.platforms.booted.find", lambda name: name)
    monkeypatch.setattr("virtoll.platforms.requirements.find", lambda _name: None)
    monkeypatch.setattr(under_kvm, "_DEVICE", Path("/dev/no-kvm"))
    (problem,) = cls().check(LocalHost())
    assert "there is no /dev/kvm" in problem.what


def test_a_kernel_of_ones_own_is_a_setting() -> None:
    assert Firecracker(MicrovmSettings(kernel="/boot/vmlinux")).own_kernel() == Path("/boot/vmlinux")
