"""What a load's record says: the window's rate, percentiles that know what failed, logs that end too soon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from isolating import run_of
from synthetic import DOCKER, NATIVE, Recipe, write_run
from virtoll.analysis.cdf import shares_at
from virtoll.analysis.load import Histogram, read_run
from virtoll.analysis.measuring import (
    _latency,
    _leave_out_the_generators_own,
    _leave_out_too_few,
    _percentile_ms,
    _quantities,
    _throughput,
    measure,
    measure_all,
)
from virtoll.analysis.metrics import TrialMetrics
from virtoll.analysis.usage import _per_unit
from virtoll.record.model import Events, LogExtent, Measured, PlannedTrial, Quantity, TrialRecord, Window


def test_what_failed_is_slower_than_any_that_completed() -> None:
    some = Histogram(np.array([0, 10]), np.array([10, 20]), np.array([60, 30]), censored=10)
    assert (some.completed, some.total) == (90, 100)
    assert [some.quantile_ns(q) for q in (0.5, 0.6, 0.61, 0.9)] == [10, 10, 20, 20]
    assert [some.quantile_ns(q) for q in (0.91, 0.99, 1.0)] == [None, None, None]
    assert shares_at(some, np.array([10.0, 20.0, 99.0])) == pytest.approx([0.6, 0.9, 0.9])


def test_a_percentile_among_the_failed_is_missing_and_says_why() -> None:
    histogram = Histogram(np.array([0]), np.array([1000]), np.array([990]), censored=10)
    assert _percentile_ms(histogram, 0, 0.5) == 0.001
    assert _percentile_ms(histogram, 0, 0.99) == 0.001
    assert _percentile_ms(histogram, 0, 1.0) == "it lies among the 10 of 1,000 requests that failed"
    more = replace(histogram, censored=11)
    assert _percentile_ms(more, 0, 0.99) == "it lies among the 11 of 1,001 requests that failed"


def closed_trial(
    completed: int, censored: int = 0, status: Literal["valid", "invalid"] = "valid", name: str = "b01-t0001"
) -> TrialMetrics:
    """One of a closed loop that got so far."""
    planned = PlannedTrial(id=name, block=1, position=1, arm=NATIVE, condition={"load.connections": 5})
    load = load_of(offered=completed + censored, completed=completed, censored=censored)
    record = TrialRecord(trial=planned, status=status, started_at="2026-11-21T08:00:00Z", measured=load)
    trial = TrialMetrics(record)
    trial.histogram = Histogram(np.array([0]), np.array([1000]), np.array([completed]), censored=censored)
    _latency(trial, load, None)
    return trial


def test_the_five_beyond_a_percentile_may_have_failed() -> None:
    few, enough = closed_trial(495, censored=4), closed_trial(495, censored=5)
    for each in (few, enough):
        _leave_out_too_few([each])
    assert "too few requests: fewer than 5 lie beyond" in few.missing["latency_p99_ms"]
    assert enough.values["latency_p99_ms"] == 0.001


def test_a_percentile_has_company_in_all_trials_of_an_arm_or_in_none_by_their_median() -> None:
    """In closed loop the slow ones have fewer requests: were each judged by itself, these alone would go."""
    trials = [closed_trial(many) for many in (430, 480, 510, 530, 560)]
    alone = closed_trial(430, status="invalid", name="b01-t0002")
    _leave_out_too_few([*trials, alone])
    assert all(trial.values["latency_p99_ms"] == 0.001 for trial in trials)
    assert "latency_p99_ms" in alone.missing
    trials = [closed_trial(many) for many in (430, 480, 490, 530)] + [closed_trial(999, censored=11)]
    slow = [*trials, closed_trial(400)]
    _leave_out_too_few(slow)
    assert not any("latency_p99_ms" in trial.values or "latency_p99_ms" in trial.censored for trial in slow)
    assert {trial.missing["latency_p99_ms"][:16] for trial in slow} == {"too few requests"}
    assert all("latency_p90_ms" in trial.values for trial in slow)


def live_trial(key: str, status: Literal["valid", "invalid"] = "valid") -> TrialMetrics:
    """One of viewers of low-latency HLS that tells how much they watched, and (but for "") one thing more."""
    values = {"watching_percent": 50.0} | ({key: 7.0} if key else {})
    planned = PlannedTrial(id="b01-t0001", block=1, position=1, arm=NATIVE, condition={"load.viewers": 100})
    told = Measured(
        name="ll-hls-viewers",
        instrument="",
        unit="viewer-second",
        loop="open",
        quantities={name: Quantity(name, "", "less") for name in values},
        windows=[Window(start_ns=0, duration_ns=10**9, work=9.0, values=values)],
    )
    trial = TrialMetrics(TrialRecord(trial=planned, status=status, started_at="2026-11-21T08:00:00Z", measured=told))
    _quantities(trial, told)
    return trial


@pytest.mark.parametrize("key", ["live_latency_p99_ms", "media_age_ms", "stalled_percent"])
def test_what_a_load_tells_besides_is_told_of_all_trials_of_an_arm_or_of_none(key: str) -> None:
    """A trial that stalls gets too few parts for a percentile, and has no stalls where nobody watched: those in which
    it went well alone were told, and compared.
    """
    name, watching = f"ll-hls-viewers.{key}", "ll-hls-viewers.watching_percent"
    trials, invalid = [live_trial(key), live_trial(""), live_trial(key)], live_trial("", status="invalid")
    _leave_out_too_few([*trials, invalid])
    assert not any(name in trial.values or name in trial.parts for trial in trials)
    assert {trial.missing[name].partition(":")[0] for trial in trials} == {"in 1 of 3 trials it is not known"}
    assert all(watching in trial.values for trial in trials)
    all_or_none = [live_trial(key), live_trial(key)], [live_trial(""), live_trial("")]
    for told, same in zip((True, False), all_or_none, strict=True):
        _leave_out_too_few([*same, invalid])
        assert all((name in trial.values) is told and name not in trial.missing for trial in same)


@pytest.mark.parametrize(("toll", "told"), [(0.26, 12), (0.18, 0)])
def test_a_slow_arms_slow_deployments_keep_their_percentile(tmp_path: Path, toll: float, told: int) -> None:
    """Of an arm that gets near 500 requests into its window the ratio was one of its fast deployments: too good."""
    rates = {NATIVE.label: 8.0, DOCKER.label: 8.0 * toll}  # times 8.3/s, over 30 s
    recipe = Recipe(
        arms=(NATIVE, DOCKER), factors={"load.object_bytes": [10**7]}, truth=rates, blocks=12, noise=0.08, drift=0.0
    )
    run = read_run(write_run(tmp_path / "run", recipe))
    trials = [trial for trial in measure_all(run) if trial.record.trial.arm == DOCKER]
    totals = [trial.histogram.total for trial in trials if trial.histogram is not None]
    assert min(totals) < 500
    assert (max(totals) > 500) is bool(told)
    assert sum("latency_p99_ms" in trial.values for trial in trials) == told


def test_a_percentile_that_late_requests_could_move_is_not_told() -> None:
    latency = Histogram(np.array([0]), np.array([10**6]), np.array([10_000]))
    assert _percentile_ms(latency, 5, 0.999) == 1
    assert "it sent 6 of 10,000 requests late" in str(_percentile_ms(latency, 6, 0.999))
    assert _percentile_ms(latency, 50, 0.99) == 1


def open_trial(value_ms: float, late_ms: float, status: Literal["valid", "invalid"] = "valid") -> TrialMetrics:
    planned = PlannedTrial(id="b01-t0001", block=1, position=1, arm=NATIVE, condition={"load.rate": 5})
    trial = TrialMetrics(TrialRecord(trial=planned, status=status, started_at="2026-11-21T08:00:00Z"))
    trial.put("latency_p99_ms", value_ms)
    trial.late_ms["latency_p99_ms"] = late_ms
    return trial


def test_a_percentile_is_left_out_of_all_trials_or_of_none_by_the_medians() -> None:
    """Were each judged by its own value, of the fast arm's only the slow ones would stay."""
    clean = [open_trial(value, 2.0) for value in (3.0, 3.5, 9.0, 10.0, 11.0)]
    _leave_out_the_generators_own(clean)
    assert all("latency_p99_ms" in trial.values for trial in clean)
    spoilt = [open_trial(value, 2.0) for value in (3.0, 3.2, 3.5, 10.0, 11.0)]
    other = open_trial(3.0, 2.0, status="invalid")
    _leave_out_the_generators_own([*spoilt, other])
    assert not any("latency_p99_ms" in trial.values for trial in spoilt)
    assert "the generator's own: over all arms" in spoilt[-1].missing["latency_p99_ms"]
    assert "latency_p99_ms" in other.values


