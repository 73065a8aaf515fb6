"""iperf3 in the place of `bulk`: one stream over TCP or UDP, counted by its receiver."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.instruments.base import Instrument
from virtoll.loads import outside
from virtoll.probes import peers
from virtoll.probes.base import Place, ProbeError, ProbeResult
from virtoll.probes.bulk import BulkSettings
from virtoll.record.model import Window

_WARM_UP_S = 1  # it takes whole seconds
_USUAL_BYTES = {"tcp": 131_072, "udp": 1470}  # as `bulk` has them
_SETTLING_S = 2  # connecting, and exchanging results


class Iperf3(Instrument):
    """`iperf3`, without a limit on the rate. It sends each datagram by a call of its own."""

    name: ClassVar[str] = "iperf3"
    summary: ClassVar[str] = "a second opinion on bulk: TCP and UDP throughput by iperf3"
    packages: ClassVar[tuple[str, ...]] = ("iperf3",)

    @property
    def tool(self) -> str:
        """The client."""
        return self.name

    def check(self, host: Host) -> list[Problem]:
        """Whether it is there for the client."""
        return outside.missing(host, self.tool, "iperf3")

    def stands_for(self, probe: str, settings: Any) -> bool:
        """Streams; of datagrams, those that the sender cuts itself."""
        return probe == "bulk" and bool(settings.segmentation == "no")

    def run(self, place: Place, probe: str, settings: BulkSettings) -> ProbeResult:
        """One run a window, against a server inside the instance."""
        protocol = settings.protocol
        peers.expect_way(place.instance.attachment, probe, protocol)
        seconds = outside.whole_seconds(settings.time_ns)
        size_bytes = settings.size_bytes or _USUAL_BYTES[protocol]
        address = place.instance.attachment.endpoint_address

        def once(seconds: int) -> outside.Output:
            argv = command(
                address,
                peers.PORT,
                protocol=protocol,
                direction=settings.direction,
                size_bytes=size_bytes,
                seconds=seconds,
            )
            return outside.run(place.client, argv, seconds + _SETTLING_S)

        with peers.serving(place, "iperf3", server(peers.PORT), "tcp"):
            # A run of its own: with --omit its server goes on counting the losses of what was to be omitted.
            once(_WARM_UP_S)
            reports = [once(seconds) for _ in range(settings.windows)]
        return ProbeResult(
            instrument=f"iperf3 {version(reports[0])}",
            windows=[parse(report, size_bytes) for report in reports],
        )


def server(port: int) -> list[str]:
    """The command inside the instance."""
    return ["iperf3", "-s", "-4", "-p", str(port)]


def command(
    address: str,
    port: int,
    *,
    protocol: Literal["tcp", "udp"],
    direction: Literal["in", "out"],
    size_bytes: int,
    seconds: int,
) -> list[str]:
    """The client's command: -R makes the server send; -b 0 takes UDP's limit of 1 Mbit/s away."""
    argv = ["iperf3", "-c", address, "-p", str(port), "-J", "-t", str(seconds), "-l", str(size_bytes)]
    argv += ["-u", "-b", "0"] if protocol == "udp" else []
    return [*argv, "-R"] if direction == "out" else argv


def parse(output: outside.Output, size_bytes: int) -> Window:
    """What the receiver counted. ProbeError where there is nothing: its exit code can be 0 all the same."""
    report = _report(output)
    with outside.reading("iperf3", output.stdout):
        return _window(report, size_bytes, output.end_ns)


def _window(report: dict[str, Any], size_bytes: int, end_ns: int) -> Window:
    received = report.get("end", {}).get("sum_received")
    if "error" in report or not received:
        raise ProbeError(
            str(report.get("error", "its report holds nothing that was received"))[:1000],
            kind="peer",
            where="iperf3",
            remedy="see that its server runs inside and that nothing on the way drops its port",
        )
    seconds = float(received["seconds"])
    values = {"throughput_mbit_per_s": received["bytes"] * 8e-6 / seconds}
    if "packets" in received:
        values["packets_per_s"] = (received["packets"] - received["lost_packets"]) / seconds
        values["lost_percent"] = float(received["lost_percent"])
    duration_ns = outside.span_ns(seconds)
    outside.expect_finite(values)
    return Window(
        start_ns=end_ns - duration_ns, duration_ns=duration_ns, work=int(received["bytes"]) // size_bytes, values=values
    )


def version(output: outside.Output) -> str:
    """As it prints it of itself."""
    report = _report(output)
    with outside.reading("iperf3", output.stdout):
        words = str(report.get("start", {}).get("version", "")).split()
    return words[1] if len(words) > 1 else "of unknown version"


def _report(output: outside.Output) -> dict[str, Any]:
    with outside.reading("iperf3", output.stdout):
        report = json.loads(output.stdout)
    if not isinstance(report, dict):
        raise outside.unreadable("iperf3", output.stdout)
    return report
