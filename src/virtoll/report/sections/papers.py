"""The papers' tables and statements beside what was measured here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from virtoll.analysis.claims import JudgedPaper, JudgedTable, ValueClaim
from virtoll.analysis.conditions import Condition
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING, interval, plus_minus
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table


class Papers(Section):
    """What the study is held against."""

    name: ClassVar[str] = "papers"
    summary: ClassVar[str] = "Do the papers hold here?"
    rank: ClassVar[int] = 850

    def applies(self, findings: Findings) -> bool:
        """Where the study names a paper's claims."""
        return bool(findings.papers)

    def title(self, findings: Findings) -> str:
        """Of one or of several."""
        return self.summary if len(findings.papers) > 1 else "Does the paper hold here?"

    def text(self, findings: Findings) -> list[str]:
        """Each paper, and how its claims fared."""
        return [
            f"{one.paper.authors}, *{one.paper.title}*, {one.paper.venue}. Their machines: {one.paper.machine}. "
            f"{'' if at else _RATIOS}{outcomes(one)}"
            for at, one in enumerate(_in_order(findings))
        ]

    def tables(self, findings: Findings) -> list[Table]:
        """Of each paper its statements, then its tables."""
        return [table for one in _in_order(findings) for table in _placed(one, alone=len(findings.papers) == 1)]

    def method(self, findings: Findings) -> list[str]:
        """When a claim holds."""
        return [_JUDGED.replace("MARGIN", f"{findings.margin * 100:.3g}")]


_RATIOS = "Machines differ, so ratios to native are compared, not absolute values. "
_JUDGED = (
    "**A paper's value** *agrees* when the two intervals of the ratio to native meet (or come within MARGIN %), "
    "*disagrees* when they lie apart; *cannot tell*: no interval here, or one too wide (high / low above 1.5). A value "
    "printed without an interval has the margin alone. What was not measured is said to be so; nothing stands in for "
    "it. A statement agrees when the whole interval satisfies it."
)


def _in_order(findings: Findings) -> list[JudgedPaper]:
    """Those first of which something was measured here."""
    return sorted(findings.papers, key=lambda one: not _measured(one))


def _placed(one: JudgedPaper, *, alone: bool) -> list[Table]:
    """Under a heading for what it says, and one for what it measured; open where something was measured here."""
    whose = "" if alone else f"{one.paper.name}: "
    says, measured = (
        f"{whose}{words}"[:1].upper() + f"{whose}{words}"[1:] for words in ("what it says", "what it measured")
    )
    folded = None if _measured(one) else True
    return [
        *(table.placed(says, look="statements", folded=folded) for table in statements(one)),
        *(
            table.placed(
                measured, look="paper", folded=bool(at) or not _measured(one), short=table.caption.split(";")[0]
            )
            for at, table in enumerate(numbers(one))
        ),
    ]


_UNITS = {"values": "", "% of native": "% of native", "% above native": "% above native"}


def _measured(judged: JudgedPaper) -> int:
    return judged.outcomes.total() - judged.outcomes["not measured here"]


def outcomes(judged: JudgedPaper) -> str:
    """``12 of its 40 claims were measured here: 8 agree, 3 disagree, 1 cannot be told``."""
    count, measured = judged.outcomes, _measured(judged)
    if not measured:
        return f"None of its {count.total()} claims was measured here."
    parts = [f"{count['agrees']} agree", f"{count['disagrees']} disagree"]
    parts += [f"{count['cannot tell']} cannot be told yet"] if count["cannot tell"] else []
    return f"Of its {count.total()} claims {measured} were measured here: {', '.join(parts)}."


def numbers(judged: JudgedPaper) -> list[Table]:
    """The tables of one paper."""
    return [_table(judged, table) for table in judged.tables]


