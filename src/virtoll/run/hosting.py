"""What a host of a fleet does for a run, order by order: it looks, makes ready, performs turns, and hands them back.

From the first order to the last the host is that run's alone, by the lock that a local run takes, and its lab stays
wired. Nothing is kept: the one who seals is far away (`virtoll.run.over_hosts`). Orders and answers are plain data.
"""

from __future__ import annotations

import shutil
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from virtoll import __version__
from virtoll.catalogue import catalogue
from virtoll.errors import HostError, VirtollError
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.interrupts import is_being_tidied_up_after
from virtoll.hosts.local import LocalHost
from virtoll.images.base import Images
from virtoll.plain import printable
from virtoll.record.model import Arm, Environment, PlannedTrial, SkippedArm, TrialRecord
from virtoll.run import environment, handed
from virtoll.run.alone import alone
from virtoll.run.execute import run_turn
from virtoll.run.stage import Stage
from virtoll.study import document
from virtoll.trial.notes import Experiment

_MOST_TOLD = 4000  # characters of why an order cannot be carried out
LEFT = "not all was undone"


class Order(BaseModel):
    """One order to a host. Each of the kinds of `_Session`, in this order, and *perform* once a turn; those of
    `virtoll.run.there` before, or instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str  # by whose order: a host works for one run at a time
    kind: Literal["clock", "clean", "doctor", "look", "prepare", "wire", "perform", "end"]
    study: dict[str, Any] = {}  # look: as in study.json
    file: str = ""  # look: the name that its problems are told by
    arms: list[Arm] = []  # prepare: those that are measured
    skipped: list[SkippedArm] = []  # prepare: those that are not
    trials: list[PlannedTrial] = []  # wire: all that are to come; perform: those of the turn


class Offer(BaseModel):
    """The answer to *look*: which of the study's arms there are, and when that was."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    virtoll: str
    wall_s: float  # the host's own time of day, since 1970
    arms: list[Arm]
    skipped: list[SkippedArm]


class Ready(BaseModel):
    """The answer to *prepare*: what would be measured on, and which arms its memory holds beside each other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environment: Environment
    groups: list[list[str]]
    free_bytes: int  # of memory, when it was asked


class Refusal(BaseModel):
    """The answer to any order that cannot be carried out; the host is free again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    refused: str


