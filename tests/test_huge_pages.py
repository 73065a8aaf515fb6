"""A guest in huge pages: asked for before it begins, and told as its memory, which no control group does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import contract
from test_platforms_vms import KERNEL, TAP, monitor_pid
from virtoll.agent import Samples
from virtoll.catalogue import catalogue
from virtoll.errors import Problem, StudyError
from virtoll.hosts.cgroup import Cgroup
from virtoll.hosts.local import LocalHost
from virtoll.lab.base import Lab
from virtoll.monitor import Monitor, monitor
from virtoll.platforms import qemu_settings
from virtoll.platforms.base import Accounting, Used
from virtoll.platforms.qemu_command import Guest, command_line
from virtoll.platforms.qemu_settings import QemuSettings
from virtoll.platforms.qemu_tcg import QemuTcg
from virtoll.probes import idle
from virtoll.probes.base import ProbeError
from virtoll.probes.density import Density, DensitySettings
from virtoll.run.groups import Room
from virtoll.run.stage import Stage
from virtoll.study.file import read_study
from virtoll.study.limits import Limits
from virtoll.trial import audit, limits
from virtoll.trial.watchdog import State, look

MIB, GIB = 1024**2, 1024**3
_POOL = (
    "MemTotal: 9 kB\nMemAvailable: {available_kib} kB\nHugePages_Total: {total}\nHugePages_Free: {free}\n"
    "HugePages_Rsvd: {rsvd}\nHugepagesize: 2048 kB\n"
)
_PLAIN = "cgroup /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"


class _Machine(LocalHost):
    """One with such a pool."""

    def __init__(
        self, total: int = 0, free: int = 0, rsvd: int = 0, mounts: str = _PLAIN, *, available_kib: int = 1024 * 1024
    ) -> None:
        super().__init__()
        pool = _POOL.format(total=total, free=free, rsvd=rsvd, available_kib=available_kib)
        self._files = {"/proc/meminfo": pool, "/proc/mounts": mounts}

    def read(self, path: Path) -> bytes:
        return self._files[str(path)].encode() if str(path) in self._files else super().read(path)


def test_a_machine_without_them_is_told_beforehand() -> None:
    asked = QemuSettings(huge_pages=True)
    (problem,) = qemu_settings.problems(_Machine(), asked, "kvm")
    assert problem.what == "this machine has no huge pages reserved"
    assert "sysctl vm.nr_hugepages=N, N times 2048 kB" in problem.remedy
    assert list(qemu_settings.problems(_Machine(total=1), asked, "kvm")) == []
    assert list(qemu_settings.problems(_Machine(), QemuSettings(), "kvm")) == []


def test_a_machine_that_books_them_is_refused() -> None:
    """They would be counted twice."""
    mounts = _PLAIN.replace("nosuid", "nosuid,memory_hugetlb_accounting")
    (problem,) = qemu_settings.problems(_Machine(8, mounts=mounts), QemuSettings(huge_pages=True), "kvm")
    assert "count them twice" in problem.what


def test_a_pool_that_is_too_small_is_told_with_what_would_do() -> None:
    """What others have been promised is not free."""
    assert _lacking(_Machine(total=200, free=130, rsvd=2), 256 * MIB) == []
    (problem,) = _lacking(_Machine(total=200, free=130, rsvd=3), 256 * MIB)
    assert problem.what == "the guest's memory takes 128 huge pages, and 127 are free"
    assert "sysctl vm.nr_hugepages=201" in problem.remedy
    (problem,) = _lacking(_Machine(total=200, free=200), 255 * MIB)
    assert problem.what.endswith("are no whole number of huge pages of 2097152 B")
    assert _lacking(_Machine(), 255 * MIB, huge_pages=False) == []


_STUDY = """
name = "pages"
question = "What do they cost?"
design = "rotation"
blocks = 4
[service]
name = "nginx"
[load]
name = "http"
[limits]
memory = "256 MiB"
[[arms]]
platform = "native"
[[arms]]
platform = "qemu-tcg"
huge_pages = true
optional = true
"""


def test_an_arm_that_the_pool_does_not_hold_is_left_out_and_none_takes_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("virtoll.run.readiness.Readiness.problems", lambda *_: [])
    study = read_study(_STUDY, "pages.toml", catalogue())
    arms, skipped = Stage(study, _Machine(total=255, free=255)).offered("pages.toml", tries=False)
    assert [arm.platform for arm in arms] == ["native", "native"]
    assert "2 guests' memory at once takes 256 huge pages, and 255 are free" in skipped[0].reason
    arms, skipped = Stage(study, _Machine(total=256, free=256)).offered("pages.toml", tries=False)
    assert ([arm.platform for arm in arms], skipped) == (["native", "native", "qemu-tcg"], [])
    room = Room(GIB, 256 * MIB)  # two natives, and one on which the limits are proved; the guest's own is elsewhere
    assert room.lacks(arms) == ""
    assert room.lacks([*arms[:2], arms[2].model_copy(update={"settings": {}})]) != ""
    required = read_study(_STUDY.replace("optional = true\n", ""), "pages.toml", catalogue())
    with pytest.raises(StudyError, match="255 are free"):
        Stage(required, _Machine(total=255, free=255)).offered("pages.toml", tries=False)
    two = required.arms[-1]
    both = replace(required, arms=(*required.arms, replace(two, arm=two.arm.model_copy(update={"label": "another"}))))
    with pytest.raises(StudyError, match=r"3 guests.* takes 384 huge pages, and 383 are free"):
        Stage(both, _Machine(total=383, free=383)).offered("pages.toml", tries=False)


_BESIDE = (
    _STUDY.replace('design = "rotation"\n', "")
    .replace('[service]\nname = "nginx"\n[load]\nname = "http"\n', "{work}")
    .replace("optional = true\n", "")
)
_SERVERS = """
[servers.a.service]
name = "nginx"
[servers.a.load]
name = "http"
[servers.b.service]
name = "apache"
[servers.b.load]
name = "http"
[servers.c.service]
name = "burn"
[servers.c.load]
name = "http"
[factors]
"neighbour.servers" = ["none", "others"]
"""


@pytest.mark.parametrize(
    ("work", "at_once"),
    [(_SERVERS, 3), ('[[probes]]\nname = "ping"\n[slices]\ncount = 2\n', 5)],
)
def test_the_pool_must_hold_all_guests_that_stand_at_once(
    monkeypatch: pytest.MonkeyPatch, work: str, at_once: int
) -> None:
    """Of servers side by side and of slices two were asked for, and the arm's deployments failed; what is free besides
    was to hold the guests once more, and the arm was refused where it did not.
    """
    monkeypatch.setattr("virtoll.run.readiness.Readiness.problems", lambda *_: [])
    monkeypatch.setattr("virtoll.run.stage.problems_of", lambda *_: [])
    study = read_study(_BESIDE.format(work=work), "pages.toml", catalogue())
    pages = 128 * at_once
    told = rf"{at_once} guests' memory at once takes {pages} huge pages, and {pages - 1} are free"
    with pytest.raises(StudyError, match=told):
        Stage(study, _Machine(total=pages - 1, free=pages - 1)).offered("pages.toml", tries=False)
    little = _Machine(total=pages, free=pages, available_kib=800 * 1024)
    arms, _ = Stage(study, little).offered("pages.toml", tries=False)
    assert "qemu-tcg" in [arm.platform for arm in arms]


def _lacking(machine: _Machine, memory_bytes: int, *, huge_pages: bool = True) -> list[Problem]:
    platform = QemuTcg(QemuSettings(huge_pages=huge_pages))
    return platform.lacks(machine, Limits(vcpus=1, memory_bytes=memory_bytes))


@pytest.mark.parametrize("machine", ["pc", "q35", "microvm"])
def test_qemu_takes_all_of_the_memory_from_them_at_once(machine: Any) -> None:
    usual = Guest("kvm", KERNEL, 1, 256 * MIB, "d", TAP, 5, 7, machine=machine)
    was, now = command_line(usual), command_line(replace(usual, huge_pages=True))
    named = was[was.index("-machine") + 1]
    assert now[now.index("-machine") + 1] == f"{named},memory-backend=ram"
    at = now.index("-object")
    assert now[at + 1] == "memory-backend-memfd,id=ram,size=262144K,hugetlb=on,prealloc=on"
    rest = now[:at] + now[at + 2 :]
    assert rest == [word if word != named else f"{named},memory-backend=ram" for word in was]


def test_what_no_group_books_is_added_to_what_it_does(tmp_path: Path) -> None:
    told = {
        "instance.memory.usage_bytes": [10],
        "instance.memory.resident_bytes": [5],
        "instance.memory.cache_bytes": [3],
        "beside-b.memory.usage_bytes": [7],
        "generator.memory.usage_bytes": [2],
    }
    samples = Samples([1], cast(Any, told), 0)
    assert monitor._rows(samples, [1], {"instance": 1000, "beside-b": 0}) == [
        (1, "instance", "memory.usage_bytes", 1010),
        (1, "instance", "memory.resident_bytes", 1005),
        (1, "instance", "memory.cache_bytes", 3),
        (1, "beside-b", "memory.usage_bytes", 7),
        (1, "generator", "memory.usage_bytes", 2),
    ]
    accounting = Accounting("virtoll/none", tmp_path, huge_bytes=256 * MIB)
    instance = cast(Any, SimpleNamespace(platform="kvm", accounting=accounting))
    assert idle._metered(instance) == Used(0, 256 * MIB)
    with pytest.raises(ProbeError, match="so many fit as were reserved"):
        Density(DensitySettings()).run(cast(Any, SimpleNamespace(instance=instance)))


def test_what_is_the_guests_already_is_not_taken_from_the_host_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the host has no room for it, the limit of memory is tried all the same."""
    asked: list[int] = []
    state = look(tmp_path)

    def danger(there: State) -> str:
        asked.append(state.available_bytes - there.available_bytes)
        return ""

    monkeypatch.setattr("virtoll.trial.limits.look", lambda _directory: state)
    monkeypatch.setattr("virtoll.trial.limits.danger", danger)
    for huge_bytes in (256 * MIB, 0):
        accounting = Accounting("virtoll/none", tmp_path, huge_bytes=huge_bytes)
        limits._hosts_own_end(cast(Any, SimpleNamespace(accounting=accounting)), memory_bytes=256 * MIB)
    assert asked == [0, 256 * MIB]


