"""Text from outside on a terminal: as it is, without control characters."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with a mark for each control character and half surrogate: a terminal takes no orders from it."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)
