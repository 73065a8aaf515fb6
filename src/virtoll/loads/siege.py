"""siege: closed loop, one thread a user; its times have a resolution of 10 ms, so it gives no percentiles.

What it prints of itself is told in its own words (siege(1), *Performance statistics*) and to its own scale, to be laid
beside others' figures. What it calls MB are 2^20 bytes (seen: 16877 answers of 1000 B are 16.10). Its transactions
and their rate are the requests and the throughput of any load.
"""

from __future__ import annotations

import json
from typing import ClassVar

from virtoll.lab.client import Client
from virtoll.loads import outside
from virtoll.loads.base import Measurement, cpus_of_users
from virtoll.loads.outside import HttpTool, ToolSettings
from virtoll.offers import Http
from virtoll.record.model import Quantity

_QUANTITIES = {
    "availability": Quantity("Siege: availability", "%", "more"),
    "data_transferred": Quantity("Siege: data transferred", "MiB", "more"),
    "response_time": Quantity("Siege: response time, mean", "s", "less"),
    "throughput": Quantity("Siege: throughput", "MiB/s", "more"),
    "concurrency": Quantity("Siege: concurrency", "transactions at once", None),
    "longest_transaction": Quantity("Siege: longest transaction", "s", "less"),
    "shortest_transaction": Quantity("Siege: shortest transaction", "s", None),
}
_TIMES = {"response_time", "concurrency", "longest_transaction", "shortest_transaction"}


class SiegeLoad(HttpTool):
    """`siege` in benchmark mode: no pause between requests, no parsing of pages."""

    name: ClassVar[str] = "siege"
    tells_percentiles: ClassVar[bool] = False
    summary: ClassVar[str] = "siege: to compare with others' siege figures; closed loop, N users, by time"
    packages: ClassVar[tuple[str, ...]] = ("siege",)

    def usable_cpus(self, cpus: int, intensity: float | None = None) -> float | None:
        """A thread for each connection."""
        return cpus_of_users(self.settings.connections if intensity is None else round(intensity), cpus)

    @property
    def quantities(self) -> dict[str, Quantity]:
        """Its own statistics."""
        return _QUANTITIES

    def drive(self, settings: ToolSettings, client: Client, offer: Http) -> Measurement:
        """Run it once. TrialError when it fails or hangs (it has been seen to ignore SIGTERM)."""
        outside.refuse_misleading(client, offer, settings)
        rc = client.directory / "siegerc"
        client.host.put(rc, configuration(settings, offer).encode())
        expected_s = (settings.time_limit_ns + settings.timeout_ns) / 1e9
        # It writes ~/.siege on its first run: its home is the trial's directory.
        argv = command(settings, offer, str(rc))
        output = outside.run(client, argv, expected_s, env={"HOME": str(client.directory)})
        return parse(output)


def configuration(settings: ToolSettings, offer: Http) -> str:
    """siege's rc file; a proxy can be set nowhere else."""
    lines = {
        "json_output": "true",
        "quiet": "true",
        "verbose": "false",
        "logging": "false",
        "show-logfile": "false",
        "parser": "false",
        "cache": "false",
        "protocol": "HTTP/1.1",
        "connection": "keep-alive" if settings.keep_alive else "close",
        "limit": str(max(255, settings.connections)),
        "timeout": str(outside.whole_seconds(settings.timeout_ns)),
        "failures": "1000000000",  # never give up by itself
    }
    if offer.proxy:
        lines |= {"proxy-host": offer.address, "proxy-port": str(offer.port)}
    return "".join(f"{key} = {value}\n" for key, value in lines.items())


def command(settings: ToolSettings, offer: Http, rc: str) -> list[str]:
    """siege's command line: benchmark mode, by time."""
    duration = f"{outside.whole_seconds(settings.time_limit_ns)}S"
    users = str(settings.connections)
    return [
        "siege",
        "-R",
        rc,
        "--no-parser",
        "--no-follow",
        "-b",
        "-c",
        users,
        "-t",
        duration,
        offer.url(settings.target),
    ]


def parse(output: outside.Output) -> Measurement:
    """Read siege's JSON. It does not tell refused from reset or timed out: those failures are ``unspecified``."""
    start, end = output.stdout.find("{"), output.stdout.rfind("}")
    with outside.reading("siege", output.stdout):
        report = json.loads(output.stdout[start : end + 1])
        transactions, successful = int(report["transactions"]), int(report["successful_transactions"])
        failed, elapsed_s = int(report["failed_transactions"]), float(report["elapsed_time"])
        duration_ns = outside.span_ns(elapsed_s)
        if min(transactions, successful, failed) < 0:
            raise ValueError("less than none")
        values = {name: float(report[name]) for name in _QUANTITIES}
        outside.expect_finite(values)
        if failed or successful < transactions:
            # Of what got no answer it counts no time, and an error's among the others: who lost its slowest, or was
            # quick to fail, would be told as the faster.
            values = {name: value for name, value in values.items() if name not in _TIMES}
    completed = min(transactions, successful)  # at the end of its time it may count one more success than answers
    failures = {"status": transactions - completed, "unspecified": failed}
    asked = outside.events(transactions + failed, transactions + failed, completed, failures)
    # No bytes: MiB with two decimals.
    return outside.measurement("siege", output, duration_ns, asked, values=values)
