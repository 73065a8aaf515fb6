"""ApacheBench, the instrument of many papers: closed loop, one thread, a connection per request unless told."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.loads import outside
from virtoll.loads.base import Client, HttpObject, Load, LoadResult
from virtoll.services.base import Endpoint
from virtoll.units import within


@dataclass(frozen=True)
class AbSettings:
    """Settings of ApacheBench. It ends with ``requests`` or ``time_limit`` (whole seconds), whichever is first."""

    connections: int = within(1, least=1)
    requests: int = within(10_000, least=1)
    time_limit_ns: int = within(60 * 10**9, least=1)
    keep_alive: bool = False
    timeout_ns: int = within(30 * 10**9, least=1)
    warm_up_ns: int = 10**9


class AbLoad(Load):
    """`ab`; percentiles to the microsecond come from its own CSV file (-e)."""

    name: ClassVar[str] = "ab"
    summary: ClassVar[str] = "ab: to compare with others' ApacheBench figures; closed loop, R requests"
    Settings: ClassVar[type[AbSettings]] = AbSettings
    settings: AbSettings

    def check(self, host: Host) -> list[Problem]:
        """Whether `ab` is there."""
        return outside.missing(host, "ab", "apache2-utils")

    def warm_up(self, client: Client, endpoint: Endpoint, target: HttpObject) -> None:
        """Run it for ``warm_up_ns`` (whole seconds), and keep nothing of it."""
        if self.settings.warm_up_ns > 0:
            brief = replace(self.settings, time_limit_ns=self.settings.warm_up_ns, requests=10**6)
            AbLoad(brief).drive(client, endpoint, target)

    def drive(self, client: Client, endpoint: Endpoint, target: HttpObject) -> LoadResult:
        """Run it once. TrialError when it gives up, as it does on a refused connection or its own time-out."""
        csv = client.directory / "ab.csv"
        csv.unlink(missing_ok=True)
        expected_s = (self.settings.time_limit_ns + self.settings.timeout_ns) / 1e9
        output = outside.run(client, command(self.settings, endpoint, target, csv), expected_s)
        percentiles = csv.read_text(encoding="utf-8") if csv.exists() else ""
        return parse(output, percentiles, self.settings.requests, target)


def command(settings: AbSettings, endpoint: Endpoint, target: HttpObject, csv: Path) -> list[str]:
    """ab's command line. -n comes after -t, which would set it to 50,000; -r goes on after a broken connection."""
    argv = ["ab", "-q", "-r", "-t", str(outside.whole_seconds(settings.time_limit_ns)), "-n", str(settings.requests)]
    argv += ["-c", str(settings.connections), "-s", str(outside.whole_seconds(settings.timeout_ns)), "-e", str(csv)]
    if settings.keep_alive:
        argv.append("-k")
    if endpoint.proxy:
        argv += ["-X", f"{endpoint.address}:{endpoint.port}"]
    return [*argv, endpoint.url(target.path)]


def parse(output: outside.Output, percentiles_csv: str, intended: int, target: HttpObject) -> LoadResult:
    """Read ab's report and its CSV of percentiles (milliseconds).

    ab counts a failed request as complete, and a broken one (with -r) also as too short, sometimes as broken twice.
    So what is broken is taken off what is too short, and never exceeds what was asked. Its own idea of the right
    length is the first answer's; if that is not the object's, all are wrong.
    """
    text = output.stdout
    elapsed = re.search(r"Time taken for tests:\s+([\d.]+) seconds", text)
    if elapsed is None:
        raise outside.unreadable("ab", text)
    with outside.reading("ab", text):
        duration_ns = outside.span_ns(float(elapsed[1]))
        return _result(output, percentiles_csv, intended, target, duration_ns)


def _result(
    output: outside.Output, percentiles_csv: str, intended: int, target: HttpObject, duration_ns: int
) -> LoadResult:
    text = output.stdout
    complete = _count(text, "Complete requests")
    kinds = re.search(r"\(Connect: (\d+), Receive: (\d+), Length: (\d+), Exceptions: (\d+)\)", text)
    connect, receive, length, exceptions = (int(count) for count in kinds.groups()) if kinds else (0, 0, 0, 0)
    reset = min(complete - connect, receive + exceptions)
    status = _count(text, "Non-2xx responses")
    length = max(0, length - connect - reset)
    if not status and _count(text, "Document Length") != target.length_bytes:
        length = complete - connect - reset
    failures = {"connect": connect, "reset": reset, "status": status, "length": length}
    completed = max(0, complete - sum(failures.values()))
    return LoadResult(
        loop="closed",
        intended=intended,
        offered=complete,
        completed=completed,
        failures={kind: count for kind, count in failures.items() if count},
        window=outside.window(output, duration_ns, completed, body_bytes=_count(text, "HTML transferred")),
        drain=None,
        histogram=None,
        percentiles_ns=_percentiles(percentiles_csv),
        instrument=named(text),
    )


def named(text: str) -> str:
    """Its name and version."""
    version = re.search(r"ApacheBench, Version (\S{1,40})", text)
    if version is None:
        raise outside.unreadable("ab", text)
    return f"ab {version[1]}"


def _count(text: str, label: str) -> int:
    found = re.search(rf"^{re.escape(label)}:\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _percentiles(csv: str) -> dict[str, int]:
    """{"p50": ns, ...} of lines ``50,0.214``; line 0 is the fastest request, not a percentile."""
    rows = (line.split(",") for line in csv.splitlines()[1:])
    return {f"p{percent}": round(float(ms) * 1e6) for percent, ms in rows if percent != "0"}
