"""How a run is told to a person: a live bar on a terminal, plain lines elsewhere. `json_lines` tells a program."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.rules import rule_of
from virtoll.record.model import PROBE, Measured, Plan, PlannedTrial, TrialRecord
from virtoll.record.rules import Compared, Look
from virtoll.record.store import is_interrupted
from virtoll.record.told import in_groups
from virtoll.report.numbers import number
from virtoll.report.running import RunningRow, RunningTable
from virtoll.run.execute import Reporter
from virtoll.run.json_lines import JsonProgress
from virtoll.run.rule import in_words
from virtoll.run.unstyled import plain
from virtoll.units import format_duration, plural

# The running table is made anew when it lacks one of so many trials: to make it takes longer the more there are.
_ROWS_PART = 200


class Progress(Reporter, Protocol):
    """A `run.Reporter` that also tells of the preparation, and is open for the length of a run."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        """One line about the preparation."""
        ...

    def planned(self, plan: Plan, sealed: Iterable[TrialRecord]) -> None:
        """The plan is made (or read again); ``sealed`` are the trials of an earlier session."""
        ...

    def looked(self, look: Look) -> None:
        """A look was taken, whether the run may end; or, when it is gone on with, the last one of before."""
        ...


def progress(*, as_json: bool) -> Progress:
    """The one that fits where the output goes."""
    if as_json:
        return JsonProgress()
    console = Console()
    return LiveProgress(console) if console.is_interactive else PlainProgress()  # interactive: a terminal, and not dumb


class _Tally:
    """Counts and the pace so far. What is told often must not look at every record again."""

    def __init__(self) -> None:
        self.total = 0
        self.estimate_s = 0.0
        self.is_most = False  # whether a rule may end it before, and nothing is known yet of when
        self._of_blocks: Counter[int] = Counter()
        self._of_turns: Counter[str] = Counter()  # trials that are measured in one and are still to be told
        self.began_s = time.monotonic()
        self.done = self.done_here = 0
        self._turn = ""  # that of the trial that was told last

    def planned(self, plan: Plan, sealed: Iterable[TrialRecord]) -> None:
        self.total, self.estimate_s = len(plan.trials), plan.estimate_s
        self.is_most = plan.rule is not None
        self._of_blocks = Counter(trial.block for trial in plan.trials)
        self._of_turns = Counter(trial.turn for trial in plan.trials if trial.turn)
        there = [record for record in sealed if not is_interrupted(record)]
        self._of_turns.subtract(record.trial.turn for record in there)
        self.done = len(there)
        if not self.done_here:
            self.began_s = time.monotonic()

    def add(self, record: TrialRecord) -> None:
        self.done += not is_interrupted(record)
        self.done_here += 1
        self._turn = record.trial.turn
        self._of_turns[self._turn] -= 1

    def expect(self, blocks: int) -> None:
        """There will be so many blocks, as far as can be told."""
        total = sum(count for block, count in self._of_blocks.items() if block <= blocks)
        self.estimate_s *= total / max(self.total, 1)
        self.total, self.is_most = total, False

    def left(self) -> str:
        """In words: ``about 3 min left``."""
        if self.done >= self.total:
            return "nothing left"
        left_s = self.left_s()
        if left_s < 1:
            return "a moment left"  # the last turn's trials are over, and told one by one
        about = format_duration(math.ceil(left_s) * 1e9)
        return f"{'at most' if self.is_most else 'about'} {about} left"

    def left_s(self) -> float:
        """Time left: at the pace so far, or as planned before there is one."""
        if not self.done_here:
            return self.estimate_s * (self.total - self.done) / max(self.total, 1)
        # Those of a turn are over at once, and told one after another.
        over = max(0, self._of_turns[self._turn]) if self._turn else 0
        pace_s = (time.monotonic() - self.began_s) / (self.done_here + over)
        return pace_s * max(0, self.total - self.done - over)


def condition_text(trial: PlannedTrial) -> str:
    """The levels of a condition in a few words: ``1 kB, 100 connections, cache off``."""
    return Condition.of(trial).label()


def _on(trial: PlannedTrial) -> str:
    """Which host measures it, where it is not this machine."""
    return f" on {trial.host}" if trial.host else ""


def _outcome(record: TrialRecord) -> str:
    if record.status == "valid":
        if record.measured is None:
            return "valid"
        if not record.measured.is_load:
            return _headline(record.measured)
        value = record.measured.pace
        return f"{value:,.0f} {_unit(record.measured)}" if value is not None else "valid"
    return f"{record.status.upper()}: {record.reason.splitlines()[0] if record.reason else 'no reason'}"


def _unit(measured: Measured) -> str:
    """What a load's `Measured.pace` is in."""
    return measured.knee.unit if measured.knee is not None else f"{plural(measured.unit)}/s"


