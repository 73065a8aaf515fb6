"""How long it takes until an instance is there."""

from __future__ import annotations

from typing import ClassVar

from virtoll.report.drawing import Figure, dots, pooled_rows
from virtoll.report.findings import Findings
from virtoll.report.pooled import Pooled
from virtoll.report.sections.base import Section


class Deployment(Section):
    """From the order to the agent's answer."""

    name: ClassVar[str] = "deployment"
    summary: ClassVar[str] = "How long until it is there?"
    rank: ClassVar[int] = 240

    def applies(self, findings: Findings) -> bool:
        """Under a load alone."""
        return findings.is_load

    def text(self, findings: Findings) -> list[str]:
        """What cannot be drawn."""
        return Pooled.of(findings, _TOLD).text

    def figures(self, findings: Findings) -> list[Figure]:
        """The one."""
        return [figure for figure in [_deployment(findings)] if figure is not None]


_TOLD = "deploy_s"


def _deployment(findings: Findings) -> Figure | None:
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    pooled = Pooled.of(findings, _TOLD)
    rows = pooled_rows(pooled, arms, ((_TOLD, "outside"),))
    caption = "From the order to deploy to an instance whose agent answers. "
    caption += f"Means over blocks with 95 % intervals{pooled.over}."
    draw = dots(findings, arms, rows, "seconds", log=True)
    return Figure("deployment", "How long until it is there?", caption, draw) if rows else None
