"""What the outside instruments have in common: a bounded run of a tool that reports in its own words."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from virtoll.errors import CommandError, Problem, TrialError
from virtoll.hosts.base import Host
from virtoll.loads.base import Client
from virtoll.record.model import LoadWindow

_MOST_S = 1e6  # that any run takes
_GRACE_S = 10  # beyond what a tool was told to take


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


def run(client: Client, argv: Sequence[str], expected_s: float, env: Mapping[str, str] | None = None) -> Output:
    """Run a tool where the client stands, for at most ``expected_s`` and some grace.

    TrialError with the tool's words when it fails, or does not end: then it is killed (SIGTERM may be ignored).
    """
    tool = argv[0]
    limit_s = expected_s + _GRACE_S
    bounded = ["timeout", "-k", "2", f"{limit_s:.0f}", *argv]
    try:
        done = client.host.run(bounded, timeout_s=limit_s + 10, check=False, env=env, confinement=client.confinement)
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


def window(output: Output, duration_ns: int, completed: int, body_bytes: int | None = None) -> LoadWindow:
    """All of what a tool reports: none tells what was still under way at its end, nor what CPU time it used."""
    return LoadWindow(
        start_ns=output.end_ns - duration_ns,
        end_ns=output.end_ns,
        completed=completed,
        body_bytes=body_bytes,
        cpu_user_ns=None,
        cpu_system_ns=None,
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
