"""Whether the arms differ in nothing but what is compared, by what each was seen to have."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import ClassVar

from virtoll.analysis.audit import Audited, Difference, audited, title
from virtoll.plain import listed
from virtoll.record.told import generator_told
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table
from virtoll.report.words import join

_KINDS = {"flagged": "costs", "explained": "same", "untold": "missing"}  # of difference, as a cell's colour
_MOST_CHARS = 60  # of a value in a sentence
_SHARED_CHARS = 20  # of these, before the first that differs
_MOST_CELL_CHARS = 400
_MOST_OTHERS = 12  # differences on other hosts that are told of one by one
_NOTE = (
    "Read from inside and outside on each arm's first deployment, when its service had started and before anything "
    "was measured. — was not told."
)


class FairnessAudit(Section):
    """What differs besides the platform."""

    name: ClassVar[str] = "audit"
    summary: ClassVar[str] = "Was the comparison fair?"
    rank: ClassVar[int] = 620

    def applies(self, findings: Findings) -> bool:
        """Where a trial holds an audit."""
        return any(record.audit is not None for record in findings.run.records)

    def text(self, findings: Findings) -> list[str]:
        """Where the load came from, if not from the same machine; the flagged differences, a sentence each."""
        told = generator_told(findings.run.environment)
        elsewhere = [f"{told[:1].upper()}{told[1:]}. What is said below is of the machine under test."] if told else []
        return elsewhere + spoken(_audited(findings), sorted(set(findings.run.plan.hosts.values())))

    def tables(self, findings: Findings) -> list[Table]:
        """What differs, and all that was read; of several hosts on the first."""
        groups = next(iter(_audited(findings).values()), [])
        suffixes = ["" if at == 0 else f"-{at + 1}" for at in range(len(groups))]
        made = []
        for each, suffix in zip(groups, suffixes, strict=True):
            made.append(differing(each, f"audit-differences{suffix}").placed(look="probes"))
            made.append(everything(each, f"audit{suffix}").placed("All that was read", look="probes", folded=True))
        return [table for table in made if table.rows]


def _audited(findings: Findings) -> dict[str, list[Audited]]:
    """The audits by host, arms in the order of all tables."""
    order = {arm.label: at for at, arm in enumerate(findings.arms)}
    records = findings.run.records
    return audited(sorted(records, key=lambda record: order.get(record.trial.arm.label, len(order))))


def spoken(by_host: Mapping[str, Sequence[Audited]], hosts: Sequence[str]) -> list[str]:
    """The sentences of the first host, whose tables are shown; of several ``hosts`` behind them what is flagged on
    others, and not on it, and where nothing could be compared.
    """
    first, shown = next(iter(by_host.items()), ("", ()))
    told = [line for each in shown for line in sentences(each)]
    if len(hosts) < 2:
        return told
    lines: dict[str, list[str]] = {}
    for host in (host for host in hosts if host != first):
        for line in _besides(by_host.get(host, ()), shown):
            lines.setdefault(line, []).append(host)
    others = [f"On {listed(those)}: {line}" for line, those in list(lines.items())[:_MOST_OTHERS]]
    if (more := len(lines) - _MOST_OTHERS) > 0:
        others.append(f"And {more:,} more such differences on other hosts: each trial's record has its audit.")
    return [
        f"What follows, and the tables, are of {first}: what differs between hosts is no difference between arms.",
        *told,
        *(others or ["On the other hosts nothing else is flagged."]),
    ]


def _besides(audits: Sequence[Audited], shown: Sequence[Audited]) -> list[str]:
    """What is flagged on a host, and not on the one that is shown."""
    if not any(_is_compared(each) for each in audits):
        return ["nothing can be compared: native, or any other arm, has not been audited yet."]
    known = {_flag(one) for each in shown for one in each.of_kind("flagged")}
    return [
        f"{_sentence(alike)}{f' ({each.levels})' if each.levels else ''}."
        for each in audits
        for alike in _alike([one for one in each.of_kind("flagged") if _flag(one) not in known])
    ]


def _flag(one: Difference) -> tuple[str, str]:
    return one.key, one.arm.label


def _is_compared(each: Audited) -> bool:
    return len(each.audits) > 1 and each.audits[0][0].role == "baseline"


def sentences(each: Audited) -> list[str]:
    """The flagged differences, a sentence each and those of several arms in one; or that there is none."""
    of = f" ({each.levels})" if each.levels else ""
    if not _is_compared(each):
        return [f"Nothing can be compared{of}: native, or any other arm, has not been audited yet."]
    told = [f"{_sentence(alike)}{of}." for alike in _alike(each.of_kind("flagged"))]
    explained = len({one.key for one in each.of_kind("explained")})
    rest = f"{explained} more are what the platforms are" if explained else "Nothing else differs"
    if not told:
        rest = f"No arm differs from native in anything that can be evened out{of}"
        rest += f"; {explained} differences are what the platforms are" if explained else ""
    untold = list(dict.fromkeys(_mid(one.key) for one in each.of_kind("untold")))
    return [*told, f"{rest}{f'; of {join(untold)} it cannot be told on each arm' if untold else ''}."]


def _mid(key: str) -> str:
    return "mitigations" if key.startswith("mitigation.") else _named(key)


def _named(key: str) -> str:
    """A key's title in the middle of a sentence."""
    told = title(key)
    return told if told[:2].isupper() else f"{told[:1].lower()}{told[1:]}"


