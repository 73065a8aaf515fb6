"""A victim's deployment serves all neighbours of its block in turn: the plan, and a run that was killed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest

from isolating import HARMS, TOLLS, run_of
from quiet import Quiet
from virtoll.analysis.load import read_run
from virtoll.analysis.measuring import measure
from virtoll.catalogue import catalogue
from virtoll.fakes import FakeExperiment, fake_environment
from virtoll.hosts.local import LocalHost
from virtoll.lab import client as clients
from virtoll.record.model import Plan, PlannedTrial
from virtoll.record.store import RunDirectory
from virtoll.run.execute import execute
from virtoll.run.refusals import problems_of
from virtoll.study import document
from virtoll.study.file import read_study
from virtoll.study.model import Study
from virtoll.study.plan import deployment_seconds, deployments, make_plan
from virtoll.trial import deployer
from virtoll.trial.deployer import Deployer
from virtoll.trial.treatment import treatments

AGGRESSOR = "neighbour.aggressor"
QUICK = ["polite", "cpu", "memory", "fork", "disk", "net-receive"]


def ready(name: str = "isolation", factors: Mapping[str, Sequence[Any]] = MappingProxyType({})) -> Study:
    """A ready-made quick study, with more factors."""
    text = (files("virtoll.studies") / f"{name}.toml").read_text(encoding="utf-8")
    study = read_study(text, f"{name}.toml", catalogue(), quick=True)
    more = {path: tuple(levels) for path, levels in factors.items()}
    return dataclasses.replace(study, factors={**study.factors, **more}, blocks=4, seed=5)


def planned(study: Study) -> Plan:
    return make_plan(study, [entry.arm for entry in study.arms], dict.fromkeys(TOLLS, 1.0))


def by_deployment(trials: Sequence[PlannedTrial]) -> dict[str, list[PlannedTrial]]:
    shared: dict[str, list[PlannedTrial]] = {}
    for trial in trials:
        shared.setdefault(trial.deployment, []).append(trial)
    return shared


def test_a_start_that_is_over_before_its_neighbours_come_is_no_victim() -> None:
    """All of a block would tell of the same one: ratios of exactly 1, without any spread."""
    (case, *_) = ready("isolation-rtt").programme
    boot = dataclasses.replace(case, probe="boot", settings={})
    study = dataclasses.replace(ready("isolation-rtt"), programme=(boot,))
    (told,) = problems_of(study, treatments(study), "mine.toml", LocalHost())
    assert told.where == f"mine.toml:{boot.line}: probe boot"
    assert told.what == "it tells how its instance started, and that is over before a neighbour is there"
    without = dataclasses.replace(study, factors={})
    assert problems_of(without, treatments(without), "mine.toml", LocalHost()) == []


def test_an_aggressor_that_would_begin_when_the_window_is_over_is_refused() -> None:
    """All trials were valid, and each victim had been alone in its window."""
    study = ready()
    late = dataclasses.replace(study, base={**study.base, "neighbour.start_ns": study.base["load.time_limit_ns"]})
    (told,) = problems_of(late, treatments(late), "mine.toml", LocalHost())
    assert told.where == "mine.toml: [neighbour] start"
    assert told.what == "the aggressor would begin after 3.2 s, when a window of 3.2 s is over"
    assert "time_limit" in told.remedy
    assert problems_of(study, treatments(study), "mine.toml", LocalHost()) == []
    probed = ready("isolation-rtt", {"neighbour.start_ns": (3600 * 10**9,)})  # whose windows wait for it
    assert problems_of(probed, treatments(probed), "mine.toml", LocalHost()) == []


@pytest.mark.parametrize(
    ("values", "levels", "told"),
    [
        ({AGGRESSOR: "fork"}, None, "and the study has one neighbour alone"),
        ({AGGRESSOR: "polite"}, None, "and the study has one neighbour alone"),
        ({}, ("cpu", "fork"), "and the study has none"),
        ({"load.loop": "closed"}, ("polite", "fork"), "and load 'http' is in closed loop"),
        ({"load.log_requests": False}, ("polite", "fork"), "and none are kept"),
    ],
)
def test_a_study_that_could_not_tell_what_a_neighbour_takes_is_refused(
    values: Mapping[str, Any], levels: tuple[str, ...] | None, told: str
) -> None:
    """Beside one aggressor alone arms were told as if there were none, and those whose victims died were in no figure.
    Of the others the report said, when all was measured, that there is no answer, or that requests were too few.
    """
    study = ready()
    factors = {} if levels is None else {AGGRESSOR: levels}
    study = dataclasses.replace(study, base={**study.base, **values}, factors=factors)
    (problem,) = problems_of(study, treatments(study), "mine.toml", LocalHost())
    assert told in problem.what
    assert problem.where.startswith("mine.toml: [")
    if levels is None or "polite" not in levels:
        assert '"neighbour.aggressor" = ["polite", "' in problem.remedy


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"platform": ["docker"], AGGRESSOR: ["polite"]}, "docker is compared with itself"),
        ({"platform": ["docker"], AGGRESSOR: ["polite"], "load.rate_per_s": [100.0]}, "docker is compared with itself"),
        ({"platform": ["docker"], AGGRESSOR: ["polite", "cpu", "fork"], "load.rate_per_s": [100.0]}, None),
        ({"platform": ["docker"], AGGRESSOR: ["cpu"]}, None),
        ({"platform": ["docker"], "load.rate_per_s": [100.0]}, None),
    ],
)
def test_an_exclusion_that_takes_the_polite_neighbour_alone_is_refused(
    rule: Mapping[str, Sequence[Any]], told: str | None
) -> None:
    """All of that platform's trials would be measured, and then nothing could be told of it."""
    study = ready(factors={AGGRESSOR: ("polite", "cpu", "fork"), "load.rate_per_s": (100.0, 200.0)})
    study = dataclasses.replace(study, exclude=(rule,))
    problems = problems_of(study, treatments(study), "mine.toml", LocalHost())
    assert [problem.where for problem in problems] == ["mine.toml: [[exclude]]"] * (told is not None)
    assert all(problem.what.startswith(str(told)) and problem.what.endswith(": cpu, fork") for problem in problems)


