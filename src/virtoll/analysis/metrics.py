"""The metrics that a trial can have: what each is called, in which unit, and which way is better.

A load's trial has the known metrics below, in its unit of work; a load and a probe have one besides for each quantity
of their record, called NAME.KEY. A victim's beside a neighbour has what its work says of before, during and after
(`victim`) in place of its rate and latency, which would mix the three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from virtoll.analysis.load import Histogram, Run
from virtoll.analysis.victim import Bins
from virtoll.record.model import (
    ALL_THERE,
    ANSWERED,
    BESIDE_IT,
    CORRECTLY,
    INTENSITIES,
    LEVEL,
    LIVED,
    STAYED,
    WENT_ON,
    Measured,
    TrialRecord,
)
from virtoll.record.store import is_interrupted
from virtoll.units import plural

MIB = 1024.0**2
ISOLATION = "isolation"


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
    censoring: str = "lies among what failed"  # what is said of a trial in `TrialMetrics.censored`

    @property
    def probe(self) -> str:
        """The probe whose quantity it is; "" for what a load's trial says."""
        return self.group if self.probed else ""

    @property
    def is_a_loads_own(self) -> bool:
        """Whether it is a quantity of one load's record, rather than of any load's."""
        return not self.probed and self.group not in ("", ISOLATION)


def told_apart(metrics: Iterable[Metric]) -> list[Metric]:
    """These, each under a title of its own: several loads' quantities may be called alike, as goodput is of viewers."""
    each = list(metrics)
    count = Counter(metric.title for metric in each)
    return [replace(m, title=f"{m.title} ({m.group})") if m.group and count[m.title] > 1 else m for m in each]


_LOST = "is not known of what was lost"
_BOUND = "is a bound, and no value"
_SERVED_NOTHING = "is of a window in which nothing was served"


def load_metrics(unit: str, request: str = "") -> dict[str, Metric]:
    """What any load's trial says, of its unit of work ("command") and of what it asks for one by one, where that is
    several of them ("round")."""
    latency = _latency_of(unit, request)
    return {
        metric.name: metric
        for metric in (
            Metric("total_time_s", "Total time", "s", "less", censoring=_SERVED_NOTHING),
            Metric("rate_per_s", "Throughput", _per_s(unit), "more", censoring=_SERVED_NOTHING),
            Metric("latency_p50_ms", f"{latency}, median", "ms", "less"),
            Metric("latency_p90_ms", f"{latency}, 90th percentile", "ms", "less"),
            Metric("latency_p99_ms", f"{latency}, 99th percentile", "ms", "less"),
            Metric("latency_p999_ms", f"{latency}, 99.9th percentile", "ms", "less"),
            Metric("latency_max_ms", f"{latency}, longest", "ms", "less"),
            Metric(
                "cpu_s_per_1000",
                f"CPU per 1,000 {plural(unit)}",
                "CPU-s",
                "less",
                censoring=_SERVED_NOTHING,
            ),
            Metric("cpu_s_per_1000_inside", f"CPU per 1,000 {plural(unit)}, as seen inside", "CPU-s", None),
            Metric(PACKETS, f"Packets per {unit}", "packets", None),
            Metric("helpers_percent", "Share of the CPU spent in helpers", "%", None),
            Metric("memory_peak_mib", "Memory, peak", "MiB", "less"),
            Metric("memory_mean_mib", "Memory, mean", "MiB", "less"),
            Metric("rss_peak_mib", "Resident memory, peak", "MiB", "less"),
            Metric("deploy_s", "Time to deploy", "s", "less"),
            Metric("generator_cpus", "CPUs the generator used", "CPUs", None),
        )
    }


def guest_metrics(unit: str) -> dict[str, Metric]:
    """What a trial says besides whose instance is a guest under KVM."""
    return {EXITS: Metric(EXITS, f"Guest exits per {unit}", "exits", None)}


