"""An agent that is reached through the standard input and output of the process that holds the instance."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from virtoll.agent import Agent, AgentClient, PipeStream
from virtoll.errors import AgentError, PlatformError
from virtoll.hosts.base import Confinement, Host
from virtoll.hosts.local import end_session
from virtoll.images.base import AGENT
from virtoll.images.config import DEFAULT_PATH
from virtoll.platforms.logs import bounded, ending

SERVE = (AGENT, "serve")
PATH = f"PATH={DEFAULT_PATH}"  # all the environment an instance gets


@contextmanager
def agent_on_stdio(
    host: Host,
    argv: Sequence[str],
    *,
    log: Path,
    confinement: Confinement,
    platform: str,
    streamed: Callable[[subprocess.Popen[bytes]], PipeStream] = PipeStream,
) -> Iterator[tuple[Agent, subprocess.Popen[bytes]]]:
    """Start ``argv`` (its stderr goes to ``log``) and greet the agent behind it; kill its session at the end.

    PlatformError with what ``log`` says when no agent answers. ``streamed``: the stream over that process.
    """
    with ExitStack() as stack:
        stderr = stack.enter_context(bounded(log))  # it becomes that of the agent, and of what root inside starts
        process = host.spawn(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, confinement=confinement
        )
        stack.callback(end_session, process)
        stream = streamed(process)
        stack.callback(stream.close)
        try:
            agent = AgentClient(stream)
        except AgentError as error:
            stack.close()  # then all that was said is in the log
            raise PlatformError(
                f"the instance did not come up: {error.problem.what}\n{tail(log)}",
                where=platform,
                remedy="`virtoll doctor` shows what this machine lacks",
            ) from error
        yield agent, process


def tail(log: Path, lines: int = 12) -> str:
    """The last lines of a log, for an error message."""
    return "\n".join(ending(log).splitlines()[-lines:])
