"""A service whose knee is searched for: window by window as the search asks, under one objective."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from virtoll.errors import TrialError
from virtoll.loads import sights
from virtoll.loads.base import Load, Measurement, Session
from virtoll.loads.watchers import failed_here
from virtoll.monitor import Watched
from virtoll.record import knee as record
from virtoll.record.model import (
    ALL_THERE,
    BUFFERS_HELD,
    DROPPED,
    GENERATOR_HEADROOM,
    INTENDED,
    LATE_NS,
    PRESENT,
    STAYED,
    WAKES,
    WENT_ON,
    Events,
    Measured,
    Window,
    most_late,
)
from virtoll.record.objective import FAILED, is_missed_anyway, missed, parse, quantile_of, values_of
from virtoll.study.model import Knee, Rotation
from virtoll.study.search import Asked, Found, levels, search
from virtoll.trial import proofs, several
from virtoll.trial.disturbance import since_now
from virtoll.trial.lengths import Length
from virtoll.trial.notes import Notes
from virtoll.trial.subjects import DrivenService, tables_of
from virtoll.units import format_duration, plural

# What a window tells of those who came in before it, besides how long that took.
_OF_JOINS = frozenset({FAILED, PRESENT, "first_packet_ms", "first_key_frame_ms", "audio_first_packet_ms"})


class KneeSearch:
    """A search at a load's session, a window at a time. ``trial``: its name, of which the steps between intensities are
    drawn; ``cpus``: the generator's; ``generators``: how many ask, each with ports and open files of its own;
    ``most_served``: users, more than whom the service's settings let nobody in.
    """

    def __init__(
        self,
        settings: Knee,
        load: Load,
        cpus: int,
        trial: str,
        generators: int = 1,
        *,
        most_served: int | None = None,
    ) -> None:
        self._settings, self._load, self._cpus = settings, load, cpus
        self._objectives = [parse(text, load.quantities) for text in settings.objective]
        offset = 1 - random.Random(trial).random()
        whole = load.intensity.whole
        self._most_here = max(settings.least, generators * load.most_here(cpus))
        self._most_served = math.inf if most_served is None or not whole else max(settings.least, most_served)
        most = min(settings.most, self._most_here, self._most_served)
        intensities = levels(settings.least, most, settings.precision_share, whole=whole, offset=offset)
        self._search = search(intensities, settings.windows, load.intensity.explored_by)
        self._measurements: list[Measurement] = []
        self._steps: list[record.Step] = []
        self._found: Found | None = None
        self.asked: Asked | None = next(self._search)  # the next window; None: it has ended

    @property
    def words(self) -> str:
        """The next window in words."""
        return "" if self.asked is None else f"window at {self.asked.intensity:,.6g} {self._load.intensity.unit}"

    def gather(self, session: Session) -> None:
        """Have the next window's users be there, where they stay."""
        assert self.asked is not None
        session.gather(self.asked.intensity)

    def measure(self, session: Session, disturbed: Callable[[Window, bool], str] = lambda *_: "") -> None:
        """The next window. ``disturbed``: what was in its way besides the generator, in words, or (True) was so since
        it was asked for, is asked where something is missed.

        TrialError where it cannot be told whether a window meets the objective.
        """
        assert self.asked is not None
        measurement = session.measure(intensity=self.asked.intensity, duration_ns=self._settings.window_ns)
        step = self._judged(self.asked, measurement, disturbed)
        if step.told != "met":
            session.recover()  # what an overload left of a crowd would be told of the next window
        self._measurements.append(measurement)
        self._steps.append(step)
        try:
            self.asked = self._search.send(step.told)
        except StopIteration as end:
            self._found, self.asked = end.value, None

    def _judged(self, asked: Asked, measurement: Measurement, disturbed: Callable[[Window, bool], str]) -> record.Step:
        window = measurement.window
        values, untold = self._told(measurement)
        bad = missed([each for each in self._objectives if each.metric in values], values)
        texts = [each.text for each in bad] + [WENT_ON] * proofs.some_broke_off(window)
        texts += [STAYED] * proofs.some_were_cut_off(window)
        never_came = proofs.some_never_began(window)
        texts += [ALL_THERE] * (never_came or proofs.some_were_not_in(window, self._objectives))
        texts += [BUFFERS_HELD] * proofs.buffers_fell(window)
        browsers = self._why_browsers_told_nothing(window, values)
        if untold and not texts and not browsers:
            raise TrialError(
                f"whether a window meets the objective cannot be told: {untold}",
                where=f"[knee] objective, {asked.intensity:g} {self._load.intensity.unit}",
                remedy="take longer windows, a larger `least`, or another objective",
            )
        if not texts and not window.parts and proofs.some_were_not_there(window):
            texts = [ALL_THERE]
        if not texts:
            limit = browsers or lacking(window, self._load)
        elif disturbance := beside_others(texts, self._objectives, partial(disturbed, window)):
            limit = disturbance
        elif BUFFERS_HELD in texts:  # which nobody empties by joining late, whatever else that explains
            limit = overrun(window, self._load, self._cpus) or proofs.read_too_late(window)
        else:
            limit = in_the_way(window, self._load, self._cpus, bad, values)
        told: record.Told = "generator" if limit else "not met" if texts else "met"
        return record.Step(part=asked.part, told=told, values=values, missed=texts, limit=limit)

    def _told(self, measurement: Measurement) -> tuple[dict[str, float | None], str]:
        """What a window says of each metric of the objective, and why it says nothing of others; "" where of all."""
        values: dict[str, float | None] = {}
        untold = ""
        for each in self._objectives:
            try:
                values |= values_of([each], measurement.window, self._load.request, measurement.bulk.histogram)
            except ValueError as error:
                untold = untold or str(error)
        return values, untold

    def _why_browsers_told_nothing(self, window: Window, values: Mapping[str, float | None]) -> str:
        """Where what browsers were to tell is all that is not known of the objective, and they failed by themselves."""
        unknown = {each.metric for each in self._objectives} - values.keys()
        return failed_here(window) if unknown and unknown <= sights.QUANTITIES.keys() else ""

    def measured(self) -> Measured:
        """The record of all so far; once the search has ended, with what it found."""
        measured, settings, found = self._load.measured(self._measurements), self._settings, self._found
        if found is None:
            return measured
        is_beyond = found.ended == "beyond most"
        is_cut = is_beyond and self._is_cut_here
        knee = record.Knee(
            unit=self._load.intensity.unit,
            objective=self._objectives,
            precision=settings.precision_share,
            windows=settings.windows,
            ended="beyond generator" if is_cut else found.ended,
            lower=found.lower,
            upper=found.upper,
            steps=self._steps,
        )
        notes = [*measured.notes, *self._why_no_more()] if is_beyond else measured.notes
        return measured.model_copy(update={"knee": knee, "notes": notes})

    @property
    def _is_cut_here(self) -> bool:
        """Whether it is the generator that could be asked for no more."""
        return self._most_here < min(self._settings.most, self._most_served)

    def _why_no_more(self) -> Iterator[str]:
        """Who ended a search that nothing missed, where that was not its own ``most``."""
        unit = self._load.intensity.unit
        if self._is_cut_here:
            yield f"the generator cannot be asked for more than {self._most_here:,.0f} {unit} here"
        elif self._most_served < self._settings.most:
            yield f"the service's own settings let no more than {self._most_served:,.0f} {unit} in"

    @property
    def measurements(self) -> Sequence[Measurement]:
        """All windows so far."""
        return self._measurements