def server_metrics() -> dict[str, Metric]:
    """What a trial says besides where its load's intensity is a factor (`INTENSITIES`): the server, as the host books
    it and as a tool inside sees it."""
    return {
        metric.name: metric
        for metric in (
            Metric(SERVER_CPUS, "CPU of the server", "CPUs", "less"),
            Metric("server_cpus_inside", "CPU of the server, as seen inside", "CPUs", None),
            Metric("memory_inside_mib", "Memory in use, as seen inside", "MiB", None),
            Metric("to_server_mbit_per_s", "Traffic to the server", "Mbit/s", None),
            Metric("from_server_mbit_per_s", "Traffic from the server", "Mbit/s", None),
            Metric("packets_per_s", "Packets to and from the server", "1/s", None),
            Metric("switches_per_s", "Context switches of the host", "1/s", "less"),
            Metric("switches_per_s_inside", "Context switches, as seen inside", "1/s", None),
        )
    }


def _latency_of(unit: str, request: str) -> str:
    return "Latency" if request in ("", unit) else f"Latency of a {request}"


def _per_s(unit: str) -> str:
    return f"{_SHORT.get(unit, unit)}/s"


_SHORT = {"request": "req"}
PACKETS = "packets_per_unit"  # of work
EXITS = "exits_per_unit"  # of work
METRICS = tuple(load_metrics(""))  # their names
SERVER_CPUS = "server_cpus"  # of trials whose load's intensity is a factor
LIVE_AGE = "ll-hls-viewers.media_age_ms"  # of what is live with low latency
KNEE = "knee"  # of trials that search for it
# What is told of a search, besides: what was used at its knee.
AT_KNEE = frozenset(
    {"cpu_s_per_1000", "cpu_s_per_1000_inside", "helpers_percent", "memory_peak_mib", "memory_mean_mib", "rss_peak_mib"}
    | {PACKETS, EXITS}
)
OF_SEARCH = AT_KNEE | {KNEE, "deploy_s"}
# By metric that a trial tells only where a host was full, what it holds at least where it was not: a bound, which may
# be better than any that was told, whereas what failed is worse.
AT_LEAST = {"density.instances_that_fit": "density.instances"}
OF_A_WINDOW = "latency_p99_window_ms"  # of trials in rotation, beside those


def barring(metric: str) -> frozenset[str]:
    """The metrics in whose `TrialMetrics.censored` trials leave those of this one that have a value the better, or the
    worse, ones: it, and of what was used at a knee the knee.
    """
    return frozenset({metric, KNEE} if metric in AT_KNEE else {metric})


def _of_a_window(unit: str, request: str) -> dict[str, Metric]:
    title = f"{_latency_of(unit, request)}, 99th percentile of a window"
    return {OF_A_WINDOW: Metric(OF_A_WINDOW, title, "ms", "less")}


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


@dataclass(frozen=True)
class Wanted:
    """What of a load's trials is read from the files beside their records; what is not has neither value nor reason."""

    latency: bool = True
    usage: bool = True  # the CPU time that instances used, as the host sees it
    memory: bool = True  # and their memory
    inside: bool = True  # and their CPU time as they see it themselves


