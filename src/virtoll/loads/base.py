"""The seam of a load: who uses the service, and what they report."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.images.base import Image, Wanted
from virtoll.lab.client import Client
from virtoll.offers import Content, Footage, Offer, Voice
from virtoll.record.model import LATE_NS, Measured, Quantity, Window
from virtoll.registry import Part, implementations
from virtoll.study.search import DOUBLING
from virtoll.units import plural

Histogram = list[tuple[int, int, int]]  # (lower_ns, upper_ns, count)


@dataclass(frozen=True)
class Bulk:
    """What is too large for a trial's record, of the events of one window."""

    histogram: Histogram | None = None  # latencies of the completed ones; in open loop from the *intended* start
    lateness: Histogram | None = None  # open loop: how long each waited for the generator itself
    log: Path | None = None  # of single requests: little-endian records, see rust/load/src/log.rs


@dataclass(frozen=True)
class Measurement:
    """One window that a load measured. Missing is None, never 0."""

    instrument: str  # name and version of what produced this
    window: Window
    bulk: Bulk = Bulk()


@dataclass(frozen=True)
class Intensity:
    """What a load's intensity is counted in: "requests/s", or a ``whole`` number of "users"; and how many times as much
    a search asks for next, as long as the objective is met.
    """

    unit: str
    whole: bool
    explored_by: float = DOUBLING


class Session(ABC):
    """A load at one offer, for as long as it is open."""

    @abstractmethod
    def warm_up(self, duration_ns: int | None = None) -> float | None:
        """Bring service and path to a steady state, for as long as asked (None: as the settings say); nothing of it is
        measured. Its pace, in units of work a second, if it tells (`Load.under_way`): a window's length may follow.
        """

    def lead_in(self, duration_ns: int) -> None:
        """What comes right before the next window in rotation, unmeasured, for so long at the least: the load itself,
        where its windows have none.
        """
        self.warm_up(duration_ns)

    @abstractmethod
    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        """Offer the load for one window and report, as often as asked.

        ``intensity``: how many users (closed loop), or arrivals per second (open); ``duration_ns``: of the window,
        which no number of requests in the settings cuts short; ``start_ns``: when it begins, by CLOCK_MONOTONIC of the
        client's host. None: as the settings say, and at once.
        TrialError when the generator itself fails; failed requests are data.
        """

    def gather(self, intensity: float) -> None:  # noqa: B027
        """Have the users of the next window of a search be there, where they stay from one to the next: what comes
        before it may take long, and what disturbs that is not told of the window.
        """

    def rest(self) -> None:  # noqa: B027
        """Leave the service alone until the next window: whoever may have stayed for that goes, or asks for nothing."""

    def recover(self) -> None:
        """After a window that was too much for the service: have nothing of that be left for the next one."""
        self.rest()

    @property
    def lead_ns(self) -> int:
        """How long before a ``start_ns`` `measure` must be asked at the least: for what comes before its window."""
        return 0

    def lead_at_least(self, duration_ns: int) -> None:  # noqa: B027
        """Ask for so long right before the next window, where it begins amid what it asks for."""

    def lead_ns_at(self, intensity: float | None) -> int:  # noqa: ARG002
        """The same, for a window at an intensity."""
        return self.lead_ns

    def proofs(self) -> Sequence[tuple[str, bool | None, str]]:
        """What it proves of where it stands, besides what its windows tell: a check's name, if it held, and why."""
        return ()

    @property
    def facts(self) -> dict[str, Any]:
        """What a trial is to know of where it stands."""
        return {}


