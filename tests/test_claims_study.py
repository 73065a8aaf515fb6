"""The micro study measures what the papers' claims speak of, in the words the probes know."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

from virtoll.analysis.counterparts import BELIEVES, fits
from virtoll.analysis.papers import Paper, read_paper
from virtoll.catalogue import catalogue
from virtoll.platforms.base import platforms
from virtoll.probes.base import probes
from virtoll.study.file import read_study
from virtoll.study.limits import Limits
from virtoll.study.model import Case, Study, settings_of
from virtoll.study.plan import make_plan
from virtoll.trial.treatment import make_probe


def micro(*, quick: bool) -> Study:
    text = (files("virtoll.studies") / "micro.toml").read_text("utf-8")
    return read_study(text, "micro.toml", catalogue(), quick=quick)


def spoken_of(paper: Paper) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every metric that a paper's claims speak of, the setting it is spoken of in, and what else was set there."""
    for table in paper.tables:
        for row in table.rows:
            level = {table.by: table.levels.get(row, row)} if table.by else {}
            yield table.metric_of(row), table.setting | table.row_settings.get(row, {}) | level, table.context
    for statement in paper.statements:
        for metric in statement.metrics:
            yield metric, statement.setting | statement.over_setting, {}
            yield metric, statement.setting | statement.under_setting, {}


LINK = "link.rate_bit_per_s"
CLAIMS = [
    (name, *claim) for name in ("kvm-openvz-lxc", "kvm-openvz", "xen-openvz") for claim in spoken_of(read_paper(name))
]


@pytest.mark.parametrize(("paper", "metric", "setting", "context"), CLAIMS)
def test_claims_speak_the_probes_words(
    paper: str, metric: str, setting: dict[str, Any], context: dict[str, Any]
) -> None:
    if metric.startswith(BELIEVES):
        return
    name, _, key = metric.partition(".")
    assert key in probes()[name].quantities
    known = {f"{name}.{field.name}" for field in dataclasses.fields(probes()[name].Settings)}
    assert {path for path in setting | context if path != LINK} <= known


@pytest.mark.parametrize(("paper", "metric", "setting", "context"), CLAIMS)
@pytest.mark.parametrize("quick", [False, True])
def test_the_study_measures_what_the_claims_speak_of(
    paper: str, metric: str, setting: dict[str, Any], context: dict[str, Any], quick: bool
) -> None:
    """But for a link of so much a second, which would bound all of its network probes: docs/METHODOLOGY.md."""
    if metric.startswith(BELIEVES):
        return
    name = metric.partition(".")[0]
    cases = [case for case in micro(quick=quick).programme if case.probe == name]
    wanted = {path: level for path, level in setting.items() if path != LINK}
    assert any(
        all(fits(path, case.settings[path.partition(".")[2]], level) for path, level in wanted.items())
        for case in cases
    )


def test_what_is_said_of_a_gigabit_needs_a_link_that_a_copy_of_the_study_may_have() -> None:
    asked = [(paper, metric) for paper, metric, setting, _ in CLAIMS if LINK in setting]
    assert set(asked) == {(paper, "bulk.throughput_mbit_per_s") for paper in ("kvm-openvz-lxc", "kvm-openvz")}
    text = (files("virtoll.studies") / "micro.toml").read_text("utf-8")
    own = read_study(f'{text}\n[link]\nrate = "1 Gbit/s"\n', "own.toml", catalogue(), quick=False)
    assert (micro(quick=False).base[LINK], own.base[LINK]) == (None, 10**9)


@pytest.mark.parametrize("quick", [False, True])
def test_every_case_fits_the_study_s_limits(quick: bool) -> None:
    study = micro(quick=quick)
    limits = settings_of(Limits, "limits", study.base)
    assert [problem for case in study.programme for problem in make_probe(case).check(limits)] == []


def test_both_variants_hold_every_arm_the_issue_asks_for() -> None:
    for quick in (False, True):
        labels = [entry.arm.label for entry in micro(quick=quick).arms]
        assert labels == [
            "native+host",
            "native+host (again)",
            "docker+routed",
            "lxc+routed",
            "lxc+routed (lxcfs)",
            "uml+routed",
            "openvz+routed",
            "kvm+routed",
            "qemu-tcg+routed",
        ]


def test_the_full_study_uses_every_probe_and_the_quick_one_no_dear_one() -> None:
    of_one = {name for name, probe in probes().items() if probe.slices == 0}  # the others are the testbed's
    assert {case.probe for case in micro(quick=False).programme} == of_one
    assert of_one - {case.probe for case in micro(quick=True).programme} == {"density"}


def timed(probe: str) -> list[Case]:
    """The quick study's cases of a probe that have windows of a length."""
    return [case for case in micro(quick=True).programme if case.probe == probe and "time_ns" in case.settings]


def test_the_quick_study_has_blocks_enough_for_an_interval_and_windows_enough_for_its_parts() -> None:
    study = micro(quick=True)
    assert study.blocks == 5
    assert {case.settings["windows"] for case in study.programme if "windows" in case.settings} == {2}


def test_the_quick_study_s_blocks_are_paid_for_by_shorter_windows() -> None:
    """Three blocks of three windows of 100 ms and more were estimated to take 895 s on all platforms."""
    study = micro(quick=True)
    arms = [entry.arm for entry in study.arms]
    plan = make_plan(study, arms, {name: platform.expected_overhead_s for name, platform in platforms().items()})
    assert plan.estimate_s <= 1.1 * 895


@pytest.mark.parametrize("probe", ["stream", "unix-file", "unix-shell", "round-trip", "disk-sync", "idle"])
def test_no_window_of_the_quick_study_is_shorter_than_its_figure_bears(probe: str) -> None:
    assert timed(probe)
    assert all(case.settings["time_ns"] >= 100_000_000 for case in timed(probe))


def test_a_timer_s_window_holds_wakes_for_a_99th_percentile() -> None:
    (timer,) = timed("timer")
    assert timer.settings["time_ns"] / timer.settings["interval_ns"] > 100