def beside_others(texts: Sequence[str], objectives: Sequence[record.Objective], others: Callable[[bool], str]) -> str:
    """What was in the way of all that was missed, in words; "" where something was missed without it. ``others``: that,
    of the window alone, or all along (True): joins, and who is there then, are of all the time since the first of them.
    """
    of_window = {each.text for each in objectives if quantile_of(each) is None and each.metric not in _OF_JOINS}
    whys = [others(all_along) for all_along in {text not in of_window for text in texts}]
    return whys[0] if whys and all(whys) else ""


def in_the_way(
    window: Window, load: Load, cpus: int, bad: Sequence[record.Objective], values: Mapping[str, float | None]
) -> str:
    """Why a window that missed ``bad`` objectives tells of the generator, and not of the service; "" where it does not:
    there was nothing, or the generator was not late enough to explain it.
    """
    events = window.events.get(load.request)
    if why := overrun(window, load, cpus):
        return why
    late = several.those(window, load.request, proofs.sent_too_late)
    is_late = events is not None and (bool(late) or proofs.sent_too_late(events) or _may_be_few(bad, values, events))
    is_late &= _hold_lateness(window, load.request, bad, values)
    if events is not None and is_late and not is_missed_anyway(bad, values, events.latest_ns):
        sent = f"{events.late} of {events.offered} {plural(load.request)}"
        sent += f" (too many by {several.named(late)})" if late else ""
        return f"it sent {sent} more than {format_duration(LATE_NS)} late"
    if events is not None and (busy := _connections_were_few(window, load, events, bad)):
        return busy
    if few := _users_were_few(window, load, bad):
        return few
    return proofs.read_too_late(window) if load.loop == "open" else ""