class Load(Part):
    """One load."""

    takes: ClassVar[tuple[type[Offer], ...]] = ()  # the kinds of offer that it can drive
    begins_at_a_time: ClassVar[bool] = True  # its windows can: see `Session.measure`
    tells_percentiles: ClassVar[bool] = True  # of the latency of what it asks for one by one
    percentiles: ClassVar[tuple[str, ...]] = ()  # those that it tells alone ("p99"); (): any
    from_due: ClassVar[tuple[str, ...]] = ()  # of its quantities, latencies that run from when each was due (open loop)
    speaks_tls: ClassVar[bool] = True  # where the service it drives does
    packages: ClassVar[tuple[str, ...]] = ()  # Debian packages of the programs that it runs
    generator: ClassVar[str] = ""  # the program of virtoll's own that it runs (virtoll.binaries)
    own: ClassVar[str] = ""  # the setting that names what of the user's own is asked for, in place of our content

    @property
    @abstractmethod
    def unit(self) -> str:
        """What is counted: "request"."""

    @property
    def request(self) -> str:
        """What is sent and waited for as one, and events and latencies are of: the unit, unless several make one."""
        return self.unit

    @property
    @abstractmethod
    def loop(self) -> Literal["closed", "open"]:
        """Closed: each user asks again when answered. Open: requests come by a schedule, whatever happens to them."""

    @property
    def intensity(self) -> Intensity:
        """What `Session.measure` is asked for: arrivals per second in open loop, users in closed."""
        if self.loop == "open":
            return Intensity(f"{plural(self.request)}/s", whole=False)
        return Intensity("users", whole=True)

    def most_here(self, cpus: int) -> float:  # noqa: ARG002
        """The largest intensity that its generator, of so many CPUs, can be asked for on this machine at all."""
        return math.inf

    def usable_cpus(self, cpus: int, intensity: float | None = None) -> float | None:  # noqa: ARG002
        """How many of a generator's ``cpus`` it can use at most at an ``intensity`` (None: its own), by its threads:
        as many as it uses when the one with the largest share of the work is at its end. It has headroom among these
        alone. None: one, and nobody knows of more.
        """
        return max(1, cpus)

    @property
    def under_way(self) -> int | None:
        """Units of work that it keeps under way at once, where a rotation's windows are to follow the service's pace;
        None: they are as long as the study says.
        """
        return None

    @property
    def tells_failures(self) -> bool:
        """Whether it tells how many failed of what it asks for one by one."""
        return True

    @property
    def unsearched(self) -> str:
        """Why no knee can be searched for with it, as it is set; "" where one can."""
        return ""

    def undivided(self, parts: int) -> str:  # noqa: ARG002
        """Why it cannot be driven by so many generators at once (`divided`); "" where it can."""
        return f"load {self.name!r} is of one generator: what several of it tell cannot be added up"

    def divided(self, parts: int) -> Sequence[Load]:
        """Itself in so many parts, one for each of several generators, which are it together. ValueError where it
        cannot be (`undivided`).
        """
        raise ValueError(self.undivided(parts))

    def lead_in_ns(self, told_ns: int, intensity: float | None = None) -> int:  # noqa: ARG002
        """About how long lies before each window of a rotation, whose own lead-in is ``told_ns``; ``intensity``: of the
        window, None for the load's own.
        """
        return told_ns

    @property
    def levels(self) -> tuple[int, ...]:
        """The intensities of a ramp, ascending, which have a window each in one session; () of a load that has one."""
        return ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The objective that each level of a ramp is held against, as a study file writes it; () of none."""
        return ()

    @property
    def footage(self) -> tuple[Footage, ...]:
        """What it sends by itself, which is made before: `virtoll.footage` says where it lies then."""
        return ()

    @property
    def voice(self) -> Voice | None:
        """What is said by itself, which is made before: `virtoll.voice` says where it lies then."""
        return None

    @property
    def quantities(self) -> dict[str, Quantity]:
        """What it measures besides rate, latency and costs, by key."""
        return {}

    @property
    def content(self) -> Content | None:
        """What the service must hold for it."""
        return None

    @property
    def tool(self) -> str:
        """The program of this machine's that it runs; "" where that is our own, or comes with an image."""
        return ""

    @property
    def programs(self) -> Wanted:
        """The root filesystem that holds the programs it runs; nothing, where they are the machine's or our own."""
        return Wanted()

    @abstractmethod
    def check(self, host: Host) -> list[Problem]:
        """What is missing on the client's host; empty when ready."""

    def problems_with(self, image: Image) -> list[Problem]:  # noqa: ARG002
        """What its programs lack in the image that was built of `programs`; empty when nothing."""
        return []

    @abstractmethod
    def session(self, client: Client, offer: Offer) -> AbstractContextManager[Session]:
        """Open the load where ``client`` stands, at an offer of a kind that it takes."""

    def measured(self, measurements: list[Measurement]) -> Measured:
        """The record of what was measured, window by window."""
        return Measured(
            name=self.name,
            instrument=measurements[0].instrument,
            unit=self.unit,
            request="" if self.request == self.unit else self.request,
            loop=self.loop,
            settings=asdict(self.settings),
            quantities=self.quantities,
            windows=[measurement.window for measurement in measurements],
        )


