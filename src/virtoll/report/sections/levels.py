"""What a server takes as more viewers come, or more is asked of it a second, and how well they are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from virtoll.analysis.metrics import Metric
from virtoll.analysis.server import is_by_participants, level_path
from virtoll.report.by_level import CPU, MEMORY, PACKETS, TRAFFIC, Along, Asked, added, differences, view_of, views
from virtoll.report.drawing import Figure
from virtoll.report.findings import Findings
from virtoll.report.probe_views import View, view_figures
from virtoll.report.sections.base import Section
from virtoll.report.tables import Table


class Levels(Section):
    """Curves against an open load's intensity, and what each further one costs; of several servers beside each other a
    panel each.
    """

    name: ClassVar[str] = "levels"
    summary: ClassVar[str] = "What does it cost as more is asked of it?"
    rank: ClassVar[int] = 216

    def applies(self, findings: Findings) -> bool:
        """Where trials are at several levels of the intensity; conferences have a section of their own."""
        is_load = findings.is_load and not findings.is_search
        return is_load and bool(level_path(findings.run)) and not is_by_participants(findings.run)

    def figures(self, findings: Findings) -> list[Figure]:
        """A view each."""
        return view_figures(findings, _views(findings))

    def tables(self, findings: Findings) -> list[Table]:
        """Differences to native, and what each further one adds."""
        along, whose = _along(findings), _whose(findings)
        made = [differences(whose, along), added(whose, along)]
        return [table.placed(table.caption) for table in made if table is not None]

    def method(self, findings: Findings) -> list[str]:  # noqa: ARG002
        """What a level is, and what is counted."""
        return [_LEVELS]


_LEVELS = (
    "**Packets are counted on the links** of the instance's side, to generators and origin, the same place for every "
    "platform and network mode: all that passes there in the window, the service's, its kernel's and its peers'. "
    "Beside other servers or neighbours, whose packets pass the same links, none are told."
)


def _along(findings: Findings) -> Along:
    path = level_path(findings.run)
    if path == "load.viewers":
        return Along(path, "levels", "viewer", "viewers")
    return Along(path, "levels", f"{findings.request} a second", f"{findings.requests}/s")


def _whose(findings: Findings) -> Mapping[str, Findings]:
    return {name: each for name, each in findings.servers.items() if not each.is_search} or {"": findings}


def _views(findings: Findings) -> list[View]:
    """Of one server as the host books it and as it is seen inside; of several as the host does."""
    asked = [CPU, MEMORY, TRAFFIC, PACKETS, _latency(findings)]
    if findings.servers:
        asked = [_BOOKED, _HELD, PACKETS, _latency(findings)]
    return [*views(findings, _along(findings), asked), *_felt(findings)]


_BOOKED = Asked("cpu", "How much CPU does each server take?", ("server_cpus",), remark="As the host books it.")
_HELD = Asked("memory", "How much memory does each server take?", ("memory_mean_mib",), remark="As the host books it.")


def _latency(findings: Findings) -> Asked:
    metrics = ("latency_p50_ms",) if findings.servers else ("latency_p50_ms", "latency_p90_ms")
    return Asked("latency", f"How long does a {findings.request} take?", metrics, is_from_0=False)


def _felt(findings: Findings) -> list[View]:
    """The loads' own shares of which more, or less, is better: what several loads call the same, in one view."""
    alike: dict[str, list[Metric]] = {}
    for metric in findings.own:
        if metric.unit == "%":
            alike.setdefault(metric.title, []).append(metric)
    found = []
    for title, metrics in alike.items():
        name = metrics[0].name.partition(".")[2].removesuffix("_percent").replace("_", "-")
        if view := view_of(findings, _along(findings), Asked(name, title, ()), metrics, word=title):
            found.append(view)
    return found
