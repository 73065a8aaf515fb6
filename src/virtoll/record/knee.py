"""What a search for the knee did, as it is recorded: a service objective, and window by window whether it was met."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Part = Literal["explore", "confirm"]
# What a window told: the objective was met, or not, or it was not and the generator was in the way.
Told = Literal["met", "not met", "generator"]
Ended = Literal["settled", "below least", "beyond most", "beyond generator"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Objective(_Record):
    """One bound that a window must keep. ``bound`` is in the metric's own unit (ms, %, or that of the quantity)."""

    text: str  # as the study wrote it: "latency_p99 < 0.02 s"
    metric: str  # "latency_p99_ms", "failed_percent", or a quantity of the load's
    better: Literal["more", "less"]
    bound: float
    unit: str

    def is_met(self, value: float | None) -> bool:
        """Whether a window of this value kept the bound; None: it is worse than any."""
        return value is not None and (value < self.bound if self.better == "less" else value > self.bound)


class Step(_Record):
    """One window of a search; the intensity is its `Window.at`."""

    part: Part
    told: Told
    # By the objective's metrics; None: worse than any, as what failed is. One that could not be told is missing.
    values: dict[str, float | None]
    # The parts of the objective that were not met; or that not all users were there, or stayed, or that buffers fell.
    missed: list[str] = []
    limit: str = ""  # what was in the way of the generator; "" of nothing, or where it did not matter


class Knee(_Record):
    """A search, window by window in the order of `Measured.windows`, and its end.

    ``lower``: the largest intensity that was confirmed to meet the objective; ``upper``: the next one, which was
    confirmed not to. None where there is none: ``ended`` says why.
    """

    unit: str  # of an intensity: "requests/s", "users", "viewers"
    objective: list[Objective]  # all are to be met
    precision: float  # relative: the step between two intensities, at the most
    windows: int  # how many decide an intensity; most of them must agree
    ended: Ended
    lower: float | None
    upper: float | None
    steps: list[Step]

    @property
    def value(self) -> float | None:
        """The knee; None where the search ended at a bound."""
        return self.lower if self.ended == "settled" else None

    def deciding(self, intensities: list[float | None], at: float | None) -> list[int]:
        """Which windows, from 0, decided intensity ``at``; ``intensities`` are those of the windows."""
        return [
            number
            for number, (step, intensity) in enumerate(zip(self.steps, intensities, strict=True))
            if step.part == "confirm" and intensity == at
        ]
