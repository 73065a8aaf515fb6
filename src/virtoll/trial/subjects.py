"""What a trial measures of an instance: a service under its load, or a probe. The experiment knows no difference."""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from virtoll.errors import Problem, TrialError
from virtoll.instruments.base import instruments
from virtoll.lab.base import Lab
from virtoll.lab.client import SAID, Client
from virtoll.loads.base import Load, Measurement, Session
from virtoll.monitor import NOBODY, Watched, Yardstick
from virtoll.offers import Offer
from virtoll.platforms.base import Accounting, Instance
from virtoll.platforms.groups import instance_cpus
from virtoll.probes.base import Place, Probe, ProbeError, ProbeResult
from virtoll.record.model import LOST_PERCENT, ROTATION, Measured, Window
from virtoll.record.tables import histogram_table, histograms_table, requests_table, samples_table
from virtoll.services.base import Service
from virtoll.study.model import Case, Rotation
from virtoll.trial import proofs
from virtoll.trial.company import Company
from virtoll.trial.lengths import Length, length
from virtoll.trial.notes import Notes
from virtoll.trial.request_log import read_request_log

LOST = "hardly a datagram was lost"  # rust/probe/src/network/round_trip.rs


class Subject(ABC):
    """What is measured, at its place."""

    seen_inside: ClassVar[bool]  # the instance's own agent samples meanwhile: nothing else needs it in the window
    awaits_neighbour: ClassVar[bool]  # the window begins when an aggressor is at work; else that begins in its middle
    must_live: ClassVar[bool]  # once it gave figures, beside a neighbour too; else `answers` tells of its end
    beside: Mapping[str, Accounting] = NOBODY  # others to watch from outside, by the source's name
    counts_losses: bool = False  # what the lab's links drop is a result

    @property
    def goes_on(self) -> bool:
        """Whether `measure` is to be asked once more, after the first time."""
        return False

    @property
    def every(self) -> int:
        """It is measured in one of so many rounds of a rotation."""
        return 1

    @property
    def first(self) -> int:
        """So many rounds go by before it is measured."""
        return 0

    @abstractmethod
    def prepare(self, notes: Notes) -> None:
        """What comes first, while nobody else is there: a verification. Its proofs are noted."""

    @abstractmethod
    def warm_up(self, notes: Notes) -> None:
        """What comes right before the window, beside all that is there in it."""

    def lead_in(self) -> None:  # noqa: B027
        """What comes right before each window of a rotation, unmeasured."""

    def break_off(self) -> None:  # noqa: B027
        """A window has failed, or its lead-in: whoever comes next has the CPUs to himself."""

    @abstractmethod
    def measure(self, notes: Notes) -> Measured:
        """A window, or all of a probe's; the record of all so far and its tables are noted.

        ProbeError or AgentError where the instance gave no figures; ``is_own`` of the first where that is our fault.
        """

    @property
    def is_watched_waiting(self) -> bool:
        """Whether it is to be watched still while others have windows to come: it may have had its last long before."""
        return False

    def waited(self) -> None:  # noqa: B027
        """The others' windows are over, and so is what it is watched for."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it still does what it is there for, beside a neighbour."""

    def lacks_answers(self, notes: Notes) -> bool:  # noqa: ARG002
        """Whether so many of its answers were lost that no time is told of it: harm beside a neighbour, and what
        was noted of it no broken proof.
        """
        return False

    @abstractmethod
    def prove_ours(self, notes: Notes, measured: Measured, watched: Watched) -> None:
        """That our own side did its part, whatever the instance did."""

    @abstractmethod
    def prove(self, notes: Notes, measured: Measured, watched: Watched) -> None:
        """That what was measured is what was to be measured, our own side's part too."""

    @abstractmethod
    def windows_of(self, measured: Measured | None) -> Sequence[Window]:
        """The windows in which the instance's use counts; none: all the time it was watched."""


