"""What an agent says, taken with care: root inside an instance may say anything, so every value is looked at."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from virtoll.errors import AgentError

_LEAST, _MOST = -(2**63), 2**64 - 1  # what the agent's own integers hold
_LONGEST_TEXT = 4096  # of a fact, a name, a reason
_MOST_FACTS = 64
MOST_VALUES = 16 * 1024**2  # of all samples; the agent's ring holds half of it

_REMEDY = "use the agent of the same version; if it is, what runs inside meddles with it"


def response(line: bytes) -> dict[str, Any] | None:
    """A response's object; None for a line that is none (a kernel's message, or nonsense)."""
    try:
        found = json.loads(line.decode())  # of bytes it would take half a surrogate pair for UTF-8, too
        if b"\\u" in line:
            json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair could not be printed nor written
    except (ValueError, RecursionError):  # no JSON, no UTF-8, numbers without end, brackets without end
        return None
    if not isinstance(found, dict) or type(found.get("id")) is not int:
        return None
    return found if isinstance(found.get("ok"), dict) or isinstance(found.get("error"), dict) else None


class Fields:
    """The ``ok`` of a response, or a part of it. AgentError for a value that is missing or not of its kind."""

    def __init__(self, values: Any, op: str, where: str) -> None:
        self._op, self._where = op, where
        if not isinstance(values, dict):
            raise self.error(f"{_shown(values)} where an object was expected")
        self._values: dict[str, Any] = values

    def error(self, what: str) -> AgentError:
        """The error that says what is wrong with the answer."""
        return AgentError(f"{self._op}: not an answer: {what}", where=self._where, remedy=_REMEDY)

    def integer(self, name: str) -> int:
        """An integer of 64 bits."""
        value: Any = self._values.get(name)
        if not _is_integer(value):
            raise self._wrong(name)
        return int(value)

    def count(self, name: str) -> int:
        """An integer that is not negative."""
        value = self.integer(name)
        if value < 0:
            raise self._wrong(name)
        return value

    def count_or_none(self, name: str) -> int | None:
        """An integer that is not negative, or null."""
        return None if self._is_null(name) else self.count(name)

    def boolean(self, name: str) -> bool:
        """True or false."""
        value = self._values.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name)
        return value

    def text(self, name: str) -> str:
        """A text of at most 4096 characters."""
        value = self._values.get(name)
        if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
            raise self._wrong(name)
        return value

    def text_or_none(self, name: str) -> str | None:
        """A text of at most 4096 characters, or null."""
        return None if self._is_null(name) else self.text(name)

    def words(self, name: str) -> str:
        """What is told of an error, as much of it as a message bears (4096 characters)."""
        value = self._values.get(name)
        if not isinstance(value, str):
            raise self._wrong(name)
        return value[:_LONGEST_TEXT]

    def data(self, name: str, most_bytes: int) -> bytes:
        """Bytes, in base64."""
        value = self._values.get(name)
        try:
            data = base64.b64decode(value, validate=True) if isinstance(value, str) else None
        except (binascii.Error, ValueError):
            data = None
        if data is None or len(data) > most_bytes:
            raise self._wrong(name)
        return data

    def data_or_none(self, name: str, most_bytes: int) -> bytes | None:
        """Bytes, in base64, or null."""
        return None if self._is_null(name) else self.data(name, most_bytes)

    def integers(self, name: str) -> list[int]:
        """A list of integers."""
        value = self._values.get(name)
        if not isinstance(value, list) or not all(_is_integer(one) for one in value):
            raise self._wrong(name)
        return value

    def columns(self, name: str) -> list[list[int | None]]:
        """A list of lists of integers, null where one is missing."""
        value = self._values.get(name)
        if not isinstance(value, list):
            raise self._wrong(name)
        for column in value:
            if not isinstance(column, list) or not all(one is None or _is_integer(one) for one in column):
                raise self._wrong(name)
        return value

    def texts(self, name: str) -> list[str]:
        """A list of texts."""
        value = self._values.get(name)
        if not isinstance(value, list) or not all(isinstance(one, str) and len(one) <= _LONGEST_TEXT for one in value):
            raise self._wrong(name)
        return value

    def objects(self, name: str) -> list[Fields]:
        """A list of objects."""
        value = self._values.get(name)
        if not isinstance(value, list):
            raise self._wrong(name)
        return [Fields(one, self._op, self._where) for one in value]

    def facts(self) -> dict[str, Any]:
        """All of it: integers, short texts and nulls by name."""
        values = self._values
        plain = all(
            value is None or _is_integer(value) or (isinstance(value, str) and len(value) <= _LONGEST_TEXT)
            for value in values.values()
        )
        if not plain or len(values) > _MOST_FACTS or any(len(name) > _LONGEST_TEXT for name in values):
            raise self.error(_shown(values))
        return values

    def _is_null(self, name: str) -> bool:
        """Whether it is said that there is none: one that is missing is another matter."""
        return name in self._values and self._values[name] is None

    def _wrong(self, name: str) -> AgentError:
        if name not in self._values:
            return self.error(f"{name} is missing")
        return self.error(f"{name} is {_shown(self._values[name])}")


def clipped(text: str, most: int = 300) -> str:
    """A text's beginning, on one line and without control characters: for an error message."""
    plain = "".join(character if character.isprintable() else " " for character in text[:most])
    return plain if len(text) <= most else f"{plain}..."


def _is_integer(value: Any) -> bool:
    return type(value) is int and _LEAST <= value <= _MOST


def _shown(value: Any) -> str:
    """A value in an error message: its kind, and what little of it fits."""
    if isinstance(value, (dict, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, str):
        return repr(clipped(value, 40))
    return clipped(str(value), 40) if isinstance(value, (bool, float)) or value is None else "an integer too large"


def sample_page(page: Fields, counters: int, most_rows: int) -> tuple[list[int], list[list[int | None]]]:
    """The times and columns of one page of samples, of which each row is whole."""
    times_ns, columns = page.integers("times_ns"), page.columns("values")
    lengths = {len(times_ns), *map(len, columns)}
    if len(columns) != counters or len(lengths) != 1 or len(times_ns) > most_rows:
        told = ", ".join(map(str, sorted(lengths)[:5]))
        raise page.error(
            f"{len(columns)} columns for {counters} counters, of {told} values for {most_rows} rows at most"
        )
    return times_ns, columns
