"""What a trial proves of itself. Each proof is one check in its record; a broken one makes the trial invalid."""

from __future__ import annotations

import math
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from virtoll.errors import AgentError, Problem, TrialError
from virtoll.lab.base import Site
from virtoll.lab.client import LOAD
from virtoll.lab.losses import lost
from virtoll.loads.base import Session
from virtoll.monitor import Watched
from virtoll.platforms.base import Instance, is_elsewhere
from virtoll.probes.base import Slice
from virtoll.record.knee import Objective
from virtoll.record.model import (
    ABSENT,
    ALL_THERE,
    ANSWERED,
    BEST,
    CORRECTLY,
    COVERAGE,
    DROPPED,
    FALLEN_MS,
    GENERATOR_HEADROOM,
    INTENDED,
    JOINED,
    LATE_NS,
    LEAST_BEYOND,
    LIVE_LATENCY,
    LIVED,
    MAY_BE_MEASURED,
    MEDIA_AGE,
    NOT_BOOKED,
    NOT_LIMITED,
    ORIGIN_HEADROOM,
    PRESENT,
    SENDS,
    SENDS_LATE,
    STANDING,
    STARTING_MS,
    STAY,
    STAYED,
    THERE_MS,
    UNFINISHED,
    VIEW,
    WAKES,
    WAKES_LATE,
    WENT_ON,
    Events,
    Measured,
    Window,
    beyond,
    most_late,
)
from virtoll.services import daemon
from virtoll.trial import several
from virtoll.trial.notes import Notes
from virtoll.units import format_duration, plural

HEADROOM = 0.8  # the generator may use this share of its CPUs; beyond it, it may be what was measured
OUTRUN = 0.95  # the same in closed loop, where the instance used `BUSY` of its own CPUs and so set the pace
BUSY = 0.95
OFFERED = "offered load met intended"
OFFERED_SHARE = 0.995  # of the intended requests in open loop
# The percentiles for whose sake an open loop's generator must keep its schedule, the highest first. p99.9 and those of
# a part of the window are judged where they are told.
_KEPT_PERCENTILES = (0.99, 0.9, 0.5)
LATE_SHARE = 0.01  # of the times at which viewers were to read on; and of those at which a load was to send
FAILED_SHARE = 0.01  # of the offered requests
CPU_TOLERANCE = 1.05  # a quota is enforced by periods of 100 ms, of which a window may cut one at either end
_PERIOD_NS = 100_000_000
WIRING = "the wiring lost nothing"
SETTLING_NS = 50 * 10**6  # of a service when its users have gone
IDLE_CPUS = 0.02  # what an instance that waits for its turn may use of one
CLOCK_DRIFT_SHARE = 1e-3  # of the window: a guest's clock that runs faster or slower than this is not to be trusted
_END_S, _LOOK_S = 10.0, 0.05  # for an instance to end after its agent's stream, and between two looks


def of_verification(notes: Notes, when: str, ask: Callable[[], Iterable[Problem] | None]) -> None:
    """`of_answers` of what a client is told; a TrialError of its own is an answer that did not come."""
    try:
        problems = ask()
    except TrialError as error:
        problems = [error.problem]
    of_answers(notes, when, problems)


def of_answers(notes: Notes, when: str, problems: Iterable[Problem] | None) -> None:
    """The service answers correctly, by its own proof; None: there is no question that it could be asked."""
    name = f"{CORRECTLY} {when}"
    if problems is None:
        notes.check(name, None, "not asked: there is no question that any such service answers")
        return
    told = "; ".join(problem.what for problem in problems)
    notes.check(name, not told, told or "as it should")


def of_requests(notes: Notes, measured: Measured) -> None:
    """The service answered: at most `FAILED_SHARE` of what was asked failed, in the lead-ins too. Where nobody tells
    what failed, work that was done proves nothing; none done is none answered."""
    events, name = measured.events, plural(measured.asked) + ANSWERED
    if events is None:
        done = measured.window.work
        notes.check(name, None if done > 0 else False, f"{done:g} done; {_UNTOLD}")
        return
    kinds = _kinds(events.failures) or "none failed"
    done, told = events.completed, f"{events.completed} of {events.offered} completed; {kinds}"
    if not events.offered and measured.window.served:
        done = round(measured.window.served)
        told = f"all who asked before it waited through the window; {done} of them were answered"
    if early := _kinds(events.early_failures):
        told += f"; of {events.early} that were sent before it {early}"
    notes.check(name, done > 0 and (events.failed_share or 0.0) <= FAILED_SHARE, told)
    if VIEW in measured.window.events:
        _of_views(notes, measured.window.events[VIEW])
    if STAY in measured.window.events:
        _of_stays(notes, measured.window.events[STAY])


