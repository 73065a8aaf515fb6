"""Where a run holds what a paper speaks of: the conditions that fit a setting, and ratios of their cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from virtoll.analysis.conditions import Condition
from virtoll.analysis.estimates import Floats, Summary, mean_of_known
from virtoll.analysis.matrix import Matrix, Side
from virtoll.analysis.metrics import KNEE, TrialMetrics
from virtoll.analysis.ratios import summary_under
from virtoll.analysis.rules import Rule
from virtoll.record.model import Arm
from virtoll.units import parse_bit_rate, parse_bytes, parse_duration_ns

BELIEVES = "believes."
# What an instance was given of what it holds a belief about.
_GIVEN = {"cpus": "limits.vcpus", "cpus_online": "limits.vcpus", "memory_bytes": "limits.memory_bytes"}
_BELIEFS = {"cpus": "CPUs it may use", "cpus_online": "CPUs it sees", "memory_bytes": "memory it sees"}
_PARSERS = {"_bytes": parse_bytes, "_ns": parse_duration_ns, "_bit_per_s": parse_bit_rate}
_SWITCHES = {"on": True, "yes": True, "off": False, "no": False}


def level_of(matrix: Matrix, condition: Condition, path: str) -> Any:
    """The level of a path under a condition: a factor's, the study's, or the probe's own; None when not known."""
    level = condition.get(path)
    level = matrix.run.base.get(path) if level is None else level
    probe, _, key = path.partition(".")
    if level is not None or probe != condition.probe:
        return level
    cells = (cell.record.measured for (*_, where), cell in matrix.cells.items() if where == condition)
    return next((record.settings.get(key) for record in cells if record is not None), None)


def fits(path: str, here: Any, wanted: Any) -> bool:
    """Whether a level is the one wanted ("none": not set), one of those wanted, or within the bounds wanted."""
    if wanted == "none":
        return here in (None, "none")
    if isinstance(wanted, list):
        return any(fits(path, here, one) for one in wanted)
    if isinstance(wanted, Mapping):
        least, most = (parsed(path, wanted.get(bound)) for bound in ("least", "most"))
        return here is not None and (least is None or here >= least) and (most is None or here <= most)
    here, wanted = parsed(path, here), parsed(path, wanted)
    if isinstance(here, bool) != isinstance(wanted, bool):
        here, wanted = (_SWITCHES.get(level, level) if isinstance(level, str) else level for level in (here, wanted))
    return bool(here == wanted)


def parsed(path: str, level: Any) -> Any:
    """A level in base units, where a claims file writes it with its unit."""
    parse = next((parse for suffix, parse in _PARSERS.items() if path.endswith(suffix)), None)
    return parse(level) if parse is not None and isinstance(level, str) else level


def matching(matrix: Matrix, metric: str, setting: Mapping[str, Any], context: Mapping[str, Any]) -> list[Condition]:
    """The conditions of a metric with this setting; of those that differ in the context alone, the nearest to it."""
    if metric.startswith(BELIEVES):
        return list(matrix.conditions[:1])

    def shared(condition: Condition) -> int:
        return sum(fits(path, level_of(matrix, condition, path), level) for path, level in context.items())

    alike: dict[Condition, list[Condition]] = {}
    for condition in matrix.conditions:
        if _measures(matrix, condition, metric) and all(
            fits(p, level_of(matrix, condition, p), v) for p, v in setting.items()
        ):
            alike.setdefault(without(condition, context), []).append(condition)
    return [max(group, key=shared) for group in alike.values()]


def _measures(matrix: Matrix, condition: Condition, metric: str) -> bool:
    """Whether trials of this condition can have the metric."""
    known = matrix.metrics.get(metric)
    is_of_search = condition in matrix.searched  # each server at its own knee
    return known is not None and condition.probe == known.probe and (metric == KNEE or not is_of_search)


def title_of(matrix: Matrix, metric: str) -> str:
    """What a metric is called."""
    if metric.startswith(BELIEVES):
        return _BELIEFS[metric.removeprefix(BELIEVES)]
    known = matrix.metrics.get(metric)
    return metric if known is None else known.title


def without(condition: Condition, paths: Mapping[str, Any]) -> Condition:
    """The condition but for these paths."""
    return Condition(tuple((path, level) for path, level in condition.levels if path not in paths))


def values(matrix: Matrix, metric: str) -> Floats:
    """Array [block, arm, condition] of a metric; of a belief its block's mean stands under every condition."""
    if not metric.startswith(BELIEVES):
        return matrix.values(metric)
    key = metric.removeprefix(BELIEVES)
    array = np.full((len(matrix.blocks), len(matrix.arms), len(matrix.conditions)), np.nan)
    for b, block in enumerate(matrix.blocks):
        for a, arm in enumerate(matrix.arms):
            held = [
                believed / given
                for condition in matrix.conditions
                if (cell := matrix.cell(block, arm, condition)) is not None
                and (believed := cell.record.believes.get(key)) is not None
                and (given := level_of(matrix, condition, _GIVEN[key])) is not None
            ]
            array[b, a, :] = np.mean(held) if held else np.nan
    return array


