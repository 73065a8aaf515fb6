"""What one trial says: its metrics, each a number or a reason why there is none.

A load's trial has the known metrics below, in its unit of work; a load and a probe have one besides for each quantity
of their record, called NAME.KEY. A victim's beside a neighbour has what its work says of before, during and after
(`victim`) in place of its rate and latency, which would mix the three.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from virtoll.analysis.load import Histogram, Run, Series
from virtoll.analysis.victim import QUANTILES, Bins, Course, Requests, Settling
from virtoll.helpers import helpers
from virtoll.record.model import (
    COVERAGE,
    LEAST_BEYOND,
    Events,
    Measured,
    NeighbourRecord,
    TrialRecord,
    Window,
    beyond,
    most_late,
)
from virtoll.units import plural

MIB = 1024.0**2
# A percentile of an open loop's latency is told of no trial of a condition where the same percentile of the generator's
# own lateness is more than this part of it, by the medians over all of them.
LATE_PART = 0.5
# The N of "total time for N units of work" where a study asks for no number: the papers' N.
REFERENCE_WORK = 10_000
ISOLATION = "isolation"
# Of an aggressor that ended sooner, no rate or percentile beside it can be told.
LEAST_AT_WORK_NS = 200_000_000
# How far from each end of a window, in parts of it, the nearest sample may lie for its CPU time to be told.
NEAR = 0.1
_NO_START = "the aggressor could not start"


@dataclass(frozen=True)
class Metric:
    """A quantity of a trial. ``better`` says what a cost is; None: it is shown, and never judged."""

    name: str
    title: str
    unit: str
    better: Literal["more", "less"] | None
    group: str = ""  # the load or probe whose own quantity it is, or ISOLATION; "" for what any load's trial says
    headline: bool = False  # it stands for its load or probe
    probed: bool = False  # it is a probe's: planned in the cases of that probe alone

    @property
    def probe(self) -> str:
        """The probe whose quantity it is; "" for what a load's trial says."""
        return self.group if self.probed else ""

    @property
    def is_a_loads_own(self) -> bool:
        """Whether it is a quantity of one load's record, rather than of any load's."""
        return not self.probed and self.group not in ("", ISOLATION)


def load_metrics(unit: str, request: str = "") -> dict[str, Metric]:
    """What any load's trial says, of its unit of work ("command") and of what it asks for one by one, where that is
    several of them ("round")."""
    latency = _latency_of(unit, request)
    return {
        metric.name: metric
        for metric in (
            Metric("total_time_s", "Total time", "s", "less"),
            Metric("rate_per_s", "Throughput", _per_s(unit), "more"),
            Metric("latency_p50_ms", f"{latency}, median", "ms", "less"),
            Metric("latency_p90_ms", f"{latency}, 90th percentile", "ms", "less"),
            Metric("latency_p99_ms", f"{latency}, 99th percentile", "ms", "less"),
            Metric("latency_p999_ms", f"{latency}, 99.9th percentile", "ms", "less"),
            Metric("latency_max_ms", f"{latency}, longest", "ms", "less"),
            Metric("cpu_s_per_1000", f"CPU per 1,000 {plural(unit)}", "CPU-s", "less"),
            Metric("cpu_s_per_1000_inside", f"CPU per 1,000 {plural(unit)}, as seen inside", "CPU-s", None),
            Metric("helpers_percent", "Share of the CPU spent in helpers", "%", None),
            Metric("memory_peak_mib", "Memory, peak", "MiB", "less"),
            Metric("memory_mean_mib", "Memory, mean", "MiB", "less"),
            Metric("rss_peak_mib", "Resident memory, peak", "MiB", "less"),
            Metric("deploy_s", "Time to deploy", "s", "less"),
            Metric("generator_cpus", "CPUs the generator used", "CPUs", None),
        )
    }


def _latency_of(unit: str, request: str) -> str:
    return "Latency" if request in ("", unit) else f"Latency of a {request}"


def _per_s(unit: str) -> str:
    return f"{_SHORT.get(unit, unit)}/s"


_SHORT = {"request": "req"}
METRICS = tuple(load_metrics(""))  # their names

_WORDS = {"p50": "Median latency", "p90": "90th percentile of latency", "p99": "99th percentile of latency"}


