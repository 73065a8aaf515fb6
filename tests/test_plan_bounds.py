"""Plans of runs that do not tell all: some deployments at a bound, some blocks lost, levels that are no users."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from advice_examples import GIB, search_of
from synthetic import DOCKER, NATIVE, Recipe, measured_elsewhere, write_run
from test_knee import TEXT
from test_plan_users import HOST, alike, planned, run
from virtoll.analysis import scaling
from virtoll.analysis.sizing import Deployment, size
from virtoll.fakes import fake_environment
from virtoll.record.model import Plan, PlannedTrial
from virtoll.record.rules import Decide
from virtoll.report.findings import find
from virtoll.run import environment

SHORT = TEXT.replace("blocks = 6", "blocks = 2")
LEVELS = {"load.connections": [1, 2, 4]}


def altered(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The run with each sealed trial changed."""
    lines = path / "trials.jsonl"
    records = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
    for record in records:
        change(record)
    lines.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def ended_below(platform: str, block: int, upper: float) -> Callable[[dict[str, Any]], None]:
    """The search of a platform in a block missed its objective at the least that was asked for."""

    def change(record: dict[str, Any]) -> None:
        if record["trial"]["arm"]["platform"] == platform and record["trial"]["block"] == block:
            record["measured"]["knee"] |= {"ended": "below least", "lower": None, "upper": upper}

    return change


def invalid(made: Path, level: int, platform: str = "native") -> dict[str, str]:
    """What spoils a platform's trials at a level, in every block."""
    trials = find(made).run.plan.trials
    mine = (t for t in trials if t.arm.platform == platform and t.condition["load.connections"] == level)
    return {trial.id: "invalid" for trial in mine}


def test_a_host_is_the_machine_that_real_runs_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = environment.machine()
    monkeypatch.setattr("advice_examples.fake_environment", lambda **_: fake_environment(machine=machine))
    made = search_of(tmp_path / "run", SHORT)
    code, out, err = run(capsys, str(made), "--users", "2000", "--json")
    assert code == 0, err
    host = json.loads(out)["plans"][0]["host"]
    assert host == {"cpus": machine["cpus"], "memory_bytes": machine["memory_bytes"]}


def test_some_deployments_that_carried_nothing_are_told_as_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = altered(search_of(tmp_path / "run", SHORT), ended_below("native", 1, 100.0))
    code, out, _ = run(capsys, str(made), "--users", "2000")
    assert code == 0
    assert "native+host: in 1 of 2 deployments it carries fewer than 100 requests/s, the least that was tried" in out


def test_a_lowest_level_of_which_nothing_is_known_was_not_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Recipe(arms=(NATIVE, DOCKER), factors=LEVELS, blocks=2, bulk=False)
    spoilt = invalid(write_run(tmp_path / "first", recipe), 1)
    made = write_run(tmp_path / "run", replace(recipe, spoilt=spoilt))
    code, out, _ = run(capsys, str(made), "--users", "2000", "--objective", "rate > 1000000000")
    assert code == 0
    assert "native+host: what it carries is not known: in some block not even the least was told" in out
    assert "docker+routed: carries fewer than 1 connections, the least that was tried" in out
    assert "generator" not in out, "it is no search, and nothing lacks CPUs"


def test_connections_of_an_open_loop_are_no_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = write_run(tmp_path / "run", Recipe(arms=(NATIVE, DOCKER), factors=LEVELS, blocks=2, bulk=False))
    asked = (str(made), "--users", "10", "--objective", "deploy_s < 1000 s")
    assert run(capsys, *asked)[0] == 0
    altered(made, lambda record: record["measured"].update(loop="open"))
    code, _, err = run(capsys, *asked)
    assert code == 2
    assert "no trials at several numbers of users" in err


