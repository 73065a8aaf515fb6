"""One trial in the lab: a fresh deployment, the service verified, the load driven, everything watched and proved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from virtoll import proofs
from virtoll.errors import AgentError, Problem, StudyError, TrialError
from virtoll.images.base import Image
from virtoll.lab.background import hogs
from virtoll.lab.base import ORIGIN_ADDRESS, CpuPlan, Lab
from virtoll.lab.losses import losses
from virtoll.lab.shaping import LinkShape, shaped
from virtoll.lab.wiring import generator_confinement
from virtoll.limits import Limits
from virtoll.loads.base import Client, HttpObject, Load, LoadResult, loads
from virtoll.loads.fetch import fetch
from virtoll.loads.http import read_request_log
from virtoll.monitor import Monitor, Watched
from virtoll.networks.base import Attachment, common_kind, network_modes
from virtoll.platforms.base import Instance, Platform, platforms
from virtoll.platforms.groups import instance_cpus
from virtoll.record import Arm, LoadRecord, PlannedTrial
from virtoll.run import Notes
from virtoll.services import daemon, objects
from virtoll.services.base import Endpoint, Service, services
from virtoll.store import histogram_table, requests_table, samples_table
from virtoll.study import Study, settings_of

_LOG_BYTES = 500_000


def make_platform(arm: Arm) -> Platform:
    """The platform of an arm, with the arm's settings."""
    cls = platforms()[arm.platform]
    return cls(cls.Settings(**arm.settings))


def make_service(study: Study, section: str, values: Mapping[str, Any]) -> Service:
    """The service of section ``service`` or ``origin`` under the given values."""
    cls = services()[getattr(study, section)]
    return cls(settings_of(cls.Settings, section, values))


def make_load(study: Study, values: Mapping[str, Any]) -> Load:
    """The load under the given values."""
    cls = loads()[study.load]
    return cls(settings_of(cls.Settings, "load", values))


