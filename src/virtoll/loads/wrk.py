"""wrk: closed loop by time, very fast; its numbers come from a Lua script of ours, exact instead of rounded.

Its percentiles are none of its requests': before it tells any, it adds samples for what it holds that others would have
asked meanwhile, one for each mean interval of a connection that a latency lasted beyond the first (wrk.c,
stats_correct). Of 85,000 answers in 121 us and ten in 30 ms it would tell a 99th percentile of 19 ms. So they are
quantities of its own.
"""

from __future__ import annotations

import re
from typing import ClassVar

from virtoll.errors import TrialError
from virtoll.lab.client import Client
from virtoll.loads import outside
from virtoll.loads.base import Measurement
from virtoll.loads.outside import HttpTool, ToolSettings
from virtoll.offers import Http
from virtoll.record.model import Quantity

_COUNTS = ("duration_us", "requests", "connect", "read", "write", "status", "timeout")
_PERCENTILES = ("50", "90", "99")
_QUANTITIES = {
    f"corrected_p{p}_ms": Quantity(f"wrk: latency with its own correction, {p} %", "ms", "less") for p in _PERCENTILES
}

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


class WrkLoad(HttpTool):
    """`wrk`. It does not check lengths: a short body with the right status is a success to it.

    ``time_limit`` is its duration (whole seconds); it cannot count requests. It has as many threads as divide its
    connections: take a number of these that the generator's CPUs divide, or it has fewer threads than CPUs.
    """

    name: ClassVar[str] = "wrk"
    tells_percentiles: ClassVar[bool] = False
    summary: ClassVar[str] = "wrk: to compare with others' wrk figures; closed loop, N connections, by time"
    packages: ClassVar[tuple[str, ...]] = ("wrk",)

    def usable_cpus(self, cpus: int, intensity: float | None = None) -> float | None:
        """Its threads', each of which has as many connections."""
        return _threads(self.settings.connections if intensity is None else round(intensity), cpus)

    @property
    def quantities(self) -> dict[str, Quantity]:
        """Its percentiles, as it corrects them."""
        return _QUANTITIES

    def drive(self, settings: ToolSettings, client: Client, offer: Http) -> Measurement:
        """Run it once. TrialError when it gives up, as it does when the first connection is refused."""
        outside.refuse_misleading(client, offer, settings)
        lua = client.directory / "wrk.lua"
        client.host.put(lua, script(settings, offer).encode())
        argv = command(settings, client.cpus, offer, str(lua))
        output = outside.run(client, argv, (settings.time_limit_ns + settings.timeout_ns) / 1e9)
        return parse(output)


def script(settings: ToolSettings, offer: Http) -> str:
    """The Lua script: what to ask for, and how to report."""
    path = settings.target
    path = offer.url(path) if offer.proxy else path
    if '"' in path or "\\" in path:
        raise TrialError(f"{path!r} cannot be written in a Lua string", where="loads/wrk", remedy="encode the path")
    return _SCRIPT.format(path=path, percentiles=", ".join(_PERCENTILES))


def command(settings: ToolSettings, cpus: int, offer: Http, lua: str) -> list[str]:
    """wrk's command line; a thread a CPU, as far as each gets as many connections: it leaves out what is over."""
    threads = _threads(settings.connections, cpus)
    argv = ["wrk", "-t", str(threads), "-c", str(settings.connections)]
    argv += ["-d", f"{outside.whole_seconds(settings.time_limit_ns)}s"]
    argv += ["--timeout", f"{outside.whole_seconds(settings.timeout_ns)}s", "-s", lua]
    if not settings.keep_alive:
        argv += ["-H", "Connection: close"]
    return [*argv, offer.url("/") if not offer.proxy else f"http://{offer.address}:{offer.port}/"]


def _threads(connections: int, cpus: int) -> int:
    return max(number for number in range(1, max(1, cpus) + 1) if connections % number == 0)


def parse(output: outside.Output) -> Measurement:
    """Read the line of our script. A late answer (timeout) is among wrk's requests, a broken one is not. A late error
    is in both counts; how many are it does not tell, so each counts twice, as far as there were requests.
    """
    line = re.search(r"^virtoll: (.+)$", output.stdout, re.MULTILINE)
    if line is None:
        raise outside.unreadable("wrk", output.stdout)
    with outside.reading("wrk", output.stdout):
        values = {key: int(value) for key, _, value in (word.partition("=") for word in line[1].split())}
        duration_ns = outside.span_ns(values["duration_us"] / 1e6)
        if min(values[key] for key in _COUNTS) < 0 or min(values.values()) < 0:
            raise ValueError("less than none")
        if max(values["status"], values["timeout"]) > values["requests"]:
            raise ValueError("more failed than were asked")
    broken = {"connect": values["connect"], "reset": values["read"] + values["write"]}
    wrong = {"status": values["status"], "timeout": min(values["timeout"], values["requests"] - values["status"])}
    offered = values["requests"] + sum(broken.values())
    completed = values["requests"] - sum(wrong.values())
    corrected = {f"corrected_p{p}_ms": values[f"p{p}"] / 1000 for p in _PERCENTILES if f"p{p}" in values}
    asked = outside.events(offered, offered, completed, {**broken, **wrong})
    # No latency where something failed, for it does not say where that stands; no bytes: with headers.
    known = corrected if completed == offered > 0 else {}
    return outside.measurement("wrk", output, duration_ns, asked, values=known)
