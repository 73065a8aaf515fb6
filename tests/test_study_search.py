"""The search for a knee, on services that are made up: it ends, it stays within bounds, and it finds what is there."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as some

from virtoll.record.knee import Told
from virtoll.study.search import DOUBLING, Asked, Found, expected_windows, levels, search, walked

Service = Callable[[float], Told]
WIDE = levels(10, 100_000, 0.05, whole=False)


def asking(
    tell: Callable[[Asked], Told], intensities: Sequence[float] = WIDE, windows: int = 5, exploring: float = DOUBLING
) -> tuple[Found, list[Asked]]:
    """How a search ends, and the windows that it asked for."""
    going, asked = search(intensities, windows, exploring), []
    at = next(going)
    try:
        while True:
            asked.append(at)
            at = going.send(tell(at))
    except StopIteration as end:
        found: Found = end.value
        return found, asked


def searched(service: Service, intensities: Sequence[float] = WIDE, windows: int = 5) -> tuple[Found, list[Asked]]:
    """The same at a service that knows nothing of a search."""
    return asking(lambda asked: service(asked.intensity), intensities, windows)


def sharp(knee: float) -> Service:
    return lambda intensity: "met" if intensity <= knee else "not met"


# -- what may be asked for --------------------------------------------------------------------------------


@given(
    least=some.floats(0.01, 1e4),
    times=some.floats(1, 1e4),
    precision=some.floats(0.005, 1),
    offset=some.floats(0.001, 1),
)
def test_rates_lie_between_the_bounds_in_steps_no_longer_than_asked(
    least: float, times: float, precision: float, offset: float
) -> None:
    most = least * times
    made = levels(least, most, precision, whole=False, offset=offset)
    assert (made[0], made[-1]) == (least, most)
    assert all(1 < after / before <= (1 + precision) * (1 + 1e-9) for before, after in itertools.pairwise(made))


@given(
    least=some.integers(1, 500),
    more=some.integers(0, 5000),
    precision=some.floats(0.01, 1),
    offset=some.floats(0.001, 1),
)
def test_users_are_whole_and_each_step_is_one_or_no_longer_than_asked(
    least: int, more: int, precision: float, offset: float
) -> None:
    made = levels(least, least + more, precision, whole=True, offset=offset)
    assert (made[0], made[-1]) == (least, least + more)
    assert all(level.is_integer() for level in made)
    for before, after in itertools.pairwise(made):
        assert after == before + 1 or before < after <= before * (1 + precision) * (1 + 1e-9)


@pytest.mark.parametrize(("least", "most", "precision"), [(0, 5, 0.1), (5, 4, 0.1), (1, 2, 0)])
def test_bounds_that_hold_nothing_are_an_error(least: float, most: float, precision: float) -> None:
    with pytest.raises(ValueError, match="no intensities"):
        levels(least, most, precision, whole=False)


# -- how it goes on ---------------------------------------------------------------------------------------


def test_it_doubles_then_halves_and_then_asks_afresh_below_and_above() -> None:
    """Golden: every window of a search, so that a change of the rule is seen."""
    found, asked = searched(sharp(6), levels(1, 10, 1e-9, whole=True), windows=3)
    assert found == Found("settled", 6, 7)
    assert [(each.intensity, each.part) for each in asked] == [
        *((level, "explore") for level in (1, 2, 4, 8, 8, 6, 7, 7)),
        *((level, "confirm") for level in (6, 6, 7, 7)),
    ]


def test_windows_that_led_there_do_not_decide() -> None:
    """A service that met the objective only while it was explored has no knee there."""
    found, _ = asking(lambda asked: sharp(1000 if asked.part == "explore" else 100)(asked.intensity))
    assert found.lower is not None
    assert found.lower <= 100 < found.lower * 1.05


def test_a_burst_while_exploring_does_not_send_it_astray() -> None:
    windows = itertools.count()
    found, _ = searched(lambda rate: "not met" if next(windows) in (0, 3, 5) else sharp(5000)(rate))
    assert found.lower is not None
    assert found.lower <= 5000 < found.lower * 1.05


def test_no_more_is_asked_where_most_have_told() -> None:
    _, asked = searched(sharp(5000), windows=99)
    assert sum(each.part == "confirm" for each in asked) == 2 * 50


# -- how it ends ------------------------------------------------------------------------------------------


def test_a_service_that_carries_nothing_is_below_the_least() -> None:
    found, asked = searched(lambda _: "not met")
    assert found == Found("below least", None, 10)
    assert {each.intensity for each in asked} == {10}, "it was not asked for more than it was found not to carry"


def test_a_service_that_carries_all_is_beyond_the_most() -> None:
    found, _ = searched(lambda _: "met")
    assert found == Found("beyond most", 100_000, None)


def test_where_the_generator_gives_out_the_knee_is_beyond_it() -> None:
    found, _ = searched(lambda rate: "met" if rate <= 700 else "generator")
    assert found.ended == "beyond generator"
    assert found.upper is None
    assert found.lower is not None
    assert found.lower <= 700 < found.lower * 1.05


def test_where_the_generator_offers_nothing_there_is_no_bound() -> None:
    assert searched(lambda _: "generator")[0] == Found("beyond generator", None, None)


def test_a_generator_that_is_in_the_way_now_and_then_does_not_hide_a_knee() -> None:
    windows = itertools.count()
    found, _ = searched(lambda rate: "generator" if next(windows) % 7 == 6 else sharp(700)(rate))
    assert found.ended == "settled"
    assert found.lower is not None
    assert found.lower <= 700 < found.lower * 1.05


def test_where_no_answer_is_most_the_generator_was_in_the_way() -> None:
    answers: Iterator[Told] = itertools.cycle(["met", "not met", "generator"])
    assert asking(lambda _: next(answers), [1.0], 3)[0] == Found("beyond generator", None, None)


def test_of_a_service_that_recovers_one_knee_is_told() -> None:
    """Not monotonic: met up to 100 and from 120 to 500. Which of the two it is, is told; both are true."""
    found, _ = searched(lambda rate: "met" if rate <= 100 or 120 <= rate <= 500 else "not met")
    assert found.lower is not None
    assert any(found.lower <= knee < found.lower * 1.05 for knee in (100, 500))


def most_windows(intensities: Sequence[float], windows: int, exploring: float) -> int:
    """How many windows any search takes at the most, whatever they tell."""
    halvings = math.ceil(math.log2(len(intensities) + 1))
    explored = math.ceil(math.log(intensities[-1] / intensities[0], exploring)) + 1 + halvings
    return 2 * explored + windows * (2 * halvings + 2)


@given(
    answers=some.lists(some.sampled_from(["met", "not met", "generator"]), min_size=1, max_size=50),
    most=some.integers(1, 100_000),
    asks=some.tuples(some.sampled_from([1, 3, 5, 9]), some.sampled_from([1.25, DOUBLING])),
    precision=some.floats(0.01, 0.5),
    whole=some.booleans(),
)
def test_it_ends_within_its_bounds_whatever_the_windows_tell(
    answers: list[Told], most: int, asks: tuple[int, float], precision: float, whole: bool
) -> None:
    told = itertools.cycle(answers)
    intensities = levels(1, most, precision, whole=whole)
    found, asked = asking(lambda _: next(told), intensities, *asks)
    assert len(asked) <= most_windows(intensities, *asks)
    assert {each.intensity for each in asked} <= set(intensities)
    if found.lower is not None and found.upper is not None:
        assert intensities.index(found.upper) == intensities.index(found.lower) + 1
    assert (found.ended == "settled") == (found.lower is not None and found.upper is not None)
    for bound, met in ((found.lower, True), (found.upper, False)):
        mine = [each for each in asked if each.part == "confirm" and each.intensity == bound]
        assert bound is None or asks[0] // 2 < len(mine) <= asks[0], met


# -- what it promises -------------------------------------------------------------------------------------

RUNS = 400


def noisy(knee: float, noise: random.Random) -> Service:
    """Windows scatter by 1 %."""
    return lambda rate: "met" if rate <= knee * noise.lognormvariate(0, 0.01) else "not met"


def bursting(knee: float, noise: random.Random) -> Service:
    """One window of ten is missed for no fault of the service's."""
    return lambda rate: "met" if rate <= knee and noise.random() > 0.1 else "not met"


