"""Xen's driver on a double of its tools (`xen_double`); formats as documented; what is told where there is no Xen.

The contract on a real dom0, in an emulated computer: tests/nested/test_xen.py.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import xen_double
from test_cgroup import group_of_living
from virtoll.agent import StreamError
from virtoll.errors import HostError, PlatformError
from virtoll.hosts import xen as hosts_xen
from virtoll.hosts.base import Completed
from virtoll.hosts.ledger import clean, standing
from virtoll.hosts.local import LocalHost
from virtoll.hosts.xen import parse_domain_id, parse_hard_affinity, parse_info
from virtoll.images.kernel import XEN, Kernel, initramfs
from virtoll.monitor import outside_sources
from virtoll.monitor.meters import Metered
from virtoll.networks.base import Attachment, Kind, network_modes
from virtoll.networks.wires import Link
from virtoll.platforms import xen_dom0, xenstat
from virtoll.platforms.base import Accounting, Instance, Used, platforms
from virtoll.platforms.vm import Machine
from virtoll.platforms.xen import Xen, XenHvm, XenPv, XenPvh
from virtoll.platforms.xen_domain import Domain, configuration, quoted
from virtoll.probes import idle
from virtoll.probes.base import ProbeError
from virtoll.probes.density import Density
from virtoll.probes.footprint import Footprint
from virtoll.run import doctor
from virtoll.study.limits import Budget, Limits
from virtoll.trial import audit
from virtoll.trial.procfiles import UntoldError
from xen_double import FIXTURES, Store

LIMITS = Limits(vcpus=1, memory_bytes=256 * 1024**2)
PV = Domain(
    "pv", "virtoll-ab12-i", Kernel(Path("/k/vmlinuz"), Path("/k/initramfs.cpio"), "6.1.0", "0" * 64), 2,
    frozenset({3, 2}), 256 * 1024**2 + 5, Path("/s/i/disk.ext4"), "02:76:74:00:03:10", Path("/s/i/vif"),
)  # fmt: skip


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    with xen_double.without_a_lab(monkeypatch, tmp_path) as store:
        yield store


@contextmanager
def deployed(tmp_path: Path, platform: Xen | None = None, limits: Limits = LIMITS) -> Iterator[Instance]:
    with xen_double.deployed(tmp_path, platform or XenPv(), limits) as instance:
        yield instance


# -- deployed on the double -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [XenPv, XenPvh, XenHvm])
def test_a_domain_is_made_reached_by_its_console_and_ended(store: Store, tmp_path: Path, cls: type[Xen]) -> None:
    with deployed(tmp_path, cls()) as instance:
        (domain,) = store.domains()
        assert instance.platform == cls.name
        assert instance.is_running()
        done = instance.agent.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
        assert instance.facts["guest_type"] == cls.guest_type.upper()
        assert instance.facts["accelerator"] == f"xen {cls.guest_type}"
        assert instance.facts["xen"] == "4.17.7"
        assert instance.facts["threads_of_dom0"] == [f"{domain}.xvda-0", f"vif{domain}.0-q0-dealloc"]
        assert (instance.accounting.cgroup, instance.accounting.parts) == ("virtoll/abcd/instance", {})
    assert store.domains() == {}
    assert not instance.is_running()


def test_large_answers_and_requests_pass_the_console(store: Store, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    with deployed(tmp_path) as instance:
        instance.agent.put(str(tmp_path / "there"), data)
        assert instance.agent.get(str(tmp_path / "there")) == data


def test_the_device_is_wired_as_the_mode_has_it(store: Store, tmp_path: Path) -> None:
    with deployed(tmp_path):
        (domain,) = store.domains()
    commands = [words for words in store.commands() if words[0].startswith("ip")]
    assert commands[0] == ["ip", "link", "set", f"vif{domain}.0", "netns", "vt-abcd-s", "name", "vt0"]
    assert commands[-1] == ["ip-batch", "link set vt0 up"]


def test_groups_are_made_before_the_domain_and_xl_is_in_one_of_its_own(store: Store, tmp_path: Path) -> None:
    with deployed(tmp_path):
        pass
    told = [words for words in store.commands() if words[0] == "cgroup" or words[1:2] == ["create"]]
    assert [words[1] for words in told] == [
        "virtoll/abcd/instance",
        "virtoll/abcd/instance/backends",
        "virtoll/abcd/instance/helpers",
        "create",
    ]


@pytest.mark.parametrize(("budget", "first"), [("inclusive", []), ("vcpus", ["virtoll/abcd/instance"])])
def test_dom0s_part_on_the_generators_cpus_goes_first_as_containers_helpers_do(
    store: Store, tmp_path: Path, budget: Budget, first: list[str]
) -> None:
    """With budget "vcpus" blkback and netback waited for the generator's turn."""
    with deployed(tmp_path, limits=replace(LIMITS, budget=budget)):
        pass
    assert [words[1] for words in store.commands() if words[0] == "first"] == first


