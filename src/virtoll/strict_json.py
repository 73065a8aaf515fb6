"""JSON that a run directory can keep: what a guest or a tool reports is read by these rules."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def loads(text: bytes | str) -> Any:
    """A JSON document. ValueError also for NaN, numbers beyond a float, half surrogate pairs, and endless nesting."""
    try:
        found = json.loads(text, parse_constant=refuse, parse_float=_finite)
        json.dumps(found, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    except RecursionError:
        raise ValueError("brackets without end") from None
    return found


def refuse(word: str) -> NoReturn:
    """ValueError: a word like NaN is no number that JSON has."""
    raise ValueError(f"{word} is no number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is no number that can be kept")
    return value


def dumped(document: Any) -> bytes:
    """What was read by `loads`, again."""
    return json.dumps(document, allow_nan=False).encode()
