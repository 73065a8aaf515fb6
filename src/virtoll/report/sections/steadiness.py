"""Whether the machine held still while the study ran."""

from __future__ import annotations

from typing import ClassVar

import altair as alt
import numpy as np

from virtoll.analysis.estimates import Floats
from virtoll.report.drawing import Figure, Layout, Row, arm_scales, data, legend, styled
from virtoll.report.findings import Findings
from virtoll.report.palette import MUTED
from virtoll.report.sections.base import Section
from virtoll.report.words import lower

_MOST_POINTS = 2000  # of the figure, which is in the page


class Steadiness(Section):
    """Native's trials in the order they ran."""

    name: ClassVar[str] = "steadiness"
    summary: ClassVar[str] = "Did the machine hold still?"
    rank: ClassVar[int] = 250

    def applies(self, findings: Findings) -> bool:
        """Under a load alone."""
        return findings.is_load

    def figures(self, findings: Findings) -> list[Figure]:
        """The one."""
        return [figure for figure in [_steadiness(findings)] if figure is not None]


def _steadiness(findings: Findings) -> Figure | None:
    matrix, metric = findings.matrix, findings.headline
    if matrix.baseline is None or len(matrix.blocks) < 2:
        return None
    values = matrix.values(metric.name)
    arms = [arm for arm in matrix.arms if arm.role in ("baseline", "floor")]
    base = values[:, matrix.arms.index(matrix.baseline), :]
    if not np.isfinite(base).any():
        return None
    blocks_of: dict[str, list[int]] = {}
    for at, host in enumerate(matrix.hosts):
        blocks_of.setdefault(host, []).append(at)
    of_hosts = {host: _centre(base[blocks]) for host, blocks in blocks_of.items()}
    rows = []
    for (block, _, label, condition), cell in matrix.cells.items():
        value = cell.values.get(metric.name)
        if value is not None and any(arm.label == label for arm in arms):
            relative = value / of_hosts[cell.record.trial.host][matrix.conditions.index(condition)]
            if np.isfinite(relative):
                position = cell.record.trial.position
                rows.append({"arm": label, "x": position, "value": float(f"{relative:.4g}"), "block": block})
    if len(rows) < 3:
        return None
    shown, few = _few(rows)

    def draw(layout: Layout) -> alt.TopLevelMixin:
        look = arm_scales(findings, arms)
        chart = alt.Chart(data(shown))
        x = alt.X("x:Q").scale(nice=False).axis(title="position in the run", grid=False, tickMinStep=1)
        y = alt.Y("value:Q").scale(zero=False).axis(title="against its mean", format="%", tickCount=5, domain=False)
        rule = alt.Chart(data([{"value": 1}])).mark_rule(color=MUTED[0]).encode(y="value:Q")
        colour = look["color"].legend(**legend([arm.label for arm in arms], layout.width - 70))
        points = chart.mark_point(filled=True, size=34, opacity=0.85).encode(
            x=x, y=y, color=colour, shape=look["shape"]
        )
        return styled(alt.layer(rule, points, width=layout.width - 90, height=150))

    caption = (
        f"Every native trial's {lower(metric.title)} against the mean of its condition"
        f"{' on its host' * (len(of_hosts) > 1)}, in the order they ran. A "
        "slope or a step is drift of the machine: pairing within blocks takes it out of the tolls. Scatter is noise."
        f"{few}"
    )
    return Figure("steadiness", "Did the machine hold still?", caption, draw)


def _few(rows: list[Row]) -> tuple[list[Row], str]:
    """As many as a figure can show, evenly from the first to the last, and a sentence where those are not all."""
    if len(rows) <= _MOST_POINTS:
        return rows, ""
    ordered = sorted(rows, key=lambda row: row["x"])
    picked = np.linspace(0, len(ordered) - 1, _MOST_POINTS).round().astype(int)
    told = f" {_MOST_POINTS:,} of {len(rows):,} are drawn, evenly from the first to the last; trials.csv holds all."
    return [ordered[at] for at in picked], told


def _centre(base: Floats) -> Floats:
    """The mean of [block, condition] over the blocks; nan where nothing is known, or where it is 0."""
    centre = np.full(base.shape[1], np.nan)
    measured = np.isfinite(base).any(axis=0)
    centre[measured] = np.nanmean(base[:, measured], axis=0)
    centre[centre == 0] = np.nan
    return centre