def test_of_a_study_of_both_loops_the_connections_of_the_closed_one_alone_are_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the open loop, which is asked at one rate whatever they are, were planned by as well."""
    factors = LEVELS | {"load.loop": ["closed", "open"]}
    made = write_run(tmp_path / "run", Recipe(arms=(NATIVE, DOCKER), factors=factors, blocks=2, bulk=False))
    altered(made, lambda record: record["measured"].update(loop=record["trial"]["condition"]["load.loop"]))
    told = json.loads(run(capsys, str(made), "--users", "10", "--objective", "deploy_s < 1000 s", "--json")[1])
    arms = [(arm["arm"], arm["condition"]) for arm in told["plans"][0]["arms"]]
    assert arms == [(arm.label, {"load.loop": "closed"}) for arm in (NATIVE, DOCKER)]


@pytest.mark.parametrize("text", [SHORT, SHORT.replace("most = 100000", "most = 1000")])
def test_blocks_that_told_nothing_are_named(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a number, and of a bound: who was lost may have carried less."""
    trials = find(search_of(tmp_path / "first", text)).run.plan.trials
    lost = next(trial.id for trial in trials if trial.arm.platform == "docker")
    made = search_of(tmp_path / "run", text, fail={lost: "limits in force"})
    _, out, _ = run(capsys, str(made), "--users", "2000")
    assert "docker+routed: by 1 of 2 blocks: of the others nothing valid is known" in out
    assert "native+host: by " not in out
    assert "by 1 of 2 blocks" in planned(capsys, str(made), "--users", "2000")["docker+routed"]["said"]


def test_a_bound_less_headroom_is_not_rounded_down_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = search_of(tmp_path / "run", SHORT.replace("most = 100000", "most = 1000"))
    assert 1000 * (1 - 0.9) < 100  # 99.99999999999997
    _, out, _ = run(capsys, str(made), "--users", "2000", "--headroom", "90%")
    assert "so at most 20 instances" in out


def test_a_bound_of_which_headroom_leaves_nobody_is_still_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Recipe(arms=(NATIVE, DOCKER), factors={"load.connections": [1, 2]}, blocks=2, bulk=False)
    spoilt = invalid(write_run(tmp_path / "first", recipe), 2)
    made = write_run(tmp_path / "run", replace(recipe, spoilt=spoilt))
    _, out, _ = run(capsys, str(made), "--users", "10", "--objective", "rate > 0.001")
    assert "native+host: carries 1 connections or more, which is a bound and no number, and with the headroom no" in out


def test_a_search_that_never_ended_has_no_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = search_of(tmp_path / "run", SHORT)
    (made / "trials.jsonl").write_text("")
    code, out, _ = run(capsys, str(made), "--users", "2000")
    assert code == 1
    assert out.startswith("2,000, headroom 30 %, hosts of 8 CPUs and 16 GiB")


def test_a_run_that_was_killed_in_its_first_block_is_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of six planned blocks no run of four can be made."""
    made = search_of(tmp_path / "run")
    lines = (made / "trials.jsonl").read_text("utf-8").splitlines(keepends=True)
    (made / "trials.jsonl").write_text("".join(lines[:2]), encoding="utf-8")
    _, out, _ = run(capsys, str(made), "--users", "2000")
    assert f"one block has no interval: `virtoll run {made}` gives one" in out


@pytest.mark.parametrize("of", ["a rule", "another host"])
def test_a_run_that_takes_no_further_blocks_is_not_told_to(
    tmp_path: Path, of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`virtoll run RUNDIR --blocks 4` is refused of a run that its rule has ended, and of one that a host measured."""
    trials = find(search_of(tmp_path / "first", SHORT)).run.plan.trials
    lost = next(trial.id for trial in trials if trial.arm.platform == "docker")
    made = search_of(tmp_path / "run", SHORT, fail={lost: "limits in force"})
    assert f"`virtoll run {made} --blocks 4` gives one" in run(capsys, str(made), "--users", "10")[1]
    if of == "a rule":
        plan = Plan.model_validate_json((made / "plan.json").read_text())
        ruled = plan.model_copy(update={"rule": Decide(margin=0.03, looks=(2,))})
        (made / "plan.json").write_text(ruled.model_dump_json())
        (made / "looks.jsonl").write_text("")
    else:
        measured_elsewhere(made, {"performer": "ab12"})
    _, out, _ = run(capsys, str(made), "--users", "10")
    assert f"virtoll run {made} --blocks" not in out
    assert "a new run of carries with more blocks gives one" in out