def test_what_the_kernel_says_on_the_console_is_kept(store: Store, tmp_path: Path) -> None:
    with deployed(tmp_path) as instance:
        assert instance.agent.run(["true"]).returncode == 0
    log = (tmp_path / "instance/console.log").read_bytes()
    assert b"a kernel's message" in log
    assert b'"ok"' not in log
    assert "Waiting for domain" in (tmp_path / "instance/monitor.log").read_text()


def test_its_meter_tells_of_it_until_it_has_gone(store: Store, tmp_path: Path) -> None:
    with deployed(tmp_path) as instance:
        assert instance.hosts_tasks_each == 0
        meter = instance.accounting.meter
        assert meter is not None
        before = meter.used()
        assert before is not None
        assert before.memory_bytes == 256 * 1024**2
        instance.kill()
        assert meter.used() is None
    assert meter.used() is None


def test_a_killed_domain_is_noticed(store: Store, tmp_path: Path) -> None:
    told = pytest.raises(PlatformError, match="the guest ended")
    with told, deployed(tmp_path) as instance:
        (domain,) = store.domains().values()
        os.killpg(int((domain / "pid").read_text()), signal.SIGKILL)
        with pytest.raises(StreamError):
            instance.agent.facts()
        instance.agent.facts()
    assert store.domains() == {}, "one that has ended is still a domain, until it is destroyed"


def test_one_that_is_killed_from_outside_is_destroyed(store: Store, tmp_path: Path) -> None:
    with deployed(tmp_path) as instance:
        instance.kill()
        assert store.domains() == {}
        deadline = time.monotonic() + 600
        while instance.is_running():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_domain_that_xl_cannot_make_is_told_in_xls_words(store: Store, tmp_path: Path) -> None:
    (store.path / "cannot-create").touch()
    with (
        pytest.raises(PlatformError, match=r"(?s)no domain.*exit code 1.*failed to free memory") as raised,
        deployed(tmp_path),
    ):
        pass
    assert "dom0_mem" in raised.value.problem.remedy
    assert store.domains() == {}


def test_a_panic_is_told_with_the_consoles_last_lines(store: Store, tmp_path: Path) -> None:
    (store.path / "guest").write_text("panics")
    with pytest.raises(PlatformError, match=r"(?s)(guest ended|no domain).*no working init found"), deployed(tmp_path):
        pass
    assert store.domains() == {}


def test_a_panic_before_the_domain_is_first_seen_is_told_with_the_consoles_last_lines(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.path / "guest").write_text("panics")
    seen = iter((None,))

    def late(host: LocalHost, name: str) -> int | None:
        """The domain's number; the first who asks is answered when `xl` has ended, and as if before that."""
        for nothing in seen:
            while not (tmp_path / "instance/monitor.log").read_bytes().endswith(b"Exiting now\n"):
                time.sleep(0.01)
            time.sleep(0.2)
            return nothing
        return hosts_xen.domain_id(host, name)

    monkeypatch.setattr(xen_dom0, "xen", SimpleNamespace(**{**vars(hosts_xen), "domain_id": late}))
    with pytest.raises(PlatformError, match="no working init found"), deployed(tmp_path):
        pass
    assert store.domains() == {}


def test_another_type_than_asked_for_is_refused(store: Store, tmp_path: Path) -> None:
    (store.path / "guest").write_text("other type")
    with pytest.raises(PlatformError, match="runs as HVM though PV was asked for"), deployed(tmp_path):
        pass
    assert store.domains() == {}


