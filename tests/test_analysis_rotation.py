"""Blocks of rounds: the locations are what they are called, and the variance components and the advice hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from bench._rounds import (
    DEFAULT_LOCATION,
    LOCATIONS,
    Components,
    Costs,
    Location,
    advice_words,
    advise,
    block_ratios,
    components,
    expected_half_width,
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
        "trimmed mean": stats.trim_mean(logs, 0.2),
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
        assert found[:2] == pytest.approx([math.log(2)] * 2)
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


@pytest.mark.parametrize("lost", [0.0, 0.4])
def test_components_are_found(lost: float) -> None:
    """Also where blocks differ in their rounds. Window and deployment are of a ratio: both arms' are in it."""
    rng = np.random.default_rng(3)
    arm, native = made_up(rng, 1500, 12, TRUE)
    ends = np.where(rng.random((1500, 1)) < lost, rng.integers(2, 12, (1500, 1)), 12)
    found = components(np.where(np.arange(12) < ends, arm, np.nan), native)
    assert found.blocks == 1500
    assert found.window == pytest.approx(2 * TRUE["window"] ** 2, rel=0.12)  # a trimmed mean's is a little wider
    assert found.deployment == pytest.approx(2 * TRUE["deployment"] ** 2, rel=0.12)
    assert found.round == pytest.approx(TRUE["round"] ** 2, rel=0.1)
    assert found.drift == pytest.approx(TRUE["drift"] ** 2, rel=0.1)


def test_components_explain_the_blocks() -> None:
    rng = np.random.default_rng(4)
    arm, native = made_up(rng, 3000, 20, TRUE)
    found = components(arm, native)
    assert found.observation == pytest.approx(block_ratios(arm, native).var(ddof=1), rel=1e-6)
    assert found.share_of_windows == pytest.approx(0.0072 / 20 / (0.0072 / 20 + 0.0018), rel=0.2)


def test_a_burst_hardly_moves_the_variance_of_a_window() -> None:
    rng = np.random.default_rng(5)
    arm, native = made_up(rng, 500, 20, TRUE)
    calm = components(arm, native)
    arm[:, 7] /= 3
    assert components(arm, native).window < 1.5 * calm.window
    assert np.log(arm / native).var(axis=1, ddof=1).mean() > 5 * calm.window


@pytest.mark.parametrize(("blocks", "rounds"), [(1, 8), (6, 1), (1, 1), (0, 4)])
def test_what_cannot_be_told_is_nan_and_gives_no_advice(blocks: int, rounds: int) -> None:
    found = components(*made_up(np.random.default_rng(1), blocks, rounds, TRUE))
    assert math.isnan(found.window if rounds == 1 or not blocks else found.deployment)
    with pytest.raises(ValueError, match="two blocks"):
        advise(found, Costs(10, 0.3, 4), 0.02, rounds=rounds, blocks=blocks)


def test_no_spread_at_all() -> None:
    found = components(np.full((3, 8), 2.0), np.ones((3, 8)))
    assert (found.window, found.deployment, found.share_of_windows) == (0.0, 0.0, 0.0)
    assert advise(found, Costs(10, 0.3, 4), 0.02, rounds=8, blocks=3).rounds == 1


# -- advice ------------------------------------------------------------------------------------------------


def known(window: float, deployment: float) -> Components:
    return Components(window**2, deployment**2, 0.0, 0.0, 16, 8)


def test_more_rounds_help_where_windows_are_the_noise() -> None:
    advice = advise(known(0.2, 0.001), Costs(10, 0.35, 4), 0.02, rounds=16, blocks=8)
    assert advice.more_rounds is not None
    assert expected_half_width(known(0.2, 0.001), advice.more_rounds, 8) <= 0.02
    assert expected_half_width(known(0.2, 0.001), advice.more_rounds - 1, 8) > 0.02


