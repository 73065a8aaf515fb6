"""A host of a fleet as a process of its own: the command as it is, above a lab that is a fake.

``FLEET_HOLD``: a file; once it exists, the trial under way here writes its id to ``FLEET_HOLD.held`` and stands still
until it is interrupted, which ``FLEET_HOLD.undone`` tells.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from on_fakes import on_fakes
from undrawn import UNDRAWN, nothing
from virtoll import cli
from virtoll.fakes import FakeExperiment
from virtoll.record.model import PlannedTrial
from virtoll.run.stage import Stage
from yard import wait_for_fleets


def _hold(trial: PlannedTrial) -> None:
    hold = Path(os.environ["FLEET_HOLD"])
    if not hold.exists():
        return
    try:
        hold.with_suffix(".held").write_text(trial.id)
        while True:
            time.sleep(0.1)  # for ever, an interrupt that came just before it would not be noticed
    finally:
        hold.with_suffix(".undone").touch()


@contextmanager
def _lab(_stage: Stage, _images: object, _pending: Sequence[PlannedTrial]) -> Iterator[FakeExperiment]:
    yield FakeExperiment({"native": 1.0, "docker": 1.25}, spread=0.01, before=_hold)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        from virtoll.report import begin, build

        vars(build).update(UNDRAWN)
        vars(begin)["_load"] = nothing
    wait_for_fleets()
    patch = pytest.MonkeyPatch()
    on_fakes(patch, {})
    patch.setattr(Stage, "lab", _lab)
    cli.main()
