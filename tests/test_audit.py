"""The fairness audit: what is read of an instance, what a difference means, and how it is told."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from synthetic import DOCKER, KVM, LXC, NATIVE, Recipe, write_run
from virtoll.agent import AgentClient, ExecResult, StreamError, StreamTimeoutError
from virtoll.analysis.audit import TITLES, Difference, audited, judged
from virtoll.catalogue import catalogue
from virtoll.errors import AgentError
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.platforms.base import Accounting, Instance
from virtoll.platforms.docker import Docker, DockerSettings
from virtoll.platforms.dockerd import Daemon, Setting
from virtoll.record.model import Arm, Audit, PlannedTrial, SkippedArm, TrialRecord
from virtoll.record.store import RunDirectory
from virtoll.report.build import build_report
from virtoll.report.contents import contents
from virtoll.report.findings import find
from virtoll.report.sections import audit as audit_section
from virtoll.report.sections.audit import everything
from virtoll.run import audit as verb
from virtoll.run.execute import execute
from virtoll.run.progress import PlainProgress
from virtoll.study.file import read_study
from virtoll.study.plan import make_plan
from virtoll.trial import audit, procfiles
from virtoll.trial.notes import Notes
from virtoll.trial.procfiles import UntoldError
from virtoll.units import format_bytes

pytestmark = pytest.mark.usefixtures("helped")

STATUS = """\
Name:\tsquid
Threads:\t3
CapEff:\t00000000a80425fb
NoNewPrivs:\t0
Seccomp:\t2
Seccomp_filters:\t1
Speculation_Store_Bypass:\tthread force mitigated
SpeculationIndirectBranch:\tconditional force disabled
"""
ROUTE = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0103120A\t0003\t0\t0\t0\t00000000\t0\t0\t0
gen0\t000112C6\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
MAPS = """\
55d0 r--p 00000000 fe:00 1 /usr/sbin/squid
7f00 r-xp 00001000 fe:00 2 /usr/lib/x86_64-linux-gnu/libc.so.6
7f10 r-xp 00001000 fe:00 3 /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2
"""
READ_CPU_S = 20  # a backtracking expression would need hours
ROUTES = (("enp3s0", 100), ("wlp2s0", 600))
GLIBC = "ld.so (Debian GLIBC 2.36-9+deb12u13) stable release version 2.36.\nCopyright (C) 2022\n"
MUSL = "musl libc (x86_64)\nVersion 1.2.3\nDynamic Program Loader\n"
MOUNTINFO = """\
20 1 0:5 / / rw,relatime - ext4 /dev/vda rw
21 20 0:6 / / rw,relatime - overlay overlay rw,lowerdir=/a:/b,upperdir=/c,workdir=/d,xino=off
22 21 0:7 / /proc rw,nosuid - proc proc rw
"""


# -- what files say ---------------------------------------------------------------------------------------


def test_files_are_read_as_the_kernel_writes_them() -> None:
    assert procfiles.seccomp(STATUS) == "filter"
    assert procfiles.keyed(STATUS, "Speculation_Store_Bypass") == "thread force mitigated"
    assert procfiles.open_files("Limit  Soft  Hard\nMax open files            1024       524288    files") == (
        "1024 (at most 524288)"
    )
    assert procfiles.page_size(struct.pack("=6Q", 3, 64, 6, 4096, 0, 0)) == "4096 bytes"
    assert procfiles.chosen("always [madvise] never\n") == "madvise"
    assert procfiles.root_mount(MOUNTINFO) == "overlay rw,relatime,xino=off", "the topmost, and no place on the disk"
    assert procfiles.temporary_files(MOUNTINFO) == "the root file system"
    of_the_sentry = "14 8 0:13 / /tmp rw  - tmpfs none rw,mode=01777\n"  # runsc 20221219's, over an empty /tmp
    assert procfiles.temporary_files(MOUNTINFO + of_the_sentry) == "tmpfs rw,mode=01777"
    assert procfiles.virtio_offloads("1" + "0" * 10 + "11" + "0" * 51) == "checksum, tso4, tso6"


def test_the_interface_is_that_of_the_way_to_the_generator() -> None:
    assert procfiles.interface_towards(ROUTE, "198.18.1.2") == "gen0"
    assert procfiles.interface_towards(ROUTE, "198.18.9.9") == "eth0"


def test_of_two_ways_as_long_the_interface_is_that_of_the_smaller_metric() -> None:
    """A laptop with a cable has two default routes: its wireless interface, which nothing went by, was told, for it
    comes later in the alphabet.
    """
    ways = [f"{name}\t00000000\t0102A8C0\t0003\t0\t0\t{metric}\t00000000" for name, metric in ROUTES]
    for lines in (ways, ways[::-1]):
        assert procfiles.interface_towards("\n".join(["Iface\tDestination", *lines]), "203.0.113.5") == "enp3s0"


def test_the_loader_tells_the_c_library() -> None:
    loader = procfiles.loader(MAPS)
    assert loader == "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    assert procfiles.libc(GLIBC, loader) == "glibc 2.36 (Debian GLIBC 2.36-9+deb12u13)"
    assert procfiles.loader("7f00 r-xp 0 fe:00 2 /lib/ld-musl-x86_64.so.1\n") == "/lib/ld-musl-x86_64.so.1"
    assert procfiles.libc(MUSL, "/lib/ld-musl-x86_64.so.1") == "musl 1.2.3"
    assert procfiles.loader("55d0 r--p 00000000 fe:00 1 /virtoll-agent\n") is None


@pytest.mark.parametrize(
    "read",
    [
        lambda: procfiles.seccomp("Name:\tinit\n"),
        lambda: procfiles.open_files(""),
        lambda: procfiles.page_size(b"short"),
        lambda: procfiles.chosen("always"),
        lambda: procfiles.interface_towards("Iface\n", "198.18.1.2"),
        lambda: procfiles.root_mount(""),
        lambda: procfiles.temporary_files(""),
        lambda: procfiles.loader(""),
        lambda: procfiles.libc("what?", "/lib/ld.so"),
    ],
)
def test_what_a_file_does_not_say_is_untold(read: Any) -> None:
    with pytest.raises(UntoldError):
        read()


@pytest.mark.parametrize(
    "read", ["chosen('[' * 2**20)", "libc('ld.so (' * 2**17, '')", "libc('musl libc' * 2**16, '')"]
)
def test_a_text_of_one_mebibyte_is_read_in_time(read: str) -> None:
    """In so much time of a CPU, however long it waits for one; who uses that up is ended by the kernel."""
    limited = f"import resource\nresource.setrlimit(resource.RLIMIT_CPU, ({READ_CPU_S}, {READ_CPU_S}))"
    script = f"from virtoll.trial.procfiles import *\n{limited}\ntry: {read}\nexcept UntoldError: pass"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    "path",
    ["/tmp/ld-linux-x86-64.so.2", "/lib/../tmp/ld-musl-x86_64.so.1", "/usr/lib/x86_64-linux-gnu/ld-2.31.so (deleted)"],
)
def test_a_loader_in_no_known_place_is_not_run(path: str) -> None:
    with pytest.raises(UntoldError, match="not run"):
        procfiles.loader(f"7f10 r-xp 00001000 fe:00 3 {path}\n")


# -- read of an instance ----------------------------------------------------------------------------------


class Inside:
    """An agent whose instance has these files, and nothing else."""

    def __init__(self, files: Mapping[str, str | bytes | Exception]) -> None:
        self.files = files
        self.asked: list[str] = []

    def within(self, timeout_s: float) -> AbstractContextManager[None]:
        assert 0 < timeout_s <= 10
        return nullcontext()

    def facts(self) -> dict[str, Any]:
        self.asked.append("facts")
        return {"cpus": 1, "cpus_online": 2, "memory_bytes": 2**30, "kernel": "6.1", "clocksource": None}

    def get(self, path: str) -> bytes:
        self.asked.append(path)
        found = self.files.get(path, AgentError("get: cannot read: No such file or directory"))
        if isinstance(found, Exception):
            raise found
        return found.encode() if isinstance(found, str) else found

    def run(self, argv: list[str], *, timeout_s: float) -> ExecResult:
        assert argv == ["/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "--version"]
        return ExecResult(0, GLIBC.encode(), b"")


FILES: dict[str, str | bytes | Exception] = {
    "/proc/7/status": STATUS,
    "/proc/7/maps": MAPS,
    "/proc/7/mountinfo": MOUNTINFO,
    "/proc/7/task/7/children": "8 9 ",
    "/proc/8/status": STATUS,
    "/proc/8/task/8/children": "",
    "/proc/9/status": "Threads:\t1\n",
    "/proc/9/task/9/children": "",
    "/proc/net/route": ROUTE,
    "/sys/class/net/gen0/mtu": "1500\n",
    "/proc/7/uid_map": "         0          0 4294967295\n",
    "/proc/7/attr/current": "docker-default (enforce)\n",
    "/proc/self/auxv": struct.pack("=2Q", 6, 4096),
    "/proc/cmdline": "quiet\x1b[31m\n",
}


def instance(files: Mapping[str, str | bytes | Exception], *, service: bool = True, **facts: str) -> Instance:
    agent = Inside(files)
    accounting = Accounting("virtoll/no-such-group", Path("/nonexistent"))
    services = {"squid": 7} if service else {}
    made = SimpleNamespace(agent=agent, accounting=accounting, services=services, facts=facts, platform="double")
    return cast(Instance, made)


def trial(condition: Mapping[str, Any] | None = None, label: str = "docker+routed") -> PlannedTrial:
    arm = Arm(label=label, platform="docker", network="routed")
    return PlannedTrial(id="b01-t0001", block=1, position=1, arm=arm, condition=dict(condition or {}))


def audits(tmp_path: Path, one: Instance, *trials: PlannedTrial) -> list[Audit | None]:
    audited: set[str] = set()
    told = []
    for each in trials:
        notes = Notes(tmp_path, lambda _phase: None)
        audit.first(audited, each, one, notes)
        told.append(notes.audit)
    return told


def test_what_holds_is_read_of_the_services_own_process(tmp_path: Path) -> None:
    (told,) = audits(tmp_path, instance(FILES, accelerator="kvm"), trial())
    assert told is not None
    assert told.process == "squid"
    expected = {
        "cpus": "1",
        "cpus_online": "2",
        "memory_seen": "1024 MiB",
        "kernel": "6.1",
        "libc": "glibc 2.36 (Debian GLIBC 2.36-9+deb12u13)",
        "workers": "3 processes, 7 threads",
        "seccomp": "filter",
        "no_new_privs": "0",
        "speculation_store_bypass": "thread force mitigated",
        "capabilities": "00000000a80425fb",
        "users": "its kernel's",
        "lsm_label": "docker-default (enforce)",
        "page_size": "4096 bytes",
        "interface": "gen0",
        "mtu": "1500",
        "root_file_system": "overlay rw,relatime,xino=off",
        "temporary_files": "the root file system",
        "accelerator": "kvm",
    }
    assert expected.items() <= told.found.items()


def test_what_cannot_be_read_is_missing_with_the_reason_and_never_a_default(tmp_path: Path) -> None:
    (told,) = audits(tmp_path, instance(FILES), trial())
    assert told is not None
    assert not told.found.keys() & told.missing.keys()
    assert all(told.missing.values())
    assert "No such file" in told.missing["congestion_control"]
    assert told.missing["clock_source"] == "the instance does not tell"
    assert "ethtool" in told.missing["offloads"]
    assert told.missing["accelerator"] == told.missing["machine_type"] == "double names none"
    assert {"cpu_quota", "memory_limit", "host.seccomp"} <= told.missing.keys(), "there is no such group"


def test_a_thread_of_the_kernels_among_the_hosts_processes_says_nothing_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vhost's before Linux 6.4: a filtered QEMU was told as "filter; off", as if a part of it were not."""
    monitor = STATUS.replace("Threads:", "VmSize:\t  9000 kB\nThreads:")
    for pid, status in ((700, monitor), (701, STATUS.replace("Seccomp:\t2", "Seccomp:\t0"))):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/status").write_text(status)
    monkeypatch.setattr(audit, "Path", lambda path: tmp_path / path.lstrip("/"))
    outside = audit._Outside(instance(FILES))
    outside._groups = [cast(Any, SimpleNamespace(pids=lambda: [700, 701]))]
    assert outside.readings()["host.seccomp"]() == "filter"


