"""The page: one self-contained HTML file, from the findings, the drawn figures and the tables."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from virtoll.analysis.matrix import PROBE, level_label, level_value, setting_name
from virtoll.report import papers, tables
from virtoll.report.answer import answer
from virtoll.report.beliefs import sentences, size
from virtoll.report.drawing import Figure
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING
from virtoll.report.palette import pairs, styles
from virtoll.report.render import variable
from virtoll.report.tables import Cell, Table
from virtoll.report.unix_index import UNIX_INDEX
from virtoll.units import format_duration

_MITIGATIONS = "mitigations › "


def render_page(findings: Findings, drawn: Mapping[str, tuple[Figure, str, str]], made: Mapping[str, Table]) -> str:
    """The HTML. ``drawn``: by name the figure, its wide and its narrow SVG; ``made``: every table by name."""
    run, study = findings.run, findings.run.study
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_typeset
    )
    template = environment.from_string((files("virtoll.report") / "page.html").read_text("utf-8"))
    return template.render(
        title=study.get("title") or study.get("name") or "A study of virtoll",
        question=study.get("question") or "What does each platform cost?",
        answer=_emphasised(findings),
        style=Markup(_style(findings)),
        look=styles(findings.matrix.arms),
        variable=variable,
        tolls=made.get("tolls"),
        by_condition=made.get("tolls-by-condition"),
        figures=[(figure, Markup(wide), Markup(narrow)) for figure, wide, narrow in drawn.values()],
        folded=_folded(findings, made),
        programme=findings.is_programme,
        isolation=findings.is_isolation,
        beneath=_beneath(findings, made),
        apart=[made[name] for name in ("neighbours", "limits") if findings.is_isolation and name in made],
        told_beliefs=sentences(findings) if findings.is_programme else [],
        unix_indices=[table for name, table in made.items() if name.startswith(UNIX_INDEX)],
        cross_check=made.get("cross-check"),
        experiments=made.get("experiments"),
        papers=papers.sections(findings.papers),
        summary=_summary(findings),
        loops=findings.loops,
        margin=findings.margin,
        matrix=findings.matrix,
        environment=run.environment,
        machine=[row for row in _flat(run.environment.comparable) if _MITIGATIONS not in row[0]],
        mitigations=[
            (key.rpartition(" › ")[2], value) for key, value in _flat(run.environment.comparable) if _MITIGATIONS in key
        ],
        state=_flat(run.environment.notes),
        settings=_settings(findings),
        believes=_believes(findings),
        checks=_checks(findings),
        excluded=findings.excluded,
        warnings=[*run.notes, *run.environment.warnings],
        directory=run.directory.name,
        command=study.get("command") or study.get("name") or "STUDY.toml",
        seed=run.plan.seed,
        trials_href=_data_uri(tables.trials_csv(findings), "text/csv"),
    )


def _folded(findings: Findings, made: Mapping[str, Table]) -> list[tuple[str, list[Table]]]:
    """The tables of all values; a programme's under its families of probes ("disk", "unix")."""
    groups: dict[str, list[Table]] = {}
    for metric in findings.matrix.metrics.values():
        table = made.get(tables.file_name(metric.name))
        if table is not None:
            groups.setdefault(metric.group.partition("-")[0], []).append(table)
    return list(groups.items())


def _beneath(findings: Findings, made: Mapping[str, Table]) -> dict[str, list[Table]]:
    """By a figure's name, the tables that say the same in numbers."""
    if not findings.is_isolation:
        return {}
    losses = [table for name, table in made.items() if name.startswith("losses-")]
    rest = {"course-latency": ("recovery", "transients")}
    return {"isolation": losses, **{figure: [made[n] for n in names if n in made] for figure, names in rest.items()}}


def _typeset(value: Any) -> Any:
    """A number stays on one line with its sign: no-break spaces before per cent and times."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return value.replace(" %", "\u00a0%").replace(" × ", "\u00a0×\u00a0").replace(" ± ", "\u00a0±\u00a0")
    return value


def _emphasised(findings: Findings) -> list[Markup]:
    """The answer's sentences with their arms in bold."""
    arms = [*findings.matrix.arms, *(skipped.arm for skipped in findings.run.environment.skipped)]
    labels = sorted({arm.label for arm in arms}, key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(str(Markup.escape(label))) for label in labels) or "$^")
    escaped = (str(Markup.escape(_typeset(sentence))) for sentence in answer(findings))
    return [Markup(pattern.sub(r"<b>\g<0></b>", sentence)) for sentence in escaped]


def _style(findings: Findings) -> str:
    """The style sheet, led by the palette as CSS variables for light and dark."""
    known = pairs(styles(findings.matrix.arms), heat=findings.is_programme or findings.is_isolation)
    light = "".join(f"{variable(one)}:{one};" for one, _ in known)
    dark = "".join(f"{variable(one)}:{other};" for one, other in known)
    sheet = (files("virtoll.report") / "page.css").read_text("utf-8")
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{sheet}"


