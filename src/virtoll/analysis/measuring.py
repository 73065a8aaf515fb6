"""What one trial says: each of its metrics gets a number, or the reason why there is none."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from virtoll.analysis.conditions import Condition, each_condition
from virtoll.analysis.knees import note_bounds, note_knee
from virtoll.analysis.load import Histogram, Run
from virtoll.analysis.metrics import (
    ALL,
    AT_LEAST,
    KNEE,
    METRICS,
    OF_A_WINDOW,
    VICTIM,
    TrialMetrics,
    Wanted,
    intensity_of,
)
from virtoll.analysis.ramps import untold_at
from virtoll.analysis.server import note_server
from virtoll.analysis.tails import holds_enough, typical_ms, windows_ms
from virtoll.analysis.usage import all_served, note_usage, of_one_level
from virtoll.analysis.victim import QUANTILES, Course, Requests, Settling
from virtoll.helpers import helpers, met_halfway
from virtoll.record.model import (
    BEST,
    LEAST_BEYOND,
    LEVEL,
    LOST_PERCENT,
    Events,
    Measured,
    NeighbourRecord,
    TrialRecord,
    Window,
    most_late,
)
from virtoll.units import plural

# A percentile of an open loop's latency is told of no trial of a condition where the same percentile of the generator's
# own lateness is more than this part of it, by the medians over all of them.
LATE_PART = 0.5

# The N of "total time for N units of work" where a study asks for no number: the papers' N.
REFERENCE_WORK = 10_000

# Of an aggressor that ended sooner, no rate or percentile beside it can be told.
LEAST_AT_WORK_NS = 200_000_000

_NO_START = "the aggressor could not start"

_FEW = f"fewer than {LEAST_BEYOND} lie beyond this percentile"

_PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))

# Trials that a helper takes at a time. It has loaded what it needs when as many as `_MANY` could have been measured.
_SHARE, _MANY = 50, 500


def measure_all(run: Run, wanted: Wanted = ALL) -> list[TrialMetrics]:
    """The metrics of every sealed trial, as sealed; of invalid ones too: they are listed, never averaged."""
    many = len(run.records) > _MANY
    trials = _shared(run, wanted) if many else [measure(run, record, wanted) for record in run.records]
    _leave_out_too_few(trials)
    _leave_out_the_generators_own(trials)
    _note_what_was_lost(trials)
    note_bounds(trials)
    return trials


def _shared(run: Run, wanted: Wanted) -> list[TrialMetrics]:
    """As this process and another come to them: this one from the first on, the other from the last."""
    shares = [run.records[at : at + _SHARE] for at in range(0, len(run.records), _SHARE)]
    with helpers(1) as other:
        bare = pickle.dumps(_without_trials(run))
        found = met_halfway(
            shares,
            lambda share: [measure(run, record, wanted) for record in share],
            lambda share: other.submit(
                _measured, bare, _parts(run, share), [record.model_dump_json() for record in share], wanted
            ),
            lambda share, rests: [TrialMetrics(record, **rest) for record, rest in zip(share, rests, strict=True)],
        )
        return [trial for share in found for trial in share]


def _without_trials(run: Run) -> Run:
    """What a trial is measured by: of the plan a trial of each condition. It goes with every share, and must not grow
    with their number, nor with that of hosts.
    """
    kinds = list({Condition.of(trial): trial for trial in run.plan.trials}.values())
    plan = run.plan.model_copy(update={"trials": kinds})
    environment = run.environment.model_copy(update={"comparable": {}, "warnings": []})
    return replace(run, records=(), looks=(), parts={}, plan=plan, environment=environment)


def _parts(run: Run, share: Sequence[TrialRecord]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Those of a share's own trials."""
    return {record.trial.id: run.parts[record.trial.id] for record in share if record.trial.id in run.parts}


def _measured(
    bare: bytes, parts: Mapping[str, tuple[str, tuple[int, ...]]], records: Sequence[str], wanted: Wanted
) -> list[dict[str, Any]]:
    """The metrics of these sealed trials of a run, but for the record. That comes as JSON, which is parsed faster than
    a record is unpickled, and does not go back.
    """
    run = replace(_unpickled(bare), parts=parts)
    trials = (measure(run, TrialRecord.model_validate_json(record), wanted) for record in records)
    return [{name: value for name, value in vars(trial).items() if name != "record"} for trial in trials]


@lru_cache(maxsize=1)
def _unpickled(bare: bytes) -> Run:
    """The run without its records, which is the same for every share."""
    run: Run = pickle.loads(bare)
    return run