def victim_metrics(request: str) -> dict[str, Metric]:
    """What a victim's trial says of before, during and after its neighbour's time, of what was asked for one by one."""
    return {
        metric.name: metric
        for metric in (
            Metric("goodput_before_per_s", "Goodput before", _per_s(request), None, ISOLATION),
            Metric("goodput_during_per_s", "Goodput during", _per_s(request), "more", ISOLATION),
            Metric("goodput_after_per_s", "Goodput after", _per_s(request), None, ISOLATION),
            Metric("goodput_kept", "Goodput kept, during over before", "ratio", "more", ISOLATION),
            *(
                Metric(f"{label}_{when}_ms", f"{words} {when}", "ms", "less" if when == "during" else None, ISOLATION)
                for label, words in reversed(_WORDS.items())
                for when in ("before", "during", "after")
            ),
            *(
                Metric(f"{label}_rise", f"{words}, during over before", "ratio", "less", ISOLATION)
                for label, words in reversed(_WORDS.items())
            ),
            Metric("overshoot", "Overshoot at the start, peak over the level", "ratio", "less", ISOLATION),
            Metric("settling_s", "Settling time", "s", "less", ISOLATION),
            Metric("settling_more_than_s", "Settling time, at least", "s", None, ISOLATION),
            Metric("rebound", "Peak after the end over the level before", "ratio", "less", ISOLATION),
            Metric("recovery_s", "Recovery time", "s", "less", ISOLATION),
            Metric("recovery_more_than_s", "Recovery time, at least", "s", None, ISOLATION),
        )
    }


VICTIM = tuple(victim_metrics(""))  # their names
# What mixes before, during and after, and says nothing of a victim.
_MIXED = ("total_time", "rate_per_s", "latency")

_PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))
_OUTSIDE = frozenset(
    {
        ("instance", "cpu.usage_ns"),
        ("helpers", "cpu.usage_ns"),
        ("instance", "memory.usage_bytes"),
        ("instance", "memory.rss_bytes"),
    }
)
_INSIDE = frozenset({("inside", "cpu.usage_ns")})


@dataclass
class TrialMetrics:
    """The metrics of one trial.

    Of a load's trial each name of METRICS is in ``values`` or in ``missing`` (with the reason). ``spread`` is the
    coefficient of variation over the windows of one deployment (standard deviation over mean): it is shown beside a
    probe's values and enters no interval.
    """

    record: TrialRecord
    values: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)  # by metric: how to read this value
    spread: dict[str, float] = field(default_factory=dict)
    censored: set[str] = field(default_factory=set)  # metrics that lie among what failed: worse than any value
    late_ms: dict[str, float] = field(default_factory=dict)  # by percentile: the same of the generator's own lateness
    histogram: Histogram | None = None
    # Rises that are missing because the percentile during lies among what was not answered: worse than any.
    unanswered: set[str] = field(default_factory=set)
    timeline: Bins | None = None  # of a victim, by time since its neighbour began to misbehave

    def put(self, name: str, value: float | str) -> None:
        """Note a value, or (a string) the reason why there is none."""
        if isinstance(value, str):
            self.missing[name] = value
        else:
            self.values[name] = value


# Trials that a helper takes at a time. It has loaded what it needs when as many as `_MANY` could have been measured.
_SHARE, _MANY = 100, 500


def measure_all(run: Run) -> list[TrialMetrics]:
    """The metrics of every sealed trial, as sealed; of invalid ones too: they are listed, never averaged."""
    trials = _shared(run) if len(run.records) > _MANY else [measure(run, record) for record in run.records]
    _leave_out_the_generators_own(trials)
    return trials


def _shared(run: Run) -> list[TrialMetrics]:
    """As this process and another come to them: this one from the first on, the other from the last."""
    shares = [run.records[at : at + _SHARE] for at in range(0, len(run.records), _SHARE)]
    with helpers(_measured, 1) as other:
        nothing = replace(run, records=())
        asked = [other.submit(nothing, [r.model_dump_json() for r in share]) for share in reversed(shares)]
        trials = []
        for share, answer in zip(shares, reversed(asked), strict=True):
            if answer.cancel():
                trials += [measure(run, record) for record in share]
            else:
                trials += [replace(trial, record=record) for trial, record in zip(answer.result(), share, strict=True)]
        return trials


def _measured(run: Run, records: Sequence[str]) -> list[TrialMetrics]:
    """The metrics of these sealed trials of a run, as JSON: they are parsed faster than unpickled."""
    return [measure(run, TrialRecord.model_validate_json(record)) for record in records]