def test_no_number_of_rounds_helps_where_deployments_differ() -> None:
    advice = advise(known(0.05, 0.05), Costs(10, 0.35, 4), 0.02, rounds=16, blocks=8)
    assert advice.more_rounds is None
    assert advice.more_blocks is not None
    assert expected_half_width(known(0.05, 0.05), 16, advice.more_blocks) <= 0.02
    assert expected_half_width(known(0.05, 0.05), 16, advice.more_blocks - 1) > 0.02


def test_the_cheapest_way_is_near_cochrans() -> None:
    variances, costs = known(0.2, 0.02), Costs(deployment_s=20, window_s=0.35, arms=4)
    advice = advise(variances, costs, 0.01, rounds=16, blocks=8)
    assert advice.rounds == pytest.approx(math.sqrt(0.04 / 0.0004 * 20 / 1.4), rel=0.2)
    assert advice.blocks is not None
    assert advice.seconds == pytest.approx(advice.blocks * costs.block_s(advice.rounds))
    assert expected_half_width(variances, advice.rounds, advice.blocks) <= 0.01


def test_out_of_reach_is_said() -> None:
    advice = advise(known(0.5, 0.5), Costs(10, 0.35, 4), 0.001, rounds=16, blocks=8)
    assert (advice.more_rounds, advice.more_blocks, advice.blocks, advice.seconds) == (None, None, None, math.inf)


def test_a_run_planned_by_the_advice_is_as_narrow_as_it_says() -> None:
    rng = np.random.default_rng(8)
    pilot = components(*made_up(rng, 400, 10, TRUE))
    advice = advise(pilot, Costs(20, 0.35, 4), 0.03, rounds=10, blocks=5)
    assert advice.blocks is not None
    halves = [
        summarise(block_ratios(*made_up(rng, advice.blocks, advice.rounds, TRUE))).half_width() for _ in range(400)
    ]
    assert 0.85 * 0.03 < np.median(halves) <= 1.05 * 0.03


@pytest.mark.parametrize("location", LOCATIONS)
def test_no_location_is_biased_by_bursts_that_meet_all_arms_alike(location: Location) -> None:
    rng = np.random.default_rng(9)
    arm, native = made_up(rng, 4000, 12, TRUE)
    for rate in (arm, native):
        rate[rng.random(rate.shape) < 0.1] /= 3
    found = summarise(block_ratios(arm * 0.95, native, location))
    assert abs(found.mean - math.log(0.95)) < 4 * found.error


def test_the_default_is_the_one_that_was_chosen() -> None:
    """By `python -m bench.simulate --locations`: a change of it changes results, and belongs in the changelog."""
    assert DEFAULT_LOCATION == "trimmed mean"


def test_advice_in_words() -> None:
    costs, narrow = Costs(10, 0.35, 4), math.log(1.02)
    of_windows, of_deployments = known(0.2, 0.001), known(0.05, 0.05)

    def words(variances: Components, half_width: float) -> str:
        advice = advise(variances, costs, half_width, rounds=16, blocks=8)
        return advice_words(advice, half_width, rounds=16, blocks=8)

    assert words(of_windows, narrow) == (
        "for ± 2 %: about 19 more blocks of 16 rounds or 72 rounds in each of 8 blocks; quickest from new: 16 blocks "
        "of 29 rounds, 13 min"
    )
    assert "rounds in each" not in words(of_deployments, narrow), "no number of rounds is enough"
    assert words(of_windows, 0.5) == "8 blocks of 16 rounds are enough for ± 65 %"
    assert words(known(5, 5), 0.001) == "for ± 0.1 % even 1,000 blocks are too few"


def test_all_arms_and_conditions_at_once() -> None:
    """Arrays [block, arm, condition, round] against native's [block, 1, condition, round]: what a matrix would hold."""
    values = np.random.default_rng(2).lognormal(0, 0.1, (5, 3, 2, 9))
    values[1, 2, 0, 4:] = math.nan
    for location in LOCATIONS:
        found = block_ratios(values, values[:, :1], location)
        assert found.shape == (5, 3, 2)
        assert found[:, 0] == pytest.approx(0.0)
        assert found[1, 2, 0] == pytest.approx(block_ratios(values[1, 2, 0, :4], values[1, 0, 0, :4], location))
