"""Two runs compared: the statistics against scipy's, the words, the threshold, refusals, and every form of output."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

import synthetic_programme as programmes
from synthetic import AGAIN, DOCKER, LXC, NATIVE, PUBLISHED, TRUTH, Recipe, write_run
from test_exit_codes import code_of
from test_foreign_runs import changed, poisoned
from virtoll.analysis.changes import Change, Matched, Step, differs_from_itself, judge_changes
from virtoll.analysis.estimates import Summary, summarise
from virtoll.analysis.metrics import Metric, load_metrics
from virtoll.analysis.ratios import Row
from virtoll.analysis.rules import FIXED, AtAnyTime, Rule, TwoStage
from virtoll.analysis.stopping import mixture_half_width
from virtoll.errors import IncomparableError, StoreError, StudyError
from virtoll.record.rules import Precision
from virtoll.report import change_forms as forms
from virtoll.report.changes import Compared, compare
from virtoll.report.history import history

RATE, CPU = (load_metrics("request")[name] for name in ("rate_per_s", "cpu_s_per_1000"))
FORMER, LATTER = [-0.02, 0.01, -0.03, 0.0, 0.02, -0.01], [-0.07, -0.05, -0.09, -0.04, -0.08]


def row(values: list[float], **more: Any) -> Row:
    return Row(DOCKER, None, summarise(values) if values else None, None, 1, **more)


def one(before: Row, after: Row, *, metric: Metric = RATE, rules: tuple[Rule, Rule] = (FIXED, FIXED)) -> Matched:
    return Matched(DOCKER, metric, "", before, after, rules)


def judged(before: list[float], after: list[float], threshold: float | None = None, metric: Metric = RATE) -> Change:
    return judge_changes([one(row(before), row(after), metric=metric)], threshold or 0.03, threshold)[0]


# -- the statistic ----------------------------------------------------------------------------------------


def test_the_change_is_welchs() -> None:
    step = Step(summarise(FORMER), summarise(LATTER), (FIXED, FIXED))
    theirs = scipy.stats.ttest_ind(LATTER, FORMER, equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert step.p() == pytest.approx(theirs.pvalue, rel=1e-9)
    assert step.freedom == pytest.approx(theirs.df, rel=1e-9)
    assert step.mean - step.half_width() == pytest.approx(interval.low, rel=1e-9)
    assert step.mean + step.half_width() == pytest.approx(interval.high, rel=1e-9)
    away = scipy.stats.ttest_ind(np.array(LATTER) + 0.02, FORMER, equal_var=False)
    assert step.p(-0.02) == pytest.approx(away.pvalue, rel=1e-9)


@pytest.mark.parametrize(("few", "many", "spread"), [(2, 10, 1), (2, 10, 2), (3, 10, 2), (4, 10, 2), (2, 3, 1)])
def test_equal_runs_of_few_blocks_and_many_are_called_different_no_more_often(few: int, many: int, spread: int) -> None:
    """By Welch's interval 10 % of those of two and ten were, at 5 %, and one table of five."""
    rng, pairs = np.random.default_rng(few * many * spread), 2000
    short, long = rng.normal(0, 0.02 * spread, (pairs, few)), rng.normal(0, 0.02, (pairs, many))
    steps = [Step(summarise(a), summarise(b), (FIXED, FIXED)) for a, b in zip(short, long, strict=True)]
    assert np.mean([step.p() < 0.05 for step in steps]) <= 0.06
    assert np.mean([abs(step.mean) <= step.half_width() for step in steps]) >= 0.94


def test_golden_words() -> None:
    change = judged(FORMER, LATTER, 0.02)
    assert change.words == "worse by 6 % [3, 8]"
    assert change.ratio is not None
    assert change.ratio.value == pytest.approx(0.940823, abs=1e-6)
    assert (change.kind, change.gate) == ("worse", "beyond")
    assert judged(LATTER, FORMER).words == "better by 6 % [3, 9]"
    assert judged(FORMER, LATTER, metric=CPU).words == "better by 6 % [3, 8]"


@pytest.mark.parametrize(
    ("shift", "threshold", "gate"),
    [(0.0, 0.05, "within"), (-0.04, 0.05, "open"), (-0.10, 0.05, "beyond"), (0.10, 0.05, "within")],
)
def test_the_threshold_is_held_against_the_intervals_bound(shift: float, threshold: float, gate: str) -> None:
    shifted = [value + shift for value in FORMER]
    assert judged(FORMER, shifted, threshold).gate == gate
    time_ = [-value for value in shifted]
    assert judged([-value for value in FORMER], time_, threshold, metric=CPU).gate == gate


def test_the_threshold_that_is_told_is_the_one_that_was_set(runs: Path) -> None:
    """A run up to 2.25 % worse was told to be worse by no more than 2.2 %."""
    compared = compare(runs / "a", runs / "slower", threshold=0.0225, names=["rate_per_s"])
    assert forms.sentence(compared) == "B is worse than A by more than 2.25 %: 1 of 2."
    assert "beyond 2.25 %" in forms.markdown(compared)
    assert judged(FORMER, FORMER, 0.0225).words == "no difference shown (within 2.25 %)"


def test_a_point_beyond_the_threshold_is_not_enough() -> None:
    wide = [value * 6 - 0.08 for value in FORMER]
    change = judged(FORMER, wide, 0.05)
    assert change.ratio is not None
    assert change.ratio.value < 0.95
    assert change.gate == "open"
    assert change.words.startswith("cannot tell: from")


