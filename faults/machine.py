"""Faults of real runs on the real machine: what every one of them has in common."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from faults import place
from faults.base import Place, Verdict
from faults.children import CRASHED
from faults.moments import Control, Moment, awaited, drawn
from faults.sealed import changes, outcome, sealed
from faults.virtolls import Session, Virtoll

OFFERED = "VIRTOLL_FAULTS_STUDIES"

_PATIENCE_S = 10.0

Strike = Callable[["Struck"], bool]  # does the harm; false when there was nothing to harm


class UndisturbedError(Exception):
    """A run that no fault struck kept its promises no better."""


@dataclass
class Struck:
    """A living run at the moment of its fault."""

    virtoll: Virtoll
    session: Session
    random: random.Random
    verdict: Verdict

    def awaited_pids(self, *comms: str, within: str = "") -> list[int]:
        """`pids`, as soon as there are any; none when the run ends before, or in a while of nothing."""
        until = time.monotonic() + _PATIENCE_S
        while not (found := self.pids(*comms, within=within)) and time.monotonic() < until and not self.session.over:
            self.virtoll.look(self.session)
            time.sleep(0.005)
        return found

    def pids(self, *comms: str, within: str = "") -> list[int]:
        """Processes of the run by name (all where none is given), in cgroups whose path holds ``within``."""
        found = {}
        for group in place.cgroups(tuple(self.virtoll.tags)):
            for pid in _pids(group) if within in str(group) else []:
                comm = _comm(pid)
                if comm and (not comms or comm in comms):
                    found[pid] = comm
        return sorted(found)


@dataclass(frozen=True)
class Plan:
    """How a kind is injected: into which studies, where in their lives, and what may come of it."""

    strike: Strike
    studies: tuple[str, ...]
    among: tuple[str, ...] = ()  # the stretches that have what is to be harmed; empty: any
    codes: tuple[int, ...] = ()  # how the struck run may end, besides 0 and 1
    around: Callable[[random.Random, Virtoll], AbstractContextManager[None]] = lambda _random, _virtoll: nullcontext()
    happened: Callable[[Virtoll, Session], bool] = lambda _virtoll, _session: True  # whether it made itself felt
    lasting: bool = False  # it goes on to the session's end: every trial may have been struck
    excused: bool = False  # virtoll itself may fail for want of what was taken away
    undone: bool = True  # a run that ended by itself has undone all it made, before any `clean`


def injected(plan: Plan, random_: random.Random, where: Place) -> Verdict:
    """Begin a run, strike it, and look whether everything that was promised holds."""
    study = random_.choice(plan.studies)
    cleaned_first, executed = random_.random() < 0.5, random_.random() < 0.1
    if study not in offered():
        return Verdict(hit=False, when=f"{study}: not offered by this machine")
    try:
        undisturbed = control(study, where.work)
    except UndisturbedError as error:
        return Verdict(hit=False, when=study, problems=[str(error)])
    moment = drawn(random_, undisturbed, plan.among)
    if moment is None:
        return Verdict(hit=False, when=f"{study}: has no such moment")
    virtoll = Virtoll(where.directory, study, executed=executed)
    verdict = Verdict(hit=False, when=f"{study}, {moment}")
    with plan.around(random_, virtoll):
        before = place.inventory(where.work, ())
        session = virtoll.begin()
        struck_trials = _strike(plan, Struck(virtoll, session, random_, verdict), moment)
    if verdict.hit:
        kept = sealed(virtoll.out)
        if plan.undone and session.code is not None and session.code >= 0:
            left = place.left(where.work, virtoll.tags, before)
            verdict.problems += [f"before clean: {line}" for line in left]
        if cleaned_first:
            _clean(virtoll, verdict)
        _go_on(virtoll, verdict)
        verdict.problems += changes(kept, virtoll.out)
        told = outcome(virtoll.out, struck_trials, excused=plan.excused)
        verdict.problems += told.problems
        verdict.trials, verdict.busy = told.trials, told.busy
        verdict.resumed = not verdict.problems
    _finish(virtoll, verdict, before, where.work)
    return verdict


def _strike(plan: Plan, struck: Struck, moment: Moment) -> set[str]:
    """Do the harm at the moment, and wait for the run's end; the trials that it may have struck."""
    virtoll, session, verdict = struck.virtoll, struck.session, struck.verdict
    if not awaited(virtoll, session, moment):
        virtoll.await_end(session)
        return set()
    trials = session.under_way()
    verdict.hit = plan.strike(struck)
    virtoll.look(session)
    trials |= session.under_way()
    before = len(session.events)
    code = virtoll.await_end(session)
    # Trials share deployments: what was struck at the end of one may be noticed in the next.
    following = [event.trial for event in session.events[before:] if event.name == "started"]
    trials |= set(following if plan.lasting else following[:1])
    verdict.hit = verdict.hit and plan.happened(virtoll, session)
    if verdict.hit:
        _judge_end(code, plan, struck)
    return trials