ALL = Wanted()


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
    # Metrics that lie beyond any value that was seen: among what failed, at a search's end, of a window in which
    # nothing was served, or of a host that was not full (`Metric.censoring`).
    censored: set[str] = field(default_factory=set)
    unplaced: set[str] = field(default_factory=set)  # those of them that may only lie there: nobody knows
    untold: set[str] = field(default_factory=set)  # a load's own quantities that it did not tell in every window
    # Of a value that is a ratio of totals over windows: what each window adds to the one and to the other.
    parts: dict[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    by_window: dict[str, list[float]] = field(default_factory=dict)  # of a metric that is told of rounds: inf, of none
    window_requests: float = 0.0  # of a trial in rotation: how many its windows hold, median
    late_ms: dict[str, float] = field(default_factory=dict)  # by percentile: the same of the generator's own lateness
    histogram: Histogram | None = None
    # Rises that are missing because the percentile during lies among what was not answered: worse than any.
    unanswered: set[str] = field(default_factory=set)
    timeline: Bins | None = None  # of a victim, by time since its neighbour began to misbehave

    @property
    def failed_its_users(self) -> bool:
        """Whether it is not valid for what the service did: it answered too little, or wrong, or ended; or the trial
        failed in its window, by whose fault nobody knows. Those in which it did not are then the better ones.
        """
        record = self.record
        if record.status == "failed":
            last = next((phase.name for phase in reversed(record.phases) if phase.name != "teardown"), "")
            return not is_interrupted(record) and last == "window"
        return record.status == "invalid" and any(_is_owed(c.name) for c in record.checks if c.passed is False)

    @property
    def did_not_answer(self) -> bool:
        """Whether it is of a server that could not serve beside others: the trial is not valid, and what it did is
        worse than any value. (What became of a victim is told where neighbours are.)
        """
        return self.record.outcome == "did not answer" and self.record.neighbour is None

    def put(self, name: str, value: float | str) -> None:
        """Note a value, or (a string) the reason why there is none."""
        if isinstance(value, str):
            self.missing[name] = value
        else:
            self.values[name] = value

    def drop(self, name: str, reason: str) -> None:
        """Take back what was noted of a metric, for a reason that is not this trial's own."""
        self.values.pop(name, None)
        self.spread.pop(name, None)
        self.parts.pop(name, None)
        self.late_ms.pop(name, None)
        self.censored.discard(name)
        self.unplaced.discard(name)
        self.missing[name] = reason


def _is_owed(check: str) -> bool:
    if BESIDE_IT in check:
        return False
    return check.endswith((ANSWERED, LIVED)) or check.startswith(CORRECTLY) or check in (WENT_ON, STAYED, ALL_THERE)


def metrics_of(run: Run) -> dict[str, Metric]:
    """The metrics that this run's trials can have, by name; the probes' in the order of the study's programme."""
    order = {case["probe"]: number for number, case in reversed(list(enumerate(run.programme)))}
    measured = [record.measured for record in run.records if record.measured is not None and record.status == "valid"]
    measured.sort(key=lambda each: order.get(each.name, len(order)))
    own = {metric.name: metric for each in measured for metric in _metrics(each)}
    if order:
        return own
    common = load_metrics(unit_of(run), request_of(run))
    if any(is_under_kvm(record) for record in run.records):
        common |= guest_metrics(unit_of(run))
    if run.neighbours:
        return {
            **victim_metrics(request_of(run)),
            **{name: m for name, m in common.items() if not name.startswith(_MIXED)},
        }
    if run.objective:
        return _of_search(common, measured)
    if any(trial.turn for trial in run.plan.trials) and any(m.loop == "closed" for m in measured):
        common |= _of_a_window(unit_of(run), request_of(run))
    if any(intensity_of(trial.condition) for trial in run.plan.trials):
        common |= server_metrics()
    if run.has_search:  # of some servers
        common = _of_search(common, measured, " or ")
    return {**common, **own}


def _of_search(common: dict[str, Metric], measured: Iterable[Measured], otherwise: str = "") -> dict[str, Metric]:
    """What searches tell of besides, ahead of all. ``otherwise``: what is between the words of a knee and of others."""
    unit = next((each.knee.unit for each in measured if each.knee is not None), "")
    at_it = {
        name: replace(each, censoring=f"is at a knee that is a bound{otherwise}{each.censoring if otherwise else ''}")
        if name in AT_KNEE
        else each
        for name, each in common.items()
    }
    return {KNEE: Metric(KNEE, "Knee", unit, "more", censoring=_BOUND), **at_it}


def is_told_by_server(run: Run) -> bool:
    """Whether a run's answer is the server's CPU, which is in the samples beside its records: a conference's, whose
    participants come whatever the server does.
    """
    return any(LEVEL in trial.condition for trial in run.plan.trials)


def is_under_kvm(record: TrialRecord) -> bool:
    """Whether a trial's instance was a guest that leaves its CPUs for the host, which counts that."""
    return record.facts.get("accelerator") == "kvm"


def intensity_of(condition: Mapping[str, Any]) -> str:
    """The path of the intensity among the levels of a trial's condition; "" where it is no factor."""
    return next((path for path in INTENSITIES if path in condition), "")


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
            censoring=_censoring(measured, f"{measured.name}.{key}"),
        )
        for key, q in measured.quantities.items()
    ]


def _censoring(measured: Measured, name: str) -> str:
    if measured.is_load:
        return Metric.censoring
    return _BOUND if name in AT_LEAST else _LOST
