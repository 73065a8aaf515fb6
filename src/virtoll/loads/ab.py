"""ApacheBench, the instrument of many papers: closed loop, one thread, a connection per request unless told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from virtoll.lab.client import Client
from virtoll.loads import outside
from virtoll.loads.base import Measurement
from virtoll.loads.outside import HttpTool, ToolSettings
from virtoll.offers import Http
from virtoll.record.model import Events
from virtoll.units import within

_NEVER_REACHED_PER_S = 100_000  # requests of its one thread; it sets aside 32 B for each it may send


@dataclass(frozen=True)
class AbSettings(ToolSettings):
    """Settings of ApacheBench. It ends with ``requests`` or ``time_limit`` (whole seconds), whichever is first."""

    requests: int = within(10_000, least=1)
    time_limit_ns: int = within(60 * 10**9, least=1)
    keep_alive: bool = False


class AbLoad(HttpTool):
    """`ab`; percentiles to the microsecond come from its own CSV file (-e)."""

    name: ClassVar[str] = "ab"
    summary: ClassVar[str] = "ab: to compare with others' ApacheBench figures; closed loop, R requests"
    percentiles: ClassVar[tuple[str, ...]] = ("p50", "p90", "p99")  # of whole percents, among others
    packages: ClassVar[tuple[str, ...]] = ("apache2-utils",)
    Settings: ClassVar[type[Any]] = AbSettings

    def usable_cpus(self, cpus: int, intensity: float | None = None) -> float | None:  # noqa: ARG002
        """Its one thread's."""
        return 1

    def lasting(self, duration_ns: int) -> Any:
        """The settings of a run that time alone ends: it must be told a number, so one that it does not reach."""
        requests = _NEVER_REACHED_PER_S * outside.whole_seconds(duration_ns)
        return replace(super().lasting(duration_ns), requests=requests)

    def drive(self, settings: AbSettings, client: Client, offer: Http) -> Measurement:
        """Run it once. TrialError when it gives up, as it does on a refused connection or its own time-out."""
        csv = client.directory / "ab.csv"
        csv.unlink(missing_ok=True)
        right_bytes = outside.length_of(client, offer, settings)
        expected_s = (settings.time_limit_ns + settings.timeout_ns) / 1e9
        output = outside.run(client, command(settings, offer, csv), expected_s)
        percentiles = csv.read_text(encoding="utf-8") if csv.exists() else ""
        return parse(output, percentiles, settings, right_bytes)


def command(settings: AbSettings, offer: Http, csv: Path) -> list[str]:
    """ab's command line. -n comes after -t, which would set it to 50,000; -r goes on after a broken connection."""
    argv = ["ab", "-q", "-r", "-t", str(outside.whole_seconds(settings.time_limit_ns)), "-n", str(settings.requests)]
    argv += ["-c", str(settings.connections), "-s", str(outside.whole_seconds(settings.timeout_ns)), "-e", str(csv)]
    if settings.keep_alive:
        argv.append("-k")
    if offer.proxy:
        argv += ["-X", f"{offer.address}:{offer.port}"]
    return [*argv, offer.url(settings.target)]


def parse(output: outside.Output, percentiles_csv: str, settings: AbSettings, right_bytes: int | None) -> Measurement:
    """Read ab's report and its CSV of percentiles (milliseconds). ``right_bytes``: of what was asked for; None: nobody
    knows.

    ab counts a failed request as complete, and a broken one (with -r) also as too short, sometimes as broken twice.
    So what is broken is taken off what is too short, and never exceeds what was asked; so are errors, which mostly have
    another length. Its own idea of the right length is the first answer's; if that is not the object's, all are wrong,
    but where that was an error's and all bytes are those of as many errors, and of the others as they should be.
    """
    text = output.stdout
    elapsed = re.search(r"Time taken for tests:\s+([\d.]+) seconds", text)
    if elapsed is None:
        raise outside.unreadable("ab", text)
    with outside.reading("ab", text):
        duration_ns = outside.span_ns(float(elapsed[1]))
        asked, body_bytes = _events(text, _percentiles(percentiles_csv), settings, right_bytes)
        return outside.measurement(named(text), output, duration_ns, asked, body_bytes=body_bytes)


def _events(
    text: str, percentiles_ns: Mapping[str, int], settings: AbSettings, right_bytes: int | None
) -> tuple[Events, int]:
    """What became of its requests, and the bytes of all bodies."""
    complete = _count(text, "Complete requests")
    kinds = re.search(r"\(Connect: (\d+), Receive: (\d+), Length: (\d+), Exceptions: (\d+)\)", text)
    connect, receive, length, exceptions = (int(count) for count in kinds.groups()) if kinds else (0, 0, 0, 0)
    reset = min(complete - connect, receive + exceptions)
    status = _count(text, "Non-2xx responses")
    others, body_bytes = max(0, length - connect - reset), _count(text, "HTML transferred")
    length = max(0, others - status)
    first_bytes = _count(text, "Document Length")
    # Of a path of the user's own that ab itself finds all alike, what it was sent may depend on who asks.
    if settings.content is None and not others:
        right_bytes = None
    if right_bytes is not None and first_bytes != right_bytes:
        were_errors = complete - connect - reset - others == status
        are_right = were_errors and body_bytes == status * first_bytes + others * right_bytes
        length = 0 if are_right else max(0, complete - connect - reset - status)
    failures = {"connect": connect, "reset": reset, "status": status, "length": length}
    completed = max(0, complete - sum(failures.values()))
    return outside.events(settings.requests, complete, completed, failures, percentiles_ns), body_bytes


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
    milliseconds = {f"p{percent}": float(ms) for percent, ms in rows if percent != "0"}
    outside.expect_finite(milliseconds)
    return {name: round(ms * 1e6) for name, ms in milliseconds.items()}