def _judge_end(code: int | None, plan: Plan, struck: Struck) -> None:
    verdict, said = struck.verdict, struck.session.complaint()
    if code is None:
        verdict.problems.append(f"it hung:\n{said}")
    elif code not in (0, 1, *plan.codes):
        verdict.problems.append(f"exit {code} after the fault: {said[-2000:]}")
    has_begun = struck.virtoll.state.exists()  # before, while Python imports, an interrupt is told by Python itself
    if not plan.excused and has_begun and ("Traceback" in said or code == CRASHED):
        verdict.problems.append(f"a traceback: {said[-3000:]}")


def _go_on(virtoll: Virtoll, verdict: Verdict) -> None:
    """Resume until the plan is done. Before a trial begins, nobody of the dead run is at work any more."""
    dead = tuple(virtoll.tags)
    session = virtoll.resume()
    while not session.over and not any(event.name == "started" for event in session.events):
        virtoll.look(session)
        time.sleep(0.005)
    if alive := [(pid, _comm(pid)) for group in place.cgroups(dead) for pid in _pids(group)]:
        verdict.problems.append(f"measured beside what the dead run left: {alive}")
    code = virtoll.await_end(session)
    if code not in (0, 1):
        verdict.problems.append(f"resuming ended with {code}: {session.complaint()[-2000:]}")
    page = virtoll.out / "report/index.html"
    if not page.is_file():
        verdict.problems.append("resuming made no report")


def _clean(virtoll: Virtoll, verdict: Verdict) -> None:
    virtoll.note_tags()
    session = virtoll.clean()
    code = virtoll.await_end(session)
    if code != 0:
        verdict.problems.append(f"clean ended with {code}: {session.complaint()[-2000:]}")


def _finish(virtoll: Virtoll, verdict: Verdict, before: place.Inventory, work: Path) -> None:
    """`clean`, and the inventory after it."""
    problems = len(verdict.problems)
    _clean(virtoll, verdict)
    verdict.problems += place.left(work, virtoll.tags, before)
    state = [path for path in virtoll.state.rglob("*") if path.is_file() and path.name != "lock"]
    verdict.problems += [f"left behind: state: {path}" for path in state]
    verdict.tidy = len(verdict.problems) == problems
    if not verdict.tidy:
        place.sweep(work, virtoll.tags)


@cache
def control(study: str, work: Path) -> Control:
    """One undisturbed run of a study: how long each stretch of it takes on this machine, now."""
    virtoll = Virtoll(Path(tempfile.mkdtemp(prefix=f"f-{study}-", dir=work)), study)
    session = virtoll.begin()
    code = virtoll.await_end(session)
    ended_s = time.monotonic()
    shutil.rmtree(virtoll.state)
    told = outcome(virtoll.out, ())
    if code not in (0, 1) or told.problems:
        raise UndisturbedError(f"the undisturbed run of {study}: exit {code}, {told.problems}\n{session.complaint()}")
    return Control.of(session, ended_s)


def offered() -> tuple[str, ...]:
    """The studies that this machine can run; asked before the place was entered."""
    return tuple(os.environ[OFFERED].split())


def _pids(group: Path) -> list[int]:
    try:
        return [int(word) for word in (group / "cgroup.procs").read_text().split() if word != "0"]
    except OSError:
        return []


def _comm(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "comm").read_text().strip()
    except OSError:
        return ""
