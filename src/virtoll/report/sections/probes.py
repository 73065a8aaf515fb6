"""Each probe of a programme against what was swept, or by category."""

from __future__ import annotations

from typing import ClassVar

from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import Metric
from virtoll.record.model import PROBE
from virtoll.report.drawing import Figure
from virtoll.report.findings import Findings
from virtoll.report.probe_views import MOST_PANELS, View, panel_label, view_figures
from virtoll.report.questions import views_of_slices
from virtoll.report.sections.base import Section


class Probes(Section):
    """A figure a probe; small ones share theirs."""

    name: ClassVar[str] = "probes"
    summary: ClassVar[str] = "What does each probe say?"
    rank: ClassVar[int] = 300

    def applies(self, findings: Findings) -> bool:
        """With a programme of probes, and no neighbours."""
        return findings.is_programme and not findings.is_isolation

    def figures(self, findings: Findings) -> list[Figure]:
        """Of the probes that no section has views of its own of."""
        return view_figures(
            findings, [_view(findings, one) for one in findings.headlines if not views_of_slices(findings, one)]
        )

    def method(self, findings: Findings) -> list[str]:  # noqa: ARG002
        """What a probe may claim."""
        return list(_METHOD)


_METHOD = (
    "**Only the work is timed.** Buffers are allocated, touched and warmed up before the first window; those who work "
    "stamp its start and its end themselves. What the first touch of memory costs is a probe of its own.",
    "**A probe verifies itself** (residual, checksum, byte count), and its clock must have kept the host's pace; else "
    "the trial is invalid.",
    "**Each probe is defined** in docs/PROBES.md: formula, unit, source, and how it differs from the papers' tool.",
)


def _view(findings: Findings, headline: Metric) -> View:
    """The headline, with the probe's other quantities of the same unit where there is room for them."""
    matrix = findings.matrix
    alike = [m for m in matrix.metrics.values() if (m.group, m.unit) == (headline.group, headline.unit) and m.better]
    metrics = tuple(sorted(alike, key=lambda metric: not metric.headline)) or (headline,)
    sweep = _swept(matrix, headline)
    for shown in (metrics, (headline,)):
        entries = tuple(
            (metric, condition, panel_label(matrix, metric, condition, sweep, several=len(shown) > 1))
            for metric in shown
            for condition in matrix.conditions_of(metric.name)
        )
        if len(shown) == 1 or len({label for _, _, label in entries}) <= MOST_PANELS:
            break
    return View(shown, sweep, entries)


def _swept(matrix: Matrix, metric: Metric) -> str | None:
    """The first setting of the probe, in the study's order, that takes more than two numbers."""
    own = (case["condition"] for case in matrix.run.programme if case["probe"] == metric.group)
    paths: dict[str, None] = dict.fromkeys(
        [*(path for condition in own for path in condition), *matrix.varying_of(metric.name)]
    )
    for path in paths:
        levels = [level for level in matrix.levels(path, metric.name) if level is not None]
        if len(levels) > 2 and all(isinstance(level, int | float) for level in levels) and path != PROBE:
            return path
    return None
