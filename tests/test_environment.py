"""The record of the machine: what makes two runs incomparable, and that it is refused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from test_tuning import kept
from virtoll.catalogue import catalogue
from virtoll.errors import HostError
from virtoll.fakes import fake_environment
from virtoll.hosts import programs, tuning
from virtoll.hosts.changes import Keeper
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.images.base import Image, Images
from virtoll.platforms.native import Native
from virtoll.record.comparable import differences
from virtoll.record.model import Environment
from virtoll.run import environment
from virtoll.run.environment import require_same
from virtoll.run.request import Request, read
from virtoll.run.stage import Stage
from virtoll.study.file import read_study


@pytest.mark.parametrize(
    ("model", "flags", "told"),
    [
        ("QEMU TCG CPU version 2.5+", "fpu hypervisor lahf_lm", ["emulated"]),
        ("AMD EPYC", "fpu hypervisor lahf_lm", ["itself a virtual machine"]),
        ("AMD EPYC", "fpu lahf_lm", []),
    ],
)
def test_a_report_from_an_emulated_computer_says_so(
    model: str, flags: str, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"model name\t: {model}\nflags\t\t: {flags}\n"
    monkeypatch.setattr(Path, "read_text", lambda path, *_, **__: text if str(path) == "/proc/cpuinfo" else "0\n")
    found = [warning for warning in environment.warnings() if "machine" in warning and "busy" not in warning]
    assert [word in warning for word, warning in zip(told, found, strict=True)] == [True] * len(told)


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        (range(24), "cpu_atom: 16-23; cpu_core: 0-15): the last ones are the instance's"),
        ((0, 1, 4, 16), "`taskset -c 0-1,4 virtoll ...`"),
        (range(16), ""),
        ((17, 23), ""),
    ],
)
def test_a_processor_of_two_kinds_of_cores_is_told_unless_all_are_of_one(
    ours: Sequence[int], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance of an i9 had its efficient cores, the generator the others, and the report said "2 vCPUs"."""
    for kind, cpus in {"cpu_core": "0-15\n", "cpu_atom": "16-23\n"}.items():
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "cpus").write_text(cpus)
    (tmp_path / "cpu").mkdir()  # as it is called where all are alike, without a list
    monkeypatch.setattr(environment, "_EVENT_SOURCES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(ours))
    found = [warning for warning in environment.warnings() if "different kinds" in warning]
    assert [told in warning for warning in found] == [True] * bool(told)


def test_differences_are_named_by_their_path() -> None:
    before = {"machine": {"kernel": "6.1", "cpus": 2}, "image": "a"}
    now = {"machine": {"kernel": "6.2", "cpus": 2}, "image": "a", "agent": "x"}
    assert differences(before, now) == ["agent: was None, is x", "machine.kernel: was 6.1, is 6.2"]


def test_a_platform_tells_the_versions_of_what_it_runs_on() -> None:
    class Demo(Native):
        runtimes = ("bash",)

    assert Native().versions(LocalHost()) == {}
    ((name, told),) = Demo().versions(LocalHost()).items()
    assert name == "bash"
    assert told.startswith("GNU bash")
    assert "\n" not in told


def test_images_of_other_packages_are_told_apart_whoever_asked_for_those(tmp_path: Path) -> None:
    """A service names a metapackage, or one of a hundred; and two roles may have one package in two versions."""

    def image(role: str, packages: tuple[str, ...], **versions: str) -> Image:
        directory = tmp_path / role
        directory.mkdir(exist_ok=True)
        rootfs.write_manifest(directory, {"packages": packages, "versions": versions})
        return Image("proxy", "ab" * 32, directory)

    def described(libssl: str) -> Environment:
        instance = image("instance", ("squid",), squid="5.7-2", libssl3=libssl)
        images = Images(instance, image("origin", ("nginx",), nginx="1.22", libssl3="3.0.15"), image("load", ()))
        return environment.describe(images, {}, [], {}, {}, generators=(), tools={}, media={})

    found = described("3.0.15")
    assert found.comparable["packages"] == {"instance": {"squid": "5.7-2"}, "origin": {"nginx": "1.22"}}
    assert found.comparable["installed"].keys() == {"instance", "origin"}
    assert found.notes["installed"]["instance"] == {"squid": "5.7-2", "libssl3": "3.0.15"}
    require_same(found, described("3.0.15"))
    with pytest.raises(HostError, match=r"installed\.instance: was 2 packages, sha256 \w{64}, is 2 packages") as told:
        require_same(found, described("3.0.16"))
    assert "origin" not in told.value.problem.what


def of_load(name: str) -> str:
    service = f'[service]\nname = "nginx"\n[load]\nname = "{name}"\n'
    return f'name = "tools"\nblocks = 2\n{service}[[arms]]\nplatform = "native"\n'


def test_a_run_is_of_the_machines_own_programs_that_ask_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`apt upgrade wrk` makes another load: a run was gone on with after it."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    program = tmp_path / "wrk"

    def described(name: str = "wrk", data: bytes = b"") -> Environment:
        program.write_bytes(data)
        program.chmod(0o755)
        tools = Stage(read_study(of_load(name), "tools.toml", catalogue()), LocalHost()).tools
        images: Any = SimpleNamespace(by_role={})
        return environment.describe(images, {}, [], {}, {}, generators=["virtoll-load"], tools=tools, media={})

    before, after = described(data=b"4.1"), described(data=b"4.2")
    assert before.comparable["load generators"]["wrk"] == sha256(b"4.1").hexdigest()
    require_same(before, described(data=b"4.1"))
    with pytest.raises(HostError, match=r"load generators\.wrk: was \w{64}, is \w{64}\n"):
        require_same(before, after)
    others = described("http")
    assert others.comparable["load generators"].keys() == {"virtoll-load"}, "runs of ours are as they were"


def test_instruments_are_asked_for_by_the_machines_own_programs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their clients run beside the instance, in no image."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name in ("iperf3", "sockperf"):
        (tmp_path / name).write_bytes(name.encode())
        (tmp_path / name).chmod(0o755)
    probes = '[[probes]]\nname = "bulk"\n[[probes]]\nname = "round-trip"\n[[probes]]\nname = "clock"\n'
    text = f'name = "tools"\nblocks = 2\n{probes}[[arms]]\nplatform = "native"\n'
    (tmp_path / "tools.toml").write_text(text)
    plain, crossed = (read(Request(str(tmp_path / "tools.toml"), cross_check=each))[0] for each in (False, True))
    assert Stage(plain, LocalHost()).tools == {}
    told = Stage(crossed, LocalHost()).tools
    assert told == {name: sha256(name.encode()).hexdigest() for name in ("iperf3", "sockperf")}


def test_a_program_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "search_path", lambda: "/nowhere")
    stage = Stage(read_study(of_load("siege"), "tools.toml", catalogue()), LocalHost())
    with pytest.raises(HostError, match=r"siege is not installed(.|\n)*install it"):
        _ = stage.tools


