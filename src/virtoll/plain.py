"""Text on a terminal: what comes from outside, without control characters; what is to be typed, as a shell takes it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence


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


def cpu_list(cpus: Collection[int]) -> str:
    """As taskset(1) takes them: 0-15,24."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
