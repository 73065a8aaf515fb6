"""A neighbour beside the instance under test: deployed like it, and an aggressor let loose in it at its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from virtoll.agent import StreamError
from virtoll.aggressors.base import Aggressor, Place, make_aggressor
from virtoll.aggressors.result import AggressorResult
from virtoll.aggressors.running import Running
from virtoll.errors import HostError, VirtollError
from virtoll.lab.base import SLOTS
from virtoll.lab.client import Client
from virtoll.platforms.base import Instance
from virtoll.record.model import NeighbourRecord, PlannedTrial
from virtoll.record.tables import samples_table
from virtoll.study.limits import Limits
from virtoll.study.model import Neighbour
from virtoll.trial.deployer import Deployer
from virtoll.trial.notes import Notes
from virtoll.trial.watchdog import Watch, watching

SLOT = SLOTS - 1  # the last: probes number their further instances from the first


class Disturbance:
    """A neighbour that lives beside the victim and misbehaves in the middle of the window.

    A thread of its own lets the aggressor loose, so that the load goes on; from then on nobody talks to the neighbour
    until the window is over.
    """

    def __init__(self, neighbour: Instance, client: Client, aggressor: Aggressor, plan: Neighbour) -> None:
        self._place = Place(neighbour, client)
        self._aggressor = aggressor
        self._plan = plan
        self._offset_ns = neighbour.agent.clock().offset_ns
        self._running: Running | None = None
        self.asked_ns: int | None = None  # by our clock, when it was to be let loose: before that it harmed nobody
        self._loose_ns: int | None = None  # by our clock, for an aggressor whose own report is lost
        self._silence = ""  # what the agent's stream said when it was asked to let the aggressor loose
        self._refusal = "the window was over before its time had come"
        self.failure: Exception | None = None  # of our own, when it was to be let loose: says nothing of the neighbour
        self._over = threading.Event()
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._let_loose, name="neighbour", daemon=True)

    def begin(self, *, wait: bool = False) -> None:
        """The window begins now; with ``wait``, come back when the aggressor is loose, or could not be let loose."""
        self._thread.start()
        if wait:
            self._settled.wait()

    def end(self) -> tuple[NeighbourRecord, list[tuple[int, str, str, int]]]:
        """The window is over: end what is left of the aggressor; what it did, and its series by the host's clock."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        name = self._aggressor.name
        if self._silence:
            end_instance(self._place.neighbour)
            record = NeighbourRecord(
                aggressor=name, settings={}, ended="killed", stopped_by="host", reason=self._silence
            )
            return record, []
        if self._running is None:
            return NeighbourRecord(aggressor=name, settings={}, ended="refused", reason=self._refusal), []
        result = self._running.stop()
        if result.stopped_by == "host":
            end_instance(self._place.neighbour)
        return self._record(result), self._series(result)

    def _let_loose(self) -> None:
        try:
            if not self._over.wait(self._plan.start_ns / 1e9):
                self.asked_ns = time.monotonic_ns()
                self._running = self._aggressor.start(self._place, self._plan.duration_ns)
                self._loose_ns = time.monotonic_ns()
        except StreamError as error:
            self._silence = f"it is not known whether it began: {error}"
        except HostError as error:
            self.failure, self._refusal = error, str(error)
        except VirtollError as error:
            self._refusal = str(error)
        except Exception as error:  # a thread's error is seen by nobody: `beside` raises it
            self.failure = error
            self._refusal = f"virtoll itself failed: {type(error).__name__}: {error}"
        finally:
            self._settled.set()

    def _record(self, result: AggressorResult) -> NeighbourRecord:
        start_ns, end_ns = self._on_our_clock(result.start_ns), self._on_our_clock(result.end_ns)
        if not result.began(self._aggressor.counts[0]):
            start_ns = end_ns = None
        elif start_ns is None:
            start_ns = self._loose_ns
        if result.stopped_by == "agent" and result.ended == "told":
            end_ns = None  # it was at work until then, which is after all windows
        record = NeighbourRecord(
            aggressor=result.aggressor,
            settings=dict(result.settings),
            start_ns=start_ns,
            end_ns=end_ns,
            ended=result.ended,
            stopped_by=result.stopped_by,
            reason=result.reason,
            restarts=result.restarts,
            killed_by=list(result.killed_by),
            counts=dict(result.counts),
            processes_peak=result.processes_peak,
            flood=dict(result.flood.counts) if result.flood is not None else {},
        )
        return record if result.flood is None else self._flooded(record, result.flood)

    def _flooded(self, record: NeighbourRecord, flood: AggressorResult) -> NeighbourRecord:
        """It is at work if anything of its flood arrives, and for as long as that is sent (by our clock)."""
        count = self._aggressor.counts[0]
        arrived = record.counts.get(count)  # None: it told nothing
        if record.start_ns is None:
            return record
        if arrived == 0 or (arrived is None and not flood.began(count)):
            why = flood.reason or f"{flood.counts.get(count, 0):,} {count} were sent"
            never = {"start_ns": None, "end_ns": None, "ended": "refused"}
            return record.model_copy(update={**never, "reason": f"nothing of its flood arrived: {why}"})
        if flood.ended == "time" or flood.stopped_by == "host":  # it began after the neighbour, for as long
            if record.end_ns is None or flood.end_ns is None:
                return record
            return record.model_copy(update={"end_ns": max(record.end_ns, flood.end_ns)})
        end_ns = flood.series[-1][0] if flood.end_ns is None and flood.series else flood.end_ns
        if end_ns is not None and record.end_ns is not None and record.end_ns <= end_ns:
            return record
        gone = {"end_ns": end_ns, "ended": "killed", "stopped_by": "itself"}
        return record.model_copy(update={**gone, "reason": f"its flood ended: {flood.reason or flood.ended}"})

    def _series(self, result: AggressorResult) -> list[tuple[int, str, str, int]]:
        rows = [
            (t_ns - self._offset_ns, "neighbour", counter, value)
            for t_ns, counts in result.series
            for counter, value in counts.items()
        ]
        flood = result.flood.series if result.flood is not None else ()
        return rows + [(t_ns, "flood", counter, value) for t_ns, counts in flood for counter, value in counts.items()]

    def _on_our_clock(self, t_ns: int | None) -> int | None:
        return None if t_ns is None else t_ns - self._offset_ns