def _leave_out_too_few(trials: list[TrialMetrics]) -> None:
    """Take percentiles away that lack company, of all requests or of a window's (by the median of their requests), and
    a load's own quantities that some trials do not tell: of all trials of an arm under a condition or of none.

    In closed loop a slow deployment has fewer requests: were each trial judged by itself, an arm's fast ones would stay
    and its slow ones go (a true ratio of 4.21 was told as 3.79).
    """
    groups: dict[tuple[str, Condition] | str, list[TrialMetrics]] = {}
    for trial, under in _with_conditions(trials):
        plan = trial.record.trial
        is_valid = trial.record.status == "valid"  # what is only listed is judged by itself
        groups.setdefault((plan.arm.label, under) if is_valid else plan.id, []).append(trial)
    for group in groups.values():
        for label, q in _PERCENTILES:
            if q < 1:
                _leave_out_of(group, f"latency_{label}_ms", q)
        _leave_out_where_untold(group)
        windows = [trial for trial in group if OF_A_WINDOW in trial.values or OF_A_WINDOW in trial.censored]
        if windows and not holds_enough([trial.window_requests for trial in windows]):
            for trial in windows:
                trial.drop(OF_A_WINDOW, f"too few in a window: {_FEW}")


def _with_conditions(trials: Sequence[TrialMetrics]) -> Iterator[tuple[TrialMetrics, Condition]]:
    return zip(trials, each_condition(trial.record.trial for trial in trials), strict=True)


def _leave_out_of(group: Sequence[TrialMetrics], name: str, q: float) -> None:
    """Take a percentile of all requests away from a group of trials, where half of them have too few."""
    told = [(trial, _asked(trial)) for trial in group if name in trial.values or name in trial.missing]
    known = [(trial, total) for trial, total in told if total is not None]
    if known and not holds_enough([total for _, total in known], q):
        for trial, _ in known:
            measured = trial.record.measured
            work = "requests" if measured is None else plural(measured.asked)
            trial.drop(name, f"too few {work}: {_FEW}")


def _leave_out_where_untold(group: Sequence[TrialMetrics]) -> None:
    """Take a load's own quantities away from a group of trials of which some do not tell them: nobody watched there, or
    viewers stalled, so that too few parts came for a percentile, a busy server did not say what time it is, or a
    program tells percentiles of what went well alone.
    """
    loads = [measured for trial in group if (measured := trial.record.measured) is not None and measured.is_load]
    for name in dict.fromkeys(f"{load.name}.{key}" for load in loads for key in load.quantities):
        mine = [trial for trial in group if name not in trial.missing or name in trial.untold]
        without = sum(name not in trial.values for trial in mine)
        if 0 < without < len(mine):
            why = f"in {without} of {len(mine)} trials it is not known: the others may be the better ones"
            for trial in mine:
                trial.drop(name, why)


def _asked(trial: TrialMetrics) -> float | None:
    """How many a trial's percentiles are of: of an outside program's, which tells no histogram, all that it counted."""
    if trial.histogram is not None:
        return trial.histogram.total
    measured = trial.record.measured
    events = None if measured is None else measured.events
    return events.completed + events.censored if events is not None and events.percentiles_ns else None


def _leave_out_the_generators_own(trials: list[TrialMetrics]) -> None:
    """Take percentiles away that may be the generator's own: of all trials of a condition or of none.

    Were each judged by its own latency, the slow trials of a fast arm would be kept and its fast ones left out.
    """
    groups: dict[tuple[str, Condition], list[TrialMetrics]] = {}
    for trial, under in _with_conditions(trials):
        if trial.record.status == "valid":
            for name in trial.late_ms:
                groups.setdefault((name, under), []).append(trial)
    for (name, _), group in groups.items():
        late_ms = float(np.median([trial.late_ms[name] for trial in group]))
        value_ms = float(np.median([trial.values[name] for trial in group]))
        if late_ms > LATE_PART * value_ms:
            for trial in group:
                trial.drop(
                    name,
                    "it may be the generator's own: over all arms, the same percentile of its lateness is "
                    f"{late_ms:.3g} ms, and of the latency {value_ms:.3g} ms (medians)",
                )


def _note_what_was_lost(trials: list[TrialMetrics]) -> None:
    """Note what a probe tells of others under its condition, and not of a trial in which it lost requests: it is not
    missing by chance, and the others are the better ones.
    """
    pairs = [(trial, under) for trial, under in _with_conditions(trials) if under.probe]
    valid = [(trial, under) for trial, under in pairs if trial.record.status == "valid"]
    told: dict[Condition, dict[str, None]] = {}
    for trial, under in valid:
        told.setdefault(under, {}).update(dict.fromkeys(trial.values))
    for trial, under in valid:
        percent = trial.values.get(f"{under.probe}.{LOST_PERCENT}", 0.0)
        for name in [name for name in told[under] if percent > 0 and name not in trial.values]:
            trial.put(name, f"it is not known of what was lost: {percent:.3g} %")
            trial.censored.add(name)


