"""A neighbour beside the instance under test: deployed like it, and an aggressor let loose in it at its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from virtoll.aggressors.base import Aggressor, AggressorResult, Running, aggressors
from virtoll.deployer import Deployer
from virtoll.errors import VirtollError
from virtoll.hosts.cgroup import kill_tree
from virtoll.limits import Limits
from virtoll.platforms.base import Instance
from virtoll.record import NeighbourRecord, PlannedTrial
from virtoll.run import Notes
from virtoll.store import samples_table
from virtoll.study import Neighbour, settings_of
from virtoll.watchdog import Watchdog

SLOT = 1


def make_aggressor(name: str) -> Aggressor:
    """The aggressor of that name, with its own caps."""
    return aggressors()[name]()


class Disturbance:
    """A neighbour that is there from the beginning and misbehaves in the middle of the window.

    A thread of its own begins it, so that the load goes on; in between nobody talks to the neighbour either.
    """

    def __init__(self, instance: Instance, aggressor: Aggressor, plan: Neighbour, watchdog: Watchdog) -> None:
        self._instance = instance
        self._aggressor = aggressor
        self._plan = plan
        self._watchdog = watchdog
        self._running: Running | None = None
        self._refusal = ""
        self._thread = threading.Thread(target=self._begin, name="neighbour", daemon=True)
        self._told = threading.Event()

    def begin(self) -> None:
        """The window begins now."""
        self._thread.start()

    def _begin(self) -> None:
        if self._told.wait(self._plan.start_ns / 1e9):
            return
        try:
            self._running = self._aggressor.start(self._instance, self._plan.duration_ns)
        except VirtollError as error:
            self._refusal = str(error)

    def finish(self, notes: Notes) -> None:
        """The window is over: end what is left of the aggressor, and note what it did."""
        self._told.set()
        self._thread.join()
        if self._running is None:
            notes.neighbour = NeighbourRecord(
                aggressor=self._aggressor.name,
                settings=asdict(self._aggressor.settings),
                start_ns=None,
                end_ns=None,
                ended="refused",
                reason=self._refusal or "the window was over before its time had come",
            )
            return
        result = self._running.stop()
        if result.ended == "ended by the host":
            kill_tree(self._instance.accounting.cgroup)
        notes.neighbour = _record(self._aggressor, result)
        rows = [
            (t_ns, "neighbour", counter, value) for t_ns, counts in result.series for counter, value in counts.items()
        ]
        notes.tables["neighbour"] = samples_table(rows)
