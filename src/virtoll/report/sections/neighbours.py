"""What the neighbours did, by their own counts."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import numpy as np

from virtoll.analysis.isolation import Isolation
from virtoll.record.model import NeighbourRecord
from virtoll.report.findings import Findings
from virtoll.report.isolation import heads
from virtoll.report.numbers import MISSING, number
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table
from virtoll.units import format_bytes, format_duration


class Neighbours(Section):
    """So that nobody takes an idle neighbour for a good platform."""

    name: ClassVar[str] = "neighbours"
    summary: ClassVar[str] = "What the neighbours did"
    rank: ClassVar[int] = 330

    def applies(self, findings: Findings) -> bool:
        """With neighbours."""
        return findings.is_isolation

    def tables(self, findings: Findings) -> list[Table]:
        """The one."""
        table = doings(findings.isolation)
        return [] if table is None else [table.placed(look="probes")]


def doings(told: Isolation) -> Table | None:
    """What each neighbour did, by its own counts; None where nothing was recorded."""
    rows = []
    for condition in told.conditions:
        cells = []
        for arm in told.arms:
            neighbours = (trial.record.neighbour for trial in told.matrix.across(arm, condition).values())
            cells.append(_doing([neighbour for neighbour in neighbours if neighbour is not None]))
        rows.append((Cell(told.name(condition)), *cells))
    if all(cell.text == MISSING for row in rows for cell in row[1:]):
        return None
    notes = ("Means over its deployments, by the aggressor's own count while it was at work.",)
    return Table("neighbours", "What the neighbours did", heads(told), tuple(rows), notes)


def _doing(records: list[NeighbourRecord]) -> Cell:
    began = [record for record in records if record.start_ns is not None]
    if not began:
        reason = next((record.reason for record in records), "")
        return Cell("could not start" if records else MISSING, "missing", reason)
    keys = list(dict.fromkeys(key for record in began for key in record.counts))
    means = {key: float(np.mean([r.counts[key] for r in began if key in r.counts])) for key in keys}
    done = [_amount(key, value) for key, value in means.items() if value > 0]
    spans = [(r.end_ns - r.start_ns) / 1e9 for r in began if r.end_ns is not None and r.start_ns is not None]
    ended = Counter(record.ended for record in began if record.ended not in ("time", "told"))
    details = [f"{float(np.mean(spans)):.1f} s" if spans else ""]
    details += [f"{how} in {count} of {len(began)}" for how, count in ended.items()]
    restarts = sum(record.restarts for record in began)
    details.append(f"killed and begun again {restarts} ×" if restarts else "")
    if len(began) < len(records):
        details.append(f"could not start in {len(records) - len(began)} of {len(records)}")
    return Cell(", ".join(done) or "nothing", "" if done else "unsure", "; ".join(part for part in details if part))


def _amount(key: str, value: float) -> str:
    """``4 MB written``, ``20,000 wakeups``."""
    for suffix, words in (("_bytes", format_bytes), ("_ns", format_duration)):
        if key.endswith(suffix):
            return f"{words(float(f'{value:.3g}'))} {key.removesuffix(suffix).replace('_', ' ')}"
    return f"{number(value, value / 10) if value < 10 else f'{value:,.0f}'} {key.replace('_', ' ')}"
