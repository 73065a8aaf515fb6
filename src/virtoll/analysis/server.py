"""What a server used at each level of its load's intensity (participants, viewers, requests/s), as the host books it
and as a tool inside sees it; of a conference's ramp, how many it carried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Estimate
from virtoll.analysis.load import Run, Series
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import MIB, TrialMetrics
from virtoll.analysis.rules import Rule
from virtoll.analysis.usage import PASSED, grown_in, of_one_level, others_beside, time_mean, total, within
from virtoll.record.model import BROWSER, INTENSITIES, LEVEL, MISSED, VOID, Arm, Measured, Window
from virtoll.record.store import is_interrupted

Span = tuple[int, int]
INSIDE = frozenset(
    ("inside", name) for name in ("cpu.usage_ns", "memory.total_bytes", "memory.available_bytes", "context_switches")
)
OUTSIDE = frozenset(
    {
        ("instance", "cpu.usage_ns"),
        ("instance", "net.rx_bytes"),
        ("instance", "net.tx_bytes"),
        ("host", "context_switches"),
        *PASSED,
    }
)


def level_path(run: Run) -> str:
    """The intensity of which trials have several levels, in one session or in several; "" where there is none. A search
    has none of its own.
    """
    conditions = [trial.condition for trial in run.plan.trials]
    levels = {path: {repr(each[path]) for each in conditions if path in each} for path in INTENSITIES}
    return next((path for path, of in levels.items() if len(of) > 1), "")


def is_by_participants(run: Run) -> bool:
    """Whether trials are at different numbers of participants."""
    return level_path(run) == LEVEL


def note_server(trial: TrialMetrics, measured: Measured, run: Run, *, inside: bool = True) -> None:
    """Note of each of `virtoll.analysis.metrics.server_metrics` a number, or the reason why there is none; what is seen
    inside where asked. Of what passed the links nothing is told where others' traffic passed them too.
    """
    windows, of = of_one_level(measured), trial.record.trial.id
    outside, others = run.samples(of, "outside", OUTSIDE), others_beside(trial.record, run)
    for name, (scale, counters) in _RATES.items():
        why = others if name in _OF_LINKS else ""
        trial.put(name, why or _per_second(windows, [outside.get(counter) for counter in counters], scale))
    if inside:
        seen = run.samples(of, "inside", INSIDE)
        for name, (scale, counters) in _RATES_INSIDE.items():
            trial.put(name, _per_second(windows, [seen.get(counter) for counter in counters], scale))
        trial.put("memory_inside_mib", _memory_inside(seen, (windows[0].start_ns, windows[-1].end_ns)))


# What grows: in the metric's unit, and the counters whose sum it is.
_RATES: dict[str, tuple[float, Sequence[tuple[str, str]]]] = {
    "server_cpus": (1e-9, [("instance", "cpu.usage_ns")]),
    "to_server_mbit_per_s": (8e-6, [("instance", "net.rx_bytes")]),
    "from_server_mbit_per_s": (8e-6, [("instance", "net.tx_bytes")]),
    "packets_per_s": (1.0, PASSED),
    "switches_per_s": (1.0, [("host", "context_switches")]),
}
_OF_LINKS = ("to_server_mbit_per_s", "from_server_mbit_per_s", "packets_per_s")
_RATES_INSIDE: dict[str, tuple[float, Sequence[tuple[str, str]]]] = {
    "server_cpus_inside": (1e-9, [("inside", "cpu.usage_ns")]),
    "switches_per_s_inside": (1.0, [("inside", "context_switches")]),
}


def _per_second(windows: Sequence[Window], series: Sequence[Series | None], scale: float) -> float | str:
    """How fast counters grow in the windows, all together."""
    grown = total([grown_in(windows, each) for each in series])
    return grown if isinstance(grown, str) else grown * scale / (sum(window.duration_ns for window in windows) / 1e9)


def _memory_inside(inside: Mapping[tuple[str, str], Series], span: Span) -> float | str:
    """What free(1) calls used: all less what is available."""
    total, free = (within(inside.get(("inside", f"memory.{name}_bytes")), span) for name in ("total", "available"))
    if total is None or free is None:
        return "no sample of it lies in the window"
    return (time_mean(total) - time_mean(free)) / MIB


def by_each_further(matrix: Matrix, metric: str, arm: Arm, path: str = LEVEL) -> Estimate | None:
    """What each further participant, viewer or request a second adds to a metric: in each block the slope of a line
    (least squares) through the levels at which the objective was met, if there is one, and viewers hardly stalled:
    beyond, a server at its limit takes no more and delivers less. Of those slopes the mean; None where no block has
    three such levels.
    """
    values = matrix.values(metric)[:, matrix.arms.index(arm), :]
    served = _served(matrix, arm)
    at = np.array([float(condition.get(path, np.nan)) for condition in matrix.conditions])
    slopes = []
    for block, row, flowed in zip(matrix.blocks, values, served, strict=True):
        met = [not missed_of_its_own(matrix, block, arm, condition) for condition in matrix.conditions]
        known = np.isfinite(row) & np.isfinite(at) & met & flowed
        slopes.append(float(np.polyfit(at[known], row[known], 1)[0]) if len(set(at[known])) >= 3 else np.nan)
    if not np.isfinite(slopes).any():
        return None
    return matrix.mean(np.array(slopes), matrix.metrics[metric].unit).with_method(
        "mean over blocks of the slope by levels"
    )


MOST_STALLED_PERCENT = 1.0


def stalled(matrix: Matrix) -> str:
    """The metric of how long viewers stood still; "" where it is not viewers who watch."""
    return next((name for name in matrix.metrics if name.endswith(".stalled_percent")), "")


def _served(matrix: Matrix, arm: Arm) -> npt.NDArray[np.bool_]:
    """[block, condition] Where viewers, if it is they who watch, stood still for no more than 1 % of their time."""
    if not (name := stalled(matrix)):
        return np.full((len(matrix.blocks), len(matrix.conditions)), fill_value=True)
    return np.asarray(matrix.values(name)[:, matrix.arms.index(arm), :] <= MOST_STALLED_PERCENT)  # NaN: nobody watched


@dataclass(frozen=True)
class Carried:
    """How many participants a deployment carried: ``level`` met the objective, and so did all that is known of lower
    ones (0: none did). ``missed``: by the next; empty where nothing is known of it, and it may carry more.
    """

    block: int
    level: int
    missed: tuple[str, ...]


Levels = Sequence[tuple[int, Condition]]  # numbers of participants, and the condition of each
# By block and condition: the parts of the objective that were missed; None where nothing is known.
MissedBy = Callable[[int, Condition], "tuple[str, ...] | None"]


def carried(matrix: Matrix, arm: Arm, levels: Levels) -> list[Carried]:
    """Of each deployment that was held against an objective at these levels, and of which any of them is valid."""
    return carried_by(matrix, levels, lambda block, at: missed_of_its_own(matrix, block, arm, at))


def carried_by(matrix: Matrix, levels: Levels, missed_by: MissedBy) -> list[Carried]:
    """The same at these levels, each a condition, by another objective."""
    found = []
    for block in matrix.blocks:
        told = sorted(((level, missed_by(block, condition)) for level, condition in levels), key=lambda each: each[0])
        if all(missed is None for _, missed in told):
            continue
        bad = next((number for number, (_, missed) in enumerate(told) if missed), len(told))
        kept = [number for number, (_, missed) in enumerate(told[:bad]) if missed == ()]
        last = kept[-1] if kept else -1
        is_next = bad == last + 1 and bad < len(told)
        found.append(Carried(block, told[last][0] if kept else 0, (told[bad][1] or ()) if is_next else ()))
    return found


def met_under(matrix: Matrix, arm: Arm, last: int | None = None) -> set[Condition]:
    """The levels at which an arm met the objective of its ramp, in each block that tells (up to the ``last``)."""
    blocks = [block for block in matrix.blocks if last is None or block <= last]
    told = {c: [missed_of_its_own(matrix, block, arm, c) for block in blocks] for c in matrix.conditions}
    return {condition for condition, missed in told.items() if () in missed and not any(missed)}


def tells(matrix: Matrix, arm: Arm, last: int | None = None) -> bool:
    """Whether anything is known of an arm at any level of its ramp, in any block (up to the ``last``)."""
    blocks = [block for block in matrix.blocks if last is None or block <= last]
    return any(missed_of_its_own(matrix, block, arm, c) is not None for block in blocks for c in matrix.conditions)


def fixed_by(matrix: Matrix, rule: Rule) -> int | None:
    """The last block that has a say in which levels of a ramp are compared; None: the last of all. A rule's looks count
    from the first block in which native and an arm under test tell of any: before it, no result could be seen.
    """

    def is_told(block: int, arms: Iterable[Arm]) -> bool:
        return any(missed_of_its_own(matrix, block, arm, c) is not None for arm in arms for c in matrix.conditions)

    others = [arm for arm in matrix.arms if arm not in matrix.natives]
    return rule.fixed_by(next((b for b in matrix.blocks if is_told(b, matrix.natives) and is_told(b, others)), None))


def met_by_all(met: Iterable[set[Condition]]) -> set[Condition]:
    """Of the levels that each arm met (`met_under`), those that all met, but for who met none, or tells
    of none.
    """
    some = [each for each in met if each]
    return set.intersection(*some) if some else set()


def missed_by_any(matrix: Matrix) -> set[Condition]:
    """The levels at which any deployment missed the objective of its ramp."""
    every = [(block, arm) for block in matrix.blocks for arm in matrix.arms]
    return {c for c in matrix.conditions if any(missed_of_its_own(matrix, block, arm, c) for block, arm in every)}


def is_held(matrix: Matrix) -> bool:
    """Whether any trial was held against the objective of a ramp."""
    return any(
        cell.record.measured is not None and MISSED in cell.record.measured.facts for cell in matrix.cells.values()
    )


def missed_of_its_own(matrix: Matrix, block: int, arm: Arm, condition: Condition) -> tuple[str, ...] | None:
    """What a level missed of the ramp's own objective; None where nothing is known of it."""
    cell = matrix.cell(block, arm, condition)
    measured = None if cell is None else cell.record.measured
    if measured is None or MISSED not in measured.facts:
        return None
    return tuple(measured.facts[MISSED].get(str(condition.get(LEVEL)), ()))