def test_one_row_is_beyond_exactly_where_its_interval_is() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        before, after = rng.normal(0, 0.02, 6), rng.normal(-0.06, 0.02, 8)
        change = judged(list(before), list(after), 0.05)
        assert change.ratio is not None
        assert change.ratio.high is not None
        assert (change.gate == "beyond") == (change.ratio.high < 0.95)


def test_holm_is_over_the_table() -> None:
    alone = judged(FORMER, [value - 0.035 for value in FORMER])
    assert alone.kind == "worse"
    rest = [one(row(FORMER), row([value + 0.0005 * n for value in FORMER])) for n in range(20)]
    together = judge_changes([one(row(FORMER), row([v - 0.035 for v in FORMER])), *rest], 0.001)
    assert together[0].p == pytest.approx(21 * alone.p)
    assert together[0].kind == "unsure"
    assert together[0].smallest is not None
    assert alone.smallest is not None
    assert together[0].smallest > alone.smallest


def test_what_could_be_shown_is_shown_with_that_power() -> None:
    """Of studies whose change is as large as `smallest` says, 80 % are told as worse."""
    rng, smallest = np.random.default_rng(5), []
    before, after = rng.normal(0, 0.02, (2000, 10)), rng.normal(0, 0.02, (2000, 10))
    smallest = [judged(list(a), list(b)).smallest or 0.0 for a, b in zip(before[:300], after[:300], strict=True)]
    shift = math.log1p(-float(np.mean(smallest)))
    found = [judged(list(a), list(b + shift), None).p < 0.05 for a, b in zip(before, after, strict=True)]
    assert 0.76 < np.mean(found) < 0.86


def test_runs_that_were_looked_at_keep_their_own_intervals() -> None:
    rules = (AtAnyTime(), FIXED)
    before, after = summarise([*FORMER, *FORMER]), summarise([*LATTER, *LATTER])
    step = Step(before, after, rules)
    assert math.isnan(step.p())
    assert step.half_width() == pytest.approx(math.hypot(mixture_half_width(before), after.half_width()))
    far = [value - 0.4 for value in LATTER * 2]
    [change] = judge_changes([one(row(FORMER * 2), row(far), rules=rules)], 0.03, 0.05)
    assert (change.kind, change.gate) == ("worse", "beyond")
    assert math.isnan(change.p)


def test_a_pilots_spread_has_the_pilots_freedom() -> None:
    rule = TwoStage(Precision(half_width=0.02, pilot=4, most=100), 20)
    after = Summary(0.0, 0.01, 20, spread_of=4)
    step = Step(Summary(0.0, 1e-9, 1000), after, (FIXED, rule))
    assert step.freedom == pytest.approx(3, rel=1e-6)


def test_of_runs_that_were_as_long_as_their_pilots_asked_the_interval_holds() -> None:
    """More blocks where the pilot scattered more: both errors are of one size, and which was too small is not seen."""
    rng, pilot, missed = np.random.default_rng(7), 4, 0
    plan = TwoStage(Precision(half_width=0.02, pilot=pilot, most=10_000))

    def run() -> Summary:
        """Of a mean of 0; a pilot's mean and spread are independent."""
        deviation = 0.03 * math.sqrt(rng.chisquare(pilot - 1) / (pilot - 1))
        n = plan.needed(Summary(0.0, deviation / math.sqrt(pilot), pilot))
        return Summary(rng.normal(0, 0.03 / math.sqrt(n)), deviation / math.sqrt(n), n, spread_of=pilot)

    for _ in range(2000):
        step = Step(run(), run(), (plan, plan))
        missed += abs(step.mean) > step.half_width()
    assert missed <= 0.05 * 2000  # by Welch's it would be 9 of 100


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([0.1], FORMER, "run A: one block has no spread"),
        (FORMER, [0.1], "run B: one block has no spread"),
        ([], FORMER, "not measured"),
    ],
)
def test_too_little_is_told(before: list[float], after: list[float], told: str) -> None:
    change = judged(before, after, 0.05)
    assert told in change.words
    assert change.gate == "open"
    assert change.ratio is None or change.ratio.low is None


def test_a_0_has_no_ratio() -> None:
    [change] = judge_changes([one(row(FORMER, zeros=1), row(LATTER))], 0.03, 0.05)
    assert (change.kind, change.gate, change.ratio, change.before) == ("missing", "open", None, None)


def test_what_lacks_a_condition_is_not_within() -> None:
    whole = one(row(FORMER), row(FORMER))
    [change] = judge_changes([replace(whole, conditions=2)], 0.03, 0.05)
    assert (change.kind, change.gate) == ("same", "open")


@pytest.mark.parametrize("metric", [RATE, CPU])
def test_of_two_blocks_in_a_long_table_nothing_could_be_shown(metric: Metric) -> None:
    """Its half-width at the family's level is no number any more."""
    rows = [one(row([0.0, 0.3]), row([0.1, 0.1001]), metric=metric) for _ in range(900)]
    change = judge_changes(rows, 0.03, 0.05)[0]
    assert forms.least(change) == "not even 100 %"
    assert change.kind == "unsure"


def test_before_any_look_could_show_anything_the_json_is_valid() -> None:
    """Of six blocks looked at, an always-valid interval at a twentieth of the level has no end."""
    rules = (AtAnyTime(), AtAnyTime())
    for metric in (RATE, CPU):
        rows = [one(row(FORMER), row(FORMER[::-1]), rules=rules, metric=metric) for _ in range(20)]
        change = judge_changes(rows, 0.03)[0]
        json.dumps(forms._as_json(change), allow_nan=False)
        assert forms.least(change) == "not even 100 %"


