"""Blocks of rounds: the locations are what they are called, and the variance components and the advice hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from bench._rounds import (
    DEFAULT_LOCATION,
    LOCATIONS,
    Location,
    block_ratios,
    round_ratios,
)
from virtoll.analysis.estimates import Floats, summarise

rates = npst.arrays(np.float64, st.integers(1, 30), elements=st.floats(0.5, 2))


def pair(values: Floats) -> tuple[Floats, Floats]:
    return values, values[::-1].copy()


@given(rates)
def test_locations_are_what_they_are_called(values: Floats) -> None:
    arm, native = pair(values)
    logs = np.log(arm / native)
    expected = {
        "mean": logs.mean(),
        "trimmed mean": scipy.stats.trim_mean(logs, 0.2),
        "median": np.median(logs),
        "ratio of totals": math.log(arm.sum() / native.sum()),
    }
    for location in LOCATIONS:
        assert block_ratios(arm, native, location) == pytest.approx(expected[location], abs=1e-12), location


@given(rates, st.floats(0.1, 10))
def test_arms_are_treated_alike(values: Floats, factor: float) -> None:
    """Exchanged, the sign changes and nothing else; and a faster arm is that much faster."""
    arm, native = pair(values * np.linspace(1, 2, len(values)))
    for location in LOCATIONS:
        here = block_ratios(arm, native, location)
        assert block_ratios(native, arm, location) == pytest.approx(-here, abs=1e-9)
        assert block_ratios(arm * factor, native, location) == pytest.approx(here + math.log(factor), abs=1e-9)


def test_rounds_without_both_values_do_not_count() -> None:
    nan = math.nan
    arm = np.array([[2.0, 2.0, nan, nan], [2.0, 0.0, 2.0, 2.0], [nan] * 4])
    native = np.array([[1.0, nan, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [1.0] * 4])
    assert np.isfinite(round_ratios(arm, native)).sum(axis=1).tolist() == [1, 3, 0]
    for location in LOCATIONS:
        found = block_ratios(arm, native, location)
        in_second = 1.5 if location == "ratio of totals" else 2.0  # of ratios of rounds a 0 has none
        assert found[:2] == pytest.approx([math.log(2), math.log(in_second)])
        assert math.isnan(found[2]), "a block without a round has no observation"


@given(st.integers(0, 12))
def test_an_arm_that_died_has_the_rounds_it_lived(lived: int) -> None:
    rng = np.random.default_rng(lived)
    arm, native = rng.lognormal(size=12), rng.lognormal(size=12)
    dead = np.where(np.arange(12) < lived, arm, np.nan)
    for location in LOCATIONS:
        if lived:
            whole = block_ratios(arm[:lived], native[:lived], location)
            assert block_ratios(dead, native, location) == pytest.approx(whole, abs=1e-12)
        else:
            assert math.isnan(block_ratios(dead, native, location))


# -- variance components ---------------------------------------------------------------------------------


TRUE = {"drift": 0.2, "deployment": 0.03, "round": 0.1, "window": 0.06}


def made_up(rng: np.random.Generator, blocks: int, rounds: int, deviations: dict[str, float]) -> tuple[Floats, Floats]:
    """Rates [block, round] of an arm and native; standard deviations of drift, deployment, round and window."""
    shared = rng.normal(0, deviations["drift"], (blocks, 1)) + rng.normal(0, deviations["round"], (blocks, rounds))
    own = (
        rng.normal(0, deviations["deployment"], (blocks, 1)) + rng.normal(0, deviations["window"], (blocks, rounds))
        for _ in range(2)
    )
    arm, native = (np.exp(shared + one) for one in own)
    return arm, native


TRUE = {"drift": 0.2, "deployment": 0.03, "round": 0.1, "window": 0.06}


@pytest.mark.parametrize("location", LOCATIONS)
def test_no_location_is_biased_by_bursts_that_meet_all_arms_alike(location: Location) -> None:
    rng = np.random.default_rng(9)
    arm, native = made_up(rng, 4000, 12, TRUE)
    for rate in (arm, native):
        rate[rng.random(rate.shape) < 0.1] /= 3
    found = summarise(block_ratios(arm * 0.95, native, location))
    assert abs(found.mean - math.log(0.95)) < 4 * found.error


def test_a_window_in_which_nothing_was_done_is_in_the_totals() -> None:
    """That is the product's own location, and the only one here that an arm's own stalls are not hidden from."""
    assert DEFAULT_LOCATION == "ratio of totals"
    arm, native = np.array([100.0, 0.0, 100.0, 0.0]), np.full(4, 100.0)
    assert block_ratios(arm, native) == pytest.approx(math.log(0.5))
    assert block_ratios(arm, native, "trimmed mean") == pytest.approx(0.0)


def test_all_arms_and_conditions_at_once() -> None:
    """Arrays [block, arm, condition, round] against native's [block, 1, condition, round]: what a matrix would hold."""
    values = np.random.default_rng(2).lognormal(0, 0.1, (5, 3, 2, 9))
    values[1, 2, 0, 4:] = math.nan
    for location in LOCATIONS:
        found = block_ratios(values, values[:, :1], location)
        assert found.shape == (5, 3, 2)
        assert found[:, 0] == pytest.approx(0.0)
        assert found[1, 2, 0] == pytest.approx(block_ratios(values[1, 2, 0, :4], values[1, 0, 0, :4], location))