@pytest.mark.parametrize(
    ("uid_map", "told"),
    [
        ("         0          0 4294967295\n", "its kernel's"),
        ("         0 1878982656      65536\n", "0 to 65535, to the host 1878982656 and on"),
        ("0 1000 1\n1 100000 65535\n", "0 to 0, to the host 1000 and on; 1 to 65535, to the host 100000 and on"),
    ],
)
def test_whose_the_users_of_a_service_are_is_told(uid_map: str, told: str) -> None:
    assert procfiles.users(uid_map) == told


def test_what_an_arms_settings_made_is_told_by_its_driver(tmp_path: Path) -> None:
    made: dict[str, Any] = {"machine_type": "q35", "memory_pages": "huge", "disk_cache": "none", "disk_io": "io_uring"}
    made |= {"network_backend": "vhost-net", "oci_runtime": "crun"}
    (told,) = audits(tmp_path, instance(FILES, **made), trial())
    assert told is not None
    assert made.items() <= told.found.items()


def test_where_no_module_labels_processes_that_is_the_reason(tmp_path: Path) -> None:
    refused = AgentError("get: cannot read: Invalid argument (os error 22)")
    (told,) = audits(tmp_path, instance({**FILES, "/proc/7/attr/current": refused}), trial())
    assert told is not None
    assert told.missing["lsm_label"] == "no security module gives processes a label here"