def load_of(
    *, work: float = 9_999, duration_ns: int = 2 * 10**9, cpu_ns: int | None = 10**9, **changes: Any
) -> Measured:
    """10,000 requests asked for; a rate of 5,000/s over two seconds."""
    given = {
        "intended": 10_000,
        "offered": 10_000,
        "completed": 10_000,
        "failures": {},
        "censored": 0,
        "drain": {"under_way": 1, "completed": 1, "end_ns": 3 * 10**9},
    }
    events = {"request": Events.model_validate({**given, **changes})}
    window = Window(start_ns=0, duration_ns=duration_ns, work=work, events=events, cpu_ns=cpu_ns)
    return Measured(name="made-up", instrument="made up 1", unit="request", loop="closed", windows=[window])


def throughput_of(load: Measured, asked: int, turn: str = "") -> TrialMetrics:
    planned = PlannedTrial(id="b01-t0001", block=1, position=1, arm=NATIVE, condition={}, turn=turn)
    trial = TrialMetrics(TrialRecord(trial=planned, status="valid", started_at="2026-11-21T08:00:00Z", measured=load))
    _throughput(trial, load, asked)
    return trial


def test_the_rate_is_the_windows_and_the_total_time_reaches_to_the_last_answer() -> None:
    trial = throughput_of(load_of(), asked=10_000)
    assert trial.values["rate_per_s"] == pytest.approx(4_999.5)
    assert trial.values["total_time_s"] == 3
    assert trial.values["generator_cpus"] == 0.5


