"""What explains a service's toll: the tolls of a few probes on the same arms, measured in the same blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from virtoll.analysis.conditions import Condition, level_label
from virtoll.analysis.metrics import Metric
from virtoll.analysis.ratios import Toll
from virtoll.record.model import PROBE, Arm
from virtoll.report import method
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING, interval, plus_minus
from virtoll.report.sections.base import Section
from virtoll.report.tables import Cell, Table, grouped
from virtoll.report.words import join, mid


class Explanation(Section):
    """This service's toll beside those of the probes."""

    name: ClassVar[str] = "explanation"
    summary: ClassVar[str] = "What explains it?"
    rank: ClassVar[int] = 150

    def applies(self, findings: Findings) -> bool:
        """To a service that was run with `--explain`."""
        return findings.is_load and findings.explanation is not None

    def tables(self, findings: Findings) -> list[Table]:
        """The tolls side by side; what the probes read; which of their trials do not count."""
        assert findings.explanation is not None
        probes = _probes(findings.explanation)
        shown = [
            _tolls(findings, findings.explanation, probes).placed(look="probes"),
            _values(findings, findings.explanation, probes).placed(folded=True, short="What the probes read"),
        ]
        if findings.explanation.excluded:
            shown.append(_excluded(findings.explanation).placed(folded=True))
        return shown

    def method(self, findings: Findings) -> list[str]:
        """Where the probes ran, and what they are kept out of."""
        assert findings.explanation is not None
        return [_method(findings.explanation)]


@dataclass(frozen=True)
class _Probe:
    """One probe of the programme. ``metric`` None: nothing valid is known of it."""

    name: str
    metric: Metric | None
    condition: Condition

    @property
    def title(self) -> str:
        """As a column's head."""
        return self.name if self.metric is None else self.metric.title


def _probes(programme: Findings) -> list[_Probe]:
    """The cases as the programme names them, each by the quantity that stands for its probe."""
    headlines = {metric.group: metric for metric in programme.headlines}
    return [_Probe(c.probe, headlines.get(c.probe), c) for c in programme.matrix.conditions]


# -- the tolls, side by side ------------------------------------------------------------------------------


def _tolls(findings: Findings, programme: Findings, probes: list[_Probe]) -> Table:
    service = findings.tolls(findings.headline.name)
    arms = [arm for arm in findings.arms if arm.role != "baseline"]
    planned = len(findings.compared)
    rows = []
    for arm in arms:
        own = _toll(service.total(arm), "not measured", planned)
        rows.append((Cell(arm.label), own, *(_toll(_of(programme, p, arm), _why(programme, p, arm)) for p in probes)))
    sentences = [_sentence(findings, programme, probes, arm) for arm in arms if arm.role == "treatment"]
    heads = ("Arm", f"This service: {mid(findings.headline.title).lower()}", *(probe.title for probe in probes))
    caption = "This service's toll beside those of the probes"
    how = _HOW + method.error_rates("the arms of a column", findings.rule)
    return Table("explanation", caption, heads, tuple(rows), (how, *sentences, _CAUTION, *_facts(programme)))


_HOW = "How many times worse than native, with 95 % intervals: half the throughput and twice the time are both 2. "
_CAUTION = (
    "What moves together on the same arms is an association, and no proof: both may follow something that was not "
    "measured, and a probe that costs may be one that this service hardly uses."
)


def _of(programme: Findings, probe: _Probe, arm: Arm) -> Toll | None:
    if probe.metric is None or probe.metric.better is None:
        return None
    return programme.tolls(probe.metric.name).cell(arm, probe.condition)


def _why(programme: Findings, probe: _Probe, arm: Arm) -> str:
    """Why an arm has no toll in a probe: its own trials' reason, or the baseline's."""
    matrix, name = programme.matrix, "" if probe.metric is None else probe.metric.name
    if matrix.baseline is None:
        return "there is no native arm"
    lost = [each for each in (arm, matrix.baseline) if not _read(programme, probe, each)]
    reasons = [f"{each.label}: " * (each != arm) + matrix.why_missing(name, each, probe.condition) for each in lost]
    return reasons[0] if reasons else "in no block beside native"


def _read(programme: Findings, probe: _Probe, arm: Arm) -> bool:
    """Whether there is a valid value."""
    if probe.metric is None or arm not in programme.matrix.arms:
        return False
    return programme.matrix.absolute(probe.metric.name, arm, probe.condition) is not None


def _toll(toll: Toll | None, why: str, planned: int = 1) -> Cell:
    """How many times worse, and the rule's word; ``planned``: conditions that it should speak for."""
    if toll is not None and toll.zeros:
        return Cell("not judged", toll.verdict.kind, toll.verdict.words)
    if toll is None or toll.worse is None:
        return Cell(MISSING, "missing", why)
    few = f"over {toll.conditions} of {planned} conditions" if toll.conditions < planned else ""
    words = toll.verdict.kind if toll.verdict.kind in ("costs", "gains") else toll.verdict.words
    return Cell(interval(toll.worse), toll.verdict.kind, "; ".join(part for part in (words, few) if part))


