"""The search for a knee: which intensity is asked for next, and what is known in the end. No clock, no machine.

After RFC 9971 (MLRsearch), for one goal whose windows are all of one length: an intensity is a *lower bound* when at
most half of its windows miss the objective (goal exceed ratio 0.5, which that RFC recommends), and an *upper bound*
when more do; it is asked no further once the rest of its windows could not change that. Bounds are hard: nothing is
asked for beyond one. Small intensities come first, so that a service is not met with an overload before it was warm.

Stricter than the RFC in one thing: the windows that led to an intensity do not count among those that decide it.
docs/METHODOLOGY.md says why this is not the RFC's authors' own program.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from virtoll.record.knee import Ended, Part, Told

DOUBLING = 2.0


@dataclass(frozen=True)
class Asked:
    """A window that the search asks for: at which intensity, and whether to find bounds or to decide one."""

    intensity: float
    part: Part


@dataclass(frozen=True)
class Found:
    """How a search ended. ``lower``: the largest intensity that was confirmed to meet the objective; ``upper``: the
    next, which was confirmed not to. None: there is none within the bounds, or the generator cannot tell.
    """

    ended: Ended
    lower: float | None
    upper: float | None


Search = Generator[Asked, Told, Found]


def levels(least: float, most: float, precision: float, *, whole: bool, offset: float = 1.0) -> tuple[float, ...]:
    """The intensities that a search may ask for, ascending: ``least``, ``most``, and between them steps of
    ``precision`` (relative), the last of which is only ``offset`` of one (above 0, to 1). ``whole``: of users.

    With an offset drawn for each trial, what the steps cut off differs from trial to trial: it scatters, and is in the
    interval, where fixed steps would have all trials agree on the same rounded value. They are made from ``most`` down:
    upwards from a few users, where each step is of one, all would come to the same. ValueError where it has no end.
    """
    if not (0 < least <= most and precision > 0 and 0 < offset <= 1):
        raise ValueError(f"no intensities from {least:g} to {most:g} in steps of {precision:g}")
    found, step = [float(most)], (1 + precision) ** offset
    while (level := found[-1] / step) > least:
        found.append(min(found[-1] - 1, float(math.ceil(level))) if whole else level)
        step = 1 + precision
    return tuple(reversed(found if found[-1] <= least else [*found, float(least)]))


def search(intensities: Sequence[float], windows: int, exploring: float = DOUBLING) -> Search:
    """Find the knee among ``intensities`` (ascending): send in what each window told, until it returns. ``exploring``:
    how many times as much is asked for next, as long as the objective is met.

    One window each explores, or two; then ``windows`` (an odd number), of which most must agree, decide an intensity.
    """
    at = max(0, (yield from _explored(intensities, exploring)) - 1)
    lower, upper, step, why = -1, len(intensities), 1, "not met"
    while True:
        told = yield from _decided(intensities[at], windows)
        if told == "met":
            lower = at
        else:
            upper, why = at, told
        if upper - lower == 1:
            return _found(intensities, lower, upper, why)
        if upper == len(intensities):
            at = min(lower + step, upper - 1)
        elif lower < 0:
            at = max(upper - step, 0)
        else:
            at = (lower + upper) // 2
        step *= 2


def _explored(intensities: Sequence[float], exploring: float) -> Generator[Asked, Told, int]:
    """The first that seems not to meet the objective; as many as there are, where none seems to. A miss is looked at
    again: a burst that comes alone would send the search far down.
    """
    lower, upper, at = -1, len(intensities), 0
    while upper - lower > 1:
        asked = Asked(intensities[at], "explore")
        if (yield asked) == "met" or (yield asked) == "met":
            lower = at
        else:
            upper = at
        if upper == len(intensities):
            goal = intensities[at] * exploring
            at = next((n for n in range(at + 1, upper) if intensities[n] >= goal), upper - 1)
        else:
            at = (lower + upper) // 2
    return upper


def _decided(intensity: float, windows: int) -> Generator[Asked, Told, Told]:
    """What most of an intensity's windows tell; where none is most, the generator was in the way."""
    counts: Counter[Told] = Counter()
    while counts.total() < windows:
        told = yield Asked(intensity, "confirm")
        counts[told] += 1
        if counts[told] > windows // 2:
            return told
    return "generator"


def _found(intensities: Sequence[float], lower: int, upper: int, why: str) -> Found:
    met = intensities[lower] if lower >= 0 else None
    if upper == len(intensities):
        return Found("beyond most", met, None)
    if why == "generator":
        return Found("beyond generator", met, None)
    return Found("settled" if lower >= 0 else "below least", met, intensities[upper])


def walked(
    intensities: Sequence[float], windows: int, knee: float, exploring: float = DOUBLING
) -> Iterator[tuple[float, bool]]:
    """The windows of a search at a service that meets the objective up to ``knee`` and no further, in their order: the
    intensity of each, and whether it met it.
    """
    asking = search(intensities, windows, exploring)
    asked = next(asking)
    with suppress(StopIteration):
        while True:
            is_met = asked.intensity <= knee
            yield asked.intensity, is_met
            asked = asking.send("met" if is_met else "not met")


def expected_windows(intensities: Sequence[float], windows: int, exploring: float = DOUBLING) -> int:
    """About how many windows a search takes whose knee is not found before the last: for estimates."""
    doublings = math.ceil(math.log(intensities[-1] / intensities[0], exploring)) + 1
    between = math.ceil(math.log2(max(1, len(intensities) / doublings)))
    return doublings + 2 + 2 * between + 2 * (windows // 2 + 1)
