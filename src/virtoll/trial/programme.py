"""A programme of probes in the lab: one deployment, and every case of the programme a trial on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from virtoll.agent import StreamError
from virtoll.errors import AgentError
from virtoll.hosts.interrupts import is_being_tidied_up_after
from virtoll.instruments.base import instruments
from virtoll.lab.background import hogs
from virtoll.lab.losses import losses
from virtoll.lab.shaping import LinkShape, shaped
from virtoll.lab.slices import Slices, first_free_slot
from virtoll.monitor import Monitor, Watched
from virtoll.offers import merged
from virtoll.platforms.base import Instance
from virtoll.platforms.groups import instance_cpus
from virtoll.probes.base import Place, Probe, ProbeError, ProbeResult, Slice, probes
from virtoll.record.model import Outcome, PlannedTrial, ProbeRecord, ProbeWindow, Quantity
from virtoll.record.store import histogram_table, samples_table
from virtoll.study.limits import Limits
from virtoll.study.model import Case, Neighbour, Study, settings_of
from virtoll.trial import proofs
from virtoll.trial.deployer import Deployer
from virtoll.trial.neighbourhood import beside, may_have_harmed
from virtoll.trial.notes import Notes


def make_probe(case: Case) -> Probe:
    """The probe of a case, with its settings."""
    cls = probes()[case.probe]
    return cls(cls.Settings(**case.settings))


@dataclass(frozen=True)
class _Held:
    """An instance that trials share."""

    deployment: str
    stack: ExitStack
    place: Place
    facts: Mapping[str, Any]
    believes: Mapping[str, Any]


@dataclass
class ProgrammeExperiment:
    """Performs the trials of a programme. ``pending``: those it will be given, in their order.

    The instance is made by the first trial of a deployment and ended by the last. A probe that cannot measure leaves
    it to the others; whatever else goes wrong ends it, and the next trial deploys anew.
    """

    study: Study
    deployer: Deployer
    monitor: Monitor
    pending: Sequence[PlannedTrial]
    _held: _Held | None = None
    _limits_proved: set[tuple[str, Limits]] = field(default_factory=set)  # by arm

    def perform(self, trial: PlannedTrial, notes: Notes) -> None:
        """Deploy where it is the first, measure, prove; undo the deployment where it is the last."""
        try:
            held = self._deployed(trial, notes)
            notes.facts.update(held.facts)
            notes.believes.update(held.believes)
            self._prove_limits(held.place, trial, notes)
            self._measure(held.place, trial, notes)
            if not _slices_live(held.place, notes):
                self.end(notes)  # the next trial deploys anew
        except ProbeError:
            raise  # the instance is as good as before
        except BaseException:
            self.end(notes)
            raise
        finally:
            if trial.id in self._last:
                self.end(notes)

    def end(self, notes: Notes | None = None) -> None:
        """Undo the deployment that is held, if there is one."""
        held, self._held = self._held, None
        if held is None:
            return
        if notes is None:
            held.stack.close()
            return
        with notes.phase("teardown"):
            held.stack.close()

    @cached_property
    def _last(self) -> frozenset[str]:
        """The trials that end their deployments."""
        followed = (trial.id for trial, after in pairwise(self.pending) if trial.deployment == after.deployment)
        return frozenset({trial.id for trial in self.pending}.difference(followed))

    def _deployed(self, trial: PlannedTrial, notes: Notes) -> _Held:
        if self._held is not None and self._held.deployment == trial.deployment:
            return self._held
        self.end(notes)
        values = self.study.values(trial.condition)
        limits = settings_of(Limits, "limits", values)
        ports = merged(port for case in self.study.programme for port in probes()[case.probe].ports)
        with ExitStack() as stack:
            stack.enter_context(shaped(self.deployer.lab, settings_of(LinkShape, "link", values)))
            instance = self.deployer.first(stack, trial, limits, ports, notes)
            deployment = list(notes.phases)
            slices: list[Slice] = []
            wanted = settings_of(Slices, "slices", values)
            if wanted.count:
                with notes.phase("slices"):
                    slices = stack.enter_context(self.deployer.sliced(trial, instance, limits, wanted))

            def another(number: int) -> AbstractContextManager[Instance]:
                slot = first_free_slot(wanted) + number - 1
                return self.deployer.deployed(f"{trial.id}-{number}", trial.arm, limits, (), slot=slot)

            place = Place(instance, self.deployer.client(trial.id), deployment, another, slices)
            held = _Held(trial.deployment, stack.pop_all(), place, dict(notes.facts), dict(notes.believes))
        self._held = held
        return held

    def _measure(self, place: Place, trial: PlannedTrial, notes: Notes) -> None:
        values = self.study.values(trial.condition)
        case = self.study.case(trial.condition)
        probe = make_probe(case)
        lab = self.deployer.lab
        limits, plan = place.instance.limits, settings_of(Neighbour, "neighbour", values)
        there = replace(lab, cpus=replace(lab.cpus, instance=instance_cpus(lab, limits)))
        with beside(self.deployer, trial, limits, plan, notes) as begin, hogs(there, int(values["background.hogs"])):
            lost_before = losses(lab)
            # From outside alone: the probe itself uses the channel to the inside.
            self.monitor.start(place.instance, float(values["monitor.rate_per_s"]), inside=False)
            with notes.phase("window"):
                begin(wait=True)
                result = measured_victim(case, probe, place) if plan.aggressor else measured(case, probe, place)
            watched = self.monitor.collect(may_be_silent=isinstance(result, Exception))
            if not (probe.counts_losses or plan.aggressor):
                proofs.of_wiring(notes, lost_before, losses(lab))
        notes.tables["outside"] = samples_table(watched.outside)
        if isinstance(result, Exception):
            self._harmed(place, result, notes)
        else:
            record = _note(notes, case, probe, result)
            proofs.of_neighbour(notes, record.windows, _offsets_ns(probe, watched))
            if may_have_harmed(notes):
                notes.outcome = notes.outcome or "answered"
        with notes.phase("prove"):
            proofs.of_watching(notes, watched)
            proofs.of_clock(notes, watched)
            proofs.of_cpu_limit(notes, place.instance, watched)
            if not isinstance(result, Exception):
                proofs.of_life(notes, place.instance)
        if isinstance(result, StreamError) or watched.offset_after is None:
            self.end(notes)  # its agent is of no more use: the next trial deploys anew

    def _harmed(self, place: Place, error: Exception, notes: Notes) -> None:
        """What became of a victim that gave no figures. ``error`` again, where no neighbour can have done it."""
        if not may_have_harmed(notes):
            raise error
        outcome: Outcome = "victim died" if proofs.has_ended(place.instance) else "did not answer"
        notes.outcome = notes.outcome or outcome
        notes.facts["no figures"] = str(error)
        if outcome == "victim died":
            self.end(notes)

    def _prove_limits(self, place: Place, trial: PlannedTrial, notes: Notes) -> None:
        """Before an arm measures anything, and on an instance made for it: a proof leaves its traces in memory.

        While one limit does not bite, each of the arm's trials tries again, and is invalid.
        """
        key = (trial.arm.label, place.instance.limits)
        if key in self._limits_proved:
            return
        with place.another(1) as instance:
            if proofs.of_limits(notes, instance):
                self._limits_proved.add(key)


def _slices_live(place: Place, notes: Notes) -> bool:
    """Whether every instance of the slices, if there are any, still lives; noted."""
    dead = [
        f"{end} {each.index + 1}"
        for each in place.slices
        for end, instance in (("near", each.near), ("far", each.far))
        if not instance.is_running()
    ]
    if place.slices:
        told = f"ended: {', '.join(dead)}" if dead else "near and far of each asked after the window"
        notes.check("the slices lived to the end", not dead, told)
    return not dead


def measured_victim(case: Case, probe: Probe, place: Place) -> ProbeResult | ProbeError | AgentError:
    """What is measured of a victim, or the error of one that did not answer.

    What the probe itself could not do (`ProbeError.is_own`) says nothing of the victim, and is raised.
    """
    try:
        return measured(case, probe, place)
    except ProbeError as error:
        if error.is_own or is_being_tidied_up_after():
            raise
        return error
    except AgentError as error:
        if is_being_tidied_up_after():
            raise
        return error


def measured(case: Case, probe: Probe, place: Place) -> ProbeResult:
    """What a probe says, or the outside instrument that stands in for it."""
    if not case.instrument:
        return probe.run(place)
    return instruments()[case.instrument]().run(place, case.probe, probe.settings)


def _offsets_ns(probe: Probe, watched: Watched) -> list[int]:
    """How far the clock of a probe's windows was ahead of the host's, before and after."""
    if not probe.timed_inside:
        return [0]
    return [clock.offset_ns for clock in (watched.offset_before, watched.offset_after) if clock is not None]


def _note(notes: Notes, case: Case, probe: Probe, result: ProbeResult) -> ProbeRecord:
    values = {
        key: [window.values[key] for window in result.windows]
        for key in probe.quantities
        if result.windows and all(key in window.values for window in result.windows)
    }
    quantities = {
        key: Quantity(title=q.title, unit=q.unit, better=q.better, windows=values[key])
        for key, q in probe.quantities.items()
        if key in values
    }
    if not quantities:
        raise ProbeError(
            "the report holds none of the probe's quantities",
            kind="system",
            where=f"{result.instrument}, probe {case.probe}",
            remedy="rebuild the agent and the image: `make`",
        )
    notes.probe = ProbeRecord(
        probe=case.probe,
        instrument=result.instrument,
        settings=dict(case.settings),
        headline=probe.headline,
        quantities=quantities,
        windows=[ProbeWindow(start_ns=w.start_ns, duration_ns=w.duration_ns, work=w.work) for w in result.windows],
        facts=dict(result.facts),
        notes=list(result.notes),
    )
    for check in result.checks:
        notes.check(check.name, check.passed, check.detail)
    if result.histogram is not None:
        notes.tables["latency"] = histogram_table(list(result.histogram))
    if result.series:
        notes.tables["series"] = samples_table(list(result.series))
    return notes.probe
