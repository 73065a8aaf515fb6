"""The papers' published values and statements, as data (virtoll/studies/claims/*.toml)."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from virtoll.record import Arm


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PaperArm(_Data):
    """How a column of the paper is found among the arms of a study."""

    title: str
    platform: str
    network: str = ""
    role: str = ""

    def match(self, arms: tuple[Arm, ...]) -> Arm | None:
        """The first arm that fits."""
        return next((arm for arm in arms if self._fits(arm)), None)

    def _fits(self, arm: Arm) -> bool:
        same_network = self.network in ("", arm.network)
        return arm.platform == self.platform and same_network and self.role in ("", arm.role) and not arm.settings


class PaperTable(_Data):
    """A published table: mean and half-width by size and column."""

    id: str
    caption: str
    setting: dict[str, Any]
    rows: dict[str, dict[str, tuple[float, float]]]


class Statement(_Data):
    """A published sentence and the inequality it is read as."""

    quote: str
    where: str
    reads: str
    metric: str = "total_time_s"
    setting: dict[str, Any]
    over: str
    under: str
    over_setting: dict[str, Any] = {}
    under_setting: dict[str, Any] = {}
    above: float | None = None
    below: float | None = None
    holds: Literal["every", "some", "trend"]


class Paper(_Data):
    """All claims of one paper."""

    title: str
    authors: str
    venue: str
    machine: str
    metric: str
    repetitions: int
    context: dict[str, Any]
    arms: dict[str, PaperArm]
    tables: tuple[PaperTable, ...] = Field(alias="table")
    statements: tuple[Statement, ...] = Field(alias="statement")


def read_paper(name: str) -> Paper:
    """The claims in file ``name`` of virtoll.studies.claims."""
    resource = files("virtoll.studies.claims") / f"{name}.toml"
    return Paper.model_validate(tomllib.loads(resource.read_text("utf-8")))
