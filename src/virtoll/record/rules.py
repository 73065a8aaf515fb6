"""When a run may end because of what it has found: fixed before the first trial, in plan.json, and kept to.

A plan without a rule has a number of blocks, and nothing ends it before. With one, `looks.jsonl` holds what each look
found, a line each: a look is never taken twice, and a run that was killed goes on from the last.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Spending = Literal["pocock", "obrien-fleming"]

FIRST_LOOK = 4  # blocks: before, s is hardly known
MOST_LOOKS = 1000  # blocks; a run directory may come from anywhere


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Decide(_Record):
    """`--decide`: a run ends at the look at which every arm is decided: different, or no difference beyond ``margin``.

    The group-sequential t test of virtoll.analysis.stopping. Each table of comparisons errs with 5 % in all, over all
    looks together; each of its comparisons has an equal share.
    """

    kind: Literal["group-sequential"] = "group-sequential"
    margin: float = Field(gt=0, lt=1)  # relative: 0.05
    looks: tuple[Annotated[int, Field(ge=2, le=MOST_LOOKS)], ...] = Field(
        min_length=1
    )  # after so many blocks, ascending; the last is the most there will be
    spending: Spending = "pocock"

    @model_validator(mode="after")
    def _ascend(self) -> Self:
        if any(a >= b for a, b in itertools.pairwise(self.looks)):
            raise ValueError(f"looks {self.looks} do not ascend")
        return self


class Precision(_Record):
    """`--precision`: after ``pilot`` blocks it is computed, once, how many there must be for every arm's interval to be
    ``half_width`` to either side; then so many are run. Stein's two stages (virtoll.analysis.stopping).
    """

    kind: Literal["stein"] = "stein"
    half_width: float = Field(gt=0, lt=1)  # relative: 0.02
    pilot: int = Field(ge=2)
    most: int = Field(ge=2)  # blocks: the plan holds no more


StoppingRule = Annotated[Decide | Precision, Field(discriminator="kind")]


class Compared(_Record):
    """One arm against native at a look, in a quantity that the run's answer is given in, over all conditions."""

    arm: str
    metric: str
    ratio: float | None  # to native; null: nothing can be compared
    half_width: float | None  # of the rule's interval, on the logarithmic scale; null: there is none yet
    decided: bool
    words: str  # of the verdict


class Look(_Record):
    """What was found after a number of whole blocks, and what follows."""

    block: int
    taken_at: str  # ISO 8601, UTC
    compared: tuple[Compared, ...]
    blocks: int  # how many there will be in all, as far as that can be told; of Stein's rule from here on fixed
    ends: bool  # whether the run ends here
    why: str  # in a sentence
