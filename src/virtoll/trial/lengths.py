"""How long the windows of an arm are in a rotation: at least as the study says, and of a slow service long enough to
hold work that tells its pace.

Lead-ins follow the same pace, and are the generator's (`NativeSession.lead_ns`): how little a window holds is no bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from virtoll.study.model import Rotation

_WINDOW = 3.0  # times what is under way at once


@dataclass(frozen=True)
class Length:
    """That of all windows of a trial; the rest is None where no pace decides."""

    window_ns: int
    pace_per_s: float | None = None  # units of work
    under_way: int | None = None  # so many of them at once

    def told(self) -> dict[str, Any]:
        """As a trial's facts have it: the record says what was chosen, and by what."""
        return {"window_ns": self.window_ns, "pace_per_s": self.pace_per_s, "under_way": self.under_way}


def length(rotation: Rotation, under_way: int | None, pace_per_s: float | None) -> Length:
    """Of an arm with so many units of work ``under_way`` at once (None: its load does not ask for it), which does
    ``pace_per_s`` of them. What is not known is not guessed: the study's own length stands.
    """
    if under_way is None or pace_per_s is None or pace_per_s <= 0:
        return Length(rotation.window_ns)
    wanted_ns = round(min(_WINDOW * under_way / pace_per_s * 1e9, rotation.longest_ns))
    return Length(max(rotation.window_ns, wanted_ns), pace_per_s, under_way)
