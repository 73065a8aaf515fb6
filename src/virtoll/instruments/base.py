"""The seam of an outside instrument: a known tool in the place of one of our probes."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.probes.base import Place, ProbeError, ProbeResult
from virtoll.registry import Part, implementations

_GRACE_S = 60.0  # beyond what a tool was told to take


class Instrument(Part):
    """A tool that measures the same quantities, under the same keys, as the probes it stands for.

    It runs where the probe runs: inside the instance, whose image holds ``packages``; a client of a network probe on
    the generator's side.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    when_it_gives_up: ClassVar[str] = ""  # what to do then

    @property
    def tool(self) -> str:
        """The program of this machine's that it runs beside the instance; "" of none."""
        return ""

    def check(self, host: Host) -> list[Problem]:  # noqa: ARG002
        """What is missing on the client's host; empty when ready."""
        return []

    @abstractmethod
    def stands_for(self, probe: str, settings: Any) -> bool:
        """Whether it can do the same work as this probe with these settings."""

    @abstractmethod
    def run(self, place: Place, probe: str, settings: Any) -> ProbeResult:
        """Measure the same, window for window. ProbeError says why it could not."""


def ran_inside(tool: Instrument, place: Place, probe: str, argv: Sequence[str], seconds: int) -> tuple[str, int]:
    """What a tool says that runs for so many seconds inside, and when it ended by the instance's clock.

    ProbeError with its last words where it gives up.
    """
    agent = place.instance.agent
    done = agent.run(argv, timeout_s=seconds + _GRACE_S)
    end_ns = time.monotonic_ns() + agent.clock().offset_ns
    said = (done.stdout + done.stderr).decode(errors="replace")
    if done.returncode != 0:
        raise ProbeError(
            f"{tool.name} gave up with exit {done.returncode}: {said.strip()[-300:]}",
            kind="system",
            where=f"instrument {tool.name}, probe {probe}",
            remedy=tool.when_it_gives_up,
        )
    return said, end_ns


def instruments() -> dict[str, type[Instrument]]:
    """All outside instruments by name."""
    return implementations("virtoll.instruments", Instrument)
