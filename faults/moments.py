"""When a fault strikes: after a line of progress, a share of the way to the next one.

The lines, and how long each stretch takes here, come from one undisturbed run of the same study (the control); so a
moment drawn from a seed means the same on a fast machine and on a slow one.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from faults.virtolls import Event, Session, Virtoll


@dataclass(frozen=True)
class Control:
    """The undisturbed run: ``stretches[i]`` is what follows line i (line 0 is the beginning) and its length (s)."""

    stretches: tuple[tuple[str, float], ...]
    names: tuple[str, ...]  # the same lines, numbered: "phase window 2"

    @classmethod
    def of(cls, session: Session, ended_s: float) -> Control:
        """From a session that has ended."""
        events = [Event("begun", "", session.begun_s), *session.events]
        ends = [*(event.seen_s for event in events[1:]), ended_s]
        stretches = tuple((event.name, end - event.seen_s) for event, end in zip(events, ends, strict=True))
        counts: dict[str, int] = {}
        names = []
        for event in events:
            counts[event.name] = counts.get(event.name, 0) + 1
            names.append(f"{event.name} {counts[event.name]}")
        return cls(stretches, tuple(names))


@dataclass(frozen=True)
class Moment:
    """After line ``index`` (0: the beginning), ``delay_s`` later."""

    index: int
    delay_s: float
    name: str

    def __str__(self) -> str:
        return f"{self.name} + {self.delay_s:.3f} s"


def drawn(random_: random.Random, control: Control, among: tuple[str, ...] = ()) -> Moment | None:
    """A moment of the run's life, or of the stretches ``among``; None where the study has none of these.

    Every stretch is as likely as any other, but the first (everything up to the plan) and the last (the report) count
    three times: the draw does not depend on how long they take here.
    """
    point, share = random_.random(), random_.random()
    last = len(control.stretches) - 1
    places = [i for i, (name, _) in enumerate(control.stretches) if not among or name in among]
    places = [i for i in places for _ in range(3 if i in (0, last) else 1)]
    if not places:
        return None
    index = places[int(point * len(places))]
    return Moment(index, share * control.stretches[index][1], control.names[index])


def awaited(virtoll: Virtoll, session: Session, moment: Moment) -> bool:
    """Wait for the moment; false when the run ended before it."""
    while len(session.events) < moment.index:
        virtoll.look(session)
        if session.over:
            return False
        time.sleep(0.001)
    until = time.monotonic() + moment.delay_s
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))
        virtoll.look(session)
        if session.over:
            return False
    virtoll.look(session)
    return not session.over
