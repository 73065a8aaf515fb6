"""Quantities with units, as a study file writes them and a report shows them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

# kB is 1000 bytes, KiB 1024 (IEC 80000-13). Rates are per second. Times are kept in nanoseconds.
_BYTES = {"B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_SECONDS_NS = {"ns": 1, "us": 1000, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_BITS = {"bit/s": 1, "kbit/s": 10**3, "Mbit/s": 10**6, "Gbit/s": 10**9}
# From large to small, as they are shown.
_SHOWN_BYTES = {unit: _BYTES[unit] for unit in ("GB", "MB", "kB", "B")}
_SHOWN_NS = {unit: _SECONDS_NS[unit] for unit in ("s", "ms", "us", "ns")}
_SHOWN_BITS = dict(reversed(_BITS.items()))
_RATE = {"/s": 1.0, "/min": 1 / 60}
_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z/]+)\s*")


def _parse(text: str, units: dict[str, int] | dict[str, float], what: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is not {what}: write a number and one of {', '.join(units)}")
    return float(match[1]) * units[match[2]]


def parse_bytes(text: str) -> int:
    """Bytes of ``"1 kB"`` (1000) or ``"512 MiB"``; ValueError names the units that are known."""
    return round(_parse(text, _BYTES, "a size"))


def parse_duration_ns(text: str) -> int:
    """Nanoseconds of ``"10 s"``, ``"250 ms"``, ``"30m"``."""
    return round(_parse(text, _SECONDS_NS, "a duration"))


def parse_bit_rate(text: str) -> int:
    """Bits per second of ``"36 Mbit/s"``."""
    return round(_parse(text, _BITS, "a bit rate"))


def parse_rate(text: str) -> float:
    """Events per second of ``"200 /s"``."""
    return _parse(text, _RATE, "a rate")


def parse_percent(text: str) -> float:
    """A share of one from per cent: 0.05 of ``"5%"`` and ``"5 %"``. A bare number might mean either, and is refused."""
    match = _PERCENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not per cent: write a number and %, as in 5%")
    return round(float(match[1]) / 100, 12)


def within(default: Any, least: float | None = None, most: float | None = None) -> Any:
    """A dataclass field with the bounds, in its own unit, that a value of a study file must keep."""
    return field(default=default, metadata={"least": least, "most": most})


def url_path() -> Any:
    """A dataclass field: "", or a path in a URL."""
    told = "begin with / and hold printable ASCII alone, without blanks: write others as %20"
    return field(default="", metadata={"form": r"(/[!-~]*)?", "told": told})


def plural(word: str) -> str:
    """Several of a countable word: requests, queries."""
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"


def _three_digits(value: float) -> str:
    """Three significant digits, never with an exponent for what is large: 999.7 is 1000."""
    return f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"


def _all_digits(value: float) -> str:
    """A number as it was set, never with an exponent for what is large: 1.0005 is not 1."""
    return f"{value:.15g}"


def _fitting(value: float, units: Mapping[str, int], digits: Callable[[float], str]) -> str:
    """It in the first of the units, from large to small, that it reaches; else in the last."""
    unit = next((unit for unit, size in units.items() if value >= size), [*units][-1])
    return f"{digits(value / units[unit])} {unit}"


def format_bytes(value: float) -> str:
    """Shortest of B, kB, MB, GB (powers of 1000) with three significant digits, or of KiB, MiB, GiB where those divide
    evenly.
    """
    return _size(value, _three_digits)


def exact_size(value: float) -> str:
    """A size that was set: as `format_bytes`, with all of its digits. 1447 B and 1448 B are two sizes."""
    return _size(value, _all_digits)


def _size(value: float, digits: Callable[[float], str]) -> str:
    if value and value == int(value):
        for unit in ("GiB", "MiB", "KiB"):
            if value % _BYTES[unit] == 0 and value % 1000 != 0:
                return f"{int(value) // _BYTES[unit]} {unit}"
    return _fitting(value, _SHOWN_BYTES, digits)


def exact_bytes(value: int) -> str:
    """A size exactly and in one word, as a command line takes it and `parse_bytes` reads it: ``768MiB``."""
    units = (unit for unit in ("GiB", "MiB", "KiB") if value and value % _BYTES[unit] == 0)
    unit = next(units, "B")
    return f"{value // _BYTES[unit]}{unit}"


def format_bit_rate(value: float) -> str:
    """Three significant digits in the largest fitting unit."""
    return _fitting(value, _SHOWN_BITS, _three_digits)


def exact_bit_rate(value: float) -> str:
    """A rate that was set, with all of its digits in the largest fitting unit."""
    return _fitting(value, _SHOWN_BITS, _all_digits)


def exact_rate(per_s: float) -> str:
    """Events per second that were set, with all of their digits: "200/s"."""
    return f"{_all_digits(per_s)}/s"


def format_duration(ns: float) -> str:
    """Three significant digits in the largest fitting unit up to seconds; minutes and hours as ``1 h 02 min``."""
    if ns >= 100 * _SECONDS_NS["s"]:
        minutes = math.ceil(ns / _SECONDS_NS["min"])
        return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
    return _fitting(ns, _SHOWN_NS, _three_digits)


def exact_duration(ns: float) -> str:
    """A time that was set: as `format_duration`, which makes whole minutes of what takes about so long, where it is
    whole minutes; else with all of its digits: 150 s are not 3 min.
    """
    seconds = ns / _SECONDS_NS["s"]
    return format_duration(ns) if seconds >= 100 and seconds % 60 == 0 else _fitting(ns, _SHOWN_NS, _all_digits)


def enough_time(seconds: float) -> str:
    """A time that holds so many seconds, as `parse_duration_ns` reads it: whole seconds or minutes, rounded up."""
    return f"{math.ceil(seconds)} s" if seconds < 100 else f"{math.ceil(seconds / 60)} min"


def exact_percent(share: float) -> str:
    """A share of one that was set, in per cent with all of its digits: a margin of 1.25 is not 1.2."""
    return f"{share * 100:.10g}"


def percent(value: float) -> str:
    """What was measured, in per cent: one decimal below 10 where it says something, and more where one would show 0."""
    if value >= 10:
        return f"{value:,.0f}"
    digits = next((digits for digits in range(1, _MOST_DIGITS) if float(f"{value:.{digits}f}") > 0), 1)
    return f"{value:.{digits}f}".removesuffix(".0")


_MOST_DIGITS = 5