class Hosting:
    """A host, and the run that it works for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._session: _Session | None = None

    def answer(self, data: bytes) -> bytes:
        """Carry an order out. One that fails ends its own session; an interrupt goes on when all is undone."""
        try:
            order = Order.model_validate_json(data)
            self._expect_ours(order)
        except (ValidationError, RecursionError, _BusyError) as error:
            return _refusal(error)
        try:
            if order.kind in _BESIDES:
                return _besides(order.kind)
            if order.kind == "look":
                return self._begun(order).look(order)
            if self._session is None:
                raise HostError(
                    "no run is under way here", where=self._name, remedy="begin it anew: this one was ended"
                )
            if order.kind == "end":
                left = self._failed_to_end()
                return b"" if left is None else _refused(f"{LEFT}: {left}")
            return self._session.answer(order)
        except BaseException as error:
            left = self._failed_to_end()
            if isinstance(error, Exception) and not is_being_tidied_up_after():
                return _refusal(error, left)
            if left is not None:
                tell_left(self._name, left)
            if isinstance(error, Exception):
                raise KeyboardInterrupt from error  # it came while that was undone, or led to it
            raise

    def _failed_to_end(self) -> Exception | None:
        """End the session; why not all of it could be undone. An interrupt is not lost in that."""
        try:
            self.end()
        except Exception as error:
            return error
        return None

    def end(self, run: str | None = None) -> None:
        """Undo all that is left of the session (of this ``run``), and give the host up."""
        session = self._session
        if session is not None and run in (None, session.run):
            self._session = None
            session.stack.close()

    @property
    def run(self) -> str | None:
        """For whom it works."""
        return None if self._session is None else self._session.run

    def _expect_ours(self, order: Order) -> None:
        if self._session is not None and self._session.run != order.run:
            raise _BusyError("another study is at work here", where=self._name, remedy="wait for it to end")

    def _begun(self, order: Order) -> _Session:
        assert self._session is None, "one look a run"
        host, stack = LocalHost(), ExitStack()
        try:
            stack.enter_context(alone(host))
            spool = stack.enter_context(ledgers.scratch(host, "fleet"))
            study = document.of(order.study, Path(order.file), catalogue())
        except BaseException:
            stack.close()
            raise
        self._session = _Session(order.run, Stage(study, host), spool, stack)
        return self._session


_BESIDES = ("clock", "clean", "doctor")
_UNMEASURED = (*_BESIDES, "look", "prepare")


def measures_nothing(order: bytes) -> bool:
    """Whether nothing is measured while it is carried out, nor is its answer empty: signs of life disturb nobody then,
    and are told from that.
    """
    try:
        return Order.model_validate_json(order).kind in _UNMEASURED
    except (ValidationError, RecursionError):
        return False


def _besides(kind: str) -> bytes:
    """What needs no run."""
    from virtoll.run import there  # `doctor` lays out what it finds, with all that is loaded for that

    answers: dict[str, Callable[[], BaseModel]] = {
        "clock": there.clock,
        "clean": there.cleaned,
        "doctor": there.examined,
    }
    return answers[kind]().model_dump_json().encode()


class _BusyError(HostError):
    """The host works for another run, which must not be disturbed."""


@dataclass
class _Session:
    """What is held on a host for a run."""

    run: str
    stage: Stage
    spool: Path
    stack: ExitStack  # gives it all up
    images: Images = field(init=False)  # from the order to prepare on
    experiment: Experiment | None = None

    def look(self, order: Order) -> bytes:
        arms, skipped = self.stage.offered(order.file)
        offer = Offer(virtoll=__version__, wall_s=time.time(), arms=arms, skipped=skipped)
        return offer.model_dump_json().encode()

    def answer(self, order: Order) -> bytes:
        if order.kind == "prepare":
            return self._prepared(order).model_dump_json().encode()
        if order.kind == "wire":
            self._expect_held(order.trials)
            self.experiment = self.stack.enter_context(self.stage.lab(self.images, order.trials))
            return b""
        return self._performed(order.trials)

    def _prepared(self, order: Order) -> Ready:
        self.images = self.stage.prepare(order.arms, lambda _text: None)
        here = environment.of_stage(self.stage, order.arms, self.images, order.skipped)
        groups = [list(group) for group in self.stage.groups(order.arms)]
        return Ready(environment=here, groups=groups, free_bytes=self.stage.free_bytes)

    def _expect_held(self, trials: list[PlannedTrial]) -> None:
        """HostError where what the plan sets beside each other has no room here by now: sealed as failed, or measured
        while it is swapped out, it would be lost for good.
        """
        if unheld := self.stage.unheld(trials):
            raise HostError(unheld, remedy="free some and go on with the run; nothing was measured")

    def _performed(self, turn: list[PlannedTrial]) -> bytes:
        """One turn, and what it gave. Its files are gone from here when it is packed."""
        if self.experiment is None:
            raise HostError("no lab is wired for this run", remedy="begin it anew")
        place = self.spool / turn[0].id
        try:
            spool = handed.spool_in(place)
            run_turn(spool, self.experiment, _Untold(), turn)
            return handed.packed(handed.collected(spool, turn))
        finally:
            shutil.rmtree(place, ignore_errors=True)


class _Untold:
    """Nobody watches on the host itself."""

    def trial_started(self, trial: PlannedTrial) -> None:
        """Nothing."""

    def phase(self, trial: PlannedTrial, name: str) -> None:
        """Nothing."""

    def trial_sealed(self, record: TrialRecord) -> None:
        """Nothing."""


def tell_left(host: str, error: BaseException) -> None:
    """To whoever looks after the host."""
    with suppress(OSError):
        print(f"virtoll: {host}: not all was undone: {printable(str(error))}", file=sys.stderr, flush=True)


def _refusal(error: Exception, left: Exception | None = None) -> bytes:
    why = _told(error) + (f"; and {LEFT}: {left}" if left is not None else "")
    return _refused(why)


def _refused(why: str) -> bytes:
    return Refusal(refused=printable(why[:_MOST_TOLD])).model_dump_json().encode()


def _told(error: Exception) -> str:
    if isinstance(error, VirtollError):
        return str(error)
    if isinstance(error, ValidationError | RecursionError):
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "too deep"
        return f"the order cannot be read: {first}"
    return f"virtoll itself failed: {''.join(traceback.format_exception(error)[-3:])}"


_HOSTINGS: dict[str, Hosting] = {}  # of this process: a worker's one, and in tests several


def hosting(name: str) -> Hosting:
    """The host of this name, as this process knows it."""
    return _HOSTINGS.setdefault(name, Hosting(name))


def answer(host: str, data: bytes) -> bytes:
    """What a worker is asked to call."""
    return hosting(host).answer(data)