def _kinds(failures: Mapping[str, int]) -> str:
    """How many of each kind; "" of none."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(failures.items()) if count)


def _of_views(notes: Notes, views: Events) -> None:
    """What came to viewers after they had begun was right. One that gives up in a stall is what is measured."""
    told = _kinds(_broke_off(views)) or "none broke off but of waiting"
    held = _went_on(views) if views.offered else None
    notes.check(WENT_ON, held, f"of {views.offered} that began: {told}")


def _of_stays(notes: Notes, stays: Events) -> None:
    """Participants who had come in were not lost: joins that go well say nothing of those who are cut off later."""
    told = _kinds(stays.failures) or "none was lost"
    notes.check(STAYED, _stayed(stays) if stays.offered else None, f"of {stays.offered} who were in: {told}")


def some_were_cut_off(window: Window) -> bool:
    """Whether more participants than may fail were lost, though they had come in."""
    return STAY in window.events and not _stayed(window.events[STAY])


def _stayed(stays: Events) -> bool:
    return sum(stays.failures.values()) <= FAILED_SHARE * stays.offered


def some_were_kept_out(window: Window, asked: str) -> bool:
    """Whether more of those who asked to come in than may fail had waited in vain: not who waited still at its end."""
    events = window.events.get(asked)
    failures = {} if events is None else {kind: n for kind, n in events.failures.items() if kind != UNFINISHED}
    return events is not None and sum(failures.values()) > FAILED_SHARE * events.offered


def some_broke_off(window: Window) -> bool:
    """Whether more viewers than may fail broke off, though they had begun. A start-up that fails is told by itself."""
    return VIEW in window.events and not _went_on(window.events[VIEW])


def _went_on(views: Events) -> bool:
    return sum(_broke_off(views).values()) <= FAILED_SHARE * views.offered


def _broke_off(views: Events) -> dict[str, int]:
    """How many, by kind, for anything but their patience."""
    return {kind: count for kind, count in views.failures.items() if kind != "timeout"}


_BEGINNING_SHARE = 0.02  # of all users' time
_FALLEN_SHARE = 0.01  # of what was played
_FRAMES_MS = 80  # two of 25 a second: those of a window may come that much later than the soonest did before

_UNTOLD = "the load does not tell how many failed"


def of_generator(
    notes: Notes,
    measured: Measured,
    generator_cpus: float | None,
    instance_busy: float | str = "its use is not known",
    booked_cpus: float | str = "its use is not known",
) -> None:
    """The generator did its part, whatever the service did: offered met intended, and it had headroom.

    ``generator_cpus``: those that it can use (`Load.usable_cpus`). ``instance_busy``: the share of its CPUs that the
    instance used in the windows. One that used all of them is what set a closed loop's pace, also where the generator
    had little left. ``booked_cpus``: what the host booked of the generator in the windows.
    """
    window = measured.window
    if measured.loop == "open":
        _of_offered(notes, measured)
        _of_schedule(notes, measured)
        if WAKES in window.counts:
            _of_reading(notes, measured)
    if any(THERE_MS in each.counts for each in measured.windows):
        _of_beginning(notes, measured)
    if DROPPED in window.counts:
        dropped = window.counts[DROPPED]
        told = f"{dropped} datagrams thrown away by the generator's own kernel, for its sockets were full"
        notes.check("the generator kept what came", dropped == 0, told)
    name = GENERATOR_HEADROOM
    if window.parts:
        _of_several(notes, measured, instance_busy)
    elif window.cpus_at_most is not None:
        used = "used" if window.cpu_span_ns in (None, window.duration_ns) else "used at most"
        share, detail = used_of(window.cpus_at_most, generator_cpus)
        held, detail = _left_headroom(measured, share, f"{used} {detail}", instance_busy)
        notes.check(name, None if not held and generator_cpus is None else held, detail)
    elif window.duration_ns <= 0:
        notes.check(name, None, "the window has no length: all requests were sent at once")
    elif isinstance(booked_cpus, str) or generator_cpus is None:
        notes.check(name, None, f"{measured.instrument} does not report its CPU time")
    else:
        _of_tool(notes, measured, booked_cpus, generator_cpus, instance_busy)


def _of_tool(
    notes: Notes, measured: Measured, booked_cpus: float, generator_cpus: float, instance_busy: float | str
) -> None:
    """One of somebody else's. Who asks what a tool says of two platforms has its answer also where it was the tool that
    was slow; the report says on top that it was.
    """
    share, detail = used_of(booked_cpus, generator_cpus)
    held, detail = _left_headroom(measured, share, f"used {detail}, as the host books it", instance_busy)
    detail += "" if held else f": {measured.instrument} {MAY_BE_MEASURED}"
    notes.check(GENERATOR_HEADROOM, held or None, detail)


def _left_headroom(measured: Measured, share: float, detail: str, instance_busy: float | str) -> tuple[bool, str]:
    """Whether a generator that used such a share had headroom, or in closed loop an instance that had none set the
    pace; and ``detail`` with that.
    """
    if share < HEADROOM or measured.loop != "closed" or isinstance(instance_busy, str):
        return share < HEADROOM, detail
    return _is_outrun(share, instance_busy), f"{detail}, and the instance {instance_busy:.0%} of its own"


def used_of(used_cpus: float, usable_cpus: float | None, of: str = "of") -> tuple[float, str]:
    """The share that a generator used of the CPUs that it can use (None: of one, for nobody knows of more); and that in
    words."""
    cpus = 1 if usable_cpus is None else usable_cpus
    share = used_cpus / cpus
    more = ", and whether it could use more is not known" if usable_cpus is None and share >= HEADROOM else ""
    return share, f"{share:.0%} {of} {cpus:.3g} CPU{more}"


def _is_outrun(share: float, instance_busy: float) -> bool:
    """Whether a closed loop's generator had a little left where the instance had nothing."""
    return share < OUTRUN and instance_busy >= BUSY