@dataclass(frozen=True)
class DrivenService(Subject):
    """A service under a load."""

    seen_inside: ClassVar[bool] = True
    awaits_neighbour: ClassVar[bool] = False
    must_live: ClassVar[bool] = False

    service: Service
    load: Load
    session: Session
    offer: Offer
    client: Client
    lab: Lab
    has_origin: bool
    instance: Instance
    rotation: Rotation | None = None
    company: Company = field(default_factory=Company)  # the other servers that are loaded meanwhile
    yardstick: Yardstick | None = None  # of the CPUs that the instance computes on
    _measurements: list[Measurement] = field(default_factory=list)
    _turns_ns: list[int] = field(default_factory=list)  # when each of its turns began, with the lead-in
    _paces_per_s: list[float | None] = field(default_factory=list)  # the warm-up's, once it is over
    _lengths: list[Length] = field(default_factory=list)  # of all its windows, from the first turn on

    @property
    def beside(self) -> Mapping[str, Accounting]:  # type: ignore[override]
        """The other servers' instances."""
        return self.company.accountings

    @property
    def goes_on(self) -> bool:
        """In each round of the rotation that is its own."""
        done = self.first + len(self._measurements) * self.every
        return self.rotation is not None and done < self.rotation.rounds

    @property
    def every(self) -> int:
        """As was chosen by its pace."""
        return self._lengths[0].every if self._lengths else 1

    @property
    def first(self) -> int:
        """As was chosen by its pace."""
        return self._lengths[0].first if self._lengths else 0

    def prepare(self, notes: Notes) -> None:
        """Verify as a client would."""
        self._verify("before", notes)
        self._count("before", notes)

    def warm_up(self, notes: Notes) -> None:
        """By the load itself, and the others' by theirs. How long all windows are is chosen then, and noted."""
        with notes.phase("warm-up"), self.company.warming_up():
            self._paces_per_s.append(self.session.warm_up())
            if self.rotation is not None:
                self._lengths.append(self._chosen(self.rotation, notes))

    def lead_in(self) -> None:
        """The load itself, for as long as the rotation says; its session may take longer (`LEAD_IN`)."""
        if self.rotation is not None:
            self._turns_ns.append(time.monotonic_ns())
            if self.yardstick is not None:
                self.yardstick.begin(instance_cpus(self.lab, self.instance.limits))
            self.session.lead_in(self.rotation.lead_in_ns)

    def _chosen(self, rotation: Rotation, notes: Notes) -> Length:
        """By the pace of the warm-up; where that tells none, by that of a stretch as long as a lead-in."""
        under_way, pace_per_s = self.load.under_way, next(iter(self._paces_per_s), None)
        if under_way is not None and pace_per_s is None:
            pace_per_s = self.session.warm_up(rotation.lead_in_ns)
        chosen = length(rotation, under_way, pace_per_s)
        if under_way is not None:
            notes.facts[ROTATION] = chosen.told()
        return chosen

    def measure(self, notes: Notes) -> Measured:
        """One more window at the load's own intensity, as long as the load's, or in rotation as was chosen."""
        length_ns = self._lengths[0].window_ns if self._lengths else None
        with self.company.at_work(self.session) as start_ns:
            measurement = self.session.measure(duration_ns=length_ns, start_ns=start_ns)
            self.session.rest()
        self._measurements.append(self._read(measurement))
        notes.measured = self.load.measured(self._measurements)
        if not self.goes_on:  # not between others' windows, nor anew for each
            notes.tables |= tables_of(self._measurements, self.load.loop)
        return notes.measured

    def break_off(self) -> None:
        """Read its CPUs no more."""
        if self.yardstick is not None:
            self.yardstick.end(0, 0)

    def _read(self, measurement: Measurement) -> Measurement:
        """With what the yardstick says of its window."""
        if self.yardstick is None:
            return measurement
        window = measurement.window
        time_ns = self.yardstick.end(window.start_ns, window.end_ns)
        return replace(measurement, window=window.model_copy(update={"yardstick_ns": time_ns}))

    def answers(self) -> bool:
        """Whether a client gets the right answer; where none can be asked for, whether the service still runs."""
        try:
            problems = self._problems()
        except TrialError:
            return False
        return proofs.service_lives(self.instance, self.service.name) if problems is None else not problems

    def prove_ours(self, notes: Notes, measured: Measured, watched: Watched) -> None:
        """Generator and origin had headroom, and offered met intended."""
        used, limits = proofs.cpus_used(watched, "instance", measured.windows), self.instance.limits
        is_bounded = limits.budget == "inclusive"  # else helpers may compute beyond its CPUs
        busy = used / limits.vcpus if is_bounded and not isinstance(used, str) else "it is not known"
        booked = proofs.booked_of_generator(watched, measured.windows)
        proofs.of_generator(notes, measured, self.load.usable_cpus(self.client.cpus), busy, booked)
        proofs.of_session(notes, self.session)
        if self.has_origin:
            proofs.of_origin(notes, watched, self.lab.origin, self.lab.generator, measured.windows)

    def prove(self, notes: Notes, measured: Measured, watched: Watched) -> None:
        """It answers correctly still, it did answer, and our side did its part, as did all who were beside it.

        Beside others it is a result that it did not answer, though the trial is not valid.
        """
        self._count("after", notes)
        first = len(notes.checks)
        self._verify("after", notes)
        served = notes.checks[first:]
        self.prove_ours(notes, measured, watched)
        first = len(notes.checks)
        proofs.of_requests(notes, measured)
        served += notes.checks[first:]
        if self.company.companions and any(check.passed is False for check in served):
            notes.outcome = "did not answer"
        self.company.prove(notes, measured, watched, self.lab)
        self._prove_idleness(notes, measured, watched)

    def _prove_idleness(self, notes: Notes, measured: Measured, watched: Watched) -> None:
        """Where others had their turns."""
        if self.rotation is not None:
            proofs.of_idleness(notes, watched, measured.windows, self._turns_ns)

    def windows_of(self, measured: Measured | None) -> Sequence[Window]:
        """The load's."""
        return () if measured is None else measured.windows

    def _verify(self, when: str, notes: Notes) -> None:
        with notes.phase("verify"):
            proofs.of_verification(notes, when, self._problems)

    def _count(self, when: str, notes: Notes) -> None:
        """Note what the service itself counts, if it does; or why it does not tell."""
        told: dict[str, Any]
        try:
            told = dict(self.service.counted(self.offer, self.client))
        except TrialError as error:
            told = {"not told": str(error.problem)}
        if told:
            notes.facts["counted"] = {**notes.facts.get("counted", {}), when: told}

    def _problems(self) -> list[Problem] | None:
        """What is wrong with the answer that a client gets; None: it cannot ask. TrialError when it gets none."""
        return self.service.verify(self.offer, self.client, self.load.content)