def _leave_out_the_generators_own(trials: list[TrialMetrics]) -> None:
    """Take percentiles away that may be the generator's own: of all trials of a condition or of none.

    Were each judged by its own latency, the slow trials of a fast arm would be kept and its fast ones left out.
    """
    groups: dict[tuple[str, str], list[TrialMetrics]] = {}
    for trial in trials:
        condition = json.dumps(trial.record.trial.condition, sort_keys=True)
        for name in trial.late_ms:
            if trial.record.status == "valid":
                groups.setdefault((name, condition), []).append(trial)
    for (name, _), group in groups.items():
        late_ms = float(np.median([trial.late_ms[name] for trial in group]))
        value_ms = float(np.median([trial.values[name] for trial in group]))
        if late_ms > LATE_PART * value_ms:
            for trial in group:
                trial.values.pop(name)
                trial.put(
                    name,
                    "it may be the generator's own: over all arms, the same percentile of its lateness is "
                    f"{late_ms:.3g} ms, and of the latency {value_ms:.3g} ms (medians)",
                )


def measure(run: Run, record: TrialRecord) -> TrialMetrics:
    """The metrics of one trial."""
    trial = TrialMetrics(record)
    measured = record.measured
    if measured is not None and not (measured.is_load and run.neighbours):  # a load's would mix before, during, after
        _quantities(trial, measured)
    if "probe" in record.trial.condition:
        trial.histogram = None if measured is None else run.histogram(record.trial.id)
        return trial
    if measured is None:
        reason = record.reason or "no load was recorded"
        trial.missing = dict.fromkeys((*METRICS, *(VICTIM if run.neighbours else ())), reason)
    else:
        events = measured.events
        trial.histogram = None if events is None else run.histogram(record.trial.id, censored=events.censored)
        _throughput(trial, measured, work_asked(run, record))
        _latency(trial, measured, run.histogram(record.trial.id, "lateness"))
        _usage(trial, measured, run)
        if run.neighbours:
            _victim(trial, measured, run)
    _deployment(trial)
    return trial


def _quantities(trial: TrialMetrics, measured: Measured) -> None:
    """A quantity's value is the mean over its windows: they are of one deployment, hence one observation."""
    neighbour = trial.record.neighbour
    for key in measured.quantities:
        name = f"{measured.name}.{key}"
        if neighbour is not None and (unknown := _not_known(neighbour)):
            trial.put(name, unknown)
            continue
        windows = np.asarray(measured.values(key), dtype=float)
        centre = float(windows.mean())
        trial.put(name, centre)
        if windows.size > 1 and centre > 0:
            trial.spread[name] = float(windows.std(ddof=1)) / centre


def metrics_of(run: Run) -> dict[str, Metric]:
    """The metrics that this run's trials can have, by name; the probes' in the order of the study's programme."""
    order = {case["probe"]: number for number, case in reversed(list(enumerate(run.programme)))}
    measured = [record.measured for record in run.records if record.measured is not None and record.status == "valid"]
    measured.sort(key=lambda each: order.get(each.name, len(order)))
    own = {metric.name: metric for each in measured for metric in _metrics(each)}
    if order:
        return own
    common = load_metrics(unit_of(run), request_of(run))
    if run.neighbours:
        return {
            **victim_metrics(request_of(run)),
            **{name: m for name, m in common.items() if not name.startswith(_MIXED)},
        }
    return {**common, **own}


def unit_of(run: Run) -> str:
    """The unit of work of a run's load; "request" where no trial was measured that could tell."""
    told = sorted((record for record in run.records if record.measured), key=lambda record: record.status != "valid")
    return next((m.unit for record in told if (m := record.measured) is not None and m.is_load), "request")


def request_of(run: Run) -> str:
    """What a run's load asks for one by one: "round" where one holds several units of work in any trial, for one that
    holds one is a round too; else the unit."""
    told = (record.measured.request for record in run.records if record.measured is not None)
    return next(filter(None, told), unit_of(run))


def _metrics(measured: Measured) -> list[Metric]:
    return [
        Metric(
            f"{measured.name}.{key}",
            q.title,
            q.unit,
            q.better,
            group=measured.name,
            headline=key == measured.headline,
            probed=not measured.is_load,
        )
        for key, q in measured.quantities.items()
    ]


def work_asked(run: Run, record: TrialRecord) -> int:
    """How much work a trial was asked for; 0 when only a time ended it, as with every load that counts none, and with
    all that are measured in turn.
    """
    if record.trial.turn:
        return 0
    return int(record.trial.condition.get("load.requests", run.base.get("load.requests")) or 0)


