"""What differs between two machines, as their runs have recorded them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from typing import Any

# By role all packages of an image, whoever asked for them: in ``comparable`` by one digest, in the notes by version.
INSTALLED = "installed"


def differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two ``comparable`` records, one line each."""
    lines = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            lines += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            lines.append(f"{prefix}{key}: was {old}, is {new}")
    return lines


def alike(comparable: Mapping[str, Any]) -> Hashable:
    """What two ``comparable`` records have equal just where `differences` finds none: many are compared in one pass."""
    return frozenset(
        (key, alike(value) if isinstance(value, dict) else _hashable(value))
        for key, value in comparable.items()
        if value is not None
    )


def digest(comparable: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits that two ``comparable`` records have alike where `differences` finds none, and others
    hardly ever (SHA-256; of a thousand environments two are, once in eight thousand cases): a name that stays.
    """
    text = json.dumps(_without_none(comparable), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _without_none(comparable: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in comparable.items()
        if value is not None
    }


def _hashable(value: Any) -> Hashable:
    """Of what JSON holds; equal where that is."""
    if isinstance(value, dict):
        return frozenset((key, _hashable(each)) for key, each in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value