def test_every_key_has_a_title(tmp_path: Path) -> None:
    (told,) = audits(tmp_path, instance(FILES), trial())
    assert told is not None
    keys = {key for key in {**told.found, **told.missing} if not key.startswith("mitigation.")}
    assert keys == TITLES.keys()


def test_every_key_is_documented() -> None:
    page = (Path(__file__).parent.parent / "docs" / "RUN_DIRECTORY.md").read_text("utf-8")
    told = page.partition("## What an audit holds")[2].partition("\n## ")[0]
    assert [key for key in TITLES if f"`{key}`" not in told] == []


def test_without_a_service_it_is_the_agents_process(tmp_path: Path) -> None:
    (told,) = audits(tmp_path, instance({"/proc/self/status": STATUS}, service=False), trial())
    assert told is not None
    assert told.process == "agent"
    assert told.found["seccomp"] == "filter"
    assert told.missing["workers"] == "no service was started"


def test_each_arm_is_audited_once_and_again_where_the_service_or_its_limits_are_others(tmp_path: Path) -> None:
    one = instance(FILES)
    small, large = {"load.object_bytes": 1, "service.workers": 1}, {"load.object_bytes": 2, "service.workers": 1}
    more = {"load.object_bytes": 1, "service.workers": 2}
    told = audits(tmp_path, one, *(trial(each) for each in (small, large, more, more)), trial(small, "lxc+routed"))
    assert [None if each is None else each.condition for each in told] == [
        {"service.workers": 1},
        None,
        {"service.workers": 2},
        None,
        {"service.workers": 1},
    ]


