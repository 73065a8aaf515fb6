"""Each test fails where runs that end by a rule say something that does not hold. Review, round 1."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_up_studies import METRIC
from synthetic import DOCKER, KVM, LXC, PUBLISHED, UML
from test_claims import programme
from test_deciding import PROBED, TWENTY, Bench, half_width_of
from virtoll.analysis.claims import judge_paper
from virtoll.analysis.crosscheck import cross_checks
from virtoll.analysis.estimates import Summary, summarise
from virtoll.analysis.load import read_run
from virtoll.analysis.matrix import build_matrix
from virtoll.analysis.metrics import measure_all
from virtoll.analysis.papers import read_paper
from virtoll.analysis.ratios import Row, judge_family, over_conditions, summary_under
from virtoll.analysis.rules import FIXED, AtAnyTime, Sequential, TwoStage
from virtoll.analysis.stopping import GroupSequential
from virtoll.analysis.verdicts import judge
from virtoll.errors import PlatformError
from virtoll.record.model import PlannedTrial
from virtoll.record.rules import Decide, Precision
from virtoll.record.store import RunDirectory
from virtoll.report import ending
from virtoll.report.findings import find
from virtoll.report.running import RunningTable


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def up_to(most: int) -> Sequential:
    return Sequential(Decide(margin=0.05, looks=tuple(range(4, most + 1))))


# 1. Of a programme the answer promises 5 of 100 runs; it is 5 of 100 a probe.


def test_a_programmes_answer_does_not_promise_for_the_run_what_holds_for_a_row(bench: Bench) -> None:
    bench.spread = 0.005
    bench.run("--decide", "5%", text=PROBED)
    (told,) = ending.told(find(bench.out))
    assert "in at most 5 of 100 such runs would any arm" not in told or "each" in told


def test_runs_of_twenty_probes_with_equal_arms_are_not_mostly_false() -> None:
    """What that sentence says, simulated: 20 probes, one arm, looks after 4 to 12 blocks."""
    rule, rng, alarms, runs = up_to(12), np.random.default_rng(1), 0, 200
    for _ in range(runs):
        alarm = False
        for _probe in range(20):
            logs = rng.normal(0, 0.02, 12)
            for n in range(4, 13):
                (toll,) = judge_family(METRIC, [Row(DOCKER, None, summarise(logs[:n]), None, 1)], 1e-9, "", rule)
                alarm |= toll.verdict.kind in ("costs", "gains")
        alarms += alarm
    assert alarms / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs), f"{alarms} of {runs} runs"


# 2. Stein: the number of blocks counts blocks, the interval counts pairs.


def test_steins_interval_is_as_narrow_as_was_told_where_the_pilot_lost_pairs(bench: Bench) -> None:
    bench.spread = 0.02

    def flaky(trial: PlannedTrial) -> None:
        if trial.arm.platform == "docker" and trial.block in (1, 2, 3):
            raise PlatformError("it did not boot this time")

    bench.before = flaky
    bench.run("--precision", "2%")
    first, last = RunDirectory(bench.out).looks()
    assert "± 2 % needs" in first.why
    assert last.ends
    (toll,) = find(bench.out).answering()
    assert half_width_of(toll) <= math.log(1.02) * (1 + 1e-9), (first.why, half_width_of(toll), toll.ratio)


# 3. The family is what has two blocks by now, not what was planned: it grows while one looks.


def test_an_arm_is_judged_alike_whether_or_not_the_others_have_worked_yet() -> None:
    rule, alike = up_to(20), Summary(0.1, 0.02, 6)
    others = [Row(arm, None, None, None, 1) for arm in (LXC, PUBLISHED, KVM, UML)]
    measured = [replace(row, summary=Summary(0.0, 0.02, 6)) for row in others]
    mine = Row(DOCKER, None, alike, None, 1)
    first, then = (judge_family(METRIC, [mine, *rest], 0.01, "", rule)[0] for rest in (others, measured))
    assert first.verdict.kind == then.verdict.kind


# 4. With many comparisons and looks the simulated paths run out: bounds become infinite, and words empty.


def test_a_large_table_has_bounds_at_its_last_looks() -> None:
    rule, huge = up_to(100), Summary(1.0, 0.001, 100)
    verdict = judge(METRIC, huge, math.nan, margin=0.05, family=300, rule=rule)
    assert verdict.kind in ("costs", "gains"), verdict.words


def test_more_comparisons_have_no_narrower_bounds() -> None:
    looks = tuple(range(4, 101))
    of_150, of_180 = (GroupSequential(looks, "pocock", 0.05 / family).critical[100] for family in (150, 180))
    assert of_180 >= of_150


def test_where_the_family_has_no_bound_yet_the_words_do_not_say_one_more_block() -> None:
    rule, huge = AtAnyTime(), Summary(1.0, 0.001, 5)
    verdict = judge(METRIC, huge, math.nan, margin=0.05, family=20, rule=rule)
    needed = next(n for n in range(6, 50) if rule.differs(replace(huge, n=n), math.nan, 20))
    assert verdict.needed is not None
    assert verdict.needed >= needed, verdict.words


# 5. A run that is told to have many blocks crashes.


def test_more_looks_than_a_plan_may_hold_are_refused_with_words(bench: Bench, capsys: Any) -> None:
    assert bench.run("--decide", "5%", "--blocks", "1001", "--dry-run") in (0, 2)


# 6. What never varies was judged, and under a rule is not; the reason given is another.


@pytest.mark.parametrize(
    "rule", [Decide(margin=0.05, looks=(4, 5, 6)), Precision(half_width=0.02, pilot=4, most=6)], ids=["decide", "stein"]
)
def test_what_an_instance_believes_is_judged_under_a_rule_too(tmp_path: Path, rule: Decide | Precision) -> None:
    programme(tmp_path / "r", blocks=6)
    run = read_run(tmp_path / "r")
    run = replace(run, plan=run.plan.model_copy(update={"rule": rule}))
    judged = judge_paper(read_paper("kvm-openvz-lxc"), build_matrix(run, measure_all(run)))
    (seen,) = (s for s in judged.statements if s.statement.over == "lxc" and s.measured and not s.statement.under)
    assert seen.measured[0][1].value == pytest.approx(32)
    assert seen.outcome == "agrees"


def test_a_claim_before_the_first_look_is_not_said_to_be_of_one_block(tmp_path: Path) -> None:
    programme(tmp_path / "r", blocks=3)
    run = read_run(tmp_path / "r")
    run = replace(run, plan=run.plan.model_copy(update={"rule": Decide(margin=0.05, looks=tuple(range(4, 21)))}))
    judged = judge_paper(read_paper("kvm-openvz-lxc"), build_matrix(run, measure_all(run)))
    said = {cell.why for table in judged.tables for cell in table.cells.values() if cell.measured_ratio is not None}
    assert "one block has no interval" not in said


# 7. Cross-checks have plain intervals and verdicts under every rule.


def test_cross_checks_go_by_the_rule_in_force(tmp_path: Path) -> None:
    programme(tmp_path / "r", blocks=6, instruments={"linpack": ("other", 1.0)})
    run = read_run(tmp_path / "r")
    plain = cross_checks(build_matrix(run, measure_all(run)))[0]
    run = replace(run, plan=run.plan.model_copy(update={"extended": (4,)}))
    ruled = cross_checks(build_matrix(run, measure_all(run)))[0]
    assert plain.ratio is not None
    assert ruled.ratio is not None
    assert ruled.ratio.high != plain.ratio.high
    assert "always-valid" in ruled.ratio.method


# 8. "needs about N more blocks" where there can be none, or as many do not do.


def test_asks_of_a_sequential_run_whose_blocks_are_all_there() -> None:
    """20 of 20 blocks were run, of which an arm lost two."""
    words = up_to(20).asks(20, Summary(0.05, 0.02, 18))
    assert "more block" not in words, "nothing can be added to this run"


def test_the_blocks_that_a_fixed_run_is_said_to_need_do_when_it_is_extended() -> None:
    so_far = Summary(0.06, 0.03, 10)
    verdict = judge(METRIC, so_far, 0.1, margin=0.03, family=1, rule=FIXED)
    assert verdict.kind == "unsure"
    assert verdict.needed is not None
    then = Summary(so_far.mean, so_far.deviation / math.sqrt(verdict.needed), verdict.needed)
    assert judge(METRIC, then, 0.0, margin=0.03, family=1, rule=FIXED).kind != "unsure"
    assert judge(METRIC, then, math.nan, margin=0.03, family=1, rule=AtAnyTime()).kind != "unsure", verdict.words


def test_a_run_in_its_second_stage_is_not_told_to_begin_anew(bench: Bench) -> None:
    bench.spread, bench.tolls["docker"] = 0.02, 1.02
    bench.fail["b10-t0029"] = KeyboardInterrupt()
    bench.run("--precision", "2%")
    (look,) = RunDirectory(bench.out).looks()
    assert not look.ends
    assert not look.compared[0].decided
    assert "a new run" not in look.compared[0].words, look.compared[0].words


# 9. "cannot be compared" of an arm that can.


def test_an_arm_that_lacks_one_probe_is_not_said_to_be_beyond_comparison(bench: Bench) -> None:
    bench.spread = 0.005

    def broken(trial: PlannedTrial) -> None:
        if trial.arm.platform == "docker" and trial.condition["probe"] == "clock":
            raise PlatformError("no clock")

    bench.before = broken
    bench.run("--decide", "5%", text=PROBED)
    look = RunDirectory(bench.out).looks()[-1]
    assert look.ends
    assert "(docker+routed cannot be compared, and is not waited for)" not in look.why


# 10. The running table's pilot is not the report's.


def test_the_running_tables_pilot_is_the_reports(bench: Bench) -> None:
    bench.spread = 0.02

    def flaky(trial: PlannedTrial) -> None:
        if trial.arm.role == "baseline" and trial.block == 3:
            raise PlatformError("it did not start this time")

    bench.before = flaky
    bench.run("--precision", "2%", text=TWENTY)
    directory, findings = RunDirectory(bench.out), find(bench.out)
    (toll,) = findings.answering()
    table = RunningTable(directory.records(), findings.rule)
    docker = next(row for row in table.rows() if row.arm.platform == "docker")
    assert docker.half_width == pytest.approx(math.expm1(half_width_of(toll)))


# 11. Stein: a condition that the pilot does not hold is in the mean, and not in its spread.


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


# 12. Stein: an arm that the pilot does not hold gets no interval in this run, and no look says so.


def test_an_arm_that_the_pilot_lacks_is_named_by_its_look(bench: Bench) -> None:
    bench.spread, bench.tolls["lxc"] = 0.02, 1.0

    def late(trial: PlannedTrial) -> None:
        if trial.arm.platform == "lxc" and trial.block <= 7:
            raise PlatformError("not yet")

    bench.before = late
    bench.run("--precision", "2%", text=TWENTY + '[[arms]]\nplatform = "lxc"\n')
    first = RunDirectory(bench.out).looks()[0]
    lxc = next(toll for toll in find(bench.out).answering() if toll.arm.platform == "lxc")
    assert lxc.ratio is not None
    assert lxc.ratio.n > 2
    assert lxc.ratio.low is not None or "lxc" in first.why, (first.why, lxc.verdict.words)
