"""Makes RUNDIR/report: the page, figures/ and tables/. Rebuilt whole each time; nothing else reads it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from virtoll.errors import StoreError
from virtoll.files.confined import inside, write_inside
from virtoll.report.answer import answer
from virtoll.report.drawing import NARROW, WIDE, Figure
from virtoll.report.figures import figures
from virtoll.report.findings import Findings, find, told_as_damage
from virtoll.report.isolation_figures import isolation_figures
from virtoll.report.isolation_tables import isolation_tables
from virtoll.report.page import render_page
from virtoll.report.palette import pairs, styles
from virtoll.report.papers import paper_tables
from virtoll.report.probe_figures import probe_figures
from virtoll.report.probe_tables import probe_tables
from virtoll.report.render import svg, themed, write_files
from virtoll.report.tables import Table, all_tables, trials_csv
from virtoll.report.testbed import tables_of_slices


def build_report(run_directory: Path) -> Path:
    """Analyse a run directory and write its report; return the page's path.

    StoreError when the run cannot be read or the report cannot be written.
    """
    return write_report(find(run_directory))


def write_report(findings: Findings) -> Path:
    """Write the report of a run that has been analysed; return the page's path."""
    directory = inside(findings.run.directory, "report")
    try:
        with told_as_damage(findings.run.directory):
            return _write(findings, directory)
    except OSError as error:
        raise StoreError(
            f"the report cannot be written: {error.strerror}",
            where=str(error.filename or directory),
            remedy="make room or give write permission, then run `virtoll report` again; the raw data is untouched",
        ) from error


def as_json(findings: Findings, page: Path) -> dict[str, Any]:
    """What was found and where it lies, for programs; docs/JSON.md has the keys."""
    told = Counter(record.status for record in findings.run.records)
    written = {part: sorted(map(str, (page.parent / part).iterdir())) for part in ("tables", "figures")}
    return {
        "run": str(findings.run.directory),
        "page": str(page),
        **written,
        "answer": answer(findings),
        "trials": {status: told[status] for status in ("valid", "invalid", "failed")},
    }


def _write(findings: Findings, directory: Path) -> Path:
    for part in ("figures", "tables"):
        inside(directory, part).mkdir(parents=True, exist_ok=True)
    drawn = _draw(findings, directory / "figures")
    made = [*_tables(findings), *tables_of_slices(findings)]
    tables = {table.name: table for table in (*made, *paper_tables(findings.papers))}
    for table in tables.values():
        table.write(directory / "tables")
    write_inside(directory / "tables", "trials.csv", trials_csv(findings).encode())
    return write_inside(directory, "index.html", render_page(findings, drawn, tables).encode())


def _tables(findings: Findings) -> list[Table]:
    if findings.is_isolation:
        return isolation_tables(findings)
    return probe_tables(findings) if findings.is_programme else all_tables(findings)


def _figures(findings: Findings) -> list[Figure]:
    if findings.is_isolation:
        return isolation_figures(findings)
    return probe_figures(findings) if findings.is_programme else figures(findings)


def _draw(findings: Findings, directory: Path) -> dict[str, tuple[Figure, str, str]]:
    """Every figure by name: written as files from its wide form, and both forms dressed for the page."""
    colours = pairs(styles(findings.matrix.arms), heat=findings.is_programme or findings.is_isolation)
    drawn = {}
    for figure in _figures(findings):
        wide, narrow = svg(figure.draw(WIDE)), svg(figure.draw(NARROW))
        write_files(wide, directory, figure.name)
        drawn[figure.name] = (figure, themed(wide, colours), themed(narrow, colours))
    return drawn
