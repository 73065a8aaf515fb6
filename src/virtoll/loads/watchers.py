"""Real browsers among the participants of a conference: they watch all that is sent, publish nothing, and tell what
they see. They are pages of one Chromium on the generator's CPUs, of whose budget their CPU time is a part.

A browser that does not start, crashes, hangs or sees nothing is told by kind with the window, and nothing waits for it
beyond the window's end; what the others see, and the participants, goes on. One that has crashed stays away, and one
that the server did not let in tries again before the next window.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Final, get_args

from virtoll.lab.client import Client
from virtoll.loads.base import Measurement
from virtoll.loads.browser import Browser, chromium
from virtoll.loads.cdp import GONE, BrowserError, Kind, Page
from virtoll.loads.sights import Sight, is_served, read, seen, shows_nothing
from virtoll.offers import JanusRoom
from virtoll.record.model import BROWSER, BROWSERS_SERVED, Events, Window

_SCRIPT: Final = "watching.js"
_TELL_S = 5.0  # for a telling; at a window's begin no longer than half of the window
_ENTER_S, _CLOSE_S = 30.0, 5.0
_LATE_SHARE = 0.01  # of a window: what it may begin late by
_NO_START = "not started"


@dataclass(frozen=True)
class Chromium:
    """What the browsers of a session are pages of; where it did not start, why."""

    browser: Browser | None
    why: str
    cpu_ns: Callable[[], int | None]

    @property
    def version(self) -> str:
        """Name and version; "" where it did not start."""
        return "" if self.browser is None else self.browser.version


@contextmanager
def started(client: Client) -> Iterator[Chromium]:
    """A Chromium for as long as the block, or the reason why there is none."""
    assert client.programs is not None
    with ExitStack() as stack:
        browser, why = None, ""
        try:
            browser = stack.enter_context(chromium(client))
        except BrowserError as error:
            why = f"{_NO_START}: {error.kind}"
        yield Chromium(browser, why, client.programs.cpu_ns)


@dataclass
class _Watcher:
    """One browser: its page, or why there is none."""

    page: Page | None = None
    failure: str = ""
    has_come_in: bool = False  # it has told of a stream
    is_kept_out: bool = False  # it told before that why it does not watch
    is_served: bool = False  # packets came to it, and it has not told since that they cease

    def enter(self, browser: Browser, offer: JanusRoom, name: str, timeout_s: float) -> None:
        """Open a page and have it come in, unless it has; that it is in, it tells itself."""
        deadline, page = time.monotonic() + timeout_s, None
        if self.page is not None and self.is_kept_out:
            self.page.close(min(_CLOSE_S, timeout_s))
            self.page, self.is_kept_out, self.is_served = None, False, False
        if self.page is not None or self.failure in GONE:
            return
        script = files("virtoll.loads").joinpath(_SCRIPT).read_text(encoding="utf-8")
        watch = f"virtoll.watch({json.dumps(f'ws://{offer.address}:{offer.port}/')}, {offer.room}, {json.dumps(name)})"
        try:
            page = browser.open(timeout_s=max(0.0, deadline - time.monotonic()))
            for expression in (script, watch):
                page.evaluate(expression, max(0.0, deadline - time.monotonic()))
        except BrowserError as error:
            self.failure = error.kind
            if page is not None:  # asked for, at least: nobody waits for it beyond the time to come in
                page.close(min(_CLOSE_S, max(0.0, deadline - time.monotonic())))
        else:
            self.page, self.failure = page, ""

    def tell(self, timeout_s: float) -> Sight | str:
        """What it sees, or why it sees nothing. One that is silent, or tells nonsense, is asked again the next time."""
        if self.page is None or self.failure:
            return self.failure
        try:
            sight = read(self.page.evaluate("virtoll.told()", timeout_s))
        except BrowserError as error:
            if error.kind in GONE:
                self.failure, self.is_served = error.kind, False
            return error.kind
        except ValueError:
            return "unreadable"
        self.has_come_in |= bool(sight.streams)
        self.is_kept_out = bool(sight.failure) and not self.has_come_in
        self.is_served = not sight.failure and is_served(sight)
        return sight.failure or sight


@dataclass
class Watchers:
    """The browsers of one conference."""

    chromium: Chromium
    number: int
    offer: JanusRoom
    _there: list[_Watcher] = field(default_factory=list)

    def watch(self, start_ns: int, duration_ns: int) -> Watched:
        """Have all come in who are not in, wait for a window, and through it; what they saw.

        One that does not come in by the window's begin is tried again before the next. Where that takes longer, they
        tell from then on; the CPU time is then at most what is told.
        """
        cpu_before_ns = self.chromium.cpu_ns()
        self._enter(start_ns)
        _sleep_until(start_ns)
        begun_ns, cpu_begun_ns = time.monotonic_ns(), self.chromium.cpu_ns()
        is_late = begun_ns - start_ns > _LATE_SHARE * duration_ns
        before = self._told(min(_TELL_S, duration_ns / 2e9))
        were_served = [watcher.is_served for watcher in self._there]
        _sleep_until(start_ns + duration_ns)
        ended_ns, cpu_ended_ns = time.monotonic_ns(), self.chromium.cpu_ns()
        values, counts, events = _watched(before, self._told(_TELL_S))
        served = [watcher.is_served and then for watcher, then in zip(self._there, were_served, strict=True)]
        counts[BROWSERS_SERVED] = sum(served)
        cpu_ns = _less(cpu_ended_ns, cpu_before_ns if is_late else cpu_begun_ns)
        if cpu_ns is not None and not is_late and events.completed:
            values["browser_cpus"] = cpu_ns / (ended_ns - begun_ns)
        return Watched(values, counts, events, cpu_ns, self.chromium.version)

    def _enter(self, until_ns: int) -> None:
        self._there = self._there or [_Watcher(failure=self.chromium.why) for _ in range(self.number)]
        if self.chromium.browser is None:
            return
        for number, watcher in enumerate(self._there):
            share_s = _share_s(until_ns / 1e9, self.number - number)
            watcher.enter(self.chromium.browser, self.offer, f"virtoll {number} {BROWSER}", min(_ENTER_S, share_s))

    def leave(self) -> None:
        """Close their pages."""
        deadline = time.monotonic() + _CLOSE_S
        for watcher in self._there:
            if watcher.page is not None:
                watcher.page.close(max(0.0, deadline - time.monotonic()))

    def _told(self, timeout_s: float) -> list[Sight | str]:
        """By all of them, in time together."""
        deadline = time.monotonic() + timeout_s
        waiting = range(self.number, 0, -1)
        return [watcher.tell(_share_s(deadline, number)) for watcher, number in zip(self._there, waiting, strict=True)]


@dataclass(frozen=True)
class Watched:
    """What browsers saw of a window."""

    values: dict[str, float]
    counts: dict[str, int]
    events: Events
    cpu_ns: int | None  # theirs, in the window
    version: str

    def beside(self, measurement: Measurement) -> Measurement:
        """A window of the participants with this in it; their CPU time is the generator's."""
        window = measurement.window
        cpu_ns = None if window.cpu_ns is None or self.cpu_ns is None else window.cpu_ns + self.cpu_ns
        told = window.model_copy(
            update={
                "values": window.values | self.values,
                "counts": window.counts | self.counts,
                "events": window.events | {BROWSER: self.events},
                "cpu_ns": cpu_ns,
            }
        )
        named = ", ".join(part for part in (measurement.instrument, self.version) if part)
        return replace(measurement, instrument=named, window=told)


