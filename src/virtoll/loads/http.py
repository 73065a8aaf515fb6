"""The native HTTP load generator (rust/load): closed and open loop, over a proxy or directly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from virtoll import __version__
from virtoll.binaries import binary
from virtoll.errors import HostError, Problem
from virtoll.hosts.base import Host
from virtoll.lab.client import Client, ask, target_of
from virtoll.loads.base import Bulk, Histogram, Load, Measurement, Session, late
from virtoll.offers import Asked, Http, HttpObject, Offer
from virtoll.record.model import Drain, Events, LogExtent, Window
from virtoll.units import within

REQUEST_LOG_LIMIT = 1_000_000
_WARM_UP_PATIENCE_NS = 10 * 10**9  # for what a warm-up has under way at its end

# One request of the log, packed little-endian; rust/load/src/log.rs is the definition.
_RECORD = np.dtype([("intended_ns", "<i8"), ("latency_ns", "<i8"), ("status", "<i2"), ("late_ns", "<i8")])


@dataclass(frozen=True)
class HttpSettings(Asked):
    """Settings of the native generator. Closed loop asks until ``requests`` or ``time_limit``, whichever is first;
    what is under way then is waited for, at most for ``timeout``, and is in the rate for its part within the window.

    In open loop ``time_limit`` is the length of the schedule and ``connections`` the most that may be open at once:
    it should be ample, for a request that finds all of them busy waits (its latency runs from its intended start).
    """

    loop: Literal["closed", "open"] = "closed"
    connections: int = within(1, least=1)
    requests: int = 0  # closed loop; 0: time alone is the bound
    time_limit_ns: int = within(10 * 10**9, least=1)
    rate_per_s: float = within(100.0, least=1e-3)  # open loop
    arrival: Literal["poisson", "constant"] = "poisson"  # open loop
    seed: int = 1  # of Poisson arrivals; the same seed gives the same schedule
    keep_alive: bool = True
    timeout_ns: int = within(30 * 10**9, least=1)
    warm_up_ns: int = 10**9  # the same load for so long beforehand; 0: none
    log_requests: bool = True  # keep each request's start and latency, up to about the first 1e6 (told in the record)


class HttpLoad(Load):
    """HTTP/1.1 GETs of one object, each answer's status and length checked."""

    name: ClassVar[str] = "http"
    summary: ClassVar[str] = "the usual choice: closed loop, or open loop at a rate (latency without omission)"
    takes: ClassVar[tuple[type[Offer], ...]] = (Http,)
    Settings: ClassVar[type[HttpSettings]] = HttpSettings
    settings: HttpSettings

    @property
    def unit(self) -> str:
        """A request."""
        return "request"

    @property
    def loop(self) -> Literal["closed", "open"]:
        """As it is set."""
        return self.settings.loop

    @property
    def content(self) -> HttpObject | None:
        """The object asked for."""
        return self.settings.content

    def check(self, host: Host) -> list[Problem]:  # noqa: ARG002
        """The generator is part of virtoll; it is missing only where the native binaries were not built."""
        try:
            binary("virtoll-load")
        except HostError as error:
            return [error.problem]
        return []

    def session(self, client: Client, offer: Offer) -> AbstractContextManager[Session]:
        """Nothing needs to be opened: each window has connections of its own."""
        assert isinstance(offer, Http)
        return nullcontext(HttpSession(self.settings, client, offer))


@dataclass(frozen=True)
class HttpSession(Session):
    """The native generator at one offer, a process for each window."""

    settings: HttpSettings
    client: Client
    offer: Http
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))  # of its windows: each has a log of its own

    def warm_up(self) -> None:
        """Drive the same load for ``warm_up_ns``, and keep nothing of it."""
        if self.settings.warm_up_ns > 0:
            brief = replace(
                self.settings,
                time_limit_ns=self.settings.warm_up_ns,
                timeout_ns=min(self.settings.timeout_ns, _WARM_UP_PATIENCE_NS),
                requests=0,
                log_requests=False,
            )
            self._drive(brief)

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        """See `Session.measure`."""
        settings = self.settings
        if intensity is not None and settings.loop == "open":
            settings = replace(settings, rate_per_s=intensity)
        elif intensity is not None:
            settings = replace(settings, connections=round(intensity))
        if duration_ns is not None:
            settings = replace(settings, time_limit_ns=duration_ns, requests=0)
        measurement = self._drive(settings, start_ns)
        window = measurement.window.model_copy(update={"at": intensity})
        return replace(measurement, window=window)

    def _drive(self, settings: HttpSettings, start_ns: int | None = None) -> Measurement:
        log = self.client.directory / f"requests-{next(self._numbers)}.bin" if settings.log_requests else None
        spec = specification(settings, self.client, self.offer, log, start_ns)
        timeout_s = (settings.time_limit_ns + settings.timeout_ns) / 1e9
        return measurement_of(ask(self.client, "http", spec, timeout_s), log)


