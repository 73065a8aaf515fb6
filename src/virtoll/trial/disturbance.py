"""What else than the generator was in the way of a service while it was measured: our wiring, and other work."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from virtoll.lab.base import Lab
from virtoll.lab.losses import losses
from virtoll.lab.others import Look, between, look, over_all
from virtoll.monitor import own_groups
from virtoll.platforms.base import Instance, is_elsewhere
from virtoll.platforms.groups import instance_cpus
from virtoll.record.model import OTHERS
from virtoll.trial import proofs
from virtoll.trial.notes import Notes


@dataclass(frozen=True)
class Since:
    """From one moment on."""

    lab: Lab
    instance: Instance
    lost: Mapping[str, int]
    look: Look

    @classmethod
    def now(cls, lab: Lab, instance: Instance) -> Since:
        """This moment."""
        return cls(lab, instance, losses(lab), _look(lab, instance))

    def by_the_wiring(self) -> str:
        """What was lost, in words; "": nothing."""
        lost = proofs.what_was_lost(self.lost, losses(self.lab))
        return f"the wiring lost {lost}" if lost else ""

    def by_others(self) -> str:
        """What other work took, in words; "": nothing to speak of, or it is not known."""
        others = between(self.look, _look(self.lab, self.instance))
        return "" if others is None else others.words

    def words(self) -> str:
        """The first of these."""
        return self.by_the_wiring() or self.by_others()


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
