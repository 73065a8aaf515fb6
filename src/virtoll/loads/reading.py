"""How a number is found in what a program prints."""

from __future__ import annotations

import csv
import json
import math
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from virtoll import strict_json

_LARGEST = 2.0**63  # of what any program counts or measures


@dataclass(frozen=True)
class Reading:
    """Where a number stands: ``read`` is a regular expression with one group, ``json`` a path ("jobs[0].read.iops"),
    ``csv`` a column's heading; exactly one of them.

    Of several matches (or rows) the last counts: programs that report as they go on print their total at the end.
    ``unit`` is told beside the number, and the number is told ``times`` what is read.
    """

    read: str = ""
    json: str = ""
    csv: str = ""
    unit: str = ""
    times: float = 1.0
    title: str = ""
    better: Literal["more", "less", "neither"] = "neither"

    @property
    def flaw(self) -> str:
        """Why it can find nothing in any output; "" where it can."""
        if len([way for way in (self.read, self.json, self.csv) if way]) != 1:
            return "give one of read (a regular expression), json (a path) and csv (a column)"
        if self.read:
            try:
                groups = re.compile(self.read).groups
            except re.error as error:
                return f"read = {self.read!r} is no regular expression: {error}"
            return "" if groups == 1 else f"read = {self.read!r} has {groups} groups: put one around the number"
        return "" if not self.json or _steps(self.json) else f"json = {self.json!r} is no path: write a.b[0].c"

    def of(self, output: str) -> float:
        """The number in an output; ValueError says what was looked for and not found."""
        told = self._told(output)
        try:
            return finite(finite(told) * self.times)
        except ValueError as error:
            raise ValueError(f"{self._words()} is {error}") from None

    def _words(self) -> str:
        if self.read:
            return f"what read = {self.read!r} matches"
        return f"{self.json} in its JSON" if self.json else f"column {self.csv!r} of its CSV"

    def _told(self, output: str) -> Any:
        if self.read:
            found = re.findall(self.read, output, re.MULTILINE)
            if not found:
                raise ValueError(f"nothing matches read = {self.read!r}")
            return found[-1].replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", found[-1]) else found[-1]
        return _in_json(self.json, output) if self.json else _in_csv(self.csv, output)


def _steps(path: str) -> list[str | int]:
    """The steps of a path into JSON; empty for none."""
    if not re.fullmatch(r"[^.\[\]]+(\[\d+\])*(\.[^.\[\]]+(\[\d+\])*)*", path):
        return []
    return [int(index) if index else key for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path)]


def finite(told: object) -> float:
    """The number that a program told; ValueError where it is none, or larger than any should be."""
    try:
        value = float(told) if isinstance(told, str | int | float) and not isinstance(told, bool) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not abs(value) <= _LARGEST:
        raise ValueError(f"{str(told)[:60]!r}, which is no number that could be")
    return value


def _in_json(path: str, output: str) -> Any:
    """The value at a path of the JSON that an output holds, whatever is printed around it: the last document that has
    it. One begins where a line does, or else where the first bracket is.
    """
    begins = [match.end() - 1 for match in re.finditer(r"^[ \t]*[{\[]", output, re.MULTILINE)]
    begins = begins or [match.start() for match in re.finditer(r"[{\[]", output)][:1]
    if not begins:
        raise ValueError("there is no JSON in what it printed")
    decoder, end, found, is_json = json.JSONDecoder(parse_constant=strict_json.refuse), 0, list[Any](), False
    for begin in begins:
        if begin < end:
            continue  # within the one before
        try:
            document, end = decoder.raw_decode(output, begin)
        except (ValueError, RecursionError):
            continue
        is_json = True
        with suppress(KeyError, IndexError, TypeError):
            found = [_at(path, document)]
    if found:
        return found[0]
    raise ValueError(f"there is no {path} in its JSON" if is_json else "what it printed is no JSON")


def _at(path: str, value: Any) -> Any:
    for step in _steps(path):
        value = value[step]
    return value


def _in_csv(column: str, output: str) -> str:
    """The last row's value of a column; the heading is the first line that has it."""
    try:
        rows = list(csv.reader(output.splitlines()))
    except csv.Error as error:
        raise ValueError(f"what it printed is no CSV: {error}") from None
    for at, row in enumerate(rows):
        names = [name.strip() for name in row]
        if column in names:
            index = names.index(column)
            values = [later[index] for later in rows[at + 1 :] if len(later) == len(row)]
            if not values:
                raise ValueError(f"there is no row below column {column!r} of its CSV")
            return values[-1].strip()
    raise ValueError(f"there is no column {column!r} in what it printed")
