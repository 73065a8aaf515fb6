"""Two run directories compared: what both asked for, what each says of it, and what only one of them has.

Or one that measured two configurations in the same blocks: its two halves, which `confirmed` compares block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from virtoll.analysis.changes import Change, judge_changes
from virtoll.analysis.load import Run
from virtoll.analysis.metrics import Wanted
from virtoll.errors import IncomparableError
from virtoll.helpers import helpers
from virtoll.record.comparable import booted_anew, differences
from virtoll.report.asked import refuse, unusable
from virtoll.report.begin import uncollected
from virtoll.report.both import Both, Native
from virtoll.report.findings import Findings, halved, skim, told_as_damage
from virtoll.report.reservations import go_by_cpu

_MEMORY = ("memory_", "rss_")
_USAGE = ("cpu_", "helpers_", *_MEMORY, "server_", "to_server", "from_server", "switches_", "packets_")


@dataclass(frozen=True)
class Compared:
    """Two runs, compared."""

    before: Findings
    after: Findings
    margin: float
    threshold: float | None
    changes: tuple[Change, ...]  # the table
    only: tuple[str, ...]  # what only one run has, and what neither tells
    lacking: tuple[str, ...]  # of those, what A has and the second has not
    configured: tuple[str, ...]  # settings that differ
    environment: tuple[str, ...]  # keys of the environments that differ, with both values
    natives: tuple[Native, ...]  # none where environments differ
    notes: tuple[str, ...]  # what a reader must know of either run
    readings: tuple[str, ...]  # and how to read what its valid trials say

    @property
    def is_one_run(self) -> bool:
        """Whether both are configurations of one."""
        return self.before.run.directory == self.after.run.directory

    @property
    def gate(self) -> str:
        """Of all rows together: "beyond" where one is, else "open" where one is or B lacks something, else
        "within"; "" without a threshold.
        """
        if self.threshold is None:
            return ""
        gates = {change.gate for change in self.changes}
        if "beyond" in gates:
            return "beyond"
        return "open" if "open" in gates or self.lacking else "within"


def compare(
    before: Path,
    after: Path,
    *,
    threshold: float | None = None,
    names: Sequence[str] = (),
    by_condition: bool = False,
) -> Compared:
    """Read two run directories and compare them. ``threshold``: a relative worsening; ``names``: the metrics, in place
    of the answer's.

    StoreError where a run cannot be read, IncomparableError where the two cannot be compared, StudyError for a metric
    that there is none of.
    """
    with uncollected():
        with helpers(1):
            first, second = (skim(path, lambda run: _wanted(run, names)) for path in (before, after))
        with told_as_damage(f"{before} or {after}"):
            return _compared(first, second, threshold, names, by_condition=by_condition)


def confirmed(
    directory: Path, *, threshold: float | None = None, names: Sequence[str] = (), by_condition: bool = False
) -> Compared:
    """The same of the two configurations of one run (`virtoll compare --again`); StoreError where it has one only."""
    with uncollected(), told_as_damage(directory):
        first, second = halved(directory, lambda run: _wanted(run, names))
        for each in (first, second):
            if why := unusable(each):
                raise IncomparableError(why[0], where=str(directory), remedy=why[1])
        return _told(first, second, threshold, names, by_condition=by_condition)


def _compared(
    before: Findings, after: Findings, threshold: float | None, names: Sequence[str], *, by_condition: bool
) -> Compared:
    refuse(before, after)
    return _told(before, after, threshold, names, by_condition=by_condition)


def _told(
    before: Findings, after: Findings, threshold: float | None, names: Sequence[str], *, by_condition: bool
) -> Compared:
    both = Both(before, after)
    metrics = both.metrics(names)
    margin = min(before.margin, after.margin) if threshold is None else threshold
    rows = [row for metric in metrics for row in both.rows(metric, by_condition=by_condition)]
    if not rows:
        raise IncomparableError(
            "the two runs have no arm, condition and metric in common",
            where=both.where,
            remedy=" ".join(both.only()) or "measure what one of them has with the other's study",
        )
    was, now = (each.run.environment.comparable for each in (before, after))
    environment = differences(was, booted_anew(was, now))
    natives = [] if environment else [each for metric in metrics for each in both.natives(metric, by_condition)]
    return Compared(
        before=before,
        after=after,
        margin=margin,
        threshold=threshold,
        changes=judge_changes(rows, margin, threshold),
        only=tuple(both.only()),
        lacking=tuple(both.lacking(metrics, of_all=not names)),
        configured=tuple(both.configured()),
        environment=tuple(environment),
        natives=tuple(natives),
        notes=(*both.notes(), *both.odd(metrics), *both.excluded()),
        readings=tuple(both.readings()),
    )


def _wanted(run: Run, names: Sequence[str]) -> Wanted:
    """What of its trials' files the comparison needs, and what a reader must know of it."""
    wanted = wanted_of(run, names)
    return replace(wanted, usage=wanted.usage or go_by_cpu(run))


def wanted_of(run: Run, names: Sequence[str]) -> Wanted:
    """What of its trials' files these metrics need."""
    measured = (record.measured for record in run.records)
    is_open = any(each is not None and each.loop == "open" for each in measured)
    asked = [*names] or ["cpu_s_per_1000", *["latency"] * is_open]
    return Wanted(
        latency=any(name.startswith("latency") for name in asked),
        usage=any(name.startswith(_USAGE) for name in asked),
        memory=any(name.startswith(_MEMORY) for name in asked),
        inside=any(name.endswith(("_inside", "inside_mib")) for name in asked),
    )
