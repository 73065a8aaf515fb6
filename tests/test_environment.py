"""The record of the machine: what makes two runs incomparable, and that it is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from virtoll.errors import HostError
from virtoll.fakes import fake_environment
from virtoll.hosts import tuning
from virtoll.hosts.local import LocalHost
from virtoll.images import rootfs
from virtoll.images.base import Image, Images
from virtoll.platforms.native import Native
from virtoll.record.comparable import differences
from virtoll.record.model import Environment
from virtoll.run import environment
from virtoll.run.environment import require_same


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
        return environment.describe(images, {}, [], {}, {}, generators=(), media={})

    found = described("3.0.15")
    assert found.comparable["packages"] == {"instance": {"squid": "5.7-2"}, "origin": {"nginx": "1.22"}}
    assert found.comparable["installed"].keys() == {"instance", "origin"}
    assert found.notes["installed"]["instance"] == {"squid": "5.7-2", "libssl3": "3.0.15"}
    require_same(found, described("3.0.15"))
    with pytest.raises(HostError, match=r"installed\.instance: was 2 packages, sha256 \w{64}, is 2 packages") as told:
        require_same(found, described("3.0.16"))
    assert "origin" not in told.value.problem.what


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


@pytest.mark.parametrize(
    ("load", "cpus", "keepers", "is_busy"),
    [
        (0.6, 1, 0, False),  # daemons, and the last minute's
        (0.6, 2, 0, False),
        (1.0, 1, 0, True),  # one program that never rests
        (1.0, 2, 0, True),
        (1.0, 4, 0, False),  # three CPUs are left
        (2.0, 4, 0, True),
        (5.0, 32, 0, False),
        (20.0, 32, 0, True),
        (2.3, 2, 2, False),  # loops of `virtoll tune idle` give way
        (3.1, 2, 2, True),
    ],
)
def test_a_machine_is_busy_where_a_trial_would_lack_cpus(
    load: float, cpus: int, keepers: int, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    monkeypatch.setattr(tuning, "keepers", lambda _: [None] * keepers)
    told = [warning for warning in environment.warnings() if "is busy" in warning]
    assert len(told) == is_busy
    if told:
        assert f"(load average {load - keepers:.1f} over the last minute, on {cpus} CPU" in told[0]
        assert "end other work" in told[0]