def test_levels_that_an_arm_is_not_asked_are_no_levels_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An `[[exclude]]` for its platform: docker is asked but levels 2 and 4 of the object of 1 kB, none of the other.

    It missed at its least, and "in some block not even the least was told"; of the other, "nothing valid is known".
    """
    factors = LEVELS | {"load.object_bytes": [1000, 1000000]}
    made = write_run(tmp_path / "run", Recipe(arms=(NATIVE, DOCKER), factors=factors, blocks=2, bulk=False))
    plan = Plan.model_validate_json((made / "plan.json").read_text())

    def is_asked(trial: PlannedTrial) -> bool:
        at = trial.condition
        return trial.arm != DOCKER or (at["load.connections"] > 1 and at["load.object_bytes"] == 1000)

    kept = [trial for trial in plan.trials if is_asked(trial)]
    (made / "plan.json").write_text(plan.model_copy(update={"trials": kept}).model_dump_json())
    ids = {trial.id for trial in kept}
    records = (made / "trials.jsonl").read_text().splitlines(keepends=True)
    (made / "trials.jsonl").write_text("".join(each for each in records if json.loads(each)["trial"]["id"] in ids))
    told = json.loads(run(capsys, str(made), "--users", "10", "--objective", "rate > 1000000000", "--json")[1])
    (docker,) = [arm for arm in told["plans"][0]["arms"] if arm["arm"] == DOCKER.label]
    assert docker["below"] == 2


def test_deployments_of_one_block_are_one_observation() -> None:
    """Native is deployed in each group of a block: four blocks of two deployments have no narrower interval."""
    once = [Deployment(block, 100 + 10 * block, 0.5, GIB) for block in range(4)]
    assert size([*once, *once], HOST) == size(once, HOST)
    assert size([*alike(100), *alike(100)], HOST).blocks == 4


def test_what_is_answered_after_a_window_takes_none_of_its_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of what a window asked for is answered after its end, and is in the CPU time that is known of it."""

    def half(record: dict[str, Any]) -> None:
        (window,) = record["measured"]["windows"]
        whole_ns, work = window["duration_ns"], window["work"]
        window |= {"duration_ns": whole_ns // 2, "work": work / 2}
        window |= {"served": work, "until_ns": window["start_ns"] + whole_ns}

    recipe = Recipe(arms=(NATIVE, DOCKER), factors={"load.connections": [1, 32]}, blocks=4, requests=2000)
    made = altered(write_run(tmp_path / "run", recipe), half)
    study = (made / "study.json").read_text()
    (made / "study.json").write_text(study.replace('"limits.vcpus": 1', '"limits.vcpus": 4'))
    told = planned(capsys, str(made), "--users", "100", "--objective", "p99 < 10 ms")
    assert told["native+host"]["carried"]["value"] == pytest.approx(1)
    assert told["native+host"]["cpus"]["value"] == pytest.approx(0.95, rel=0.05)


def law(contention: float, crosstalk: float) -> scaling.Law:
    none = (1.0, 1.0, 1.0)
    return scaling.Law(100, contention, crosstalk, (4.0, 8, 16, 32), 0.0, 64.0, none, none)


@pytest.mark.parametrize(
    ("contention", "crosstalk", "peak"),
    [
        (0.05, 0.95 / 40**2, 40.0),  # between levels that were measured
        (0.05, 0.95 / 65**2, math.inf),  # beyond the highest: nobody saw it
        (0.05, 1e-12, math.inf),  # what a fit leaves where there is none
        (0.05, 0.95 / 2**2, 4.0),  # below the lowest
        (1.0, 0.0, 4.0),  # more users get no more at all
        (0.0, 0.0, math.inf),
    ],
)
def test_a_peak_is_told_where_users_were_tried(contention: float, crosstalk: float, peak: float) -> None:
    assert law(contention, crosstalk).peak == pytest.approx(peak)
