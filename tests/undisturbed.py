"""A lab whose wiring loses what a test says, and beside which others work as it says: nothing, unless it says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from virtoll.lab.others import Look
from virtoll.trial import disturbance


def undisturbed(
    patch: pytest.MonkeyPatch,
    lost: Callable[[], Mapping[str, int]] = dict,
    look: Callable[[], Look] = lambda: Look(0, None, 1),
) -> None:
    """``lost``: its counters, each time that they are asked for; ``look``: what others have had, of which by itself
    nothing is known.
    """
    patch.setattr(disturbance, "losses", lambda _lab: lost())
    patch.setattr(disturbance, "_look", lambda _lab, _instance: look())