def test_an_agent_that_is_lost_is_no_missing_value(tmp_path: Path) -> None:
    with pytest.raises(StreamError):
        audits(tmp_path, instance({**FILES, "/proc/cmdline": StreamError("the stream has ended")}), trial())


def test_a_slow_guest_does_not_hold_up_its_audit_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer comes within the agent's 30 s."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    class Slow(Inside):
        def get(self, path: str) -> bytes:
            now[0] += 29
            return super().get(path)

    made = SimpleNamespace(
        agent=Slow(FILES),
        accounting=SimpleNamespace(cgroup="none", parts={}, meter=None),
        services={},
        facts={},
        platform="x",
    )
    found, missing = audit._read(cast(Instance, made), 7)
    assert now[0] <= 60
    assert missing["mtu"] == "not read: the audit's 10 s were over"
    assert found.keys() | missing.keys() >= TITLES.keys()


def test_an_agent_too_slow_for_one_file_fails_no_trial(tmp_path: Path) -> None:
    slow = StreamTimeoutError("get: no answer within 3 s")
    one = instance({**FILES, "/proc/cmdline": slow, "/proc/7/status": slow})
    (told,) = audits(tmp_path, one, trial())
    assert told is not None
    assert told.missing["boot_arguments"] == told.missing["seccomp"] == "no answer within 3 s"
    assert told.found["mtu"] == "1500", "what is asked after it is read"


def test_each_file_is_asked_for_once_whether_it_is_read_or_not(tmp_path: Path) -> None:
    one = instance({path: text for path, text in FILES.items() if path not in ("/proc/net/route", "/proc/7/status")})
    audits(tmp_path, one, trial())
    asked = cast(Inside, one.agent).asked
    assert {"facts", "/proc/net/route", "/proc/7/status"} <= set(asked)
    assert sorted(asked) == sorted(set(asked))


def test_a_value_is_kept_whole_or_is_missing(tmp_path: Path) -> None:
    (told,) = audits(
        tmp_path, instance({**FILES, "/proc/cmdline": "a" * 4096, "/sys/class/net/gen0/mtu": "1" * 5000}), trial()
    )
    assert told is not None
    assert told.found["boot_arguments"] == "a" * 4096
    assert told.missing["mtu"] == "it is longer than 4096 characters"


class Line:
    """A stream on which these lines come, whatever is asked."""

    def __init__(self, *lines: Callable[[float], bytes]) -> None:
        self.lines = iter(lines)

    def send(self, data: bytes) -> None: ...

    def has_room(self) -> bool:
        return True

    def receive_line(self, timeout_s: float) -> bytes:
        return next(self.lines)(timeout_s)

    def close(self) -> None: ...


def test_an_answer_that_came_too_late_is_passed_over() -> None:
    waited: list[float] = []

    def late(timeout_s: float) -> bytes:
        waited.append(timeout_s)
        raise StreamTimeoutError("no answer")

    answer = b'{"id":%d,"ok":{"data":"%s","end":true}}'
    line = Line(
        lambda _: b"== virtoll-agent ==",
        lambda _: b'{"id":1,"ok":{"protocol":4}}',
        late,
        lambda _: answer % (2, b"b2xk"),
        lambda _: answer % (3, b"bmV3"),
    )
    agent = AgentClient(line)
    with pytest.raises(StreamTimeoutError), agent.within(3):
        agent.get("/old")
    assert waited[0] <= 3
    assert agent.get("/new") == b"new"


def test_a_tree_of_processes_is_bounded(tmp_path: Path) -> None:
    """What an instance says is a stranger's: it may name itself as its own child."""
    (told,) = audits(tmp_path, instance({**FILES, "/proc/8/task/8/children": "7 "}), trial())
    assert told is not None
    assert "more than" in told.missing["workers"]


# -- judged -----------------------------------------------------------------------------------------------

HOST = {
    "kernel": "6.1.0-42-amd64",
    "boot_arguments": "quiet",
    "seccomp": "off",
    "speculation_store_bypass": "thread vulnerable",
    "memory_seen": "16 GiB",
    "mtu": "1500",
    "temporary_files": "the root file system",
    "workers": "1 process, 1 thread",
    "mitigation.meltdown": "Mitigation: PTI",
    "mitigation.retbleed": "Mitigation: Enhanced IBRS",
}


