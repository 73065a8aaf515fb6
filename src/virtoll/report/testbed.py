"""What a testbed's report shows besides: its figures by question, the slices over time, and the table of experiments.

A probe over slices answers several questions, each by a sweep of its own; `_QUESTIONS` says which settings make which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from virtoll.analysis.experiments import Answer, Experiments, Kind, read_experiments
from virtoll.analysis.matrix import Condition, Matrix
from virtoll.analysis.metrics import Metric
from virtoll.report.drawing import Figure
from virtoll.report.findings import Findings
from virtoll.report.probe_views import View
from virtoll.report.tables import Cell, Table
from virtoll.report.time_series import processes_figure, steps_figure

_LEAST_LEVELS = 3  # that make a sweep


@dataclass(frozen=True)
class _Question:
    """A figure: quantities of one unit against one setting of their probe, in the cases that fit ``where``.

    ``where``: by setting, whether it must be set. Of these cases, those that differ in nothing else make a panel.
    """

    name: str
    question: str
    probe: str
    keys: tuple[str, ...]
    setting: str
    axis: str
    where: Mapping[str, bool] = field(default_factory=dict)
    remark: str = ""
    distribution: bool = False
    linear: bool = False


_PLAIN = {"other_rate_bit_per_s": False, "packets": False, "steps": False}
_ROW = {"other_rate_bit_per_s": False, "packets": True, "steps": False}

_QUESTIONS = (
    _Question(
        "flow-load", "What gets through, by offered load?", "flow", ("throughput_mbit_per_s",),
        "rate_bit_per_s", "offered load, each slice", _PLAIN, "Means over both slices.", linear=True,
    ),
    _Question(
        "flow-variation", "How much does the throughput vary, by offered load?", "flow", ("throughput_sd_mbit_per_s",),
        "rate_bit_per_s", "offered load, each slice", _PLAIN,
        "Standard deviation from interval to interval at the receiver; the paper's is a variance, its square.",
        linear=True,
    ),
    _Question(
        "flow-size", "What gets through, by size of the packets?", "flow", ("throughput_mbit_per_s",),
        "size_bytes", "payload of a datagram", _PLAIN, "Payload alone: small datagrams leave more to their headers.",
    ),
    _Question(
        "flow-arrivals", "How far apart do packets arrive?", "flow", ("interarrival_us",),
        "size_bytes", "payload of a datagram", _ROW, distribution=True,
    ),
    _Question(
        "flow-jitter", "How unsteadily do packets arrive?", "flow", ("jitter_us", "interarrival_sd_us"),
        "size_bytes", "payload of a datagram", _ROW,
    ),
    _Question(
        "flow-coupling", "Does slice 1 feel the load of slice 2?", "flow", ("slice1_throughput_mbit_per_s",),
        "other_rate_bit_per_s", "offered load of slice 2", {"other_rate_bit_per_s": True, "packets": False},
        "Of slice 1 alone: a level line is no coupling.",
    ),
    _Question(
        "ping", "How long is a round trip, and is it the same in both slices?", "ping",
        ("round_trip_mean_us", "slice1_round_trip_mean_us", "slice2_round_trip_mean_us"),
        "packets_per_s", "requests a second, each slice", distribution=True,
    ),
    _Question(
        "transfer", "How long does a file take by FTP?", "transfer", ("transfer_s",),
        "rate_bit_per_s", "rate of the channel",
    ),
)  # fmt: skip


def views_of_slices(findings: Findings, headline: Metric) -> list[View]:
    """The questions that this run's cases of a probe answer; none where it is no probe of the testbed."""
    asked = (question for question in _QUESTIONS if question.probe == headline.group)
    return [view for question in asked if (view := _view(findings.matrix, question)) is not None]


def _view(matrix: Matrix, asked: _Question) -> View | None:
    path = f"{asked.probe}.{asked.setting}"
    metrics = [metric for key in asked.keys if (metric := matrix.metrics.get(f"{asked.probe}.{key}")) is not None]
    entries = []
    for metric in metrics:
        for cases in _sweeps(matrix, metric, asked, path):
            entries += [(metric, case, words) for case, words in cases]
    if not entries:
        return None
    several = len(metrics) > 1
    named = tuple(
        (metric, case, ", ".join(part for part in (metric.title if several else "", words) if part))
        for metric, case, words in entries
    )
    return View(
        metrics=tuple(metrics),
        sweep=path,
        entries=named,
        name=asked.name,
        question=asked.question,
        axis=asked.axis,
        linear=asked.linear,
        remark=asked.remark,
        distribution=asked.distribution,
    )


