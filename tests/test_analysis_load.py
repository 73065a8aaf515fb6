"""What a load's record says: the window's rate, percentiles that know what failed, logs that end too soon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isolating import run_of
from synthetic import NATIVE
from virtoll.analysis.cdf import shares_at
from virtoll.analysis.load import Histogram, read_run
from virtoll.analysis.metrics import TrialMetrics, _latency, _percentile_ms, _throughput, measure
from virtoll.record import LoadRecord, LogExtent, PlannedTrial, TrialRecord


def test_what_failed_is_slower_than_any_that_completed() -> None:
    some = Histogram(np.array([0, 10]), np.array([10, 20]), np.array([60, 30]), censored=10)
    assert (some.completed, some.total) == (90, 100)
    assert [some.quantile_ns(q) for q in (0.5, 0.6, 0.61, 0.9)] == [10, 10, 20, 20]
    assert [some.quantile_ns(q) for q in (0.91, 0.99, 1.0)] == [None, None, None]
    assert shares_at(some, np.array([10.0, 20.0, 99.0])) == pytest.approx([0.6, 0.9, 0.9])


def test_a_percentile_among_the_failed_is_missing_and_says_why() -> None:
    histogram = Histogram(np.array([0]), np.array([1000]), np.array([990]), censored=10)
    assert _percentile_ms(histogram, None, 0.5) == 0.001
    assert _percentile_ms(histogram, None, 0.99) == 0.001
    assert _percentile_ms(histogram, None, 1.0) == "it lies among the 10 of 1,000 requests that failed"
    more = replace(histogram, censored=11)
    assert _percentile_ms(more, None, 0.99) == "it lies among the 11 of 1,001 requests that failed"


def test_the_five_beyond_a_percentile_may_have_failed() -> None:
    few = Histogram(np.array([0]), np.array([1000]), np.array([495]), censored=4)
    assert "fewer than 5 lie beyond" in str(_percentile_ms(few, None, 0.99))
    assert _percentile_ms(replace(few, censored=5), None, 0.99) == 0.001


def test_a_percentile_made_of_the_generators_lateness_is_not_told() -> None:
    latency = Histogram(np.array([0, 9]) * 10**6, np.array([1, 10]) * 10**6, np.array([980, 20]))
    late = Histogram(np.array([0, 5]) * 10**6, np.array([1, 6]) * 10**6, np.array([980, 20]))
    assert "the generator's own" in str(_percentile_ms(latency, late, 0.99))
    prompt = replace(late, count=np.array([991, 9]))
    assert _percentile_ms(latency, replace(prompt, upper_ns=np.array([10**5, 6 * 10**6])), 0.99) == 10


def load_of(**changes: Any) -> LoadRecord:
    """10,000 requests asked for; a rate of 5,000/s over two seconds."""
    window = {"start_ns": 0, "end_ns": 2 * 10**9, "completed": 9_999, "body_bytes": None}
    given = {
        "instrument": "made up 1",
        "loop": "closed",
        "intended": 10_000,
        "offered": 10_000,
        "completed": 10_000,
        "failures": {},
        "censored": 0,
        "window": {**window, "cpu_user_ns": 10**9, "cpu_system_ns": 0},
        "drain": {"under_way": 1, "completed": 1, "end_ns": 3 * 10**9},
    }
    return LoadRecord.model_validate({**given, **changes})


def throughput_of(load: LoadRecord, asked: int) -> TrialMetrics:
    planned = PlannedTrial(id="b01-t0001", block=1, position=1, arm=NATIVE, condition={})
    trial = TrialMetrics(TrialRecord(trial=planned, status="valid", started_at="2026-11-21T08:00:00Z", load=load))
    _throughput(trial, load, asked)
    return trial


def test_the_rate_is_the_windows_and_the_total_time_reaches_to_the_last_answer() -> None:
    trial = throughput_of(load_of(), asked=10_000)
    assert trial.values["requests_per_s"] == pytest.approx(4_999.5)
    assert trial.values["total_time_s"] == 3
    assert trial.values["generator_cpus"] == 0.5


def test_a_request_that_hung_is_neither_in_the_rate_nor_in_the_total_time() -> None:
    hung = load_of(
        completed=9_999,
        failures={"timeout": 1},
        censored=1,
        drain={"under_way": 1, "completed": 0, "end_ns": 122 * 10**9},
    )
    trial = throughput_of(hung, asked=10_000)
    assert trial.values["requests_per_s"] == pytest.approx(4_999.5)
    assert trial.values["total_time_s"] == pytest.approx(10_000 / 4_999.5)
    assert trial.notes["total_time_s"] == "estimated as 10,000 / rate: 1 of them failed"


def test_an_outside_instruments_percentiles_say_nothing_where_requests_failed() -> None:
    trial = throughput_of(load_of(failures={"reset": 3}, censored=3, percentiles_ns={"p50": 5}), asked=0)
    assert trial.record.load is not None
    _latency(trial, trial.record.load, None)
    assert trial.missing["latency_p50_ms"] == "3 requests failed, and made up 1 does not say where they stand"


def test_a_victim_whose_log_was_full_too_soon_is_not_judged(tmp_path: Path) -> None:
    run = read_run(run_of(tmp_path / "run", blocks=2))
    trial = next(record for record in run.records if record.outcome == "answered" and record.load is not None)
    assert "goodput_during_per_s" in measure(run, trial).values
    assert trial.load is not None
    for whole_ns, told in ((6 * 10**9, True), (5 * 10**9, False)):
        load = trial.load.model_copy(update={"log": LogExtent(logged=5_000, whole_until_ns=whole_ns)})
        found = measure(run, trial.model_copy(update={"load": load}))
        assert ("goodput_during_per_s" in found.values) == told
    assert found.missing["goodput_during_per_s"].startswith(
        "the request log was full after 5.0 of 6.0 s (5,000 requests)"
    )
    nothing = measure(run, trial.model_copy(update={"load": trial.load.model_copy(update={"log": None})}))
    assert "were not recorded" in nothing.missing["p99_rise"]
