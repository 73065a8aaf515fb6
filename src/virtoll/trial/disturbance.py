"""What else than the generator was in the way of a service while it was measured: our wiring, and other work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from virtoll.lab.base import Lab
from virtoll.lab.losses import losses
from virtoll.lab.others import Look, between, look, over_all
from virtoll.monitor import own_groups
from virtoll.platforms.base import Instance, is_elsewhere
from virtoll.platforms.groups import instance_cpus
from virtoll.record.model import OTHERS, Window
from virtoll.trial import proofs
from virtoll.trial.notes import Notes

_LOOK_S = 1.0  # between two looks at other work: what a window's begin and end are known to


@dataclass
class Since:
    """From one moment on, until something of it is asked (`since_now`)."""

    lab: Lab
    instance: Instance
    lost: Mapping[str, int]
    looks: list[Look]  # that of the moment, and others since

    @cached_property
    def _last(self) -> Look:
        return _look(self.lab, self.instance)

    @cached_property
    def _lost_since(self) -> str:
        return proofs.what_was_lost(self.lost, losses(self.lab))

    def by_the_wiring(self) -> str:
        """What was lost, in words; "": nothing."""
        return f"the wiring lost {self._lost_since}" if self._lost_since else ""

    def by_others(self, window: Window, all_along: bool) -> str:
        """What other work took in a window, in words, or since the moment: with joins, or a lead-in, before it. "":
        nothing to speak of, or it is not known. A window too short for two looks has those of all the time.
        """
        looks = [*self.looks, self._last]
        begin, end = (min(looks, key=lambda each: abs(each.at_ns - at)) for at in (window.start_ns, window.end_ns))
        if all_along or end.at_ns <= begin.at_ns:
            begin, end = looks[0], looks[-1]
        others = between(begin, end)
        return "" if others is None else others.words

    def words(self, window: Window, all_along: bool) -> str:
        """The first of these."""
        return self.by_the_wiring() or self.by_others(window, all_along)

    def _look_on(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_S):
            self.looks.append(_look(self.lab, self.instance))

    def _end(self) -> None:
        """What is not asked before is of the time until now."""
        _ = self._last


@contextmanager
def since_now(lab: Lab, instance: Instance) -> Iterator[Since]:
    """This moment, and what comes while the block goes on: when a window begins is known once it is over."""
    since, over = Since(lab, instance, losses(lab), [_look(lab, instance)]), threading.Event()
    thread = threading.Thread(target=since._look_on, args=(over,), name="looks at other work", daemon=True)
    thread.start()
    try:
        yield since
        since._end()
    finally:
        over.set()
        thread.join()


@dataclass
class OverAll:
    """What other work took over all windows of a trial."""

    lab: Lab
    instance: Instance
    _between: list[tuple[Look, Look]] = field(default_factory=list)

    @contextmanager
    def counted(self, notes: Notes) -> Iterator[None]:
        """A window; what is known of all so far is noted."""
        begun = _look(self.lab, self.instance)
        yield
        self._between.append((begun, _look(self.lab, self.instance)))
        if (told := over_all(self._between)) is not None:
            notes.facts[OTHERS] = {"cpus": round(told.cpus, 3), "bound": round(told.bound, 3)}
        else:
            notes.facts.pop(OTHERS, None)


def _look(lab: Lab, instance: Instance) -> Look:
    if is_elsewhere(instance):
        return Look(time.monotonic_ns(), None, 0)
    return look(lab, instance_cpus(lab, instance.limits), own_groups(instance).values())
