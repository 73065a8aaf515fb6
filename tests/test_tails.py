"""The 99th percentile of a window in rotation: recorded by window, compared round by round, and what it is for."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from on_fakes import on_fakes
from synthetic import DOCKER, NATIVE
from test_deciding import IN_TURN, virtoll
from virtoll.analysis.load import Histogram, read_run
from virtoll.analysis.matrix import build_matrix
from virtoll.analysis.measuring import measure, measure_all
from virtoll.analysis.metrics import OF_A_WINDOW
from virtoll.analysis.ratios import log_ratios, toll_table
from virtoll.analysis.rounds import in_turn, median_of_rounds
from virtoll.analysis.tails import holds_enough, typical_ms, windows_ms
from virtoll.fakes import FakeExperiment
from virtoll.loads.base import Bulk, Measurement
from virtoll.record.model import PlannedTrial, Window
from virtoll.report.answer import answer
from virtoll.report.build import build_report
from virtoll.report.findings import Findings, find
from virtoll.run.stage import Stage
from virtoll.trial.subjects import tables_of

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.tails import MACHINES, WINDOWS, blocks_of

pytestmark = pytest.mark.usefixtures("undrawn")


def histogram(*latencies_ms: int, censored: int = 0) -> Histogram:
    upper = np.array(sorted(latencies_ms), dtype=np.int64) * 10**6
    return Histogram(upper - 1, upper, np.ones(len(upper), dtype=np.int64), censored)


# -- a window's own ----------------------------------------------------------------------------------------


def test_what_failed_or_was_never_asked_is_worse_than_any() -> None:
    each = windows_ms([histogram(1, 2, 3), histogram(4, censored=1), histogram()])
    assert each == [3.0, math.inf, math.inf]
    assert typical_ms([1.0, 2.0, math.inf]) == 2.0
    assert isinstance(typical_ms([1.0, math.inf, math.inf]), str)


def test_a_round_in_which_one_side_failed_is_the_worst_of_all() -> None:
    inf = math.inf
    assert median_of_rounds(np.array([2.0, inf, 3.0]), np.ones(3)) == pytest.approx(math.log(3))
    assert median_of_rounds(np.ones(3), np.array([inf, 1.0, 1.0])) == 0.0
    assert median_of_rounds(np.array([inf, 2.0]), np.array([inf, 2.0])) == 0.0
    assert math.isnan(median_of_rounds(np.array([inf, inf, 1.0]), np.ones(3)))


def test_company_is_needed_in_a_window() -> None:
    assert holds_enough([500, 480, 700])
    assert not holds_enough([499, 480, 700])


# -- from the record to the report -------------------------------------------------------------------------


def test_windows_are_recorded_apart_and_one_alone_as_ever() -> None:
    window = Window(start_ns=0, duration_ns=1, work=1)
    measured = [Measurement("x", window, Bulk(histogram=[(0, 10, n)], lateness=[(0, 10, n)])) for n in (3, 4)]
    tables = tables_of(measured, "open")
    assert tables["latency"].to_pylist() == [
        {"window": 1, "lower_ns": 0, "upper_ns": 10, "count": 3},
        {"window": 2, "lower_ns": 0, "upper_ns": 10, "count": 4},
    ]
    assert tables["lateness"] == tables["latency"]
    assert tables_of(measured[:1], "open")["latency"].column_names == ["lower_ns", "upper_ns", "count"]


class Lab:
    """Fakes whose machine is slow now and then: a share of the windows, of any arm, ten times."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.rounds, self.slow, self.latency_ns = directory, 9, 0.1, 1_000_000
        on_fakes(monkeypatch, {})

        def drift(now_s: float) -> float:
            return 10.0 if np.random.default_rng([5, round(now_s)]).random() < self.slow else 1.0

        @contextmanager
        def lab(_stage: Stage, _images: object, _pending: Sequence[PlannedTrial]) -> Iterator[FakeExperiment]:
            yield FakeExperiment(
                {"native": 1.0, "docker": 1.1}, rounds=self.rounds, drift=drift, native_latency_ns=self.latency_ns
            )

        monkeypatch.setattr(Stage, "lab", lab)

    def run(self, text: str = IN_TURN) -> Findings:
        path = self.directory / "small.toml"
        path.write_text(text)
        assert virtoll("run", str(path), "--out", str(self.directory / "run"), "--blocks", "6") == 0
        return find(self.directory / "run")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def test_a_typical_windows_percentile_is_told_beside_that_of_all_requests(lab: Lab) -> None:
    findings = lab.run()
    toll, whole = (findings.tolls(name).total(DOCKER) for name in (OF_A_WINDOW, "latency_p99_ms"))
    assert toll is not None
    assert whole is not None
    assert toll.ratio is not None
    assert toll.ratio.value == pytest.approx(1.1, rel=1e-3)
    assert whole.ratio is not None
    tables = findings.run.directory / "report" / "tables"
    assert "Latency, 99th percentile |" in (tables / "tolls.md").read_text()
    assert "DOCKER" in (tables / "latency-p99-window-ms.md").read_text().upper()
    build_report(findings.run.directory)


def test_the_whole_histogram_is_the_sum_of_the_windows(lab: Lab) -> None:
    run = lab.run().run
    trial = run.records[0].trial.id
    windows, whole = run.window_histograms(trial, [0] * 9), run.histogram(trial)
    assert windows is not None
    assert whole is not None
    assert len(windows) == 9
    assert whole.completed == sum(each.completed for each in windows)
    assert len(whole.upper_ns) == len(set(whole.upper_ns.tolist())) <= 2