def told(**changed: str | None) -> Audit:
    found = {**HOST, **{key.replace("mitigation_", "mitigation."): value for key, value in changed.items()}}
    missing = {key: "cannot read: Permission denied" for key, value in found.items() if value is None}
    return Audit(process="squid", found={k: v for k, v in found.items() if v is not None}, missing=missing)


def differences(arm: Arm, here: Audit) -> dict[str, Difference]:
    (one,) = judged([(arm, here), (NATIVE, told())])
    assert one.audits[0][0] == NATIVE, "the baseline comes first"
    return {each.key: each for each in one.differences}


def test_what_is_alike_is_no_difference() -> None:
    assert differences(LXC, told()) == {}


def test_dockers_filter_and_what_it_does_to_loads_are_flagged_with_a_remedy() -> None:
    found = differences(DOCKER, told(seccomp="filter", speculation_store_bypass="thread force mitigated", mtu="1450"))
    assert {key: each.kind for key, each in found.items()} == dict.fromkeys(found, "flagged")
    assert found.keys() == {"seccomp", "speculation_store_bypass", "mtu"}
    assert 'seccomp = "unconfined"' in found["seccomp"].remedy


def test_a_kernel_of_its_own_is_what_a_virtual_machine_is() -> None:
    own = {"kernel": "6.1.0-9-cloud-amd64", "boot_arguments": "root=/dev/vda", "memory_seen": "480 MiB"}
    found = differences(KVM, told(**own, workers="2 processes, 2 threads"))
    assert {key: each.kind for key, each in found.items()} == {**dict.fromkeys(own, "explained"), "workers": "flagged"}
    seen = differences(DOCKER, told(memory_seen="512 MiB"))
    assert seen["memory_seen"].kind == "flagged", "a container's is only shown otherwise"
    seen = differences(LXC, told(memory_seen="512 MiB", memory_limit="512 MiB"))
    assert seen["memory_seen"].kind == "explained", "its own limit"


def test_a_mitigation_is_flagged_where_only_one_kernel_pays_for_it() -> None:
    found = differences(
        KVM, told(kernel="6.2", mitigation_meltdown="Not affected", mitigation_retbleed="Mitigation: x")
    )
    assert found["mitigation.meltdown"].kind == "flagged"
    assert "one kernel pays" in found["mitigation.meltdown"].why
    assert found["mitigation.retbleed"].kind == "flagged"
    assert "may cost more" in found["mitigation.retbleed"].why


@pytest.mark.parametrize(
    ("native", "here", "kind"),
    [
        ("Vulnerable", "Not affected", "explained"),
        ("Vulnerable: Safe RET, no microcode", "Not affected", "flagged"),
        ("Mitigation: Clear CPU buffers; SMT vulnerable", "Mitigation: Clear CPU buffers; SMT disabled", "explained"),
    ],
)
def test_whether_a_mitigation_is_paid_for(native: str, here: str, kind: str) -> None:
    (both,) = judged([(NATIVE, told(mitigation_srso=native)), (KVM, told(mitigation_srso=here))])
    assert [each.kind for each in both.differences] == [kind]


@pytest.mark.parametrize(
    ("here", "kind"),
    [
        ("overlay rw,nosuid,nodev,relatime", "explained"),
        ("overlay rw,nosuid,noatime", "flagged"),
        ("ext4 rw,nosuid,relatime", "flagged"),
    ],
)
def test_a_mount_that_only_gives_other_rights_is_no_other_file_system(here: str, kind: str) -> None:
    mounts = [(NATIVE, told(root_file_system="overlay rw,relatime")), (LXC, told(root_file_system=here))]
    (both,) = judged(mounts)
    assert [each.kind for each in both.differences] == [kind]


def test_files_in_memory_are_flagged_whatever_kernel_has_them_there() -> None:
    sentry = DOCKER.model_copy(update={"settings": {"runtime": "runsc"}})
    for arm in (DOCKER, sentry):
        found = differences(arm, told(temporary_files="tmpfs rw,mode=01777"))
        assert found["temporary_files"].kind == "flagged"


def test_a_container_whose_boot_arguments_are_untold_is_no_virtual_machine() -> None:
    found = differences(DOCKER, told(boot_arguments=None, cpus_online="2"))
    assert "a virtual machine" not in " ".join(each.why for each in found.values())


def test_lxcfs_is_known_by_a_limit_of_one_gibibyte_too() -> None:
    found = differences(LXC, told(memory_seen="1024 MiB", memory_limit=format_bytes(2**30)))
    assert found["memory_seen"].kind == "explained"


SSH = Arm(label="ssh+direct", platform="ssh", network="direct")
ABROAD = {"cpus_online": "4", "memory_seen": "8000 MiB"}


