"""What becomes of a flow of so much a second over each slice's channel: iperf's work, packet by packet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar, Literal

from virtoll.agent.client import MOST_TOLD_BYTES
from virtoll.errors import AgentError, Problem
from virtoll.images.base import AGENT
from virtoll.networks.base import MOST_DATAGRAM_BYTES
from virtoll.probes import peers, sliced
from virtoll.probes.base import Place, Probe, ProbeResult, Slice, Timed
from virtoll.probes.fork_bomb import jain
from virtoll.record.model import Quantity, Window
from virtoll.study.limits import Limits
from virtoll.units import format_bytes, parse_bit_rate, within

_QUANTITIES = {
    "throughput_mbit_per_s": Quantity("Throughput of a flow", "Mbit/s", "more"),
    "throughput_sd_mbit_per_s": Quantity("Variation of the throughput (standard deviation)", "Mbit/s", "less"),
    "offered_mbit_per_s": Quantity("Offered load", "Mbit/s", None),
    "packets_per_s": Quantity("Datagrams that came", "/s", None),
    "lost_percent": Quantity("Datagrams lost", "%", None),
    "refused_percent": Quantity("Datagrams refused by the sender's own queue", "%", None),
    "jitter_us": Quantity("Jitter (RFC 3550)", "us", "less"),
    "interarrival_us": Quantity("Time between arrivals", "us", None),
    "interarrival_sd_us": Quantity("Variation of the time between arrivals", "us", "less"),
    "interdeparture_sd_us": Quantity("Variation of the time between departures", "us", None),
}
_OWN = ("throughput_mbit_per_s", "throughput_sd_mbit_per_s", "offered_mbit_per_s", "lost_percent", "jitter_us")
_ROW_BYTES, _WINDOW_BYTES, _REST_BYTES = 26, 590, 16 * 1024  # of a report: a row of a series, a window, all else
_LEAST_BYTES = 32  # a datagram says which it is; rust/probe/src/flow/wire.rs
_SLICES = 2


@dataclass(frozen=True)
class FlowSettings(Timed):
    """``rate`` of payload in slice 1 (none: as fast as it goes) and ``other_rate`` in slice 2 (none: the same; 0: it
    is idle). ``steps``: instead, slice 2 goes through these rates ("5 Mbit/s, 10 Mbit/s"), each for ``time``, and each
    is a window. ``packets``: a window is so many datagrams, whatever the time. ``trace``: of so many datagrams the
    arrival is kept. ``most_short_percent``: a window that offers so much less than its rate fails a check."""

    rate_bit_per_s: int | None = within(20_000_000, least=1000)
    other_rate_bit_per_s: int | None = within(None, least=0)
    steps: str = ""
    packets: int | None = within(None, least=2, most=10_000_000)
    protocol: Literal["udp", "tcp"] = "udp"
    size_bytes: int = within(1024, least=_LEAST_BYTES, most=MOST_DATAGRAM_BYTES)
    warm_up_ns: int = within(500_000_000, least=0)
    series_ns: int = within(100_000_000, least=1_000_000)
    trace: int = within(0, least=0, most=1_000_000)
    wait: Literal["auto", "sleep", "spin"] = "auto"
    most_short_percent: float = within(0.5, least=0, most=100)
    patience_ns: int = within(10 * 10**9, least=1_000_000)

    @property
    def windows_s(self) -> float:
        """How long its steps are, or its windows by time or by datagrams."""
        count = self.steps.count(",") + 1 if self.steps else self.windows
        window_s = self.time_ns / 1e9
        if self.packets is not None and self.rate_bit_per_s is not None:
            window_s = self.packets * 8 * self.size_bytes / self.rate_bit_per_s
        return count * window_s

    @property
    def expected_s(self) -> float:
        """About how long it takes: its warm-up, its windows, and what it needs besides."""
        return self.windows_s + self.warm_up_ns / 1e9 + 1


class Flow(Probe):
    """From near to far in each slice, begun together; counted and stamped where it arrives."""

    name: ClassVar[str] = "flow"
    summary: ClassVar[str] = "two tenants' streams at a rate: throughput, loss, jitter and fairness of two slices"
    quantities: ClassVar[Mapping[str, Quantity]] = {
        **sliced.per_slice(_QUANTITIES, _OWN, _SLICES),
        "fairness": Quantity("Fairness of the slices' throughput", "of 1", "more"),
    }
    headline: ClassVar[str] = "throughput_mbit_per_s"
    timed_inside: ClassVar[bool] = True
    slices: ClassVar[int] = _SLICES
    counts_losses: ClassVar[bool] = True
    Settings: ClassVar[type[FlowSettings]] = FlowSettings
    settings: FlowSettings

    def check(self, limits: Limits) -> list[Problem]:  # noqa: ARG002
        """What contradicts itself, and what is more than can be told."""
        settings = self.settings
        where = f"probe {self.name}"
        problems = sliced.too_long(self.name, settings.windows_s)
        try:
            steps = _steps(settings)
        except ValueError as error:
            return [Problem(str(error), f"{where}, steps", 'write "5 Mbit/s, 10 Mbit/s"')]
        if steps and (settings.other_rate_bit_per_s is not None or settings.packets is not None):
            problems.append(Problem("steps leave no room for other_rate or packets", where, "leave them out"))
        if settings.packets is not None and settings.other_rate_bit_per_s not in (None, 0, settings.rate_bit_per_s):
            what = "of packets and two rates, the slices' windows would be of different stretches of time"
            problems.append(Problem(what, where, "leave out packets (a window is then `time` long), or other_rate"))
        if settings.rate_bit_per_s is None and (steps or settings.packets is not None):
            problems.append(Problem("steps and packets need a rate", where, 'give it one: rate = "20 Mbit/s"'))
        sent = [rate for rate in (settings.rate_bit_per_s, settings.other_rate_bit_per_s, *steps) if rate]
        if settings.packets is None and sent and not problems:
            problems += sliced.too_sparse(self.name, settings.time_ns, 8 * settings.size_bytes * 1e9 / min(sent))
        if settings.work is not None:
            problems.append(Problem("a flow has no units of work", where, f"write packets = {settings.work}"))
        if settings.protocol == "tcp" and settings.trace:
            problems.append(Problem("a stream has no datagrams to trace", f"{where}, trace", 'protocol = "udp"'))
        if not problems and (told_bytes := _told_bytes(settings, steps)) > MOST_TOLD_BYTES:
            what = (
                f"a report of about {format_bytes(told_bytes)}, and an instance tells {format_bytes(MOST_TOLD_BYTES)}"
            )
            remedy = "keep fewer arrivals (trace), or take a longer series, fewer windows, or a shorter time"
            problems.append(Problem(what, where, remedy))
        return problems

    def run(self, place: Place) -> ProbeResult:
        """Start a receiver in each far instance, let all flows go at one time, and put what they say side by side."""
        rates = self._rates(sliced.chosen(place, self.slices, self.name))
        with ExitStack() as stack:
            targets = {one.index: stack.enter_context(_receiving(one)) for one, _ in rates}
            told = sliced.together(
                self.name,
                self.settings,
                [(one, self._words(intended, targets[one.index])) for one, intended in rates],
            )
        windows = [
            Window(
                start_ns=first.start_ns,
                duration_ns=first.duration_ns,
                work=_work(told, index),
                values=self._values(told, rates, index),
            )
            for index, first in enumerate(told[0].result.windows)
        ]
        return sliced.joined(told, ProbeResult(told[0].result.instrument, windows))

    def _rates(self, slices: Sequence[Slice]) -> list[tuple[Slice, list[int | None]]]:
        """The slices that have a flow, each with its rate window by window (None: as fast as it goes)."""
        settings = self.settings
        steps = _steps(settings)
        count = len(steps) or settings.windows
        other = settings.rate_bit_per_s if settings.other_rate_bit_per_s is None else settings.other_rate_bit_per_s
        rates: list[tuple[Slice, list[int | None]]] = []
        for one in slices:
            if one.index == slices[0].index:
                rates.append((one, [settings.rate_bit_per_s] * count))
            elif steps:
                rates.append((one, list(steps)))
            elif other != 0:
                rates.append((one, [other] * count))
        return rates

    def _words(self, rates: Sequence[int | None], target: str) -> list[str]:
        """The command line of one slice's flow."""
        settings = self.settings
        words = ["probe", self.name, "--json", "--peer", target]
        for key in ("protocol", "size_bytes", "warm_up_ns", "series_ns", "wait", "most_short_percent", "patience_ns"):
            words += [f"--{key.replace('_', '-')}", str(getattr(settings, key))]
        if settings.protocol == "udp":
            words += ["--trace", str(settings.trace)]
        if settings.steps:
            return [*words, "--steps", ",".join(f"{rate}:{settings.time_ns}" for rate in rates)]
        words += ["--windows", str(settings.windows)]
        by_time = settings.packets is None
        words += ["--time-ns", str(settings.time_ns)] if by_time else ["--work", str(settings.packets)]
        return words if rates[0] is None else [*words, "--rate-bit-per-s", str(rates[0])]

    def _values(
        self, told: Sequence[sliced.Told], rates: Sequence[tuple[Slice, Sequence[int | None]]], window: int
    ) -> dict[str, float]:
        intended = [of_slice[window] for _, of_slice in rates]
        sending = [each for each, rate in zip(told, intended, strict=True) if rate != 0]
        values = sliced.means(sending, window, list(_QUANTITIES)) | sliced.of_each(told, window, _OWN)
        if len(told) > 1 and 0 not in intended and (None not in intended or not any(intended)):
            # Of what each was to have: Jain's index of shares. As fast as it goes, all are to have the same; one that
            # goes so beside one of a rate has no share.
            each_told = [each.result.windows[window].values for each in told]
            values["fairness"] = jain(
                [own["throughput_mbit_per_s"] / (own.get("intended_mbit_per_s") or 1) for own in each_told]
            )
        return values


