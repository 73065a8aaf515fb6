"""Where a report begins: other processes load what they help with while this one still loads its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from virtoll.helpers import helpers, load

HELPERS = 2  # a third one's engine takes longer to start than it then saves

_HELPED_WITH = ("virtoll.report.render", "virtoll.analysis.measuring")


@contextmanager
def helped() -> Iterator[None]:
    """Within it `virtoll.report.build` is to be imported, and finds its helpers begun; all is `uncollected`. HostError
    as of `helpers`.
    """
    with uncollected(), helpers(HELPERS) as others:
        _load(others)
        yield


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
