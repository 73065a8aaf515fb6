"""The other servers of a study beside the one that a trial measures: each in an instance like its own, under its load.

All loads begin their windows at one time. What the others' measure is no result: it shows that they were at work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from virtoll.errors import AgentError, HostError
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.lab.base import SLOTS, Lab
from virtoll.lab.client import Client
from virtoll.loads.base import Measurement, Session
from virtoll.monitor import Watched
from virtoll.offers import Offer
from virtoll.platforms.base import Accounting, Instance
from virtoll.record.model import BESIDE_IT, HEADROOM_FOR_ALL, BesideRecord, Measured, PlannedTrial, Window
from virtoll.services import daemon
from virtoll.services.base import hold_on_disk
from virtoll.trial import proofs
from virtoll.trial.deployer import Deployer
from virtoll.trial.neighbourhood import end_instance
from virtoll.trial.notes import Notes
from virtoll.trial.treatment import Driven, Treatment
from virtoll.trial.watchdog import watching

T = TypeVar("T")
_READY_NS = 2 * 10**9  # for the generators' processes to start, beyond what comes before their windows
_GIVE_UP_S = 0.5  # for a load's thread to see that its generator has ended
_LOG_BYTES = 500_000
COVERED = 0.95  # of the measured window, at the least, in which each of the others is under its load
ROOM = "the machine had room for all"


@dataclass(frozen=True)
class Companion:
    """Another server, which answers."""

    name: str
    work: Driven
    instance: Instance
    session: Session
    offer: Offer
    client: Client

    @property
    def source(self) -> str:
        """What its use is called among what the monitor sees."""
        return f"beside-{self.name}"

    @property
    def log(self) -> str:
        """The file of the trial that keeps what its service said."""
        return _log_of(self.name)


@dataclass(frozen=True)
class Company:
    """All who are there beside the measured server; nobody, where it is alone."""

    companions: Sequence[Companion] = ()
    end_loads: Callable[[], None] = lambda: None  # of all, at once: where the trial is given up nobody awaits them
    _measured: list[Measurement] = field(default_factory=list)

    @property
    def accountings(self) -> Mapping[str, Accounting]:
        """Where the cost of each is booked, by the source's name."""
        return {each.source: each.instance.accounting for each in self.companions}

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Their loads warm them up, during the block and until all are done."""
        with _meanwhile([each.session.warm_up for each in self.companions], self.end_loads):
            yield

    @contextmanager
    def at_work(self, measured: Session) -> Iterator[int | None]:
        """Each is under its load for a window that begins when the ``measured`` session's is to: at the time that is
        given, by CLOCK_MONOTONIC (None: at once, for there is nobody).

        The block ends when all windows have. TrialError where a generator failed.
        """
        if not self.companions:
            yield None
            return
        sessions = [measured, *(each.session for each in self.companions)]
        lead_ns = max(each.lead_ns for each in sessions)
        for each in sessions:  # all are there in the lead-in of each
            each.lead_at_least(lead_ns)
        start_ns = time.monotonic_ns() + lead_ns + _READY_NS
        with _meanwhile([partial(_window, each, start_ns) for each in self.companions], self.end_loads) as done:
            yield start_ns
        self._measured[:] = done

    def prove(self, notes: Notes, measured: Measured, watched: Watched, lab: Lab) -> None:
        """That each was under its load in the measured window, within its limits, and lived; and that the generator had
        headroom for all. What their loads measured is noted.
        """
        if not self.companions:
            return
        for each, measurement in zip(self.companions, self._measured, strict=True):
            theirs = each.work.load.measured([measurement])
            notes.beside.append(BesideRecord(server=each.name, measured=theirs))
            with _of(each.name, notes) as told:
                _of_answering(told, "after", each.work, each.offer, each.client)
                _of_being_loaded(told, theirs.window, measured.window)
                proofs.of_generator(told, theirs, each.work.load.usable_cpus(len(lab.generator.cpus)))
                proofs.of_cpu_limit(told, each.instance, watched, theirs.windows, each.source)
                proofs.of_life(told, each.instance, each.work.service.name, each.log)
        loops = {measured.loop, *(each.measured.loop for each in notes.beside)}
        self._prove_generator(notes, measured, watched, lab, is_closed=loops == {"closed"})

    def _prove_generator(
        self, notes: Notes, measured: Measured, watched: Watched, lab: Lab, *, is_closed: bool
    ) -> None:
        """Of its control group, which holds all loads. Where all loops are closed it may have little left, if the
        instances together used all of their CPUs and so set the pace.
        """
        used = proofs.cpus_used(watched, "generator", measured.windows)
        if isinstance(used, str):
            notes.check(HEADROOM_FOR_ALL, None, used)
            return
        share = used / len(lab.generator.cpus)
        detail, held = f"used {share:.0%} of {len(lab.generator.cpus)} CPU", share < proofs.HEADROOM
        limits = self.companions[0].instance.limits  # of all: they share as many CPUs as each may use
        if not held and is_closed and limits.budget == "inclusive":  # else helpers may compute beyond these
            parts = [proofs.cpus_used(watched, name, measured.windows) for name in ("instance", *self.accountings)]
            busy = sum(part for part in parts if not isinstance(part, str)) / limits.vcpus
            held = share < proofs.OUTRUN and busy >= proofs.BUSY
            detail += f", and the instances {busy:.0%} of theirs"
        notes.check(HEADROOM_FOR_ALL, held, detail)


@contextmanager
def company(deployer: Deployer, trial: PlannedTrial, treatment: Treatment, notes: Notes) -> Iterator[Company]:
    """The other servers for the length of the block, deployed and answering; nobody, where the treatment has none.

    The watchdog ends them where they endanger the machine, which makes the trial invalid.
    """
    if not treatment.beside:
        yield Company()
        return
    with ExitStack() as stack:
        with notes.phase("neighbours"):
            companions = []
            for number, (called, work) in enumerate(treatment.beside.items(), 1):
                name, ports, slot = f"{trial.id}-beside{number}", work.service.ports, SLOTS - number
                instance = stack.enter_context(deployer.deployed(name, trial, treatment.limits, ports, slot=slot))
                companions.append(stack.enter_context(_served(called, work, instance, deployer.client(name), notes)))

        def save() -> None:
            for each in companions:
                end_instance(each.instance)

        with watching(deployer.lab.directory, save) as watch:
            try:
                yield Company(companions, Cgroup(f"{deployer.lab.cgroup}/generator", hierarchies()).kill)
            finally:
                if watch.reason:
                    notes.check(ROOM, False, f"{watch.reason}; the other servers were ended")


@contextmanager
def _served(called: str, work: Driven, instance: Instance, client: Client, notes: Notes) -> Iterator[Companion]:
    """Its service runs and answers as a client expects, and its load is open; what it said is kept with the trial."""
    service, content = work.service, work.load.content
    try:
        hold_on_disk(service, instance, [] if content is None else [content])
        offer = service.start(instance, None)
        service.await_ready(instance, offer, client)
        with _of(called, notes) as told:
            _of_answering(told, "before", work, offer, client)
        with work.load.session(client, offer) as session:
            yield Companion(called, work, instance, session, offer, client)
    finally:
        with suppress(AgentError):
            said = instance.agent.tail(daemon.log_path(service.name), _LOG_BYTES)
            (notes.directory / _log_of(called)).write_bytes(said)


def _log_of(server: str) -> str:
    return f"beside-{server}.txt"


def _window(companion: Companion, start_ns: int) -> Measurement:
    """All of the time that it says: no number of requests ends it before."""
    length_ns = companion.work.load.settings.time_limit_ns
    measurement = companion.session.measure(duration_ns=length_ns, start_ns=start_ns)
    companion.session.rest()
    return measurement


def _of_answering(notes: Notes, when: str, work: Driven, offer: Offer, client: Client) -> None:
    """As a client of it would see: one that hangs under its load is at work no more, and its process lives on."""
    proofs.of_verification(notes, when, partial(work.service.verify, offer, client, work.load.content))


def _of_being_loaded(notes: Notes, theirs: Window, measured: Window) -> None:
    """It was under its load in (nearly) all of the measured window, and served something."""
    both_ns = min(theirs.end_ns, measured.end_ns) - max(theirs.start_ns, measured.start_ns)
    share = max(0, both_ns) / measured.duration_ns if measured.duration_ns else 0.0
    told = f"in {share:.0%} of the window; {theirs.work:g} units of work"
    notes.check("it was under its load", share >= COVERED and theirs.work > 0, told)


@contextmanager
def _of(name: str, notes: Notes) -> Iterator[Notes]:
    """Notes for the length of the block, whose checks are then the trial's own, with that server's name."""
    told = Notes(notes.directory, lambda _phase: None)
    yield told
    notes.checks += [each.model_copy(update={"name": f"{name}{BESIDE_IT}{each.name}"}) for each in told.checks]


@contextmanager
def _meanwhile(asked: Sequence[Callable[[], T]], give_up: Callable[[], None]) -> Iterator[list[T]]:
    """Do all that is asked while the block goes on, each in a thread; what came of it is there after the block, which
    ends when all is done. An error of the block's own goes before one of theirs, and makes them ``give_up``: an
    interrupt would else wait for windows to end that nobody wants any more.
    """
    done: list[T] = []
    if not asked:
        yield done
        return
    with ThreadPoolExecutor(len(asked)) as pool:
        futures = [pool.submit(each) for each in asked]
        try:
            yield done
        except BaseException:
            while wait(futures, timeout=0).not_done:  # more than once: one may just have been about to begin
                with suppress(HostError):  # of what does not die; the threads have bounds of their own
                    give_up()
                wait(futures, _GIVE_UP_S)
            raise
    done += [each.result() for each in futures]
