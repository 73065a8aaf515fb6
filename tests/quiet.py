"""Nobody looks on, but for the records that are kept."""

from __future__ import annotations

from virtoll.record.model import PlannedTrial, TrialRecord


class Quiet:
    """A reporter that reports to nobody (`virtoll.run.execute.Reporter`)."""

    def __init__(self) -> None:
        self.sealed: list[TrialRecord] = []

    def trial_started(self, trial: PlannedTrial) -> None: ...

    def phase(self, trial: PlannedTrial, name: str) -> None: ...

    def trial_sealed(self, record: TrialRecord) -> None:
        self.sealed.append(record)