def specification(
    settings: HttpSettings, client: Client, offer: Http, log: Path | None, start_ns: int | None = None
) -> dict[str, Any]:
    """What the generator reads (rust/load/src/spec.rs). ``start_ns``: CLOCK_MONOTONIC of the client's host."""
    loop: dict[str, Any]
    if settings.loop == "closed":
        loop = {
            "connections": settings.connections,
            "requests": settings.requests or None,
            "time_limit_ns": settings.time_limit_ns,
        }
    else:
        loop = {
            "rate_per_s": settings.rate_per_s,
            "arrival": settings.arrival,
            "duration_ns": settings.time_limit_ns,
            "seed": settings.seed,
            "max_connections": settings.connections,
        }
    return {
        "target": target_of(offer, settings.target),
        "keep_alive": settings.keep_alive,
        "threads": max(1, min(client.cpus, settings.connections)),
        "cpus": sorted(client.confinement.cpus or ()),
        "loop": {settings.loop: loop},
        "start_ns": start_ns,
        "timeout_ns": settings.timeout_ns,
        "expect": {"status": 200, "length_bytes": settings.length_bytes},
        "request_log": None if log is None else str(log),
        "log_limit": REQUEST_LOG_LIMIT,
    }


def measurement_of(report: dict[str, Any], log: Path | None) -> Measurement:
    """What the generator reports (rust/load/src/http.rs), typed."""
    drain, extent, window = report["drain"], report["log"], report["window"]
    lateness = None if report["lateness"] is None else _histogram(report["lateness"])
    events = Events(
        **{name: report[name] for name in ("intended", "offered", "completed", "failures", "queued")},
        censored=sum(report["failures"].values()),
        drain=None if drain is None else Drain.model_validate(drain),
        late=late(lateness),
        latest_ns=max((upper_ns for _, upper_ns, _ in lateness), default=0) if lateness is not None else None,
        log=None if extent is None else LogExtent.model_validate(extent),
    )
    told = Window(
        start_ns=window["start_ns"],
        duration_ns=window["end_ns"] - window["start_ns"],
        work=window["completed"] + (window["partial"] or 0.0),
        counts={"completed": window["completed"], "body_bytes": window["body_bytes"]},
        events={"request": events},
        cpu_ns=window["cpu_user_ns"] + window["cpu_system_ns"],
    )
    return Measurement(f"virtoll-load {__version__}", told, Bulk(_histogram(report["histogram"]), lateness, log))


def _histogram(rows: list[list[int]]) -> Histogram:
    return [(lower_ns, upper_ns, count) for lower_ns, upper_ns, count in rows]


@dataclass(frozen=True)
class RequestLog:
    """The columns of requests.parquet, a row a logged request, by intended start since the window's start.

    Status is HTTP's; negative where none tells what went wrong: -1 connect, -2 timeout, -3 reset, -5 length,
    -6 parse, -7 unfinished, -8 TLS. The latency of a failed request runs to the moment it failed.
    ``late_ns``: how long it waited for the generator itself, -1 where it was never sent; closed loop: 0, for nothing is
    ever due there.
    """

    intended_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    status: NDArray[np.int16]
    late_ns: NDArray[np.int64]


def read_request_log(path: Path) -> RequestLog:
    """Read what the generator wrote (rust/load/src/log.rs)."""
    records = np.fromfile(path, dtype=_RECORD)
    return RequestLog(
        records["intended_ns"].astype(np.int64),
        records["latency_ns"].astype(np.int64),
        records["status"].astype(np.int16),
        records["late_ns"].astype(np.int64),
    )
