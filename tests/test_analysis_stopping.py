"""Stopping rules: against published boundaries, a numerical integration of our own, simulations with known truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from virtoll.analysis.estimates import Summary, summarise, t_quantile
from virtoll.analysis.stopping import (
    PHI,
    GroupSequential,
    critical_values,
    mixture_critical,
    mixture_evidence,
    mixture_half_width,
    mixture_phi,
    spent,
    stein_blocks,
    stein_half_width,
)

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def t_paths(rng: np.random.Generator, paths: int, blocks: int, effect: float = 0.0) -> tuple[Floats, Floats, Floats]:
    """Running mean, standard error and t of ``paths`` studies, arrays [path, block]; the first block is nan."""
    x = rng.normal(effect, 1.0, (paths, blocks))
    n = np.arange(1, blocks + 1)
    means = x.cumsum(axis=1) / n
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.sqrt(((x**2).cumsum(axis=1) - n * means**2) / (n - 1) / n)
        return means, errors, means / errors


# -- critical values ---------------------------------------------------------------------------------------


# By integrating the chain of |t| numerically (it is Markov under no difference), converged to the digits given.
INTEGRATED = {
    (20, "pocock"): {4: 5.076, 5: 4.94, 6: 4.465, 8: 3.813, 10: 3.463, 15: 3.056, 20: 2.873},
    (20, "obrien-fleming"): {4: 57.27, 5: 16.5, 6: 9.03, 8: 5.12, 10: 3.900, 15: 2.815, 20: 2.390},
    (10, "pocock"): {4: 4.106, 5: 4.147, 6: 3.875, 7: 3.624, 8: 3.432, 9: 3.286, 10: 3.175},
}


@pytest.mark.parametrize("design", list(INTEGRATED))
def test_critical_values_are_those_of_a_numerical_integration(design: tuple[int, str]) -> None:
    most, spending = design
    critical = GroupSequential.up_to(most, spending).critical  # type: ignore[arg-type]
    for blocks, expected in INTEGRATED[design].items():
        rare = spending == "obrien-fleming" and blocks <= 6  # a level below 3e-4: Student's, or a hundred of the paths
        assert critical[blocks] == pytest.approx(expected, rel=0.03 if rare else 0.01)


# Two-sided 5 %, five equal looks, variance known: Reboussin, DeMets, Kim & Lan, Controlled Clinical Trials 21, 2000
# (the program ld98), as the R packages ldbounds and gsDesign (sfLDOF, sfLDPocock) give them.
PUBLISHED = {
    "pocock": ([spent(k / 5, "pocock") for k in range(1, 6)], (2.4380, 2.4268, 2.4101, 2.3966, 2.3859)),
    # there each side spends on its own: twice the spending of 2.5 %
    "obrien-fleming": (
        [2 * spent(k / 5, "obrien-fleming", 0.025) for k in range(1, 6)],
        (4.8769, 3.3569, 2.6803, 2.2898, 2.0310),
    ),
}


@pytest.mark.parametrize("spending", list(PUBLISHED))
def test_with_many_blocks_they_are_the_published_ones_of_a_known_variance(spending: str) -> None:
    errors, published = PUBLISHED[spending]
    looks = (40, 80, 120, 160, 200)
    critical = critical_values(looks, tuple(errors))
    levels = [float(scipy.special.ndtri(scipy.special.stdtr(n - 1, t))) for n, t in zip(looks, critical, strict=True)]
    assert levels == pytest.approx(published, rel=0.015)


def test_one_look_is_students_t() -> None:
    assert GroupSequential((10,)).critical == {10: pytest.approx(t_quantile(0.975, 9))}


@pytest.mark.parametrize("spending", ["pocock", "obrien-fleming"])
def test_all_of_the_error_is_spent_at_the_end_and_never_less_before(spending: str) -> None:
    shares = [spent(share, spending, 0.05) for share in (0.1, 0.4, 0.9, 1.0)]  # type: ignore[arg-type]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(0.05)


def test_looks_must_ascend() -> None:
    with pytest.raises(ValueError, match="ascending"):
        GroupSequential((4, 4, 6))


# -- the hazard of peeking, and its remedies ----------------------------------------------------------------


@pytest.mark.parametrize("spending", ["pocock", "obrien-fleming"])
def test_peeking_inflates_a_plain_t_test_and_not_the_boundaries(spending: str) -> None:
    design = GroupSequential.up_to(20, spending)  # type: ignore[arg-type]
    _, _, t = t_paths(np.random.default_rng(5), 20_000, 20)
    plain = np.array([t_quantile(0.975, n - 1) for n in design.looks])
    seen = np.abs(t[:, design.looks[0] - 1 :])
    assert (seen > plain).any(axis=1).mean() == pytest.approx(0.205, abs=0.01)  # notes: 20.5 %
    assert (seen > np.array(list(design.critical.values()))).any(axis=1).mean() == pytest.approx(0.05, abs=0.006)


def test_power_and_mean_number_of_blocks() -> None:
    """At an effect of one standard deviation, Pocock-like up to 20: 95 % after 10.8 blocks on average."""
    design = GroupSequential.up_to(20)
    _, _, t = t_paths(np.random.default_rng(6), 20_000, 20, effect=1.0)
    crossed = np.abs(t[:, 3:]) > np.array(list(design.critical.values()))
    assert crossed.any(axis=1).mean() == pytest.approx(0.95, abs=0.01)
    stopped = np.where(crossed.any(axis=1), crossed.argmax(axis=1) + 4, 20)
    assert stopped.mean() == pytest.approx(10.8, abs=0.2)


@pytest.mark.parametrize("effect", [0.0, 1.0])
def test_after_stopping_a_repeated_interval_covers_and_a_plain_one_need_not(effect: float) -> None:
    design, rng = GroupSequential.up_to(20), np.random.default_rng(7)
    mean, error, t = t_paths(rng, 20_000, 20, effect)
    critical = np.array([math.inf] * 3 + list(design.critical.values()))
    ended = np.abs(t) > critical
    at = np.where(ended.any(axis=1), ended.argmax(axis=1), 19)
    path = np.arange(len(at))
    off = np.abs(mean[path, at] - effect) / error[path, at]
    assert (off <= critical[at]).mean() >= 0.948
    if effect == 0:
        plain = np.array([math.nan, *(t_quantile(0.975, n) for n in range(1, 20))])
        assert (off <= plain[at]).mean() == pytest.approx(0.921, abs=0.01)


def test_a_look_settles_what_its_repeated_interval_settles() -> None:
    design = GroupSequential.up_to(10)
    c = design.critical[6]
    assert design.half_width(Summary(0.1, 0.02, 6)) == pytest.approx(c * 0.02)
    assert design.settled(Summary(0.1, 0.02, 6), 0.03) == "different"
    assert design.settled(Summary(0.002, 0.002, 6), 0.03) == "same"
    assert design.settled(Summary(0.02, 0.02, 6), 0.03) is None
    assert design.half_width(Summary(0.1, 0.0, 3)) == math.inf, "not a look"
    assert design.settled(Summary(5.0, 0.001, 3), 0.03) is None
    assert "looks after 4 to 10 blocks (7 in all), Pocock-like spending of 5 %" in design.describe()


# -- Stein's two stages --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pilot", "mean_blocks"), [(5, 22.0), (8, 16.3), (10, 15.4)])
def test_stein_covers_where_stopping_at_a_width_does_not(pilot: int, mean_blocks: float) -> None:
    """A half-width of 0.6 standard deviations; mean numbers of blocks from the notes."""
    rng, wanted, studies = np.random.default_rng(pilot), 0.6, 4000
    x = rng.normal(0, 1, (studies, 400))
    covered, blocks = 0, []
    for row in x:
        first = summarise(row[:pilot])
        n = stein_blocks(first, wanted)
        half = stein_half_width(first, n)
        assert half <= wanted + 1e-12
        covered += abs(row[:n].mean()) <= half
        blocks.append(n)
    assert covered / studies == pytest.approx(0.95, abs=0.012)
    assert np.mean(blocks) == pytest.approx(mean_blocks, rel=0.05)
    mean, error, _ = t_paths(rng, studies, 60)
    halves = error * np.array([math.nan, *(t_quantile(0.975, n) for n in range(1, 60))])
    at = (halves[:, pilot - 1 :] <= wanted).argmax(axis=1) + pilot - 1
    naive = (np.abs(mean[np.arange(studies), at]) <= halves[np.arange(studies), at]).mean()
    assert naive < (0.94 if pilot < 10 else 0.95)


def test_stein_needs_a_spread() -> None:
    with pytest.raises(ValueError, match="pilot of one block"):
        stein_blocks(summarise([0.1]), 0.02)


# -- always valid ---------------------------------------------------------------------------------------------


NOTES = {  # critical t by number of blocks
    0.1: {4: 6.54, 5: 5.41, 6: 4.90, 8: 4.42, 10: 4.18, 15: 3.92, 20: 3.81, 30: 3.73, 50: 3.69},
    0.5: {4: 12.05, 5: 5.83, 6: 4.82, 8: 4.14, 10: 3.87, 15: 3.61, 20: 3.52, 30: 3.45, 50: 3.42},
}


@pytest.mark.parametrize("phi", list(NOTES))
def test_mixture_has_the_critical_values_computed_elsewhere(phi: float) -> None:
    assert {n: round(mixture_critical(n, phi), 2) for n in NOTES[phi]} == NOTES[phi]


def test_mixture_is_that_of_the_r_package_avlm() -> None:
    """Its README: 100 observations, 8 coefficients, optimal g, t = 5.776 has p = 9.77e-06 (t is printed rounded)."""
    g = mixture_phi(100, freedom=92)
    assert 1 / mixture_evidence(5.776, 100, g, 92) == pytest.approx(9.77e-6, rel=0.003)
    assert 1 / mixture_evidence(8.190, 100, g, 92) == pytest.approx(8.07e-10, rel=0.005)


def test_tightest_phi() -> None:
    found = [round(mixture_phi(n), 2) for n in (5, 8, 10, 15, 20, 30)]
    assert found == [0.18, 0.5, 0.72, 1.31, 1.91, 3.11]


@given(st.integers(4, 60), st.floats(0.05, 3))
def test_mixture_interval_ends_where_the_evidence_suffices(n: int, phi: float) -> None:
    critical = mixture_critical(n, phi)
    if math.isfinite(critical):
        assert mixture_evidence(critical, n, phi) == pytest.approx(20.0, rel=1e-6)
    else:
        assert mixture_evidence(1e9, n, phi) < 20.001


def test_mixture_may_be_looked_at_always() -> None:
    _, _, t = t_paths(np.random.default_rng(9), 10_000, 50)
    critical = np.array([math.inf] + [mixture_critical(n, PHI) for n in range(2, 51)])
    assert (np.abs(t) > critical).any(axis=1).mean() <= 0.04  # notes: 2.6 % up to 50
    assert mixture_half_width(Summary(0.1, 0.01, 2)) == math.inf
    assert mixture_half_width(Summary(0.1, 0.01, 10)) == pytest.approx(0.01 * mixture_critical(10, PHI))


@pytest.mark.parametrize("most", [20, 100])
def test_more_comparisons_have_no_narrower_bounds(most: int) -> None:
    looks = tuple(range(4, most + 1))
    families = (1, 5, 11, 12, 63, 64, 180, 1000)
    bounds = [list(GroupSequential(looks, "pocock", 0.05 / family).critical.values()) for family in families]
    for fewer, more in itertools.pairwise(bounds):
        assert all(a <= b < math.inf for a, b in zip(fewer, more, strict=True))


def test_bounds_of_a_small_share_spend_no_more_than_it() -> None:
    """Where few of the simulated paths lie beyond, on other paths: 0.1 % over looks after 4 to 40 blocks."""
    design = GroupSequential.up_to(40, alpha=0.001)
    beyond = 0
    for seed in range(10):
        _, _, t = t_paths(np.random.default_rng([11, seed]), 20_000, 40)
        beyond += int((np.abs(t[:, 3:]) > np.array(list(design.critical.values()))).any(axis=1).sum())
    assert beyond <= 200 + 3 * math.sqrt(200)