def _hold_lateness(
    window: Window, asked: str, bad: Sequence[record.Objective], values: Mapping[str, float | None]
) -> bool:
    """Whether all that was missed would be better, had requests been sent in time. Those of viewers and of participants
    begin what they watch for long: how late they began has a start-up or a join take longer and nothing else, and how
    late they read, or send, is counted by itself. So it cut nobody off, and who failed had all its patience.
    """
    if WAKES not in window.counts:
        return True
    if proofs.some_were_cut_off(window) or proofs.some_broke_off(window) or proofs.some_were_kept_out(window, asked):
        return False
    return all(quantile_of(each) is not None and values[each.metric] is not None for each in bad)


def _may_be_few(bad: Sequence[record.Objective], values: Mapping[str, float | None], events: Events) -> bool:
    """Whether those that were sent late, few as they may be of all, are too many for each percentile that was missed,
    and nothing else was: of thirty, p99 is the slowest one. A percentile among what failed is none of theirs: whoever
    began late had all its patience.
    """
    late = events.late or 0
    told = [(quantile_of(each), values[each.metric]) for each in bad]
    return bool(told) and all(
        q is not None and value is not None and late > most_late(events.offered, q) for q, value in told
    )


def overrun(window: Window, load: Load, cpus: int) -> str:
    """Why the generator had too much to do in a window, whatever that tells; "" where it had not."""
    if window.counts.get(DROPPED):
        return f"its own kernel threw away {window.counts[DROPPED]} datagrams"
    if window.parts:
        return _overrun_of_several(window)
    if window.cpus_at_most is None:
        return ""  # which `of_generator` tells
    share, told = proofs.used_of(window.cpus_at_most, load.usable_cpus(cpus, window.at), "of its")
    return f"it used {told}" if share >= proofs.HEADROOM else ""


def _overrun_of_several(window: Window) -> str:
    """The first generator that had too much to do, or began too late to be part of the whole."""
    for part, share, cpus in several.used(window) or ():
        if share >= proofs.HEADROOM:
            return f"generator {part.generator} used {share:.0%} of its {cpus:.3g} CPU"
    if not several.tell_when(window):
        return ""
    late, told = several.begun(window)
    return f"{several.named(late)} began too late: {told}" if late else ""


def _connections_were_few(window: Window, load: Load, events: Events, bad: Sequence[record.Objective]) -> str:
    """Whether requests waited for a free connection where a service that met its bounds could have held all of them.

    By Little's law (L = lambda W; Operations Research 9, 1961) as many as the rate times a bound are under way where
    each takes as long as that: where at least so many connections were busy, it was the service that kept them so.
    """
    bounds_ms = [each.bound for each in bad if quantile_of(each) is not None]
    few = proofs.allowed_late(events.offered)  # as many as may be sent late, for the same reason
    if not bounds_ms or events.queued is None or events.queued <= few or window.at is None:
        return ""
    needed, connections = window.at * min(bounds_ms) / 1e3, load.settings.connections
    if connections >= needed:
        return ""
    return f"{events.queued} of {events.offered} {plural(load.request)} waited for one of its {connections} connections"


def _users_were_few(window: Window, load: Load, bad: Sequence[record.Objective]) -> str:
    """The same of a program's users in open loop, who do not tell how many had to wait for one of them: by the same law
    some did, where a latency that holds it missed its bound and there were fewer users than that keeps busy.
    """
    bounds_ms = [each.bound for each in bad if each.metric in load.from_due]
    if load.loop != "open" or not bounds_ms or window.at is None:
        return ""
    needed, users = window.at * min(bounds_ms) / 1e3, load.settings.users
    if users >= needed:
        return ""
    busy = f"{window.at:,.6g} {load.intensity.unit} keep busy for {min(bounds_ms):g} ms each"
    return f"its users ({users}) are fewer than {busy}"


def lacking(window: Window, load: Load) -> str:
    """Why a window that met the objective does not count: less was offered than asked for; "" where it was not."""
    if load.loop != "open":  # several generators do not wait for their users
        return f"not {ALL_THERE}" if proofs.some_were_not_there(window) else ""
    events = window.events.get(load.request)
    if events is None:
        offered, intended = round(window.work), window.counts.get(INTENDED, 0)
    else:
        offered, intended = events.offered, events.intended
    short = several.those(window, load.request, proofs.sent_too_little)
    if not short and offered >= proofs.OFFERED_SHARE * intended:
        return ""
    who = f" (too few by {several.named(short)})" if short else ""
    return f"it sent {offered} of {intended} {plural(load.request)}{who}"


