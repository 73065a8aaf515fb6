"""The seam of an aggressor: a neighbour of the instance under test that misbehaves, within caps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from virtoll.agent.base import StreamError
from virtoll.aggressors.running import Running
from virtoll.errors import AgentError, Problem, TrialError
from virtoll.images.base import AGENT
from virtoll.lab.base import GENERATOR_ADDRESS
from virtoll.lab.client import Client
from virtoll.platforms.base import Instance
from virtoll.registry import Part, implementations
from virtoll.study.limits import Limits
from virtoll.units import format_bytes

_SERIES_NS = 100_000_000
_SPARE_PIDS = 16  # for the agent, the aggressor's supervisor, and what an image runs anyway
_MEMORY_SHARE = 0.5
_MOST_LINES = 4000  # of a series: its log must fit one `Agent.get`


class AggressorError(TrialError):
    """An aggressor cannot run at this place: a reason to record, and never a zero."""


@dataclass(frozen=True)
class Place:
    """Where an aggressor runs: the neighbour, the generator's side, and where a flood out of the neighbour goes."""

    neighbour: Instance
    client: Client
    target_address: str = GENERATOR_ADDRESS


@dataclass(frozen=True)
class Caps:
    """Settings of an aggressor: field ``most_bytes`` becomes ``--most-bytes``."""


class Aggressor(Part):
    """One aggressor.

    ``Settings`` is derived from `Caps`; studies take its defaults. A cap of None is worked out from the neighbour's
    limits (`caps`).
    """

    counts: ClassVar[tuple[str, ...]] = ()  # what it counts; the first says whether it did anything
    Settings: ClassVar[type[Any]] = Caps

    def check(self, limits: Limits) -> list[Problem]:  # noqa: ARG002
        """What cannot be within a neighbour's limits, with what can; empty when all can."""
        return []

    def caps(self, place: Place) -> dict[str, Any]:  # noqa: ARG002
        """The settings by name, as they are in force at this place. AggressorError where it cannot run there."""
        return {field.name: getattr(self.settings, field.name) for field in dataclasses.fields(self.settings)}

    def command(self, place: Place, duration_ns: int) -> list[str]:
        """What is run in the neighbour. See `caps` for its errors."""
        return [AGENT, *arguments(self.name, duration_ns, self.caps(place))]

    def flood(self, place: Place, duration_ns: int) -> list[str]:  # noqa: ARG002
        """The agent's arguments for what must run on the generator's side meanwhile; empty for nothing."""
        return []

    def start(self, place: Place, duration_ns: int) -> Running:
        """Start it in the neighbour; it ends after ``duration_ns``, or by `Running.stop`.

        AggressorError when it cannot be started there. StreamError when the neighbour's agent is gone, HostError where
        its flood cannot be started here: that is our own failure.
        """
        command, flood = self.command(place, duration_ns), self.flood(place, duration_ns)
        try:
            return Running.start(self.name, command, place.neighbour, place.client, flood)
        except StreamError:
            raise
        except AgentError as error:
            problem = error.problem
            raise AggressorError(
                problem.what, where=f"aggressor {self.name}: {problem.where}", remedy=problem.remedy
            ) from error


def arguments(name: str, duration_ns: int, caps: Mapping[str, Any]) -> list[str]:
    """The agent's arguments for an aggressor."""
    series_ns = max(_SERIES_NS, -(-duration_ns // _MOST_LINES))
    words = ["aggress", name, "--duration-ns", str(duration_ns), "--series-ns", str(series_ns)]
    for key, value in caps.items():
        words += [f"--{key.replace('_', '-')}", str(value)]
    return words


def too_many_threads(name: str, threads: int, limits: Limits) -> list[Problem]:
    """The problem of more threads than a limit of processes leaves: such a limit is the fork bomb's matter."""
    room = limits.pids - _SPARE_PIDS
    if threads <= room:
        return []
    what = f"{threads} threads are more than [limits] pids leaves ({max(room, 0)})"
    return [Problem(what, f"aggressor {name}", "choose fewer threads, or raise [limits] pids")]


def too_much_memory(name: str, need_bytes: int, limits: Limits) -> list[Problem]:
    """The problem of more memory than half of the limit: being killed for it is the memory bomb's matter."""
    room_bytes = int(_MEMORY_SHARE * limits.memory_bytes)
    if need_bytes <= room_bytes:
        return []
    what = f"it holds {format_bytes(need_bytes)}, and [limits] memory leaves {format_bytes(room_bytes)}"
    return [Problem(what, f"aggressor {name}", "choose less, or raise [limits] memory")]


def aggressors() -> dict[str, type[Aggressor]]:
    """All aggressors by name."""
    return implementations("virtoll.aggressors", Aggressor)


def make_aggressor(name: str) -> Aggressor:
    """The aggressor of that name, with its usual caps."""
    return aggressors()[name]()
