"""One trial of a service in the lab: deployed afresh, verified, driven by its load, watched and proved.

`programme` performs the trials of probes; `in_lab` opens whichever a study needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from virtoll.errors import AgentError, Problem, TrialError
from virtoll.images.base import Image
from virtoll.lab.background import hogs
from virtoll.lab.base import ORIGIN_ADDRESS, CpuPlan, Lab
from virtoll.lab.losses import losses
from virtoll.lab.shaping import LinkShape, shaped
from virtoll.loads.base import Client, HttpObject, Load, LoadResult, loads
from virtoll.loads.fetch import fetch
from virtoll.loads.http import read_request_log
from virtoll.monitor import Monitor, Watched
from virtoll.networks.base import Attachment
from virtoll.offers import Port
from virtoll.platforms.base import Instance, platforms
from virtoll.platforms.groups import instance_cpus
from virtoll.record.model import LoadRecord, Outcome, PlannedTrial
from virtoll.record.store import histogram_table, requests_table, samples_table
from virtoll.services import daemon, objects
from virtoll.services.base import Endpoint, Service, services
from virtoll.study.limits import Limits
from virtoll.study.model import Neighbour, Study, settings_of
from virtoll.trial import proofs
from virtoll.trial.deployer import Deployer
from virtoll.trial.neighbourhood import beside, may_have_harmed
from virtoll.trial.notes import Experiment, Notes
from virtoll.trial.programme import ProgrammeExperiment

_LOG_BYTES = 500_000


def make_service(study: Study, section: str, values: Mapping[str, Any]) -> Service:
    """The service of section ``service`` or ``origin`` under the given values."""
    cls = services()[getattr(study, section)]
    return cls(settings_of(cls.Settings, section, values))


def make_load(study: Study, values: Mapping[str, Any]) -> Load:
    """The load under the given values."""
    cls = loads()[study.load]
    return cls(settings_of(cls.Settings, "load", values))


@dataclass
class ServiceExperiment:
    """Performs the trials of one service under one load in one wired lab."""

    study: Study
    deployer: Deployer
    origin: Endpoint | None
    monitor: Monitor
    _limits_proved: set[tuple[str, Limits]] = field(default_factory=set)  # by arm

    def perform(self, trial: PlannedTrial, notes: Notes) -> None:
        """Deploy, verify, drive, verify, prove; then undo all of it."""
        values = self.study.values(trial.condition)
        stack = ExitStack()
        try:
            self._perform(stack, trial, values, notes)
        finally:
            with notes.phase("teardown"):
                stack.close()

    def _perform(self, stack: ExitStack, trial: PlannedTrial, values: Mapping[str, Any], notes: Notes) -> None:
        service = make_service(self.study, "service", values)
        limits = settings_of(Limits, "limits", values)
        lab = self.deployer.lab
        stack.enter_context(shaped(lab, settings_of(LinkShape, "link", values)))
        instance = self.deployer.first(stack, trial, limits, (Port(service.port),), notes)
        with notes.phase("start"):
            service.objects(instance, [int(values["load.object_bytes"])])
            endpoint = service.start(instance, self.origin)
        scene = _Scene(
            instance=instance,
            service=service,
            load=make_load(self.study, values),
            endpoint=endpoint,
            target=target_of(values),
            client=self.deployer.client(trial.id),
            notes=notes,
            has_origin=self.origin is not None,
        )
        stack.callback(scene.keep_log)
        scene.verify("before")
        plan = settings_of(Neighbour, "neighbour", values)
        there = replace(lab, cpus=replace(lab.cpus, instance=instance_cpus(lab, limits)))
        with beside(self.deployer, trial, limits, plan, notes) as begin, hogs(there, int(values["background.hogs"])):
            lost_before = losses(lab)
            result = scene.measure(self.monitor, float(values["monitor.rate_per_s"]), begin)
            lost = losses(lab)
            watched = scene.watched(self.monitor, may_be_silent=bool(plan.aggressor))
        if may_have_harmed(notes):
            scene.conclude(result, watched, lab.cpus)
            if notes.outcome != "answered":
                return
        else:
            _refuse_silence(instance, watched)
            if not plan.aggressor:  # a flood's own losses are no fault of the wiring
                proofs.of_wiring(notes, lost_before, lost)
            scene.verify("after")
            scene.prove(result, watched, lab.cpus)
        if (trial.arm.label, limits) not in self._limits_proved and proofs.of_limits(notes, instance):
            self._limits_proved.add((trial.arm.label, limits))


@dataclass(frozen=True)
class _Scene:
    """All who take part in one trial, once the service runs."""

    instance: Instance
    service: Service
    load: Load
    endpoint: Endpoint
    target: HttpObject
    client: Client
    notes: Notes
    has_origin: bool

    def verify(self, when: str) -> None:
        """Fetch the object as a client would; no answer, or a wrong one, is noted."""
        with self.notes.phase("verify"):
            try:
                problems = self._problems()
            except TrialError as error:
                problems = [error.problem]
        proofs.of_answers(self.notes, when, problems)

    def _problems(self) -> list[Problem]:
        """What is wrong with the answer that a client gets. TrialError when it gets none."""
        return self.service.verify(
            self.endpoint,
            lambda endpoint, path: fetch(self.client, endpoint, path),
            self.target.path,
            self.target.length_bytes,
            objects.sha256(self.target.length_bytes),
        )

    def keep_log(self) -> None:
        """Put what the service said into the trial's log, the end of it where it said a lot."""
        with suppress(AgentError):
            log = daemon.log_path(self.service.name)
            self.notes.said = self.instance.agent.run(["tail", "-c", str(_LOG_BYTES), log]).stdout

    def measure(self, monitor: Monitor, rate_hz: float, begin: Callable[[], None]) -> LoadResult:
        """The measured window. Between the monitor's start and its collection nobody talks to the instance.

        ``begin`` is called when the window begins.
        """
        notes = self.notes
        with notes.phase("warm-up"):
            self.load.warm_up(self.client, self.endpoint, self.target)
        monitor.start(self.instance, rate_hz)
        with notes.phase("window"):
            begin()
            result = self.load.drive(self.client, self.endpoint, self.target)
        notes.load = LoadRecord.model_validate({name: getattr(result, name) for name in LoadRecord.model_fields})
        if result.histogram is not None:
            notes.tables["latency"] = histogram_table(result.histogram)
        if result.lateness is not None:
            notes.tables["lateness"] = histogram_table(result.lateness)
        if result.request_log is not None:
            log = read_request_log(result.request_log)
            late_ns = log.late_ns if result.loop == "open" else None
            notes.tables["requests"] = requests_table(log.intended_ns, log.latency_ns, log.status, late_ns)
        return result

    def watched(self, monitor: Monitor, *, may_be_silent: bool = False) -> Watched:
        """What the monitor saw, which is kept; see `Monitor.collect`."""
        watched = monitor.collect(may_be_silent=may_be_silent)
        self.notes.tables["outside"] = samples_table(watched.outside)
        if watched.inside is not None:
            self.notes.tables["inside"] = samples_table(watched.inside)
        return watched

    def conclude(self, result: LoadResult, watched: Watched, cpus: CpuPlan) -> None:
        """What became of the victim: whether it answers when the neighbour has ended.

        That is a result, and no proof. What is proved is our side (generator, origin and watching did their part), and
        that clock and CPU limit held, as far as the victim lives to tell.
        """
        with self.notes.phase("prove"):
            proofs.of_generator(self.notes, result, self.client.cpus)
            self._prove_watched(result, watched, cpus)
            if self.notes.outcome is None:
                self.notes.outcome = self._outcome(is_silent=watched.offset_after is None)

    def _outcome(self, *, is_silent: bool) -> Outcome:
        """``is_silent``: its agent answered no more, so that it may be about to end."""
        if not is_silent and self._answers():
            return "answered"
        if proofs.has_ended(self.instance):
            return "victim died"
        return "answered" if is_silent and self._answers() else "did not answer"

    def _answers(self) -> bool:
        try:
            return not self._problems()
        except TrialError:
            return False

    def prove(self, result: LoadResult, watched: Watched, cpus: CpuPlan) -> None:
        """Note every proof that is taken in each trial."""
        with self.notes.phase("prove"):
            proofs.of_load(self.notes, result, self.client.cpus)
            self._prove_watched(result, watched, cpus)
            proofs.of_life(self.notes, self.instance)

    def _prove_watched(self, result: LoadResult, watched: Watched, cpus: CpuPlan) -> None:
        if self.has_origin:
            proofs.of_origin(self.notes, watched, cpus, result.window)
        proofs.of_watching(self.notes, watched)
        proofs.of_clock(self.notes, watched)
        proofs.of_cpu_limit(self.notes, self.instance, watched, result.window)