def test_an_audit_tells_of_all_that_it_may_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group's limit is the monitor's share alone."""
    monkeypatch.setattr(Cgroup, "limit_bytes", lambda _group: 128 * MIB)
    for huge_bytes, told in ((256 * MIB, "384 MiB"), (0, "128 MiB")):
        instance = cast(Any, SimpleNamespace(accounting=Accounting("virtoll/none", tmp_path, huge_bytes=huge_bytes)))
        assert audit._Outside(instance).readings()["memory_limit"]() == told


@pytest.mark.machine
def test_a_guest_in_huge_pages_holds_them_and_is_told_to(lab: Lab) -> None:
    """Where some are reserved: who reserves them changes the machine for all."""
    platform = QemuTcg(QemuSettings(huge_pages=True))
    contract.skip_unless_ready(platform)
    memory_bytes = contract.LIMITS.memory_bytes
    for problem in platform.lacks(lab.host, contract.LIMITS):
        pytest.skip(str(problem))
    image = contract.image()
    platform.prepare(lab.host, image, contract.LIMITS, lambda _line: None)
    with Monitor.on_host(lab) as watching, contract.deployed(lab, image, platform) as instance:
        assert _in_huge_pages(monitor_pid(instance)) == memory_bytes
        assert instance.facts["memory_pages"] == "huge"
        watching.start(instance, Monitor.read_clock(instance), 10.0)
        told = watching.collect().outside
    held = [value for _, source, counter, value in told if (source, counter) == ("instance", "memory.resident_bytes")]
    assert held
    assert all(memory_bytes < each < 2 * memory_bytes for each in held)


def _in_huge_pages(pid: int) -> int:
    """Bytes, by proc(5)."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words[0].endswith("_Hugetlb:"))
