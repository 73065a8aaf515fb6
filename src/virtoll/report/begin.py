"""Where a report or a comparison begins: others load what they help with while this process still loads its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path

from virtoll.helpers import helpers, load

HELPERS = 2  # a third one's engine takes longer to start than it then saves

_MEASURING = "virtoll.analysis.measuring"
_HELPED_WITH = ("virtoll.report.render", _MEASURING)
_MANY_BYTES = 2_500_000  # of records: about as many trials as `virtoll.analysis.measuring` shares with a helper


@contextmanager
def helped() -> Iterator[None]:
    """Within it `virtoll.report.build` is to be imported, and finds its helpers begun; all is `uncollected`. HostError
    as of `helpers`.
    """
    with uncollected(), helpers(HELPERS) as others:
        _load(others)
        yield


@contextmanager
def helped_to_measure(*runs: Path) -> Iterator[None]:
    """The same with one helper, for what measures these runs' trials; with none where no run has many."""
    with uncollected():
        if not any(_has_many(run) for run in runs):
            yield
            return
        with helpers(1) as other:
            other.submit(load, _MEASURING)
            yield


def _has_many(run: Path) -> bool:
    try:
        return (run / "trials.jsonl").stat().st_size > _MANY_BYTES
    except OSError:  # what is wrong with it is told where it is read
        return False


def _load(others: Executor) -> None:
    for module in _HELPED_WITH:
        others.submit(load, module)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector, which would look through a run's records again and again: all of them are kept."""
    was_at_work = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_at_work:
            gc.enable()