def test_rounds_are_compared_one_by_one_and_trials_where_they_were_not_in_turn(lab: Lab) -> None:
    findings = lab.run()
    matrix = findings.matrix
    mine, native = (matrix.cell(1, arm, matrix.conditions[0]) for arm in (DOCKER, matrix.baseline) if arm is not None)
    assert mine is not None
    assert native is not None
    assert in_turn(mine, native)
    mine.by_window[OF_A_WINDOW] = [2 * each for each in native.by_window[OF_A_WINDOW]]
    at = matrix.arms.index(DOCKER)
    assert log_ratios(matrix, OF_A_WINDOW)[0, at, 0] == pytest.approx(math.log(2))
    record = mine.record
    mine.record = record.model_copy(update={"trial": record.trial.model_copy(update={"turn": "another"})})
    assert log_ratios(matrix, OF_A_WINDOW)[0, at, 0] == pytest.approx(math.log(1.1), rel=1e-3)


def test_too_few_in_a_window_are_of_no_trial_of_the_arm(lab: Lab) -> None:
    lab.latency_ns = 2_100_000  # 476 of a second
    findings = lab.run()
    assert all(OF_A_WINDOW not in trial.values for trial in findings.matrix.trials)
    assert "too few in a window" in findings.matrix.trials[0].missing[OF_A_WINDOW]
    assert "latency_p99_ms" in findings.matrix.trials[0].values


def test_what_lies_among_the_failed_is_no_mean_of_the_others(lab: Lab) -> None:
    """As with the percentile of all requests: of the better trials only it would be."""
    run = lab.run().run
    records = list(run.records)
    (at,) = (at for at, each in enumerate(records) if each.trial.block == 1 and each.trial.arm == DOCKER)
    measured = records[at].measured
    assert measured is not None
    windows = [
        window.model_copy(
            update={"events": {name: each.model_copy(update={"censored": 100}) for name, each in window.events.items()}}
        )
        for window in measured.windows
    ]
    records[at] = records[at].model_copy(update={"measured": measured.model_copy(update={"windows": windows})})
    run = replace(run, records=tuple(records))
    matrix = build_matrix(run, measure_all(run))
    (condition,) = matrix.conditions
    for name in (OF_A_WINDOW, "latency_p99_ms"):
        assert matrix.censored(name, DOCKER, condition) == (1, 6)
        assert matrix.absolute(name, DOCKER, condition) is None
        (toll,) = (toll for toll in toll_table(matrix, name).overall if toll.arm == DOCKER)
        assert (toll.ratio, toll.verdict.kind) == (None, "unjudged")
        assert toll.verdict.words == "no ratio: in 1 pair it lies among what failed"
    assert matrix.absolute(OF_A_WINDOW, NATIVE, condition) is not None


def test_an_answer_in_a_percentile_says_what_it_cannot_judge(lab: Lab) -> None:
    """In an open loop it is the percentile that is told; the blocks that have one are the better ones."""
    lab.slow = 0.0
    directory = lab.run().run.directory
    records = [record.model_dump(mode="json") for record in read_run(directory).records]
    for record in records:
        record["measured"]["loop"] = "open"
        if record["trial"]["block"] == 1 and record["trial"]["arm"]["label"] == DOCKER.label:
            for window in record["measured"]["windows"]:
                window["events"]["request"]["censored"] = 100
    (directory / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    findings = find(directory)
    assert findings.headline.name == "latency_p99_ms"
    told = answer(findings)[0]
    assert "not judged: docker+routed (no ratio: in 1 pair it lies among what failed)" in told
    assert "not measured" not in told
    build_report(directory)
    table = (directory / "report" / "tables" / "tolls.md").read_text()
    assert "Latency, 99th percentile |" in table
    assert "not judged" in table


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"loop": "open"}, "how late the generator was is judged over all windows"),
        ({"unit": "transaction"}, "fake 1 does not tell what became of single transactions"),
    ],
)
def test_a_trial_without_it_says_why(lab: Lab, change: dict[str, str], why: str) -> None:
    run = lab.run().run
    measured = run.records[0].measured
    assert measured is not None
    record = run.records[0].model_copy(update={"measured": measured.model_copy(update=change)})
    assert why in measure(run, record).missing[OF_A_WINDOW]


def test_a_run_of_before_says_that_windows_were_not_recorded(lab: Lab) -> None:
    run = lab.run().run
    for path in run.directory.glob("trials/*/latency.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(["window"]), path)
    findings = find(run.directory)
    assert read_run(run.directory).histogram(run.records[0].trial.id) is not None
    assert "were not recorded window by window" in findings.reason(OF_A_WINDOW)


def test_blocks_have_no_such_quantity(lab: Lab) -> None:
    assert OF_A_WINDOW not in lab.run(IN_TURN.replace('design = "rotation"\n', "")).matrix.metrics


# -- why -----------------------------------------------------------------------------------------------------


def test_bursts_that_meet_neighbouring_windows_spoil_the_whole_tail_and_not_the_typical_windows() -> None:
    rng = np.random.default_rng(1)
    found = blocks_of(MACHINES["bursts"], WINDOWS[2], {}, 60, rng)
    assert found["median"].std() < 0.2 * found["merged"].std()


def test_it_does_not_see_what_an_arm_does_in_few_windows_and_the_whole_does() -> None:
    quiet = replace(MACHINES["quiet"], calm_per_s=0.0, restless_per_s=0.0)
    found = blocks_of(quiet, WINDOWS[2], {"bad": 0.1}, 60, np.random.default_rng(2))
    assert found["median"].mean() < 0.02
    assert found["merged"].mean() > 0.3