def _sweeps(matrix: Matrix, metric: Metric, asked: _Question, path: str) -> Iterator[list[tuple[Condition, str]]]:
    """The cases that differ in the path alone, group by group, each with what tells its group from the others."""
    groups: dict[Condition, list[Condition]] = {}
    for case in matrix.conditions_of(metric.name):
        if case.get(path) is not None and _fits(case, asked):
            rest = Condition(tuple(level for level in case.levels if level[0] != path))
            groups.setdefault(rest, []).append(case)
    found = {rest: cases for rest, cases in groups.items() if len(cases) >= _LEAST_LEVELS}
    paths = dict.fromkeys(name for rest in found for name, _ in rest.levels)
    varying = tuple(name for name in paths if len({rest.get(name) for rest in found}) > 1)
    for rest, cases in found.items():
        words = rest.label(varying) if varying else ""
        yield [(case, words) for case in cases]


def _fits(case: Condition, asked: _Question) -> bool:
    return all(is_set(case.get(f"{asked.probe}.{setting}")) == wanted for setting, wanted in asked.where.items())


def is_set(level: Any) -> bool:
    """Whether a setting is more than its "none" or "" ."""
    return level is not None and level != ""


def time_figures(findings: Findings) -> list[Figure | None]:
    """The slices over time: throughput about the steps, processes under the bombs."""
    return [steps_figure(findings), processes_figure(findings)]


def experiments_table(findings: Findings) -> Table | None:
    """What can be experimented with on each arm, beside what the paper says of its class; None in other studies."""
    known = read_experiments()
    if known.claims not in findings.run.study.get("claims", ()):
        return None
    groups = _alike(known, list(dict.fromkeys(arm.platform for arm in findings.arms)))
    rows = []
    for kind in known.kinds:
        answers = [known.answer(kind, group[0]) for group in groups]
        here = (Cell(known.answers[one.answer]) for one in answers)
        rows.append((Cell(kind.name), Cell(_printed(known, kind)), *here, Cell(_reasons(groups, answers))))
    heads = ("Experiments", "In the paper", *(" and ".join(group) for group in groups), "Why")
    notes = (
        *(f"{' and '.join(group)}: {known.platforms[group[0]].why}." for group in groups),
        f"{known.paper} of the paper: {' '.join(f'{mark} {text}' for mark, text in known.footnotes.items())}",
    )
    return Table("experiments", "Which experiments each platform supports", heads, tuple(rows), notes)


def _alike(known: Experiments, platforms: Sequence[str]) -> list[list[str]]:
    """The platforms that the table knows, those with the same answers together."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for platform in platforms:
        if platform in known.platforms:
            answers = tuple(known.answer(kind, platform) for kind in known.kinds)
            groups.setdefault((known.platforms[platform], answers), []).append(platform)
    return list(groups.values())


def _reasons(groups: Sequence[Sequence[str]], answers: Sequence[Answer]) -> str:
    """``native: REASON; docker, lxc: REASON``, each reason once; the reason alone where all have the same."""
    whose: dict[str, list[str]] = {}
    for group, one in zip(groups, answers, strict=True):
        whose.setdefault(one.why, []).extend(group)
    if len(whose) == 1:
        return next(iter(whose))
    return "; ".join(f"{', '.join(platforms)}: {why}" for why, platforms in whose.items())


def _printed(known: Experiments, kind: Kind) -> str:
    """``Yes``, or ``full: In Kernel; para: Overlay*; ...`` where the classes differ."""
    if len(set(kind.printed.values())) == 1:
        return next(iter(kind.printed.values()))
    return "; ".join(f"{known.classes[one]}: {words}" for one, words in kind.printed.items())


def tables_of_slices(findings: Findings) -> Sequence[Table]:
    """The table of experiments, where it belongs."""
    table = experiments_table(findings)
    return [] if table is None else [table]
