"""siege: closed loop, one thread a user; its times have a resolution of 10 ms, so it gives no percentiles."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.loads import outside
from virtoll.loads.base import Client, HttpObject, Load, LoadResult
from virtoll.services.base import Endpoint
from virtoll.units import within


@dataclass(frozen=True)
class SiegeSettings:
    """Settings of siege. ``time_limit`` is its duration (whole seconds)."""

    connections: int = within(1, least=1)
    time_limit_ns: int = within(10 * 10**9, least=1)
    keep_alive: bool = True
    timeout_ns: int = within(30 * 10**9, least=1)
    warm_up_ns: int = 10**9


class SiegeLoad(Load):
    """`siege` in benchmark mode: no pause between requests, no parsing of pages."""

    name: ClassVar[str] = "siege"
    summary: ClassVar[str] = "siege: to compare with others' siege figures; closed loop, N users, by time"
    Settings: ClassVar[type[SiegeSettings]] = SiegeSettings
    settings: SiegeSettings

    def check(self, host: Host) -> list[Problem]:
        """Whether `siege` is there."""
        return outside.missing(host, "siege", "siege")

    def warm_up(self, client: Client, endpoint: Endpoint, target: HttpObject) -> None:
        """Run it for ``warm_up_ns`` (whole seconds), and keep nothing of it."""
        if self.settings.warm_up_ns > 0:
            SiegeLoad(replace(self.settings, time_limit_ns=self.settings.warm_up_ns)).drive(client, endpoint, target)

    def drive(self, client: Client, endpoint: Endpoint, target: HttpObject) -> LoadResult:
        """Run it once. TrialError when it fails or hangs (it has been seen to ignore SIGTERM)."""
        rc = client.directory / "siegerc"
        client.host.put(rc, configuration(self.settings, endpoint).encode())
        expected_s = (self.settings.time_limit_ns + self.settings.timeout_ns) / 1e9
        # It writes ~/.siege on its first run: its home is the trial's directory.
        argv = command(self.settings, endpoint, target, str(rc))
        output = outside.run(client, argv, expected_s, env={"HOME": str(client.directory)})
        return parse(output)


def configuration(settings: SiegeSettings, endpoint: Endpoint) -> str:
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
    if endpoint.proxy:
        lines |= {"proxy-host": endpoint.address, "proxy-port": str(endpoint.port)}
    return "".join(f"{key} = {value}\n" for key, value in lines.items())


def command(settings: SiegeSettings, endpoint: Endpoint, target: HttpObject, rc: str) -> list[str]:
    """siege's command line: benchmark mode, by time."""
    duration = f"{outside.whole_seconds(settings.time_limit_ns)}S"
    users = str(settings.connections)
    return ["siege", "-R", rc, "--no-parser", "-b", "-c", users, "-t", duration, endpoint.url(target.path)]


def parse(output: outside.Output) -> LoadResult:
    """Read siege's JSON. It does not tell refused from reset or timed out: those failures are ``unspecified``."""
    start, end = output.stdout.find("{"), output.stdout.rfind("}")
    with outside.reading("siege", output.stdout):
        report = json.loads(output.stdout[start : end + 1])
        transactions, successful = int(report["transactions"]), int(report["successful_transactions"])
        failed, elapsed_s = int(report["failed_transactions"]), float(report["elapsed_time"])
        duration_ns = outside.span_ns(elapsed_s)
        if min(transactions, successful, failed) < 0:
            raise ValueError("less than none")
    completed = min(transactions, successful)  # at the end of its time it may count one more success than answers
    failures = {"status": transactions - completed, "unspecified": failed}
    return LoadResult(
        loop="closed",
        intended=transactions + failed,
        offered=transactions + failed,
        completed=completed,
        failures={kind: count for kind, count in failures.items() if count},
        window=outside.window(output, duration_ns, completed),  # no bytes: MB with two decimals
        drain=None,
        histogram=None,
        instrument="siege",
    )
