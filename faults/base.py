"""What a kind of fault is, and what became of one injected."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Layer = Literal["fakes", "machine"]


@dataclass
class Verdict:
    """What became of one fault."""

    hit: bool  # it struck a living run; one that came too late counts for nothing
    when: str = ""  # the moment, in words
    problems: list[str] = field(default_factory=list)  # promises that were broken
    resumed: bool = False  # to a complete and valid plan
    tidy: bool = False  # nothing was left after `virtoll clean`
    busy: int = 0  # trials, struck by no fault, that were invalid for want of CPU alone
    trials: int = 0  # sealed trials looked at


@dataclass(frozen=True)
class Place:
    """Where one fault is injected: a directory of its own on a real disk."""

    work: Path  # of the harness
    directory: Path  # of this fault


@dataclass(frozen=True)
class Kind:
    """One kind of fault. ``inject`` draws all it needs from the random source it is given, and from nothing else."""

    name: str
    sentence: str
    layer: Layer
    weight: float
    inject: Callable[[random.Random, Place], Verdict]
