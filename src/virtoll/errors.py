"""What can go wrong, in one place.

Every error says *what* happened, *where*, and *what to do*; `EXIT_CODES` says what a program is told.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

INTERRUPTED = 130
GOES_ON = "`virtoll run RUNDIR` goes on with a run that this ended"  # in a remedy, of what may have ended one
WORSE, UNTOLD = 5, 6  # what a comparison of two runs comes to, where a threshold was given

# What `virtoll` exits with, and what that means. docs/EXIT_CODES.md and the manual page show this table.
EXIT_CODES = {
    0: "all went well; of a run: every trial is valid",
    1: "it came to its end, but not all is well: trials failed or are invalid, or a time budget ended the run early",
    2: "what was asked for is wrong: a study file, an option, a word; nothing was changed",
    3: "this machine cannot do it: something is missing, or another virtoll is at work",
    4: "a run directory cannot be read or written; what is sealed in it is safe",
    5: "`compare --fail-over`: it is worse by more than that, surely",
    6: "`compare --fail-over`: whether it is worse by more than that cannot be told",
    7: "`compare`: the two runs cannot be compared",
    INTERRUPTED: "interrupted, or nobody reads its output any more; all is undone, and `virtoll run RUNDIR` goes on",
}


@dataclass(frozen=True)
class Problem:
    """One thing that stands in the way, found without changing anything."""

    what: str
    where: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n    -> {self.remedy}" if self.remedy else text


class VirtollError(Exception):
    """Base of all errors that virtoll raises on purpose."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.problem = Problem(what, where, remedy)
        super().__init__(str(self.problem))


class StudyError(VirtollError):
    """The study file is wrong. Carries every problem found, not only the first."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class HostError(VirtollError):
    """The machine cannot do what was asked of it."""

    exit_code = 3


class CommandError(HostError):
    """A command on a host failed or ran out of time."""


class DiskError(HostError):
    """What virtoll itself has to write on a machine cannot be written: the disk is full, or broken. Stops the study at
    once, for so would be every trial that is left; the one under way comes again.
    """

    @classmethod
    def of(cls, error: Exception) -> Self | None:
        """The error as one of these; None where it says of no disk that it is full."""
        if isinstance(error, cls):
            return error
        if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return None
        return cls(f"{error.strerror}", where=str(error.filename or ""), remedy=f"make room; {GOES_ON}")


class PlatformError(VirtollError):
    """A platform could not make, keep or end an instance."""


class AgentError(VirtollError):
    """The agent did not answer, or answered with an error."""


class TrialError(VirtollError):
    """A trial could not be completed. Recorded; the study goes on."""


class GoneError(VirtollError):
    """Another machine that a run cannot do without is lost. The trial under way comes again, and none is begun."""


class UnheardError(VirtollError):
    """Nobody reads a run's progress any more. The run ends as if interrupted, after the trial under way."""

    exit_code = INTERRUPTED


class StoreError(VirtollError):
    """The run directory cannot be written or read. Stops the study at once."""

    exit_code = 4


class IncomparableError(VirtollError):
    """Two runs of which nothing can be compared."""

    exit_code = 7