def test_a_run_does_not_go_on_where_it_could_not_be_compared() -> None:
    require_same(fake_environment(image="a"), fake_environment(image="a"))
    with pytest.raises(HostError, match=r"image: was a, is b(.|\n)*begin a new run"):
        require_same(fake_environment(image="a"), fake_environment(image="b"))


def test_a_run_goes_on_after_a_reboot_of_the_same_machine() -> None:
    """What a kernel keeps for itself is another page or two at each boot (KASLR, the firmware's own)."""

    def machine(memory_kib: int) -> dict[str, object]:
        return {"kernel": "6.1", "cpus": 2, "memory_bytes": memory_kib * 1024}

    begun = fake_environment(machine=machine(16_303_428))
    require_same(begun, fake_environment(machine=machine(16_303_432)))
    for other in ({**machine(16_303_432), "cpus": 4}, machine(8_100_000), {"kernel": "6.1", "cpus": 2}):
        with pytest.raises(HostError, match="not the one this run was begun with"):
            require_same(begun, fake_environment(machine=other))


@pytest.fixture
def ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of what is tuned."""
    monkeypatch.setattr(tuning, "directory", lambda: tmp_path / "tuned")
    return tmp_path / "tuned"


@pytest.mark.usefixtures("ledgers")
@pytest.mark.parametrize(
    ("load", "cpus", "loops", "is_busy"),
    [
        (0.6, 1, 0, False),  # daemons, and the last minute's
        (0.6, 2, 0, False),
        (1.0, 1, 0, True),  # one program that never rests
        (1.0, 2, 0, True),
        (1.0, 4, 0, False),  # three CPUs are left
        (2.0, 4, 0, True),
        (5.0, 32, 0, False),
        (20.0, 32, 0, True),
        (2.3, 2, 2, False),  # loops of `virtoll tune awake` give way
        (3.1, 2, 2, True),
    ],
)
def test_a_machine_is_busy_where_a_trial_would_lack_cpus(
    load: float, cpus: int, loops: int, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds idle states (`virtoll tune idle`) sleeps: the load average has none of it."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    kept(tuning.directory(), "idle", [Keeper.of(os.getpid(), "keeps CPUs from deep idle states")])
    kept(tuning.directory(), "awake", [Keeper.of(os.getpid(), f"keeps CPU {cpu} awake") for cpu in range(loops)])
    told = [warning for warning in environment.warnings() if "is busy" in warning]
    assert len(told) == is_busy
    if told:
        assert f"(load average {load - loops:.1f} over the last minute, on {cpus} CPU" in told[0]
        assert "end other work" in told[0]


@pytest.mark.parametrize(("governor", "is_told"), [("schedutil", True), ("performance", False), ("userspace", False)])
def test_a_governor_that_follows_the_load_is_told(
    governor: str, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `userspace` the user has pinned the clock."""
    (tmp_path / "governor").write_text(f"{governor}\n")
    monkeypatch.setattr(environment, "_GOVERNOR", tmp_path / "governor")
    assert any("`virtoll tune governor`" in warning for warning in environment.warnings()) is is_told
