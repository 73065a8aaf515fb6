"""What an instance used while it served: CPU time, memory and packets of its windows, out of the monitor's samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from virtoll.analysis.load import Run, Series
from virtoll.analysis.metrics import EXITS, MIB, PACKETS, TrialMetrics, is_under_kvm
from virtoll.record.model import BESIDE, BROWSER, BROWSERS_SERVED, COVERAGE, Measured, TrialRecord, Window

# How far from each end of a window, in parts of it, the nearest sample may lie for its CPU time to be told.
NEAR = 0.1

_CPU = frozenset({("instance", "cpu.usage_ns"), ("helpers", "cpu.usage_ns")})
_MEMORY = frozenset({("instance", "memory.usage_bytes"), ("instance", "memory.resident_bytes")})
# Packets that passed the links of the instance's side to generators and origin, in both directions.
PASSED = (("instance", "net.rx_packets"), ("instance", "net.tx_packets"))
_EXITS = ("instance", "kvm.exits")
_NO_RESIDENT = "not sampled: runs from before 2026-11-27 do not tell what is shared of it, nor do all kernels"
OUTSIDE = _CPU | _MEMORY | frozenset((*PASSED, _EXITS))

INSIDE = frozenset({("inside", "cpu.usage_ns")})


def note_usage(trial: TrialMetrics, measured: Measured, run: Run, *, memory: bool = True, inside: bool = True) -> None:
    """Note what the instance used in a load's windows, of each metric a number or the reason why there is none: its CPU
    time and packets, and where asked its memory, and its CPU time as seen inside.
    """
    window, windows, unit = measured.window, of_one_level(measured), measured.unit
    wanted = OUTSIDE if memory else OUTSIDE - _MEMORY
    outside = run.samples(trial.record.trial.id, "outside", wanted)
    served = [each.served for each in windows if each.served is not None]
    tells = len(served) == len(windows)  # all that was asked for and when it ended
    used_in = _of_served if tells else grown_in
    is_booked = any(_is_booked(each) for each in windows)

    def cpu_s(source: str) -> list[float | str]:
        series = outside.get((source, "cpu.usage_ns"))
        used_ns = _booked_in(windows, source) if is_booked else [used_in([each], series) for each in windows]
        return [_seconds(each) for each in used_ns]

    by_window = cpu_s("instance")
    instance_s, helpers_s = total(by_window), total(cpu_s("helpers"))
    inside_s: float | str = "inside it is looked at too seldom to tell windows this short apart"
    if len(windows) == 1 and inside:
        seen = run.samples(trial.record.trial.id, "inside", INSIDE)
        inside_s = _seconds(grown_in(windows, seen.get(("inside", "cpu.usage_ns"))))
    done = sum(served) if tells else window.work
    worked = [each.work for each in windows] if is_booked or not tells else served
    trial.put("cpu_s_per_1000", _per_unit(instance_s, sum(worked), unit, 1000))
    if sum(worked) <= 0 and not isinstance(instance_s, str) and measured.served_nothing:
        trial.censored.add("cpu_s_per_1000")
    passed = others_beside(trial.record, run) or total([used_in(windows, outside.get(counter)) for counter in PASSED])
    trial.put(PACKETS, _per_unit(passed, done, unit))
    if is_under_kvm(trial.record):
        exits = used_in(windows, outside[_EXITS]) if _EXITS in outside else _why_no_exits(trial)
        trial.put(EXITS, _per_unit(exits, done, unit))
    if not isinstance(instance_s, str):
        used_s = [each for each in by_window if not isinstance(each, str)]
        trial.parts["cpu_s_per_1000"] = (used_s, worked)
    if inside:
        trial.put("cpu_s_per_1000_inside", _per_unit(inside_s, window.work, unit, 1000))
    if isinstance(instance_s, str) or instance_s == 0:
        trial.put("helpers_percent", "the instance's CPU time is not known")
    elif isinstance(helpers_s, str):
        trial.put("helpers_percent", "the platform's helpers cannot be told from its payload")
    else:
        trial.put("helpers_percent", helpers_s / instance_s * 100)
    if memory:
        _note_memory(trial, outside, (windows[0].start_ns, windows[-1].end_ns))


@contextmanager
def all_served(trial: TrialMetrics, windows: Sequence[Window]) -> Iterator[None]:
    """Nothing that is noted in the block is told where a server did not serve all of our own browsers, beside its
    participants, in all of the windows: it took less. (Older records have those alone who told what they saw.)
    """
    known = set(trial.values)
    yield
    told = [(each, each.events[BROWSER]) for each in windows if BROWSER in each.events]
    away = sum(events.intended - each.counts.get(BROWSERS_SERVED, events.completed) for each, events in told)
    for name in trial.values.keys() - known if away else ():
        of = sum(events.intended for _, events in told)
        trial.drop(name, f"{away} of {of} browsers of our own were not served beside its participants: it took less")


def _why_no_exits(trial: TrialMetrics) -> str:
    """In the sampler's own words, where it has any."""
    unreadable = trial.record.facts.get("unreadable")
    why = unreadable.get(".".join(_EXITS)) if isinstance(unreadable, dict) else None
    return str(why or "not sampled: the host's debugfs did not tell, or virtoll did not ask for it yet")


def _note_memory(trial: TrialMetrics, outside: Mapping[tuple[str, str], Series], span_ns: tuple[int, int]) -> None:
    used = within(outside.get(("instance", "memory.usage_bytes")), span_ns)
    resident = within(outside.get(("instance", "memory.resident_bytes")), span_ns)
    nothing = "no sample of it lies in the window"
    untold = nothing if used is None else _NO_RESIDENT
    trial.put("memory_peak_mib", nothing if used is None else float(used.value.max()) / MIB)
    trial.put("memory_mean_mib", nothing if used is None else time_mean(used) / MIB)
    trial.put("rss_peak_mib", untold if resident is None else float(resident.value.max()) / MIB)


