"""The page: one self-contained HTML file, from the findings, the drawn figures and the tables."""

from __future__ import annotations

import base64
import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from virtoll.analysis.conditions import level_label, level_value, setting_name
from virtoll.plain import listed
from virtoll.record.comparable import INSTALLED
from virtoll.record.model import PROBE
from virtoll.report.answer import answer
from virtoll.report.asked import anew
from virtoll.report.contents import Part, method
from virtoll.report.findings import Findings
from virtoll.report.numbers import setting
from virtoll.report.palette import pairs, styles
from virtoll.report.promises import NOTES
from virtoll.report.render import variable
from virtoll.report.reservations import cautions
from virtoll.report.sections.base import left_out
from virtoll.report.tables import Cell, Table
from virtoll.report.words import blocks_of
from virtoll.units import exact_duration

_MITIGATIONS = "mitigations › "
_MOST_VALUES, _MOST_WARNINGS = 8, 20  # of one key's that are told with their hosts; in the page
_MOST_WITHIN = 8_000_000  # characters of trials.csv that a page holds by itself


@dataclass(frozen=True)
class Drawn:
    """A figure's two forms for the page, as SVG that follows its light or dark."""

    wide: Markup
    narrow: Markup


def render_page(findings: Findings, parts: Sequence[Part], drawn: Mapping[str, Drawn], trials: str) -> str:
    """The HTML. ``drawn``: by a figure's name its two forms; ``trials``: the table of all trials, as CSV."""
    run, study = findings.run, findings.run.study
    comparable = _compared(run.environment.comparable)
    return template("page.html").render(
        title=study.get("title") or study.get("name") or "A study of virtoll",
        question=study.get("question") or "What does each platform cost?",
        answer=_emphasised(findings),
        style=Markup(style_sheet(pairs(styles(findings.matrix.arms), heat=True))),
        look=styles(findings.matrix.arms),
        variable=variable,
        parts=parts,
        drawn=drawn,
        method=method(findings),
        summary=_summary(findings),
        matrix=findings.matrix,
        environment=run.environment,
        machine=[row for row in comparable if _MITIGATIONS not in row[0]],
        mitigations=[(key.rpartition(" › ")[2], value) for key, value in comparable if _MITIGATIONS in key],
        state=_flat({key: value for key, value in run.environment.notes.items() if key not in (*NOTES, INSTALLED)}),
        settings=_settings(findings),
        checks=_checks(findings),
        excluded=findings.excluded,
        warnings=[*cautions(findings), *_few(run.environment.warnings), *left_out()],
        directory=run.directory.name,
        anew=anew(findings),
        seed=run.plan.seed,
        trials_href=_data_uri(trials, "text/csv") if len(trials) <= _MOST_WITHIN else "tables/trials.csv",
    )


@functools.cache
def template(name: str) -> jinja2.Template:
    """A page's template. All that is put into it is escaped, and numbers stay on one line with their signs."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_typeset
    )
    environment.filters["marked"] = _marked
    return environment.from_string((files("virtoll.report") / name).read_text("utf-8"))


_MARKS = (
    (re.compile(r"\*\*(.+?)\*\*"), r"<b>\1</b>"),
    (re.compile(r"\*(.+?)\*"), r"<em>\1</em>"),
    (re.compile(r"`(.+?)`"), r"<code>\1</code>"),
)


def _marked(text: str) -> Markup:
    """A section's text: the few marks that it may hold, all else as it stands."""
    escaped = str(Markup.escape(_typeset(text)))
    for pattern, element in _MARKS:
        escaped = pattern.sub(element, escaped)
    return Markup(escaped)


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


def style_sheet(known: Sequence[tuple[str, str]]) -> str:
    """The style sheet, led by the palette's (light, dark) pairs as CSS variables."""
    light = "".join(f"{variable(one)}:{one};" for one, _ in known)
    dark = "".join(f"{variable(one)}:{other};" for one, other in known)
    sheet = (files("virtoll.report") / "page.css").read_text("utf-8")
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{sheet}"


def _summary(findings: Findings) -> list[tuple[str, str]]:
    """The few figures of the head: what was done, on what."""
    run = findings.run
    count = Counter(record.status for record in run.records)
    cpu, cpus, kernel = (_of_machine(run.environment.comparable, name) for name in ("cpu_model", "cpus", "kernel"))
    spoilt = ", ".join(f"{count[status]} {status}" for status in ("invalid", "failed") if count[status])
    trials = f"{count['valid']:,} valid of {len(run.plan.trials):,}" + (f" ({spoilt})" if spoilt else "")
    return [
        ("Trials", trials),
        ("Blocks", f"{blocks_of(findings, [findings.blocks]).partition(' block')[0]}, in random order"),
        _what_ran(findings),
        ("Machine", f"{cpu}, {cpus} CPUs".strip(", ")),
        ("Kernel", kernel),
        ("Begun", run.environment.created_at.replace("T", " ")[:16] + " UTC"),
    ]