def test_where_looks_share_the_error_a_row_without_a_ratio_keeps_its_share() -> None:
    """Else the shares would shrink while one looks, as arms begin to work."""
    rules = (AtAnyTime(), AtAnyTime())
    more = one(row(FORMER * 2), row(LATTER * 2), rules=rules)
    some = judge_changes([more, *[one(row([]), row(LATTER * 2), rules=rules)] * 9], 0.001)
    every = judge_changes([more] * 10, 0.001)
    assert some[0].smallest == every[0].smallest


@pytest.mark.parametrize(("rule", "told"), [(FIXED, True), (AtAnyTime(), False)])
def test_native_again_is_tested_as_its_run_tests_it(rule: Rule, told: bool) -> None:
    again = [value + 0.025 for value in FORMER]
    assert differs_from_itself(row(again), rule) is told


@given(
    st.lists(st.lists(st.floats(-3, 3), min_size=0, max_size=6), min_size=2, max_size=12),
    st.one_of(st.none(), st.floats(0.001, 0.5)),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_measured_words_and_gates_agree(values: list[list[float]], threshold: float | None) -> None:
    rows = [one(row(a), row(b)) for a, b in zip(values[::2], values[1::2], strict=False)]
    for change in judge_changes(rows, threshold or 0.03, threshold):
        assert (change.gate is None) == (threshold is None)
        if change.gate == "beyond":
            assert change.kind == "worse"
        if change.kind in ("same", "better") and threshold is not None:
            assert change.gate == "within"


def test_equal_runs_are_seldom_called_different() -> None:
    """As `python -m bench.compare` at greater length: 5 % of tables at most."""
    rng, alarms = np.random.default_rng(11), 0
    for _ in range(300):
        before, after = rng.normal(0, 0.03, (5, 6)), rng.normal(0, 0.03, (5, 8))
        rows = [one(row(list(a)), row(list(b))) for a, b in zip(before, after, strict=True)]
        alarms += any(change.kind in ("worse", "better") for change in judge_changes(rows, 0.03))
    assert alarms <= 22  # of 300 at 5 % there are more in 2 of 100 such tests, and the seed is fixed


# -- two run directories ----------------------------------------------------------------------------------

ARMS = (NATIVE, AGAIN, LXC, DOCKER)
BASE = Recipe(arms=ARMS, blocks=6, samples_per_trial=20)
PROBES = {name: programmes.PROBES[name] for name in ("linpack", "stream", "round-trip", "clock")}
PROGRAMME = programmes.Recipe(probes=PROBES, instruments={})
SLOWER = {**TRUTH, DOCKER.label: TRUTH[DOCKER.label] * 0.88}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """a; b: equal; slower: docker costs 12 % more; other: other arms and a condition less."""
    place = tmp_path_factory.mktemp("runs")
    write_run(place / "a", BASE)
    write_run(place / "b", replace(BASE, seed=2))
    write_run(place / "slower", replace(BASE, seed=3, truth=SLOWER))
    few = {"load.object_bytes": [1000], "load.connections": [1, 100]}
    write_run(place / "other", replace(BASE, seed=4, arms=(NATIVE, AGAIN, DOCKER, PUBLISHED), factors=few))
    return place


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a run, to be changed."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(runs / name, tmp_path / name))

    return copy


def of(compared: Compared, label: str, metric: str = "rate_per_s") -> Change:
    return next(
        c
        for c in compared.changes
        if (c.matched.arm.label, c.matched.metric.name, c.matched.condition) == (label, metric, "")
    )


def test_what_changed_is_found_and_nothing_else(runs: Path) -> None:
    compared = compare(runs / "a", runs / "slower", threshold=0.05)
    docker, lxc = of(compared, DOCKER.label), of(compared, LXC.label)
    assert (docker.kind, docker.gate) == ("worse", "beyond")
    assert docker.ratio is not None
    assert docker.ratio.low is not None
    assert docker.ratio.high is not None
    assert docker.ratio.low < 0.88 < docker.ratio.high
    assert (lxc.kind, lxc.gate) == ("same", "within")
    assert of(compared, DOCKER.label, "cpu_s_per_1000").kind == "worse"
    assert compared.gate == "beyond"
    assert not compared.environment
    assert {each.metric.name for each in compared.natives} == {"rate_per_s", "cpu_s_per_1000"}


def test_each_runs_ratio_is_that_of_its_report(runs: Path) -> None:
    from virtoll.report.findings import find

    compared, found = compare(runs / "a", runs / "b"), find(runs / "a")
    toll = found.tolls("rate_per_s").total(DOCKER)
    assert toll is not None
    assert of(compared, DOCKER.label).before is not None
    mine, theirs = of(compared, DOCKER.label).before, toll.ratio
    assert mine is not None
    assert theirs is not None
    assert (mine.value, mine.low, mine.high, mine.n) == (theirs.value, theirs.low, theirs.high, theirs.n)


def test_back_is_forth(runs: Path) -> None:
    forth, back = compare(runs / "a", runs / "slower"), compare(runs / "slower", runs / "a")
    one_, other = of(forth, DOCKER.label).ratio, of(back, DOCKER.label).ratio
    assert one_ is not None
    assert other is not None
    assert one_.value * other.value == pytest.approx(1)


def test_what_only_one_has_is_listed_and_not_compared(runs: Path) -> None:
    compared = compare(runs / "a", runs / "other", threshold=0.05)
    assert {change.matched.arm.label for change in compared.changes} == {DOCKER.label}
    told = " / ".join(compared.only)
    for words in ("only A has lxc+routed", "only B has docker+published", "only A has the condition"):
        assert words in told
    assert set(compared.lacking) == {LXC.label, "1 connection, 100 kB", "100 connections, 100 kB"}
    assert compared.gate in ("open", "beyond")
    docker = of(compared, DOCKER.label)
    assert docker.matched.conditions == 2
    back = compare(runs / "other", runs / "a", threshold=0.05)
    assert back.lacking == (PUBLISHED.label,)


def test_by_condition_each_is_a_row(runs: Path) -> None:
    compared = compare(runs / "a", runs / "slower", by_condition=True, names=["rate_per_s"])
    told = [(c.matched.arm.label, c.matched.condition) for c in compared.changes]
    assert len(told) == len(set(told)) == 2 * 4
    assert (DOCKER.label, "1 connection, 1 kB") in told
    assert all(c.kind == "worse" for c in compared.changes if c.matched.arm.label == DOCKER.label)
    assert all(each.before is not None for each in compared.natives)


def test_absolute_figures_are_refused_where_environments_differ(copied: Callable[[str], Path], runs: Path) -> None:
    other = copied("b")
    changed(other / "environment.json", lambda e: e["comparable"].update(kernel="6.2", mitigations={"meltdown": "x"}))
    compared = compare(runs / "a", other)
    assert not compared.natives
    assert compared.changes
    [told] = [line for line in forms.remarks(compared) if "not compared" in line]
    assert "kernel, mitigations.meltdown, mitigations.spectre_v2" in told


def test_a_reboot_is_no_other_environment(copied: Callable[[str], Path], runs: Path) -> None:
    """The pages that a kernel leaves after another boot were told as what environments differ in."""
    other = copied("b")
    changed(other / "environment.json", lambda e: e["comparable"]["machine"].update(memory_bytes=16 * 1024**3 + 4096))
    compared = compare(runs / "a", other)
    assert not compared.environment
    assert compared.natives


def test_an_arm_that_failed_everywhere_cannot_be_told(tmp_path: Path, runs: Path) -> None:
    spoilt = write_run(tmp_path / "r", replace(BASE, seed=2))
    lines = []
    for line in (spoilt / "trials.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["trial"]["arm"]["label"] == LXC.label:
            record |= {"status": "invalid", "reason": "the generator was the limit"}
        lines.append(json.dumps(record) + "\n")
    (spoilt / "trials.jsonl").write_text("".join(lines))
    compared = compare(runs / "a", spoilt, threshold=0.05)
    lxc = of(compared, LXC.label)
    assert lxc.words == "not measured in B: invalid: the generator was the limit"
    assert (lxc.kind, lxc.gate, lxc.after) == ("missing", "open", None)
    assert of(compared, DOCKER.label).gate == "within"
    assert compared.gate == "open"


def edited(run: Path, change: Callable[[Any], Any]) -> Path:
    """Each record of a run changed; those of which nothing is left are gone, from the plan as well."""
    records = [change(json.loads(line)) for line in (run / "trials.jsonl").read_text().splitlines()]
    kept = [record for record in records if record]
    ids = {record["trial"]["id"] for record in kept}
    (run / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))
    changed(run / "plan.json", lambda plan: plan.update(trials=[t for t in plan["trials"] if t["id"] in ids]))
    return run


def is_of(record: Any, label: str, connections: int) -> bool:
    trial = record["trial"]
    return bool(trial["arm"]["label"] == label and trial["condition"]["load.connections"] == connections)


def test_ratios_under_different_conditions_are_not_compared(tmp_path: Path) -> None:
    """Docker costs an eighth more under 100 connections than under one, in both; each run has measured one of them."""
    recipe = replace(BASE, factors={"load.connections": [1, 100]})
    paths: list[Path] = []
    for name, lost in (("a", 100), ("b", 1)):

        def change(record: Any, lost: int = lost) -> Any:
            if is_of(record, DOCKER.label, 100):
                window = record["measured"]["windows"][0]
                window["duration_ns"] = window["duration_ns"] * 8 // 7
            if is_of(record, DOCKER.label, lost):
                record |= {"status": "invalid", "reason": "the generator was the limit"}
            return record

        paths.append(edited(write_run(tmp_path / name, replace(recipe, seed=len(paths) + 1)), change))
    compared = compare(*paths, threshold=0.05)
    docker = of(compared, DOCKER.label)
    assert docker.words == "A and B have a ratio under different conditions only"
    assert (docker.kind, docker.gate, docker.ratio) == ("missing", "open", None)
    assert of(compared, LXC.label).kind == "same"


def test_a_condition_that_b_did_not_ask_of_an_arm_is_lacking(tmp_path: Path, runs: Path) -> None:
    """B's study excludes docker under 100 connections: it has the arm and the condition, but not the two together."""
    few = write_run(tmp_path / "few", replace(BASE, seed=2))
    edited(few, lambda record: None if is_of(record, DOCKER.label, 100) else record)
    compared = compare(runs / "a", few, threshold=0.5)
    assert compared.lacking == tuple(f"{DOCKER.label} under 100 connections, {size}" for size in ("1 kB", "100 kB"))
    assert f"only A was asked for {compared.lacking[0]}" in compared.only
    assert (compared.gate, forms.exit_code(compared)) == ("open", 6)
    back = compare(few, runs / "a", threshold=0.5)
    assert (back.lacking, back.gate) == ((), "within")


def test_natives_own_figure_is_not_of_the_blocks_that_did_not_fail(tmp_path: Path, runs: Path) -> None:
    def change(record: Any) -> Any:
        if record["trial"]["arm"]["label"] == NATIVE.label and record["trial"]["block"] < 4:
            failed = {"intended": 20_000, "offered": 20_000, "censored": 10_000}
            record["measured"]["windows"][0]["events"]["request"] |= failed
        return record

    run = edited(write_run(tmp_path / "r", replace(BASE, seed=2)), change)
    compared = compare(runs / "a", run, names=["latency_p90_ms"])
    assert {change.kind for change in compared.changes} == {"missing"}
    assert not compared.natives


def test_natives_own_figure_is_not_of_the_blocks_that_hold_no_0(tmp_path: Path) -> None:
    def change(record: Any) -> Any:
        trial = record["trial"]
        if trial["arm"]["label"] == NATIVE.label and trial["condition"]["probe"] == "linpack" and trial["block"] == 2:
            for window in record["measured"]["windows"]:
                window["values"]["gflops"] = 0.0
        return record

    one_, other = (
        programmes.write_programme(tmp_path / name, replace(PROGRAMME, blocks=3, seed=n)) for n, name in enumerate("ab")
    )
    edited(other, change)
    assert not compare(one_, other, names=["linpack.gflops"]).natives


def test_a_case_that_b_reports_nothing_of_is_not_within(tmp_path: Path) -> None:
    """Its trials are valid, and none of them holds the quantity: over the other cases alone B is as good as A."""

    def change(record: Any) -> Any:
        if record["trial"]["condition"].get("linpack.order") == 500:
            record["measured"]["quantities"].pop("gflops")
            for window in record["measured"]["windows"]:
                window["values"].pop("gflops")
        return record

    one_, other = (
        programmes.write_programme(tmp_path / name, replace(PROGRAMME, blocks=5, seed=n)) for n, name in enumerate("ab")
    )
    edited(other, change)
    compared = compare(one_, other, names=["linpack.gflops"], threshold=0.5)
    assert {change.gate for change in compared.changes} == {"open"}
    assert forms.few(compared.changes[0]) == "over 3 of 4 conditions"


def test_the_table_says_how_its_error_is_shared(copied: Callable[[str], Path], runs: Path) -> None:
    assert "tested together (Holm)" in forms.markdown(compare(runs / "a", runs / "b"))
    other = copied("b")
    rule = {"kind": "stein", "half_width": 0.02, "pilot": 4, "most": 6}
    changed(other / "plan.json", lambda plan: plan.update(rule=rule))
    (other / "looks.jsonl").touch()
    compared = compare(runs / "a", other)
    assert all(math.isnan(change.p) for change in compared.changes)
    assert "tested together (in equal shares)" in forms.markdown(compared)


def test_a_run_that_is_going_on_says_what_is_missing(tmp_path: Path, runs: Path) -> None:
    part = write_run(tmp_path / "r", replace(BASE, seed=2, sealed=70))
    compared = compare(runs / "a", part)
    [told] = [note for note in compared.notes if note.startswith("B: ")]
    assert "26 of 96 planned trials are not there yet" in told
    assert f"`virtoll run {part}` resumes it" in told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: s.update(service="nginx"), "service: squid in A, nginx in B"),
        (lambda s: s.update(design="rotation"), None),
        (lambda s: s["base"].update({"load.loop": "open"}), "load.loop: closed in A, open in B"),
        (lambda s: s["base"].update({"load.requests": 5}), "load.requests: 10000 in A, 5 in B"),
        (lambda s: s["base"].update({"limits.vcpus": 2}), None),
        (lambda s: s["base"].update({"a.new.key": 2}), None),
    ],
)
def test_another_study_is_refused_with_what_differs(
    change: Callable[[Any], None], told: str | None, copied: Callable[[str], Path], runs: Path
) -> None:
    other = copied("b")
    changed(other / "study.json", change)
    if told is None:
        configured = compare(runs / "a", other).configured
        assert configured in ((), ("limits.vcpus: 1 in A, 2 in B",))
        return
    with pytest.raises(IncomparableError, match=re.escape(told)) as refused:
        compare(runs / "a", other)
    assert "virtoll run proxy" in str(refused.value)


