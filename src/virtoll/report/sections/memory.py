"""How much memory an instance takes."""

from __future__ import annotations

from typing import ClassVar

from virtoll.report.drawing import Figure, dots, pooled_rows
from virtoll.report.findings import Findings
from virtoll.report.pooled import Pooled
from virtoll.report.sections.base import Section
from virtoll.report.words import left_out, unseen

_NO_RINGS = "of its resident memory this run tells nothing (runs from before 2026-11-27 left out what is shared)"


class Memory(Section):
    """As the host books it, and resident."""

    name: ClassVar[str] = "memory"
    summary: ClassVar[str] = "How much memory does it take?"
    rank: ClassVar[int] = 230
    of_each_server: ClassVar[bool] = True

    def applies(self, findings: Findings) -> bool:
        """Under a load alone."""
        return findings.is_load

    def text(self, findings: Findings) -> list[str]:
        """Of whom nothing is known, and what cannot be drawn."""
        left = [_left_out(findings)] if not self.figures(findings) else []
        return [*unseen(findings, "the memory that it takes"), *_pooled(findings).text, *filter(None, left)]

    def figures(self, findings: Findings) -> list[Figure]:
        """The one."""
        return [figure for figure in [_memory(findings)] if figure is not None]


_SEEN = (("memory_peak_mib", "outside"), ("rss_peak_mib", "inside"))


def _pooled(findings: Findings) -> Pooled:
    return Pooled.of(findings, *(metric for metric, _ in _SEEN))


def _left_out(findings: Findings) -> str:
    return left_out(findings, _SEEN[0][0], findings.matrix.conditions)


def _memory(findings: Findings) -> Figure | None:
    pooled = _pooled(findings)
    arms = [arm for arm in findings.arms if arm.role != "floor"]
    rows = pooled_rows(pooled, arms, _SEEN)
    has_rings = any(row["seen"] == "inside" for row in rows)
    rings = "rings: peak of its resident memory (anonymous and shared)" if has_rings else _NO_RINGS
    caption = (
        "Filled marks: peak of all memory booked to the instance on the host, page cache included; "
        f"{rings}. Means over blocks with 95 % intervals{pooled.over}. {_left_out(findings)}"
    ).rstrip()
    draw = dots(findings, arms, rows, "MiB", log=False)
    return Figure("memory", "How much memory does it take?", caption, draw) if rows else None
