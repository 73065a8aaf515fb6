"""How long an ICMP echo takes over each slice's channel, at a rate of requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.networks.base import MOST_DATAGRAM_BYTES
from virtoll.probes import sliced
from virtoll.probes.base import Place, Probe, ProbeResult, Timed
from virtoll.probes.fork_bomb import jain
from virtoll.probes.native import arguments
from virtoll.record.model import Quantity, Window
from virtoll.study.limits import Limits
from virtoll.units import within

_QUANTITIES = {
    "round_trip_mean_us": Quantity("ICMP round trip, mean", "us", "less"),
    "round_trip_p50_us": Quantity("ICMP round trip, median", "us", "less"),
    "round_trip_p99_us": Quantity("ICMP round trip, 99th percentile", "us", "less"),
    "round_trip_min_us": Quantity("ICMP round trip, least", "us", "less"),
    "offered_packets_per_s": Quantity("Requests sent", "/s", None),
    "lost_percent": Quantity("Requests without an answer", "%", None),
}
_OWN = ("round_trip_mean_us", "lost_percent")
_SLICES = 2
_MOST_REQUESTS = 10_000_000  # each is kept until the end: rust/probe/src/flow/ping.rs


@dataclass(frozen=True)
class PingSettings(Timed):
    """``packets_per_s`` requests a second in each slice, each with ``size`` of payload. One that is not answered after
    ``lost_after`` counts as lost, and in no time. Of a window in which more than ``most_lost_percent`` of them were
    lost no mean is told."""

    packets_per_s: float = within(10.0, least=0.01, most=1_000_000)
    size_bytes: int = within(56, least=16, most=MOST_DATAGRAM_BYTES)
    warm_up_ns: int = within(500_000_000, least=0)
    lost_after_ns: int = within(10**9, least=1_000_000)
    most_lost_percent: float = within(0.1, least=0, most=100)
    most_short_percent: float = within(0.5, least=0, most=100)

    @property
    def windows_s(self) -> float:
        """How long its windows are, by time or by requests."""
        return self.windows * (self.time_ns / 1e9 if self.work is None else self.work / self.packets_per_s)

    @property
    def requests(self) -> int:
        """How many are sent, in the warm-up and in all windows."""
        timed_ns = self.warm_up_ns + (self.windows * self.time_ns if self.work is None else 0)
        by_time = math.ceil(timed_ns / 1e9 * self.packets_per_s - 1e-6)
        return by_time + self.windows * (self.work or 0)

    @property
    def expected_s(self) -> float:
        """About how long it takes: its warm-up, its windows, and what it needs besides."""
        return self.windows_s + self.warm_up_ns / 1e9 + 1


class Ping(Probe):
    """From near to far in each slice, begun together; the far kernel answers."""

    name: ClassVar[str] = "ping"
    summary: ClassVar[str] = "two tenants' latency: ICMP round trips in each of two slices, and their fairness"
    quantities: ClassVar[Mapping[str, Quantity]] = {
        **sliced.per_slice(_QUANTITIES, _OWN, _SLICES),
        "fairness": Quantity("Fairness of the slices' round trips", "of 1", "more"),
    }
    headline: ClassVar[str] = "round_trip_mean_us"
    timed_inside: ClassVar[bool] = True
    slices: ClassVar[int] = _SLICES
    Settings: ClassVar[type[PingSettings]] = PingSettings
    settings: PingSettings

    def check(self, limits: Limits) -> list[Problem]:  # noqa: ARG002
        """No more requests than the agent keeps, and no longer than it sends them."""
        settings = self.settings
        problems = sliced.too_long(self.name, settings.windows_s)
        if settings.work is None:
            problems += sliced.too_sparse(self.name, settings.time_ns, 1e9 / settings.packets_per_s)
        if settings.requests > _MOST_REQUESTS:
            what = f"{settings.requests} requests are above {_MOST_REQUESTS}"
            remedy = "choose fewer packets_per_s, fewer windows, or shorter ones"
            problems.append(Problem(what, f"probe {self.name}", remedy))
        return problems

    def run(self, place: Place) -> ProbeResult:
        """Ping in all slices at one time, and put what they say side by side."""
        slices = sliced.chosen(place, self.slices, self.name)
        words = arguments(self.name, self.settings)
        told = sliced.together(self.name, self.settings, [(one, [*words, "--peer", one.far_address]) for one in slices])
        windows = []
        for index, first in enumerate(told[0].result.windows):
            values = sliced.means(told, index, list(_QUANTITIES)) | sliced.of_each(told, index, _OWN)
            if "round_trip_mean_us" in values:
                values["fairness"] = jain([each.result.windows[index].values["round_trip_mean_us"] for each in told])
            work = sum(each.result.windows[index].work for each in told)
            windows.append(Window(start_ns=first.start_ns, duration_ns=first.duration_ns, work=work, values=values))
        return sliced.joined(told, ProbeResult(told[0].result.instrument, windows))