def test_a_level_that_one_run_fixes_is_the_others_level(tmp_path: Path, runs: Path) -> None:
    """A factor of one run may be a fixed value of the other: the condition is the same."""
    single = write_run(tmp_path / "r", replace(BASE, seed=2, factors={"load.object_bytes": [1000]}))
    changed(single / "study.json", lambda study: study["base"].update({"load.connections": 100}))
    compared = compare(runs / "a", single)
    assert of(compared, DOCKER.label).matched.conditions == 1
    assert sum("condition" in line for line in compared.only) == 3


def test_a_level_that_one_run_fixes_server_by_server_is_the_others_level(tmp_path: Path) -> None:
    """What a server has of its own stands in no base of its study's: the two had no condition in common."""

    def served(study: Any, bases: Mapping[str, Any]) -> None:
        servers = {name: {"service": "nginx", "load": "http", "base": own} for name, own in bases.items()}
        del study["base"]["load.connections"]
        study.update(service="", load="", claims=[], servers=servers)

    default = {name: {"load.connections": 1} for name in ("dns", "web")}
    own = {"dns": {"load.connections": 7}, "web": {"load.connections": 9}}
    paths: list[Path] = []
    for name, factors, bases in (("a", {"load.connections": [7, 8]}, default), ("b", {}, own)):
        recipe = replace(BASE, seed=len(paths), factors={"server": ["dns", "web"], **factors})
        paths.append(write_run(tmp_path / name, recipe))
        changed(paths[-1] / "study.json", partial(served, bases=bases))
    compared = compare(*paths, names=["rate_per_s"], by_condition=True)
    assert {change.matched.condition for change in compared.changes} == {"dns, 7 connections"}
    assert "only B has the condition web" in compared.only


