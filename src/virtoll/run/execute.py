"""Executes a plan, trial by trial, into a run directory. The only place that catches a trial's errors.

What a trial *does* is behind one seam, `Experiment.perform`; the loop here knows nothing of machines, and the fake
in `virtoll.fakes` makes whole studies exact in tests.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Literal, Protocol

import pyarrow as pa

from virtoll.errors import DiskError, GoneError, StoreError, UnheardError, VirtollError
from virtoll.hosts.interrupts import held_off, is_being_tidied_up_after
from virtoll.plain import printable
from virtoll.record.model import PlannedTrial, TrialRecord
from virtoll.record.store import INTERRUPTED, RunDirectory, attempt, is_interrupted, line_of
from virtoll.record.tables import packed
from virtoll.trial.notes import Experiment, Notes


class Reporter(Protocol):
    """Who is told how a run goes on."""

    def trial_started(self, trial: PlannedTrial) -> None:
        """A trial begins."""
        ...

    def phase(self, trial: PlannedTrial, name: str) -> None:
        """What is being done now."""
        ...

    def trial_sealed(self, record: TrialRecord) -> None:
        """A trial is in the store."""
        ...


class Guarded:
    """Passes on what a reporter is told. It never fails: what the reporter met is kept, and then it is left alone."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._error: Exception | None = None

    def trial_started(self, trial: PlannedTrial) -> None:
        """Pass it on."""
        self._tell(lambda: self._reporter.trial_started(trial))

    def phase(self, trial: PlannedTrial, name: str) -> None:
        """Pass it on."""
        self._tell(lambda: self._reporter.phase(trial, name))

    def trial_sealed(self, record: TrialRecord) -> None:
        """Pass it on."""
        self._tell(lambda: self._reporter.trial_sealed(record))

    def _tell(self, tell: Callable[[], None]) -> None:
        if self._error is None:
            try:
                tell()
            except Exception as error:
                self._error = error

    @property
    def is_heard(self) -> bool:
        """Whether all that was told so far was heard."""
        return self._error is None

    def expect_heard(self) -> None:
        """UnheardError where nobody reads what is told any more; a reporter's own fault as it is."""
        if isinstance(self._error, OSError):
            raise UnheardError(
                f"nobody can be told how the run goes on: {self._error.strerror or self._error}",
                remedy="what was measured is sealed; `virtoll run RUNDIR` goes on",
            ) from self._error
        if self._error is not None:
            raise self._error


def execute(
    directory: RunDirectory,
    experiment: Experiment,
    reporter: Reporter,
    *,
    deadline_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    ends: Callable[[], bool] = lambda: False,
    grows: Callable[[float], bool] = lambda _trial_s: False,
) -> bool:
    """Run what is pending; true when all of the plan is done, or its rule has ended it.

    ``ends`` is asked before the first block and after each: whether no other one is to be begun. ``grows`` when all is
    done, with the pace of a trial so far: whether more has been planned.

    ``deadline_s`` (of ``clock``): no block is begun that would, at the pace of the trials so far (of earlier sessions
    before any of this one), end after it. A block that was begun is finished, and the rule looks at time alone, never
    at results. Where the reporter fails, no trial is begun after the one that is under way: UnheardError, when it was
    its reader that went away.
    """
    guarded = Guarded(reporter)
    seal_killed(directory, guarded)
    directory.begin_sitting()
    began_s, done = clock(), 0
    before_s = None if deadline_s is None else _trial_s(directory.records())
    if ends():
        return True
    while True:
        for asked in _in_blocks(directory.pending()):
            now_s = clock()
            pace_s = (now_s - began_s) / done if done else before_s
            if deadline_s is not None and pace_s is not None and now_s + pace_s * len(asked) > deadline_s:
                return False
            done += len(asked)
            for turn in in_turn(asked):
                for trial in turn:
                    guarded.trial_started(trial)
                guarded.expect_heard()
                run_turn(directory, experiment, guarded, turn)
                guarded.expect_heard()
            if ends():
                return True
        if not done or not grows((clock() - began_s) / done):
            return True