def _headline(measured: Measured) -> str:
    """``linpack.gflops 41.2 GFLOP/s``: the mean over its windows."""
    quantity = measured.quantities.get(measured.headline)
    values = measured.values(measured.headline)
    if quantity is None or not values:
        return "valid"
    return f"{measured.name}.{measured.headline} {number(fmean(values))} {quantity.unit}"


class PlainProgress:
    """One line a trial."""

    def __init__(self) -> None:
        self.tally = _Tally()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        return None

    def say(self, text: str) -> None:
        """One line about the preparation."""
        print(plain(text), flush=True)

    def planned(self, plan: Plan, sealed: Iterable[TrialRecord]) -> None:
        """Tell the size of the plan."""
        self.tally.planned(plan, sealed)
        most = "at most " * (plan.rule is not None)
        self.say(f"{most}{self.tally.total} trials in {plan.blocks} blocks, seed {plan.seed}; {self.tally.left()}")
        if told := in_groups(plan):
            self.say(told)
        if plan.rule is not None:
            self.say(in_words(plan))

    def looked(self, look: Look) -> None:
        """One line for each arm, and one with what follows."""
        self.tally.expect(look.blocks)
        for each in look.compared:
            width = "" if each.half_width is None else f" (± {_percent(each.half_width)})"
            self.say(f"  {each.arm:<24} {each.metric:<20} {each.words}{width}")
        self.say(_follows(look, self.tally))

    def trial_started(self, trial: PlannedTrial) -> None:
        """Nothing: a line comes when it is sealed."""

    def phase(self, trial: PlannedTrial, name: str) -> None:
        """Nothing."""

    def trial_sealed(self, record: TrialRecord) -> None:
        """One line with the outcome."""
        self.tally.add(record)
        trial = record.trial
        self.say(
            f"[{self.tally.done}/{self.tally.total}] block {trial.block}{_on(trial)}  {trial.arm.label:<24} "
            f"{condition_text(trial):<40} {_outcome(record)}  ({self.tally.left()})"
        )


