"""What the outside instruments have in common: a bounded run of a tool that reports in its own words."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from virtoll.errors import CommandError, Problem, TrialError
from virtoll.hosts.base import Host
from virtoll.lab.client import Client
from virtoll.loads.base import Load, Measurement, Session, at_intensity
from virtoll.offers import Asked, Content, Http, HttpObject, Offer
from virtoll.record.model import Events, Window
from virtoll.units import within

_MOST_S = 1e6  # that any run takes
_GRACE_S = 10  # beyond what a tool was told to take
_BEGINS_S = 10.0  # for what bounds it to begin, and to end


@dataclass(frozen=True)
class ToolSettings(Asked):
    """Settings that every HTTP tool has."""

    connections: int = within(1, least=1)
    time_limit_ns: int = within(10 * 10**9, least=1)
    keep_alive: bool = True
    timeout_ns: int = within(30 * 10**9, least=1)
    warm_up_ns: int = 10**9


class HttpTool(Load):
    """An HTTP load generator of somebody else's: closed loop, run once for each window."""

    takes: ClassVar[tuple[type[Offer], ...]] = (Http,)
    begins_at_a_time: ClassVar[bool] = False
    own: ClassVar[str] = "path"
    Settings: ClassVar[type[Any]] = ToolSettings
    settings: Any

    @property
    def unit(self) -> str:
        """A request."""
        return "request"

    @property
    def loop(self) -> Literal["closed", "open"]:
        """Closed."""
        return "closed"

    @property
    def content(self) -> Content | None:
        """The object asked for."""
        content: HttpObject | None = self.settings.content
        return content

    @property
    def tool(self) -> str:
        """It is called as the load is."""
        return self.name

    def check(self, host: Host) -> list[Problem]:
        """Whether the tool is there."""
        return missing(host, self.tool, self.packages[0])

    def session(self, client: Client, offer: Offer) -> AbstractContextManager[Session]:
        """Nothing needs to be opened."""
        assert isinstance(offer, Http)
        return nullcontext(_ToolSession(self, client, offer))

    def lasting(self, duration_ns: int) -> Any:
        """The settings of a run that time alone ends."""
        return replace(self.settings, time_limit_ns=duration_ns)

    @abstractmethod
    def drive(self, settings: Any, client: Client, offer: Http) -> Measurement:
        """Run the tool once. TrialError when it gives up, or does not end."""


@dataclass(frozen=True)
class _ToolSession(Session):
    load: HttpTool
    client: Client
    offer: Http

    def warm_up(self, duration_ns: int | None = None) -> None:
        """Run it for ``duration_ns`` or its settings' ``warm_up_ns`` (whole seconds), and keep nothing of it."""
        if (length_ns := self.load.settings.warm_up_ns if duration_ns is None else duration_ns) > 0:
            self.load.drive(self.load.lasting(length_ns), self.client, self.offer)

    def measure(
        self, *, intensity: float | None = None, duration_ns: int | None = None, start_ns: int | None = None
    ) -> Measurement:
        """See `Session.measure`; TrialError where it is to begin at a time, which no such tool can."""
        if start_ns is not None:
            raise TrialError(f"{self.load.name} begins when it is started, not at a time", where="loads", remedy=_OURS)
        settings = self.load.settings if duration_ns is None else self.load.lasting(duration_ns)
        settings = at_intensity(settings, self.load.loop, intensity, users="connections")
        measurement = self.load.drive(settings, self.client, self.offer)
        return replace(measurement, window=measurement.window.model_copy(update={"at": intensity}))


_OURS = 'use [load] name = "http"'


@dataclass(frozen=True)
class Output:
    """What a tool printed, and when it ended (CLOCK_MONOTONIC)."""

    stdout: str
    stderr: str
    end_ns: int


def missing(host: Host, tool: str, package: str) -> list[Problem]:
    """A problem where ``tool`` is not installed."""
    found = host.run(["sh", "-c", 'command -v "$1"', "sh", tool], check=False).returncode == 0
    return [] if found else [Problem(f"{tool} is not installed", host.where, f"apt-get install {package}")]


_ASKS_WHO = (401, 407)  # which siege counts as a success, and asks again


def refuse_misleading(client: Client, offer: Http, settings: ToolSettings) -> None:
    """TrialError where a path of the user's own leads elsewhere, or asks who one is: a tool that calls this takes the
    answer that says so for the thing itself. Of a service that does not answer the tool tells.
    """
    if settings.content is not None:
        return
    try:
        status = client.get(offer, settings.target).status
    except TrialError:
        return
    answered = f"{offer.url(settings.target)} is answered with status {status}"
    if status // 100 == 3:
        raise TrialError(f"{answered}, which leads elsewhere", where="[load] path", remedy="name the path it leads to")
    if status in _ASKS_WHO:
        raise TrialError(
            f"{answered}, which asks who one is", where="[load] path", remedy="name one that is open to all"
        )