def where_untold(key: str, windows: Sequence[Window], what: str, of: str) -> list[str]:
    """The note that a quantity cannot be told of all windows, and of how many it cannot; [] where it can. ``what`` was
    the case in those ("nobody watched"); the quantity is ``of`` that ("stalls").
    """
    without = sum(key not in window.values for window in windows)
    if without == len(windows):
        return [f"{what}: there are no {of} to tell of"]
    return [f"in {without} of {len(windows)} windows {what}: {of} are not told of the trial"] if without else []


def at_intensity(settings: Any, loop: str, intensity: float | None, users: str) -> Any:
    """A load's settings with an intensity as `Session.measure` has it; ``users``: the setting that says how many."""
    if intensity is None:
        return settings
    return replace(settings, **({"rate_per_s": intensity} if loop == "open" else {users: round(intensity)}))


def cpus_of_users(users: int, cpus: int) -> float:
    """The CPUs that threads, one for each, use when one of them is at its end, where each user is one thread's, and one
    has as much to do as another: 4 users on 3 CPUs are 2 and 1 and 1, and when the first has no more these have half.
    """
    users, threads = max(1, users), max(1, cpus)
    return users / math.ceil(users / threads)


def shares(whole: int, parts: int) -> list[int]:
    """So many in equal parts; what is over goes to the first, one each: 7 by 3 are 3, 2 and 2."""
    each, over = divmod(whole, parts)
    return [each + (number < over) for number in range(parts)]


def added(histograms: Sequence[Histogram]) -> Histogram:
    """One histogram of all, without loss: the counts of equal buckets are added. ValueError where two buckets overlap
    and are not the same: they would be of different instruments.
    """
    counts: dict[tuple[int, int], int] = {}
    for histogram in histograms:
        for lower_ns, upper_ns, count in histogram:
            counts[lower_ns, upper_ns] = counts.get((lower_ns, upper_ns), 0) + count
    found = [(lower_ns, upper_ns, count) for (lower_ns, upper_ns), count in sorted(counts.items())]
    for (lower_ns, upper_ns, _), (after_ns, until_ns, _) in pairwise(found):
        if after_ns < upper_ns:
            what = f"{lower_ns} to {upper_ns} ns and {after_ns} to {until_ns} ns are buckets of different histograms"
            raise ValueError(f"{what}, which cannot be added")
    return found


def late(lateness: Histogram | None) -> int | None:
    """Requests that the generator itself sent more than `LATE_NS` late; None without a schedule (closed loop)."""
    return None if lateness is None else sum(count for lower_ns, _, count in lateness if lower_ns >= LATE_NS)


def latest_ns(lateness: Histogram | None) -> int | None:
    """How late the latest request was sent, at the most; None as `late`."""
    return None if lateness is None else max((upper_ns for _, upper_ns, _ in lateness), default=0)


def histogram(rows: list[list[int]]) -> Histogram:
    """What the native generator reports, typed."""
    return [(lower_ns, upper_ns, count) for lower_ns, upper_ns, count in rows]


def loads() -> dict[str, type[Load]]:
    """All loads by name."""
    return implementations("virtoll.loads", Load)