def test_programmes_are_compared_case_by_case(tmp_path: Path) -> None:
    one_, other = (
        programmes.write_programme(tmp_path / name, replace(PROGRAMME, seed=n)) for n, name in enumerate("ab")
    )
    compared = compare(one_, other, threshold=0.05)
    told = {change.matched.metric.name for change in compared.changes}
    assert told == {metric.name for metric in compared.before.judged}
    assert len(told) > 3

    def slower(study: Any) -> None:
        study["programme"][0]["settings"]["window_ns"] = 7

    changed(other / "study.json", slower)
    with pytest.raises(IncomparableError, match="window_ns"):
        compare(one_, other)


def test_a_probe_that_never_worked_in_b_is_lacking(tmp_path: Path) -> None:
    """Of such a one not even the metrics are known; it must not pass for one that nobody asked for."""
    one_, other = (
        programmes.write_programme(tmp_path / name, replace(PROGRAMME, blocks=3, seed=n)) for n, name in enumerate("ab")
    )
    lines = (other / "trials.jsonl").read_text().splitlines()
    spoilt = [
        line.replace('"status":"valid"', '"status":"failed"') if '"probe":"linpack"' in line else line for line in lines
    ]
    (other / "trials.jsonl").write_text("".join(f"{line}\n" for line in spoilt))
    compared = compare(one_, other, threshold=0.5)
    assert compared.lacking == ("LINPACK",)
    assert "only A has LINPACK" in compared.only
    assert (compared.gate, forms.exit_code(compared)) == ("open", 6)
    assert compare(other, one_, threshold=0.5).lacking == ()


