"""An agent that is reached through the standard input and output of the process that holds the instance."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from virtoll.agent import Agent, AgentClient, PipeStream
from virtoll.errors import AgentError, PlatformError
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.local import end_session
from virtoll.images.base import AGENT

SERVE = (AGENT, "serve")
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # all the environment an instance gets


@contextmanager
def agent_on_stdio(
    host: Host, argv: Sequence[str], *, log: Path, confinement: Confinement, platform: str
) -> Iterator[tuple[Agent, subprocess.Popen[bytes]]]:
    """Start ``argv`` (its stderr goes to ``log``) and greet the agent behind it; kill its session at the end.

    PlatformError with what ``log`` says when no agent answers.
    """
    with log.open("wb") as stderr:
        process = host.spawn(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr.fileno(), confinement=confinement
        )
    stream = PipeStream(process)
    try:
        try:
            agent = AgentClient(stream)
        except AgentError as error:
            raise PlatformError(
                f"the instance did not come up: {error.problem.what}\n{tail(log)}",
                where=platform,
                remedy="`virtoll doctor` shows what this machine lacks",
            ) from error
        yield agent, process
    finally:
        stream.close()
        end_session(process)


def tail(log: Path, lines: int = 12) -> str:
    """The last lines of a log, for an error message."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