def heavy(knee: float, noise: random.Random) -> Service:
    """Stalls of a Pareto distribution (index 1.5) cut what a window carries: by 0.1 % half of the time, now and then
    by all.
    """
    return lambda rate: "met" if rate * (1 + 0.0017 * noise.paretovariate(1.5)) <= knee * 1.0027 else "not met"


@pytest.mark.parametrize(
    ("service", "spread"),
    [(lambda knee, _: sharp(knee), 0.0), (noisy, 0.01), (bursting, 0.0), (heavy, 0.001)],
    ids=["sharp", "noisy", "bursting", "heavy"],
)
def test_the_knee_lies_between_the_bounds_in_95_of_100_runs(
    service: Callable[[float, random.Random], Service], spread: float
) -> None:
    """To within the spread of a window: where windows scatter by 1 %, the knee is known to 1 % and no better."""
    noise, held, lengths = random.Random(1), 0, []
    for _ in range(RUNS):
        knee = math.exp(noise.uniform(math.log(50), math.log(50_000)))
        intensities = levels(10, 100_000, 0.05, whole=False, offset=1 - noise.random())
        found, asked = searched(service(knee, noise), intensities)
        lengths.append(len(asked))
        if found.lower is not None and found.upper is not None:
            held += found.lower * (1 - spread) <= knee < found.upper * (1 + spread)
    assert held / RUNS >= 0.95
    assert fmean(lengths) <= expected_windows(WIDE, 5)


@pytest.mark.parametrize(("least", "whole"), [(100, False), (1, True)], ids=["rates", "users"])
def test_steps_that_are_drawn_do_not_bias_a_ratio(least: float, whole: bool) -> None:
    """Of two arms 3 % apart, in steps of 10 %: fixed steps would say 0 or 10 %, however many blocks there are."""
    noise, logs = random.Random(2), []
    for _ in range(2000):
        found = [
            searched(sharp(knee), levels(least, 10_000, 0.1, whole=whole, offset=1 - noise.random()))[0].lower
            for knee in (1030.0, 1000.0)
        ]
        assert None not in found
        logs.append(math.log((found[0] or math.nan) / (found[1] or math.nan)))
    assert fmean(logs) == pytest.approx(math.log(1.03), abs=0.004)  # three standard errors of 0.039 / sqrt(2000)


def test_the_windows_of_a_search_are_known_where_the_knee_is() -> None:
    told = [(10, True), (20, True), (40, False), (40, False), (20, True), (40, False)]
    assert list(walked((10, 20, 40), 1, 25)) == told
    assert list(walked((10,), 3, 25)) == [(10, True)] * 3, "one explores, and two of three decide"
