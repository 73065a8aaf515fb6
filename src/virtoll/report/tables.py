"""Tables: one description each, written as Markdown, CSV, LaTeX and (by the page) HTML."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtoll.analysis.matrix import Condition
from virtoll.analysis.ratios import Toll
from virtoll.files.confined import write_inside
from virtoll.record.model import Arm
from virtoll.report.answer import times
from virtoll.report.findings import BESIDE, Findings
from virtoll.report.numbers import MISSING, interval, plus_minus

_LATEX = str.maketrans(
    {
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "±": r"$\pm$",
        "×": r"$\times$",
        "—": "---",
        "–": "--",
    }
)


@dataclass(frozen=True)
class Cell:
    """A cell: its text, a kind for the page's colours (a verdict's or a claim's), and a second line."""

    text: str
    kind: str = ""
    detail: str = ""

    @property
    def plain(self) -> str:
        """Both lines in one."""
        if not self.detail:
            return self.text
        return f"{self.text} {self.detail}" if self.detail.startswith("[") else f"{self.text} ({self.detail})"


@dataclass(frozen=True)
class Table:
    """A table with its name (of the files), caption, heads, rows, and notes below."""

    name: str
    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """GitHub-flavoured Markdown."""
        lines = [f"**{self.caption}**", "", _bars(self.heads), _bars(["---"] * len(self.heads))]
        lines += [_bars([cell.plain for cell in row]) for row in self.rows]
        lines += ["", *(f"{note}\n" for note in self.notes)]
        return "\n".join(lines).rstrip() + "\n"

    def csv(self) -> str:
        """CSV as RFC 4180 has it: the cells' text as printed."""
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(self.heads)
        writer.writerows([[cell.plain for cell in row] for row in self.rows])
        return out.getvalue()

    def latex(self) -> str:
        """A LaTeX table (booktabs)."""
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(self.caption)}}}", rf"\label{{tab:{self.name}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(self.heads) - 1)}}}", r"\toprule"]
        lines += [" & ".join(_latex(head) for head in self.heads) + r" \\", r"\midrule"]
        lines += [" & ".join(_latex(cell.plain) for cell in row) + r" \\" for row in self.rows]
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\small {_latex(note)}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def write(self, directory: Path) -> None:
        """Write the three forms into ``directory``."""
        for suffix, text in (("md", self.markdown()), ("csv", self.csv()), ("tex", self.latex())):
            write_inside(directory, f"{self.name}.{suffix}", text.encode())


