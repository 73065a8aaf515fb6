"""The one experiment: a treatment is deployed, what it asks for is measured, and the trial proves itself.

What is measured (`virtoll.trial.subjects`) is a service under its load, or the probes of a programme, a trial each on
one deployment; a victim's deployment, of either kind, serves its neighbours one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from virtoll.agent import StreamError
from virtoll.errors import AgentError, TrialError
from virtoll.hosts.cgroup import Cgroup, hierarchies
from virtoll.hosts.interrupts import is_being_tidied_up_after
from virtoll.lab.background import hogs
from virtoll.lab.client import Client, Programs
from virtoll.lab.losses import losses
from virtoll.lab.shaping import shaped
from virtoll.lab.slices import first_free_slot
from virtoll.lab.throttle import throttle
from virtoll.loads.base import Load, Session
from virtoll.loads.several import several
from virtoll.monitor import Monitor, Tries, Watched, Yardstick
from virtoll.offers import Offer, Port
from virtoll.platforms.base import Instance, is_elsewhere
from virtoll.platforms.groups import instance_cpus
from virtoll.probes.base import Place, ProbeError, Slice, probes
from virtoll.record.model import OTHERS_IDLE, OWN_IDLE, YARDSTICK, Audit, Check, Measured, Outcome, PlannedTrial
from virtoll.record.tables import samples_table
from virtoll.services import daemon
from virtoll.services.base import hold_on_disk
from virtoll.study.model import Study
from virtoll.trial import audit, limits, proofs
from virtoll.trial.company import company
from virtoll.trial.deployer import Deployer
from virtoll.trial.disturbance import OverAll
from virtoll.trial.neighbourhood import beside, may_have_harmed
from virtoll.trial.notes import Course, Notes
from virtoll.trial.ramping import RampedService
from virtoll.trial.searching import KneeSearch, SearchedService
from virtoll.trial.subjects import DrivenService, ProbedInstance, Subject, keep_said
from virtoll.trial.treatment import Driven, Probed, Treatment, of_block, treatment_of

_LOG_BYTES = 500_000


@dataclass(frozen=True)
class _Held:
    """A deployment, for as long as trials share it."""

    deployment: str
    name: str  # the trial's that deployed it
    stack: ExitStack
    place: Place
    offer: Offer | None  # of the service that runs in it
    facts: Mapping[str, Any]
    believes: Mapping[str, Any]
    in_turn: bool  # others may be measured between two of its trials
    programs: Programs | None = None  # the load's own, from its first trial on


@dataclass
class Known:
    """What is known of a run before a trial, and what its trials have told those that follow, in whichever lab."""

    files: Mapping[str, str] = field(default_factory=dict)  # digests of what services are given, by place inside
    limits_proved: limits.Proved = field(default_factory=dict)
    # By what of a condition decides what should run (`Audit.levels`), in words: an arm, and what really ran there.
    runs: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    audited: set[str] = field(default_factory=set)
    yardstick: Yardstick | None = None  # of the CPUs that instances compute on; None: arms are not measured in turn
    tried: dict[frozenset[int], Tries | None] = field(default_factory=dict)  # what moves it on these; None: not known


@dataclass
class LabExperiment:
    """Performs trials in one wired lab. ``pending``: those it will be given, in their order; a run may grow.

    An instance is made by the first trial of its deployment and ended by the last. A probe that cannot measure leaves
    it to the others, where no neighbour was at work; whatever else goes wrong ends it, and the next trial deploys anew.
    So does a victim that does not answer, and a victim or a service of which a trial is not valid.
    """

    study: Study
    deployer: Deployer
    monitor: Monitor
    pending: Sequence[PlannedTrial]
    origin: Offer | None = None
    known: Known = field(default_factory=Known)
    _held: _Held | None = None
    _rest: ExitStack = field(default_factory=ExitStack)  # keeps what is held from running until its next trial
    _notes: Notes | None = None  # of the trial that is under way, or was the last

    def perform(self, trial: PlannedTrial, notes: Notes) -> Course:
        """Deploy where it is the first, measure, prove; undo the deployment where it is the last."""
        self._notes = notes
        self._rest.close()
        try:
            treatment = of_block(treatment_of(self.study, trial.condition, trial.arm.label), trial.block)
            yardstick = self._yardstick(treatment, notes)
            held = self._deployed(trial, treatment, notes)
            notes.facts.update(held.facts)
            notes.believes.update(held.believes)
            is_alone = isinstance(treatment.work, Driven) and trial.deployment not in self._shared
            if not is_alone:
                limits.prove_beside(self.known.limits_proved, held.place, trial, notes)
            with self._subject(held, treatment, trial, notes, yardstick) as subject:
                try:
                    can_be_asked = yield from self._measure(held.place, subject, treatment, trial, notes)
                finally:
                    limits.note_kernel_counts(notes, held.place.instance)
            if not can_be_asked:
                self.end(notes)
            elif is_alone:
                limits.prove_on(self.known.limits_proved, held.place.instance, trial, notes)
            if self._held is not None:
                slices_live = proofs.of_slices(notes, held.place.slices)
                if not (slices_live and _is_well(treatment, notes)):
                    self.end(notes)  # the next trial deploys anew
        except ProbeError:  # the instance is as good as before, but for what a neighbour may have done to it
            if may_have_harmed(notes):
                self.end(notes)
            if self._held is not None:
                yield from _aside(self._held.place.instance, treatment)  # others of its turn are still measured
            raise
        except BaseException:
            self.end(notes)
            raise
        finally:
            self._leave(trial, notes)

    def _leave(self, trial: PlannedTrial, notes: Notes) -> None:
        """Undo it after its last trial. In rotation a turn may come before its next in which it has no part."""
        if trial.id in self._last or not trial.deployment:
            self.end(notes)
        elif self._held is not None and self._held.in_turn:
            self._rest.enter_context(self._held.place.instance.stopped())

    def deploy(self, trial: PlannedTrial, notes: Notes) -> None:
        """Deploy what a trial asks for, start its service and undo it: nothing is measured (`virtoll audit`)."""
        self._notes = notes
        try:
            self._deployed(trial, treatment_of(self.study, trial.condition), notes)
        finally:
            self.end(notes)

    def end(self, notes: Notes | None = None) -> None:
        """Undo the deployment that is held, if there is one."""
        self._rest.close()
        held, self._held = self._held, None
        if held is None:
            return
        if notes is None:
            held.stack.close()
            return
        with notes.phase("teardown"):
            held.stack.close()

    @property
    def _last(self) -> frozenset[str]:
        """The trials that end their deployments."""
        followed = (trial.id for trial, after in pairwise(self.pending) if trial.deployment == after.deployment != "")
        return frozenset({trial.id for trial in self.pending}.difference(followed))

    @property
    def _shared(self) -> frozenset[str]:
        """The deployments that are for several trials."""
        counts = Counter(trial.deployment for trial in self.pending if trial.deployment)
        return frozenset(deployment for deployment, count in counts.items() if count > 1)

    # -- deployed -----------------------------------------------------------------------------------------

    def _deployed(self, trial: PlannedTrial, treatment: Treatment, notes: Notes) -> _Held:
        if self._held is not None and self._held.deployment == trial.deployment != "":
            return self._held
        self.end(notes)
        with _undone_if_unfinished(notes) as stack:
            stack.enter_context(shaped(self.deployer.lab, treatment.link))
            instance = self.deployer.first(stack, trial, treatment.limits, self._ports(treatment), notes)
            if not is_elsewhere(instance):  # where nothing is limited, a calibration included
                throttle(treatment.throttle, instance.accounting.cgroup, treatment.limits.vcpus)
            deployment = list(notes.phases)
            slices: list[Slice] = []
            if treatment.slices.count:
                with notes.phase("slices"):
                    sliced = self.deployer.sliced(trial, instance, treatment.limits, treatment.slices)
                    slices = stack.enter_context(sliced)
            place = self._place(trial, treatment, instance, deployment, slices)
            offer = self._started(stack, treatment.work, instance, trial, notes)
            audit.first(self.known.audited, trial, instance, notes)
            facts, believes = dict(notes.facts), dict(notes.believes)
            in_turn = treatment.rotation is not None
            held = _Held(trial.deployment, trial.id, stack.pop_all(), place, offer, facts, believes, in_turn)
        self._held = held
        return held

    def _ports(self, treatment: Treatment) -> tuple[Port, ...]:
        if isinstance(treatment.work, Driven):
            return treatment.work.service.ports
        return tuple(sorted({port for case in self.study.programme for port in probes()[case.probe].ports}))

    def _place(
        self,
        trial: PlannedTrial,
        treatment: Treatment,
        instance: Instance,
        deployment: Sequence[Any],
        slices: Sequence[Slice],
    ) -> Place:
        def another(number: int) -> AbstractContextManager[Instance]:
            slot = first_free_slot(treatment.slices) + number - 1
            return self.deployer.deployed(f"{trial.id}-{number}", trial, treatment.limits, (), slot=slot)

        return Place(instance, self.deployer.client(trial.id, of=instance), deployment, another, slices)

    def _started(
        self, stack: ExitStack, work: Driven | Probed | None, instance: Instance, trial: PlannedTrial, notes: Notes
    ) -> Offer | None:
        """What the service offers, once it runs; what it says goes into the log of the trial that ends its instance."""
        if not isinstance(work, Driven):
            return None

        def keep_log() -> None:
            with suppress(AgentError):
                log = daemon.log_path(work.service.name)
                (self._notes or notes).said = instance.agent.tail(log, _LOG_BYTES)

        with notes.phase("start"):
            stack.callback(keep_log)
            hold_on_disk(work.service, instance, [work.load.content] if work.load.content is not None else [])
            offer = work.service.start(instance, self.origin)
            work.service.await_ready(instance, offer, self.deployer.client(trial.id, of=instance))
            proofs.of_files(notes, work.service.digests, self.known.files)
            return offer

    def _yardstick(self, treatment: Treatment, notes: Notes) -> Yardstick | None:
        """That of the CPUs an instance computes on, for the windows of a load that take turns with others'. What of
        ours moves it is tried before the first trial, when nobody else is there.
        """
        yardstick, work = self.known.yardstick, treatment.work
        if yardstick is None or treatment.rotation is None or not isinstance(work, Driven):
            return None
        if treatment.knee is not None or treatment.neighbour.aggressor or work.load.levels:
            return None
        cpus = instance_cpus(self.deployer.lab, treatment.limits)
        if cpus not in self.known.tried:
            with notes.phase(YARDSTICK):
                self.known.tried[cpus] = yardstick.tried(cpus)
        return yardstick

    def _note_tries(self, treatment: Treatment, notes: Notes) -> None:
        """What of ours moves the yardstick that is read in this trial."""
        tried = self.known.tried.get(instance_cpus(self.deployer.lab, treatment.limits))
        if tried is not None:
            each = ((name, [round(one[at], 5) for one in tried]) for at, name in enumerate((OWN_IDLE, OTHERS_IDLE)))
            notes.facts[YARDSTICK] = dict(each)

    @contextmanager
    def _subject(
        self, held: _Held, treatment: Treatment, trial: PlannedTrial, notes: Notes, yardstick: Yardstick | None
    ) -> Iterator[Subject]:
        work = treatment.work
        if isinstance(work, Probed):
            yield ProbedInstance(work.case, work.probe, held.place, treatment.rotation is not None)
            return
        assert work is not None
        assert held.offer is not None
        client = self._client(held, work.load, trial)
        with ExitStack() as stack:
            stack.callback(keep_said, client.directory, notes.directory)
            others = stack.enter_context(company(self.deployer, trial, treatment, notes))
            session = stack.enter_context(self._session(held, work.load, client, treatment.generators, notes))
            lab, has_origin, instance = self.deployer.lab, self.origin is not None, held.place.instance
            there = (work.service, work.load, session, held.offer, client, lab, has_origin, instance)
            if treatment.knee is None:
                subject = RampedService if work.load.levels else DrivenService
                read = None if is_elsewhere(instance) else yardstick
                if read is not None:
                    self._note_tries(treatment, notes)
                yield subject(*there, treatment.rotation, others, read)
            else:
                knee, most = treatment.knee, work.most_users
                search = KneeSearch(knee, work.load, client.cpus, trial.id, treatment.generators, most_served=most)
                yield SearchedService(*there, treatment.rotation, search=search)

    def _session(
        self, held: _Held, load: Load, client: Client, generators: int, notes: Notes
    ) -> AbstractContextManager[Session]:
        """The load, open where ``client`` stands, and further generators beside it."""
        assert held.offer is not None
        if generators == 1:
            return client.opened(load, held.offer)
        clients = self.deployer.places(client, generators)
        parts = load.divided(generators)
        notes.facts["generators"] = [
            {"cpus": sorted(each.confinement.cpus or ()), **_own(part, load)}
            for each, part in zip(clients, parts, strict=True)
        ]
        end_all = Cgroup(f"{self.deployer.lab.cgroup}/generator", hierarchies()).kill
        return several(load, clients, held.offer, end_all)

    def _client(self, held: _Held, load: Load, trial: PlannedTrial) -> Client:
        """Where a trial's load runs. Its own programs, and what their seed wrote, are there as long as the service."""
        here = self.deployer.client(held.name, trial.id, of=held.place.instance)
        client = replace(here, is_seeded=trial.id != held.name)
        if load.programs.is_nothing or client.brings_programs:
            return client
        if held.programs is None:
            held = self._held = replace(held, programs=held.stack.enter_context(self.deployer.programs()))
        return replace(client, programs=held.programs)

    # -- measured -----------------------------------------------------------------------------------------

    def _measure(
        self, place: Place, subject: Subject, treatment: Treatment, trial: PlannedTrial, notes: Notes
    ) -> Generator[None, None, bool]:
        """Whether the instance's agent is of use still: else the next trial deploys anew."""
        lab, instance, plan = self.deployer.lab, place.instance, treatment.neighbour
        cpus = instance_cpus(lab, treatment.limits)
        group = "" if is_elsewhere(instance) else instance.accounting.cgroup
        subject.prepare(notes)
        with beside(self.deployer, trial, treatment.limits, plan, notes) as begin:
            lost_before, clock = losses(lab), self.monitor.read_clock(instance)
            with hogs(lab, treatment.background.hogs, cpus, group):
                subject.warm_up(notes)
                yield from _aside(instance, treatment)
                # From now until what was seen is collected nobody talks to the instance but the subject.
                self.monitor.start(
                    instance,
                    clock,
                    treatment.monitoring.rate_per_s,
                    inside=subject.seen_inside,
                    inside_hz=treatment.inside_rate_per_s,
                    beside=subject.beside,
                    lasts_s=treatment.watched_s,
                    for_sure=treatment.is_watched_for_sure,
                )
                told = yield from self._windows(instance, subject, treatment, begin, notes)
            # The hogs are gone: what was seen is asked for of an agent that has its CPUs to itself.
            may_be_silent = isinstance(told, Exception) or (bool(plan.aggressor) and subject.seen_inside)
            may_be_silent |= bool(subject.beside)
            watched = self._watched(notes, may_be_silent=may_be_silent)
            if is_elsewhere(instance):
                notes.check(proofs.WIRING, None, "not looked at: no wire of the lab's leads to that machine")
            elif not (subject.counts_losses or plan.aggressor):  # a flood's own losses are no fault of the wiring
                proofs.of_wiring(notes, lost_before, losses(lab))
            if not notes.waits:
                notes.waits = True
                yield from _aside(instance, treatment)  # the others' last windows come before anybody's conclusions
        lives = True
        if may_have_harmed(notes):
            lives = self._conclude(place, subject, told, watched, notes)
        elif isinstance(told, Exception):
            raise told
        else:
            _refuse_silence(instance, subject, watched, notes)
            subject.prove(notes, told, watched)
            with notes.phase("prove"):
                self._prove_watched(place, subject, told, watched, notes)
                work = treatment.work
                if not isinstance(work, Driven):
                    proofs.of_life(notes, instance)
                elif proofs.of_life(notes, instance, work.service.name):
                    self._prove_process(instance, work, trial, notes)
        return lives and not isinstance(told, StreamError) and watched.offset_after is not None

    def _windows(
        self, instance: Instance, subject: Subject, treatment: Treatment, begin: Callable[..., None], notes: Notes
    ) -> Generator[None, None, Measured | Exception]:
        """What is told of its windows, in turn with others' where the treatment says so; of a victim, or why not."""
        others = OverAll(self.deployer.lab, instance)
        if subject.first:
            yield from _aside(instance, treatment, rounds=subject.first)
        while True:
            with notes.phase("window"), _broken_off_at_a_failure(subject):
                if treatment.rotation is not None or treatment.neighbour.aggressor:
                    self.monitor.mark()  # something begins before the window does: a lead-in, a neighbour
                subject.lead_in()
                begin(wait=subject.awaits_neighbour)
                self.monitor.mark()
                with others.counted(notes):
                    told = _victims(subject, notes) if treatment.neighbour.aggressor else subject.measure(notes)
                self.monitor.mark()
            if not subject.goes_on:
                break
            yield from _aside(instance, treatment, rounds=subject.every)
        if subject.is_watched_waiting:
            notes.waits = True
            yield from _aside(instance, treatment)
            subject.waited()
        return told

    def _watched(self, notes: Notes, *, may_be_silent: bool) -> Watched:
        """What the monitor saw, which is kept; see `Monitor.collect`."""
        watched = self.monitor.collect(may_be_silent=may_be_silent)
        notes.tables["outside"] = samples_table(watched.outside)
        if watched.inside is not None:
            notes.tables["inside"] = samples_table(watched.inside)
        return watched

    def _prove_watched(
        self, place: Place, subject: Subject, measured: Measured | None, watched: Watched, notes: Notes
    ) -> None:
        proofs.of_watching(notes, watched)
        proofs.of_clock(notes, watched)
        proofs.of_cpu_limit(notes, place.instance, watched, subject.windows_of(measured))

    def _prove_process(self, instance: Instance, work: Driven, trial: PlannedTrial, notes: Notes) -> None:
        """What runs is noted when the window is over: a server may give itself its title after it listens."""
        if runs := work.service.runs(instance):
            notes.facts["process"] = runs
            first = self.known.runs.setdefault(str(Audit.levels(trial.condition)), (trial.arm.label, runs))
            proofs.of_process(notes, runs, *first)

    def _conclude(
        self, place: Place, subject: Subject, told: Measured | Exception, watched: Watched, notes: Notes
    ) -> bool:
        """What became of the victim: that is a result, and no proof. Whether it lives.

        What is proved is our side, and that clock and CPU limit held, as far as the victim lives to tell.
        """
        if isinstance(told, TrialError) and not isinstance(told, ProbeError) and subject.answers():
            raise told  # the load gave up, and the victim is well
        measured = None if isinstance(told, Exception) else told
        with notes.phase("prove"):
            if measured is None:
                notes.facts["no figures"] = str(told)
            else:
                if subject.lacks_answers(notes):
                    notes.outcome = notes.outcome or "did not answer"
                subject.prove_ours(notes, measured, watched)
            self._prove_watched(place, subject, measured, watched, notes)
            outcome = notes.outcome  # a harmed host is told first, whatever became of the victim
            if outcome is None or measured is None:
                outcome = _outcome(place.instance, subject, measured, watched)
            notes.outcome = notes.outcome or outcome
            if measured is not None and notes.outcome != "answered" and _was_waited_for(measured):
                notes.checks = [_excused(check) for check in notes.checks]
            if measured is not None and subject.must_live:
                proofs.of_life(notes, place.instance)
        return outcome != "victim died"


