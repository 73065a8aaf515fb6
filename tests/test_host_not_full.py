"""A host that was not full holds at least so many: a bound, which stands for more than any number that was told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiet import Quiet
from test_plan_bounds import altered
from test_plan_density import TEXT, Packing, density_of
from virtoll.analysis.metrics import AT_LEAST
from virtoll.analysis.objectives import Held, held, objective_of
from virtoll.catalogue import catalogue
from virtoll.fakes import fake_environment
from virtoll.probes.density import Density
from virtoll.record.store import RunDirectory
from virtoll.report.findings import Findings, find
from virtoll.report.sections.values import quantity
from virtoll.run.execute import execute
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.plan import make_plan

FIT, LIVED = "density.instances_that_fit", "density.instances"


def packed(path: Path, full: set[tuple[str, int]]) -> Findings:
    """Native held 58, 59, 64 and 64, Docker 50 in each block; the host was ``full`` in these, by platform and block."""

    def stopped(record: dict[str, Any]) -> None:
        trial, measured = record["trial"], record["measured"]
        if (trial["arm"]["platform"], trial["block"]) not in full:
            del measured["quantities"]["instances_that_fit"], measured["windows"][0]["values"]["instances_that_fit"]

    return find(altered(density_of(path, held={"native": [58, 59, 64, 64], "docker": [50] * 4}), stopped))


def everywhere(*platforms: str) -> set[tuple[str, int]]:
    return {(platform, block) for platform in platforms for block in (1, 2, 3, 4)}


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Docker's host was always full, native's in two of four blocks."""
    return packed(tmp_path_factory.mktemp("some") / "run", everywhere("docker") | {("native", 1), ("native", 2)})


def native_of(found: Findings, text: str) -> Held:
    matrix = found.matrix
    return held(matrix, objective_of(text, matrix.metrics), matrix.natives[0])


def test_a_mean_is_not_of_the_blocks_that_were_full_alone(some: Findings) -> None:
    """They are those in which it held fewest: 58.5 was told of a host that held 64 twice."""
    (condition,) = some.matrix.conditions
    native, docker = some.matrix.arms
    assert some.matrix.absolute(FIT, native, condition) is None
    told = some.matrix.absolute(FIT, docker, condition)
    assert told is not None
    assert told.value == 50
    shown = quantity(some, some.matrix.metrics[FIT]).markdown()
    assert "a bound: the host held 64, and whether it holds more is not known" in shown


def test_a_ratio_to_a_bound_is_not_judged(some: Findings) -> None:
    (toll,) = some.tolls(FIT).overall
    assert toll.ratio is None
    assert toll.verdict.words == "no ratio: in 2 pairs it is a bound, and no value"


def test_an_objective_is_missed_by_no_bound_and_met_where_all_are_beyond_it(some: Findings) -> None:
    beyond = native_of(some, "instances_that_fit > 60")
    assert (beyond.told, beyond.estimate) == ("cannot tell", None)
    assert beyond.why == "in 2 of 4 trials it is a bound, and no value: all held at least 58"
    assert native_of(some, "instances_that_fit > 70").told == "cannot tell"
    assert native_of(some, "instances_that_fit > 55").told == "met"


def test_where_an_arms_host_was_never_full_its_bounds_are_told(tmp_path: Path) -> None:
    found = packed(tmp_path / "run", everywhere("docker"))
    (toll,) = found.tolls(FIT).overall
    assert toll.verdict.words == "no ratio: in 4 pairs it is a bound, and no value"
    assert native_of(found, "instances_that_fit > 55").told == "met"
    assert native_of(found, "instances_that_fit > 60").told == "cannot tell"


def test_a_case_in_which_no_host_was_full_is_among_those_that_a_ratio_is_over(tmp_path: Path) -> None:
    """With less memory for each more fit than were asked for: the other case alone would speak for both."""
    text = TEXT.replace("blocks = 4", "blocks = 2") + '[factors]\n"limits.memory" = ["128 MiB", "512 MiB"]\n'
    study = read_study(text.replace('[limits]\nmemory = "512 MiB"\n', ""), "density.toml", catalogue())
    arms = [entry.arm for entry in study.arms]
    plan = make_plan(study, arms, {arm.platform: 1.0 for arm in arms})
    directory = RunDirectory.create(tmp_path / "run", document.as_json(study), plan, fake_environment())
    execute(directory, Packing({"native": 1.0, "docker": 1.0}, held={"native": [64] * 2, "docker": [50] * 2}), Quiet())

    def stopped(record: dict[str, Any]) -> None:
        if record["trial"]["condition"]["limits.memory_bytes"] == 128 * 1024**2:
            measured = record["measured"]
            del measured["quantities"]["instances_that_fit"], measured["windows"][0]["values"]["instances_that_fit"]

    found = find(altered(tmp_path / "run", stopped))
    assert found.matrix.conditions_of(FIT) == found.matrix.conditions
    (toll,) = found.tolls(FIT).overall
    assert toll.ratio is None
    assert "is a bound" in toll.verdict.words
    assert found.matrix.conditions_of(LIVED) == found.matrix.conditions


def test_what_is_told_or_a_bound_is_named_as_the_probe_names_it() -> None:
    for name, bound in AT_LEAST.items():
        assert {name.removeprefix("density."), bound.removeprefix("density.")} <= Density.quantities.keys()