def measure(run: Run, record: TrialRecord, wanted: Wanted = ALL) -> TrialMetrics:
    """The metrics of one trial."""
    trial = TrialMetrics(record)
    measured = record.measured
    # A load's would mix before, during and after its neighbour, or what it was asked for.
    is_search = run.is_search(record.trial.condition)
    if measured is not None and not (measured.is_load and (run.neighbours or is_search)):
        _quantities(trial, measured)
    if "probe" in record.trial.condition:
        _note_least(trial)
        trial.histogram = _probed(run, record.trial.id, measured) if measured is not None and wanted.latency else None
        return trial
    if measured is not None and measured.knee is not None:
        note_knee(trial, measured, measured.knee, run)
    elif measured is None or is_search:  # a search that came to no end: nothing is told of its first windows
        reason = record.reason or "no load was recorded"
        own = VICTIM if run.neighbours else [KNEE] if is_search else ()
        trial.missing = dict.fromkeys((*METRICS, *own), reason)
    else:
        _throughput(trial, measured, work_asked(run, record))
        if wanted.latency:
            _latencies(trial, measured, run)
        if wanted.usage:
            with all_served(trial, measured.windows):
                note_usage(trial, measured, run, memory=wanted.memory, inside=wanted.inside)
                if intensity_of(record.trial.condition):
                    note_server(trial, measured, run, inside=wanted.inside)
        if run.neighbours:
            _victim(trial, measured, run)
    _deployment(trial)
    return trial


def _probed(run: Run, trial_id: str, measured: Measured) -> Histogram | None:
    """What a probe timed one by one. Where that is its requests, those that it lost are slower than any."""
    histogram, work = run.histogram(trial_id), sum(window.work for window in measured.windows)
    lost = round(sum(window.work * window.values.get(LOST_PERCENT, 0.0) / 100 for window in measured.windows))
    is_of_requests = histogram is not None and histogram.completed + lost == work
    return replace(histogram, censored=lost) if histogram is not None and is_of_requests else histogram


def _quantities(trial: TrialMetrics, measured: Measured) -> None:
    """A quantity's value is the mean over its windows: they are of one deployment, hence one observation."""
    neighbour, untold = trial.record.neighbour, untold_at(measured, trial.record.trial.condition.get(LEVEL))
    for key in measured.quantities:
        name = f"{measured.name}.{key}"
        if neighbour is not None and (unknown := _not_known(neighbour)):
            trial.put(name, unknown)
            continue
        if key in untold:
            trial.put(name, untold[key])
            if key in BEST:  # which is told of those trials alone that were at their best
                trial.untold.add(name)
            continue
        if any(key in window.censored for window in measured.windows):
            trial.put(name, "it is among what never came")
            trial.censored.add(name)
            continue
        if neighbour is not None and trial.record.outcome == "did not answer" and key != LOST_PERCENT:
            trial.put(name, "the victim did not answer: too much was lost")
            continue
        windows = np.asarray(measured.values(key), dtype=float)
        if not windows.size:
            trial.put(name, f"{measured.instrument} did not tell it in every window")
            trial.untold.add(name)
            continue
        centre = float(windows.mean())
        trial.put(name, centre)
        trial.parts[name] = (windows.tolist(), [1.0] * windows.size)
        if windows.size > 1 and centre > 0:
            trial.spread[name] = float(windows.std(ddof=1)) / centre


def _note_least(trial: TrialMetrics) -> None:
    """Note what is known as a bound alone: were it left out as what is missing by chance, a mean would be of the lower
    ones, and so a host that holds most would be told as holding less.
    """
    for name, bound in AT_LEAST.items():
        if name not in trial.values and bound in trial.values:
            held = f"{trial.values[bound]:,.4g}"
            trial.put(name, f"a bound: the host held {held}, and whether it holds more is not known")
            trial.censored.add(name)


def work_asked(run: Run, record: TrialRecord) -> int:
    """How much work a trial was asked for; 0 when only a time ended it, as with every load that counts none, and with
    all that are measured in turn.
    """
    if record.trial.turn:
        return 0
    return int(run.given(record.trial.condition).get("load.requests") or 0)