def test_the_total_time_of_a_window_that_began_amid_its_load_is_by_its_rate() -> None:
    """Those who asked before it were answered in between, and the last of its own so much later."""
    led = load_of()
    led = led.model_copy(update={"windows": [led.window.model_copy(update={"asked_ns": -(10**9)})]})
    trial = throughput_of(led, asked=10_000)
    assert trial.values["total_time_s"] == pytest.approx(10_000 / 4_999.5)
    assert trial.notes["total_time_s"].endswith("its window began amid the load")


def test_cpu_time_of_more_than_the_window_is_told_over_its_own_stretch() -> None:
    window = load_of().window.model_copy(update={"cpu_span_ns": 4 * 10**9})
    trial = throughput_of(load_of().model_copy(update={"windows": [window]}), asked=10_000)
    assert trial.values["generator_cpus"] == 0.25
    assert trial.notes["generator_cpus"] == "over the whole run of made up 1, in which its window lay"


@pytest.mark.parametrize(
    ("answer_s", "completed", "partial", "rate"),
    [(1.2, 10, 10 * 0.8 / 1.2, 10 / 1.2), (2.2, 0, 10 * 2.0 / 2.2, 10 / 2.2), (0.15, 130, 10 / 3, 10 / 0.15)],
)
def test_the_rate_of_a_slow_service_is_neither_too_low_nor_missing(
    answer_s: float, completed: int, partial: float, rate: float
) -> None:
    """Ten connections that are always busy for two seconds, whatever the time of an answer."""
    load = load_of(
        work=completed + partial,
        cpu_ns=None,
        intended=completed + 10,
        offered=completed + 10,
        completed=completed + 10,
        drain={"under_way": 10, "completed": 10, "end_ns": round(2e9 + answer_s * 1e9)},
    )
    trial = throughput_of(load, asked=0)
    assert trial.values["rate_per_s"] == pytest.approx(rate)
    assert trial.values["total_time_s"] == pytest.approx(10_000 / rate)
    assert _per_unit(rate * 2 / 1000, load.window.work, "request", 1000) == pytest.approx(1.0)