def test_what_was_not_asked_for_with_metrics_is_not_lacking(tmp_path: Path) -> None:
    """B has one probe less; of the other all is there."""
    of_a = {name: programmes.PROBES[name] for name in ("linpack", "stream")}
    of_b = {"linpack": of_a["linpack"]}
    one_, other = (
        programmes.write_programme(tmp_path / name, programmes.Recipe(blocks=5, seed=len(probes), probes=probes))
        for name, probes in (("a", of_a), ("b", of_b))
    )
    assert compare(one_, other, threshold=0.5).gate == "open"
    alone = compare(one_, other, names=["linpack.gflops"], threshold=0.5)
    assert (alone.lacking, alone.gate) == ((), "within")
    assert "only A has the condition stream" in alone.only


def test_what_neither_run_can_tell_keeps_no_gate_open(tmp_path: Path, runs: Path) -> None:
    """As of a search, whose windows are of many intensities: CPU per unit of work. Of one run alone it is missing."""
    one_, other = (write_run(tmp_path / name, replace(BASE, seed=n, bulk=False)) for n, name in enumerate("ab", 5))
    compared = compare(one_, other, threshold=0.5)
    assert {change.matched.metric.name for change in compared.changes} == {"rate_per_s"}
    assert compared.gate == "within"
    [told] = [line for line in compared.only if line.startswith("neither")]
    assert told.startswith("neither has CPU per 1,000 requests: ")
    alone = compare(runs / "a", other, threshold=0.5)
    assert {change.gate for change in alone.changes if change.matched.metric.name == "cpu_s_per_1000"} == {"open"}


def test_that_a_rate_is_no_capacity_is_told_whatever_is_compared(runs: Path, tmp_path: Path) -> None:
    paths = [Path(shutil.copytree(runs / name, tmp_path / name)) for name in "ab"]
    for run in paths:
        changed(run / "study.json", lambda study: study["base"].update({"limits.vcpus": 8}))
    for names in ([], ["rate_per_s"]):
        told = [line for line in compare(*paths, names=names).readings if "of its CPU: the rate says there" in line]
        assert [line[:3] for line in told] == ["A: ", "B: "], names


def test_what_an_answer_is_given_in_is_missed_where_neither_has_it(tmp_path: Path) -> None:
    """Two open loops without a latency: what they cost in CPU is not all that was asked."""
    loop = {"load.loop": "open"}

    def opened(record: Any) -> Any:
        record["measured"]["loop"] = "open"
        return record

    paths = [edited(write_run(tmp_path / name, replace(BASE, seed=n)), opened) for n, name in enumerate("ab", 5)]
    for run in paths:
        changed(run / "study.json", lambda study: study["base"].update(loop))
        for file in run.glob("trials/*/latency.parquet"):
            file.unlink()
    compared = compare(*paths, threshold=0.5)
    kinds = {change.matched.metric.name: change.kind for change in compared.changes}
    assert kinds == {"latency_p50_ms": "missing", "cpu_s_per_1000": "same"}
    assert compared.gate == "open"