def _what_ran(findings: Findings) -> tuple[str, str]:
    """Neighbours stand before the probe or load that is their victim."""
    cases = len(findings.matrix.conditions)
    known = (
        ("Neighbours", ", ".join(findings.run.neighbours)),
        ("Probes", f"{len(findings.headlines)}, in {cases} case{'s' * (cases != 1)}" if findings.is_programme else ""),
        ("Load", f"{' and '.join(findings.loops)} loop" if findings.loops else "none was measured"),
    )
    return next((name, words) for name, words in known if words)


def _settings(findings: Findings) -> list[tuple[str, str]]:
    """Factors with their levels, then every fixed value, in words."""
    factors = _factors(findings)
    if findings.is_programme:
        rows = _cases(findings)
    else:
        of = findings.matrix.levels
        rows = [(path, ", ".join(_say(path, level) for level in of(path))) for path in factors]
    fixed = {path: value for path, value in findings.run.base.items() if path not in factors}
    return (
        rows
        + [(path, _say(path, value)) for path, value in sorted(fixed.items())]
        + [*_of_servers(findings), *_configured(findings)]
    )


def _factors(findings: Findings) -> list[str]:
    """Those of one level too, which is no value that the study fixes."""
    return list(dict.fromkeys(path for condition in findings.matrix.conditions for path, _ in condition.levels))


def _configured(findings: Findings) -> list[tuple[str, str]]:
    """What each of two configurations is given that the other is not."""
    return [
        (f"{name}: {path}", _say(path, value))
        for name, of in findings.run.configurations.items()
        for path, value in sorted(of["values"].items())
    ]


def _of_servers(findings: Findings) -> list[tuple[str, str]]:
    """What each of several servers is, and is given."""
    servers = findings.run.study.get("servers")
    factors, rows = _factors(findings), []
    for name, server in servers.items() if isinstance(servers, dict) else ():
        given = {path: value for path, value in server["base"].items() if path not in factors}
        rows += [(f"{name}: {part}", str(server[part])) for part in ("service", "load")]
        rows += [(f"{name}: {path}", _say(path, value)) for path, value in sorted(given.items())]
    return rows


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
        return exact_duration(value)
    if "." not in path and value is not None:  # a probe's own setting
        return level_value(path, value)
    if path.endswith("_bytes") or path.startswith("load.connections"):
        return level_label(path, value)
    return setting(path, value)


def _flat(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as (path, text) rows."""
    rows: list[tuple[str, str]] = []
    for key, value in record.items():
        if isinstance(value, Mapping):
            rows += _flat(value, "" if key == "machine" else f"{prefix}{key} › ")
        else:
            rows.append((f"{prefix}{key.removesuffix('_bytes').replace('_', ' ')}", setting(key, value)))
    return rows


def _compared(comparable: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the machine was; of several, what they have alike and then, of what they have not, whose is what."""
    hosts = comparable.get("hosts")
    if not isinstance(hosts, Mapping):
        return _flat(comparable)
    whose: dict[str, dict[str, list[str]]] = {}
    for host, own in hosts.items():
        for key, value in _flat(own) if isinstance(own, Mapping) else ():
            whose.setdefault(key, {}).setdefault(value, []).append(host)
    shared = _flat({key: value for key, value in comparable.items() if key != "hosts"})
    return [*shared, *((key, _by_value(found)) for key, found in whose.items())]


def _of_machine(comparable: Mapping[str, Any], key: str) -> str:
    """A value of the machine's; of several machines, where they are not alike, a range or how many different ones."""
    hosts = comparable.get("hosts")
    found: list[Any] = []
    for each in (comparable, *(hosts.values() if isinstance(hosts, Mapping) else ())):
        machine = each.get("machine") if isinstance(each, Mapping) else None
        known = {**each, **machine} if isinstance(machine, Mapping) else each
        if isinstance(known, Mapping) and key in known and known[key] not in found:
            found.append(known[key])
    if len(found) < 2:
        return "".join(setting(key, value) for value in found)
    return f"{min(found)} to {max(found)}" if all(isinstance(n, int) for n in found) else f"{len(found)} kinds"


def _by_value(whose: Mapping[str, Sequence[str]]) -> str:
    told = [f"{value} ({listed(hosts)})" for value, hosts in whose.items()]
    more = f"; and {len(told) - _MOST_VALUES:,} other values" if len(told) > _MOST_VALUES else ""
    return "; ".join(told[:_MOST_VALUES]) + more


def _few(warnings: Sequence[str]) -> list[str]:
    """Each of many hosts may have some of its own."""
    more = len(warnings) - _MOST_WARNINGS
    return [*warnings[:_MOST_WARNINGS], *([f"{more:,} more, all in environment.json"] if more > 0 else [])]


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
