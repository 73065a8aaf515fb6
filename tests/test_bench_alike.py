"""What the bench of equal arms measures: native under other names, and what of them is told as different."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.alike import Count, alike, counted
from test_speed import Lab
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.power import proportion
from virtoll.report.findings import find
from virtoll.run.request import Request, read

pytestmark = pytest.mark.usefixtures("undrawn")


def test_its_arms_are_native_under_other_names() -> None:
    study = alike(read(Request("proxy", quick=True))[0], 3)
    assert {entry.arm.platform for entry in study.arms} == {"native"}
    assert [entry.arm.role for entry in study.arms] == ["baseline", "floor", *["treatment"] * 3]
    assert len({entry.arm.label for entry in study.arms}) == 5
    assert study.design == "rotation"


@pytest.mark.parametrize(
    ("count", "number", "low", "high"), [(0, 200, 0.0, 0.0183), (15, 200, 0.0426, 0.1207), (8, 8, 0.6306, 1.0)]
)
def test_a_shares_interval_is_clopper_and_pearsons(count: int, number: int, low: float, high: float) -> None:
    """In closed form where none or all are counted: 1 - 0.025^(1/n), and 0.025^(1/n)."""
    rate = proportion(count, number)
    assert (rate.low, rate.high) == pytest.approx((low, high), abs=5e-5)


def test_a_comparison_without_an_interval_is_none() -> None:
    count = Count()
    count.hear(None, alarm=True)
    count.hear(Estimate(1.1, None, None, 0.95, "ratio", 1, ""), alarm=True)
    assert (count.alarms, count.number) == (0, 0)
    count.hear(Estimate(1.1, 1.05, 1.15, 0.95, "ratio", 8, ""), alarm=True)
    count.hear(Estimate(1.0, 0.95, 1.05, 0.95, "ratio", 8, ""), alarm=False)
    assert (count.alarms, count.held, count.number) == (1, 1, 2)


def test_what_was_told_of_a_run_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(tmp_path, monkeypatch)
    lab.tolls["docker"] = 4.0
    lab.run()
    counts = counted([find(lab.out)] * 2)
    rate, held = counts["Throughput"], counts["Throughput, at one speed"]
    assert (rate.alarms, rate.held, rate.number) == (2, 0, 2)
    assert (held.held, held.number) == (0, 2)
    assert "2 of 2" in rate.text("Throughput")