def _sentence(findings: Findings, programme: Findings, probes: list[_Probe], arm: Arm) -> str:
    """What the verdicts say of service and probes on one arm."""
    own = findings.tolls(findings.headline.name).total(arm)
    by_kind: dict[str, list[str]] = {}
    for probe in probes:
        by_kind.setdefault(_kind(_of(programme, probe, arm)), []).append(mid(probe.title))
    kind = _kind(own)
    if own is None or kind not in (*_OTHER_WAY, "same"):
        return f"{arm.label}: {_NO_TOLL.get(kind, _UNSURE)}, and nothing can be seen to move with it."
    if kind == "same":
        told = [f"the service shows {own.verdict.words.replace('difference shown', 'difference')}"]
        told += [f"{words}: {join(by_kind[way])}" for way, words in _ALL_THE_SAME.items() if way in by_kind]
        return f"{arm.label}: {'; '.join(told)}."
    told = [f"the service {own.verdict.words}"]
    if kind in by_kind:
        told.append(f"moving with it: {join(by_kind[kind])}")
    elif set(by_kind) != {"missing"}:
        told.append("none of these is seen to move with it")
    others = {_OTHER_WAY[kind]: "the other way", **_OPEN}
    told += [f"{words}: {join(by_kind[way])}" for way, words in others.items() if way in by_kind]
    return f"{arm.label}: {'; '.join(told)}."


_NO_TOLL = {"missing": "the service was not measured", "unjudged": "the service's toll is not judged"}
_UNSURE = "the service's toll cannot be told yet"
_OTHER_WAY = {"costs": "gains", "gains": "costs"}
_ALL_THE_SAME = {"costs": "costing all the same", "gains": "gaining all the same"}
_OPEN = {"unsure": "cannot tell yet", "unjudged": "not judged", "missing": "not measured"}


def _kind(toll: Toll | None) -> str:
    """A verdict's kind; *missing* where there is no ratio, but for one that a 0 has left without."""
    if toll is None or (toll.worse is None and not toll.zeros):
        return "missing"
    return toll.verdict.kind


def _facts(programme: Findings) -> tuple[str, ...]:
    """What an arm says of its disk: a flush that goes nowhere is fast."""
    flushes = {
        f"{record.trial.arm.label}: a flush of its disk is {record.facts['disk_flush']}"
        for record in programme.run.records
        if "disk_flush" in record.facts
    }
    return grouped(sorted(flushes))


# -- beneath it -------------------------------------------------------------------------------------------


def _values(findings: Findings, programme: Findings, probes: list[_Probe]) -> Table:
    """What each probe read, in its unit."""
    rows = [(Cell(arm.label), *(_value(programme, probe, arm) for probe in probes)) for arm in findings.arms]
    heads = ("Arm", *(f"{p.title} [{p.metric.unit}]" if p.metric and p.metric.unit else p.title for p in probes))
    caption = "What the probes read: mean over deployments ± half-width of its 95 % interval"
    return Table("explanation-values", caption, heads, tuple(rows))


def _value(programme: Findings, probe: _Probe, arm: Arm) -> Cell:
    if probe.metric is None or not _read(programme, probe, arm):
        return Cell(MISSING, "missing", _why(programme, probe, arm))
    return Cell(plus_minus(programme.matrix.absolute(probe.metric.name, arm, probe.condition)))


def _excluded(programme: Findings) -> Table:
    """The programme's trials that do not count."""
    rows = tuple(
        (
            Cell(record.trial.id),
            Cell(record.trial.arm.label),
            Cell(str(record.trial.condition[PROBE])),
            Cell(record.status),
            Cell(record.reason),
        )
        for record in programme.excluded
    )
    caption = f"Trials of the probes that do not count: {len(rows)} of {len(programme.run.records)}"
    return Table("explanation-left-out", caption, ("Trial", "Arm", "Probe", "Status", "Reason"), rows)


def _method(programme: Findings) -> str:
    """Where the probes ran, and what they are kept out of."""
    conditions = programme.matrix.conditions
    levels = [level for level in conditions[0].levels if _is_shared(conditions[0], level[0])] if conditions else []
    under = f", with {join([level_label(path, level) for path, level in levels])}" if levels else ""
    return (
        "**The probes that explain ran in the same blocks**: each block deploys every arm once more for them, from the "
        f"same image and within the same limits{under}, in the same random order. They are in no other figure, "
        "table or count of this page."
    )


def _is_shared(condition: Condition, path: str) -> bool:
    """Whether a level is the deployment's, and not the probe's own."""
    return path != PROBE and path.partition(".")[0] != condition.probe
