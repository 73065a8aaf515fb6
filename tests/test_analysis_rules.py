"""What the rules by which a run may end count, promise and ask for: against simulations, and against each other."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_up_studies import METRIC
from synthetic import AGAIN, DOCKER, KVM, LXC, NATIVE, PUBLISHED, UML, Recipe, write_run
from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Summary, summarise
from virtoll.analysis.load import read_run
from virtoll.analysis.matrix import build_matrix
from virtoll.analysis.measuring import measure_all
from virtoll.analysis.ratios import (
    Ratios,
    Row,
    family_of,
    judge_family,
    log_ratios,
    natives_of,
    over_conditions,
    summary_under,
    toll_table,
)
from virtoll.analysis.rules import FIXED, AtAnyTime, OverHosts, Rule, Sequential, TwoStage
from virtoll.analysis.verdicts import blocks_needed, judge
from virtoll.record.model import PlannedTrial
from virtoll.record.rules import Decide, Precision


def up_to(most: int) -> Sequential:
    return Sequential(Decide(margin=0.05, looks=tuple(range(4, most + 1))))


def test_it_is_each_probe_that_errs_in_five_of_a_hundred_runs_and_not_some_of_twenty() -> None:
    """What the answer says, simulated: 20 probes, one arm, looks after 4 to 12 blocks."""
    rule, rng, alarms, some, runs = up_to(12), np.random.default_rng(1), 0, 0, 100
    for _ in range(runs):
        before = alarms
        for _probe in range(20):
            alarm = False
            logs = rng.normal(0, 0.02, 12)
            for n in range(4, 13):
                (toll,) = judge_family(METRIC, [Row(DOCKER, None, summarise(logs[:n]), None, 1)], 1e-9, "", rule)
                alarm |= toll.verdict.kind in ("costs", "gains")
            alarms += alarm
        some += alarms > before
    assert alarms / runs / 20 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs / 20)
    assert some / runs > 0.3, "why it is not promised of a run"


def test_an_arm_is_judged_alike_whether_or_not_the_others_have_worked_yet() -> None:
    rule, alike = up_to(20), Summary(0.1, 0.02, 6)
    others = [Row(arm, None, None, None, 1) for arm in (LXC, PUBLISHED, KVM, UML)]
    measured = [replace(row, summary=Summary(0.0, 0.02, 6)) for row in others]
    mine = Row(DOCKER, None, alike, None, 1)
    first, then = (judge_family(METRIC, [mine, *rest], 0.01, "", rule)[0] for rest in (others, measured))
    assert first.verdict.kind == then.verdict.kind


def test_a_large_table_has_bounds_at_its_last_looks() -> None:
    rule, huge = up_to(100), Summary(1.0, 0.001, 100)
    verdict = judge(METRIC, huge, math.nan, margin=0.05, family=300, rule=rule)
    assert verdict.kind in ("costs", "gains"), verdict.words


def test_where_the_family_has_no_bound_yet_the_words_do_not_say_one_more_block() -> None:
    rule, huge = AtAnyTime(), Summary(1.0, 0.001, 5)
    verdict = judge(METRIC, huge, math.nan, margin=0.05, family=20, rule=rule)
    needed = next(n for n in range(6, 50) if rule.differs(replace(huge, n=n), math.nan, 20))
    assert verdict.needed is not None
    assert verdict.needed >= needed, verdict.words


def test_asks_of_a_sequential_run_whose_blocks_are_all_there() -> None:
    """20 of 20 blocks were run, of which an arm lost two."""
    words = up_to(20).asks(20, Summary(0.05, 0.02, 18), lost=2)
    assert words == "needs about 23 blocks in all, and this run has at most 20: begin a new one with --blocks 23"
    assert up_to(20).asks(20, Summary(0.05, 0.02, 18)) == "needs about 2 more blocks", "two are yet to come"
    assert up_to(20).asks(8, Summary(0.05, 0.02, 4), lost=4) == "needs about 8 more blocks", "every second is lost"
    assert "begin" not in up_to(20).asks(1200, Summary(0.05, 0.02, 20)), "it would be refused"


def test_the_blocks_that_a_fixed_run_is_said_to_need_do_when_it_is_extended() -> None:
    so_far = Summary(0.06, 0.03, 10)
    verdict = judge(METRIC, so_far, 0.1, margin=0.03, family=1, rule=FIXED)
    assert verdict.kind == "unsure"
    assert verdict.needed is not None
    then = Summary(so_far.mean, so_far.deviation / math.sqrt(verdict.needed), verdict.needed)
    assert judge(METRIC, then, 0.0, margin=0.03, family=1, rule=FIXED).kind != "unsure"
    assert judge(METRIC, then, math.nan, margin=0.03, family=1, rule=AtAnyTime()).kind != "unsure", verdict.words


@pytest.mark.parametrize("rule", [FIXED, AtAnyTime()])
def test_blocks_that_are_asked_for_are_more_than_pairs_where_some_are_lost(rule: Rule) -> None:
    """Of sixteen blocks eight hold it: as many again as it lacks pairs hold half of them."""
    so_far = Summary(0.06, 0.03, 8)

    def asked(lost: int) -> int:
        words = judge(METRIC, so_far, 0.1, margin=0.03, family=1, rule=rule, lost=lost).words
        found = re.search(r"(\d+) more", words)
        assert found is not None, words
        return int(found[1])

    assert asked(8) == 2 * asked(0)
    assert FIXED.asks(12, so_far, 8) == "needs about 8 more blocks"


def test_steins_interval_covers_where_the_pilot_lacks_a_condition() -> None:
    rule, rng, covered, runs = TwoStage(Precision(half_width=0.02, pilot=8, most=16)), np.random.default_rng(5), 0, 400
    for _ in range(runs):
        logs = np.stack([rng.normal(0, 0.01, 16), rng.normal(0, 0.05, 16)], axis=1)
        logs[:8, 1] = np.nan
        summary = summary_under(rule, logs)
        assert summary is not None
        covered += bool(rule.lacks(summary)) or abs(summary.mean) <= rule.half_width(summary)
    assert covered / runs >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / runs), covered / runs
    assert over_conditions(logs) is not None


@pytest.mark.parametrize("of_block", [0.0, 0.03])
def test_steins_interval_covers_where_a_condition_is_lost_after_the_pilot(of_block: float) -> None:
    rule, rng, covered, runs = TwoStage(Precision(half_width=0.02, pilot=8, most=40)), np.random.default_rng(6), 0, 1000
    for _ in range(runs):
        logs = rng.normal(0, 0.03, (40, 2)) + rng.normal(0, of_block, (40, 1))
        logs[8:, 1] = np.nan
        summary = summary_under(rule, logs)
        assert summary is not None
        covered += abs(summary.mean) <= rule.half_width(summary)
    assert covered / runs >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / runs), covered / runs


@pytest.mark.parametrize("of_arm", [0.03, 0.003])
def test_steins_interval_covers_where_native_again_is_lost_after_the_pilot(of_arm: float) -> None:
    """A log ratio to one native scatters more than the pilot's, to two: it held the truth in 92 of 100, and of an arm
    that scatters little itself in 90.
    """
    rule, rng, covered, runs = TwoStage(Precision(half_width=0.02, pilot=8, most=40)), np.random.default_rng(7), 0, 2000
    natives = np.full((40, 1), 2.0)
    natives[8:] = 1
    for _ in range(runs):
        arm, native = rng.normal(0, of_arm, 40), rng.normal(0, 0.03, (40, 2))
        native[8:, 1] = np.nan
        summary = summary_under(rule, (arm - np.nanmean(native, axis=1))[:, None], natives)
        assert summary is not None
        covered += abs(summary.mean) <= rule.half_width(summary)
    assert covered / runs >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / runs), covered / runs


def test_how_many_natives_a_toll_is_made_of_is_counted_by_its_table(tmp_path: Path) -> None:
    recipe = Recipe(arms=(NATIVE, AGAIN, DOCKER), blocks=6, factors={})
    plan = read_run(write_run(tmp_path / "first", recipe)).plan
    spoilt = {trial.id: "invalid" for trial in plan.trials if trial.arm == AGAIN and trial.block > 3}
    run = read_run(write_run(tmp_path / "run", replace(recipe, spoilt=spoilt)))
    matrix = build_matrix(run, measure_all(run))
    docker = next(number for number, arm in enumerate(matrix.arms) if arm.label == DOCKER.label)
    assert natives_of(matrix, "rate_per_s")[:, docker, 0].tolist() == [2, 2, 2, 1, 1, 1]
    rule = TwoStage(Precision(half_width=0.02, pilot=3, most=6))
    (row,) = (Ratios.of(matrix, "rate_per_s", rule).row(matrix.arms[docker], None, [0]),)
    plain = summary_under(rule, log_ratios(matrix, "rate_per_s")[:, docker, :])
    assert row.summary is not None
    assert plain is not None
    assert row.summary.error == pytest.approx(plain.error * math.sqrt((0.5 + 1) / 2 / 0.5))


def test_a_forecast_takes_what_is_lost_of_few_blocks_for_less_lost_of_many() -> None:
    summary = Summary(0.06, 0.03, 10)
    few = replace(summary, spread_of=3.0)
    needed = [blocks_needed(each, math.log1p(0.03), 1, AtAnyTime()) for each in (summary, few)]
    assert needed[0] == needed[1] < 200


def test_a_fixed_run_that_has_the_blocks_ahead_needs_no_other() -> None:
    so_far = Summary(0.06, 0.03, 10)
    words = {
        ahead: judge(METRIC, so_far, 0.1, margin=0.03, family=1, rule=FIXED, ahead=ahead).words for ahead in (0, 100)
    }
    assert re.fullmatch(r"cannot tell yet: needs about \d+ blocks in a new run, or \d+ more in this one", words[0])
    assert re.fullmatch(r"cannot tell yet: needs about \d+ more blocks", words[100])


@pytest.mark.parametrize("rule", [FIXED, AtAnyTime(), up_to(20), TwoStage(Precision(half_width=0.02, pilot=8, most=9))])
def test_a_verdict_knows_how_many_blocks_of_a_fixed_number_would_tell(rule: Rule) -> None:
    so_far = Summary(0.06, 0.03, 10)
    verdict = judge(METRIC, so_far, 0.1, margin=0.03, family=1, rule=rule)
    assert verdict.kind == "unsure"
    assert verdict.anew == blocks_needed(so_far, math.log1p(0.03), 1)
    assert verdict.needed is not None
    assert verdict.needed >= verdict.anew


def test_what_a_platform_is_never_asked_is_excluded_and_in_no_family(tmp_path: Path) -> None:
    """Seen: "not run yet" in a finished run, and a share of the error for comparisons that were never planned."""
    run = read_run(write_run(tmp_path / "r", Recipe(arms=(NATIVE, DOCKER, LXC), blocks=4)))
    left_out = Condition.of_levels({"load.object_bytes": 100_000, "load.connections": 100})

    def is_asked(trial: PlannedTrial) -> bool:
        return trial.arm.label != DOCKER.label or Condition.of(trial) != left_out

    plan = run.plan.model_copy(update={"trials": [trial for trial in run.plan.trials if is_asked(trial)]})
    asked = replace(run, plan=plan)
    matrix = build_matrix(asked, [each for each in measure_all(run) if is_asked(each.record.trial)])
    docker = next(arm for arm in matrix.arms if arm.label == DOCKER.label)
    assert matrix.why_missing("rate_per_s", docker, left_out) == "the study does not ask it of this arm"
    table = toll_table(matrix, "rate_per_s", rule=Sequential(Decide(margin=0.05, looks=(4,))))
    assert len(table.cells) == 8, "what is missing shows"
    assert table.family == 7


ALIKE = "blocks are all alike, and chance has no measure without a spread; needs"
RULES = [
    FIXED,
    up_to(20),
    TwoStage(Precision(half_width=0.02, pilot=8, most=9)),
    AtAnyTime(),
    OverHosts(("a", "b") * 3),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("values", [[math.log(1.05)] * 6, [0.1] * 6])
def test_blocks_that_are_all_alike_tell_no_cost(rule: Rule, values: list[float]) -> None:
    """A difference without a spread may be chance: "costs 5.0 % [5.0, 5.0]" had no interval to speak of."""
    summary = summarise(values)
    assert summary.is_alike
    assert ALIKE in rule.lacks(summary)
    found = rule.interval(summary, "t interval")
    assert (found.low, found.high) == (None, None)
    (toll,) = judge_family(METRIC, [Row(DOCKER, None, summary, None, 1)], 0.03, "", rule)
    assert (toll.verdict.kind, math.isnan(toll.p)) == ("unsure", True)
    assert ALIKE in toll.verdict.words


def test_hosts_that_are_all_alike_are_called_hosts() -> None:
    rule = OverHosts(tuple("abcdef"))
    assert rule.lacks(Summary(0.1, 0.0, 6)).startswith("its 6 hosts are all alike")


@pytest.mark.parametrize("rule", RULES)
def test_what_equals_native_in_every_block_is_no_difference(rule: Rule) -> None:
    """All was answered beside a neighbour, as before it: nothing is there that might be chance."""
    (toll,) = judge_family(METRIC, [Row(DOCKER, None, Summary(0.0, 0.0, 6), None, 1)], 0.03, "", rule)
    assert toll.verdict.kind == "same", toll.verdict.words


def test_two_alike_blocks_are_counted_out_of_the_family() -> None:
    rows = [
        Row(arm, None, summary, None, 1) for arm, summary in ((LXC, Summary(0.1, 0.0, 2)), (UML, Summary(0.3, 0.05, 9)))
    ]
    assert family_of(rows) == 1


def test_an_interval_that_is_as_wide_as_the_value_is_told_in_plain_numbers() -> None:
    """It said ± 1.7e+02 %."""
    words = TwoStage(Precision(half_width=0.02, pilot=2, most=16)).asks(9, Summary(0.0, 0.1, 2))
    assert "± 256 %" in words
