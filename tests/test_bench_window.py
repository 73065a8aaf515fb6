"""Where the bench says that a trial's time goes."""

from __future__ import annotations

from typing import Any

import pytest

from bench.window import _medians, spent_s


def phase(name: str, begin_s: float, seconds: float) -> dict[str, Any]:
    return {"name": name, "start_ns": round(begin_s * 1e9), "duration_ns": round(seconds * 1e9)}


# A trial with all that an arm gives once, too; two of its seconds are of no phase.
RECORD = {
    "measured": {"settings": {"warm_up_ns": 10**9}},
    "phases": [
        phase("session", 100, 5),
        phase("deploy", 105, 1),
        phase("start", 106, 0.5),
        phase("audit", 106.5, 0.5),
        phase("verify", 107, 0.25),
        phase("warm-up", 108.25, 1.5),
        phase("window", 109.75, 21),
        phase("verify", 131.75, 0.25),
        phase("prove", 132, 8),
        phase("teardown", 140, 0.5),
    ],
}


def test_what_an_arm_gives_once_is_left_out_and_what_lies_between_phases_is_not() -> None:
    spent = spent_s(RECORD)
    assert spent["whole"] == pytest.approx(1 + 0.5 + 0.5 + 1.5 + 21 + 0.5 + 2)
    assert (spent["window"], spent["verify"]) == pytest.approx((21, 0.5))


def test_of_the_warm_up_so_much_was_asked_for_as_its_setting_says() -> None:
    told = _medians([spent_s(RECORD)])
    assert told["share"] == pytest.approx(21 / 27)
    assert told["share_asked"] == pytest.approx(22 / 27)
    assert told["between"] == pytest.approx(2)
