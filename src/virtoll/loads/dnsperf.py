"""dnsperf: DNS queries over UDP or TCP; closed loop by a fixed number outstanding, open loop by a rate."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.loads.base import Intensity
from virtoll.loads.program import Figures, ProgramLoad, ProgramSettings
from virtoll.loads.reading import finite
from virtoll.offers import Dns, Offer
from virtoll.record.model import Quantity
from virtoll.units import within

_QUERIES = "/run/virtoll/queries"
# In open loop. Until it has sent as many dnsperf sleeps after each other query (do_send), and so is slow to begin.
_MOST_OUTSTANDING = 10_000


@dataclass(frozen=True)
class DnsperfSettings(ProgramSettings):
    """Settings of dnsperf. ``users``: queries outstanding at once, each on a socket of its own up to 100; in open loop
    the sockets alone, for up to 10,000 queries no other waits there. One without an answer after ``timeout`` is lost.
    ``names``: how many of the zone's are asked for, in turn.
    """

    users: int = within(20, least=1, most=10_000)
    protocol: Literal["udp", "tcp"] = "udp"
    names: int = within(1000, least=1, most=100_000)
    timeout_ns: int = within(5 * 10**9, least=10**9)  # whole seconds


class Dnsperf(ProgramLoad):
    """`dnsperf` with the queries of `virtoll.services.unbound`'s zone."""

    name: ClassVar[str] = "dnsperf"
    tells_percentiles: ClassVar[bool] = False
    summary: ClassVar[str] = "dnsperf: for DNS, queries per second over UDP or TCP, closed or open loop"
    takes: ClassVar[tuple[type[Offer], ...]] = (Dns,)
    packages: ClassVar[tuple[str, ...]] = ("dnsperf",)
    Settings: ClassVar[type[DnsperfSettings]] = DnsperfSettings
    settings: DnsperfSettings

    @property
    def unit(self) -> str:
        """A query."""
        return "query"

    @property
    def intensity(self) -> Intensity:
        """It takes whole rates alone (`-Q` is an unsigned integer; dnsperf(1))."""
        return replace(super().intensity, whole=True)

    @property
    def quantities(self) -> dict[str, Quantity]:
        """Its averages."""
        return {
            "latency_mean_ms": Quantity("Latency of a query, mean (of lost ones their time-out)", "ms", "less"),
            "latency_stddev_ms": Quantity("Latency of a query, standard deviation", "ms", None),
        }

    def check(self, host: Host) -> list[Problem]:
        """That it can be asked for the rate."""
        problems = [*super().check(host)]
        rate_per_s = float(self.settings.rate_per_s)
        if self.loop == "open" and not rate_per_s.is_integer():
            what = f"dnsperf takes whole rates alone, and {rate_per_s:g} is none"
            problems.append(Problem(what, "[load] rate", f"write rate = {math.ceil(rate_per_s)}"))
        return problems

    def files(self, settings: DnsperfSettings, offer: Offer) -> Mapping[str, bytes]:
        """Its list of queries."""
        assert isinstance(offer, Dns)
        return {_QUERIES: "".join(f"host{n}.{offer.zone} A\n" for n in range(settings.names)).encode()}

    def command(self, settings: DnsperfSettings, offer: Offer, seconds: int) -> Sequence[str]:
        """One window: -S never, -c sockets, -q outstanding; of -T 1 one thread sends and another receives, and nobody
        tells which of them is at its end (`usable_cpus`)."""
        words = ["dnsperf", "-s", offer.address, "-p", str(offer.port), "-d", _QUERIES, "-l", str(seconds)]
        outstanding = settings.users if settings.loop == "closed" else _outstanding(settings)
        words += ["-m", settings.protocol, "-c", str(min(settings.users, 100)), "-q", str(outstanding), "-T", "1"]
        words += ["-t", str(_time_out_s(settings))]
        return [*words, "-Q", f"{settings.rate_per_s:.10g}"] if settings.loop == "open" else words

    def figures(self, said: str) -> Figures:
        """Of its closing statistics. Those of its connections, over TCP, come after.

        Its average is of whatever was answered, wrong or right. Each query without a right answer adds its time-out:
        else an arm that lost its slowest would be told as the faster. Its deviation is told where all were answered
        right.
        """
        said = said.partition("\nConnection Statistics:")[0]
        codes = re.findall(r"\b([A-Z]+) (\d+) \([\d.]+%\)", said)
        wrong = sum(round(finite(count)) for code, count in codes if code != "NOERROR")
        completed, lost = _number("Queries completed", said), _number("Queries lost", said)
        mean_s = _number(r"Average Latency \(s\)", said) if completed else 0.0
        bad, all_s = lost + wrong, completed * mean_s
        values = {}
        if completed > wrong:
            values["latency_mean_ms"] = (all_s + bad * _time_out_s(self.settings)) * 1000 / (completed + lost)
        asked_s, is_open = _asked_s(said), self.loop == "open"
        # In open loop a server that is slower than it is asked answers long after; all of it is counted.
        behind_s = _longest_s(said) if completed and is_open else mean_s
        if completed > 1 and not bad:  # of one it tells no deviation
            values["latency_stddev_ms"] = _number(r"Latency StdDev \(s\)", said) * 1000
        return Figures(
            work=completed - wrong,
            failed=round(lost) + wrong,
            elapsed_s=min(_number(r"Run time \(s\)", said), asked_s + behind_s),
            asks_s=asked_s if is_open and math.isfinite(asked_s) else None,
            values=values,
        )


def _outstanding(settings: DnsperfSettings) -> int:
    """How many queries are let be outstanding in open loop: all that can be, up to a bound. With room for fewer dnsperf
    waits where the server does, sends later what was due meanwhile, and tells how long that took from when it was
    sent: coordinated omission.
    """
    return min(math.ceil(settings.rate_per_s * _time_out_s(settings)) + 1, _MOST_OUTSTANDING)


def _time_out_s(settings: DnsperfSettings) -> int:
    return max(1, round(settings.timeout_ns / 1e9))


def _asked_s(said: str) -> float:
    """For how long it asked. Its *run time* goes on to the last packet that came, also to one that came so late that
    it was given up long before (dnsperf.c, threadinfo_cleanup). In closed loop what was under way at its end is
    answered within one latency, as a rule; in open loop within the longest.
    """
    found = re.search(r"^\[Status\] Stopping after ([\d.]+) seconds", said, re.MULTILINE)
    return math.inf if found is None else finite(found[1])


def _longest_s(said: str) -> float:
    found = re.search(r"^\s*Average Latency \(s\):.*\bmax ([\d.]+)\)", said, re.MULTILINE)
    if found is None:
        raise ValueError("there is no longest latency in the statistics of dnsperf")
    return finite(found[1])


def _number(label: str, said: str) -> float:
    found = re.search(rf"^\s*{label}:\s+([\d.]+)", said, re.MULTILINE)
    if found is None:
        raise ValueError(f"there is no {label.replace(chr(92), '')!r} in the statistics of dnsperf")
    return finite(found[1])