def _throughput(trial: TrialMetrics, measured: Measured, asked: int) -> None:
    window, events = measured.window, measured.events
    cpus, rate_per_s = window.cpus, window.rate_per_s
    trial.put("generator_cpus", "not reported by the generator" if cpus is None else cpus)
    if cpus is not None and window.cpu_span_ns is not None:
        trial.notes["generator_cpus"] = f"over the whole run of {measured.instrument}, in which its window lay"
    if measured.loop == "open":
        reason = "open loop: the schedule sets the rate, so rate and time say nothing about the platform"
        trial.put("rate_per_s", reason)
        trial.put("total_time_s", reason)
        return
    if rate_per_s is None:
        longer = "rotation.window" if trial.record.trial.turn else "load.time_limit"
        reason = _no_rate(events, measured.asked, asked, longer)
        trial.put("rate_per_s", reason)
        trial.put("total_time_s", reason)
        if measured.served_nothing:
            trial.censored |= {"rate_per_s", "total_time_s"}
    else:
        trial.put("rate_per_s", rate_per_s)
        windows = of_one_level(measured)
        trial.parts["rate_per_s"] = ([each.work for each in windows], [each.duration_ns for each in windows])
        n = asked or REFERENCE_WORK
        trial.put("total_time_s", n / rate_per_s)
        trial.notes["total_time_s"] = f"estimated as {n:,} / rate: {_why_estimated(events, asked)}"
    if events is not None and events.completed >= asked > 0 and window.asked_ns is None:
        trial.put("total_time_s", _elapsed_s(window, events))
        trial.missing.pop("total_time_s", None)
        trial.censored.discard("total_time_s")
        trial.notes.pop("total_time_s", None)


def _no_rate(events: Events | None, request: str, asked: int, longer: str) -> str:
    """``longer``: the setting that makes windows so."""
    if events is None or not events.completed:
        return f"no {request} was completed"
    if events.offered >= asked > 0:
        return f"too few {plural(request)}: all were sent at once, and none was left to ask while they were answered"
    return f"slower than the window: no {request} was answered within it (take a longer {longer})"


def _why_estimated(events: Events | None, asked: int) -> str:
    if not asked or events is None:
        return "the load was ended by time alone"
    if events.offered < asked:
        return "the time limit came first"
    return f"{events.censored:,} of them failed" if events.censored else "its window began amid the load"


def _elapsed_s(window: Window, events: Events) -> float:
    """From the first one's start to the last one's end."""
    end_ns = window.end_ns if events.drain is None else events.drain.end_ns
    return (end_ns - window.start_ns) / 1e9


def _latencies(trial: TrialMetrics, measured: Measured, run: Run) -> None:
    events, of = measured.events, trial.record.trial.id
    trial.histogram = None if events is None else run.histogram(of, censored=events.censored)
    _latency(trial, measured, run.histogram(of, "lateness"))
    _latency_of_windows(trial, measured, run)


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
            trial.censored.add(name)
            trial.unplaced.add(name)
        else:
            trial.put(name, events.percentiles_ns[label] / 1e6)
            trial.notes[name] = f"as {measured.instrument} reports it"


def _latency_of_windows(trial: TrialMetrics, measured: Measured, run: Run) -> None:
    """Of a closed loop in rotation."""
    if not trial.record.trial.turn:
        return
    if measured.loop != "closed":
        trial.put(OF_A_WINDOW, "open loop: how late the generator was is judged over all windows")
        return
    events = [window.events.get(measured.asked) for window in measured.windows]
    known = [each for each in events if each is not None]
    if len(known) < len(events):
        trial.put(OF_A_WINDOW, f"{measured.instrument} does not tell what became of single {plural(measured.asked)}")
        return
    windows = run.window_histograms(trial.record.trial.id, [each.censored for each in known])
    if windows is None:
        trial.put(OF_A_WINDOW, "latencies were not recorded window by window")
        return
    trial.window_requests = float(np.median([window.total for window in windows]))
    trial.by_window[OF_A_WINDOW] = windows_ms(windows)
    value = typical_ms(trial.by_window[OF_A_WINDOW])
    trial.put(OF_A_WINDOW, value)
    if isinstance(value, str):
        trial.censored.add(OF_A_WINDOW)


def _percentile_ms(histogram: Histogram, late: int, q: float, work: str = "requests") -> float | str:
    """A percentile of all work ("requests"), what failed slower than any; or the reason why it is not told.

    Whether there is work enough for it is not a trial's own to say: `_leave_out_too_few`.
    """
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


def _deployment(trial: TrialMetrics) -> None:
    durations = [phase.duration_ns for phase in trial.record.phases if phase.name == "deploy"]
    trial.missing.pop("deploy_s", None)
    trial.put("deploy_s", sum(durations) / 1e9 if durations else "it has no deployment of its own that was timed")
