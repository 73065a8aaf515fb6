"""A server at several levels of its load's intensity: the curves and tables that a conference's section and any other
load's have in common.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from virtoll.analysis.metrics import Metric
from virtoll.analysis.ratios import Toll
from virtoll.analysis.server import MOST_STALLED_PERCENT, by_each_further, is_held, stalled
from virtoll.report.findings import Findings
from virtoll.report.numbers import MISSING, interval, plus_minus
from virtoll.report.probe_views import View
from virtoll.report.tables import Cell, Table

_SIDES = "A container's tool sees the host's counters, unless lxcfs shows it its own."


@dataclass(frozen=True)
class Along:
    """An intensity that has several levels: its path, what names of figures begin with, and its words."""

    path: str
    prefix: str
    one: str  # "viewer"
    many: str  # "viewers", as along the axis
    is_linear: bool = False  # the axis, whatever it spans


@dataclass(frozen=True)
class Asked:
    """A question that a figure answers: a panel for each of the metrics. ``is_from_0``: drawn from there on, whatever
    they span.
    """

    name: str  # of its files, after the prefix
    question: str
    metrics: tuple[str, ...]
    is_from_0: bool = True
    remark: str = ""  # what its caption says besides
    axis: str = ""  # of its values, where what the quantity is called is too long for panels


CPU = Asked(
    "cpu",
    "How much CPU does the server take, and how much would a tool inside say?",
    ("server_cpus", "server_cpus_inside"),
    remark=f"Above as the host books it, helpers and emulators too; below as /proc/stat inside has it. {_SIDES}",
)
MEMORY = Asked(
    "memory",
    "How much memory does the server take, and how much would a tool inside say?",
    ("memory_mean_mib", "memory_inside_mib"),
    remark=f"Above as the host books it, page cache included; below as free(1) inside has it. {_SIDES}",
)
TRAFFIC = Asked(
    "traffic",
    "How much traffic does the server carry?",
    ("from_server_mbit_per_s", "to_server_mbit_per_s"),
    is_from_0=False,
    remark="At the host's end of the instance's link.",
)
PACKETS = Asked(
    "packets",
    "How many packets does a unit of work take?",
    ("packets_per_unit",),
    remark="In both directions, at the host's end of the instance's links to generators and origin, where what leaves "
    "may be one packet of up to 64 kB and is cut later, or never (segmentation offload).",
    axis="packets",
)
SWITCHES = Asked(
    "switches",
    "How often does the CPU change hands?",
    ("switches_per_s", "switches_per_s_inside"),
    remark=f"Above of the whole host, the generator's too; below as seen inside. {_SIDES}",
)


def views(findings: Findings, along: Along, asked: Sequence[Asked]) -> list[View]:
    """The views of what was measured."""
    known = findings.matrix.metrics
    found = []
    for each in asked:
        metrics = tuple(known[name] for name in each.metrics if name in known)
        if view := view_of(findings, along, each, metrics):
            found.append(view)
    return found


def view_of(findings: Findings, along: Along, asked: Asked, metrics: Sequence[Metric], word: str = "") -> View | None:
    """One view of metrics, of which each panel names its own where they are several quantities; None where nothing is
    known of any. ``word``: what all of them are, where several loads call it so.
    """
    shown = tuple(metric for metric in metrics if not findings.reason(metric.name))
    rest = others(findings, along)
    entries = tuple(
        (metric, condition, ", ".join(part for part in (title, condition.label(rest) if rest else "") if part))
        for metric in shown
        for title in ["" if word or len(shown) == 1 else metric.title]
        for condition in findings.matrix.conditions_of(metric.name)
        if condition.get(along.path) is not None
    )
    if not entries:
        return None
    return View(
        shown,
        along.path,
        entries,
        f"{along.prefix}-{asked.name}",
        asked.question,
        along.many,
        along.is_linear,
        asked.remark,
        asked.is_from_0,
        distribution=False,
        title=asked.axis,
    )


def others(findings: Findings, along: Along) -> tuple[str, ...]:
    """What varies besides the intensity."""
    return tuple(path for path in findings.matrix.varying if path != along.path)


# -- tables ------------------------------------------------------------------------------------------------

_COMPARED = (("server_cpus", "CPU"), ("memory_mean_mib", "Memory"))
_ADDED = (*_COMPARED, ("packets_per_s", "Packets"))


def differences(whose: Mapping[str, Findings], along: Along) -> Table | None:
    """Mean and largest difference to native over the levels, of each server ("" where there is one)."""
    rows, told = [], []
    for server, findings in whose.items():
        if findings.matrix.baseline is None:
            continue
        told.append(findings)
        paths = (along.path, *others(findings, along))
        for arm in (arm for arm in findings.arms if arm.role == "treatment"):
            cells = [*_named(server), Cell(arm.label)]
            for name, _ in _COMPARED:
                tolls, over = findings.tolls(name), findings.compared
                each = [toll for toll in tolls.cells if toll.arm == arm and toll.condition in over]
                levels = len(findings.matrix.conditions_of(name))
                cells += [_ratio(tolls.total(arm), levels), _largest(each, paths)]
            rows.append(tuple(cells))
    if not rows:
        return None
    heads = [*(["Server"] if any(whose) else []), "Arm"]
    for _, title in _COMPARED:
        heads += [f"{title}, mean", f"{title}, largest"]
    which = "the levels at which all arms met the objective" if any(f.met for f in told) else "all levels"
    notes = (
        f"Ratios to native with 95 % intervals. Mean: the geometric mean over {which}, or over those that are told "
        "of both where some are not: arms that are told over different levels cannot be compared with each other. "
        "A server at its limit takes no more, and delivers less. "
        "Largest: of the level where it is farthest from native's, more or less, in brackets; picked as the farthest "
        "of several, it lies beyond its true value by chance.",
    )
    return Table(
        f"{along.prefix}-differences", "Mean and largest difference to native", tuple(heads), tuple(rows), notes
    )


def _named(server: str) -> list[Cell]:
    return [Cell(server)] if server else []


def _ratio(toll: Toll | None, levels: int) -> Cell:
    """Over all levels, or over how many of them."""
    if toll is None or toll.ratio is None:
        return Cell(MISSING, "missing")
    some = f"over {toll.conditions} of {levels} levels" if toll.conditions < levels else ""
    return Cell(f"× {interval(toll.ratio)}", detail=some)


def _largest(tolls: list[Toll], paths: tuple[str, ...]) -> Cell:
    """The ratio that is farthest from 1: where an arm takes less than native, that is the least."""
    known = [(abs(math.log(toll.ratio.value)), toll) for toll in tolls if toll.ratio is not None]
    if not known:
        return Cell(MISSING, "missing")
    toll = max(known, key=lambda each: each[0])[1]
    assert toll.condition is not None
    return Cell(f"× {interval(toll.ratio)}", detail=toll.condition.label(paths))


def added(whose: Mapping[str, Findings], along: Along) -> Table | None:
    """What each further one takes, of each server ("" where there is one) that was loaded at three levels. Not of a
    closed loop: with any number of those who ask as fast as they are answered it is at its limit.
    """
    rows, told = [], []
    for server, findings in whose.items():
        if len(findings.matrix.levels(along.path)) < 3 or others(findings, along) or "closed" in findings.loops:
            continue
        told.append(findings)
        for arm in findings.arms:
            each = (by_each_further(findings.matrix, name, arm, along.path) for name, _ in _ADDED)
            rows.append((*_named(server), Cell(arm.label), *(Cell(plus_minus(one)) for one in each)))
    if not rows:
        return None
    units = {name: told[0].matrix.metrics[name].unit for name, _ in _ADDED}
    heads = (*(["Server"] if any(whose) else []), "Arm", *(f"{title} [{units[name]}]" for name, title in _ADDED))
    which = "at which a deployment met the objective" if any(is_held(f.matrix) for f in told) else "that are valid"
    if any(stalled(f.matrix) for f in told):
        which += f" and at which viewers stalled for no more than {MOST_STALLED_PERCENT:g} % of the time"
    notes = (
        f"The slope of a straight line (least squares) through the levels, three at least, {which}; mean over blocks "
        f"with 95 % intervals. It says nothing of {along.many} beyond the highest of them.",
    )
    return Table(f"{along.prefix}-added", f"What each further {along.one} takes", heads, tuple(rows), notes)