def _table(paper: JudgedPaper, judged: JudgedTable) -> Table:
    rows = []
    for row in judged.table.rows:
        claims = (judged.cells.get((row, column)) for column in judged.columns)
        rows.append((Cell(row), *(Cell(MISSING) if claim is None else _cell(judged, claim) for claim in claims)))
    heads = (judged.table.heading, *(paper.paper.arms[column].title for column in judged.columns))
    unit = judged.table.unit or _UNITS[judged.table.numbers]
    what = f"{judged.table.id} of the paper: {judged.table.caption}" + (f" [{unit}]" if unit else "")
    caption = f"{what}; published, measured here, ratios to native"
    return Table(_name(paper, judged.table.id), caption, heads, tuple(rows), _notes(judged))


def _cell(judged: JudgedTable, claim: ValueClaim) -> Cell:
    here = [claim.why] if claim.measured_value is None and claim.measured_ratio is None and claim.why else []
    if claim.measured_value is not None:
        unit = "" if judged.table.numbers == "values" else f" {claim.measured_value.unit}"
        here.append(f"here {plus_minus(claim.measured_value)}{unit}")
    if claim.published_ratio is not None:
        there = f"ratio to native {_ratio(judged, claim)}"
        mine = "" if claim.measured_ratio is None else f", here {interval(claim.measured_ratio)}"
        here.append(f"{there}{mine}: {claim.outcome}")
    return Cell(as_printed(judged, claim), (claim.outcome or "").replace(" ", "-"), "; ".join(here))


def _ratio(judged: JudgedTable, claim: ValueClaim) -> str:
    assert claim.published_ratio is not None
    if judged.table.numbers == "values":
        return f"{claim.published_ratio.value:.2f}"
    return f"{claim.published_ratio.value:.4g}"


def as_printed(judged: JudgedTable, claim: ValueClaim) -> str:
    """A number as the paper prints it, with its half-width where it prints one."""
    half = "" if claim.published.half is None else f" ± {claim.published.half:g}"
    sign = "+" if judged.table.numbers == "% above native" and claim.published.value >= 0 else ""
    percent = "" if judged.table.numbers == "values" else " %"
    return f"{sign}{claim.published.value:g}{half}{percent}"


def _notes(judged: JudgedTable) -> tuple[str, ...]:
    notes = [f"Not as in the paper: {difference}." for difference in judged.differs]
    for row, conditions in judged.stands_for.items():
        notes.append(f"{row}, here: the geometric mean over {_varied(conditions)}.")
    if any(claim.published.half is None for claim in judged.cells.values() if claim.outcome is not None):
        notes.append("Printed without an interval: it agrees when it lies in ours, or within the margin of it.")
    told = dict.fromkeys(note for claim in judged.cells.values() for note in claim.notes)
    return (*notes, *(f"Measured values are {note}." for note in told))


def _varied(conditions: Sequence[Condition]) -> str:
    paths = dict.fromkeys(path for condition in conditions for path, _ in condition.levels)
    varying = tuple(path for path in paths if len({condition.get(path) for condition in conditions}) > 1)
    return "; ".join(condition.label(varying) for condition in conditions)


def statements(judged: JudgedPaper) -> list[Table]:
    """The sentences of one paper, judged: one table, or none."""
    rows = []
    for one in judged.statements:
        measured = "; ".join(f"{where}: {interval(e)}" if where else interval(e) for where, e in one.measured)
        outcome = Cell(one.outcome, one.outcome.replace(" ", "-"), one.why)
        said = Cell(f"“{one.statement.quote}”", "", one.statement.where)
        rows.append((said, Cell(one.statement.reads), Cell(measured or MISSING), outcome))
    heads = ("The paper says", "read as", "ratio measured here", "outcome")
    return [Table(_name(judged, "statements"), "The paper's statements", heads, tuple(rows))] if rows else []


def _name(judged: JudgedPaper, of: str) -> str:
    """The name of a table's files: ``paper-proxy-table-ii``."""
    return f"paper-{judged.paper.name}-{re.sub('[^a-z0-9]+', '-', of.lower()).strip('-')}"
