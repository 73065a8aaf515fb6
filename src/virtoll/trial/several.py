"""What the parts of several generators tell of a window: who began late, and how much of its CPUs each used."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from virtoll.record.model import Events, GeneratorPart, Window
from virtoll.units import format_duration

# A generator that begins late offers nothing meanwhile, and the whole's rate is told too low by as much of the window.
_LATE_NS, _LATE_SHARE = 2 * 10**6, 1e-3


TOGETHER = "the generators began together"


def most_late_ns(window: Window) -> int:
    """How long after the agreed time a generator may begin its part of a window."""
    return max(_LATE_NS, round(_LATE_SHARE * window.duration_ns))


def begun(window: Window) -> tuple[list[GeneratorPart], str]:
    """The generators that began too late, and in words how late they were, and how far apart: the skew. All of them
    must tell (`tell_when`).
    """
    late_ns = _late_ns(window)
    bound_ns = most_late_ns(window)
    late = [part for part, ns in zip(window.parts, late_ns, strict=True) if ns > bound_ns]
    told = f"the last {format_duration(skew_ns(window))} after the first, and "
    told += f"{format_duration(max(late_ns))} after the agreed time ({format_duration(bound_ns)} may be)"
    return late, told


def skew_ns(window: Window) -> int:
    """How long after the first the last of them began."""
    return max(_late_ns(window)) - min(_late_ns(window))


def _late_ns(window: Window) -> list[int]:
    """How long after it was to begin each began: with its lead-in, where it has one."""
    begun = [(part.window.begun_ns, part.window.asked_from_ns) for part in window.parts]
    return [begun_ns - asked_ns for begun_ns, asked_ns in begun if begun_ns is not None]


def tell_when(window: Window) -> bool:
    """Whether all of them tell when they began."""
    return all(part.window.begun_ns is not None for part in window.parts)


def used(window: Window) -> list[tuple[GeneratorPart, float, float]] | None:
    """The share of the CPUs that its threads can use that each generator used, with all who share them: nobody has more
    headroom than they have together; and how many those are. None where one of them does not tell.
    """
    cpus: dict[tuple[int, ...], tuple[float, float]] = {}
    for part in window.parts:
        if part.window.cpus_at_most is None:
            return None
        key = tuple(part.cpus)
        busy, usable = cpus.get(key, (0.0, 0.0))
        mine = len(part.cpus) if part.usable is None else part.usable
        cpus[key] = busy + part.window.cpus_at_most, min(usable + mine, max(1, len(part.cpus)))
    found = ((part, *cpus[tuple(part.cpus)]) for part in window.parts)
    return [(part, busy / max(1, usable), usable) for part, busy, usable in found]


def those(window: Window, request: str, fails: Callable[[Events], bool]) -> list[GeneratorPart]:
    """The generators of whose own requests this is so: of all together it may not be."""
    return [part for part in window.parts if (events := part.window.events.get(request)) is not None and fails(events)]


def named(parts: Iterable[GeneratorPart]) -> str:
    """Them, in words."""
    return ", ".join(f"generator {part.generator}" for part in parts)
