"""How long the windows of an arm are in a rotation, and in which rounds it has one: at least as long as the study says,
and of a slow service long enough to hold work that tells its pace.

Lead-ins follow the same pace, and are the generator's (`NativeSession.lead_ns`): how little a window holds is no bias.
Where one turn of an arm takes as long as several of the others', it has one in every so many rounds: else most of the
time would go to the arm whose toll needs it least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from virtoll.loads.native import LEAD_IN
from virtoll.study.model import Rotation

_WINDOW = 3.0  # times what is under way at once
_LEAST_ROUNDS = 4  # of a trial, where the study has as many


@dataclass(frozen=True)
class Length:
    """That of all windows of a trial; the rest is None where no pace decides."""

    window_ns: int
    pace_per_s: float | None = None  # units of work
    under_way: int | None = None  # so many of them at once
    every: int = 1  # it has a window in one of so many rounds, beginning amid the first of them

    @property
    def first(self) -> int:
        """How many rounds go by before its first window: on average it is measured when the others are."""
        return self.every // 2

    def told(self) -> dict[str, Any]:
        """As a trial's facts have it: the record says what was chosen, and by what."""
        return {
            "window_ns": self.window_ns,
            "every_rounds": self.every,
            "first_round": self.first + 1,
            "pace_per_s": self.pace_per_s,
            "under_way": self.under_way,
        }


def length(rotation: Rotation, under_way: int | None, pace_per_s: float | None) -> Length:
    """Of an arm with so many units of work ``under_way`` at once (None: its load does not ask for it), which does
    ``pace_per_s`` of them. What is not known is not guessed: the study's own length stands.
    """
    if under_way is None or pace_per_s is None or pace_per_s <= 0:
        return Length(rotation.window_ns)
    once_ns = under_way / pace_per_s * 1e9  # until each that is under way is done
    window_ns = max(rotation.window_ns, round(min(_WINDOW * once_ns, rotation.longest_ns)))
    turn_ns = window_ns + max(rotation.lead_in_ns, min(LEAD_IN * once_ns, rotation.longest_ns))
    every = min(int(turn_ns // rotation.turn_ns), rotation.rounds // _LEAST_ROUNDS)
    return Length(window_ns, pace_per_s, under_way, max(1, every))