@pytest.mark.parametrize(
    ("quota", "memory", "kinds"),
    [
        ("4 CPU", "8000 MiB", {"explained"}),
        ("3 CPU", "7999 MiB", {"flagged"}),
    ],
)
def test_a_machine_that_has_just_the_studys_limit_is_not_flagged(quota: str, memory: str, kinds: set[str]) -> None:
    """Which is what the remedy of the flag asks for."""
    native = told(cpu_quota=quota, memory_limit=memory, cpus_online="64", memory_seen="64000 MiB")
    there = {
        "cpu_quota": "not limited by virtoll: the machine has 4 CPUs",
        "memory_limit": "not limited by virtoll: the machine has 8000 MiB",
    }
    (found,) = judged([(NATIVE, native), (SSH, told(**there, **ABROAD))])
    of_sizes = [one for one in found.differences if one.key in {*there, *ABROAD}]
    assert len(of_sizes) == 4
    assert {one.kind for one in of_sizes} == kinds


def test_what_a_container_says_of_its_kernel_explains_nothing() -> None:
    found = differences(DOCKER, told(boot_arguments="forged", kernel="forged", memory_seen="480 MiB"))
    assert {each.kind for each in found.values()} == {"flagged"}


def test_a_third_partys_platform_has_its_own_kernel_where_both_sides_tell_another() -> None:
    other = Arm(label="cell+routed", platform="cell", network="routed")
    assert differences(other, told(kernel="6.2", memory_seen="480 MiB"))["memory_seen"].kind == "explained"
    assert differences(other, told(kernel=None, memory_seen="480 MiB"))["memory_seen"].kind == "flagged"
    (accelerated,) = judged([(NATIVE, told()), (other, told(accelerator="kvm", memory_seen="480 MiB"))])
    assert {each.kind for each in accelerated.differences} == {"explained"}


def test_dockers_containers_of_gvisors_have_its_kernel_and_no_others() -> None:
    for runtime, kind in (("runsc", "explained"), ("crun", "flagged")):
        arm = DOCKER.model_copy(update={"settings": {"runtime": runtime}})
        assert differences(arm, told(kernel="4.4.0"))["kernel"].kind == kind


def test_settings_of_a_third_party_may_be_lists_and_tables_and_say_what_they_like() -> None:
    other = Arm(label="cell+routed", platform="cell", network="routed")
    for settings in ({"mounts": ["/a", "/b"]}, {"runtime": {"name": "runsc"}}, {"runtime": "runsc"}):
        arm = other.model_copy(update={"settings": settings})
        assert differences(arm, told(kernel=None, memory_seen="480 MiB"))["memory_seen"].kind == "flagged"
    said = DOCKER.model_copy(update={"settings": {"seccomp": "runsc"}})
    assert differences(said, told(kernel="4.4.0"))["kernel"].kind == "flagged", "that makes no kernel"


def test_what_one_side_does_not_tell_is_neither() -> None:
    one = differences(DOCKER, told(seccomp=None))["seccomp"]
    assert (one.kind, one.native, one.here) == ("untold", "off", None)
    assert one.why == "docker+routed: cannot read: Permission denied"


def test_a_user_namespace_is_told_of_an_arm_that_has_one_alone() -> None:
    """Of a guest whose kernel knows none, and of a container in a run that an older version began (native's audit has
    no users, the container's has), the report said that root inside is nobody to the host, "as the arm's settings say".
    """
    mapped = "0 to 65535, to the host 1878982656 and on"

    def one(arm: Arm, native: str | None, here: str | None) -> Difference:
        (both,) = judged([(NATIVE, told(users=native)), (arm, told(users=here))])
        return {each.key: each for each in both.differences}["users"]

    assert "root inside is nobody to the host" in one(DOCKER, "its kernel's", mapped).why
    older = one(DOCKER, None, "its kernel's")
    assert (older.kind, older.why) == ("untold", "native: cannot read: Permission denied")
    for native, here in (("its kernel's", None), (mapped, "its kernel's")):
        guest = one(KVM, native, here)
        assert guest.kind == "explained"
        assert guest.why.startswith("a kernel of its own has users of its own")


@pytest.mark.parametrize(
    "key", ["machine_type", "memory_pages", "disk_cache", "disk_io", "network_backend", "oci_runtime"]
)
def test_what_an_arm_was_set_to_is_no_unfairness(key: str) -> None:
    one = differences(KVM, told(**{key: "x"}))[key]
    assert (one.kind, one.native, one.here) == ("explained", None, "x")
    assert "as the arm's settings say" in one.why


def test_a_key_that_nobody_has_judged_is_flagged() -> None:
    one = differences(DOCKER, told(novel="x"))
    assert one["novel"].kind == "untold", "native does not tell it"
    (both,) = judged([(NATIVE, told(novel="y")), (DOCKER, told(novel="x"))])
    assert [each.kind for each in both.differences] == ["flagged"]


def test_only_audits_under_the_same_settings_are_compared() -> None:
    twice = told(workers="2 processes, 2 threads").model_copy(update={"condition": {"service.workers": 2}})
    once = told().model_copy(update={"condition": {"service.workers": 1}})
    groups = judged([(NATIVE, once), (DOCKER, twice), (NATIVE, twice), (DOCKER, once)])
    assert [(each.levels, each.differences) for each in groups] == [
        ("service.workers 1", ()),
        ("service.workers 2", ()),
    ]