def test_an_arm_that_fails_now_and_then_is_told(tmp_path: Path, runs: Path) -> None:
    """Its ratio is of the trials that did not; one that was cut short and made again is none of them."""
    spoilt = {"b01-t": "failed: it was killed", "b02-t": "interrupted: by the machine's end"}

    def change(record: Any) -> Any:
        reason = spoilt.get(record["trial"]["id"][:5])
        if reason and record["trial"]["arm"]["label"] == DOCKER.label:
            record |= {"status": "failed", "reason": reason}
        return record

    compared = compare(runs / "a", edited(write_run(tmp_path / "r", replace(BASE, seed=2)), change))
    [told] = [line for line in forms.remarks(compared) if "in no ratio" in line]
    assert told == f"B: 4 of {DOCKER.label}'s 20 trials are in no ratio, the first failed: failed: it was killed"


@pytest.mark.parametrize(
    ("lost", "alone", "none"),
    [
        ({AGAIN.label: (1, 2)}, {AGAIN.label: 8}, {}),
        ({NATIVE.label: (1,)}, {NATIVE.label: 4}, {}),
        ({NATIVE.label: (1, 2), AGAIN.label: (2,)}, {NATIVE.label: 4}, {NATIVE.label: 4, AGAIN.label: 4}),
    ],
)
def test_a_native_that_fails_now_and_then_is_told(
    lost: dict[str, tuple[int, ...]], alone: dict[str, int], none: dict[str, int], tmp_path: Path, runs: Path
) -> None:
    """Either is in every ratio: where one is lost it is to the other, and where both are there is none."""

    def change(record: Any) -> Any:
        if record["trial"]["block"] in lost.get(record["trial"]["arm"]["label"], ()):
            record |= {"status": "failed", "reason": "it was killed"}
        return record

    compared = compare(runs / "a", edited(write_run(tmp_path / "r", replace(BASE, seed=2)), change))
    lines = [line for line in forms.remarks(compared) if "it was killed" in line]
    other = "lost: in those blocks ratios are to the other native alone"
    wanted = [(each, words) for told, words in ((alone, other), (none, "in no ratio")) for each in told.items()]
    assert sorted(lines) == sorted(
        f"B: {count} of {label}'s 24 trials are {words}, the first failed: it was killed"
        for (label, count), words in wanted
    )


def test_a_native_that_did_not_answer_leaves_no_ratio(tmp_path: Path, runs: Path) -> None:
    """Beside other servers that is a result, and worse than any: the other native does not stand in."""

    def change(record: Any) -> Any:
        if (record["trial"]["block"], record["trial"]["arm"]["label"]) == (1, AGAIN.label):
            record |= {"status": "invalid", "reason": "requests were answered", "outcome": "did not answer"}
        return record

    compared = compare(runs / "a", edited(write_run(tmp_path / "r", replace(BASE, seed=2)), change))
    [told] = [line for line in forms.remarks(compared) if "requests were answered" in line]
    assert told.startswith(f"B: 4 of {AGAIN.label}'s 24 trials are in no ratio, the first invalid: ")


def test_the_same_run_twice_is_refused(runs: Path, copied: Callable[[str], Path]) -> None:
    for other in (runs / "a", copied("a")):
        with pytest.raises(IncomparableError, match="the same run twice"):
            compare(runs / "a", other)


def without_native(plan: Any) -> None:
    plan["trials"] = [trial for trial in plan["trials"] if trial["arm"]["platform"] != "native"]


def native_alone(plan: Any) -> None:
    plan["trials"] = [trial for trial in plan["trials"] if trial["arm"]["platform"] == "native"]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda run: (run / "trials.jsonl").write_text(""), "none of its 96 trials is there yet"),
        (lambda run: changed(run / "plan.json", without_native), "it has no native arm"),
        (lambda run: changed(run / "plan.json", native_alone), "it has no arm but native"),
        (
            lambda run: (run / "trials.jsonl").write_text(
                (run / "trials.jsonl").read_text().replace('"status":"valid"', '"status":"failed"')
            ),
            "trials is valid",
        ),
    ],
)
def test_what_has_nothing_to_compare_is_refused(
    spoil: Callable[[Path], None], told: str, copied: Callable[[str], Path], runs: Path
) -> None:
    other = copied("b")
    spoil(other)
    for pair in ((runs / "a", other), (other, runs / "a")):
        with pytest.raises(IncomparableError, match=told) as refused:
            compare(*pair)
        assert "->" in str(refused.value)


def test_a_metric_that_there_is_none_of_is_refused(runs: Path) -> None:
    for name in ("nothing", "generator_cpus"):
        with pytest.raises(StudyError, match="is judged in both runs") as refused:
            compare(runs / "a", runs / "b", names=[name])
        assert "rate_per_s" in str(refused.value)


def test_metrics_are_those_asked_for(runs: Path) -> None:
    compared = compare(runs / "a", runs / "slower", names=["latency_p90_ms", "memory_peak_mib"])
    assert {change.matched.metric.name for change in compared.changes} == {"latency_p90_ms", "memory_peak_mib"}
    assert of(compared, DOCKER.label, "latency_p90_ms").kind == "worse"