def _in_blocks(trials: Sequence[PlannedTrial]) -> list[list[PlannedTrial]]:
    """The trials of each block, in the order of blocks and of the plan."""
    blocks = sorted({trial.block for trial in trials})
    return [[trial for trial in trials if trial.block == block] for block in blocks]


def _trial_s(records: Iterable[TrialRecord]) -> float | None:
    """What trials took, each its share of its turn, in seconds; None where none tells."""
    turns: dict[tuple[str, int], list[TrialRecord]] = {}
    for record in records:
        if record.phases and not is_interrupted(record):
            of = record.trial.turn or record.trial.id, attempt(record.trial.id)
            turns.setdefault(of, []).append(record)
    if not turns:
        return None
    phases = [[phase for record in turn for phase in record.phases] for turn in turns.values()]
    spans_ns = [max(p.start_ns + p.duration_ns for p in each) - min(p.start_ns for p in each) for each in phases]
    return sum(spans_ns) / 1e9 / sum(map(len, turns.values()))


def in_turn(trials: Sequence[PlannedTrial]) -> list[list[PlannedTrial]]:
    """The trials that are measured in turn with each other, in the plan's order; most are alone."""
    turns: dict[str, list[PlannedTrial]] = {}
    for trial in trials:
        turns.setdefault(trial.turn or trial.id, []).append(trial)
    return list(turns.values())


def seal_killed(directory: RunDirectory, reporter: Reporter) -> None:
    """Record trials that a killed virtoll left unsealed as failed; their raw files stay where they are."""
    for trial in directory.unsealed():
        reason = f"{INTERRUPTED}virtoll was killed in the middle of this trial"
        record = TrialRecord(trial=trial, status="failed", reason=reason, started_at=_now())
        directory.seal(record)
        reporter.trial_sealed(record)


def run_turn(directory: RunDirectory, experiment: Experiment, reporter: Reporter, turn: Sequence[PlannedTrial]) -> None:
    """Perform these trials, round by round: in each, every one goes as far as its next window, in an order of its own,
    and none draws its conclusions while another still has windows to come.

    One that fails leaves the others to go on without it. All are sealed at once, when all have come to their ends.
    """
    attempts: list[_Attempt] = []
    shuffler = random.Random(turn[0].turn)
    try:
        for trial in turn:
            attempts.append(_Attempt(directory, experiment, reporter, trial))
        going = list(attempts)
        while going:
            asked = [attempt for attempt in going if not attempt.waits] or going
            ended = [attempt for attempt in shuffler.sample(asked, len(asked)) if not attempt.goes_on()]
            going = [attempt for attempt in going if attempt not in ended]
    except BaseException:
        for attempt in attempts:
            attempt.is_cut_short(_BY_ANOTHER)
        raise
    finally:
        with ExitStack() as stack:  # each is undone, whatever becomes of the others, and then all are sealed
            stack.callback(_keep, directory, reporter, attempts)
            for attempt in attempts:
                stack.callback(attempt.undo)