def test_a_setting_that_has_one_level_in_all_audits_is_not_told() -> None:
    def under(**levels: Any) -> Audit:
        return told().model_copy(update={"condition": {f"service.{name}": level for name, level in levels.items()}})

    (one,) = judged([(NATIVE, under(cache="off")), (DOCKER, under(cache="off"))])
    assert one.levels == ""
    assert audit_section.sentences(one) == ["No arm differs from native in anything that can be evened out."]
    settings = [{"cache": "off", "workers": 1}, {"cache": "off", "workers": 2}]
    groups = judged((arm, under(**levels)) for levels in settings for arm in (NATIVE, DOCKER))
    assert [each.levels for each in groups] == ["service.workers 1", "service.workers 2"]


# -- told -------------------------------------------------------------------------------------------------

AUDITS = {
    NATIVE.label: told(),
    LXC.label: told(seccomp="filter"),
    DOCKER.label: told(seccomp="filter", memory_seen=None, congestion_control="<b>bbr</b>"),
}


def test_a_run_keeps_them_in_its_records(tmp_path: Path) -> None:
    proxy = Path(__file__).parent.parent / "src/virtoll/studies/proxy.toml"
    study = read_study(proxy.read_text(), "proxy.toml", catalogue(), quick=True)
    arms = [entry.arm for entry in study.arms if entry.arm.platform == "native"]
    plan = make_plan(study, arms, {"native": 1.0})
    run = RunDirectory.create(tmp_path / "run", {}, plan, fake_environment())
    with PlainProgress() as progress:
        execute(run, FakeExperiment({"native": 1.0}, audits=AUDITS), progress)
    kept = [record.audit for record in RunDirectory(run.path).records() if record.trial.arm.label == NATIVE.label]
    assert kept == [told(), *[None] * (len(kept) - 1)]


def test_the_report_says_first_what_is_flagged_and_what_to_do(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Recipe(blocks=2, factors={}, arms=(NATIVE, LXC, DOCKER), audits=AUDITS))
    (part,) = [part for part in contents(find(run)) if part.name == "audit"]
    assert part.title == "Was the comparison fair?"
    first, rest = part.text
    assert first.startswith("**lxc+routed and docker+routed: seccomp** is filter, native’s off: ")
    assert 'To do: measure a second arm with seccomp = "unconfined"' in first
    assert rest == "Nothing else differs; of memory it sees and congestion control it cannot be told on each arm."
    differing, whole = part.tables
    assert [row[0].text for row in differing.rows] == ["Seccomp"]
    assert differing.rows[0][0].detail == "flagged"
    assert len(whole.rows) == len(HOST) + 1
    golden = Path(__file__).parent / "golden" / "report" / "audit-differences.md"
    assert differing.markdown() == golden.read_text("utf-8")
    page = build_report(run).read_text("utf-8")
    assert '<section id="audit">' in page
    assert "&lt;b&gt;bbr&lt;/b&gt;" in page, "what an instance says is text"
    assert "<b>bbr</b>" not in page


def test_what_is_flagged_on_another_host_is_told_with_its_name() -> None:
    """The first host's arms may have all alike, and another's not: "no arm differs" was said of all of them."""

    def sealed(host: str, arm: Arm, audit: Audit) -> TrialRecord:
        trial = PlannedTrial(id=f"{host}-{arm.platform}", block=1, position=1, arm=arm, condition={}, host=host)
        return TrialRecord(trial=trial, status="valid", started_at="", audit=audit)

    kernels = {"node1": "6.1", "node2": "6.12", "node3": "6.1", "node4": "6.1"}
    there = {host: (told(kernel=kernel), told(kernel=kernel)) for host, kernel in kernels.items()}
    there["node2"] = (there["node2"][0], told(kernel="6.12", mtu="9000"))
    arms = (NATIVE, LXC)
    records = [sealed(host, *each) for host, two in there.items() for each in zip(arms, two, strict=True)]
    first, *rest = audit_section.spoken(audited(records), [*kernels, "node5"])
    assert first.startswith("What follows, and the tables, are of node1: ")
    assert rest[0] == "No arm differs from native in anything that can be evened out."
    assert rest[1].startswith("On node2: **lxc+routed: MTU** is 9000, native’s 1500: ")
    assert rest[2:] == ["On node5: nothing can be compared: native, or any other arm, has not been audited yet."]
    alike = [record for record in records if record.trial.host != "node2"]
    assert audit_section.spoken(audited(alike), ["node1", "node3", "node4"])[-1] == (
        "On the other hosts nothing else is flagged."
    )
    alone = audit_section.spoken(audited(alike[:2]), ["node1"])
    assert alone == ["No arm differs from native in anything that can be evened out."]


