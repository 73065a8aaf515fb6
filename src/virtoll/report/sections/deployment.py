"""How long it takes until an instance is there."""

from __future__ import annotations

from typing import ClassVar

from virtoll.report.drawing import Figure, dots, pooled_rows
from virtoll.report.findings import Findings
from virtoll.report.sections.base import Section


class Deployment(Section):
    """From the order to the agent's answer."""

    name: ClassVar[str] = "deployment"
    summary: ClassVar[str] = "How long until it is there?"
    rank: ClassVar[int] = 240

    def applies(self, findings: Findings) -> bool:
        """Under a load alone."""
        return findings.is_load

    def figures(self, findings: Findings) -> list[Figure]:
        """The one."""
        return [figure for figure in [_deployment(findings)] if figure is not None]


def _deployment(findings: Findings) -> Figure | None:
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    rows = pooled_rows(findings, arms, (("deploy_s", "outside"),))
    caption = "From the order to deploy to an instance whose agent answers. Means over blocks with 95 % intervals."
    draw = dots(findings, arms, rows, "seconds", log=True)
    return Figure("deployment", "How long until it is there?", caption, draw) if rows else None