def end_instance(instance: Instance) -> None:
    """Kill everything the instance is, from outside."""
    instance.kill()


def may_have_harmed(notes: Notes) -> bool:
    """Whether a neighbour was at work, so that what became of the victim is a result and no failure of the trial."""
    began = notes.neighbour is not None and notes.neighbour.start_ns is not None
    return began or notes.outcome == "host harmed"


@contextmanager
def beside(
    deployer: Deployer, trial: PlannedTrial, limits: Limits, plan: Neighbour, notes: Notes
) -> Iterator[Callable[..., None]]:
    """A neighbour for the length of the block, where the plan has one. It gives `Disturbance.begin`.

    At the end of the block, what the neighbour did is in the notes; ``notes.outcome`` is *host harmed* when the
    watchdog had to end it. What failed on our own side when the aggressor was to be let loose is raised there, and
    HostError where the machine was in danger before: whatever ended there, the neighbour had no part in it.
    """
    if not plan.aggressor:
        yield lambda **_: None
        return
    with ExitStack() as stack:
        with notes.phase("neighbour"):
            name = f"{trial.id}-neighbour"
            neighbour = stack.enter_context(deployer.deployed(name, trial, limits, (), slot=SLOT))
            client = deployer.client(name)
        disturbance = Disturbance(neighbour, client, make_aggressor(plan.aggressor), plan)
        with ExitStack() as watched:
            watch = watched.enter_context(watching(deployer.lab.directory, lambda: end_instance(neighbour)))
            try:
                yield disturbance.begin
            finally:
                record, rows = disturbance.end()
                try:
                    watched.close()  # from now on it is settled what the watchdog did
                finally:
                    was_before = _was_before(watch, disturbance)
                    _note(notes, record, rows, Watch() if was_before else watch)
        if disturbance.failure is not None:
            raise disturbance.failure
        if was_before:
            what = f"{watch.reason}; that was so before the neighbour was to begin"
            raise HostError(what, where="watchdog", remedy="free some of it, or give the instances less in [limits]")


def _was_before(watch: Watch, disturbance: Disturbance) -> bool:
    """Whether the watchdog saw a danger when the aggressor was not loose yet."""
    if watch.seen_ns is None:
        return False
    return disturbance.asked_ns is None or watch.seen_ns < disturbance.asked_ns


def _note(notes: Notes, record: NeighbourRecord, rows: list[tuple[int, str, str, int]], watch: Watch) -> None:
    if watch.reason:
        end_ns = watch.saved_ns if record.end_ns is None else record.end_ns
        record = record.model_copy(update={"reason": watch.reason, "stopped_by": "host", "end_ns": end_ns})
        notes.outcome = "host harmed"
    elif record.start_ns is None and record.ended != "refused":
        notes.check("the neighbour began", False, record.reason)
    notes.neighbour = record
    notes.tables["neighbour"] = samples_table(rows)
