"""Which kinds of experiment a platform supports, as data with reasons (virtoll/studies/tables/experiments.toml)."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Answer(_Data):
    """A word of `Experiments.answers`, and the reason."""

    answer: str
    why: str


class PlatformClass(_Data):
    """The class that a platform answers with; "none" is no virtualization."""

    kind: str = Field(alias="class")
    why: str


class Kind(_Data):
    """A kind of experiment: what the paper prints by class, and what holds here by class ("all") or platform."""

    name: str
    printed: dict[str, str]
    here: dict[str, Answer]
    only: dict[str, Answer] = {}


class Experiments(_Data):
    """The whole table."""

    claims: str  # of the paper it is taken from
    paper: str  # where in it
    classes: dict[str, str]
    footnotes: dict[str, str]
    answers: dict[str, str]
    platforms: dict[str, PlatformClass]
    kinds: tuple[Kind, ...] = Field(alias="kind")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Every kind has what the paper prints for each class, and an answer that is known for each platform."""
        for kind in self.kinds:
            if kind.printed.keys() != self.classes.keys():
                raise ValueError(f"{kind.name}: printed is of {', '.join(kind.printed)}")
            for platform in self.platforms:
                if self.answer(kind, platform).answer not in self.answers:
                    raise ValueError(f"{kind.name}, {platform}: {self.answer(kind, platform).answer!r} is no answer")
        return self

    def answer(self, kind: Kind, platform: str) -> Answer:
        """What a platform supports: its own answer, or its class's, or that of all."""
        of_class = kind.here.get(self.platforms[platform].kind) or kind.here["all"]
        return kind.only.get(platform, of_class)


def read_experiments() -> Experiments:
    """The table in virtoll.studies."""
    text = (files("virtoll.studies") / "tables" / "experiments.toml").read_text("utf-8")
    return Experiments.model_validate(tomllib.loads(text))