@pytest.mark.parametrize(
    ("load", "told"),
    [
        ('[load]\nname = "wrk"\n', "and load 'wrk' is in closed loop"),
        ('[load]\nname = "viewers"\n', "and load 'viewers' keeps none"),
        ('[load]\nname = "command"\nrun = ["a"]\nloop = "open"\nwork = { read = "(a)" }\n', "'command' keeps none"),
    ],
)
def test_a_load_that_keeps_no_single_requests_tells_of_no_victim(load: str, told: str) -> None:
    text = (files("virtoll.studies") / "isolation.toml").read_text(encoding="utf-8")
    study = read_study(
        text.replace(text[text.index("[load]") : text.index("[neighbour]")], load), "mine.toml", catalogue()
    )
    problems = problems_of(study, treatments(study), "mine.toml", LocalHost())
    assert any(problem.where == "mine.toml: [load]" and told in problem.what for problem in problems)


@pytest.mark.parametrize("name", ["isolation", "isolation-rtt"])
def test_a_block_deploys_each_victim_once_for_all_its_neighbours(name: str) -> None:
    study = ready(name)
    plan = planned(study)
    shared = by_deployment(plan.trials)
    assert len(shared) == plan.blocks * len(study.arms)
    assert [trial for members in shared.values() for trial in members] == plan.trials, "in a row"
    for members in shared.values():
        assert sorted(str(trial.condition[AGGRESSOR]) for trial in members) == sorted(QUICK)
        assert len({(trial.block, trial.arm.label) for trial in members}) == 1
    assert plan == planned(study), "the same seed gives the same order"


def test_the_neighbours_order_is_drawn_anew_for_each_deployment() -> None:
    study = dataclasses.replace(ready(), blocks=40)
    orders = [[t.condition[AGGRESSOR] for t in members] for members in by_deployment(planned(study).trials).values()]
    assert len({tuple(order) for order in orders}) > len(orders) / 2
    first = [order[0] for order in orders]
    for name in QUICK:  # each is first in a sixth of them, and follows any other as often
        assert 0.5 < first.count(name) * len(QUICK) / len(orders) < 1.5
        after = [order[order.index(name) - 1] for order in orders if order[0] != name]
        assert set(after) == set(QUICK) - {name}


