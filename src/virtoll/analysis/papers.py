"""The papers' published values and statements, as data (virtoll/studies/claims/*.toml).

A metric is a name of `metrics.METRICS`, a probe's quantity ("linpack.gflops"), or "believes.KEY": what an instance
believes it has of KEY, over what it was given. A setting maps dotted paths to a level, to a list of levels any of which
will do, to bounds ({ least = "16 MB" }), or to "none" for what is not set; quantities may be written with their unit.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from virtoll.errors import StoreError
from virtoll.record.model import Arm
from virtoll.studies import claims

NATIVE = "native"  # the column that ratios are taken to


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PaperArm(_Data):
    """How a column of the paper is found among the arms of a study."""

    title: str
    platform: str
    network: str = ""
    role: str = ""
    settings: dict[str, Any] = {}

    def match(self, arms: tuple[Arm, ...]) -> Arm | None:
        """The first arm that fits."""
        return next((arm for arm in arms if self._fits(arm)), None)

    def _fits(self, arm: Arm) -> bool:
        same_network = self.network in ("", arm.network)
        switched_on = {key: value for key, value in arm.settings.items() if value is not False}
        same_settings = switched_on == self.settings
        return arm.platform == self.platform and same_network and self.role in ("", arm.role) and same_settings


class Published(_Data):
    """A printed number and the half-width printed with it; None where there is none."""

    value: float
    half: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _written(cls, raw: Any) -> Any:
        """In a claims file: ``6.98``, or ``[6.98, 0.02]``."""
        if isinstance(raw, int | float):
            return {"value": raw}
        return {"value": raw[0], "half": raw[1]} if isinstance(raw, list) else raw


class PaperTable(_Data):
    """Published numbers by row and column: of a table, or of a figure as far as the text gives them.

    ``numbers`` says what they are. With ``by``, a row is one level of that path (its title, or what ``levels`` says);
    a row that fits several conditions stands for their geometric mean.
    """

    id: str  # "Table II"
    caption: str
    unit: str = ""
    numbers: Literal["values", "% of native", "% above native"] = "values"
    heading: str = ""  # of the column of rows
    metric: str
    by: str = ""
    levels: dict[str, Any] = {}
    setting: dict[str, Any] = {}
    row_metrics: dict[str, str] = {}  # by row, where they differ
    row_settings: dict[str, dict[str, Any]] = {}
    context: dict[str, Any] = {}  # what else was set there: said where it is otherwise here
    remarks: tuple[str, ...] = ()  # the same, of what has no name here
    rows: dict[str, dict[str, Published]]

    def metric_of(self, row: str) -> str:
        """The metric of a row."""
        return self.row_metrics.get(row, self.metric)


class Statement(_Data):
    """A published sentence and the inequality it is read as.

    Without ``under`` the metric itself is held against the bounds, with it the ratio of both cells.
    """

    quote: str
    where: str
    reads: str
    metric: str | tuple[str, ...]
    setting: dict[str, Any] = {}
    over: str
    under: str = ""
    over_setting: dict[str, Any] = {}
    under_setting: dict[str, Any] = {}
    by: str = ""  # of a trend: the path it runs along
    above: float | None = None
    below: float | None = None
    holds: Literal["every", "some", "mean", "trend"]

    @model_validator(mode="after")
    def _can_fail(self) -> Statement:
        """A statement without a bound would agree with whatever is measured."""
        if self.above is None and self.below is None:
            raise ValueError(f"the statement {self.quote!r} has no bound: write above, below or both")
        return self

    @model_validator(mode="after")
    def _runs_along(self) -> Statement:
        """A trend along whatever varies first would be another one where a study varies more."""
        if self.holds == "trend" and not self.by:
            raise ValueError(f"the statement {self.quote!r} is a trend along nothing: write by")
        return self

    @model_validator(mode="after")
    def _weighs_alike(self) -> Statement:
        """A mean takes conditions alike: of several metrics, the one with the most cases would be the mean."""
        if self.holds == "mean" and len(self.metrics) > 1:
            raise ValueError(f"the statement {self.quote!r} is a mean over several metrics: write one for each")
        return self

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics it speaks of."""
        return (self.metric,) if isinstance(self.metric, str) else self.metric


class Paper(_Data):
    """All claims of one paper. ``repetitions`` None: the paper does not say."""

    name: str  # of its file
    title: str
    authors: str
    venue: str
    machine: str
    repetitions: int | None = None
    context: dict[str, Any] = {}
    arms: dict[str, PaperArm]
    tables: tuple[PaperTable, ...] = Field(alias="table", default=())
    statements: tuple[Statement, ...] = Field(alias="statement", default=())


def read_paper(name: str) -> Paper:
    """The claims in file ``name`` of virtoll.studies.claims; StoreError when there is none."""
    if name not in claims.names():
        remedy = "report it with the virtoll that recorded the run, or take the name out of study.json's claims"
        raise StoreError(f"this virtoll has no claims called {name!r}", where="study.json", remedy=remedy)
    text = (files("virtoll.studies.claims") / f"{name}.toml").read_text("utf-8")
    return Paper.model_validate({"name": name, **tomllib.loads(text)})
