"""Quantities: what is read is what was meant, what is shown can be read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll import units


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_bytes, "1 kB", 1000),
        (units.parse_bytes, "1.5 MiB", 1_572_864),
        (units.parse_duration_ns, "30m", 1_800 * 10**9),
        (units.parse_duration_ns, "250 ms", 250 * 10**6),
        (units.parse_bit_rate, "36 Mbit/s", 36_000_000),
        (units.parse_rate, "90 /min", 1.5),
    ],
)
def test_a_quantity_is_read_with_its_unit(parse: object, text: str, value: float) -> None:
    assert callable(parse)
    assert parse(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["10", "kB", "-1 kB", "1 KB", "1,5 MB", "1e3 B"])
def test_what_is_no_size_is_refused_with_the_units_known(text: str) -> None:
    with pytest.raises(ValueError, match="write a number and one of B, kB, MB"):
        units.parse_bytes(text)


@given(st.integers(1, 999), st.sampled_from(["B", "kB", "MB", "KiB", "MiB"]))
def test_a_shown_size_can_be_read_again(number: int, unit: str) -> None:
    value = units.parse_bytes(f"{number} {unit}")
    assert units.parse_bytes(units.format_bytes(value)) == pytest.approx(value, rel=0.006)


@given(st.integers(1, 10**12))
def test_a_shown_rate_can_be_read_again(value: int) -> None:
    assert units.parse_bit_rate(units.format_bit_rate(value)) == pytest.approx(value, rel=0.006)


@pytest.mark.parametrize(
    ("ns", "shown"),
    [(950, "950 ns"), (1_500, "1.5 us"), (2.5e9, "2.5 s"), (150e9, "3 min"), (3_720e9, "1 h 02 min")],
)
def test_durations_are_shown_in_what_fits(ns: float, shown: str) -> None:
    assert units.format_duration(ns) == shown


@given(st.floats(1e-3, 1e6))
def test_enough_time_is_enough(seconds: float) -> None:
    read_s = units.parse_duration_ns(units.enough_time(seconds)) / 1e9
    assert seconds <= read_s <= seconds + (1 if seconds < 100 else 60)


@given(st.integers(1, 10**6))
def test_a_time_that_was_set_is_shown_as_long_as_it_is(seconds: int) -> None:
    """What it takes is rounded up to minutes: 150 s were 3 min, and 110 s and 2 min alike."""
    words = units.exact_duration(seconds * 10**9).replace(" h ", " h+").split("+")
    assert sum(units.parse_duration_ns(word) for word in words) == seconds * 10**9


@given(st.integers(1, 10**13))
def test_what_was_set_is_shown_with_all_of_its_digits(value: int) -> None:
    """Two levels of a factor, 1447 B and 1448 B, were "1.45 kB" both."""
    assert units.parse_bytes(units.exact_size(value)) == value
    assert units.parse_bit_rate(units.exact_bit_rate(value)) == value
    assert units.parse_rate(units.exact_rate(value / 1000)) == value / 1000
    assert units.parse_duration_ns(units.exact_duration(value % (100 * 10**9) + 1)) == value % (100 * 10**9) + 1


@pytest.mark.parametrize("text", ["0.15", "0.25", "1.25", "3", "5", "12.5", "37"])
def test_a_share_that_was_set_is_shown_with_all_of_its_digits(text: str) -> None:
    assert units.exact_percent(units.parse_percent(f"{text} %")) == text


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (3, "3"), (2.5, "2.5"), (0.3, "0.3"), (12.3, "12"), (1234, "1,234"), (0.04, "0.04"), (0.0031, "0.003")],
)
def test_what_is_more_than_nothing_is_not_shown_as_0_per_cent(value: float, shown: str) -> None:
    """A noise floor, or what could be shown."""
    assert units.percent(value) == shown