def _of_several(notes: Notes, measured: Measured, instance_busy: float | str) -> None:
    """Several generators began together, and each had headroom: one that did not is told by its number."""
    window, name = measured.window, several.TOGETHER
    if several.tell_when(window):
        late, told = several.begun(window)
        notes.check(name, not late, f"{told}; too late: {several.named(late)}" if late else told)
    else:
        notes.check(name, None, f"{measured.instrument} does not tell when each began")
    used = several.used(window)
    if used is None:
        notes.check(GENERATOR_HEADROOM, None, f"{measured.instrument} does not report the CPU time of each")
        return
    detail = "used " + "; ".join(f"generator {p.generator} {share:.0%} of {cpus:.3g} CPU" for p, share, cpus in used)
    over = [(part, share) for part, share, _ in used if share >= HEADROOM]
    if over and measured.loop == "closed" and not isinstance(instance_busy, str):
        over = [(part, share) for part, share in over if not _is_outrun(share, instance_busy)]
        detail += f", and the instance {instance_busy:.0%} of its own"
    detail += f"; without headroom: {several.named(part for part, _ in over)}" if over else ""
    notes.check(GENERATOR_HEADROOM, not over, detail)


def _of_offered(notes: Notes, measured: Measured) -> None:
    """What was due was sent. Of a load that does not tell what failed, what was done: it sent no less."""
    events, window, name = measured.events, measured.window, OFFERED
    if events is not None:
        offered, intended, how = events.offered, events.intended, "sent"
        waited = f"; {events.queued} had to wait for a free connection" if events.queued else ""
    elif INTENDED in window.counts:
        offered, intended, how, waited = round(window.work), window.counts[INTENDED], "done", f"; {_UNTOLD}"
    else:
        notes.check(name, None, f"{measured.instrument} does not tell how many were due")
        return
    told = f"{offered} of {intended} {plural(measured.asked)} {how}{waited}"
    short = several.those(window, measured.asked, sent_too_little)
    told += f"; too few by {several.named(short)}" if short else ""
    notes.check(name, offered >= OFFERED_SHARE * intended and not short, told)