def _summary(findings: Findings) -> list[tuple[str, str]]:
    """The few figures of the head: what was done, on what."""
    run = findings.run
    count = Counter(record.status for record in run.records)
    machine = _flat(run.environment.comparable)
    cpu = next((value for key, value in machine if key.endswith("cpu model")), "")
    cpus = next((value for key, value in machine if key.rsplit(" › ", 1)[-1] == "cpus"), "")
    kernel = next((value for key, value in machine if key.endswith("kernel")), "")
    spoilt = ", ".join(f"{count[status]} {status}" for status in ("invalid", "failed") if count[status])
    trials = f"{count['valid']:,} valid of {len(run.plan.trials):,}" + (f" ({spoilt})" if spoilt else "")
    return [
        ("Trials", trials),
        ("Blocks", f"{len(findings.matrix.blocks)}, in random order"),
        _what_ran(findings),
        ("Machine", f"{cpu}, {cpus} CPUs".strip(", ")),
        ("Kernel", kernel),
        ("Begun", run.environment.created_at.replace("T", " ")[:16] + " UTC"),
    ]


def _what_ran(findings: Findings) -> tuple[str, str]:
    if findings.is_isolation:
        return "Neighbours", ", ".join(findings.run.neighbours)
    if findings.is_programme:
        cases = len(findings.matrix.conditions)
        return "Probes", f"{len(findings.headlines)}, in {cases} case{'s' * (cases != 1)}"
    return "Load", f"{' and '.join(findings.loops) or 'no'} loop"


def _settings(findings: Findings) -> list[tuple[str, str]]:
    """Factors with their levels, then every fixed value, in words."""
    matrix = findings.matrix
    if findings.is_programme:
        rows = _cases(findings)
    else:
        rows = [(path, ", ".join(_say(path, level) for level in matrix.levels(path))) for path in matrix.varying]
    fixed = {path: value for path, value in findings.run.base.items() if path not in matrix.varying}
    return rows + [(path, _say(path, value)) for path, value in sorted(fixed.items())]


def _cases(findings: Findings) -> list[tuple[str, str]]:
    """The factors, and every setting of every probe, with their levels."""
    levels: dict[str, dict[str, None]] = {}
    for condition in findings.matrix.conditions:
        for path, level in condition.levels:
            if path != PROBE and path.partition(".")[0] != condition.probe:
                levels.setdefault(path, {})[_say(path, level)] = None
    for case in findings.run.programme:
        for key, level in case["settings"].items():
            levels.setdefault(f"{case['probe']}: {setting_name(key)}", {})[_say(key, level)] = None
    return [(name, ", ".join(seen)) for name, seen in levels.items()]


def _say(path: str, value: Any) -> str:
    if path.endswith("_ns") and isinstance(value, int | float):
        return format_duration(value)
    if "." not in path and value is not None:  # a probe's own setting
        return level_value(path, value)
    if path.endswith("_bytes") or path.startswith("load.connections"):
        return level_label(path, value)
    return _text(path, value)


def _flat(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as (path, text) rows."""
    rows: list[tuple[str, str]] = []
    for key, value in record.items():
        if isinstance(value, Mapping):
            rows += _flat(value, "" if key == "machine" else f"{prefix}{key} › ")
        else:
            rows.append((f"{prefix}{key.removesuffix('_bytes').replace('_', ' ')}", _text(key, value)))
    return rows


def _text(key: str, value: Any) -> str:
    if value is None:
        return "not known"
    if key.endswith("_bytes") and isinstance(value, int | float) and not isinstance(value, bool):
        return size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, str | int | float) else json.dumps(value)


def _believes(findings: Findings) -> Table:
    """What an instance of each arm thinks it has, beside what it was given."""
    base = findings.run.base
    vcpus = base.get("limits.vcpus")
    given = {"cpus": vcpus, "cpus_online": vcpus, "memory_bytes": base.get("limits.memory_bytes")}
    seen: dict[str, dict[str, dict[str, None]]] = {}
    for record in findings.run.records:
        mine = seen.setdefault(record.trial.arm.label, {})
        for key, value in record.believes.items():
            if not isinstance(value, list | dict):
                mine.setdefault(key, {})[_text(key, value)] = None
    keys = list(dict.fromkeys(key for mine in seen.values() for key in mine))[:6]
    heads = tuple(key.removesuffix("_bytes").replace("_", " ") for key in keys)
    rows = [(Cell("given to each"), *(Cell(_text(k, given[k]) if given.get(k) else "") for k in keys))]
    for arm in findings.arms:
        held = seen.get(arm.label)
        if held:
            rows.append((Cell(arm.label), *(Cell(" or ".join(held.get(key, {})) or MISSING) for key in keys)))
    return Table("believes", "What an instance believes it has", ("Arm", *heads), tuple(rows))


def _checks(findings: Findings) -> Table:
    """How often each check passed, failed, or could not be made."""
    count: dict[str, Counter[bool | None]] = {}
    why: dict[str, str] = {}
    for record in findings.run.records:
        for check in record.checks:
            count.setdefault(check.name, Counter())[check.passed] += 1
            if check.passed is not True:
                why.setdefault(check.name, check.detail)
    rows = tuple(
        (Cell(name), Cell(f"{c[True]:,}"), Cell(f"{c[False]:,}"), Cell(f"{c[None]:,}"), Cell(why.get(name, "")))
        for name, c in count.items()
    )
    heads = ("Check", "passed", "failed", "not possible", "first that did not pass")
    return Table("checks", "What every trial proved of itself", heads, rows)


def _data_uri(text: str, kind: str) -> str:
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"