def logs(matrix: Matrix, metric: str, arm: Arm, condition: Condition) -> Floats:
    """Logarithms of one cell's values, a block each; nan where there is none."""
    return _logs(values(matrix, metric)[:, matrix.arms.index(arm), matrix.conditions.index(condition)])


def log_ratio(matrix: Matrix, metric: str, over: Side, under: Side) -> Floats:
    """Of two cells, a block each; nan where either is missing. Native is the mean of its deployments, as in `ratios`.

    Arms of different groups, or sittings, are compared through native beside each: they were not measured in the same
    rounds, and what the machine did from one to the next is no arm's.
    """
    (one, above), (other, below) = over, under
    apart = logs(matrix, metric, *over) - logs(matrix, metric, *under)
    if metric.startswith(BELIEVES):
        return apart
    if one == other == matrix.baseline:
        return _of_baseline(matrix, metric, above, below)
    if one == matrix.baseline:
        return _native_beside(matrix, metric, under, above) - logs(matrix, metric, *under)
    if other == matrix.baseline:
        return logs(matrix, metric, *over) - _native_beside(matrix, metric, over, below)
    natives = [_native_beside(matrix, metric, side, above) for side in (over, under)]
    return np.where(matrix.together(over, under), apart, apart - (natives[0] - natives[1]))


def _native_beside(matrix: Matrix, metric: str, side: Side, condition: Condition) -> Floats:
    """By block, the mean of the logarithms of the natives beside an arm's trial; nan where there is none."""
    return mean_of_known([_logs(matrix.beside(metric, side, condition, native)) for native in matrix.against(side[0])])


def _of_baseline(matrix: Matrix, metric: str, above: Condition, below: Condition) -> Floats:
    """Of native under two conditions: a mean over its deployments that hold both in one sitting, group by group, for
    groups differ by more.
    """
    changes: list[Floats] = []
    for native in matrix.natives:
        cells = [matrix.across(native, condition) for condition in (above, below)]
        both = cells[0].keys() & cells[1].keys()
        met = {at for at in both if matrix.sitting(cells[0][at]) == matrix.sitting(cells[1][at])}
        for group in sorted({group for _, group in met}):
            mine = [{at: each[at] for at in met} for each in cells]
            upper, lower = (_of_group(matrix, metric, each, group) for each in mine)
            changes.append(_logs(upper) - _logs(lower))
    return mean_of_known(changes) if changes else np.full(len(matrix.blocks), np.nan)


def _of_group(matrix: Matrix, metric: str, cells: Mapping[tuple[int, int], TrialMetrics], group: int) -> Floats:
    """By block, the values of an arm's trials in one group; nan where there is none."""
    mine = (cells.get((b, group)) for b in range(len(matrix.blocks)))
    return np.array([np.nan if cell is None else cell.values.get(metric, np.nan) for cell in mine])


def _logs(values: Floats) -> Floats:
    out = np.full_like(values, np.nan)
    np.log(values, out=out, where=values > 0)
    return out


def barred(matrix: Matrix, metric: str, cells: Sequence[Side]) -> str:
    """What leaves some blocks of these cells without a ratio, a 0 or what failed, so that one of the others would be of
    the better ones alone (`ratios`); "" where nothing does. Of two cells or more native is all of its deployments.
    """
    of = [
        (one, at) for arm, at in cells for one in (matrix.natives if arm == matrix.baseline and cells[1:] else (arm,))
    ]
    for arm, condition in () if metric.startswith(BELIEVES) or metric not in matrix.metrics else of:
        lost, made = matrix.barred(metric, arm, condition)
        if lost:
            return f"{arm.label}: in {lost} of {made} trials it {matrix.metrics[metric].censoring}"
        if (matrix.values(metric)[:, matrix.arms.index(arm), matrix.conditions.index(condition)] <= 0).any():
            return f"{arm.label}: some block holds a 0 or less"
    return ""


def pooled(columns: Sequence[Floats], rule: Rule, natives: Sequence[Floats]) -> Summary | None:
    """Mean over conditions of log ratios, an array over blocks each, and of how many ``natives`` each is made; None
    when nothing was measured.
    """
    return summary_under(rule, np.stack(columns, axis=1), np.stack(natives, axis=1)) if columns else None


def natives_beside(matrix: Matrix, metric: str, sides: Sequence[Side]) -> Floats:
    """By block, of how many natives a log ratio of these cells is made (`log_ratio`); 1 where none is native."""
    at = [condition for arm, condition in sides if arm == matrix.baseline]
    others = [(arm, under) for arm, under in sides if arm != matrix.baseline]
    if len(at) != 1 or len(others) != 1 or metric.startswith(BELIEVES):
        return np.ones(len(matrix.blocks))
    known = [matrix.beside(metric, others[0], at[0], native) for native in matrix.against(others[0][0])]
    return np.asarray(np.isfinite([_logs(each) for each in known]).sum(axis=0, dtype=float))


__all__ = [
    "BELIEVES",
    "barred",
    "fits",
    "level_of",
    "log_ratio",
    "logs",
    "matching",
    "natives_beside",
    "parsed",
    "pooled",
    "title_of",
    "values",
    "without",
]