def sent_too_little(events: Events) -> bool:
    """Whether less was sent than was due."""
    return events.offered < OFFERED_SHARE * events.intended


def _of_schedule(notes: Notes, measured: Measured) -> None:
    """The generator itself was not late: what a request waits for it would be told as the service's latency."""
    events, name = measured.events, "the generator kept its schedule"
    if events is None or events.late is None or not events.offered:
        notes.check(name, None, f"{measured.instrument} does not report its lateness, or nothing was sent")
        return
    allowed, late = allowed_late(events.offered), several.those(measured.window, measured.asked, sent_too_late)
    asked = f"{events.late} of {events.offered} {plural(measured.asked)}"
    detail = f"{asked} sent more than {format_duration(LATE_NS)} late by its own fault ({allowed} may be)"
    detail += "" if events.latest_ns is None else f", at most {format_duration(events.latest_ns)}"
    detail += f"; too many by {several.named(late)}" if late else ""
    notes.check(name, events.late <= allowed and not late, detail)


def sent_too_late(events: Events) -> bool:
    """Whether more was sent late, by the generator's own fault, than may be."""
    return events.late is not None and events.late > allowed_late(events.offered)


def _of_reading(notes: Notes, measured: Measured) -> None:
    """See `read_too_late`."""
    counts = measured.window.counts
    wakes, late, stalls = (counts[key] for key in (WAKES, WAKES_LATE, "stalls"))
    told = f"{late} of {wakes} times a viewer read on more than {format_duration(LATE_NS)} late; {stalls} stalls"
    if sends := counts.get(SENDS, 0):
        told += f"; {counts[SENDS_LATE]} of {sends} times something was sent as late"
    held = not read_too_late(*measured.windows)
    notes.check("the generator read in time", held if wakes + sends else None, told)


def _of_beginning(notes: Notes, measured: Measured) -> None:
    """All users were there when a window began. Those who paused while others were measured watch again: the requests
    with which play goes on are of the lead-in, and where they are not, of a slow arm's windows alone. Of a closed loop
    nobody waits for the first answer while others have one after another: whoever does keeps nobody waiting, and a
    platform that is slow to take its users in would be told as one that serves them fast.
    """
    starting_ms, there_ms = _beginning_ms(measured.windows)
    told = f"for {starting_ms:,} of {there_ms:,} ms"
    if measured.loop == "open":
        told += " viewers waited for play to go on; [rotation] lead_in is their time"
        name = "who had paused watched again when the window began"
    else:
        name = ALL_THERE
        told += " users had no answer yet, while others had one after another"
        told += "" if _are_there(starting_ms, there_ms) else "; fewer connections, or a longer [rotation] lead_in"
    notes.check(name, _are_there(starting_ms, there_ms), told)


def some_were_not_there(window: Window) -> bool:
    """Of a closed loop: whether users had no answer yet while others had one after another, for too long."""
    return not _are_there(*_beginning_ms([window]))


def some_never_began(window: Window) -> bool:
    """Of viewers who stay from window to window of a search: whether more of those who had gathered than may be missing
    did not play at its end, and so could not stall. Of those who come anew within the window start-ups are told.
    """
    return window.at is not None and window.counts.get(ABSENT, 0) > _BEGINNING_SHARE * window.at


def buffers_fell(window: Window) -> bool:
    """Whether viewers who played all through a window lived on what was read ahead: less came than they played. None
    of them stalls yet, but goes on so until all do.
    """
    allowed_ms = window.counts.get(STANDING, 0) * (_FALLEN_SHARE * window.duration_ns / 1e6 + _FRAMES_MS)
    return window.counts.get(FALLEN_MS, 0) > allowed_ms


def some_were_not_in(window: Window, objectives: Sequence[Objective]) -> bool:
    """Of a conference: whether more of those who were to be in it than may be missing were not, at its end: they have
    no streams that could lose or freeze. Not where one of the ``objectives`` says itself who is to be there.
    """
    joined, is_asked = window.counts.get(JOINED), any(each.metric == PRESENT for each in objectives)
    if joined is None or window.at is None or is_asked:
        return False
    return joined < (1 - _BEGINNING_SHARE) * window.at


