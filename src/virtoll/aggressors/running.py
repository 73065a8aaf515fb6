"""An aggressor under way: how it is started in the neighbour, stopped, and read."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Self

from virtoll.aggressors.result import AggressorResult, StoppedBy, parse
from virtoll.binaries import binary
from virtoll.errors import AgentError
from virtoll.hosts.local import end_session
from virtoll.lab.client import Client
from virtoll.platforms.base import Instance

DIRECTORY = "/run/virtoll"  # inside: where the logs are
# To give back what it holds, and report. One that is killed holds its memory while it ends, and is no process any more
# that the OOM killer could choose: the agent's next page would cost the agent its life.
_GRACE_S = 5.0
_FLOOD_GRACE_S = 30.0  # for a flood on the generator's side to write its report


class Flood:
    """The part of an aggressor that runs on the generator's side. It ends with its duration, or when it is told to."""

    def __init__(self, client: Client, arguments: Sequence[str]) -> None:
        self._name = arguments[1]
        self._log = client.directory / f"aggressor-{self._name}-{time.monotonic_ns()}.log"
        argv = [str(binary("virtoll-agent")), *arguments]
        with self._log.open("wb") as log:
            self._process = client.host.spawn(
                argv, stdout=log.fileno(), stderr=subprocess.STDOUT, confinement=client.confinement
            )

    def stop(self) -> AggressorResult:
        """End it for certain; what it did."""
        stopped_by: StoppedBy = "itself"
        if self._process.poll() is None:
            stopped_by = "host"
            self._process.terminate()
        try:
            self._process.wait(_FLOOD_GRACE_S)
        except subprocess.TimeoutExpired:
            end_session(self._process)  # and its group dies with it
        try:
            result = parse(self._name, self._log.read_bytes())
        except (AgentError, OSError) as error:
            result = AggressorResult(self._name, "killed", f"its log: {error}")
        return replace(result, stopped_by=stopped_by)


@dataclass
class Running:
    """An aggressor that was started. `stop` it, or leave the ``with`` block."""

    name: str
    neighbour: Instance
    pid: int  # inside
    log: str  # inside
    flood: Flood | None
    result: AggressorResult | None = None  # once it was stopped

    @classmethod
    def start(
        cls, name: str, argv: Sequence[str], neighbour: Instance, client: Client, flood: Sequence[str]
    ) -> Running:
        """Start ``argv`` in the neighbour, then ``flood`` (the agent's arguments; empty for none) at the client's.

        AgentError with the agent's own words when it cannot be started inside; HostError for the flood.
        """
        log = f"{DIRECTORY}/aggressor-{name}-{time.monotonic_ns()}.log"
        with ExitStack() as undo:
            pid = neighbour.agent.spawn(argv, log=log)
            undo.callback(neighbour.agent.kill, pid)
            running = cls(name, neighbour, pid, log, Flood(client, flood) if flood else None)
            undo.pop_all()
        return running

    def stop(self, timeout_s: float = 30.0) -> AggressorResult:
        """End it and read what it did; nothing of it is left, unless the agent gives no answer in time.

        Then ``stopped_by`` is *host*, and the caller must kill the neighbour's cgroup: its agent is of no more use,
        for an answer may still be under way. So it is with a log that is none. Asked again, it says the same again.
        """
        if self.result is None:
            flood = self.flood.stop() if self.flood is not None else None
            self.result = replace(self._stopped(timeout_s), flood=flood)
        return self.result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _stopped(self, timeout_s: float) -> AggressorResult:
        outcome: list[AggressorResult | Exception] = []
        asking = threading.Thread(target=lambda: outcome.append(self._ask()), daemon=True)
        asking.start()
        asking.join(timeout_s)
        match outcome:
            case [AggressorResult() as result]:
                return result
            case [AgentError() as error]:
                reason = str(error)
            case [Exception() as error]:
                raise error
            case _:
                reason = f"the neighbour's agent did not answer within {timeout_s:g} s"
        return AggressorResult(self.name, "killed", reason, stopped_by="host")

    def _ask(self) -> AggressorResult | Exception:
        agent = self.neighbour.agent
        try:
            stopped_by: StoppedBy = "agent" if agent.alive(self.pid) else "itself"
            agent.kill(self.pid, _GRACE_S)  # its whole session; one that has ended is no error
            result = parse(self.name, agent.get(self.log), lived=stopped_by == "agent")
            return replace(result, stopped_by=stopped_by)
        except Exception as error:  # whatever it is: a thread's error is seen by nobody
            return error
