"""The papers' tables and statements beside what was measured here."""

from __future__ import annotations

from virtoll.analysis.claims import JudgedTable
from virtoll.analysis.estimates import Estimate
from virtoll.report.findings import Findings
from virtoll.report.tables import MISSING, Cell, Table, interval, plus_minus


def as_printed(estimate: Estimate) -> str:
    """A published mean and half-width, as the paper prints them."""
    return f"{estimate.value:g} ± {round(estimate.half_width or 0.0, 2):g}"


def paper_tables(findings: Findings) -> list[Table]:
    """The paper's tables regenerated, published beside measured, and its statements judged."""
    if findings.paper is None:
        return []
    judged = [_paper_table(findings, table) for table in findings.paper.tables]
    said = _statements(findings)
    return judged if said is None else [*judged, said]


def _paper_table(findings: Findings, judged: JudgedTable) -> Table:
    assert findings.paper is not None
    paper = findings.paper.paper
    rows = []
    for size, published in judged.table.rows.items():
        cells = [Cell(size)]
        for column in judged.columns:
            claim = judged.cells[size, column]
            if column not in published:
                cells.append(Cell(MISSING))
                continue
            here = claim.why if claim.measured_value is None else f"here {plus_minus(claim.measured_value)}"
            text = as_printed(claim.published_value)
            if claim.published_ratio is not None:
                there = f"ratio to native {claim.published_ratio.value:.2f}"
                mine = "" if claim.measured_ratio is None else f", here {interval(claim.measured_ratio)}"
                here = f"{here}; {there}{mine}: {claim.outcome}"
            cells.append(Cell(text, (claim.outcome or "").replace(" ", "-"), here))
        rows.append(tuple(cells))
    notes = [f"Not as in the paper: {difference}." for difference in judged.differs]
    told = list(dict.fromkeys(note for claim in judged.cells.values() for note in claim.notes))
    notes += [f"Measured times are {note}." for note in told]
    heads = ("Size", *(paper.arms[column].title for column in judged.columns))
    caption = (
        f"Table {judged.table.id} of the paper: {judged.table.caption} [s]; published, measured here, ratios to native"
    )
    return Table(f"paper-table-{judged.table.id}", caption, heads, tuple(rows), tuple(notes))


def _statements(findings: Findings) -> Table | None:
    """The paper's sentences, judged."""
    if findings.paper is None:
        return None
    rows = []
    for judged in findings.paper.statements:
        measured = "; ".join(f"{where}: {interval(estimate)}" for where, estimate in judged.measured)
        outcome = Cell(judged.outcome, judged.outcome.replace(" ", "-"), judged.why)
        said = Cell(f"“{judged.statement.quote}”", "", judged.statement.where)
        rows.append((said, Cell(judged.statement.reads), Cell(measured or MISSING), outcome))
    heads = ("The paper says", "read as", "ratio measured here", "outcome")
    return Table("paper-statements", "The paper's statements", heads, tuple(rows))