def of_one_level(measured: Measured) -> list[Window]:
    """The windows that `Measured.window` is of."""
    whole = measured.window
    return [whole] if whole in measured.windows else measured.windows


def others_beside(record: TrialRecord, run: Run) -> str:
    """Why nothing is told of what passed the links: others' traffic passes them too. "" where there is nobody."""
    if run.neighbours or run.given(record.trial.condition).get(BESIDE) == "others":
        return "the links carry what is sent to and from those beside it, too"
    return ""


def grown_in(windows: Sequence[Window], series: Series | None) -> float | str:
    """How much a cumulative counter grew in the windows."""
    return total([growth(series, (window.start_ns, window.end_ns)) for window in windows])


def _of_served(windows: Sequence[Window], series: Series | None) -> float | str:
    """How much a cumulative counter grew by all that was asked for in the windows and their lead-ins,
    to the end of the last of it.

    Between two looks, the last before it was asked for and the first when nothing of it was under way any more: the
    host's agent looks right before the instrument is started and right after it has told. In between, what was not
    asked for is the instance's idleness.
    """
    if series is None or len(series.t_ns) < 2:
        return "not sampled"
    grown = 0
    for window in windows:
        before = int(np.searchsorted(series.t_ns, window.asked_from_ns, "right")) - 1
        after = int(np.searchsorted(series.t_ns, window.until_ns or window.end_ns, "left"))
        if before < 0 or after >= len(series.t_ns):
            return "no sample lies before the window, or none after it"
        grown += int(series.value[after]) - int(series.value[before])
    return float(grown)


def _is_booked(window: Window) -> bool:
    """Whether it began amid its load, and whoever asked looked at its ends. Where it began with nothing under way, all
    that was used is known, and for what.
    """
    return window.booked is not None and window.asked_ns is not None


def _booked_in(windows: Sequence[Window], source: str) -> list[float | str]:
    """CPU time that a source used in each window, in ns, by what was booked between two looks right after its ends; or
    why that is not known of any.

    It is taken for the window's length, without what of it the service idled through: when nothing was under way any
    more, and the look at the end was yet to come.
    """
    used_ns: list[float | str] = []
    late_ns = 0
    for window in windows:
        booked = window.booked
        if booked is None or source not in booked.cpu_ns:
            return ["the generator could not read what was booked of it"]
        to_ns = min(booked.to_ns, max(window.end_ns, window.until_ns or booked.to_ns))
        late_ns += abs(booked.from_ns - window.start_ns) + abs(to_ns - window.end_ns)
        if 2 * (to_ns - booked.from_ns) <= window.duration_ns:  # no length at all, in a window without one
            return ["the generator looked at it when half of a window was over"]
        used_ns.append(booked.cpu_ns[source] * window.duration_ns / (to_ns - booked.from_ns))
    length_ns = sum(window.duration_ns for window in windows)
    if late_ns > NEAR * length_ns:
        each_ms = late_ns / len(windows) / 1e6
        return [
            f"the generator looked at it {each_ms:.0f} ms late in a window of {length_ns / len(windows) / 1e6:.0f} ms"
        ]
    return used_ns


def _seconds(grown_ns: float | str) -> float | str:
    return grown_ns if isinstance(grown_ns, str) else grown_ns / 1e9


def total(parts: Sequence[float | str]) -> float | str:
    """All together, or the first reason why one is not known."""
    known = [part for part in parts if not isinstance(part, str)]
    return sum(known) if len(known) == len(parts) else next(part for part in parts if isinstance(part, str))


def growth(series: Series | None, window: tuple[int, int]) -> float | str:
    """How much a cumulative counter grew between the window's ends, interpolated between samples; why that is not
    known, where it is not.
    """
    if series is None or len(series.t_ns) < 2:
        return "not sampled"
    start, end = max(window[0], int(series.t_ns[0])), min(window[1], int(series.t_ns[-1]))
    covered = (end - start) / max(1, window[1] - window[0])
    if covered < COVERAGE:
        return f"samples cover only {max(0.0, covered):.0%} of the window"
    apart_ns = max(int(abs(series.t_ns - end_ns).min()) for end_ns in window)
    if apart_ns > NEAR * (window[1] - window[0]):
        return f"no sample lies nearer to an end of the window than {apart_ns / 1e6:.0f} ms"
    origin = int(series.t_ns[0])  # offsets keep nanoseconds exact in double precision
    at = np.interp([start - origin, end - origin], series.t_ns - origin, series.value - series.value[0])
    return float(at[1] - at[0]) / covered


def _per_unit(used: float | str, served: float, unit: str, units: int = 1) -> float | str:
    """By so many units of work."""
    if isinstance(used, str):
        return used
    return f"no {unit} was served in the window" if served <= 0 else used / served * units


def within(series: Series | None, window: tuple[int, int]) -> Series | None:
    """The samples inside the window; None when there is none."""
    if series is None or len(series.t_ns) == 0:
        return None
    inside = (series.t_ns >= window[0]) & (series.t_ns <= window[1])
    return Series(series.t_ns[inside], series.value[inside]) if inside.any() else None


def time_mean(series: Series) -> float:
    """Mean over time (trapezoids), so that a late sample does not weigh like the others."""
    if len(series.t_ns) < 2:
        return float(series.value[0])
    t = (series.t_ns - series.t_ns[0]).astype(float)
    return float(np.trapezoid(series.value.astype(float), t) / t[-1])