class LiveProgress:
    """A bar, what is being done now, and the running table.

    It is drawn four times a second by a thread, also while a trial is measured: all that takes longer the more trials
    there are is done when one is sealed.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.tally = _Tally()
        self.now = ""
        self._running = RunningTable()
        self._rows: Sequence[RunningRow] = ()
        self._unseen = 0  # trials that the rows do not hold yet
        self._ruled, self._expected = False, ""  # whether a rule may end it, and what is to be expected of it
        self._found: dict[str, str] = {}  # by arm, at the last look
        self._unit, self._of_knees, self._probing = "", False, False
        self._drives = False  # a service, beside which no probe that explains it is in the table
        self.console = console or Console()
        self._live = Live(console=self.console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)
        self._refresh()
        self.console.print(self._table())

    def say(self, text: str) -> None:
        """One line about the preparation."""
        self.console.print(plain(text))

    def planned(self, plan: Plan, sealed: Iterable[TrialRecord]) -> None:
        """Begin the bar."""
        known = list(sealed)
        if told := in_groups(plan):
            self.say(told)
        self.tally.planned(plan, known)
        self._running, self._ruled = RunningTable(rule=rule_of(plan)), plan.rule is not None
        self._expected = in_words(plan) if self._ruled else ""
        self._drives = any(PROBE not in trial.condition for trial in plan.trials)
        self._follow(known)

    def looked(self, look: Look) -> None:
        """What is decided, and what follows."""
        self.tally.expect(look.blocks)
        self._expected = _follows(look, self.tally)
        by_arm: dict[str, list[Compared]] = {}
        for each in look.compared:
            by_arm.setdefault(each.arm, []).append(each)
        self._found = {arm: _found(mine) for arm, mine in by_arm.items()}

    def trial_started(self, trial: PlannedTrial) -> None:
        """Name the trial below the bar."""
        self.now = f"block {trial.block}{_on(trial)}  {trial.arm.label}  {condition_text(trial)}"

    def phase(self, trial: PlannedTrial, name: str) -> None:
        """Name what is being done."""
        self.now = f"block {trial.block}  {trial.arm.label}  {condition_text(trial)}: {name}"

    def trial_sealed(self, record: TrialRecord) -> None:
        """Move the bar; failed and invalid trials stay on the screen."""
        self.tally.add(record)
        self._follow([record])
        if record.status != "valid":
            told = f"{record.trial.id} {record.trial.arm.label}: {_outcome(record)}"
            self.console.print(plain(told, "yellow"))

    def _follow(self, records: Iterable[TrialRecord]) -> None:
        for record in records:
            if self._drives and PROBE in record.trial.condition:
                continue
            self._running.add(record)
            self._unseen += 1
            if record.measured is not None:
                self._head(record.measured)
                self._probing = self._probing or not record.measured.is_load
        if self._unseen * _ROWS_PART >= self.tally.done:
            self._refresh()

    def _head(self, measured: Measured) -> None:
        """What the table's figures are in: those of knees where there are no others (`RunningTable`)."""
        is_knee = measured.knee is not None
        if not self._unit or (self._of_knees and not is_knee):
            self._unit, self._of_knees = _unit(measured), is_knee

    def _refresh(self) -> None:
        self._rows, self._unseen = self._running.rows(), 0

    def _render(self) -> Group:
        if not self.tally.total:
            return Group(plain(self.now))
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=self.tally.total, completed=self.tally.done, width=40),
            f"{self.tally.done}/{self.tally.total} trials, {self.tally.left()}",
        )
        follows = [plain(self._expected)] if self._expected else []
        return Group(self._table(), bar, *follows, plain(self.now, "dim"))

    def _table(self) -> Table:
        """How it looks so far; the report has the last word."""
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("arm")
        rates = () if self._probing else (self._unit, "against native, 95 %", "±")
        for heading in ("trials", "spoilt", *rates):
            table.add_column(heading, justify="right")
        if self._ruled:
            table.add_column("at the last look")
        for row in self._rows:
            cells: list[Text | str] = [plain(row.arm.label), str(row.valid), str(row.spoilt or "")]
            if not self._probing:
                cells += ["" if row.value is None else f"{row.value:,.0f}"]
                cells += [plain(_ratio_text(row.against_native))]  # its brackets are no markup either
                cells += ["" if row.half_width is None else _percent(math.log1p(row.half_width))]
            table.add_row(*cells, *([plain(self._found.get(row.arm.label, ""))] if self._ruled else []))
        return table


def _percent(half_width: float) -> str:
    """A half-width of the logarithmic scale: ``1.2 %``."""
    return f"{math.expm1(half_width) * 100:.2g} %"


def _found(mine: Sequence[Compared]) -> str:
    """What a look found of one arm: its words, or of many quantities how many are decided."""
    if len(mine) == 1:
        return mine[0].words
    return f"{sum(each.decided for each in mine)} of {len(mine)} decided"


def _follows(look: Look, tally: _Tally) -> str:
    """``look after 5 blocks: undecided: lxc; about 8 blocks in all, about 3 min left``."""
    told = f"look after {look.block} blocks: {look.why}"
    return told if look.ends else f"{told}; about {look.blocks} blocks in all, {tally.left()}"


def _ratio_text(ratio: Estimate | None) -> str:
    if ratio is None:
        return ""
    if ratio.low is None or ratio.high is None:
        return f"x {ratio.value:.2f}"
    return f"x {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