# -- the verb ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("a", "b"), 0),
        (("a", "slower"), 0),
        (("a", "b", "--fail-over", "5%"), 0),
        (("a", "slower", "--fail-over", "5%"), 5),
        (("a", "slower", "--fail-over", "50%"), 0),
        (("a", "slower", "--fail-over", "12%"), 6),
        (("a", "a"), 7),
        (("a", "nowhere"), 4),
        (("a", "b", "--fail-over", "5"), 2),
        (("a", "b", "--metrics", "nothing"), 2),
        (("a", "b", "--junit", "x.xml"), 2),
        (("a", "b", "--markdown", "no/such/place.md"), 4),
    ],
)
def test_exit_codes_are_apart(argv: tuple[str, ...], code: int, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    assert code_of("compare", *argv) == code


def test_a_reader_that_goes_away_is_no_success(runs: Path) -> None:
    argv = [sys.executable, "-m", "virtoll", "compare", str(runs / "a"), str(runs / "slower"), "--fail-over", "5%"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=200) == 130


def test_json_is_what_the_page_says(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("compare", str(runs / "a"), str(runs / "slower"), "--fail-over", "5%", "--json") == 5
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    page = (Path(__file__).parent.parent / "docs/JSON.md").read_text()
    section = page[page.index("## virtoll compare") :].partition("\n## ")[0]
    for key in {*told, *told["changes"][0], *told["native"][0], *told["changes"][0]["a"]}:
        assert f"`{key}`" in section, key
    assert told["gate"] == "beyond"


def test_markdown_and_junit(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, xml = tmp_path / "m.md", tmp_path / "j.xml"
    argv = (
        "compare",
        str(runs / "a"),
        str(runs / "slower"),
        "--fail-over",
        "5%",
        "--markdown",
        str(page),
        "--junit",
        str(xml),
    )
    assert code_of(*argv) == 5
    text = page.read_text()
    assert "**B is worse than A by more than 5 %: 2 of 4.**" in text
    assert re.search(r"\| Throughput \| docker\+routed \| .* worse by 1\d", text)
    suite = ElementTree.parse(xml).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "2", "0")
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert failed == {DOCKER.label}
    assert "worse by" in capsys.readouterr().out


def test_what_two_loads_call_alike_is_told_apart(tmp_path: Path) -> None:
    """Of servers under viewers of two kinds the goodput of either was *Goodput per viewer* of the same arm."""
    recipe = replace(BASE, factors={"server": ["tv", "web"]})
    paths = [write_run(tmp_path / name, replace(recipe, seed=seed)) for seed, name in enumerate("ab", 1)]
    loads = {"tv": "rtsp-viewers", "web": "viewers"}

    def watched(record: Any) -> Any:
        measured = record["measured"]
        measured["name"] = loads[record["trial"]["condition"]["server"]]
        measured["quantities"] = {"goodput": {"title": "Goodput per viewer", "unit": "Mbit/s", "better": "more"}}
        window = measured["windows"][0]
        window["values"] = {"goodput": window["work"] * 1e9 / window["duration_ns"]}
        return record

    def served(study: Any) -> None:
        servers = {name: {"service": "nginx", "load": load, "base": {}} for name, load in loads.items()}
        study.update(service="", load="", claims=[], servers=servers)

    for run in paths:
        edited(run, watched)
        changed(run / "study.json", served)
    compared = compare(*paths, threshold=0.5)
    suite = ElementTree.fromstring(forms.junit(compared))
    named = [(case.get("classname"), case.get("name")) for case in suite]
    assert len(named) == len(set(named)) == 2 * 4
    assert ("Goodput per viewer (rtsp-viewers)", DOCKER.label) in named
    assert "| Goodput per viewer (viewers) | docker+routed |" in forms.markdown(compared)
    (told,) = history(tmp_path, ["viewers.goodput", "rtsp-viewers.goodput"]).series
    assert {metric.title for metric in told.metrics} == {f"Goodput per viewer ({load})" for load in loads.values()}


# -- runs from elsewhere ----------------------------------------------------------------------------------


def test_no_text_of_a_run_is_markup_or_an_order_to_the_terminal(
    tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = tmp_path / "e\x1b[2Jvil"
    shutil.copytree(runs / "other", evil)
    (evil / "environment.json").write_text(json.dumps(poisoned(json.loads((evil / "environment.json").read_text()))))
    xml, page = tmp_path / "x.xml", tmp_path / "m.md"
    code_of("compare", str(runs / "a"), str(evil), "--fail-over", "5%", "--junit", str(xml), "--markdown", str(page))
    assert "\x1b" not in capsys.readouterr().out
    assert ElementTree.parse(xml).getroot().tag == "testsuite"
    assert "\x1b" not in page.read_text()


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_run_is_told_or_compared_and_nothing_else(seed: int, runs: Path, tmp_path: Path) -> None:
    """Values of any kind in the place of others: a sentence, or a comparison that every form can show."""
    rng = random.Random(seed)
    run = Path(shutil.copytree(runs / "b", tmp_path / "r"))
    for name in rng.sample(["study.json", "plan.json", "environment.json", "trials.jsonl"], 2):
        for _ in range(3):
            changed(run / name, lambda document: _spoil(document, rng))
    try:
        compared = compare(runs / "a", run, threshold=0.05)
    except (StoreError, IncomparableError, StudyError):
        return
    json.dumps(forms.as_json(compared))
    ElementTree.fromstring(forms.junit(compared))
    forms.markdown(compared)


def _spoil(document: Any, rng: random.Random) -> None:
    """Put something else in one place."""
    while True:
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(document[key], dict | list) and document[key] and rng.random() < 0.8:
            document = document[key]
            continue
        document[key] = rng.choice([None, 7, -1.5, "x", [], {}, [7], {"a": None}, True])
        return