def _watched(before: list[Sight | str], after: list[Sight | str]) -> tuple[dict[str, float], dict[str, int], Events]:
    """What those saw who told at both ends; who did not, and who saw no picture, failed, by kind."""
    pairs: list[tuple[Sight, Sight]] = []
    failures: dict[str, int] = {}
    completed = 0
    for then, now in zip(before, after, strict=True):
        why = now if isinstance(now, str) else then if isinstance(then, str) else ""
        if not isinstance(then, str) and not isinstance(now, str):
            pairs.append((then, now))
            why = "no picture" if shows_nothing(now) else ""
        completed += not why
        if why:
            failures[why] = failures.get(why, 0) + 1
    number = len(before)
    told = Events(intended=number, offered=number, completed=completed, failures=failures, censored=number - completed)
    return *seen(pairs), told


def failed_here(window: Window) -> str:
    """Why no browser told anything of a window, where Chromium itself failed all of them: none of the server's doing.
    "" where any told something, or failed for what it was served.
    """
    events = window.events.get(BROWSER)
    if events is None or events.completed:
        return ""
    kinds = sorted(events.failures.items())
    if not all(kind in get_args(Kind) or kind.startswith(_NO_START) for kind, _ in kinds):
        return ""
    return f"its browsers told nothing: {', '.join(f'{number} {kind}' for kind, number in kinds)}"


def _less(end_ns: int | None, begin_ns: int | None) -> int | None:
    return None if end_ns is None or begin_ns is None else end_ns - begin_ns


def _share_s(deadline_s: float, number: int) -> float:
    """What each of so many has of the time until then, so that one who hangs leaves the others theirs."""
    return max(0.0, deadline_s - time.monotonic()) / number


def _sleep_until(at_ns: int) -> None:
    time.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
