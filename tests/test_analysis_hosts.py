"""Blocks of several hosts: that intervals err as often as they say, and that hosts which differ are told apart."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synthetic import DOCKER, NATIVE, Recipe, write_run
from virtoll.analysis import hosts as analysis_hosts
from virtoll.analysis.audit import audited
from virtoll.analysis.estimates import LEVEL, Floats, over_conditions, summarise
from virtoll.analysis.hosts import MANY, apart, by_host, over_hosts
from virtoll.analysis.load import read_run
from virtoll.analysis.matrix import build_matrix
from virtoll.analysis.measuring import measure_all
from virtoll.analysis.objectives import held, objective_of
from virtoll.analysis.ratios import summary_under
from virtoll.analysis.rules import FIXED, OverHosts, rule_of
from virtoll.record.model import Arm, Audit, Plan, PlannedTrial, TrialRecord
from virtoll.report.findings import find
from virtoll.report.sections.hosts import Hosts

STUDIES = 2000
CHANCE = 3 * math.sqrt(0.05 * 0.95 / STUDIES)  # of a share of so many studies, at 5 %


def hosts_of(count: int, blocks: int) -> tuple[str, ...]:
    """So many blocks on each host, each host's among the others'."""
    return tuple(f"h{block % count}" for block in range(count * blocks))


def logs_of(rng: np.random.Generator, hosts: tuple[str, ...], tolls: Floats, spreads: Floats) -> Floats:
    numbers = np.array([int(host[1:]) for host in hosts])
    made: Floats = (tolls[numbers] + rng.normal(0, 1, len(hosts)) * spreads[numbers])[:, None]
    return made


def test_hosts_weigh_the_same_however_many_blocks_they_hold() -> None:
    logs = np.array([[0.1], [0.1], [0.1], [0.5], [0.7]])
    summary = over_hosts(("a", "a", "a", "b", "b"), logs, is_of_hosts=False)
    assert summary is not None
    assert summary.mean == pytest.approx((0.1 + 0.6) / 2)
    assert summary.n == 5
    assert summary.error == pytest.approx(0.1 / 2), "b's error over two hosts"
    assert summary.freedom == pytest.approx(1), "all of it is b's"


def test_equal_hosts_have_nearly_the_interval_of_as_many_blocks_of_one() -> None:
    rng = np.random.default_rng(1)
    hosts = hosts_of(3, 40)
    logs = logs_of(rng, hosts, np.zeros(3), np.full(3, 0.02))
    several, one = over_hosts(hosts, logs, is_of_hosts=False), over_conditions(logs)
    assert several is not None
    assert one is not None
    assert several.half_width() == pytest.approx(one.half_width(), rel=0.05)


@pytest.mark.parametrize("spreads", [(0.02, 0.02, 0.02), (0.01, 0.02, 0.08)], ids=["alike", "one is noisy"])
@pytest.mark.parametrize(
    "blocks", [(2, 2, 2), (3, 3, 3), (8, 8, 8), (2, 8, 8), (8, 8, 2), (4, 8, 8), (4, 20, 20)], ids=str
)
def test_with_few_hosts_the_interval_covers_the_mean_of_these(
    spreads: tuple[float, ...], blocks: tuple[int, ...]
) -> None:
    rng, tolls = np.random.default_rng(sum(blocks)), np.array([0.0, 0.1, 0.3])
    hosts = tuple(f"h{host}" for host, count in enumerate(blocks) for _ in range(count))
    missed = 0
    for _ in range(STUDIES):
        summary = over_hosts(hosts, logs_of(rng, hosts, tolls, np.array(spreads)), is_of_hosts=False)
        assert summary is not None
        missed += abs(summary.mean - tolls.mean()) > summary.half_width()
    assert missed / STUDIES <= 0.05 + CHANCE


def test_with_many_hosts_the_interval_covers_hosts_like_these_and_one_by_blocks_would_not() -> None:
    rng, hosts = np.random.default_rng(2), hosts_of(MANY, 4)
    missed = by_blocks = 0
    for _ in range(STUDIES):
        logs = logs_of(rng, hosts, rng.normal(0.1, 0.05, MANY), np.full(MANY, 0.02))
        for is_of_hosts in (True, False):
            summary = over_hosts(hosts, logs, is_of_hosts=is_of_hosts)
            assert summary is not None
            is_off = abs(summary.mean - 0.1) > summary.half_width()
            missed, by_blocks = missed + (is_off and is_of_hosts), by_blocks + (is_off and not is_of_hosts)
    assert abs(missed / STUDIES - 0.05) <= CHANCE
    assert by_blocks / STUDIES > 0.3, "else the test could not tell"


@pytest.mark.parametrize("spreads", [(0.02, 0.02, 0.02), (0.01, 0.02, 0.06)], ids=["alike", "one is noisy"])
def test_hosts_that_are_alike_are_seldom_called_different(spreads: tuple[float, ...]) -> None:
    rng, hosts, alarms = np.random.default_rng(3), hosts_of(3, 8), 0
    for _ in range(STUDIES):
        found = apart(by_host(hosts, logs_of(rng, hosts, np.full(3, 0.1), np.array(spreads))))
        assert found is not None
        alarms += found.p < 1 - LEVEL
    assert alarms / STUDIES <= 0.05 + CHANCE + 0.005, "Welch's test is an approximation"


def test_how_far_hosts_lie_apart_is_estimated_without_what_chance_makes_of_their_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(analysis_hosts, "_no_difference", lambda *_: math.nan)  # which takes longest of it
    rng, hosts = np.random.default_rng(4), hosts_of(4, 6)
    found = []
    for _ in range(STUDIES):
        each = apart(by_host(hosts, logs_of(rng, hosts, rng.normal(0, 0.04, 4), np.full(4, 0.05))))
        assert each is not None
        found.append(each.deviation**2)
    assert math.sqrt(np.mean(found)) == pytest.approx(0.04, rel=0.1)


def test_hosts_that_differ_are_found() -> None:
    rng, hosts = np.random.default_rng(5), hosts_of(2, 5)
    found = apart(by_host(hosts, logs_of(rng, hosts, np.array([0.05, 0.2]), np.full(2, 0.02))))
    assert found is not None
    assert found.p < 0.001
    assert found.deviation == pytest.approx(0.15 / math.sqrt(2), rel=0.3)


NAN = math.nan
FULL = [[0.1, 0.2], [0.2, 0.3]]


@pytest.mark.parametrize(
    "other",
    [[[9.0, 9.0], [NAN, NAN]], [[9.0, NAN], [9.0, NAN]], [[NAN, NAN], [NAN, NAN]], [[9.0, NAN], [NAN, NAN]]],
    ids=["one block", "one condition", "nothing", "one cell"],
)
def test_a_mean_of_few_hosts_has_no_interval_where_one_of_them_lacks_something(other: list[list[float]]) -> None:
    """It would be of other hosts, or conditions, than that of another arm or run, and be compared with it."""
    summary = over_hosts(("a", "a", "b", "b"), np.array(FULL + other), is_of_hosts=False)
    assert summary is not None
    assert math.isnan(summary.error)
    assert apart(by_host(("a", "a", "b", "b"), np.array(FULL + other))) is None


def test_a_host_that_holds_each_condition_in_one_block_only_leaves_no_interval() -> None:
    """It has two blocks, and of either condition one: nothing is known of how much it scatters under it."""
    hosts, logs = ("a", "a", "b", "b"), np.array([*FULL, [9.0, NAN], [NAN, 9.0]])
    summary = over_hosts(hosts, logs, is_of_hosts=False)
    assert summary is not None
    assert math.isnan(summary.error)
    assert rule_of(plan_of(*hosts)).lacks(summary).startswith("not every host has two blocks of it under all")


def test_a_host_with_one_more_condition_does_not_silence_the_others() -> None:
    """Three hosts at 1.6, 1.1 and 1.6; only the second one holds the second condition as well."""
    logs = np.log([[1.6, NAN], [1.6, NAN], [1.1, 1.1], [1.1, 1.2], [1.6, NAN], [1.6, NAN]])
    summary = over_hosts(("a", "a", "b", "b", "c", "c"), logs, is_of_hosts=False)
    assert summary is not None
    assert math.isnan(summary.error), "one of three is not their mean"


def test_of_many_hosts_more_than_half_must_hold_every_condition() -> None:
    hosts = tuple(f"h{host}" for host in range(6))
    logs = np.array([[0.1, 0.1], [0.2, 0.2], [0.3, 0.3], [0.4, 0.4], [9.0, NAN], [9.0, NAN]])
    summary = over_hosts(hosts, logs, is_of_hosts=True)
    assert summary is not None
    assert summary.mean == pytest.approx(0.25)
    assert summary.n == 4
    assert math.isfinite(summary.error)
    logs[3, 1] = NAN
    summary = over_hosts(hosts, logs, is_of_hosts=True)
    assert summary is not None
    assert math.isnan(summary.error)


@pytest.mark.parametrize(("hosts", "blocks"), [(5, 2), (8, 2), (16, 2), (16, 3), (16, 8)], ids=str)
def test_many_hosts_of_few_blocks_that_are_alike_are_seldom_called_different(hosts: int, blocks: int) -> None:
    rng, alarms, studies = np.random.default_rng(hosts * blocks), 0, 400
    for _ in range(studies):
        logs = logs_of(rng, hosts_of(hosts, blocks), np.full(hosts, 0.1), np.full(hosts, 0.02))
        found = apart(by_host(hosts_of(hosts, blocks), logs))
        assert found is not None
        alarms += found.p < 1 - LEVEL
    assert alarms / studies <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / studies)


def test_what_is_not_finite_is_missing() -> None:
    found = by_host(("a", "a", "b", "b"), np.array([[0.1], [0.2], [-math.inf], [0.3]]))
    assert found["a"].n == 2
    assert (found["b"].mean, found["b"].n) == (0.3, 1)


@pytest.mark.parametrize(
    ("logs", "lacks"),
    [
        ([[math.nan], [math.nan]], None),
        ([[0.1], [0.2]], "not every host has two blocks"),
        ([[0.1], [math.nan]], "not every host has two blocks"),
    ],
)
def test_no_number_without_support(logs: list[list[float]], lacks: str | None) -> None:
    rule = OverHosts(("a", "b"))
    summary = summary_under(rule, np.array(logs))
    if lacks is None:
        assert summary is None
        return
    assert summary is not None
    assert lacks in rule.lacks(summary)
    assert rule.interval(summary, "t interval").low is None


def test_two_equal_blocks_have_no_p() -> None:
    found = apart(by_host(("a", "a", "b", "b"), np.array([[0.1], [0.1], [0.2], [0.3]])))
    assert found is not None
    assert math.isnan(found.p)


def plan_of(*hosts: str) -> Plan:
    arm = Arm(label="native+host", platform="native", network="host", role="baseline")
    trials = [
        PlannedTrial(id=f"b{block:02d}-t{block:04d}", block=block, position=block, arm=arm, condition={}, host=host)
        for block, host in enumerate(hosts, 1)
    ]
    return Plan(seed=1, blocks=len(hosts), trials=trials, estimate_s=1)


def test_what_is_the_replicate_follows_from_the_plan_alone() -> None:
    assert rule_of(plan_of("", "", "")) is FIXED
    one = over_hosts(("a", "a", "a"), np.array([[0.1], [0.2], [0.4]]), is_of_hosts=False)
    assert one is not None
    assert one.half_width() == pytest.approx(summarise([0.1, 0.2, 0.4]).half_width()), "one host is one machine"
    few, many = rule_of(plan_of(*"abab")), rule_of(plan_of(*"abcde" * 2))
    assert isinstance(few, OverHosts)
    assert isinstance(many, OverHosts)
    assert (few.is_of_hosts, many.is_of_hosts) == (False, True)
    assert "n = blocks" in few.interval(summarise([0.1, 0.2]), "t interval, n = blocks").method
    assert "t interval by hosts, n = hosts" in many.interval(summarise([0.1, 0.2]), "t interval, n = blocks").method
    assert "more blocks on each host, in a new run" in few.asks(9, summarise([0.1, 0.2]))
    assert many.asks(9, summarise([0.1, 0.2])) == "needs more hosts, in a new run"


def test_what_arms_differ_in_is_told_host_by_host_that_with_most_arms_first() -> None:
    native = Arm(label="native+host", platform="native", network="host", role="baseline")
    docker = Arm(label="docker+routed", platform="docker", network="routed")

    def record(arm: Arm, host: str, kernel: str) -> TrialRecord:
        trial = PlannedTrial(id=f"{host}-{arm.platform}", block=1, position=1, arm=arm, condition={}, host=host)
        audit = Audit(process="nginx", found={"kernel": kernel})
        return TrialRecord(trial=trial, status="valid", started_at="2026-01-01", audit=audit)

    records = [record(native, "a", "6.1"), record(docker, "b", "6.12"), record(native, "b", "6.12")]
    by_host = audited(records)
    assert list(by_host) == ["b", "a"]
    (found,) = by_host["b"]
    assert [(arm.label, audit.found["kernel"]) for arm, audit in found.audits] == [
        ("native+host", "6.12"),
        ("docker+routed", "6.12"),
    ]
    assert by_host["a"][0].differences == ()
    assert audited([]) == {}


@pytest.mark.parametrize(
    ("hosts", "why"),
    [("aaab", "not every host has two blocks of it under all of its conditions"), ("", "one block has no interval")],
)
def test_an_objective_of_several_hosts_is_not_said_to_be_of_one_block(tmp_path: Path, hosts: str, why: str) -> None:
    blocks = max(1, len(hosts))
    run = read_run(write_run(tmp_path / "r", Recipe(arms=(NATIVE, DOCKER), factors={}, blocks=blocks, bulk=False)))

    def placed(trial: PlannedTrial) -> PlannedTrial:
        return trial.model_copy(update={"host": hosts[trial.block - 1] if hosts else ""})

    plan = run.plan.model_copy(update={"trials": [placed(trial) for trial in run.plan.trials]})
    records = tuple(record.model_copy(update={"trial": placed(record.trial)}) for record in run.records)
    run = replace(run, plan=plan, records=records)
    matrix = build_matrix(run, measure_all(run))
    one = held(matrix, objective_of("throughput > 1", matrix.metrics), DOCKER)
    assert (one.told, one.why) == ("cannot tell", why)
    assert one.needed == (None if hosts else 2)


def test_hosts_that_differ_by_little_are_told_with_the_decimals_that_say_so(tmp_path: Path) -> None:
    """It read: 0.99 on node1 to 0.99 on node3."""
    run = write_run(tmp_path / "r", Recipe(arms=(NATIVE, DOCKER), factors={}, blocks=9, noise=1e-4, bulk=False))
    plan = json.loads((run / "plan.json").read_text())
    for trial in plan["trials"]:
        trial["host"] = f"node{trial['block'] % 3 + 1}"
    (run / "plan.json").write_text(json.dumps(plan))
    of = {trial["id"]: trial for trial in plan["trials"]}
    records = [json.loads(line) for line in (run / "trials.jsonl").open()]
    for record in records:
        record["trial"] = of[record["trial"]["id"]]
        if record["trial"]["arm"]["platform"] == "docker":  # 0.985 of native's, and a thousandth more on each next host
            for window in record["measured"]["windows"]:
                window["duration_ns"] = round(window["duration_ns"] / (1 + int(record["trial"]["host"][-1]) / 1000))
    (run / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (said,) = Hosts().answer(find(run))
    assert "docker+routed: 0.9862 on node1 to 0.9879 on node3" in said