@dataclass(frozen=True)
class SearchedService(DrivenService):
    """A service under a load whose intensity a search sets."""

    counts_losses: bool = True  # window by window: those of an overload say nothing of the knee

    search: KneeSearch = field(kw_only=True)

    @property
    def goes_on(self) -> bool:
        """Until the search has ended."""
        return self.search.asked is not None

    def _chosen(self, rotation: Rotation, notes: Notes) -> Length:  # noqa: ARG002
        """Its windows are the search's, at an intensity each, and no warm-up has the pace of all."""
        return Length(rotation.window_ns)

    @property
    def is_watched_waiting(self) -> bool:
        """In rotation: others may need many windows more."""
        return self.rotation is not None

    def waited(self) -> None:
        """What it did until now is proved like what it does between its turns."""
        self._turns_ns.append(time.monotonic_ns())

    def measure(self, notes: Notes) -> Measured:
        """The window that the search asks for."""
        notes.on_phase(self.search.words)
        self.search.gather(self.session)
        with since_now(self.lab, self.instance) as since:
            self.search.measure(self.session, since.words)
        if self.rotation is not None or not self.goes_on:  # others' turns, or proofs, are next
            self.session.rest()
        notes.measured = self.search.measured()
        if not self.goes_on:
            notes.tables |= tables_of(self.search.measurements, self.load.loop)
        return notes.measured

    def prove_ours(self, notes: Notes, measured: Measured, watched: Watched) -> None:
        """The generator was not taken for the service, nor was the origin."""
        knee = measured.knee
        assert knee is not None
        of_generator(notes, knee, measured)
        of_beginning(notes, measured.windows)
        proofs.of_session(notes, self.session)
        if self.has_origin:
            at = knee.lower if knee.upper is None else knee.upper
            numbers = knee.deciding([window.at for window in measured.windows], at)
            windows = [measured.windows[number] for number in numbers]
            proofs.of_origin(notes, watched, self.lab.origin, self.lab.generator, windows or measured.windows)

    def prove(self, notes: Notes, measured: Measured, watched: Watched) -> None:
        """It answers correctly still, it did answer, and our side did its part."""
        self._count("after", notes)
        self._verify("after", notes)
        self.prove_ours(notes, measured, watched)
        done = sum(window.work for window in measured.windows)
        told = f"{done:,.6g} {plural(measured.unit)} done in {len(measured.windows)} windows"
        notes.check(f"{plural(measured.asked)} were answered", done > 0, told)
        self._prove_idleness(notes, measured, watched)


def of_beginning(notes: Notes, windows: Sequence[Window]) -> None:
    """Note how far apart several generators began at the most; a window in which one was too late counts against no
    service.
    """
    several_of = [window for window in windows if window.parts]
    if not several_of:
        return
    if not all(several.tell_when(window) for window in several_of):
        notes.check(several.TOGETHER, None, "not all of them tell when each began")
        return
    late = sum(bool(several.begun(window)[0]) for window in several_of)
    skew = format_duration(max(several.skew_ns(window) for window in several_of))
    notes.check(several.TOGETHER, True, f"the last at most {skew} after the first; too late in {late} windows")


def of_generator(notes: Notes, knee: record.Knee, measured: Measured) -> None:
    """Note how often the generator was in the way. Such windows count against no service; a search that they end tells
    a bound (not checked, rather than failed: the bound holds). One that does not tell its CPU time may have been in the
    way of any.
    """
    limits = [step.limit for step in knee.steps if step.limit]
    told = f"in the way in {len(limits)} of {len(knee.steps)} windows"
    if limits:
        told += f" ({limits[-1]})"
    if knee.ended == "beyond generator":
        told += f": the knee is beyond what it can offer here, and not below {knee.lower or 0:,.6g} {knee.unit}"
    is_untold = any(_tells_no_cpu_time(window) for window in measured.windows)
    if is_untold:
        told += f"; {measured.instrument} does not report its CPU time"
    notes.check(GENERATOR_HEADROOM, None if is_untold or knee.ended == "beyond generator" else True, told)


def _tells_no_cpu_time(window: Window) -> bool:
    return several.used(window) is None if window.parts else window.cpus_at_most is None
