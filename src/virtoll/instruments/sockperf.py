"""sockperf in the place of `round-trip`: ping-pong over TCP or UDP."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.instruments.base import Instrument
from virtoll.loads import outside
from virtoll.networks.base import MOST_DATAGRAM_BYTES
from virtoll.probes import peers
from virtoll.probes.base import Place, ProbeError, ProbeResult
from virtoll.probes.round_trip import RoundTripSettings
from virtoll.record.model import Check, Window

LEAST_BYTES = 14  # its own header
_WARM_UP_S = 1  # what it warms up for beside its run, rounded up
_QUANTILES = {"round_trip_p50_us": "50.000", "round_trip_p99_us": "99.000"}


class Sockperf(Instrument):
    """`sockperf ping-pong`. It takes whole seconds, and drops 0.45 s of them from its statistics.

    Smaller messages than its header it does not send; the result says so.
    """

    name: ClassVar[str] = "sockperf"
    summary: ClassVar[str] = "a second opinion on round-trip: TCP and UDP, block, by sockperf"
    packages: ClassVar[tuple[str, ...]] = ("sockperf",)

    @property
    def tool(self) -> str:
        """The client."""
        return self.name

    def check(self, host: Host) -> list[Problem]:
        """Whether it is there for the client."""
        return outside.missing(host, self.tool, "sockperf")

    def stands_for(self, probe: str, settings: Any) -> bool:
        """Round trips of whoever waits asleep, as it does, in messages that a datagram holds."""
        if probe != "round-trip":
            return False
        return bool(settings.wait == "block" and settings.size_bytes <= MOST_DATAGRAM_BYTES)

    def run(self, place: Place, probe: str, settings: RoundTripSettings) -> ProbeResult:
        """One run a window, against a server inside the instance."""
        protocol = settings.protocol
        peers.expect_way(place.instance.attachment, probe, protocol)
        seconds = outside.whole_seconds(settings.time_ns)
        size_bytes = max(settings.size_bytes, LEAST_BYTES)
        with peers.serving(place, "sockperf", server(peers.PORT, protocol), protocol):
            argv = command(place.instance.attachment.endpoint_address, peers.PORT, protocol, size_bytes, seconds)
            outputs = [outside.run(place.client, argv, seconds + _WARM_UP_S) for _ in range(settings.windows)]
        windows, lost, sent = [], 0, 0.0
        for output in outputs:
            windows.append(parse(output))
            lost += dropped(output)
            sent += windows[-1].work
        return ProbeResult(
            instrument=f"sockperf {version(outputs[0])}",
            windows=windows,
            facts={"size_bytes": size_bytes},
            notes=[f"its messages have {size_bytes} B: its header"] if size_bytes > settings.size_bytes else [],
            checks=[Check(name="no message was lost", passed=lost == 0, detail=f"{lost} of {sent}")],
        )


def server(port: int, protocol: Literal["tcp", "udp"]) -> list[str]:
    """The command inside the instance, also where connections of the window before are still in TIME_WAIT."""
    return ["sockperf", "server", "--uc-reuseaddr", "-p", str(port), *_protocol(protocol)]


def command(address: str, port: int, protocol: Literal["tcp", "udp"], size_bytes: int, seconds: int) -> list[str]:
    """The client's command. Without --full-rtt it would print half of each round trip, as if that were one way."""
    argv = ["sockperf", "ping-pong", "-i", address, "-p", str(port), *_protocol(protocol)]
    return [*argv, "-m", str(size_bytes), "-t", str(seconds), "--full-rtt"]


def parse(output: outside.Output) -> Window:
    """The figures of one run's valid duration. ProbeError where there are none: its exit code is 0 all the same."""
    text = output.stdout
    valid = re.search(r"\[Valid Duration\] RunTime=([\d.]+) sec; SentMessages=\d+; ReceivedMessages=(\d+)", text)
    mean = re.search(r"Summary: Round trip is ([\d.]+) usec", text)
    quantiles = {key: re.search(rf"percentile {re.escape(name)} = +([\d.]+)", text) for key, name in _QUANTILES.items()}
    if valid is None or mean is None or None in quantiles.values():
        raise unmeasured(output)
    with outside.reading("sockperf", text):
        duration_ns, received = outside.span_ns(float(valid[1])), int(valid[2])
        values = {key: float(found[1]) for key, found in quantiles.items() if found}
        values |= {"round_trip_mean_us": float(mean[1]), "transactions_per_s": received / float(valid[1])}
        outside.expect_finite(values)
    return Window(start_ns=output.end_ns - duration_ns, duration_ns=duration_ns, work=received, values=values)


def unmeasured(output: outside.Output) -> ProbeError:
    """The error for a run without figures, in the tool's own words."""
    said = re.findall(r"sockperf: ((?:ERROR|No messages).*)", output.stdout + output.stderr)
    what = said[-1][:300] if said else f"its report could not be read:\n{output.stdout[:2000]}"
    remedy = "see that its server runs inside and that nothing on the way drops its port"
    return ProbeError(what, kind="peer" if said else "system", where="sockperf", remedy=remedy)


def version(output: outside.Output) -> str:
    """As it prints it of itself."""
    found = re.search(r"== version #([\d.]+)", output.stdout)
    return found[1] if found else "of unknown version"


def _protocol(protocol: Literal["tcp", "udp"]) -> list[str]:
    return ["--tcp"] if protocol == "tcp" else []


def dropped(output: outside.Output) -> int:
    """Messages without an answer. ProbeError where it does not say: then nobody knows that none was lost."""
    found = re.search(r"# dropped messages = (\d+)", output.stdout)
    if found is None:
        raise unmeasured(output)
    with outside.reading("sockperf", output.stdout):
        return int(found[1])
