"""What instances used, second by second, as Zabbix's sender takes it: `virtoll export RUNDIR`. `history_forms` writes a
history so.

A line for each value, as zabbix_sender(1) reads with --with-timestamps and --with-ns: host, key, seconds and
nanoseconds since the epoch, value. A host is an arm (with its server, where a study has several, and with the machine
that measured it, where several did so: they did at the same time); its keys are of trapper items:

    virtoll.cpu.util[host]      % of one CPU that the instance used, as the host books it
    virtoll.cpu.util[inside]    % of one CPU that is busy, as an agent inside sees it
    virtoll.memory.used[host]   bytes that are charged to the instance
    virtoll.memory.used[inside] bytes that are not available, as an agent inside sees it
    virtoll.net.in[host]        bit/s that it received
    virtoll.net.out[host]       bit/s that it sent
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from virtoll.analysis.load import Run, Series
from virtoll.analysis.usage import others_beside
from virtoll.record.model import SERVER, PlannedTrial, TrialRecord

STEP_NS = 10**9  # between two values of a series, at the least
_APART_NS = 10**9  # samples farther apart belong to two stretches: in between nobody looked
_SELDOM = 1.5  # times as far as samples usually are: of one a second no two are a second apart to the nanosecond
_TOGETHER_NS = 10 * 10**9  # trials of a turn that began farther apart are of two goes: virtoll was killed in the first
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_IN_A_NAME = re.compile(r"[^0-9A-Za-z_. -]+")  # of a host, by Zabbix's manual
_MOST_NAMED = 12
_BRACKETS = str.maketrans("", "", "()")


@dataclass(frozen=True)
class _Item:
    """A key, and the counter that it is of."""

    key: str
    side: str  # "outside" or "inside": which samples
    source: str
    counter: str
    per_s: float = 0  # of what grows: what one of it in a second is worth; 0: it is told as it is
    of: str = ""  # the counter that it is taken from


_ITEMS = (
    _Item("virtoll.cpu.util[host]", "outside", "instance", "cpu.usage_ns", 100 / 1e9),
    _Item("virtoll.cpu.util[inside]", "inside", "inside", "cpu.usage_ns", 100 / 1e9),
    _Item("virtoll.memory.used[host]", "outside", "instance", "memory.usage_bytes"),
    _Item("virtoll.memory.used[inside]", "inside", "inside", "memory.available_bytes", of="memory.total_bytes"),
    _Item("virtoll.net.in[host]", "outside", "instance", "net.rx_bytes", 8),
    _Item("virtoll.net.out[host]", "outside", "instance", "net.tx_bytes", 8),
)
KEYS = tuple(item.key for item in _ITEMS)


def hosts(run: Run) -> dict[tuple[str, ...], str]:
    """What each arm of the plan is called in Zabbix, by its label and server ("" of one alone), and where several
    machines measured it by which of them.
    """
    return called(_whose(run, trial) for trial in run.plan.trials)


def _whose(run: Run, trial: PlannedTrial) -> tuple[str, ...]:
    """Whose values a trial's are."""
    where = (trial.host,) if len(set(run.plan.hosts.values())) > 1 else ()
    return trial.arm.label, str(trial.condition.get(SERVER, "")), *where