def _refuse_silence(instance: Instance, watched: Watched) -> None:
    """AgentError where the instance's agent answered no more, and no neighbour can have done it."""
    if watched.offset_after is None:
        raise AgentError(
            "the instance's agent answered no more after the window, and no neighbour was at work",
            where=instance.platform,
            remedy="see the trial's log",
        )


def target_of(values: Mapping[str, Any]) -> HttpObject:
    """The object that the load asks for."""
    length_bytes = int(values["load.object_bytes"])
    return HttpObject(objects.path(length_bytes), length_bytes)


@contextmanager
def in_lab(study: Study, lab: Lab, image: Image, pending: Sequence[PlannedTrial]) -> Iterator[Experiment]:
    """The study's experiment in a wired lab, with its origin deployed and the host's monitor running."""
    with ExitStack() as stack:
        origin = stack.enter_context(_origin(study, lab, image)) if study.origin else None
        monitor = stack.enter_context(Monitor.on_host(lab))
        deployer = Deployer(lab, image, stack.enter_context(ExitStack()))
        if not study.programme:
            yield ServiceExperiment(study, deployer, origin, monitor)
            return
        experiment = ProgrammeExperiment(study, deployer, monitor, pending)
        stack.callback(experiment.end)
        yield experiment


@contextmanager
def _origin(study: Study, lab: Lab, image: Image) -> Iterator[Endpoint]:
    """The origin: native, in its own namespace, on its own CPUs, holding every object the study asks for."""
    lengths = study.factors.get("load.object_bytes", (study.base["load.object_bytes"],))
    server = make_service(study, "origin", study.base)
    limits = Limits(vcpus=len(lab.cpus.origin), memory_bytes=1024**3)
    there = replace(lab, cpus=replace(lab.cpus, instance=lab.cpus.origin), sut_netns=lab.origin_netns)
    directory = lab.directory / "origin"
    with lab.ledger.owning("directory", str(directory)):
        directory.mkdir()
        attachment = Attachment("host", "shared", lab.origin_netns, ORIGIN_ADDRESS, (Port(server.port),))
        platform = platforms()["native"]()
        with platform.deploy(there, image, limits, attachment, directory) as instance:
            server.objects(instance, lengths)
            yield server.start(instance, None)
