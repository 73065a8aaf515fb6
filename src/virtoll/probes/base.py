"""The seam of a probe: a micro benchmark of one instance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from virtoll.errors import Problem, TrialError
from virtoll.lab.client import Client
from virtoll.offers import Port
from virtoll.platforms.base import Instance
from virtoll.record.model import Check, Phase, Quantity, Window
from virtoll.registry import Part, implementations
from virtoll.study.limits import Limits
from virtoll.units import within


class ProbeError(TrialError):
    """A probe could not measure.

    ``kind`` is a word for programs: memory, huge-pages, direct-io, space, peer, killed, refused, system.
    """

    OWN = frozenset({"huge-pages", "direct-io", "refused", "system"})

    def __init__(self, what: str, *, kind: str, where: str = "", remedy: str = "") -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.kind = kind

    @property
    def is_own(self) -> bool:
        """Whether it says nothing of the instance: the probe cannot be run here, or its report cannot be read."""
        return self.kind in self.OWN


@dataclass(frozen=True)
class ProbeResult:
    """What a probe (or an outside instrument in its place) measured."""

    instrument: str  # name and version of what produced this
    windows: Sequence[Window]
    facts: Mapping[str, Any] = field(default_factory=dict)  # what ran: instruction set, page size, ...
    checks: Sequence[Check] = ()  # what it verified of its own work; a failed one makes the trial invalid
    notes: Sequence[str] = ()
    histogram: Sequence[tuple[int, int, int]] | None = None  # (lower_ns, upper_ns, count) of single events
    series: Sequence[tuple[int, str, str, int]] = ()  # t_ns (host's CLOCK_MONOTONIC), source, counter, value


@dataclass(frozen=True)
class Slice:
    """An instance on node A (near) and its partner on node B (far), with a channel of their own between them.

    Each reaches the other at its address, over that channel and no other way (`virtoll.lab.slices`).
    """

    index: int  # from 0; slice 0's near is the deployment's own instance
    near: Instance
    far: Instance
    near_address: str
    far_address: str
    rate_bit_per_s: int | None = None  # of the channel, each way; None: not shaped
    # The channel at another rate (bit/s) for the length of a block.
    reshaped: Callable[[int], AbstractContextManager[None]] | None = None


@dataclass(frozen=True)
class Place:
    """Where a probe runs: the instance, and the generator's side for whatever is its peer."""

    instance: Instance
    client: Client
    deployment: Sequence[Phase]  # how this instance came to be: session, deploy
    # A further instance like this one, by number from 1; nobody reaches it from outside, for it has no ports.
    another: Callable[[int], AbstractContextManager[Instance]]
    slices: Sequence[Slice] = ()  # where the study asks for them


@dataclass(frozen=True)
class Timed:
    """Settings of a probe that measures several windows in one deployment.

    A window is about so long (``time``), or holds so many units of ``work``: what a unit is, docs/PROBES.md says.
    """

    windows: int = within(3, least=1, most=1000)
    time_ns: int = within(500_000_000, least=1_000_000)
    work: int | None = within(None, least=1)

    @property
    def window_ns(self) -> int | None:
        """How long each window is to last at least about; None where nothing says so beforehand, as of fixed work."""
        return self.time_ns if self.work is None else None

    @property
    def expected_s(self) -> float:
        """About how long it takes: its windows, its warm-up, and what it needs besides; only for estimates."""
        return (self.windows + 0.5) * self.time_ns / 1e9 + 0.3


class Probe(Part):
    """One probe. Its ``Settings`` are derived from `Timed`."""

    quantities: ClassVar[Mapping[str, Quantity]] = {}
    headline: ClassVar[str] = ""  # the quantity that stands for the probe where there is room for one
    packages: ClassVar[tuple[str, ...]] = ()  # Debian packages the image needs
    ports: ClassVar[tuple[Port, ...]] = ()  # where the generator's side must reach the instance
    counts_losses: ClassVar[bool] = False  # it offers more than goes through: what the lab's links drop is its result
    timed_inside: ClassVar[bool] = False  # its windows' times are the instance's CLOCK_MONOTONIC, not the host's
    tells_of_start: ClassVar[bool] = False  # of the deployment itself, which is over before a neighbour is there
    fills_host: ClassVar[bool] = False  # it takes what the host has left, and whoever stands there takes of that
    runs_anywhere: ClassVar[bool] = False  # it needs the instance's agent and a peer alone, nothing seen from outside
    slices: ClassVar[int] = 0  # how many slices it needs at least ([slices] count)
    Settings: ClassVar[type[Any]] = Timed

    def check(self, limits: Limits) -> list[Problem]:  # noqa: ARG002
        """What cannot be measured within these limits, with the largest that can; empty when all can."""
        return []

    @abstractmethod
    def run(self, place: Place) -> ProbeResult:
        """Measure. ProbeError (or AgentError, when the instance died) says why it could not."""


def probes() -> dict[str, type[Probe]]:
    """All probes by name."""
    return implementations("virtoll.probes", Probe)
