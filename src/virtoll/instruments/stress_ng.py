"""stress-ng in the place of the clock probe: the vDSO's clock_gettime(CLOCK_MONOTONIC), called over and over.

Of UnixBench's tests it does none: docs/PROBES.md says what its stressors of the same name do instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from virtoll.errors import TrialError
from virtoll.instruments.base import Instrument, ran_inside
from virtoll.loads import outside
from virtoll.probes.base import Place, ProbeResult, Timed
from virtoll.record.model import Window


@dataclass(frozen=True)
class Reading:
    """One run of the stressor."""

    read_ns: float  # of one call, without the loop's own time
    calls: int
    duration_ns: int


class StressNg(Instrument):
    """`stress-ng --vdso`: the same call of the same clock, by its nanoseconds per call."""

    name: ClassVar[str] = "stress-ng"
    summary: ClassVar[str] = "a second opinion on clock: stress-ng's vDSO stressor"
    packages: ClassVar[tuple[str, ...]] = ("stress-ng",)
    when_it_gives_up: ClassVar[str] = "it needs a vDSO, which User Mode Linux has not: cross-check on native"

    def stands_for(self, probe: str, settings: Any) -> bool:  # noqa: ARG002
        """For the clock alone."""
        return probe == "clock"

    def run(self, place: Place, probe: str, settings: Timed) -> ProbeResult:
        """One run for each window; stress-ng counts in whole seconds."""
        agent = place.instance.agent
        seconds = outside.whole_seconds(settings.time_ns)
        version = agent.run(["stress-ng", "--version"]).stdout.decode(errors="replace")
        windows = []
        for _ in range(settings.windows):
            said, end_ns = ran_inside(self, place, probe, command(seconds), seconds)
            windows.append(window(parse(said), end_ns))
        return ProbeResult(
            instrument=named(version),
            windows=windows,
            notes=["the time of one call, from which stress-ng has taken its loop's own"],
        )


def command(seconds: int) -> list[str]:
    """The command line of one window."""
    return ["stress-ng", "--vdso", "1", "--vdso-func", "clock_gettime", "--timeout", f"{seconds}s", "--metrics"]


def named(text: str) -> str:
    """The name and version in ``stress-ng --version``."""
    version = re.search(r"version ([\d.]+)", text)
    if version is None:
        raise _unreadable(text)
    return f"stress-ng {version[1]}"


def parse(text: str) -> Reading:
    """Read its metrics: a line of counts and seconds, and one of nanoseconds a call."""
    counts = re.search(r"metrc: \[\d+\] vdso +(\d+) +([\d.]+) +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+", text)
    call = re.search(r"metrc: \[\d+\] vdso +([\d.]+) nanosecs per call", text)
    if counts is None or call is None:
        raise _unreadable(text)
    with outside.reading("stress-ng", text):
        outside.expect_finite({"read_ns": float(call[1])})
        return Reading(read_ns=float(call[1]), calls=int(counts[1]), duration_ns=outside.span_ns(float(counts[2])))


def window(reading: Reading, end_ns: int) -> Window:
    """The window of a run that ended then."""
    return Window(
        start_ns=end_ns - reading.duration_ns,
        duration_ns=reading.duration_ns,
        work=reading.calls,
        values={"read_ns": reading.read_ns},
    )


def _unreadable(text: str) -> TrialError:
    return TrialError(f"the report of stress-ng could not be read:\n{text[:2000]}", where="instruments/stress_ng")
