"""Two runs compared, as people and programs read it: text, JSON, Markdown for a merge request, JUnit XML."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from virtoll.analysis.changes import Change, are_students
from virtoll.analysis.estimates import Estimate
from virtoll.errors import UNTOLD, WORSE, StoreError
from virtoll.plain import listed, printable
from virtoll.report.changes import Compared
from virtoll.report.numbers import MISSING, interval, plus_minus
from virtoll.report.tables import Cell, Table
from virtoll.units import exact_percent, percent

_EXIT = {"beyond": WORSE, "open": UNTOLD}


def exit_code(compared: Compared) -> int:
    """What the verb ends with."""
    return _EXIT.get(compared.gate, 0)


def sentence(compared: Compared) -> str:
    """What it comes to, in one sentence."""
    count = {kind: sum(change.kind == kind for change in compared.changes) for kind in ("worse", "better", "same")}
    rows = len(compared.changes)
    if not compared.gate:
        rest = rows - sum(count.values())
        told = f"{count['worse']} worse, {count['better']} better, {count['same']} without a difference"
        return f"Of {rows} ratio{'s' * (rows != 1)} to native, B against A: {told}, of {rest} it cannot be told."
    most = _threshold(compared)
    of = {gate: sum(change.gate == gate for change in compared.changes) for gate in ("beyond", "open")}
    if compared.gate == "beyond":
        return f"B is worse than A by more than {most}: {of['beyond']} of {rows}."
    if compared.gate == "open":
        lacking = f"; B lacks {', '.join(compared.lacking)}" if compared.lacking else ""
        return f"It cannot be told whether B is worse than A by more than {most}: {of['open']} of {rows}{lacking}."
    return f"B is not worse than A by more than {most}: all {rows}."


def table(compared: Compared) -> Table:
    """A row for each ratio of ratios."""
    rows = tuple(_row(change, compared) for change in compared.changes)
    heads = ("What", "Arm", "A, to native", "B, to native", "B / A", "B against A", "could be shown")
    shared = "Holm" if are_students((compared.before.rule, compared.after.rule)) else "in equal shares"
    within = "of each block's own change; " * compared.is_one_run
    beside = f"tested together ({shared}); intervals are 95 % ones, each for itself; *could be shown*: with 80 % power"
    return Table("compare", _runs(compared), heads, rows, (f"{within}{beside}",))


def _row(change: Change, compared: Compared) -> tuple[Cell, ...]:
    matched = change.matched
    return (
        Cell(matched.metric.title, "", matched.condition),
        Cell(matched.arm.label),
        Cell(interval(change.before)),
        Cell(interval(change.after)),
        Cell(interval(change.ratio)),
        Cell(change.words, change.kind, ", ".join(filter(None, (few(change), gate_words(change, compared))))),
        Cell(least(change) or MISSING),
    )


def gate_words(change: Change, compared: Compared) -> str:
    """Where a row lies to the threshold, but for what is within it."""
    most = _threshold(compared)
    return {"beyond": f"beyond {most}", "open": f"cannot tell whether beyond {most}"}.get(change.gate or "", "")


def few(change: Change) -> str:
    """Whether it does not speak for all conditions that both were asked under."""
    matched = change.matched
    return (
        ""
        if matched.is_whole or change.kind == "missing"
        else f"over {matched.before.conditions} of {matched.conditions} conditions"
    )


def least(change: Change) -> str:
    """The smallest worsening that could have been shown; "" where nothing was measured."""
    if change.smallest is None:
        return ""
    return "not even 100 %" if change.smallest >= 1 else f"{_percent(change.smallest)} and more"


def _threshold(compared: Compared) -> str:
    return "" if compared.threshold is None else f"{exact_percent(compared.threshold)} %"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{percent(share * 100)} %"


def natives_table(compared: Compared) -> Table:
    """Native's own figures, where the environments are equal."""
    rows = tuple(
        (
            Cell(each.metric.title, "", each.condition),
            Cell(plus_minus(each.before)),
            Cell(plus_minus(each.after)),
            Cell(interval(each.ratio)),
        )
        for each in compared.natives
    )
    beside = "shown, not judged: what the machine did from one run to the next is in no interval"
    if compared.is_one_run:
        beside = "shown, not judged; measured in the same blocks"
    return Table("native", "Native itself", ("What", "A", "B", "B / A"), rows, (beside,))


def remarks(compared: Compared) -> list[str]:
    """What a reader must know besides, a sentence each."""
    found = [*compared.notes, *compared.only]
    found += [f"different under test: {line}" for line in compared.configured]
    if compared.environment:
        keys = listed([line.partition(": was ")[0] for line in compared.environment])
        found.append(f"native's own figures are not compared, for the environments differ in {keys}")
    return [*found, *_floors(compared), *compared.readings]


