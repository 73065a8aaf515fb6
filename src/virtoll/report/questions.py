"""Questions that a study asks of a probe, as data beside it (virtoll/studies/views): each is a view of its own."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from pydantic import BaseModel, ConfigDict

from virtoll.analysis.conditions import Condition
from virtoll.analysis.matrix import Matrix
from virtoll.analysis.metrics import Metric
from virtoll.report.findings import Findings
from virtoll.report.probe_views import View

_LEAST_LEVELS = 3  # that make a sweep


class Question(BaseModel):
    """A figure: quantities of one unit against one setting of their probe.

    Of the cases in which ``is_set`` and ``is_unset`` hold, those that differ in nothing but ``setting`` make a panel.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str  # of the figure
    question: str
    probe: str
    quantities: tuple[str, ...]
    setting: str
    axis: str
    is_set: tuple[str, ...] = ()
    is_unset: tuple[str, ...] = ()
    remark: str = ""
    distribution: bool = False  # whether the single events behind it are shown too
    linear: bool = False  # the axis, whatever it spans


@cache
def questions(study: str) -> tuple[Question, ...]:
    """Those that lie beside a ready-made study."""
    text = (files("virtoll.studies") / "views" / f"{study}.toml").read_text("utf-8")
    return tuple(Question.model_validate(view) for view in tomllib.loads(text)["view"])


def views_of_slices(findings: Findings, headline: Metric) -> list[View]:
    """The questions that this run's cases of a probe answer; none where it is no probe of the testbed."""
    asked = (question for question in questions("testbed") if question.probe == headline.group)
    return [view for question in asked if (view := _view(findings.matrix, question)) is not None]


def _view(matrix: Matrix, asked: Question) -> View | None:
    path = f"{asked.probe}.{asked.setting}"
    metrics = [metric for key in asked.quantities if (metric := matrix.metrics.get(f"{asked.probe}.{key}")) is not None]
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


def _sweeps(matrix: Matrix, metric: Metric, asked: Question, path: str) -> Iterator[list[tuple[Condition, str]]]:
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


def _fits(case: Condition, asked: Question) -> bool:
    """Whether what must be set is more than its "none" or "", and what must not is not."""
    is_set = {s: case.get(f"{asked.probe}.{s}") not in (None, "") for s in (*asked.is_set, *asked.is_unset)}
    return all(is_set[s] for s in asked.is_set) and not any(is_set[s] for s in asked.is_unset)