def test_a_domain_whose_threads_are_nowhere_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xen_dom0, "backend_threads", lambda _proc, n: {70: f"{n}.xvda-0"})
    monkeypatch.setattr(xen_dom0, "BACKENDS_LIMIT_S", 0.0)
    with pytest.raises(PlatformError, match=r"threads for domain 1 are not there: \['1.xvda-0'\]"), deployed(tmp_path):
        pass
    assert store.domains() == {}


def test_a_thread_that_has_just_ended_is_in_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {70: "1.xvda-0", 71: "vif1.0-q0-dealloc", 72: "vif1.0-q0-guest-rx"}
    monkeypatch.setattr(xen_dom0, "backend_threads", lambda *_: found)
    group = group_of_living(tmp_path, monkeypatch, "70", "72")
    assert xen_dom0.take_in(cast(Machine, None), 1, group) == ["1.xvda-0", "vif1.0-q0-guest-rx"]


def test_who_cleans_after_a_kill_destroys_the_domain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = [sys.executable, str(Path(xen_double.__file__)), "deploy", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as virtoll:
        assert virtoll.stdout is not None
        assert virtoll.stdout.readline() == b"deployed\n"
        os.killpg(virtoll.pid, signal.SIGKILL)
    store = Store(tmp_path / "store")
    (domain,) = store.domains().values()
    assert store.is_alive(domain), "nobody has ended it yet"
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert clean(LocalHost(), tmp_path / "ledger") == ["xen-domain virtoll-abcd-instance"]
    assert store.domains() == {}
    for xl in _xls(tmp_path):
        os.kill(xl, signal.SIGKILL)  # its control group would have ended it; there is none here


def _xls(directory: Path) -> list[int]:
    """The processes of `xl` for what is in a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(directory).encode() in words and b"xen_double" in words:
                found.append(int(entry.name))
    return found


def test_a_domain_that_stays_is_told(store: Store, tmp_path: Path) -> None:
    with deployed(tmp_path):
        (store.path / "cannot-destroy").touch()
        with pytest.raises(HostError, match=r"(?s)xl destroy leaves it \(exit 1\): .*Destruction of domain failed"):
            hosts_xen.destroy_domain(LocalHost(), "virtoll-abcd-instance")
        (store.path / "cannot-destroy").unlink()


@pytest.mark.usefixtures("store")
def test_what_an_hvms_qemu_said_goes_with_the_domain_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libxl makes a file of its name in /var/log/xen: each deployment left one."""
    monkeypatch.setattr(hosts_xen, "LOGS", tmp_path)
    ours, other = (tmp_path / f"qemu-dm-virtoll-abcd-instance{more}.log" for more in ("", "2"))
    other.touch()
    with deployed(tmp_path, XenHvm()):
        ours.touch()
    assert other.exists()
    assert not ours.exists()
    ours.touch()
    hosts_xen.destroy_domain(LocalHost(), "virtoll-abcd-instance")
    assert not ours.exists(), "also where the domain has gone"


def test_where_no_domain_comes_of_it_its_qemus_words_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_xen, "LOGS", tmp_path)
    (tmp_path / "qemu-dm-mine.log").write_text("qemu: could not load PC BIOS\n")
    monkeypatch.setattr(hosts_xen, "domain_id", lambda *_: None)
    process = SimpleNamespace(poll=lambda: 3)
    machine = SimpleNamespace(
        is_running=lambda: False, process=process, last_words=lambda: "nothing", directory=tmp_path
    )
    with pytest.raises(
        PlatformError, match=r"exit code 3; nothing\nits QEMU's output ends in:\n    qemu: could not load"
    ):
        xen_dom0.appeared(LocalHost(), cast(Machine, machine), "mine", 0)


def test_removing_what_is_not_there_is_no_error(store: Store) -> None:
    hosts_xen.destroy_domain(LocalHost(), "nobody")
    assert not hosts_xen.domain_exists(LocalHost(), "nobody")
    assert [words for words in store.commands() if "destroy" in words] == []