def _are_there(starting_ms: int, there_ms: int) -> bool:
    return starting_ms <= _BEGINNING_SHARE * there_ms


def _beginning_ms(windows: Sequence[Window]) -> tuple[int, int]:
    """For how long users were still to come, and all their time, of the windows that tell it."""
    told = [window.counts for window in windows if THERE_MS in window.counts]
    return sum(counts[STARTING_MS] for counts in told), sum(counts[THERE_MS] for counts in told)


# Quantities that hold how late the generator read, or sent, besides `BEST`. One stall that began before the window may
# last all through it.
_HOLD_LATENESS = (
    MEDIA_AGE,
    LIVE_LATENCY,
    "jitter_ms",
    "first_packet_ms",
    "first_key_frame_ms",
    "audio_first_packet_ms",
    "audio_jitter_ms",
    "browser_jitter_ms",
)


def read_too_late(*windows: Window) -> str:
    """How often the generator read late, or sent late what it has others watch, in words; "" where that was seldom, or
    did no harm. What comes to a viewer that is not read, or sent, in time has it wait, and of live media whose age is
    told it is older. How late each start-up was is told by itself (`Events.late`).
    """
    if not any(_tells_lateness(window) for window in windows):
        return ""
    for name, late_name, does in ((WAKES, WAKES_LATE, "read"), (SENDS, SENDS_LATE, "sent")):
        times, late = (sum(window.counts.get(key, 0) for window in windows) for key in (name, late_name))
        if late > LATE_SHARE * times:
            return f"{late} of {times} times it {does} more than {format_duration(LATE_NS)} late"
    return ""


def _tells_lateness(window: Window) -> bool:
    """Whether anything is told of a window that would be better, had the generator read in time: views that broke off
    too, for what is read seconds late has leaped.
    """
    broke_off = VIEW in window.events and bool(_broke_off(window.events[VIEW]))
    stalls = window.counts.get("stalls", 0) > 0 or buffers_fell(window)
    return bool(holding_lateness(window)) or stalls or broke_off


def holding_lateness(window: Window) -> list[str]:
    """The quantities of a window that would be better, had the generator read, and sent, in time."""
    waited = [key for key, best in BEST.items() if window.values.get(key, best) != best]
    return waited + [key for key in _HOLD_LATENESS if window.tells(key)]


def allowed_late(offered: int) -> int:
    """How many of so many requests may be sent late: half of those beyond the highest percentile that is told of them,
    which is 0.5 % where p99 is and 5 % where only p90 is; none where none is told."""
    told = (most_late(offered, q) for q in _KEPT_PERCENTILES if beyond(offered, q) >= LEAST_BEYOND)
    return math.floor(next(told, 0))


def of_session(notes: Notes, session: Session) -> None:
    """What a load's session proves and tells of where it stands: nothing, where that is the lab."""
    for name, passed, detail in session.proofs():
        notes.check(name, passed, detail)
    notes.facts.update(session.facts)


def generators(watched: Watched) -> list[str]:
    """The sources that are the load's: the generator, and where it has any its own programs."""
    return ["generator", *[LOAD] * any(source == LOAD for _, source, _, _ in watched.outside)]


def booked_of_generator(watched: Watched, windows: Sequence[Window]) -> float | str:
    """CPUs that the host booked of all that is the load's, in the windows; or why that is not known."""
    parts = [cpus_used(watched, source, windows) for source in generators(watched)]
    known = [part for part in parts if not isinstance(part, str)]
    return sum(known) if len(known) == len(parts) else next(part for part in parts if isinstance(part, str))


def of_origin(notes: Notes, watched: Watched, origin: Site, generator: Site, windows: Sequence[Window]) -> None:
    """The origin had headroom in the load's windows, together with the generator where the two share CPUs: neither was
    what was measured. Only of a study that has an origin."""
    name = ORIGIN_HEADROOM
    used = cpus_used(watched, "origin", windows)
    beside = generators(watched) if generator.netns and generator.cpus & origin.cpus else []
    parts = {"origin": used, **{who: cpus_used(watched, who, windows) for who in beside}}
    for who, cpus in parts.items():
        if isinstance(cpus, str):
            notes.check(name, None, f"{who}: {cpus}")
            return
    share = sum(float(cpus) for cpus in parts.values()) / len(origin.cpus)
    who = "origin and generator" if beside else "origin"
    notes.check(name, share < HEADROOM, f"{who} used {share:.0%} of {len(origin.cpus)} CPU")


