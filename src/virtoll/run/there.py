"""What is asked of a machine elsewhere besides to measure: its time, what it offers, and to remove what was left."""

from __future__ import annotations

import time
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from virtoll.hosts.local import LocalHost
from virtoll.networks.base import network_modes
from virtoll.run import doctor
from virtoll.run.alone import alone, remove_all_left

# Lines that are told to somebody, by whoever it is.
_Lines = Annotated[list[Annotated[str, Field(max_length=4000)]], Field(max_length=10_000)]


class Clock(BaseModel):
    """The answer to *clock*."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    wall_s: float  # the host's own time of day, since 1970


class Cleaned(BaseModel):
    """The answer to *clean*: a line for each thing that was removed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    removed: _Lines


class Examined(BaseModel):
    """The answer to *doctor*: what the machine offers, and what was removed before it was looked at."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    offer: doctor.MachineOffer
    removed: _Lines

    @model_validator(mode="after")
    def _of_each_mode(self) -> Self:
        modes = network_modes().keys()
        if any(one.modes.keys() != modes for one in self.offer.platforms.values()):
            raise ValueError("not of each network mode")
        return self


def clock() -> Clock:
    """Now."""
    return Clock(wall_s=time.time())


def cleaned() -> Cleaned:
    """Remove what killed runs left here, and untune it, as `virtoll clean` does."""
    return Cleaned(removed=remove_all_left(LocalHost()))


def examined() -> Examined:
    """What `virtoll doctor` sees."""
    with alone(LocalHost()) as removed:
        return Examined(offer=doctor.examine(LocalHost()), removed=removed)
