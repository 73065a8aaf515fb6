"""Who is in a meeting, by what its server tells again and again, and what a window of that is worth."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from virtoll.errors import TrialError
from virtoll.loads.base import Bulk, Histogram, Measurement
from virtoll.loads.bbb_api import Answer, Refused, UnansweredError, is_gone
from virtoll.record.model import COVERAGE, LATE_NS, STAY, Events, Quantity, Window

JOIN: Final = "join"
LOOK_S: Final = 0.25  # between two looks: what a join's time is known to
_HOLDS_NS = 2 * 10**9  # how long a look tells of, where none follows
_NAMES = {  # of the server's own counts: as a window calls them, and as the answer does
    "participants_counted": "participantCount",
    "webcams_counted": "videoCount",
    "voices_counted": "voiceParticipantCount",
    "listeners_counted": "listenerCount",
}
QUANTITIES: Final = {
    "present_percent": Quantity("Participants who are in by the server's list, of the time", "%", "more"),
    "webcams_percent": Quantity("Webcams that are on by the server's list, of the time", "%", "more"),
    "join_median_ms": Quantity("Time of a join, median of those that went well", "ms", "less"),
    "join_slowest_ms": Quantity("Time of a join, the slowest of those that went well", "ms", "less"),
    "participants_counted": Quantity("Participants, by the server's own count, mean", "users", None),
    "webcams_counted": Quantity("Webcams, by the server's own count, mean", "webcams", None),
    "voices_counted": Quantity("Users in its voice conference, by its own count, mean", "users", None),
    "listeners_counted": Quantity("Users who only listen, by its own count, mean", "users", None),
}


@dataclass(frozen=True)
class Look:
    """What the server told at one time, which is when its answer was there (CLOCK_MONOTONIC)."""

    at_ns: int
    users: frozenset[str]  # who of ours is in
    seen: frozenset[str]  # of those, whose webcam is on
    strangers: int  # how many others are in
    counts: Mapping[str, int]  # the server's own, by the keys of `QUANTITIES`

    @classmethod
    def of(cls, answer: Answer, at_ns: int, ours: frozenset[str]) -> Look:
        """Of an answer to getMeetingInfo. There are many looks, and a server may list any number of users: of those who
        are not ours nothing else is kept. ValueError where it lacks a count.
        """
        counts = {name: answer.count(element) for name, element in _NAMES.items()}
        there = {one.user for one in answer.attendees}
        seen = {one.user for one in answer.attendees if one.has_video}
        users = frozenset(user for user in ours if user in there)
        return cls(at_ns, users, frozenset(user for user in users if user in seen), len(there) - len(users), counts)


@dataclass
class Join:
    """One user's: when it was to be asked for, and what became of it."""

    user: str
    due_ns: int
    has_webcam: bool
    begun_ns: int = 0
    in_ns: int | None = None  # when the server was first seen to list it; None: it was not, within the patience
    failure: str = ""  # why not, in a word or two


