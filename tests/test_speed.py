"""Ratios at one speed of the CPUs: what a yardstick takes out of them, told beside what was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from on_fakes import on_fakes
from synthetic import DOCKER
from test_deciding import IN_TURN, virtoll
from virtoll.analysis.estimates import Estimate, Floats, over_conditions
from virtoll.analysis.speed import LEAST_FREEDOM, Rounds, _typical, line
from virtoll.fakes import FakeExperiment
from virtoll.record.model import OTHERS_IDLE, OWN_IDLE, YARDSTICK, PlannedTrial
from virtoll.report.build import build_report
from virtoll.report.findings import find
from virtoll.report.numbers import interval
from virtoll.report.sections.speed import Speed, Told, all_told, as_json, told
from virtoll.report.tables import Cell
from virtoll.run.stage import Stage

pytestmark = pytest.mark.usefixtures("undrawn")

RATE = "rate_per_s"
SLOWS = 1.7  # by how much more than a yardstick a service is slower, on the log scale


def speeds(now_s: float) -> float:
    """How much slower than ever the CPUs are at a time: anew each window, and far apart."""
    return float(np.exp(0.2 * np.random.default_rng([7, round(now_s)]).standard_normal()))


class Lab:
    """Fakes whose CPUs are slower at one time than at another, and a yardstick that says so."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.yardstick: Any = lambda now_s: 3000 * speeds(now_s)
        self.tolls, self.rounds = {"native": 1.0, "docker": 1.05}, 9
        on_fakes(monkeypatch, {})

        @contextmanager
        def lab(_stage: Stage, _images: object, _pending: Sequence[PlannedTrial]) -> Iterator[FakeExperiment]:
            yield FakeExperiment(
                self.tolls,
                spread=0.002,
                rounds=self.rounds,
                native_latency_ns=1_000_000,
                drift=lambda now_s: speeds(now_s) ** SLOWS,
                yardstick=self.yardstick,
            )

        monkeypatch.setattr(Stage, "lab", lab)

    @property
    def out(self) -> Path:
        return self.directory / "run"

    def run(self) -> None:
        path = self.directory / "small.toml"
        path.write_text(IN_TURN)
        assert virtoll("run", str(path), "--out", str(self.out), "--blocks", "6") == 0

    def change(self, change: Any) -> None:
        """Each record, as it is kept."""
        lines = (self.out / "trials.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        for record in records:
            change(record)
        (self.out / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def docker(lab: Lab) -> Told | None:
    """What is told of its throughput."""
    rows = [row for row in told(find(lab.out)) if (row.metric.name, row.arm) == (RATE, DOCKER)]
    return rows[0] if rows else None


def half(estimate: Estimate) -> float:
    assert estimate.low is not None
    assert estimate.high is not None
    return math.log(estimate.high / estimate.low) / 2


# -- from the record to the report -------------------------------------------------------------------------


def test_what_the_cpus_did_is_taken_out_and_the_toll_stays(lab: Lab) -> None:
    lab.run()
    row = docker(lab)
    assert row is not None
    assert half(row.held) < half(row.measured) / 5
    assert row.held.value == pytest.approx(1 / 1.05, rel=0.01)
    assert row.shares[0] > 0.9


def test_the_answer_is_as_measured(lab: Lab) -> None:
    """An arm may move the yardstick itself; and runs that were read are compared with such as were not."""
    lab.run()
    row, toll = docker(lab), find(lab.out).tolls(RATE).total(DOCKER)
    assert toll is not None
    assert row is not None
    assert row.measured == toll.ratio
    lab.change(lambda record: [window.pop("yardstick_ns") for window in record["measured"]["windows"]])
    assert find(lab.out).tolls(RATE).total(DOCKER) == toll


def test_what_an_arm_does_to_the_yardstick_is_told_as_its_toll_at_one_speed(lab: Lab) -> None:
    """Why the answer is as measured: one in whose windows it takes longer is told as cheaper."""
    lab.run()
    before = docker(lab)

    def slow(record: dict[str, Any]) -> None:
        for window in record["measured"]["windows"] if record["trial"]["arm"]["label"] == DOCKER.label else ():
            window["yardstick_ns"] *= math.exp(0.3)

    lab.change(slow)
    after = docker(lab)
    assert before is not None
    assert after is not None
    assert after.measured == before.measured
    assert after.times.value / before.times.value == pytest.approx(math.exp(0.3))
    assert after.held.value / before.held.value == pytest.approx(math.exp(SLOWS * 0.3), rel=0.03)
    assert half(after.held) > half(before.held), "the error of the slope is part of it then"


def test_the_report_tells_both_and_what_the_cpus_did(lab: Lab) -> None:
    lab.run()
    row = docker(lab)
    assert row is not None
    (table,) = Speed().tables(find(lab.out))
    (cells,) = (
        [cell.text for cell in each] for each in table.rows if each[:2] == (Cell("Throughput"), Cell(DOCKER.label))
    )
    assert cells[2:5] == [interval(row.measured), interval(row.held), interval(row.times)]
    assert cells[5] == f"{100 * row.shares[0]:.0f} %"
    (said,) = Speed().method(find(lab.out))
    assert "which takes 0.1" in said, "3 us twice, each 4 ms"
    build_report(lab.out)
    assert (lab.out / "report" / "tables" / "speed.md").exists()


def test_programs_are_told_the_same(lab: Lab) -> None:
    lab.run()
    row = docker(lab)
    assert row is not None
    (mine,) = (each for each in as_json(find(lab.out)) if (each["arm"], each["quantity"]) == (DOCKER.label, RATE))
    assert mine["at_one_speed"] == {"ratio": row.held.value, "low": row.held.low, "high": row.held.high}
    assert mine["shares"] == list(row.shares)


@pytest.mark.parametrize("which", [0, -1])
def test_of_an_arm_one_of_whose_windows_was_not_read_nothing_is_known(lab: Lab, which: int) -> None:
    lab.run()
    seen: list[None] = []

    def forget(record: dict[str, Any]) -> None:
        if not seen and record["trial"]["arm"]["label"] == DOCKER.label:
            seen.append(record["measured"]["windows"][which].update(yardstick_ns=None))

    lab.change(forget)
    assert seen
    assert docker(lab) is None
    assert {row.arm.role for row in told(find(lab.out))} == {"floor"}, "native again was read"
    (table,) = Speed().tables(find(lab.out))
    (cells,) = (each[2:] for each in table.rows if each[:2] == (Cell("Throughput"), Cell(DOCKER.label)))
    toll = find(lab.out).tolls(RATE).total(DOCKER)
    assert toll is not None
    assert [cell.text for cell in cells] == [interval(toll.ratio), "not known", "—", "—"]
    assert f"not read in 1 of 9 windows of {DOCKER.label}" in cells[1].detail


def test_of_a_native_that_was_not_read_nothing_is_known_of_anybody(lab: Lab) -> None:
    lab.run()

    def forget(record: dict[str, Any]) -> None:
        if record["trial"]["arm"]["role"] == "baseline":
            record["measured"]["windows"][0].update(yardstick_ns=None)

    lab.change(forget)
    assert told(find(lab.out)) == []
    (said,) = Speed().method(find(lab.out))
    assert "is not known**: the yardstick was not read in 1 of 9 windows of native+host (b01-t" in said
    assert not Speed().tables(find(lab.out))
    assert not as_json(find(lab.out))


def test_a_trial_that_is_not_valid_is_not_asked(lab: Lab) -> None:
    lab.run()
    seen: list[str] = []

    def spoil(record: dict[str, Any]) -> None:
        if not seen and record["trial"]["arm"]["label"] == DOCKER.label:
            seen.append(record["trial"]["id"])
            record.update(status="invalid", reason="made so")
            record["measured"]["windows"][0].update(yardstick_ns=None)

    lab.change(spoil)
    row = docker(lab)
    assert row is not None
    assert row.held.n == row.measured.n == 5


def test_a_service_that_served_nothing_has_no_ratio_at_any_speed(lab: Lab) -> None:
    lab.run()
    seen: list[str] = []

    def stop(record: dict[str, Any]) -> None:
        if not seen and record["trial"]["arm"]["label"] == DOCKER.label:
            seen.append(record["trial"]["id"])
            for window in record["measured"]["windows"]:
                window.update(work=0.0)

    lab.change(stop)
    assert seen
    assert docker(lab) is None
    assert any(row.arm.role == "floor" for row in told(find(lab.out)))


def test_the_most_that_moves_the_yardstick_is_told(lab: Lab) -> None:
    lab.run()
    little, much = [0.0, 0.001, -0.001], [0.04, 0.05, 0.06]
    each = iter([{OWN_IDLE: much, OTHERS_IDLE: little}, *([{OWN_IDLE: little, OTHERS_IDLE: little}] * 17)])
    lab.change(lambda record: record["facts"].update({YARDSTICK: next(each)}))
    (said,) = Speed().method(find(lab.out))
    assert "times change by +5.1 ± 2.5 % where the CPU idles" in said
    assert "and by +0.0 ± 0.2 % where the other CPUs of the lab idle" in said


@pytest.mark.parametrize(
    "told_otherwise",
    [
        "moved",
        ["x"],
        {OWN_IDLE: "x", OTHERS_IDLE: [1, 1]},
        {OWN_IDLE: [1.0], OTHERS_IDLE: [1.0]},
        {OWN_IDLE: [None, 1], OTHERS_IDLE: [1, 1]},
        {OWN_IDLE: [10**400, 1], OTHERS_IDLE: [0, 0]},
        {OWN_IDLE: [1e200, 1], OTHERS_IDLE: [0, 0]},
    ],
    ids=range(7),
)
def test_what_others_note_there_is_no_try(lab: Lab, told_otherwise: Any) -> None:
    lab.run()
    lab.change(lambda record: record["facts"].update({YARDSTICK: told_otherwise}))
    (said,) = Speed().method(find(lab.out))
    assert "Tried" not in said


def test_windows_in_other_rounds_are_no_pairs(lab: Lab) -> None:
    """As of an arm that is too slow for each round."""
    lab.run()

    def fewer(record: dict[str, Any]) -> None:
        if record["trial"]["arm"]["label"] == DOCKER.label:
            record["measured"]["windows"] = record["measured"]["windows"][::2]

    lab.change(fewer)
    reasons = {arm.label: row for metric, arm, row in all_told(find(lab.out)) if metric.name == RATE}
    assert reasons[DOCKER.label] == "its windows and native's are not in the same rounds"


def test_where_no_trial_is_valid_that_is_the_reason(lab: Lab) -> None:
    lab.run()
    lab.change(lambda record: record.update(status="invalid", reason="made so"))
    (said,) = Speed().method(find(lab.out))
    assert said.endswith("is not known**: no yardstick was read in a valid trial.")


def test_a_run_of_before_reads_as_it_did(lab: Lab) -> None:
    lab.yardstick = None
    lab.run()
    lab.change(lambda record: [window.pop("yardstick_ns") for window in record["measured"]["windows"]])
    (said,) = Speed().method(find(lab.out))
    assert said.endswith("is not known**: no yardstick was read in a valid trial.")
    assert told(find(lab.out)) == []


def test_a_few_tries_that_others_met_do_not_count(lab: Lab) -> None:
    lab.run()
    bursts, all_of_them = [0.001] * 10 + [-0.001] * 24 + [-0.35] * 4 + [0.2] * 2, [0.04, 0.05, 0.06, 0.05] * 10
    lab.change(lambda record: record["facts"].update({YARDSTICK: {OWN_IDLE: all_of_them, OTHERS_IDLE: bursts}}))
    (said,) = Speed().method(find(lab.out))
    assert "times change by +5.1 ± 0.4 % where the CPU idles" in said
    assert "and by -0.1 ± 0.1 % where the other CPUs of the lab idle" in said


def test_the_error_of_typical_tries_is_how_far_their_mean_scatters() -> None:
    rng = np.random.default_rng(8)
    tries = 0.01 * rng.standard_t(2, (2000, 40))
    each = [_typical(one) for one in tries.tolist()]
    assert np.mean([abs(one.mean) <= one.half_width() for one in each]) == pytest.approx(0.95, abs=0.015)


# -- the slope ---------------------------------------------------------------------------------------------


def rounds(rng: np.random.Generator, blocks: int, count: int, of: float = -2.0) -> list[Rounds]:
    logs = [rng.normal(0.0, 0.05, count) for _ in range(blocks)]
    return [(each, of * (each - each.mean()) + rng.normal(0, 0.01, count)) for each in logs]


def test_the_slope_is_of_what_lies_within_blocks() -> None:
    rng = np.random.default_rng(1)
    found = line([(logs + rng.normal(0, 1), adds) for logs, adds in rounds(rng, 20, 16)])
    assert found is not None
    assert found.slope == pytest.approx(-2.0, rel=0.05)
    assert found.share == pytest.approx(0.1**2 / (0.1**2 + 0.01**2), abs=0.02)


def test_the_error_of_a_slope_is_how_far_it_scatters() -> None:
    rng = np.random.default_rng(5)
    found = [each for _ in range(600) if (each := line(rounds(rng, 6, 9))) is not None]
    scatter = float(np.std([each.slope for each in found], ddof=1))
    assert np.mean([each.error for each in found]) == pytest.approx(scatter, rel=0.1)


def test_of_few_rounds_there_is_no_slope() -> None:
    rng = np.random.default_rng(1)
    enough = rounds(rng, LEAST_FREEDOM + 1, 2)
    assert line(enough) is not None
    assert line(enough[1:]) is None
    assert line([]) is None


def test_a_yardstick_that_stands_still_takes_nothing_out() -> None:
    assert line([(np.log(np.full(16, 3001.7)), np.arange(16.0))] * 10) is None


# -- coverage ----------------------------------------------------------------------------------------------

STUDIES, BLOCKS, ROUNDS = 2000, 6, 16


def studies(
    rng: np.random.Generator, slow: float, own: float, deployment: float, drift: float
) -> tuple[Floats, Floats, Floats]:
    """Raw and held log ratios [study, block] of two equal arms whose windows take turns, and the error of each study's
    held mean that is its slope's. What the CPUs do is a process that remembers half of the window before, on which a
    window's rate depends with a slope of -1.7; ``drift`` is what both windows of a round share.
    """
    shape = (STUDIES, BLOCKS, ROUNDS, 2)
    flat = rng.normal(size=(STUDIES, BLOCKS, ROUNDS * 2))
    for at in range(1, flat.shape[2]):
        flat[..., at] = 0.5 * flat[..., at - 1] + math.sqrt(0.75) * flat[..., at]
    speed = slow * flat.reshape(shape) + rng.normal(0, drift, (STUDIES, BLOCKS, ROUNDS, 1))
    rate = np.exp(-SLOWS * speed + rng.normal(0, own, shape) + rng.normal(0, deployment, (STUDIES, BLOCKS, 1, 2)))
    read = speed + rng.normal(0, slow / 3 + drift / 10, shape)  # a reading has an error of its own
    raw = np.diff(np.log(rate.mean(axis=2)), axis=2)[..., 0]
    adds = np.diff(rate / rate.mean(axis=2, keepdims=True), axis=3)[..., 0]
    times = np.diff(read, axis=3)[..., 0]
    held, errors = np.empty_like(raw), np.empty(STUDIES)
    for study in range(STUDIES):
        found = line(list(zip(times[study], adds[study], strict=True)))
        assert found is not None
        apart = times[study].mean(axis=1)
        held[study], errors[study] = raw[study] - found.slope * apart, abs(found.error * apart.mean())
    return raw, held, errors


def half_widths(logs: Floats, errors: Floats | None = None) -> Floats:
    summaries = [over_conditions(each[:, None]) for each in logs]
    shared = np.zeros(len(logs)) if errors is None else errors
    return np.array(
        [
            replace(each, error=math.hypot(each.error, more)).half_width()
            for each, more in zip(summaries, shared, strict=True)
            if each is not None
        ]
    )


@pytest.mark.parametrize(
    ("slow", "own", "deployment", "drift", "narrower"),
    [
        (0.08, 0.06, 0.003, 0.0, 1.25),
        (0.08, 0.02, 0.0, 0.0, 1.7),
        (0.02, 0.06, 0.0, 0.15, 0.95),
        (0.02, 0.1, 0.01, 0.0, 0.95),
        (0.0005, 0.05, 0.02, 0.0, 0.95),
    ],
    ids=["as seen", "all of it the CPUs'", "most of it shared by a round", "hardly the CPUs'", "not the CPUs'"],
)
def test_intervals_hold_the_truth_and_are_narrower_where_the_cpus_are_why(
    slow: float, own: float, deployment: float, drift: float, narrower: float
) -> None:
    raw, held, errors = studies(np.random.default_rng(11), slow, own, deployment, drift)
    half = half_widths(held, errors)
    assert 0.935 <= np.mean(np.abs(held.mean(axis=1)) <= half) <= 0.97
    assert abs(held.mean()) <= 4 * held.mean(axis=1).std() / math.sqrt(STUDIES)
    assert np.median(half_widths(raw)) / np.median(half) >= narrower
