"""What a search for the knee did, as it is recorded: a service objective, and window by window whether it was met."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Part = Literal["explore", "confirm"]
# What a window told: the objective was met, or not, or it was not and the generator was in the way.
Told = Literal["met", "not met", "generator"]
Ended = Literal["settled", "below least", "beyond most", "beyond generator"]


class Step(BaseModel):
    """One window of a search; the intensity is its `Window.at`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    part: Part
    told: Told
    values: dict[str, float | None]  # by the objective's metrics; None: it lies among what failed, worse than any
    missed: list[str] = []  # the parts of the objective that were not met
    limit: str = ""  # what was in the way of the generator; "" of nothing, or where it did not matter


class Knee(BaseModel):
    """A search, window by window in the order of `Measured.windows`, and its end.

    ``lower``: the largest intensity that was confirmed to meet the objective; ``upper``: the next one, which was
    confirmed not to. None where there is none: ``ended`` says why.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: str  # of an intensity: "requests/s", "users", "viewers"
    objective: list[str]  # "latency_p99 < 20 ms"
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
