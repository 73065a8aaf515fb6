"""Text on a terminal: what comes from outside, without control characters; what is to be typed, as a shell takes it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def printable(text: str) -> str:
    """``text`` with a mark for each control character and half surrogate: a terminal takes no orders from it."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)


def typed(path: object) -> str:
    """``path`` as one word of a shell's, in a command that is told: so that it can be pasted, whatever its name."""
    return shlex.quote(str(path))


def listed(names: Sequence[str], most: int = 8) -> str:
    """``a, b, c``; of many the first: ``a, b and 9,998 more``."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1:,} more"