def deployments(matrix: Matrix, arm: Arm, levels: Levels | None = None) -> tuple[int, str]:
    """In how many blocks an arm was deployed (for these levels), valid or not; and why the first that has no valid
    level has none. What was interrupted comes again, and is no reason where there is another.
    """
    sealed = [trial.record for trial in matrix.trials if trial.record.trial.arm.label == arm.label]
    if levels is not None:
        asked = {condition for _, condition in levels}
        sealed = [record for record in sealed if Condition.of(record.trial) in asked]
    mine = [record for record in sealed if not is_interrupted(record)]
    valid = {record.trial.block for record in mine if record.status == "valid"}
    lost = [record for record in mine or sealed if record.trial.block not in valid]
    return len({record.trial.block for record in mine}), f"{lost[0].status}: {lost[0].reason}" if lost else ""


def void_levels(matrix: Matrix, arm: Arm) -> dict[int, tuple[str, ...]]:
    """The levels at which a deployment of an arm told of the generator instead, and why: each reason once."""
    found: dict[int, dict[str, None]] = {}
    for trial in matrix.trials:
        measured = trial.record.measured
        if trial.record.trial.arm.label == arm.label and measured is not None:
            for level, why in measured.facts.get(VOID, {}).items():
                found.setdefault(int(level), {})[why] = None
    return {level: tuple(whys) for level, whys in sorted(found.items())}


