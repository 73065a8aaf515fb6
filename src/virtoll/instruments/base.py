"""The seam of an outside instrument: a known tool in the place of one of our probes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from virtoll.errors import Problem
from virtoll.hosts.base import Host
from virtoll.probes.base import Place, ProbeResult
from virtoll.registry import implementations


class Instrument(ABC):
    """A tool that measures the same quantities, under the same keys, as the probes it stands for.

    It runs where the probe runs: inside the instance, whose image holds ``packages``; a client of a network probe on
    the generator's side.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    packages: ClassVar[tuple[str, ...]] = ()

    def check(self, host: Host) -> list[Problem]:  # noqa: ARG002
        """What is missing on the client's host; empty when ready."""
        return []

    @abstractmethod
    def stands_for(self, probe: str, settings: Any) -> bool:
        """Whether it can do the same work as this probe with these settings."""

    @abstractmethod
    def run(self, place: Place, probe: str, settings: Any) -> ProbeResult:
        """Measure the same, window for window. ProbeError says why it could not."""


def instruments() -> dict[str, type[Instrument]]:
    """All outside instruments by name."""
    return implementations("virtoll.instruments", Instrument)
