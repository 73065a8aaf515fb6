"""What the probes over slices share: one run of the agent in each near instance, begun together, read side by side."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from virtoll.errors import Problem
from virtoll.images.base import AGENT
from virtoll.platforms.base import Instance
from virtoll.probes.base import Place, ProbeError, ProbeResult, Slice
from virtoll.probes.native import report, result, time_limit_s
from virtoll.record.model import Check, Quantity
from virtoll.units import format_duration

# Between asking for the runs and their common start: so much, and so many times what a run of nothing takes there. An
# emulated machine takes long to get to its start.
LEAD_NS, LEAD_RUNS = 300_000_000, 10
_MOST_S = 24 * 3600.0  # of all windows of a run


@dataclass(frozen=True)
class Told:
    """What the run in one slice says; ``series`` on the host's CLOCK_MONOTONIC."""

    slice: Slice
    result: ProbeResult
    series: Sequence[tuple[int, str, str, int]]

    @property
    def name(self) -> str:
        """As in the names of quantities and series."""
        return slice_name(self.slice)


def slice_name(one: Slice) -> str:
    """The first is ``slice1``."""
    return f"slice{one.index + 1}"


def per_slice(quantities: Mapping[str, Quantity], keys: Sequence[str], slices: int) -> dict[str, Quantity]:
    """The quantities, and those of ``keys`` once more for each slice."""
    own = {
        f"slice{number}_{key}": quantities[key].model_copy(update={"title": f"{quantities[key].title}, slice {number}"})
        for key in keys
        for number in range(1, slices + 1)
    }
    return {**quantities, **own}


def chosen(place: Place, count: int, name: str) -> list[Slice]:
    """The first ``count`` slices; ProbeError where the study has fewer."""
    if len(place.slices) < count:
        raise ProbeError(
            f"it needs {count} slices, and there are {len(place.slices)}",
            kind="refused",
            where=f"probe {name}",
            remedy=f"write a table [slices] with count = {count} into the study",
        )
    return list(place.slices[:count])


def too_long(name: str, windows_s: float) -> list[Problem]:
    """The problem of windows that the agent refuses (rust/probe/src/flow/schedule.rs)."""
    if windows_s <= _MOST_S:
        return []
    what = f"its windows take {format_duration(windows_s * 1e9)}, and 24 h are the most"
    return [Problem(what, f"probe {name}", "choose fewer windows, or shorter ones")]


def too_sparse(name: str, time_ns: int, interval_ns: float) -> list[Problem]:
    """The problem of windows shorter than the time between two packets, which the agent refuses too."""
    if time_ns >= interval_ns:
        return []
    what = f"a window of {format_duration(time_ns)} holds less than one packet, each {format_duration(interval_ns)}"
    return [Problem(what, f"probe {name}", "choose longer windows, or a higher rate")]


def together(name: str, settings: Any, commands: Sequence[tuple[Slice, Sequence[str]]]) -> list[Told]:
    """Run ``virtoll-agent`` with these words in the near instances, each told when to start: all at one time.

    The first ProbeError or AgentError is raised when all have ended.
    """
    start_ns = time.monotonic_ns() + _lead_ns([one for one, _ in commands])

    def told(command: tuple[Slice, Sequence[str]]) -> Told:
        one, words = command
        clocks = {"here": _Clock(one.near), "peer": _Clock(one.far)}
        start = str(start_ns + clocks["here"].before_ns)
        done = one.near.agent.run([AGENT, *words, "--start-ns", start], timeout_s=time_limit_s(settings))
        said = report(f"{name}, {slice_name(one)}", done.returncode, done.stdout, done.stderr)
        return Told(one, result(said), _series(slice_name(one), said.get("series", []), clocks))

    with ThreadPoolExecutor(len(commands)) as pool:
        runs = [pool.submit(told, command) for command in commands]
    return [run.result() for run in runs]


def _lead_ns(slices: Sequence[Slice]) -> int:
    """How long before their common start the runs must be asked for, by how long an idle one takes."""

    def took_ns(one: Slice) -> int:
        asked_ns = time.monotonic_ns()
        one.near.agent.run([AGENT, "--version"])
        return time.monotonic_ns() - asked_ns

    with ThreadPoolExecutor(len(slices)) as pool:
        return LEAD_NS + LEAD_RUNS * max(pool.map(took_ns, slices))


class _Clock:
    """An instance's clock against the host's, before a run and after it."""

    def __init__(self, instance: Instance) -> None:
        self._agent = instance.agent
        self.before_ns = self._agent.clock().offset_ns

    def offset_ns(self) -> int:
        return (self.before_ns + self._agent.clock().offset_ns) // 2


def _series(
    name: str, series: Sequence[Mapping[str, Any]], clocks: Mapping[str, _Clock]
) -> list[tuple[int, str, str, int]]:
    offsets_ns = {clock: clocks[clock].offset_ns() for clock in {each["clock"] for each in series}}
    return [
        (t_ns - offsets_ns[each["clock"]], name, each["counter"], value)
        for each in series
        for t_ns, value in each["rows"]
    ]


def means(told: Sequence[Told], window: int, keys: Sequence[str]) -> dict[str, float]:
    """The mean over these slices of each of ``keys`` in one window; of none that one of them does not know."""
    values = [each.result.windows[window].values for each in told]
    return {key: sum(each[key] for each in values) / len(values) for key in keys if all(key in each for each in values)}


def of_each(told: Sequence[Told], window: int, keys: Sequence[str]) -> dict[str, float]:
    """What each slice knows of ``keys`` in one window."""
    return {
        f"{each.name}_{key}": each.result.windows[window].values[key]
        for each in told
        for key in keys
        if key in each.result.windows[window].values
    }


def joined(told: Sequence[Told], result: ProbeResult) -> ProbeResult:
    """``result`` with everything else the slices' runs said: facts, checks, notes, histogram and series."""
    counts: Counter[tuple[int, int]] = Counter()
    for each in told:
        for lower, upper, count in each.result.histogram or ():
            counts[lower, upper] += count
    return replace(
        result,
        facts={each.name: each.result.facts for each in told},
        checks=[
            Check(name=f"{each.name}: {check.name}", passed=check.passed, detail=check.detail)
            for each in told
            for check in each.result.checks
        ],
        notes=[f"{each.name}: {note}" for each in told for note in each.result.notes],
        histogram=[(lower, upper, count) for (lower, upper), count in sorted(counts.items())] or None,
        series=[row for each in told for row in each.series],
    )