def keep_said(there: Path, directory: Path) -> None:
    """Keep what the load's own programs printed, whole, with the trial, whichever of them failed."""
    if (there / SAID).exists():
        shutil.copyfile(there / SAID, directory / SAID)


def tables_of(measurements: Sequence[Measurement], loop: str) -> dict[str, Any]:
    """The parquet tables of the windows' bulk: latencies and lateness window by window; single requests where there is
    one window.
    """
    tables: dict[str, Any] = {}
    bulks = [measurement.bulk for measurement in measurements]
    for name, histograms in (
        ("latency", [bulk.histogram for bulk in bulks]),
        ("lateness", [bulk.lateness for bulk in bulks]),
    ):
        known = [histogram for histogram in histograms if histogram is not None]
        if len(known) == len(bulks) == 1:
            tables[name] = histogram_table(known[0])
        elif len(known) == len(bulks):
            tables[name] = histograms_table(known)
    log_path = bulks[0].log
    if log_path is not None and len(bulks) == 1:
        log = read_request_log(log_path)
        late_ns = log.late_ns if loop == "open" else None
        tables["requests"] = requests_table(log.intended_ns, log.latency_ns, log.status, late_ns)
    return tables


@dataclass(frozen=True)
class ProbedInstance(Subject):
    """A case of a programme, or the outside instrument that stands in for its probe."""

    seen_inside: ClassVar[bool] = False  # the probe itself uses the channel to the inside
    awaits_neighbour: ClassVar[bool] = True
    must_live: ClassVar[bool] = True

    case: Case
    probe: Probe
    place: Place
    in_turn: bool = False  # others are measured while it waits

    @property
    def counts_losses(self) -> bool:  # type: ignore[override]
        """As the probe says."""
        return self.probe.counts_losses

    def prepare(self, notes: Notes) -> None:
        """Nothing: a probe verifies its own work."""

    def warm_up(self, notes: Notes) -> None:
        """Nothing: a probe warms up by itself."""

    def measure(self, notes: Notes) -> Measured:
        """All of its windows."""
        result = self._result()
        notes.measured = measured_of(self.case, self.probe, result)
        for check in result.checks:
            notes.check(check.name, check.passed, check.detail)
        if result.histogram is not None:
            notes.tables["latency"] = histogram_table(list(result.histogram))
        if result.series:
            notes.tables["series"] = samples_table(list(result.series))
        return notes.measured

    def _result(self) -> ProbeResult:
        if not self.case.instrument:
            return self.probe.run(self.place)
        return instruments()[self.case.instrument]().run(self.place, self.case.probe, self.probe.settings)

    def answers(self) -> bool:
        """It has, if it gave figures."""
        return True

    def lacks_answers(self, notes: Notes) -> bool:
        """By its probe's own check, or what stands for it is not told of what was lost."""
        lost = [check for check in notes.checks if check.name == LOST and check.passed is False]
        notes.checks = [check.model_copy(update={"passed": None}) if check in lost else check for check in notes.checks]
        measured = notes.measured
        if measured is None or self.probe.headline in measured.quantities:
            return bool(lost)
        return bool(lost) or any(measured.values(LOST_PERCENT))

    def prove_ours(self, notes: Notes, measured: Measured, watched: Watched) -> None:
        """The neighbour that began was at work in every window."""
        offsets_ns = [0]
        if self.probe.timed_inside:
            clocks = (watched.offset_before, watched.offset_after)
            offsets_ns = [clock.offset_ns for clock in clocks if clock is not None]
        proofs.of_neighbour(notes, measured.windows, offsets_ns)

    def prove(self, notes: Notes, measured: Measured, watched: Watched) -> None:
        """See `prove_ours`."""
        self.prove_ours(notes, measured, watched)
        if self.in_turn:
            notes.check(proofs.IDLE, None, "a probe has one turn, and nobody watches it before and after")

    def windows_of(self, measured: Measured | None) -> Sequence[Window]:  # noqa: ARG002
        """All the time: its windows are of another clock, and its warm-ups are bound by the limits too."""
        return ()


def measured_of(case: Case, probe: Probe, result: ProbeResult) -> Measured:
    """A probe's result as it is recorded; ProbeError where it holds none of the probe's quantities."""
    keys = [key for key in probe.quantities if all(key in window.values for window in result.windows)]
    if not keys or not result.windows:
        raise ProbeError(
            "the report holds none of the probe's quantities",
            kind="system",
            where=f"{result.instrument}, probe {case.probe}",
            remedy="rebuild the agent and the image: `make`",
        )
    return Measured(
        name=case.probe,
        instrument=result.instrument,
        settings=dict(case.settings),
        quantities={key: probe.quantities[key] for key in keys},
        headline=probe.headline,
        windows=[
            window.model_copy(update={"values": {key: window.values[key] for key in keys}}) for window in result.windows
        ],
        facts=dict(result.facts),
        notes=list(result.notes),
    )