def _steps(settings: FlowSettings) -> list[int]:
    """Rates in bit/s; ValueError says what is none."""
    return [parse_bit_rate(word) for word in settings.steps.split(",")] if settings.steps else []


def _told_bytes(settings: FlowSettings, steps: Sequence[int]) -> float:
    """How long a slice's report is, the longer one's: hardly less. The agent tells it whole, or not at all."""
    count, own, other = len(steps) or settings.windows, settings.rate_bit_per_s, settings.other_rate_bit_per_s

    def told_bytes(rates: Sequence[int | None]) -> float:
        bits, packets = 8 * settings.size_bytes, settings.packets
        if packets is None:
            seconds = len(rates) * settings.time_ns / 1e9
            sent = sum(math.inf if rate is None else rate * settings.time_ns / 1e9 / bits for rate in rates)
        else:
            seconds = sum(packets * bits / rate for rate in rates if rate)
            sent = packets * len(rates)
        series = 2 * (seconds * 1e9 + settings.warm_up_ns) / settings.series_ns
        return _ROW_BYTES * (min(settings.trace, sent) + series) + _WINDOW_BYTES * len(rates) + _REST_BYTES

    return max(told_bytes([own] * count), told_bytes(list(steps) or [own if other is None else other] * count))


def _work(told: Sequence[sliced.Told], window: int) -> float:
    return sum(each.result.windows[window].work for each in told)


@contextmanager
def _receiving(one: Slice) -> Iterator[str]:
    """A receiver in the far instance for the length of the block; yields where it is.

    Each slice has a port of its own: native slices share their node's network.
    """
    agent, port = one.far.agent, peers.PORT + one.index
    argv = [AGENT, "peer", "--port", str(port), "--address", one.far_address]
    pid = peers.started(one.far, f"peer-{one.index + 1}", argv, port)
    try:
        yield f"{one.far_address}:{port}"
    finally:
        with suppress(AgentError):  # the instance may have died, and that is not what is to be told
            agent.kill(pid)
