"""Starts a server program inside an instance and waits until it listens. Talks to the agent only."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence

from virtoll.agent import Agent, Transport
from virtoll.errors import AgentError, TrialError
from virtoll.platforms.base import Instance

DIRECTORY = "/run/virtoll"  # inside: configuration, logs, pid files
_POLL_S, _READY_POLL_S = 0.02, 0.05
LOG_TAIL_BYTES = 2000
# Before a program that takes more open files than the soft limit: how far it raises that by itself differs by platform.
ALL_FILES = ("sh", "-c", 'ulimit -n "$(ulimit -Hn)"; exec "$0" "$@"')


class NotStartedError(TrialError):
    """A program was begun inside, and does not come up."""


def start(
    instance: Instance,
    name: str,
    argv: Sequence[str],
    port: int,
    *,
    protocol: Transport = "tcp",
    deadline_s: float = 60.0,
    env: Mapping[str, str] | None = None,
    cwd: str = "",
    user: str = "",
) -> int:
    """Spawn ``argv`` and return its process id when a socket listens on ``port`` (`Agent.listening`).

    It stays in the foreground, and to the instance's end: that it still runs is proved after the window.
    ``env``, ``cwd`` and ``user`` as `Agent.spawn` has them. NotStartedError, with the end of the program's log, when it
    ends first or the deadline passes; TrialError where the port is taken. The deadline is generous: an emulated machine
    needs seconds where a container needs milliseconds.
    """
    agent, log = instance.agent, log_path(name)
    if agent.listening(port, protocol):
        raise TrialError(
            f"port {port} is taken before {name} was started",
            where=f"{instance.platform}, inside the instance",
            remedy="end the program that holds it (ss -ltnp), or give the service another port",
        )
    pid = agent.spawn(argv, log=log, env=env, cwd=cwd, user=user)
    instance.services[name] = pid
    deadline = time.monotonic() + deadline_s
    while not agent.listening(port, protocol):
        code = agent.returncode(pid)
        if code is not None:
            raise not_started(instance, name, f"ended at once {ended(code)}")
        if time.monotonic() > deadline:
            raise not_started(instance, name, f"did not listen on port {port} within {deadline_s:g} s")
        time.sleep(_POLL_S)
    return pid


def await_ready(instance: Instance, name: str, within_s: float, missing: Callable[[], str]) -> None:
    """Wait until nothing is ``missing`` (a few words, "" when it serves; a TrialError of its own is no answer yet).
    NotStartedError, with the end of its log, when the service ends first or the time passes.
    """
    deadline = time.monotonic() + within_s
    while said := _words_of(missing):
        code = instance.agent.returncode(instance.services[name])
        if code is not None:
            raise not_started(instance, name, f"ended {ended(code)} before it was ready")
        if time.monotonic() > deadline:
            raise not_started(instance, name, f"did not become ready within {within_s:g} s: {said}")
        time.sleep(_READY_POLL_S)


def _words_of(missing: Callable[[], str]) -> str:
    try:
        return missing()
    except TrialError as error:
        return error.problem.what


def log_path(name: str) -> str:
    """Where, inside, a service's standard output and error go."""
    return f"{DIRECTORY}/{name}.log"


def ended(code: int) -> str:
    """How a program ended, by its `Agent.returncode`: "with code 1", "by signal 9 (Killed)"."""
    if code >= 0:
        return f"with code {code}"
    known = -code in set(signal.Signals)
    return f"by signal {-code}" + (f" ({signal.strsignal(-code)})" if known else "")


def log_tail(agent: Agent, log: str, most_bytes: int = LOG_TAIL_BYTES) -> str:
    """The end of a log inside, for an error message; why not, where it cannot be read."""
    try:
        tail = agent.tail(log, most_bytes).decode(errors="replace").strip()
    except AgentError as error:
        return f"(its log cannot be read: {error.problem.what})"
    return tail or "(nothing)"


def not_started(instance: Instance, name: str, what: str) -> NotStartedError:
    """The error for a service that does not come up, with what it said."""
    return NotStartedError(
        f"{name} {what}; its log ends with:\n{log_tail(instance.agent, log_path(name))}",
        where=f"{instance.platform}, inside the instance",
        remedy="the log names the cause; often the memory or process limit is too small for the service",
    )
