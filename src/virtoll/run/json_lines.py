"""How a run is told to a program: JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Self

from virtoll.record.model import Plan, PlannedTrial, TrialRecord
from virtoll.record.rules import Look
from virtoll.record.store import is_interrupted


class JsonProgress:
    """One JSON object a line, for programs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        return None

    def say(self, text: str) -> None:
        """{"event": "preparing", "text": ...}."""
        self.emit("preparing", text=text)

    def planned(self, plan: Plan, sealed: Iterable[TrialRecord]) -> None:
        """{"event": "planned", ...}. What was interrupted comes again, and is not counted."""
        self.emit(
            "planned", trials=len(plan.trials), blocks=plan.blocks, seed=plan.seed, estimate_s=plan.estimate_s,
            sealed=sum(not is_interrupted(record) for record in sealed), groups=plan.groups,
        )  # fmt: skip

    def looked(self, look: Look) -> None:
        """{"event": "look", "look": ...}: as in looks.jsonl."""
        self.emit("look", look=look.model_dump())

    def trial_started(self, trial: PlannedTrial) -> None:
        """{"event": "started", ...}."""
        self.emit("started", trial=trial.model_dump())

    def phase(self, trial: PlannedTrial, name: str) -> None:
        """{"event": "phase", ...}."""
        self.emit("phase", trial=trial.id, phase=name)

    def trial_sealed(self, record: TrialRecord) -> None:
        """{"event": "sealed", "record": ...}: the record as in trials.jsonl."""
        self.emit("sealed", record=record.model_dump())

    def emit(self, event: str, **values: object) -> None:
        """Any event."""
        print(json.dumps({"event": event, **values}), flush=True)
