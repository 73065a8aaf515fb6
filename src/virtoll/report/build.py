"""Makes RUNDIR/report: the page, figures/ and tables/. Rebuilt whole each time; nothing else reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

from altair.utils.schemapi import debug_mode
from markupsafe import Markup

from virtoll.errors import StoreError
from virtoll.features import Features
from virtoll.files.confined import inside, write_inside
from virtoll.helpers import helpers
from virtoll.report.answer import answer
from virtoll.report.begin import HELPERS, uncollected
from virtoll.report.contents import Part, parts_of
from virtoll.report.drawing import EMPTY, NARROW, WIDE
from virtoll.report.findings import Findings, find, told_as_damage
from virtoll.report.page import Drawn, render_page
from virtoll.report.palette import pairs, styles
from virtoll.report.render import files, specification, svg, svgs, themed, write_files
from virtoll.report.sections import components, speed
from virtoll.report.tables import trials_csv


def build_report(run_directory: Path) -> Path:
    """Analyse a run directory and write its report; return the page's path. As `report_of`."""
    return report_of(run_directory)[1]


def report_of(run_directory: Path, features: Mapping[str, Features] | None = None) -> tuple[Findings, Path]:
    """Analyse a run directory and write its report: what was found, and the page's path.

    ``features``: what platforms support, by their names, for the arms' table of it.

    StoreError when the run cannot be read or the report cannot be written.
    """
    with helpers(HELPERS) as others, uncollected():
        _start(others)
        findings = replace(find(run_directory), features=features or {})
        return findings, write_report(findings)


def _start(others: Executor) -> None:
    """Have one of them start what draws, which takes long, while trials are read."""
    others.submit(svg, EMPTY)


def write_report(findings: Findings) -> Path:
    """Write the report of a run that has been analysed; return the page's path."""
    directory = inside(findings.run.directory, "report")
    try:
        with told_as_damage(findings.run.directory), helpers(HELPERS) as renderers:
            return _write(findings, directory, renderers)
    except OSError as error:
        raise StoreError(
            f"the report cannot be written: {error.strerror}",
            where=str(error.filename or directory),
            remedy="make room or give write permission, then run `virtoll report` again; the raw data is untouched",
        ) from error


def as_json(findings: Findings, page: Path) -> dict[str, Any]:
    """What was found and where it lies, for programs; docs/JSON.md has the keys."""
    both = [findings] if findings.explanation is None else [findings, findings.explanation]
    told = Counter(record.status for each in both for record in each.run.records)
    written = {part: sorted(map(str, _of_ours(page.parent / part))) for part in ("tables", "figures")}
    return {
        "run": str(findings.run.directory),
        "page": str(page),
        **written,
        "answer": answer(findings),
        "components": components.as_json(findings),
        "speed": speed.as_json(findings),
        "trials": {status: told[status] for status in ("valid", "invalid", "failed")},
    }


def _write(findings: Findings, directory: Path, renderers: Executor) -> Path:
    for part in ("figures", "tables"):
        inside(directory, part).mkdir(parents=True, exist_ok=True)
    parts = parts_of(findings)
    drawn = _draw(findings, parts, directory / "figures", renderers)  # the tables are made meanwhile
    parts = [part for part in parts if part.shows_something]
    written = [path for part in parts for table in part.tables for path in table.write(directory / "tables")]
    trials = trials_csv(findings)
    written.append(write_inside(directory / "tables", "trials.csv", trials.encode()))
    if findings.explanation is not None:
        explaining = trials_csv(findings.explanation).encode()
        written.append(write_inside(directory / "tables", "explanation-trials.csv", explaining))
    page = write_inside(directory, "index.html", render_page(findings, parts, drawn(), trials).encode())
    names = {figure.name for part in parts for figure in part.figures}
    _remove_but({path.name for path in written}, directory / "tables")
    _remove_but({f"{name}{suffix}" for name in names for suffix in _KINDS["figures"]}, directory / "figures")
    return page


_KINDS = {"tables": (".md", ".csv", ".tex"), "figures": (".svg", ".png", ".pdf")}


def _of_ours(directory: Path) -> list[Path]:
    """The files there that a report may have written, by their kinds."""
    return [path for path in directory.iterdir() if path.suffix in _KINDS[directory.name] and not path.is_dir()]


def _remove_but(names: Collection[str], directory: Path) -> None:
    """What a report of before has left: of another number of trials, or by another virtoll."""
    for path in _of_ours(directory):
        if path.name not in names:
            path.unlink()


def _draw(
    findings: Findings, parts: Sequence[Part], directory: Path, renderers: Executor
) -> Callable[[], dict[str, Drawn]]:
    """Have every figure drawn by other processes, while this one lays out the next and goes on.

    What it gives waits for them: every figure by name, written as files from its wide form as soon as it is there, and
    both forms dressed for the page.
    """
    making = {}
    for figure in (figure for part in parts for figure in part.figures):
        with debug_mode(False):  # each piece of a chart against Vega-Lite's schema: tests do that
            layouts = [specification(figure.draw(layout)) for layout in (WIDE, NARROW)]
        making[figure.name] = renderers.submit(svgs, figure.name, layouts)

    def drawn() -> dict[str, Drawn]:
        colours = pairs(styles(findings.matrix.arms), heat=True)
        found = {}
        for name, future in making.items():
            made = future.result()
            write_files(files(made[0]), directory, name)  # while the next figure is drawn
            found[name] = Drawn(*(Markup(themed(text, colours)) for text in made))
        return found

    return drawn