def test_a_domain_that_xl_cannot_tell_of_stays_in_the_ledger(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No xenstored, or the tools of another Xen: each command fails, and the domain lives."""
    hypervisor, blind = tmp_path / "type", store.path / "no-context"
    hypervisor.write_text("xen\n")
    monkeypatch.setattr(hosts_xen, "HYPERVISOR", hypervisor)
    ledger, name = tmp_path / "ledger/dead.jsonl", "virtoll-abcd-instance"
    with deployed(tmp_path):
        ledger.write_text(json.dumps({"entry": 1, "kind": "xen-domain", "name": name}) + "\n")
        blind.touch()
        with pytest.raises(HostError, match=rf"(?s)xen-domain {name}: .*cannot init xl context"):
            clean(LocalHost(), tmp_path / "ledger")
        assert [entry.name for entry in standing(ledger.read_text())] == [name]
        hypervisor.unlink()  # booted without Xen, whose domains have gone
        assert clean(LocalHost(), tmp_path / "ledger") == [f"xen-domain {name}"]
        blind.unlink()


def test_a_name_is_not_known_to_be_absent_where_no_list_was_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """xl's words for a name that it does not find are the same where libxl could list no domains."""
    hypervisor = tmp_path / "type"
    hypervisor.write_text("xen\n")
    monkeypatch.setattr(hosts_xen, "HYPERVISOR", hypervisor)
    monkeypatch.setattr(hosts_xen, "find", lambda _name: "/usr/sbin/xl")
    absent = "Can't get domid of domain name 'nobody', maybe this domain does not exist.\n"
    host = LocalHost()
    monkeypatch.setattr(host, "run", lambda *_, **__: Completed((), 1, b"", absent.encode()))
    assert hosts_xen.domain_id(host, "nobody") is None
    failed = "libxl: error: libxl_domain.c:325:libxl_list_domain: getting domain info list: Interrupted system call\n"
    monkeypatch.setattr(host, "run", lambda *_, **__: Completed((), 1, b"", (failed + absent).encode()))
    with pytest.raises(HostError, match="getting domain info list"):
        hosts_xen.domain_id(host, "nobody")


# -- configuration, wiring, initramfs -----------------------------------------------------------------------------


def test_the_configuration() -> None:
    told = xen_double.settings(configuration(PV))
    assert (told["type"], told["name"], told["vcpus"], told["cpus"]) == ("pv", "virtoll-ab12-i", 2, "2,3")
    assert (told["memory"], told["maxmem"]) == (256, 256)
    assert told["disk"] == ["format=raw,vdev=xvda,access=rw,target=/s/i/disk.ext4"]
    assert told["vif"] == ["mac=02:76:74:00:03:10,script=/s/i/vif"]
    assert {told[f"on_{ending}"] for ending in ("poweroff", "reboot", "watchdog", "crash")} == {"preserve"}
    assert "console=hvc0" in told["cmdline"].split()


def test_the_type_is_all_that_differs() -> None:
    pv, pvh = (configuration(replace(PV, type=kind)).splitlines() for kind in ("pv", "pvh"))
    assert [(a, b) for a, b in zip(pv, pvh, strict=True) if a != b] == [('type = "pv"', 'type = "pvh"')]
    hvm = xen_double.settings(configuration(replace(PV, type="hvm")))
    assert hvm["vif"] == ["mac=02:76:74:00:03:10,type=vif,script=/s/i/vif"]
    assert (hvm["nographic"], hvm["vnc"], hvm["vga"]) == (1, 0, "none"), "a screen's memory would be the guest's"


@given(st.text())
def test_a_quoted_string_holds_no_quote_and_no_line(text: str) -> None:
    try:
        told = quoted(text)
    except PlatformError:
        return
    assert told[1:-1] == text
    assert not set('"\\\n\r\0') & set(text)


@pytest.mark.parametrize("name", ["bridge", "nat", "routed"])
def test_modes_with_a_link_take_a_vif_and_leave_its_wiring_to_the_platform(name: str) -> None:
    mode = network_modes()[name]
    assert "vif" in mode.kinds
    assert all("vif" in cls.kinds for cls in (XenPv, XenPvh, XenHvm))


def test_a_vif_is_wired_as_a_tap_but_not_made() -> None:
    kinds: tuple[Kind, Kind] = ("tap", "vif")
    tap, vif = (Link(3).commands(kind) for kind in kinds)
    assert tap[0].startswith("tuntap add dev vt6 ")
    assert tap[1:] == vif
    assert Link(3).device("vif") == "vt6"


def test_the_initramfs_says_where_disk_and_agent_are() -> None:
    assert b"/dev/xvda /dev/hvc0\n" in initramfs([], XEN)


# -- what this machine lacks --------------------------------------------------------------------------------------


@pytest.fixture
def dom0(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that looks like dom0; the directory of its files."""
    del store
    (tmp_path / "hypervisor").write_text("xen\n")
    (tmp_path / "capabilities").write_text("control_d\n")
    monkeypatch.setattr(xen_dom0, "_HYPERVISOR", tmp_path / "hypervisor")
    monkeypatch.setattr(xen_dom0, "_CAPABILITIES", tmp_path / "capabilities")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("virtoll.images.kernel.kernel_problem", lambda *_: None)
    return tmp_path


def _told(cls: type[Xen] = XenPv) -> str:
    return "\n".join(str(problem) for problem in cls().check(LocalHost()))


def test_a_dom0_with_all_is_ready(dom0: Path) -> None:
    del dom0
    assert _told(XenPv) == _told(XenPvh) == ""
    assert XenPv().versions(LocalHost())["xen"] == "4.17.7"


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("hypervisor", None, "does not run on Xen"),
        ("hypervisor", "kvm\n", "does not run on Xen"),
        ("capabilities", None, "mount -t xenfs"),
        ("capabilities", "", "this is a guest of Xen's"),
    ],
)
def test_what_is_no_dom0_is_told(dom0: Path, file: str, content: str | None, told: str) -> None:
    if content is None:
        (dom0 / file).unlink()
    else:
        (dom0 / file).write_text(content)
    assert told in _told()


def test_what_xen_lacks_is_told(dom0: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("info", "vcpu-list"):
        (dom0 / name).write_text((FIXTURES / name).read_text())
    (dom0 / "info").write_text((FIXTURES / "info").read_text().replace(": pv hvm hap shadow", ": pv"))
    (dom0 / "vcpu-list").write_text((FIXTURES / "vcpu-list").read_text().replace("  0 / all", "  all / all"))
    (dom0 / "bin/xl").write_text(f'#!/bin/sh\ncat "{dom0}/$1"\n')
    monkeypatch.setattr(xenstat, "library", lambda: None)
    assert "no HVM guests here (virt_caps: pv)" in _told(XenPvh)
    told = _told(XenPv)
    assert "guests here" not in told
    assert "dom0_vcpus_pin" in told
    assert "no libxenstat" in told


def test_tools_that_do_not_answer_are_told(dom0: Path) -> None:
    (dom0 / "bin/xl").write_text("#!/bin/sh\necho 'libxl: error: cannot open xenstore' >&2; exit 1\n")
    assert "Xen's tools do not answer: libxl: error: cannot open xenstore" in _told()
    (dom0 / "bin/xl").unlink()
    assert "xl is not installed" in _told()


def test_doctor_and_dry_run_say_how_far_the_driver_was_tried() -> None:
    console = Console(record=True, width=200, file=io.StringIO())
    modes: dict[str, doctor.State] = dict.fromkeys(network_modes(), "missing")
    offers = {name: doctor.PlatformOffer(modes, (), cls.caveat) for name, cls in platforms().items()}
    doctor.show(doctor.MachineOffer(offers), console)
    told = console.export_text()
    for name in ("xen-pv", "xen-pvh", "xen-hvm"):
        cls = platforms()[name]
        assert cls.caveat in cls().untried(LocalHost())
        assert "not yet run on a live Xen host" in cls.caveat
        assert any(name in line and cls.caveat in line for line in told.splitlines())


# -- formats --------------------------------------------------------------------------------------------------


def test_info_is_read_by_name() -> None:
    told = parse_info((FIXTURES / "info").read_text())
    assert (told["nr_cpus"], told["virt_caps"].split()[0], told["xen_version"]) == ("2", "pv", "4.17.7")
    assert told["xen_commandline"].endswith("dom0_vcpus_pin")


def test_affinities_are_read_by_domain_and_vcpu() -> None:
    assert parse_hard_affinity((FIXTURES / "vcpu-list").read_text()) == {
        0: {0: "0", 1: "1"},
        1: {0: "1"},
        2: {0: "0-1"},
    }
    before_4_5 = "Domain-0                             0     0   15   -b-      94.4  all\n"
    assert parse_hard_affinity(before_4_5) == {0: {0: "all"}}


def test_dom0_is_pinned_where_each_vcpu_has_the_cpu_of_its_number() -> None:
    assert xen_dom0.is_pinned({0: "0", 1: "1"}, "4")
    assert xen_dom0.is_pinned({0: "all"}, "1")
    assert not any(xen_dom0.is_pinned(each, "2") for each in ({}, {0: "all"}, {0: "1", 1: "0"}, {0: "0-1"}))


def test_a_domains_number_is_one() -> None:
    assert [parse_domain_id(text) for text in ("7", "32751", "32752", "", "-1", "7\n8", "x", "²")] == [
        7, 32751, None, None, None, None, None, None,
    ]  # fmt: skip


@given(st.text(max_size=500))
def test_any_text_is_read_without_harm(text: str) -> None:
    for parse in (parse_info, parse_hard_affinity, parse_domain_id):
        parse(text)
    for line in (f"Domain-0 {text}", f"{text} 0 0 0 r-- 1.0 0 / all"):
        parse_hard_affinity(line)


def test_the_kernels_threads_are_found_by_name_and_parent(tmp_path: Path) -> None:
    def process(pid: int, comm: str, parent: int) -> None:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{comm}\n")
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({comm}) S {parent} 0 0 0\n")

    for pid, comm, parent in (
        (60, "1.xvda-0", 2), (61, "vif1.0-q0-guest", 2), (62, "vif1.0-q0-deall", 2), (63, "11.xvda-0", 2),
        (64, "vif11.0-q0-gues", 2), (65, "1.xvda-0", 1), (66, "vif1.0-q0) S 2 (", 700), (67, "blkback.1.xvda", 2),
    ):  # fmt: skip
        process(pid, comm, parent)
    (tmp_path / "self").mkdir()
    (tmp_path / "68").mkdir()
    assert sorted(xen_dom0.backend_threads(tmp_path, 1)) == [60, 61, 62, 67]


# -- what it uses ---------------------------------------------------------------------------------------------


class _Meter:
    def __init__(self, *told: Used | None) -> None:
        self._told = list(told)

    def used(self) -> Used | None:
        return self._told.pop(0) if len(self._told) > 1 else self._told[0]


def test_a_metered_instance_costs_what_meter_and_helpers_tell_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtoll.hosts.cgroup.Cgroup.cpu_ns", lambda _self: 5)
    monkeypatch.setattr("virtoll.monitor.meters._memory_bytes", lambda _group: None)
    mine = Accounting("virtoll/x/i", Path("/nowhere"), meter=_Meter(Used(100, 2**28)))
    other = Accounting("virtoll/x/j", Path("/nowhere"), meter=_Meter(Used(7, 1), None))
    metered = Metered({"instance": mine, "beside-b": other, "beside-c": Accounting("", Path("/"))}, 0.001, 60_000)
    metered.start()
    while not metered._ticks:
        time.sleep(0.001)
    metered.now()
    rows = metered.stop()
    assert [row[1:] for row in rows] == [
        ("instance", "cpu.usage_ns", 105),
        ("payload", "cpu.usage_ns", 100),
        ("payload", "memory.usage_bytes", 2**28),
        ("beside-b", "cpu.usage_ns", 12),
        ("instance", "cpu.usage_ns", 105),
        ("payload", "cpu.usage_ns", 100),
        ("payload", "memory.usage_bytes", 2**28),
    ], "what the helpers' memory is was not told, so the sum is missing; so is all of one whose meter is silent"
    times = [row[0] for row in rows]
    assert times == sorted(times)
    assert metered.stop() == rows


def test_who_asks_a_meter_keeps_to_the_generators_cpus() -> None:
    """The documents said so, and it ran wherever virtoll may: ten times a second on the instance's, too."""
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []

    class Looks:
        def used(self) -> Used | None:
            seen.append(os.sched_getaffinity(0))
            return None

    metered = Metered({"instance": Accounting("", Path("/"), meter=Looks())}, 0.001, 60_000, frozenset({min(before)}))
    metered.start()
    while not seen:
        time.sleep(0.001)
    metered.stop()
    assert seen[0] == {min(before)}
    assert os.sched_getaffinity(0) == before, "it alone"


def test_without_a_meter_nothing_is_asked() -> None:
    metered = Metered({"instance": Accounting("", Path("/"))}, 10, 1)
    metered.start()
    metered.now()
    assert metered.stop() == []


def test_the_oldest_ticks_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtoll.hosts.cgroup.Cgroup.cpu_ns", lambda _self: None)
    accounting = Accounting("virtoll/x/i", Path("/nowhere"), meter=_Meter(*(Used(n, 0) for n in range(9))))
    metered = Metered({"instance": accounting}, 1, 3)
    for _ in range(5):
        metered._look()
    assert metered.dropped == 2
    assert [value for _, source, counter, value in metered.stop() if counter == "cpu.usage_ns"] == [2, 3, 4]


def test_what_libxenstat_cannot_tell_is_missing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    library = xen_double.XenstatDouble(store)
    monkeypatch.setattr(xenstat, "library", lambda: library)
    with xenstat.metered(5) as meter:
        assert meter.used() is None, "there is no such domain"
        monkeypatch.setattr(library, "xenstat_node_domain", lambda _node, domain: domain)
        monkeypatch.setattr(library, "xenstat_domain_cpu_ns", lambda _domain: 2**64 - 1)
        assert meter.used() is None, "the library's word for a failure"
        monkeypatch.setattr(library, "xenstat_get_node", lambda *_: None)
        assert meter.used() is None
    monkeypatch.setattr(xenstat, "library", lambda: None)
    with pytest.raises(PlatformError, match="no libxenstat"), xenstat.metered(5):
        pass


def test_an_attachment_of_another_kind_is_refused(tmp_path: Path) -> None:
    tap = Attachment("routed", "tap", "n", "a", ())
    nobody = cast(Any, None)
    with (
        pytest.raises(PlatformError, match="cannot take an attachment of kind"),
        XenPv().deploy(nobody, nobody, LIMITS, tap, tmp_path),
    ):
        pass


def _metered_instance(meter: _Meter) -> Any:
    return SimpleNamespace(platform="xen-pv", accounting=Accounting("virtoll/x/i", Path("/nowhere"), meter=meter))


def test_what_goes_by_dom0s_memory_is_refused() -> None:
    place = cast(Any, SimpleNamespace(instance=_metered_instance(_Meter(Used(0, 0)))))
    with pytest.raises(ProbeError, match="does not count the memory") as raised:
        Density().run(place)
    assert raised.value.is_own, "it says nothing of the instance"


def test_an_idle_domain_takes_its_own_memory_besides_its_helpers() -> None:
    assert idle._metered(_metered_instance(_Meter(Used(3, 2**28)))) == Used(3, 2**28)
    held = idle._held(Footprint(2, 3 * 2**20, 2**20, 0), 2**28)
    assert (held["pss_mib"], held["private_mib"], held["processes"]) == (259, 257, 2)
    with pytest.raises(ProbeError, match="hypervisor does not tell"):
        idle._metered(_metered_instance(_Meter(None)))


def test_an_audit_says_that_no_group_limits_a_domain() -> None:
    readings = audit._Outside(_metered_instance(_Meter(None))).readings()
    plain = cast(Any, SimpleNamespace(accounting=Accounting("virtoll/x/i", Path("/nowhere"))))
    assert set(readings) == set(audit._Outside(plain).readings())
    for read in (read for key, read in readings.items() if key != "disk_limit"):
        with pytest.raises(UntoldError, match="its hypervisor limits it"):
            read()


def test_what_the_group_holds_of_a_metered_instance_is_its_helpers() -> None:
    lab = cast(Any, SimpleNamespace(cgroup="virtoll/none", generators=(), generator_devices=("gen0",)))
    plain = Accounting("virtoll/none/j", Path("/nowhere"))
    metered = _metered_instance(_Meter(None))
    sources = outside_sources(lab, metered, {"beside-a": plain, "beside-b": metered.accounting})
    names = {source.name.partition(".")[0] for source in sources}
    assert {"helpers", "beside-a"} <= names
    assert "beside-b" not in names
    kinds = {source.kind for source in outside_sources(lab, metered) if source.name.partition(".")[0] == "instance"}
    assert kinds == {"netdev"}, "its network alone: all else is the meter's"