def _bars(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _latex(text: str) -> str:
    return text.translate(_LATEX)


# -- the tables ------------------------------------------------------------------------------------------


def tolls(findings: Findings) -> Table:
    """The table of tolls: an arm a row, what it costs in each respect."""
    beside = [name for name in BESIDE if any(toll.ratio for toll in findings.tolls(name).overall)]
    metrics = list(dict.fromkeys([findings.headline.name, *beside]))
    rows = []
    for arm in findings.arms:
        if arm.role == "baseline":
            continue
        totals = [findings.tolls(name).total(arm) for name in metrics]
        rows.append((Cell(arm.label), *(verdict(toll, len(findings.matrix.conditions)) for toll in totals)))
    rows += [
        (
            Cell(skipped.arm.label),
            Cell("not measured", "missing", textwrap.shorten(skipped.reason, 80, placeholder=" …")),
            *[Cell(MISSING)] * (len(metrics) - 1),
        )
        for skipped in findings.run.environment.skipped
    ]
    family = max((sum(t.verdict.kind != "floor" for t in findings.tolls(name).overall) for name in metrics), default=0)
    notes = (
        "Costs are worsenings against native in per cent with 95 % intervals, geometric means over "
        f"{len(findings.matrix.conditions)} condition{'s' * (len(findings.matrix.conditions) != 1)}. Differences are "
        f"called at a family-wise error rate of 5 % over the {family} comparisons of a column (Holm).",
    )
    heads = ("Arm", *(findings.matrix.metrics[name].title for name in metrics))
    return Table("tolls", "What each platform costs against native", heads, tuple(rows), notes)


def verdict(toll: Toll | None, planned: int) -> Cell:
    """A toll as its words and, below, what qualifies them; ``planned``: conditions it should speak for."""
    if toll is not None and toll.zeros:
        return Cell("not judged", toll.verdict.kind, toll.verdict.words)
    if toll is None or toll.ratio is None:
        return Cell(MISSING, "missing")
    if toll.verdict.kind == "floor":
        return Cell(toll.verdict.words, "floor")
    words, few = toll.verdict.words, toll.conditions < planned
    head, detail = words, ""
    for mark in (" [", " (", ": "):  # the words go above, what qualifies them below
        head, found, rest = words.partition(mark)
        if found:
            detail = f"[{rest}" if mark == " [" else rest.removesuffix(")")
            break
    details = [
        detail,
        times(toll),
        f"over {toll.conditions} of {planned} {'cases' if toll.metric.group else 'conditions'}" if few else "",
    ]
    if toll.verdict.kind == "unsure":
        details.insert(1, f"ratio {interval(toll.ratio)}")
    return Cell(head, toll.verdict.kind, "; ".join(part for part in details if part))


def tolls_by_condition(findings: Findings) -> Table:
    """The headline metric's ratio to native, a condition a row."""
    table = findings.tolls(findings.headline.name)
    arms = [arm for arm in findings.arms if arm.role != "baseline"]
    rows = []
    for condition in findings.matrix.conditions:
        cells = [_ratio(findings, table.cell(arm, condition), arm, condition) for arm in arms]
        rows.append((Cell(findings.matrix.label(condition) or "the only condition"), *cells))
    notes = (
        f"{findings.headline.title} over native's, paired within blocks, with 95 % intervals. Words are chosen at a "
        f"family-wise error rate of 5 % over the {table.family} comparisons of this table (Holm).",
    )
    heads = ("Condition", *(arm.label for arm in arms))
    return Table(
        "tolls-by-condition", f"{findings.headline.title} against native, by condition", heads, tuple(rows), notes
    )


def _ratio(findings: Findings, toll: Toll | None, arm: Arm, condition: Condition) -> Cell:
    if toll is not None and toll.zeros:
        return Cell("not judged", toll.verdict.kind, toll.verdict.words)
    if toll is None or toll.ratio is None:
        return Cell(MISSING, "missing", findings.matrix.why_missing(findings.headline.name, arm, condition))
    return Cell(interval(toll.ratio), toll.verdict.kind, toll.verdict.words)


def file_name(metric_name: str) -> str:
    """The name of the table of a metric's absolute values: a plain word, whatever the record says."""
    return re.sub(r"[^A-Za-z0-9-]", "-", metric_name)[:100]


def absolute(findings: Findings, metric_name: str) -> Table | None:
    """Means with 95 % intervals of a metric in its unit, condition by arm; None when nothing was measured."""
    metric, matrix = findings.matrix.metrics[metric_name], findings.matrix
    notes: dict[str, None] = {}
    rows = []
    for condition in matrix.conditions:
        cells = [Cell(matrix.label(condition) or "the only condition")]
        for arm in findings.arms:
            estimate = matrix.absolute(metric_name, arm, condition)
            notes |= dict.fromkeys(f"{arm.label}: {note}" for note in matrix.notes(metric_name, arm, condition))
            lost, n = matrix.censored(metric_name, arm, condition)
            if lost:
                cells.append(Cell(f"in {lost} of {n} among the failed", "missing"))
            else:
                cells.append(Cell(plus_minus(estimate), "" if estimate else "missing"))
        rows.append(tuple(cells))
    if all(cell.text == MISSING for row in rows for cell in row[1:]):
        return None
    unit = f" [{metric.unit}]" if metric.unit else ""
    loop = f", {' and '.join(findings.loops)} loop" if metric_name.startswith(("latency", "rate_per_s", "total")) else ""
    caption = f"{metric.title}{unit}{loop}: mean over deployments ± half-width of its 95 % interval"
    heads = ("Condition", *(arm.label for arm in findings.arms))
    return Table(file_name(metric_name), caption, heads, tuple(rows), grouped(list(notes)))


def grouped(notes: list[str]) -> tuple[str, ...]:
    """``ARM: NOTE`` strings, where a note that many arms share is said once."""
    by_text: dict[str, list[str]] = {}
    for note in notes:
        arm, _, text = note.partition(": ")
        by_text.setdefault(text, []).append(arm)
    return tuple(f"{', '.join(dict.fromkeys(arms))}: {text}." for text, arms in by_text.items())


def all_tables(findings: Findings) -> list[Table]:
    """Every table that is written to files but the papers' (report.papers)."""
    absolutes = [absolute(findings, name) for name in findings.matrix.metrics]
    return [
        tolls(findings),
        tolls_by_condition(findings),
        *(table for table in absolutes if table is not None),
    ]


def trials_csv(findings: Findings) -> str:
    """Every trial's metrics, full precision, a trial a row; a missing value is empty."""
    paths = sorted({path for trial in findings.run.plan.trials for path in trial.condition})
    out = io.StringIO()
    writer = csv.writer(out)
    heads = ["trial", "block", "position", "arm", "role", "status", "reason", *["outcome"] * findings.is_isolation]
    writer.writerow([*heads, *paths, *findings.matrix.metrics])
    for trial in findings.matrix.trials:
        plan, record = trial.record.trial, trial.record
        values = [trial.values.get(name, "") for name in findings.matrix.metrics]
        levels = [_no_formula(plan.condition.get(path, "")) for path in paths]
        head = [plan.id, plan.block, plan.position, plan.arm.label, plan.arm.role, record.status, record.reason]
        head += [record.outcome or ""] * findings.is_isolation
        writer.writerow([*map(_no_formula, head), *levels, *values])
    return out.getvalue()


def _no_formula(cell: Any) -> Any:
    """A cell; of a text that a spreadsheet would calculate (a guest's, in a reason), only its characters."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


__all__ = ["Cell", "Table", "all_tables", "tolls", "trials_csv"]