@dataclass
class LabExperiment:
    """Performs the trials of one study in one wired lab. Open it with `in_lab`."""

    study: Study
    lab: Lab
    image: Image
    origin: Endpoint | None
    monitor: Monitor
    sessions: ExitStack  # what platforms share between deployments, until the lab closes
    _open: set[str] = field(default_factory=set)
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
        stack.enter_context(shaped(self.lab, settings_of(LinkShape, "link", values)))
        platform = make_platform(trial.arm)
        with notes.phase("session"):
            self._open_session(platform, trial.arm)
        with notes.phase("deploy"):
            instance = self._deploy(stack, trial, platform, limits, service.port)
        notes.facts.update(instance.facts)
        notes.believes.update(instance.agent.facts())
        with notes.phase("start"):
            service.objects(instance, [int(values["load.object_bytes"])])
            endpoint = service.start(instance, self.origin)
        scene = _Scene(
            instance=instance,
            service=service,
            load=make_load(self.study, values),
            endpoint=endpoint,
            target=target_of(values),
            client=self._client(trial),
            notes=notes,
        )
        stack.callback(scene.keep_log)
        scene.verify("before")
        there = replace(self.lab, cpus=replace(self.lab.cpus, instance=instance_cpus(self.lab, limits)))
        with hogs(there, int(values["background.hogs"])):
            lost_before = losses(self.lab)
            result, watched = scene.measure(self.monitor, float(values["monitor.rate_per_s"]))
            proofs.of_wiring(notes, lost_before, losses(self.lab))
        scene.verify("after")
        scene.prove(result, watched, self.lab.cpus)
        if (trial.arm.label, limits) not in self._limits_proved and scene.prove_limits():
            self._limits_proved.add((trial.arm.label, limits))

    def _client(self, trial: PlannedTrial) -> Client:
        """The generator's place in the lab, with the trial's own scratch directory."""
        return Client(
            self.lab.host,
            generator_confinement(self.lab),
            self.lab.directory / trial.id,
            cpus=len(self.lab.cpus.generator),
        )

    def _open_session(self, platform: Platform, arm: Arm) -> None:
        """What the platform's deployments share is made once a run, and is not part of anyone's deployment."""
        shared = f"{platform.name} {arm.settings}"
        if shared not in self._open:
            self.sessions.enter_context(platform.session(self.lab, self.image))
            self._open.add(shared)

    def _deploy(self, stack: ExitStack, trial: PlannedTrial, platform: Platform, limits: Limits, port: int) -> Instance:
        directory = self.lab.directory / trial.id
        stack.enter_context(self.lab.ledger.owning("directory", str(directory)))
        directory.mkdir()
        attachment = stack.enter_context(_attached(self.lab, platform, trial.arm.network, port))
        return stack.enter_context(platform.deploy(self.lab, self.image, limits, attachment, directory))


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

    def verify(self, when: str) -> None:
        """Fetch the object as a client would; no answer, or a wrong one, is noted."""
        with self.notes.phase("verify"):
            try:
                problems = self.service.verify(
                    self.endpoint,
                    lambda endpoint, path: fetch(self.client, endpoint, path),
                    self.target.path,
                    self.target.length_bytes,
                    objects.sha256(self.target.length_bytes),
                )
            except TrialError as error:
                problems = [error.problem]
        proofs.of_answers(self.notes, when, problems)

    def keep_log(self) -> None:
        """Put what the service said into the trial's log, the end of it where it said a lot."""
        with suppress(AgentError):
            log = daemon.log_path(self.service.name)
            said = self.instance.agent.run(["tail", "-c", str(_LOG_BYTES), log]).stdout
            (self.notes.directory / "log.txt").write_bytes(said)

    def measure(self, monitor: Monitor, rate_hz: float) -> tuple[LoadResult, Watched]:
        """The measured window. Between the monitor's start and its collection nobody talks to the instance."""
        notes = self.notes
        with notes.phase("warm-up"):
            self.load.warm_up(self.client, self.endpoint, self.target)
        monitor.start(self.instance, rate_hz)
        with notes.phase("window"):
            result = self.load.drive(self.client, self.endpoint, self.target)
        watched = monitor.collect()
        notes.load = LoadRecord.model_validate({name: getattr(result, name) for name in LoadRecord.model_fields})
        if result.histogram is not None:
            notes.tables["latency"] = histogram_table(result.histogram)
        if result.request_log is not None:
            notes.tables["requests"] = requests_table(*read_request_log(result.request_log))
        notes.tables["outside"] = samples_table(watched.outside)
        notes.tables["inside"] = samples_table(watched.inside)
        return result, watched

    def prove(self, result: LoadResult, watched: Watched, cpus: CpuPlan) -> None:
        """Note every proof that is taken in each trial."""
        with self.notes.phase("prove"):
            proofs.of_load(self.notes, result, self.client.cpus)
            proofs.of_origin(self.notes, watched, cpus)
            proofs.of_watching(self.notes, watched)
            proofs.of_clock(self.notes, watched, result.end_ns - result.start_ns)
            proofs.of_cpu_limit(self.notes, self.instance, watched)
            proofs.of_life(self.notes, self.instance)

    def prove_limits(self) -> bool:
        """Note that the limits bite, which costs seconds; false where one does not: then the arm's next trial tries."""
        before = len(self.notes.checks)
        with self.notes.phase("prove"):
            proofs.of_cpu_count(self.notes, self.instance)
            proofs.of_disk_limit(self.notes, self.instance)
            proofs.of_pids_limit(self.notes, self.instance)
            proofs.of_memory_limit(self.notes, self.instance)
        return all(check.passed is not False for check in self.notes.checks[before:])


def target_of(values: Mapping[str, Any]) -> HttpObject:
    """The object that the load asks for."""
    length_bytes = int(values["load.object_bytes"])
    return HttpObject(objects.path(length_bytes), length_bytes)


@contextmanager
def _attached(lab: Lab, platform: Platform, network: str, port: int) -> Iterator[Attachment]:
    mode = network_modes()[network]
    kind = common_kind(platform.name, platform.kinds, mode)
    if isinstance(kind, Problem):
        raise StudyError([kind])
    with mode().attach(lab, kind, (port,)) as attachment:
        yield attachment


@contextmanager
def in_lab(study: Study, lab: Lab, image: Image) -> Iterator[LabExperiment]:
    """An experiment in a wired lab, with its origin deployed and the host's monitor running."""
    with ExitStack() as stack:
        origin = stack.enter_context(_origin(study, lab, image)) if study.origin else None
        monitor = stack.enter_context(Monitor.on_host(lab))
        sessions = stack.enter_context(ExitStack())
        yield LabExperiment(study, lab, image, origin, monitor, sessions)


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
        attachment = Attachment("host", "shared", lab.origin_netns, ORIGIN_ADDRESS, (server.port,))
        platform = platforms()["native"]()
        with platform.deploy(there, image, limits, attachment, directory) as instance:
            server.objects(instance, lengths)
            yield server.start(instance, None)
