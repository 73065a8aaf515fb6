"""A service under a ramp: one session, a window at each of the load's levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from virtoll.loads import sights
from virtoll.loads.base import Load, Measurement
from virtoll.loads.watchers import failed_here
from virtoll.monitor import Watched
from virtoll.record.knee import Objective
from virtoll.record.model import ALL_THERE, GENERATOR_HEADROOM, MISSED, OWED, STAYED, UNTOLD, VOID, Measured, Window
from virtoll.record.objective import missed, parse, values_of
from virtoll.trial import proofs
from virtoll.trial.disturbance import since_now
from virtoll.trial.notes import Notes
from virtoll.trial.searching import beside_others, in_the_way, lacking, overrun
from virtoll.trial.subjects import DrivenService, tables_of
from virtoll.units import plural


@dataclass(frozen=True)
class RampedService(DrivenService):
    """A level in which our own side was in the way tells nothing of the service, and is void; the others stand. Of one
    that met its objective though our own side was late, what holds that is not told.
    """

    counts_losses: bool = True  # level by level

    _void: dict[str, str] = field(default_factory=dict)
    _untold: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def goes_on(self) -> bool:
        """Until each level had its window."""
        return len(self._measurements) < len(self.load.levels)

    def measure(self, notes: Notes) -> Measured:
        """The next level."""
        level = self.load.levels[len(self._measurements)]
        notes.on_phase(f"window at {level:,} {self.load.intensity.unit}")
        with since_now(self.lab, self.instance) as since:
            measurement = self.session.measure(intensity=level)
        self._measurements.append(measurement)
        others = partial(since.by_others, measurement.window)
        if why := void(measurement, self.load, self.client.cpus, since.by_the_wiring(), others):
            self._void[str(level)] = why
        elif late := untold(measurement.window):
            self._untold[str(level)] = late
        notes.measured = self._told()
        if not self.goes_on:
            notes.tables |= tables_of(self._measurements, self.load.loop)
        return notes.measured

    def _told(self) -> Measured:
        """The record of all levels so far; what each of them missed of the objective, or without one of what any
        service owes.
        """
        measured, load = self.load.measured(self._measurements), self.load
        facts = {**measured.facts, VOID: dict(self._void), UNTOLD: dict(self._untold)}
        objectives = [parse(text, load.quantities) for text in load.kept]
        facts[MISSED if objectives else OWED] = {
            str(level): missed_by(objectives, each, load.request)
            for level, each in zip(load.levels, self._measurements, strict=False)
        }
        return measured.model_copy(update={"facts": facts})

    def prove_ours(self, notes: Notes, measured: Measured, watched: Watched) -> None:
        """The generator was not in the way at some level at least, nor was the origin. Where it is not known what the
        generator used at a level that stands, it may have been in the way there: not checked, rather than proved.
        """
        unit, first = self.load.intensity.unit, next(iter(self._void), "")
        told = f"in the way at {len(self._void)} of {len(measured.windows)} levels"
        told += f" (at {first} {unit}: {self._void[first]})" if first else ""
        levels = zip(map(str, self.load.levels), measured.windows, strict=False)
        unknown = [level for level, window in levels if window.cpus_at_most is None and level not in self._void]
        told += f"; what it used is not known at {', '.join(unknown)} {unit}" if unknown else ""
        held = len(self._void) < len(measured.windows)
        notes.check(GENERATOR_HEADROOM, None if held and unknown else held, told)
        proofs.of_session(notes, self.session)
        if self.has_origin:
            proofs.of_origin(notes, watched, self.lab.origin, self.lab.generator, measured.windows)

    def prove(self, notes: Notes, measured: Measured, watched: Watched) -> None:
        """It answers correctly still, it did serve, and our side did its part."""
        self._count("after", notes)
        self._verify("after", notes)
        self.prove_ours(notes, measured, watched)
        _of_work(notes, measured.unit, measured.windows)


def void(measurement: Measurement, load: Load, cpus: int, lost: str, others: Callable[[bool], str]) -> str:
    """Why a level tells of our own side, and not of the service; "" where it tells of the service. ``lost``: what the
    wiring lost meanwhile, ``others``: what other work took of the CPUs, in words, as `beside_others` asks it.

    That the generator was late voids a level of which it may be the cause that it missed the objective, and so does
    other work. Where all was met it did no harm but to the joins' times, which are not told then, and to what is
    `untold`. A level is void, too, of which nothing was missed but what our own browsers failed to tell.
    """
    window = measurement.window
    if lost:
        return lost
    if why := overrun(window, load, cpus) or lacking(window, load):
        return why
    objectives = [parse(text, load.quantities) for text in load.kept]
    texts = missed_by(objectives, measurement, load.request)
    if objectives and not texts:
        return ""
    if why := beside_others(texts, objectives, others):
        return why
    values: dict[str, float | None] = {}
    bad = []
    for each in objectives:
        with suppress(ValueError):  # it cannot be told, which `missed_by` notes
            values |= values_of([each], window, load.request, measurement.bulk.histogram)
            bad += missed([each], values)
    unknown = [each.metric for each in objectives if each.metric not in values]
    is_of_browsers = bool(unknown) and len(unknown) == len(texts) and set(unknown) <= sights.QUANTITIES.keys()
    return (failed_here(window) if is_of_browsers else "") or in_the_way(window, load, cpus, bad, values)


def untold(window: Window) -> dict[str, str]:
    """The quantities of a level that hold how late our own side read, or sent, where that was too often; and how often.
    What they would be otherwise is not known, though they were good enough.
    """
    why = proofs.read_too_late(window)
    return dict.fromkeys(proofs.holding_lateness(window), why) if why else {}


def missed_by(objectives: Sequence[Objective], measurement: Measurement, request: str) -> list[str]:
    """The parts of an objective that a window missed; what cannot be told of it was not met. Nor is one whose
    participants were not all in, or did not stay.
    """
    found = []
    for each in objectives:
        try:
            values = values_of([each], measurement.window, request, measurement.bulk.histogram)
        except ValueError as error:
            found.append(f"{each.text} ({error})")
            continue
        found += [one.text for one in missed([each], values)]
    found += [STAYED] * proofs.some_were_cut_off(measurement.window)
    return found + [ALL_THERE] * proofs.some_were_not_in(measurement.window, objectives)


def _of_work(notes: Notes, unit: str, windows: Sequence[Window]) -> None:
    done = sum(window.work for window in windows)
    notes.check("it served", done > 0, f"{done:,.6g} {plural(unit)} at {len(windows)} levels")