def of_cpu_limit(
    notes: Notes, instance: Instance, watched: Watched, windows: Sequence[Window] = (), source: str = "instance"
) -> None:
    """All of the instance (helpers too, but one that is `NOT_BOOKED`) stayed within its CPUs: what the host booked in
    the load's windows, or while it was watched; at each intensity by itself, for one of many that asked for little
    would hide what one took that asked for much.
    """
    name = "the CPU limit held"
    if is_elsewhere(instance):
        notes.check(name, None, f"{NOT_LIMITED}, and not seen from outside")
        return
    if instance.limits.budget == "vcpus":
        notes.check(name, None, "budget 'vcpus': helpers are outside the quota on purpose")
        return
    used = cpus_used(watched, source, windows)
    if isinstance(used, str):
        notes.check(name, None, used)
        return
    each = list(_at_each(watched, source, windows))
    share, used = max([(used / CPU_TOLERANCE, used), *(told for told in each if not isinstance(told, str))])
    helper = instance.facts.get(NOT_BOOKED)
    without = f", without {helper}, which stands beside it" if helper else ""
    held: bool | None = share <= instance.limits.vcpus
    unknown = [told for told in each if isinstance(told, str)]
    if held and unknown:
        held, without = None, f"{without}; {unknown[0]}"
    notes.check(name, held, f"{used:.2f} of {instance.limits.vcpus} CPU used{without}")


def _at_each(watched: Watched, source: str, windows: Sequence[Window]) -> Iterator[tuple[float, float] | str]:
    """The CPUs that were used at each intensity, less what may come of the quota's periods that its windows cut; and as
    they were. Or why that is not known.
    """
    for at in dict.fromkeys(window.at for window in windows if window.at is not None):
        own = [window for window in windows if window.at == at]
        used = cpus_used(watched, source, own)
        if isinstance(used, str):
            yield f"at {at:,.6g}: {used}"
        else:
            cut = len(own) * _PERIOD_NS / sum(window.duration_ns for window in own)
            yield used / max(CPU_TOLERANCE, 1 + cut), used


IDLE = "it was idle while others were measured"


def of_idleness(notes: Notes, watched: Watched, windows: Sequence[Window], turns_ns: Sequence[int]) -> None:
    """Between its own turns the instance did next to nothing: others were measured meanwhile, on the same CPUs.

    From `SETTLING_NS` after the last answer of each window (a service tidies up after its users) until its next turn
    began: while it still answers, nobody else has a turn. An arm's own idle use is missing from its own windows alone:
    what one uses more than native is so much of a CPU in its favour.
    """
    name = IDLE
    gaps = [
        Window(start_ns=start_ns, duration_ns=end_ns - start_ns, work=0)
        for before, end_ns in zip(windows, turns_ns[1:], strict=False)
        if end_ns > (start_ns := max(before.end_ns, before.until_ns or 0) + SETTLING_NS)
    ]
    if not gaps:
        notes.check(name, None, "its windows follow each other at once")
        return
    used = cpus_used(watched, "instance", gaps)
    if isinstance(used, str):
        notes.check(name, None, used)
    else:
        notes.check(name, used <= IDLE_CPUS, f"{used:.3f} CPU used between its windows ({IDLE_CPUS:g} may be)")


