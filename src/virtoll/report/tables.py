"""Tables: one description each, written as Markdown, CSV, LaTeX and (by the page) HTML."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from virtoll.analysis.ratios import Toll
from virtoll.files.confined import write_inside
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING, interval
from virtoll.report.words import fewer, times

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
        "<": r"\textless{}",  # these three are other characters in LaTeX's own encoding (OT1)
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "−": "$-$",  # of these two it knows nothing
        "∇": r"$\nabla$",
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
class Place:
    """Where and how the page shows a table; its files know nothing of it.

    ``under``: the name of the section's figure that it stands beneath, or a heading of its own; "": before all figures.
    ``look``: a class of page.css. ``folded``: whether a line opens it, which says ``short``, or else the caption; None:
    it always stands open, and says neither.
    """

    under: str = ""
    look: str = ""
    folded: bool | None = None
    short: str = ""


@dataclass(frozen=True)
class Table:
    """A table with its name (of the files), caption, heads, rows, and notes below."""

    name: str
    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    place: Place = Place()

    def placed(self, under: str = "", *, look: str = "", folded: bool | None = None, short: str = "") -> Table:
        """The same table at a `Place` on the page."""
        return replace(self, place=Place(under, look, folded, short))

    def markdown(self) -> str:
        """GitHub-flavoured Markdown."""
        lines = [f"**{self.caption}**", "", _bars(self.heads), _bars(["---"] * len(self.heads))]
        lines += [_bars([cell.plain for cell in row]) for row in self.rows]
        lines += ["", *(f"{note}\n" for note in self.notes)]
        return "\n".join(lines).rstrip() + "\n"

    def csv(self) -> str:
        """CSV as RFC 4180 has it: the cells' text as printed, of what a spreadsheet would calculate its characters."""
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(map(_inert, self.heads))
        writer.writerows([[_inert(cell.plain) for cell in row] for row in self.rows])
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

    def write(self, directory: Path) -> list[Path]:
        """Write the three forms into ``directory``; their paths."""
        forms = {"md": self.markdown(), "csv": self.csv(), "tex": self.latex()}
        return [write_inside(directory, f"{self.name}.{suffix}", text.encode()) for suffix, text in forms.items()]


# A change as it is printed, "-0.3 % [-0.5, -0.1]" or "+12 ± 3 % (...)": no formula, though it begins like one.
_CHANGE = re.compile(r"[-+][0-9.,]+(?: ± [0-9.,]+)?(?: %)?(?: [(\[].*)?", re.DOTALL)


def _inert(text: str) -> str:
    """What an instance says of itself is in cells too (its kernel, its security label, why a trial failed)."""
    return text if _CHANGE.fullmatch(text) else str(no_formula(text))


def _bars(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.splitlines()).replace("|", r"\|") for cell in cells) + " |"


def _latex(text: str) -> str:
    return text.translate(_LATEX)


def plain(table: Table) -> str:
    """A table for the terminal: columns lined up, then its notes."""
    lines = [table.heads, *([cell.plain for cell in row] for row in table.rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(table.heads))]
    texts = ["  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([table.caption, "", *texts, "", *table.notes])


# -- what several of them share ---------------------------------------------------------------------------


def verdict(toll: Toll | None, planned: int) -> Cell:
    """A toll as its words and, below, what qualifies them; ``planned``: conditions it should speak for."""
    if toll is not None and toll.verdict.kind == "floor":
        return Cell(toll.verdict.words, "floor")
    if toll is not None and toll.zeros:
        return Cell("not judged", toll.verdict.kind, toll.verdict.words)
    if toll is None or toll.ratio is None:
        return Cell(MISSING, "missing")
    words = toll.verdict.words
    head, detail = words, ""
    for mark in (" [", " (", ": "):  # the words go above, what qualifies them below
        head, found, rest = words.partition(mark)
        if found:
            detail = f"[{rest}" if mark == " [" else rest.removesuffix(")")
            break
    details = [detail, times(toll), fewer(toll, planned)]
    if toll.verdict.kind == "unsure":
        details.insert(1, f"ratio {interval(toll.ratio)}")
    return Cell(head, toll.verdict.kind, "; ".join(part for part in details if part))


def file_name(metric_name: str) -> str:
    """The name of the table of a metric's absolute values: a plain word, whatever the record says."""
    return re.sub(r"[^A-Za-z0-9-]", "-", metric_name)[:100]


def grouped(notes: list[str]) -> tuple[str, ...]:
    """``ARM: NOTE`` strings, where a note that many arms share is said once."""
    by_text: dict[str, list[str]] = {}
    for note in notes:
        arm, _, text = note.partition(": ")
        by_text.setdefault(text, []).append(arm)
    return tuple(f"{', '.join(dict.fromkeys(arms))}: {text}." for text, arms in by_text.items())


def trials_csv(findings: Findings) -> str:
    """Every trial's metrics, full precision, a trial a row; a missing value is empty."""
    paths = sorted({path for trial in findings.run.plan.trials for path in trial.condition})
    out = io.StringIO()
    writer = csv.writer(out)
    hosts = ["host"] * bool(findings.run.plan.hosts)
    groups = ["group"] * bool(findings.run.plan.groups)
    sittings = ["sitting"] * (len({record.sitting for record in findings.run.records} - {None}) > 1)
    heads = ["trial", "block", *hosts, *groups, *sittings, "position", "arm", "role", "status", "reason"]
    heads += ["outcome"] * findings.is_isolation
    writer.writerow([*heads, *paths, *findings.matrix.metrics])
    for trial in findings.matrix.trials:
        plan, record = trial.record.trial, trial.record
        values = [trial.values.get(name, "") for name in findings.matrix.metrics]
        levels = [no_formula(plan.condition.get(path, "")) for path in paths]
        head = [plan.id, plan.block, *[plan.host] * len(hosts), *[plan.group] * len(groups)]
        head += [record.sitting or ""] * len(sittings)
        head += [plan.position, plan.arm.label, plan.arm.role, record.status, record.reason]
        head += [record.outcome or ""] * findings.is_isolation
        writer.writerow([*map(no_formula, head), *levels, *values])
    return out.getvalue()


def no_formula(cell: Any) -> Any:
    """A cell; of a text that a spreadsheet would calculate (a guest's, in a reason), only its characters."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