def _floors(compared: Compared) -> list[str]:
    """How far native differs from itself in either run."""
    told: dict[str, str] = {}
    for change in compared.changes:
        floors = [row.floor for row in (change.matched.before, change.matched.after)]
        if not change.matched.condition and None not in floors:
            told[change.matched.metric.title] = " and ".join(map(_percent, floors))
    return [f"noise floors of A and B: {'; '.join(f'{title} {both}' for title, both in told.items())}"] if told else []


def markdown(compared: Compared) -> str:
    """For a merge request."""
    parts = [f"**{sentence(compared)}**", table(compared).markdown()]
    parts += [natives_table(compared).markdown()] if compared.natives else []
    told = remarks(compared)
    parts += ["\n".join(f"- {line}" for line in told)] if told else []
    return printable("\n\n".join(part.strip() for part in parts)) + "\n"


def junit(compared: Compared) -> bytes:
    """JUnit XML: a test case a row. What is beyond the threshold has failed, what cannot be told is skipped."""
    gates = [change.gate for change in compared.changes]
    suite = ElementTree.Element(
        "testsuite",
        name=_clean(f"virtoll compare {' '.join(_names(compared))}"),
        tests=str(len(gates)),
        failures=str(gates.count("beyond")),
        errors="0",
        skipped=str(gates.count("open")),
    )
    for change in compared.changes:
        matched = change.matched
        name = ", ".join(filter(None, (matched.arm.label, matched.condition)))
        case = ElementTree.SubElement(suite, "testcase", classname=_clean(matched.metric.title), name=_clean(name))
        if change.gate in ("beyond", "open"):
            kind = "failure" if change.gate == "beyond" else "skipped"
            ElementTree.SubElement(case, kind, message=_clean(change.words))
    for line in compared.lacking:
        case = ElementTree.SubElement(suite, "testcase", classname="only in A", name=_clean(line))
        ElementTree.SubElement(case, "skipped", message="B does not have it")
    suite.set("tests", str(len(suite)))
    suite.set("skipped", str(gates.count("open") + len(compared.lacking)))
    ElementTree.indent(suite)
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"


def _clean(text: str) -> str:
    """XML has no room for control characters."""
    return printable(text).replace("\n", " ")


def as_json(compared: Compared) -> dict[str, Any]:
    """The same for programs; docs/JSON.md has the keys."""
    return {
        "runs": [str(each.run.directory) for each in (compared.before, compared.after)],
        "same_blocks": compared.is_one_run,
        "sentence": sentence(compared),
        "margin": compared.margin,
        "fail_over": compared.threshold,
        "gate": compared.gate or None,
        "changes": [_as_json(change) for change in compared.changes],
        "native": [
            {
                "metric": each.metric.name,
                "condition": each.condition,
                "unit": each.metric.unit,
                "a": _estimate(each.before),
                "b": _estimate(each.after),
                "ratio": _estimate(each.ratio),
            }
            for each in compared.natives
        ],
        "only_one_has": list(compared.only),
        "b_lacks": list(compared.lacking),
        "configured": list(compared.configured),
        "environment": list(compared.environment),
        "notes": [*compared.notes, *compared.readings],
    }


def _as_json(change: Change) -> dict[str, Any]:
    matched = change.matched
    return {
        "arm": matched.arm.label,
        "metric": matched.metric.name,
        "title": matched.metric.title,
        "better": matched.metric.better,
        "condition": matched.condition,
        "conditions": matched.before.conditions,
        "of_conditions": matched.conditions,
        "a": _estimate(change.before),
        "b": _estimate(change.after),
        "ratio": _estimate(change.ratio),
        "p": None if math.isnan(change.p) else change.p,
        "floors": [matched.before.floor, matched.after.floor],
        "smallest": None if change.smallest is None or math.isinf(change.smallest) else change.smallest,
        "kind": change.kind,
        "words": change.words,
        "gate": change.gate,
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "blocks": estimate.n}


def _names(compared: Compared) -> list[str]:
    """Of the run directories: two, or the one that holds both configurations."""
    paths = dict.fromkeys(each.run.directory for each in (compared.before, compared.after))
    return [path.name or "." for path in paths]


def _runs(compared: Compared) -> str:
    if compared.is_one_run:
        return f"A and B of {_names(compared)[0]}, in the same blocks"
    one, other = _names(compared)
    return f"{one} (A) and {other} (B)"


def write(path: Path, data: bytes) -> None:
    """Write what was asked for into a file; StoreError when that cannot be done."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise StoreError(
            f"cannot be written: {error.strerror}", where=str(path), remedy="name another file, or make room"
        ) from error
