"""How much is measured: everything, or a few sizes of it, quickly."""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass

_SPARE_FILES = 200  # of a process's own: libraries, pipes, logs


@dataclass(frozen=True)
class Effort:
    """``quick``: fewer and smaller sizes, one round less; it shows that the bench works, and its exponents little.
    ``most``: no size beyond it.
    """

    quick: bool = False
    rounds: int = 3
    seed: int = 1
    most: int | None = None

    def sizes(self, all_of_them: Sequence[int], quick: Sequence[int]) -> list[int]:
        """The values of x."""
        return [size for size in (quick if self.quick else all_of_them) if self.most is None or size <= self.most]

    def shuffled(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Every round and size, in an order drawn anew for each round: what drifts is no growth."""
        order = random.Random(self.seed)
        return [(number, size) for number in range(1, self.rounds + 1) for size in order.sample(sizes, len(sizes))]


def most_files() -> int:
    """How many files one process may open for what is measured."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _SPARE_FILES


def say(text: str) -> None:
    """How far the bench is."""
    print(text, file=sys.stderr, flush=True)