def test_the_reason_for_no_rate_is_true() -> None:
    at_once = load_of(work=0, duration_ns=10**6, cpu_ns=0)
    assert "all were sent at once" in throughput_of(at_once, asked=10_000).missing["rate_per_s"]
    slower = throughput_of(at_once, asked=0).missing["rate_per_s"]
    assert slower == "slower than the window: no request was answered within it (take a longer load.time_limit)"
    in_turn = throughput_of(at_once, asked=0, turn="b01-c01")
    assert in_turn.missing["rate_per_s"].endswith("(take a longer rotation.window)")
    failed = load_of(work=0, duration_ns=10**6, cpu_ns=0, completed=0, failures={"reset": 10_000}, censored=10_000)
    assert throughput_of(failed, asked=10_000).missing["rate_per_s"] == "no request was completed"


def test_a_request_that_hung_is_neither_in_the_rate_nor_in_the_total_time() -> None:
    hung = load_of(
        completed=9_999,
        failures={"timeout": 1},
        censored=1,
        drain={"under_way": 1, "completed": 0, "end_ns": 122 * 10**9},
    )
    trial = throughput_of(hung, asked=10_000)
    assert trial.values["rate_per_s"] == pytest.approx(4_999.5)
    assert trial.values["total_time_s"] == pytest.approx(10_000 / 4_999.5)
    assert trial.notes["total_time_s"] == "estimated as 10,000 / rate: 1 of them failed"


def test_an_outside_instruments_percentiles_say_nothing_where_requests_failed() -> None:
    trial = throughput_of(load_of(failures={"reset": 3}, censored=3, percentiles_ns={"p50": 5}), asked=0)
    assert trial.record.measured is not None
    _latency(trial, trial.record.measured, None)
    assert trial.missing["latency_p50_ms"] == "3 requests failed, and made up 1 does not say where they stand"


def with_log(trial: TrialRecord, log: LogExtent | None) -> TrialRecord:
    """The same trial, of whose requests so much was recorded."""
    assert trial.measured is not None
    assert trial.measured.events is not None
    events = {"request": trial.measured.events.model_copy(update={"log": log})}
    window = trial.measured.window.model_copy(update={"events": events})
    return trial.model_copy(update={"measured": trial.measured.model_copy(update={"windows": [window]})})


def test_a_victim_whose_log_was_full_too_soon_is_not_judged(tmp_path: Path) -> None:
    run = read_run(run_of(tmp_path / "run", blocks=2))
    trial = next(record for record in run.records if record.outcome == "answered" and record.measured is not None)
    assert "goodput_during_per_s" in measure(run, trial).values
    for whole_ns, told in ((6 * 10**9, True), (5 * 10**9, False)):
        found = measure(run, with_log(trial, LogExtent(logged=5_000, whole_until_ns=whole_ns)))
        assert ("goodput_during_per_s" in found.values) == told
    assert found.missing["goodput_during_per_s"].startswith(
        "the request log was full after 5.0 of 6.0 s (5,000 requests)"
    )
    nothing = measure(run, with_log(trial, None))
    assert "were not recorded" in nothing.missing["p99_rise"]