def cpus_used(watched: Watched, source: str, windows: Sequence[Window]) -> float | str:
    """CPUs that a source used in the windows (none: while it was watched), as the host booked it, interpolated between
    samples; or why that is not known. An instance that nobody asked for anything right before (`Window.served`) had
    used nothing since the last look: of it that is over its windows and their lead-ins."""
    usage = [
        (t_ns, value) for t_ns, name, counter, value in watched.outside if (name, counter) == (source, "cpu.usage_ns")
    ]
    if len(usage) < 2 or usage[-1][0] == usage[0][0]:
        return "the host's accounting could not be read"
    first_ns, last_ns = usage[0][0], usage[-1][0]
    is_known_whole = source == "instance" and bool(windows) and windows[0].served is not None
    starts = [window.asked_from_ns if is_known_whole else window.start_ns for window in windows]
    asked_ns = sum(window.end_ns - start_ns for window, start_ns in zip(windows, starts, strict=True))
    if windows and asked_ns <= 0:
        return "the window has no length: all requests were sent at once"
    both = zip(starts, windows, strict=True)
    ends = [(max(first_ns, start_ns), min(last_ns, window.end_ns)) for start_ns, window in both]
    ends = [(start_ns, end_ns) for start_ns, end_ns in ends if end_ns > start_ns] if windows else [(first_ns, last_ns)]
    seen_ns = sum(end_ns - start_ns for start_ns, end_ns in ends)
    if windows and seen_ns / asked_ns < COVERAGE:
        return f"samples cover only {seen_ns / asked_ns:.0%} of the window"
    begin = _before if is_known_whole else _at
    return sum(_at(usage, end_ns) - begin(usage, start_ns) for start_ns, end_ns in ends) / seen_ns


def _before(samples: Sequence[tuple[int, int]], t_ns: int) -> float:
    """A counter at its last sample until a time, or the first."""
    return samples[max(0, bisect_right(samples, (t_ns, sys.maxsize)) - 1)][1]


def _at(samples: Sequence[tuple[int, int]], t_ns: int) -> float:
    """A counter at a time between its first sample and its last, linear between two of them."""
    after = max(1, bisect_left(samples, (t_ns,)))
    (before_ns, before), (after_ns, value) = samples[after - 1], samples[after]
    return before + (value - before) * (t_ns - before_ns) / max(1, after_ns - before_ns)


def of_neighbour(notes: Notes, windows: Sequence[Window], offsets_ns: Sequence[int]) -> None:
    """The neighbour that began was at work from before the first window until after the last.

    ``offsets_ns``: how far the windows' clock was ahead of the host's, each time it was read; each must bear it out.
    Where the watchdog ended the neighbour that is the result, and no window is told. That it ended before the last of a
    victim that did not answer is no failure: windows are longer by each answer that was waited for.
    """
    neighbour = notes.neighbour
    if neighbour is None or neighbour.start_ns is None or notes.outcome == "host harmed":
        return
    name = "the neighbour was at work in every window"
    if neighbour.end_is_unknown:
        notes.check(name, None, f"it is not known when it ended: {neighbour.reason}")
        return
    first_ns = min(window.start_ns for window in windows) - max(offsets_ns)
    last_ns = max(window.start_ns + window.duration_ns for window in windows) - min(offsets_ns)
    if neighbour.start_ns > first_ns:
        notes.check(name, False, f"it began {format_duration(neighbour.start_ns - first_ns)} after the first did")
    elif neighbour.end_ns is not None and neighbour.end_ns < last_ns:
        why = f": {neighbour.reason}" if neighbour.reason else ""
        early = format_duration(last_ns - neighbour.end_ns)
        held = None if notes.outcome == "did not answer" else False
        notes.check(name, held, f"it ended ({neighbour.ended}) {early} before the last did{why}")
    else:
        notes.check(name, True, f"it began {format_duration(first_ns - neighbour.start_ns)} before the first")