def _throughput(trial: TrialMetrics, measured: Measured, asked: int) -> None:
    window, events = measured.window, measured.events
    trial.put("generator_cpus", "not reported by the generator" if window.cpus is None else window.cpus)
    if window.cpus is not None and window.cpu_span_ns is not None:
        trial.notes["generator_cpus"] = f"over the whole run of {measured.instrument}, in which its window lay"
    if measured.loop == "open":
        reason = "open loop: the schedule sets the rate, so rate and time say nothing about the platform"
        trial.put("rate_per_s", reason)
        trial.put("total_time_s", reason)
        return
    if window.rate_per_s is None:
        reason = _no_rate(events, measured.asked, asked)
        trial.put("rate_per_s", reason)
        trial.put("total_time_s", reason)
    else:
        trial.put("rate_per_s", window.rate_per_s)
        n = asked or REFERENCE_WORK
        trial.put("total_time_s", n / window.rate_per_s)
        trial.notes["total_time_s"] = f"estimated as {n:,} / rate: {_why_estimated(events, asked)}"
    if events is not None and events.completed >= asked > 0:
        trial.put("total_time_s", _elapsed_s(window, events))
        trial.missing.pop("total_time_s", None)
        trial.notes.pop("total_time_s", None)


def _no_rate(events: Events | None, request: str, asked: int) -> str:
    if events is None or not events.completed:
        return f"no {request} was completed"
    if events.offered >= asked > 0:
        return f"too few {plural(request)}: all were sent at once, and none was left to ask while they were answered"
    return f"slower than the window: no {request} was answered within it"


def _why_estimated(events: Events | None, asked: int) -> str:
    if not asked or events is None:
        return "the load was ended by time alone"
    return "the time limit came first" if events.offered < asked else f"{events.censored:,} of them failed"


def _elapsed_s(window: Window, events: Events) -> float:
    """From the first one's start to the last one's end."""
    end_ns = window.end_ns if events.drain is None else events.drain.end_ns
    return (end_ns - window.start_ns) / 1e9


def _latency(trial: TrialMetrics, measured: Measured, lateness: Histogram | None) -> None:
    histogram, events = trial.histogram, measured.events
    for label, q in _PERCENTILES:
        name = f"latency_{label}_ms"
        if events is None:
            trial.put(name, f"{measured.instrument} does not tell what became of single {plural(measured.asked)}")
        elif histogram is not None:
            value = _percentile_ms(histogram, events.late or 0, q, plural(measured.asked))
            trial.put(name, value)
            if histogram.is_censored(q):
                trial.censored.add(name)
            late_ns = None if lateness is None else lateness.quantile_ns(q)
            if late_ns is not None and not isinstance(value, str):
                trial.late_ms[name] = late_ns / 1e6
        elif len(measured.windows) > 1:
            trial.put(name, f"no latency histogram was recorded, and {measured.instrument} tells single windows' only")
        elif label not in events.percentiles_ns:
            trial.put(name, f"no latency histogram was recorded, and {measured.instrument} tells no percentile")
        elif events.censored:
            failed = f"{events.censored:,} {plural(measured.asked)} failed"
            trial.put(name, f"{failed}, and {measured.instrument} does not say where they stand")
        else:
            trial.put(name, events.percentiles_ns[label] / 1e6)
            trial.notes[name] = f"as {measured.instrument} reports it"


def _percentile_ms(histogram: Histogram, late: int, q: float, work: str = "requests") -> float | str:
    """A percentile of all work ("requests"), what failed slower than any; or the reason why it is not told."""
    if q < 1 and beyond(histogram.total, q) < LEAST_BEYOND:
        return f"too few {work}: fewer than {LEAST_BEYOND} lie beyond this percentile"
    value_ns = histogram.quantile_ns(q)
    if value_ns is None:
        return f"it lies among the {histogram.censored:,} of {histogram.total:,} {work} that failed"
    if q < 1 and late > most_late(histogram.total, q):
        return f"it may be the generator's own: it sent {late:,} of {histogram.total:,} {work} late"
    return value_ns / 1e6


