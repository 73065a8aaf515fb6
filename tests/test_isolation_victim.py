"""What single requests say of a victim: made-up requests with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.analysis.victim import BIN_NS, Band, Bins, Course, Requests, Settling, Stretch

MS = 1_000_000
S = 1_000 * MS


def made(
    *, latency_ms: float = 2.0, end_s: float = 6.0, per_ms: int = 1, late: tuple[float, float, float] = (0, 0, 1),
    lost: tuple[float, float] = (0, 0),
) -> Requests:  # fmt: skip
    """A request a millisecond; ``late`` (from, to, times) and ``lost`` (from, to) in seconds."""
    intended_ns = np.arange(0, round(end_s * S), MS // per_ms, dtype=np.int64)
    slow = (intended_ns >= late[0] * S) & (intended_ns < late[1] * S)
    wave = 1 + 0.1 * np.sin(np.arange(len(intended_ns)) / 7)
    latency_ns = (latency_ms * MS * np.where(slow, late[2], 1) * wave).astype(np.int64)
    gone = (intended_ns >= lost[0] * S) & (intended_ns < lost[1] * S)
    return Requests.of(intended_ns, latency_ns, np.where(gone, -2, 200).astype(np.int16))


def course(requests: Requests) -> Course:
    return Course(requests, 2 * S, 4 * S, 6 * S)


def test_a_request_belongs_to_the_stretch_it_was_to_start_in() -> None:
    cut = course(made(lost=(2, 3)))
    before, during, after = (cut.stretch(name) for name in ("before", "during", "after"))
    assert (before.intended, during.intended, after.intended) == (2000, 2000, 2000)
    assert (before.share, during.share, after.share) == (1.0, 0.5, 1.0)
    assert during.goodput_per_s == 500


@given(st.integers(0, 5000))
def test_stretches_lose_no_request_and_count_none_twice(edge_ms: int) -> None:
    requests = made()
    parts = [Stretch.of(requests, 0, edge_ms * MS), Stretch.of(requests, edge_ms * MS, 6 * S)] if edge_ms else []
    assert not parts or sum(part.intended for part in parts) == len(requests.intended_ns)


def test_a_request_without_an_answer_has_no_latency() -> None:
    intended_ns = np.arange(0, 2 * S, 10 * MS, dtype=np.int64)
    timed_out = np.full(len(intended_ns), 30 * S, dtype=np.int64)
    silent = Requests.of(intended_ns, timed_out, np.full(len(intended_ns), -2, dtype=np.int16))
    stretch = Stretch.of(silent, 0, 2 * S)
    assert (stretch.answered, stretch.goodput_per_s) == (0, 0.0)
    assert stretch.quantile_ms(0.5) == "it lies among the 200 of 200 requests without an answer"


def test_a_request_without_an_answer_is_slower_than_any_with_one() -> None:
    stretch = Stretch.of(made(lost=(0, 0.1)), 0, S)  # 100 of 1000
    assert isinstance(stretch.quantile_ms(0.9), float)
    assert stretch.quantile_ms(0.99) == "it lies among the 100 of 1000 requests without an answer"
    assert [stretch.is_unanswered(q) for q in (0.5, 0.9, 0.99)] == [False, False, True]
    assert not Stretch.of(made(end_s=0.1, lost=(0, 0.1)), 0, S).is_unanswered(0.99)  # too few to tell


@pytest.mark.parametrize(("count", "told"), [(499, False), (500, True)])
def test_a_percentile_needs_five_beyond_it(count: int, told: bool) -> None:
    requests = made(end_s=count / 1000)
    assert isinstance(Stretch.of(requests, 0, S).quantile_ms(0.99), float) == told


def test_bins_end_with_the_stretch_and_an_empty_one_has_no_share() -> None:
    requests = made(end_s=0.25)
    bins = Bins.of(requests, 0, 450 * MS, 0)
    assert list(bins.at_s) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert list(bins.intended) == [100, 100, 50, 0]
    assert list(bins.share[:3]) == [1, 1, 1]
    assert np.isnan(bins.share[3])
    assert np.isnan(bins.p99_ms[3])


def test_recovery_is_the_time_until_half_a_second_lies_in_the_band_of_before() -> None:
    assert course(made()).recovery() == Settling(0.0, is_censored=False)
    assert course(made(late=(2, 4.3, 5.0))).recovery() == Settling(0.3, is_censored=False)
    assert course(made(lost=(2, 4.65))).recovery() == Settling(0.7, is_censored=False)


def test_what_does_not_recover_within_the_window_took_longer() -> None:
    recovery = course(made(late=(2, 6, 5.0))).recovery()
    assert recovery == Settling(1.5, is_censored=True)  # the last half second began there


def test_half_a_second_in_the_band_counts_and_less_does_not() -> None:
    relapse = made(late=(4.4, 4.6, 5.0))
    assert course(relapse).recovery() == Settling(0.6, is_censored=False)


def test_without_enough_answers_before_there_is_no_band() -> None:
    assert course(made(lost=(0, 1.9))).recovery() is None
    bins = Bins.of(made(lost=(0, 6)), 0, 6 * S, 0)
    assert Band.of(bins) is None


def test_overshoot_is_the_peak_over_the_level_it_settles_to() -> None:
    requests = made(late=(2, 2.3, 8.0))
    peak = course(requests).overshoot()
    assert peak == pytest.approx(8.0, rel=0.02)
    assert course(requests).settling() == Settling(0.3, is_censored=False)


def test_rebound_is_the_peak_after_the_end_over_the_level_before() -> None:
    assert course(made(late=(4, 4.2, 3.0))).rebound() == pytest.approx(3.0, rel=0.02)
    assert course(made(late=(2, 4, 3.0))).rebound() == pytest.approx(1.0, rel=0.02)


def test_the_timeline_is_aligned_to_the_aggressors_start() -> None:
    shifted = Course(made(), 2 * S + 30 * MS, 4 * S, 6 * S)
    assert 0.0 in [pytest.approx(at_s, abs=1e-9) for at_s in shifted.timeline.at_s]
    assert len(shifted.before) == 20
    assert shifted.before.at_s[-1] == pytest.approx(-BIN_NS / 1e9)
