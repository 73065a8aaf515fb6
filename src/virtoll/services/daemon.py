"""Starts a server program inside an instance and waits until it listens. Talks to the agent only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from virtoll.agent import Agent
from virtoll.errors import AgentError, TrialError
from virtoll.platforms.base import Instance

Protocol = Literal["tcp", "udp"]

DIRECTORY = "/run/virtoll"  # inside: configuration, logs, pid files
# State of a socket that listens, in /proc/net/tcp and udp (include/net/tcp_states.h: TCP_LISTEN, TCP_CLOSE).
_LISTEN = {"tcp": "0A", "udp": "07"}
_POLL_S = 0.02
_LOG_TAIL_BYTES = 2000


def start(
    instance: Instance,
    name: str,
    argv: Sequence[str],
    port: int,
    *,
    protocol: Protocol = "tcp",
    deadline_s: float = 60.0,
) -> int:
    """Spawn ``argv`` and return its process id when a socket listens on ``port`` (IPv4).

    TrialError, with the end of the program's log, when it ends first or the deadline passes. The deadline is
    generous: an emulated machine needs seconds where a container needs milliseconds.
    """
    agent, log = instance.agent, log_path(name)
    if is_listening(agent, port, protocol):
        raise TrialError(
            f"port {port} is taken before {name} was started",
            where=f"{instance.platform}, inside the instance",
            remedy="end the program that holds it (ss -ltnp), or give the service another port",
        )
    pid = agent.spawn(argv, log=log)
    deadline = time.monotonic() + deadline_s
    while not is_listening(agent, port, protocol):
        if not agent.alive(pid):
            raise _not_started(instance, name, "ended at once", log)
        if time.monotonic() > deadline:
            raise _not_started(instance, name, f"did not listen on port {port} within {deadline_s:g} s", log)
        time.sleep(_POLL_S)
    return pid


def log_path(name: str) -> str:
    """Where, inside, a service's standard output and error go."""
    return f"{DIRECTORY}/{name}.log"


def is_listening(agent: Agent, port: int, protocol: Protocol = "tcp") -> bool:
    """Whether a socket over IPv4 listens on ``port`` in the instance's network namespace."""
    # Filtered inside: a namespace that has served a load holds tens of thousands of sockets in TIME_WAIT.
    socket = f"^ *[0-9]+: [0-9A-F]{{8}}:{port:04X} 00000000:0000 {_LISTEN[protocol]} "
    return agent.run(["grep", "-Eqm1", socket, f"/proc/net/{protocol}"]).returncode == 0


def _not_started(instance: Instance, name: str, what: str, log: str) -> TrialError:
    try:
        tail = instance.agent.run(["tail", "-c", str(_LOG_TAIL_BYTES), log]).stdout.decode(errors="replace").strip()
    except AgentError as error:
        tail = f"(its log cannot be read: {error.problem.what})"
    return TrialError(
        f"{name} {what}; its log ends with:\n{tail or '(nothing)'}",
        where=f"{instance.platform}, inside the instance",
        remedy="the log names the cause; often the memory or process limit is too small for the service",
    )