def _victim(trial: TrialMetrics, measured: Measured, run: Run) -> None:
    """What a victim's own work says: each name of VICTIM gets a value, or the reason why there is none."""
    course = _course(trial.record, measured, run)
    if isinstance(course, str):
        trial.missing |= dict.fromkeys(VICTIM, course)
        return
    trial.timeline = course.timeline
    parts = {when: course.stretch(when) for when in ("before", "during", "after")}
    nothing = f"no {measured.asked} was to start in it"
    for when, part in parts.items():
        trial.put(f"goodput_{when}_per_s", part.goodput_per_s if part.intended else nothing)
    before, during = parts["before"], parts["during"]
    known = before.answered > 0 and during.intended > 0
    kept = during.share / before.share if known else "nothing was answered before the aggressor began"
    trial.put("goodput_kept", kept)
    for label, q in QUANTILES.items():
        found = {when: part.quantile_ms(q) for when, part in parts.items()}
        for when, value in found.items():
            trial.put(f"{label}_{when}_ms", value)
        trial.put(f"{label}_rise", _rise(found["before"], found["during"]))
        if during.is_unanswered(q):
            trial.unanswered.add(f"{label}_rise")
    _transients(trial, course)


def _rise(before_ms: float | str, during_ms: float | str) -> float | str:
    if isinstance(before_ms, str):
        return f"before: {before_ms}"
    return f"during: {during_ms}" if isinstance(during_ms, str) else during_ms / before_ms


def _transients(trial: TrialMetrics, course: Course) -> None:
    """What happens at the two steps, when the aggressor begins and when it ends."""
    few = "too few tenths of a second with an answer"
    for name, peak in (("overshoot", course.overshoot()), ("rebound", course.rebound())):
        trial.put(name, few if peak is None else peak)
    for name, settling in (("settling", course.settling()), ("recovery", course.recovery())):
        value, bound = _settled(settling, few)
        trial.put(f"{name}_s", value)
        trial.put(f"{name}_more_than_s", bound)


def _settled(settling: Settling | None, few: str) -> tuple[float | str, float | str]:
    """How long it took, or at least took; the other of the two is missing."""
    if settling is None:
        return few, few
    if settling.is_censored:
        return f"not within the window: more than {settling.seconds:.1f} s", settling.seconds
    return settling.seconds, "it settled within the window"


def _course(record: TrialRecord, measured: Measured, run: Run) -> Course | str:
    """The window cut where the neighbour began and ended, or the reason why it cannot be cut."""
    neighbour = record.neighbour
    unknown = _not_known(neighbour)
    if unknown or neighbour is None or neighbour.start_ns is None:
        return unknown
    work = _whole_window(record, measured, run)
    if isinstance(work, str):
        return work
    window = measured.window
    end_ns = window.duration_ns
    start_ns = neighbour.start_ns - window.start_ns
    stop_ns = end_ns if neighbour.end_ns is None else min(neighbour.end_ns - window.start_ns, end_ns)
    if not 0 < start_ns < stop_ns:
        return "the aggressor was not at work within the window"
    if stop_ns - start_ns < LEAST_AT_WORK_NS:
        return f"the aggressor was at work for {(stop_ns - start_ns) / 1e6:.0f} ms only: {neighbour.reason}"
    return Course(work, start_ns, stop_ns, end_ns)


def _whole_window(record: TrialRecord, measured: Measured, run: Run) -> Requests | str:
    """Every unit of work of the window, or the reason why they are not to be had."""
    columns = run.requests(record.trial.id) if measured.loop == "open" else None
    work = plural(measured.asked)
    log = None if measured.events is None else measured.events.log
    if log is None or columns is None:
        return f"single {work} of an open loop are needed, and were not recorded"
    whole_ns, window_ns = log.whole_until_ns, measured.window.duration_ns
    if whole_ns is not None and whole_ns < window_ns:
        return (
            f"the request log was full after {whole_ns / 1e9:.1f} of {window_ns / 1e9:.1f} s "
            f"({log.logged:,} {work}): ask for a lower load.rate or a shorter load.time_limit"
        )
    return Requests.of(*columns, word=measured.asked)


def _not_known(neighbour: NeighbourRecord | None) -> str:
    """What is not known of a neighbour's time at work; "" where both ends are. One that lived on has the window's."""
    if neighbour is None:
        return "no neighbour was recorded"
    if neighbour.start_ns is None:
        return f"{_NO_START}: {neighbour.reason}"
    if neighbour.end_is_unknown:
        return f"it is not known when the aggressor ended: {neighbour.reason}"
    return ""


