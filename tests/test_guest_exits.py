"""How often guests under KVM left their CPUs: counted by the host's kernel, sampled, and told by the unit of work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from synthetic import DOCKER, KVM, NATIVE, TRUTH, Recipe, write_run
from virtoll.analysis.load import read_run
from virtoll.analysis.measuring import measure_all
from virtoll.analysis.metrics import EXITS, TrialMetrics, metrics_of
from virtoll.monitor import outside_sources
from virtoll.platforms import under_kvm
from virtoll.platforms.base import Accounting
from virtoll.platforms.kvm import Kvm
from virtoll.platforms.qemu_tcg import QemuTcg

_TRUTH = {**TRUTH, KVM.label: 0.9}


def _recipe(*, exits_per_s: float | None, arms: tuple[Any, ...] = (NATIVE, KVM)) -> Recipe:
    return Recipe(arms, truth=_TRUTH, blocks=2, skip_kvm=False, exits_per_s=exits_per_s)


def test_they_are_told_by_the_unit_of_work_and_of_guests_alone(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "r", _recipe(exits_per_s=2e5)))
    assert metrics_of(run)[EXITS].title == "Guest exits per request"
    for trial in measure_all(run):
        if _is_guests(trial):
            assert trial.values[EXITS] == pytest.approx(2e5 / trial.values["rate_per_s"], rel=0.01)
        else:
            assert EXITS not in trial.values | trial.missing


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, "not sampled: the host's debugfs did not tell, or virtoll did not ask for it yet"),
        ({"unreadable": {"instance.kvm.exits": "/sys/x: Permission denied"}}, "/sys/x: Permission denied"),
        ({"unreadable": "anything"}, "not sampled: the host's debugfs did not tell, or virtoll did not ask for it yet"),
    ],
)
def test_what_was_not_told_has_the_reason(tmp_path: Path, facts: dict[str, Any], why: str) -> None:
    run = read_run(write_run(tmp_path / "r", _recipe(exits_per_s=None)))
    records = tuple(each.model_copy(update={"facts": each.facts | facts}) for each in run.records)
    told = {trial.missing[EXITS] for trial in measure_all(replace(run, records=records)) if _is_guests(trial)}
    assert told == {why}


def _is_guests(trial: TrialMetrics) -> bool:
    return trial.record.trial.arm == KVM


def test_a_run_without_such_guests_does_not_name_them(tmp_path: Path) -> None:
    assert EXITS not in metrics_of(read_run(write_run(tmp_path / "r", _recipe(exits_per_s=1, arms=(NATIVE, DOCKER)))))


@pytest.fixture(name="kernel")
def _kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which process 41 has a second thread, and three threads of anybody's have made guests."""
    monkeypatch.setattr(under_kvm, "_COUNTS", tmp_path / "kvm")
    monkeypatch.setattr(under_kvm, "_PROC", tmp_path / "proc")
    for name in ("kvm/417-11", "kvm/4-1", "kvm/42-9", "proc/41/task/41", "proc/41/task/42", "proc/self/ns"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    return tmp_path


def test_the_kernels_own_file_is_sampled(kernel: Path) -> None:
    """That of the guest that a thread of the monitor's has made: Cloud Hypervisor's is not its first."""
    counters = Kvm().counters(41)
    assert counters == {"kvm.exits": kernel / "kvm/42-9/exits"}
    assert Kvm().counters(43) == QemuTcg().counters(41) == {}
    lab = cast(Any, SimpleNamespace(cgroup="virtoll/none", generators=(), generator_devices=("gen0",)))
    instance = cast(Any, SimpleNamespace(accounting=Accounting("virtoll/none/i", kernel, counters=counters)))
    beside = Accounting("virtoll/none/j", kernel, counters=counters)
    (source,) = [each for each in outside_sources(lab, instance, {"beside": beside}) if "kvm" in each.name]
    assert (source.name, source.kind, source.path) == ("instance.kvm.exits", "integer", str(kernel / "kvm/42-9/exits"))


def test_where_processes_are_numbered_otherwise_no_other_guests_are_taken(kernel: Path) -> None:
    (kernel / "proc/self/ns/pid").unlink()
    (kernel / "proc/self/ns/pid").symlink_to("pid:[4026532512]")
    assert Kvm().counters(41) == {}
    (kernel / "proc/self/ns/pid").unlink()
    assert Kvm().counters(41) == {}, "a kernel that does not tell"


def test_without_debugfs_there_is_nothing_to_sample(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is there for others."""
    monkeypatch.setattr(under_kvm, "_COUNTS", kernel / "nowhere")
    assert Kvm().counters(41) == {}
    monkeypatch.setattr(under_kvm, "_COUNTS", kernel / "kvm")
    monkeypatch.setattr(Path, "iterdir", _refuse)
    assert Kvm().counters(41) == {}


def _refuse(_path: object) -> list[str]:
    raise PermissionError
