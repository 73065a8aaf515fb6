"""Means over conditions, of what hardly depends on them: memory, deployment, the share of helpers.

All arms that stand beside each other are told over the same conditions: what depends on them a little is no difference
of arms, one of which lost a condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Estimate, Floats, mean_of_known
from virtoll.analysis.matrix import Matrix
from virtoll.record.model import Arm
from virtoll.report.findings import Findings


@dataclass(frozen=True)
class Pooled:
    """Some metrics of all arms but the second native, over the conditions of which all that any arm tells is known."""

    matrix: Matrix
    metrics: tuple[str, ...]

    @classmethod
    def of(cls, findings: Findings, *metrics: str) -> Pooled:
        """What is drawn in one figure, or told in one sentence, is one."""
        return cls(findings.matrix, metrics)

    def mean(self, metric: str, arm: Arm) -> Estimate | None:
        """Mean over the conditions of means over deployments; None where there is no value."""
        values = self._values[metric][:, self.matrix.arms.index(arm), self._alike]
        return self.matrix.mean_over(values, self.matrix.metrics[metric].unit)

    @property
    def text(self) -> list[str]:
        """Why nothing can be drawn, though there are values."""
        if self._alike.any() or not any(np.isfinite(values).any() for values in self._values.values()):
            return []
        return ["Not drawn: under no condition is it known of every arm. The tables of values have each by itself."]

    @property
    def over(self) -> str:
        """``, over 1 of 2 conditions, those known of every arm (workers 1)``; "" where it is over all."""
        told = [(self.matrix.label(each), alike) for each, alike in zip(self._conditions, self._alike, strict=True)]
        kept, left = ([label for label, alike in told if alike == one] for one in (True, False))
        if not left:
            return ""
        which = "; ".join(kept) if len(kept) <= len(left) else f"all but {'; '.join(left)}"
        return f", over {len(kept)} of {len(self._conditions)} conditions, those known of every arm ({which})"

    @cached_property
    def _conditions(self) -> dict[Condition, list[int]]:
        """Those that are told apart, with the numbers of the matrix's. How long a deployment took is known of the first
        trial on it: what differs in the neighbours alone shares it.
        """
        found: dict[Condition, list[int]] = {}
        for number, condition in enumerate(self.matrix.conditions):
            levels = {path: level for path, level in condition.levels if path.partition(".")[0] != "neighbour"}
            own = Condition.of_levels(levels) if "deploy_s" in self.metrics else condition
            found.setdefault(own, []).append(number)
        return found

    @cached_property
    def _values(self) -> Mapping[str, Floats]:
        """By metric, arrays [block, arm, condition]."""
        found = {}
        for metric in self.metrics:
            each = self._whole(metric)
            found[metric] = np.full((*each.shape[:2], len(self._conditions)), np.nan)
            for at, numbers in enumerate(self._conditions.values()):
                found[metric][:, :, at] = mean_of_known([each[:, :, number] for number in numbers])
        return found

    def _whole(self, metric: str) -> Floats:
        """Its values, but for those of an arm some of whose trials under a condition are `Matrix.barred`: the others
        are the better ones, or at knees the slower or the faster.
        """
        values = self.matrix.values(metric).copy()
        for (a, arm), (c, condition) in product(enumerate(self.matrix.arms), enumerate(self.matrix.conditions)):
            if self.matrix.barred(metric, arm, condition)[0]:
                values[:, a, c] = np.nan
        return values

    @cached_property
    def _alike(self) -> npt.NDArray[np.bool_]:
        """Of each condition, whether every arm that tells a metric anywhere tells it there."""
        shown = [number for number, arm in enumerate(self.matrix.arms) if arm.role != "floor"]
        alike = np.ones(len(self._conditions), dtype=bool)
        for values in self._values.values():
            known = np.asarray(np.isfinite(values).any(axis=0))[shown]  # [arm, condition]
            alike &= known[known.any(axis=1)].all(axis=0)
        return alike