def test_a_run_without_audits_says_nothing_of_them(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Recipe(blocks=2, factors={}, arms=(NATIVE, LXC)))
    assert [part for part in contents(find(run)) if part.name == "audit"] == []


def test_what_was_not_told_is_in_the_table_with_its_reason() -> None:
    (each,) = judged([(NATIVE, told()), (DOCKER, told(mtu=None))])
    rows = {row[0].text: row for row in everything(each, "audit").rows}
    assert rows["MTU"][2].plain == "— (cannot read: Permission denied)"


def test_long_values_are_shown_cut_where_they_differ() -> None:
    host, guest = (f"Mitigation: {'x' * 500} {name}" for name in ("IBRS", "Retpoline"))
    (each,) = judged([(NATIVE, told(mitigation_retbleed=host)), (KVM, told(mitigation_retbleed=guest))])
    assert f"is …{'x' * 19} Retpoline, native’s …{'x' * 19} IBRS:" in audit_section.sentences(each)[0]
    (row,) = audit_section.differing(each, "audit").rows
    assert len({cell.text for cell in row[1:3]}) == 2
    assert max(len(cell.text) for cell in row[1:3]) < 450


def test_a_run_that_is_going_on_has_nothing_to_compare_yet(tmp_path: Path) -> None:
    only = {DOCKER.label: told()}
    run = write_run(tmp_path / "run", Recipe(blocks=2, factors={}, arms=(NATIVE, DOCKER), audits=only))
    (part,) = [part for part in contents(find(run)) if part.name == "audit"]
    assert part.text == ["Nothing can be compared: native, or any other arm, has not been audited yet."]


# -- the verb ---------------------------------------------------------------------------------------------

STUDY = """\
name = "small"
[service]
name = "nginx"
[load]
name = "http"
[[arms]]
platform = "native"
[[arms]]
platform = "docker"
network = "published"
seccomp = "unconfined"
userland_proxy = false
[[arms]]
platform = "docker"
network = "published"
[[arms]]
platform = "docker"
network = "published"
userland_proxy = false
"""


def test_the_verb_deploys_each_arm_once() -> None:
    study = read_study(STUDY, "small.toml", catalogue())
    arms = [entry.arm for entry in study.arms]
    assert [(each.id, each.arm) for each in verb.first_trials(study, arms)] == [
        (f"audit-{n}", arm) for n, arm in enumerate(arms, 1)
    ]


def test_the_verb_tells_the_same_to_people_and_programs() -> None:
    study = read_study(STUDY, "small.toml", catalogue())
    seen = verb.Seen(study, ((NATIVE, told()), (DOCKER, told(seccomp="filter"))), (SkippedArm(arm=KVM, reason="no"),))
    text = verb.as_text(seen)
    assert text.startswith("not deployed: kvm+routed: no\n\ndocker+routed: seccomp is filter, native’s off: ")
    assert "Seccomp (flagged): a filter looks at each system call" in text
    assert "    off\n        native+host\n    filter\n        docker+routed" in text
    document = verb.as_json(seen)
    assert [each["arm"] for each in document["arms"]] == ["native+host", "docker+routed"]
    (difference,) = document["differences"]
    assert (difference["key"], difference["arm"], difference["kind"]) == ("seccomp", "docker+routed", "flagged")
    assert document["not_deployed"] == [{"arm": "kvm+routed", "reason": "no"}]


# -- docker's settings ------------------------------------------------------------------------------------


def test_dockers_settings_are_in_the_labels() -> None:
    labels = [entry.arm.label for entry in read_study(STUDY, "small.toml", catalogue()).arms]
    assert labels[-3:] == [
        "docker+published (seccomp unconfined, no userland proxy)",
        "docker+published",
        "docker+published (no userland proxy)",
    ]


def test_a_daemon_without_a_proxy_is_another_one(tmp_path: Path) -> None:
    lab = cast(Any, SimpleNamespace(directory=tmp_path, cgroup="virtoll/ab12"))
    usual, without = (Daemon(lab, tmp_path, 0, Setting(userland_proxy=proxy)) for proxy in (True, False))
    assert usual.directory != without.directory
    assert usual.cgroup != without.cgroup
    assert "--userland-proxy=false" in without._argv(tmp_path / "config")
    assert not any("userland" in word for word in usual._argv(tmp_path / "config"))


@pytest.mark.parametrize(("seccomp", "options"), [("default", []), ("unconfined", ["seccomp=unconfined"])])
def test_the_filter_is_as_the_study_says(seccomp: Any, options: list[str]) -> None:
    groups = cast(Any, SimpleNamespace(payload=SimpleNamespace(name="virtoll/ab12/i/payload"), cpus={0}))
    limits = cast(Any, SimpleNamespace(memory_bytes=1, pids=1))
    attachment = cast(Any, SimpleNamespace(kind="veth", ports=()))
    made = Docker(DockerSettings(seccomp=seccomp))._specification("image", groups, limits, attachment)
    assert made["HostConfig"]["SecurityOpt"] == options