class Watch:
    """Looks at a meeting in a thread of its own, so that no page that is slow to open holds a look up."""

    def __init__(self, ask: Callable[[], Answer], ours: frozenset[str]) -> None:
        self.looks: list[Look] = []  # only ever grows
        self.failed = 0
        self._last: TrialError | None = None
        self._ask, self._ours, self._gone, self._stop = ask, ours, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="looks at the meeting", daemon=True)

    @contextmanager
    def at_work(self) -> Iterator[Watch]:
        """Look for the length of the block."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set() and not self._gone.is_set():
            self._look()
            self._stop.wait(LOOK_S)

    def _look(self) -> None:
        try:
            answer = self._ask()
            self.looks.append(Look.of(answer, time.monotonic_ns(), self._ours))
        except ValueError as error:
            self._failed(UnansweredError(f"what the server tells of the meeting lacks a count: {error}"))
        except TrialError as error:
            self._failed(error)
            if isinstance(error, Refused) and is_gone(error):
                self._gone.set()

    def _failed(self, error: TrialError) -> None:
        self.failed, self._last = self.failed + 1, error

    def expect_there(self) -> None:
        """TrialError where the server says that there is no such meeting any more."""
        if self._gone.is_set() and self._last is not None:
            raise self._last

    def wait(self, until_ns: int, done: Callable[[], bool] = lambda: False) -> None:
        """Until then, or something is done; TrialError as `expect_there`."""
        while not done() and (left_ns := until_ns - time.monotonic_ns()) > 0:
            self.expect_there()
            time.sleep(min(LOOK_S / 5, left_ns / 1e9))
        self.expect_there()

    def why(self) -> str:
        """What the last look that failed was told; "" where none did."""
        return self._last.problem.what if self._last else ""


def settle_joins(joins: Sequence[Join], looks: Sequence[Look], patience_ns: int) -> None:
    """Note of each who was asked in when the server first listed it, if that was within the patience."""
    for join in joins:
        if join.in_ns is not None or join.failure:
            continue
        first = next((look.at_ns for look in looks if join.user in look.users and look.at_ns >= join.due_ns), None)
        if first is not None and first - join.due_ns <= patience_ns:
            join.in_ns = first


@dataclass(frozen=True)
class Seen:
    """What is known of a window."""

    start_ns: int
    end_ns: int
    joins: Sequence[Join]
    looks: Sequence[Look]  # ascending; also those before and after it
    stretches: Sequence[tuple[Look, int]] = field(
        init=False
    )  # each look that tells of a part of it, and how long that is

    def __post_init__(self) -> None:
        ends = [*(look.at_ns for look in self.looks[1:]), self.end_ns]
        found = []
        for look, next_ns in zip(self.looks, ends, strict=False):
            until_ns = min(next_ns, look.at_ns + _HOLDS_NS, self.end_ns)
            if (part_ns := until_ns - max(look.at_ns, self.start_ns)) > 0:
                found.append((look, part_ns))
        object.__setattr__(self, "stretches", tuple(found))

    @property
    def covered_ns(self) -> int:
        """How much of it the server told of."""
        return sum(part_ns for _, part_ns in self.stretches)

    def there_ns(self, counted: Callable[[Look], int]) -> int:
        """The sum over looks of what is counted, times how long it held."""
        return sum(counted(look) * part_ns for look, part_ns in self.stretches)

    def expect_covered(self, why: str, where: str) -> None:
        """TrialError where the server told too little of the window."""
        share = self.covered_ns / (self.end_ns - self.start_ns)
        if share < COVERAGE:
            what = f"the server told who is in for {share:.0%} of the window alone{f'; at last: {why}' if why else ''}"
            raise TrialError(what, where=where, remedy="ask for fewer participants, or see why its API does not answer")


def measurement_of(seen: Seen, instrument: str, cpu_ns: int | None, at: float | None, failed_looks: int) -> Measurement:
    """What a window is worth. Its work is the time that participants were in, by the server's list."""
    users = frozenset(join.user for join in seen.joins)
    present_ns = seen.there_ns(lambda look: len(users & look.users))
    last = seen.stretches[-1][0]
    lateness = _rows([max(0, join.begun_ns - join.due_ns) for join in seen.joins if join.begun_ns])
    told = Window(
        start_ns=seen.start_ns,
        duration_ns=seen.end_ns - seen.start_ns,
        work=present_ns / 1e9,
        values=_values(seen, users, present_ns),
        counts={
            **{f"{name}_at_end": count for name, count in last.counts.items()},
            "listed_at_end": len(users & last.users),
            "strangers_at_end": last.strangers,
            "looks": len(seen.stretches),
            "looks_failed": failed_looks,
        },
        events={JOIN: _joins(seen.joins, lateness), STAY: _stays(seen)},
        cpu_ns=cpu_ns,
        at=at,
    )
    times = _rows([join.in_ns - join.due_ns for join in seen.joins if join.in_ns is not None])
    return Measurement(instrument, told, Bulk(times, lateness))


def _values(seen: Seen, users: frozenset[str], present_ns: int) -> dict[str, float]:
    cameras = frozenset(join.user for join in seen.joins if join.has_webcam)
    told = {"present_percent": 100 * present_ns / (len(users) * seen.covered_ns)}
    if cameras:
        on_ns = seen.there_ns(lambda look: len(cameras & look.seen))
        told["webcams_percent"] = 100 * on_ns / (len(cameras) * seen.covered_ns)
    if times_ns := sorted(join.in_ns - join.due_ns for join in seen.joins if join.in_ns is not None):
        told["join_median_ms"], told["join_slowest_ms"] = median(times_ns) / 1e6, times_ns[-1] / 1e6
    for name in _NAMES:
        told[name] = sum(look.counts[name] * part_ns for look, part_ns in seen.stretches) / seen.covered_ns
    return told


def _joins(joins: Sequence[Join], lateness: Histogram) -> Events:
    failures: dict[str, int] = {}
    for join in joins:
        if join.in_ns is None:
            failures[join.failure] = failures.get(join.failure, 0) + 1
    late_ns = [lower_ns for lower_ns, _, _ in lateness]
    return Events(
        intended=len(joins),
        offered=sum(join.begun_ns > 0 for join in joins),
        completed=sum(join.in_ns is not None for join in joins),
        failures=failures,
        censored=sum(failures.values()),
        late=sum(each_ns >= LATE_NS for each_ns in late_ns),
        latest_ns=max(late_ns, default=0),
    )


def _in_before(seen: Seen) -> frozenset[str]:
    return frozenset(join.user for join in seen.joins if join.in_ns is not None and join.in_ns <= seen.start_ns)


def lost(seen: Seen) -> frozenset[str]:
    """Of those who had come in before the window, who was missing at any look of it."""
    there = _in_before(seen)
    return there - frozenset.intersection(there, *(look.users for look, _ in seen.stretches))


def _stays(seen: Seen) -> Events:
    whole, missing = len(_in_before(seen)), len(lost(seen))
    failures = {"missing": missing} if missing else {}
    return Events(intended=whole, offered=whole, completed=whole - missing, failures=failures, censored=missing)


def _rows(times_ns: Sequence[int]) -> Histogram:
    """Each by itself, as a row of one nanosecond."""
    return [(each_ns, each_ns + 1, 1) for each_ns in sorted(times_ns)]
