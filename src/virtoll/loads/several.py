"""One load by several generators: a session that is several, each with its part, and what they tell added up.

All windows begin at one time that is told in advance, and last as long, so the whole's rate is what was done by all
over that one window. Latencies are added bucket by bucket, which loses nothing: percentiles are those of all requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from virtoll.errors import HostError, TrialError
from virtoll.lab.client import Client
from virtoll.loads.base import Bulk, Histogram, Load, Measurement, Session, added, shares
from virtoll.offers import Offer
from virtoll.record.model import Drain, Events, GeneratorPart, Window, all_events

T = TypeVar("T")
# How long before their window generators are told of it: where their processes may have to start first, and later.
_FIRST_NS, _LATER_NS = 2 * 10**9, 250 * 10**6
_LOOK_S = 0.5  # for a generator's thread to see that its process has ended


@dataclass
class SeveralSessions(Session):
    """A session of each generator, in their order; ``end_all`` ends what they do, at once.

    TrialError with the name of the first that fails; what the others did then is no load that anybody asked for.
    """

    load: Load
    sessions: Sequence[Session]
    cpus: Sequence[frozenset[int]]  # those that each may use
    end_all: Callable[[], None]
    clock: Callable[[], int] = time.monotonic_ns
    _are_there: bool = False  # once all of them have asked for something

    def warm_up(self, duration_ns: int | None = None) -> float | None:
        """All of them at one time; their pace is that of all together, where each tells its own."""
        paces = self._each([partial(each.warm_up, duration_ns) for each in self.sessions])
        # For no time at all, which is how long the load's own may be, nobody begins.
        self._are_there |= (getattr(self.load.settings, "warm_up_ns", 0) if duration_ns is None else duration_ns) > 0
        return _together(paces)

    def lead_in(self, duration_ns: int) -> None:
        """All of them at one time."""
        self._each([partial(each.lead_in, duration_ns) for each in self.sessions])

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        """See `Session.measure`: each has its part of the intensity, and all begin at ``start_ns`` or the time that is
        agreed on here.
        """
        parts = parts_of(self.load, intensity, len(self.sessions))
        if start_ns is None:
            lead_ns = max(each.lead_ns_at(part) for each, part in zip(self.sessions, parts, strict=True))
            start_ns = self.clock() + lead_ns + (_LATER_NS if self._are_there else _FIRST_NS)
        asked = [
            partial(each.measure, intensity=part, duration_ns=duration_ns, start_ns=start_ns)
            for each, part in zip(self.sessions, parts, strict=True)
        ]
        loads = zip(self.load.divided(len(self.sessions)), self.cpus, parts, strict=True)
        usable = [each.usable_cpus(len(own), part) for each, own, part in loads]
        measurements = self._each(asked)
        self._are_there = True
        return together(self.load, measurements, self.cpus, intensity, usable)

    def rest(self) -> None:
        """All of them."""
        for each in self.sessions:
            each.rest()

    @property
    def lead_ns(self) -> int:
        """The longest."""
        return max(each.lead_ns for each in self.sessions)

    def _each(self, asked: Sequence[Callable[[], T]]) -> list[T]:
        return _all_of(asked, self.end_all)


@contextmanager
def several(load: Load, clients: Sequence[Client], offer: Offer, end_all: Callable[[], None]) -> Iterator[Session]:
    """A load where each of several clients stands, as one session: opened one after the other."""
    with ExitStack() as stack:
        parts = load.divided(len(clients))
        sessions = [
            stack.enter_context(part.session(client, offer)) for part, client in zip(parts, clients, strict=True)
        ]
        cpus = [client.confinement.cpus or frozenset() for client in clients]
        yield SeveralSessions(load, sessions, cpus, end_all)


def parts_of(load: Load, intensity: float | None, generators: int) -> list[float] | list[None]:
    """Each generator's part of an intensity: whole users, of which the first have what is over, or equal rates."""
    if intensity is None:
        return [None] * generators
    if load.intensity.whole:
        return [float(users) for users in shares(round(intensity), generators)]
    return [intensity / generators] * generators


def together(
    load: Load,
    measurements: Sequence[Measurement],
    cpus: Sequence[frozenset[int]],
    intensity: float | None,
    usable: Sequence[float | None] = (),
) -> Measurement:
    """One measurement of what each generator measured in the same window. TrialError where that was not the same."""
    windows = [each.window for each in measurements]
    stretches = {(window.start_ns, window.duration_ns) for window in windows}
    if len(stretches) > 1:
        told = "; ".join(f"generator {n}: {w.duration_ns} ns from {w.start_ns}" for n, w in enumerate(windows, 1))
        raise TrialError(f"the generators' windows are not the same: {told}", where=f"[generators], load {load.name!r}")
    try:
        bulk = Bulk(_all([each.bulk.histogram for each in measurements]), _all([e.bulk.lateness for e in measurements]))
    except ValueError as error:
        raise TrialError(str(error), where=f"[generators], load {load.name!r}") from error
    whole = _sum(windows, cpus, usable or [None] * len(windows), intensity)
    return Measurement(measurements[0].instrument, whole, bulk)