def length_of(client: Client, offer: Http, settings: ToolSettings) -> int | None:
    """Of what is asked for; None where nobody knows. A path of the user's own is asked twice: TrialError where its
    answers have another length each time, for a tool that calls this takes for failures what differs from the first.
    """
    if settings.content is not None:
        return settings.length_bytes
    try:
        first, again = (client.get(offer, settings.target) for _ in range(2))
    except TrialError:
        return None
    if not first.status == again.status == 200:
        return None
    if first.length_bytes != again.length_bytes:
        what = f"{offer.url(settings.target)} is {first.length_bytes} bytes long, and then {again.length_bytes}"
        raise TrialError(f"{what}: what differs is a failure to ab", where="[load] path", remedy=_OURS)
    return first.length_bytes


def run(client: Client, argv: Sequence[str], expected_s: float, env: Mapping[str, str] | None = None) -> Output:
    """Run a tool where the client stands, for at most ``expected_s`` and some grace.

    TrialError with the tool's words when it fails, or does not end: then it is killed (SIGTERM may be ignored).
    """
    tool = argv[0]
    limit_s = expected_s + _GRACE_S
    # The tool dies with `timeout`, as that does with us: `--target` has no group in a ledger to end it by.
    bounded = ["timeout", "-k", "2", f"{limit_s:.0f}", "setpriv", "--pdeathsig", "KILL", "--", *argv]
    try:
        done = client.host.run(
            bounded, timeout_s=limit_s + _BEGINS_S, check=False, env=env, confinement=client.confinement
        )
    except CommandError as error:
        raise TrialError(error.problem.what, where=client.host.where, remedy=error.problem.remedy) from error
    end_ns = time.monotonic_ns()
    stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if done.returncode in (124, 137, -9):  # timeout's own SIGKILL can hit timeout too
        raise TrialError(f"{tool} did not end within {limit_s:.0f} s and was killed", where=client.host.where)
    if done.returncode != 0:
        said = "; ".join((stderr.strip() or stdout.strip()).splitlines()[-3:])
        raise TrialError(f"{tool} gave up with exit {done.returncode}: {said}", where=client.host.where)
    return Output(stdout, stderr, end_ns)


def measurement(
    tool: str,
    output: Output,
    duration_ns: int,
    events: Events,
    *,
    body_bytes: int | None = None,
    values: Mapping[str, float] = {},
) -> Measurement:
    """All of what a tool reports: none tells what was still under way at its end, nor what CPU time it used.

    ``values``: of the load's own quantities.
    """
    counts = {"completed": events.completed} | ({} if body_bytes is None else {"body_bytes": body_bytes})
    window = Window(
        start_ns=output.end_ns - duration_ns,
        duration_ns=duration_ns,
        work=events.completed,
        values=dict(values),
        counts=counts,
        events={"request": events},
    )
    return Measurement(tool, window)


def events(
    intended: int, offered: int, completed: int, failures: Mapping[str, int], percentiles_ns: Mapping[str, int] = {}
) -> Events:
    """A tool's counts of requests."""
    told = {kind: count for kind, count in failures.items() if count}
    return Events(
        intended=intended,
        offered=offered,
        completed=completed,
        failures=told,
        censored=sum(told.values()),
        percentiles_ns=dict(percentiles_ns),
    )


def unreadable(tool: str, output: str) -> TrialError:
    """The error for a report that is not as the fixtures show it."""
    return TrialError(f"the report of {tool} could not be read:\n{output[:2000]}", where=f"loads/{tool}")


@contextmanager
def reading(tool: str, said: str) -> Iterator[None]:
    """Read a report: whatever is not as it should be in it is a TrialError with its beginning."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise unreadable(tool, said) from None


def span_ns(seconds: float) -> int:
    """A run's seconds in nanoseconds; ValueError where no time passed, or more than any run takes."""
    if not 0 < seconds < _MOST_S:
        raise ValueError(f"{seconds} s")
    return max(1, round(seconds * 1e9))


def expect_finite(values: Mapping[str, float]) -> None:
    """ValueError where a figure is no finite number from 0 on."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}")


def whole_seconds(duration_ns: int) -> int:
    """What a tool that counts in seconds is told: rounded up, at least one."""
    return max(1, math.ceil(duration_ns / 10**9))
