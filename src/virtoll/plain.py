"""Text from outside on a terminal: as it is, without control characters."""

from __future__ import annotations

from collections.abc import Sequence


def printable(text: str) -> str:
    """``text`` with a mark for each control character and half surrogate: a terminal takes no orders from it."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)


def listed(names: Sequence[str], most: int = 8) -> str:
    """``a, b, c``; of many the first: ``a, b and 9,998 more``."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1:,} more"
