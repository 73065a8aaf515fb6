"""The [quick] table of a study file: the same study, smaller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtoll.study.reader import QUICK, Reader
from virtoll.study.sections import SERVERS


def apply_quick(reader: Reader, document: dict[str, Any]) -> None:
    """Lay the file's own [quick] table over the rest; what is wrong with what came from there is told there."""
    overrides = document.pop(QUICK, None)
    if overrides is None:
        reader.fail("this study has no [quick] table", remedy="run it without --quick, or add the table")
        return
    reader.from_quick[""] = overrides.keys()
    for key, value in overrides.items():
        if isinstance(value, dict) and isinstance(document.get(key, {}), dict) and key != "factors":
            _note(reader, key, value, document.get(key))
            if key == SERVERS and key in document:
                _lay_over(document[key], value)
            else:
                document.setdefault(key, {}).update(value)
        else:
            document[key] = value
            reader.headings[key] = f"{QUICK}.{key}"


def _note(reader: Reader, table: str, over: Mapping[str, Any], own: Any) -> None:
    """Which keys of a table, and of those in it, are from [quick]; all of one that the study has not by itself."""
    if not isinstance(own, dict):
        reader.headings[table] = f"{QUICK}.{table}"
    reader.from_quick[table] = over.keys()
    for key, value in over.items():
        if isinstance(value, dict):
            _note(reader, f"{table}.{key}", value, own.get(key) if isinstance(own, dict) else None)


def _lay_over(table: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Servers are tables of tables: what [quick] does not name of one stays."""
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _lay_over(table[key], value)
        else:
            table[key] = value