@dataclass(frozen=True)
class Browsers:
    """The browsers that watched beside the participants of each deployment of an arm."""

    number: int  # the most, in any window
    version: str  # "" where none started
    cpus: tuple[float, float] | None  # what they took of the generator's, together: lowest and highest of the windows
    failures: Mapping[int, Mapping[str, int]]  # by level, and by kind: who told nothing there, of all deployments


def browsers(matrix: Matrix, arm: Arm) -> Browsers | None:
    """Those of an arm; None where it had none."""
    records = [trial.record for trial in matrix.trials if trial.record.trial.arm.label == arm.label]
    told = [(each.trial, each.measured) for each in records if each.measured is not None]
    found = [
        (trial, measured.instrument, window, window.events[BROWSER])
        for trial, measured in told
        for window in measured.windows
        if BROWSER in window.events
    ]
    if not found:
        return None
    failures: dict[int, dict[str, int]] = {}
    for trial, _, _, events in found:
        for kind, number in events.failures.items():
            at = failures.setdefault(int(trial.condition.get(LEVEL, 0)), {})
            at[kind] = at.get(kind, 0) + number
    cpus = [window.values["browser_cpus"] for _, _, window, _ in found if "browser_cpus" in window.values]
    version = next((name for _, instrument, _, _ in found if (name := instrument.partition(", ")[2])), "")
    number = max(events.offered for *_, events in found)
    return Browsers(number, version, (min(cpus), max(cpus)) if cpus else None, failures)
