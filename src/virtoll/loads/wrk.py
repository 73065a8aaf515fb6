"""wrk: closed loop by time, very fast; its numbers come from a Lua script of ours, exact instead of rounded."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

from virtoll.errors import Problem, TrialError
from virtoll.hosts.base import Host
from virtoll.loads import outside
from virtoll.loads.base import Client, HttpObject, Load, LoadResult
from virtoll.services.base import Endpoint
from virtoll.units import within

_COUNTS = ("duration_us", "requests", "connect", "read", "write", "status", "timeout")
_PERCENTILES = ("50", "75", "90", "95", "99", "99.9")

# wrk.path may be absolute: so a proxy is asked. done() runs once at the end, with times in microseconds.
_SCRIPT = """wrk.path = "{path}"
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("virtoll: duration_us=%d requests=%d connect=%d read=%d write=%d status=%d timeout=%d",
    summary.duration, summary.requests, e.connect, e.read, e.write, e.status, e.timeout))
  for _, p in ipairs({{{percentiles}}}) do
    io.write(string.format(" p%s=%d", p, latency:percentile(p)))
  end
  io.write("\\n")
end
"""


@dataclass(frozen=True)
class WrkSettings:
    """Settings of wrk. ``time_limit`` is its duration (whole seconds); it cannot count requests."""

    connections: int = within(1, least=1)
    time_limit_ns: int = within(10 * 10**9, least=1)
    keep_alive: bool = True
    timeout_ns: int = within(30 * 10**9, least=1)
    warm_up_ns: int = 10**9


class WrkLoad(Load):
    """`wrk`. It does not check lengths: a short body with the right status is a success to it."""

    name: ClassVar[str] = "wrk"
    summary: ClassVar[str] = "wrk: to compare with others' wrk figures; closed loop, N connections, by time"
    Settings: ClassVar[type[WrkSettings]] = WrkSettings
    settings: WrkSettings

    def check(self, host: Host) -> list[Problem]:
        """Whether `wrk` is there."""
        return outside.missing(host, "wrk", "wrk")

    def warm_up(self, client: Client, endpoint: Endpoint, target: HttpObject) -> None:
        """Run it for ``warm_up_ns`` (whole seconds), and keep nothing of it."""
        if self.settings.warm_up_ns > 0:
            WrkLoad(replace(self.settings, time_limit_ns=self.settings.warm_up_ns)).drive(client, endpoint, target)

    def drive(self, client: Client, endpoint: Endpoint, target: HttpObject) -> LoadResult:
        """Run it once. TrialError when it gives up, as it does when the first connection is refused."""
        lua = client.directory / "wrk.lua"
        client.host.put(lua, script(endpoint, target).encode())
        argv = command(self.settings, client.cpus, endpoint, str(lua))
        output = outside.run(client, argv, (self.settings.time_limit_ns + self.settings.timeout_ns) / 1e9)
        return parse(output)


def script(endpoint: Endpoint, target: HttpObject) -> str:
    """The Lua script: what to ask for, and how to report."""
    path = endpoint.url(target.path) if endpoint.proxy else target.path
    if '"' in path or "\\" in path:
        raise TrialError(f"{path!r} cannot be written in a Lua string", where="loads/wrk", remedy="encode the path")
    return _SCRIPT.format(path=path, percentiles=", ".join(_PERCENTILES))


def command(settings: WrkSettings, cpus: int, endpoint: Endpoint, lua: str) -> list[str]:
    """wrk's command line; one thread a CPU, as far as there are connections for them."""
    argv = ["wrk", "-t", str(max(1, min(cpus, settings.connections))), "-c", str(settings.connections)]
    argv += ["-d", f"{outside.whole_seconds(settings.time_limit_ns)}s"]
    argv += ["--timeout", f"{outside.whole_seconds(settings.timeout_ns)}s", "-s", lua]
    if not settings.keep_alive:
        argv += ["-H", "Connection: close"]
    return [*argv, f"http://{endpoint.address}:{endpoint.port}/"]


def parse(output: outside.Output) -> LoadResult:
    """Read the line of our script. A late answer (timeout) is among wrk's requests, a broken one is not."""
    line = re.search(r"^virtoll: (.+)$", output.stdout, re.MULTILINE)
    if line is None:
        raise outside.unreadable("wrk", output.stdout)
    with outside.reading("wrk", output.stdout):
        values = {key: int(value) for key, _, value in (word.partition("=") for word in line[1].split())}
        duration_ns = outside.span_ns(values["duration_us"] / 1e6)
        if min(values[key] for key in _COUNTS) < 0 or min(values.values()) < 0:
            raise ValueError("less than none")
        if values["status"] + values["timeout"] > values["requests"]:
            raise ValueError("more failed than were asked")
    broken = {"connect": values["connect"], "reset": values["read"] + values["write"]}
    wrong = {"status": values["status"], "timeout": values["timeout"]}
    offered = values["requests"] + sum(broken.values())
    completed = values["requests"] - sum(wrong.values())
    percentiles = {key.replace(".", ""): value for key, value in values.items() if re.fullmatch(r"p[\d.]+", key)}
    return LoadResult(
        loop="closed",
        intended=offered,
        offered=offered,
        completed=completed,
        failures={kind: count for kind, count in {**broken, **wrong}.items() if count},
        window=outside.window(output, duration_ns, completed),  # no bytes: with headers
        drain=None,
        histogram=None,
        percentiles_ns={key: value * 1000 for key, value in percentiles.items()},
        instrument="wrk",
    )