def _own(part: Load, load: Load) -> dict[str, Any]:
    """The settings in which a part of a load differs from all of it."""
    whole = asdict(load.settings)
    return {key: value for key, value in asdict(part.settings).items() if value != whole[key]}


def _aside(instance: Instance, treatment: Treatment, rounds: int = 1) -> Course:
    """Let others go on for so many rounds; where they are measured meanwhile, beside an instance that does nothing."""
    with nullcontext() if treatment.rotation is None else instance.stopped():
        for _ in range(rounds):
            yield


def _is_well(treatment: Treatment, notes: Notes) -> bool:
    """Whether an instance may serve those that share it, after this trial: what harmed it would be told of them. All
    proofs must have held, whatever they were of; but a probe's, where it is no victim, are of its own work.
    """
    answered = notes.outcome in (None, "answered")
    of_its_own = isinstance(treatment.work, Probed) and not treatment.neighbour.aggressor
    return answered and (of_its_own or all(check.passed is not False for check in notes.checks))


@contextmanager
def _undone_if_unfinished(notes: Notes) -> Iterator[ExitStack]:
    """What is made in the block is undone where the block fails: a teardown like any other."""
    with ExitStack() as stack:
        try:
            yield stack
        except BaseException:
            with notes.phase("teardown"):
                stack.close()
            raise