class _Attempt:
    """A trial that is under way, and sealed when it ends."""

    def __init__(
        self, directory: RunDirectory, experiment: Experiment, reporter: Reporter, trial: PlannedTrial
    ) -> None:
        self._directory, self._reporter, self._trial = directory, reporter, trial
        self._started_at = _now()
        self._notes = Notes(directory.trial_directory(trial), lambda name: reporter.phase(trial, name))
        self._course = experiment.perform(trial, self._notes)
        self._failure = _BY_ANOTHER  # unless it comes to its own end

    @property
    def waits(self) -> bool:
        """For the others' last windows."""
        return self._notes.waits

    def goes_on(self) -> bool:
        """Whether there is more to come, after the next step."""
        try:
            next(self._course)
        except StopIteration:
            self._failure = ""
        except (StoreError, GoneError) as error:
            self._failure = f"{INTERRUPTED}{error}"
            raise
        except KeyboardInterrupt:
            self._failure = f"{INTERRUPTED}by the user"
            raise
        except Exception as error:
            if is_being_tidied_up_after():  # what failed is the tidying, and the error hides the interrupt
                self._failure = f"{INTERRUPTED}by the user; while undoing: {error}"
                raise KeyboardInterrupt from error
            if (full := DiskError.of(error)) is not None:
                self._failure = f"{INTERRUPTED}{full}"
                raise full from None
            self._failure = str(error)
            if not isinstance(error, VirtollError):
                self._failure = f"virtoll itself failed: {type(error).__name__}: {error} (see the trial's log.txt)"
                self._directory.write_log(self._trial, traceback.format_exc())
        else:
            return True
        return False

    def is_cut_short(self, why: str) -> None:
        """Its turn is: what it concluded is part of a comparison, and comes again with the others'."""
        self._failure = self._failure or why

    def undo(self) -> None:
        """What is left of it: also on Ctrl-C, before the interrupt goes on."""
        try:
            self._course.close()
        except Exception as error:
            self._failure += f"; while undoing: {error}"
            if not is_being_tidied_up_after():  # else the interrupt goes on, and must not be hidden
                raise

    def written(self) -> TrialRecord:
        """What was noted so far, all of it in the trial's files but its record. Where that cannot be written down (a
        guest may have said anything), the record says why.
        """
        try:
            for name, table in self._notes.tables.items():
                self._directory.write_parquet(self._trial, name, packed(table))
            if self._notes.said:
                self._directory.write_log(self._trial, self._notes.said.decode(errors="replace"))
            record = _record(self._trial, self._started_at, self._notes, self._failure)
            line_of(record)
        except (ValueError, TypeError, ArithmeticError, RecursionError, pa.ArrowException) as error:
            told = f"what it gave cannot be written down: {type(error).__name__}: {error}"
            self._failure = f"{self._failure}; {told}" if self._failure else told
            return self.failed()
        return record

    def failed(self) -> TrialRecord:
        """Its record, without what it gave."""
        return TrialRecord(
            trial=self._trial, status="failed", reason=printable(self._failure), started_at=self._started_at
        )


_BY_ANOTHER = f"{INTERRUPTED}by another trial of its turn"


def _keep(directory: RunDirectory, reporter: Reporter, attempts: Sequence[_Attempt]) -> None:
    """Write down what the trials of a turn gave, then seal them, all at once. Were some sealed before an interrupt, or
    a full disk, the others would be measured again another day, and compared with these.
    """
    sealed: list[TrialRecord] = []
    try:
        with held_off():
            try:
                records = [attempt.written() for attempt in attempts]
            except StoreError as error:
                for attempt in attempts:
                    attempt.is_cut_short(f"{INTERRUPTED}{error}")
                with suppress(StoreError):  # there is no room for this either: then the trials' directories tell
                    records = [attempt.failed() for attempt in attempts]
                    sealed += directory.seal(*records)
                raise
            sealed += directory.seal(*records)
    finally:
        for record in sealed:
            reporter.trial_sealed(record)


def _record(trial: PlannedTrial, started_at: str, notes: Notes, failure: str) -> TrialRecord:
    broken = [check for check in notes.checks if check.passed is False]
    status: Literal["valid", "invalid", "failed"] = "failed" if failure else "invalid" if broken else "valid"
    return TrialRecord(
        trial=trial,
        status=status,
        reason=failure or "; ".join(f"{check.name}: {check.detail}" for check in broken),
        started_at=started_at,
        checks=notes.checks,
        phases=notes.phases,
        measured=notes.measured,
        neighbour=notes.neighbour,
        beside=notes.beside,
        outcome=notes.outcome,
        facts=notes.facts,
        believes=notes.believes,
        clock=notes.clock,
        audit=notes.audit,
    )


def exit_code(records: Sequence[TrialRecord], finished: bool) -> int:
    """0 when the plan is done and every trial valid, 1 otherwise. An interrupted trial that was repeated is no harm."""
    bad = [r for r in records if r.status != "valid" and not r.reason.startswith(INTERRUPTED)]
    return 0 if finished and not bad else 1


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