def called(arms: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """What arms, their servers and machines are called, by what a host's name may hold."""
    found: dict[tuple[str, ...], str] = {}
    for whose in arms:
        name = _NOT_IN_A_NAME.sub("-", " ".join(filter(None, whose)).translate(_BRACKETS))
        while whose not in found and name in found.values():
            name += "_"  # two labels that differ by such a character alone
        found.setdefault(whose, name)
    return found


def line(host: str, key: str, at_ns: int, value: float) -> str:
    """A value at a time since the epoch."""
    seconds, ns = divmod(at_ns, 10**9)
    return f'"{host}" {key} {seconds} {ns} {value:.12g}'


def how(count: int, named: Iterable[str], keys: Iterable[str], file: str = "FILE") -> Iterator[str]:
    """How so many values are sent, and to whom."""
    yield f"{count:,} values; `zabbix_sender -z SERVER -T -N -i {file}` sends them"
    known = _some(f'"{name}"' for name in named)
    yield f"to hosts that Zabbix knows as {known}, with trapper items {_some(keys)}"


def _some(words: Iterable[str]) -> str:
    """The first ones; the file names them all."""
    every = list(words)
    return ", ".join([*every[:_MOST_NAMED], *[f"{len(every) - _MOST_NAMED} more"] * (len(every) > _MOST_NAMED)])


def lines(run: Run) -> Iterator[str]:
    """Of all valid trials, in their order, whatever their samples tell; nothing of what was not sampled.

    Times are those of the host's monotonic clock since the trial began, by the wall clock as it was then.
    """
    named, turns = hosts(run), _turns(run)
    for record in run.records:
        if record.status != "valid" or not record.phases:
            continue
        host = named[_whose(run, record.trial)]
        epoch_ns = _epoch_ns(record, turns[_turn(record)])
        samples = {side: run.samples(record.trial.id, side, _wanted(side)) for side in ("outside", "inside")}
        carry_others = bool(others_beside(record, run))
        for item in _ITEMS:
            if item.counter.startswith("net.") and carry_others:
                continue  # the links carry theirs, too
            for t_ns, value in _values(item, samples[item.side]):
                yield line(host, item.key, t_ns + epoch_ns, value)


def _turn(record: TrialRecord) -> tuple[int, str]:
    """Of trials that are measured in turn with each other; one that is alone is a turn of its own."""
    return record.trial.block, record.trial.turn or record.trial.id


def _turns(run: Run) -> dict[tuple[int, str], list[TrialRecord]]:
    """Those of each turn that came as far as a phase."""
    found: dict[tuple[int, str], list[TrialRecord]] = {}
    for record in run.records:
        if record.phases:
            found.setdefault(_turn(record), []).append(record)
    return found


def _epoch_ns(record: TrialRecord, turn: Sequence[TrialRecord]) -> int:
    """By how much the wall clock was ahead of the monotonic one. All trials of a turn begin at once, and are deployed
    one after the other: only that whose first phase came at once tells it, and all others too little.
    """
    began_ns = _began_ns(record)
    together = (each for each in turn if abs(_began_ns(each) - began_ns) < _TOGETHER_NS)
    return max(_began_ns(each) - min(phase.start_ns for phase in each.phases) for each in together)


def _began_ns(record: TrialRecord) -> int:
    return (datetime.fromisoformat(record.started_at) - _EPOCH) // timedelta(microseconds=1) * 1000


def _wanted(side: str) -> frozenset[tuple[str, str]]:
    mine = [item for item in _ITEMS if item.side == side]
    return frozenset((item.source, name) for item in mine for name in (item.counter, item.of) if name)


def _values(item: _Item, samples: dict[tuple[str, str], Series]) -> Iterator[tuple[int, float]]:
    """When, and how much."""
    series = samples.get((item.source, item.counter))
    if series is None:
        return
    told = series.value
    if item.of:
        whole = samples.get((item.source, item.of))
        if whole is None or not np.array_equal(whole.t_ns, series.t_ns):
            return
        told = whole.value - told
    for first, last in _steps(series):
        if item.per_s:
            yield int(series.t_ns[last]), float(told[last] - told[first]) * item.per_s / _seconds(series, first, last)
        else:
            yield int(series.t_ns[last]), float(told[last])


def _seconds(series: Series, first: int, last: int) -> float:
    return float(series.t_ns[last] - series.t_ns[first]) / 1e9


def _steps(series: Series) -> Iterator[tuple[int, int]]:
    """Pairs of samples a step apart; of a stretch shorter than that its ends. None reaches over what was not seen."""
    apart_ns = np.diff(series.t_ns)
    most_ns = max(_APART_NS, _SELDOM * float(np.median(apart_ns))) if len(apart_ns) else _APART_NS
    cuts = np.flatnonzero(apart_ns > most_ns) + 1
    for stretch in np.split(np.arange(len(series.t_ns)), cuts):
        first, told = int(stretch[0]), False
        for at in stretch[1:].tolist():
            if series.t_ns[at] - series.t_ns[first] >= STEP_NS:
                yield first, at
                first, told = at, True
        if not told and stretch[-1] > first:
            yield first, int(stretch[-1])
