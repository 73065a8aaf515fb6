"""The small table of a run that is going on, from its records alone (no file is read)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.ratios import summary_under
from virtoll.analysis.rules import FIXED, Rule
from virtoll.record.model import Arm, Measured, TrialRecord

# By block, group and sitting; of a trial that tells no pace there is none.
_Logs = dict[tuple[int, int, int, Condition], float]


@dataclass(frozen=True)
class RunningRow:
    """One arm so far. ``value`` is a geometric mean over its valid trials, ``against_native`` paired: of the rate, per
    second, or of the knee, where it is searched for.

    A programme has neither: its quantities are too many. Nor has what was asked in open loop, whose schedule sets the
    rate; nor an arm of which a search ended at a bound, or of whose windows some served nothing: the others alone are
    the better ones, or the worse.
    """

    arm: Arm
    valid: int
    spoilt: int  # failed or invalid
    value: float | None
    against_native: Estimate | None  # with the interval that the run's rule allows so far

    @property
    def half_width(self) -> float | None:
        """Of that interval, relative; None without one."""
        ratio = self.against_native
        if ratio is None or ratio.low is None or ratio.high is None or ratio.low <= 0:
            return None
        return math.sqrt(ratio.high / ratio.low) - 1


class RunningTable:
    """Follows a run: each record is looked at once, when it is added, however many there are and however often the
    rows are asked for while a trial is being measured.
    """

    def __init__(self, records: Iterable[TrialRecord] = (), rule: Rule = FIXED) -> None:
        self._rule = rule
        self._arms: dict[str, Arm] = {}
        self._logs: dict[str, _Logs] = {}
        self._valid: Counter[str] = Counter()
        self._spoilt: Counter[str] = Counter()
        self._barred: set[str] = set()  # arms of which a search ended at a bound, or a trial served nothing
        self._rows: dict[str, RunningRow] = {}  # those that still hold
        self._has_rates = False  # a trial that searched for no knee was seen
        for record in records:
            self.add(record)

    def add(self, record: TrialRecord) -> None:
        """One more sealed trial. It changes its arm's row, and native's all of them."""
        arm, label = record.trial.arm, record.trial.arm.label
        self._arms.setdefault(label, arm)
        mine = self._logs.setdefault(label, {})
        if arm.role != "treatment":
            self._rows.clear()
        self._rows.pop(label, None)
        if record.status != "valid":
            self._spoilt[label] += 1
            return
        self._valid[label] += 1
        measured = record.measured
        if measured is None or not measured.is_load or self._is_aside(measured):
            return
        if measured.pace is not None:
            place = record.trial.block, record.trial.group, record.sitting or 0
            mine[*place, Condition.of(record.trial)] = math.log(measured.pace)
        elif measured.knee is not None or measured.served_nothing:
            self._barred.add(label)

    def _is_aside(self, measured: Measured) -> bool:
        """Whether its figure is none of this table's: in open loop there is none, and where some servers alone are
        searched for their knee those knees are in no mean with the others' rates.
        """
        if measured.knee is not None:
            return self._has_rates
        if not self._has_rates:
            self._has_rates = True
            self._barred.clear()
            self._rows.clear()
            for logs in self._logs.values():
                logs.clear()
        return measured.loop == "open"

    def rows(self) -> list[RunningRow]:
        """A row for every arm seen, baseline first, then in order of first appearance."""
        order = sorted(self._arms, key=lambda label: ("baseline", "floor", "treatment").index(self._arms[label].role))
        for label in order:
            if label not in self._rows:
                self._rows[label] = self._row(label)
        return [self._rows[label] for label in order]

    def _against(self, label: str) -> list[str]:
        """The natives that an arm is compared with: all of them; native again with the first; of native itself none."""
        by_role = {self._arms[each].role: each for each in self._arms}
        asked = {"treatment": ("baseline", "floor"), "floor": ("baseline",), "baseline": ()}[self._arms[label].role]
        return [by_role[role] for role in asked if role in by_role] if "baseline" in by_role else []

    def _row(self, label: str) -> RunningRow:
        logs, natives = self._logs[label], self._against(label)
        is_barred = not natives or bool({label, *natives} & self._barred)
        return RunningRow(
            self._arms[label],
            self._valid[label],
            self._spoilt[label],
            math.exp(float(np.mean(list(logs.values())))) if logs and label not in self._barred else None,
            None if is_barred else self._paired(logs, [self._logs[native] for native in natives]),
        )

    def _paired(self, mine: _Logs, natives: Sequence[_Logs]) -> Estimate | None:
        beside = {key: [native[key] for native in natives if key in native] for key in mine}
        both = [key for key, known in beside.items() if known]
        if not both:
            return None
        conditions = {condition: at for at, condition in enumerate(dict.fromkeys(key[-1] for key in both))}
        table = np.full((max(key[0] for key in both), len(conditions)), np.nan)  # a pilot's are the first, lost or not
        made_of = np.zeros_like(table)
        for key in both:
            at = key[0] - 1, conditions[key[-1]]
            table[at], made_of[at] = mine[key] - sum(beside[key]) / len(beside[key]), len(beside[key])
        summary = summary_under(self._rule, table, made_of)
        return None if summary is None else self._rule.interval(summary, "paired within blocks so far, t interval")