def _usage(trial: TrialMetrics, measured: Measured, run: Run) -> None:
    window, windows, unit = measured.window, _of_one_level(measured), measured.unit
    span_ns = (windows[0].start_ns, windows[-1].end_ns)
    outside = run.samples(trial.record.trial.id, "outside", _OUTSIDE)
    inside = run.samples(trial.record.trial.id, "inside", _INSIDE)
    served = [each.served for each in windows if each.served is not None]
    tells = len(served) == len(windows)  # all that was asked for and when it ended
    cpu_in = _cpu_of_served if tells else _cpu_in
    instance_s = cpu_in(windows, outside.get(("instance", "cpu.usage_ns")))
    helpers_s = cpu_in(windows, outside.get(("helpers", "cpu.usage_ns")))
    inside_s: float | str = "inside it is looked at too seldom to tell windows this short apart"
    if len(windows) == 1:
        inside_s = _cpu_in(windows, inside.get(("inside", "cpu.usage_ns")))
    trial.put("cpu_s_per_1000", _per_1000(instance_s, sum(served) if tells else window.work, unit))
    trial.put("cpu_s_per_1000_inside", _per_1000(inside_s, window.work, unit))
    if isinstance(helpers_s, str):
        trial.put("helpers_percent", "the platform's helpers cannot be told from its payload")
    elif isinstance(instance_s, str) or instance_s == 0:
        trial.put("helpers_percent", "the instance's CPU time is not known")
    else:
        trial.put("helpers_percent", helpers_s / instance_s * 100)
    memory = _within(outside.get(("instance", "memory.usage_bytes")), span_ns)
    resident = _within(outside.get(("instance", "memory.rss_bytes")), span_ns)
    nothing = "no sample of it lies in the window"
    trial.put("memory_peak_mib", nothing if memory is None else float(memory.value.max()) / MIB)
    trial.put("memory_mean_mib", nothing if memory is None else _time_mean(memory) / MIB)
    trial.put("rss_peak_mib", nothing if resident is None else float(resident.value.max()) / MIB)


def _deployment(trial: TrialMetrics) -> None:
    durations = [phase.duration_ns for phase in trial.record.phases if phase.name == "deploy"]
    trial.missing.pop("deploy_s", None)
    trial.put("deploy_s", sum(durations) / 1e9 if durations else "the deployment was not timed")


def _of_one_level(measured: Measured) -> list[Window]:
    """The windows that `Measured.window` is of."""
    whole = measured.window
    return [whole] if whole in measured.windows else measured.windows


def _cpu_in(windows: Sequence[Window], series: Series | None) -> float | str:
    return _sum([_cpu_s(series, (window.start_ns, window.end_ns)) for window in windows])


def _cpu_of_served(windows: Sequence[Window], series: Series | None) -> float | str:
    """CPU seconds of all that was asked for in the windows, to the end of the last of it.

    Between two looks, the last before a window and the first when nothing of it was under way any more: the host's
    agent looks right before the instrument is started and right after it has told. In between, what was not asked for
    is the instance's idleness.
    """
    if series is None or len(series.t_ns) < 2:
        return "not sampled"
    total_ns = 0
    for window in windows:
        before = int(np.searchsorted(series.t_ns, window.start_ns, "right")) - 1
        after = int(np.searchsorted(series.t_ns, window.until_ns or window.end_ns, "left"))
        if before < 0 or after >= len(series.t_ns):
            return "no sample lies before the window, or none after it"
        total_ns += int(series.value[after]) - int(series.value[before])
    return total_ns / 1e9


def _sum(parts: Sequence[float | str]) -> float | str:
    """All together, or the first reason why one is not known."""
    known = [part for part in parts if not isinstance(part, str)]
    return sum(known) if len(known) == len(parts) else next(part for part in parts if isinstance(part, str))


def _cpu_s(series: Series | None, window: tuple[int, int]) -> float | str:
    """CPU seconds of a cumulative counter between the window's ends, interpolated between samples."""
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
    return float(at[1] - at[0]) / 1e9 / covered


def _per_1000(cpu_s: float | str, served: float, unit: str = "request") -> float | str:
    if isinstance(cpu_s, str):
        return cpu_s
    return f"no {unit} was served in the window" if served <= 0 else cpu_s / served * 1000


def _within(series: Series | None, window: tuple[int, int]) -> Series | None:
    """The samples inside the window; None when there is none."""
    if series is None or len(series.t_ns) == 0:
        return None
    inside = (series.t_ns >= window[0]) & (series.t_ns <= window[1])
    return Series(series.t_ns[inside], series.value[inside]) if inside.any() else None


def _time_mean(series: Series) -> float:
    """Mean over time (trapezoids), so that a late sample does not weigh like the others."""
    if len(series.t_ns) < 2:
        return float(series.value[0])
    t = (series.t_ns - series.t_ns[0]).astype(float)
    return float(np.trapezoid(series.value.astype(float), t) / t[-1])