def _all(histograms: Sequence[Histogram | None]) -> Histogram | None:
    known = [histogram for histogram in histograms if histogram is not None]
    return added(known) if len(known) == len(histograms) else None


def _asked_ns(windows: Sequence[Window]) -> int | None:
    """When the first of them began to ask; None where all did so with the window."""
    first_ns = min(window.asked_from_ns for window in windows)
    return None if first_ns == windows[0].start_ns else first_ns


def _sum(
    windows: Sequence[Window], cpus: Sequence[frozenset[int]], usable: Sequence[float | None], intensity: float | None
) -> Window:
    """What was done in a window by all; what one of them does not tell is not known of all."""
    first = windows[0]
    names = [name for name in first.counts if all(name in window.counts for window in windows)]
    units = [unit for unit in first.events if all(unit in window.events for window in windows)]
    return Window(
        start_ns=first.start_ns,
        duration_ns=first.duration_ns,
        work=sum(window.work for window in windows),
        asked_ns=_asked_ns(windows),
        served=_known([window.served for window in windows], sum),
        until_ns=_known([window.until_ns for window in windows], max),
        counts={name: sum(window.counts[name] for window in windows) for name in names},
        events={unit: _events([window.events[unit] for window in windows]) for unit in units},
        cpu_ns=_known([window.cpu_ns for window in windows], sum),
        booked=first.booked,
        at=intensity,
        begun_ns=_known([window.begun_ns for window in windows], max),
        parts=[
            GeneratorPart(generator=number, cpus=sorted(own), usable=threads, window=window)
            for number, (own, threads, window) in enumerate(zip(cpus, usable, windows, strict=True), 1)
        ],
    )


def _known(values: Sequence[Any], whole: Callable[[Any], Any]) -> Any:
    return None if None in values else whole(values)


def _together(paces_per_s: Sequence[float | None]) -> float | None:
    known = [pace_per_s for pace_per_s in paces_per_s if pace_per_s is not None]
    return sum(known) if len(known) == len(paces_per_s) else None


def _events(of_generators: Sequence[Events]) -> Events:
    """Of all of them; what any had under way at the window's end was all waited for."""
    drains = [events.drain for events in of_generators if events.drain is not None]
    drain = Drain(
        under_way=sum(each.under_way for each in drains),
        completed=sum(each.completed for each in drains),
        end_ns=max((each.end_ns for each in drains), default=0),
    )
    return all_events(of_generators).model_copy(update={"drain": drain if drains else None})


def _all_of(asked: Sequence[Callable[[], T]], end_all: Callable[[], None]) -> list[T]:
    """What came of all that is asked, each in a thread. TrialError with the names of those that failed first: the
    others are ended, and so is everything where it is interrupted.
    """
    with ThreadPoolExecutor(len(asked)) as pool:
        futures = [pool.submit(each) for each in asked]
        try:
            done, under_way = wait(futures, return_when=FIRST_EXCEPTION)
            failed = [(n, future) for n, future in enumerate(futures, 1) if future in done and future.exception()]
            if not failed:
                return [future.result() for future in futures]
            _end(futures if under_way else (), end_all)
        except BaseException:
            _end(futures, end_all)
            raise
    raise _named(failed, len(asked))


def _end(futures: Sequence[Future[Any]], end_all: Callable[[], None]) -> None:
    """Once more, as long as one goes on: it may just have been about to begin."""
    while wait(futures, timeout=0).not_done:
        with suppress(HostError):  # of what does not die; the threads have bounds of their own
            end_all()
        wait(futures, _LOOK_S)


def _named(failed: Sequence[tuple[int, Future[Any]]], count: int) -> BaseException:
    """The first error, with whose it is, in the words of all that failed by then."""
    first = failed[0][1].exception()
    assert first is not None
    if not isinstance(first, TrialError):
        return first
    told = "; ".join(f"generator {number} of {count}: {_what(future)}" for number, future in failed)
    return TrialError(told, where=first.problem.where, remedy=first.problem.remedy)


def _what(future: Future[Any]) -> str:
    error = future.exception()
    return error.problem.what if isinstance(error, TrialError) else str(error)