def of_wiring(notes: Notes, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Warm-up and window lost nothing in the lab's own links and connection tracking."""
    told = what_was_lost(before, after)
    notes.check(WIRING, not told, told or "no drops in the lab's links")


def what_was_lost(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """In words, by place; "" of nothing."""
    return ", ".join(f"{count} {place}" for place, count in lost(before, after).items())


def of_watching(notes: Notes, watched: Watched) -> None:
    """The samplers worked, and had room and time: samples were taken, and none of the window was lost."""
    inside = "none" if watched.inside is None else len(watched.inside)  # not asked for, or it answered no more
    detail = f"{len(watched.outside)} values outside, {inside} inside, {watched.late_ticks} ticks late"
    taken = bool(watched.outside) and watched.inside != []
    held = taken and watched.dropped_ticks == 0
    notes.check("no sample was dropped", held, f"{detail}, {watched.dropped_ticks} dropped")
    if watched.unreadable:
        notes.facts["unreadable"] = watched.unreadable


def of_clock(notes: Notes, watched: Watched) -> None:
    """The instance's clock kept the host's pace while it was watched, within what the exchanges could see."""
    before, after = watched.offset_before, watched.offset_after
    if after is None:
        notes.check("the clock held", None, "the instance did not answer afterwards")
        return
    drift_ns = abs(after.offset_ns - before.offset_ns)
    window_ns = watched.duration_ns
    blur_ns = (before.round_trip_ns + after.round_trip_ns) // 2
    allowed_ns = blur_ns + window_ns * CLOCK_DRIFT_SHARE
    detail = f"moved {format_duration(drift_ns)} in the window, seen to within {format_duration(blur_ns)}"
    notes.check("the clock held", drift_ns <= allowed_ns, detail)
    notes.clock.update(
        offset_before_ns=before.offset_ns,
        round_trip_before_ns=before.round_trip_ns,
        offset_after_ns=after.offset_ns,
        round_trip_after_ns=after.round_trip_ns,
    )


def of_life(notes: Notes, instance: Instance, service: str = "", log: str = "log.txt") -> bool:
    """The instance lives at the end, and so does the service of that name in it; whether both do.

    A probe's own server is no such service: the probe itself has ended it by then. ``log``: what it said is there.
    """
    lives = instance.is_running()
    notes.check(f"the instance{LIVED}", lives, f"{instance.platform} asked after the window")
    if lives and service in instance.services:
        code = _returncode(instance, service)
        how = "asked after the window" if code is None else f"it ended {daemon.ended(code)}; see the trial's {log}"
        notes.check(f"{service}{LIVED}", code is None, how)
        lives = code is None
    return lives


def of_slices(notes: Notes, slices: Sequence[Slice]) -> bool:
    """Whether every instance of the slices, if there are any, still lives; noted."""
    dead = [
        f"{end} {each.index + 1}"
        for each in slices
        for end, instance in (("near", each.near), ("far", each.far))
        if not instance.is_running()
    ]
    if slices:
        told = f"ended: {', '.join(dead)}" if dead else "near and far of each asked after the window"
        notes.check(f"the slices{LIVED}", not dead, told)
    return not dead


def service_lives(instance: Instance, service: str) -> bool:
    """Whether the instance lives, and in it the process of that service, as far as it is known: what is left to look at
    where it cannot be asked. An agent that does not answer gives no sign of life."""
    try:
        return instance.is_running() and (service not in instance.services or _returncode(instance, service) is None)
    except AgentError:
        return False


def _returncode(instance: Instance, service: str) -> int | None:
    return instance.agent.returncode(instance.services[service])


def of_files(notes: Notes, given: Mapping[str, str], known: Mapping[str, str]) -> None:
    """The files that the service was given are the run's, by their digests; one without any has no check.

    ``known``: of a place, what one configuration gives there "or" what another does.
    """
    changed = sorted(
        inside for inside, digest in given.items() if digest not in known.get(inside, digest).split(" or ")
    )
    if given:
        told = f"changed since the run began: {', '.join(changed)}" if changed else f"{len(given)} compared"
        notes.check("it was given the run's own files", not changed, told)


def of_process(notes: Notes, runs: Mapping[str, Any], label: str, there: Mapping[str, Any]) -> None:
    """The service runs as it did on arm ``label``: what a platform changes of it would be another service.

    What a platform lets nobody see (None) is not compared.
    """
    differing = []
    for key, expected in there.items():
        has = runs.get(key)
        if None in (has, expected) or has == expected:
            continue
        if isinstance(has, dict) and isinstance(expected, dict):
            names = sorted(name for name in {*has, *expected} if has.get(name) != expected.get(name))
            differing.append(f"{key} differs in {', '.join(names)}")
        else:
            differing.append(f"{key} is {has!r}, not {expected!r}")
    told = "; ".join(differing) or "argv, user, groups, directory and environment, as far as they can be seen"
    notes.check(f"it runs as on {label}", not differing, told)


def has_ended(instance: Instance) -> bool:
    """Whether an instance that gave no answer has ended: its stream may be gone a moment before it is."""
    deadline = time.monotonic() + _END_S
    while instance.is_running():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True
