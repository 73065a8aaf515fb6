"""What would narrow an interval, and what it would take: more windows in each block, or more blocks.

By the variance components of the run itself, and by the time that its own windows and blocks took. What is expected
is what a *new* run of a fixed number of blocks would give: Student's interval, with the spread that was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from virtoll.analysis.components import Components, with_windows
from virtoll.analysis.estimates import Summary
from virtoll.analysis.load import Run
from virtoll.analysis.rules import FIXED, AtAnyTime, in_blocks
from virtoll.record.model import PROBE, TrialRecord

LEAST_BLOCKS = 3  # of fewer, components are known to no order of magnitude
MOST_MORE = 1000  # blocks that an extension is looked for in
TIMES = 2


@dataclass(frozen=True)
class Pace:
    """Seconds, medians over a run's blocks: what a block takes, and of that all windows of the quantity that is asked
    about, lead-ins and the turns of the other arms among them.
    """

    block_s: float
    windows_s: float


@dataclass(frozen=True)
class Narrowing:
    """Half-widths (log scale) of an interval: as it is, and as it would be in a new run; seconds are those beyond this
    run's.
    """

    now: float
    windows: float  # with `TIMES` as many windows in each block
    windows_s: float
    blocks: float  # with ``more`` blocks, which take about as long
    more: int
    blocks_s: float
    here: int | None  # blocks in all, lost ones too, for the narrower of the two, were this run gone on with; None: out
    # of reach

    @property
    def by_windows(self) -> bool:
        """Whether more windows narrow it by more in the same time."""
        return worth(self.now, self.windows, self.windows_s) >= worth(self.now, self.blocks, self.blocks_s)

    @property
    def narrowest(self) -> float:
        """What the better of the two gives."""
        return self.windows if self.by_windows else self.blocks


def worth(now: float, then: float, seconds: float) -> float:
    """How much narrower it becomes by a second, on the logarithmic scale."""
    return math.log(now / then) / seconds if seconds > 0 and then > 0 else math.inf


def narrowing(found: Components, summary: Summary, pace: Pace, lost: int = 0) -> Narrowing | None:
    """What either would give; None of blocks too few, or all alike. ``summary``: of all blocks, with their own spread,
    but for so many that were ``lost``: they take their time as well, and as many are lost of those that come.

    The doubled windows say how much time there is; as many blocks as fit into it, at least one, are set beside them.
    """
    if found.blocks < LEAST_BLOCKS or summary.n < LEAST_BLOCKS or not summary.error > 0 or not pace.block_s > 0:
        return None
    windows_s = (TIMES - 1) * pace.windows_s * (summary.n + lost)
    more = max(1, round(windows_s / pace.block_s))
    then = _of_blocks(summary, summary.n + more * summary.n / (summary.n + lost))
    told = Narrowing(
        now=FIXED.half_width(summary),
        windows=FIXED.half_width(with_windows(found, summary, TIMES)),
        windows_s=windows_s,
        blocks=FIXED.half_width(then),
        more=more,
        blocks_s=more * pace.block_s,
        here=None,
    )
    pairs = _extended(summary, told.narrowest)
    return told if pairs is None else replace(told, here=in_blocks(pairs, summary.n, lost))


def _extended(summary: Summary, half_width: float) -> int | None:
    """Pairs in all at which the always-valid interval of an extended run is as narrow."""
    rule = AtAnyTime()
    for n in range(summary.n + 1, summary.n + MOST_MORE):
        if rule.half_width(_of_blocks(summary, n)) <= half_width:
            return n
    return None


def _of_blocks(summary: Summary, n: float) -> Summary:
    """What a mean over so many blocks that hold it (on average) would be known by, were as many of their conditions
    lost as of those that there are.
    """
    is_whole = summary.spread_of is None and n == round(n)
    known = None if is_whole else (summary.spread_of or summary.n) * n / summary.n
    return replace(summary, n=round(n), error=summary.deviation / math.sqrt(n), spread_of=known)


def pace_of(run: Run, probe: str = "", beside: Sequence[TrialRecord] = ()) -> Pace | None:
    """What blocks and windows took, by the record; None where no block has any. ``probe``: whose windows. ``beside``:
    what else a block makes, that is a report of its own.
    """
    by_block: dict[int, list[TrialRecord]] = {}
    for record in (*run.records, *beside):
        if record.phases:
            by_block.setdefault(record.trial.block, []).append(record)
    others = {record.trial.id for record in beside}
    took = [
        (_span_s(records), _windows_s([record for record in records if record.trial.id not in others], probe))
        for records in by_block.values()
    ]
    known = [(block_s, windows_s) for block_s, windows_s in took if windows_s > 0]
    if not known:
        return None
    block_s, windows_s = np.median(np.array(known), axis=0).tolist()
    return Pace(block_s, windows_s)


def _span_s(records: list[TrialRecord]) -> float:
    """From the first phase's beginning to the last one's end."""
    phases = [phase for record in records for phase in record.phases]
    start_ns = min(phase.start_ns for phase in phases)
    return (max(phase.start_ns + phase.duration_ns for phase in phases) - start_ns) / 1e9


def _windows_s(records: list[TrialRecord], probe: str) -> float:
    """What a block's windows take: of each turn from its first to its last; of what is alone, the windows."""
    if probe:
        mine = [record.measured for record in records if record.trial.condition.get(PROBE) == probe]
        return sum(w.duration_ns for measured in mine if measured is not None for w in measured.windows) / 1e9
    turns: dict[str, list[tuple[int, int]]] = {}
    for record in records:
        spans = [(p.start_ns, p.start_ns + p.duration_ns) for p in record.phases if p.name == "window"]
        turns.setdefault(record.trial.turn or record.trial.id, []).extend(spans)
    return (
        sum(max(end for _, end in spans) - min(start for start, _ in spans) for spans in turns.values() if spans) / 1e9
    )