def test_what_else_varies_is_deployed_by_itself() -> None:
    study = ready(factors={"limits.vcpus": [1, 2], "neighbour.start_ns": [10**9, 2 * 10**9]})
    shared = by_deployment(planned(study).trials)
    assert len(shared) == 4 * len(study.arms) * 2
    for members in shared.values():
        assert len(members) == 2 * len(QUICK)
        assert len({trial.condition["limits.vcpus"] for trial in members}) == 1


def test_without_neighbours_each_trial_of_a_service_has_its_own_deployment() -> None:
    study = ready(factors={AGGRESSOR: ["polite"], "load.rate_per_s": [10.0, 50.0]})
    trials = planned(study).trials
    assert len(by_deployment(trials)) == len(trials)


def test_the_estimate_holds_one_deployment_of_the_victim_and_each_of_its_neighbours() -> None:
    study = ready()
    (one,) = deployments(study, [study.arms[0].arm])
    trials_s = deployment_seconds(study, one, 0.0)
    load = study.base
    assert trials_s == pytest.approx(6 * (load["load.time_limit_ns"] + load["load.warm_up_ns"]) / 1e9)
    alone = ready(factors={AGGRESSOR: ["polite"]})
    (single,) = deployments(alone, [alone.arms[0].arm])
    neighbour_s = deployment_seconds(alone, single, 10.0) - deployment_seconds(alone, single, 0.0) - 10.0
    assert 0 < neighbour_s < 10.0
    assert deployment_seconds(study, one, 10.0) == pytest.approx(trials_s + 10.0 + 6 * neighbour_s)


def test_what_is_left_of_a_deployment_after_a_kill_is_one_again(tmp_path: Path) -> None:
    """The trials that were not sealed follow each other still, so that they share the instance that is made anew."""
    study = ready()
    arms = [entry.arm for entry in study.arms if entry.arm.platform in ("native", "docker")]
    plan = make_plan(study, arms, dict.fromkeys(TOLLS, 1.0))
    run = RunDirectory.create(tmp_path / "run", document.as_json(study), plan, fake_environment())
    at = 8  # the third of the second deployment
    killed = plan.trials[at].id
    fake = FakeExperiment(TOLLS, harms=HARMS, window_ns=6 * 10**9, fail={killed: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        execute(run, fake, Quiet())
    pending = run.pending()
    assert [trial.id for trial in pending[:4]] == [f"{killed}r", *(trial.id for trial in plan.trials[at + 1 : 12])]
    assert {trial.deployment for trial in pending[:4]} == {plan.trials[at].deployment}
    assert by_deployment(pending).keys() == {trial.deployment for trial in plan.trials[at:]}


def test_only_the_trial_that_deployed_tells_how_long_that_took(tmp_path: Path) -> None:
    run = read_run(run_of(tmp_path / "run", quick=True))
    with_phase, without = (r for r in run.records[:2])
    deployed = with_phase.model_copy(
        update={"phases": [*with_phase.phases, with_phase.phases[0].model_copy(update={"name": "deploy"})]}
    )
    assert measure(run, deployed).values["deploy_s"] > 0
    assert "deploy_s" not in measure(run, without).values
    assert "no deployment of its own" in measure(run, without).missing["deploy_s"]


def test_trials_that_share_a_deployment_have_scratch_directories_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a load's programs said, or a request log, is of one trial; it goes with the deployment's directory."""
    monkeypatch.setattr(deployer, "generator_confinement", lambda *_, **__: None)
    lab = SimpleNamespace(host=None, directory=tmp_path, far=None, generator=SimpleNamespace(cpus=[1]))
    (tmp_path / "b01-t0001").mkdir()
    mine = Deployer(cast(Any, lab), cast(Any, None), cast(Any, None))
    directories = [mine.client("b01-t0001", trial).directory for trial in ("", "b01-t0001", "b01-t0002")]
    assert directories[0] == tmp_path / "b01-t0001"
    for directory in directories[1:]:
        assert directory.parent == directories[0]
        (directory / clients.SAID).write_text(directory.name)
    assert len(set(directories)) == 3