@contextmanager
def _broken_off_at_a_failure(subject: Subject) -> Iterator[None]:
    try:
        yield
    except BaseException:
        subject.break_off()
        raise


def _victims(subject: Subject, notes: Notes) -> Measured | Exception:
    """What is measured of a victim, or the error of one that gave no figures.

    What a probe itself could not do (`ProbeError.is_own`) says nothing of the victim, and is raised.
    """
    try:
        return subject.measure(notes)
    except (TrialError, AgentError) as error:
        if is_being_tidied_up_after() or (isinstance(error, ProbeError) and error.is_own):
            raise
        return error


def _was_waited_for(measured: Measured) -> bool:
    """Whether requests failed, or waited for a connection that was free."""
    events = measured.events
    return events is not None and bool(events.failures or events.queued)


def _excused(check: Check) -> Check:
    """Of a victim that hangs to the end: what was due while all connections waited for it was not sent, and that is its
    harm, and no broken proof.
    """
    if check.name != proofs.OFFERED or check.passed is not False:
        return check
    return check.model_copy(update={"passed": None, "detail": f"{check.detail}; connections waited for the victim"})


def _outcome(instance: Instance, subject: Subject, measured: Measured | None, watched: Watched) -> Outcome:
    """One whose agent answers no more may be about to end."""
    is_silent = subject.seen_inside and watched.offset_after is None
    if measured is not None and not is_silent and subject.answers():
        return "answered"
    if proofs.has_ended(instance):
        return "victim died"
    return "answered" if measured is not None and is_silent and subject.answers() else "did not answer"


def _refuse_silence(instance: Instance, subject: Subject, watched: Watched, notes: Notes) -> None:
    """AgentError where the instance's agent answered no more, and no aggressor can have done it. Beside other servers
    it is a result besides.
    """
    if watched.offset_after is not None:
        return
    beside = "and no neighbour was at work"
    if subject.beside:
        notes.outcome, beside = "did not answer", "beside the study's other servers"
    raise AgentError(
        f"the instance's agent answered no more after the window, {beside}",
        where=instance.platform,
        remedy="see the trial's log",
    )
