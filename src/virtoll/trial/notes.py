"""What a trial writes down while it runs, and the seam behind which it runs.

Whoever performs a trial notes plain data; `virtoll.run.execute` seals them, and is the one that does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from virtoll.record.model import Audit, BesideRecord, Check, Measured, NeighbourRecord, Outcome, Phase, PlannedTrial

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Notes:
    """What a trial writes down while it runs. Whatever happens, what is noted so far is sealed."""

    directory: Path  # raw files may be put here
    on_phase: Callable[[str], None]
    measured: Measured | None = None
    neighbour: NeighbourRecord | None = None
    beside: list[BesideRecord] = field(default_factory=list)
    outcome: Outcome | None = None
    checks: list[Check] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    believes: dict[str, Any] = field(default_factory=dict)
    clock: dict[str, int] = field(default_factory=dict)
    audit: Audit | None = None
    tables: dict[str, pa.Table] = field(default_factory=dict)
    said: bytes = b""  # by the service: kept in the trial's log.txt
    waits: bool = False  # it has had its last window, and goes on when all others of its turn have had theirs

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a stretch of the trial and tell the user of it."""
        self.on_phase(name)
        start_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self.phases.append(Phase(name=name, start_ns=start_ns, duration_ns=time.monotonic_ns() - start_ns))

    def check(self, name: str, passed: bool | None, detail: str) -> None:
        """Note one proof. A failed one makes the trial invalid."""
        self.checks.append(Check(name=name, passed=passed, detail=detail))


Course = Generator[None, None, None]


class Experiment(Protocol):
    """Performs trials. Nothing of a deployment outlives the last trial that shares it."""

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        """A trial, step by step: it stands still wherever others that it is measured in turn with may go on.

        That is once it is ready, and after each of its windows; a course that is closed undoes what it made.
        Raise a VirtollError when the trial could not be completed; note failed checks when it is not valid.
        """
        ...


def to_the_end(course: Course) -> None:
    """A trial that is measured in turn with nobody."""
    for _ in course:
        pass