def _alike(differences: Sequence[Difference]) -> list[list[Difference]]:
    """Those that say the same of several arms, together."""
    groups: dict[tuple[object, ...], list[Difference]] = {}
    for one in differences:
        groups.setdefault((one.key, one.native, one.here, one.why), []).append(one)
    return list(groups.values())


def _sentence(alike: Sequence[Difference]) -> str:
    one = alike[0]
    arms = join([each.arm.label for each in alike])
    here, native = _short(one.here or MISSING, one.native or MISSING)
    return f"**{arms}: {_named(one.key)}** is {here}, native’s {native}: {one.why}. To do: {one.remedy}"


def _short(*values: str) -> list[str]:
    """What of two values fits a sentence, and shows where they differ."""
    if max(map(len, values)) <= _MOST_CHARS:
        return list(values)
    differs = (at for at, those in enumerate(zip(*values, strict=False)) if len(set(those)) > 1)
    start = max(0, next(differs, min(map(len, values))) - _SHARED_CHARS)
    ends = [one[start : start + _MOST_CHARS] for one in values]
    return [
        f"{'…' * (start > 0)}{end}{'…' * (start + len(end) < len(one))}" for one, end in zip(values, ends, strict=True)
    ]


def _fitting(value: str) -> str:
    """What fits a cell; two that differ behind that are told apart."""
    if len(value) <= _MOST_CELL_CHARS:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()[:8]
    return f"{value[:_MOST_CELL_CHARS]}… ({len(value)} characters, SHA-256 {digest}…)"


def differing(each: Audited, name: str) -> Table:
    """A row for each key in which some arm is seen not to be as native: flagged first."""
    flagged, explained = ({one.key: one for one in each.of_kind(kind)} for kind in ("flagged", "explained"))
    keys = list(dict.fromkeys([*flagged, *explained]))
    by_cell = {(one.key, one.arm.label): one for one in each.differences}
    rows = []
    for key in keys:
        cells = [_cell(each, key, at, by_cell) for at in range(len(each.audits))]
        why = list(dict.fromkeys(one.why for one in each.differences if one.key == key and one.kind != "untold"))
        rows.append((Cell(title(key), "", "flagged" if key in flagged else ""), *cells, Cell("; ".join(why))))
    heads = (*_heads(each), "What it means")
    return Table(name, f"What differs between arms{_of(each)}", heads, tuple(rows), (_NOTE,))


def everything(each: Audited, name: str) -> Table:
    """All keys of all arms as they were read; what was not, with the reason."""
    rows = []
    for key in [*each.keys, *_never(each)]:
        cells = []
        for _, audit in each.audits:
            here = audit.found.get(key)
            cells.append(Cell(MISSING, "missing", audit.missing.get(key, "")) if here is None else Cell(_fitting(here)))
        rows.append((Cell(title(key)), *cells))
    return Table(name, f"All that the audit read{_of(each)}", _heads(each), tuple(rows))


def _never(each: Audited) -> list[str]:
    """What no arm could tell."""
    asked = {key: None for _, audit in each.audits for key in audit.missing}
    return [key for key in asked if key not in each.keys]


def _heads(each: Audited) -> tuple[str, ...]:
    return ("", *(arm.label for arm, _ in each.audits))


def _of(each: Audited) -> str:
    whose = "an instance without a service" if each.process == "agent" else each.process
    return f": {whose}{f', {each.levels}' if each.levels else ''}"


def _cell(each: Audited, key: str, at: int, by_cell: dict[tuple[str, str], Difference]) -> Cell:
    arm, audit = each.audits[at]
    here = audit.found.get(key)
    difference = by_cell.get((key, arm.label))
    if here is None:
        return Cell(MISSING, "missing", audit.missing.get(key, ""))
    return Cell(_fitting(here), "" if difference is None else _KINDS[difference.kind])
