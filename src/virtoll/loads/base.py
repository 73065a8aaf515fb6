"""The seam of a load: who uses the service, and what they report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Confinement, Host
from virtoll.record.model import LATE_NS, Drain, LoadWindow, LogExtent
from virtoll.registry import implementations
from virtoll.services.base import Endpoint


@dataclass(frozen=True)
class Client:
    """Where a load runs: a host, confined to the generator's namespace, CPUs and cgroup; ``directory`` for logs."""

    host: Host
    confinement: Confinement
    directory: Path
    cpus: int  # how many CPUs the generator may use


@dataclass(frozen=True)
class HttpObject:
    """The object a load asks for."""

    path: str
    length_bytes: int


Histogram = list[tuple[int, int, int]]  # (lower_ns, upper_ns, count)


@dataclass(frozen=True)
class LoadResult:
    """What a load did. Times are CLOCK_MONOTONIC nanoseconds of the client's host. Missing is None, never 0.

    ``intended``/``offered``/``completed`` count requests: asked for by the plan, really sent, answered correctly (in
    window and drain). In closed loop intended is the number of requests asked for. ``histogram`` holds the latencies of
    completed requests; in open loop latency runs from the *intended* start. Failures of kind ``unfinished`` (open loop)
    were under way one time-out after the last arrival, or never sent.
    """

    loop: str  # "closed" or "open"
    intended: int
    offered: int
    completed: int
    failures: dict[str, int]  # by kind: connect, timeout, reset, status, length, parse, unfinished
    window: LoadWindow  # what rate and costs are taken from
    drain: Drain | None
    histogram: Histogram | None
    lateness: Histogram | None = None  # open loop: how long each request waited for the generator itself
    percentiles_ns: dict[str, int] = field(default_factory=dict)  # as an outside instrument reports them itself
    request_log: Path | None = None  # little-endian records, see rust/load/src/log.rs
    log: LogExtent | None = None  # how much of all requests it holds
    instrument: str = ""  # name and version of what produced this
    queued: int | None = None  # open loop: requests that had to wait for a free connection

    @property
    def censored(self) -> int:
        """Requests without a latency, worse than any that has one: all that failed."""
        return sum(self.failures.values())

    @property
    def late(self) -> int | None:
        """Requests that the generator itself sent more than `LATE_NS` late; None without a schedule (closed loop)."""
        if self.lateness is None:
            return None
        return sum(count for lower_ns, _, count in self.lateness if lower_ns >= LATE_NS)


class Load(ABC):
    """One load. ``Settings`` is a frozen dataclass of what a study file may set for it."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    Settings: ClassVar[type[Any]]

    def __init__(self, settings: Any = None) -> None:
        self.settings = self.Settings() if settings is None else settings

    @abstractmethod
    def check(self, host: Host) -> list[Problem]:
        """What is missing on the client's host; empty when ready."""

    @abstractmethod
    def warm_up(self, client: Client, endpoint: Endpoint, target: HttpObject) -> None:
        """Bring service and path to a steady state; nothing of it is measured."""

    @abstractmethod
    def drive(self, client: Client, endpoint: Endpoint, target: HttpObject) -> LoadResult:
        """Offer the load and report. TrialError when the generator itself fails; failed requests are data."""


def loads() -> dict[str, type[Load]]:
    """All loads by name."""
    return implementations("virtoll.loads", Load)
